/* Affine quantization: the bit order, the values, and the choices of the encoder, each against a formulation that
 * shares nothing with the implementation, and against groups quantized by another MLX-compatible tool. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "quant/affine.h"
#include "quant/dense.h"
#include "quant/feedback.h"
#include "quant/fit.h"
#include "quant/gguf_types.h"
#include "quant/half.h"

#define MAX_COLS 512

static const int all_bits[] = {2, 3, 4, 5, 6, 8};
static const int all_groups[] = {32, 64, 128};
static const mf__type all_scales[] = {MF_TYPE_BF16, MF_TYPE_F16, MF_TYPE_F32};

#define EACH(i, array) for (size_t i = 0; i < MF__COUNT(array); i++)

/* A small generator so that the data is the same everywhere. */
static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static float random_float(uint32_t *seed) { /* in (-1, 1), with a bulge at 0 as weights have */
    float a = (float)next_random(seed) / 8388608.0f - 1.0f, b = (float)next_random(seed) / 8388608.0f - 1.0f;
    return a * b;
}

/* Element i of a row, bit by bit, from the definition: bit k of code i is bit bits*i + k of the row's bytes. */
static unsigned code_at(const uint8_t *row, int bits, int64_t i) {
    unsigned code = 0;
    for (int k = 0; k < bits; k++) {
        int64_t bit = bits * i + k;
        code |= (row[bit / 8] >> (bit % 8) & 1u) << k;
    }
    return code;
}

/* ---- groups taken from a checkpoint quantized elsewhere, bf16 in and out ---- */

static const struct {
    int bits;
    uint16_t scale, bias;
    uint16_t source[64];
    uint8_t codes[64];
} foreign[] = {
    {4,
     0x3d01,
     0xbe91,
     {
         0xbe2f, 0x3e5a, 0x3da6, 0xbd16, 0xbd63, 0xbe04, 0xbd94, 0xbe2b, 0x3e47, 0x3e58, 0xbd55, 0x3d68, 0x3d4d,
         0x3dbd, 0x3bdd, 0x3d5d, 0xbc1a, 0xbd61, 0xbde1, 0xbe22, 0xbe32, 0xbdd3, 0x3e1c, 0x3d0c, 0x3c0f, 0x3d6d,
         0xbe01, 0x3bc0, 0x3d4f, 0x3dc9, 0xbd81, 0x3de7, 0xbcb2, 0xbd8a, 0xbd45, 0x3d8c, 0x3d3e, 0xbde1, 0xbe42,
         0xbd95, 0xbdb9, 0xbd03, 0x3e01, 0xbdd5, 0x3ca9, 0x3c37, 0xbcd3, 0x3cbc, 0xbe89, 0xbdfd, 0x3cdd, 0xbd30,
         0xbd23, 0xbdf7, 0x3bc9, 0x3e21, 0xbd7c, 0xbe91, 0xbdcc, 0xbdf1, 0x3d1b, 0x3d23, 0x3d17, 0xbe36,
     },
     {
         0xf4, 0x8c, 0x57, 0x47, 0xff, 0xb7, 0xcb, 0xb9, 0x79, 0x46, 0x63, 0xae, 0xb9, 0x95, 0xcb, 0xd7,
         0x78, 0xb7, 0x6a, 0x73, 0x86, 0x6d, 0x9a, 0xa8, 0x50, 0x8a, 0x58, 0xe9, 0x07, 0x56, 0xaa, 0x3a,
     }},
    {4,
     0xbd20,
     0x3ea0,
     {
         0x3ddc, 0x3cd4, 0x3df0, 0xbe87, 0x3c77, 0xbca6, 0xbd85, 0xbd46, 0xbe42, 0x3e12, 0xbdd5, 0x3d96, 0x3d3d,
         0xbd46, 0xbe07, 0xbdf9, 0x3e0a, 0xbd5d, 0x3e8f, 0x3df9, 0x3c62, 0xbddc, 0xbd0d, 0x3e37, 0xbd97, 0x3e4a,
         0x3dc5, 0xbdf4, 0xbbe9, 0xbda4, 0x3ca8, 0x3c5a, 0xbb4e, 0xbdb3, 0xbe21, 0xbd58, 0x3ca7, 0x3e78, 0xbd9e,
         0x3c5f, 0xbe1a, 0x3c15, 0xbe5b, 0xbe66, 0x3ddc, 0x3d84, 0xbca4, 0x3da3, 0x3e0c, 0xbc7c, 0x3de2, 0x3ea0,
         0x3d57, 0x3cc4, 0xbe13, 0x3e44, 0xbe4d, 0x3dc0, 0x3dc6, 0xbd1b, 0x3e7a, 0x3db3, 0x3c81, 0xbdbb,
     },
     {
         0x75, 0xf5, 0x98, 0x9a, 0x4d, 0x6b, 0x97, 0xbb, 0x95, 0x51, 0xb8, 0x39, 0x3a, 0xb6, 0xa8, 0x87,
         0xa8, 0x9c, 0x27, 0x8a, 0x8c, 0xed, 0x65, 0x69, 0x84, 0x05, 0x77, 0x3c, 0x6d, 0x96, 0x62, 0xa8,
     }},
    {8,
     0x3b01,
     0xbe85,
     {
         0xbd9e, 0xbd26, 0x3d89, 0x3cc1, 0x3d6b, 0x3d43, 0x3bc5, 0xbda5, 0xbc16, 0x3e05, 0x3d2c, 0xbd41, 0x3d4e,
         0xbc32, 0xb8a0, 0x3d7b, 0x3d8e, 0xbd6b, 0xbdf2, 0xbd4e, 0x3dab, 0xbe42, 0xbbc0, 0x3e08, 0xbdd9, 0x3db7,
         0x3df6, 0x3d92, 0x3d42, 0x3cf8, 0xbe57, 0xbe4b, 0x3e10, 0xbd1b, 0xbe85, 0x3d51, 0xbe7c, 0x3e4b, 0xbd1e,
         0x3a98, 0x3cc0, 0x3d98, 0x3d9c, 0xbdae, 0x3c9a, 0x3e4c, 0x3e22, 0xbd6a, 0x3d9a, 0xbcfe, 0x3e79, 0x3e0a,
         0x3e56, 0xbdae, 0xbc1b, 0x3d95, 0xbde9, 0x3de0, 0xbdd3, 0xbe1b, 0xbd1e, 0x3e76, 0x39fc, 0x3e13,
     },
     {
         0x5d, 0x6f, 0xa6, 0x90, 0xa1, 0x9c, 0x87, 0x5b, 0x7f, 0xc6, 0x99, 0x6c, 0x9e, 0x7e, 0x84, 0xa3,
         0xa7, 0x67, 0x48, 0x6a, 0xae, 0x24, 0x81, 0xc7, 0x4e, 0xb1, 0xc1, 0xa8, 0x9c, 0x93, 0x19, 0x1f,
         0xcb, 0x71, 0x00, 0x9e, 0x07, 0xe9, 0x70, 0x85, 0x90, 0xaa, 0xab, 0x59, 0x8e, 0xe9, 0xd4, 0x67,
         0xaa, 0x74, 0xff, 0xc8, 0xee, 0x59, 0x7f, 0xa9, 0x4a, 0xbc, 0x50, 0x37, 0x70, 0xfe, 0x84, 0xcd,
     }},
    {8,
     0xbb03,
     0x3e83,
     {
         0xbd1f, 0xbe21, 0xbd92, 0x3e22, 0xbd19, 0x3e1a, 0xbc81, 0xbc4a, 0x3d02, 0xbc2d, 0x3db6, 0x3d90, 0x3d4a,
         0x3e04, 0x3e83, 0xbc85, 0x3c81, 0x3dc1, 0xbdf4, 0xbe81, 0xbda1, 0xbcbd, 0xbc14, 0x3d02, 0x3ce9, 0x3d57,
         0xbe07, 0xbe53, 0xbde6, 0xbe3f, 0xbd4d, 0xbd40, 0x3dee, 0xbcbb, 0x3c3b, 0x3d87, 0xbd42, 0x3ded, 0x3d07,
         0x3da1, 0xbd23, 0x3e53, 0xbd97, 0x3e25, 0xbe1e, 0xbe64, 0xbe35, 0x3c66, 0xbcd9, 0x3e33, 0xbe68, 0xbd27,
         0x3ded, 0xbe15, 0xbe5e, 0xbdbf, 0xbdd3, 0xbe13, 0x3d66, 0x3e06, 0xbd01, 0xbe31, 0x3db0, 0xbdaa,
     },
     {
         0x93, 0xcf, 0xa4, 0x31, 0x93, 0x35, 0x88, 0x86, 0x70, 0x85, 0x54, 0x5d, 0x67, 0x40, 0x00, 0x88,
         0x78, 0x51, 0xbc, 0xfe, 0xa7, 0x8c, 0x85, 0x70, 0x72, 0x66, 0xc2, 0xe7, 0xb8, 0xdd, 0x99, 0x97,
         0x46, 0x8b, 0x7a, 0x5f, 0x98, 0x46, 0x70, 0x59, 0x94, 0x19, 0xa5, 0x2f, 0xcd, 0xef, 0xd8, 0x79,
         0x8d, 0x29, 0xf1, 0x94, 0x46, 0xc9, 0xec, 0xaf, 0xb4, 0xc8, 0x64, 0x3f, 0x90, 0xd6, 0x55, 0xaa,
     }},
};

