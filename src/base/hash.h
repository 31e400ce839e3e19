/* XXH64, the checksum of files and tensors: fast, not cryptographic. From the published specification of xxHash. */
#ifndef MF_BASE_HASH_H
#define MF_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Bytes in pieces of any size: init, update ..., digest (which may be asked for at any time). */
typedef struct mf__hash {
    uint64_t lane[4];
    uint64_t seed, total;
    uint8_t held[32]; /* total % 32 bytes that do not fill a stripe yet */
} mf__hash;

void mf__hash_init(mf__hash *h, uint64_t seed);
void mf__hash_update(mf__hash *h, const void *data, size_t size);
uint64_t mf__hash_digest(const mf__hash *h);

uint64_t mf__hash_bytes(const void *data, size_t size); /* seed 0, all at once */

/* 16 hexadecimal digits and a NUL, and back (false unless text begins with 16 lower-case digits). */
void mf__hash_text(uint64_t hash, char text[17]);
int mf__hash_parse(const char *text, uint64_t *out);

#endif
