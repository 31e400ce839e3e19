/* Hyper-connections: the residual is n streams of equal width. A block reads a weighted sum of them, and its result is
 * written to all of them while they are mixed with one another.
 *
 * z = F X, made by a product; r = 1 / sqrt(mean(X^2) + eps) over all streams, so that r z = F norm(X). With s, b:
 *   pre_i   = sigmoid(r z_i s_0 + b_i) + e
 *   post_i  = 2 sigmoid(r z_(n+i) s_1 + b_(n+i))
 *   C       = softmax over j of (r z_(2n+in+j) s_2 + b_(2n+in+j)) + e, made doubly stochastic in a few steps
 *   u       = sum_i pre_i X_i                       what the block reads
 *   X_j     = post_j y + sum_i C_ij X_i             y: what it gives */
#include <math.h>

#include "backend/ref/ref.h"

/* Divides each of n groups of n values by its sum; the values of a group lie `step` apart, the groups `group` apart. */
static void divide_by_sums(float *c, int32_t n, int32_t group, int32_t step, float eps) {
    for (int32_t g = 0; g < n; g++) {
        float sum = eps;
        for (int32_t i = 0; i < n; i++) sum += c[g * group + i * step];
        for (int32_t i = 0; i < n; i++) c[g * group + i * step] /= sum;
    }
}

/* c [n][n]: rows by softmax, then columns and rows in turn. */
static void balance(float *c, const mf__op_params *p) {
    int32_t n = p->streams.n;
    float eps = p->streams.hc_eps;
    for (int32_t i = 0; i < n; i++) {
        float max = c[i * n], sum = 0;
        for (int32_t j = 1; j < n; j++) max = fmaxf(max, c[i * n + j]);
        for (int32_t j = 0; j < n; j++) sum += c[i * n + j] = expf(c[i * n + j] - max);
        for (int32_t j = 0; j < n; j++) c[i * n + j] = c[i * n + j] / sum + eps;
    }
    divide_by_sums(c, n, 1, n, eps);
    for (int32_t k = 1; k < p->streams.n_steps; k++) {
        divide_by_sums(c, n, n, 1, eps);
        divide_by_sums(c, n, 1, n, eps);
    }
}

void mf__ref_streams_read(const mf__ref_run *r) {
    const mf__op_params *p = &r->op->p;
    const float *x = mf__ref_in(r, 0), *z = mf__ref_in(r, 1), *base = mf__ref_vec(r, 0), *scale = mf__ref_vec(r, 1);
    int32_t n = p->streams.n, n_z = mf__ref_in_cols(r, 1), wide = mf__ref_in_cols(r, 0), cols = wide / n;
    float *u = mf__ref_out(r, 0), *mix = r->op->out[1] < 0 ? NULL : mf__ref_out(r, 1);
    for (int64_t t = 0; t < r->b->n_rows; t++, x += wide, z += n_z, u += cols) {
        float sum = 0;
        for (int32_t c = 0; c < wide; c++) sum += x[c] * x[c];
        float norm = 1.0f / sqrtf(sum / (float)wide + p->streams.eps);
        for (int32_t c = 0; c < cols; c++) u[c] = 0;
        for (int32_t i = 0; i < n; i++) {
            float pre = mf__ref_sigmoid(norm * z[i] * scale[0] + base[i]) + p->streams.hc_eps;
            for (int32_t c = 0; c < cols; c++) u[c] += pre * x[i * cols + c];
        }
        if (!mix) continue;
        for (int32_t i = 0; i < n; i++) mix[i] = 2.0f * mf__ref_sigmoid(norm * z[n + i] * scale[1] + base[n + i]);
        for (int32_t i = 2 * n; i < n_z; i++) mix[i - n] = norm * z[i] * scale[2] + base[i];
        balance(mix + n, p);
        mix += n + n * n;
    }
}

void mf__ref_streams_write(const mf__ref_run *r) {
    int32_t n = r->op->p.streams.n, wide = mf__ref_in_cols(r, 0), cols = wide / n;
    const float *x = mf__ref_in(r, 0), *y = mf__ref_in(r, 1), *mix = mf__ref_in(r, 2);
    float *out = mf__ref_out(r, 0);
    for (int64_t t = 0; t < r->b->n_rows; t++, x += wide, y += cols, mix += n + n * n, out += wide)
        for (int32_t j = 0; j < n; j++)
            for (int32_t c = 0; c < cols; c++) {
                float sum = mix[j] * y[c];
                for (int32_t i = 0; i < n; i++) sum += mix[n + i * n + j] * x[i * cols + c];
                out[j * cols + c] = sum;
            }
}
