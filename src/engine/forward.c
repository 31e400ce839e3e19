/* The walk of one chunk through the model; the same for a prompt of many tokens and for one token.
 *
 *   tokens -> embed -> per layer: mix -> ids -> store -> (shared, experts as they arrive) -> combine -> tail -> logits
 */
#include <string.h>

#include "engine/internal.h"

/* What one graph run needs besides the session. */
typedef struct run {
    const mf__graph *g;
    const mf__tensor *weights;
    int32_t n_rows;
    int32_t hidden_row; /* HIDDEN is bound from this row on */
    const mf__segment *seg;
    const mf__bank *bank;
} run;

static mf_status submit(mf_session *s, const run *r, mf_error *err) {
    mf__backend *be = s->model->be;
    void *addr[MF_MAX_BUFS];
    mf__fence fence;
    mf__graph_place(r->g, r->n_rows, s->scratch, addr);
    for (int b = 0; b < r->g->n_bufs; b++) {
        mf__port port = r->g->bufs[b].port;
        if (port == MF_PORT_NONE) continue;
        addr[b] = s->ports[port];
        if (port == MF_PORT_HIDDEN) addr[b] = (float *)addr[b] + (int64_t)r->hidden_row * s->port_cols[port];
    }
    mf__binding binding = {.n_rows = r->n_rows,
                           .bufs = addr,
                           .weights = r->weights,
                           .segs = r->seg,
                           .n_segs = r->seg ? 1 : 0,
                           .bank = r->bank};
    MF__TRY(be->submit(be, r->g, &binding, &fence, err));
    return be->wait(be, fence, err);
}

static mf_status probe(mf_session *s, const char *name, mf__port port, int layer, int32_t n_rows, mf_error *err) {
    mf__backend *be = s->model->be;
    int32_t cols = s->port_cols[port];
    if (!s->opt.probe.fn) return MF_OK;
    MF__TRY(be->download(be, s->probe_rows, s->ports[port], (int64_t)n_rows * cols * 4, err));
    if (port == MF_PORT_ROUTE_IDS)
        for (int64_t i = 0; i < (int64_t)n_rows * cols; i++) {
            int32_t id;
            memcpy(&id, &s->probe_rows[i], sizeof id);
            s->probe_rows[i] = (float)id;
        }
    s->opt.probe.fn(s->opt.probe.user, name, layer, s->probe_rows, n_rows, cols);
    return MF_OK;
}

/* The distinct experts of the chunk, in file order. */
static int collect_wanted(mf_session *s, int32_t n_rows) {
    const mf__config *c = &s->model->bp.config;
    int n = 0;
    memset(s->is_wanted, 0, (size_t)c->moe.n_experts * sizeof *s->is_wanted);
    for (int64_t i = 0; i < (int64_t)n_rows * c->moe.top_k; i++) s->is_wanted[s->route_ids[i]] = true;
    for (int32_t e = 0; e < c->moe.n_experts; e++)
        if (s->is_wanted[e]) s->wanted[n++] = e;
    return n;
}

/* Runs the experts graph on whatever the store hands out, until all have had their turn. */
static mf_status run_experts(mf_session *s, run r, mf_error *err) {
    mf_model *m = s->model;
    mf__bank bank = {.layout = &m->layout, .n_experts = m->bp.config.moe.n_experts, .blobs = s->bank};
    r.bank = &bank;
    for (;;) {
        int n = 0;
        MF__TRY(mf__store_next(m->store, s->ready, s->ready_blobs, &n, err));
        if (!n) return MF_OK;
        memset(s->bank, 0, (size_t)bank.n_experts * sizeof *s->bank);
        for (int i = 0; i < n; i++) s->bank[s->ready[i]] = s->ready_blobs[i];
        mf_status st = submit(s, &r, err);
        mf__store_done(m->store, s->ready, n);
        MF__TRY(st);
    }
}

