#include "model/source.h"

#include <string.h>

#include "quant/affine.h"
#include "quant/half.h"

mf__source mf__source_plain(const mf__tensor *stored) {
    return (mf__source){.stored = *stored, .n_rows = stored->n_rows, .n_cols = stored->n_cols, .step = 1};
}

bool mf__source_is_plain(const mf__source *s) {
    return !s->transposed && !s->row_of && !s->block_of && s->first == 0 && s->step == 1;
}

int64_t mf__source_bytes(const mf__source *s) {
    mf__tensor t = s->stored;
    t.n_planes = 1;
    t.n_rows = s->n_rows;
    t.n_cols = s->n_cols;
    return mf__tensor_bytes(&t);
}

static int64_t index_of(const mf__source *s, int64_t row) {
    return s->row_of ? s->row_of(s->config, row) : s->first + row * s->step;
}

/* Column `col` of a plain matrix, as stored. */
static void gather(const mf__tensor *t, int64_t col, void *out) {
    int64_t size = mf__type_bits(t->type) / 8, row_bytes = mf__tensor_row_bytes(t);
    const uint8_t *from = (const uint8_t *)t->data + col * size;
    for (int64_t r = 0; r < t->n_rows; r++) memcpy((uint8_t *)out + r * size, from + r * row_bytes, (size_t)size);
}

/* A 1 x 1 view at (row, col): columns are decoded element by element. */
static float element(const mf__tensor *t, int64_t row, int64_t col) {
    mf__tensor one = {.type = t->type, .n_planes = 1, .n_rows = 1, .n_cols = 1};
    one.data = (const uint8_t *)t->data + row * mf__tensor_row_bytes(t) + col * (mf__type_bits(t->type) / 8);
    float value;
    mf__tensor_row_f32(&one, 0, &value);
    return value;
}

void mf__source_row_f32(const mf__source *s, int64_t row, float *out) {
    int64_t at = index_of(s, row);
    if (s->block_of) {
        float stored[MF_SOURCE_COLS];
        mf__tensor_row_f32(&s->stored, at, stored);
        for (int64_t b = 0; b < s->n_cols / s->block; b++)
            memcpy(out + b * s->block, stored + s->block_of(s->config, b) * s->block, (size_t)s->block * sizeof *out);
        return;
    }
    if (!s->transposed) {
        mf__tensor_row_f32(&s->stored, at, out);
        return;
    }
    for (int64_t i = 0; i < s->n_cols; i++) out[i] = element(&s->stored, i, at);
}

mf__type mf__source_scale_type(const mf__tensor *t) {
    return t->type == MF_TYPE_F8_BLOCK && t->scale_type == MF_TYPE_U8 ? MF_TYPE_BF16 : t->scale_type;
}

static void copy_scales(const mf__tensor *t, const uint8_t *from, int64_t bytes, uint8_t *to) {
    if (mf__source_scale_type(t) == t->scale_type) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (int64_t i = 0; i < bytes; i++) {
        uint16_t h = mf__e8m0_to_bf16(from[i]);
        memcpy(to + 2 * i, &h, sizeof h);
    }
}

void mf__source_row_copy(const mf__source *s, int64_t row, void *data, void *scales, void *biases) {
    const mf__tensor *t = &s->stored;
    int64_t at = index_of(s, row), bytes = mf__tensor_row_bytes(t);
    int64_t scale_bytes = mf__tensor_scale_bytes(t), bias_bytes = mf__tensor_bias_bytes(t);
    if (s->transposed) {
        gather(t, at, data);
        return;
    }
    if (s->block_of) {
        mf__tensor one = *t;
        one.n_cols = s->block;
        int64_t size = mf__tensor_row_bytes(&one);
        for (int64_t b = 0; b < s->n_cols / s->block; b++)
            memcpy((uint8_t *)data + b * size, (const uint8_t *)t->data + at * bytes + s->block_of(s->config, b) * size,
                   (size_t)size);
        return;
    }
    memcpy(data, (const uint8_t *)t->data + at * bytes, (size_t)bytes);
    if (!scale_bytes) return;
    const uint8_t *from = (const uint8_t *)t->scales + mf__tensor_scale_row(t, at) * scale_bytes;
    if (scales) copy_scales(t, from, scale_bytes, scales);
    if (!bias_bytes) return;
    if (t->biases)
        memcpy(biases, (const uint8_t *)t->biases + at * bias_bytes, (size_t)bias_bytes);
    else
        mf__affine_centre(from, t->scale_type, t->n_cols / t->group, t->bits, biases);
}
