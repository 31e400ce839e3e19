/* Products of weights in groups with activations in planes of bytes; compiled once per instruction set.
 *
 *   y = sum over groups of  scale * x_scale * (sum of code * q)  +  bias * x_sum
 *
 * with x ~ x_scale * q and x_sum the sum of those: the rounding of x then meets the weight itself, code * scale + bias,
 * and not its two large parts one by one. q = 2^12 q[0] + 2^5 q[1] + q[2], or without the last planes; codes are
 * unsigned, the planes within +-127, +-64 and +-16. Sums of a plane are exact. */
#include "backend/cpu/groups.inc.h"

#define AHEAD 2048 /* bytes at least that are fetched before they are used */
#define MAX_SUMS 4 /* of rows and tokens at once */

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Adding 1.5 * 2^23 leaves the nearest integer in the low bits. */
INLINE vi round_to_int(vf x) {
    return (vi)(x + 0x1.8p23f);
}

enum { BITS_1 = 7, BITS_2 = 5 };                      /* of the second plane and of the third */
enum { MOST = 127 * 4096 + 2047 };                    /* the largest q, so that its first plane is 127 */
static const int UNIT[MF_CPU_PLANES] = {4096, 32, 1}; /* of the last of one, two, three planes */

INLINE void store_i8(int8_t *p, vi v) {
    vi8_narrow narrow = __builtin_convertvector(v, vi8_narrow);
    memcpy(p, &narrow, sizeof narrow);
}

