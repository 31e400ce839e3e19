/* A request as a prompt: its tokens, and the places where states are worth keeping. */
#ifndef MF_REPLY_PROMPT_H
#define MF_REPLY_PROMPT_H

#include "reply/request.h"

#define MF__MAX_TURN_MARKS 8

typedef struct mf__prompt {
    int32_t *ids;
    size_t n_ids;
    int64_t marks[MF__MAX_TURN_MARKS + MF_REPLY_MAX_MARKS];
    size_t n_marks;
    int64_t asked[MF_REPLY_MAX_MARKS];
    bool in_reasoning;     /* the text ends inside <think> */
    bool closed_reasoning; /* the text ends behind </think>: there is to be none */
} mf__prompt;

/* known: tokens of an earlier prompt and answer, may be NULL; n_marks: places in the request. */
mf_status mf__prompt_make(const mf_text *text, const mf__request *request, int n_marks, const int32_t *known,
                          size_t n_known, mf__prompt *out, mf_error *err);
mf_status mf__prompt_append(mf__prompt *p, const int32_t *ids, size_t n, mf_error *err);
/* The first n_ids tokens of another prompt, and all that is known of it. */
mf_status mf__prompt_copy(const mf__prompt *from, size_t n_ids, mf__prompt *out, mf_error *err);
void mf__prompt_free(mf__prompt *p);

#endif
