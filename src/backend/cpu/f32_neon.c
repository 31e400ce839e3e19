/* f32 products on NEON. */
#include "backend/cpu/vec_neon.h"

#include "backend/cpu/product_f32.inc.h"