static void foreign_groups(void **state) {
    (void)state;
    EACH(f, foreign) {
        float x[64], y[64];
        for (int i = 0; i < 64; i++) x[i] = mf__bf16_to_f32(foreign[f].source[i]);
        int bits = foreign[f].bits;
        uint8_t codes[64];
        uint16_t scale, bias;
        mf__affine_encode_row(x, 64, bits, 64, MF_TYPE_BF16, codes, &scale, &bias);
        assert_int_equal(scale, foreign[f].scale);
        assert_int_equal(bias, foreign[f].bias);
        assert_memory_equal(codes, foreign[f].codes, (size_t)bits * 8);
        mf__affine_decode_row(codes, &scale, &bias, MF_TYPE_BF16, 64, bits, 64, y);
        float step = fabsf(mf__bf16_to_f32(scale));
        for (int i = 0; i < 64; i++) assert_true(fabsf(x[i] - y[i]) < 1.25f * step);
    }
}

/* ---- bit order, by hand ---- */

static void bit_order(void **state) {
    (void)state;
    /* the row counts 0, 1, 2, ... modulo 2^bits; the first bytes written out by hand */
    static const struct {
        int bits;
        uint8_t bytes[8];
    } expected[] = {
        {2, {0xe4, 0xe4, 0xe4, 0xe4, 0xe4, 0xe4, 0xe4, 0xe4}}, {3, {0x88, 0xc6, 0xfa, 0x88, 0xc6, 0xfa, 0x88, 0xc6}},
        {4, {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe}}, {5, {0x20, 0x88, 0x41, 0x8a, 0x39, 0x28, 0xa9, 0xc5}},
        {6, {0x40, 0x20, 0x0c, 0x44, 0x61, 0x1c, 0x48, 0xa2}}, {8, {0, 1, 2, 3, 4, 5, 6, 7}},
    };
    EACH(e, expected) {
        int bits = expected[e].bits;
        uint8_t row[64] = {0}, codes[64];
        memcpy(row, expected[e].bytes, 8);
        int whole = 64 / bits / 8 * 8; /* codes of the packs that lie in these eight bytes */
        mf__affine_codes_row(row, whole, bits, codes);
        for (int i = 0; i < whole; i++) assert_int_equal(codes[i], i & ((1 << bits) - 1));
        /* and out again: a row whose values are its codes, anchored by 0 and the largest code */
        float x[64];
        float scale;
        float bias;
        uint8_t out[64];
        for (int i = 0; i < 64; i++) x[i] = -(float)(i & ((1 << bits) - 1)) / (float)((1 << bits) - 1);
        x[63] = -1.0f;
        mf__affine_encode_row(x, 64, bits, 64, MF_TYPE_F32, out, &scale, &bias);
        assert_true(bias == -1.0f && scale > 0);
        for (int i = 0; i < 63; i++)
            assert_int_equal(code_at(out, bits, i), ((1 << bits) - 1) - (i & ((1 << bits) - 1)));
    }
}

