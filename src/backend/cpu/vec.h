/* What all instruction sets share: vector types of the compiler, of the width that vec_<set>.h defined before
 * including this. Arithmetic on them is written as on numbers. */
#ifndef MF_CPU_VEC_COMMON_H
#define MF_CPU_VEC_COMMON_H

typedef float vf __attribute__((vector_size(4 * WIDTH)));
typedef int32_t vi __attribute__((vector_size(4 * WIDTH)));
typedef uint32_t vu __attribute__((vector_size(4 * WIDTH)));
typedef uint8_t vu8 __attribute__((vector_size(4 * WIDTH)));
typedef int8_t vi8 __attribute__((vector_size(4 * WIDTH)));
typedef int8_t vi8_narrow __attribute__((vector_size(WIDTH)));
typedef uint8_t vu8_narrow __attribute__((vector_size(WIDTH)));
typedef uint16_t vu16_narrow __attribute__((vector_size(2 * WIDTH)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf load_f(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store_f(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}
#ifndef OWN_STREAMS /* stores past the caches, done when stream_end returns */
INLINE void stream_f(float *p, vf v) {
    store_f(p, v);
}
INLINE void stream_end(void) {
}
#endif
INLINE vi8 load_i8(const int8_t *p) {
    vi8 v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE vf splat(float f) {
    return f - (vf){0};
}
INLINE vf choose(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}
INLINE vi8 splat4(const int8_t *p) { /* the same four values in every lane */
    uint32_t four;
    memcpy(&four, p, 4);
    return (vi8)(four - (vu){0});
}

static inline vf load_f16(const void *p); /* of vec_<set>.h */
#ifdef OWN_WIDENING
static inline vi widen_u8(vu8_narrow b);
static inline vi widen_u16(vu16_narrow h);
static inline vu16_narrow first_u16(const void *p, int n);
#else
INLINE vi widen_u8(vu8_narrow b) {
    return __builtin_convertvector(b, vi);
}
INLINE vi widen_u16(vu16_narrow h) {
    return __builtin_convertvector(h, vi);
}
/* n values, and zeros behind them */
INLINE vu16_narrow first_u16(const void *p, int n) {
    vu16_narrow h = {0};
    if (n == WIDTH)
        memcpy(&h, p, sizeof h);
    else
        for (int i = 0; i < n; i++) h[i] = ((const uint8_t *)p)[2 * i] | ((const uint8_t *)p)[2 * i + 1] << 8;
    return h;
}
#endif

INLINE vf bf16_of(vu16_narrow h) {
    return (vf)(widen_u16(h) << 16);
}
INLINE vf load_bf16(const void *p) {
    vu16_narrow h;
    memcpy(&h, p, sizeof h);
    return bf16_of(h);
}
INLINE vf load_u8(const uint8_t *p) {
    vu8_narrow b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(widen_u8(b), vf);
}

/* Moved into the fields of an f16, an F8_E4M3 is 2^8 too small, also where it is subnormal; 127 is its NaN. */
INLINE vf load_e4m3(const void *p) {
    vu8_narrow b;
    memcpy(&b, p, sizeof b);
    vu16_narrow wide = __builtin_convertvector(b, vu16_narrow), size = wide & 127;
    vu16_narrow half = (wide & 128) << 8 | size << 7 | ((vu16_narrow)(size == 127) & 0x7c00);
    return load_f16(&half) * 256.0f;
}

/* Eight codes of `bits` bits, one per byte: halves are moved apart until each code has its byte. */
INLINE uint64_t spread_codes(const uint8_t *p, int bits) {
    uint64_t x = 0, b = (uint64_t)bits;
    memcpy(&x, p, (size_t)bits);
    if (bits == 8) return x;
    uint64_t fours = (1ull << 4 * b) - 1, twos = ((1ull << 2 * b) - 1) * 0x0000000100000001ull;
    uint64_t ones = ((1ull << b) - 1) * 0x0001000100010001ull;
    x = (x & fours) | (x & ~fours) << (32 - 4 * b);
    x = (x & twos) | (x & ~twos) << (16 - 2 * b);
    return (x & ones) | (x & ~ones) << (8 - b);
}

static inline vf max_of(vf a, vf b); /* of vec_<set>.h */
static inline vf fma_of(vf a, vf b, vf c);

/* e^x to within 2 ulp for x in [-87, 88], which x is clamped to. 2^n * e^r with |r| <= ln 2 / 2, e^r by its series. */
INLINE vf exp_of(vf x) {
    const vf round = splat(0x1.8p23f);
    x = max_of(x, splat(-87.0f));
    x = -max_of(-x, splat(-88.0f));
    vf shifted = fma_of(x, splat(1.44269504f), round), n = shifted - round;
    vf r = fma_of(n, splat(-0x1.63p-1f), x); /* ln 2, its first bits and the rest: n times the first is exact */
    r = fma_of(n, splat(2.12194440e-4f), r);
    vf p = splat(1.0f / 5040);
    p = fma_of(p, r, splat(1.0f / 720));
    p = fma_of(p, r, splat(1.0f / 120));
    p = fma_of(p, r, splat(1.0f / 24));
    p = fma_of(p, r, splat(1.0f / 6));
    p = fma_of(p, r, splat(0.5f));
    p = fma_of(p, r, splat(1.0f));
    p = fma_of(p, r, splat(1.0f));
    return p * (vf)(((vi)shifted - (vi)round + 127) << 23);
}
INLINE vf sigmoid_of(vf x) {
    return 1.0f / (1.0f + exp_of(-x));
}
/* By its series near 0, where 1 - e^-2x has few digits left. */
INLINE vf tanh_of(vf x) {
    vf size = choose((vi)(x < 0), -x, x), e = exp_of(-2.0f * size), far = (1.0f - e) / (1.0f + e), s = x * x;
    vf near = splat(62.0f / 2835);
    near = fma_of(near, s, splat(-17.0f / 315));
    near = fma_of(near, s, splat(2.0f / 15));
    near = fma_of(near, s, splat(-1.0f / 3));
    near = fma_of(near * s, x, x);
    vf y = choose((vi)(size < 0.25f), near, choose((vi)(x < 0), -far, far));
    return choose((vi)(x == x), y, x);
}

#endif
