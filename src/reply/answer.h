/* What a model says, taken apart while it is said: mf_answer of the public header, for any notation. */
#ifndef MF_REPLY_ANSWER_H
#define MF_REPLY_ANSWER_H

#include "text/text.h"

typedef struct mf__answer_setup {
    mf__notation notation;
    const char *const *wrap; /* tags around the answer itself, which are not shown; NULL: none */
    bool in_reasoning;       /* the prompt already opened <think> */
    bool no_calls;           /* calls are text */
    const json_t *tools;     /* the request's tools, for the types of untyped arguments; NULL: guess */
    mf_event_fn *fn;
    void *user;
} mf__answer_setup;

mf_status mf__answer_create(const mf__answer_setup *setup, mf_answer **out, mf_error *err);

/* Where the answer stands: MF_EVENT_REASONING, MF_EVENT_TEXT or, in a call or a header, MF_EVENT_ARGUMENTS. */
mf_event_kind mf__answer_part(const mf_answer *answer);
/* A block of calls has been opened, and nothing has come behind its marker yet. */
bool mf__answer_opens_block(const mf_answer *answer);
/* From here on a constraint holds the calls to their form: where arguments are JSON, they come out while they come in.
 * Else they come out when the block has ended, and was one. */
void mf__answer_sure(mf_answer *answer, bool sure);
/* The tool whose arguments come next, in a notation where a header names it (harmony); NULL: that is not so. */
const char *mf__answer_called(const mf_answer *answer);
/* What was pushed so far was no answer but its beginning in the prompt: white space at its end is not due. */
void mf__answer_begin_here(mf_answer *answer);

#endif
