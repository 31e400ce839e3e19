/* mf_prompt: find the longest beginning that is known, evaluate the rest, remember states on the way. */
#include <string.h>

#include "engine/cache.h"

/* Positions between remembered states of a long prompt, rounded up to whole chunks. */
#define REMEMBER_EVERY 2048

/* How much of the tokens the session itself holds and could go on from. A recurrent state is whole or useless. */
static int64_t held_prefix(const mf_session *s, const int32_t *tokens, int64_t n) {
    int64_t same = 0, most = s->length < n ? s->length : n;
    while (same < most && s->tokens[same] == tokens[same]) same++;
    return s->model->recurrent_floats && same < s->length ? 0 : same;
}

/* Brings the session to a known prefix: the frozen state, which is freed, or what it holds itself. */
static mf_status go_back_to(mf_session *s, mf__frozen *f, int64_t held, mf_error *err) {
    mf_status st = MF_OK;
    mf__model_lock(s->model);
    if (f)
        st = mf__thaw(s, f, f->length, err);
    else
        s->length = held;
    mf__frozen_free(s->model, f);
    mf__model_unlock(s->model);
    return st;
}

/* The next position after `at` where a state is worth keeping, or n. A mark at the end is kept one token earlier: the
 * last token is evaluated in any case, for its logits, so the same prompt can use nothing longer. */
static int64_t next_stop(const mf_session *s, int64_t at, int64_t n, const int64_t *marks, size_t n_marks) {
    int64_t chunk = s->opt.n_chunk, every = (REMEMBER_EVERY + chunk - 1) / chunk * chunk;
    int64_t stop = s->model->cache ? (at / every + 1) * every : n;
    for (size_t i = 0; s->model->cache && i < n_marks; i++) {
        int64_t mark = marks[i] < n ? marks[i] : n - 1;
        if (mark > at && mark < stop) stop = mark;
    }
    return stop < n ? stop : n;
}

static mf_status freeze(mf_session *s, mf__frozen **out, mf_error *err) {
    mf__model_lock(s->model);
    mf_status st = mf__freeze(s, out, err);
    mf__model_unlock(s->model);
    return st;
}

/* Where memory is short for a state in the cache, there is none: the prompt itself does not need it. */
static mf_status keep(mf_session *s, mf_error *err) {
    mf_status st = mf_prompt_keep(s, err);
    if (st != MF_E_NOMEM) return st;
    mf__log(&s->model->log, MF_LOG_DEBUG, "prompt cache: no memory for a state of %lld tokens", (long long)s->length);
    return MF_OK;
}

/* Room for all of the prompt, before time is spent on its beginning. */
static mf_status make_room(mf_session *s, int64_t n, mf_error *err) {
    mf__model_lock(s->model);
    mf_status st = mf__session_make_room(s, n, err);
    if (st == MF_E_NOMEM) st = mf__memory_error(s, n, err);
    mf__model_unlock(s->model);
    return st;
}

/* Evaluates from what the session holds to the end, and keeps states on the way. */
static mf_status run(mf_session *s, const int32_t *tokens, int64_t n, const int64_t *marks, size_t n_marks,
                     float *logits, mf_error *err) {
    MF__TRY(make_room(s, n, err));
    while (s->length < n) {
        int64_t stop = next_stop(s, s->length, n, marks, n_marks);
        mf_part part = {.session = s,
                        .tokens = tokens + s->length,
                        .n_tokens = (size_t)(stop - s->length),
                        .logits = logits,
                        .n_logits = stop == n};
        MF__TRY(mf_eval(s->model, &part, 1, err));
        if (stop < n) MF__TRY(keep(s, err));
    }
    return MF_OK;
}

/* Back to what the session held; where that had to give way, it keeps what it has of the prompt. */
static void undo(mf_session *s, mf__frozen *before) {
    mf_error why;
    mf__model_lock(s->model);
    if (before && mf__thaw(s, before, before->length, &why) != MF_OK) s->length = 0; /* the device is lost */
    mf__frozen_free(s->model, before);
    mf__model_unlock(s->model);
}

/* Pages that the session must still get once nobody holds `before` any more, and whether it gains any by that: those
 * that only the two share become its own. */
static int64_t pages_wanted(const mf_session *s, const mf__frozen *before, int64_t n, bool *gains) {
    int64_t wanted = (n + MF_KV_BLOCK - 1) / MF_KV_BLOCK - s->n_pages;
    if (wanted < 0) wanted = 0;
    for (int32_t i = (int32_t)(s->length / MF_KV_BLOCK); i < s->n_pages; i++) {
        bool both = i < before->n_pages && before->pages[i] == s->pages[i];
        if (s->pages[i]->refs > 1 + both) wanted++;
        if (both) *gains = true;
    }
    return wanted;
}

/* Memory is short, and what the session held before takes at least as much as is still wanted: it gives way, since
 * without it the rest is sure to fit. */
static bool give_way(mf_session *s, int64_t n, mf__frozen **before) {
    mf_model *m = s->model;
    bool gains = false;
    if (!*before) return false;
    mf__model_lock(m);
    int64_t wanted = pages_wanted(s, *before, n, &gains) * m->kv.page_bytes;
    int64_t freed = (*before)->recurrent ? m->recurrent_floats * (int64_t)sizeof(float) : 0;
    for (int32_t i = 0; i < (*before)->n_pages; i++) freed += (*before)->pages[i]->refs == 1 ? m->kv.page_bytes : 0;
    bool enough = (*before)->refs == 1 && (gains || freed > 0) && freed >= wanted;
    if (enough) {
        mf__frozen_free(m, *before);
        *before = NULL;
    }
    mf__model_unlock(m);
    return enough;
}

