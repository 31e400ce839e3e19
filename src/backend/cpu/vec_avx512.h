/* The vector vocabulary on AVX-512 with VNNI and VBMI. */
#ifndef MF_CPU_VEC_H
#define MF_CPU_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SET(name) name##_avx512
#define WIDTH 16     /* f32 or i32 values in a vector; a vector holds 4 * WIDTH codes */
#define TILE 8       /* keys of attention whose sums stay in registers */
#define TOKENS 8     /* of a pass, whose sums with a tile do */
#define OWN_WIDENING /* the compiler would do it by halves */
#define OWN_STREAMS
#define OWN_DOT4_AT /* the compiler would spread the values apart first */

#include "backend/cpu/vec.h"

/* sum of four u8 * i8 products, added to each i32 lane */
INLINE vi dot4(vi acc, vu8 w, vi8 x, int bits) {
    (void)bits;
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
}

/* The same with four values in every lane. */
INLINE vi dot4_at(vi acc, vu8 w, const int8_t *x, int bits) {
    (void)bits;
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(w), "m"(*(const int8_t(*)[4])x));
    return acc;
}

INLINE void stream_f(float *p, vf v) {
    _mm512_stream_ps(p, (__m512)v);
}
INLINE void stream_end(void) {
    _mm_sfence();
}

INLINE vi widen_u8(vu8_narrow b) {
    return (vi)_mm512_cvtepu8_epi32((__m128i)b);
}
INLINE vi widen_u16(vu16_narrow h) {
    return (vi)_mm512_cvtepu16_epi32((__m256i)h);
}
INLINE vu16_narrow first_u16(const void *p, int n) {
    if (n == WIDTH) return (vu16_narrow)_mm256_loadu_si256(p);
    return (vu16_narrow)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
}

/* The first n_bytes bytes (zeros behind them) taken apart into 64 codes in order. */
INLINE vu8 unpack_codes(const uint8_t *p, int bits, int n_bytes) {
    if (bits == 8) {
        if (n_bytes == 64) return (vu8)_mm512_loadu_si512(p);
        return (vu8)_mm512_maskz_loadu_epi8(((uint64_t)1 << n_bytes) - 1, p);
    }
    if (bits == 4) { /* byte -> 16 bits, and its high half moved up */
        __m256i packed = n_bytes == 32 ? _mm256_loadu_si256((const void *)p)
                                       : _mm256_maskz_loadu_epi8((uint32_t)(((uint64_t)1 << n_bytes) - 1), p);
        __m512i v = _mm512_cvtepu8_epi16(packed);
        return (vu8)_mm512_ternarylogic_epi32(v, _mm512_slli_epi16(v, 4), _mm512_set1_epi8(15), 0xa8);
    }
    /* Eight codes fill `bits` bytes: those bytes go to each 64-bit lane, from where every code is shifted out. */
    __m512i packed = _mm512_maskz_loadu_epi8(((uint64_t)1 << n_bytes) - 1, p);
    __m512i lane = _mm512_srli_epi16(_mm512_set_epi8(56, 56, 56, 56, 56, 56, 56, 56, 48, 48, 48, 48, 48, 48, 48, 48, 40,
                                                     40, 40, 40, 40, 40, 40, 40, 32, 32, 32, 32, 32, 32, 32, 32, 24, 24,
                                                     24, 24, 24, 24, 24, 24, 16, 16, 16, 16, 16, 16, 16, 16, 8, 8, 8, 8,
                                                     8, 8, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0),
                                     3); /* 0 x 8, 1 x 8, ... */
    __m512i in_lane = _mm512_set1_epi64(0x0706050403020100);
    __m512i from = _mm512_add_epi8(_mm512_mullo_epi16(lane, _mm512_set1_epi16((short)bits)), in_lane);
    uint64_t b = (uint64_t)bits, shifts = 0;
    for (uint64_t i = 0; i < 8; i++) shifts |= (b * i) << (8 * i);
    __m512i spread = _mm512_permutexvar_epi8(from, packed);
    __m512i codes = _mm512_multishift_epi64_epi8(_mm512_set1_epi64((long long)shifts), spread);
    return (vu8)_mm512_and_si512(codes, _mm512_set1_epi8((char)((1 << bits) - 1)));
}

