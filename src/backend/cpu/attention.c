/* Softmax attention with a KV cache: rotary positions, append, attend.
 *
 * Queries that share a kv head lie in the lanes of a vector: consecutive tokens, and the heads of the group. An item of
 * work is one kv head and a run of tokens; its keys are walked once, in blocks, for all the vectors of queries of the
 * item, each with its running maximum and sum. Keys after the last query's position are never touched. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

#define ITEM_VECTORS 8 /* vectors of queries that share a walk over the keys */

/* ---- positions --------------------------------------------------------------------------------------------------- */

static void rope_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    const float *inv_freq = mf__cpu_weights(r, 0);
    int32_t half = p->rope.n_rot / 2, s = 0, step = p->rope.interleaved ? 2 : 1;
    int32_t apart = p->rope.interleaved ? 1 : half;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        while (t >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        float *row = mf__cpu_out(r, 0) + t * p->rope.n_heads * p->rope.head_dim + p->rope.offset;
        float pos = (float)(r->b->segs[s].pos + t - r->b->segs[s].row0);
        for (int32_t i = 0; i < half; i++) {
            float cosine = cosf(pos * inv_freq[i]) * p->rope.scale, sine = sinf(pos * inv_freq[i]) * p->rope.scale;
            for (int32_t h = 0; h < p->rope.n_heads; h++) {
                float *at = row + (int64_t)h * p->rope.head_dim + i * step, a = at[0], b = at[apart];
                at[0] = a * cosine - b * sine;
                at[apart] = a * sine + b * cosine;
            }
        }
    }
}

mf_status mf__cpu_rope(mf__cpu_run *r, mf_error *err) {
    (void)err;
    mf__pool_run(r->b->n_rows < 4 ? NULL : r->pool, rope_rows, r, r->b->n_rows);
    return MF_OK;
}

/* ---- cache ------------------------------------------------------------------------------------------------------- */

static float *k_row(const mf__kv *kv, int64_t pos) {
    return (float *)kv->blocks[pos / kv->block_rows] + pos % kv->block_rows * kv->k_cols;
}
static float *v_row(const mf__kv *kv, int64_t pos) {
    return (float *)kv->blocks[pos / kv->block_rows] + (int64_t)kv->block_rows * kv->k_cols +
           pos % kv->block_rows * kv->v_cols;
}

mf_status mf__cpu_kv_append(mf__cpu_run *r, mf_error *err) {
    const float *k = mf__cpu_in(r, 0), *v = mf__cpu_in(r, 1);
    (void)err;
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        const mf__kv *kv = &seg->state->kv;
        for (int32_t t = 0; t < seg->n_rows; t++) {
            int64_t row = seg->row0 + t;
            memcpy(k_row(kv, seg->pos + t), k + row * kv->k_cols, (size_t)kv->k_cols * sizeof(float));
            memcpy(v_row(kv, seg->pos + t), v + row * kv->v_cols, (size_t)kv->v_cols * sizeof(float));
        }
    }
    return MF_OK;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static int64_t queries_bytes(const mf__cpu_kernels *k, int32_t dim) {
    return 2 * mf__cpu_round((int64_t)dim * k->lanes * 4) + 2 * mf__cpu_round(k->lanes * 4);
}

int64_t mf__cpu_attention_scratch(const mf__cpu_kernels *k, int threads, const mf__op *op) {
    return threads * ITEM_VECTORS * queries_bytes(k, op->p.attn.head_dim);
}

/* Tokens in one vector of queries, and heads of each: all heads of a group when they fit, else a part of them. */
typedef struct shape {
    int32_t heads, tokens;
    int32_t head_parts; /* vectors that the heads of one kv head need */
} shape;

static shape shape_of(const mf__cpu_run *r) {
    int32_t group = r->op->p.attn.n_heads / r->op->p.attn.n_kv_heads, lanes = r->k->lanes;
    shape s = {.heads = group < lanes ? group : lanes};
    s.tokens = lanes / s.heads;
    s.head_parts = (group + s.heads - 1) / s.heads;
    return s;
}

/* One vector: queries of `tokens` rows from row on, `heads` heads from head on; lane = token * heads + head. */
typedef struct lane_map {
    int64_t row;
    int32_t tokens, head, heads;
} lane_map;

static float *query_at(const mf__cpu_run *r, float *base, const lane_map *m, int lane) {
    int64_t row = m->row + lane / m->heads, head = m->head + lane % m->heads;
    return base + (row * r->op->p.attn.n_heads + head) * r->op->p.attn.head_dim;
}

static void load_queries(const mf__cpu_run *r, const mf__segment *seg, const lane_map *m, mf__cpu_queries *q) {
    int32_t dim = r->op->p.attn.head_dim, lanes = r->k->lanes, used = m->tokens * m->heads;
    int64_t window = r->op->p.attn.window;
    const float *sinks = mf__cpu_weights(r, 0);
    for (int32_t j = 0; j < lanes; j++) {
        q->last[j] = j < used ? seg->pos + m->row + j / m->heads - seg->row0 : -1;
        q->first[j] = window && q->last[j] >= window ? q->last[j] - window + 1 : 0;
        q->max[j] = -1e30f;
        q->total[j] = 0;
        if (sinks && j < used) { /* a logit that is there from the start, without a value */
            q->max[j] = sinks[m->head + j % m->heads];
            q->total[j] = 1;
        }
        const float *from = j < used ? query_at(r, mf__cpu_in(r, 0), m, j) : NULL;
        for (int32_t c = 0; c < dim; c++) q->q[(int64_t)c * lanes + j] = from ? from[c] * r->op->p.attn.scale : 0;
    }
    memset(q->o, 0, (size_t)dim * (size_t)lanes * sizeof *q->o);
}

