/* Products of decoded weights with f32 activations; compiled once per instruction set. */
#include "backend/cpu/decode.inc.h"

/* ---- products ---------------------------------------------------------------------------------------------------- */

#define BLOCK 4 /* rows, and tokens at most, whose products are summed at the same time */

/* Sums along the row, in two vectors each. */
INLINE void dots(const float *w, int64_t stride, int64_t cols, int n_rows, const mf__cpu_vec *x, int n, float *y) {
    vf sum[BLOCK][BLOCK];
    int64_t c = 0;
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < n; j++) sum[i][j] = (vf){0};
    for (; c + WIDTH <= cols; c += WIDTH) {
        vf v[BLOCK];
        for (int j = 0; j < n; j++) v[j] = load_f(x[j].x + c);
        for (int i = 0; i < n_rows; i++)
            for (int j = 0; j < n; j++) sum[i][j] += load_f(w + i * stride + c) * v[j];
    }
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < n; j++) {
            float tail = 0;
            for (int64_t k = c; k < cols; k++) tail += w[i * stride + k] * x[j].x[k];
            y[j * WIDTH + i] = sum_lanes(sum[i][j]) + tail;
        }
}

static void SET(dots_4)(const float *w, int64_t stride, int64_t cols, int n_rows, const mf__cpu_vec *x, float *y) {
    if (n_rows == BLOCK)
        dots(w, stride, cols, BLOCK, x, BLOCK, y);
    else
        for (int i = 0; i < n_rows; i++) dots(w + i * stride, stride, cols, 1, x, BLOCK, y + i);
}

static void SET(dots_1)(const float *w, int64_t stride, int64_t cols, int n_rows, const mf__cpu_vec *x, float *y) {
    if (n_rows == BLOCK)
        dots(w, stride, cols, BLOCK, x, 1, y);
    else
        for (int i = 0; i < n_rows; i++) dots(w + i * stride, stride, cols, 1, x, 1, y + i);
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
    k->many_f32 = SET(many_f32);
}
