/* Softmax attention with a KV cache: query/gate split, rotary positions, append, attend, gate. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/picks.h"
#include "backend/ref/ref.h"

/* u[t] = [heads][query dim | gate dim]; the blocks alternate head by head. */
void mf__ref_split_q_gate(const mf__ref_run *r) {
    int32_t dim = r->op->p.split.head_dim;
    int64_t n = (int64_t)r->b->n_rows * r->op->p.split.n_heads;
    const float *u = mf__ref_in(r, 0);
    float *q = mf__ref_out(r, 0), *gate = mf__ref_out(r, 1);
    for (int64_t i = 0; i < n; i++, u += 2 * dim, q += dim, gate += dim) {
        memcpy(q, u, (size_t)dim * sizeof(float));
        memcpy(gate, u + dim, (size_t)dim * sizeof(float));
    }
}

/* (a, b) -> (a cos - b sin, a sin + b cos), angle = position * inv_freq[i], for the n_rot/2 pairs of each head. */
void mf__ref_rope(const mf__ref_run *r) {
    const mf__op_params *p = &r->op->p;
    const float *inv_freq = mf__ref_vec(r, 0);
    float *x = mf__ref_out(r, 0);
    int32_t half = p->rope.n_rot / 2;
    int64_t row_cols = (int64_t)p->rope.n_heads * p->rope.head_dim;
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        for (int32_t t = 0; t < seg->n_rows; t++) {
            float *row = x + (seg->row0 + t) * row_cols;
            for (int32_t i = 0; i < half; i++) {
                float angle = (float)(seg->pos + t) * inv_freq[i];
                float cosine = cosf(angle) * p->rope.scale, sine = sinf(p->rope.back ? -angle : angle) * p->rope.scale;
                int32_t ia = p->rope.offset + (p->rope.interleaved ? 2 * i : i);
                int32_t ib = p->rope.offset + (p->rope.interleaved ? 2 * i + 1 : i + half);
                for (int32_t h = 0; h < p->rope.n_heads; h++) {
                    float *head = row + (int64_t)h * p->rope.head_dim;
                    float a = head[ia], b = head[ib];
                    head[ia] = a * cosine - b * sine;
                    head[ib] = a * sine + b * cosine;
                }
            }
        }
    }
}

void mf__ref_kv_append(const mf__ref_run *r) {
    const float *k = mf__ref_in(r, 0), *v = mf__ref_in(r, 1);
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        const mf__kv *kv = &seg->state->kv;
        for (int32_t t = 0; t < seg->n_rows; t++) {
            int64_t row = seg->row0 + t;
            mf__kv_encode_row(kv->type, k + row * kv->k_cols, kv->k_cols, mf__kv_k(kv, seg->pos + t));
            if (v) mf__kv_encode_row(kv->type, v + row * kv->v_cols, kv->v_cols, mf__kv_v(kv, seg->pos + t));
        }
    }
}

static float score(const float *q, const float *k, int32_t dim, float scale) {
    float sum = 0;
    for (int32_t c = 0; c < dim; c++) sum += q[c] * k[c];
    return sum * scale;
}

/* o = sum_i softmax_i(q . k_i * scale) v_i over the cached rows that are seen, from first on, where the window or the
 * query's chunk begins. A sink is one more logit of the softmax, without a value. Scores are computed twice, once for
 * the maximum and once for the sum, so that no length needs memory of its own. mem: a key or a value. */
static void attend_one(const mf__kv *kv, const float *q, const mf__picks *picks, int32_t kv_head, const float *sink,
                       const mf__op_params *p, float *mem, float *o) {
    int32_t dim = p->attn.head_dim, v_dim = mf__op_v_dim(p), at = kv_head * dim, v_at = kv_head * v_dim;
    int64_t first = mf__window_first(p->attn.window, p->attn.chunked, picks->n_rows - 1);
    float max = sink ? *sink : -FLT_MAX;
    for (int64_t i = first; i < picks->n_rows; i++) {
        float s = score(q, mf__ref_k_row(kv, mf__picks_row(picks, i), at, dim, mem), dim, p->attn.scale);
        if (s > max) max = s;
    }
    float total = sink ? expf(*sink - max) : 0;
    memset(o, 0, (size_t)v_dim * sizeof(float));
    for (int64_t i = first; i < picks->n_rows; i++) {
        int64_t row = mf__picks_row(picks, i);
        float e = expf(score(q, mf__ref_k_row(kv, row, at, dim, mem), dim, p->attn.scale) - max);
        const float *v = mf__ref_v_row(kv, row, v_at, v_dim, mem);
        total += e;
        for (int32_t c = 0; c < v_dim; c++) o[c] += e * v[c];
    }
    for (int32_t c = 0; c < v_dim; c++) o[c] /= total;
}

/* What a head of a row sees. */
static mf__picks seen_by(const mf__ref_run *r, const mf__segment *seg, int64_t row, int64_t head) {
    const mf__op_params *p = &r->op->p;
    int64_t pos = seg->pos + row - seg->row0;
    if (r->op->in[1] < 0) return mf__picks_of(NULL, 0, 1, pos);
    int64_t list = row * p->attn.n_lists + head / (p->attn.n_heads / p->attn.n_lists);
    const int32_t *ids = (const int32_t *)r->b->bufs[r->op->in[1]] + list * p->attn.n_picks;
    return mf__picks_of(ids, p->attn.n_picks, p->attn.block, pos);
}

/* Items are (row, head) pairs. */
static void attend(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    const float *q = mf__ref_in(r, 0), *sinks = mf__ref_vec(r, 0);
    float *o = mf__ref_out(r, 0), *mem = r->scratch + thread * r->scratch_floats;
    int32_t s = 0;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / p->attn.n_heads, head = i % p->attn.n_heads;
        while (row >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        const mf__segment *seg = &r->b->segs[s];
        int32_t kv_head = (int32_t)head / (p->attn.n_heads / p->attn.n_kv_heads);
        mf__picks seen = seen_by(r, seg, row, head);
        attend_one(&seg->state->kv, q + i * p->attn.head_dim, &seen, kv_head, sinks ? sinks + head : NULL, p, mem,
                   o + i * mf__op_v_dim(p));
    }
}

void mf__ref_attention(const mf__ref_run *r) {
    mf__pool_run(r->pool, attend, (void *)r, (int64_t)r->b->n_rows * r->op->p.attn.n_heads);
}

void mf__ref_sigmoid_gate(const mf__ref_run *r) {
    const float *gate = mf__ref_in(r, 1);
    float *x = mf__ref_out(r, 0);
    int64_t n = (int64_t)r->b->n_rows * mf__ref_in_cols(r, 0);
    for (int64_t i = 0; i < n; i++) x[i] *= mf__ref_sigmoid(gate[i / r->op->p.gate.part]);
}
