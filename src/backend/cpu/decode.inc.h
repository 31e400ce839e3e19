/* Rows of W as f32, for every type a model's matrix may have; compiled once per instruction set. The values are those
 * of mf__tensor_row_f32. */
#include "backend/cpu/groups.inc.h"

#define SOME_GROUPS 64 /* whose scales are prepared together */

/* The rest of a row that no whole vector covers. */
INLINE void decode_tail(const mf__tensor *w, const uint8_t *p, int64_t n, float *out) {
    mf__tensor rest = *w;
    rest.data = p;
    rest.n_cols = n;
    if (n) mf__tensor_row_f32(&rest, 0, out);
}

#define DECODE_FLOATS(load)                                                                                            \
    for (; i + WIDTH <= n; i += WIDTH) store_f(out + i, load(p + 2 * i));                                              \
    decode_tail(w, p + 2 * i, n - i, out + i)

/* code * scale is exact where a scale has no more than 16 bits of mantissa, so that it does not matter whether the sum
 * is a fused one. */
INLINE void decode_groups(const uint8_t *p, int width, int group, int64_t n, const float *s, const float *b,
                          float *out) {
    uint8_t codes[128];
    for (int64_t g = 0; g < n; g++, p += group / 8 * bits_of(width)) {
        group_codes(p, width, group, codes);
        for (int i = 0; i < group; i += WIDTH, out += WIDTH) store_f(out, load_u8(codes + i) * s[g] + b[g]);
    }
}

INLINE void decode_grouped(const mf__tensor *w, int64_t row, const uint8_t *p, float *out) {
    float s[SOME_GROUPS], b[SOME_GROUPS];
    int64_t groups = w->n_cols / w->group, group_bytes = w->group / 8 * w->bits;
    for (int64_t g0 = 0; g0 < groups; g0 += SOME_GROUPS) {
        int64_t n = groups - g0 < SOME_GROUPS ? groups - g0 : SOME_GROUPS;
        load_groups(w, row * groups + g0, n, s, b);
#define DECODE(width) decode_groups(p + g0 * group_bytes, width, w->group, n, s, b, out + g0 * w->group)
        EACH_WIDTH(width_of(w), DECODE)
#undef DECODE
    }
}

/* A scale for each `group` columns, the last of which may be fewer. */
INLINE void decode_f8_block(const mf__tensor *w, int64_t row, const uint8_t *p, float *out) {
    int64_t groups = (w->n_cols + w->group - 1) / w->group, at = mf__tensor_scale_row(w, row) * groups;
    for (int64_t g = 0, i = 0; g < groups; g++) {
        int64_t end = i + w->group < w->n_cols ? i + w->group : w->n_cols;
        float scale;
        load_scales(w->scales, w->scale_type, at + g, 1, &scale);
        for (; i + WIDTH <= end; i += WIDTH) store_f(out + i, load_e4m3(p + i) * scale);
        for (; i < end; i++) out[i] = mf__f8_e4m3_to_f32(p[i]) * scale;
    }
}

static void SET(decode_row)(const mf__tensor *w, int64_t row, float *out) {
    const uint8_t *p = (const uint8_t *)w->data + row * mf__tensor_row_bytes(w);
    int64_t n = w->n_cols, i = 0;
    switch (w->type) {
    case MF_TYPE_BF16: DECODE_FLOATS(load_bf16); break;
    case MF_TYPE_F16: DECODE_FLOATS(load_f16); break;
    case MF_TYPE_F8_BLOCK: decode_f8_block(w, row, p, out); break;
    case MF_TYPE_MXFP4: decode_grouped(w, row, p, out); break;
    case MF_TYPE_AFFINE:
        if (w->scale_type != MF_TYPE_F32) {
            decode_grouped(w, row, p, out);
            break;
        } /* fall through */
    default: mf__tensor_row_f32(w, row, out); break;
    }
}
