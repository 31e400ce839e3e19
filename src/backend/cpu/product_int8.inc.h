/* Products of weights in groups with int8 activations; compiled once per instruction set.
 *
 *   y = sum over groups of  scale * x_scale * (sum of code * q)  +  bias * x_sum
 *
 * with x ~ q * x_scale and x_sum the sum of those: the rounding of x then meets the weight itself, q s + b, and not
 * its two large parts one by one. Codes are unsigned, q is within +-127; the inner sum is exact. */
#include "backend/cpu/groups.inc.h"

#define MAX_GROUPS 64 /* whose scales are prepared together */

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Adding 1.5 * 2^23 leaves the nearest integer in the low bits. */
INLINE vi round_to_int(vf x) {
    return (vi)(x + 0x1.8p23f);
}

static void SET(quant_row)(int64_t cols, int group, const mf__cpu_vec *v) {
    const float *x = v->x;
    int8_t *q = v->q;
    for (int64_t g = 0; g < cols / group; g++, x += group, q += group) {
        vf most = {0};
        vi total = {0};
        for (int i = 0; i < group; i += WIDTH) {
            vf f = load_f(x + i);
            most = max_of(most, max_of(f, -f));
        }
        float peak = 0;
        for (int i = 0; i < WIDTH; i++) peak = most[i] > peak ? most[i] : peak;
        float inverse = peak > 0 ? 127.0f / peak : 0;
        for (int i = 0; i < group; i += WIDTH) {
            vi rounded = round_to_int(load_f(x + i) * inverse);
            vi8_narrow narrow = __builtin_convertvector(rounded, vi8_narrow);
            memcpy(q + i, &narrow, sizeof narrow);
            total += __builtin_convertvector(narrow, vi);
        }
        int32_t n = 0;
        for (int i = 0; i < WIDTH; i++) n += total[i];
        v->scale[g] = peak / 127.0f;
        v->sum[g] = v->scale[g] * (float)n;
    }
    memset(q, 0, (size_t)((MF_CPU_PAD - cols % MF_CPU_PAD) % MF_CPU_PAD));
    for (int64_t c = 0; c < cols; c += 2 * CHUNK) {
        const int8_t *from = v->q + c;
        int8_t *even = v->split + c, *odd = even + CHUNK;
        for (int i = 0; i < CHUNK; i++) even[i] = from[2 * i], odd[i] = from[2 * i + 1];
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* values [row + i][groups] -> out [groups][WIDTH] */
INLINE void tile_scales(const mf__tensor *w, const void *values, int64_t row, int n, float *out) {
    int64_t groups = w->n_cols / w->group;
    for (int64_t g = 0; g < groups; g += WIDTH) {
        vi square[WIDTH] = {{0}};
        for (int i = 0; i < n; i++)
            square[i] = (vi)scale_vector(values, w->scale_type, (row + i) * groups + g, groups - g);
        transpose(square);
        for (int i = 0; i < WIDTH && i < groups - g; i++) memcpy(out + (g + i) * WIDTH, &square[i], sizeof *square);
    }
}

/* n rows and m columns of codes; rows past the n-th are zeros. */
INLINE void code_square(const uint8_t *p, int64_t row_bytes, int n, int m, int width, uint8_t *out) {
    vi square[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        square[i] = i < n ? (vi)codes_at(p + i * row_bytes, width, m / 8 * bits_of(width)) : (vi){0};
    transpose(square);
    for (int i = 0; i < m / 4; i++) memcpy(out + i * CHUNK, &square[i], sizeof *square);
}

INLINE void tile_codes(const mf__tensor *w, int64_t row, int n, int width, uint8_t *out) {
    int64_t bits = bits_of(width), row_bytes = w->n_cols / 8 * bits;
    const uint8_t *p = (const uint8_t *)w->data + row * row_bytes;
    for (int64_t c = 0; c < w->n_cols; c += CHUNK, p += CHUNK / 8 * bits, out += CHUNK * WIDTH) {
        for (int i = 0; i < n; i++) __builtin_prefetch(p + (WIDTH + i) * row_bytes); /* of the next tile */
        if (n == WIDTH && w->n_cols - c >= CHUNK)
            code_square(p, row_bytes, WIDTH, CHUNK, width, out);
        else
            code_square(p, row_bytes, n, w->n_cols - c < CHUNK ? (int)(w->n_cols - c) : CHUNK, width, out);
    }
}

static void SET(tile_int8)(const mf__tensor *w, int64_t row, int n, mf__cpu_tile *out) {
    out->cols = w->n_cols;
    out->group = w->group;
    out->wide = w->bits == 8;
    tile_scales(w, w->scales, row, n, out->scales);
    if (has_biases(w))
        tile_scales(w, w->biases, row, n, out->biases);
    else
        for (int64_t i = 0; i < w->n_cols / w->group * WIDTH; i++) out->biases[i] = -centre_of(w) * out->scales[i];
#define CODES(width) tile_codes(w, row, n, width, out->codes)
    EACH_WIDTH(width_of(w), CODES)
#undef CODES
}

/* ---- a few tokens: sums along the row --------------------------------------------------------------------------- */

/* Groups [g0, g0 + m) of a row of 4-bit codes, by whole vectors of packed codes: the low nibbles are the even elements.
 * A vector holds two groups or a part of one. */
INLINE void nibble_groups(const uint8_t *p, int group, int64_t g0, int64_t m, const mf__cpu_vec *x, int n,
                          const float (*scaled)[MAX_GROUPS + 1], vf *acc) {
    int64_t from = g0 * group;
    for (int64_t c = 0; c < m * group; c += 2 * CHUNK, p += CHUNK) {
        vu8 packed, low, high;
        memcpy(&packed, p, sizeof packed);
        __builtin_prefetch(p + 1024);
        low = packed & 15;
        high = packed >> 4;
        for (int j = 0; j < n; j++) {
            const int8_t *q = x[j].split + from + c;
            vi sum = dot4(dot4((vi){0}, low, load_i8(q), 4), high, load_i8(q + CHUNK), 4);
            const float *s = scaled[j] + c / group;
            acc[j] += __builtin_convertvector(sum, vf) * (group == CHUNK ? splat_halves(s[0], s[1]) : splat(s[0]));
        }
    }
}

/* One row of W times n tokens, over groups [g0, g0 + m), m <= MAX_GROUPS. */
INLINE void row_groups(const mf__tensor *w, int64_t row, int64_t g0, int64_t m, const mf__cpu_vec *x, int n, int width,
                       vf *acc) {
    float s[MAX_GROUPS + 1], b[MAX_GROUPS], scaled[MF_CPU_FEW][MAX_GROUPS + 1];
    int64_t groups = w->n_cols / w->group, at = row * groups + g0;
    int group = w->group, bits = bits_of(width);
    load_groups(w, at, m, s, b);
    for (int j = 0; j < n; j++) {
        const float *xs = x[j].scale + g0, *sums = x[j].sum + g0;
        int64_t g = 0;
        for (; g + WIDTH <= m; g += WIDTH) {
            store_f(scaled[j] + g, load_f(s + g) * load_f(xs + g));
            acc[j] += load_f(b + g) * load_f(sums + g);
        }
        for (; g < m; g++) {
            scaled[j][g] = s[g] * xs[g];
            acc[j][0] += b[g] * sums[g];
        }
        scaled[j][m] = 0;
    }
    const uint8_t *p = (const uint8_t *)w->data + (row * w->n_cols + g0 * group) / 8 * bits;
    if (width == 4 && group >= CHUNK && m * group % (2 * CHUNK) == 0) {
        nibble_groups(p, group, g0, m, x, n, (const float(*)[MAX_GROUPS + 1]) scaled, acc);
    } else if (group >= CHUNK) {
        for (int64_t g = 0; g < m; g++) {
            vi sums[MF_CPU_FEW] = {{0}};
            __builtin_prefetch(p + 1024);
            for (int i = 0; i < group; i += CHUNK, p += CHUNK / 8 * bits) {
                vu8 codes = codes_at(p, width, CHUNK / 8 * bits);
                for (int j = 0; j < n; j++)
                    sums[j] = dot4(sums[j], codes, load_i8(x[j].q + (g0 + g) * group + i), width);
            }
            for (int j = 0; j < n; j++) acc[j] += __builtin_convertvector(sums[j], vf) * scaled[j][g];
        }
    } else {
        for (int64_t g = 0; g < m; g += 2, p += CHUNK / 8 * bits) {
            vu8 codes = codes_at(p, width, (g + 1 < m ? CHUNK : CHUNK / 2) / 8 * bits);
            for (int j = 0; j < n; j++) {
                vi sums = dot4((vi){0}, codes, load_i8(x[j].q + (g0 + g) * group), width);
                acc[j] += __builtin_convertvector(sums, vf) * splat_halves(scaled[j][g], scaled[j][g + 1]);
            }
        }
    }
}

INLINE void row_products(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, int n, int width,
                         float *y, int64_t ld) {
    int64_t groups = w->n_cols / w->group;
    for (int64_t i = 0; i < n_rows; i++) {
        vf acc[MF_CPU_FEW] = {{0}};
        for (int64_t g0 = 0; g0 < groups; g0 += MAX_GROUPS)
            row_groups(w, row + i, g0, groups - g0 < MAX_GROUPS ? groups - g0 : MAX_GROUPS, x, n, width, acc);
        for (int j = 0; j < n; j++) y[j * ld + i] = sum_lanes(acc[j]);
    }
}

/* One function per width and number of tokens, so that both are constants inside. */
#define ROWS_FN(b, n)                                                                                                  \
    static void rows_##b##_##n(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, float *y,       \
                               int64_t ld) {                                                                           \
        row_products(w, row, n_rows, x, n, b, y, ld);                                                                  \
    }
#define ROWS_FNS(b) ROWS_FN(b, 1) ROWS_FN(b, 2) ROWS_FN(b, 3) ROWS_FN(b, 4)
ROWS_FNS(E2M1)
ROWS_FNS(2)
ROWS_FNS(3)
ROWS_FNS(4)
ROWS_FNS(5)
ROWS_FNS(6) ROWS_FNS(8)

    static void SET(rows_int8)(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, int n, float *y,
                               int64_t ld) {
    typedef void rows_fn(const mf__tensor *, int64_t, int64_t, const mf__cpu_vec *, float *, int64_t);
#define NAMES(b)                                                                                                       \
    { rows_##b##_1, rows_##b##_2, rows_##b##_3, rows_##b##_4 }
    static rows_fn *const fns[9][MF_CPU_FEW] = {[E2M1] = NAMES(E2M1), [2] = NAMES(2), [3] = NAMES(3), [4] = NAMES(4),
                                                [5] = NAMES(5),       [6] = NAMES(6), [8] = NAMES(8)};
    fns[width_of(w)][n - 1](w, row, n_rows, x, y, ld);
}

/* ---- a tile: a row in each lane ---------------------------------------------------------------------------------- */

#define TOKENS 8 /* whose sums are in registers at the same time */

INLINE void tile_tokens(const mf__cpu_tile *w, const mf__cpu_vec *x, int n, int bits, float *y) {
    vf total[TOKENS] = {{0}};
    int group = w->group;
    const uint8_t *codes = w->codes;
    for (int64_t g = 0; g < w->cols / group; g++) {
        vi sums[TOKENS] = {{0}};
        for (int64_t c = g * group; c < (g + 1) * group; c += 4, codes += CHUNK) {
            vu8 four;
            memcpy(&four, codes, sizeof four);
            for (int j = 0; j < n; j++) sums[j] = dot4(sums[j], four, splat4(x[j].q + c), bits);
        }
        vf scale = load_f(w->scales + g * WIDTH), bias = load_f(w->biases + g * WIDTH);
        for (int j = 0; j < n; j++) {
            total[j] += __builtin_convertvector(sums[j], vf) * scale * x[j].scale[g];
            total[j] += bias * x[j].sum[g];
        }
    }
    for (int j = 0; j < n; j++) store_f(y + j * WIDTH, total[j]);
}

/* One function per number of tokens and kind of codes. */
#define TILE_FN(n)                                                                                                     \
    static void tile_6_##n(const mf__cpu_tile *w, const mf__cpu_vec *x, float *y) {                                    \
        tile_tokens(w, x, n, 6, y);                                                                                    \
    }                                                                                                                  \
    static void tile_8_##n(const mf__cpu_tile *w, const mf__cpu_vec *x, float *y) {                                    \
        tile_tokens(w, x, n, 8, y);                                                                                    \
    }
TILE_FN(1)
TILE_FN(2)
TILE_FN(3)
TILE_FN(4)
TILE_FN(5) TILE_FN(6) TILE_FN(7) TILE_FN(8)

    /* Runs of equal length: a short one at the end would wait for its own sums. */
    static void SET(many_int8)(const mf__cpu_tile *w, const mf__cpu_vec *x, int n, float *y) {
    typedef void tile_fn(const mf__cpu_tile *, const mf__cpu_vec *, float *);
    static tile_fn *const fns[2][TOKENS] = {
        {tile_6_1, tile_6_2, tile_6_3, tile_6_4, tile_6_5, tile_6_6, tile_6_7, tile_6_8},
        {tile_8_1, tile_8_2, tile_8_3, tile_8_4, tile_8_5, tile_8_6, tile_8_7, tile_8_8}};
    for (int runs = (n + TOKENS - 1) / TOKENS; runs > 0; runs--) {
        int run = (n + runs - 1) / runs;
        fns[w->wide][run - 1](w, x, y);
        x += run;
        y += run * WIDTH;
        n -= run;
    }
}

void SET(mf__cpu_int8)(mf__cpu_kernels *k) {
    k->lanes = WIDTH;
    k->quant_row = SET(quant_row);
    k->rows_int8 = SET(rows_int8);
    k->tile_int8 = SET(tile_int8);
    k->many_int8 = SET(many_int8);
}
