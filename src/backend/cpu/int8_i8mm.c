/* Integer products on NEON with dot products of mixed signs. */
#define VEC_I8MM
#include "backend/cpu/vec_neon.h"

#include "backend/cpu/product_int8.inc.h"
