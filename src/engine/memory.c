/* A session's memory: recurrent state in two halves, KV in shared, counted pages. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

#define DEFAULT_CHUNK 512
#define MAX_CHUNK 8192
#define DEFAULT_CHECKPOINTS 4

void mf_session_options_init(mf_session_options *opt) {
    if (opt) memset(opt, 0, sizeof *opt);
}

static const mf__layer_kind *kind_of(const mf_model *m, int layer) {
    return &m->bp.kinds[m->bp.kind_of[layer]];
}

mf_status mf__backend_copy(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    if (be->copy) return be->copy(be, to, from, bytes, err);
    if (bytes) memcpy(to, from, (size_t)bytes);
    return MF_OK;
}

/* ---- pages --------------------------------------------------------------------------------------------------------
 */

int64_t mf__page_bytes(const mf_model *m, int layer) {
    const mf__layer_kind *k = kind_of(m, layer);
    return MF_KV_BLOCK * (mf__kv_row_bytes(m->kv_type, k->k_cols) + mf__kv_row_bytes(m->kv_type, k->v_cols));
}

void mf__page_release(mf_model *m, mf__page *page) {
    if (!page || --page->refs > 0) return;
    for (int l = 0; l < m->info.n_layers; l++) mf__model_release(m, mf__page_bytes(m, l), page->mem[l]);
    free(page);
}

mf_status mf__page_create(mf_model *m, mf__page **out, mf_error *err) {
    mf__page *page = calloc(1, sizeof *page + (size_t)m->info.n_layers * sizeof page->mem[0]);
    if (!page) return mf__fail(err, MF_E_NOMEM, "no memory for a KV page");
    page->refs = 1;
    for (int l = 0; l < m->info.n_layers; l++) {
        int64_t bytes = mf__page_bytes(m, l);
        mf_status st = bytes ? mf__model_alloc(m, bytes, &page->mem[l], err) : MF_OK;
        if (st != MF_OK) {
            mf__page_release(m, page);
            return st;
        }
    }
    *out = page;
    return MF_OK;
}

/* A page of one's own with the same rows. */
mf_status mf__page_copy(mf_model *m, const mf__page *from, mf__page **out, mf_error *err) {
    MF__TRY(mf__page_create(m, out, err));
    for (int l = 0; l < m->info.n_layers; l++) {
        int64_t bytes = mf__page_bytes(m, l);
        mf_status st = bytes ? mf__backend_copy(m->be, (*out)->mem[l], from->mem[l], bytes, err) : MF_OK;
        if (st != MF_OK) {
            mf__page_release(m, *out);
            return st;
        }
    }
    return MF_OK;
}

void mf__session_set_page(mf_session *s, int32_t i, mf__page *page) {
    s->pages[i] = page;
    for (int l = 0; l < s->model->info.n_layers; l++)
        if (s->blocks[l]) s->blocks[l][i] = page ? page->mem[l] : NULL;
}

static mf_status own_page(mf_session *s, int32_t i, mf_error *err) {
    mf__page *mine;
    if (s->pages[i]->refs == 1) return MF_OK;
    MF__TRY(mf__page_copy(s->model, s->pages[i], &mine, err));
    mf__page_release(s->model, s->pages[i]);
    mf__session_set_page(s, i, mine);
    return MF_OK;
}

mf_status mf__session_make_room(mf_session *s, int64_t n_tokens, mf_error *err) {
    mf__backend *be = s->model->be;
    for (int32_t i = (int32_t)(s->length / MF_KV_BLOCK); i < s->n_pages; i++) MF__TRY(own_page(s, i, err));
    while ((int64_t)s->n_pages * MF_KV_BLOCK < n_tokens) {
        mf__page *page;
        MF__TRY(mf__page_create(s->model, &page, err));
        mf__session_set_page(s, s->n_pages++, page);
    }
    if (s->length || !s->model->recurrent_floats) return MF_OK;
    return be->zero(be, s->recurrent[s->now], s->model->recurrent_floats * (int64_t)sizeof(float), err);
}

/* ---- sessions -----------------------------------------------------------------------------------------------------
 */

static mf_status check_options(mf_session *s, mf_error *err) {
    int32_t most = s->model->info.n_ctx;
    if (!s->opt.n_ctx) s->opt.n_ctx = most;
    if (!s->opt.n_chunk) s->opt.n_chunk = DEFAULT_CHUNK;
    if (s->opt.n_ctx < 1 || s->opt.n_ctx > most)
        return mf__fail(err, MF_E_INVALID, "n_ctx is %d, this model takes 1 to %d", s->opt.n_ctx, most);
    if (s->opt.n_chunk < 1 || s->opt.n_chunk > MAX_CHUNK)
        return mf__fail(err, MF_E_INVALID, "n_chunk is %d, expected 1 to %d", s->opt.n_chunk, MAX_CHUNK);
    if (s->opt.n_chunk > s->opt.n_ctx) s->opt.n_chunk = s->opt.n_ctx;
    return MF_OK;
}