/* ---- decode ---- */

static void put_scale(uint8_t *base, mf__type type, int64_t i, float f, float *stored) {
    uint16_t h = type == MF_TYPE_BF16 ? mf__f32_to_bf16(f) : mf__f32_to_f16(f);
    if (type == MF_TYPE_F32) {
        memcpy(base + 4 * i, &f, 4);
        *stored = f;
    } else {
        memcpy(base + 2 * i, &h, 2);
        *stored = type == MF_TYPE_BF16 ? mf__bf16_to_f32(h) : mf__f16_to_f32(h);
    }
}

/* Random bytes are random codes. Every combination, at addresses of every alignment. */
static void decode_one(int bits, int group, mf__type scale_type, int shift, uint32_t *seed) {
    const int64_t n = MAX_COLS;
    size_t n_bytes = (size_t)(n * bits / 8);
    uint8_t codes[MAX_COLS + 8], scales[4 * MAX_COLS / 32 + 8], biases[4 * MAX_COLS / 32 + 8];
    float s[MAX_COLS / 32], b[MAX_COLS / 32], out[MAX_COLS];
    for (size_t i = 0; i < n_bytes; i++) codes[(size_t)shift + i] = (uint8_t)next_random(seed);
    for (int64_t g = 0; g < n / group; g++) {
        put_scale(scales + shift, scale_type, g, random_float(seed), &s[g]);
        put_scale(biases + shift, scale_type, g, random_float(seed), &b[g]);
    }
    mf__tensor t = {.type = MF_TYPE_AFFINE,
                    .n_planes = 1,
                    .n_rows = 1,
                    .n_cols = n,
                    .data = codes + shift,
                    .bits = bits,
                    .group = group,
                    .scale_type = scale_type,
                    .scales = scales + shift,
                    .biases = biases + shift};
    mf__tensor_row_f32(&t, 0, out);
    for (int64_t i = 0; i < n; i++) {
        volatile float product = (float)code_at(codes + shift, bits, i) * s[i / group];
        volatile float want = product + b[i / group];
        assert_memory_equal(&out[i], (const float *)&want, sizeof(float));
    }
}

static void decode_everything(void **state) {
    (void)state;
    uint32_t seed = 1;
    EACH(b, all_bits)
    EACH(g, all_groups)
    EACH(s, all_scales)
    for (int shift = 0; shift < 8; shift++) decode_one(all_bits[b], all_groups[g], all_scales[s], shift, &seed);
}

/* 3 * (1 + 2^-23) - 3 is 2^-22 or 2^-21 with two roundings and 3 * 2^-23 with one: no fused multiply-add. */
static void decode_rounds_twice(void **state) {
    (void)state;
    uint8_t codes[64];
    memset(codes, 0x33, sizeof codes);
    float scale = 1.0f + 0x1p-23f, bias = -3.0f, out[64];
    mf__affine_decode_row(codes, &scale, &bias, MF_TYPE_F32, 64, 4, 64, out);
    volatile float product = 3.0f * scale;
    for (int i = 0; i < 64; i++) {
        assert_true(out[i] == product + bias);
        assert_true(out[i] != 3 * 0x1p-23f);
    }
}

/* ---- encode ---- */

/* The encoder's rule, element by element. */
static void check_group(const float *x, int bits, int group, const uint8_t *row, int64_t first, float got_scale,
                        float got_bias) {
    float lo = INFINITY, hi = -INFINITY, n = (float)((1 << bits) - 1);
    for (int i = 0; i < group; i++) {
        lo = fminf(lo, x[i]);
        hi = fmaxf(hi, x[i]);
    }
    bool low_side = fabsf(lo) > fabsf(hi);
    float edge = low_side ? lo : hi, scale = fmaxf((hi - lo) / n, 1e-7f);
    if (!low_side) scale = -scale;
    float q0 = rintf(edge / scale), bias = 0;
    if (q0 != 0) {
        scale = edge / q0;
        bias = edge;
    }
    assert_true(got_scale == scale);
    assert_true(got_bias == bias);
    for (int i = 0; i < group; i++) {
        float q = fminf(fmaxf(rintf((x[i] - bias) / scale), 0), n);
        assert_int_equal(code_at(row, bits, first + i), (int)q);
    }
}

static void encode_everything(void **state) {
    (void)state;
    uint32_t seed = 7;
    EACH(b, all_bits)
    EACH(g, all_groups)
    for (int round = 0; round < 20; round++) {
        int bits = all_bits[b], group = all_groups[g];
        float x[MAX_COLS], scales[MAX_COLS / 32], biases[MAX_COLS / 32];
        uint16_t half_scales[MAX_COLS / 32], half_biases[MAX_COLS / 32];
        uint8_t codes[MAX_COLS], again[MAX_COLS];
        float shift = round % 4 == 1 ? 2.0f : round % 4 == 2 ? -2.0f : 0.0f;
        for (int i = 0; i < MAX_COLS; i++) x[i] = random_float(&seed) + shift;
        mf__affine_encode_row(x, MAX_COLS, bits, group, MF_TYPE_F32, codes, scales, biases);
        for (int64_t k = 0; k < MAX_COLS / group; k++)
            check_group(x + k * group, bits, group, codes, k * group, scales[k], biases[k]);
        /* smaller scales are rounded first, and each code is the nearest one for what was stored */
        EACH(s, all_scales) {
            if (all_scales[s] == MF_TYPE_F32) continue;
            bool bf16 = all_scales[s] == MF_TYPE_BF16;
            mf__affine_encode_row(x, MAX_COLS, bits, group, all_scales[s], again, half_scales, half_biases);
            uint8_t nearest[MAX_COLS];
            mf__affine_codes_row(again, MAX_COLS, bits, nearest);
            for (int i = 0; i < MAX_COLS; i++) {
                double scale = bf16 ? mf__bf16_to_f32(half_scales[i / group]) : mf__f16_to_f32(half_scales[i / group]);
                double bias = bf16 ? mf__bf16_to_f32(half_biases[i / group]) : mf__f16_to_f32(half_biases[i / group]);
                double error = fabs(nearest[i] * scale + bias - (double)x[i]);
                for (int code = 0; code < 1 << bits; code++)
                    assert_true(error <= fabs(code * scale + bias - (double)x[i]) + 1e-6 * fabs(scale));
            }
            for (int64_t k = 0; k < MAX_COLS / group; k++) {
                assert_int_equal(half_scales[k], bf16 ? mf__f32_to_bf16(scales[k]) : mf__f32_to_f16(scales[k]));
                assert_int_equal(half_biases[k], bf16 ? mf__f32_to_bf16(biases[k]) : mf__f32_to_f16(biases[k]));
            }
        }
    }
}

