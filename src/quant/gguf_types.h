/* The block types of GGUF files, decoded. They are read from such files and never written: our own files have affine
 * groups, MXFP4 and plain floats. A block is a fixed number of values in a fixed number of bytes; rows are whole
 * blocks. */
#ifndef MF_QUANT_GGUF_TYPES_H
#define MF_QUANT_GGUF_TYPES_H

#include "quant/type.h"

/* The type behind a number in a GGUF file. name (may be NULL) is set for every number that has a meaning there, also
 * for those that are not decoded; "?" for others. */
bool mf__gguf_type(uint32_t number, mf__type *out, const char **name);

/* Values and bytes of a block; false for types that are not made of blocks. */
bool mf__gguf_block(mf__type type, int *values, int *bytes);

/* n_cols is a multiple of the block's values. Any alignment. */
void mf__gguf_decode_row(mf__type type, const void *blocks, int64_t n_cols, float *out);

/* MXFP4 blocks in our own order: n_cols / 2 bytes of codes, n_cols / 32 of scales. Exact. */
void mf__gguf_repack_mxfp4(const void *blocks, int64_t n_cols, void *codes, void *scales);

/* The bits of codes that lie on a straight line in groups of 32: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. 0 for other types. */
int mf__gguf_straight_bits(mf__type type);

/* Blocks of such a type as an affine row in groups of 32 with F16 scales, of those bits or more. Exact; false when a
 * bias is beyond F16. */
bool mf__gguf_repack_affine(mf__type type, const void *blocks, int64_t n_cols, int bits, void *codes, void *scales,
                            void *biases);

#endif
