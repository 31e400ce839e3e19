/* What the readers of all notations share: calls.c and calls_later.c. */
#ifndef MF_REPLY_CALLS_INT_H
#define MF_REPLY_CALLS_INT_H

#include "reply/calls.h"

typedef struct mf__reading {
    const json_t *tools;
    mf__calls *calls;
    mf__calls_verdict *verdict;
    mf_error *err;
} mf__reading;

mf_status mf__call_add(mf__calls *calls, mf__span name, mf__call **out, mf_error *err);
/* A key and its value, whose type is told by the tool's schema. */
mf_status mf__call_key(mf__reading *r, mf__call *call, mf__span key);
mf_status mf__call_argument(mf__reading *r, mf__call *call, mf__span key, mf__span value);
/* The value at the beginning of *s, up to a `close` that one of `next` (or the end) follows. */
bool mf__call_cut_value(mf__span *s, const char *close, const char *const next[], mf__span *value);
/* The JSON object that *s begins with; nothing counts as {}. False: r->verdict says why. */
bool mf__call_take_object(mf__reading *r, mf__span *s, mf__span *object);
/* s is a beginning of mark, or begins with it. */
bool mf__call_agrees(mf__span s, const char *mark);

/* calls_later.c; s without white space at its ends */
mf_status mf__calls_read_hy3(mf__reading *r, mf__span s);
mf_status mf__calls_read_minimax3(mf__reading *r, mf__span s);
mf_status mf__calls_read_mistral(mf__reading *r, mf__span s);
mf_status mf__calls_read_gemma(mf__reading *r, mf__span s);
bool mf__calls_later_may_be(mf__notation notation, mf__span s);

#endif
