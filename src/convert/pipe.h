/* Three stages in step: reading, computing and writing overlap, and only a few items are in memory.
 *
 *   load   its own thread: fills the next slot, or says that there are no more items
 *   work   the caller's thread (and whatever pool it uses)
 *   put    its own thread: items come in the order in which they were loaded
 *
 * The first error of any stage ends the run; its text is the one reported. */
#ifndef MF_CONVERT_PIPE_H
#define MF_CONVERT_PIPE_H

#include "base/status.h"

typedef struct mf__pipe {
    void *ctx;
    int n_slots;  /* 2 or more */
    void **slots; /* [n_slots], the caller's */
    mf_status (*load)(void *ctx, void *slot, bool *end, mf_error *err);
    mf_status (*work)(void *ctx, void *slot, mf_error *err);
    mf_status (*put)(void *ctx, void *slot, mf_error *err);
} mf__pipe;

mf_status mf__pipe_run(const mf__pipe *pipe, mf_error *err);

#endif
