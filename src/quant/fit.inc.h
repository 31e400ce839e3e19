/* The search of fit.c for vectors of WIDTH floats (4, 8 or 16); FIT is the function's name.
 *
 * Sums run in LANES that do not meet before the end, whatever the width: all machines have the same result. Vectors are
 * no wider than the machine's: comparisons of wider ones are taken apart lane by lane. */
#include <string.h>

#include "quant/affine.h"
#include "quant/fit_int.h"
#include "quant/half.h"

#define LANES 16
#define PIECES (LANES / WIDTH)
#define MAX_TRIES 6
#define INLINE static inline __attribute__((always_inline))

/* How often, and how much more of the range is left out each time: the fewer codes, the more. */
typedef struct tries {
    int n, rounds; /* rounds: codes, then scale and bias */
    float step;
} tries;

static const tries TRIES[] = {[2] = {4, 3, 0.15f}, [3] = {3, 1, 0.12f}, [4] = {3, 1, 0.08f},
                              [5] = {2, 1, 0.06f}, [6] = {2, 1, 0.04f}, [8] = {1, 1, 0}};

/* With weights, which come with a calibration: time is no concern. */
static const tries WEIGHTED[] = {[2] = {6, 4, 0.1f},  [3] = {6, 3, 0.08f}, [4] = {5, 2, 0.06f},
                                 [5] = {4, 2, 0.05f}, [6] = {3, 2, 0.04f}, [8] = {2, 1, 0.02f}};

/* Of x = code * scale + bias: sums over the codes that are nearest. */
typedef struct sums {
    float code, square, product, error; /* product: of code and x */
} sums;

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t mask __attribute__((vector_size(4 * WIDTH)));
typedef float four __attribute__((vector_size(16)));

INLINE vec load(const float *x) {
    vec v;
    memcpy(&v, x, sizeof v);
    return v;
}

/* yes where the mask has ones, no elsewhere. */
INLINE vec choose(mask m, vec yes, vec no) {
    return (vec)((m & (mask)yes) | (~m & (mask)no));
}

/* Lanes 8 apart first, then 4, then 2. */
INLINE float sum_lanes(const vec v[PIECES]) {
#if WIDTH == 4
    four quarter = (v[0] + v[2]) + (v[1] + v[3]);
#else
#if WIDTH == 8
    vec half = v[0] + v[1];
#else
    typedef float eight __attribute__((vector_size(32)));
    eight half, other;
    memcpy(&half, v, sizeof half);
    memcpy(&other, (const float *)v + 8, sizeof other);
    half += other;
#endif
    four quarter, rest;
    memcpy(&quarter, &half, sizeof quarter);
    memcpy(&rest, (const float *)&half + 4, sizeof rest);
    quarter += rest;
#endif
    return (quarter[0] + quarter[2]) + (quarter[1] + quarter[3]);
}

/* Codes are rounded by adding 2^23, after they are within their bounds. w: of each column; NULL: all count alike. */
INLINE sums sums_of(const float *x, const float *w, int group, float scale, float bias, float max_code) {
    vec code[PIECES], square[PIECES], product[PIECES], error[PIECES], zero = {0}, most = zero + max_code;
    float inverse = 1.0f / scale;
    for (int p = 0; p < PIECES; p++) code[p] = square[p] = product[p] = error[p] = zero;
    for (int i = 0; i < group; i += LANES)
        for (int p = 0; p < PIECES; p++) {
            vec v = load(x + i + p * WIDTH), q = (v - bias) * inverse;
            q = choose(q > zero, q, zero);
            q = choose(q < most, q, most);
            q = (q + 0x1p23f) - 0x1p23f;
            vec d = v - (q * scale + bias), weighted = q, off = d;
            if (w) {
                vec m = load(w + i + p * WIDTH);
                weighted = q * m;
                off = d * m;
            }
            code[p] += weighted;
            square[p] += weighted * q;
            product[p] += weighted * v;
            error[p] += off * d;
        }
    return (sums){sum_lanes(code), sum_lanes(square), sum_lanes(product), sum_lanes(error)};
}

