/* The expert store: gives the engine the bytes of experts, from wherever they are, within a memory budget.
 *
 * The store knows files, layers, expert numbers and byte counts; it knows nothing of models. One layer's turn is:
 *
 *   begin(layer, ids)            reads start for what is not there
 *   while next(...) gives some   those experts are pinned and readable
 *       ... compute with them ...
 *       done(...)                 unpinned: their memory may be reused
 *   end
 *
 * next waits only for the first expert that is ready and returns all that are; a layer may want more experts than fit
 * in memory, then it takes several rounds. The order in which experts come out is not part of the contract. */
#ifndef MF_STORE_STORE_H
#define MF_STORE_STORE_H

#include "base/status.h"

typedef struct mf__store mf__store;

typedef struct mf__store_config {
    int n_layers;
    const char *const *files; /* [n_layers] path, or NULL for a layer without experts */
    int n_experts;            /* per layer */
    int64_t stride;           /* bytes from one expert to the next */
    int64_t bytes;            /* bytes of one expert that are used */
    mf_log_sink log;
} mf__store_config;

typedef struct mf__store_stats {
    int64_t wanted;     /* experts asked for */
    int64_t hits;       /* ... that were in memory */
    int64_t bytes_read; /* from files */
} mf__store_stats;

/* Checks that every file is there and long enough; the strings of config are copied. */
mf_status mf__store_open(const mf__store_config *config, mf__store **out, mf_error *err);
void mf__store_close(mf__store *store); /* NULL is fine */

/* One turn at a time. ids: distinct, in [0, n_experts); must stay valid until end. */
mf_status mf__store_begin(mf__store *store, int layer, const int32_t *ids, int n, mf_error *err);
/* Up to n (of begin) experts that became ready: their ids and addresses. *n_out == 0: all have been given out. */
mf_status mf__store_next(mf__store *store, int32_t *ids, const void **blobs, int *n_out, mf_error *err);
void mf__store_done(mf__store *store, const int32_t *ids, int n);
void mf__store_end(mf__store *store); /* also after a failure in the middle: forgets the rest of the turn */

/* These experts may be wanted soon. Never waits, never fails, may do nothing. */
void mf__store_hint(mf__store *store, int layer, const int32_t *ids, int n);

void mf__store_stats_get(const mf__store *store, mf__store_stats *out);

#endif
