/* A growing byte string. Zero-initialise; free with buf_free. Where memory ends it is marked as failed and stays as it
 * was, so that a writer need ask only once, at the end. */
#ifndef MOEFLUX_BUF_H
#define MOEFLUX_BUF_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct buf {
    char *data; /* NUL behind the last byte; NULL while empty */
    size_t size, capacity;
    bool failed;
} buf;

void buf_add(buf *b, const void *bytes, size_t n);
void buf_adds(buf *b, const char *text);
void buf_printf(buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_json(buf *b, json_t *value); /* takes over value; NULL marks the buffer as failed */
void buf_clear(buf *b);               /* keeps the memory */
void buf_free(buf *b);
char *buf_take(buf *b); /* the bytes, malloc'd, "" for none; NULL where it failed. The buffer is empty then */

/* The text as a JSON string; bytes that are not UTF-8 become U+FFFD. */
json_t *json_text(const char *bytes, size_t n);

#endif
