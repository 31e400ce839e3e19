/* Between fit.c and its kernels, which are in fit.inc.h. */
#ifndef MF_QUANT_FIT_INT_H
#define MF_QUANT_FIT_INT_H

#include "quant/fit.h"

/* The scales and biases of a row. */
typedef void mf__search_fn(const float *x, const float *w, const mf__tensor *form, void *scales, void *biases);
mf__search_fn mf__search_plain, mf__search_avx2, mf__search_avx512;

/* Its codes, and what is lost in every group. */
typedef void mf__codes_fn(const float *x, const mf__tensor *form, const void *scales, const void *biases, void *codes,
                          mf__fit_loss *loss);
mf__codes_fn mf__codes_plain, mf__codes_avx2, mf__codes_avx512;

#endif
