/* The public evaluation calls. All of them are mf_eval: check every part, cut it into chunks, evaluate the chunks of
 * all parts in passes, commit each part when its last chunk is through.
 *
 * Chunks end at multiples of the session's n_chunk, whatever the first position and the company: a prompt evaluated
 * from its beginning and one that goes on from a state restored at such a point are cut alike, and so agree bit for
 * bit. The first chunk of a call reads the committed state and writes the other half; the rest go on in that half. */
#include <stdint.h>

#include "engine/internal.h"

/* A part on its way. */
typedef struct job {
    mf_part *part;
    mf_session *s;
    size_t done;
    int n_passes;
    bool alone; /* a pass that it was in has failed: the others must not suffer from it, nor it from them */
} job;

/* One call. */
typedef struct eval {
    mf_model *m;
    job jobs[MF_MAX_BATCH];
    size_t n;
    const mf_part *failed; /* the first of the parts that failed, and why; NULL: none */
    mf_error why;
} eval;

/* ---- checks ------------------------------------------------------------------------------------------------------ */

mf_status mf__check_tokens(const mf_session *s, const int32_t *tokens, size_t n, mf_error *err) {
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= s->model->info.n_vocab)
            return mf__fail(err, MF_E_TOKEN, "token %zu is %d, the vocabulary has 0 to %d", i, tokens[i],
                            s->model->info.n_vocab - 1);
    return MF_OK;
}

static mf_status check_room(const mf_session *s, size_t n, mf_error *err) {
    if (n > (size_t)(s->opt.n_ctx - s->length))
        return mf__fail(err, MF_E_CONTEXT_FULL, "%zu tokens after %lld do not fit in a context of %d", n,
                        (long long)s->length, s->opt.n_ctx);
    return MF_OK;
}

static mf_status check_part(const mf_model *m, const mf_part *parts, size_t i, mf_error *err) {
    const mf_part *p = &parts[i];
    if (!p->session) return mf__fail(err, MF_E_INVALID, "part %zu has no session", i);
    if (p->session->model != m) return mf__fail(err, MF_E_INVALID, "the session of part %zu is of another model", i);
    for (size_t k = 0; k < i; k++)
        if (parts[k].session == p->session)
            return mf__fail(err, MF_E_INVALID, "parts %zu and %zu have the same session", k, i);
    if (p->n_tokens && !p->tokens) return mf__fail(err, MF_E_INVALID, "part %zu has no tokens", i);
    if (p->n_logits > p->n_tokens)
        return mf__fail(err, MF_E_INVALID, "%zu rows of logits asked for %zu tokens", p->n_logits, p->n_tokens);
    if (p->n_logits && !p->logits)
        return mf__fail(err, MF_E_INVALID, "part %zu wants %zu rows of logits and has no room for them", i,
                        p->n_logits);
    MF__TRY(check_room(p->session, p->n_tokens, err)); /* before tokens are looked at: there are not more than fit */
    return mf__check_tokens(p->session, p->tokens, p->n_tokens, err);
}

