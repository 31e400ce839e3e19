/* HTTP/1.1 over libevent's bufferevents: connections, their limits and deadlines, answers whole or streamed.
 *
 * Why not evhttp or libmicrohttpd, which were tried with the same raw bytes: neither notices a client that leaves while
 * nothing is written, the timeouts of both are of inactivity alone (a byte every 0.3 s held a connection for as long
 * as we tried, with a timeout of 3 s), and both take two different Content-Lengths, bare LF and NUL.
 *
 * Everything here runs on the event loop's thread. Invariants:
 *   - a connection has one deadline, absolute: for the head, the body, the answer's bytes, or the next request. Only
 *     while the handler works (and nothing waits to be written) has it none;
 *   - `gone` is called exactly once for every request that was handed out and whose answer did not end;
 *   - where all places are taken, the connection that waits longest without a whole request gives up its own. */
#ifndef MOEFLUX_HTTP_H
#define MOEFLUX_HTTP_H

#include <event2/event.h>

#include "http_parse.h"

typedef struct http_server http_server;
typedef struct http_conn http_conn;

/* A request as the handler sees it: valid until its answer ends or `gone` is called. */
typedef struct http_request {
    const char *method, *path, *query; /* query: behind the "?", or "" */
    const char *body;                  /* NUL behind it */
    size_t n_body;
    const http_parser *head; /* for http_parser_field */
} http_request;

typedef struct http_handler {
    void (*request)(void *user, http_conn *conn, const http_request *request);
    /* The client left, or was cut: no answer is wanted any more. state is what http_conn_set_state was given. */
    void (*gone)(void *user, http_conn *conn, void *state);
    /* May a request with this head go on to its body? 0, or the status of the refusal. May be NULL. */
    int (*head)(void *user, const http_request *request, const char **problem);
    /* The body of an answer that HTTP itself makes necessary, as the path's API has it; malloc'd JSON. path and head
     * are NULL where they were not read yet. */
    char *(*problem)(void *user, const char *path, const http_parser *head, int status, const char *sentence);
    void *user;
} http_handler;

typedef struct http_options {
    http_limits limits;
    size_t all_body_bytes;             /* of bodies on all connections */
    size_t queue_bytes;                /* most bytes of a stream that wait for a slow reader */
    int max_conns, max_conns_per_addr; /* per_addr: IPv6 counts by /64 */
    double head_seconds, body_seconds, write_seconds, idle_seconds;
} http_options;

void http_options_init(http_options *opt); /* the defaults */

http_server *http_server_create(struct event_base *base, const http_options *opt, const http_handler *handler);
void http_server_free(http_server *server); /* cuts what is open; NULL is fine */

/* Takes over fd, which listens. */
bool http_server_listen(http_server *server, evutil_socket_t fd);
/* No more connections; those that wait for a request are closed, the others when their answer has ended. */
void http_server_drain(http_server *server);

/* Calls fn with the state (http_conn_set_state) of every connection whose request is worked on. */
void http_each_state(http_server *server, void (*fn)(void *state));

typedef struct http_stats {
    int open, busy;                       /* connections now; with a request that is worked on */
    int64_t accepted, refused, evicted;   /* refused: no place */
    int64_t bad, timed_out, slow_readers; /* requests that were not HTTP; deadlines; cut for not reading */
} http_stats;
const http_stats *http_server_stats(const http_server *server);

/* ---- answers ------------------------------------------------------------------------------------------------------
 * fields: more header lines, each with its CRLF; or NULL. After an answer ends the connection is the client's again. */

void http_conn_set_state(http_conn *conn, void *state);
/* The body of the request at hand becomes the caller's, who frees it: malloc'd, NUL behind it; NULL: no memory. Its
 * *counted bytes stay taken from those of all bodies until http_release_body. */
char *http_take_body(http_conn *conn, size_t *counted);
void http_release_body(http_server *server, size_t counted);
/* Header lines, each with its CRLF, that the answer to the current request has besides; static or the caller's for as
 * long. NULL: none. */
void http_conn_set_fields(http_conn *conn, const char *fields);

void http_respond(http_conn *conn, int status, const char *type, const char *fields, const void *body, size_t n);

void http_stream_begin(http_conn *conn, int status, const char *type, const char *fields);
/* False: the client was cut, as it does not read, and `gone` has been called. */
bool http_stream_write(http_conn *conn, const void *data, size_t n);
void http_stream_end(http_conn *conn);
void http_stream_cut(http_conn *conn); /* ends without an end: the client sees that the answer is not whole */

const char *http_conn_address(const http_conn *conn); /* "127.0.0.1", "::1", "unix" */
bool http_conn_is_loopback(const http_conn *conn);
const char *http_status_text(int status);

#endif
