/* The walk of one pass through the model: a chunk of a prompt, one token, or one token of each of several sequences.
 *
 *   tokens -> embed -> per layer: mix -> ids -> store -> (shared, experts as they arrive) -> combine -> tail -> logits
 */
#include <string.h>

#include "engine/internal.h"

/* One graph run. */
typedef struct run {
    const mf__graph *g;
    const mf__tensor *weights;
    int32_t n_rows;
    int32_t first_row; /* of the pass: ports are bound from it on, all but those of the tail */
    int32_t n_segs;    /* the first n_segs of the workspace; 0 for graphs without state */
    const mf__bank *bank;
} run;

static mf_status submit(mf_model *m, const run *r, mf_error *err) {
    mf__workspace *ws = &m->ws;
    void *addr[MF_MAX_BUFS];
    mf__fence fence;
    mf__graph_place(r->g, r->n_rows, ws->scratch, addr);
    for (int b = 0; b < r->g->n_bufs; b++) {
        mf__port port = r->g->bufs[b].port;
        if (port == MF_PORT_NONE) continue;
        addr[b] = ws->ports[port];
        if (port != MF_PORT_FINAL_NORM && port != MF_PORT_LOGITS)
            addr[b] = (float *)addr[b] + (int64_t)r->first_row * ws->port_cols[port];
    }
    mf__binding binding = {.n_rows = r->n_rows,
                           .bufs = addr,
                           .weights = r->weights,
                           .segs = ws->segs,
                           .n_segs = r->n_segs,
                           .apart = ws->apart,
                           .bank = r->bank};
    MF__TRY(m->be->submit(m->be, r->g, &binding, &fence, err));
    return m->be->wait(m->be, fence, err);
}

static mf_status probe(const mf__pass *pass, const char *name, mf__port port, int layer, int32_t n_rows,
                       mf_error *err) {
    const mf_session *s = pass->sessions[0];
    mf_model *m = s->model;
    float *rows = m->ws.probe_rows;
    int32_t cols = m->ws.port_cols[port];
    if (!s->opt.probe.fn || !cols) return MF_OK;
    MF__TRY(m->be->download(m->be, rows, m->ws.ports[port], (int64_t)n_rows * cols * 4, err));
    for (int64_t i = 0; port == MF_PORT_ROUTE_IDS && i < (int64_t)n_rows * cols; i++) {
        int32_t id;
        memcpy(&id, &rows[i], sizeof id);
        rows[i] = (float)id;
    }
    s->opt.probe.fn(s->opt.probe.user, name, layer, rows, n_rows, cols);
    return MF_OK;
}

/* The distinct experts in ws->route_ids, in file order, and how many rows want each. */
static int collect_wanted(mf_model *m, int32_t n_rows) {
    const mf__config *c = &m->bp.config;
    mf__workspace *ws = &m->ws;
    int n = 0;
    memset(ws->n_wanting, 0, (size_t)c->moe.n_experts * sizeof *ws->n_wanting);
    for (int64_t i = 0; i < (int64_t)n_rows * c->moe.top_k; i++) ws->n_wanting[ws->route_ids[i]]++;
    for (int32_t e = 0; e < c->moe.n_experts; e++) {
        if (!ws->n_wanting[e]) continue;
        ws->wanted[n] = e;
        ws->counts[n++] = ws->n_wanting[e];
    }
    return n;
}

/* Tells the store which experts a layer that follows may want: its router, applied to the residual as it is now. Only
 * reads depend on it, never results. */
static mf_status look_ahead(mf_model *m, int layer, int32_t n, mf_error *err) {
    int64_t id_bytes = (int64_t)n * m->bp.config.moe.top_k * (int64_t)sizeof(int32_t);
    if (layer >= m->info.n_layers || !m->ahead[layer] || !mf__store_wants_hints(m->store, MF_PREDICT_ROUTER))
        return MF_OK;
    run r = {.g = m->bp.kinds[m->bp.kind_of[layer]].ahead, .weights = m->ahead[layer], .n_rows = n};
    MF__TRY(submit(m, &r, err));
    MF__TRY(m->be->download(m->be, m->ws.route_ids, m->ws.ports[MF_PORT_AHEAD_IDS], id_bytes, err));
    mf__store_hint(m->store, MF_PREDICT_ROUTER, layer, m->ws.wanted, collect_wanted(m, n));
    return MF_OK;
}

