/* Computing experts for others: rows come in, pairs go out. */
#include <string.h>

#include "engine/elsewhere.h"
#include "engine/experts.h"
#include "engine/snapshot.h"

#define MAX_ROWS 65536

mf_status mf_model_fingerprint(mf_model *m, uint64_t *out, mf_error *err) {
    if (!m || !out) return mf__fail(err, MF_E_INVALID, "mf_model_fingerprint: an argument is NULL");
    MF__TRY(mf__model_fingerprint(m, err));
    *out = m->shape->fingerprint;
    return MF_OK;
}

static mf_status check_shape(const mf_model *m, const mf_experts_request *r, mf_error *err) {
    const mf__config *c = &m->bp.config;
    if (r->layer < 0 || r->layer >= c->n_layers || !mf__model_has_experts(m, r->layer))
        return mf__fail(err, MF_E_INVALID, "layer is %d, this model has %d, and it is not one without experts",
                        r->layer, c->n_layers);
    if (r->n_hidden != c->n_hidden || r->top_k != c->moe.top_k)
        return mf__fail(err, MF_E_INVALID, "rows of %d values that go to %d experts, this model has %d and %d",
                        r->n_hidden, r->top_k, c->n_hidden, c->moe.top_k);
    if (r->n_rows < 1 || r->n_rows > MAX_ROWS || r->n_decode < 0 || r->n_decode > r->n_rows)
        return mf__fail(err, MF_E_INVALID, "n_rows is %d, expected 1 to %d; n_decode is %d, expected 0 to n_rows",
                        r->n_rows, MAX_ROWS, r->n_decode);
    if (r->n_wanted < 0 || r->n_wanted > c->moe.n_experts || !r->rows || !r->ids || (r->n_wanted && !r->wanted))
        return mf__fail(err, MF_E_INVALID, "%d experts are wanted, a layer has %d; or an argument is NULL", r->n_wanted,
                        c->moe.n_experts);
    return MF_OK;
}

/* m->n_asking: how many places of ids each expert has. */
static mf_status count_asking(mf_model *m, const mf_experts_request *r, mf_error *err) {
    int32_t n_experts = m->bp.config.moe.n_experts;
    if (!m->n_asking) m->n_asking = mf__arena_array(&m->arena, (size_t)n_experts, sizeof *m->n_asking);
    if (!m->n_asking) return mf__fail(err, MF_E_NOMEM, "no memory for a table of %d experts", n_experts);
    memset(m->n_asking, 0, (size_t)n_experts * sizeof *m->n_asking);
    for (int64_t i = 0; i < (int64_t)r->n_rows * r->top_k; i++) {
        if (r->ids[i] < 0 || r->ids[i] >= n_experts)
            return mf__fail(err, MF_E_INVALID, "a row goes to expert %d, a layer has %d", r->ids[i], n_experts);
        m->n_asking[r->ids[i]]++;
    }
    return MF_OK;
}

/* *n_pairs: places of ids that are wanted. */
static mf_status check_wanted(const mf_model *m, const mf_experts_request *r, int64_t *n_pairs, mf_error *err) {
    int32_t n_experts = m->bp.config.moe.n_experts;
    *n_pairs = 0;
    for (int32_t i = 0; i < r->n_wanted; i++) {
        int32_t e = r->wanted[i];
        if (e < 0 || e >= n_experts || (i && e <= r->wanted[i - 1]) || !m->n_asking[e])
            return mf__fail(err, MF_E_INVALID,
                            "expert %d of layer %d is wanted: expected rising numbers below %d that rows go to", e,
                            r->layer, n_experts);
        MF__TRY(mf__shard_check(m, r->layer, e, err));
        *n_pairs += m->n_asking[e];
    }
    return MF_OK;
}

static void take_wanted(mf_model *m, const mf_experts_request *r) {
    for (int32_t i = 0; i < r->n_wanted; i++) {
        m->ws.wanted[i] = r->wanted[i];
        m->ws.counts[i] = m->n_asking[r->wanted[i]];
    }
}

static mf_status fetch_pairs(mf_model *m, const mf_experts_request *r, float *pairs, mf_error *err) {
    mf__workspace *ws = &m->ws;
    int64_t cols = r->n_hidden;
    memset(ws->n_wanting, 0, (size_t)m->bp.config.moe.n_experts * sizeof *ws->n_wanting);
    for (int32_t i = 0; i < r->n_wanted; i++) ws->n_wanting[r->wanted[i]] = 1;
    for (int64_t i = 0; i < (int64_t)r->n_rows * r->top_k; i++) {
        if (!ws->n_wanting[r->ids[i]]) continue;
        const float *from = (const float *)ws->ports[MF_PORT_PAIRS] + i * cols;
        MF__TRY(m->be->download(m->be, pairs, from, cols * (int64_t)sizeof *from, err));
        pairs += cols;
    }
    return MF_OK;
}

