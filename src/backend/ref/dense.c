/* Embedding, matrix products, norms, activations: the ops that treat every row alike. */
#include <math.h>
#include <string.h>

#include "backend/ref/dot.h"
#include "backend/ref/ref.h"

/* x[t] = table[token[t]] */
void mf__ref_embed(const mf__ref_run *r) {
    const int32_t *tokens = r->b->bufs[r->op->in[0]];
    const mf__tensor *table = mf__ref_w(r, 0);
    float *x = mf__ref_out(r, 0);
    for (int32_t t = 0; t < r->b->n_rows; t++) mf__tensor_row_f32(table, tokens[t], x + t * table->n_cols);
}

/* y = x * w / sqrt(mean(x^2) + eps), for each part of each row (the whole row, or a head). May be in place. */
void mf__ref_rms_norm(const mf__ref_run *r) {
    const float *x = mf__ref_in(r, 0), *w = mf__ref_vec(r, 0);
    float *y = mf__ref_out(r, 0);
    int32_t part = r->op->p.norm.part;
    int64_t n_parts = (int64_t)r->b->n_rows * mf__ref_in_cols(r, 0) / part;
    for (int64_t i = 0; i < n_parts; i++, x += part, y += part) {
        float sum = 0;
        for (int32_t c = 0; c < part; c++) sum += x[c] * x[c];
        float scale = 1.0f / sqrtf(sum / (float)part + r->op->p.norm.eps);
        const float *own = w + (r->op->p.norm.apart ? i % (mf__ref_in_cols(r, 0) / part) * part : 0);
        for (int32_t c = 0; c < part; c++) y[c] = x[c] * scale * own[c];
    }
}

/* x = (x - mean(x)) * w / sqrt(mean((x - mean(x))^2) + eps) + b */
void mf__ref_layer_norm(const mf__ref_run *r) {
    const float *w = mf__ref_vec(r, 0), *b = mf__ref_vec(r, 1);
    float *x = mf__ref_out(r, 0);
    int32_t cols = mf__ref_in_cols(r, 0);
    for (int32_t t = 0; t < r->b->n_rows; t++, x += cols) {
        float mean = 0, square = 0;
        for (int32_t c = 0; c < cols; c++) mean += x[c];
        mean /= (float)cols;
        for (int32_t c = 0; c < cols; c++) square += (x[c] - mean) * (x[c] - mean);
        float scale = 1.0f / sqrtf(square / (float)cols + r->op->p.norm.eps);
        for (int32_t c = 0; c < cols; c++) x[c] = (x[c] - mean) * scale * w[c] + b[c];
    }
}

int64_t mf__ref_matmul_scratch(const mf__graph *g, const mf__op *op) {
    return g->bufs[op->in[0]].cols;
}

/* y[t][row] = sum_c W[row][c] x[t][c] (+ bias[row]), for the rows [begin, end) of W */
static void matmul_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    const mf__tensor *w = mf__ref_w(r, 0);
    const float *x = mf__ref_in(r, 0), *bias = mf__ref_vec(r, 1);
    float *y = mf__ref_out(r, 0);
    float *row_values = r->scratch + thread * r->scratch_floats;
    int32_t n = r->b->n_rows;
    for (int64_t row = begin; row < end; row++) {
        mf__tensor_row_f32(w, row, row_values);
        for (int32_t t0 = 0; t0 < n; t0 += MF_REF_TILE) {
            int32_t tile = n - t0 < MF_REF_TILE ? n - t0 : MF_REF_TILE;
            const float *xs[MF_REF_TILE];
            float sums[MF_REF_TILE];
            for (int32_t j = 0; j < tile; j++) xs[j] = x + (t0 + j) * w->n_cols;
            mf__ref_dots(row_values, xs, tile, w->n_cols, sums);
            for (int32_t j = 0; j < tile; j++) y[(t0 + j) * w->n_rows + row] = bias ? sums[j] + bias[row] : sums[j];
        }
    }
}

void mf__ref_matmul(const mf__ref_run *r) {
    mf__pool_run(r->pool, matmul_rows, (void *)r, mf__ref_w(r, 0)->n_rows);
}

void mf__ref_add(const mf__ref_run *r) {
    const float *a = mf__ref_in(r, 0), *b = mf__ref_in(r, 1);
    float *y = mf__ref_out(r, 0);
    int64_t n = (int64_t)r->b->n_rows * mf__ref_in_cols(r, 0);
    for (int64_t i = 0; i < n; i++) y[i] = a[i] + b[i];
}

/* What the values at a position are multiplied by: 1 + a ln(1 + floor((pos + c) / b)). */
static float growth(const mf__op_params *p, int64_t pos) {
    return 1.0f + p->map.a * logf(1.0f + floorf(((float)pos + p->map.c) / p->map.b));
}

static float map_one(const mf__op_params *p, float x) {
    switch (p->map.kind) {
    case MF_MAP_CLAMP: return fminf(fmaxf(x, -p->map.a), p->map.a);
    case MF_MAP_RELU2: return x > 0 ? x * x : 0;
    case MF_MAP_CAP: return p->map.a * tanhf(x / p->map.a);
    default: return p->map.a * x;
    }
}

void mf__ref_map(const mf__ref_run *r) {
    const mf__op_params *p = &r->op->p;
    const float *w = mf__ref_vec(r, 0);
    float *x = mf__ref_out(r, 0);
    int64_t cols = mf__ref_in_cols(r, 0), n = r->b->n_rows * cols;
    for (int64_t i = 0; p->map.kind != MF_MAP_POSITION && i < n; i++) x[i] = map_one(p, w ? *w * x[i] : x[i]);
    for (int32_t s = 0; p->map.kind == MF_MAP_POSITION && s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        for (int64_t i = 0; i < seg->n_rows * cols; i++) x[seg->row0 * cols + i] *= growth(p, seg->pos + i / cols);
    }
}

void mf__ref_glu(const mf__ref_run *r) {
    const float *gate = mf__ref_in(r, 0), *up = mf__ref_in(r, 1);
    float *y = mf__ref_out(r, 0);
    int64_t n = (int64_t)r->b->n_rows * mf__ref_in_cols(r, 0);
    for (int64_t i = 0; i < n; i++) y[i] = mf__ref_glu_one(&r->op->p.glu, gate[i], up[i]);
}
