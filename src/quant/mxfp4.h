/* MXFP4: 32 values of 4 bits (sign, two exponent bits, one mantissa bit) share a power of two.
 *
 *   value = {0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives}[code] * 2^(scale - 127)
 *
 * Element i of a row is in byte i / 2: the low half when i is even. Every value is exactly a bf16. */
#ifndef MF_QUANT_MXFP4_H
#define MF_QUANT_MXFP4_H

#include <stdint.h>

/* codes: n_cols / 2 bytes; scales: n_cols / 32 bytes; n_cols is a multiple of 32. A scale byte of 255 gives NaN. */
void mf__mxfp4_decode_row(const void *codes, const void *scales, int64_t n_cols, float *out);

#endif