/* ---- the encoder, plainly: one value after the other, one bit after the other ---- */

static void plain_group(const float *x, int bits, int group, mf__type scale_type, uint8_t *codes, uint8_t *scale_to,
                        uint8_t *bias_to) {
    float lo = x[0], hi = x[0], top = (float)((1 << bits) - 1), scale, bias;
    for (int i = 1; i < group; i++) {
        if (x[i] < lo) lo = x[i];
        if (x[i] > hi) hi = x[i];
    }
    float step = (hi - lo) / top, edge = fabsf(lo) > fabsf(hi) ? lo : hi;
    if (step < 1e-7f) step = 1e-7f;
    if (!(fabsf(lo) > fabsf(hi))) step = -step;
    float steps = rintf(edge / step);
    put_scale(scale_to, scale_type, 0, steps != 0 ? edge / steps : step, &scale);
    put_scale(bias_to, scale_type, 0, steps != 0 ? edge : 0, &bias);
    memset(codes, 0, (size_t)(group / 8 * bits));
    for (int i = 0; i < group; i++) {
        float v = rintf((x[i] - bias) / scale);
        unsigned code = v > 0 ? (unsigned)(v < top ? v : top) : 0;
        for (int k = 0; k < bits; k++) codes[(bits * i + k) / 8] |= (uint8_t)((code >> k & 1) << (bits * i + k) % 8);
    }
}

/* Rows that are hard on an encoder. */
static void hard_row(int kind, float *x, uint32_t *seed) {
    static const float corners[] = {0.0f, -0.0f, 0x1p-149f, -0x1p-140f, 3e38f, -3e38f, 1.0f, -1.0f};
    for (int i = 0; i < MAX_COLS; i++) {
        uint32_t r = next_random(seed);
        switch (kind) {
        case 0: x[i] = random_float(seed); break;
        case 1: x[i] = (float)(r % 31) * 0.5f - 7.5f; break;             /* halves: ties */
        case 2: x[i] = (float)(r % 511) * -0.5f; break;                  /* ties of 8 bits, all on one side */
        case 3: x[i] = 0.375f; break;                                    /* all equal */
        case 4: x[i] = (float)(int)(r % 2001 - 1000) * 0x1p-149f; break; /* subnormal */
        case 5: x[i] = random_float(seed) * 3e38f; break;                /* the range overflows */
        case 6: x[i] = r & 1 ? 0.0f : -0.0f; break;
        case 7: x[i] = corners[r % 8]; break;
        case 8: x[i] = random_float(seed) * 1e-7f; break; /* steps as small as the smallest */
        case 9: x[i] = r % 40 ? random_float(seed) : NAN; break;
        case 10: x[i] = r % 40 ? random_float(seed) : r & 64 ? INFINITY : -INFINITY; break;
        default: x[i] = r % 100 ? 1e-3f * random_float(seed) : 5.0f; break; /* outliers */
        }
    }
}
#define HARD_KINDS 12

static void assert_same_scale(mf__type type, const uint8_t *a, const uint8_t *b) {
    if (!isnan(mf__affine_scale(a, type, 0)) || !isnan(mf__affine_scale(b, type, 0)))
        assert_memory_equal(a, b, type == MF_TYPE_F32 ? 4 : 2);
}

static void hard_rows(int bits, int group, mf__type scale_type, int kind, uint32_t *seed) {
    const size_t size = scale_type == MF_TYPE_F32 ? 4 : 2, bytes = (size_t)(group / 8 * bits);
    float x[MAX_COLS];
    uint8_t codes[MAX_COLS], scales[4 * MAX_COLS / 32], biases[4 * MAX_COLS / 32], want[128], scale[4], bias[4];
    hard_row(kind, x, seed);
    mf__affine_encode_row(x, MAX_COLS, bits, group, scale_type, codes, scales, biases);
    for (size_t g = 0; g < (size_t)(MAX_COLS / group); g++) {
        plain_group(x + g * (size_t)group, bits, group, scale_type, want, scale, bias);
        assert_memory_equal(codes + g * bytes, want, bytes);
        assert_same_scale(scale_type, scales + g * size, scale);
        assert_same_scale(scale_type, biases + g * size, bias);
    }
}

static void encode_as_plainly(void **state) {
    (void)state;
    uint32_t seed = 3;
    EACH(b, all_bits)
    EACH(g, all_groups)
    EACH(s, all_scales)
    for (int round = 0; round < 4 * HARD_KINDS; round++)
        hard_rows(all_bits[b], all_groups[g], all_scales[s], round % HARD_KINDS, &seed);
}