/* The same in each quarter of four vectors. */
INLINE void transpose4(vi *m) {
    __m512i a = _mm512_unpacklo_epi32((__m512i)m[0], (__m512i)m[1]);
    __m512i b = _mm512_unpackhi_epi32((__m512i)m[0], (__m512i)m[1]);
    __m512i c = _mm512_unpacklo_epi32((__m512i)m[2], (__m512i)m[3]);
    __m512i d = _mm512_unpackhi_epi32((__m512i)m[2], (__m512i)m[3]);
    m[0] = (vi)_mm512_unpacklo_epi64(a, c), m[1] = (vi)_mm512_unpackhi_epi64(a, c);
    m[2] = (vi)_mm512_unpacklo_epi64(b, d), m[3] = (vi)_mm512_unpackhi_epi64(b, d);
}

/* Lane j of vector i becomes lane i of vector j: pairs within each quarter of a vector, then the quarters. */
INLINE void transpose(vi *m) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32((__m512i)m[i], (__m512i)m[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32((__m512i)m[i], (__m512i)m[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm512_unpacklo_epi64(a[i + k], a[i + k + 2]);
            b[i + 2 * k + 1] = _mm512_unpackhi_epi64(a[i + k], a[i + k + 2]);
        }
    for (int k = 0; k < 4; k++) { /* b[4 q + k]: columns k, 4 + k, 8 + k, 12 + k of rows 4 q ... */
        __m512i x = _mm512_shuffle_i32x4(b[k], b[4 + k], 0x88), y = _mm512_shuffle_i32x4(b[k], b[4 + k], 0xdd);
        __m512i z = _mm512_shuffle_i32x4(b[8 + k], b[12 + k], 0x88),
                w = _mm512_shuffle_i32x4(b[8 + k], b[12 + k], 0xdd);
        m[k] = (vi)_mm512_shuffle_i32x4(x, z, 0x88);
        m[4 + k] = (vi)_mm512_shuffle_i32x4(y, w, 0x88);
        m[8 + k] = (vi)_mm512_shuffle_i32x4(x, z, 0xdd);
        m[12 + k] = (vi)_mm512_shuffle_i32x4(y, w, 0xdd);
    }
}

/* Lanes added up: v [4][4] has a group in each vector, or v [4][2] has two, in its halves. Lane 4 k + r: group k of r.
 */
INLINE vi sum_groups(const vi *v, bool two) {
    __m512i a[8], b[4];
    for (int i = 0; i < 8; i++) /* two groups in halves */
        a[i] = two ? (__m512i)v[i]
                   : _mm512_add_epi32(_mm512_shuffle_i64x2((__m512i)v[2 * i], (__m512i)v[2 * i + 1], 0x44),
                                      _mm512_shuffle_i64x2((__m512i)v[2 * i], (__m512i)v[2 * i + 1], 0xee));
    for (int i = 0; i < 4; i++) /* four in quarters */
        b[i] = _mm512_add_epi32(_mm512_shuffle_i32x4(a[2 * i], a[2 * i + 1], 0x88),
                                _mm512_shuffle_i32x4(a[2 * i], a[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++) /* a group of two rows in each quarter */
        a[i] = _mm512_add_epi32(_mm512_unpacklo_epi64(b[2 * i], b[2 * i + 1]),
                                _mm512_unpackhi_epi64(b[2 * i], b[2 * i + 1]));
    return (vi)_mm512_add_epi32((__m512i)_mm512_shuffle_ps((__m512)a[0], (__m512)a[1], 0x88),
                                (__m512i)_mm512_shuffle_ps((__m512)a[0], (__m512)a[1], 0xdd));
}

/* Lane i is lane from[i] of v. */
INLINE vf pick(vf v, vi from) {
    return (vf)_mm512_permutexvar_ps((__m512i)from, (__m512)v);
}

/* table[code]; codes are below 16 */
INLINE vu8 lookup16(vu8 codes, const uint8_t *table) {
    __m512i t = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)table));
    return (vu8)_mm512_shuffle_epi8(t, (__m512i)codes);
}

INLINE float sum_lanes(vf v) {
    return _mm512_reduce_add_ps((__m512)v);
}
INLINE float max_lanes(vf v) {
    return _mm512_reduce_max_ps((__m512)v);
}
INLINE vf fma_of(vf a, vf b, vf c) {
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
INLINE vf max_of(vf a, vf b) {
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}
INLINE vf load_f16(const void *p) {
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(p));
}
INLINE void store_f16(void *p, vf v) {
    _mm256_storeu_si256(p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
}

#endif
