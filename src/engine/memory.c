/* A session's memory: created once for the largest chunk; KV grows in blocks before a call starts, never inside it. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

#define DEFAULT_CHUNK 512
#define MAX_CHUNK 8192

void mf_session_options_init(mf_session_options *opt) {
    memset(opt, 0, sizeof *opt);
}

static const mf__layer_kind *kind_of(const mf_session *s, int layer) {
    return &s->model->bp.kinds[s->model->bp.kind_of[layer]];
}

static mf_status be_alloc(mf_session *s, int64_t bytes, void *out, mf_error *err) {
    void *mem = NULL;
    mf_status st = bytes ? s->model->be->alloc(s->model->be, bytes, &mem, err) : MF_OK;
    memcpy(out, &mem, sizeof mem);
    return st;
}

/* ---- creation -----------------------------------------------------------------------------------------------------
 */

typedef struct needs {
    int32_t port_cols[MF_PORT_COUNT], port_rows[MF_PORT_COUNT];
    int64_t scratch, be_scratch;
} needs;

static void add_graph(const mf_session *s, const mf__graph *g, int32_t n_rows, needs *need) {
    const mf__backend *be = s->model->be;
    if (!g) return;
    int64_t scratch = mf__graph_scratch_bytes(g, n_rows), be_scratch = be->scratch ? be->scratch(be, g, n_rows) : 0;
    if (scratch > need->scratch) need->scratch = scratch;
    if (be_scratch > need->be_scratch) need->be_scratch = be_scratch;
    for (int b = 0; b < g->n_bufs; b++) {
        mf__port port = g->bufs[b].port;
        if (port == MF_PORT_NONE) continue;
        if (g->bufs[b].cols > need->port_cols[port]) need->port_cols[port] = g->bufs[b].cols;
        if (n_rows > need->port_rows[port]) need->port_rows[port] = n_rows;
    }
}

static mf_status alloc_buffers(mf_session *s, mf_error *err) {
    const mf__blueprint *bp = &s->model->bp;
    needs need = {0};
    add_graph(s, bp->embed, s->opt.n_chunk, &need);
    add_graph(s, bp->tail, MF_TAIL_ROWS, &need);
    for (int k = 0; k < bp->n_kinds; k++) {
        const mf__graph *graphs[MF_LAYER_GRAPHS];
        mf__layer_graphs(&bp->kinds[k], graphs);
        for (int i = 0; i < MF_LAYER_GRAPHS; i++) add_graph(s, graphs[i], s->opt.n_chunk, &need);
    }
    for (int p = 0; p < MF_PORT_COUNT; p++) {
        s->port_cols[p] = need.port_cols[p];
        MF__TRY(be_alloc(s, (int64_t)need.port_cols[p] * need.port_rows[p] * 4, &s->ports[p], err));
    }
    MF__TRY(be_alloc(s, need.scratch, &s->scratch, err));
    pthread_mutex_lock(&s->model->lock);
    mf_status st = s->model->be->reserve ? s->model->be->reserve(s->model->be, need.be_scratch, err) : MF_OK;
    pthread_mutex_unlock(&s->model->lock);
    return st;
}

static mf_status alloc_state(mf_session *s, mf_error *err) {
    const mf__config *c = &s->model->bp.config;
    size_t max_blocks = ((size_t)s->opt.n_ctx + MF_KV_BLOCK - 1) / MF_KV_BLOCK;
    s->layers = calloc((size_t)c->n_layers, sizeof *s->layers);
    if (!s->layers) return mf__fail(err, MF_E_NOMEM, "no memory for %d layers of state", c->n_layers);
    for (int l = 0; l < c->n_layers; l++) {
        const mf__layer_kind *k = kind_of(s, l);
        mf__layer_memory *mem = &s->layers[l];
        if (k->k_cols && !(mem->blocks = calloc(max_blocks, sizeof *mem->blocks)))
            return mf__fail(err, MF_E_NOMEM, "no memory for a table of %zu KV blocks", max_blocks);
        for (int half = 0; half < 2; half++) {
            MF__TRY(be_alloc(s, k->conv_floats * 4, &mem->conv[half], err));
            MF__TRY(be_alloc(s, k->delta_floats * 4, &mem->delta[half], err));
        }
    }
    return MF_OK;
}

static mf_status alloc_host(mf_session *s, mf_error *err) {
    const mf__config *c = &s->model->bp.config;
    size_t experts = (size_t)c->moe.n_experts, pairs = (size_t)s->opt.n_chunk * (size_t)c->moe.top_k;
    size_t row = (size_t)(c->n_hidden > MF_MAX_TOPK ? c->n_hidden : MF_MAX_TOPK);
    s->route_ids = calloc(pairs, sizeof *s->route_ids);
    s->wanted = calloc(experts, sizeof *s->wanted);
    s->is_wanted = calloc(experts, sizeof *s->is_wanted);
    s->ready = calloc(experts, sizeof *s->ready);
    s->ready_blobs = calloc(experts, sizeof *s->ready_blobs);
    s->bank = calloc(experts, sizeof *s->bank);
    if (s->opt.probe.fn) s->probe_rows = calloc((size_t)s->opt.n_chunk * row, sizeof *s->probe_rows);
    if (!s->route_ids || !s->wanted || !s->is_wanted || !s->ready || !s->ready_blobs || !s->bank ||
        (s->opt.probe.fn && !s->probe_rows))
        return mf__fail(err, MF_E_NOMEM, "no memory for a session");
    return MF_OK;
}

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

