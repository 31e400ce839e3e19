/* Rows of the KV cache, one value at a time. */
#include "quant/kv.h"

#include <float.h>
#include <math.h>

#include "quant/half.h"

static int32_t n_groups(int32_t cols) {
    return (cols + MF_KV_GROUP - 1) / MF_KV_GROUP;
}

const char *mf__kv_name(mf__type type) {
    return type == MF_TYPE_F32 ? "f32" : type == MF_TYPE_F16 ? "f16" : type == MF_TYPE_I8 ? "int8" : "an unknown type";
}

int64_t mf__kv_row_bytes(mf__type type, int32_t cols) {
    if (type != MF_TYPE_I8) return (int64_t)cols * mf__type_bits(type) / 8;
    return mf__kv_scales_at(cols) + n_groups(cols) * (int64_t)sizeof(float);
}

static void encode_f16(const float *x, int32_t cols, uint8_t *row) {
    for (int32_t c = 0; c < cols; c++) {
        float v = x[c] > MF_KV_F16_MAX ? MF_KV_F16_MAX : x[c] < -MF_KV_F16_MAX ? -MF_KV_F16_MAX : x[c];
        uint16_t h = mf__f32_to_f16(v);
        memcpy(row + 2 * (int64_t)c, &h, 2);
    }
}

/* code = x / scale, rounded to the nearest; scale = the largest |x| of the group / 127. A group with a NaN or an
 * infinity is all NaN: 0 times a scale that is not finite. */
static void encode_i8(const float *x, int32_t cols, uint8_t *row) {
    uint8_t *scales = row + mf__kv_scales_at(cols);
    memset(row + cols, 0, (size_t)(mf__kv_scales_at(cols) - cols));
    for (int32_t g = 0; g < n_groups(cols); g++) {
        int32_t begin = g * MF_KV_GROUP, end = begin + MF_KV_GROUP < cols ? begin + MF_KV_GROUP : cols;
        float most = 0;
        for (int32_t c = begin; c < end; c++)
            if (!(fabsf(x[c]) <= most)) most = isnan(most) ? most : fabsf(x[c]);
        bool some = most > MF_KV_I8_MIN && most <= FLT_MAX;
        float scale = most / 127, inverse = some ? 127 / most : 0;
        for (int32_t c = begin; c < end; c++) row[c] = some ? (uint8_t)(int8_t)rintf(x[c] * inverse) : 0;
        memcpy(scales + g * (int64_t)sizeof scale, &scale, sizeof scale);
    }
}

void mf__kv_encode_row(mf__type type, const float *x, int32_t cols, void *row) {
    if (type == MF_TYPE_F16)
        encode_f16(x, cols, row);
    else if (type == MF_TYPE_I8)
        encode_i8(x, cols, row);
    else
        memcpy(row, x, (size_t)cols * sizeof *x);
}

static void decode_i8(const uint8_t *row, int32_t cols, int32_t first, int32_t n, float *out) {
    for (int32_t c = first; c < first + n; c++) {
        float scale;
        memcpy(&scale, row + mf__kv_scales_at(cols) + c / MF_KV_GROUP * (int64_t)sizeof scale, sizeof scale);
        out[c - first] = (float)(int8_t)row[c] * scale;
    }
}

void mf__kv_decode_row(mf__type type, const void *row, int32_t cols, int32_t first, int32_t n, float *out) {
    const uint8_t *bytes = row;
    if (type == MF_TYPE_I8) {
        decode_i8(bytes, cols, first, n, out);
    } else if (type == MF_TYPE_F16) {
        for (int32_t c = 0; c < n; c++) {
            uint16_t h;
            memcpy(&h, bytes + 2 * ((int64_t)first + c), 2);
            out[c] = mf__f16_to_f32(h);
        }
    } else {
        memcpy(out, bytes + 4 * (int64_t)first, (size_t)n * sizeof *out);
    }
}
