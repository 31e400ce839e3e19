/* The walk of one pass through the model: chunks of prompts and single tokens of several sequences, side by side.
 *
 *   tokens -> embed -> per layer: mix -> ids -> store -> (shared, experts as they arrive) -> combine -> tail -> logits
 *
 * Of the last layer nothing is kept but the state: rows whose logits nobody wants need only their K/V written there, so
 * they run the KV-only graph. Which rows of a sequence those are depends on the sequence alone, never on its company.
 */
#include <string.h>

#include "engine/internal.h"
#include "engine/run_list.h"

/* Consecutive rows of the pass. */
typedef struct range {
    int32_t first, n;
} range;

/* Rows in order; those of one kind that follow one another are one range. */
typedef struct ranges {
    range r[MF_MAX_BATCH];
    int n;
    int32_t n_rows; /* in all */
} ranges;

static void add_range(ranges *to, int32_t first, int32_t n) {
    if (!n) return;
    range *last = to->n ? &to->r[to->n - 1] : NULL;
    if (last && last->first + last->n == first)
        last->n += n;
    else
        to->r[to->n++] = (range){first, n};
    to->n_rows += n;
}

static const mf__layer_kind *kind_of(const mf_model *m, int layer) {
    return &m->bp.kinds[m->bp.kind_of[layer]];
}

/* ---- who is looking ---------------------------------------------------------------------------------------------- */

static bool has_probe(const mf__pass *pass) {
    for (int i = 0; i < pass->n; i++)
        if (pass->parts[i].session->opt.probe.fn) return true;
    return false;
}

/* n rows of a port, from the pass's row `row` on, which lies at `at` in the port; to the probe of its session. */
static mf_status probe_rows(const mf__pass_part *p, const char *name, mf__port port, int layer, range at,
                            mf_error *err) {
    mf_model *m = p->session->model;
    const mf_probe *probe = &p->session->opt.probe;
    float *rows = m->ws.probe_rows;
    int32_t cols = m->ws.port_cols[port];
    if (!probe->fn || !cols || !at.n) return MF_OK;
    const float *from = (const float *)m->ws.ports[port] + (int64_t)at.first * cols;
    MF__TRY(mf__run_list_submit(m, err));
    MF__TRY(m->be->download(m->be, rows, from, (int64_t)at.n * cols * 4, err));
    for (int64_t i = 0; port == MF_PORT_ROUTE_IDS && i < (int64_t)at.n * cols; i++) {
        int32_t id;
        memcpy(&id, &rows[i], sizeof id);
        rows[i] = (float)id;
    }
    probe->fn(probe->user, name, layer, rows, at.n, cols);
    return MF_OK;
}

static mf_status probe(const mf__pass *pass, const char *name, mf__port port, int layer, mf_error *err) {
    for (int i = 0; i < pass->n; i++) {
        const mf__pass_part *p = &pass->parts[i];
        MF__TRY(probe_rows(p, name, port, layer, (range){p->row0, p->n_rows}, err));
    }
    return MF_OK;
}

static mf_status probe_layer(const mf__pass *pass, int layer, mf_error *err) {
    const mf__layer_kind *k = kind_of(pass->model, layer);
    if (!has_probe(pass)) return MF_OK;
    MF__TRY(probe(pass, "h_mid", MF_PORT_H_MID, layer, err));
    MF__TRY(probe(pass, "h_post", MF_PORT_H_POST, layer, err));
    if (k->experts) {
        MF__TRY(probe(pass, "route_ids", MF_PORT_ROUTE_IDS, layer, err));
        MF__TRY(probe(pass, "route_shares", MF_PORT_ROUTE_SHARES, layer, err));
    }
    if (k->shared) {
        MF__TRY(probe(pass, "shared", MF_PORT_SHARED, layer, err));
        MF__TRY(probe(pass, "shared_score", MF_PORT_SHARED_SCORE, layer, err)); /* nothing where it has no gate */
    }
    return probe(pass, "hidden", MF_PORT_HIDDEN, layer, err);
}

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

