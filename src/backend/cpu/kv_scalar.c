/* Rows of the KV cache in plain C. */
#include "backend/cpu/vec_scalar.h"

#include "backend/cpu/kv.inc.h"
