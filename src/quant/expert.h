/* The layout of one routed expert's bytes: three matrices in one blob. Implemented in quant/expert.c. */
#ifndef MF_QUANT_EXPERT_H
#define MF_QUANT_EXPERT_H

#include "quant/type.h"

/* The three matrices of an expert. */
typedef enum mf__expert_part { MF_PART_GATE, MF_PART_UP, MF_PART_DOWN, MF_PART_COUNT } mf__expert_part;

/* Where things are inside one expert's blob. part[i].data/scales/biases are offsets from the blob's start, kept as
 * integers here; mf__expert_view adds the blob's address. */
typedef struct mf__expert_layout {
    int64_t stride; /* bytes from one expert to the next in the file */
    int64_t bytes;  /* bytes used, <= stride */
    struct {
        mf__type type;
        int64_t n_rows, n_cols;
        int bits, group, block_rows;
        mf__type scale_type;
        int64_t data_off, scales_off, biases_off;
        bool has_bias;    /* a vector of n_rows F32 values is added to the product */
        int64_t bias_off; /* ... and lies here: after the matrices, at a multiple of 4 */
    } part[MF_PART_COUNT];
} mf__expert_layout;

/* Fills the offsets of a layout whose types, shapes and has_bias are set: parts in the order gate, up, down, each data,
 * scales, biases, no padding; then the bias vectors, the first at a multiple of 64; stride = bytes rounded up to
 * `align`. */
mf_status mf__expert_layout_pack(mf__expert_layout *layout, int64_t align, mf_error *err);

/* For a layout that came from a file: MF_E_FORMAT unless every type, shape and offset is possible and every byte of
 * every part lies inside `bytes`, and bytes <= stride. After it mf__expert_view is safe on a blob of `bytes` bytes. */
mf_status mf__expert_layout_check(const mf__expert_layout *layout, mf_error *err);

const char *mf__expert_part_name(mf__expert_part part); /* "gate", "up", "down" */
mf__tensor mf__expert_view(const mf__expert_layout *layout, mf__expert_part part, const void *blob);
/* The part's bias vector, or NULL. The blob must be aligned to 4 bytes, as every expert in a file is. */
const float *mf__expert_bias(const mf__expert_layout *layout, mf__expert_part part, const void *blob);

#endif
