/* Norms, activations, convolution, attention and the delta rule; compiled once per instruction set. */
#include <math.h>

#include "backend/cpu/cpu.h"

/* The next values of a row of which n are left; zeros behind its end. */
INLINE vf load_some(const float *p, int64_t n) {
    if (n >= WIDTH) return load_f(p);
    vf v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = p[i];
    return v;
}
INLINE void store_some(float *p, int64_t n, vf v) {
    if (n >= WIDTH)
        store_f(p, v);
    else
        for (int64_t i = 0; i < n; i++) p[i] = v[i];
}

/* ---- norms and activations --------------------------------------------------------------------------------------- */

INLINE float sum_of_squares(const float *x, int64_t n) {
    vf sum = {0};
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf v = load_some(x + i, n - i);
        sum += v * v;
    }
    return sum_lanes(sum);
}

static void SET(rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y) {
    float scale = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i += WIDTH)
        store_some(y + i, n - i, load_some(x + i, n - i) * scale * load_some(w + i, n - i));
}

static void SET(scale_to_unit)(float *x, int64_t n, float scale) {
    scale /= sqrtf(sum_of_squares(x, n) + 1e-6f);
    for (int64_t i = 0; i < n; i += WIDTH) store_some(x + i, n - i, load_some(x + i, n - i) * scale);
}

static void SET(add)(const float *a, const float *b, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += WIDTH) store_some(y + i, n - i, load_some(a + i, n - i) + load_some(b + i, n - i));
}

static void SET(glu)(const mf__glu *glu, const float *gate, const float *up, int64_t n, float *y) {
    vf limit = splat(glu->limit);
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf g = load_some(gate + i, n - i), u = load_some(up + i, n - i);
        if (glu->kind == MF_GLU_CLAMPED) {
            g = -max_of(-g, -limit);
            u = max_of(-max_of(-u, -limit), -limit) + 1.0f;
            store_some(y + i, n - i, g * sigmoid_of(g * glu->alpha) * u);
        } else {
            store_some(y + i, n - i, g * sigmoid_of(g) * u);
        }
    }
}

static void SET(mul_sigmoid)(float *x, const float *gate, int64_t n) {
    for (int64_t i = 0; i < n; i += WIDTH)
        store_some(x + i, n - i, load_some(x + i, n - i) * sigmoid_of(load_some(gate + i, n - i)));
}

static void SET(mul_silu)(float *x, const float *z, int64_t n) {
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf g = load_some(z + i, n - i);
        store_some(x + i, n - i, load_some(x + i, n - i) * g * sigmoid_of(g));
    }
}

static void SET(axpy)(float a, const float *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += WIDTH)
        store_some(y + i, n - i, load_some(y + i, n - i) + a * load_some(x + i, n - i));
}

/* ---- convolution: a channel in each lane ------------------------------------------------------------------------- */

#define MAX_KERNEL 8

static void SET(conv)(const float *x, int64_t stride, const float *before, const float *w, int32_t kernel,
                      int32_t n_rows, int64_t n, float *y) {
    for (int64_t c = 0; c < n; c += WIDTH) {
        int64_t left = n - c;
        vf taps[MAX_KERNEL] = {{0}}, window[MAX_KERNEL] = {{0}};
        for (int32_t k = 0; k < kernel; k++) {
            for (int i = 0; i < WIDTH && i < left; i++) taps[k][i] = w[(c + i) * kernel + k];
            if (k + 1 < kernel) window[k] = load_some(before + k * stride + c, left);
        }
        for (int32_t t = 0; t < n_rows; t++) {
            window[kernel - 1] = load_some(x + t * stride + c, left);
            vf sum = {0};
            for (int32_t k = 0; k < kernel; k++) sum += taps[k] * window[k];
            store_some(y + t * stride + c, left, sum * sigmoid_of(sum));
            for (int32_t k = 0; k + 1 < kernel; k++) window[k] = window[k + 1];
        }
    }
}

/* ---- attention: a query in each lane ----------------------------------------------------------------------------- */

INLINE void scores_of(const float *q, const float *k, int64_t stride, int32_t dim, int n, vf *out) {
    vf acc[TILE] = {{0}};
    for (int32_t c = 0; c < dim; c++) {
        vf v = load_f(q + (int64_t)c * WIDTH);
        for (int r = 0; r < n; r++) acc[r] += v * k[r * stride + c];
    }
    for (int r = 0; r < n; r++) out[r] = acc[r];
}

