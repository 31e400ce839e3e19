/* How far a result is from what it should be. */
#ifndef MOEFLUX_COMPARE_H
#define MOEFLUX_COMPARE_H

#include <stdbool.h>
#include <stdint.h>

/* Over rows: the smallest cosine, the largest difference over the largest wanted value, and equal argmaxes. */
typedef struct comparison {
    double cosine;             /* smallest of the rows; 1 for none */
    double max_diff, max_want; /* over all rows */
    int64_t n_rows, n_argmax;
    bool broken; /* a value is not a number */
} comparison;

void compare_init(comparison *c);
void compare_rows(comparison *c, const float *got, const float *want, int64_t n_rows, int64_t n_cols);
double compare_rel(const comparison *c);             /* max_diff / max_want; infinite when broken */
int32_t compare_argmax(const float *row, int64_t n); /* of equals the lower index */

#endif
