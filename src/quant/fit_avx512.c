/* fit.inc.h for AVX-512. */
#define WIDTH 16
#define FIT mf__fit_avx512
#include "quant/fit.inc.h"
