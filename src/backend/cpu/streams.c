/* Hyper-connections; ref/streams.c has the formulas. Rows are shared out. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static void divide_by_sums(float *c, int32_t n, int32_t group, int32_t step, float eps) {
    for (int32_t g = 0; g < n; g++) {
        float sum = eps;
        for (int32_t i = 0; i < n; i++) sum += c[g * group + i * step];
        for (int32_t i = 0; i < n; i++) c[g * group + i * step] /= sum;
    }
}

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

static void read_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    const float *base = mf__cpu_weights(r, 0), *scale = mf__cpu_weights(r, 1);
    int32_t n = p->streams.n, n_z = mf__cpu_in_cols(r, 1);
    int64_t wide = mf__cpu_in_cols(r, 0), cols = wide / n;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *x = mf__cpu_in(r, 0) + t * wide, *z = mf__cpu_in(r, 1) + t * n_z;
        float *u = mf__cpu_out(r, 0) + t * cols, sum;
        r->k->cross(&(mf__cpu_cross){x, wide, 1, x, wide, 1, wide, &sum, 1});
        float norm = 1.0f / sqrtf(sum / (float)wide + p->streams.eps);
        memset(u, 0, (size_t)cols * sizeof *u);
        for (int32_t i = 0; i < n; i++)
            r->k->axpy(sigmoid(norm * z[i] * scale[0] + base[i]) + p->streams.hc_eps, x + i * cols, cols, u);
        if (r->op->out[1] < 0) continue;
        float *mix = mf__cpu_out(r, 1) + t * (n + n * n);
        for (int32_t i = 0; i < n; i++) mix[i] = 2.0f * sigmoid(norm * z[n + i] * scale[1] + base[n + i]);
        for (int32_t i = 2 * n; i < n_z; i++) mix[i - n] = norm * z[i] * scale[2] + base[i];
        balance(mix + n, p);
    }
}

mf_status mf__cpu_streams_read(mf__cpu_run *r, mf_error *err) {
    (void)err;
    mf__pool_run(r->b->n_rows < 2 ? NULL : r->pool, read_rows, r, r->b->n_rows);
    return MF_OK;
}

static void write_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int32_t n = r->op->p.streams.n;
    int64_t wide = mf__cpu_in_cols(r, 0), cols = wide / n;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *x = mf__cpu_in(r, 0) + t * wide, *y = mf__cpu_in(r, 1) + t * cols;
        const float *mix = mf__cpu_in(r, 2) + t * (n + n * n);
        float *out = mf__cpu_out(r, 0) + t * wide;
        memset(out, 0, (size_t)wide * sizeof *out);
        for (int32_t j = 0; j < n; j++) {
            r->k->axpy(mix[j], y, cols, out + j * cols);
            for (int32_t i = 0; i < n; i++) r->k->axpy(mix[n + i * n + j], x + i * cols, cols, out + j * cols);
        }
    }
}

mf_status mf__cpu_streams_write(mf__cpu_run *r, mf_error *err) {
    (void)err;
    mf__pool_run(r->b->n_rows < 2 ? NULL : r->pool, write_rows, r, r->b->n_rows);
    return MF_OK;
}
