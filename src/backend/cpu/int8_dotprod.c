/* Integer products on NEON with dot products. */
#define VEC_DOTPROD
#include "backend/cpu/vec_neon.h"

#include "backend/cpu/product_int8.inc.h"