static void SET(quant_row)(int64_t cols, int group, const mf__cpu_vec *v) {
    for (int64_t g = 0; g < cols / group; g++) {
        const float *x = v->x + g * group;
        vf most = {0};
        vi total[MF_CPU_PLANES] = {{0}};
        for (int i = 0; i < group; i += WIDTH) {
            vf f = load_f(x + i);
            most = max_of(most, max_of(f, -f));
        }
        float peak = 0;
        for (int i = 0; i < WIDTH; i++) peak = most[i] > peak ? most[i] : peak;
        float inverse = peak > 1e-30f ? MOST / peak : 0; /* below, the quotient is no number */
        for (int i = 0; i < group; i += WIDTH) {
            vi rest = round_to_int(load_f(x + i) * inverse) - round_to_int((vf){0});
            for (int k = 0; k < MF_CPU_PLANES; k++) {
                vi part = (rest + UNIT[k] / 2) >> __builtin_ctz((unsigned)UNIT[k]);
                store_i8(v->q[k] + g * group + i, part);
                total[k] += part;
                rest -= part * UNIT[k];
            }
        }
        v->scale[g] = peak / MOST;
        for (int k = 0, sum = 0; k < MF_CPU_PLANES; k++) {
            for (int i = 0; i < WIDTH; i++) sum += total[k][i] * UNIT[k];
            v->sum[k][g] = v->scale[g] * (float)sum;
        }
    }
    for (int64_t g = cols / group; g % MF_CPU_MAX_LANES; g++) {
        v->scale[g] = 0;
        for (int k = 0; k < MF_CPU_PLANES; k++) v->sum[k][g] = 0;
    }
    for (int p = 0; p < MF_CPU_PLANES; p++) {
        memset(v->q[p] + cols, 0, (size_t)((MF_CPU_PAD - cols % MF_CPU_PAD) % MF_CPU_PAD));
        for (int64_t c = 0; c < cols; c += 2 * CHUNK) {
            const int8_t *from = v->q[p] + c;
            int8_t *even = v->split + MF_CPU_PLANES * c + p * 2 * CHUNK, *odd = even + CHUNK;
            for (int i = 0; i < CHUNK; i++) even[i] = from[2 * i], odd[i] = from[2 * i + 1];
        }
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

/* One token waits for memory anyway. */
INLINE int planes_for(int n) {
    return n == 1 ? MF_CPU_PLANES : 2;
}

/* A walk along a few rows of W at once. They are read side by side, and fetched one after the other: a processor looks
 * ahead along one line by itself, but not along four. */
typedef struct walk {
    const uint8_t *p;          /* the first row's codes */
    const uint8_t *ahead;      /* to be fetched */
    int64_t row_bytes, groups; /* of a row */
    int64_t group;             /* the next one of the first row, of all in W */
} walk;

INLINE walk walk_from(const mf__tensor *w, int64_t groups, int64_t row, int n_rows, int width) {
    walk at = {.row_bytes = w->n_cols / 8 * bits_of(width), .groups = groups, .group = row * groups};
    at.p = (const uint8_t *)w->data + row * at.row_bytes;
    at.ahead = at.p + (n_rows * at.row_bytes > AHEAD ? n_rows * at.row_bytes : AHEAD);
    return at;
}

/* Scales and biases of m groups of each row, from group `first` of the first row on; `groups` in a row. */
static __attribute__((noinline)) void any_scales(const mf__tensor *w, int64_t first, int64_t groups, int n_rows, int m,
                                                 vf *s, vf *b) {
    for (int r = 0; r < n_rows; r++, first += groups) {
        s[r] = scale_vector(w->scales, w->scale_type, first, m);
        b[r] = has_biases(w) ? scale_vector(w->biases, w->scale_type, first, m) : s[r] * -centre_of(w);
    }
}

/* What the sums of the next m groups of the rows are to be multiplied with, for n tokens; what the biases add goes to
 * acc. */
INLINE void walk_scales(walk *at, const mf__tensor *w, int n_rows, int64_t g, int m, const mf__cpu_vec *x, int n,
                        vf *scaled, vf *acc) {
    int planes = planes_for(n);
    vf s[MAX_SUMS], b[MAX_SUMS];
    if (w->scale_type == MF_TYPE_BF16 && w->biases) { /* what most files have */
        const uint16_t *scales = (const uint16_t *)w->scales + at->group,
                       *biases = (const uint16_t *)w->biases + at->group;
        for (int r = 0; r < n_rows; r++) {
            s[r] = bf16_of(first_u16(scales + r * at->groups, m));
            b[r] = bf16_of(first_u16(biases + r * at->groups, m));
        }
    } else {
        any_scales(w, at->group, at->groups, n_rows, m, s, b);
    }
    at->group += m;
    for (int r = 0; r < n_rows; r++)
        for (int j = 0; j < n; j++) {
            scaled[r * n + j] = s[r] * (load_f(x[j].scale + g) * (float)UNIT[planes - 1]);
            acc[r * n + j] = fma_of(b[r], load_f(x[j].sum[planes - 1] + g), acc[r * n + j]);
        }
}

/* The sums of some planes as one, in units of the last. */
INLINE vf join(const vi *sums, int planes) {
    vf two = __builtin_convertvector((sums[0] << BITS_1) + sums[1], vf);
    return planes == 2 ? two : fma_of(two, splat(1 << BITS_2), __builtin_convertvector(sums[2], vf));
}

/* 0 in the lower half of the lanes, 1 in the upper. */
INLINE vi first_pair(void) {
    vi v = {0};
    for (int i = WIDTH / 2; i < WIDTH; i++) v[i] = 1;
    return v;
}

/* Rows of 4-bit codes, taken by whole vectors of nibbles: the low ones are the even elements. A vector has `two` groups
 * or (a part of) one. */
INLINE void nibble_rows(const mf__tensor *w, int64_t groups, int64_t row, int n_rows, const mf__cpu_vec *x, int n,
                        bool two, vf *acc) {
    walk at = walk_from(w, groups, row, n_rows, 4);
    int vectors = two ? 1 : w->group / (2 * CHUNK), planes = planes_for(n);
    int64_t c = 0;
    for (int64_t g = 0; g < at.groups; g += WIDTH) {
        int m = at.groups - g < WIDTH ? (int)(at.groups - g) : WIDTH;
        vf scaled[MAX_SUMS];
        vi lane = two ? first_pair() : (vi){0};
        walk_scales(&at, w, n_rows, g, m, x, n, scaled, acc);
        for (int i = 0; i < m; i += two ? 2 : 1, lane += two ? 2 : 1)
            for (int v = 0; v < vectors; v++, c += 2 * CHUNK, at.p += CHUNK)
                for (int r = 0; r < n_rows; r++, at.ahead += CHUNK) {
                    vu8 packed, low, high;
                    memcpy(&packed, at.p + r * at.row_bytes, sizeof packed);
                    if (n_rows > 1) __builtin_prefetch(at.ahead);
                    low = packed & 15;
                    high = packed >> 4;
                    for (int j = 0; j < n; j++) {
                        const int8_t *q = x[j].split + MF_CPU_PLANES * c;
                        vf *sum = &acc[r * n + j];
                        vi codes = {0};
                        for (int k = 0; k < planes; k++, q += 2 * CHUNK) {
                            codes <<= k == 0 ? 0 : k == 1 ? BITS_1 : BITS_2; /* far from overflow: codes are small */
                            codes = dot4(dot4(codes, low, load_i8(q), 4), high, load_i8(q + CHUNK), 4);
                        }
                        *sum = fma_of(__builtin_convertvector(codes, vf), pick(scaled[r * n + j], lane), *sum);
                    }
                }
    }
}

/* Groups of whole vectors of any codes. */
INLINE void vector_rows(const mf__tensor *w, int64_t groups, int64_t row, int n_rows, const mf__cpu_vec *x, int n,
                        int width, vf *acc) {
    walk at = walk_from(w, groups, row, n_rows, width);
    int step = CHUNK / 8 * bits_of(width), planes = planes_for(n); /* step: bytes of a vector of codes */
    int64_t c = 0;
    for (int64_t g = 0; g < at.groups; g += WIDTH) {
        int m = at.groups - g < WIDTH ? (int)(at.groups - g) : WIDTH;
        vf scaled[MAX_SUMS];
        vi lane = {0};
        walk_scales(&at, w, n_rows, g, m, x, n, scaled, acc);
        for (int i = 0; i < m; i++, lane += 1) {
            vi sums[MAX_SUMS][MF_CPU_PLANES];
            for (int s = 0; s < n_rows * n; s++)
                for (int k = 0; k < planes; k++) sums[s][k] = (vi){0};
            for (int v = 0; v < w->group; v += CHUNK, c += CHUNK, at.p += step)
                for (int r = 0; r < n_rows; r++, at.ahead += step) {
                    vu8 codes = codes_at(at.p + r * at.row_bytes, width, step);
                    if (n_rows > 1) __builtin_prefetch(at.ahead);
                    for (int j = 0; j < n; j++)
                        for (int k = 0; k < planes; k++)
                            sums[r * n + j][k] = dot4(sums[r * n + j][k], codes, load_i8(x[j].q[k] + c), width);
                }
            for (int k = 0; k < n_rows * n; k++) acc[k] = fma_of(join(sums[k], planes), pick(scaled[k], lane), acc[k]);
        }
    }
}

/* Groups of half a vector; behind the last there is a scale of zero. */
INLINE void half_rows(const mf__tensor *w, int64_t groups, int64_t row, int n_rows, const mf__cpu_vec *x, int n,
                      int width, vf *acc) {
    walk at = walk_from(w, groups, row, n_rows, width);
    int step = CHUNK / 8 * bits_of(width), planes = planes_for(n);
    int64_t c = 0;
    for (int64_t g = 0; g < at.groups; g += WIDTH) {
        int m = at.groups - g < WIDTH ? (int)(at.groups - g) : WIDTH;
        vf scaled[MAX_SUMS];
        vi pair = first_pair();
        walk_scales(&at, w, n_rows, g, m, x, n, scaled, acc);
        for (int i = 0; i < m; i += 2, pair += 2, c += CHUNK, at.p += step)
            for (int r = 0; r < n_rows; r++, at.ahead += step) {
                vu8 codes = codes_at(at.p + r * at.row_bytes, width, i + 1 < m ? step : step / 2);
                if (n_rows > 1) __builtin_prefetch(at.ahead);
                for (int j = 0; j < n; j++) {
                    vi sums[MF_CPU_PLANES];
                    vf *sum = &acc[r * n + j];
                    for (int k = 0; k < planes; k++) sums[k] = dot4((vi){0}, codes, load_i8(x[j].q[k] + c), width);
                    *sum = fma_of(join(sums, planes), pick(scaled[r * n + j], pair), *sum);
                }
            }
    }
}

/* n_rows rows of W times n tokens, n_rows * n <= MAX_SUMS. Each product has a sum of its own, the same whatever is
 * beside it. */
INLINE void some_rows(const mf__tensor *w, int64_t groups, int64_t row, int n_rows, const mf__cpu_vec *x, int n,
                      int width, float *y, int64_t ld) {
    vf acc[MAX_SUMS];
    for (int i = 0; i < n_rows * n; i++) acc[i] = (vf){0};
    if (width == 4 && w->group > CHUNK)
        nibble_rows(w, groups, row, n_rows, x, n, false, acc);
    else if (width == 4 && w->group == CHUNK && w->n_cols % (2 * CHUNK) == 0)
        nibble_rows(w, groups, row, n_rows, x, n, true, acc);
    else if (w->group >= CHUNK)
        vector_rows(w, groups, row, n_rows, x, n, width, acc);
    else
        half_rows(w, groups, row, n_rows, x, n, width, acc);
    for (int r = 0; r < n_rows; r++)
        for (int j = 0; j < n; j++) y[j * ld + r] = sum_lanes(acc[r * n + j]);
}

/* One function per width and number of tokens, so that both are constants inside. With one token there are so many rows
 * at once as keep what is being read and what is being fetched in the first cache. */
#define ROWS_FN(width, n, side)                                                                                        \
    static void rows_##width##_##n(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, float *y,   \
                                   int64_t ld) {                                                                       \
        int64_t i = 0, groups = w->n_cols / w->group, row_bytes = w->n_cols / 8 * bits_of(width);                      \
        if (side && row_bytes <= 1024)                                                                                 \
            for (; i + 4 <= n_rows; i += 4) some_rows(w, groups, row + i, side ? 4 : 1, x, n, width, y + i, ld);       \
        else if (side && row_bytes <= 4096)                                                                            \
            for (; i + 2 <= n_rows; i += 2) some_rows(w, groups, row + i, side ? 2 : 1, x, n, width, y + i, ld);       \
        for (; i < n_rows; i++) some_rows(w, groups, row + i, 1, x, n, width, y + i, ld);                              \
    }
ROWS_FN(2, 1, false)
ROWS_FN(3, 1, false)
ROWS_FN(5, 1, false)
ROWS_FN(6, 1, false)
#define ROWS_FNS(width) ROWS_FN(width, 1, true) ROWS_FN(width, 2, false) ROWS_FN(width, 4, false)
ROWS_FNS(E2M1) /* what most files have */
ROWS_FNS(4)
ROWS_FNS(8)

typedef void rows_fn(const mf__tensor *, int64_t, int64_t, const mf__cpu_vec *, float *, int64_t);

static void SET(rows_int8)(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, int n, float *y,
                           int64_t ld) {
    static rows_fn *const one[9] = {[E2M1] = rows_E2M1_1, [2] = rows_2_1, [3] = rows_3_1, [4] = rows_4_1,
                                    [5] = rows_5_1,       [6] = rows_6_1, [8] = rows_8_1};
    static rows_fn *const two[9] = {[E2M1] = rows_E2M1_2, [4] = rows_4_2, [8] = rows_8_2};
    static rows_fn *const four[9] = {[E2M1] = rows_E2M1_4, [4] = rows_4_4, [8] = rows_8_4};
    int width = width_of(w);
    for (int j = 0, m; j < n; j += m) {
        m = !two[width] || n - j == 1 ? 1 : n - j < 4 ? 2 : 4;
        (m == 1 ? one : m == 2 ? two : four)[width](w, row, n_rows, x + j, y + j * ld, ld);
    }
}

/* ---- a tile: a row in each lane ---------------------------------------------------------------------------------- */

#define TOKENS 8 /* whose sums are in registers at the same time */

INLINE void tile_tokens(const mf__cpu_tile *w, const mf__cpu_vec *x, int n, int planes, int bits, float *y) {
    vf total[TOKENS] = {{0}};
    int group = w->group;
    for (int64_t g = 0; g < w->cols / group; g++) {
        vi sums[TOKENS] = {{0}};
        for (int k = 0; k < planes; k++) {
            for (int64_t c = g * group; c < (g + 1) * group; c += 4) {
                vu8 four;
                memcpy(&four, w->codes + c * WIDTH, sizeof four);
                for (int j = 0; j < n; j++) sums[j] = dot4(sums[j], four, splat4(x[j].q[k] + c), bits);
            }
            for (int j = 0; j < n && k + 1 < planes; j++) sums[j] <<= BITS_1;
        }
        vf scale = load_f(w->scales + g * WIDTH) * (float)UNIT[planes - 1], bias = load_f(w->biases + g * WIDTH);
        for (int j = 0; j < n; j++) {
            total[j] = fma_of(__builtin_convertvector(sums[j], vf), scale * x[j].scale[g], total[j]);
            total[j] = fma_of(bias, splat(x[j].sum[planes - 1][g]), total[j]);
        }
    }
    for (int j = 0; j < n; j++) store_f(y + j * WIDTH, total[j]);
}

/* One function per number of tokens, of planes, and kind of codes. */
#define TILE_FN(bits, planes, n)                                                                                       \
    static void tile_##bits##_##planes##_##n(const mf__cpu_tile *w, const mf__cpu_vec *x, float *y) {                  \
        tile_tokens(w, x, n, planes, bits, y);                                                                         \
    }
