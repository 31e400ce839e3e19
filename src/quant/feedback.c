/* Error fed back from column to column.
 *
 * With h = M M^T, M upper triangular, the error of a row is the sum over columns c of y_c^2,
 *
 *   y_c = sum over r <= c of (w_r - v_r) M_rc
 *
 * so columns are rounded in order, each to what makes its own y smallest: it then makes good what was left by those
 * before it, as far as its code can. Within a group, v_r = scale q_r + bias, and y is linear in scale and bias too: for
 * given codes the best of both are two equations. So, as in fit.c, several ranges are tried; each gives codes, these
 * give scale and bias, these give codes again; what has the smallest error as stored is taken.
 *
 * Rows lie in the lanes of vectors, [column][row], and do not meet: all machines have the same result. */
#include "quant/feedback.h"

#include <string.h>

#include "quant/affine.h"
#include "quant/half.h"

#define LANES MF_FEEDBACK_ROWS
#define MAX_GROUP 128
#define TRIES 4 /* at once: each would wait for its own sums */
#define INLINE static inline __attribute__((always_inline))

/* Vectors never go through calls by value: their width may be more than the machine has. */
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t masks __attribute__((vector_size(4 * LANES)));

/* Ranges that are tried, how much more is left out each time, and how often codes and scales are made of each other. */
typedef struct effort {
    int n, rounds; /* n: a multiple of TRIES */
    float step;
} effort;

static const effort EFFORT[] = {[2] = {8, 3, 0.07f}, [3] = {8, 2, 0.05f}, [4] = {4, 2, 0.06f},
                                [5] = {4, 2, 0.05f}, [6] = {4, 1, 0.04f}, [8] = {4, 1, 0.02f}};

/* One group of LANES rows. */
typedef struct strip {
    int n, first; /* columns, and the first */
    float max_code;
    mf__type scale_type;
    const float *m;           /* [n][n] the group's part of M, transposed: [c][r] */
    float inverse[MAX_GROUP]; /* 1 / M_cc */
    float ones[MAX_GROUP];    /* sum over r <= c of M_rc */
    float ones_square;        /* sum of their squares */
    lanes whole[MAX_GROUP];   /* y with v = 0 */
    lanes whole_ones;         /* sum of whole * ones */
    lanes best, scale, bias;  /* the smallest error so far, and with what */
    lanes codes[MAX_GROUP];   /* ... and the codes then */
} strip;

typedef struct attempt {
    lanes scale, bias, error;
    lanes square, cross, product; /* for the equations: of the codes' y, with the ones', with the whole's */
    lanes codes[MAX_GROUP];
} attempt;

INLINE void keep_where(const masks *m, lanes *v, const lanes *other) {
    *v = (lanes)((*m & (masks)*v) | (~*m & (masks)*other));
}

/* Codes in order, all attempts side by side. */
INLINE void round_columns(const strip *s, attempt *a) {
    lanes zero = {0}, most = zero + s->max_code, inverse[TRIES];
    for (int t = 0; t < TRIES; t++) {
        inverse[t] = 1.0f / a[t].scale;
        a[t].error = a[t].square = a[t].cross = a[t].product = zero;
    }
    for (int c = 0; c < s->n; c++) {
        const float *m = s->m + c * s->n;
        lanes sum[TRIES];
        for (int t = 0; t < TRIES; t++) sum[t] = zero;
        for (int r = 0; r < c; r++)
            for (int t = 0; t < TRIES; t++) sum[t] += a[t].codes[r] * m[r];
        for (int t = 0; t < TRIES; t++) {
            lanes y = s->whole[c] - a[t].bias * s->ones[c] - a[t].scale * sum[t];
            lanes q = y * s->inverse[c] * inverse[t];
            masks above = q > zero;
            keep_where(&above, &q, &zero);
            masks below = q < most;
            keep_where(&below, &q, &most);
            q = (q + 0x1p23f) - 0x1p23f;
            a[t].codes[c] = q;
            sum[t] += q * m[c];
            y -= a[t].scale * q * m[c];
            a[t].error += y * y;
            a[t].square += sum[t] * sum[t];
            a[t].cross += sum[t] * s->ones[c];
            a[t].product += sum[t] * s->whole[c];
        }
    }
}

