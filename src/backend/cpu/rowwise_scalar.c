/* Rowwise ops, attention and the delta rule in plain C. */
#include "backend/cpu/vec_scalar.h"

#include "backend/cpu/rowwise.inc.h"
