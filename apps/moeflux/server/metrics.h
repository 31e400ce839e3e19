/* Numbers about the server for Prometheus. Kept by the loop; the scheduler and the engine are asked for theirs. */
#ifndef MOEFLUX_METRICS_H
#define MOEFLUX_METRICS_H

#include "buf.h"
#include "http.h"
#include "scheduler.h"

#define METRICS_BUCKETS 14 /* 1 ms, 2.5, 5, 10, ... 25 s, more */

typedef struct histogram {
    int64_t counts[METRICS_BUCKETS];
    double sum;
    int64_t n;
} histogram;

enum { OUTCOME_OK, OUTCOME_CLIENT_ERROR, OUTCOME_SERVER_ERROR, OUTCOME_BUSY, OUTCOME_LEFT, OUTCOMES };

typedef struct metrics {
    int64_t outcomes[OUTCOMES];
    int64_t prompt_tokens, cached_tokens, made_tokens;
    histogram first_token, per_token, whole;
    double lately; /* seconds from a request to the end of its answer, of the latest */
} metrics;

struct job;
void metrics_first_token(metrics *m, double seconds);
void metrics_job(metrics *m, const struct job *j, bool left); /* it has ended */
void metrics_refused(metrics *m);                             /* no place in the queue */
/* Seconds after which it is worth asking again: what the requests that wait will take at the pace of the latest. */
int metrics_retry_after(const metrics *m, int n_waiting, int parallel);

/* All of it in Prometheus' text format. ram_bytes: most memory for everything; 0: no limit was set. */
void metrics_write(const metrics *m, const http_stats *http, const sched_stats *passes, mf_model *model,
                   int64_t ram_bytes, buf *out);

#endif
