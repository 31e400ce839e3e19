/* Scales and biases with the least squared error.
 *
 * The rule of MLX reaches both ends of a group; most of the error is then made in between. Here a few ranges that leave
 * the ends out are tried beside it. Each gives codes, for which the best scale and bias are a matter of two equations
 * (least squares); these give codes again. What has the smallest error, as stored, is taken: never a larger one than by
 * MLX's rule.
 *
 * Sums run in LANES that do not meet before the end, which compilers put into whatever vectors the machine has: all
 * machines have the same result. */
#include "quant/fit.h"

#include <string.h>

#include "quant/affine.h"
#include "quant/half.h"

#define LANES 16
#define MAX_TRIES 4

/* How often, and how much more of the range is left out each time: the fewer codes, the more. */
typedef struct tries {
    int n, rounds; /* rounds: codes, then scale and bias */
    float step;
} tries;

static const tries TRIES[] = {[2] = {4, 3, 0.15f}, [3] = {3, 1, 0.12f}, [4] = {3, 1, 0.08f},
                              [5] = {2, 1, 0.06f}, [6] = {2, 1, 0.04f}, [8] = {1, 1, 0}};

/* Of x = code * scale + bias: sums over the codes that are nearest. */
typedef struct sums {
    float code, square, product, error; /* product: of code and x */
} sums;

#define INLINE static inline __attribute__((always_inline))

/* Vectors never go through calls by value: their width may be more than the machine has. */
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t masks __attribute__((vector_size(4 * LANES)));

