/* Choosing a token from logits.
 *
 * The order of things: logit bias, penalties, mask; then temperature, top-k, top-p, min-p, typical; then one draw.
 * Temperature 0 takes the best token after bias, penalties and mask.
 *
 * Deterministic: the same options, logits and history give the same tokens on every platform with IEEE doubles. Sums
 * are made in a fixed order and exp and log are computed here, not by the C library. */
#ifndef MF_TEXT_SAMPLER_H
#define MF_TEXT_SAMPLER_H

#include "base/status.h" /* and through it moeflux.h: mf_sampler */

/* mask: bit id % 32 of word id / 32 allows the token; NULL allows all. */
int32_t mf__sampler_next_masked(mf_sampler *s, const float *logits, const uint32_t *mask);

typedef struct mf__logprob {
    int32_t id;
    float logprob; /* natural logarithm; -INFINITY for a token that cannot be */
} mf__logprob;

/* Log-probabilities under the plain softmax of logits: the n_top best tokens (best first, ties to the lower id) into
 * top, and that of `chosen` as the return value. Returns through *n_top how many there were. */
float mf__logprobs(const float *logits, int32_t n_vocab, int32_t chosen, mf__logprob *top, int *n_top);

#endif
