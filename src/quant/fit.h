/* Affine codes with the least error: see affine.h for what they are. */
#ifndef MF_QUANT_FIT_H
#define MF_QUANT_FIT_H

#include "quant/type.h"

int mf__affine_fit_levels(void); /* how many instruction sets the machine has; all give the same bytes */

/* Encodes one row as mf__affine_encode_row does, with scales and biases searched for. level: 1 to the number above. */
void mf__affine_fit_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type, int level,
                        void *codes, void *scales, void *biases);

/* Of a group: sums of squares, as mf__affine_error has them. */
typedef struct mf__fit_loss {
    float error, total;
} mf__fit_loss;

typedef struct mf__fit_out {
    void *codes, *scales, *biases;
    mf__fit_loss *loss; /* [n_cols / group]; may be NULL */
} mf__fit_out;

/* The same with a weight for every column (none negative; NULL: all alike): the weighted error is never larger than
 * without. Of form: n_cols, bits, group and scale_type. */
void mf__affine_fit_weighted_row(const float *x, const float *weights, const mf__tensor *form, int level,
                                 const mf__fit_out *out);

#endif
