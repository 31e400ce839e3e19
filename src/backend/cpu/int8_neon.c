/* Integer products on NEON. */
#include "backend/cpu/vec_neon.h"

#include "backend/cpu/product_int8.inc.h"
