/* Byte-pair merging over token ids.
 *
 * Merge order: always the pair of lowest rank, the leftmost of equals. Short pieces look for it by scanning; long ones
 * keep a heap, so a piece of n bytes costs O(n log n) whatever it holds. */
#ifndef MF_TEXT_BPE_H
#define MF_TEXT_BPE_H

#include "base/status.h"

/* Open addressing, power-of-two capacity, never full. The same layout in memory and in a compiled tokenizer. */
typedef struct mf__bpe_pair {
    int32_t left, right; /* left < 0: empty slot */
    uint32_t rank;
    int32_t merged;
} mf__bpe_pair;

typedef struct mf__bpe_pairs {
    mf__bpe_pair *slots;
    uint32_t mask; /* capacity - 1 */
} mf__bpe_pairs;

static inline uint32_t mf__bpe_hash(int32_t left, int32_t right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 13);
}

mf_status mf__bpe_pairs_init(mf__bpe_pairs *pairs, size_t n_merges, mf_error *err);
void mf__bpe_pairs_set(mf__bpe_pairs *pairs, int32_t left, int32_t right, uint32_t rank, int32_t merged);

static inline const mf__bpe_pair *mf__bpe_pairs_get(const mf__bpe_pairs *pairs, int32_t left, int32_t right) {
    for (uint32_t i = mf__bpe_hash(left, right) & pairs->mask;; i = (i + 1) & pairs->mask) {
        const mf__bpe_pair *p = &pairs->slots[i];
        if (p->left == left && p->right == right) return p;
        if (p->left < 0) return NULL;
    }
}

/* One thread's scratch; zero-initialise. */
typedef struct mf__bpe_scratch {
    struct mf__bpe_node *nodes;
    uint64_t *heap; /* rank << 32 | position */
    size_t nodes_capacity, heap_size, heap_capacity;
    uint64_t n_steps; /* merges tried so far: a measure of work for tests */
} mf__bpe_scratch;

void mf__bpe_scratch_free(mf__bpe_scratch *s);

/* Merges ids[0..n) in place; *n becomes the number left. scan_below: shorter inputs scan (MF__BPE_SCAN). */
#define MF__BPE_SCAN 48
mf_status mf__bpe_merge(const mf__bpe_pairs *pairs, mf__bpe_scratch *s, int32_t *ids, size_t *n, size_t scan_below,
                        mf_error *err);

#endif
