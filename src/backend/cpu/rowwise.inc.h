/* Norms, activations, convolution, attention and the delta rule; compiled once per instruction set. */
#include <math.h>

#include "backend/cpu/cpu.h"
#include "quant/half.h"

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

/* ---- results to their places ------------------------------------------------------------------------------------- */

static void SET(put)(const mf__cpu_put *p) {
    const float *from = p->from;
    for (int j = 0; j < p->n; j++, from += p->ld) {
        float *to = p->to + (p->rows ? p->rows[j] : j) * p->stride;
        if (!p->past || p->n_cols % WIDTH || (uintptr_t)to % sizeof(vf))
            memcpy(to, from, (size_t)p->n_cols * sizeof *to);
        else
            for (int i = 0; i < p->n_cols; i += WIDTH) stream_f(to + i, load_f(from + i));
    }
    if (p->past) stream_end();
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
#define CHANNELS 256 /* whose taps are at hand; rows are read in runs of them */

/* w [channels][kernel] -> out [kernel][CHANNELS] */
INLINE void taps_of(const float *w, int32_t kernel, int64_t channels, float *out) {
    for (int32_t k = 0; k < kernel; k++)
        for (int64_t c = 0; c < channels; c++) out[k * CHANNELS + c] = w[c * kernel + k];
}

/* y = silu(sum of tap k * row k), the last row being x itself. */
INLINE void conv_row(const float *const *rows, const float *taps, int32_t kernel, int64_t channels, float *y) {
    for (int64_t c = 0; c < channels; c += WIDTH) {
        vf sum = {0};
        for (int32_t k = 0; k < kernel; k++)
            sum += load_f(taps + k * CHANNELS + c) * load_some(rows[k] + c, channels - c);
        store_some(y + c, channels - c, sum * sigmoid_of(sum));
    }
}

INLINE void conv_channels(const mf__cpu_conv *v, int64_t first, int64_t channels, int32_t kernel) {
    float taps[MAX_KERNEL * CHANNELS];
    const float *rows[MAX_KERNEL];
    taps_of(v->w + first * kernel, kernel, channels, taps);
    for (int32_t t = 0; t < v->n_rows; t++) {
        for (int32_t k = 0, from = t + 1 - kernel; k < kernel; k++, from++)
            rows[k] = first + (from < 0 ? v->before + (kernel - 1 + from) * v->stride : v->x + from * v->stride);
        conv_row(rows, taps, kernel, channels, v->y + t * v->stride + first);
    }
}

static void SET(conv)(const mf__cpu_conv *v) {
    for (int64_t c = 0; c < v->n_channels; c += CHANNELS) {
        int64_t channels = v->n_channels - c < CHANNELS ? v->n_channels - c : CHANNELS;
        if (v->kernel == 4 && channels == CHANNELS) /* constants inside */
            conv_channels(v, c, CHANNELS, 4);
        else
            conv_channels(v, c, channels, v->kernel);
    }
}

/* ---- attention: a query in each lane ----------------------------------------------------------------------------- */

INLINE void scores_of(const float *q, const float *k, int64_t stride, int32_t dim, int n, vf *out) {
    vf acc[TILE];
    for (int r = 0; r < n; r++) acc[r] = (vf){0};
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
    const float *k = keys->k, *v = keys->v;
    vf p[MF_CPU_KEYS], old = load_f(q->max), max = old, total = load_f(q->total);
    int32_t i = 0;
    for (; i + TILE <= keys->n; i += TILE)
        scores_of(q->q, k + i * keys->k_stride, keys->k_stride, keys->k_dim, TILE, p + i);
    for (; i < keys->n; i++) scores_of(q->q, k + i * keys->k_stride, keys->k_stride, keys->k_dim, 1, p + i);

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
        add_values(q->o + (int64_t)c * WIDTH, p, v + c, keys->v_stride, keys->n, TILE, shrink);
    for (; c < keys->v_dim; c++) add_values(q->o + (int64_t)c * WIDTH, p, v + c, keys->v_stride, keys->n, 1, shrink);
}

/* ---- products of rows -------------------------------------------------------------------------------------------- */

#define CROSS 4   /* rows of each side whose products are summed at the same time */
#define QUERIES 8 /* or so many of x, and half of w */

/* Values from `at` on of an array of f32 or F16. */
INLINE vf load_kept(const void *p, int64_t at, bool f16) {
    return f16 ? load_f16((const uint16_t *)p + at) : load_f((const float *)p + at);
}
INLINE float kept(const void *p, int64_t at, bool f16) {
    return f16 ? mf__f16_to_f32(((const uint16_t *)p)[at]) : ((const float *)p)[at];
}

INLINE void cross_block(const mf__cpu_cross *c, int32_t i, int n_w, int32_t j, int n_x, bool f16) {
    const float *x = c->x + j * c->x_stride;
    int64_t first = i * c->w_stride, at = 0;
    vf sum[CROSS][QUERIES];
    for (int a = 0; a < n_w; a++)
        for (int b = 0; b < n_x; b++) sum[a][b] = (vf){0};
    for (; at + WIDTH <= c->cols; at += WIDTH) {
        vf v[QUERIES];
        for (int b = 0; b < n_x; b++) v[b] = load_f(x + b * c->x_stride + at);
        for (int a = 0; a < n_w; a++) {
            vf u = load_kept(c->w, first + a * c->w_stride + at, f16);
            for (int b = 0; b < n_x; b++) sum[a][b] += u * v[b];
        }
    }
    for (int a = 0; a < n_w; a++)
        for (int b = 0; b < n_x; b++) {
            float tail = 0;
            for (int64_t k = at; k < c->cols; k++)
                tail += kept(c->w, first + a * c->w_stride + k, f16) * x[b * c->x_stride + k];
            c->y[(j + b) * c->y_stride + i + a] = sum_lanes(sum[a][b]) + tail;
        }
}

static void SET(cross)(const mf__cpu_cross *c) {
    for (int32_t j = 0; j < c->n;) {
        int32_t i = 0, n_x = c->n - j < CROSS ? 1 : CROSS;
        if (n_x == CROSS) {
            for (; i + CROSS <= c->n_rows; i += CROSS) cross_block(c, i, CROSS, j, CROSS, false);
            for (; i < c->n_rows; i++) cross_block(c, i, 1, j, CROSS, false);
        } else {
            for (; i + CROSS <= c->n_rows; i += CROSS) cross_block(c, i, CROSS, j, 1, false);
            for (; i < c->n_rows; i++) cross_block(c, i, 1, j, 1, false);
        }
        j += n_x;
    }
}

/* ---- attention: a few queries, their values in the lanes --------------------------------------------------------- */

INLINE void fetch_row(const void *p, int64_t at, int32_t n, bool f16) {
    const char *row = (const char *)p + at * (f16 ? 2 : 4), *end = row + (int64_t)n * (f16 ? 2 : 4);
    for (; row < end; row += MF_CPU_LINE) __builtin_prefetch(row, 0, 2);
}

/* All keys for n_q queries. Meanwhile the values that follow are fetched, by those who are first. */
INLINE void score_keys(const mf__cpu_queries *q, const mf__cpu_keys *keys, int j, int n_q, bool f16, float *p) {
    const mf__cpu_cross c = {keys->k, keys->k_stride, keys->n, q->q, keys->k_dim, n_q, keys->k_dim, p, MF_CPU_KEYS};
    const int n_k = CROSS * CROSS / (n_q < CROSS ? CROSS : n_q);
    int32_t i = 0;
    for (; i < keys->n; i += n_k) {
        for (int32_t a = i; keys->in_place && j == 0 && a < i + n_k && a < keys->n; a++)
            fetch_row(keys->v, a * keys->v_stride, keys->v_dim, f16);
        if (keys->n - i < n_k) break;
        cross_block(&c, i, n_k, j, n_q, f16);
    }
    for (; i < keys->n; i++) cross_block(&c, i, 1, j, n_q, f16);
}

INLINE vi from_zero(void) {
    vi v = {0};
    for (int i = 0; i < WIDTH; i++) v[i] = i;
    return v;
}

/* The scores of query j become the weights of the keys it sees, and zeros; returns what older results shrink by. */
INLINE float weigh_keys(mf__cpu_queries *q, int j, const mf__cpu_keys *keys, float *p) {
    int64_t last = q->last[j] - keys->first, first = q->first[j] - keys->first;
    int32_t from = first < 0 ? 0 : first > keys->n ? keys->n : (int32_t)first;
    int32_t to = last < 0 ? -1 : last >= keys->n ? keys->n - 1 : (int32_t)last;
    const vf none = splat(-1e30f);
    vf most = splat(q->max[j]), sum = {0};
    for (int i = 0; i < MF_CPU_KEYS; i += WIDTH) {
        vi at = from_zero() + i, mask = (at >= from) & (at <= to);
        vf v = (vf)(((vi)load_f(p + i) & mask) | ((vi)none & ~mask));
        store_f(p + i, v);
        most = max_of(most, v);
    }
    float max = max_lanes(most), shrink = exp_of(splat(q->max[j] - max))[0];
    for (int i = 0; i < MF_CPU_KEYS; i += WIDTH) {
        vi at = from_zero() + i, mask = (at >= from) & (at <= to);
        vf e = (vf)((vi)exp_of(load_f(p + i) - max) & mask);
        store_f(p + i, e);
        sum += e;
    }
    q->max[j] = max;
    q->total[j] = q->total[j] * shrink + sum_lanes(sum);
    return shrink;
}

/* o [n_q][v_dim] <- shrink o + p V, for n_vecs vectors of columns from c on. */
INLINE void mix_block(float *o, const float *p, const float *shrink, const mf__cpu_keys *keys, int32_t c, int n_q,
                      int n_vecs, bool f16) {
    vf acc[QUERIES][CROSS];
    for (int j = 0; j < n_q; j++)
        for (int b = 0; b < n_vecs; b++) acc[j][b] = load_f(o + (int64_t)j * keys->v_dim + c + b * WIDTH) * shrink[j];
    for (int32_t i = 0; i < keys->n; i++) {
        vf v[CROSS];
        for (int b = 0; b < n_vecs; b++) v[b] = load_kept(keys->v, i * keys->v_stride + c + b * WIDTH, f16);
        for (int j = 0; j < n_q; j++)
            for (int b = 0; b < n_vecs; b++) acc[j][b] += v[b] * p[j * MF_CPU_KEYS + i];
    }
    for (int j = 0; j < n_q; j++)
        for (int b = 0; b < n_vecs; b++) store_f(o + (int64_t)j * keys->v_dim + c + b * WIDTH, acc[j][b]);
}

/* All columns for n_q queries. Meanwhile the keys that come next are fetched, by those who are first. */
INLINE void mix_values(mf__cpu_queries *q, const float *p, const float *shrink, const mf__cpu_keys *keys, int j,
                       int n_q, bool f16) {
    const int n_vecs = CROSS * CROSS / (n_q < CROSS ? CROSS : n_q);
    float *o = q->o + (int64_t)j * keys->v_dim;
    int32_t c = 0, next = 0;
    p += j * MF_CPU_KEYS, shrink += j;
    for (; c + n_vecs * WIDTH <= keys->v_dim; c += n_vecs * WIDTH) {
        for (; j == 0 && next < keys->n_next * (c + n_vecs * WIDTH) / keys->v_dim; next++)
            fetch_row(keys->k, (keys->n + next) * keys->k_stride, keys->k_dim, f16);
        mix_block(o, p, shrink, keys, c, n_q, n_vecs, f16);
    }
    for (; c + WIDTH <= keys->v_dim; c += WIDTH) mix_block(o, p, shrink, keys, c, n_q, 1, f16);
    for (; c < keys->v_dim; c++)
        for (int b = 0; b < n_q; b++) {
            float sum = o[(int64_t)b * keys->v_dim + c] * shrink[b];
            for (int32_t i = 0; i < keys->n; i++)
                sum += p[b * MF_CPU_KEYS + i] * kept(keys->v, i * keys->v_stride + c, f16);
            o[(int64_t)b * keys->v_dim + c] = sum;
        }
}

INLINE void attend_rows(mf__cpu_queries *q, int n, const mf__cpu_keys *keys, bool f16) {
    float p[MF_CPU_MAX_LANES / 2 * MF_CPU_KEYS], shrink[MF_CPU_MAX_LANES / 2];
    int j = 0;
    if (keys->n < MF_CPU_KEYS) memset(p, 0, sizeof p);
    for (; QUERIES <= WIDTH / 2 && j + QUERIES <= n; j += QUERIES) score_keys(q, keys, j, QUERIES, f16, p);
    for (; j + CROSS <= n; j += CROSS) score_keys(q, keys, j, CROSS, f16, p);
    for (; j < n; j++) score_keys(q, keys, j, 1, f16, p);
    for (j = 0; j < n; j++) shrink[j] = weigh_keys(q, j, keys, p + j * MF_CPU_KEYS);
    j = 0;
    for (; QUERIES <= WIDTH / 2 && j + QUERIES <= n; j += QUERIES) mix_values(q, p, shrink, keys, j, QUERIES, f16);
    for (; j + CROSS <= n; j += CROSS) mix_values(q, p, shrink, keys, j, CROSS, f16);
    for (; j < n; j++) mix_values(q, p, shrink, keys, j, 1, f16);
}

static void SET(attend_few)(mf__cpu_queries *q, int n, const mf__cpu_keys *keys) {
    if (keys->f16)
        attend_rows(q, n, keys, true);
    else
        attend_rows(q, n, keys, false);
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
    bool past = d->past && (uintptr_t)d->S_out % sizeof(vf) == 0;
    for (int r = 0; r < n; r++)
        for (int i = 0; i < n_vecs; i++) {
            float *to = d->S_out + (int64_t)(row + r) * d->k_dim + i * WIDTH;
            if (past)
                stream_f(to, S[r][i]);
            else
                store_f(to, S[r][i]);
        }
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

/* Many steps: S is turned, so that rows are in the lanes and no sum crosses them. S = scale * T, so that decay costs
 * nothing, and two steps at a time, so that T is read and written once for both:
 *
 *   S1 = g1 S + d1 k1^T;  S2 = g2 S1 + d2 k2^T;  S1 k2 = g1 S k2 + d1 (k1 . k2);  S1 q1 = g1 S q1 + d1 (k1 . q1)
 *
 * While T becomes S2, T q1, T2 q2 and, for the next two steps, T2 k3 and T2 k4 are taken. */
#define MAX_K_DIM 256
#define PARTS 2 /* of each sum, that do not wait for one another */
#define SMALLEST 0x1p-30f
#define LANES_FROM 8 /* steps: fewer do not pay for the turning */

typedef struct two_steps {
    const float *k[4], *q[2]; /* of these steps; k of the next two as well */
    vf d[2][2];               /* [step][block] what is added to T along k */
    vf read[2][2];            /* [step][block] T q1, T2 q2 */
    vf seen[2][2];            /* [step][block] T2 k3, T2 k4 */
} two_steps;

/* keep: what T is multiplied with before. */
INLINE void delta_steps(vf (*T)[2], int32_t k_dim, float keep, two_steps *s) {
    vf read[2][2][PARTS], seen[2][2][PARTS];
    for (int i = 0; i < 4 * PARTS; i++)
        read[i / 2 / PARTS][i / PARTS % 2][i % PARTS] = seen[i / 2 / PARTS][i / PARTS % 2][i % PARTS] = (vf){0};
    for (int32_t i = 0; i < k_dim; i += PARTS)
        for (int p = 0; p < PARTS; p++)
            for (int b = 0; b < 2; b++) {
                vf old = T[i + p][b], now = keep == 1.0f ? old : old * keep;
                now += s->d[0][b] * s->k[0][i + p];
                now += s->d[1][b] * s->k[1][i + p];
                T[i + p][b] = now;
                read[0][b][p] += old * s->q[0][i + p];
                read[1][b][p] += now * s->q[1][i + p];
                seen[0][b][p] += now * s->k[2][i + p];
                seen[1][b][p] += now * s->k[3][i + p];
            }
    for (int t = 0; t < 2; t++)
        for (int b = 0; b < 2; b++) {
            s->read[t][b] = read[t][b][0] + read[t][b][1];
            s->seen[t][b] = seen[t][b][0] + seen[t][b][1];
        }
}

INLINE float dot_of(const float *a, const float *b, int32_t n) {
    vf sum = {0};
    for (int32_t i = 0; i < n; i += WIDTH) sum += load_f(a + i) * load_f(b + i);
    return sum_lanes(sum);
}

/* Between S [2 * WIDTH][k_dim] and T [k_dim][2]. */
INLINE void turn(float *S, int32_t k_dim, vf (*T)[2], float scale, bool back) {
    vi square[WIDTH];
    for (int b = 0; b < 2; b++)
        for (int32_t i = 0; i < k_dim; i += WIDTH) {
            float *at = S + (int64_t)b * WIDTH * k_dim + i;
            for (int r = 0; r < WIDTH; r++) square[r] = (vi)(back ? T[i + r][b] * scale : load_f(at + r * k_dim));
            transpose(square);
            for (int r = 0; r < WIDTH; r++)
                if (back)
                    store_f(at + r * k_dim, (vf)square[r]);
                else
                    T[i + r][b] = (vf)square[r];
        }
}

/* An even number of steps. */
static void SET(delta_lanes)(const mf__cpu_delta *d, int32_t row, int32_t n_steps) {
    vf T[MAX_K_DIM][2];
    two_steps s;
    float scale = 1;
    int32_t dim = d->k_dim;
    turn((float *)(uintptr_t)d->S_in + (int64_t)row * dim, dim, T, 1, false);
    for (int t = 0; t < 2; t++)
        for (int b = 0; b < 2; b++) {
            s.seen[t][b] = (vf){0};
            for (int32_t i = 0; i < dim; i++) s.seen[t][b] += T[i][b] * d->k[t * d->qkv_stride + i];
        }
    for (int32_t t = 0; t < n_steps; t += 2) {
        const float *v[2], *decay = d->decay + t * d->gate_stride, *beta = d->beta + t * d->gate_stride;
        for (int i = 0; i < 4; i++) { /* behind the last there is nothing to take: any will do */
            int64_t at = (t + i < n_steps ? t + i : t) * d->qkv_stride;
            s.k[i] = d->k + at;
            if (i < 2) s.q[i] = d->q + at, v[i] = d->v + at + row;
        }
        float g1 = decay[0], g2 = decay[d->gate_stride], b1 = beta[0], b2 = beta[d->gate_stride];
        float k1k2 = dot_of(s.k[0], s.k[1], dim), k1q1 = dot_of(s.k[0], s.q[0], dim);
        float s1 = scale * g1, s2 = s1 * g2;
        vf d1[2], d2[2];
        for (int b = 0; b < 2; b++) {
            d1[b] = b1 * (load_f(v[0] + b * WIDTH) - s1 * s.seen[0][b]);
            d2[b] = b2 * (load_f(v[1] + b * WIDTH) - g2 * (s1 * s.seen[1][b] + d1[b] * k1k2));
        }
        bool small = s2 < SMALLEST; /* then T takes the scale over */
        for (int b = 0; b < 2; b++) {
            s.d[0][b] = d1[b] * (small ? g2 : 1.0f / s1);
            s.d[1][b] = d2[b] * (small ? 1.0f : 1.0f / s2);
        }
        if (small)
            delta_steps(T, dim, s2, &s);
        else
            delta_steps(T, dim, 1.0f, &s);
        scale = small ? 1 : s2;
        for (int b = 0; b < 2; b++) {
            float *o = d->o + t * d->o_stride + row + b * WIDTH;
            store_f(o, s.read[0][b] * s1 + d1[b] * k1q1);
            store_f(o + d->o_stride, s.read[1][b] * scale);
        }
    }
    turn(d->S_out + (int64_t)row * dim, dim, T, scale, true);
}

#define DELTA(vecs)                                                                                                    \
    for (; row + 2 <= d->n_rows; row += 2) delta_rows(d, row, 2, vecs);                                                \
    for (; row < d->n_rows; row++) delta_rows(d, row, 1, vecs)

/* All steps of the rows from `row` on. */
static void SET(delta_by_rows)(const mf__cpu_delta *d, int32_t row) {
    switch (d->k_dim % WIDTH ? 0 : d->k_dim / WIDTH) {
    case 2: DELTA(2); break;
    case 4: DELTA(4); break;
    case 8: DELTA(8); break;
    case 16: DELTA(16); break;
    case 32: DELTA(32); break;
    default:
        for (; row < d->n_rows; row++) SET(delta_row_any)(d, row);
    }
    if (d->past) stream_end();
}

static void SET(delta)(const mf__cpu_delta *d) {
    int32_t row = 0, even = d->n_steps / 2 * 2;
    if (d->n_steps >= LANES_FROM && d->k_dim % WIDTH == 0 && d->k_dim <= MAX_K_DIM)
        for (; row + 2 * WIDTH <= d->n_rows; row += 2 * WIDTH) SET(delta_lanes)(d, row, even);
    if (row && even < d->n_steps) { /* the last step of those */
        mf__cpu_delta last = *d;
        last.S_in = d->S_out, last.n_rows = row, last.n_steps = 1, last.past = false;
        last.q += even * d->qkv_stride, last.k += even * d->qkv_stride, last.v += even * d->qkv_stride;
        last.decay += even * d->gate_stride, last.beta += even * d->gate_stride, last.o += even * d->o_stride;
        SET(delta_by_rows)(&last, 0);
    }
    SET(delta_by_rows)(d, row);
}

void SET(mf__cpu_rowwise)(mf__cpu_kernels *k) {
    k->put = SET(put);
    k->rms_norm = SET(rms_norm);
    k->scale_to_unit = SET(scale_to_unit);
    k->add = SET(add);
    k->glu = SET(glu);
    k->mul_sigmoid = SET(mul_sigmoid);
    k->mul_silu = SET(mul_silu);
    k->axpy = SET(axpy);
    k->conv = SET(conv);
    k->attend = SET(attend);
    k->attend_few = SET(attend_few);
    k->cross = SET(cross);
    k->delta = SET(delta);
}
