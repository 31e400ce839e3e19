/* Blocks, comparisons and what they decide; see store/trial.h. */
#include "store/trial.h"

#include <math.h>
#include <stdlib.h>

#define CLEAR 0.10      /* a gain that needs no second look */
#define NOISE 0.03      /* a loss that is none, where reading ahead should pay */
#define DRIFT 0.4       /* logs of equal blocks may differ by this */
#define IDLE_PERCENT 10 /* of the time without: there is time to read in */

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int by_gain(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool block_is_off(const mf__trial *t) {
    bool first = t->block == 0 || t->block == 3;
    return first ? t->decided : !t->decided;
}

static double log_ratio(int64_t a, int64_t b) {
    return log((double)(a > 0 ? a : 1) / (double)(b > 0 ? b : 1));
}

static void decide(mf__trial *t, bool off) {
    t->held = t->held && off == t->decided ? 2 * t->held : MF_TRIAL_KEEP;
    if (t->held > MF_TRIAL_LONGEST) t->held = MF_TRIAL_LONGEST;
    t->keep = t->held;
    t->decided = off;
    t->n_gains = t->n_wild = 0;
    t->off_ns = t->off_idle_ns = 0;
}

/* The load changed under most comparisons: everything stays as it is, and the question comes again soon. */
static void put_off(mf__trial *t) {
    t->held = 0;
    decide(t, t->decided);
}

/* Four blocks are there. */
static void compare(mf__trial *t, bool sure) {
    const int64_t *m = t->medians;
    double outer = log_ratio(m[0], m[3]), inner = log_ratio(m[1], m[2]), sign = t->decided ? -1 : 1;
    double first = sign * log_ratio(m[1], m[0]), second = sign * log_ratio(m[2], m[3]);
    if (fabs(outer) > DRIFT || fabs(inner) > DRIFT) {
        if (++t->n_wild == MF_TRIAL_WILD) put_off(t);
        return;
    }
    t->gains[t->n_gains++] = (first + second) / 2;
    if (first > CLEAR && second > CLEAR) {
        decide(t, false);
        return;
    }
    if (t->n_gains < MF_TRIAL_LEAST) return;
    bool likely = sure && t->off_idle_ns * 100 > t->off_ns * IDLE_PERCENT;
    double least = likely ? -NOISE : 0, sorted[MF_TRIAL_MOST];
    int n_bad = 0;
    for (int i = 0; i < t->n_gains; i++) {
        sorted[i] = t->gains[i];
        n_bad += t->gains[i] < least;
    }
    if (n_bad > 0 && n_bad < t->n_gains && t->n_gains < MF_TRIAL_MOST) return;
    qsort(sorted, (size_t)t->n_gains, sizeof *sorted, by_gain);
    decide(t, sorted[t->n_gains / 2] < least);
}

void mf__trial_pass(mf__trial *t, mf__trial_seen seen) {
    if (t->n_warm < MF_TRIAL_WARM) {
        t->n_warm++;
        return;
    }
    if (t->keep > 0) {
        t->keep--;
        return;
    }
    if (t->off) {
        t->off_ns += seen.ns;
        t->off_idle_ns += seen.idle_ns;
    }
    if (t->n >= MF_TRIAL_SETTLE) t->ns[t->n - MF_TRIAL_SETTLE] = seen.ns;
    if (++t->n == MF_TRIAL_SETTLE + MF_TRIAL_PASSES) {
        qsort(t->ns, MF_TRIAL_PASSES, sizeof *t->ns, by_time);
        t->medians[t->block] = t->ns[MF_TRIAL_PASSES / 2];
        t->n = 0;
        t->block = (t->block + 1) % 4;
        if (t->block == 0) compare(t, seen.sure);
    }
    t->off = block_is_off(t);
}

int mf__trial_size(int n_rows) {
    int size = 0;
    while (size < MF_TRIAL_SIZES - 1 && n_rows >> (size + 1)) size++;
    return size;
}
