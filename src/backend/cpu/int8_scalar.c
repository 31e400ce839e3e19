/* Integer products in plain C. */
#include "backend/cpu/vec_scalar.h"

#include "backend/cpu/product_int8.inc.h"
