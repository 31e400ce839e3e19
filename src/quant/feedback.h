/* Affine codes of rows whose products count, not their values: the error of a column is made good by the columns that
 * follow it (GPTQ, arXiv 2210.17323). See affine.h for the codes themselves. */
#ifndef MF_QUANT_FEEDBACK_H
#define MF_QUANT_FEEDBACK_H

#include "quant/type.h"

#define MF_FEEDBACK_ROWS 16 /* are encoded side by side */

/* What the columns of a matrix are multiplied with: h = M M^T is the mean of x^T x over inputs x, and the error of a
 * row of weights w as stored in v is (w - v) h (w - v)^T. */
typedef struct mf__feedback {
    int64_t n_cols;
    const float *factor; /* M [n_cols][n_cols], of mf__factor_upper; below the diagonal not read */
} mf__feedback;

/* Where the rows go: row r at r times these from the beginnings. */
typedef struct mf__feedback_out {
    uint8_t *codes, *scales, *biases;
    int64_t codes_row, scales_row; /* biases as scales */
} mf__feedback_out;

int64_t mf__feedback_scratch(int64_t n_cols); /* floats */

/* Encodes n (at most MF_FEEDBACK_ROWS) rows [n_cols], all finite. Of form: bits, group, scale_type. A row's bytes do
 * not depend on the rows beside it, nor on the instruction set. */
void mf__feedback_encode(const mf__feedback *f, const mf__tensor *form, const float *const *rows, int n,
                         const mf__feedback_out *out, float *scratch);

#endif
