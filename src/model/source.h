/* A matrix of a checkpoint as the graphs want it: rows of a stored matrix in some order, or columns of it. */
#ifndef MF_MODEL_SOURCE_H
#define MF_MODEL_SOURCE_H

#include "model/config.h"
#include "quant/type.h"

#define MF_SOURCE_COLS 32768 /* the longest row whose blocks are put in order */

typedef struct mf__source {
    mf__tensor stored;      /* one plane */
    int64_t n_rows, n_cols; /* of the matrix that is wanted */
    int64_t first, step;    /* row r is row (or column) first + r * step of the stored one ... */
    int64_t (*row_of)(const mf__config *c, int64_t row); /* ... or row row_of(r), where this is not NULL */
    const mf__config *config;                            /* for row_of and block_of */
    /* Where not NULL: a row's columns are blocks of `block`, and block b is block block_of(b) of the stored row. Plain
     * types and GGUF's blocks only; rows of at most MF_SOURCE_COLS. */
    int64_t (*block_of)(const mf__config *c, int64_t b);
    int64_t block;
    bool transposed; /* columns, not rows: of a plain type only */
} mf__source;

/* The stored matrix itself. */
mf__source mf__source_plain(const mf__tensor *stored);
bool mf__source_is_plain(const mf__source *s); /* all rows in the stored order: its bytes can be copied whole */
int64_t mf__source_bytes(const mf__source *s); /* of the rows it takes, as stored */

/* Of what a row's copy has for scales: as stored, but BF16 in place of E8M0 beside FP8. */
mf__type mf__source_scale_type(const mf__tensor *stored);

/* One row decoded; or as stored, its scales and biases (if the type has them) apart. Biases that the stored matrix
 * leaves out are written out; the scales of a row are those of its block, and scales may be NULL. */
void mf__source_row_f32(const mf__source *s, int64_t row, float *out);
void mf__source_row_copy(const mf__source *s, int64_t row, void *data, void *scales, void *biases);

#endif
