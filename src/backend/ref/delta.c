/* Gated DeltaNet: convolution, normalised keys and queries, decay, the delta rule, gated norm. */
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

#define MAX_KERNEL 8

/* y[t][c] = silu(bias[c] + sum_k w[c][k] * in[t - (kernel-1) + k][c]); rows before the segment come from the state. */
static void conv_channels(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    const float *x = mf__ref_in(r, 0), *w = mf__ref_vec(r, 0), *bias = mf__ref_vec(r, 1);
    float *y = mf__ref_out(r, 0);
    int32_t channels = r->op->p.conv.n_channels, kernel = r->op->p.conv.n_kernel;
    (void)thread;
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        const float *before = seg->state->conv_in + r->op->p.conv.at;
        float *after = seg->state->conv_out + r->op->p.conv.at;
        for (int64_t c = begin; c < end; c++) {
            float window[MAX_KERNEL]; /* oldest first; the last place is the current row */
            for (int32_t k = 0; k + 1 < kernel; k++) window[k] = before[(int64_t)k * channels + c];
            for (int32_t t = 0; t < seg->n_rows; t++) {
                int64_t at = (int64_t)(seg->row0 + t) * channels + c;
                window[kernel - 1] = x[at];
                float sum = bias ? bias[c] : 0;
                for (int32_t k = 0; k < kernel; k++) sum += w[c * kernel + k] * window[k];
                y[at] = r->op->p.conv.plain ? sum : mf__ref_silu(sum);
                memmove(window, window + 1, (size_t)(kernel - 1) * sizeof(float));
            }
            for (int32_t k = 0; k + 1 < kernel; k++) after[(int64_t)k * channels + c] = window[k];
        }
    }
}

void mf__ref_conv1d(const mf__ref_run *r) {
    mf__pool_run(r->pool, conv_channels, (void *)r, r->op->p.conv.n_channels);
}

/* q <- q / sqrt(sum q^2 + 1e-6) / sqrt(dim); k <- k / sqrt(sum k^2 + 1e-6); a row is [q heads][k heads][v...] */
void mf__ref_qk_norm(const mf__ref_run *r) {
    int32_t heads = r->op->p.delta.n_k_heads, dim = r->op->p.delta.k_dim, cols = mf__ref_in_cols(r, 0);
    float *x = mf__ref_out(r, 0);
    float q_scale = 1.0f / sqrtf((float)dim);
    for (int32_t t = 0; t < r->b->n_rows; t++) {
        for (int32_t h = 0; h < 2 * heads; h++) {
            float *head = x + (int64_t)t * cols + (int64_t)h * dim, sum = 0;
            for (int32_t c = 0; c < dim; c++) sum += head[c] * head[c];
            float scale = 1.0f / sqrtf(sum + 1e-6f) * (h < heads ? q_scale : 1.0f);
            for (int32_t c = 0; c < dim; c++) head[c] *= scale;
        }
    }
}

/* log(1 + e^x) without overflow */
static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* decay = exp(-exp(A_log) * softplus(a + dt_bias)), beta = sigmoid(b), one of each per value head; or a decay
 * for each of the head's channels */
void mf__ref_decay_beta(const mf__ref_run *r) {
    const float *a = mf__ref_in(r, 0), *b = mf__ref_in(r, 1), *a_log = mf__ref_vec(r, 0), *dt_bias = mf__ref_vec(r, 1);
    float *decay = mf__ref_out(r, 0), *beta = mf__ref_out(r, 1);
    int32_t cols = mf__ref_in_cols(r, 0), heads = mf__ref_in_cols(r, 1), per_head = cols / heads;
    for (int64_t t = 0; t < r->b->n_rows; t++) {
        for (int32_t c = 0; c < cols; c++)
            decay[t * cols + c] = expf(-expf(a_log[c / per_head]) * softplus(a[t * cols + c] + dt_bias[c]));
        for (int32_t h = 0; h < heads; h++) beta[t * heads + h] = mf__ref_sigmoid(b[t * heads + h]);
    }
}

/* One step of one head; S is [v_dim][k_dim]:
 *   S <- decay S;  d = beta (v - S k);  S <- S + d k^T;  o = S q        (row by row of S)
 * Column j of S decays by decay[j] (step 1), or all of them by the same (step 0). */
static void delta_step(float *S, const float *q, const float *k, const float *v, const float *decay, int32_t step,
                       float beta, int32_t v_dim, int32_t k_dim, float *o) {
    for (int32_t i = 0; i < v_dim; i++, S += k_dim) {
        float predicted = 0, read = 0;
        for (int32_t j = 0; j < k_dim; j++) {
            S[j] *= decay[j * step];
            predicted += S[j] * k[j];
        }
        float d = beta * (v[i] - predicted);
        for (int32_t j = 0; j < k_dim; j++) {
            S[j] += d * k[j];
            read += S[j] * q[j];
        }
        o[i] = read;
    }
}

