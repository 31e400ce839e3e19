/* Integer products on AVX2. */
#include "backend/cpu/vec_avx2.h"

#include "backend/cpu/product_int8.inc.h"
