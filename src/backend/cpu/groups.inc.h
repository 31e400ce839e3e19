/* Weights in groups, AFFINE and MXFP4, as kernels see them: a byte per code, a scale and a bias per group,
 * value = code * scale + bias. For the templates; included after vec_<set>.h. */
#ifndef MF_CPU_GROUPS_H
#define MF_CPU_GROUPS_H

#include <math.h>

#include "backend/cpu/cpu.h"
#include "quant/half.h"

#define CHUNK (4 * WIDTH) /* codes in a vector */

/* What tells rows of codes apart: the bits of a code, 2 3 4 5 6 8, or E2M1 for those of MXFP4, four bits each. Theirs
 * become twice the value plus E2M1_ZERO. */
enum { E2M1 = 1, E2M1_ZERO = 12 };

#define EACH_WIDTH(width, call)                                                                                        \
    switch (width) {                                                                                                   \
    case E2M1: call(E2M1); break;                                                                                      \
    case 2: call(2); break;                                                                                            \
    case 3: call(3); break;                                                                                            \
    case 4: call(4); break;                                                                                            \
    case 5: call(5); break;                                                                                            \
    case 6: call(6); break;                                                                                            \
    default: call(8); break;                                                                                           \
    }

INLINE int width_of(const mf__tensor *w) {
    return w->type == MF_TYPE_MXFP4 ? E2M1 : w->bits;
}
INLINE int bits_of(int width) {
    return width == E2M1 ? 4 : width;
}

/* The codes of the first n_bytes bytes, which are a vector of them or half of one. */
INLINE vu8 codes_at(const uint8_t *p, int width, int n_bytes) {
    static const uint8_t e2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
    if (width == E2M1) return lookup16(unpack_codes(p, 4, n_bytes), e2m1);
    return unpack_codes(p, width, n_bytes);
}

INLINE void group_codes(const uint8_t *p, int width, int group, uint8_t *out) {
    for (int i = 0; i < group; i += CHUNK, p += CHUNK / 8 * bits_of(width)) {
        int part = group - i < CHUNK ? group - i : CHUNK;
        vu8 codes = codes_at(p, width, part / 8 * bits_of(width));
        if (part == CHUNK)
            memcpy(out + i, &codes, CHUNK);
        else
            memcpy(out + i, &codes, CHUNK / 2); /* groups of 32 in vectors of 64 */
    }
}

/* Half of 2^(e - 127); 255 is NaN. */
INLINE float e8m0_half(uint8_t e) {
    uint32_t u = e == 255 ? 0x7fc00000u : e > 1 ? (uint32_t)(e - 1) << 23 : 0x200000u << e;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* n scales or biases as floats, from number `first` on. */
INLINE void load_scales(const void *base, mf__type type, int64_t first, int64_t n, float *restrict out) {
    const uint8_t *p = (const uint8_t *)base + first * (type == MF_TYPE_F32 ? 4 : type == MF_TYPE_U8 ? 1 : 2);
    int64_t i = 0;
    if (type == MF_TYPE_F32) {
        memcpy(out, p, (size_t)n * 4);
    } else if (type == MF_TYPE_U8) {
        for (; i < n; i++) out[i] = e8m0_half(p[i]);
    } else {
        bool bf16 = type == MF_TYPE_BF16;
        for (; i + WIDTH <= n; i += WIDTH) store_f(out + i, bf16 ? load_bf16(p + 2 * i) : load_f16(p + 2 * i));
        for (; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * i, 2);
            out[i] = bf16 ? mf__bf16_to_f32(h) : mf__f16_to_f32(h);
        }
    }
}

/* WIDTH of them from number `first` on; zeros where there are fewer than that. */
INLINE vf scale_vector(const void *base, mf__type type, int64_t first, int64_t n) {
    if (n < WIDTH || type == MF_TYPE_U8) {
        float part[WIDTH] = {0};
        load_scales(base, type, first, n < WIDTH ? n : WIDTH, part);
        return load_f(part);
    }
    const uint8_t *p = (const uint8_t *)base + first * (type == MF_TYPE_F32 ? 4 : 2);
    if (type == MF_TYPE_F32) return load_f((const float *)(const void *)p);
    return type == MF_TYPE_BF16 ? load_bf16(p) : load_f16(p);
}

/* Without stored biases the code `centre` stands for zero. */
INLINE bool has_biases(const mf__tensor *w) {
    return w->type == MF_TYPE_AFFINE && w->biases;
}
INLINE float centre_of(const mf__tensor *w) {
    return w->type == MF_TYPE_MXFP4 ? E2M1_ZERO : (float)(1 << (w->bits - 1));
}

/* Scales and biases of n groups, from number `first` of the matrix on. */
INLINE void load_groups(const mf__tensor *w, int64_t first, int64_t n, float *restrict s, float *restrict b) {
    load_scales(w->scales, w->scale_type, first, n, s);
    if (has_biases(w))
        load_scales(w->biases, w->scale_type, first, n, b);
    else
        for (int64_t i = 0; i < n; i++) b[i] = -centre_of(w) * s[i];
}

#endif
