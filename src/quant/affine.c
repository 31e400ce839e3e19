/* MLX affine quantization: encode and decode of one row.
 *
 * Whatever the width, eight codes fill exactly `bits` bytes, and element i of a row starts at bit bits*i of the row.
 * So eight codes, one in each byte of a word, are pushed together into a pack of `bits` bytes, or drawn apart again,
 * in three steps. What happens to floats happens in loops over a group that have neither branches nor sums in order:
 * compilers turn them into vector instructions of the machine they compile for, and the result is the same on all.
 * Pointers may have any alignment: all loads go through memcpy. */
#include "quant/affine.h"

#include <math.h>

#include "quant/half.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "moeflux reads its files in place and needs a little-endian machine"
#endif

#define PACK 8 /* codes put together; divides every group size */
#define MAX_GROUP 128
_Static_assert(32 % PACK == 0, "a group is a whole number of packs");

bool mf__affine_bits_ok(int bits) {
    return bits >= 2 && bits <= 8 && bits != 7;
}

bool mf__affine_group_ok(int group) {
    return group == 32 || group == 64 || group == MAX_GROUP;
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

/* Eight codes, one in each byte: neighbours move together, then pairs, then the two halves. */
static inline uint64_t push_together(uint64_t w, int bits) {
    w = (w & 0x00ff00ff00ff00ffu) | (w & 0xff00ff00ff00ff00u) >> (8 - bits);
    w = (w & 0x0000ffff0000ffffu) | (w & 0xffff0000ffff0000u) >> (16 - 2 * bits);
    return (w & 0x00000000ffffffffu) | (w & 0xffffffff00000000u) >> (32 - 4 * bits);
}

/* The same steps backwards. */
static inline uint64_t draw_apart(uint64_t w, int bits) {
    const uint64_t half = (1ull << 4 * bits) - 1, pair = ((1ull << 2 * bits) - 1) * 0x0000000100000001u;
    const uint64_t one = ((1ull << bits) - 1) * 0x0001000100010001u;
    w = (w & half) | (w & half << 4 * bits) << (32 - 4 * bits);
    w = (w & pair) | (w & pair << 2 * bits) << (16 - 2 * bits);
    return (w & one) | (w & one << bits) << (8 - bits);
}

static inline __attribute__((always_inline)) void unpack(const uint8_t *packed, uint8_t *codes, int64_t n, int bits) {
    for (int64_t i = 0; i < n; i += PACK, packed += bits) {
        uint64_t word = draw_apart(load_pack(packed, bits), bits);
        memcpy(codes + i, &word, PACK);
    }
}

/* Neighbours of up to 4 bits, one in each byte, into one byte. */
static inline void pair_up(const uint8_t *codes, uint8_t *out, int64_t n, int bits) {
    for (int64_t i = 0; i < n / 2; i++) {
        uint16_t two;
        memcpy(&two, codes + 2 * i, sizeof two);
        out[i] = (uint8_t)(two | two >> (8 - bits));
    }
}

static inline __attribute__((always_inline)) void pack(const uint8_t *codes, uint8_t *packed, int64_t n, int bits) {
    if (bits == 4) {
        pair_up(codes, packed, n, 4);
        return;
    }
    for (int64_t i = 0; i < n; i += PACK, packed += bits) {
        uint64_t word;
        memcpy(&word, codes + i, PACK);
        word = push_together(word, bits);
        memcpy(packed, &word, (size_t)bits);
    }
}

/* Calls fn with the width a constant, so that each width has loops of its own. */
#define WITH_WIDTH(bits, fn, ...)                                                                                      \
    switch (bits) {                                                                                                    \
    case 2: fn(__VA_ARGS__, 2); break;                                                                                 \
    case 3: fn(__VA_ARGS__, 3); break;                                                                                 \
    case 4: fn(__VA_ARGS__, 4); break;                                                                                 \
    case 5: fn(__VA_ARGS__, 5); break;                                                                                 \
    case 6: fn(__VA_ARGS__, 6); break;                                                                                 \
    case 8: fn(__VA_ARGS__, 8); break;                                                                                 \
    default: break;                                                                                                    \
    }

float mf__affine_scale(const void *base, mf__type type, int64_t i) {
    uint16_t h;
    float f;
    if (type == MF_TYPE_F32) {
        memcpy(&f, (const uint8_t *)base + 4 * i, sizeof f);
        return f;
    }
    if (type == MF_TYPE_U8) return mf__bf16_to_f32(mf__e8m0_to_bf16(((const uint8_t *)base)[i]));
    memcpy(&h, (const uint8_t *)base + 2 * i, sizeof h);
    return type == MF_TYPE_BF16 ? mf__bf16_to_f32(h) : mf__f16_to_f32(h);
}

void mf__affine_scale_set(void *base, mf__type type, int64_t i, float f) {
    if (type == MF_TYPE_F32) {
        memcpy((uint8_t *)base + 4 * i, &f, sizeof f);
        return;
    }
    uint16_t h = type == MF_TYPE_BF16 ? mf__f32_to_bf16(f) : mf__f32_to_f16(f);
    memcpy((uint8_t *)base + 2 * i, &h, sizeof h);
}

/* ---- decode ---- */

void mf__affine_codes_row(const void *codes, int64_t n_cols, int bits, uint8_t *out) {
    WITH_WIDTH(bits, unpack, codes, out, n_cols);
}

void mf__affine_pack_row(const uint8_t *in, int64_t n_cols, int bits, void *codes) {
    WITH_WIDTH(bits, pack, in, codes, n_cols);
}

void mf__affine_decode_row(const void *codes, const void *scales, const void *biases, mf__type scale_type,
                           int64_t n_cols, int bits, int group, float *out) {
    const uint8_t *p = codes;
    for (int64_t g = 0; g < n_cols / group; g++, p += group / 8 * bits, out += group) {
        uint8_t code[MAX_GROUP];
        float scale = mf__affine_scale(scales, scale_type, g);
        float bias = biases ? mf__affine_scale(biases, scale_type, g) : -(float)(1 << (bits - 1)) * scale;
        WITH_WIDTH(bits, unpack, p, code, group);
        for (int i = 0; i < group; i++) out[i] = (float)code[i] * scale + bias;
    }
}

void mf__affine_centre(const void *scales, mf__type scale_type, int64_t n, int bits, void *biases) {
    for (int64_t i = 0; i < n; i++)
        mf__affine_scale_set(biases, scale_type, i,
                             -(float)(1 << (bits - 1)) * mf__affine_scale(scales, scale_type, i));
}

/* ---- encode ---- */

/* Four floats at once, on whatever the machine has for that. */
typedef float lanes __attribute__((vector_size(16)));
typedef int32_t masks __attribute__((vector_size(16)));

static inline lanes load(const float *x) {
    lanes v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline lanes choose(masks m, lanes yes, lanes no) {
    return (lanes)((m & (masks)yes) | (~m & (masks)no));
}

/* The smallest and the largest value. Every lane has its own, and the first value is where all start: a NaN there makes
 * both NaN, others are passed over. */
static void range(const float *x, int group, float *out_lo, float *out_hi) {
    lanes first = {x[0], x[0], x[0], x[0]}, lo[2] = {first, first}, hi[2] = {first, first};
    for (int i = 0; i < group; i += PACK)
        for (int k = 0; k < 2; k++) {
            lanes v = load(x + i + 4 * k);
            lo[k] = choose(v < lo[k], v, lo[k]);
            hi[k] = choose(v > hi[k], v, hi[k]);
        }
    lo[0] = choose(lo[1] < lo[0], lo[1], lo[0]);
    hi[0] = choose(hi[1] > hi[0], hi[1], hi[0]);
    *out_lo = lo[0][0];
    *out_hi = hi[0][0];
    for (int k = 1; k < 4; k++) {
        if (lo[0][k] < *out_lo) *out_lo = lo[0][k];
        if (hi[0][k] > *out_hi) *out_hi = hi[0][k];
    }
}

/* The scale and bias of a group. The end of the range that is farther from zero (the edge) is made exactly
 * representable, as is zero: the scale is adjusted so that it divides the edge. When the edge is the maximum the scale
 * is negative and codes count downward from it. */
static void choose_scale(const float *x, int group, int bits, float *out_scale, float *out_bias) {
    float lo, hi;
    range(x, group, &lo, &hi);
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

/* Nearest codes, ties to even. Clamping first gives the same result as clamping last (rounding is monotone and the
 * bounds are integers) and keeps the value where adding 2^23 rounds it to an integer. A NaN becomes 0. */
static void nearest(const float *x, int group, float scale, float bias, float max_code, uint8_t *codes) {
    for (int i = 0; i < group; i++) {
        float v = (x[i] - bias) / scale;
        v = v > 0 ? v : 0;
        v = v < max_code ? v : max_code;
        codes[i] = (uint8_t)(int)((v + 0x1p23f) - 0x1p23f);
    }
}

void mf__affine_choose_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type, void *scales,
                           void *biases) {
    for (int64_t g = 0; g < n_cols / group; g++) {
        float scale, bias;
        choose_scale(x + g * group, group, bits, &scale, &bias);
        mf__affine_scale_set(scales, scale_type, g, scale);
        mf__affine_scale_set(biases, scale_type, g, bias);
    }
}

void mf__affine_nearest_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type,
                            const void *scales, const void *biases, void *codes) {
    uint8_t *p = codes;
    for (int64_t g = 0; g < n_cols / group; g++, p += group / 8 * bits) {
        uint8_t code[MAX_GROUP];
        float scale = mf__affine_scale(scales, scale_type, g), bias = mf__affine_scale(biases, scale_type, g);
        nearest(x + g * group, group, scale, bias, (float)((1 << bits) - 1), code);
        WITH_WIDTH(bits, pack, code, p, group);
    }
}

void mf__affine_encode_row(const float *x, int64_t n_cols, int bits, int group, mf__type scale_type, void *codes,
                           void *scales, void *biases) {
    mf__affine_choose_row(x, n_cols, bits, group, scale_type, scales, biases);
    mf__affine_nearest_row(x, n_cols, bits, group, scale_type, scales, biases, codes);
}

void mf__affine_error(const float *x, const float *y, int n, float *error, float *total) {
    lanes e[2] = {{0}, {0}}, t[2] = {{0}, {0}};
    for (int i = 0; i < n; i += PACK)
        for (int k = 0; k < 2; k++) {
            lanes v = load(x + i + 4 * k), d = v - load(y + i + 4 * k);
            e[k] += d * d;
            t[k] += v * v;
        }
    e[0] += e[1];
    t[0] += t[1];
    *error = (e[0][0] + e[0][1]) + (e[0][2] + e[0][3]);
    *total = (t[0][0] + t[0][1]) + (t[0][2] + t[0][3]);
}
