#include "text/utf8.h"

#include <string.h>

bool mf__utf8_valid(const char *text, size_t size, size_t *bad) {
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0;
    while (i < size) {
        uint8_t b = p[i];
        if (b < 0x80) {
            i++;
            continue;
        }
        size_t n = b >= 0xC2 && b <= 0xDF ? 2 : (b & 0xF0) == 0xE0 ? 3 : b >= 0xF0 && b <= 0xF4 ? 4 : 0;
        bool good = n && n <= size - i;
        for (size_t k = 1; good && k < n; k++) good = (p[i + k] & 0xC0) == 0x80;
        /* Overlong forms, surrogates and values past U+10FFFF show in the second byte. */
        if (good && ((b == 0xE0 && p[i + 1] < 0xA0) || (b == 0xED && p[i + 1] > 0x9F) ||
                     (b == 0xF0 && p[i + 1] < 0x90) || (b == 0xF4 && p[i + 1] > 0x8F)))
            good = false;
        if (!good) {
            if (bad) *bad = i;
            return false;
        }
        i += n;
    }
    return true;
}

char *mf__utf8_clean(const char *text, char *out, size_t size) {
    size_t n = 0, bad;
    while (*text) {
        unsigned char c = (unsigned char)*text;
        size_t len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
        bool whole = strnlen(text, len) == len && mf__utf8_valid(text, len, &bad);
        if (!whole) len = 1;
        if (n + len >= size) break;
        memmove(out + n, whole ? text : "?", len);
        n += len;
        text += len;
    }
    out[n] = '\0';
    return out;
}

int mf__utf8_encode(uint32_t c, char out[4]) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
        return 2;
    }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12);
        out[1] = (char)(0x80 | (c >> 6 & 0x3F));
        out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18);
    out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F));
    out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}
