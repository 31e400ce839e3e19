/* A model opened for talking to, and one answer from it.
 *
 *   mf_reply: prompt -> mf_prompt -> logits -> mf_reply_step -> tokens -> mf_eval_prompt -> logits -> ...
 *                                                   |
 *                                                   +-> events: reasoning | answer | tool calls
 */
#ifndef MOEFLUX_ANSWER_H
#define MOEFLUX_ANSWER_H

#include "sampling.h"

typedef struct talker {
    mf_model *model;
    const mf_model_info *info;
    mf_session *session;
    int32_t n_ctx;
    mf_text *text;
    mf_text_info about; /* the text */
    float *logits;      /* of the token evaluated last */
    mf_form *form;      /* NULL: answers are free */
} talker;

/* Fills in what sampling leaves open. */
mf_status talker_open(const char *dir, const app_model_options *opt, sampling_options *sampling, talker *out,
                      mf_error *err);
void talker_close(talker *t);

typedef struct answer_request {
    mf_reply_options options; /* the question and who gets the events; the rest comes from here: */
    const sampling_options *sampling;
    uint64_t seed;
    void (*before)(void *user,
                   const mf_reply_prompt *p); /* before the prompt is evaluated; options.user; may be NULL */
} answer_request;

typedef struct answer {
    int64_t n_prompt, n_reused, n_made; /* tokens */
    double prompt_seconds, made_seconds;
    int64_t wanted, hits; /* experts */
    const char *stopped;  /* why */
    bool full;            /* the context */
    bool interrupted;     /* by app_interrupted: what was said until then has come out */
} answer;

mf_status answer_make(talker *t, const answer_request *r, answer *out, mf_error *err);

/* "prompt 24 tokens (12 reused) at 80.1 tokens/s, generated 100 at 40.2 tokens/s, experts 93.1 % in memory" */
#define ANSWER_TEXT 256
void answer_describe(const answer *a, char text[ANSWER_TEXT]);

/* The whole state of the session, in a file; complete or absent. A state that does not fit is refused. */
mf_status talker_save(const talker *t, const char *path, mf_error *err);
mf_status talker_load(const talker *t, const char *path, mf_error *err);

#endif
