/* Which cached rows an attention op sees: all up to a position, or those of picked blocks (MF_OP_INDEX). Shared by the
 * backends whose memory is the host's. */
#ifndef MF_BACKEND_PICKS_H
#define MF_BACKEND_PICKS_H

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

/* Where nothing is left out: blocks 0 .. n-1. */
static inline void mf__picks_all(int32_t *ids, int32_t max, int64_t n) {
    for (int32_t i = 0; i < max; i++) ids[i] = i < n ? i : -1;
}

#endif
