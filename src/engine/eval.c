/* The public evaluation calls: validate everything, make room, walk the chunks, then commit. */
#include "engine/internal.h"

mf_status mf__check_tokens(const mf_session *s, const int32_t *tokens, size_t n, mf_error *err) {
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= s->model->info.n_vocab)
            return mf__fail(err, MF_E_TOKEN, "token %zu is %d, the vocabulary has 0 to %d", i, tokens[i],
                            s->model->info.n_vocab - 1);
    return MF_OK;
}

static mf_status check_place(const mf_session *s, size_t n, int64_t start_pos, mf_error *err) {
    if (start_pos != s->length)
        return mf__fail(err, MF_E_POSITION, "start position is %lld, the session holds %lld tokens",
                        (long long)start_pos, (long long)s->length);
    if (n > (size_t)(s->opt.n_ctx - s->length))
        return mf__fail(err, MF_E_CONTEXT_FULL, "%zu tokens after %lld do not fit in a context of %d", n,
                        (long long)s->length, s->opt.n_ctx);
    return MF_OK;
}

/* Chunks end at multiples of n_chunk, whatever the first position: a prompt evaluated from its beginning and one that
 * goes on from a state restored at such a point are cut alike, and so agree bit for bit. The first chunk reads the
 * committed state and writes the other half; the rest go on in that half. */
mf_status mf__session_walk(mf_session *s, const int32_t *tokens, size_t n, float *logits, size_t n_logits,
                           mf_error *err) {
    size_t skipped = n - n_logits; /* tokens whose logits nobody wants */
    MF__TRY(mf__session_make_room(s, s->length + (int64_t)n, err));
    for (size_t done = 0; done < n;) {
        int64_t pos = s->length + (int64_t)done;
        int32_t len = s->opt.n_chunk - (int32_t)(pos % s->opt.n_chunk);
        if ((size_t)len > n - done) len = (int32_t)(n - done);
        size_t first = done > skipped ? done : skipped, end = done + (size_t)len, rows = end > first ? end - first : 0;
        mf__pass pass = {.sessions = &s,
                         .n_tokens = &len,
                         .pos = &pos,
                         .n = 1,
                         .n_rows = len,
                         .n_logits = (int32_t)rows,
                         .fresh = done == 0};
        float *out = rows ? logits + (first - skipped) * (size_t)s->model->info.n_vocab : NULL;
        MF__TRY(mf__forward(&pass, tokens + done, out, err));
        done = end;
    }
    return MF_OK;
}

mf_status mf_eval_prompt(mf_session *s, const int32_t *tokens, size_t n, int64_t start_pos, float *logits,
                         size_t logits_len, mf_error *err) {
    if (!s) return mf__fail(err, MF_E_INVALID, "mf_eval_prompt: session is NULL");
    size_t vocab = (size_t)s->model->info.n_vocab;
    if (logits_len % vocab || (logits_len && !logits))
        return mf__fail(err, MF_E_INVALID,
                        "logits has room for %zu values; a multiple of the vocabulary (%zu) is needed",
                        logits ? logits_len : 0, vocab);
    if (n == 0) return MF_OK;
    if (!tokens) return mf__fail(err, MF_E_INVALID, "mf_eval_prompt: tokens is NULL");
    if (logits_len / vocab > n)
        return mf__fail(err, MF_E_INVALID, "%zu rows of logits asked for %zu tokens", logits_len / vocab, n);
    MF__TRY(mf__check_tokens(s, tokens, n, err));
    MF__TRY(check_place(s, n, start_pos, err));

    pthread_mutex_lock(&s->model->lock);
    mf_status st = mf__session_walk(s, tokens, n, logits, logits_len / vocab, err);
    if (st == MF_OK) mf__session_commit(s, tokens, (int64_t)n);
    pthread_mutex_unlock(&s->model->lock);
    return st;
}

mf_status mf_eval_token(mf_session *s, int32_t token, int64_t pos, float *logits, size_t logits_len, mf_error *err) {
    if (!s) return mf__fail(err, MF_E_INVALID, "mf_eval_token: session is NULL");
    if (logits_len != (size_t)s->model->info.n_vocab)
        return mf__fail(err, MF_E_INVALID, "logits has room for %zu values, expected %d", logits_len,
                        s->model->info.n_vocab);
    return mf_eval_prompt(s, &token, 1, pos, logits, logits_len, err);
}