INLINE void store_scales(const strip *s, attempt *a) {
    for (int i = 0; i < LANES; i++) {
        a->scale[i] = mf__affine_as_stored(a->scale[i], s->scale_type);
        a->bias[i] = mf__affine_as_stored(a->bias[i], s->scale_type);
        if (!(a->scale[i] > 0)) a->scale[i] = mf__affine_as_stored(1e-7f, s->scale_type); /* a constant group */
    }
}

/* The best scale and bias for an attempt's codes; as they were where the equations have no answer. */
INLINE void solve(const strip *s, attempt *a) {
    lanes det = a->square * s->ones_square - a->cross * a->cross, zero = {0};
    lanes scale = (a->product * s->ones_square - s->whole_ones * a->cross) / det;
    lanes bias = (s->whole_ones - scale * a->cross) / s->ones_square;
    masks good = (det > zero) & (scale > zero) & (scale < zero + 1e30f) & (bias == bias);
    keep_where(&good, &scale, &a->scale);
    keep_where(&good, &bias, &a->bias);
    a->scale = scale;
    a->bias = bias;
    store_scales(s, a);
}

/* The first one in any case, unless it cannot be stored: of values whose squares are too large none has an error. */
INLINE void keep_best(strip *s, const attempt *a) {
    lanes none = a->scale * 0 + a->bias * 0; /* NaN for what is not finite */
    masks better = ((a->error < s->best) | (s->best != s->best)) & (none == none);
    lanes v = a->error;
    keep_where(&better, &v, &s->best);
    s->best = v;
    v = a->scale;
    keep_where(&better, &v, &s->scale);
    s->scale = v;
    v = a->bias;
    keep_where(&better, &v, &s->bias);
    s->bias = v;
    for (int c = 0; c < s->n; c++) {
        v = a->codes[c];
        keep_where(&better, &v, &s->codes[c]);
        s->codes[c] = v;
    }
}

/* lo, hi: of what the columns would be rounded from. */
INLINE void search(strip *s, const effort *how, const lanes *lo, const lanes *hi) {
    attempt a[TRIES];
    lanes zero = {0};
    s->best = zero + __builtin_nanf(""); /* nothing was tried */
    s->scale = zero + 1e-7f;
    s->bias = zero;
    for (int c = 0; c < s->n; c++) s->codes[c] = zero;
    for (int first = 0; first < how->n; first += TRIES) {
        for (int t = 0; t < TRIES; t++) {
            lanes half = (*hi - *lo) * (0.5f * (1.0f - how->step * (float)(first + t)));
            a[t].scale = 2 * half / s->max_code;
            a[t].bias = (*lo + *hi) * 0.5f - half;
            store_scales(s, &a[t]);
        }
        for (int round = 0; round <= how->rounds; round++) {
            round_columns(s, a);
            for (int t = 0; t < TRIES; t++) keep_best(s, &a[t]);
            for (int t = 0; round < how->rounds && t < TRIES; t++) solve(s, &a[t]);
        }
    }
}

/* w: the rows; left: what the columns before have left of y, both [n_cols]. block: room for the group's part of M. */
INLINE void begin_group(strip *s, const mf__feedback *f, const lanes *w, const lanes *left, float *block) {
    lanes zero = {0};
    s->ones_square = 0;
    s->whole_ones = zero;
    s->m = block;
    for (int c = 0; c < s->n; c++) {
        lanes whole = left[s->first + c];
        float ones = 0;
        for (int r = 0; r <= c; r++) {
            float m = f->factor[(s->first + r) * f->n_cols + s->first + c];
            block[c * s->n + r] = m;
            ones += m;
            whole += w[s->first + r] * m;
        }
        s->inverse[c] = 1.0f / block[c * s->n + c];
        s->ones[c] = ones;
        s->ones_square += ones * ones;
        s->whole[c] = whole;
        s->whole_ones += whole * ones;
    }
}

INLINE void range_of(const strip *s, const lanes *w, const lanes *left, lanes *lo, lanes *hi) {
    *lo = *hi = w[s->first] + left[s->first] * s->inverse[0];
    for (int c = 1; c < s->n; c++) {
        lanes v = w[s->first + c] + left[s->first + c] * s->inverse[c];
        masks under = *lo<v, over = *hi> v;
        keep_where(&under, lo, &v);
        keep_where(&over, hi, &v);
    }
}

