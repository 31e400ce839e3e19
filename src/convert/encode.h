/* From a source matrix to the form it is stored in: copied where it has that form, else decoded and encoded again, row
 * by row, in parallel, with the error that costs. */
#ifndef MF_CONVERT_ENCODE_H
#define MF_CONVERT_ENCODE_H

#include "base/pool.h"
#include "model/source.h"
#include "quant/feedback.h"

/* How far the stored values are from the source's. Sums are over elements; ratios are root mean squares. */
typedef struct mf__loss {
    double error, total;      /* sums of squares: differences, values */
    double worst;             /* the largest error / total of a group */
    int64_t expert, row, col; /* of that group */
} mf__loss;

void mf__loss_add(mf__loss *sum, const mf__loss *more); /* in a fixed order, the result has fixed bits */
double mf__loss_rms(const mf__loss *loss);              /* relative: sqrt(error / total) */

typedef struct mf__encode {
    const char *name;      /* for errors */
    const mf__source *src; /* staged: its bytes are in memory */
    int64_t first_row;     /* of src in the whole tensor, for errors and losses */
    int64_t expert;        /* for losses */
    mf__tensor dst;        /* form and shape; its pointers are not used */
    uint8_t *data, *scales, *biases;
    bool add_one;         /* values + 1 */
    bool allow_nonfinite; /* NaN and infinities may pass */
    mf__loss *rows;       /* scratch [src->n_rows]; NULL: no losses wanted */
    float *scratch;       /* [threads][mf__encode_scratch(n_cols)] */
    /* of a calibration, for affine codes; all may be NULL */
    const float *weights;         /* [n_cols] how much an error there counts */
    const mf__feedback *feedback; /* instead: how errors of columns add up */
    const float *targets;         /* with feedback: [n_rows][n_cols], rounded in place of the source's values */
    float *strips;                /* with feedback: scratch [threads][mf__encode_strip(n_cols)] */
} mf__encode;

int64_t mf__encode_scratch(int64_t n_cols); /* floats */
int64_t mf__encode_strip(int64_t n_cols);   /* floats */

/* loss (may be NULL) gets what was added up; zero where bytes were copied. */
mf_status mf__encode_run(const mf__encode *e, mf__pool *pool, mf__loss *loss, mf_error *err);

bool mf__same_form(const mf__tensor *a,
                   const mf__tensor *b); /* of b, if a's bytes are b's: type, width, group, scales */

#endif
