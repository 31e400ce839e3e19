/* fit.inc.h for AVX2. */
#define WIDTH 8
#define FIT mf__fit_avx2
#include "quant/fit.inc.h"
