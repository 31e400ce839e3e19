/* Several machines: the ranks of an MPI job share the experts of a model.
 *
 * All ranks are started with the same command line. Rank 0 runs the command; the others open the model with experts
 * only and compute what rank 0 sends them until it says that it is done. Outside such a job, and in one of a single
 * rank, none of this does anything, and MPI is never started. */
#ifndef MOEFLUX_CLUSTER_H
#define MOEFLUX_CLUSTER_H

#include "app.h"

/* At the start of the program. False: this rank has no part in the command, and *code is its exit code. */
bool cluster_enter(const char *command, int *code);
/* At the end: the other ranks are told, and the job's exit code comes back. */
int cluster_leave(int code);

/* In every command that evaluates, as soon as its options are known: true on the ranks that compute experts for
 * another; then cluster_work does that until the end, and returns the exit code. Frees dir. */
bool cluster_worker(void);
int cluster_work(char *dir, const app_model_options *opt);

/* In app_open, on rank 0: before the model is opened, and after that (model NULL: it could not be). join returns when
 * all ranks have theirs and they fit together; otherwise it says which does not. */
mf_status cluster_prepare(const app_model_options *opt, mf_model_options *mo, mf_error *err);
mf_status cluster_join(const char *dir, mf_model *model, const mf_error *why, mf_error *err);

/* The first of the options for several ranks that is given; NULL: none. */
static inline const char *cluster_option(const app_model_options *o) {
    return o->stall_limit > 0 ? "stall-limit"
           : o->placement     ? "placement"
           : o->wire          ? "wire"
           : o->mixed         ? "mixed"
                              : NULL;
}

/* Calls fn once when a rank is lost: no evaluation will succeed any more. From whichever thread finds out. */
void cluster_on_break(void (*fn)(void));

/* What a rank's store and the wire have done so far. */
typedef struct cluster_rank_stats {
    char host[64];
    int64_t wanted, hits, bytes_read, bytes_prefetched, stall_ns, compute_ns, budget, cache_bytes;
    int64_t messages, bytes_out, bytes_in; /* between rank 0 and this one */
    int64_t wait_ns;                       /* rank 0 waited for its answers */
    int64_t wire_ns;                       /* ... while they or the rows were on their way, not computed */
} cluster_rank_stats;

int cluster_size(void); /* 1 outside a job */
/* Of ranks 1 and following; false: there is none. Any thread. */
bool cluster_stats_get(int rank, cluster_rank_stats *out);
void cluster_say_stats(void); /* a line per rank, on standard error */
char *cluster_metrics(void);  /* the same for Prometheus, malloc'd; NULL: there are no other ranks */

#endif
