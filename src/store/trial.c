/* Medians decide: a pass that waited for its user, or for another process, does not. */
#include "store/trial.h"

#include <stdlib.h>

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median(int64_t *ns) {
    qsort(ns, MF_TRIAL_CYCLES, sizeof *ns, by_size);
    return ns[MF_TRIAL_CYCLES / 2];
}

void mf__trial_pass(mf__trial *t, int64_t ns) {
    if (t->keep > 0) {
        if (--t->keep == 0) t->off = false;
        return;
    }
    if (t->n >= MF_TRIAL_SETTLE) t->ns[t->side][t->n - MF_TRIAL_SETTLE] = ns;
    if (++t->n < MF_TRIAL_SETTLE + MF_TRIAL_CYCLES) return;
    t->n = 0;
    if (t->side == 0) {
        t->side = 1;
        t->off = true;
        return;
    }
    t->side = 0;
    t->off = median(t->ns[0]) > median(t->ns[1]);
    t->keep = MF_TRIAL_KEEP;
}

int mf__trial_size(int n_rows) {
    int size = 0;
    while (size < MF_TRIAL_SIZES - 1 && n_rows >> (size + 1)) size++;
    return size;
}
