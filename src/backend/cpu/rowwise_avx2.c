/* Rowwise ops, attention and the delta rule on AVX2. */
#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/rowwise.inc.h"
