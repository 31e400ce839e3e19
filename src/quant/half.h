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

uint16_t mf__f32_to_bf16(float f);
float mf__f16_to_f32(uint16_t h);
uint16_t mf__f32_to_f16(float f);
float mf__f8_e4m3_to_f32(uint8_t b); /* "fn": no infinities, 0x7f and 0xff are NaN */

#endif
