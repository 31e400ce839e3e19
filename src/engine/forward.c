/* The walk of one pass through the model: chunks of prompts and single tokens of several sequences, side by side.
 *
 *   tokens -> embed -> per layer: mix -> ids -> store -> (shared, experts as they arrive) -> combine -> tail -> logits
 *
 * Of the last layer nothing is kept but the state: rows whose logits nobody wants need only their K/V written there, so
 * they run the KV-only graph. Which rows of a sequence those are depends on the sequence alone, never on its company.
 */
#include <string.h>

#include "engine/elsewhere.h"
#include "engine/lossy.h"
#include "engine/run_list.h"

static void add_range(mf__rows *to, int32_t first, int32_t n) {
    if (!n) return;
    mf__range *last = to->n ? &to->r[to->n - 1] : NULL;
    if (last && last->first + last->n == first)
        last->n += n;
    else
        to->r[to->n++] = (mf__range){first, n};
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
static mf_status probe_rows(const mf__pass_part *p, const char *name, mf__port port, int layer, mf__range at,
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
        MF__TRY(probe_rows(p, name, port, layer, (mf__range){p->row0, p->n_rows}, err));
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

void mf__count_routes(mf_model *m, int32_t n_rows) {
    mf__workspace *ws = &m->ws;
    memset(ws->n_wanting, 0, (size_t)m->bp.config.moe.n_experts * sizeof *ws->n_wanting);
    for (int64_t i = 0; i < (int64_t)n_rows * m->bp.config.moe.top_k; i++) ws->n_wanting[ws->route_ids[i]]++;
}

/* The distinct experts in ws->route_ids that are served in full, in file order, and how many rows want each. */
static int collect_wanted(mf_model *m, int32_t n_rows) {
    mf__workspace *ws = &m->ws;
    int32_t n_experts = m->bp.config.moe.n_experts, n = 0;
    mf__count_routes(m, n_rows);
    for (int i = 0; m->lossy && i < m->lossy->n_wanted; i++) ws->n_wanting[m->lossy->wanted[i]] = 0;
    for (int32_t e = 0; e < n_experts; e++) {
        if (!ws->n_wanting[e]) continue;
        ws->wanted[n] = e;
        ws->counts[n++] = ws->n_wanting[e];
    }
    return n;
}

/* The distinct experts in ws->route_ids, into ws->ahead; those that most rows want first, equal ones in file order. */
static int collect_ahead(mf_model *m, int32_t n_rows) {
    mf__workspace *ws = &m->ws;
    int32_t n_experts = m->bp.config.moe.n_experts, n = 0;
    mf__count_routes(m, n_rows);
    for (int32_t e = 0; e < n_experts; e++) {
        int32_t k = n;
        if (!ws->n_wanting[e]) continue;
        for (; k > 0 && ws->n_wanting[ws->ahead[k - 1]] < ws->n_wanting[e]; k--) ws->ahead[k] = ws->ahead[k - 1];
        ws->ahead[k] = e;
        n++;
    }
    return n;
}

static bool wants_hints(mf_model *m, mf__predictor who) {
    bool full = mf__store_wants_hints(m->store, who);
    bool small = m->lossy && m->lossy->store && mf__store_wants_hints(m->lossy->store, who);
    if (m->elsewhere.begin && who != MF_PREDICT_ROUTER) return false; /* others are told once */
    return full || small || mf__elsewhere_wants_hints(m);
}

/* Tells the store which experts a layer that follows may want: its router, applied to the residual as it is now. Only
 * reads depend on it, never results. */
static mf_status look_ahead(const mf__pass *pass, mf__predictor who, int layer, int32_t n, mf_error *err) {
    mf_model *m = pass->model;
    mf__workspace *ws = &m->ws;
    bool all_decode = pass->n == pass->n_rows;
    int64_t id_bytes = (int64_t)n * m->bp.config.moe.top_k * (int64_t)sizeof(int32_t);
    if (layer >= m->info.n_layers || !m->ahead[layer] || !wants_hints(m, who)) return MF_OK;
    const mf__layer_kind *k = kind_of(m, layer);
    mf__graph_run r = {.g = who == MF_PREDICT_EARLY ? k->early : k->ahead, .weights = m->ahead[layer], .n_rows = n};
    MF__TRY(mf__run_list_push(m, &r, err));
    MF__TRY(mf__run_list_submit(m, err));
    MF__TRY(m->be->download(m->be, ws->route_ids, ws->ports[MF_PORT_AHEAD_IDS], id_bytes, err));
    if (m->lossy && all_decode) return mf__lossy_look_ahead(m, who, layer, n, err);
    mf__store_hint(m->store, who, layer, ws->ahead, mf__elsewhere_hint(m, layer, ws->ahead, collect_ahead(m, n)));
    return MF_OK;
}

/* Behind a layer: the next one's router, and where rows decode also that of the layer after it, so that the drive has
 * work while the next layer is computed. */
static mf_status look_behind(const mf__pass *pass, int layer, int32_t n, mf_error *err) {
    MF__TRY(look_ahead(pass, MF_PREDICT_ROUTER, layer + 1, n, err));
    if (pass->n != pass->n_rows) return MF_OK;
    return look_ahead(pass, MF_PREDICT_SECOND, layer + 2, n, err);
}

/* One graph of the layer's feed-forward part, over all rows that go through. */
static mf_status push_rows(const mf__pass *pass, int layer, mf__layer_graph which, const mf__graph *g,
                           const mf__rows *rows, const mf__bank *bank, mf_error *err) {
    mf_model *m = pass->model;
    for (int i = 0; g && i < rows->n; i++) {
        mf__graph_run r = {.g = g, .weights = m->layers[layer][which], .bank = bank};
        MF__TRY(mf__run_list_segments(pass, -1, rows->r[i].first, rows->r[i].n, &r, err));
        MF__TRY(mf__run_list_push(m, &r, err));
    }
    return MF_OK;
}

/* Runs the experts graph on whatever the turn's store hands out, until all have had their turn. */
static mf_status run_experts(const mf__pass *pass, int layer, const mf__rows *rows, mf__turn *turn,
                             const mf__expert_layout *layout, mf_error *err) {
    mf_model *m = pass->model;
    mf__workspace *ws = &m->ws;
    mf__bank bank = {.layout = layout, .n_experts = m->bp.config.moe.n_experts, .blobs = ws->bank};
    for (;;) {
        int n = 0;
        MF__TRY(mf__turn_next(turn, ws->ready, ws->ready_blobs, &n, err));
        if (!n) return MF_OK;
        memset(ws->bank, 0, (size_t)bank.n_experts * sizeof *ws->bank);
        for (int i = 0; i < n; i++) ws->bank[ws->ready[i]] = ws->ready_blobs[i];
        mf_status st = push_rows(pass, layer, MF_GRAPH_EXPERTS, kind_of(m, layer)->experts, rows, &bank, err);
        if (st == MF_OK) st = mf__run_list_wait(m, err); /* their memory may be reused after done */
        mf__turn_done(turn, ws->ready, n);
        MF__TRY(st);
    }
}

/* Where the rows of the pass want to go, on the host. */
static mf_status fetch_routes(const mf__pass *pass, int layer, const mf__rows *rows, mf_error *err) {
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
static mf_status run_moe_whole(const mf__pass *pass, int layer, const mf__rows *rows, mf_error *err) {
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

/* Reads start for the n_wanted experts in ws->wanted, and for those that small copies serve. */
static mf_status begin_turns(mf_model *m, mf__lossy *x, int layer, int32_t n_rows, int n_wanted, mf_error *err) {
    if (x) mf__turn_used_set(m->turn, x->used, x->used_counts, x->n_used);
    MF__TRY(mf__turn_begin(m->turn, layer, m->ws.wanted, m->ws.counts, n_wanted, n_rows, err));
    mf_status st =
        x && x->turn ? mf__turn_begin(x->turn, layer, x->wanted, x->counts, x->n_wanted, n_rows, err) : MF_OK;
    if (st != MF_OK) mf__turn_end(m->turn);
    return st;
}

static void end_turns(mf_model *m, mf__lossy *x) {
    mf__turn_end(m->turn);
    if (x && x->turn) mf__turn_end(x->turn);
}

/* The experts in ws->wanted, and meanwhile another graph of the layer (NULL: none) and a look at the next one's router:
 * its experts are to follow these before the drive runs dry. */
static mf_status run_turn(const mf__pass *pass, int layer, const mf__rows *rows, int n_wanted,
                          const mf__graph *meanwhile, mf_error *err) {
    mf_model *m = pass->model;
    mf__lossy *x = pass->experts_alone ? NULL : m->lossy; /* what was decided is of a pass before */
    MF__TRY(begin_turns(m, x, layer, rows->n_rows, n_wanted, err));
    mf_status st = pass->experts_alone ? MF_OK : look_ahead(pass, MF_PREDICT_EARLY, layer + 1, rows->n_rows, err);
    if (st == MF_OK) st = push_rows(pass, layer, MF_GRAPH_SHARED, meanwhile, rows, NULL, err);
    if (st == MF_OK) st = mf__run_list_submit(m, err);
    if (st == MF_OK) st = run_experts(pass, layer, rows, m->turn, &m->layout, err); /* mostly there */
    if (st == MF_OK && x && x->turn) st = run_experts(pass, layer, rows, x->turn, &x->layout, err);
    end_turns(m, x);
    return st;
}

/* Offers the rows to those who compute experts elsewhere; *n_wanted are left for us. */
static mf_status begin_elsewhere(const mf__pass *pass, int layer, const mf__rows *rows, int *n_wanted, mf_error *err) {
    mf_model *m = pass->model;
    if (!m->elsewhere.begin) return MF_OK;
    for (int i = 0, at = 0; i < rows->n; at += rows->r[i++].n)
        MF__TRY(mf__elsewhere_fetch(m, rows->r[i].first, rows->r[i].n, at, err));
    return mf__elsewhere_begin(pass, layer, rows->n_rows, n_wanted, err);
}

static mf_status run_moe(const mf__pass *pass, int layer, const mf__rows *rows, mf_error *err) {
    mf_model *m = pass->model;
    const mf__layer_kind *k = kind_of(m, layer);
    if (pass->whole) return run_moe_whole(pass, layer, rows, err);
    MF__TRY(fetch_routes(pass, layer, rows, err));
    if (m->lossy) MF__TRY(mf__lossy_choose(pass, layer, rows, err));
    int n_wanted = collect_wanted(m, rows->n_rows);
    MF__TRY(begin_elsewhere(pass, layer, rows, &n_wanted, err));
    mf_status st = run_turn(pass, layer, rows, n_wanted, k->shared, err);
    MF__TRY(mf__elsewhere_finish(m, st, err));
    MF__TRY(push_rows(pass, layer, MF_GRAPH_COMBINE, k->combine, rows, NULL, err));
    return look_behind(pass, layer, rows->n_rows, err);
}

/* A feed-forward without experts, while which the drive may fetch those of the next layer. */
static mf_status run_dense(const mf__pass *pass, int layer, const mf__rows *rows, mf_error *err) {
    const mf__graph *g = kind_of(pass->model, layer)->combine;
    if (!pass->whole) MF__TRY(look_ahead(pass, MF_PREDICT_EARLY, layer + 1, rows->n_rows, err));
    MF__TRY(push_rows(pass, layer, MF_GRAPH_COMBINE, g, rows, NULL, err));
    return pass->whole ? MF_OK : look_behind(pass, layer, rows->n_rows, err);
}

/* ---- layers ------------------------------------------------------------------------------------------------------ */

/* The rows that go through the whole layer, and those of which only the state is wanted. */
static void split_rows(const mf__pass *pass, int layer, mf__rows *through, mf__rows *state_only) {
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

static mf_status push_mix(const mf__pass *pass, int layer, const mf__graph *g, const mf__rows *rows, mf_error *err) {
    mf_model *m = pass->model;
    for (int i = 0; i < rows->n; i++) {
        mf__graph_run r = {.g = g, .weights = m->layers[layer][MF_GRAPH_MIX]};
        MF__TRY(mf__run_list_segments(pass, layer, rows->r[i].first, rows->r[i].n, &r, err));
        MF__TRY(mf__run_list_push(m, &r, err));
    }
    return MF_OK;
}

/* The first half of a layer. A recurrent state is made by the whole of it. */
static mf_status run_mix(const mf__pass *pass, int layer, const mf__rows *through, const mf__rows *state_only,
                         mf_error *err) {
    const mf__layer_kind *k = kind_of(pass->model, layer);
    if (!k->cache) {
        mf__rows all = {.r = {{0, pass->n_rows}}, .n = 1, .n_rows = pass->n_rows};
        return push_mix(pass, layer, k->mix, &all, err);
    }
    MF__TRY(push_mix(pass, layer, k->cache, state_only, err));
    return push_mix(pass, layer, k->mix, through, err);
}

static mf_status run_layer(const mf__pass *pass, int layer, const mf__rows *through, const mf__rows *state_only,
                           mf_error *err) {
    mf_model *m = pass->model;
    const mf__layer_kind *k = kind_of(m, layer);
    MF__TRY(run_mix(pass, layer, through, state_only, err));
    if (through->n && k->experts) MF__TRY(run_moe(pass, layer, through, err));
    if (through->n && !k->experts) MF__TRY(run_dense(pass, layer, through, err));
    MF__TRY(probe_layer(pass, layer, err));
    return pass->whole ? MF_OK : mf__run_list_submit(m, err); /* a pass without turns is one list */
}

/* ---- the pass ---------------------------------------------------------------------------------------------------- */

/* The logits of n rows of the pass, which lie in the port from its beginning on, to whoever wants them. */
static mf_status deliver_logits(const mf__pass *pass, mf__range at, mf_error *err) {
    mf_model *m = pass->model;
    int64_t vocab = m->info.n_vocab;
    const float *from = m->ws.ports[MF_PORT_LOGITS];
    for (int i = 0; i < pass->n; i++) {
        const mf__pass_part *p = &pass->parts[i];
        int32_t first = p->row0 + p->n_rows - p->n_logits, end = p->row0 + p->n_rows;
        int32_t a = at.first > first ? at.first : first, b = at.first + at.n < end ? at.first + at.n : end;
        if (a >= b) continue;
        MF__TRY(probe_rows(p, "final_norm", MF_PORT_FINAL_NORM, -1, (mf__range){a - at.first, b - a}, err));
        MF__TRY(m->be->download(m->be, p->logits + (a - first) * vocab, from + (a - at.first) * vocab,
                                (b - a) * vocab * (int64_t)sizeof(float), err));
    }
    return MF_OK;
}

/* Rows that go through the tail together: as many of one part as fit, and whole parts beside them that follow at once.
 * How a part's rows are cut depends on the part alone. */
static mf__range tail_rows(const mf__pass *pass, int *part, int32_t *done) {
    mf__range r = {.n = 0};
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
    for (mf__range rows; (rows = tail_rows(pass, &part, &done)).n;) {
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
    if (pass->model->lossy) mf__lossy_begin_pass(pass);
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
        mf__rows through, state_only;
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
    pass->whole = m->be->host_memory || m->elsewhere.begin ? NULL : mf__store_whole(m->store, &pass->whole_version);
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
    mf__stats_turns(m, &before);
    mf__turn_cancel_set(m->turn, all_cancelled, pass);
    if (m->lossy && m->lossy->turn) mf__turn_cancel_set(m->lossy->turn, all_cancelled, pass);
    mf_status st = forward_held(pass, err);
    const char *cut = mf__catalog_cut(m->native.catalog);
    if (st == MF_OK && cut)
        st = mf__fail(err, MF_E_IO, "%s was cut while it was in use; convert the model again, then open it again", cut);
    mf__turn_cancel_set(m->turn, NULL, NULL);
    if (m->lossy && m->lossy->turn) mf__turn_cancel_set(m->lossy->turn, NULL, NULL);
    mf__stats_pass(pass, &before);
    return st;
}

mf_status mf__forward_experts(mf_model *m, int layer, int32_t n_rows, int n_wanted, mf_error *err) {
    mf__pass pass = {.model = m, .n_rows = n_rows, .experts_alone = true};
    mf__rows all = {.r = {{0, n_rows}}, .n = 1, .n_rows = n_rows};
    mf_status st = run_turn(&pass, layer, &all, n_wanted, NULL, err);
    if (st == MF_OK) return MF_OK;
    mf__run_list_drop(m);
    m->be->wait(m->be, m->ws.list.fence, NULL);
    return st;
}

mf_status mf__forward_layer(mf__pass *pass, int layer, mf_error *err) {
    MF__TRY(begin_pass(pass, err));
    mf__rows all = {.r = {{0, pass->n_rows}}, .n = 1, .n_rows = pass->n_rows}, none = {.n = 0};
    mf_status st = run_layer(pass, layer, &all, &none, err);
    if (st != MF_OK) mf__run_list_drop(pass->model);
    return st;
}