/* Sums of squares to within the rounding of their terms, with every place of the group counted once. */
static void errors_add_up(void **state) {
    (void)state;
    uint32_t seed = 5;
    EACH(g, all_groups) {
        float x[128], y[128], error, total;
        double want_error = 0, want_total = 0;
        for (int i = 0; i < all_groups[g]; i++) {
            x[i] = random_float(&seed);
            y[i] = x[i] + random_float(&seed) / 64;
            want_error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
            want_total += (double)x[i] * x[i];
        }
        mf__affine_error(x, y, all_groups[g], &error, &total);
        assert_true(fabs(error - want_error) <= 1e-5 * want_error);
        assert_true(fabs(total - want_total) <= 1e-5 * want_total);
        for (int i = 0; i < all_groups[g]; i++) {
            memset(x, 0, sizeof x);
            memset(y, 0, sizeof y);
            x[i] = 3;
            y[i] = 1;
            mf__affine_error(x, y, all_groups[g], &error, &total);
            assert_true(error == 4 && total == 9);
        }
    }
}

/* The edge of the range and zero survive exactly (with f32 scales), the rest within half a step; only the other end,
 * which the adjusted scale may not reach, is cut by up to one. */
static void encode_is_near(void **state) {
    (void)state;
    uint32_t seed = 99;
    EACH(b, all_bits) {
        float x[64], y[64], scale, bias;
        uint8_t codes[64];
        for (int i = 0; i < 64; i++) x[i] = random_float(&seed);
        x[10] = 0;
        x[20] = -1.5f;
        mf__affine_encode_row(x, 64, all_bits[b], 64, MF_TYPE_F32, codes, &scale, &bias);
        mf__affine_decode_row(codes, &scale, &bias, MF_TYPE_F32, 64, all_bits[b], 64, y);
        assert_true(y[20] == -1.5f);
        assert_true(fabsf(y[10]) <= 1e-6f);
        for (int i = 0; i < 64; i++) {
            bool last = code_at(codes, all_bits[b], i) == (1u << all_bits[b]) - 1;
            assert_true(fabsf(x[i] - y[i]) <= (last ? 1.0001f : 0.5001f) * fabsf(scale));
        }
    }
}

static void encode_ties_to_even(void **state) {
    (void)state;
    /* range 0 ... -15 with 4 bits: step 1 from -15; -15 + k + 0.5 lies between codes k and k + 1 */
    float x[32] = {-15.0f, 0.0f}, scale, bias;
    uint8_t codes[16];
    for (int k = 0; k < 15; k++) x[2 + k] = -15.0f + (float)k + 0.5f;
    mf__affine_encode_row(x, 32, 4, 32, MF_TYPE_F32, codes, &scale, &bias);
    assert_true(scale == 1.0f && bias == -15.0f);
    for (int k = 0; k < 15; k++) assert_int_equal(code_at(codes, 4, 2 + k), k & 1 ? k + 1 : k);
}

/* Both ends equally far from zero: the upper one is the edge. */
static void encode_symmetric(void **state) {
    (void)state;
    float x[32] = {-7.5f, 7.5f, 7.0f}, scale, bias;
    uint8_t codes[16];
    mf__affine_encode_row(x, 32, 4, 32, MF_TYPE_F32, codes, &scale, &bias);
    assert_true(bias == 7.5f && scale < 0);
    assert_int_equal(code_at(codes, 4, 1), 0);
}

static void encode_degenerate(void **state) {
    (void)state;
    float x[32], y[32], scale, bias;
    uint8_t codes[32];
    static const float constants[] = {0.0f, -0.0f, 1.0f, -3.25f, 1e-9f, 1e30f};
    EACH(c, constants) {
        for (int i = 0; i < 32; i++) x[i] = constants[c];
        mf__affine_encode_row(x, 32, 8, 32, MF_TYPE_F32, codes, &scale, &bias);
        mf__affine_decode_row(codes, &scale, &bias, MF_TYPE_F32, 32, 8, 32, y);
        for (int i = 0; i < 32; i++) assert_true(fabsf(y[i] - x[i]) <= 1e-7f * fmaxf(1, fabsf(x[i])));
    }
    /* not numbers: no trap, codes stay in range by construction */
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    EACH(c, odd) {
        EACH(b, all_bits) {
            for (int i = 0; i < 32; i++) x[i] = (float)i;
            x[c + 3] = odd[c];
            mf__affine_encode_row(x, 32, all_bits[b], 32, MF_TYPE_F32, codes, &scale, &bias);
        }
    }
}

/* ---- the fitted encoder ---- */

typedef struct encoded {
    uint8_t codes[MAX_COLS], scales[MAX_COLS], biases[MAX_COLS];
} encoded;

/* The squared error of a row; level 0: by MLX's rule. */
static double encode_with(int level, const float *x, int bits, int group, mf__type type, encoded *to) {
    float y[MAX_COLS];
    double error = 0;
    memset(to, 0, sizeof *to);
    if (level)
        mf__affine_fit_row(x, MAX_COLS, bits, group, type, level, to->codes, to->scales, to->biases);
    else
        mf__affine_encode_row(x, MAX_COLS, bits, group, type, to->codes, to->scales, to->biases);
    mf__affine_decode_row(to->codes, to->scales, to->biases, type, MAX_COLS, bits, group, y);
    for (int i = 0; i < MAX_COLS; i++) error += (double)(x[i] - y[i]) * (x[i] - y[i]);
    return error;
}

/* Never worse than MLX's rule, clearly better on values as weights have them (sums of a few random ones), and the same
 * bytes on every instruction set. */
static void fitting_is_better(void **state) {
    (void)state;
    static const double MOST[] = {[2] = 0.7, [3] = 0.82, [4] = 0.92, [5] = 0.98, [6] = 1, [8] = 1};
    uint32_t seed = 5;
    EACH(b, all_bits) EACH(g, all_groups) EACH(s, all_scales) {
        double plain = 0, fitted = 0;
        for (int round = 0; round < 20; round++) {
            float x[MAX_COLS];
            encoded by_rule, by_fit, again;
            for (int i = 0; i < MAX_COLS; i++) {
                x[i] = round % 4 == 3 ? 1.5f : 0;
                for (int k = 0; k < 4; k++) x[i] += random_float(&seed);
                /* as BF16 and F16 have them, of which some products are exact; then groups of both kinds together */
                if (round % 5 == 1) x[i] = mf__bf16_to_f32(mf__f32_to_bf16(x[i]));
                if (round % 5 == 2) x[i] = mf__f16_to_f32(mf__f32_to_f16(x[i]));
                if (round % 5 == 3 && i % 192 > 64) x[i] = mf__bf16_to_f32(mf__f32_to_bf16(x[i]));
            }
            double rule = encode_with(0, x, all_bits[b], all_groups[g], all_scales[s], &by_rule);
            double fit = encode_with(1, x, all_bits[b], all_groups[g], all_scales[s], &by_fit);
            for (int level = 2; level <= mf__affine_fit_levels(); level++) {
                encode_with(level, x, all_bits[b], all_groups[g], all_scales[s], &again);
                assert_memory_equal(&by_fit, &again, sizeof again);
            }
            assert_true(fit <= rule * (1 + 1e-5));
            plain += rule;
            fitted += fit;
        }
        if (!(fitted <= plain * MOST[all_bits[b]]))
            fail_msg("%d bits, groups of %d: %g of the error", all_bits[b], all_groups[g], fitted / plain);
    }
}

