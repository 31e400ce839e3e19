/* Reading the inside of a tool-call block. */
#ifndef MF_REPLY_CALLS_H
#define MF_REPLY_CALLS_H

#include "text/chat.h"

typedef struct mf__call {
    mf__strbuf name, arguments; /* arguments: a JSON object */
} mf__call;

typedef struct mf__calls {
    mf__call *calls;
    size_t n;
} mf__calls;

void mf__calls_free(mf__calls *calls);

/* Reads every call of a block (what lies between its outer markers). *readable is false, with no calls, when the block
 * is not of the notation. */
mf_status mf__calls_read(mf__notation notation, const json_t *tools, const char *block, size_t n, mf__calls *out,
                         bool *readable, mf_error *err);

/* One call whose arguments are JSON as they stand. */
mf_status mf__calls_add(mf__calls *calls, const char *name, size_t n_name, const char *args, size_t n_args,
                        bool *readable, mf_error *err);

#endif
