/* UTF-8: what is valid, one character at a time, and text that came from somewhere else. */
#ifndef MF_TEXT_UTF8_H
#define MF_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* valid: false, with the offset of the first bad byte, for what RFC 3629 forbids. decode: text is valid and not
 * at its end; returns the length of the character. */
bool mf__utf8_valid(const char *text, size_t size, size_t *bad);
int mf__utf8_encode(uint32_t c, char out[4]);
/* text as JSON takes it: valid UTF-8, ? in place of what is none, whole characters that fit into `size` bytes. Returns
 * out, which may be text itself. */
char *mf__utf8_clean(const char *text, char *out, size_t size);

static inline int mf__utf8_decode(const char *text, uint32_t *c) {
    const uint8_t *p = (const uint8_t *)text;
    if (p[0] < 0x80) return *c = p[0], 1;
    if (p[0] < 0xE0) return *c = (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu), 2;
    if (p[0] < 0xF0) return *c = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu), 3;
    return *c = (p[0] & 0x07u) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu), 4;
}

#endif
