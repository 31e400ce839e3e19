/* The vector vocabulary in plain C, four values at a time: any machine. */
#ifndef MF_CPU_VEC_H
#define MF_CPU_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "quant/half.h"

#define SET(name) name##_scalar
#define WIDTH 4
#define TILE 4
#define TOKENS 8

#include "backend/cpu/vec.h"

#define FOUR(i)                                                                                                        \
    (w[4 * i] * x[4 * i] + w[4 * i + 1] * x[4 * i + 1] + w[4 * i + 2] * x[4 * i + 2] + w[4 * i + 3] * x[4 * i + 3])
INLINE vi dot4(vi acc, vu8 w, vi8 x, int bits) {
    (void)bits;
    return acc + (vi){FOUR(0), FOUR(1), FOUR(2), FOUR(3)};
}
#undef FOUR

INLINE vu8 unpack_codes(const uint8_t *p, int bits, int n_bytes) {
    (void)n_bytes;
    uint64_t codes[2] = {spread_codes(p, bits), spread_codes(p + bits, bits)};
    vu8 v;
    memcpy(&v, codes, sizeof v);
    return v;
}

INLINE void transpose(vi *m) {
    for (int i = 0; i < WIDTH; i++)
        for (int j = 0; j < i; j++) {
            int32_t swapped = m[i][j];
            m[i][j] = m[j][i];
            m[j][i] = swapped;
        }
}
INLINE void transpose4(vi *m) {
    transpose(m);
}

INLINE vi sum_groups(const vi *v, bool two) { /* v [4][1]; no vector has two groups */
    vi sums;
    (void)two;
    for (int i = 0; i < 4; i++) sums[i] = v[i][0] + v[i][1] + v[i][2] + v[i][3];
    return sums;
}

INLINE vf pick(vf v, vi from) {
    return (vf){v[from[0] & 3], v[from[1] & 3], v[from[2] & 3], v[from[3] & 3]};
}

/* table[code]; codes are below 16 */
INLINE vu8 lookup16(vu8 codes, const uint8_t *table) {
    for (int i = 0; i < 16; i++) codes[i] = table[codes[i]];
    return codes;
}

INLINE float sum_lanes(vf v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}
INLINE float max_lanes(vf v) {
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}
INLINE vf fma_of(vf a, vf b, vf c) {
    return a * b + c;
}
INLINE vf max_of(vf a, vf b) {
    for (int i = 0; i < 4; i++) a[i] = b[i] > a[i] ? b[i] : a[i];
    return a;
}
INLINE vf load_f16(const void *p) {
    uint16_t h[4];
    memcpy(h, p, sizeof h);
    return (vf){mf__f16_to_f32(h[0]), mf__f16_to_f32(h[1]), mf__f16_to_f32(h[2]), mf__f16_to_f32(h[3])};
}
INLINE void store_f16(void *p, vf v) {
    uint16_t h[4] = {mf__f32_to_f16(v[0]), mf__f32_to_f16(v[1]), mf__f32_to_f16(v[2]), mf__f32_to_f16(v[3])};
    memcpy(p, h, sizeof h);
}

#endif
