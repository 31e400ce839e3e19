/* Stored weights as numbers: single values, and the codes of a granule (32 columns) in the order in which planes of
 * activations have them. */
#ifndef MF_BACKEND_CUDA_WEIGHTS_CUH
#define MF_BACKEND_CUDA_WEIGHTS_CUH

#include "backend/cuda/device.cuh"

/* A matrix of the bank as one of an expert. */
static __device__ __forceinline__ mf__cu_matrix part_of(const mf__cu_matrix &m, const char *blob) {
    mf__cu_matrix w = m;
    w.data = blob + (intptr_t)m.data;
    w.scales = blob + (intptr_t)m.scales;
    if (m.biases) w.biases = blob + (intptr_t)m.biases;
    return w;
}

static __device__ __forceinline__ float float_at(const char *p, mf__cu_type type, int64_t i) {
    if (type == MF_CU_BF16) return __uint_as_float((uint32_t)((const uint16_t *)p)[i] << 16);
    if (type == MF_CU_F16) return from_f16(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

/* A power of two; 255 is no number. 2^-127 is subnormal. */
static __device__ __forceinline__ float e8m0(uint8_t e) {
    return __uint_as_float(e == 255 ? 0x7fc00000u : e == 0 ? 0x00400000u : (uint32_t)e << 23);
}

static __device__ __forceinline__ float f8_value(uint8_t b) {
    uint32_t a = b & 127u, sign = (uint32_t)(b & 128) << 24;
    if (a == 127) return __uint_as_float(sign | 0x7fc00000u);
    float f = a < 8 ? (float)a * 0x1p-9f : __uint_as_float((a << 20) + (120u << 23));
    return __uint_as_float(__float_as_uint(f) | sign);
}

/* The code of column c: bits at bit c * bits of the row. */
static __device__ __forceinline__ uint32_t code_at(const uint8_t *row, int bits, int c) {
    int at = c * bits, byte = at >> 3, shift = at & 7;
    uint32_t v = row[byte];
    if (shift + bits > 8) v |= (uint32_t)row[byte + 1] << 8;
    return v >> shift & ((1u << bits) - 1);
}

static __device__ __forceinline__ float mxfp4_value(uint32_t code) {
    uint32_t twice = 0xc8643210u >> 4 * (code & 7) & 15; /* 0 1 2 3 4 6 8 12 */
    float v = (float)twice * 0.5f;
    return code & 8 ? -v : v;
}

/* W[row][c] as mf__tensor_row_f32 has it. */
static __device__ __forceinline__ float weight_at(const mf__cu_matrix &m, int64_t row, int c) {
    const char *data = m.data + row * m.row_bytes;
    if (m.type == MF_CU_AFFINE) {
        int64_t g = row * m.n_groups + c / m.group;
        float s = float_at(m.scales, m.scale_type, g);
        float b = m.biases ? float_at(m.biases, m.scale_type, g) : -(float)(1 << (m.bits - 1)) * s;
        return __fadd_rn(__fmul_rn((float)code_at((const uint8_t *)data, m.bits, c), s), b);
    }
    if (m.type == MF_CU_MXFP4)
        return mxfp4_value(code_at((const uint8_t *)data, 4, c)) *
               e8m0(((const uint8_t *)m.scales)[row * m.n_groups + c / 32]);
    if (m.type == MF_CU_F8)
        return f8_value(((const uint8_t *)data)[c]) *
               float_at(m.scales, m.scale_type, row / m.block_rows * m.n_groups + c / m.group);
    return float_at(data, m.type, c);
}

/* Apart, so that kernels stay small. */
static __device__ __noinline__ void any_weights_at(const mf__cu_matrix &m, int64_t row, int c, float *v) {
#pragma unroll 1
    for (int i = 0; i < 8; i++) v[i] = c + i < m.n_cols ? weight_at(m, row, c + i) : 0;
}

static __device__ __forceinline__ void bf16_values(const char *p, float *v) {
    uint4 u = __ldg((const uint4 *)p);
    uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = __uint_as_float(w[i] << 16);
        v[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
}

/* Eight values from column c on; what lies behind the row is zero. */
static __device__ __forceinline__ void weights_at(const mf__cu_matrix &m, int64_t row, int c, float *v) {
    const char *p = m.data + row * m.row_bytes;
    if (m.type == MF_CU_BF16 && m.wide && c + 8 <= m.n_cols) {
        bf16_values(p + 2 * (int64_t)c, v);
        return;
    }
    any_weights_at(m, row, c, v);
}

/* ---- codes ------------------------------------------------------------------------------------------------------ */

/* WIDTH: bits of affine codes; 0 for MXFP4, whose codes become signed integers, twice the value. */
template <int WIDTH> struct granule { static const int words = WIDTH ? WIDTH : 4; /* of 32 codes */ };

/* wide: as many bytes at once as the granule's size allows for every granule of an aligned row. */
template <int WIDTH> static __device__ __forceinline__ void load_granule(const char *p, bool wide, uint32_t *w) {
    const int n = granule<WIDTH>::words;
    if (!wide) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            const uint8_t *b = (const uint8_t *)p + 4 * i;
            w[i] = b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
        }
    } else if (n % 4 == 0) {
#pragma unroll
        for (int i = 0; i < n / 4; i++) {
            uint4 u = __ldg((const uint4 *)p + i);
            w[4 * i] = u.x, w[4 * i + 1] = u.y, w[4 * i + 2] = u.z, w[4 * i + 3] = u.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < n; i++) w[i] = __ldg((const uint32_t *)p + i);
    }
}

/* Four bytes of MXFP4: the four nibbles of sel (16 bits). */
static __device__ __forceinline__ uint32_t mxfp4_bytes(uint32_t sel) {
    uint32_t magnitude = __byte_perm(0x03020100u, 0x0c080604u, sel & 0x7777u);
    uint32_t negative = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, sel & 0x7777u);
    uint32_t s =
        (sel >> 3 & 1) * 0xffu | (sel >> 7 & 1) * 0xff00u | (sel >> 11 & 1) * 0xff0000u | (sel >> 15 & 1) * 0xff000000u;
    return (magnitude & ~s) | (negative & s);
}

