/* Decoding GGUF's blocks. d and m are f16; nibbles of the 32-blocks: low half of byte j is value j, high half j + 16.
 *
 *   Q4_0  d, 16 bytes                          (n - 8) d
 *   Q4_1  d, m, 16 bytes                       n d + m
 *   Q5_0  d, u32 fifth bits, 16 bytes          (n + 16 h - 16) d
 *   Q5_1  d, m, u32, 16 bytes                  (n + 16 h) d + m
 *   Q8_0  d, 32 signed bytes                   q d
 *   IQ4_NL, MXFP4                              codebooks
 *   Q2_K ... Q6_K, IQ4_XS                      256 values, with scales of sub-blocks: see each */
#include "quant/gguf_types.h"

#include <math.h>
#include <string.h>

#include "quant/affine.h"
#include "quant/half.h"

/* number in files, type or none, name, values, bytes */
static const struct {
    uint32_t number;
    mf__type type;
    const char *name;
    int values, bytes;
} TYPES[] = {
    {0, MF_TYPE_F32, "F32", 1, 4},
    {1, MF_TYPE_F16, "F16", 1, 2},
    {30, MF_TYPE_BF16, "BF16", 1, 2},
    {26, MF_TYPE_I32, "I32", 1, 4},
    {2, MF_TYPE_Q4_0, "Q4_0", 32, 18},
    {3, MF_TYPE_Q4_1, "Q4_1", 32, 20},
    {6, MF_TYPE_Q5_0, "Q5_0", 32, 22},
    {7, MF_TYPE_Q5_1, "Q5_1", 32, 24},
    {8, MF_TYPE_Q8_0, "Q8_0", 32, 34},
    {10, MF_TYPE_Q2_K, "Q2_K", 256, 84},
    {11, MF_TYPE_Q3_K, "Q3_K", 256, 110},
    {12, MF_TYPE_Q4_K, "Q4_K", 256, 144},
    {13, MF_TYPE_Q5_K, "Q5_K", 256, 176},
    {14, MF_TYPE_Q6_K, "Q6_K", 256, 210},
    {20, MF_TYPE_IQ4_NL, "IQ4_NL", 32, 18},
    {23, MF_TYPE_IQ4_XS, "IQ4_XS", 256, 136},
    {39, MF_TYPE_MXFP4_BLOCK, "MXFP4", 32, 17},
    {9, MF_TYPE_COUNT, "Q8_1", 0, 0},
    {15, MF_TYPE_COUNT, "Q8_K", 0, 0},
    {16, MF_TYPE_COUNT, "IQ2_XXS", 0, 0},
    {17, MF_TYPE_COUNT, "IQ2_XS", 0, 0},
    {18, MF_TYPE_COUNT, "IQ3_XXS", 0, 0},
    {19, MF_TYPE_COUNT, "IQ1_S", 0, 0},
    {21, MF_TYPE_COUNT, "IQ3_S", 0, 0},
    {22, MF_TYPE_COUNT, "IQ2_S", 0, 0},
    {24, MF_TYPE_COUNT, "I8", 0, 0},
    {25, MF_TYPE_COUNT, "I16", 0, 0},
    {27, MF_TYPE_COUNT, "I64", 0, 0},
    {28, MF_TYPE_COUNT, "F64", 0, 0},
    {29, MF_TYPE_COUNT, "IQ1_M", 0, 0},
    {34, MF_TYPE_COUNT, "TQ1_0", 0, 0},
    {35, MF_TYPE_COUNT, "TQ2_0", 0, 0},
    {40, MF_TYPE_COUNT, "NVFP4", 0, 0},
};

bool mf__gguf_type(uint32_t number, mf__type *out, const char **name) {
    if (name) *name = "?";
    for (size_t i = 0; i < MF__COUNT(TYPES); i++) {
        if (TYPES[i].number != number) continue;
        if (name) *name = TYPES[i].name;
        *out = TYPES[i].type;
        return TYPES[i].type != MF_TYPE_COUNT;
    }
    return false;
}

bool mf__gguf_block(mf__type type, int *values, int *bytes) {
    for (size_t i = 0; i < MF__COUNT(TYPES); i++) {
        if (TYPES[i].type != type || TYPES[i].values < 2) continue;
        *values = TYPES[i].values;
        *bytes = TYPES[i].bytes;
        return true;
    }
    return false;
}

static float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return mf__f16_to_f32(h);
}

static uint32_t word_at(const uint8_t *p) {
    uint32_t u;
    memcpy(&u, p, sizeof u);
    return u;
}

/* ---- blocks of 32 ---- */

static void q4_0(const uint8_t *b, float *out) {
    float d = half_at(b);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)((b[2 + j] & 15) - 8) * d;
        out[j + 16] = (float)((b[2 + j] >> 4) - 8) * d;
    }
}

static void q4_1(const uint8_t *b, float *out) {
    float d = half_at(b), m = half_at(b + 2);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)(b[4 + j] & 15) * d + m;
        out[j + 16] = (float)(b[4 + j] >> 4) * d + m;
    }
}

