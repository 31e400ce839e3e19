/* Products of decoded weights with f32 activations; compiled once per instruction set. */
#include "backend/cpu/cpu.h"
#include "quant/affine.h"

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* One row as f32: the values of mf__tensor_row_f32, bit for bit (the product is rounded before the sum). */
static void SET(decode_row)(const mf__tensor *w, int64_t row, float *out) {
    int64_t n = w->n_cols, i = 0;
    const uint8_t *p = (const uint8_t *)w->data + row * mf__tensor_row_bytes(w);
    if (w->type == MF_TYPE_BF16) {
        for (; i + WIDTH <= n; i += WIDTH) store_f(out + i, load_bf16(p + 2 * i));
    } else if (w->type == MF_TYPE_F16) {
        for (; i + WIDTH <= n; i += WIDTH) {
            vf v;
            load_f16(p + 2 * i, &v);
            store_f(out + i, v);
        }
    }
    if (i == n) return;
    if (i == 0) {
        mf__tensor_row_f32(w, row, out);
        return;
    }
    mf__tensor rest = *w;
    rest.data = p + 2 * i;
    rest.n_cols = n - i;
    mf__tensor_row_f32(&rest, 0, out + i);
}

/* ---- a few tokens ------------------------------------------------------------------------------------------------ */

INLINE void dots(const float *w, const mf__cpu_vec *x, int n, int64_t cols, float *sums) {
    vf a[MF_CPU_FEW] = {{0}}, b[MF_CPU_FEW] = {{0}};
    int64_t c = 0;
    for (; c + 2 * WIDTH <= cols; c += 2 * WIDTH) {
        vf w0 = load_f(w + c), w1 = load_f(w + c + WIDTH);
        for (int j = 0; j < n; j++) {
            a[j] += w0 * load_f(x[j].x + c);
            b[j] += w1 * load_f(x[j].x + c + WIDTH);
        }
    }
    for (int j = 0; j < n; j++) {
        float tail = 0;
        for (int64_t i = c; i < cols; i++) tail += w[i] * x[j].x[i];
        sums[j] = sum_lanes(a[j] + b[j]) + tail;
    }
}

static void SET(dots_f32)(const float *w, const mf__cpu_vec *x, int n, int64_t cols, float *sums) {
    switch (n) {
    case 1: dots(w, x, 1, cols, sums); break;
    case 2: dots(w, x, 2, cols, sums); break;
    case 3: dots(w, x, 3, cols, sums); break;
    default: dots(w, x, 4, cols, sums); break;
    }
}

/* ---- a panel ----------------------------------------------------------------------------------------------------- */

static void SET(pack_f32)(const mf__cpu_vec *rows, int n, int64_t cols, float *out) {
    for (int64_t c = 0; c < cols; c++, out += WIDTH)
        for (int j = 0; j < WIDTH; j++) out[j] = j < n ? rows[j].x[c] : 0;
}

/* out[r][lane] = sum_c w[r][c] x[c][lane] */
static void SET(panel_f32)(const float *w, int64_t stride, int64_t cols, const float *x, float *out) {
    vf acc[TILE] = {{0}};
    for (int64_t c = 0; c < cols; c++) {
        vf v = load_f(x + c * WIDTH);
        for (int r = 0; r < TILE; r++) acc[r] += v * w[r * stride + c];
    }
    for (int r = 0; r < TILE; r++) store_f(out + r * WIDTH, acc[r]);
}

static void SET(unpack)(const float *tile, int n_rows, int n, float *const *y) {
    for (int j = 0; j < n; j++)
        for (int r = 0; r < n_rows; r++) y[j][r] = tile[r * WIDTH + j];
}

void SET(mf__cpu_f32)(mf__cpu_kernels *k) {
    k->decode_row = SET(decode_row);
    k->dots_f32 = SET(dots_f32);
    k->pack_f32 = SET(pack_f32);
    k->panel_f32 = SET(panel_f32);
    k->unpack = SET(unpack);
}
