/* Choosing a token from logits. Deterministic for a seed on every platform. */
#ifndef MF_TEXT_SAMPLER_H
#define MF_TEXT_SAMPLER_H

#include "base/status.h"

typedef struct mf__sampler_options {
    float temperature; /* 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    float min_p;       /* 0: off */
    uint64_t seed;
} mf__sampler_options;

typedef struct mf__sampler mf__sampler;

void mf__sampler_options_init(mf__sampler_options *opt);
mf_status mf__sampler_create(const mf__sampler_options *opt, int32_t n_vocab, mf__sampler **out, mf_error *err);
void mf__sampler_free(mf__sampler *s);
int32_t mf__sampler_next(mf__sampler *s, const float *logits); /* allocates nothing; ties go to the lower id */

#endif