static mf_status run_moe(mf_session *s, int layer, int32_t n, mf_error *err) {
    mf_model *m = s->model;
    const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[layer]];
    mf__weight_set *w = m->layers[layer];
    int64_t id_bytes = (int64_t)n * m->bp.config.moe.top_k * (int64_t)sizeof(int32_t);
    MF__TRY(m->be->download(m->be, s->route_ids, s->ports[MF_PORT_ROUTE_IDS], id_bytes, err));
    int n_wanted = collect_wanted(s, n);
    MF__TRY(mf__store_begin(m->store, layer, s->wanted, n_wanted, err)); /* reads start here ... */
    mf_status st = k->shared ? submit(s, &(run){.g = k->shared, .weights = w[1], .n_rows = n}, err) : MF_OK;
    if (st == MF_OK) st = run_experts(s, (run){.g = k->experts, .weights = w[2], .n_rows = n}, err);
    mf__store_end(m->store);
    MF__TRY(st);
    return submit(s, &(run){.g = k->combine, .weights = w[3], .n_rows = n}, err);
}

mf_status mf__forward_layer(mf_session *s, int layer, int32_t n, int64_t pos, bool fresh, mf_error *err) {
    mf_model *m = s->model;
    const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[layer]];
    mf__session_bind_state(s, layer, fresh);
    mf__segment seg = {.n_rows = n, .pos = pos, .state = &s->state};
    MF__TRY(submit(s, &(run){.g = k->mix, .weights = m->layers[layer][0], .n_rows = n, .seg = &seg}, err));
    if (k->experts)
        MF__TRY(run_moe(s, layer, n, err));
    else
        MF__TRY(submit(s, &(run){.g = k->combine, .weights = m->layers[layer][3], .n_rows = n}, err));
    MF__TRY(probe(s, "h_mid", MF_PORT_H_MID, layer, n, err));
    MF__TRY(probe(s, "h_post", MF_PORT_H_POST, layer, n, err));
    if (k->experts) MF__TRY(probe(s, "route_ids", MF_PORT_ROUTE_IDS, layer, n, err));
    if (k->shared) MF__TRY(probe(s, "shared", MF_PORT_SHARED, layer, n, err));
    return probe(s, "hidden", MF_PORT_HIDDEN, layer, n, err);
}

/* Final norm and head for the rows that are asked for, a few at a time: a row of logits is large. */
static mf_status run_tail(mf_session *s, int32_t n, float *logits, int32_t n_logits, mf_error *err) {
    mf_model *m = s->model;
    int64_t vocab = m->info.n_vocab;
    for (int32_t done = 0; done < n_logits;) {
        int32_t rows = n_logits - done < MF_TAIL_ROWS ? n_logits - done : MF_TAIL_ROWS;
        run r = {.g = m->bp.tail, .weights = m->tail, .n_rows = rows, .hidden_row = n - n_logits + done};
        MF__TRY(submit(s, &r, err));
        MF__TRY(probe(s, "final_norm", MF_PORT_FINAL_NORM, -1, rows, err));
        MF__TRY(m->be->download(m->be, logits + done * vocab, s->ports[MF_PORT_LOGITS],
                                rows * vocab * (int64_t)sizeof(float), err));
        done += rows;
    }
    return MF_OK;
}

mf_status mf__forward_chunk(mf_session *s, const int32_t *tokens, int32_t n, int64_t pos, bool fresh, float *logits,
                            int32_t n_logits, mf_error *err) {
    mf_model *m = s->model;
    MF__TRY(m->be->upload(m->be, s->ports[MF_PORT_TOKENS], tokens, n * (int64_t)sizeof *tokens, err));
    MF__TRY(submit(s, &(run){.g = m->bp.embed, .weights = m->embed, .n_rows = n}, err));
    MF__TRY(probe(s, "embed", MF_PORT_HIDDEN, -1, n, err));
    for (int l = 0; l < m->info.n_layers; l++) {
        if (s->opt.cancel && s->opt.cancel(s->opt.cancel_user))
            return mf__fail(err, MF_E_CANCELLED, "stopped by the caller before layer %d", l);
        MF__TRY(mf__forward_layer(s, l, n, pos, fresh, err));
    }
    return run_tail(s, n, logits, n_logits, err);
}
