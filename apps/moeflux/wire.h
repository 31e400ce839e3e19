/* One HTTP/1.1 request and its answer as it comes, for `chat --server`. Blocking, but an interrupt ends every wait with
 * MF_E_CANCELLED.
 *
 * As strict as our server is with others: heads are bounded, framing must be plain (one Content-Length, or chunked, or
 * until the end of the connection), and an answer that is cut is an error, not an end. */
#ifndef MOEFLUX_WIRE_H
#define MOEFLUX_WIRE_H

#include "app.h"

/* http://HOST[:PORT][/PREFIX] */
typedef struct wire_url {
    char host[256], port[8];
    char prefix[256]; /* without a slash at its end; "" for none */
} wire_url;

mf_status wire_url_parse(const char *text, wire_url *out, mf_error *err);

typedef struct wire wire;

/* Sends the request and reads the answer's head. path goes behind the prefix; key: for Authorization, or NULL; body:
 * JSON to POST, or NULL for a GET. *status is HTTP's. */
mf_status wire_open(const wire_url *url, const char *path, const char *key, const char *body, wire **out, int *status,
                    mf_error *err);
/* The next bytes of the body, at most max; *n 0: it has ended. */
mf_status wire_read(wire *f, char *out, size_t max, size_t *n, mf_error *err);
void wire_close(wire *f); /* NULL is fine */

/* The whole body, which is an error beyond `most` bytes. */
mf_status wire_all(wire *f, size_t most, mf__strbuf *out, mf_error *err);

#endif
