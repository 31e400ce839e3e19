/* f32 products in plain C. */
#include "backend/cpu/vec_scalar.h"

#include "backend/cpu/product_f32.inc.h"