/* Runs the experts graph on whatever the store hands out, until all have had their turn. */
static mf_status run_experts(mf_model *m, run r, mf_error *err) {
    mf__workspace *ws = &m->ws;
    mf__bank bank = {.layout = &m->layout, .n_experts = m->bp.config.moe.n_experts, .blobs = ws->bank};
    r.bank = &bank;
    for (;;) {
        int n = 0;
        MF__TRY(mf__turn_next(m->turn, ws->ready, ws->ready_blobs, &n, err));
        if (!n) return MF_OK;
        memset(ws->bank, 0, (size_t)bank.n_experts * sizeof *ws->bank);
        for (int i = 0; i < n; i++) ws->bank[ws->ready[i]] = ws->ready_blobs[i];
        mf_status st = submit(m, &r, err);
        mf__turn_done(m->turn, ws->ready, n);
        MF__TRY(st);
    }
}

/* The experts of n rows from `first` on. */
static mf_status run_moe(mf_model *m, int layer, int32_t first, int32_t n, mf_error *err) {
    const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[layer]];
    mf__weight_set *w = m->layers[layer];
    int64_t row_bytes = m->bp.config.moe.top_k * (int64_t)sizeof(int32_t);
    const char *ids = (const char *)m->ws.ports[MF_PORT_ROUTE_IDS] + first * row_bytes;
    MF__TRY(m->be->download(m->be, m->ws.route_ids, ids, n * row_bytes, err));
    if (m->routes.fn) m->routes.fn(m->routes.user, layer, m->ws.route_ids, n, m->bp.config.moe.top_k);
    int n_wanted = collect_wanted(m, n);
    MF__TRY(mf__turn_begin(m->turn, layer, m->ws.wanted, m->ws.counts, n_wanted, n, err)); /* reads start here ... */
    mf_status st =
        k->shared ? submit(m, &(run){.g = k->shared, .weights = w[1], .n_rows = n, .first_row = first}, err) : MF_OK;
    if (st == MF_OK) st = run_experts(m, (run){.g = k->experts, .weights = w[2], .n_rows = n, .first_row = first}, err);
    mf__turn_end(m->turn);
    MF__TRY(st);
    MF__TRY(submit(m, &(run){.g = k->combine, .weights = w[3], .n_rows = n, .first_row = first}, err));
    return look_ahead(m, layer + 1, n, err);
}

/* The rows of the pass as segments, with the states of one layer. */
static void bind_segments(const mf__pass *pass, int layer) {
    mf__workspace *ws = &pass->sessions[0]->model->ws;
    int32_t row = 0;
    ws->apart = pass->n == pass->n_rows;
    for (int i = 0; i < pass->n; i++) {
        mf__session_bind_state(pass->sessions[i], layer, pass->fresh, &ws->states[i]);
        ws->segs[i] =
            (mf__segment){.row0 = row, .n_rows = pass->n_tokens[i], .pos = pass->pos[i], .state = &ws->states[i]};
        row += pass->n_tokens[i];
    }
}

/* Of the last layer nothing is kept but the state: only rows whose logits are wanted go through it, unless somebody is
 * looking. */
static int32_t rows_through(const mf__pass *pass, int layer) {
    const mf_session *s = pass->sessions[0];
    const mf_model *m = s->model;
    return layer + 1 < m->info.n_layers || s->opt.probe.fn || m->routes.fn ? pass->n_rows : pass->n_logits;
}

/* The first half of a layer. Rows before `first` end in it: where keys and values are all that they leave behind, they
 * go no further. */
static mf_status run_mix(const mf__pass *pass, int layer, int32_t first, mf_error *err) {
    mf_model *m = pass->sessions[0]->model;
    const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[layer]];
    mf__segment *seg = &m->ws.segs[0];
    run r = {.g = k->mix, .weights = m->layers[layer][0], .n_rows = pass->n_rows, .n_segs = pass->n};
    bind_segments(pass, layer);
    if (!first || !k->cache || pass->n > 1) return submit(m, &r, err);
    r.g = k->cache;
    r.n_rows = seg->n_rows = first;
    MF__TRY(submit(m, &r, err));
    if (first == pass->n_rows) return MF_OK;
    r.g = k->mix;
    r.first_row = first;
    r.n_rows = seg->n_rows = pass->n_rows - first;
    seg->pos += first;
    return submit(m, &r, err);
}

