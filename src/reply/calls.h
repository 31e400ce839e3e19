/* Reading the inside of a tool-call block. */
#ifndef MF_REPLY_CALLS_H
#define MF_REPLY_CALLS_H

#include "reply/span.h"
#include "text/chat.h"

typedef struct mf__call {
    mf__strbuf name, arguments; /* arguments: a JSON object */
    mf__strbuf id;              /* what the model calls it; empty: nothing */
} mf__call;

typedef struct mf__calls {
    mf__call *calls;
    size_t n;
} mf__calls;

void mf__calls_free(mf__calls *calls);

typedef enum mf__calls_verdict {
    MF__CALLS_READ, /* these are the calls */
    MF__CALLS_OPEN, /* the block ends inside a value: a closing marker there is a part of it */
    MF__CALLS_NONE  /* not of the notation */
} mf__calls_verdict;

/* Reads every call of a block (what lies between its outer markers). There are calls only with MF__CALLS_READ. */
mf_status mf__calls_read(mf__notation notation, const json_t *tools, mf__span block, mf__calls *out,
                         mf__calls_verdict *verdict, mf_error *err);

/* Whether a block that begins like this can still become one that is read. */
bool mf__calls_may_be(mf__notation notation, mf__span beginning);

/* Whether a tool can be called so; calls of others are not read. */
bool mf__calls_is_name(mf__span name);

/* One call whose arguments are JSON as they stand. */
mf_status mf__calls_add(mf__calls *calls, mf__span name, mf__span arguments, mf__calls_verdict *verdict, mf_error *err);

#endif