INLINE float sum_lanes(const lanes *v) {
    float half[8], quarter[4];
    for (int i = 0; i < 8; i++) half[i] = (*v)[i] + (*v)[i + 8];
    for (int i = 0; i < 4; i++) quarter[i] = half[i] + half[i + 4];
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* *v where the mask has ones, *other elsewhere. */
INLINE void keep_where(const masks *m, lanes *v, const lanes *other) {
    *v = (lanes)((*m & (masks)*v) | (~*m & (masks)*other));
}

/* Codes are rounded by adding 2^23, after they are within their bounds. */
INLINE sums sums_of(const float *x, int group, float scale, float bias, float max_code) {
    lanes code = {0}, square = {0}, product = {0}, error = {0}, zero = {0}, most = zero + max_code;
    float inverse = 1.0f / scale;
    for (int i = 0; i < group; i += LANES) {
        lanes v, q;
        memcpy(&v, x + i, sizeof v);
        q = (v - bias) * inverse;
        masks above = q > zero;
        keep_where(&above, &q, &zero);
        masks below = q < most;
        keep_where(&below, &q, &most);
        q = (q + 0x1p23f) - 0x1p23f;
        lanes d = v - (q * scale + bias);
        code += q;
        square += q * q;
        product += q * v;
        error += d * d;
    }
    return (sums){sum_lanes(&code), sum_lanes(&square), sum_lanes(&product), sum_lanes(&error)};
}

/* The smallest and the largest value, and the sum. A NaN is passed over. */
INLINE void look_at(const float *x, int group, float *lo, float *hi, float *total) {
    lanes a, b, s = {0};
    memcpy(&a, x, sizeof a);
    b = a;
    for (int i = 0; i < group; i += LANES) {
        lanes v;
        memcpy(&v, x + i, sizeof v);
        masks under = ~(v < a), over = ~(v > b); /* all ones where it stays */
        keep_where(&under, &a, &v);
        keep_where(&over, &b, &v);
        s += v;
    }
    *lo = a[0];
    *hi = b[0];
    for (int k = 1; k < LANES; k++) {
        *lo = a[k] < *lo ? a[k] : *lo;
        *hi = b[k] > *hi ? b[k] : *hi;
    }
    *total = sum_lanes(&s);
}

INLINE float as_stored(float f, mf__type type) {
    if (type == MF_TYPE_F32) return f;
    return type == MF_TYPE_BF16 ? mf__bf16_to_f32(mf__f32_to_bf16(f)) : mf__f16_to_f32(mf__f32_to_f16(f));
}

/* The best scale and bias for codes with these sums; as they were where all codes are one. */
INLINE void solve(const sums *of, int group, float total, float *scale, float *bias) {
    double det = (double)group * of->square - (double)of->code * of->code;
    if (!(det > 0)) return;
    double s = ((double)group * of->product - (double)of->code * total) / det;
    *scale = (float)s;
    *bias = (float)((total - s * of->code) / group);
}

/* Takes *scale and *bias, as stored, to others with a smaller error where there are some. All tries go side by side:
 * each would wait for its own sums. */
INLINE void fit(const float *x, int group, int bits, mf__type type, float *scale, float *bias) {
    float lo, hi, total, max_code = (float)((1 << bits) - 1), s[MAX_TRIES], b[MAX_TRIES];
    int n = TRIES[bits].n;
    look_at(x, group, &lo, &hi, &total);
    if (!(hi > lo)) return;
    for (int t = 0; t < n; t++) {
        float half = (hi - lo) * 0.5f * (1.0f - TRIES[bits].step * (float)t);
        s[t] = 2 * half / max_code;
        b[t] = (lo + hi) * 0.5f - half;
    }
    for (int round = 0; round < TRIES[bits].rounds; round++)
        for (int t = 0; t < n; t++) {
            sums of = sums_of(x, group, s[t], b[t], max_code);
            solve(&of, group, total, &s[t], &b[t]);
        }
    float least = sums_of(x, group, *scale, *bias, max_code).error;
    for (int t = 0; t < n; t++) {
        float as_s = as_stored(s[t], type), as_b = as_stored(b[t], type);
        float error = sums_of(x, group, as_s, as_b, max_code).error;
        if (!(as_s > 0) || !(error < least)) continue;
        least = error;
        *scale = as_s;
        *bias = as_b;
    }
}

INLINE void fit_groups(const float *x, int64_t n_groups, int bits, int group, mf__type type, void *scales,
                       void *biases) {
    for (int64_t g = 0; g < n_groups; g++) {
        float scale = mf__affine_scale(scales, type, g), bias = mf__affine_scale(biases, type, g);
        fit(x + g * group, group, bits, type, &scale, &bias);
        mf__affine_scale_set(scales, type, g, scale);
        mf__affine_scale_set(biases, type, g, bias);
    }
}

/* ---- the same, compiled for what the machine may have ---- */

static void fit_plain(const float *x, int64_t n, int bits, int group, mf__type type, void *scales, void *biases) {
    fit_groups(x, n, bits, group, type, scales, biases);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void fit_avx2(const float *x, int64_t n, int bits, int group, mf__type type,
                                                     void *scales, void *biases) {
    fit_groups(x, n, bits, group, type, scales, biases);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) static void
fit_avx512(const float *x, int64_t n, int bits, int group, mf__type type, void *scales, void *biases) {
    fit_groups(x, n, bits, group, type, scales, biases);
}
#endif

int mf__affine_fit_levels(void) {
#if defined(__x86_64__)
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return avx512 ? 3 : __builtin_cpu_supports("avx2") ? 2 : 1;
#else
    return 1;
#endif
}

void mf__affine_fit_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type, int level,
                        void *codes, void *scales, void *biases) {
    int64_t n = n_cols / group;
    mf__affine_choose_row(x, n_cols, bits, group, scale_type, scales, biases);
#if defined(__x86_64__)
    if (level >= 3)
        fit_avx512(x, n, bits, group, scale_type, scales, biases);
    else if (level == 2)
        fit_avx2(x, n, bits, group, scale_type, scales, biases);
    else
#endif
        fit_plain(x, n, bits, group, scale_type, scales, biases);
    (void)level;
    mf__affine_nearest_row(x, n_cols, bits, group, scale_type, scales, biases, codes);
}
