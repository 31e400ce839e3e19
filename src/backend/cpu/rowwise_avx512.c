/* Rowwise ops, attention and the delta rule on AVX-512. */
#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/rowwise.inc.h"
