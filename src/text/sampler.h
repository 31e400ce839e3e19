/* Choosing a token from logits.
 *
 * The order of things: logit bias, penalties, mask; then temperature, top-k, top-p, min-p, typical; then one draw.
 * Temperature 0 takes the best token after bias, penalties and mask.
 *
 * Deterministic: the same options, logits and history give the same tokens on every platform with IEEE doubles. Sums
 * are made in a fixed order and exp and log are computed here, not by the C library. */
#ifndef MF_TEXT_SAMPLER_H
#define MF_TEXT_SAMPLER_H

#include "base/status.h"

typedef struct mf__logit_bias {
    int32_t id;
    float bias; /* -INFINITY forbids the token */
} mf__logit_bias;

typedef struct mf__sampler_options {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off; relative to the best token's probability */
    float typical_p;   /* 1: off */
    uint64_t seed;
    float repetition_penalty; /* 1: off; positive logits of seen tokens are divided by it, negative ones multiplied */
    float frequency_penalty;  /* 0: off; subtracted once per time seen */
    float presence_penalty;   /* 0: off; subtracted once if seen */
    int penalty_window;       /* how many of the last accepted tokens count as seen; 0: all */
    const mf__logit_bias *bias;
    int n_bias;
} mf__sampler_options;

typedef struct mf__sampler mf__sampler;

void mf__sampler_options_init(mf__sampler_options *opt); /* temperature 0.8, all else off, seed 0 */
mf_status mf__sampler_create(const mf__sampler_options *opt, int32_t n_vocab, mf__sampler **out, mf_error *err);
void mf__sampler_free(mf__sampler *s); /* NULL is fine */

/* The next token. Allocates nothing. Ties go to the lower id. A logit that is NaN is never chosen; +inf always is
 * (the lowest such id). -1 when no token can be chosen: all logits are NaN or -inf, or the mask leaves none. */
int32_t mf__sampler_next(mf__sampler *s, const float *logits);
/* mask: bit id % 32 of word id / 32 allows the token; NULL allows all. */
int32_t mf__sampler_next_masked(mf__sampler *s, const float *logits, const uint32_t *mask);

/* Tells the sampler that a token is part of the text, for the penalties. Allocates nothing. */
void mf__sampler_accept(mf__sampler *s, int32_t id);
void mf__sampler_reset(mf__sampler *s); /* as freshly created: seed and history */

typedef struct mf__logprob {
    int32_t id;
    float logprob; /* natural logarithm; -INFINITY for a token that cannot be */
} mf__logprob;

/* Log-probabilities under the plain softmax of logits: the n_top best tokens (best first, ties to the lower id) into
 * top, and that of `chosen` as the return value. Returns through *n_top how many there were. */
float mf__logprobs(const float *logits, int32_t n_vocab, int32_t chosen, mf__logprob *top, int *n_top);

#endif
