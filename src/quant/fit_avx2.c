/* fit.inc.h for AVX2. */
#define WIDTH 8
#define SEARCH mf__search_avx2
#define CODES mf__codes_avx2
#include "quant/fit.inc.h"
