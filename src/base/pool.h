/* The compute thread pool: fork/join over a range of items.
 *
 * A region runs fn(ctx, begin, end, thread) on contiguous, statically computed pieces of [0, n_items), one per thread
 * at most, the caller being thread 0. Which thread gets which piece depends only on n_items and the thread count, so
 * a result that depends on neither is deterministic. Workers spin briefly for the next region, then park. */
#ifndef MF_BASE_POOL_H
#define MF_BASE_POOL_H

#include "base/status.h"

typedef struct mf__pool mf__pool;
typedef void mf__pool_fn(void *ctx, int64_t begin, int64_t end, int thread);

/* n_threads counts the caller: 1 makes a pool without workers. */
mf_status mf__pool_create(int n_threads, mf__pool **out, mf_error *err);
void mf__pool_free(mf__pool *pool);         /* joins the workers; NULL is fine */
int mf__pool_threads(const mf__pool *pool); /* 1 for NULL */

/* Ties every worker to a core of its own: worker i to the i-th core this process may use, counted from 0 for the
 * caller, who is left alone. MF_E_UNSUPPORTED where there are fewer cores than threads, or no such thing. */
mf_status mf__pool_pin(mf__pool *pool, mf_error *err);

/* Runs the region and returns when all of it is done. Regions of one pool do not overlap or nest: the caller holds
 * whatever lock makes that so. A NULL pool runs everything on the caller. */
void mf__pool_run(mf__pool *pool, mf__pool_fn *fn, void *ctx, int64_t n_items);

#endif
