/* bf16, f16 and fp8 to f32 and back. Round to nearest, ties to even. NaN stays NaN. */
#ifndef MF_QUANT_HALF_H
#define MF_QUANT_HALF_H

#include <stdint.h>
#include <string.h>

static inline float mf__bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t mf__f32_to_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40); /* keep NaN a (quiet) NaN */
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16); /* a carry into the exponent is right: the next power */
}

/* The value of a small float. magnitude: its exponent and mantissa where f32 has them; bias: by how much exponents of
 * f32 are larger. A subnormal has no hidden bit: it gets one, of which its value is then free again. No branches: loops
 * over these become vector instructions. */
static inline float mf__half_value(uint32_t magnitude, uint32_t bias) {
    uint32_t subnormal = magnitude < 1u << 23, u = magnitude + ((bias + subnormal) << 23);
    uint32_t hidden_bits = subnormal ? (bias + 1) << 23 : 0;
    float f, hidden;
    memcpy(&f, &u, sizeof f);
    memcpy(&hidden, &hidden_bits, sizeof hidden);
    return f - hidden;
}

static inline float mf__half_signed(float f, uint32_t sign_and_more) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u |= sign_and_more;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float mf__f16_to_f32(uint16_t h) {
    uint32_t a = h & 0x7fffu, sign = (uint32_t)(h & 0x8000) << 16;
    return mf__half_signed(mf__half_value(a << 13, 112), sign | (a >= 0x7c00 ? 0x7f800000u : 0));
}

/* "fn": no infinities, 0x7f and 0xff are NaN */
static inline float mf__f8_e4m3_to_f32(uint8_t b) {
    uint32_t a = b & 0x7fu, sign = (uint32_t)(b & 0x80) << 24;
    return mf__half_signed(mf__half_value(a << 20, 120), sign | (a == 0x7f ? 0x7fc00000u : 0));
}

/* E8M0, a power of two: 2^(e - 127); 255 is a NaN. Exact. */
static inline uint16_t mf__e8m0_to_bf16(uint8_t e) {
    return e == 0 ? 0x0040 : e == 255 ? 0x7fc0 : (uint16_t)(e << 7);
}

uint16_t mf__f32_to_f16(float f);

#endif
