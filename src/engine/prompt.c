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

/* Brings the session to the longest known prefix of at most n tokens. */
static mf_status restore_prefix(mf_session *s, const int32_t *tokens, int64_t n, mf_error *err) {
    mf__frozen *f = NULL;
    int64_t held = held_prefix(s, tokens, n);
    MF__TRY(mf__cache_find(s->model, tokens, n, held, &f, err));
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

/* Evaluates from what the session holds to the end, and keeps states on the way. */
static mf_status run(mf_session *s, const int32_t *tokens, int64_t n, const int64_t *marks, size_t n_marks,
                     float *logits, mf_error *err) {
    while (s->length < n) {
        int64_t stop = next_stop(s, s->length, n, marks, n_marks);
        mf_part part = {.session = s,
                        .tokens = tokens + s->length,
                        .n_tokens = (size_t)(stop - s->length),
                        .logits = logits,
                        .n_logits = stop == n};
        MF__TRY(mf_eval(s->model, &part, 1, err));
        if (stop < n) MF__TRY(mf_prompt_keep(s, err));
    }
    return MF_OK;
}

static mf_status freeze(mf_session *s, mf__frozen **out, mf_error *err) {
    mf__model_lock(s->model);
    mf_status st = mf__freeze(s, out, err);
    mf__model_unlock(s->model);
    return st;
}

/* Back to what the session held; where that had to give way, it keeps what it has of the prompt. */
static void undo(mf_session *s, mf__frozen *before) {
    mf_error why;
    mf__model_lock(s->model);
    if (before && mf__thaw(s, before, before->length, &why) != MF_OK) s->length = 0; /* the device is lost */
    mf__frozen_free(s->model, before);
    mf__model_unlock(s->model);
}

/* Memory is short, and what the session held before has at least the pages that are still wanted: it gives way, since
 * without it the rest is sure to fit. */
static bool give_way(mf_session *s, int64_t n, mf__frozen **before) {
    int64_t wanted = (n + MF_KV_BLOCK - 1) / MF_KV_BLOCK - s->n_pages, freed = 0;
    mf__model_lock(s->model);
    for (int32_t i = 0; i < (*before)->n_pages; i++) freed += (*before)->pages[i]->refs == 1;
    bool enough = (*before)->refs == 1 && freed > 0 && freed >= wanted;
    if (enough) {
        mf__frozen_free(s->model, *before);
        *before = NULL;
    }
    mf__model_unlock(s->model);
    return enough;
}

static mf_status run_or_undo(mf_session *s, const int32_t *tokens, int64_t n, const int64_t *marks, size_t n_marks,
                             float *logits, int64_t *n_reused, mf_error *err) {
    mf__frozen *before = NULL;
    MF__TRY(freeze(s, &before, err));
    mf_status st = restore_prefix(s, tokens, n - 1, err); /* the last token is evaluated for its logits */
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

mf_status mf_prompt_begin(mf_session *s, const int32_t *tokens, size_t n, int64_t *n_reused, mf_error *err) {
    if (n_reused) *n_reused = 0;
    MF__TRY(check(s, tokens, n, err));
    MF__TRY(restore_prefix(s, tokens, (int64_t)n - 1, err));
    if (n_reused) *n_reused = s->length;
    return MF_OK;
}

mf_status mf_prompt_keep(mf_session *s, mf_error *err) {
    mf__frozen *f;
    if (!s) return mf__fail(err, MF_E_INVALID, "mf_prompt_keep: session is NULL");
    if (!s->model->cache) return MF_OK;
    MF__TRY(freeze(s, &f, err));
    mf_status st = mf__cache_put(s->model, f, err);
    mf__frozen_drop(s->model, f);
    return st;
}
