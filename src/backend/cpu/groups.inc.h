/* Weights in groups, AFFINE and MXFP4, as kernels see them: a byte per code, a scale and a bias per group,
 * value = code * scale + bias. For the templates; included after vec_<set>.h. */
#ifndef MF_CPU_GROUPS_H
#define MF_CPU_GROUPS_H

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
INLINE vf e8m0_halves(vi e) {
    vi normal = (vi)(e > 1);
    vi bits = (normal & (e - 1) << 23) | (~normal & ((vi){0} + 0x200000) << (e & 1));
    return (vf)(bits | ((vi)(e == 255) & 0x7fc00000));
}

INLINE int scale_bytes(mf__type type) {
    return type == MF_TYPE_F32 ? 4 : type == MF_TYPE_BF16 || type == MF_TYPE_F16 ? 2 : 1;
}

/* WIDTH scales or biases from number `first` on; where there are only n, some numbers follow them. */
INLINE vf scale_vector(const void *base, mf__type type, int64_t first, int64_t n) {
    if (n > WIDTH) n = WIDTH;
    if (type == MF_TYPE_BF16) return bf16_of(first_u16((const uint16_t *)base + first, (int)n));
    if (type == MF_TYPE_F16) {
        vu16_narrow h = first_u16((const uint16_t *)base + first, (int)n);
        return load_f16(&h);
    }
    if (type == MF_TYPE_F32) {
        vf v = {0};
        memcpy(&v, (const float *)base + first, (size_t)n * sizeof(float));
        return v;
    }
    vu8_narrow e = {0};
    memcpy(&e, (const uint8_t *)base + first, (size_t)n);
    return e8m0_halves(widen_u8(e));
}

INLINE void load_scales(const void *base, mf__type type, int64_t first, int64_t n, float *restrict out) {
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf v = scale_vector(base, type, first + i, n - i);
        memcpy(out + i, &v, (size_t)(n - i < WIDTH ? n - i : WIDTH) * sizeof *out);
    }
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