static int fifth(uint32_t bits, int i) {
    return (int)(bits >> i & 1) << 4;
}

static void q5_0(const uint8_t *b, float *out) {
    float d = half_at(b);
    uint32_t high = word_at(b + 2);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)(((b[6 + j] & 15) | fifth(high, j)) - 16) * d;
        out[j + 16] = (float)(((b[6 + j] >> 4) | fifth(high, j + 16)) - 16) * d;
    }
}

static void q5_1(const uint8_t *b, float *out) {
    float d = half_at(b), m = half_at(b + 2);
    uint32_t high = word_at(b + 4);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)((b[8 + j] & 15) | fifth(high, j)) * d + m;
        out[j + 16] = (float)((b[8 + j] >> 4) | fifth(high, j + 16)) * d + m;
    }
}

static void q8_0(const uint8_t *b, float *out) {
    float d = half_at(b);
    for (int j = 0; j < 32; j++) out[j] = (float)(int8_t)b[2 + j] * d;
}

static const int8_t IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void iq4_values(const uint8_t *codes, float d, float *out) {
    for (int j = 0; j < 16; j++) {
        out[j] = d * (float)IQ4[codes[j] & 15];
        out[j + 16] = d * (float)IQ4[codes[j] >> 4];
    }
}

static void iq4_nl(const uint8_t *b, float *out) {
    iq4_values(b + 2, half_at(b), out);
}

