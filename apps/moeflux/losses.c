/* Means with the error that blocks of neighbouring tokens leave: sums over blocks are taken as independent, tokens are
 * not. */
#include "losses.h"

#include <math.h>
#include <stdlib.h>

mf_status losses_add(losses *l, double nll, bool new_block, mf_error *err) {
    if (l->n == l->room) {
        int64_t room = l->room ? 2 * l->room : 4096;
        double *values = realloc(l->nll, (size_t)room * sizeof *values);
        if (values) l->nll = values;
        int32_t *blocks = realloc(l->block, (size_t)room * sizeof *blocks);
        if (blocks) l->block = blocks;
        if (!values || !blocks)
            return mf__fail(err, MF_E_NOMEM, "no memory for the losses of %lld tokens", (long long)room);
        l->room = room;
    }
    if (new_block || !l->n) l->n_blocks++;
    l->block[l->n] = l->n_blocks;
    l->nll[l->n++] = nll;
    return MF_OK;
}

void losses_free(losses *l) {
    free(l->nll);
    free(l->block);
    *l = (losses){0};
}

static double value(const losses *a, const losses *b, int64_t i) {
    return a->nll[i] - (b ? b->nll[i] : 0);
}

/* error^2 = m / (m - 1) * sum over the m blocks of (their sum - their tokens * mean)^2 / n^2 */
static estimate mean_of(const losses *a, const losses *b, int64_t first) {
    estimate e = {0};
    double sum = 0, squares = 0;
    int64_t n = a->n - first, m = 0;
    if (n < 1 || (b && b->n != a->n)) return (estimate){NAN, NAN};
    for (int64_t i = first; i < a->n; i++) sum += value(a, b, i);
    e.mean = sum / (double)n;
    for (int64_t i = first; i < a->n; m++) {
        double off = 0;
        for (int32_t block = a->block[i]; i < a->n && a->block[i] == block; i++) off += value(a, b, i) - e.mean;
        squares += off * off;
    }
    if (m > 1) e.error = sqrt(squares * (double)m / (double)(m - 1)) / (double)n;
    return e;
}

estimate losses_mean(const losses *a, int64_t first) {
    return mean_of(a, NULL, first);
}

estimate losses_paired(const losses *a, const losses *b, int64_t first) {
    return mean_of(a, b, first);
}

/* max + log(sum_i exp(logits[i] - max)) */
static double log_sum(const float *logits, size_t n, size_t *top) {
    double sum = 0;
    *top = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[*top]) *top = i;
    double max = logits[*top];
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return max + log(sum);
}

double loss_of(const float *logits, size_t n, int32_t target) {
    size_t top;
    return log_sum(logits, n, &top) - (double)logits[target];
}

double loss_divergence(const float *p, const float *q, size_t n, bool *same_top) {
    size_t top_p, top_q;
    double zp = log_sum(p, n, &top_p), zq = log_sum(q, n, &top_q), sum = 0;
    *same_top = top_p == top_q;
    for (size_t i = 0; i < n; i++) {
        double lp = (double)p[i] - zp, lq = (double)q[i] - zq;
        sum += exp(lp) * (lp - lq);
    }
    return sum > 0 ? sum : 0;
}