/* True once nobody wants the pass any more; asked between layers and while experts are waited for. */
static bool all_cancelled(void *user) {
    mf__pass *pass = user;
    int n = 0;
    for (int i = 0; i < pass->n; i++) {
        mf__pass_part *p = &pass->parts[i];
        const mf_session_options *opt = &p->session->opt;
        if (!p->cancelled && opt->cancel) p->cancelled = opt->cancel(opt->cancel_user);
        if (!p->cancelled && p->cancel) p->cancelled = p->cancel(p->cancel_user);
        n += p->cancelled;
    }
    return n == pass->n;
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

/* The distinct experts in ws->route_ids, in file order, and how many rows want each. */
static int collect_wanted(mf_model *m, int32_t n_rows) {
    mf__workspace *ws = &m->ws;
    int32_t n_experts = m->bp.config.moe.n_experts, top_k = m->bp.config.moe.top_k, n = 0;
    memset(ws->n_wanting, 0, (size_t)n_experts * sizeof *ws->n_wanting);
    for (int64_t i = 0; i < (int64_t)n_rows * top_k; i++) ws->n_wanting[ws->route_ids[i]]++;
    for (int32_t e = 0; e < n_experts; e++) {
        if (!ws->n_wanting[e]) continue;
        ws->wanted[n] = e;
        ws->counts[n++] = ws->n_wanting[e];
    }
    return n;
}

/* Those that most rows want first; equal ones stay in order. */
static void sort_by_count(mf__workspace *ws, int n) {
    for (int i = 1; i < n; i++) {
        int32_t id = ws->wanted[i], count = ws->counts[i];
        int k = i;
        for (; k > 0 && ws->counts[k - 1] < count; k--) {
            ws->wanted[k] = ws->wanted[k - 1];
            ws->counts[k] = ws->counts[k - 1];
        }
        ws->wanted[k] = id;
        ws->counts[k] = count;
    }
}

/* Tells the store which experts a layer that follows may want: its router, applied to the residual as it is now. Only
 * reads depend on it, never results. */
static mf_status look_ahead(mf_model *m, int layer, int32_t n, mf_error *err) {
    mf__workspace *ws = &m->ws;
    int64_t id_bytes = (int64_t)n * m->bp.config.moe.top_k * (int64_t)sizeof(int32_t);
    if (layer >= m->info.n_layers || !m->ahead[layer] || !mf__store_wants_hints(m->store, MF_PREDICT_ROUTER))
        return MF_OK;
    mf__graph_run r = {.g = kind_of(m, layer)->ahead, .weights = m->ahead[layer], .n_rows = n};
    MF__TRY(mf__run_list_push(m, &r, err));
    MF__TRY(mf__run_list_submit(m, err));
    MF__TRY(m->be->download(m->be, ws->route_ids, ws->ports[MF_PORT_AHEAD_IDS], id_bytes, err));
    int n_wanted = collect_wanted(m, n);
    sort_by_count(ws, n_wanted);
    mf__store_hint(m->store, MF_PREDICT_ROUTER, layer, ws->wanted, n_wanted);
    return MF_OK;
}

/* One graph of the layer's feed-forward part, over all rows that go through. */
static mf_status push_rows(const mf__pass *pass, int layer, mf__layer_graph which, const mf__graph *g,
                           const ranges *rows, const mf__bank *bank, mf_error *err) {
    mf_model *m = pass->model;
    for (int i = 0; g && i < rows->n; i++) {
        mf__graph_run r = {.g = g, .weights = m->layers[layer][which], .bank = bank};
        MF__TRY(mf__run_list_segments(pass, -1, rows->r[i].first, rows->r[i].n, &r, err));
        MF__TRY(mf__run_list_push(m, &r, err));
    }
    return MF_OK;
}

/* Runs the experts graph on whatever the store hands out, until all have had their turn. */
static mf_status run_experts(const mf__pass *pass, int layer, const ranges *rows, mf_error *err) {
    mf_model *m = pass->model;
    mf__workspace *ws = &m->ws;
    mf__bank bank = {.layout = &m->layout, .n_experts = m->bp.config.moe.n_experts, .blobs = ws->bank};
    for (;;) {
        int n = 0;
        MF__TRY(mf__turn_next(m->turn, ws->ready, ws->ready_blobs, &n, err));
        if (!n) return MF_OK;
        memset(ws->bank, 0, (size_t)bank.n_experts * sizeof *ws->bank);
        for (int i = 0; i < n; i++) ws->bank[ws->ready[i]] = ws->ready_blobs[i];
        mf_status st = push_rows(pass, layer, MF_GRAPH_EXPERTS, kind_of(m, layer)->experts, rows, &bank, err);
        if (st == MF_OK) st = mf__run_list_wait(m, err); /* their memory may be reused after done */
        mf__turn_done(m->turn, ws->ready, n);
        MF__TRY(st);
    }
}

/* Where the rows of the pass want to go, on the host. */
static mf_status fetch_routes(const mf__pass *pass, int layer, const ranges *rows, mf_error *err) {
    mf_model *m = pass->model;
    int32_t top_k = m->bp.config.moe.top_k, *to = m->ws.route_ids;
    const int32_t *ids = m->ws.ports[MF_PORT_ROUTE_IDS];
    MF__TRY(mf__run_list_submit(m, err));
    for (int i = 0; i < rows->n; i++) {
        int64_t n = (int64_t)rows->r[i].n * top_k;
        MF__TRY(m->be->download(m->be, to, ids + (int64_t)rows->r[i].first * top_k, n * (int64_t)sizeof *to, err));
        to += n;
    }
    if (m->routes.fn) m->routes.fn(m->routes.user, layer, m->ws.route_ids, rows->n_rows, top_k);
    return MF_OK;
}

/* All experts of the layer are where the backend can read them: the host need not know which ones are wanted. */
static mf_status run_moe_whole(const mf__pass *pass, int layer, const ranges *rows, mf_error *err) {
    mf_model *m = pass->model;
    const mf__layer_kind *k = kind_of(m, layer);
    int64_t n_experts = m->bp.config.moe.n_experts, n_pairs = (int64_t)rows->n_rows * m->bp.config.moe.top_k;
    mf__bank *bank = &m->ws.banks[layer];
    *bank = (mf__bank){.layout = &m->layout,
                       .n_experts = (int32_t)n_experts,
                       .blobs = pass->whole + layer * n_experts,
                       .whole = true,
                       .version = pass->whole_version};
    if (m->routes.fn) MF__TRY(fetch_routes(pass, layer, rows, err));
    MF__TRY(push_rows(pass, layer, MF_GRAPH_SHARED, k->shared, rows, NULL, err));
    MF__TRY(push_rows(pass, layer, MF_GRAPH_EXPERTS, k->experts, rows, bank, err));
    MF__TRY(push_rows(pass, layer, MF_GRAPH_COMBINE, k->combine, rows, NULL, err));
    mf__turn_count_whole(m->turn, n_pairs < n_experts ? n_pairs : n_experts); /* at most so many */
    return MF_OK;
}

static mf_status run_moe(const mf__pass *pass, int layer, const ranges *rows, mf_error *err) {
    mf_model *m = pass->model;
    const mf__layer_kind *k = kind_of(m, layer);
    if (pass->whole) return run_moe_whole(pass, layer, rows, err);
    MF__TRY(fetch_routes(pass, layer, rows, err));
    int n_wanted = collect_wanted(m, rows->n_rows);
    MF__TRY(mf__turn_begin(m->turn, layer, m->ws.wanted, m->ws.counts, n_wanted, rows->n_rows, err));
    mf_status st = push_rows(pass, layer, MF_GRAPH_SHARED, k->shared, rows, NULL, err); /* while experts are read */
    if (st == MF_OK) st = mf__run_list_submit(m, err);
    if (st == MF_OK) st = run_experts(pass, layer, rows, err);
    mf__turn_end(m->turn);
    MF__TRY(st);
    MF__TRY(push_rows(pass, layer, MF_GRAPH_COMBINE, k->combine, rows, NULL, err));
    return look_ahead(m, layer + 1, rows->n_rows, err);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* The rows that go through the whole layer, and those of which only the state is wanted. */
static void split_rows(const mf__pass *pass, int layer, ranges *through, ranges *state_only) {
    const mf_model *m = pass->model;
    bool all = layer + 1 < m->info.n_layers || m->routes.fn || has_probe(pass);
    through->n = through->n_rows = state_only->n = state_only->n_rows = 0;
    for (int i = 0; i < pass->n; i++) {
        const mf__pass_part *p = &pass->parts[i];
        int32_t unwanted = all ? 0 : p->n_rows - p->n_logits;
        add_range(state_only, p->row0, unwanted);
        add_range(through, p->row0 + unwanted, p->n_rows - unwanted);
    }
}

static mf_status push_mix(const mf__pass *pass, int layer, const mf__graph *g, const ranges *rows, mf_error *err) {
    mf_model *m = pass->model;
    for (int i = 0; i < rows->n; i++) {
        mf__graph_run r = {.g = g, .weights = m->layers[layer][MF_GRAPH_MIX]};
        MF__TRY(mf__run_list_segments(pass, layer, rows->r[i].first, rows->r[i].n, &r, err));
        MF__TRY(mf__run_list_push(m, &r, err));
    }
    return MF_OK;
}

/* The first half of a layer. A recurrent state is made by the whole of it. */
static mf_status run_mix(const mf__pass *pass, int layer, const ranges *through, const ranges *state_only,
                         mf_error *err) {
    const mf__layer_kind *k = kind_of(pass->model, layer);
    if (!k->cache) {
        ranges all = {.r = {{0, pass->n_rows}}, .n = 1, .n_rows = pass->n_rows};
        return push_mix(pass, layer, k->mix, &all, err);
    }
    MF__TRY(push_mix(pass, layer, k->cache, state_only, err));
    return push_mix(pass, layer, k->mix, through, err);
}

static mf_status run_layer(const mf__pass *pass, int layer, const ranges *through, const ranges *state_only,
                           mf_error *err) {
    mf_model *m = pass->model;
    const mf__layer_kind *k = kind_of(m, layer);
    MF__TRY(run_mix(pass, layer, through, state_only, err));
    if (through->n && k->experts) MF__TRY(run_moe(pass, layer, through, err));
    if (through->n && !k->experts) MF__TRY(push_rows(pass, layer, MF_GRAPH_COMBINE, k->combine, through, NULL, err));
    MF__TRY(probe_layer(pass, layer, err));
    return pass->whole ? MF_OK : mf__run_list_submit(m, err); /* a pass without turns is one list */
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

/* The logits of n rows of the pass, which lie in the port from its beginning on, to whoever wants them. */
static mf_status deliver_logits(const mf__pass *pass, range at, mf_error *err) {
    mf_model *m = pass->model;
    int64_t vocab = m->info.n_vocab;
    const float *from = m->ws.ports[MF_PORT_LOGITS];
    for (int i = 0; i < pass->n; i++) {
        const mf__pass_part *p = &pass->parts[i];
        int32_t first = p->row0 + p->n_rows - p->n_logits, end = p->row0 + p->n_rows;
        int32_t a = at.first > first ? at.first : first, b = at.first + at.n < end ? at.first + at.n : end;
        if (a >= b) continue;
        MF__TRY(probe_rows(p, "final_norm", MF_PORT_FINAL_NORM, -1, (range){a - at.first, b - a}, err));
        MF__TRY(m->be->download(m->be, p->logits + (a - first) * vocab, from + (a - at.first) * vocab,
                                (b - a) * vocab * (int64_t)sizeof(float), err));
    }
    return MF_OK;
}

/* Rows that go through the tail together: as many of one part as fit, and whole parts beside them that follow at once.
 * How a part's rows are cut depends on the part alone. */
static range tail_rows(const mf__pass *pass, int *part, int32_t *done) {
    range r = {.n = 0};
    for (; *part < pass->n; ++*part, *done = 0) {
        const mf__pass_part *p = &pass->parts[*part];
        int32_t left = p->n_logits - *done, first = p->row0 + p->n_rows - left;
        if (!left) continue;
        if (r.n && (r.first + r.n != first || r.n + left > MF_TAIL_ROWS)) break;
        if (!r.n) r.first = first;
        r.n += left;
        if (r.n <= MF_TAIL_ROWS) continue;
        r.n = MF_TAIL_ROWS;
        *done += MF_TAIL_ROWS;
        break;
    }
    return r;
}

/* Final norm and head for the rows that are asked for, a few at a time: a row of logits is large. */
static mf_status run_tail(const mf__pass *pass, mf_error *err) {
    mf_model *m = pass->model;
    int part = 0;
    int32_t done = 0;
    for (range rows; (rows = tail_rows(pass, &part, &done)).n;) {
        mf__graph_run r = {.g = m->bp.tail, .weights = m->tail};
        MF__TRY(mf__run_list_segments(pass, -1, rows.first, rows.n, &r, err));
        MF__TRY(mf__run_list_push(m, &r, err));
        MF__TRY(mf__run_list_submit(m, err));
        MF__TRY(deliver_logits(pass, rows, err));
    }
    return MF_OK;
}

/* Rows in order; what the parts' page tables say reaches the backend. */
static mf_status begin_pass(mf__pass *pass, mf_error *err) {
    int n_single = 0;
    pass->n_rows = 0;
    for (int i = 0; i < pass->n; i++) {
        pass->parts[i].row0 = pass->n_rows;
        pass->n_rows += pass->parts[i].n_rows;
        n_single += pass->parts[i].n_rows == 1;
        MF__TRY(mf__session_sync_pages(pass->parts[i].session, err));
    }
    mf__turn_decode_set(pass->model->turn, n_single);
    return MF_OK;
}

static mf_status forward(mf__pass *pass, mf_error *err) {
    mf_model *m = pass->model;
    int32_t *port = m->ws.ports[MF_PORT_TOKENS];
    MF__TRY(begin_pass(pass, err));
    for (int i = 0; i < pass->n; i++) {
        const mf__pass_part *p = &pass->parts[i];
        MF__TRY(m->be->upload(m->be, port + p->row0, p->tokens, p->n_rows * (int64_t)sizeof *port, err));
    }
    MF__TRY(mf__run_list_push(m, &(mf__graph_run){.g = m->bp.embed, .weights = m->embed, .n_rows = pass->n_rows}, err));
    MF__TRY(probe(pass, "embed", MF_PORT_HIDDEN, -1, err));
    for (int l = 0; l < m->info.n_layers; l++) {
        ranges through, state_only;
        if (all_cancelled(pass)) return mf__fail(err, MF_E_CANCELLED, "stopped by the caller before layer %d", l);
        split_rows(pass, l, &through, &state_only);
        MF__TRY(run_layer(pass, l, &through, &state_only, err));
    }
    MF__TRY(run_tail(pass, err));
    return mf__run_list_wait(m, err); /* a failure on the way comes out here */
}

/* With all experts held where they are, if they are there and the backend has memory of its own: for one in the host's
 * memory the host's word costs nothing, and turns see what is used. */
static mf_status forward_held(mf__pass *pass, mf_error *err) {
    mf_model *m = pass->model;
    int64_t mark = 0;
    pass->whole = m->be->host_memory ? NULL : mf__store_whole(m->store, &pass->whole_version);
    mf_status st = pass->whole ? mf__store_whole_before(m->store, &mark, err) : MF_OK;
    if (st == MF_OK) st = forward(pass, err);
    if (st != MF_OK) {
        mf__run_list_drop(m);
        m->be->wait(m->be, m->ws.list.fence, NULL); /* nothing may be used any more that is given back */
    }
    if (!pass->whole) return st;
    if (st == MF_OK) st = mf__store_whole_after(m->store, mark, err);
    mf__store_whole_release(m->store);
    pass->whole = NULL;
    return st;
}

mf_status mf__forward(mf__pass *pass, mf_error *err) {
    mf_model *m = pass->model;
    mf_stats before;
    mf__turn_stats_get(m->turn, &before);
    mf__turn_cancel_set(m->turn, all_cancelled, pass);
    mf_status st = forward_held(pass, err);
    const char *cut = mf__catalog_cut(m->native.catalog);
    if (st == MF_OK && cut)
        st = mf__fail(err, MF_E_IO, "%s was cut while it was in use; convert the model again, then open it again", cut);
    mf__turn_cancel_set(m->turn, NULL, NULL);
    mf__stats_pass(pass, &before);
    return st;
}

mf_status mf__forward_layer(mf__pass *pass, int layer, mf_error *err) {
    MF__TRY(begin_pass(pass, err));
    ranges all = {.r = {{0, pass->n_rows}}, .n = 1, .n_rows = pass->n_rows}, none = {.n = 0};
    mf_status st = run_layer(pass, layer, &all, &none, err);
    if (st != MF_OK) mf__run_list_drop(pass->model);
    return st;
}
