/* MLX affine quantization: value = code * scale + bias, per group of 32, 64 or 128 along a row.
 *
 * Bit order (docs/FORMAT.md): powers of two sit in little-endian words, element i at bit bits*i; 3, 5 and 6 bits are
 * little-endian bit streams. In both cases element i of a row starts at bit bits*i of the row's bytes, so one rule
 * decodes all widths. */
#ifndef MF_QUANT_AFFINE_H
#define MF_QUANT_AFFINE_H

#include "quant/half.h"
#include "quant/type.h"

bool mf__affine_bits_ok(int bits);   /* 2 3 4 5 6 8 */
bool mf__affine_group_ok(int group); /* 32 64 128 */

/* Which encoder made a file: raised with every change of the bytes that encoding or repacking gives, so that a resumed
 * conversion never mixes two of them. The test quant_affine holds a hash of those bytes. */
#define MF__ENCODER_VERSION 2

/* Encodes one row of n_cols (a multiple of group) floats. Scale and bias are chosen as MLX does, rounded to scale_type
 * (BF16, F16 or F32), and the codes are the nearest for those rounded values. */
void mf__affine_encode_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type, void *codes,
                           void *scales, void *biases);

/* Its two halves: scales and biases of a row, and the codes that are nearest to what was stored of them. */
void mf__affine_choose_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type, void *scales,
                           void *biases);
void mf__affine_nearest_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type,
                            const void *scales, const void *biases, void *codes);

/* Decodes one row: (float)code * scale + bias, the product rounded before the sum. Any alignment. biases may be NULL:
 * see mf__affine_centre. What mf__tensor_row_f32 calls for AFFINE. */
void mf__affine_decode_row(const void *codes, const void *scales, const void *biases, mf__type scale_type,
                           int64_t n_cols, int bits, int group, float *out);

/* A scale or bias, as it comes back from its type (BF16, F16 or F32). */
static inline __attribute__((always_inline)) float mf__affine_as_stored(float f, mf__type type) {
    if (type == MF_TYPE_F32) return f;
    return type == MF_TYPE_BF16 ? mf__bf16_to_f32(mf__f32_to_bf16(f)) : mf__f16_to_f32(mf__f32_to_f16(f));
}

/* How far n values (a multiple of 8) y are from x: sums of squares, of the differences and of x. */
void mf__affine_error(const float *x, const float *y, int n, float *error, float *total);

/* The biases of codes that are centred on zero, -2^(bits - 1) * scale for each of n scales, in the scales' own type:
 * exact, since it is a power of two (unless the scale is within a factor of 128 of the type's largest value). */
void mf__affine_centre(const void *scales, mf__type scale_type, int64_t n, int bits, void *biases);

/* Element i; any alignment. U8, which checkpoints with FP8 may have, is E8M0. */
float mf__affine_scale(const void *scales, mf__type scale_type, int64_t i);
void mf__affine_scale_set(void *scales, mf__type scale_type, int64_t i, float f);

/* The raw codes of one row, and back. n_cols is a multiple of 8. */
void mf__affine_codes_row(const void *codes, int64_t n_cols, int bits, uint8_t *out);
void mf__affine_pack_row(const uint8_t *in, int64_t n_cols, int bits, void *codes);

#endif
