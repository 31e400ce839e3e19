/* Do counts follow probabilities? */
#ifndef TEST_CHI_SQUARE_H
#define TEST_CHI_SQUARE_H

#include <math.h>

typedef struct chi_square {
    double value, limit; /* limit: exceeded once in a million by chance */
    int freedom;
    int impossible; /* an index that came though its probability is 0; -1: none */
} chi_square;

/* p need not sum to 1. Outcomes that are expected less than 5 times are counted together. */
static inline chi_square chi_square_test(const int *counts, const double *p, int n) {
    chi_square r = {.freedom = -1, .impossible = -1};
    double draws = 0, total = 0, rare = 0, rare_expected = 0;
    for (int i = 0; i < n; i++) {
        draws += counts[i];
        total += p[i];
        if (p[i] == 0 && counts[i] > 0) r.impossible = i;
    }
    for (int i = 0; i <= n; i++) { /* the last one: all rare ones */
        double expected = i < n ? p[i] / total * draws : rare_expected, count = i < n ? counts[i] : rare;
        if (i < n && expected < 5) {
            rare += count;
            rare_expected += expected;
        } else if (expected > 0) {
            r.value += (count - expected) * (count - expected) / expected;
            r.freedom++;
        }
    }
    /* Wilson and Hilferty: the cube root of chi-square / k is nearly normal. */
    double k = r.freedom > 0 ? r.freedom : 1, v = 2 / (9 * k), root = 1 - v + 4.753 * sqrt(v);
    r.limit = k * root * root * root;
    return r;
}

#endif
