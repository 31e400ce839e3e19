/* Rows of the KV cache (keys, values, latents) as they are kept. Types: F32; F16, where what is too large becomes the
 * largest; I8: a code per column, padded to four bytes, then an f32 scale for every MF_KV_GROUP columns. */
#ifndef MF_QUANT_KV_H
#define MF_QUANT_KV_H

#include "quant/type.h"

#define MF_KV_GROUP 64
#define MF_KV_F16_MAX 65504.0f
#define MF_KV_I8_MIN 1e-30f /* groups whose largest value is not above this are zeros: 127 / it must be finite */

const char *mf__kv_name(mf__type type); /* "f16", "f32", "int8": as options and messages call it */
int64_t mf__kv_row_bytes(mf__type type, int32_t cols);

/* Where the scales of an I8 row begin. */
static inline int64_t mf__kv_scales_at(int32_t cols) {
    return ((int64_t)cols + 3) / 4 * 4;
}

/* The definition of both directions; a backend's own versions give the same bits. */
void mf__kv_encode_row(mf__type type, const float *x, int32_t cols, void *row);
void mf__kv_decode_row(mf__type type, const void *row, int32_t cols, int32_t first, int32_t n, float *out);

#endif
