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

static inline double mf__det_exp(double x) {
    if (x < -700) return 0;
    if (x > 700) x = 700;
    int k = (int)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    /* ln 2 in two parts, the first with few enough bits that k times it is exact */
    double r = (x - k * 0.693147180369123816490) - k * 1.90821492927058770002e-10;
    double sum = 1, term = 1;
    for (int i = 1; i <= 14; i++) {
        term = term * r / i;
        sum += term;
    }
    return mf__det_scale(sum, k);
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
