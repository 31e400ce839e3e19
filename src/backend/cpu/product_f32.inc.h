/* Products of decoded weights with f32 activations; compiled once per instruction set. */
#include "backend/cpu/decode.inc.h"

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define BLOCK 4 /* rows, and tokens at most, whose products are summed at the same time */

/* Rows of weights, decoded or as they are stored: F32, BF16 or F16, `stride` bytes from row to row. */
typedef struct weights {
    const uint8_t *p;
    int64_t stride, cols;
    mf__type type;
} weights;

INLINE vf load_w(weights w, int i, int64_t c) {
    const uint8_t *row = w.p + i * w.stride;
    return w.type == MF_TYPE_F32    ? load_f((const float *)(const void *)row + c)
           : w.type == MF_TYPE_BF16 ? load_bf16(row + 2 * c)
                                    : load_f16(row + 2 * c);
}

/* Of which n are left; zeros behind the end of a row. */
INLINE vf load_rest(weights w, int i, int64_t c, int64_t n) {
    float rest[WIDTH] = {0};
    for (int64_t k = 0; k < n; k++) {
        const uint8_t *row = w.p + i * w.stride;
        uint16_t half;
        memcpy(&half, row + 2 * (c + k), w.type == MF_TYPE_F32 ? 0 : sizeof half);
        rest[k] = w.type == MF_TYPE_F32    ? ((const float *)(const void *)row)[c + k]
                  : w.type == MF_TYPE_BF16 ? mf__bf16_to_f32(half)
                                           : mf__f16_to_f32(half);
    }
    return load_f(rest);
}

/* y[j * WIDTH + i]: sums along the rows, each with the same additions whatever is beside it. Stored rows are read side
 * by side while those behind them are prefetched, in the order in which they lie. */
INLINE void dots(weights w, int n_rows, const mf__cpu_vec *x, int n, float *y) {
    vf sum[BLOCK][BLOCK];
    const uint8_t *next = w.p + n_rows * w.stride;
    int64_t c = 0;
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < n; j++) sum[i][j] = (vf){0};
    for (; c + WIDTH <= w.cols; c += WIDTH) {
        vf v[BLOCK];
        for (int j = 0; j < n; j++) v[j] = load_f(x[j].x + c);
        for (int i = 0; i < n_rows; i++)
            for (int j = 0; j < n; j++) sum[i][j] = fma_of(load_w(w, i, c), v[j], sum[i][j]);
        for (int i = 0; w.type != MF_TYPE_F32 && i < n_rows * 2 * WIDTH; i += MF_CPU_LINE) __builtin_prefetch(next + i);
        next += n_rows * 2 * WIDTH;
    }
    if (c < w.cols) {
        vf v[BLOCK];
        for (int j = 0; j < n; j++)
            v[j] = load_rest((weights){(const uint8_t *)x[j].x, 0, 0, MF_TYPE_F32}, 0, c, w.cols - c);
        for (int i = 0; i < n_rows; i++)
            for (int j = 0; j < n; j++) sum[i][j] = fma_of(load_rest(w, i, c, w.cols - c), v[j], sum[i][j]);
    }
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < n; j++) y[j * WIDTH + i] = sum_lanes(sum[i][j]);
}

/* As many rows as BLOCK, or one by one. */
INLINE void dots_of(weights w, int n_rows, const mf__cpu_vec *x, int n, float *y) {
    if (n_rows == BLOCK)
        dots(w, BLOCK, x, n, y);
    else
        for (int i = 0; i < n_rows; i++, w.p += w.stride) dots(w, 1, x, n, y + i);
}

static void SET(dots_4)(const float *w, int64_t stride, int64_t cols, int n_rows, const mf__cpu_vec *x, float *y) {
    dots_of((weights){(const uint8_t *)w, stride * 4, cols, MF_TYPE_F32}, n_rows, x, BLOCK, y);
}

static void SET(dots_1)(const float *w, int64_t stride, int64_t cols, int n_rows, const mf__cpu_vec *x, float *y) {
    dots_of((weights){(const uint8_t *)w, stride * 4, cols, MF_TYPE_F32}, n_rows, x, 1, y);
}

/* Rows as they are stored: a few tokens are not worth decoding them. */
static bool SET(rows_f32)(const mf__tensor *w, int64_t row, int n_rows, const mf__cpu_vec *x, int n, float *y) {
    if (w->type != MF_TYPE_BF16 && w->type != MF_TYPE_F16) return false;
    for (int i = 0; i < n_rows; i += BLOCK) {
        weights v = {(const uint8_t *)w->data + (row + i) * w->n_cols * 2, w->n_cols * 2, w->n_cols, w->type};
        int m = n_rows - i < BLOCK ? n_rows - i : BLOCK;
        for (int j = 0; j < n; j++) { /* with a type that is known: each is compiled alone */
            if (w->type == MF_TYPE_BF16) {
                v.type = MF_TYPE_BF16;
                dots_of(v, m, x + j, 1, y + j * WIDTH + i);
            } else {
                v.type = MF_TYPE_F16;
                dots_of(v, m, x + j, 1, y + j * WIDTH + i);
            }
        }
    }
    return true;
}

static void SET(many_f32)(const mf__cpu_tile *w, int n_rows, const mf__cpu_vec *x, int n, float *y) {
    for (int i = 0; i < n_rows; i += BLOCK) {
        const float *rows = w->w + i * w->stride;
        int m = n_rows - i < BLOCK ? n_rows - i : BLOCK, j = 0;
        for (; j + BLOCK <= n; j += BLOCK) SET(dots_4)(rows, w->stride, w->cols, m, x + j, y + j * WIDTH + i);
        for (; j < n; j++) SET(dots_1)(rows, w->stride, w->cols, m, x + j, y + j * WIDTH + i);
    }
}

void SET(mf__cpu_f32)(mf__cpu_kernels *k) {
    k->decode_row = SET(decode_row);
    k->rows_f32 = SET(rows_f32);
    k->many_f32 = SET(many_f32);
}