INLINE void add_values(float *o, const vf *p, const float *v, int64_t stride, int32_t n_keys, int n, vf shrink) {
    vf acc[TILE];
    for (int r = 0; r < n; r++) acc[r] = load_f(o + r * WIDTH) * shrink;
    for (int32_t i = 0; i < n_keys; i++)
        for (int r = 0; r < n; r++) acc[r] += p[i] * v[i * stride + r];
    for (int r = 0; r < n; r++) store_f(o + r * WIDTH, acc[r]);
}

/* -1 in the lanes that may see key i of the block. */
INLINE vi visible(const mf__cpu_queries *q, int64_t key) {
    vi mask;
    for (int j = 0; j < WIDTH; j++) mask[j] = key >= q->first[j] && key <= q->last[j] ? -1 : 0;
    return mask;
}

static void SET(attend)(mf__cpu_queries *q, const mf__cpu_keys *keys) {
    const vf none = splat(-1e30f);
    vf p[MF_CPU_KEYS], old = load_f(q->max), max = old, total = load_f(q->total);
    int32_t i = 0;
    for (; i + TILE <= keys->n; i += TILE)
        scores_of(q->q, keys->k + i * keys->k_stride, keys->k_stride, keys->k_dim, TILE, p + i);
    for (; i < keys->n; i++) scores_of(q->q, keys->k + i * keys->k_stride, keys->k_stride, keys->k_dim, 1, p + i);

    bool whole = true; /* every lane sees every key */
    for (int j = 0; j < WIDTH; j++)
        whole = whole && q->first[j] <= keys->first && q->last[j] >= keys->first + keys->n - 1;
    if (!whole)
        for (i = 0; i < keys->n; i++) {
            vi mask = visible(q, keys->first + i);
            p[i] = (vf)(((vi)p[i] & mask) | ((vi)none & ~mask));
        }
    for (i = 0; i < keys->n; i++) max = max_of(max, p[i]);
    vf shrink = exp_of(old - max);
    total *= shrink;
    for (i = 0; i < keys->n; i++) {
        vf e = exp_of(p[i] - max);
        if (!whole) e = (vf)((vi)e & visible(q, keys->first + i));
        p[i] = e;
        total += e;
    }
    store_f(q->max, max);
    store_f(q->total, total);
    int32_t c = 0;
    for (; c + TILE <= keys->v_dim; c += TILE)
        add_values(q->o + (int64_t)c * WIDTH, p, keys->v + c, keys->v_stride, keys->n, TILE, shrink);
    for (; c < keys->v_dim; c++)
        add_values(q->o + (int64_t)c * WIDTH, p, keys->v + c, keys->v_stride, keys->n, 1, shrink);
}

/* ---- products of decoded rows ------------------------------------------------------------------------------------ */

#define CROSS 4 /* rows of each side whose products are summed at the same time */

INLINE void cross_block(const mf__cpu_cross *c, int32_t i, int n_w, int32_t j, int n_x) {
    const float *w = c->w + i * c->w_stride, *x = c->x + j * c->x_stride;
    vf sum[CROSS][CROSS] = {{{0}}};
    int64_t at = 0;
    for (; at + WIDTH <= c->cols; at += WIDTH) {
        vf v[CROSS];
        for (int b = 0; b < n_x; b++) v[b] = load_f(x + b * c->x_stride + at);
        for (int a = 0; a < n_w; a++) {
            vf u = load_f(w + a * c->w_stride + at);
            for (int b = 0; b < n_x; b++) sum[a][b] += u * v[b];
        }
    }
    for (int a = 0; a < n_w; a++)
        for (int b = 0; b < n_x; b++) {
            float tail = 0;
            for (int64_t k = at; k < c->cols; k++) tail += w[a * c->w_stride + k] * x[b * c->x_stride + k];
            c->y[(j + b) * c->y_stride + i + a] = sum_lanes(sum[a][b]) + tail;
        }
}

static void SET(cross)(const mf__cpu_cross *c) {
    for (int32_t j = 0; j < c->n;) {
        int32_t i = 0, n_x = c->n - j < CROSS ? 1 : CROSS;
        if (n_x == CROSS) {
            for (; i + CROSS <= c->n_rows; i += CROSS) cross_block(c, i, CROSS, j, CROSS);
            for (; i < c->n_rows; i++) cross_block(c, i, 1, j, CROSS);
        } else {
            for (; i + CROSS <= c->n_rows; i += CROSS) cross_block(c, i, CROSS, j, 1);
            for (; i < c->n_rows; i++) cross_block(c, i, 1, j, 1);
        }
        j += n_x;
    }
}

