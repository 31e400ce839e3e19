/* f32 products on AVX-512. */
#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/product_f32.inc.h"