static void mxfp4(const uint8_t *b, float *out) {
    static const float code[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    float scale = b[0] == 255 ? NAN : ldexpf(1.0f, b[0] - 127);
    for (int j = 0; j < 16; j++) {
        out[j] = code[b[1 + j] & 15] * scale;
        out[j + 16] = code[b[1 + j] >> 4] * scale;
    }
}

/* ---- blocks of 256 ---- */

/* 16 bytes of scale (low half) and minimum (high half) for 16 values each, 64 of codes, d, dmin. Every half of 128
 * values has 32 bytes of codes, whose bit pairs 0, 2, 4, 6 are runs of 32 values. */
static void q2_k(const uint8_t *b, float *out) {
    float d = half_at(b + 80), m = half_at(b + 82);
    for (int i = 0; i < 256; i++) {
        int run = i / 32, l = i % 32;
        int code = b[16 + 32 * (run / 4) + l] >> 2 * (run % 4) & 3, sub = b[i / 16];
        out[i] = d * (float)(sub & 15) * (float)code - m * (float)(sub >> 4);
    }
}

/* 32 bytes of high bits, 64 of codes, 12 of scales, d. */
static void q3_k(const uint8_t *b, float *out) {
    const uint8_t *scales = b + 96;
    float d = half_at(b + 108);
    for (int i = 0; i < 256; i++) {
        int run = i / 32, l = i % 32, j = i / 16;
        int code = (b[32 + 32 * (run / 4) + l] >> 2 * (run % 4) & 3) - (b[l] >> run & 1 ? 0 : 4);
        int low = j < 8 ? scales[j] & 15 : scales[j - 8] >> 4;
        int scale = (low | (scales[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
        out[i] = d * (float)scale * (float)code;
    }
}

/* Scale and minimum of sub-block j, 6 bits each, in 12 bytes. */
static void k_scale(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *min = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

/* d, dmin, 12 bytes of scales, (Q5_K: 32 of high bits,) 128 of codes: 32 bytes serve two sub-blocks of 32. */
static void q45_k(const uint8_t *b, bool five, float *out) {
    float d = half_at(b), m = half_at(b + 2);
    const uint8_t *high = b + 16, *codes = b + (five ? 48 : 16);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        k_scale(b + 4, j, &scale, &min);
        float dl = d * (float)scale, ml = m * (float)min;
        for (int l = 0; l < 32; l++) {
            int code = codes[32 * (j / 2) + l] >> 4 * (j % 2) & 15;
            if (five) code |= (high[l] >> j & 1) << 4;
            out[32 * j + l] = dl * (float)code - ml;
        }
    }
}

static void q4_k(const uint8_t *b, float *out) {
    q45_k(b, false, out);
}

static void q5_k(const uint8_t *b, float *out) {
    q45_k(b, true, out);
}

/* 128 bytes of low halves, 64 of high pairs, 16 signed scales, d. Every half of 128 values has 64, 32 and 8 of them. */
static void q6_k(const uint8_t *b, float *out) {
    float d = half_at(b + 208);
    for (int i = 0; i < 256; i++) {
        int half = i / 128, run = i % 128 / 32, l = i % 32;
        const uint8_t *low = b + 64 * half, *high = b + 128 + 32 * half;
        int code = low[l + 32 * (run % 2)] >> 4 * (run / 2) & 15;
        code = (code | (high[l] >> 2 * run & 3) << 4) - 32;
        out[i] = d * (float)(int8_t)b[192 + 8 * half + 2 * run + l / 16] * (float)code;
    }
}

/* d, u16 of high scale pairs, 4 bytes of low scale halves, 128 of codes: eight IQ4_NL blocks. */
static void iq4_xs(const uint8_t *b, float *out) {
    float d = half_at(b);
    int high = b[2] | b[3] << 8;
    for (int j = 0; j < 8; j++) {
        int scale = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (high >> 2 * j & 3) << 4;
        iq4_values(b + 8 + 16 * j, d * (float)(scale - 32), out + 32 * j);
    }
}

/* ---- rows ---- */

void mf__gguf_decode_row(mf__type type, const void *blocks, int64_t n_cols, float *out) {
    void (*decode)(const uint8_t *, float *) = NULL;
    const uint8_t *b = blocks;
    int values = 0, bytes = 0;
    switch (type) {
    case MF_TYPE_Q4_0: decode = q4_0; break;
    case MF_TYPE_Q4_1: decode = q4_1; break;
    case MF_TYPE_Q5_0: decode = q5_0; break;
    case MF_TYPE_Q5_1: decode = q5_1; break;
    case MF_TYPE_Q8_0: decode = q8_0; break;
    case MF_TYPE_Q2_K: decode = q2_k; break;
    case MF_TYPE_Q3_K: decode = q3_k; break;
    case MF_TYPE_Q4_K: decode = q4_k; break;
    case MF_TYPE_Q5_K: decode = q5_k; break;
    case MF_TYPE_Q6_K: decode = q6_k; break;
    case MF_TYPE_IQ4_NL: decode = iq4_nl; break;
    case MF_TYPE_IQ4_XS: decode = iq4_xs; break;
    case MF_TYPE_MXFP4_BLOCK: decode = mxfp4; break;
    default: return;
    }
    if (!mf__gguf_block(type, &values, &bytes)) return;
    for (int64_t i = 0; i < n_cols; i += values, b += bytes) decode(b, out + i);
}

void mf__gguf_repack_mxfp4(const void *blocks, int64_t n_cols, void *codes, void *scales) {
    const uint8_t *b = blocks;
    uint8_t *c = codes, *s = scales;
    for (int64_t i = 0; i < n_cols; i += 32, b += 17, c += 16) {
        *s++ = b[0];
        for (int j = 0; j < 8; j++) {
            c[j] = (uint8_t)((b[1 + 2 * j] & 15) | (b[2 + 2 * j] & 15) << 4);
            c[j + 8] = (uint8_t)(b[1 + 2 * j] >> 4 | (b[2 + 2 * j] >> 4) << 4);
        }
    }
}

/* code * d + m, where m is stored or -zero * d. */
static const struct {
    mf__type type;
    int bits, zero;
} STRAIGHT[] = {
    {MF_TYPE_Q4_0, 4, 8}, {MF_TYPE_Q4_1, 4, 0}, {MF_TYPE_Q5_0, 5, 16}, {MF_TYPE_Q5_1, 5, 0}, {MF_TYPE_Q8_0, 8, 128},
};

static int straight(mf__type type) {
    for (int i = 0; i < (int)MF__COUNT(STRAIGHT); i++)
        if (STRAIGHT[i].type == type) return i;
    return -1;
}

int mf__gguf_straight_bits(mf__type type) {
    int i = straight(type);
    return i < 0 ? 0 : STRAIGHT[i].bits;
}

/* With d 1 and m 0 a block's values are its codes, less `zero`. */
static void codes_of(mf__type type, const uint8_t *block, int bytes, int zero, uint8_t codes[32]) {
    uint8_t unit[64];
    float values[32];
    memcpy(unit, block, (size_t)bytes);
    memcpy(unit, (uint8_t[]){0x00, 0x3c, 0, 0}, zero ? 2 : 4);
    mf__gguf_decode_row(type, unit, 32, values);
    for (int i = 0; i < 32; i++) codes[i] = (uint8_t)(values[i] + (float)zero);
}

bool mf__gguf_repack_affine(mf__type type, const void *blocks, int64_t n_cols, int bits, void *codes, void *scales,
                            void *biases) {
    const uint8_t *b = blocks;
    uint8_t *c = codes, *s = scales, *m = biases, plain[32];
    int row = straight(type), values, bytes;
    if (row < 0 || bits < STRAIGHT[row].bits || !mf__gguf_block(type, &values, &bytes)) return false;
    int zero = STRAIGHT[row].zero;
    for (int64_t i = 0; i < n_cols; i += 32, b += bytes, c += 4 * bits, s += 2, m += 2) {
        uint16_t bias = mf__f32_to_f16((float)-zero * half_at(b));
        if ((bias & 0x7c00) == 0x7c00) return false;
        memcpy(s, b, 2);
        memcpy(m, zero ? (const uint8_t *)&bias : b + 2, 2);
        codes_of(type, b, bytes, zero, plain);
        mf__affine_pack_row(plain, 32, bits, c);
    }
    return true;
}
