/* XXH64: four lanes over stripes of 32 bytes, then the rest in words, half words and bytes, then an avalanche. */
#include "base/hash.h"

#include <string.h>

#define P1 0x9E3779B185EBCA87u
#define P2 0xC2B2AE3D27D4EB4Fu
#define P3 0x165667B19E3779F9u
#define P4 0x85EBCA77C2B2AE63u
#define P5 0x27D4EB2F165667C5u
#define STRIPE 32

static inline uint64_t rotate(uint64_t x, int n) {
    return x << n | x >> (64 - n);
}

static inline uint64_t load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint64_t mix(uint64_t acc, uint64_t input) {
    return rotate(acc + input * P2, 31) * P1;
}

static inline uint64_t merge(uint64_t acc, uint64_t lane) {
    return (acc ^ mix(0, lane)) * P1 + P4;
}

/* The lanes live in registers while whole stripes last. */
static void stripes(uint64_t lane[4], const uint8_t *p, size_t n_stripes) {
    uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];
    for (; n_stripes; n_stripes--, p += STRIPE) {
        a = mix(a, load64(p));
        b = mix(b, load64(p + 8));
        c = mix(c, load64(p + 16));
        d = mix(d, load64(p + 24));
    }
    lane[0] = a, lane[1] = b, lane[2] = c, lane[3] = d;
}

void mf__hash_init(mf__hash *h, uint64_t seed) {
    *h = (mf__hash){.lane = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

void mf__hash_update(mf__hash *h, const void *data, size_t size) {
    const uint8_t *p = data;
    size_t held = h->total % STRIPE;
    if (!size) return;
    h->total += size;
    if (held) {
        size_t take = STRIPE - held < size ? STRIPE - held : size;
        memcpy(h->held + held, p, take);
        p += take, size -= take;
        if (held + take < STRIPE) return;
        stripes(h->lane, h->held, 1);
    }
    stripes(h->lane, p, size / STRIPE);
    memcpy(h->held, p + size / STRIPE * STRIPE, size % STRIPE);
}

uint64_t mf__hash_digest(const mf__hash *h) {
    uint64_t acc = h->seed + P5;
    if (h->total >= STRIPE) {
        acc = rotate(h->lane[0], 1) + rotate(h->lane[1], 7) + rotate(h->lane[2], 12) + rotate(h->lane[3], 18);
        for (int i = 0; i < 4; i++) acc = merge(acc, h->lane[i]);
    }
    acc += h->total;
    const uint8_t *p = h->held, *end = p + h->total % STRIPE;
    for (; end - p >= 8; p += 8) acc = rotate(acc ^ mix(0, load64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        uint32_t v;
        memcpy(&v, p, sizeof v);
        acc = rotate(acc ^ v * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; p++) acc = rotate(acc ^ *p * P5, 11) * P1;
    acc = (acc ^ acc >> 33) * P2;
    acc = (acc ^ acc >> 29) * P3;
    return acc ^ acc >> 32;
}

uint64_t mf__hash_bytes(const void *data, size_t size) {
    mf__hash h;
    mf__hash_init(&h, 0);
    mf__hash_update(&h, data, size);
    return mf__hash_digest(&h);
}

void mf__hash_text(uint64_t hash, char text[17]) {
    for (int i = 15; i >= 0; i--, hash >>= 4) text[i] = "0123456789abcdef"[hash & 15];
    text[16] = '\0';
}

int mf__hash_parse(const char *text, uint64_t *out) {
    uint64_t v = 0;
    for (int i = 0; i < 16; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) return 0;
        v = v << 4 | (uint64_t)digit;
    }
    *out = v;
    return 1;
}