/* How a part ended that did not succeed. */
static void fail_part(eval *e, mf_part *p, mf_status st, const mf_error *why) {
    p->status = st;
    if (p->error) *p->error = *why;
    if (e->failed && e->failed < p) return;
    e->failed = p;
    e->why = *why;
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static bool is_open(const job *j) {
    return j->part->status == MF_OK && j->done < j->part->n_tokens;
}

static int32_t chunk_rows(const job *j) {
    int64_t pos = j->s->length + (int64_t)j->done;
    size_t left = j->part->n_tokens - j->done;
    int32_t n = j->s->opt.n_chunk - (int32_t)(pos % j->s->opt.n_chunk);
    return (size_t)n < left ? n : (int32_t)left;
}

static mf__pass_part chunk_of(const job *j) {
    mf_part *p = j->part;
    size_t unwanted = p->n_tokens - p->n_logits, end = j->done + (size_t)chunk_rows(j);
    size_t first = j->done > unwanted ? j->done : unwanted, rows = end > first ? end - first : 0;
    return (mf__pass_part){.session = j->s,
                           .tokens = p->tokens + j->done,
                           .n_rows = chunk_rows(j),
                           .pos = j->s->length + (int64_t)j->done,
                           .logits = rows ? p->logits + (first - unwanted) * (size_t)j->s->model->info.n_vocab : NULL,
                           .n_logits = (int32_t)rows,
                           .fresh = j->done == 0,
                           .cancel = p->cancel,
                           .cancel_user = p->cancel_user};
}

/* Rows that want logits together at the end, so that what only some rows go through is one run of rows. */
static int rank(const mf__pass_part *p) {
    return p->n_logits == 0 ? 0 : p->n_logits < p->n_rows ? 1 : 2;
}

/* A pass in the making: which jobs have a chunk in it. */
typedef struct plan {
    mf__pass_part parts[MF_MAX_BATCH];
    job *jobs[MF_MAX_BATCH];
    int n;
    int32_t n_rows;
} plan;

static void add_chunk(plan *p, job *j) {
    mf__pass_part part = chunk_of(j);
    int at = p->n++;
    for (; at > 0 && rank(&p->parts[at - 1]) > rank(&part); at--) {
        p->parts[at] = p->parts[at - 1];
        p->jobs[at] = p->jobs[at - 1];
    }
    p->parts[at] = part;
    p->jobs[at] = j;
    p->n_rows += part.n_rows;
}

/* The chunks of one pass: of the jobs that have had the fewest passes first, as many as there are rows for. A job that
 * must be alone is. */
static void choose_chunks(eval *e, int32_t max_rows, plan *p) {
    int fewest = INT32_MAX, most = 0;
    p->n = p->n_rows = 0;
    for (size_t i = 0; i < e->n; i++) {
        if (!is_open(&e->jobs[i])) continue;
        if (e->jobs[i].n_passes < fewest) fewest = e->jobs[i].n_passes;
        if (e->jobs[i].n_passes > most) most = e->jobs[i].n_passes;
    }
    for (int passes = fewest; passes <= most; passes++)
        for (size_t i = 0; i < e->n; i++) {
            job *j = &e->jobs[i];
            if (!is_open(j) || j->n_passes != passes) continue;
            if (p->n && (j->alone || p->n_rows + chunk_rows(j) > max_rows)) continue;
            add_chunk(p, j);
            if (j->alone) return;
        }
}

/* The most rows that a pass may have: the largest chunk and a token of everybody else, if there is memory for it. */
static int32_t pass_rows(const eval *e) {
    int32_t rows = 0;
    for (size_t i = 0; i < e->n; i++)
        if (is_open(&e->jobs[i]) && e->jobs[i].s->opt.n_chunk > rows) rows = e->jobs[i].s->opt.n_chunk;
    return rows + MF_MAX_BATCH;
}

static mf_status plan_pass(eval *e, plan *p, mf_error *err) {
    choose_chunks(e, pass_rows(e), p);
    mf_status st = mf__workspace_reserve(e->m, p->n_rows, err);
    if (st != MF_E_NOMEM || p->n < 2) return st;
    choose_chunks(e, e->m->ws.n_rows, p); /* what there is room for */
    return mf__workspace_reserve(e->m, p->n_rows, err);
}

static void advance(eval *e, const mf__pass_part *done, job *j) {
    mf_part *p = j->part;
    if (done->cancelled) {
        mf_error why;
        mf__fail(&why, MF_E_CANCELLED, "stopped by the caller");
        fail_part(e, p, MF_E_CANCELLED, &why);
        return;
    }
    j->n_passes++;
    j->done += (size_t)done->n_rows;
    if (j->done == p->n_tokens) mf__session_commit(j->s, p->tokens, (int64_t)p->n_tokens);
}

/* What a failed pass means for those who were in it. Alone, that it failed; in company, that each tries again alone.
 * One that was in the middle begins anew, since the half that it went on in is spoilt. */
static void take_failure(eval *e, plan *p, mf_status st, const mf_error *why) {
    for (int i = 0; i < p->n; i++) {
        job *j = p->jobs[i];
        if (p->n == 1 || st == MF_E_CANCELLED) {
            fail_part(e, j->part, st, why);
        } else {
            j->alone = true;
            j->done = 0;
        }
    }
}

/* One pass. Under lock. */
static void run_pass(eval *e) {
    plan p;
    mf_error why = {0};
    for (size_t i = 0; i < e->n; i++) {
        job *j = &e->jobs[i];
        if (!is_open(j) || j->done) continue;
        int64_t length = j->s->length + (int64_t)j->part->n_tokens;
        mf_status st = mf__session_make_room(j->s, length, &why);
        if (st == MF_E_NOMEM) mf__memory_error(j->s, length, &why);
        if (st != MF_OK) fail_part(e, j->part, st, &why);
    }
    mf_status st = plan_pass(e, &p, &why);
    if (!p.n) return;
    if (st == MF_OK) st = mf__forward(&(mf__pass){.model = e->m, .parts = p.parts, .n = p.n}, &why);
    if (st != MF_OK)
        take_failure(e, &p, st, &why);
    else
        for (int i = 0; i < p.n; i++) advance(e, &p.parts[i], p.jobs[i]);
}

static bool any_open(const eval *e) {
    for (size_t i = 0; i < e->n; i++)
        if (is_open(&e->jobs[i])) return true;
    return false;
}

mf_status mf_eval(mf_model *m, mf_part *parts, size_t n_parts, mf_error *err) {
    if (!m || (n_parts && !parts)) return mf__fail(err, MF_E_INVALID, "mf_eval: an argument is NULL");
    if (n_parts > MF_MAX_BATCH)
        return mf__fail(err, MF_E_INVALID, "mf_eval: %zu parts, at most %d can be evaluated together", n_parts,
                        MF_MAX_BATCH);
    eval e = {.m = m, .n = n_parts};
    for (size_t i = 0; i < n_parts; i++) {
        mf_error why = {0};
        parts[i].status = MF_OK;
        mf_status st = check_part(m, parts, i, &why);
        if (st != MF_OK) fail_part(&e, &parts[i], st, &why);
        e.jobs[i] = (job){.part = &parts[i], .s = parts[i].session};
    }
    while (any_open(&e)) {
        mf__model_lock(m); /* let go between passes: others get theirs */
        run_pass(&e);
        mf__model_unlock(m);
    }
    if (!e.failed) return MF_OK;
    if (err) *err = e.why;
    return e.failed->status;
}

/* ---- the same, for one session or one token each ----------------------------------------------------------------- */

mf_status mf_eval_prompt(mf_session *s, const int32_t *tokens, size_t n, int64_t start_pos, float *logits,
                         size_t logits_len, mf_error *err) {
    if (!s) return mf__fail(err, MF_E_INVALID, "mf_eval_prompt: session is NULL");
    size_t vocab = (size_t)s->model->info.n_vocab;
    if (logits_len % vocab || (logits_len && !logits))
        return mf__fail(err, MF_E_INVALID,
                        "logits has room for %zu values; a multiple of the vocabulary (%zu) is needed",
                        logits ? logits_len : 0, vocab);
    if (n == 0) return MF_OK;
    if (start_pos != s->length)
        return mf__fail(err, MF_E_POSITION, "start position is %lld, the session holds %lld tokens",
                        (long long)start_pos, (long long)s->length);
    mf_part part = {.session = s, .tokens = tokens, .n_tokens = n, .logits = logits, .n_logits = logits_len / vocab};
    return mf_eval(s->model, &part, 1, err);
}

mf_status mf_eval_token(mf_session *s, int32_t token, int64_t pos, float *logits, size_t logits_len, mf_error *err) {
    if (!s) return mf__fail(err, MF_E_INVALID, "mf_eval_token: session is NULL");
    if (logits_len != (size_t)s->model->info.n_vocab)
        return mf__fail(err, MF_E_INVALID, "logits has room for %zu values, expected %d", logits_len,
                        s->model->info.n_vocab);
    return mf_eval_prompt(s, &token, 1, pos, logits, logits_len, err);
}

mf_status mf_eval_batch(mf_session *const *sessions, const int32_t *tokens, int n, float *logits, size_t logits_len,
                        mf_error *err) {
    mf_part parts[MF_MAX_BATCH];
    if (n == 0) return MF_OK;
    if (!sessions || !tokens || !logits || n < 0 || n > MF_MAX_BATCH || !sessions[0])
        return mf__fail(err, MF_E_INVALID, "mf_eval_batch: NULL argument, or %d sessions (1 to %d)", n, MF_MAX_BATCH);
    size_t vocab = (size_t)sessions[0]->model->info.n_vocab;
    if (logits_len != (size_t)n * vocab)
        return mf__fail(err, MF_E_INVALID, "logits has room for %zu values, %d rows of %zu are needed", logits_len, n,
                        vocab);
    for (int i = 0; i < n; i++)
        parts[i] = (mf_part){.session = sessions[i],
                             .tokens = &tokens[i],
                             .n_tokens = 1,
                             .logits = logits + (size_t)i * vocab,
                             .n_logits = 1};
    for (int i = 0; i < n; i++) /* here a part that is not valid refuses all of them */
        MF__TRY(check_part(sessions[0]->model, parts, (size_t)i, err));
    return mf_eval(sessions[0]->model, parts, (size_t)n, err);
}

/* ---- for diagnosis ----------------------------------------------------------------------------------------------- */

static mf_status layer_forward(mf_session *s, int layer, const float *hidden, int32_t n_rows, float *out,
                               mf_error *err) {
    mf__backend *be = s->model->be;
    int64_t bytes = (int64_t)n_rows * s->model->info.n_hidden * (int64_t)sizeof(float);
    mf__pass_part part = {.session = s, .n_rows = n_rows, .pos = s->length, .n_logits = n_rows, .fresh = true};
    MF__TRY(mf__session_make_room(s, s->length + n_rows, err));
    MF__TRY(mf__workspace_reserve(s->model, n_rows, err));
    void *port = s->model->ws.ports[MF_PORT_HIDDEN];
    MF__TRY(be->upload(be, port, hidden, bytes, err));
    MF__TRY(mf__forward_layer(&(mf__pass){.model = s->model, .parts = &part, .n = 1}, layer, err));
    return be->download(be, out, port, bytes, err);
}

mf_status mf_layer_forward(mf_session *s, int layer, const float *hidden, int n_rows, float *out, mf_error *err) {
    if (!s || !hidden || !out) return mf__fail(err, MF_E_INVALID, "mf_layer_forward: an argument is NULL");
    if (layer < 0 || layer >= s->model->info.n_layers)
        return mf__fail(err, MF_E_INVALID, "layer is %d, this model has 0 to %d", layer, s->model->info.n_layers - 1);
    const mf__config *c = &s->model->bp.config;
    if (c->mixer[layer] == MF_MIX_REUSED || c->hc.n > 1 || (c->has.shortcut && !c->dense[layer]))
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "layer %d of the family %s cannot run alone: it needs more of the layers before it than hidden "
                        "states",
                        layer, s->model->info.family);
    if (n_rows < 1 || n_rows > s->opt.n_chunk)
        return mf__fail(err, MF_E_INVALID, "n_rows is %d, expected 1 to the chunk length %d", n_rows, s->opt.n_chunk);
    MF__TRY(check_room(s, (size_t)n_rows, err));
    mf__model_lock(s->model);
    mf_status st = layer_forward(s, layer, hidden, n_rows, out, err);
    mf__model_unlock(s->model);
    return st;
}