#define AHEAD 8

/* What the group leaves for the columns behind it. */
INLINE void feed_back(const strip *s, const mf__feedback *f, const lanes *w, lanes *left) {
    lanes error[MAX_GROUP];
    for (int c = 0; c < s->n; c++) error[c] = w[s->first + c] - (s->codes[c] * s->scale + s->bias);
    for (int64_t c = s->first + s->n; c < f->n_cols; c += AHEAD) {
        lanes sum[AHEAD];
        for (int i = 0; i < AHEAD; i++) sum[i] = left[c + i];
        for (int r = 0; r < s->n; r++) {
            const float *m = f->factor + (s->first + r) * f->n_cols + c;
            for (int i = 0; i < AHEAD; i++) sum[i] += error[r] * m[i];
        }
        for (int i = 0; i < AHEAD; i++) left[c + i] = sum[i];
    }
}

static void put_group(const strip *s, const mf__tensor *form, int n, const mf__feedback_out *out) {
    uint8_t codes[MAX_GROUP];
    int64_t g = s->first / s->n;
    for (int row = 0; row < n; row++) {
        for (int c = 0; c < s->n; c++) codes[c] = (uint8_t)(int)s->codes[c][row];
        mf__affine_pack_row(codes, s->n, form->bits, out->codes + row * out->codes_row + s->first / 8 * form->bits);
        mf__affine_scale_set(out->scales + row * out->scales_row, form->scale_type, g, s->scale[row]);
        mf__affine_scale_set(out->biases + row * out->scales_row, form->scale_type, g, s->bias[row]);
    }
}

int64_t mf__feedback_scratch(int64_t n_cols) {
    return 2 * LANES * n_cols + MAX_GROUP * MAX_GROUP + LANES; /* and what it takes to align them */
}

INLINE void encode(const mf__feedback *f, const mf__tensor *form, const float *const *rows, int n,
                   const mf__feedback_out *out, float *scratch) {
    strip s = {.n = form->group, .max_code = (float)((1 << form->bits) - 1), .scale_type = form->scale_type};
    lanes *w = (lanes *)(((uintptr_t)scratch + sizeof *w - 1) / sizeof *w * sizeof *w), *left = w + f->n_cols, lo, hi;
    float *block = (float *)(left + f->n_cols);
    for (int64_t c = 0; c < f->n_cols; c++) {
        for (int row = 0; row < LANES; row++) w[c][row] = rows[row < n ? row : 0][c];
        left[c] = (lanes){0};
    }
    for (int64_t first = 0; first < f->n_cols; first += form->group) {
        s.first = (int)first;
        begin_group(&s, f, w, left, block);
        range_of(&s, w, left, &lo, &hi);
        search(&s, &EFFORT[form->bits], &lo, &hi);
        feed_back(&s, f, w, left);
        put_group(&s, form, n, out);
    }
}

/* ---- the same, compiled for what the machine may have ---- */

static void encode_plain(const mf__feedback *f, const mf__tensor *form, const float *const *rows, int n,
                         const mf__feedback_out *out, float *scratch) {
    encode(f, form, rows, n, out, scratch);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void encode_avx2(const mf__feedback *f, const mf__tensor *form,
                                                        const float *const *rows, int n, const mf__feedback_out *out,
                                                        float *scratch) {
    encode(f, form, rows, n, out, scratch);
}

__attribute__((target("avx512f"))) static void encode_avx512(const mf__feedback *f, const mf__tensor *form,
                                                             const float *const *rows, int n,
                                                             const mf__feedback_out *out, float *scratch) {
    encode(f, form, rows, n, out, scratch);
}
#endif

void mf__feedback_encode(const mf__feedback *f, const mf__tensor *form, const float *const *rows, int n,
                         const mf__feedback_out *out, float *scratch) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) {
        encode_avx512(f, form, rows, n, out, scratch);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        encode_avx2(f, form, rows, n, out, scratch);
        return;
    }
#endif
    encode_plain(f, form, rows, n, out, scratch);
}
