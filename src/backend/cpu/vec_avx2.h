/* The vector vocabulary on AVX2 with FMA and F16C. */
#ifndef MF_CPU_VEC_H
#define MF_CPU_VEC_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SET(name) name##_avx2
#define WIDTH 8
#define TILE 4
#define TOKENS 4
#define OWN_STREAMS

#include "backend/cpu/vec.h"

/* Pairs of products are summed in 16 bits: 127 * 127 * 2 fits, so codes of up to seven bits cannot saturate. */
INLINE vi dot4(vi acc, vu8 w, vi8 x, int bits) {
    __m256i ones = _mm256_set1_epi16(1);
    if (bits < 8) return acc + (vi)_mm256_madd_epi16(_mm256_maddubs_epi16((__m256i)w, (__m256i)x), ones);
    /* Full bytes: even and odd bytes apart, each product in 32 bits. */
    __m256i w_odd = _mm256_srli_epi16((__m256i)w, 8), w_even = _mm256_and_si256((__m256i)w, _mm256_set1_epi16(255));
    __m256i x_odd = _mm256_srai_epi16((__m256i)x, 8), x_even = _mm256_srai_epi16(_mm256_slli_epi16((__m256i)x, 8), 8);
    return acc + (vi)_mm256_madd_epi16(w_even, x_even) + (vi)_mm256_madd_epi16(w_odd, x_odd);
}

INLINE void stream_f(float *p, vf v) {
    _mm256_stream_ps(p, (__m256)v);
}
INLINE void stream_end(void) {
    _mm_sfence();
}

INLINE vu8 unpack_codes(const uint8_t *p, int bits, int n_bytes) {
    (void)n_bytes; /* groups are multiples of 32 codes: there is no partial vector */
    if (bits == 8) return (vu8)_mm256_loadu_si256((const void *)p);
    if (bits == 4) {
        __m256i v = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p));
        return (vu8)_mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)), _mm256_set1_epi8(15));
    }
    return (vu8)_mm256_set_epi64x((long long)spread_codes(p + 3 * bits, bits),
                                  (long long)spread_codes(p + 2 * bits, bits), (long long)spread_codes(p + bits, bits),
                                  (long long)spread_codes(p, bits));
}

INLINE void transpose4(vi *m) { /* in each half */
    __m256i a = _mm256_unpacklo_epi32((__m256i)m[0], (__m256i)m[1]);
    __m256i b = _mm256_unpackhi_epi32((__m256i)m[0], (__m256i)m[1]);
    __m256i c = _mm256_unpacklo_epi32((__m256i)m[2], (__m256i)m[3]);
    __m256i d = _mm256_unpackhi_epi32((__m256i)m[2], (__m256i)m[3]);
    m[0] = (vi)_mm256_unpacklo_epi64(a, c), m[1] = (vi)_mm256_unpackhi_epi64(a, c);
    m[2] = (vi)_mm256_unpacklo_epi64(b, d), m[3] = (vi)_mm256_unpackhi_epi64(b, d);
}

INLINE void transpose(vi *m) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32((__m256i)m[i], (__m256i)m[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32((__m256i)m[i], (__m256i)m[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            b[i + 2 * k] = _mm256_unpacklo_epi64(a[i + k], a[i + k + 2]);
            b[i + 2 * k + 1] = _mm256_unpackhi_epi64(a[i + k], a[i + k + 2]);
        }
    for (int k = 0; k < 4; k++) {
        m[k] = (vi)_mm256_permute2x128_si256(b[k], b[4 + k], 0x20);
        m[4 + k] = (vi)_mm256_permute2x128_si256(b[k], b[4 + k], 0x31);
    }
}

INLINE vi sum_groups(const vi *v, bool two) { /* v [4][2], or [4][1] */
    __m256i a[4];
    for (int i = 0; i < 4; i++)
        a[i] = two ? (__m256i)v[i]
                   : _mm256_add_epi32(_mm256_permute2x128_si256((__m256i)v[2 * i], (__m256i)v[2 * i + 1], 0x20),
                                      _mm256_permute2x128_si256((__m256i)v[2 * i], (__m256i)v[2 * i + 1], 0x31));
    return (vi)_mm256_hadd_epi32(_mm256_hadd_epi32(a[0], a[1]), _mm256_hadd_epi32(a[2], a[3]));
}

INLINE vf pick(vf v, vi from) {
    return (vf)_mm256_permutevar8x32_ps((__m256)v, (__m256i)from);
}

/* table[code]; codes are below 16 */
INLINE vu8 lookup16(vu8 codes, const uint8_t *table) {
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)table));
    return (vu8)_mm256_shuffle_epi8(t, (__m256i)codes);
}

INLINE float sum_lanes(vf v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
INLINE float max_lanes(vf v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
INLINE vf fma_of(vf a, vf b, vf c) {
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
INLINE vf max_of(vf a, vf b) {
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}
INLINE vf load_f16(const void *p) {
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128(p));
}
INLINE void store_f16(void *p, vf v) {
    _mm_storeu_si128(p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
}

#endif
