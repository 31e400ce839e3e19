/* exp and log in doubles that give the same bits everywhere: only additions, multiplications, divisions and exact
 * scaling, in a fixed order. The files that include this are compiled with -ffp-contract=off. Relative error below
 * 1e-15; arguments are finite. */
#ifndef MF_TEXT_DETMATH_H
#define MF_TEXT_DETMATH_H

#include <stdint.h>
#include <string.h>

static inline double mf__det_scale(double x, int k) { /* x * 2^k for |k| <= 1022 */
    uint64_t bits = (uint64_t)(1023 + k) << 52;
    double power;
    memcpy(&power, &bits, 8);
    return x * power;
}

/* Eight at a time, in place: each goes through the same steps as it would alone, but their divisions overlap. */
#define MF__DET_BLOCK 8
static inline void mf__det_exp_block(double x[MF__DET_BLOCK]) {
    double r[MF__DET_BLOCK], sum[MF__DET_BLOCK], term[MF__DET_BLOCK];
    int k[MF__DET_BLOCK];
    for (int j = 0; j < MF__DET_BLOCK; j++) {
        double y = x[j] > 700 ? 700 : x[j] < -700 ? -700 : x[j];
        k[j] = (int)(y * 1.4426950408889634 + (y < 0 ? -0.5 : 0.5));
        /* ln 2 in two parts, the first with few enough bits that k times it is exact */
        r[j] = (y - k[j] * 0.693147180369123816490) - k[j] * 1.90821492927058770002e-10;
        sum[j] = term[j] = 1;
    }
    for (int i = 1; i <= 14; i++)
        for (int j = 0; j < MF__DET_BLOCK; j++) {
            term[j] = term[j] * r[j] / i;
            sum[j] += term[j];
        }
    for (int j = 0; j < MF__DET_BLOCK; j++) x[j] = x[j] < -700 ? 0 : mf__det_scale(sum[j], k[j]);
}

/* x[0..n), in place. */
static inline void mf__det_exp_all(double *x, int n) {
    for (int at = 0; at < n; at += MF__DET_BLOCK) {
        double block[MF__DET_BLOCK] = {0};
        int m = n - at < MF__DET_BLOCK ? n - at : MF__DET_BLOCK;
        memcpy(block, x + at, (size_t)m * sizeof *x);
        mf__det_exp_block(block);
        memcpy(x + at, block, (size_t)m * sizeof *x);
    }
}

static inline double mf__det_exp(double x) {
    mf__det_exp_all(&x, 1);
    return x;
}

static inline double mf__det_log(double x) { /* x positive and normal */
    uint64_t bits;
    memcpy(&bits, &x, 8);
    int k = (int)(bits >> 52) - 1023;
    double m = mf__det_scale(x, -k);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        k++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0, power = s;
    for (int i = 1; i <= 23; i += 2) {
        sum += power / i;
        power *= s2;
    }
    return k * 0.6931471805599453 + 2 * sum;
}

#endif