/* A group's bytes do not depend on the groups beside it, of which any number may be in a row, nor on the instruction
 * set; what is lost is told as by decoding. */
static void groups_stay_apart(void **state) {
    (void)state;
    static const float odd[] = {NAN, INFINITY, 3e38f, 1e-42f, 0};
    uint32_t seed = 3;
    EACH(b, all_bits)
    EACH(g, all_groups) EACH(s, all_scales) for (int level = 1; level <= mf__affine_fit_levels(); level++) {
        float x[MAX_COLS], y[MAX_COLS];
        encoded whole;
        mf__fit_loss loss[MAX_COLS / 32];
        int bits = all_bits[b], group = all_groups[g], n = MAX_COLS / group, scale = mf__type_bits(all_scales[s]) / 8;
        for (int i = 0; i < MAX_COLS; i++) x[i] = mf__bf16_to_f32(mf__f32_to_bf16(random_float(&seed) * 0.01f));
        EACH(o, odd) x[(int)(o * MAX_COLS / 6) + 7] = odd[o];
        mf__tensor form = {.n_cols = MAX_COLS, .bits = bits, .group = group, .scale_type = all_scales[s]};
        mf__affine_fit_weighted_row(x, NULL, &form, level,
                                    &(mf__fit_out){whole.codes, whole.scales, whole.biases, loss});
        mf__affine_decode_row(whole.codes, whole.scales, whole.biases, all_scales[s], MAX_COLS, bits, group, y);
        for (int k = 0; k < n; k++) {
            encoded alone;
            float error, total;
            mf__affine_fit_row(x + k * group, group, bits, group, all_scales[s], 1, alone.codes, alone.scales,
                               alone.biases);
            assert_memory_equal(alone.codes, whole.codes + k * group / 8 * bits, (size_t)(group / 8 * bits));
            assert_memory_equal(alone.scales, whole.scales + k * scale, (size_t)scale);
            assert_memory_equal(alone.biases, whole.biases + k * scale, (size_t)scale);
            mf__affine_error(x + k * group, y + k * group, group, &error, &total);
            assert_true(error == loss[k].error || (isnan(error) && isnan(loss[k].error)));
            assert_true(total == loss[k].total || (isnan(total) && isnan(loss[k].total)));
        }
    }
}

/* Where there is nothing to be fitted, or no number, the rule's result stays. */
static void fitting_of_odd_groups(void **state) {
    (void)state;
    static const float odd[] = {0, -3.25f, 1e-30f, 1e38f, NAN, INFINITY, -INFINITY};
    EACH(o, odd) EACH(b, all_bits) EACH(s, all_scales) {
        float x[MAX_COLS];
        encoded by_rule, by_fit;
        for (int i = 0; i < MAX_COLS; i++) x[i] = odd[o];
        encode_with(0, x, all_bits[b], 64, all_scales[s], &by_rule);
        encode_with(mf__affine_fit_levels(), x, all_bits[b], 64, all_scales[s], &by_fit);
        assert_memory_equal(&by_rule, &by_fit, sizeof by_fit);
    }
}

/* ---- with a calibration ---- */

static double weighted_error(const float *x, const float *w, const mf__tensor *form, const encoded *e) {
    float y[MAX_COLS];
    double error = 0;
    mf__affine_decode_row(e->codes, e->scales, e->biases, form->scale_type, MAX_COLS, form->bits, form->group, y);
    for (int i = 0; i < MAX_COLS; i++) error += w[i] * (double)(x[i] - y[i]) * (x[i] - y[i]);
    return error;
}

/* Never a larger weighted error than without weights, clearly a smaller one in sum at few bits, and the same bytes on
 * every instruction set. Weights that are all alike, or all zero, do no harm. */
static void weights_count(void **state) {
    (void)state;
    uint32_t seed = 9;
    EACH(b, all_bits) EACH(g, all_groups) EACH(s, all_scales) {
        mf__tensor form = {
            .n_cols = MAX_COLS, .bits = all_bits[b], .group = all_groups[g], .scale_type = all_scales[s]};
        double without = 0, with = 0;
        for (int round = 0; round < 20; round++) {
            float x[MAX_COLS], w[MAX_COLS];
            encoded plain, weighted, again;
            memset(&weighted, 0, sizeof weighted);
            for (int i = 0; i < MAX_COLS; i++) {
                x[i] = random_float(&seed) + random_float(&seed) + random_float(&seed);
                w[i] = random_float(&seed);
                w[i] = round == 18 ? 1 : round == 19 ? 0 : i % 7 ? w[i] * w[i] : 9 * w[i] * w[i];
            }
            encode_with(1, x, form.bits, form.group, form.scale_type, &plain);
            mf__affine_fit_weighted_row(x, w, &form, 1,
                                        &(mf__fit_out){weighted.codes, weighted.scales, weighted.biases, NULL});
            for (int level = 2; level <= mf__affine_fit_levels(); level++) {
                memset(&again, 0, sizeof again);
                mf__affine_fit_weighted_row(x, w, &form, level,
                                            &(mf__fit_out){again.codes, again.scales, again.biases, NULL});
                assert_memory_equal(&weighted, &again, sizeof again);
            }
            double one = weighted_error(x, w, &form, &plain), two = weighted_error(x, w, &form, &weighted);
            assert_true(two <= one * (1 + 1e-5));
            without += one;
            with += two;
        }
        if (form.bits <= 3) assert_true(with < 0.95 * without);
    }
}

