/* The public evaluation calls: validate everything, make room, walk the chunks, then commit. */
#include "engine/internal.h"

static mf_status check_tokens(const mf_session *s, const int32_t *tokens, size_t n, mf_error *err) {
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

/* Chunks in order. The first reads the committed state and writes the other half; the rest go on in that half. Only
 * the rows of the last n_logits tokens reach the head. */
static mf_status walk(mf_session *s, const int32_t *tokens, size_t n, float *logits, size_t n_logits, mf_error *err) {
    MF__TRY(mf__session_grow(s, s->length + (int64_t)n, err));
    MF__TRY(mf__session_start(s, err));
    for (size_t done = 0; done < n;) {
        size_t len = n - done < (size_t)s->opt.n_chunk ? n - done : (size_t)s->opt.n_chunk;
        size_t skipped = n - n_logits; /* tokens whose logits nobody wants */
        size_t first = done > skipped ? done : skipped, rows = done + len > first ? done + len - first : 0;
        MF__TRY(mf__forward_chunk(s, tokens + done, (int32_t)len, s->length + (int64_t)done, done == 0,
                                  rows ? logits + (first - skipped) * (size_t)s->model->info.n_vocab : NULL,
                                  (int32_t)rows, err));
        done += len;
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
    MF__TRY(check_tokens(s, tokens, n, err));
    MF__TRY(check_place(s, n, start_pos, err));

    pthread_mutex_lock(&s->model->lock);
    mf_status st = walk(s, tokens, n, logits, logits_len / vocab, err);
    pthread_mutex_unlock(&s->model->lock);
    MF__TRY(st);
    s->now = !s->now;
    s->length += (int64_t)n;
    return MF_OK;
}

mf_status mf_eval_token(mf_session *s, int32_t token, int64_t pos, float *logits, size_t logits_len, mf_error *err) {
    if (!s) return mf__fail(err, MF_E_INVALID, "mf_eval_token: session is NULL");
    if (logits_len != (size_t)s->model->info.n_vocab)
        return mf__fail(err, MF_E_INVALID, "logits has room for %zu values, expected %d", logits_len,
                        s->model->info.n_vocab);
    return mf_eval_prompt(s, &token, 1, pos, logits, logits_len, err);
}

static mf_status layer_forward(mf_session *s, int layer, const float *hidden, int n_rows, float *out, mf_error *err) {
    mf__backend *be = s->model->be;
    int64_t bytes = (int64_t)n_rows * s->model->info.n_hidden * (int64_t)sizeof(float);
    MF__TRY(mf__session_grow(s, s->length + n_rows, err));
    MF__TRY(mf__session_start(s, err));
    MF__TRY(be->upload(be, s->ports[MF_PORT_HIDDEN], hidden, bytes, err));
    MF__TRY(mf__forward_layer(s, layer, n_rows, s->length, true, err));
    return be->download(be, out, s->ports[MF_PORT_HIDDEN], bytes, err);
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
