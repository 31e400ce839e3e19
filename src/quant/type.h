/* Element types of stored tensors, and what each costs. One row here is all the rest of the code needs to know. */
#ifndef MF_QUANT_TYPE_H
#define MF_QUANT_TYPE_H

#include "base/status.h"

/* enum, name in files (safetensors spelling; moeflux manifest uses the same), bits per stored element */
#define MF_TYPES(X)                                                                                                    \
    X(F32, "F32", 32)                                                                                                  \
    X(F16, "F16", 16)                                                                                                  \
    X(BF16, "BF16", 16)                                                                                                \
    X(F64, "F64", 64)                                                                                                  \
    X(F8_E4M3, "F8_E4M3", 8)                                                                                           \
    X(F8_E5M2, "F8_E5M2", 8)                                                                                           \
    X(I64, "I64", 64)                                                                                                  \
    X(I32, "I32", 32)                                                                                                  \
    X(I16, "I16", 16)                                                                                                  \
    X(I8, "I8", 8)                                                                                                     \
    X(U64, "U64", 64)                                                                                                  \
    X(U32, "U32", 32)                                                                                                  \
    X(U16, "U16", 16)                                                                                                  \
    X(U8, "U8", 8)                                                                                                     \
    X(BOOL, "BOOL", 8)                                                                                                 \
    X(AFFINE, "AFFINE", 0)     /* MLX groups: codes (U32 words), scales, biases; bits and group are in the tensor */   \
    X(MXFP4, "MXFP4", 4)       /* E2M1 codes, two to a byte, low first; one E8M0 scale byte for 32 of them */          \
    X(F8_BLOCK, "F8_BLOCK", 8) /* F8_E4M3 codes; one scale for each block of block_rows x group of them */             \
    /* blocks of GGUF files, read only: quant/gguf_types.h */                                                          \
    X(Q4_0, "Q4_0", 0)                                                                                                 \
    X(Q4_1, "Q4_1", 0)                                                                                                 \
    X(Q5_0, "Q5_0", 0)                                                                                                 \
    X(Q5_1, "Q5_1", 0)                                                                                                 \
    X(Q8_0, "Q8_0", 0)                                                                                                 \
    X(Q2_K, "Q2_K", 0)                                                                                                 \
    X(Q3_K, "Q3_K", 0)                                                                                                 \
    X(Q4_K, "Q4_K", 0)                                                                                                 \
    X(Q5_K, "Q5_K", 0)                                                                                                 \
    X(Q6_K, "Q6_K", 0)                                                                                                 \
    X(IQ4_NL, "IQ4_NL", 0)                                                                                             \
    X(IQ4_XS, "IQ4_XS", 0)                                                                                             \
    X(MXFP4_BLOCK, "MXFP4_BLOCK", 0)

typedef enum mf__type {
#define ENUM(id, name, bits) MF_TYPE_##id,
    MF_TYPES(ENUM)
#undef ENUM
        MF_TYPE_COUNT
} mf__type;

const char *mf__type_name(mf__type type);
bool mf__type_parse(const char *name, mf__type *out); /* false for unknown names and types with scales; F8_E8M0: U8 */
int mf__type_bits(mf__type type);                     /* 0 for AFFINE */
bool mf__type_is_float(mf__type type);                /* F32, F16, BF16: what a backend reads directly */
bool mf__type_has_scales(mf__type type);              /* AFFINE, MXFP4, F8_BLOCK: more than one piece */
bool mf__type_is_block(mf__type type);                /* of GGUF files: read, never written */
bool mf__type_is_matrix(mf__type type);               /* what a model's matrix may be: float or with scales */

#define MF_MXFP4_GROUP 32

#define MF_MAX_DIMS 6

/* A borrowed, read-only matrix (or vector: n_rows 1; or stack: n_planes > 1) as a backend sees it.
 * Rows are contiguous; AFFINE keeps its three parts, MXFP4 and F8_BLOCK their two. Nothing here owns memory. */
typedef struct mf__tensor {
    mf__type type;
    int64_t n_planes; /* experts or heads stacked; 1 for a plain matrix */
    int64_t n_rows;   /* output dimension */
    int64_t n_cols;   /* input dimension, in logical elements */
    const void *data; /* [n_planes][n_rows][row bytes] */
    /* types with scales only */
    int bits;            /* 2, 3, 4, 5, 6, 8; MXFP4: 4; F8_BLOCK: 8 */
    int group;           /* 32, 64, 128; MXFP4: 32; F8_BLOCK: columns of a block, the last of which may be cut off */
    int block_rows;      /* F8_BLOCK: rows of a block, the last of which may be cut off; else 0 */
    mf__type scale_type; /* F32, F16, BF16: of scales and biases; MXFP4, and F8_BLOCK in some checkpoints: U8 (E8M0) */
    const void *scales;  /* [n_planes][scale rows][n_cols / group, rounded up] */
    const void *biases;  /* AFFINE: as scales, or NULL: -2^(bits - 1) * scale, which centres the codes on zero */
} mf__tensor;

int64_t mf__tensor_row_bytes(const mf__tensor *t);               /* of data, one row */
int64_t mf__tensor_scale_bytes(const mf__tensor *t);             /* of scales, one row; 0 where there are none */
int64_t mf__tensor_scale_rows(const mf__tensor *t);              /* rows of scales of one plane */
int64_t mf__tensor_scale_row(const mf__tensor *t, int64_t row);  /* which of them is row's */
int64_t mf__tensor_bias_bytes(const mf__tensor *t);              /* of biases, one row; 0 where there are none */
int64_t mf__tensor_bytes(const mf__tensor *t);                   /* data + scales + biases */
mf__tensor mf__tensor_plane(const mf__tensor *t, int64_t plane); /* a view of one matrix of the stack */
/* The stack as one matrix, plane below plane. False where blocks that are cut off at a plane's end forbid it. */
bool mf__tensor_flatten(mf__tensor *t);

/* Decodes one row (of plane 0) into n_cols floats. The definition of every type's value. */
void mf__tensor_row_f32(const mf__tensor *t, int64_t row, float *out);

#endif
