/* Losses token by token, and what can be said about their mean. */
#ifndef MOEFLUX_LOSSES_H
#define MOEFLUX_LOSSES_H

#include "app.h"

#define LOSSES_BLOCK 128 /* tokens of a document that are one observation: neighbours are not independent */

/* What a model gave to the tokens of a text, in order. */
typedef struct losses {
    double *nll;    /* [n] */
    int32_t *block; /* [n] rising numbers */
    int64_t n, room;
    int32_t n_blocks;
} losses;

mf_status losses_add(losses *l, double nll, bool new_block, mf_error *err);
void losses_free(losses *l); /* zeroes it */

typedef struct estimate {
    double mean, error; /* and its standard error; 0 where there is one block only */
} estimate;

/* From token `first` on: the mean, or of a less b, token by token (both of the same text). */
estimate losses_mean(const losses *a, int64_t first);
estimate losses_paired(const losses *a, const losses *b, int64_t first);

/* -log p(target), in double */
double loss_of(const float *logits, size_t n, int32_t target);
/* KL(p || q) of the distributions of two rows of logits, and whether both have their largest value at the same place.
 */
double loss_divergence(const float *p, const float *q, size_t n, bool *same_top);

#endif
