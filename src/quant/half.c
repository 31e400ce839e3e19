/* From f32 to f16, by integer arithmetic on the bit patterns; the other conversions are in the header. */
#include "quant/half.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* u >> shift, rounded to nearest, ties to even; 1 <= shift <= 31. A carry out of the mantissa runs into the exponent
 * field above it, which is the right result: the next power of two, or infinity after the largest finite value. */
static uint32_t shift_round(uint32_t u, int shift) {
    uint32_t q = u >> shift, rest = u & ((1u << shift) - 1), half = 1u << (shift - 1);
    return q + (rest > half || (rest == half && (q & 1)));
}

uint16_t mf__f32_to_f16(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffffu;
    uint32_t exponent = a >> 23;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
    if (exponent >= 127 + 16) return (uint16_t)(sign | 0x7c00); /* 2^16 and more: infinity */
    if (exponent >= 127 - 14) return (uint16_t)(sign | shift_round(a - (112u << 23), 13));
    if (exponent < 127 - 25) return (uint16_t)sign; /* below half of the smallest subnormal */
    /* The result counts units of 2^-24; the mantissa with its hidden bit counts units of 2^(exponent - 150). */
    return (uint16_t)(sign | shift_round((a & 0x7fffff) | 0x800000, 126 - (int)exponent));
}