/* The smallest and the largest value, and the sum. A NaN is passed over. */
INLINE void look_at(const float *x, int group, float *lo, float *hi, float *total) {
    vec a[PIECES], b[PIECES], s[PIECES], zero = {0};
    for (int p = 0; p < PIECES; p++) {
        a[p] = b[p] = load(x + p * WIDTH);
        s[p] = zero;
    }
    for (int i = 0; i < group; i += LANES)
        for (int p = 0; p < PIECES; p++) {
            vec v = load(x + i + p * WIDTH);
            a[p] = choose(v < a[p], v, a[p]);
            b[p] = choose(v > b[p], v, b[p]);
            s[p] += v;
        }
    for (int p = 1; p < PIECES; p++) {
        a[0] = choose(a[p] < a[0], a[p], a[0]);
        b[0] = choose(b[p] > b[0], b[p], b[0]);
    }
    *lo = a[0][0];
    *hi = b[0][0];
    for (int k = 1; k < WIDTH; k++) {
        *lo = a[0][k] < *lo ? a[0][k] : *lo;
        *hi = b[0][k] > *hi ? b[0][k] : *hi;
    }
    *total = sum_lanes(s);
}

/* The best scale and bias for codes with these sums; as they were where all codes are one. count: the sum of weights,
 * total: of the values. */
INLINE void solve(const sums *of, double count, float total, float *scale, float *bias) {
    double det = count * of->square - (double)of->code * of->code;
    if (!(det > 0)) return;
    double s = (count * of->product - (double)of->code * total) / det;
    *scale = (float)s;
    *bias = (float)((total - s * of->code) / count);
}

INLINE void weigh(const float *x, const float *w, int group, double *count, float *total) {
    vec n[PIECES], s[PIECES], zero = {0};
    for (int p = 0; p < PIECES; p++) n[p] = s[p] = zero;
    for (int i = 0; i < group; i += LANES)
        for (int p = 0; p < PIECES; p++) {
            vec m = load(w + i + p * WIDTH);
            n[p] += m;
            s[p] += m * load(x + i + p * WIDTH);
        }
    *count = sum_lanes(n);
    *total = sum_lanes(s);
}

/* Takes *scale and *bias, as stored, to others with a smaller error where there are some. All tries go side by side:
 * each would wait for its own sums. */
INLINE void fit(const float *x, const float *w, const mf__tensor *form, const tries *how, float *scale, float *bias) {
    float lo, hi, total, max_code = (float)((1 << form->bits) - 1), s[MAX_TRIES], b[MAX_TRIES];
    int n = how->n, group = form->group;
    double count = group;
    look_at(x, group, &lo, &hi, &total);
    if (!(hi > lo)) return;
    if (w) weigh(x, w, group, &count, &total);
    for (int t = 0; t < n; t++) {
        float half = (hi - lo) * 0.5f * (1.0f - how->step * (float)t);
        s[t] = 2 * half / max_code;
        b[t] = (lo + hi) * 0.5f - half;
    }
    for (int round = 0; round < how->rounds; round++)
        for (int t = 0; t < n; t++) {
            sums of = sums_of(x, w, group, s[t], b[t], max_code);
            solve(&of, count, total, &s[t], &b[t]);
        }
    float least = sums_of(x, w, group, *scale, *bias, max_code).error;
    for (int t = 0; t < n; t++) {
        float as_s = mf__affine_as_stored(s[t], form->scale_type), as_b = mf__affine_as_stored(b[t], form->scale_type);
        float error = sums_of(x, w, group, as_s, as_b, max_code).error;
        if (!(as_s > 0) || !(error < least)) continue;
        least = error;
        *scale = as_s;
        *bias = as_b;
    }
}

void FIT(const float *x, const float *w, const mf__tensor *form, void *scales, void *biases) {
    mf__type type = form->scale_type;
    for (int64_t g = 0; g < form->n_cols / form->group; g++, x += form->group) {
        float scale = mf__affine_scale(scales, type, g), bias = mf__affine_scale(biases, type, g);
        fit(x, NULL, form, &TRIES[form->bits], &scale, &bias);
        if (w) fit(x, w + g * form->group, form, &WEIGHTED[form->bits], &scale, &bias);
        mf__affine_scale_set(scales, type, g, scale);
        mf__affine_scale_set(biases, type, g, bias);
    }
}
