/* fit.inc.h for AVX-512. */
#define WIDTH 16
#define SEARCH mf__search_avx512
#define CODES mf__codes_avx512
#include "quant/fit.inc.h"
