/* Rows of the KV cache on NEON. */
#include "backend/cpu/vec_neon.h"

#include "backend/cpu/kv.inc.h"
