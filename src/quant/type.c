/* The type table, sizes of tensors, and the value of every element type as f32. */
#include "quant/type.h"

#include <string.h>

#include "quant/affine.h"
#include "quant/gguf_types.h"
#include "quant/half.h"
#include "quant/mxfp4.h"

static const struct {
    const char *name;
    int bits;
} types[MF_TYPE_COUNT] = {
#define ROW(id, text, width) [MF_TYPE_##id] = {text, width},
    MF_TYPES(ROW)
#undef ROW
};

const char *mf__type_name(mf__type type) {
    return (unsigned)type < MF_TYPE_COUNT ? types[type].name : "?";
}

bool mf__type_parse(const char *name, mf__type *out) {
    if (!strcmp(name, "F8_E8M0")) name = "U8"; /* of scales alone, which are told by their place */
    for (int i = 0; i < MF_TYPE_COUNT; i++) {
        if (mf__type_has_scales((mf__type)i) || mf__type_is_block((mf__type)i) || strcmp(name, types[i].name) != 0)
            continue;
        *out = (mf__type)i;
        return true;
    }
    return false;
}

int mf__type_bits(mf__type type) {
    return (unsigned)type < MF_TYPE_COUNT ? types[type].bits : 0;
}

bool mf__type_is_float(mf__type type) {
    return type == MF_TYPE_F32 || type == MF_TYPE_F16 || type == MF_TYPE_BF16;
}

bool mf__type_has_scales(mf__type type) {
    return type == MF_TYPE_AFFINE || type == MF_TYPE_MXFP4 || type == MF_TYPE_F8_BLOCK;
}

bool mf__type_is_block(mf__type type) {
    int values, bytes;
    return mf__gguf_block(type, &values, &bytes);
}

bool mf__type_is_matrix(mf__type type) {
    return mf__type_is_float(type) || mf__type_has_scales(type) || mf__type_is_block(type);
}

int64_t mf__tensor_row_bytes(const mf__tensor *t) {
    int bits = t->type == MF_TYPE_AFFINE ? t->bits : mf__type_bits(t->type), values, bytes;
    if (!bits && mf__gguf_block(t->type, &values, &bytes)) return t->n_cols / values * bytes;
    return t->n_cols * bits / 8;
}

int64_t mf__tensor_scale_bytes(const mf__tensor *t) {
    if (!mf__type_has_scales(t->type)) return 0;
    return (t->n_cols + t->group - 1) / t->group * (mf__type_bits(t->scale_type) / 8);
}

int64_t mf__tensor_scale_rows(const mf__tensor *t) {
    return t->n_rows > 0 ? mf__tensor_scale_row(t, t->n_rows - 1) + 1 : 0;
}

int64_t mf__tensor_scale_row(const mf__tensor *t, int64_t row) {
    return t->type == MF_TYPE_F8_BLOCK ? row / t->block_rows : row;
}

int64_t mf__tensor_bias_bytes(const mf__tensor *t) {
    return t->type == MF_TYPE_AFFINE ? mf__tensor_scale_bytes(t) : 0;
}

int64_t mf__tensor_bytes(const mf__tensor *t) {
    return t->n_planes * (t->n_rows * (mf__tensor_row_bytes(t) + mf__tensor_bias_bytes(t)) +
                          mf__tensor_scale_rows(t) * mf__tensor_scale_bytes(t));
}

/* The same tensor, seen from `rows` rows and `scale_rows` rows of scales further on. */
static mf__tensor advance(const mf__tensor *t, int64_t rows, int64_t scale_rows) {
    mf__tensor view = *t;
    view.data = (const uint8_t *)t->data + rows * mf__tensor_row_bytes(t);
    if (mf__type_has_scales(t->type)) view.scales = (const uint8_t *)t->scales + scale_rows * mf__tensor_scale_bytes(t);
    if (t->biases) view.biases = (const uint8_t *)t->biases + rows * mf__tensor_bias_bytes(t);
    return view;
}

mf__tensor mf__tensor_plane(const mf__tensor *t, int64_t plane) {
    mf__tensor view = advance(t, plane * t->n_rows, plane * mf__tensor_scale_rows(t));
    view.n_planes = 1;
    return view;
}

bool mf__tensor_flatten(mf__tensor *t) {
    if (t->n_planes > 1 && t->type == MF_TYPE_F8_BLOCK && t->n_rows % t->block_rows) return false;
    t->n_rows *= t->n_planes;
    t->n_planes = 1;
    return true;
}

/* value = code * scale of its block */
static void f8_block_row(const uint8_t *codes, const void *scales, mf__type scale_type, int64_t n, int group,
                         float *out) {
    for (int64_t g = 0; g * group < n; g++) {
        float scale = mf__affine_scale(scales, scale_type, g);
        int64_t end = (g + 1) * group < n ? (g + 1) * group : n;
        for (int64_t i = g * group; i < end; i++) out[i] = mf__f8_e4m3_to_f32(codes[i]) * scale;
    }
}

/* out[i] = expr for every stored element v of C type `type`; memcpy because mapped tensors have any alignment. */
#define EACH(ctype, expr)                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        ctype v;                                                                                                       \
        memcpy(&v, p + i * (int64_t)sizeof v, sizeof v);                                                               \
        out[i] = (expr);                                                                                               \
    }                                                                                                                  \
    break

void mf__tensor_row_f32(const mf__tensor *t, int64_t row, float *out) {
    const mf__tensor r = advance(t, row, mf__tensor_scale_row(t, row));
    const uint8_t *p = r.data;
    const int64_t n = r.n_cols;
    switch (r.type) {
    case MF_TYPE_F32: memcpy(out, p, (size_t)n * sizeof *out); break;
    case MF_TYPE_F16: EACH(uint16_t, mf__f16_to_f32(v));
    case MF_TYPE_BF16: EACH(uint16_t, mf__bf16_to_f32(v));
    case MF_TYPE_F64: EACH(double, (float)v);
    case MF_TYPE_F8_E4M3: EACH(uint8_t, mf__f8_e4m3_to_f32(v));
    case MF_TYPE_F8_E5M2: EACH(uint8_t, mf__f16_to_f32((uint16_t)(v << 8))); /* the upper byte of an f16 */
    case MF_TYPE_I64: EACH(int64_t, (float)v);
    case MF_TYPE_I32: EACH(int32_t, (float)v);
    case MF_TYPE_I16: EACH(int16_t, (float)v);
    case MF_TYPE_I8: EACH(int8_t, (float)v);
    case MF_TYPE_U64: EACH(uint64_t, (float)v);
    case MF_TYPE_U32: EACH(uint32_t, (float)v);
    case MF_TYPE_U16: EACH(uint16_t, (float)v);
    case MF_TYPE_U8: EACH(uint8_t, (float)v);
    case MF_TYPE_BOOL: EACH(uint8_t, v ? 1.0f : 0.0f);
    case MF_TYPE_AFFINE: mf__affine_decode_row(p, r.scales, r.biases, r.scale_type, n, r.bits, r.group, out); break;
    case MF_TYPE_MXFP4: mf__mxfp4_decode_row(p, r.scales, n, out); break;
    case MF_TYPE_F8_BLOCK: f8_block_row(p, r.scales, r.scale_type, n, r.group, out); break;
    default: mf__gguf_decode_row(r.type, p, n, out); break;
    }
}
