/* MLX affine quantization: encode and decode of one row.
 *
 * Whatever the width, eight codes fill exactly `bits` bytes, and element i of a row starts at bit bits*i of the row.
 * So one pack of eight is loaded as a little-endian integer and taken apart by shifts; the loops are written once and
 * instantiated per width, with the width a constant. Pointers may have any alignment: all loads go through memcpy. */
#include "quant/affine.h"

#include <math.h>

#include "quant/half.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "moeflux reads its files in place and needs a little-endian machine"
#endif

#define PACK 8 /* codes taken apart together; divides every group size */
_Static_assert(32 % PACK == 0, "a group is a whole number of packs");

bool mf__affine_bits_ok(int bits) {
    return bits >= 2 && bits <= 8 && bits != 7;
}

bool mf__affine_group_ok(int group) {
    return group == 32 || group == 64 || group == 128;
}

/* The `bits` bytes of a pack, put together from whole loads of 8, 4, 2 and 1 bytes: a copy of an odd length through
 * memory would make every pack wait for the store buffer. */
static inline uint64_t load_pack(const uint8_t *p, int bits) {
    uint64_t u64 = 0;
    uint32_t u32 = 0;
    uint16_t u16 = 0;
    if (bits == 8) {
        memcpy(&u64, p, 8);
        return u64;
    }
    if (bits & 4) memcpy(&u32, p, 4);
    if (bits & 2) memcpy(&u16, p + (bits & 4), 2);
    u64 = u32 | (uint64_t)u16 << (bits & 4) * 8;
    return bits & 1 ? u64 | (uint64_t)p[bits - 1] << (bits - 1) * 8 : u64;
}

float mf__affine_scale(const void *base, mf__type type, int64_t i) {
    uint16_t h;
    float f;
    if (type == MF_TYPE_F32) {
        memcpy(&f, (const uint8_t *)base + 4 * i, sizeof f);
        return f;
    }
    memcpy(&h, (const uint8_t *)base + 2 * i, sizeof h);
    return type == MF_TYPE_BF16 ? mf__bf16_to_f32(h) : mf__f16_to_f32(h);
}

static void store_scale(void *base, mf__type type, int64_t i, float f) {
    if (type == MF_TYPE_F32) {
        memcpy((uint8_t *)base + 4 * i, &f, sizeof f);
        return;
    }
    uint16_t h = type == MF_TYPE_BF16 ? mf__f32_to_bf16(f) : mf__f32_to_f16(f);
    memcpy((uint8_t *)base + 2 * i, &h, sizeof h);
}

/* ---- decode ---- */

static inline __attribute__((always_inline)) void decode_group(const uint8_t *codes, int bits, int group, float scale,
                                                               float bias, float *restrict out) {
    const uint64_t mask = (1u << bits) - 1;
    for (int i = 0; i < group; i += PACK, codes += bits) {
        uint64_t word = load_pack(codes, bits);
        for (int k = 0; k < PACK; k++) out[i + k] = (float)(int)(word >> (bits * k) & mask) * scale + bias;
    }
}

void mf__affine_decode_row(const void *codes, const void *scales, const void *biases, mf__type scale_type,
                           int64_t n_cols, int bits, int group, float *out) {
    const uint8_t *p = codes;
    for (int64_t g = 0; g < n_cols / group; g++) {
        float scale = mf__affine_scale(scales, scale_type, g);
        float bias = biases ? mf__affine_scale(biases, scale_type, g) : -(float)(1 << (bits - 1)) * scale;
        switch (bits) {
        case 2: decode_group(p, 2, group, scale, bias, out); break;
        case 3: decode_group(p, 3, group, scale, bias, out); break;
        case 4: decode_group(p, 4, group, scale, bias, out); break;
        case 5: decode_group(p, 5, group, scale, bias, out); break;
        case 6: decode_group(p, 6, group, scale, bias, out); break;
        case 8: decode_group(p, 8, group, scale, bias, out); break;
        default: break;
        }
        p += group / 8 * bits;
        out += group;
    }
}

void mf__affine_centre(const void *scales, mf__type scale_type, int64_t n, int bits, void *biases) {
    for (int64_t i = 0; i < n; i++)
        store_scale(biases, scale_type, i, -(float)(1 << (bits - 1)) * mf__affine_scale(scales, scale_type, i));
}

void mf__affine_codes_row(const void *codes, int64_t n_cols, int bits, uint8_t *out) {
    const uint8_t *p = codes;
    for (int64_t i = 0; i < n_cols; i += PACK, p += bits) {
        uint64_t word = load_pack(p, bits);
        for (int k = 0; k < PACK; k++) out[i + k] = (uint8_t)(word >> (bits * k) & ((1u << bits) - 1));
    }
}

/* ---- encode ---- */

/* The scale and bias of a group. The end of the range that is farther from zero (the edge) is made exactly
 * representable, as is zero: the scale is adjusted so that it divides the edge. When the edge is the maximum the scale
 * is negative and codes count downward from it. */
static void choose_scale(const float *x, int group, int bits, float *out_scale, float *out_bias) {
    float lo = x[0], hi = x[0];
    for (int i = 1; i < group; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > hi) hi = x[i];
    }
    float scale = (hi - lo) / (float)((1 << bits) - 1), edge = lo;
    if (scale < 1e-7f) scale = 1e-7f; /* a constant group */
    if (!(fabsf(lo) > fabsf(hi))) {
        edge = hi;
        scale = -scale;
    }
    float steps = rintf(edge / scale);
    *out_scale = steps != 0 ? edge / steps : scale;
    *out_bias = steps != 0 ? edge : 0;
}

/* Nearest code, ties to even. Clamping first gives the same result as clamping last (rounding is monotone and the
 * bounds are integers) and keeps the value where adding 2^23 rounds it to an integer. A NaN becomes 0. */
static inline uint64_t code_of(float x, float scale, float bias, float max_code) {
    float v = (x - bias) / scale;
    v = v > 0 ? (v < max_code ? v : max_code) : 0;
    return (uint64_t)(int)((v + 0x1p23f) - 0x1p23f);
}

void mf__affine_encode_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type, void *codes,
                           void *scales, void *biases) {
    uint8_t *p = codes;
    const float max_code = (float)((1 << bits) - 1);
    for (int64_t g = 0; g < n_cols / group; g++, x += group) {
        float scale, bias;
        choose_scale(x, group, bits, &scale, &bias);
        store_scale(scales, scale_type, g, scale);
        store_scale(biases, scale_type, g, bias);
        scale = mf__affine_scale(scales, scale_type,
                                 g); /* what a reader will multiply with: the codes are nearest to that */
        bias = mf__affine_scale(biases, scale_type, g);
        for (int i = 0; i < group; i += PACK, p += bits) {
            uint64_t word = 0;
            for (int k = 0; k < PACK; k++) word |= code_of(x[i + k], scale, bias, max_code) << (bits * k);
            memcpy(p, &word, (size_t)bits);
        }
    }
}