static void store_queries(const mf__cpu_run *r, const lane_map *m, const mf__cpu_queries *q) {
    int32_t dim = r->op->p.attn.head_dim, lanes = r->k->lanes;
    for (int32_t j = 0; j < m->tokens * m->heads; j++) {
        float *to = query_at(r, mf__cpu_out(r, 0), m, j), inverse = 1.0f / q->total[j];
        for (int32_t c = 0; c < dim; c++) to[c] = q->o[(int64_t)c * lanes + j] * inverse;
    }
}

/* The keys that some lane of a vector sees. */
static void key_range(const mf__cpu_queries *q, int lanes, int64_t *first, int64_t *last) {
    *first = q->first[0], *last = q->last[0];
    for (int j = 1; j < lanes; j++) {
        if (q->last[j] < 0) continue;
        if (q->first[j] < *first) *first = q->first[j];
        if (q->last[j] > *last) *last = q->last[j];
    }
}

/* Walks the keys for n vectors of queries. A block never crosses the end of a KV block. */
static void walk_keys(const mf__cpu_run *r, const mf__kv *kv, int32_t kv_head, mf__cpu_queries *q, int n) {
    int32_t dim = r->op->p.attn.head_dim;
    int64_t first[ITEM_VECTORS], last[ITEM_VECTORS], at = INT64_MAX, end = 0;
    for (int i = 0; i < n; i++) {
        key_range(&q[i], r->k->lanes, &first[i], &last[i]);
        if (first[i] < at) at = first[i];
        if (last[i] >= end) end = last[i] + 1;
    }
    while (at < end) {
        int64_t left = end - at, in_block = kv->block_rows - at % kv->block_rows;
        mf__cpu_keys keys = {.k = k_row(kv, at) + (int64_t)kv_head * dim,
                             .v = v_row(kv, at) + (int64_t)kv_head * dim,
                             .k_stride = kv->k_cols,
                             .v_stride = kv->v_cols,
                             .first = at,
                             .n = MF_CPU_KEYS};
        if (keys.n > left) keys.n = (int32_t)left;
        if (keys.n > in_block) keys.n = (int32_t)in_block;
        for (int i = 0; i < n; i++)
            if (at <= last[i] && at + keys.n > first[i]) r->k->attend(&q[i], &keys, dim);
        at += keys.n;
    }
}

/* Vectors of a segment: for each kv head, vector v holds head part v % head_parts of token run v / head_parts. */
typedef struct walk {
    const mf__cpu_run *r;
    shape shape;
    char *scratch; /* [threads] */
    const mf__segment *seg;
    int64_t n_vectors, n_items; /* per kv head */
} walk;

static void attend_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const walk *w = ctx;
    const mf__cpu_run *r = w->r;
    const mf__segment *seg = w->seg;
    int32_t dim = r->op->p.attn.head_dim, lanes = r->k->lanes;
    int32_t group = r->op->p.attn.n_heads / r->op->p.attn.n_kv_heads;
    mf__cpu_queries q[ITEM_VECTORS];
    lane_map maps[ITEM_VECTORS];
    int64_t bytes = ITEM_VECTORS * queries_bytes(r->k, dim);
    mf__cpu_bump bump = {w->scratch + thread * bytes, bytes};
    for (int i = 0; i < ITEM_VECTORS; i++) {
        q[i].q = mf__cpu_take(&bump, (int64_t)dim * lanes * 4);
        q[i].o = mf__cpu_take(&bump, (int64_t)dim * lanes * 4);
        q[i].max = mf__cpu_take(&bump, lanes * 4);
        q[i].total = mf__cpu_take(&bump, lanes * 4);
    }
    for (int64_t item = begin; item < end; item++) {
        int32_t kv_head = (int32_t)(item % r->op->p.attn.n_kv_heads);
        int64_t first = item / r->op->p.attn.n_kv_heads * ITEM_VECTORS;
        int n = (int)(w->n_vectors - first < ITEM_VECTORS ? w->n_vectors - first : ITEM_VECTORS);
        for (int i = 0; i < n; i++) {
            int64_t v = first + i, token = v / w->shape.head_parts * w->shape.tokens;
            int32_t part = (int32_t)(v % w->shape.head_parts) * w->shape.heads;
            lane_map *m = &maps[i];
            m->row = seg->row0 + token;
            m->tokens = (int32_t)(seg->n_rows - token < w->shape.tokens ? seg->n_rows - token : w->shape.tokens);
            m->head = kv_head * group + part;
            m->heads = group - part < w->shape.heads ? group - part : w->shape.heads;
            load_queries(r, seg, m, &q[i]);
        }
        walk_keys(r, &seg->state->kv, kv_head, q, n);
        for (int i = 0; i < n; i++) store_queries(r, &maps[i], &q[i]);
    }
}

mf_status mf__cpu_attention(mf__cpu_run *r, mf_error *err) {
    int threads = mf__pool_threads(r->pool);
    walk w = {.r = r, .shape = shape_of(r)};
    w.scratch = mf__cpu_take(&r->scratch, mf__cpu_attention_scratch(r->k, threads, r->op));
    if (!w.scratch) return mf__fail(err, MF_E_INTERNAL, "no scratch for attention in graph %s", r->g->name);
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        w.seg = &r->b->segs[s];
        w.n_vectors = (int64_t)((w.seg->n_rows + w.shape.tokens - 1) / w.shape.tokens) * w.shape.head_parts;
        w.n_items = (w.n_vectors + ITEM_VECTORS - 1) / ITEM_VECTORS;
        mf__pool_run(r->pool, attend_items, &w, w.n_items * r->op->p.attn.n_kv_heads);
    }
    return MF_OK;
}