/* Unit j (columns 8 j ...) of a granule: its even and its odd columns. */
template <int WIDTH>
static __device__ __forceinline__ void unit_codes(const uint32_t *w, int j, uint32_t *even, uint32_t *odd) {
    if (WIDTH == 4) {
        *even = w[j] & 0x0f0f0f0fu;
        *odd = w[j] >> 4 & 0x0f0f0f0fu;
    } else if (WIDTH == 8) {
        *even = __byte_perm(w[2 * j], w[2 * j + 1], 0x6420);
        *odd = __byte_perm(w[2 * j], w[2 * j + 1], 0x7531);
    } else if (WIDTH == 0) {
        uint32_t first = mxfp4_bytes(w[j] & 0xffffu), second = mxfp4_bytes(w[j] >> 16);
        *even = __byte_perm(first, second, 0x6420);
        *odd = __byte_perm(first, second, 0x7531);
    } else {
        uint32_t v[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at = (8 * j + i) * WIDTH, word = at / 32, shift = at % 32;
            uint32_t code = w[word] >> shift;
            if (shift + WIDTH > 32) code |= w[word + 1] << (32 - shift);
            v[i & 1] |= (code & ((1u << WIDTH) - 1)) << (8 * (i >> 1));
        }
        *even = v[0];
        *odd = v[1];
    }
}

/* What a granule's sum is to be multiplied with, and what the sum of its activations. */
template <int WIDTH>
static __device__ __forceinline__ void granule_scale(const mf__cu_matrix &m, const char *scales, const char *biases,
                                                     int64_t g, float *s, float *b) {
    if (WIDTH == 0) {
        *s = e8m0(((const uint8_t *)scales)[g]) * 0.5f;
        *b = 0;
        return;
    }
    *s = float_at(scales, m.scale_type, g);
    *b = biases ? float_at(biases, m.scale_type, g) : -(float)(1 << (WIDTH ? WIDTH - 1 : 0)) * *s;
}

#endif