/* What the session holds is put aside only where it could be lost: a single call of mf_eval that goes on from it leaves
 * it as it was by itself. Where memory is too short for that, it is lost if something fails. */
static mf_status put_aside(mf_session *s, bool goes_on, mf__frozen **before, mf_error *err) {
    *before = NULL;
    if (goes_on) return MF_OK;
    mf_status st = freeze(s, before, err);
    return st == MF_E_NOMEM ? MF_OK : st;
}

static mf_status run_or_undo(mf_session *s, const int32_t *tokens, int64_t n, const int64_t *marks, size_t n_marks,
                             float *logits, int64_t *n_reused, mf_error *err) {
    mf__frozen *before, *found = NULL;
    int64_t held = held_prefix(s, tokens, n - 1); /* the last token is evaluated for its logits */
    mf__cache_find(s->model, tokens, n - 1, held, MF__CACHE_ALL, &found);
    bool goes_on = !found && held == s->length && next_stop(s, held, n, marks, n_marks) == n;
    mf_status st = put_aside(s, goes_on, &before, err);
    if (st != MF_OK) {
        mf__frozen_drop(s->model, found);
        return st;
    }
    st = go_back_to(s, found, held, err);
    *n_reused = s->length;
    if (st == MF_OK) st = run(s, tokens, n, marks, n_marks, logits, err);
    if (st == MF_E_NOMEM && give_way(s, n, &before)) st = run(s, tokens, n, marks, n_marks, logits, err);
    if (st == MF_OK)
        mf__frozen_drop(s->model, before);
    else
        undo(s, before);
    return st;
}

static mf_status check(const mf_session *s, const int32_t *tokens, size_t n, mf_error *err) {
    if (!s || !tokens || n == 0)
        return mf__fail(err, MF_E_INVALID, "mf_prompt: an argument is NULL or the prompt is empty");
    if (n > (size_t)s->opt.n_ctx)
        return mf__fail(err, MF_E_CONTEXT_FULL, "%zu tokens do not fit in a context of %d", n, s->opt.n_ctx);
    return mf__check_tokens(s, tokens, n, err);
}

mf_status mf_prompt(mf_session *s, const int32_t *tokens, size_t n, const int64_t *marks, size_t n_marks, float *logits,
                    size_t logits_len, int64_t *n_reused, mf_error *err) {
    int64_t reused = 0;
    if (n_reused) *n_reused = 0;
    MF__TRY(check(s, tokens, n, err));
    if (!logits || (n_marks && !marks))
        return mf__fail(err, MF_E_INVALID, "mf_prompt: %s is NULL", logits ? "marks" : "logits");
    if (logits_len != (size_t)s->model->info.n_vocab)
        return mf__fail(err, MF_E_INVALID, "logits has room for %zu values, expected %d", logits_len,
                        s->model->info.n_vocab);
    if (n_marks > n) return mf__fail(err, MF_E_INVALID, "%zu marks in a prompt of %zu tokens", n_marks, n);
    for (size_t i = 0; i < n_marks; i++)
        if (marks[i] < 1 || marks[i] > (int64_t)n || (i && marks[i] <= marks[i - 1]))
            return mf__fail(err, MF_E_INVALID, "mark %zu is %lld; marks rise from 1 to %zu", i, (long long)marks[i], n);
    mf_status st = run_or_undo(s, tokens, (int64_t)n, marks, n_marks, logits, &reused, err);
    if (st == MF_OK && n_reused) *n_reused = reused;
    return st;
}

static mf_status begin(mf_session *s, const int32_t *tokens, size_t n, mf__cache_where where, int64_t *n_reused,
                       mf_error *err) {
    if (n_reused) *n_reused = 0;
    MF__TRY(check(s, tokens, n, err));
    mf__frozen *found = NULL;
    int64_t held = held_prefix(s, tokens, (int64_t)n - 1);
    mf__cache_find(s->model, tokens, (int64_t)n - 1, held, where, &found);
    MF__TRY(go_back_to(s, found, held, err));
    if (n_reused) *n_reused = s->length;
    return MF_OK;
}

mf_status mf_prompt_begin(mf_session *s, const int32_t *tokens, size_t n, int64_t *n_reused, mf_error *err) {
    return begin(s, tokens, n, MF__CACHE_ALL, n_reused, err);
}

mf_status mf_prompt_begin_memory(mf_session *s, const int32_t *tokens, size_t n, int64_t *n_reused, mf_error *err) {
    return begin(s, tokens, n, MF__CACHE_MEMORY, n_reused, err);
}

static mf_status keep_in(mf_session *s, mf__cache_where where, mf_error *err) {
    mf__frozen *f;
    if (!s)
        return mf__fail(err, MF_E_INVALID, "mf_prompt_keep%s: session is NULL",
                        where == MF__CACHE_MEMORY ? "_memory" : "");
    if (!s->model->cache) return MF_OK;
    MF__TRY(freeze(s, &f, err));
    mf_status st = mf__cache_put(s->model, f, where, err);
    mf__frozen_drop(s->model, f);
    return st;
}

mf_status mf_prompt_keep(mf_session *s, mf_error *err) {
    return keep_in(s, MF__CACHE_ALL, err);
}

mf_status mf_prompt_keep_memory(mf_session *s, mf_error *err) {
    return keep_in(s, MF__CACHE_MEMORY, err);
}
