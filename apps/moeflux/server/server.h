/* The server as a whole: an event loop with its connections, threads that prepare requests (parse, render,
 * encode), and the scheduler's thread.
 *
 *   loop: HTTP request -> route -> job --> preparing thread: JSON -> replies --> scheduler: passes
 *     ^                                          |                                   |
 *     +------- mailbox: prepared, events, ends --+-----------------------------------+
 *
 * A job is owned by whoever works on it and comes back to the loop in the end, which alone frees it. */
#ifndef MOEFLUX_SERVER_H
#define MOEFLUX_SERVER_H

#include "experts.h"
#include "http.h"
#include "moeflux.h"

typedef struct server server;

typedef struct server_options {
    mf_model *model; /* borrowed */
    const mf_text *text;
    experts *experts; /* whose sink the model has; NULL: nobody counts */
    const char *model_dir;
    const char *model_id;        /* what /v1/models calls it */
    const char *const *api_keys; /* one of them is needed; n_api_keys 0: none */
    int n_api_keys;
    const char *const *hosts; /* names, besides addresses and localhost, that Host may have */
    int n_hosts;
    const char *const *origins; /* web pages of these origins may ask: CORS; "*": all */
    int n_origins;
    http_options http;
    int64_t ram_bytes;           /* what the model was opened with, for /metrics; 0: no limit */
    bool disk_cache;             /* it was opened with a prompt cache on disk */
    char *(*more_metrics)(void); /* further lines for /metrics, malloc'd; NULL: there are none */
    int32_t n_ctx, piece;
    int max_running, max_sessions, max_waiting;
    int n_threads;        /* that choose tokens; 0: one for each processor */
    int64_t max_logprobs; /* entries that answers on their way may hold together, some hundred bytes each */
    double grace_seconds; /* how long answers may go on after the server was told to stop */
    void (*log)(void *user, mf_log_level level, const char *text);
    void *log_user;
} server_options;

void server_options_init(server_options *opt);

mf_status server_create(const server_options *opt, server **out, mf_error *err);
bool server_listen(server *s, int fd); /* takes over a socket that listens */
void server_run(server *s);            /* until it has been stopped */
void server_stop(server *s);           /* from a signal handler or any thread: drains, then server_run returns */
void server_free(server *s);           /* NULL is fine */

#endif
