/* Products of affine codes with int8 activations; compiled once per instruction set.
 *
 *   y = sum over groups of  scale * x_scale * (sum of code * q)  +  bias * x_sum
 *
 * with x ~ q * x_scale and x_sum the sum of those: the rounding of x then meets the weight itself, q s + b, and not
 * its two large parts one by one. Codes are unsigned, q is within +-127; the inner sum is exact. */
#include "backend/cpu/cpu.h"
#include "quant/half.h"

#define CHUNK (4 * WIDTH) /* codes in a vector */
#define MAX_GROUPS 64     /* whose scales are prepared together */

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Adding 1.5 * 2^23 leaves the nearest integer in the low bits. */
INLINE vi round_to_int(vf x) {
    return (vi)(x + 0x1.8p23f);
}

static void SET(quant_row)(const float *x, int64_t cols, int group, int8_t *q, float *scale, float *sum) {
    for (int64_t g = 0; g < cols / group; g++, x += group, q += group) {
        vf most = {0};
        vi total = {0};
        for (int i = 0; i < group; i += WIDTH) {
            vf v = load_f(x + i);
            most = max_of(most, max_of(v, -v));
        }
        float peak = 0;
        for (int i = 0; i < WIDTH; i++) peak = most[i] > peak ? most[i] : peak;
        float inverse = peak > 0 ? 127.0f / peak : 0;
        for (int i = 0; i < group; i += WIDTH) {
            vi v = round_to_int(load_f(x + i) * inverse);
            vi8_narrow narrow = __builtin_convertvector(v, vi8_narrow);
            memcpy(q + i, &narrow, sizeof narrow);
            total += __builtin_convertvector(narrow, vi);
        }
        int32_t n = 0;
        for (int i = 0; i < WIDTH; i++) n += total[i];
        scale[g] = peak / 127.0f;
        sum[g] = scale[g] * (float)n;
    }
    memset(q, 0, (size_t)((MF_CPU_PAD - cols % MF_CPU_PAD) % MF_CPU_PAD));
}

/* The same with a token in each lane: nothing goes across lanes. */
static void SET(quant_panel)(mf__cpu_panel *p, int64_t cols, int group) {
    const float *x = p->x;
    int8_t *q = p->q;
    for (int64_t g = 0; g < cols / group; g++, x += (int64_t)group * WIDTH) {
        vf most = {0}, inverse, total = {0};
        for (int i = 0; i < group; i++) {
            vf v = load_f(x + i * WIDTH);
            most = max_of(most, max_of(v, -v));
        }
        for (int i = 0; i < WIDTH; i++) inverse[i] = most[i] > 0 ? 127.0f / most[i] : 0;
        for (int i = 0; i < group; i += 4, q += CHUNK) {
            vi word = {0};
            for (int b = 0; b < 4; b++) {
                vf rounded = load_f(x + (i + b) * WIDTH) * inverse + 0x1.8p23f;
                word |= ((vi)rounded & 255) << (8 * b);
                total += rounded - 0x1.8p23f;
            }
            memcpy(q, &word, sizeof word);
        }
        vf scale = most / 127.0f;
        store_f(p->scale + g * WIDTH, scale);
        store_f(p->sum + g * WIDTH, scale * total);
    }
}