enum { DENSE = 160, INPUTS = 600 };

/* Inputs whose columns go together, as those of models do, and the mean of their products. */
static void correlated(float *x, float *h, uint32_t *seed, mf__pool *pool) {
    for (int i = 0; i < INPUTS; i++) {
        float common = random_float(seed) * 3;
        for (int k = 0; k < DENSE; k++)
            x[i * DENSE + k] = common + random_float(seed) + (k ? 0.7f * x[i * DENSE + k - 1] : 0);
    }
    memset(h, 0, DENSE * DENSE * sizeof *h);
    mf__product p = {.m = DENSE,
                     .n = DENSE,
                     .k = INPUTS,
                     .a = x,
                     .a_i = 1,
                     .a_k = DENSE,
                     .b = x,
                     .b_k = DENSE,
                     .c = h,
                     .c_i = DENSE};
    mf__product_run(&p, pool);
}

/* Products against their formula; the factor multiplied out; both with the same bits for any number of threads. */
static void products_and_factors(void **state) {
    (void)state;
    static float x[INPUTS * DENSE], h[DENSE * DENSE], first[DENSE * DENSE], m[DENSE * DENSE], scratch[64 * DENSE];
    for (int threads = 1; threads <= 3; threads++) {
        uint32_t seed = 3;
        mf__pool *pool;
        assert_int_equal(mf__pool_create(threads, &pool, NULL), MF_OK);
        correlated(x, h, &seed, pool);
        for (int i = 0; i < DENSE; i += 13)
            for (int j = 0; j < DENSE; j++) {
                double sum = 0;
                for (int k = 0; k < INPUTS; k++) sum += (double)x[k * DENSE + i] * x[k * DENSE + j];
                assert_true(fabs(sum - h[i * DENSE + j]) < 1e-4 * h[0] * DENSE);
            }
        memcpy(m, h, sizeof m);
        assert_true(mf__factor_upper(m, DENSE, scratch, pool));
        for (int i = 0; i < DENSE; i++)
            for (int j = i; j < DENSE; j++) {
                double sum = 0;
                for (int k = j; k < DENSE; k++) sum += (double)m[i * DENSE + k] * m[j * DENSE + k];
                assert_true(fabs(sum - h[i * DENSE + j]) < 1e-3 * h[i * DENSE + i] + 1e-3 * h[j * DENSE + j]);
            }
        float row[DENSE];
        for (int i = 0; i < DENSE; i++) row[i] = h[5 * DENSE + i] + 2 * h[77 * DENSE + i];
        mf__factor_solve(m, DENSE, row, 1, pool);
        for (int i = 0; i < DENSE; i++) assert_true(fabsf(row[i] - (i == 5 ? 1 : i == 77 ? 2 : 0)) < 0.02f);
        for (int i = 1; i < DENSE; i++)
            for (int j = 0; j < i; j++) m[i * DENSE + j] = 0; /* below the diagonal there is anything */
        if (threads == 1) memcpy(first, m, sizeof m);
        assert_memory_equal(first, m, sizeof m);
        memset(h, 0, sizeof h);
        assert_false(mf__factor_upper(h, DENSE, scratch, pool));
        mf__pool_free(pool);
    }
}

/* (w - v) h (w - v)^T */
static double product_error(const float *w, const float *h, const mf__tensor *form, const encoded *e) {
    float v[DENSE];
    double error = 0;
    mf__affine_decode_row(e->codes, e->scales, e->biases, form->scale_type, DENSE, form->bits, form->group, v);
    for (int i = 0; i < DENSE; i++)
        for (int j = 0; j < DENSE; j++) error += (double)(w[i] - v[i]) * h[i * DENSE + j] * (w[j] - v[j]);
    return error;
}

/* Errors of products are a fraction of what nearest codes make; a row's bytes do not depend on the rows beside it. */
static void errors_are_fed_back(void **state) {
    (void)state;
    static float x[INPUTS * DENSE], h[DENSE * DENSE], m[DENSE * DENSE], apart[DENSE * DENSE], scratch[64 * DENSE];
    static float w[MF_FEEDBACK_ROWS][DENSE], *strip;
    static encoded out[MF_FEEDBACK_ROWS], alone, plain, within;
    const float *rows[MF_FEEDBACK_ROWS];
    uint32_t seed = 21;
    correlated(x, h, &seed, NULL);
    memcpy(m, h, sizeof m);
    assert_true(mf__factor_upper(m, DENSE, scratch, NULL));
    for (int i = 0; i < DENSE; i++) /* groups that know nothing of each other */
        for (int j = 0; j < DENSE; j++) apart[i * DENSE + j] = i / 32 == j / 32 ? m[i * DENSE + j] : 0;
    mf__feedback f = {.n_cols = DENSE, .factor = m}, f_apart = {.n_cols = DENSE, .factor = apart};
    strip = malloc((size_t)mf__feedback_scratch(DENSE) * sizeof *strip);
    EACH(b, all_bits) EACH(s, all_scales) {
        mf__tensor form = {.n_cols = DENSE, .bits = all_bits[b], .group = 32, .scale_type = all_scales[s]};
        double nearest = 0, fed = 0, in_groups = 0;
        for (int r = 0; r < MF_FEEDBACK_ROWS; r++) {
            rows[r] = w[r];
            for (int i = 0; i < DENSE; i++) w[r][i] = r == 3 ? 0.25f : random_float(&seed) + random_float(&seed);
        }
        memset(out, 0, sizeof out);
        mf__feedback_out to = {out[0].codes, out[0].scales, out[0].biases, sizeof *out, sizeof *out};
        mf__feedback_encode(&f, &form, rows, MF_FEEDBACK_ROWS, &to, strip);
        for (int r = 0; r < MF_FEEDBACK_ROWS; r++) {
            mf__feedback_out one = {alone.codes, alone.scales, alone.biases, sizeof alone, sizeof alone};
            memset(&alone, 0, sizeof alone);
            memset(&plain, 0, sizeof plain);
            memset(&within, 0, sizeof within);
            mf__feedback_encode(&f, &form, &rows[r], 1, &one, strip);
            assert_memory_equal(&alone, &out[r], sizeof alone);
            mf__affine_fit_row(w[r], DENSE, form.bits, form.group, form.scale_type, 1, plain.codes, plain.scales,
                               plain.biases);
            one = (mf__feedback_out){within.codes, within.scales, within.biases, sizeof within, sizeof within};
            mf__feedback_encode(&f_apart, &form, &rows[r], 1, &one, strip);
            nearest += product_error(w[r], h, &form, &plain);
            in_groups += product_error(w[r], h, &form, &within);
            fed += product_error(w[r], h, &form, &out[r]);
        }
        if (!(fed < 0.5 * nearest)) fail_msg("%d bits: %g of the error", form.bits, fed / nearest);
        if (!(fed < 0.9 * in_groups)) fail_msg("%d bits: %g of what groups do alone", form.bits, fed / in_groups);
    }
    free(strip);
}

