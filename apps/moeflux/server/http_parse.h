/* An HTTP/1.1 request, from bytes as they arrive. Knows no sockets.
 *
 * Strict where two programs could read the same bytes differently (request smuggling): a second Content-Length, even an
 * equal one; Content-Length beside Transfer-Encoding; any coding but "chunked"; lines that end in a bare LF; control
 * characters; folded lines; white space before a colon; chunk sizes of more than eight digits. Nothing is corrected.
 *
 * Invariants:
 *   - what a request takes is bounded by the limits, and grows with the bytes that have come, never with what a length
 *     promises; bodies of all connections together stay within `shared`;
 *   - any cut of the same bytes into pieces gives the same result;
 *   - after HTTP_BAD nothing more is read: the connection has lost its framing. */
#ifndef MOEFLUX_HTTP_PARSE_H
#define MOEFLUX_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HTTP_MAX_FIELDS 64

typedef struct http_limits {
    size_t head_bytes; /* request line and fields */
    size_t body_bytes;
} http_limits;

/* Bytes of bodies held by all connections of a server. */
typedef struct http_budget {
    size_t used, max;
} http_budget;

typedef struct http_field {
    const char *name, *value; /* NUL behind both; the value without white space around it */
} http_field;

typedef enum http_result {
    HTTP_MORE, /* all bytes are used, more are wanted */
    HTTP_HEAD, /* the head is complete and a body follows: may be refused now; feed on */
    HTTP_DONE, /* the request is complete; bytes behind it are not used */
    HTTP_BAD,  /* status and problem say why */
} http_result;

typedef struct http_parser {
    const http_limits *limits;
    http_budget *shared; /* may be NULL */
    int state;
    char *head;                         /* the bytes of the head; fields point into it */
    size_t n_head, head_capacity, line; /* line: where the current one begins */
    char *body;
    size_t n_body, body_capacity, wanted; /* wanted: bytes of the body or chunk still to come */
    int n_digits;                         /* of a chunk size */
    size_t n_extra;                       /* bytes of chunk extensions and trailers */
    bool skipped_line, has_length, chunked;
    /* valid from HTTP_HEAD on */
    const char *method, *target;
    int minor; /* HTTP/1.minor */
    http_field fields[HTTP_MAX_FIELDS];
    int n_fields;
    bool keep_alive, expects_continue;
    /* valid after HTTP_BAD */
    int status;
    const char *problem; /* a sentence */
} http_parser;

void http_parser_init(http_parser *p, const http_limits *limits, http_budget *shared);
void http_parser_deinit(http_parser *p);
void http_parser_reset(http_parser *p); /* for the next request on the connection */

http_result http_parser_feed(http_parser *p, const void *data, size_t n, size_t *used);

/* Has any byte of a request come? */
bool http_parser_begun(const http_parser *p);

/* The value of a field, by name without regard to case; NULL: there is none. */
const char *http_parser_field(const http_parser *p, const char *name);

/* Is word in the comma-separated value? Without regard to case. */
bool http_list_has(const char *value, const char *word);

#endif