static void SET(pack_int8)(const mf__cpu_vec *rows, int n, int64_t cols, int group, mf__cpu_panel *out) {
    for (int64_t c = 0; c < cols; c += 4) {
        int8_t *to = out->q + c * WIDTH;
        for (int j = 0; j < n; j++) memcpy(to + 4 * j, rows[j].q + c, 4);
        if (n < WIDTH) memset(to + 4 * n, 0, (size_t)(4 * (WIDTH - n)));
    }
    for (int64_t g = 0; g < cols / group; g++) {
        for (int j = 0; j < WIDTH; j++) {
            out->scale[g * WIDTH + j] = j < n ? rows[j].scale[g] : 0;
            out->sum[g * WIDTH + j] = j < n ? rows[j].sum[g] : 0;
        }
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* n values of a row of scales or biases, from value `first` on. */
INLINE void load_scales(const void *base, mf__type type, int64_t first, int64_t n, float *restrict out) {
    const uint8_t *p = (const uint8_t *)base + first * (type == MF_TYPE_F32 ? 4 : 2);
    int64_t i = 0;
    if (type == MF_TYPE_F32) {
        memcpy(out, p, (size_t)n * 4);
    } else if (type == MF_TYPE_BF16) {
        for (; i + WIDTH <= n; i += WIDTH) store_f(out + i, load_bf16(p + 2 * i));
        for (; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * i, 2);
            out[i] = mf__bf16_to_f32(h);
        }
    } else {
        for (; i < n; i++) {
            uint16_t h;
            memcpy(&h, p + 2 * i, 2);
            out[i] = mf__f16_to_f32(h);
        }
    }
}

INLINE void unpack_group(const uint8_t *p, int bits, int group, uint8_t *out) {
    for (int i = 0; i < group; i += CHUNK, p += CHUNK / 8 * bits) {
        int part = group - i < CHUNK ? group - i : CHUNK;
        vu8 codes = unpack_codes(p, bits, part / 8 * bits);
        if (part == CHUNK)
            memcpy(out + i, &codes, CHUNK);
        else
            memcpy(out + i, &codes, CHUNK / 2); /* groups of 32 in vectors of 64 */
    }
}

#define EACH_BITS(bits, call)                                                                                          \
    switch (bits) {                                                                                                    \
    case 2: call(2); break;                                                                                            \
    case 3: call(3); break;                                                                                            \
    case 4: call(4); break;                                                                                            \
    case 5: call(5); break;                                                                                            \
    case 6: call(6); break;                                                                                            \
    default: call(8); break;                                                                                           \
    }

/* Rows past the n-th keep what an earlier tile left there: their results are not used. */
static void SET(tile_int8)(const mf__tensor *w, int64_t row, int n, mf__cpu_tile *out) {
    int64_t groups = w->n_cols / w->group, row_bytes = w->n_cols / 8 * w->bits;
    out->cols = w->n_cols;
    out->group = w->group;
    out->wide = w->bits == 8;
    for (int r = 0; r < n; r++) {
        const uint8_t *p = (const uint8_t *)w->data + (row + r) * row_bytes;
        uint8_t *to = out->codes + r * w->group;
        int64_t step = (int64_t)TILE * w->group, group_bytes = w->group / 8 * w->bits;
#define UNPACK(b)                                                                                                      \
    for (int64_t g = 0; g < groups; g++) unpack_group(p + g * group_bytes, b, w->group, to + g * step)
        EACH_BITS(w->bits, UNPACK)
#undef UNPACK
        for (int64_t g0 = 0; g0 < groups; g0 += MAX_GROUPS) {
            int64_t m = groups - g0 < MAX_GROUPS ? groups - g0 : MAX_GROUPS;
            float s[MAX_GROUPS], b[MAX_GROUPS];
            load_scales(w->scales, w->scale_type, (row + r) * groups + g0, m, s);
            load_scales(w->biases, w->scale_type, (row + r) * groups + g0, m, b);
            for (int64_t g = 0; g < m; g++) {
                out->scales[(g0 + g) * TILE + r] = s[g];
                out->biases[(g0 + g) * TILE + r] = b[g];
            }
        }
    }
}

/* ---- a few tokens: sums along the row --------------------------------------------------------------------------- */

/* Two scales in the halves of a vector: a chunk that holds two groups. */
INLINE vf splat_halves(float low, float high) {
    vf v;
    for (int i = 0; i < WIDTH; i++) v[i] = i < WIDTH / 2 ? low : high;
    return v;
}

/* One row of W times n tokens, over groups [g0, g0 + m), m <= MAX_GROUPS. */
INLINE void row_groups(const mf__tensor *w, int64_t row, int64_t g0, int64_t m, const mf__cpu_vec *x, int n, int bits,
                       vf *acc) {
    float s[MAX_GROUPS + 1], b[MAX_GROUPS], scaled[MF_CPU_FEW][MAX_GROUPS + 1];
    int64_t groups = w->n_cols / w->group, at = row * groups + g0;
    int group = w->group;
    load_scales(w->scales, w->scale_type, at, m, s);
    load_scales(w->biases, w->scale_type, at, m, b);
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
    if (group >= CHUNK) {
        for (int64_t g = 0; g < m; g++) {
            vi sums[MF_CPU_FEW] = {{0}};
            __builtin_prefetch(p + 1024);
            for (int i = 0; i < group; i += CHUNK, p += CHUNK / 8 * bits) {
                vu8 codes = unpack_codes(p, bits, CHUNK / 8 * bits);
                for (int j = 0; j < n; j++)
                    sums[j] = dot4(sums[j], codes, load_i8(x[j].q + (g0 + g) * group + i), bits);
            }
            for (int j = 0; j < n; j++) acc[j] += __builtin_convertvector(sums[j], vf) * scaled[j][g];
        }
        return;
    }
    for (int64_t g = 0; g < m; g += 2, p += CHUNK / 8 * bits) {
        vu8 codes = unpack_codes(p, bits, (g + 1 < m ? CHUNK : CHUNK / 2) / 8 * bits);
        for (int j = 0; j < n; j++) {
            vi sums = dot4((vi){0}, codes, load_i8(x[j].q + (g0 + g) * group), bits);
            acc[j] += __builtin_convertvector(sums, vf) * splat_halves(scaled[j][g], scaled[j][g + 1]);
        }
    }
}

INLINE void row_products(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, int n, int bits,
                         float *y, int64_t ld) {
    int64_t groups = w->n_cols / w->group;
    for (int64_t i = 0; i < n_rows; i++) {
        vf acc[MF_CPU_FEW] = {{0}};
        for (int64_t g0 = 0; g0 < groups; g0 += MAX_GROUPS)
            row_groups(w, row + i, g0, groups - g0 < MAX_GROUPS ? groups - g0 : MAX_GROUPS, x, n, bits, acc);
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
ROWS_FNS(2)
ROWS_FNS(3) ROWS_FNS(4) ROWS_FNS(5) ROWS_FNS(6) ROWS_FNS(8)

    static void SET(rows_int8)(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, int n, float *y,
                               int64_t ld) {
    typedef void rows_fn(const mf__tensor *, int64_t, int64_t, const mf__cpu_vec *, float *, int64_t);
#define NAMES(b)                                                                                                       \
    { rows_##b##_1, rows_##b##_2, rows_##b##_3, rows_##b##_4 }
    static rows_fn *const fns[9][MF_CPU_FEW] = {
        [2] = NAMES(2), [3] = NAMES(3), [4] = NAMES(4), [5] = NAMES(5), [6] = NAMES(6), [8] = NAMES(8)};
    fns[w->bits][n - 1](w, row, n_rows, x, y, ld);
}

/* ---- a panel: a token in each lane ------------------------------------------------------------------------------- */

INLINE void panel_groups(const mf__cpu_tile *w, const mf__cpu_panel *x, int bits, float *out) {
    vf total[TILE] = {{0}};
    int group = w->group;
    const uint8_t *codes = w->codes;
    const int8_t *q = x->q;
    for (int64_t g = 0; g < w->cols / group; g++, codes += TILE * group) {
        vi sums[TILE] = {{0}};
        for (int i = 0; i < group; i += 4, q += CHUNK) {
            vi8 tokens = load_i8(q);
            for (int r = 0; r < TILE; r++) sums[r] = dot4(sums[r], splat4(codes + r * group + i), tokens, bits);
        }
        vf scale = load_f(x->scale + g * WIDTH), sum = load_f(x->sum + g * WIDTH);
        for (int r = 0; r < TILE; r++) {
            total[r] += __builtin_convertvector(sums[r], vf) * scale * w->scales[g * TILE + r];
            total[r] += sum * w->biases[g * TILE + r];
        }
    }
    for (int r = 0; r < TILE; r++) store_f(out + r * WIDTH, total[r]);
}

static void SET(panel_int8)(const mf__cpu_tile *w, const mf__cpu_panel *x, float *out) {
    if (w->wide)
        panel_groups(w, x, 8, out);
    else
        panel_groups(w, x, 6, out);
}

void SET(mf__cpu_int8)(mf__cpu_kernels *k) {
    k->lanes = WIDTH;
    k->tile_rows = TILE;
    k->quant_row = SET(quant_row);
    k->quant_panel = SET(quant_panel);
    k->pack_int8 = SET(pack_int8);
    k->tile_int8 = SET(tile_int8);
    k->rows_int8 = SET(rows_int8);
    k->panel_int8 = SET(panel_int8);
}
