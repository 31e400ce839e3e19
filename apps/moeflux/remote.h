/* A model behind a server that speaks OpenAI's API: what `chat --server` talks to instead of a model of its own. */
#ifndef MOEFLUX_REMOTE_H
#define MOEFLUX_REMOTE_H

#include <jansson.h>

#include "answer.h"

typedef struct remote remote;

/* Asks the server who it is. key: for Authorization, or NULL. */
mf_status remote_open(const char *url, const char *key, remote **out, mf_error *err);
void remote_close(remote *r); /* NULL is fine */

const char *remote_model(const remote *r);   /* its name */
const char *remote_address(const remote *r); /* HOST:PORT */
int64_t remote_n_ctx(const remote *r);       /* tokens; 0: the server does not say */
bool remote_can_reason(const remote *r);     /* its template has a switch for reasoning, as far as is known */

typedef struct remote_request {
    json_t *messages; /* borrowed */
    mf_switch think;
    const sampling_options *sampling; /* what was given of it */
    uint64_t seed;                    /* used where one was given */
    mf_event_fn *fn;
    void (*reading)(void *user, const char *progress); /* "512/4096 tokens, 0.0 MB to fetch, about 3.1 s to go" */
    void *user;
} remote_request;

/* The options that mean nothing to a server are refused. */
mf_status remote_check(const sampling_options *s, mf_error *err);

/* One answer, streamed. An interrupt ends it: what was said until then has come out. */
mf_status remote_answer(remote *r, const remote_request *request, answer *out, mf_error *err);

/* The API key: the environment's MOEFLUX_API_KEY, or the first line of a file; malloc'd, NULL: there is none. */
mf_status remote_key(const char *file, char **out, mf_error *err);

#endif