#define TILE_FNS(bits, planes)                                                                                         \
    TILE_FN(bits, planes, 1)                                                                                           \
    TILE_FN(bits, planes, 2)                                                                                           \
    TILE_FN(bits, planes, 3)                                                                                           \
    TILE_FN(bits, planes, 4)                                                                                           \
    TILE_FN(bits, planes, 5) TILE_FN(bits, planes, 6) TILE_FN(bits, planes, 7) TILE_FN(bits, planes, 8)
TILE_FNS(6, 1)
TILE_FNS(6, 2)
TILE_FNS(8, 1)
TILE_FNS(8, 2)

/* Runs of equal length: a short one at the end would wait for its own sums. */
static void SET(many_int8)(const mf__cpu_tile *w, const mf__cpu_vec *x, int n, int planes, float *y) {
    typedef void tile_fn(const mf__cpu_tile *, const mf__cpu_vec *, float *);
#define TILE_NAMES(bits, planes)                                                                                       \
    {                                                                                                                  \
        tile_##bits##_##planes##_1, tile_##bits##_##planes##_2, tile_##bits##_##planes##_3,                            \
            tile_##bits##_##planes##_4, tile_##bits##_##planes##_5, tile_##bits##_##planes##_6,                        \
            tile_##bits##_##planes##_7, tile_##bits##_##planes##_8                                                     \
    }
    static tile_fn *const fns[2][2][TOKENS] = {{TILE_NAMES(6, 1), TILE_NAMES(6, 2)},
                                               {TILE_NAMES(8, 1), TILE_NAMES(8, 2)}};
    for (int runs = (n + TOKENS - 1) / TOKENS; runs > 0; runs--) {
        int run = (n + runs - 1) / runs;
        fns[w->wide][planes - 1][run - 1](w, x, y);
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
