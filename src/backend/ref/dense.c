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
        for (int32_t c = 0; c < part; c++) y[c] = x[c] * scale * w[c];
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

void mf__ref_glu(const mf__ref_run *r) {
    const float *gate = mf__ref_in(r, 0), *up = mf__ref_in(r, 1);
    float *y = mf__ref_out(r, 0);
    int64_t n = (int64_t)r->b->n_rows * mf__ref_in_cols(r, 0);
    for (int64_t i = 0; i < n; i++) y[i] = mf__ref_glu_one(&r->op->p.glu, gate[i], up[i]);
}
