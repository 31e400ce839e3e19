/* Rows of the KV cache on AVX2. */
#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/kv.inc.h"