/* Tables for the whole context; the pages themselves come with the tokens. */
static mf_status alloc_tables(mf_session *s, mf_error *err) {
    const mf_model *m = s->model;
    size_t capacity = ((size_t)s->opt.n_ctx + MF_KV_BLOCK - 1) / MF_KV_BLOCK;
    s->tokens = malloc((size_t)s->opt.n_ctx * sizeof *s->tokens);
    s->pages = calloc(capacity, sizeof *s->pages);
    s->blocks = calloc((size_t)m->info.n_layers, sizeof *s->blocks);
    bool ok = s->tokens && s->pages && s->blocks;
    for (int l = 0; ok && l < m->info.n_layers; l++)
        if (kind_of(m, l)->k_cols) ok = (s->blocks[l] = calloc(capacity, sizeof **s->blocks)) != NULL;
    return ok ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a session of %d tokens", s->opt.n_ctx);
}

static mf_status create(mf_session *s, mf_error *err) {
    mf_model *m = s->model;
    MF__TRY(check_options(s, err));
    MF__TRY(alloc_tables(s, err));
    mf_status st = MF_OK;
    pthread_mutex_lock(&m->lock);
    for (int half = 0; st == MF_OK && half < 2 && m->recurrent_floats; half++) {
        void *mem;
        st = mf__model_alloc(m, m->recurrent_floats * (int64_t)sizeof(float), &mem, err);
        s->recurrent[half] = mem;
    }
    if (st == MF_OK) st = mf__workspace_reserve(m, s->opt.n_chunk, err);
    pthread_mutex_unlock(&m->lock);
    return st;
}

mf_status mf_session_create(mf_model *model, const mf_session_options *opt, mf_session **out, mf_error *err) {
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_session_create: out is NULL");
    *out = NULL;
    if (!model) return mf__fail(err, MF_E_INVALID, "mf_session_create: model is NULL");
    mf_session *s = calloc(1, sizeof *s);
    if (!s) return mf__fail(err, MF_E_NOMEM, "no memory for a session");
    s->model = model;
    s->max_checkpoints = DEFAULT_CHECKPOINTS;
    if (opt) s->opt = *opt;
    mf_status st = create(s, err);
    if (st != MF_OK) {
        mf_session_free(s);
        return st;
    }
    mf__store_fill(model->store); /* there is somebody to want them */
    *out = s;
    return MF_OK;
}

void mf_session_free(mf_session *s) {
    if (!s) return;
    mf_model *m = s->model;
    pthread_mutex_lock(&m->lock);
    mf__checkpoints_drop_all(s);
    for (int32_t i = 0; i < s->n_pages; i++) mf__page_release(m, s->pages[i]);
    for (int half = 0; half < 2; half++)
        mf__model_release(m, m->recurrent_floats * (int64_t)sizeof(float), s->recurrent[half]);
    pthread_mutex_unlock(&m->lock);
    for (int l = 0; s->blocks && l < m->info.n_layers; l++) free(s->blocks[l]);
    free(s->checkpoints);
    free(s->blocks);
    free(s->pages);
    free(s->tokens);
    free(s);
}

void mf__session_bind_state(mf_session *s, int layer, bool fresh, mf__layer_state *out) {
    const mf_model *m = s->model;
    const mf__layer_kind *k = kind_of(m, layer);
    const float *from = s->recurrent[fresh ? s->now : !s->now];
    float *to = s->recurrent[!s->now];
    *out = (mf__layer_state){.kv = mf__kv_make(s->blocks[layer], MF_KV_BLOCK, m->kv_type, k->k_cols, k->v_cols)};
    if (!to) return;
    out->conv_in = from + m->conv_off[layer];
    out->conv_out = to + m->conv_off[layer];
    out->delta_in = from + m->delta_off[layer];
    out->delta_out = to + m->delta_off[layer];
}

void mf__session_commit(mf_session *s, const int32_t *tokens, int64_t n) {
    memcpy(s->tokens + s->length, tokens, (size_t)n * sizeof *tokens);
    s->length += n;
    s->now = !s->now;
}

void mf_memory_clear(mf_session *s) {
    if (!s) return;
    pthread_mutex_lock(&s->model->lock);
    mf__checkpoints_drop_all(s);
    s->length = 0; /* pages are reused; recurrent state is zeroed when a sequence starts */
    pthread_mutex_unlock(&s->model->lock);
}

int64_t mf_memory_length(const mf_session *s) {
    return s ? s->length : 0;
}
