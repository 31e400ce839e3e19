/* Scales and biases with the least squared error.
 *
 * The rule of MLX reaches both ends of a group; most of the error is then made in between. Here a few ranges that leave
 * the ends out are tried beside it. Each gives codes, for which the best scale and bias are a matter of two equations
 * (least squares); these give codes again. What has the smallest error, as stored, is taken: never a larger one than by
 * MLX's rule. Where columns have weights it is the weighted error, and what was found without them is one of the tries:
 * never a larger one than that either. The search itself is in fit.inc.h, compiled for what the machine may
 * have; here is the plain one. */
#define WIDTH 4
#define SEARCH mf__search_plain
#define CODES mf__codes_plain
#include "quant/fit.inc.h"

int mf__affine_fit_levels(void) {
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    return avx512 && avx2 ? 3 : avx2 ? 2 : 1;
#else
    return 1;
#endif
}

void mf__affine_fit_weighted_row(const float *x, const float *weights, const mf__tensor *form, int level,
                                 const mf__fit_out *out) {
    mf__search_fn *look_for = mf__search_plain;
    mf__codes_fn *encode = mf__codes_plain;
#if defined(__x86_64__)
    if (level > 1) {
        look_for = level == 2 ? mf__search_avx2 : mf__search_avx512;
        encode = level == 2 ? mf__codes_avx2 : mf__codes_avx512;
    }
#endif
    (void)level;
    look_for(x, weights, form, out->scales, out->biases);
    encode(x, form, out->scales, out->biases, out->codes, out->loss);
}

void mf__affine_fit_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type, int level,
                        void *codes, void *scales, void *biases) {
    mf__tensor form = {.n_cols = n_cols, .bits = bits, .group = group, .scale_type = scale_type};
    mf__fit_out out = {.codes = codes, .scales = scales, .biases = biases};
    mf__affine_fit_weighted_row(x, NULL, &form, level, &out);
}