static mf_status check_batch(mf_session *const *sessions, const int32_t *tokens, int n, size_t logits_len,
                             mf_error *err) {
    for (int i = 0; i < n; i++) {
        mf_session *s = sessions[i];
        if (!s || s->model != sessions[0]->model)
            return mf__fail(err, MF_E_INVALID, "session %d is %s", i, s ? "of another model" : "NULL");
        for (int k = 0; k < i; k++)
            if (sessions[k] == s) return mf__fail(err, MF_E_INVALID, "sessions %d and %d are the same", k, i);
        MF__TRY(mf__check_tokens(s, tokens + i, 1, err));
        MF__TRY(check_place(s, 1, s->length, err));
    }
    if (logits_len != (size_t)n * (size_t)sessions[0]->model->info.n_vocab)
        return mf__fail(err, MF_E_INVALID, "logits has room for %zu values, %d rows of %d are needed", logits_len, n,
                        sessions[0]->model->info.n_vocab);
    return MF_OK;
}

static mf_status eval_batch(mf_session *const *sessions, const int32_t *tokens, int n, float *logits, mf_error *err) {
    int32_t ones[MF_MAX_BATCH];
    int64_t pos[MF_MAX_BATCH];
    MF__TRY(mf__workspace_reserve(sessions[0]->model, n, err));
    for (int i = 0; i < n; i++) {
        MF__TRY(mf__session_make_room(sessions[i], sessions[i]->length + 1, err));
        ones[i] = 1;
        pos[i] = sessions[i]->length;
    }
    mf__pass pass = {
        .sessions = sessions, .n_tokens = ones, .pos = pos, .n = n, .n_rows = n, .n_logits = n, .fresh = true};
    MF__TRY(mf__forward(&pass, tokens, logits, err));
    for (int i = 0; i < n; i++) mf__session_commit(sessions[i], &tokens[i], 1);
    return MF_OK;
}

mf_status mf_eval_batch(mf_session *const *sessions, const int32_t *tokens, int n, float *logits, size_t logits_len,
                        mf_error *err) {
    if (n == 0) return MF_OK;
    if (!sessions || !tokens || !logits || n < 0 || n > MF_MAX_BATCH || !sessions[0])
        return mf__fail(err, MF_E_INVALID, "mf_eval_batch: NULL argument, or %d sessions (1 to %d)", n, MF_MAX_BATCH);
    mf_model *m = sessions[0]->model;
    pthread_mutex_lock(&m->lock);
    mf_status st = check_batch(sessions, tokens, n, logits_len, err);
    if (st == MF_OK) st = eval_batch(sessions, tokens, n, logits, err);
    pthread_mutex_unlock(&m->lock);
    return st;
}

static mf_status layer_forward(mf_session *s, int layer, const float *hidden, int32_t n_rows, float *out,
                               mf_error *err) {
    mf__backend *be = s->model->be;
    void *port = s->model->ws.ports[MF_PORT_HIDDEN];
    int64_t bytes = (int64_t)n_rows * s->model->info.n_hidden * (int64_t)sizeof(float), pos = s->length;
    mf__pass pass = {
        .sessions = &s, .n_tokens = &n_rows, .pos = &pos, .n = 1, .n_rows = n_rows, .n_logits = n_rows, .fresh = true};
    MF__TRY(mf__session_make_room(s, s->length + n_rows, err));
    MF__TRY(be->upload(be, port, hidden, bytes, err));
    MF__TRY(mf__forward_layer(&pass, layer, err));
    return be->download(be, out, port, bytes, err);
}

mf_status mf_layer_forward(mf_session *s, int layer, const float *hidden, int n_rows, float *out, mf_error *err) {
    if (!s || !hidden || !out) return mf__fail(err, MF_E_INVALID, "mf_layer_forward: an argument is NULL");
    if (layer < 0 || layer >= s->model->info.n_layers)
        return mf__fail(err, MF_E_INVALID, "layer is %d, this model has 0 to %d", layer, s->model->info.n_layers - 1);
    if (n_rows < 1 || n_rows > s->opt.n_chunk)
        return mf__fail(err, MF_E_INVALID, "n_rows is %d, expected 1 to the chunk length %d", n_rows, s->opt.n_chunk);
    MF__TRY(check_place(s, (size_t)n_rows, s->length, err));
    pthread_mutex_lock(&s->model->lock);
    mf_status st = layer_forward(s, layer, hidden, n_rows, out, err);
    pthread_mutex_unlock(&s->model->lock);
    return st;
}
