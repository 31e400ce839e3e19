/* The inside of a reply. reply.c makes it from a request, opening.c writes what stands between the prompt and the
 * answer, step.c goes from token to token. */
#ifndef MF_REPLY_REPLY_H
#define MF_REPLY_REPLY_H

#include "reply/answer.h"
#include "reply/form.h"
#include "reply/prompt.h"

#define MF__STOP_BYTES 4096 /* of one stop text at most */

struct mf_reply {
    const mf_text *text;
    mf_reply_options opt; /* numbers, fn and user; the caller's pointers are not followed any more */
    int32_t n_vocab;
    int32_t eos[MF_MAX_EOS];
    int n_eos;
    mf__prompt prompt;
    size_t n_rendered;          /* of the prompt's tokens: what the request gave, without the opening of the answer */
    bool rendered_in_reasoning; /* ... and how that ended */
    mf__notation notation;
    mf__call_style style;
    mf_sampler *sampler;
    mf__detok detok;
    mf_answer *answer; /* NULL: all is text */
    char *stops[MF_REPLY_MAX_STOPS];
    int n_stops;

    /* what may be said */
    mf_constraint *constraint; /* of the whole answer behind the reasoning; NULL: none */
    bool bound;                /* it holds: reasoning is over */
    bool calls_only;           /* it is of tool calls */
    mf_constraint *in_calls;   /* of a block of calls that the model may open; NULL: none */
    json_t *tools;             /* where a header names the tool: what in_calls is made of when that is known; NULL */
    bool calls_bound;          /* it holds: such a block is open */
    uint32_t *mask;            /* [n_vocab / 32 + 1]; NULL: not needed */
    bool too_few;              /* the tokens that are left cannot hold even the shortest answer of the form */
    mf_reply_end shortened_by; /* a token was not taken since the answer would not have ended in time: MF_END_LENGTH or
                                * MF_END_CONTEXT; MF_END_NONE */
    int32_t think_id;          /* may come instead of the first token of the constraint; -1: none */
    int32_t banned[8];         /* tokens that may not come while no constraint holds */
    int n_banned;

    mf__strbuf decoded;  /* text of the latest tokens, not taken apart yet */
    mf__strbuf held;     /* text of the answer that may be the beginning of a stop text */
    bool muted;          /* what comes was in the prompt */
    bool stopped;        /* a stop text has come */
    const int32_t *next; /* to be evaluated next: the token chosen, or what is forced */
    size_t n_next;
    int32_t chosen;      /* room for `next` to point at */
    mf__strbuf end_text; /* ends the reasoning where it has to be ended: the text and its tokens */
    int32_t *end_ids;
    size_t n_end_ids;
    int32_t end_id;  /* the model's own token for that, where another text must follow; -1 */
    int64_t n_given; /* tokens of prompt and answer given out to be evaluated */
    mf_logprob top[MF_REPLY_MAX_LOGPROBS];
    mf_reply_result result;
    mf_error *err; /* of the call under way */
};

/* What the answer's events go through: stop texts are looked for. */
mf_status mf__reply_on_event(void *reply, const mf_event *event);

/* Holds what comes next to the arguments of a tool; one that the request does not have may be called with any. */
mf_status mf__reply_hold_arguments(mf_reply *r, const char *tool);

/* Writes what stands between the template's prompt and the answer into both: the beginning of a channel, the message
 * that is continued. And prepares the end of reasoning. */
mf_status mf__reply_open(mf_reply *r, const mf__request *request, mf_error *err);

/* fit.c: goes on in a constraint by the token that was chosen from the mask, or by another one if the answer could not
 * be ended behind it with the tokens that are left. */
mf_status mf__reply_accept(mf_reply *r, mf_constraint *c, const float *logits, const uint32_t *mask, int32_t *id);

#endif
