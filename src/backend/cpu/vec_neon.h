/* The vector vocabulary on NEON. Integer products are compiled three times: as they are on any such processor, with
 * VEC_DOTPROD and with VEC_I8MM. */
#ifndef MF_CPU_VEC_H
#define MF_CPU_VEC_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(VEC_I8MM)
#define SET(name) name##_i8mm
#elif defined(VEC_DOTPROD)
#define SET(name) name##_dotprod
#else
#define SET(name) name##_neon
#endif
#define WIDTH 4
#define TILE 8
#define TOKENS 8

#include "backend/cpu/vec.h"

/* acc + the sums of four products each of signed bytes. Two products of 128 * 127 fit in 16 bits. */
INLINE int32x4_t dot4_signed(int32x4_t acc, int8x16_t w, int8x16_t x) {
#if defined(VEC_DOTPROD)
    return vdotq_s32(acc, w, x);
#else
    int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));
    return vpadalq_s16(acc, pairs);
#endif
}

/* Without mixed signs, full bytes are w = (w - 128) + 128, and 128 * sum x is a second product. */
INLINE vi dot4(vi acc, vu8 w, vi8 x, int bits) {
#if defined(VEC_I8MM)
    (void)bits;
    return (vi)vusdotq_s32((int32x4_t)acc, (uint8x16_t)w, (int8x16_t)x);
#else
    if (bits < 8) return (vi)dot4_signed((int32x4_t)acc, (int8x16_t)w, (int8x16_t)x);
    int32x4_t low = dot4_signed((int32x4_t)acc, (int8x16_t)(w ^ 128), (int8x16_t)x);
    int32x4_t sums = vpaddlq_s16(vpaddlq_s8((int8x16_t)x));
    return (vi)vaddq_s32(low, vshlq_n_s32(sums, 7));
#endif
}

INLINE vu8 unpack_codes(const uint8_t *p, int bits, int n_bytes) {
    (void)n_bytes;
    if (bits == 8) return (vu8)vld1q_u8(p);
    if (bits == 4) {
        uint8x8_t packed = vld1_u8(p), low = vand_u8(packed, vdup_n_u8(15)), high = vshr_n_u8(packed, 4);
        return (vu8)vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high));
    }
    return (vu8)vcombine_u64(vcreate_u64(spread_codes(p, bits)), vcreate_u64(spread_codes(p + bits, bits)));
}

INLINE void transpose(vi *m) {
    int32x4x2_t a = vtrnq_s32((int32x4_t)m[0], (int32x4_t)m[1]), b = vtrnq_s32((int32x4_t)m[2], (int32x4_t)m[3]);
    for (int k = 0; k < 2; k++) {
        m[k] = (vi)vcombine_s32(vget_low_s32(a.val[k]), vget_low_s32(b.val[k]));
        m[2 + k] = (vi)vcombine_s32(vget_high_s32(a.val[k]), vget_high_s32(b.val[k]));
    }
}
INLINE void transpose4(vi *m) {
    transpose(m);
}

INLINE vi sum_groups(const vi *v, bool two) { /* v [4][1]; no vector has two groups */
    (void)two;
    return (vi)vpaddq_s32(vpaddq_s32((int32x4_t)v[0], (int32x4_t)v[1]), vpaddq_s32((int32x4_t)v[2], (int32x4_t)v[3]));
}

INLINE vf pick(vf v, vi from) {
    vi bytes = from * 0x04040404 + 0x03020100;
    return (vf)vqtbl1q_u8((uint8x16_t)v, (uint8x16_t)bytes);
}

/* table[code]; codes are below 16 */
INLINE vu8 lookup16(vu8 codes, const uint8_t *table) {
    return (vu8)vqtbl1q_u8(vld1q_u8(table), (uint8x16_t)codes);
}

INLINE float sum_lanes(vf v) {
    float32x2_t half = vadd_f32(vget_low_f32((float32x4_t)v), vget_high_f32((float32x4_t)v));
    return vpadds_f32(half);
}
INLINE float max_lanes(vf v) {
    return vmaxvq_f32((float32x4_t)v);
}
INLINE vf fma_of(vf a, vf b, vf c) {
    return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
INLINE vf max_of(vf a, vf b) {
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}
INLINE vf load_f16(const void *p) {
    uint16x4_t h;
    memcpy(&h, p, sizeof h);
    return (vf)vcvt_f32_f16(vreinterpret_f16_u16(h));
}
INLINE void store_f16(void *p, vf v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
}

#endif
