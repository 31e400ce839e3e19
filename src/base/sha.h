/* SHA-256 and SHA-1 (FIPS 180-4), to compare files with what their publisher says. SHA-1 is there because git names
 * small files by it. */
#ifndef MF_BASE_SHA_H
#define MF_BASE_SHA_H

#include <stddef.h>
#include <stdint.h>

#define MF_SHA_TEXT 65 /* hex digits of either, and a NUL */

typedef enum mf__sha_kind { MF_SHA_256, MF_SHA_1 } mf__sha_kind;

typedef struct mf__sha {
    mf__sha_kind kind;
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64]; /* bytes % 64 of it are waiting */
} mf__sha;

void mf__sha_init(mf__sha *s, mf__sha_kind kind);
void mf__sha_update(mf__sha *s, const void *data, size_t size);
void mf__sha_text(const mf__sha *s, char text[MF_SHA_TEXT]); /* of all bytes so far, in lower case; s can go on */

#endif
