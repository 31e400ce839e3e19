/* Values on the wire: f32 as they are, or f16, which rounds them to 11 bits. A row of f16 has a power of two in front
 * that keeps its largest value below f16's end, so that no value is ever lost to infinity. */
#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "quant/half.h"
#include "wire.h"

#define F16_MOST 65504.0f

size_t wire_row_bytes(wire_format format, int n) {
    if (format == WIRE_F32) return (size_t)n * sizeof(float);
    return sizeof(float) + ((size_t)n + 1) / 2 * 4;
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static int pack_fast(const float *from, int n, float scale, uint16_t *to) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(scale));
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    }
    return i;
}

__attribute__((target("avx,f16c"))) static int unpack_fast(const uint16_t *from, int n, float scale, float *to) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i)));
        _mm256_storeu_ps(to + i, _mm256_mul_ps(x, _mm256_set1_ps(scale)));
    }
    return i;
}

static bool is_fast(void) {
    return __builtin_cpu_supports("avx2"); /* no processor has that without f16c, by which clang cannot ask */
}
#else
static int pack_fast(const float *from, int n, float scale, uint16_t *to) {
    (void)from, (void)n, (void)scale, (void)to;
    return 0;
}

static int unpack_fast(const uint16_t *from, int n, float scale, float *to) {
    (void)from, (void)n, (void)scale, (void)to;
    return 0;
}

static bool is_fast(void) {
    return false;
}
#endif

void wire_pack(wire_format format, const float *from, int n, void *to) {
    if (format == WIRE_F32) {
        memcpy(to, from, (size_t)n * sizeof *from);
        return;
    }
    float most = 0, scale = 1;
    uint16_t *half = (uint16_t *)(void *)((char *)to + sizeof scale);
    for (int i = 0; i < n; i++) most = fabsf(from[i]) > most ? fabsf(from[i]) : most;
    while (most < INFINITY && most / scale > F16_MOST / 2) scale *= 2;
    memcpy(to, &scale, sizeof scale);
    if (n % 2) half[n] = 0;
    for (int i = is_fast() ? pack_fast(from, n, 1 / scale, half) : 0; i < n; i++)
        half[i] = mf__f32_to_f16(from[i] / scale);
}

void wire_unpack(wire_format format, const void *from, int n, float *to) {
    if (format == WIRE_F32) {
        memcpy(to, from, (size_t)n * sizeof *to);
        return;
    }
    float scale;
    const uint16_t *half = (const uint16_t *)(const void *)((const char *)from + sizeof scale);
    memcpy(&scale, from, sizeof scale);
    for (int i = is_fast() ? unpack_fast(half, n, scale, to) : 0; i < n; i++) to[i] = mf__f16_to_f32(half[i]) * scale;
}
