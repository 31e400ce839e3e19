/* The inside of fetch.c and fetch_files.c. */
#ifndef MOEFLUX_FETCH_INT_H
#define MOEFLUX_FETCH_INT_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/sha.h"
#include "fetch.h"

/* What a response's headers say. */
typedef struct fetch_headers {
    long status;
    int64_t range_start, range_total; /* of Content-Range; -1: none */
    int64_t length;                   /* of the body; -1: not said */
    double retry_after;               /* seconds; 0: not said */
    char *next;                       /* Link: <...>; rel="next"; malloc'd */
} fetch_headers;

typedef enum transfer_state {
    TRANSFER_WAITS,
    TRANSFER_RUNS,
    TRANSFER_HERE,
    TRANSFER_FAILED,
    TRANSFER_DONE
} transfer_state;

typedef struct transfer {
    fetch_file file;
    transfer_state state; /* under the lock; the rest belongs to the thread */
    bool wanted;
    int64_t have;
    int64_t noted; /* what the small file says of it */
    int fd;
    CURL *easy;
    mf__sha sha;
    fetch_headers headers;
    bool begun;        /* the first bytes of this answer were looked at */
    mf_error why;      /* what went wrong with the answer at hand: status MF_OK means nothing did */
    bool final;        /* ... and trying again is no use */
    int tries;         /* without a byte */
    int64_t had;       /* at the beginning of this try */
    bool wrong;        /* the hash did not fit once already */
    double not_before; /* when to try again */
    char error[CURL_ERROR_SIZE];
} transfer;

struct fetch {
    fetch_options opt;
    CURL *easy; /* for small answers */
    transfer *files;
    int n_files;
    /* the thread */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop;
    int64_t ahead;
    CURLM *multi;
    mf_error failed; /* why the thread gave up */
};

/* What every request has. */
void fetch_prepare(const fetch *f, CURL *easy, const char *url, fetch_headers *headers);
void fetch_headers_free(fetch_headers *h);
/* A sentence for a status that is none of the good ones; *final: trying again is no use. */
mf_status fetch_refused(const fetch *f, const char *url, const fetch_headers *h, bool *final, mf_error *err);
/* Seconds to wait before try number n (from 1). */
double fetch_pause(const fetch_headers *h, int n);

#define FETCH_TRIES 8 /* in a row without a byte */

void *fetch_thread(void *fetch);

#endif
