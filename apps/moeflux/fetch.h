/* Downloads over HTTP and TLS, with libcurl: small answers at once, and files side by side on a thread of its own.
 *
 * A file comes in one piece from front to back, goes on where it was after a broken connection or an earlier run, and
 * is compared with its size and hash; only then it is there. What is known about it lies in a small file of its own:
 * how many bytes have come, or that it is whole. */
#ifndef MOEFLUX_FETCH_H
#define MOEFLUX_FETCH_H

#include "app.h"

typedef struct fetch fetch;

typedef struct fetch_options {
    const char *token; /* NULL: none. Goes to the host that is asked, never to another one that it names */
    bool allow_http;   /* also addresses without TLS, of redirects too */
    int connections;   /* files at a time */
    bool at_once;      /* small answers: a host that cannot be reached is an error at once, and not tried again */
    /* Called now and then on the thread that downloads: bytes that have come, of all. May be NULL. */
    void (*tick)(void *user, int64_t have, int64_t total);
    void *user;
} fetch_options;

mf_status fetch_create(const fetch_options *opt, fetch **out, mf_error *err);
void fetch_free(fetch *f); /* stops what is under way; NULL is fine */

/* A small answer: all of it, or its first `size` bytes where that is not 0; at most `most`. next: the address of the
 * page that follows, malloc'd, or NULL; may be NULL. */
typedef struct fetch_range {
    size_t size, most;
} fetch_range;
mf_status fetch_get(fetch *f, const char *url, fetch_range range, mf__strbuf *out, char **next, mf_error *err);

typedef struct fetch_file {
    char *url;
    char *path;   /* where it goes; written in place */
    char *note;   /* path of the small file */
    int64_t size; /* as the publisher says */
    char sha[65]; /* SHA-256; or with `git` the SHA-1 that git gives the file */
    bool git;
} fetch_file;

/* Takes the strings of file over. Returns its number, or -1: no memory. Before start. */
int fetch_add(fetch *f, const fetch_file *file);
bool fetch_is_here(const fetch *f, int file); /* an earlier run got it */
/* From now on files come, in order, as long as no more than `ahead` bytes of them are there and not done with. */
mf_status fetch_start(fetch *f, int64_t ahead, mf_error *err);
mf_status fetch_want(fetch *f, int file, mf_error *err); /* returns when it is there, and before others come */
void fetch_done(fetch *f, int file);                     /* it does not count any more; never fetched if it was not */

#endif
