/* Which tokens may come next: see mask.c. */
#ifndef MF_TEXT_GRAMMAR_MASK_H
#define MF_TEXT_GRAMMAR_MASK_H

#include "text/grammar/machine.h"

#define MF__MASK_SLOTS 512

typedef struct mf__mask_entry {
    uint64_t key; /* 0: empty */
    uint32_t *mask;
} mf__mask_entry;

typedef struct mf__masks {
    const mf__token_trie *trie;
    int32_t n_vocab;
    size_t n_words;
    mf__place *path; /* by depth, while walking the trie */
    mf__mask_entry entries[MF__MASK_SLOTS];
    int n_entries;
} mf__masks;

mf_status mf__masks_init(mf__masks *k, const mf__token_trie *trie, int32_t n_vocab, mf_error *err);
void mf__masks_deinit(mf__masks *k);

/* Adds the tokens that may follow at a place to mask, n_words long. */
mf_status mf__masks_add(mf__masks *k, mf__machine *m, const mf__place *at, uint32_t *mask, mf_error *err);
/* The same for tokens that leave at most `left` bytes to the end of the text. */
mf_status mf__masks_add_near(mf__masks *k, mf__machine *m, const mf__place *at, uint64_t left, uint32_t *mask,
                             mf_error *err);

#endif