static void delta_heads(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    const float *qkv = mf__ref_in(r, 0), *decay = mf__ref_in(r, 1), *beta = mf__ref_in(r, 2);
    float *o = mf__ref_out(r, 0);
    int32_t k_dim = p->delta.k_dim, v_dim = p->delta.v_dim, n_v = p->delta.n_v_heads, cols = mf__ref_in_cols(r, 0);
    int32_t step = p->delta.by_channel, decays = step ? k_dim : 1; /* of a head */
    int64_t keys = (int64_t)p->delta.n_k_heads * k_dim, state = (int64_t)v_dim * k_dim;
    (void)thread;
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        for (int64_t h = begin; h < end; h++) {
            int64_t k_head = h / (n_v / p->delta.n_k_heads); /* consecutive value heads share a key head */
            float *S = seg->state->delta_out + h * state;
            memmove(S, seg->state->delta_in + h * state, (size_t)state * sizeof(float));
            for (int64_t t = seg->row0; t < seg->row0 + seg->n_rows; t++) {
                const float *row = qkv + t * cols;
                delta_step(S, row + k_head * k_dim, row + keys + k_head * k_dim, row + 2 * keys + h * v_dim,
                           decay + (t * n_v + h) * decays, step, beta[t * n_v + h], v_dim, k_dim,
                           o + (t * n_v + h) * v_dim);
            }
        }
    }
}

void mf__ref_delta_net(const mf__ref_run *r) {
    mf__pool_run(r->pool, delta_heads, (void *)r, r->op->p.delta.n_v_heads);
}

/* y = rms_norm(x) * w * silu(z), or sigmoid(z), per head: the norm comes before the gate */
void mf__ref_gated_norm(const mf__ref_run *r) {
    const float *x = mf__ref_in(r, 0), *z = mf__ref_in(r, 1), *w = mf__ref_vec(r, 0);
    float *y = mf__ref_out(r, 0);
    int32_t part = r->op->p.norm.part;
    int64_t n_parts = (int64_t)r->b->n_rows * mf__ref_in_cols(r, 0) / part;
    for (int64_t i = 0; i < n_parts; i++, x += part, z += part, y += part) {
        float sum = 0;
        for (int32_t c = 0; c < part; c++) sum += x[c] * x[c];
        float scale = 1.0f / sqrtf(sum / (float)part + r->op->p.norm.eps);
        for (int32_t c = 0; c < part; c++)
            y[c] = x[c] * scale * w[c] * (r->op->p.norm.sigmoid ? mf__ref_sigmoid(z[c]) : mf__ref_silu(z[c]));
    }
}

/* One head; S is [dim][n_state]. With step = softplus(dt + dt_bias):
 *   S <- exp(-exp(A_log) step) S + step u B^T;  y = S C + D u */
static void ssm_head(const mf__ref_run *r, const mf__segment *seg, int64_t h) {
    const mf__op_params *p = &r->op->p;
    int32_t dim = p->ssm.dim, n = p->ssm.n_state, heads = p->ssm.n_heads, cols = mf__ref_in_cols(r, 0);
    int64_t inner = (int64_t)heads * dim, group = h / (heads / p->ssm.n_groups), size = (int64_t)dim * n;
    float rate = expf(mf__ref_vec(r, 0)[h]), bias = mf__ref_vec(r, 1)[h], direct = mf__ref_vec(r, 2)[h];
    float *S = seg->state->delta_out + h * size;
    memmove(S, seg->state->delta_in + h * size, (size_t)size * sizeof *S);
    for (int64_t t = seg->row0; t < seg->row0 + seg->n_rows; t++) {
        const float *u = mf__ref_in(r, 0) + t * cols + h * dim, *B = mf__ref_in(r, 0) + t * cols + inner + group * n;
        const float *C = B + (int64_t)p->ssm.n_groups * n;
        float step = softplus(mf__ref_in(r, 1)[t * heads + h] + bias), decay = expf(-rate * step);
        for (int32_t i = 0; i < dim; i++) {
            float sum = 0;
            for (int32_t j = 0; j < n; j++) {
                S[i * n + j] = decay * S[i * n + j] + step * u[i] * B[j];
                sum += S[i * n + j] * C[j];
            }
            mf__ref_out(r, 0)[t * inner + h * dim + i] = sum + direct * u[i];
        }
    }
}

static void ssm_heads(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    (void)thread;
    for (int32_t s = 0; s < r->b->n_segs; s++)
        for (int64_t h = begin; h < end; h++) ssm_head(r, &r->b->segs[s], h);
}

void mf__ref_ssm(const mf__ref_run *r) {
    mf__pool_run(r->pool, ssm_heads, (void *)r, r->op->p.ssm.n_heads);
}
