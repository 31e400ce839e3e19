/* Telling whoever watches a backend how long its ops take. */
#include "backend/backend.h"
#include "base/clock.h"

int64_t mf__watch_begin(const mf__backend *be) {
    return be->watch.fn ? mf__clock_ns() : 0;
}

/* Experts that some row wants and the bank has. */
static void count_experts(mf__op_done *d) {
    const mf__bank *bank = d->b->bank;
    const int32_t *ids = d->b->bufs[d->op->in[1]];
    int64_t n = (int64_t)d->b->n_rows * d->op->p.moe.top_k;
    for (int32_t e = 0; e < bank->n_experts; e++) {
        int64_t n_pairs = 0;
        for (int64_t i = 0; bank->blobs[e] && i < n; i++) n_pairs += ids[i] == e;
        d->n_experts += n_pairs > 0;
        d->n_pairs += n_pairs;
    }
}

void mf__watch_end(const mf__backend *be, int64_t began, const mf__op_done *done) {
    if (!be->watch.fn) return;
    int64_t ns = mf__clock_ns() - began;
    mf__op_done counted = *done;
    if (done->op->kind == MF_OP_EXPERTS) count_experts(&counted);
    be->watch.fn(be->watch.user, &counted, ns);
}
