/* Products and a factorisation of plain F32 matrices, for calibration. Every sum has one order, whatever the number of
 * threads and the instruction set: the result has fixed bits. */
#ifndef MF_QUANT_DENSE_H
#define MF_QUANT_DENSE_H

#include "base/pool.h"

#define MF_DENSE_LANES 16

/* c[i][j] += (or -=) the sum over k of a(i, k) b[k][j]; n is a multiple of MF_DENSE_LANES. */
typedef struct mf__product {
    int64_t m, n, k;
    const float *a;
    int64_t a_i, a_k; /* a(i, k) is a[i * a_i + k * a_k] */
    const float *b;
    int64_t b_k; /* from one row to the next */
    float *c;
    int64_t c_i;
    bool subtract;
    bool upper; /* elements below the diagonal are not wanted: they may be written or not */
} mf__product;

void mf__product_run(const mf__product *p, mf__pool *pool);

/* Replaces the upper triangle of the symmetric matrix h [n][n] (n a multiple of 32; what is below is not read) by that
 * of the upper triangular M with M M^T = h. scratch: 64 n floats. False where h is not positive definite: h is then
 * spoilt. */
bool mf__factor_upper(float *h, int64_t n, float *scratch, mf__pool *pool);

/* x [m][n] becomes x h^-1, with the M of mf__factor_upper. */
void mf__factor_solve(const float *factor, int64_t n, float *x, int64_t m, mf__pool *pool);

#endif
