/* A growing byte string. Zero-initialise; free with mf__strbuf_free. */
#ifndef MF_BASE_STRBUF_H
#define MF_BASE_STRBUF_H

#include "base/status.h"

typedef struct mf__strbuf {
    char *data; /* NUL behind the last byte; NULL while empty */
    size_t size, capacity;
} mf__strbuf;

mf_status mf__strbuf_append(mf__strbuf *b, const void *bytes, size_t n, mf_error *err);
mf_status mf__strbuf_printf(mf__strbuf *b, mf_error *err, const char *fmt, ...) MF__PRINTF(3, 4);
void mf__strbuf_clear(mf__strbuf *b); /* keeps the memory */
void mf__strbuf_free(mf__strbuf *b);

bool mf__text_ends_with(const char *text, const char *end);

#endif
