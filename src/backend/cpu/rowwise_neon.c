/* Rowwise ops, attention and the delta rule on NEON. */
#include "backend/cpu/vec_neon.h"

#include "backend/cpu/rowwise.inc.h"
