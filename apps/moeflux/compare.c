/* Comparing rows of numbers, in double. */
#include "compare.h"

#include <math.h>

void compare_init(comparison *c) {
    *c = (comparison){.cosine = 1};
}

int32_t compare_argmax(const float *row, int64_t n) {
    int32_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = (int32_t)i;
    return best;
}

static void compare_row(comparison *c, const float *got, const float *want, int64_t n) {
    double gg = 0, ww = 0, gw = 0;
    for (int64_t i = 0; i < n; i++) {
        double g = got[i], w = want[i], diff = fabs(g - w);
        if (!isfinite(g) || !isfinite(w)) c->broken = true;
        if (diff > c->max_diff) c->max_diff = diff;
        if (fabs(w) > c->max_want) c->max_want = fabs(w);
        gg += g * g;
        ww += w * w;
        gw += g * w;
    }
    double cosine = gg > 0 && ww > 0 ? gw / sqrt(gg * ww) : gg == ww ? 1 : 0;
    if (!(cosine >= c->cosine)) c->cosine = cosine;
    c->n_rows++;
    c->n_argmax += compare_argmax(got, n) == compare_argmax(want, n);
}

void compare_rows(comparison *c, const float *got, const float *want, int64_t n_rows, int64_t n_cols) {
    for (int64_t r = 0; r < n_rows; r++) compare_row(c, got + r * n_cols, want + r * n_cols, n_cols);
}

double compare_rel(const comparison *c) {
    if (c->broken) return INFINITY;
    if (c->max_diff == 0) return 0;
    return c->max_want > 0 ? c->max_diff / c->max_want : INFINITY;
}