mf_status mf__forward_layer(const mf__pass *pass, int layer, mf_error *err) {
    mf_model *m = pass->sessions[0]->model;
    const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[layer]];
    mf__weight_set *w = m->layers[layer];
    int32_t n = pass->n_rows, through = rows_through(pass, layer), first = n - through;
    MF__TRY(run_mix(pass, layer, first, err));
    if (!through) return MF_OK;
    if (k->experts)
        MF__TRY(run_moe(m, layer, first, through, err));
    else
        MF__TRY(submit(m, &(run){.g = k->combine, .weights = w[3], .n_rows = through, .first_row = first}, err));
    MF__TRY(probe(pass, "h_mid", MF_PORT_H_MID, layer, n, err));
    MF__TRY(probe(pass, "h_post", MF_PORT_H_POST, layer, n, err));
    if (k->experts) MF__TRY(probe(pass, "route_ids", MF_PORT_ROUTE_IDS, layer, n, err));
    if (k->shared) MF__TRY(probe(pass, "shared", MF_PORT_SHARED, layer, n, err));
    return probe(pass, "hidden", MF_PORT_HIDDEN, layer, n, err);
}

/* Final norm and head for the rows that are asked for, a few at a time: a row of logits is large. */
static mf_status run_tail(const mf__pass *pass, float *logits, mf_error *err) {
    mf_model *m = pass->sessions[0]->model;
    int32_t n_logits = pass->n_logits;
    int64_t vocab = m->info.n_vocab;
    for (int32_t done = 0; done < n_logits;) {
        int32_t rows = n_logits - done < MF_TAIL_ROWS ? n_logits - done : MF_TAIL_ROWS;
        run r = {.g = m->bp.tail, .weights = m->tail, .n_rows = rows, .first_row = pass->n_rows - n_logits + done};
        MF__TRY(submit(m, &r, err));
        MF__TRY(probe(pass, "final_norm", MF_PORT_FINAL_NORM, -1, rows, err));
        MF__TRY(m->be->download(m->be, logits + done * vocab, m->ws.ports[MF_PORT_LOGITS],
                                rows * vocab * (int64_t)sizeof(float), err));
        done += rows;
    }
    return MF_OK;
}

static mf_status forward(const mf__pass *pass, const int32_t *tokens, float *logits, mf_error *err) {
    const mf_session *s = pass->sessions[0];
    mf_model *m = s->model;
    int32_t n = pass->n_rows;
    MF__TRY(m->be->upload(m->be, m->ws.ports[MF_PORT_TOKENS], tokens, n * (int64_t)sizeof *tokens, err));
    MF__TRY(submit(m, &(run){.g = m->bp.embed, .weights = m->embed, .n_rows = n}, err));
    MF__TRY(probe(pass, "embed", MF_PORT_HIDDEN, -1, n, err));
    for (int l = 0; l < m->info.n_layers; l++) {
        if (s->opt.cancel && s->opt.cancel(s->opt.cancel_user))
            return mf__fail(err, MF_E_CANCELLED, "stopped by the caller before layer %d", l);
        MF__TRY(mf__forward_layer(pass, l, err));
    }
    return run_tail(pass, logits, err);
}

mf_status mf__forward(const mf__pass *pass, const int32_t *tokens, float *logits, mf_error *err) {
    const mf_session *s = pass->sessions[0];
    mf_stats before;
    mf__turn_stats_get(s->model->turn, &before);
    mf__turn_cancel_set(s->model->turn, s->opt.cancel, s->opt.cancel_user);
    mf_status st = forward(pass, tokens, logits, err);
    const char *cut = mf__catalog_cut(s->model->native.catalog);
    if (st == MF_OK && cut)
        st = mf__fail(err, MF_E_IO, "%s was cut while it was in use; convert the model again, then open it again", cut);
    mf__turn_cancel_set(s->model->turn, NULL, NULL);
    mf__stats_pass(pass, &before);
    return st;
}
