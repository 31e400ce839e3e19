/* Which cached rows an attention op sees: all up to a position, or those of picked blocks (MF_OP_INDEX); and picking
 * the best. Shared by the backends whose memory is the host's. */
#ifndef MF_BACKEND_PICKS_H
#define MF_BACKEND_PICKS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct mf__picks {
    const int32_t *ids; /* blocks, ascending, the last one perhaps not full; NULL: all rows */
    int32_t block;      /* rows of a block */
    int64_t n_rows;     /* that are seen */
} mf__picks;

/* ids [max], -1 behind the last; pos: the position of the row that sees them. */
static inline mf__picks mf__picks_of(const int32_t *ids, int32_t max, int32_t block, int64_t pos) {
    mf__picks p = {.ids = ids, .block = block, .n_rows = pos + 1};
    int32_t n = 0;
    if (!ids) return p;
    while (n < max && ids[n] >= 0) n++;
    int64_t left = n ? pos + 1 - (int64_t)ids[n - 1] * block : 0;
    p.n_rows = n ? (n - 1) * (int64_t)block + (left < block ? left : block) : 0;
    return p;
}

/* The i-th row that is seen. */
static inline int64_t mf__picks_row(const mf__picks *p, int64_t i) {
    return p->ids ? (int64_t)p->ids[i / p->block] * p->block + i % p->block : i;
}

/* ---- the best of many ------------------------------------------------------------------------------------------- */

/* The max largest scores so far, as a heap with the worst of them at the root; of equal scores the lower id is better.
 */
typedef struct mf__best {
    float *score; /* [max] */
    int32_t *id;
    int32_t n, max;
} mf__best;

static inline bool mf__best_less(const mf__best *b, int32_t i, int32_t k) {
    return b->score[i] < b->score[k] || (b->score[i] == b->score[k] && b->id[i] > b->id[k]);
}

static inline void mf__best_swap(mf__best *b, int32_t i, int32_t k) {
    float score = b->score[i];
    int32_t id = b->id[i];
    b->score[i] = b->score[k], b->id[i] = b->id[k];
    b->score[k] = score, b->id[k] = id;
}

static inline void mf__best_sink(mf__best *b, int32_t at) {
    for (int32_t child = 2 * at + 1; child < b->n; at = child, child = 2 * at + 1) {
        if (child + 1 < b->n && mf__best_less(b, child + 1, child)) child++;
        if (!mf__best_less(b, child, at)) return;
        mf__best_swap(b, child, at);
    }
}

/* Ids come in ascending order. */
static inline void mf__best_add(mf__best *b, float score, int32_t id) {
    if (b->n < b->max) {
        int32_t at = b->n++;
        b->score[at] = score, b->id[at] = id;
        for (; at > 0 && mf__best_less(b, at, (at - 1) / 2); at = (at - 1) / 2) mf__best_swap(b, at, (at - 1) / 2);
    } else if (score > b->score[0]) {
        b->score[0] = score, b->id[0] = id;
        mf__best_sink(b, 0);
    }
}

/* The ids in ascending order, -1 behind them. The scores are not needed any more: ids take their place in the heap. */
static inline void mf__best_finish(mf__best *b) {
    int32_t n = b->n;
    for (int32_t i = 0; i < n; i++) b->score[i] = 0; /* of equals the higher id is worse: a heap of ids */
    for (int32_t i = n / 2 - 1; i >= 0; i--) mf__best_sink(b, i);
    while (b->n > 1) { /* the highest id goes behind the others */
        mf__best_swap(b, 0, --b->n);
        mf__best_sink(b, 0);
    }
    b->n = n;
    for (int32_t i = n; i < b->max; i++) b->id[i] = -1;
}

/* Where nothing is left out: blocks 0 .. n-1. */
static inline void mf__picks_all(int32_t *ids, int32_t max, int64_t n) {
    for (int32_t i = 0; i < max; i++) ids[i] = i < n ? i : -1;
}

#endif
