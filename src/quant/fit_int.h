/* Between fit.c and its kernels: the scales and biases of a row, from those of MLX's rule to better ones, and the
 * codes.
 */
#ifndef MF_QUANT_FIT_INT_H
#define MF_QUANT_FIT_INT_H

#include "quant/fit.h"

typedef void mf__fit_fn(const float *x, const float *w, const mf__tensor *form, void *scales, void *biases);
mf__fit_fn mf__fit_plain, mf__fit_avx2, mf__fit_avx512;

#endif
