/* One answer under a constraint from random logits. */
#ifndef TEST_RANDOM_ANSWER_H
#define TEST_RANDOM_ANSWER_H

#include <string.h>

#include "text/grammar/grammar.h"
#include "base/status.h"

typedef struct random_speaker {
    const mf__tokenizer *tok;
    mf__constraint *c;
    mf_sampler *sampler;
    float *logits; /* n_vocab of them */
    int32_t n_vocab, eos;
    int max_tokens;
    bool brief; /* prefers tokens that end strings, lists and objects: most answers run into the limit otherwise */
    uint64_t seed;
} random_speaker;

static inline uint64_t random_next(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

static inline void random_logits(random_speaker *r) {
    uint64_t bits = 0;
    for (int32_t id = 0; id < r->n_vocab; id++, bits >>= 16) {
        if (id % 4 == 0) bits = random_next(&r->seed);
        r->logits[id] = (float)(bits & 0xFFFF) / 6553.6f;
        size_t n;
        const char *bytes = r->brief ? mf__tokenizer_bytes(r->tok, id, &n) : NULL;
        if (bytes && n && n < 4 && strchr("\"]},", bytes[0])) r->logits[id] += 12;
    }
    if (r->brief) r->logits[r->eos] += 12;
}

/* *whole: the answer ended by itself; else it was completed by the shortest end. */
static inline mf_status random_answer(random_speaker *r, mf__strbuf *text, bool *whole, mf_error *err) {
    mf__constraint_reset(r->c);
    for (int step = 0; step < r->max_tokens && !mf__constraint_ended(r->c); step++) {
        const uint32_t *mask;
        MF__TRY(mf__constraint_mask(r->c, &mask, err));
        random_logits(r);
        int32_t id = mf_sampler_next_masked(r->sampler, r->logits, mask);
        if (id < 0) return mf__fail(err, MF_E_INTERNAL, "a dead end after %.*s", (int)text->size, text->data);
        MF__TRY(mf__constraint_accept(r->c, id, err));
        size_t n;
        const char *bytes = mf__tokenizer_bytes(r->tok, id, &n);
        if (id != r->eos) MF__TRY(mf__strbuf_append(text, bytes, n, err));
    }
    *whole = mf__constraint_complete(r->c);
    return *whole ? MF_OK : mf__constraint_shortest(r->c, text, err);
}

#endif
