/* The workspace: ports, scratch and host arrays for the largest chunk any session of the model may evaluate. */
#include <stdlib.h>
#include <string.h>

#include "engine/run_list.h"

typedef struct needs {
    int32_t port_cols[MF_PORT_COUNT], port_rows[MF_PORT_COUNT];
    int64_t scratch, be_scratch;
} needs;

static void add_graph(const mf_model *m, const mf__graph *g, int32_t n_rows, needs *need) {
    if (!g) return;
    int64_t scratch = mf__graph_scratch_bytes(g, n_rows);
    int64_t be_scratch = m->be->scratch ? m->be->scratch(m->be, g, n_rows) : 0;
    if (scratch > need->scratch) need->scratch = scratch;
    if (be_scratch > need->be_scratch) need->be_scratch = be_scratch;
    for (int b = 0; b < g->n_bufs; b++) {
        mf__port port = g->bufs[b].port;
        if (port == MF_PORT_NONE) continue;
        if (g->bufs[b].cols > need->port_cols[port]) need->port_cols[port] = g->bufs[b].cols;
        if (n_rows > need->port_rows[port]) need->port_rows[port] = n_rows;
    }
}

static needs count_needs(const mf_model *m, int32_t n_rows) {
    needs need = {0};
    for (int k = 0; m->experts_only && k < m->bp.n_kinds; k++) add_graph(m, m->bp.kinds[k].experts, n_rows, &need);
    if (m->experts_only) return need;
    add_graph(m, m->bp.embed, n_rows, &need);
    add_graph(m, m->bp.tail, MF_TAIL_ROWS, &need);
    for (int k = 0; k < m->bp.n_kinds; k++) {
        const mf__graph *graphs[MF_LAYER_GRAPHS];
        mf__layer_graphs(&m->bp.kinds[k], graphs);
        for (int i = 0; i < MF_LAYER_GRAPHS; i++) add_graph(m, graphs[i], n_rows, &need);
        add_graph(m, m->bp.kinds[k].ahead, n_rows, &need);
        add_graph(m, m->bp.kinds[k].early, n_rows, &need);
        add_graph(m, m->bp.kinds[k].cache, n_rows, &need);
    }
    return need;
}

/* What those take who compute experts elsewhere or for others: in the host's memory, whatever computes. */
static int64_t away_bytes(const mf_model *m, int32_t n_rows) {
    int64_t row = m->message_row_bytes;
    if (m->elsewhere.begin) row += (m->bp.config.n_hidden + 1 + MF_MAX_TOPK) * (int64_t)sizeof(float) + MF_MAX_TOPK;
    return m->message_bytes + n_rows * row;
}

static void free_workspace(mf_model *m, mf__workspace *ws) {
    for (int p = 0; p < MF_PORT_COUNT; p++) mf__model_release(m, ws->port_bytes[p], ws->ports[p]);
    mf__model_release(m, ws->scratch_bytes, ws->scratch);
    if (ws->reserved) mf__model_return(m, ws->reserved);
    if (ws->staged) {
        m->be->stage(m->be, 0, NULL);
        mf__model_return(m, ws->staged);
    }
    if (ws->away_bytes) mf__model_return_host(m, ws->away_bytes);
    mf__run_list_deinit(&ws->list);
    free(ws->probe_rows);
    free(ws->route_ids);
    free(ws->n_wanting);
    free(ws->counts);
    free(ws->wanted);
    free(ws->ahead);
    free(ws->ready);
    free(ws->ready_blobs);
    free(ws->bank);
    free(ws->banks);
    free(ws->away_rows);
    free(ws->away_row_of);
    free(ws->away_ids);
    free(ws->away_wanted);
    free(ws->away_counts);
    free(ws->taken);
    free(ws->away_put);
    memset(ws, 0, sizeof *ws);
}

void mf__workspace_free(mf_model *m) {
    if (m->be) free_workspace(m, &m->ws);
}

int64_t mf__workspace_bytes(const mf_model *m, int32_t n_rows) {
    needs need = count_needs(m, n_rows);
    int64_t bytes = need.scratch + need.be_scratch + away_bytes(m, n_rows);
    for (int p = 0; p < MF_PORT_COUNT; p++) bytes += (int64_t)need.port_cols[p] * need.port_rows[p] * 4;
    return bytes;
}

static mf_status alloc_device(mf_model *m, mf__workspace *ws, int32_t n_rows, mf_error *err) {
    needs need = count_needs(m, n_rows);
    for (int p = 0; p < MF_PORT_COUNT; p++) {
        int64_t bytes = (int64_t)need.port_cols[p] * need.port_rows[p] * 4;
        ws->port_cols[p] = need.port_cols[p];
        ws->port_bytes[p] = bytes;
        if (bytes) MF__TRY(mf__model_alloc(m, bytes, &ws->ports[p], err));
    }
    ws->scratch_bytes = need.scratch;
    if (need.scratch) MF__TRY(mf__model_alloc(m, need.scratch, &ws->scratch, err));
    if (!m->be->reserve || !need.be_scratch) return MF_OK;
    MF__TRY(mf__model_lend(m, need.be_scratch, err));
    ws->reserved = need.be_scratch;
    return m->be->reserve(m->be, need.be_scratch, err);
}