/* Under lock. Everything is checked before anything grows. */
static mf_status compute(mf_model *m, const mf_experts_request *r, float *pairs, size_t pairs_len, mf_error *err) {
    mf__workspace *ws = &m->ws;
    int64_t n_pairs = 0, n_ids = (int64_t)r->n_rows * r->top_k, n_values = (int64_t)r->n_rows * r->n_hidden;
    MF__TRY(count_asking(m, r, err));
    MF__TRY(check_wanted(m, r, &n_pairs, err));
    if (pairs_len != (size_t)(n_pairs * r->n_hidden) || (n_pairs && !pairs))
        return mf__fail(err, MF_E_INVALID, "pairs has room for %zu values, %lld pairs of %d are wanted", pairs_len,
                        (long long)n_pairs, r->n_hidden);
    if (!n_pairs) return MF_OK;
    MF__TRY(mf__workspace_reserve(m, r->n_rows, err));
    take_wanted(m, r);
    MF__TRY(m->be->upload(m->be, ws->ports[MF_PORT_H_POST], r->rows, n_values * (int64_t)sizeof(float), err));
    MF__TRY(m->be->upload(m->be, ws->ports[MF_PORT_ROUTE_IDS], r->ids, n_ids * (int64_t)sizeof(int32_t), err));
    mf__turn_decode_set(m->turn, r->n_decode);
    MF__TRY(mf__forward_experts(m, r->layer, r->n_rows, r->n_wanted, err));
    return fetch_pairs(m, r, pairs, err);
}

mf_status mf_experts_compute(mf_model *m, const mf_experts_request *r, float *pairs, size_t pairs_len, mf_error *err) {
    if (!m || !r) return mf__fail(err, MF_E_INVALID, "mf_experts_compute: an argument is NULL");
    MF__TRY(check_shape(m, r, err));
    mf__model_lock(m);
    mf_status st = compute(m, r, pairs, pairs_len, err);
    mf__model_unlock(m);
    return st;
}

void mf__model_messages(mf_model *m, int64_t bytes, int64_t row_bytes) {
    m->message_bytes = bytes;
    m->message_row_bytes = row_bytes;
}

mf_status mf__experts_reserve(mf_model *m, int32_t n_rows, mf_error *err) {
    int64_t least = m->layout.bytes;
    mf_error why = {0};
    mf__model_lock(m);
    mf_status st = mf__workspace_reserve(m, n_rows, &why);
    mf__model_unlock(m);
    if (st == MF_OK) return MF_OK;
    if (st != MF_E_NOMEM || !m->be->host_memory) return mf__fail(err, st, "%s", why.text);
    mf__store_least(&m->store_config, &least, &why);
    int64_t need = MF_PROGRAM_BYTES + mf__workspace_bytes(m, n_rows) + least;
    return mf__fail(err, st,
                    "no memory for requests of %d rows: it takes at least --ram %lldM, or smaller chunks (--chunk)",
                    n_rows, (long long)((need >> 20) + 1));
}

const mf__shard *mf__model_shard(const mf_model *m) {
    return m->native.shard;
}

bool mf__model_has_experts(const mf_model *m, int layer) {
    return m->bp.kinds[m->bp.kind_of[layer]].experts != NULL;
}

mf_status mf__shard_check(const mf_model *m, int layer, int32_t expert, mf_error *err) {
    const mf__shard *s = m->native.shard;
    if (!s || mf__shard_has(s, layer, expert)) return MF_OK;
    return mf__fail(err, MF_E_NOT_FOUND, "expert %d of layer %d is not in %s, the shard of rank %d of %d", expert,
                    layer, m->native.dir, s->rank, s->n_ranks);
}

mf_status mf_experts_own(mf_model *m, const bool *own, size_t n, mf_error *err) {
    if (!m || !own) return mf__fail(err, MF_E_INVALID, "mf_experts_own: an argument is NULL");
    size_t all = (size_t)m->bp.config.n_layers * (size_t)m->bp.config.moe.n_experts;
    if (n != all || m->own)
        return mf__fail(err, MF_E_INVALID, "mf_experts_own: %zu experts, this model has %zu; and it is said once", n,
                        all);
    for (size_t i = 0; i < n; i++) {
        int layer = (int)(i / (size_t)m->bp.config.moe.n_experts);
        if (own[i] && mf__model_has_experts(m, layer))
            MF__TRY(mf__shard_check(m, layer, (int32_t)(i % (size_t)m->bp.config.moe.n_experts), err));
    }
    bool *mine = mf__arena_array(&m->arena, n, sizeof *mine);
    if (!mine) return mf__fail(err, MF_E_NOMEM, "no memory for %zu marks", n);
    memcpy(mine, own, n * sizeof *mine);
    mf__model_lock(m);
    m->own = mine;
    if (m->store) { /* a model without experts has none */
        mf__store_own(m->store, mine);
        mf__model_fill_stores(m);
    }
    mf__model_unlock(m);
    return MF_OK;
}

void mf_experts_hint(mf_model *m, int layer, const int32_t *ids, int n) {
    if (!m || !ids || n < 0 || n > m->bp.config.moe.n_experts || layer < 0 || layer >= m->bp.config.n_layers) return;
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->bp.config.moe.n_experts) return;
    pthread_mutex_lock(&m->store_lock);
    if (m->store) mf__store_hint(m->store, MF_PREDICT_ROUTER, layer, ids, n);
    pthread_mutex_unlock(&m->store_lock);
}
