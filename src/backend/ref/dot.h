/* The inner product every ref op shares. */
#ifndef MF_BACKEND_REF_DOT_H
#define MF_BACKEND_REF_DOT_H

#include <stdint.h>

/* Rows of x handled together. The sums are independent, so a processor can overlap them; each still runs in order. */
#define MF_REF_TILE 8

/* sums[j] = sum_c w[c] * x[j][c], in order of c, for j < n <= MF_REF_TILE */
static inline void mf__ref_dots(const float *w, const float *const *x, int32_t n, int64_t cols, float *sums) {
    float acc[MF_REF_TILE] = {0};
    if (n == MF_REF_TILE)
        for (int64_t c = 0; c < cols; c++)
            for (int j = 0; j < MF_REF_TILE; j++) acc[j] += w[c] * x[j][c];
    else
        for (int32_t j = 0; j < n; j++)
            for (int64_t c = 0; c < cols; c++) acc[j] += w[c] * x[j][c];
    for (int32_t j = 0; j < n; j++) sums[j] = acc[j];
}

#endif
