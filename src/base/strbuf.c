#include "base/strbuf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64

/* Room for n more bytes and the NUL. Doubles, so that n appends cost O(n). */
static mf_status reserve(mf__strbuf *b, size_t n, mf_error *err) {
    if (n >= SIZE_MAX - b->size)
        return mf__fail(err, MF_E_LIMIT, "a string of %zu + %zu bytes is too long", b->size, n);
    size_t need = b->size + n + 1;
    if (need <= b->capacity) return MF_OK;
    size_t capacity = b->capacity ? b->capacity : FIRST_CAPACITY;
    while (capacity < need) capacity = capacity > SIZE_MAX / 2 ? need : capacity * 2;
    char *data = realloc(b->data, capacity);
    if (!data) return mf__fail(err, MF_E_NOMEM, "no memory for a string of %zu bytes", need);
    b->data = data;
    b->capacity = capacity;
    return MF_OK;
}

mf_status mf__strbuf_append(mf__strbuf *b, const void *bytes, size_t n, mf_error *err) {
    if (n == 0) return MF_OK;
    MF__TRY(reserve(b, n, err));
    memcpy(b->data + b->size, bytes, n);
    b->size += n;
    b->data[b->size] = '\0';
    return MF_OK;
}

mf_status mf__strbuf_printf(mf__strbuf *b, mf_error *err, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0) return mf__fail(err, MF_E_INTERNAL, "cannot format a string with \"%s\"", fmt);
    if (n == 0) return MF_OK;
    MF__TRY(reserve(b, (size_t)n, err));
    va_start(ap, fmt);
    vsnprintf(b->data + b->size, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->size += (size_t)n;
    return MF_OK;
}

void mf__strbuf_clear(mf__strbuf *b) {
    b->size = 0;
    if (b->data) b->data[0] = '\0';
}

void mf__strbuf_free(mf__strbuf *b) {
    free(b->data);
    *b = (mf__strbuf){0};
}

bool mf__text_ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}
