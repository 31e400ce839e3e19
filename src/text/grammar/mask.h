/* Which tokens may come next: see mask.c. */
#ifndef MF_TEXT_GRAMMAR_MASK_H
#define MF_TEXT_GRAMMAR_MASK_H

#include "text/grammar/machine.h"

#define MF__MASK_SLOTS 512
#define MF__MASK_TABLES 256

/* What an item allows. Of a rule alone: also the nodes of the trees of tokens where it ends. */
typedef struct mf__mask_entry {
    uint64_t key; /* 0: empty */
    uint32_t *mask;
    uint32_t *ends; /* tree << 30 | node */
    uint32_t n_ends;
} mf__mask_entry;

typedef struct mf__mask_cache {
    mf__mask_entry entries[MF__MASK_SLOTS];
    int n;
} mf__mask_cache;

/* By depth while a tree is walked: a place, or, as long as it is one item that calls and ends nothing, that alone. */
typedef struct mf__mask_step {
    mf__place place;
    uint32_t state; /* MF__NEVER: see place */
    uint64_t reg;
} mf__mask_step;

typedef struct mf__masks {
    const mf__token_trie *trie;
    int32_t n_vocab;
    size_t n_words;
    mf__mask_step *path;
    mf__mask_cache whole, alone;           /* by state, register and node; by state and register */
    uint32_t table_state[MF__MASK_TABLES]; /* states plus 1, and where each byte leads from them */
    uint32_t (*tables)[256];
    uint32_t *ends; /* those of the walk under way */
    uint32_t n_ends, ends_capacity;
} mf__masks;

mf_status mf__masks_init(mf__masks *k, const mf__token_trie *trie, int32_t n_vocab, mf_error *err);
void mf__masks_deinit(mf__masks *k);
void mf__masks_forget(mf__masks *k); /* what was kept is not true any more */

/* Adds the tokens that may follow at a place to mask, n_words long. */
mf_status mf__masks_add(mf__masks *k, mf__machine *m, const mf__place *at, uint32_t *mask, mf_error *err);

#endif
