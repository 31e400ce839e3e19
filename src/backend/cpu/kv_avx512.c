/* Rows of the KV cache on AVX-512. */
#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/kv.inc.h"