/* Values so large that their squares are none are coded all the same, not left out. */
static void large_values_are_fed_back(void **state) {
    (void)state;
    static float m[DENSE * DENSE], w[DENSE], v[DENSE], *strip;
    static encoded e;
    const float *rows[] = {w};
    uint32_t seed = 8;
    for (int i = 0; i < DENSE; i++) m[i * DENSE + i] = 1;
    strip = malloc((size_t)mf__feedback_scratch(DENSE) * sizeof *strip);
    EACH(b, all_bits) {
        mf__tensor form = {.n_cols = DENSE, .bits = all_bits[b], .group = 32, .scale_type = MF_TYPE_BF16};
        mf__feedback_out to = {e.codes, e.scales, e.biases, sizeof e, sizeof e};
        double error = 0, total = 0;
        for (int i = 0; i < DENSE; i++) w[i] = (random_float(&seed) - 0.5f) * 1e25f;
        memset(&e, 0, sizeof e);
        mf__feedback_encode(&(mf__feedback){.n_cols = DENSE, .factor = m}, &form, rows, 1, &to, strip);
        mf__affine_decode_row(e.codes, e.scales, e.biases, form.scale_type, DENSE, form.bits, form.group, v);
        for (int i = 0; i < DENSE; i++) {
            error += ((double)w[i] - v[i]) * ((double)w[i] - v[i]);
            total += (double)w[i] * w[i];
        }
        if (!(error < 0.2 * total)) fail_msg("%d bits: %g of it is lost", form.bits, error / total);
    }
    free(strip);
}

static void allowed_values(void **state) {
    (void)state;
    for (int v = -1; v < 300; v++) {
        bool bits = v == 2 || v == 3 || v == 4 || v == 5 || v == 6 || v == 8, group = v == 32 || v == 64 || v == 128;
        assert_int_equal(mf__affine_bits_ok(v), bits);
        assert_int_equal(mf__affine_group_ok(v), group);
    }
}

/* Two versions of the encoder must not meet in one directory. Where this fails the bytes have changed: raise
 * MF__ENCODER_VERSION, then put the new hash here. */
static void the_version_stands_for_these_bytes(void **state) {
    (void)state;
    mf__hash h;
    mf__hash_init(&h, 0);
    EACH(b, all_bits) EACH(g, all_groups) EACH(s, all_scales) {
        float x[MAX_COLS];
        uint8_t codes[MAX_COLS] = {0}, scales[MAX_COLS] = {0}, biases[MAX_COLS] = {0};
        uint32_t seed = 1;
        for (int i = 0; i < MAX_COLS; i++) x[i] = random_float(&seed);
        for (int i = 0; i < 32; i++) x[128 + i] = 0.25f; /* degenerate groups too */
        for (int i = 0; i < 32; i++) x[256 + i] = i ? 0 : -3.0f;
        mf__affine_fit_row(x, MAX_COLS, all_bits[b], all_groups[g], all_scales[s], 1, codes, scales, biases);
        mf__hash_update(&h, codes, sizeof codes);
        mf__hash_update(&h, scales, sizeof scales);
        mf__hash_update(&h, biases, sizeof biases);
    }
    uint8_t block[18], codes[32], scales[4], biases[4];
    for (size_t i = 0; i < sizeof block; i++) block[i] = (uint8_t)(37 * i + 5);
    mf__gguf_repack_mxfp4(block, 32, codes, scales);
    mf__hash_update(&h, codes, 16);
    mf__hash_update(&h, scales, 1);
    assert_true(mf__gguf_repack_affine(MF_TYPE_Q4_0, block, 32, 4, codes, scales, biases));
    mf__hash_update(&h, codes, 16);
    mf__hash_update(&h, scales, 2);
    mf__hash_update(&h, biases, 2);
    assert_int_equal(MF__ENCODER_VERSION, 2);
    assert_int_equal(mf__hash_digest(&h), 0x3337173db25584d2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(foreign_groups),      cmocka_unit_test(bit_order),
        cmocka_unit_test(decode_everything),   cmocka_unit_test(decode_rounds_twice),
        cmocka_unit_test(encode_everything),   cmocka_unit_test(encode_is_near),
        cmocka_unit_test(encode_ties_to_even), cmocka_unit_test(encode_symmetric),
        cmocka_unit_test(encode_degenerate),   cmocka_unit_test(fitting_is_better),
        cmocka_unit_test(groups_stay_apart),   cmocka_unit_test(fitting_of_odd_groups),
        cmocka_unit_test(weights_count),       cmocka_unit_test(products_and_factors),
        cmocka_unit_test(errors_are_fed_back), cmocka_unit_test(allowed_values),
        cmocka_unit_test(encode_as_plainly),   cmocka_unit_test(large_values_are_fed_back),
        cmocka_unit_test(errors_add_up),       cmocka_unit_test(the_version_stands_for_these_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
