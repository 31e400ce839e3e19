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

/* ---- pages ------------------------------------------------------------------------------------------------------ */

void mf__session_set_page(mf_session *s, int32_t i, mf__page *page) {
    s->pages[i] = page;
    s->numbers[i] = page->number;
    if (s->stale_from >= s->stale_to) s->stale_from = i, s->stale_to = i + 1;
    if (i < s->stale_from) s->stale_from = i;
    if (i >= s->stale_to) s->stale_to = i + 1;
}

mf_status mf__session_sync_pages(mf_session *s, mf_error *err) {
    mf__backend *be = s->model->be;
    int32_t from = s->stale_from, n = s->stale_to - from;
    if (n <= 0) return MF_OK;
    MF__TRY(be->upload(be, s->page_table + from, s->numbers + from, n * (int64_t)sizeof *s->numbers, err));
    s->stale_from = s->stale_to = 0;
    return MF_OK;
}

/* A page that others hold too gives way to one of our own; its rows are copied if some of them are ours. */
static mf_status own_page(mf_session *s, int32_t i, mf_error *err) {
    mf_model *m = s->model;
    mf__page *mine;
    if (s->pages[i]->refs == 1) return MF_OK;
    if (i * (int64_t)MF_KV_BLOCK < s->length)
        MF__TRY(mf__page_copy(m, s->pages[i], &mine, err));
    else
        MF__TRY(mf__page_create(m, &mine, err));
    mf__page_release(m, s->pages[i]);
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

/* ---- sessions --------------------------------------------------------------------------------------------------- */

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

static size_t page_capacity(const mf_session *s) {
    return ((size_t)s->opt.n_ctx + MF_KV_BLOCK - 1) / MF_KV_BLOCK;
}

/* Tables for the whole context; the pages themselves come with the tokens. */
static mf_status alloc_tables(mf_session *s, mf_error *err) {
    s->tokens = malloc((size_t)s->opt.n_ctx * sizeof *s->tokens);
    s->pages = calloc(page_capacity(s), sizeof *s->pages);
    s->numbers = calloc(page_capacity(s), sizeof *s->numbers);
    return s->tokens && s->pages && s->numbers
               ? MF_OK
               : mf__fail(err, MF_E_NOMEM, "no memory for a session of %d tokens", s->opt.n_ctx);
}

static mf_status alloc_state(mf_session *s, mf_error *err) {
    mf_model *m = s->model;
    void *mem;
    for (int half = 0; half < 2 && m->recurrent_floats; half++) {
        MF__TRY(mf__model_alloc(m, m->recurrent_floats * (int64_t)sizeof(float), &mem, err));
        s->recurrent[half] = mem;
    }
    s->page_table_bytes = (int64_t)(page_capacity(s) * sizeof *s->page_table);
    MF__TRY(mf__model_alloc(m, s->page_table_bytes, &mem, err));
    s->page_table = mem;
    return mf__workspace_reserve(m, s->opt.n_chunk, err);
}

static mf_status create(mf_session *s, mf_error *err) {
    mf_model *m = s->model;
    MF__TRY(check_options(s, err));
    MF__TRY(alloc_tables(s, err));
    mf__model_lock(m);
    mf_status st = alloc_state(s, err);
    if (st == MF_E_NOMEM) st = mf__memory_error(s, s->opt.n_chunk, err);
    mf__model_unlock(m);
    return st;
}

mf_status mf_session_create(mf_model *model, const mf_session_options *opt, mf_session **out, mf_error *err) {
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_session_create: out is NULL");
    *out = NULL;
    if (!model) return mf__fail(err, MF_E_INVALID, "mf_session_create: model is NULL");
    if (model->experts_only)
        return mf__fail(err, MF_E_INVALID, "mf_session_create: the model was opened with experts_only");
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
    mf__model_fill_stores(model);
    *out = s;
    return MF_OK;
}

void mf_session_free(mf_session *s) {
    if (!s) return;
    mf_model *m = s->model;
    mf__model_lock(m);
    mf__checkpoints_drop_all(s);
    for (int32_t i = 0; i < s->n_pages; i++) mf__page_release(m, s->pages[i]);
    for (int half = 0; half < 2; half++)
        mf__model_release(m, m->recurrent_floats * (int64_t)sizeof(float), s->recurrent[half]);
    mf__model_release(m, s->page_table_bytes, s->page_table);
    mf__model_unlock(m);
    free(s->checkpoints);
    free(s->numbers);
    free(s->pages);
    free(s->tokens);
    free(s);
}

mf_model *mf_session_model(const mf_session *s) {
    return s ? s->model : NULL;
}

void mf__session_bind_state(mf_session *s, int layer, bool fresh, mf__layer_state *out) {
    const mf_model *m = s->model;
    const float *from = s->recurrent[fresh ? s->now : !s->now];
    float *to = s->recurrent[!s->now];
    *out = (mf__layer_state){.kv = mf__kv_bind(m, s->page_table, layer)};
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
    mf__model_lock(s->model);
    mf__checkpoints_drop_all(s);
    s->length = 0; /* pages are reused; recurrent state is zeroed when a sequence starts */
    mf__model_unlock(s->model);
}

int64_t mf_memory_length(const mf_session *s) {
    return s ? s->length : 0;
}
