/* Integer products on AVX-512. */
#include "backend/cpu/vec_avx512.h"

#include "backend/cpu/product_int8.inc.h"