static mf_status create(mf_session *s, mf_error *err) {
    MF__TRY(check_options(s, err));
    MF__TRY(alloc_buffers(s, err));
    MF__TRY(alloc_state(s, err));
    return alloc_host(s, err);
}

mf_status mf_session_create(mf_model *model, const mf_session_options *opt, mf_session **out, mf_error *err) {
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_session_create: out is NULL");
    *out = NULL;
    if (!model) return mf__fail(err, MF_E_INVALID, "mf_session_create: model is NULL");
    mf_session *s = calloc(1, sizeof *s);
    if (!s) return mf__fail(err, MF_E_NOMEM, "no memory for a session");
    s->model = model;
    if (opt) s->opt = *opt;
    mf_status st = create(s, err);
    if (st != MF_OK) {
        mf_session_free(s);
        return st;
    }
    *out = s;
    return MF_OK;
}

static void free_layer(mf_session *s, mf__layer_memory *mem) {
    mf__backend *be = s->model->be;
    for (int32_t i = 0; mem->blocks && i < s->n_blocks; i++) be->release(be, mem->blocks[i]);
    free(mem->blocks);
    for (int half = 0; half < 2; half++) {
        if (mem->conv[half]) be->release(be, mem->conv[half]);
        if (mem->delta[half]) be->release(be, mem->delta[half]);
    }
}

void mf_session_free(mf_session *s) {
    if (!s) return;
    mf__backend *be = s->model->be;
    for (int l = 0; s->layers && l < s->model->bp.config.n_layers; l++) free_layer(s, &s->layers[l]);
    for (int p = 0; p < MF_PORT_COUNT; p++)
        if (s->ports[p]) be->release(be, s->ports[p]);
    if (s->scratch) be->release(be, s->scratch);
    free(s->layers);
    free(s->route_ids);
    free(s->wanted);
    free(s->is_wanted);
    free(s->ready);
    free(s->ready_blobs);
    free(s->bank);
    free(s->probe_rows);
    free(s);
}

/* ---- growth and state ---------------------------------------------------------------------------------------------
 */

/* One more block in every layer that keeps KV, or in none. */
static mf_status add_block(mf_session *s, mf_error *err) {
    int n_layers = s->model->bp.config.n_layers;
    for (int l = 0; l < n_layers; l++) {
        const mf__layer_kind *k = kind_of(s, l);
        if (!k->k_cols) continue;
        int64_t bytes = (int64_t)MF_KV_BLOCK * (k->k_cols + k->v_cols) * (int64_t)sizeof(float);
        mf_status st = be_alloc(s, bytes, &s->layers[l].blocks[s->n_blocks], err);
        if (st == MF_OK) continue;
        while (l-- > 0)
            if (kind_of(s, l)->k_cols) s->model->be->release(s->model->be, s->layers[l].blocks[s->n_blocks]);
        return st;
    }
    s->n_blocks++;
    return MF_OK;
}

mf_status mf__session_grow(mf_session *s, int64_t n_tokens, mf_error *err) {
    while ((int64_t)s->n_blocks * MF_KV_BLOCK < n_tokens) MF__TRY(add_block(s, err));
    return MF_OK;
}

mf_status mf__session_start(mf_session *s, mf_error *err) {
    mf__backend *be = s->model->be;
    if (s->length) return MF_OK;
    for (int l = 0; l < s->model->bp.config.n_layers; l++) {
        const mf__layer_kind *k = kind_of(s, l);
        if (k->conv_floats) MF__TRY(be->zero(be, s->layers[l].conv[s->now], k->conv_floats * 4, err));
        if (k->delta_floats) MF__TRY(be->zero(be, s->layers[l].delta[s->now], k->delta_floats * 4, err));
    }
    return MF_OK;
}

void mf__session_bind_state(mf_session *s, int layer, bool fresh) {
    const mf__layer_kind *k = kind_of(s, layer);
    mf__layer_memory *mem = &s->layers[layer];
    int from = fresh ? s->now : !s->now, to = !s->now;
    s->state = (mf__layer_state){.kv = {.blocks = mem->blocks,
                                        .block_rows = MF_KV_BLOCK,
                                        .k_cols = k->k_cols,
                                        .v_cols = k->v_cols,
                                        .type = MF_TYPE_F32},
                                 .conv_in = mem->conv[from],
                                 .conv_out = mem->conv[to],
                                 .delta_in = mem->delta[from],
                                 .delta_out = mem->delta[to]};
}

void mf_memory_clear(mf_session *s) {
    if (s) s->length = 0; /* the recurrent state is zeroed when a sequence starts */
}

int64_t mf_memory_length(const mf_session *s) {
    return s ? s->length : 0;
}
