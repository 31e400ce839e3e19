/* mf_text: what the public header calls a text. */
#ifndef MF_TEXT_TEXT_H
#define MF_TEXT_TEXT_H

#include <pthread.h>

#include "text/chat.h"
#include "text/fence.h"
#include "text/grammar/grammar.h"

/* Longer texts and lists are a mistake in the caller's arithmetic. */
#define MF__MAX_BYTES ((size_t)1 << 40)
#define MF__MAX_IDS (MF__MAX_BYTES / sizeof(int32_t))

struct mf_text {
    mf__tokenizer *tok;
    mf__chat chat;
    pthread_mutex_t lock;
    /* made when they are first needed; under lock */
    mf__token_trie *trie;
    mf__token_trie *marker_trie; /* with all markers that calls are written with */
    mf__fencer *fencer;
    void *reply_cache; /* of src/reply, which says how it is freed */
    void (*free_reply_cache)(void *);
};

mf_status mf__text_trie(const mf_text *text, const mf__token_trie **out, mf_error *err);
/* The one with markers; those of the first call are it. */
mf_status mf__text_marker_trie(const mf_text *text, const char *const *markers, int n, const mf__token_trie **out,
                               mf_error *err);
mf_status mf__text_fencer(const mf_text *text, const mf__fencer **out, mf_error *err);

#endif
