/* How tokens are chosen and when an answer ends: the options that run and chat share. */
#ifndef MOEFLUX_SAMPLING_H
#define MOEFLUX_SAMPLING_H

#include "options.h"

typedef struct sampling_options {
    int64_t n_tokens;
    double temperature, top_p, min_p, typical, repetition, frequency, presence;
    int64_t top_k, window;
    uint64_t seed;
    opt_list bias, stop;
    bool temperature_given, top_k_given, top_p_given, min_p_given, typical_given, repetition_given, seed_given;
    /* at most one of them */
    bool any_json;
    const char *schema, *grammar, *regex;
} sampling_options;

void sampling_init(sampling_options *s, int64_t n_tokens); /* the seed is from the clock */

#define SAMPLING_ROWS(s)                                                                                               \
    { .name = "sampling", .kind = OPT_GROUP, .value = &(s), .group = sampling_rows }
int sampling_rows(void *sampling_options, opt_def *rows);

/* After parsing: what was left open comes from the model's generation_config.json. */
mf_status sampling_finish(sampling_options *s, const char *dir, mf_error *err);

/* Into the reply's options; stop texts are borrowed, biases go into room. */
mf_status sampling_apply(const sampling_options *s, int32_t n_vocab, uint64_t seed, mf_logit_bias room[APP_MAX_LIST],
                         mf_reply_options *out, mf_error *err);

/* What the answer must be like; *out is NULL when it may be anything. */
mf_status sampling_form(const sampling_options *s, mf_form **out, mf_error *err);

#endif