/* ---- the delta rule ---------------------------------------------------------------------------------------------- */

/* S <- decay S;  d = beta (v - S k);  S <- S + d k^T;  o = S q. Rows of S do not meet: each goes through all steps
 * while it sits in registers. S k is taken before the decay and scaled. n_vecs vectors per row, two rows at a time. */
INLINE void delta_rows(const mf__cpu_delta *d, int32_t row, int n, int n_vecs) {
    vf S[2][32];
    for (int r = 0; r < n; r++)
        for (int i = 0; i < n_vecs; i++) S[r][i] = load_f(d->S_in + (int64_t)(row + r) * d->k_dim + i * WIDTH);
    for (int32_t t = 0; t < d->n_steps; t++) {
        const float *k = d->k + t * d->qkv_stride, *q = d->q + t * d->qkv_stride, *v = d->v + t * d->qkv_stride;
        float decay = d->decay[t * d->gate_stride], beta = d->beta[t * d->gate_stride];
        vf seen[2] = {{0}}, read[2] = {{0}};
        for (int i = 0; i < n_vecs; i++)
            for (int r = 0; r < n; r++) seen[r] += S[r][i] * load_f(k + i * WIDTH);
        float change[2] = {0};
        for (int r = 0; r < n; r++) change[r] = beta * (v[row + r] - decay * sum_lanes(seen[r]));
        for (int i = 0; i < n_vecs; i++)
            for (int r = 0; r < n; r++) {
                S[r][i] = S[r][i] * decay + load_f(k + i * WIDTH) * change[r];
                read[r] += S[r][i] * load_f(q + i * WIDTH);
            }
        for (int r = 0; r < n; r++) d->o[t * d->o_stride + row + r] = sum_lanes(read[r]);
    }
    for (int r = 0; r < n; r++)
        for (int i = 0; i < n_vecs; i++) store_f(d->S_out + (int64_t)(row + r) * d->k_dim + i * WIDTH, S[r][i]);
}

/* Any k_dim: the row stays in memory. */
static void SET(delta_row_any)(const mf__cpu_delta *d, int32_t row) {
    float *S = d->S_out + (int64_t)row * d->k_dim;
    memmove(S, d->S_in + (int64_t)row * d->k_dim, (size_t)d->k_dim * sizeof *S);
    for (int32_t t = 0; t < d->n_steps; t++) {
        const float *k = d->k + t * d->qkv_stride, *q = d->q + t * d->qkv_stride, *v = d->v + t * d->qkv_stride;
        float decay = d->decay[t * d->gate_stride], beta = d->beta[t * d->gate_stride], seen = 0, read = 0;
        for (int32_t j = 0; j < d->k_dim; j++) seen += S[j] * k[j];
        float change = beta * (v[row] - decay * seen);
        for (int32_t j = 0; j < d->k_dim; j++) {
            S[j] = S[j] * decay + k[j] * change;
            read += S[j] * q[j];
        }
        d->o[t * d->o_stride + row] = read;
    }
}

#define DELTA(vecs)                                                                                                    \
    for (; row + 2 <= d->n_rows; row += 2) delta_rows(d, row, 2, vecs);                                                \
    for (; row < d->n_rows; row++) delta_rows(d, row, 1, vecs)

static void SET(delta)(const mf__cpu_delta *d) {
    int32_t row = 0;
    switch (d->k_dim % WIDTH ? 0 : d->k_dim / WIDTH) {
    case 2: DELTA(2); break;
    case 4: DELTA(4); break;
    case 8: DELTA(8); break;
    case 16: DELTA(16); break;
    case 32: DELTA(32); break;
    default:
        for (; row < d->n_rows; row++) SET(delta_row_any)(d, row);
    }
}

void SET(mf__cpu_rowwise)(mf__cpu_kernels *k) {
    k->rms_norm = SET(rms_norm);
    k->scale_to_unit = SET(scale_to_unit);
    k->add = SET(add);
    k->glu = SET(glu);
    k->mul_sigmoid = SET(mul_sigmoid);
    k->mul_silu = SET(mul_silu);
    k->axpy = SET(axpy);
    k->conv = SET(conv);
    k->attend = SET(attend);
    k->cross = SET(cross);
    k->delta = SET(delta);
}
