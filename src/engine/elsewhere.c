/* Experts that others compute, in the middle of a pass. */
#include "engine/elsewhere.h"

#include <string.h>

mf_status mf__elsewhere_fetch(mf_model *m, int32_t first, int32_t n, int32_t at, mf_error *err) {
    mf__workspace *ws = &m->ws;
    int64_t cols = ws->port_cols[MF_PORT_H_POST];
    const float *from = (const float *)ws->ports[MF_PORT_H_POST] + first * cols;
    for (int32_t i = 0; i < n; i++) ws->away_row_of[at + i] = first + i;
    return m->be->download(m->be, ws->away_rows + at * cols, from, n * cols * (int64_t)sizeof *from, err);
}

/* Those of ws->wanted that are not marked move together; returns how many they are. Pairs of the others are due. */
static int keep_own(mf__workspace *ws, int n_wanted) {
    int n = 0;
    for (int i = 0; i < n_wanted; i++) {
        if (ws->taken[ws->wanted[i]]) {
            ws->n_away_due += ws->counts[i];
            continue;
        }
        ws->wanted[n] = ws->wanted[i];
        ws->counts[n++] = ws->counts[i];
    }
    return n;
}

static int32_t n_decoding(const mf__pass *pass, int32_t n_rows) {
    int32_t n = 0;
    for (int i = 0; i < pass->n; i++) n += pass->parts[i].n_rows == 1;
    return n < n_rows ? n : n_rows;
}

mf_status mf__elsewhere_begin(const mf__pass *pass, int layer, int32_t n_rows, int *n_wanted, mf_error *err) {
    mf_model *m = pass->model;
    mf__workspace *ws = &m->ws;
    const mf__config *c = &m->bp.config;
    size_t n = (size_t)*n_wanted, n_pairs = (size_t)n_rows * (size_t)c->moe.top_k;
    memcpy(ws->away_wanted, ws->wanted, n * sizeof *ws->wanted);
    memcpy(ws->away_counts, ws->counts, n * sizeof *ws->counts);
    memcpy(ws->away_ids, ws->route_ids, n_pairs * sizeof *ws->away_ids);
    memset(ws->taken, 0, (size_t)c->moe.n_experts * sizeof *ws->taken);
    memset(ws->away_put, 0, n_pairs * sizeof *ws->away_put);
    ws->n_away_pairs = (int64_t)n_pairs;
    ws->n_away_due = 0;
    mf_experts_request r = {.layer = layer,
                            .n_rows = n_rows,
                            .n_hidden = c->n_hidden,
                            .top_k = c->moe.top_k,
                            .n_decode = n_decoding(pass, n_rows),
                            .rows = ws->away_rows,
                            .ids = ws->away_ids,
                            .wanted = ws->away_wanted,
                            .counts = ws->away_counts,
                            .n_wanted = *n_wanted};
    MF__TRY(m->elsewhere.begin(m->elsewhere.user, &r, ws->taken, err));
    m->away = true;
    *n_wanted = keep_own(ws, *n_wanted);
    mf_status st = MF_OK;
    for (int i = 0; i < *n_wanted && st == MF_OK; i++) st = mf__shard_check(m, layer, ws->wanted[i], err);
    return st == MF_OK ? MF_OK : mf__elsewhere_finish(m, st, err);
}

/* A pair that nobody computes here and that was not given before. */
static mf_status check_pair(const mf__workspace *ws, int64_t pair, const float *values, mf_error *err) {
    if (!values || pair < 0 || pair >= ws->n_away_pairs)
        return mf__fail(err, MF_E_INVALID, "elsewhere: pair %lld was given, expected 0 to %lld and values",
                        (long long)pair, (long long)ws->n_away_pairs - 1);
    if (!ws->taken[ws->away_ids[pair]])
        return mf__fail(err, MF_E_INVALID, "elsewhere: pair %lld is of expert %d, which begin did not take",
                        (long long)pair, ws->away_ids[pair]);
    if (ws->away_put[pair])
        return mf__fail(err, MF_E_INVALID, "elsewhere: pair %lld was given twice, expected once", (long long)pair);
    return MF_OK;
}

static mf_status put(void *user, int64_t pair, const float *values, mf_error *err) {
    mf_model *m = user;
    mf__workspace *ws = &m->ws;
    MF__TRY(check_pair(ws, pair, values, err));
    int64_t cols = m->bp.config.n_hidden, top_k = m->bp.config.moe.top_k;
    int64_t at = ws->away_row_of[pair / top_k] * top_k + pair % top_k;
    float *to = (float *)ws->ports[MF_PORT_PAIRS] + at * cols;
    MF__TRY(m->be->upload(m->be, to, values, cols * (int64_t)sizeof *to, err));
    ws->away_put[pair] = true;
    ws->n_away_due--;
    return MF_OK;
}

mf_status mf__elsewhere_finish(mf_model *m, mf_status st, mf_error *err) {
    if (!m->away) return st;
    m->away = false;
    if (st != MF_OK) {
        m->elsewhere.finish(m->elsewhere.user, NULL, NULL, NULL); /* the first error counts */
        return st;
    }
    MF__TRY(m->elsewhere.finish(m->elsewhere.user, put, m, err));
    if (!m->ws.n_away_due) return MF_OK;
    return mf__fail(err, MF_E_INVALID, "elsewhere: finish left out %lld pairs of the experts that begin took",
                    (long long)m->ws.n_away_due);
}

bool mf__elsewhere_wants_hints(const mf_model *m) {
    return m->elsewhere.wants_hints && m->elsewhere.wants_hints(m->elsewhere.user);
}

int mf__elsewhere_hint(mf_model *m, int layer, int32_t *ids, int n) {
    mf__workspace *ws = &m->ws;
    int kept = 0;
    if (!m->elsewhere.hint) return n;
    memset(ws->taken, 0, (size_t)m->bp.config.moe.n_experts * sizeof *ws->taken);
    m->elsewhere.hint(m->elsewhere.user, layer, ids, n, ws->taken);
    for (int i = 0; i < n; i++)
        if (!ws->taken[ids[i]]) ids[kept++] = ids[i];
    return kept;
}