/* Memory for experts on their way to runs of many rows, where the device has room for some of them only: as much as
 * helps, but no more than a quarter of what they have. Without it they are read where they are. */
static void alloc_staging(mf_model *m, mf__workspace *ws, int32_t n_rows) {
    const mf__config *c = &m->bp.config;
    mf_stats stats;
    if (!m->reaches_host || !m->be->stage || 2 * (int64_t)n_rows * c->moe.top_k < c->moe.n_experts) return;
    mf__store_stats_get(m->store, &stats);
    int64_t bytes = m->be->staging_bytes(m->be, m->layout.bytes, c->moe.n_experts);
    if (bytes > stats.budget / 4) bytes = stats.budget / 4;
    if (bytes < 1 || mf__store_lend(m->store, bytes, NULL) != MF_OK) return;
    m->lent += bytes;
    ws->staged = bytes;
    if (m->be->stage(m->be, bytes, NULL) == MF_OK) return;
    mf__model_return(m, bytes);
    ws->staged = 0;
}

static mf_status alloc_host(const mf_model *m, mf__workspace *ws, int32_t n_rows, mf_error *err) {
    const mf__config *c = &m->bp.config;
    size_t experts = (size_t)c->moe.n_experts + 1, rows = (size_t)n_rows;
    size_t row = (size_t)mf__config_wide(c);
    if (row < MF_MAX_TOPK) row = MF_MAX_TOPK;
    ws->probe_rows = malloc(rows * row * sizeof *ws->probe_rows);
    ws->route_ids = malloc(rows * MF_MAX_TOPK * sizeof *ws->route_ids);
    ws->n_wanting = calloc(experts, sizeof *ws->n_wanting);
    ws->counts = calloc(experts, sizeof *ws->counts);
    ws->wanted = calloc(experts, sizeof *ws->wanted);
    ws->ahead = calloc(experts, sizeof *ws->ahead);
    ws->ready = calloc(experts, sizeof *ws->ready);
    ws->ready_blobs = calloc(experts, sizeof *ws->ready_blobs);
    ws->bank = calloc(experts, sizeof *ws->bank);
    ws->banks = calloc((size_t)c->n_layers, sizeof *ws->banks);
    if (ws->probe_rows && ws->route_ids && ws->n_wanting && ws->counts && ws->wanted && ws->ahead && ws->ready &&
        ws->ready_blobs && ws->bank && ws->banks)
        return mf__run_list_init(&ws->list, m, err);
    return mf__fail(err, MF_E_NOMEM, "no memory for evaluating %d tokens at a time", n_rows);
}

static mf_status alloc_away(mf_model *m, mf__workspace *ws, int32_t n_rows, mf_error *err) {
    size_t experts = (size_t)m->bp.config.moe.n_experts + 1, rows = (size_t)n_rows;
    int64_t bytes = away_bytes(m, n_rows);
    if (bytes) MF__TRY(mf__model_lend_host(m, bytes, err));
    ws->away_bytes = bytes;
    if (!m->elsewhere.begin) return MF_OK;
    ws->away_rows = malloc(rows * (size_t)m->bp.config.n_hidden * sizeof *ws->away_rows);
    ws->away_row_of = malloc(rows * sizeof *ws->away_row_of);
    ws->away_ids = malloc(rows * MF_MAX_TOPK * sizeof *ws->away_ids);
    ws->away_wanted = calloc(experts, sizeof *ws->away_wanted);
    ws->away_counts = calloc(experts, sizeof *ws->away_counts);
    ws->taken = calloc(experts, sizeof *ws->taken);
    ws->away_put = malloc(rows * MF_MAX_TOPK * sizeof *ws->away_put);
    if (ws->away_rows && ws->away_row_of && ws->away_ids && ws->away_wanted && ws->away_counts && ws->taken &&
        ws->away_put)
        return MF_OK;
    return mf__fail(err, MF_E_NOMEM, "no memory for the rows that %d tokens send elsewhere", n_rows);
}

static mf_status make(mf_model *m, int32_t n_rows, mf_error *err) {
    m->ws = (mf__workspace){.n_rows = n_rows};
    mf_status st = alloc_device(m, &m->ws, n_rows, err);
    if (st == MF_OK) st = alloc_host(m, &m->ws, n_rows, err);
    if (st == MF_OK) st = alloc_away(m, &m->ws, n_rows, err);
    if (st == MF_OK) alloc_staging(m, &m->ws, n_rows);
    if (st != MF_OK) free_workspace(m, &m->ws);
    return st;
}

/* The old one goes first: both at once may be more than there is room for. Where the larger one cannot be had, the old
 * size can. */
mf_status mf__workspace_reserve(mf_model *m, int32_t n_rows, mf_error *err) {
    int32_t had = m->ws.n_rows;
    if (n_rows <= had) return MF_OK;
    free_workspace(m, &m->ws);
    mf_status st = make(m, n_rows, err);
    if (st != MF_OK && had) {
        mf_error again;
        if (make(m, had, &again) != MF_OK) return mf__fail(err, again.status, "%s", again.text);
    }
    return st;
}
