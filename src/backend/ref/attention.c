/* Softmax attention with a KV cache: query/gate split, rotary positions, append, attend, gate. */
#include <float.h>
#include <math.h>
#include <string.h>

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
                float cosine = cosf(angle) * p->rope.scale, sine = sinf(angle) * p->rope.scale;
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
            mf__kv_encode_row(kv->type, v + row * kv->v_cols, kv->v_cols, mf__kv_v(kv, seg->pos + t));
        }
    }
}

static float score(const float *q, const float *k, int32_t dim, float scale) {
    float sum = 0;
    for (int32_t c = 0; c < dim; c++) sum += q[c] * k[c];
    return sum * scale;
}

/* o = sum_i softmax_i(q . k_i * scale) v_i over the cached rows first .. pos, where first leaves as many rows as the
 * window has. A sink is one more logit of the softmax, without a value. Scores are computed twice, once for the maximum
 * and once for the sum, so that no length needs memory of its own. mem: [head_dim]. */
static void attend_one(const mf__kv *kv, const float *q, int64_t pos, int32_t kv_head, const float *sink,
                       const mf__op_params *p, float *mem, float *o) {
    int32_t dim = p->attn.head_dim, at = kv_head * dim;
    int64_t first = p->attn.window && pos >= p->attn.window ? pos - p->attn.window + 1 : 0;
    float max = sink ? *sink : -FLT_MAX;
    for (int64_t i = first; i <= pos; i++) {
        float s = score(q, mf__ref_k_row(kv, i, at, dim, mem), dim, p->attn.scale);
        if (s > max) max = s;
    }
    float total = sink ? expf(*sink - max) : 0;
    memset(o, 0, (size_t)dim * sizeof(float));
    for (int64_t i = first; i <= pos; i++) {
        float e = expf(score(q, mf__ref_k_row(kv, i, at, dim, mem), dim, p->attn.scale) - max);
        const float *v = mf__ref_v_row(kv, i, at, dim, mem);
        total += e;
        for (int32_t c = 0; c < dim; c++) o[c] += e * v[c];
    }
    for (int32_t c = 0; c < dim; c++) o[c] /= total;
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
        attend_one(&seg->state->kv, q + i * p->attn.head_dim, seg->pos + row - seg->row0, kv_head,
                   sinks ? sinks + head : NULL, p, mem, o + i * p->attn.head_dim);
    }
}

void mf__ref_attention(const mf__ref_run *r) {
    mf__pool_run(r->pool, attend, (void *)r, (int64_t)r->b->n_rows * r->op->p.attn.n_heads);
}

void mf__ref_sigmoid_gate(const mf__ref_run *r) {
    const float *gate = mf__ref_in(r, 1);
    float *x = mf__ref_out(r, 0);
    int64_t n = (int64_t)r->b->n_rows * mf__ref_in_cols(r, 0);
    for (int64_t i = 0; i < n; i++) x[i] *= mf__ref_sigmoid(gate[i]);
}
