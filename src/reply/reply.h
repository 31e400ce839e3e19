/* The inside of a reply. reply.c makes it from a request, step.c takes it from token to token. */
#ifndef MF_REPLY_REPLY_H
#define MF_REPLY_REPLY_H

#include "reply/answer.h"
#include "reply/form.h"
#include "reply/prompt.h"

#define MF__STOP_BYTES 4096 /* of one stop text at most */

struct mf_reply {
    const mf_text *text;
    mf_reply_options opt; /* pointers of the caller's are NULL here, but for fn's user */
    int32_t n_vocab;
    int32_t eos[MF_MAX_EOS];
    int n_eos;
    mf__prompt prompt;
    mf_sampler *sampler;
    mf__detok detok;
    mf_answer *answer;         /* NULL: all is text */
    mf_constraint *constraint; /* NULL: free */
    bool bound;                /* the constraint holds: reasoning is over */
    char *stops[MF_REPLY_MAX_STOPS];
    int n_stops;

    mf__strbuf decoded; /* text of the latest tokens, not taken apart yet */
    mf__strbuf held;    /* text of the answer that may be the beginning of a stop text */
    bool stopped;       /* a stop text has come */
    int32_t *next;      /* to be evaluated next: the token chosen, or what is forced */
    int32_t *end_think; /* the end of reasoning, should it have to be forced */
    size_t n_end_think;
    int32_t chosen; /* room for `next` to point at */
    size_t n_next;
    int64_t n_given; /* tokens of prompt and answer given out to be evaluated */
    mf_logprob top[MF_REPLY_MAX_LOGPROBS];
    mf_reply_result result;
    mf_error *err; /* of the call under way */
};

/* What the answer's events go through: stop texts are looked for. */
mf_status mf__reply_on_event(void *reply, const mf_event *event);

/* Text that ends the reasoning of a model that does not end it itself. */
#define MF__END_THINK "\n</think>\n\n"

#endif
