#include "buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(buf *b, size_t n) {
    if (b->failed || n > SIZE_MAX / 4) return !(b->failed = true);
    if (b->size + n + 1 <= b->capacity) return true;
    size_t capacity = b->capacity ? b->capacity : 256;
    while (capacity < b->size + n + 1) capacity *= 2;
    char *more = realloc(b->data, capacity);
    if (!more) return !(b->failed = true);
    b->data = more;
    b->capacity = capacity;
    return true;
}

void buf_add(buf *b, const void *bytes, size_t n) {
    if (!reserve(b, n)) return;
    if (n) memcpy(b->data + b->size, bytes, n);
    b->size += n;
    b->data[b->size] = 0;
}

void buf_adds(buf *b, const char *text) {
    buf_add(b, text, strlen(text));
}

void buf_printf(buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !reserve(b, (size_t)n)) return;
    va_start(ap, fmt);
    vsnprintf(b->data + b->size, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->size += (size_t)n;
}

static int add_dumped(const char *bytes, size_t n, void *user) {
    buf_add(user, bytes, n);
    return 0;
}

void buf_json(buf *b, json_t *value) {
    if (!value || json_dump_callback(value, add_dumped, b, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(10)))
        b->failed = true;
    json_decref(value);
}

void buf_clear(buf *b) {
    b->size = 0;
    if (b->data) b->data[0] = 0;
}

void buf_free(buf *b) {
    free(b->data);
    *b = (buf){0};
}

char *buf_take(buf *b) {
    buf_add(b, "", 0);
    char *data = b->failed ? NULL : b->data;
    if (b->failed) free(b->data);
    *b = (buf){0};
    return data;
}

/* Length of the UTF-8 character at s; 0: there is none. */
static size_t character(const unsigned char *s, size_t n) {
    size_t len = s[0] < 0x80 ? 1 : s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : (s[0] & 0xf0) == 0xe0 ? 3 : 0;
    if (s[0] >= 0xf0 && s[0] < 0xf5) len = 4;
    if (!len || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (len == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))) return 0;
    if (len == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))) return 0;
    return len;
}

json_t *json_text(const char *bytes, size_t n) {
    buf b = {0};
    json_t *value = json_stringn(bytes ? bytes : "", n);
    if (value) return value;
    for (size_t i = 0; i < n;) {
        size_t len = character((const unsigned char *)bytes + i, n - i);
        buf_add(&b, len ? bytes + i : "\xef\xbf\xbd", len ? len : 3);
        i += len ? len : 1;
    }
    value = json_stringn(b.data ? b.data : "", b.size);
    buf_free(&b);
    return value;
}
