/* Products of weights in groups with activations in two planes of bytes; compiled once per instruction set.
 *
 *   y = sum over groups of  x_scale * (scale * (sum of code * q)  +  bias * (sum of q))
 *
 * with x ~ x_scale * q: the rounding of x meets the weight itself, code * scale + bias, and not its two large parts one
 * by one. q = 2^7 q[0] + q[1]; codes are unsigned, the planes within +-127 and +-64, their sums exact. SPAN groups have
 * the same x_scale. */
#include "backend/cpu/groups.inc.h"

#define AHEAD 2048 /* bytes at least that are fetched before they are used */
#define MAX_SUMS 4 /* of rows and tokens at once */
#define SPAN 4     /* groups that share a scale of activations */
#define SOME 32    /* columns that are in the same place for every tile: the smallest group */

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Adding 1.5 * 2^23 leaves the nearest integer in the low bits. */
INLINE vi round_to_int(vf x) {
    return (vi)(x + 0x1.8p23f);
}

enum { LOW_BITS = 7, LOW = 1 << LOW_BITS, MOST = 127 * LOW + LOW / 2 - 1 }; /* MOST: the largest q */

INLINE void store_i8(int8_t *p, vi v) {
    vi8_narrow narrow = __builtin_convertvector(v, vi8_narrow);
    memcpy(p, &narrow, sizeof narrow);
}

typedef uint16_t vu16 __attribute__((vector_size(4 * WIDTH)));
typedef uint8_t vu8_half __attribute__((vector_size(2 * WIDTH)));

/* 2 * CHUNK columns: the even ones, then the odd ones. */
INLINE void part_pairs(int8_t *q) {
    vu16 pairs[2];
    memcpy(pairs, q, sizeof pairs);
    for (int i = 0; i < 2; i++) {
        vu8_half even = __builtin_convertvector(pairs[i], vu8_half),
                 odd = __builtin_convertvector(pairs[i] >> 8, vu8_half);
        memcpy(q + i * CHUNK / 2, &even, sizeof even);
        memcpy(q + CHUNK + i * CHUNK / 2, &odd, sizeof odd);
    }
}

/* One group of x. */
INLINE void quant_group(const float *x, int group, float inverse, const mf__cpu_vec *v, int64_t g) {
    vi highs = {0}, lows = {0};
    for (int i = 0; i < group; i += WIDTH) {
        vi q = round_to_int(load_f(x + i) * inverse) - round_to_int((vf){0});
        vi high = (q + LOW / 2) >> LOW_BITS, low = q - (high << LOW_BITS);
        store_i8(v->q[0] + g * group + i, high);
        store_i8(v->q[1] + g * group + i, low);
        highs += high;
        lows += low;
    }
    /* both sums are small: exact as floats */
    v->sum[g] = sum_lanes(__builtin_convertvector(highs, vf)) * LOW + sum_lanes(__builtin_convertvector(lows, vf));
}

static void SET(quant_row)(const mf__cpu_form *form, int64_t cols, const mf__cpu_vec *v) {
    int group = form->group;
    for (int64_t first = 0; first < cols / group; first += SPAN) {
        int64_t end = first + SPAN < cols / group ? first + SPAN : cols / group;
        vf most = {0};
        for (int64_t i = first * group; i < end * group; i += WIDTH) {
            vf f = load_f(v->x + i);
            most = max_of(most, max_of(f, -f));
        }
        float peak = max_lanes(most), inverse = peak > 1e-30f ? MOST / peak : 0; /* below, it is no number */
        for (int64_t g = first; g < end; g++) {
            quant_group(v->x + g * group, group, inverse, v, g);
            v->scale[g] = peak / MOST;
        }
    }
    for (int64_t g = cols / group; g % MF_CPU_MAX_LANES; g++) v->scale[g] = v->sum[g] = 0;
    for (int k = 0; k < MF_CPU_PLANES; k++) {
        memset(v->q[k] + cols, 0, (size_t)((MF_CPU_PAD - cols % MF_CPU_PAD) % MF_CPU_PAD));
        for (int64_t c = 0; c < cols && form->pairs; c += 2 * CHUNK) part_pairs(v->q[k] + c);
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* values [row + i][groups] -> out [groups][WIDTH]; those of the next tile are fetched */
INLINE void tile_scales(const mf__tensor *w, const void *values, int64_t row, int n, float *out) {
    int64_t groups = w->n_cols / w->group;
    const char *next = (const char *)values + (row + n) * groups * scale_bytes(w->scale_type);
    for (int64_t i = 0; i < n * groups * scale_bytes(w->scale_type); i += MF_CPU_LINE) __builtin_prefetch(next + i);
    int64_t g = 0;
    for (; w->scale_type == MF_TYPE_BF16 && groups - g >= 2 * WIDTH; g += 2 * WIDTH) { /* two in each lane */
        vi square[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            square[i] = i < n ? (vi)load_i8((const int8_t *)values + 2 * ((row + i) * groups + g)) : (vi){0};
        transpose(square);
        for (int i = 0; i < WIDTH; i++) {
            store_f(out + (g + 2 * i) * WIDTH, (vf)(square[i] << 16));
            store_f(out + (g + 2 * i + 1) * WIDTH, (vf)(square[i] >> 16 << 16));
        }
    }
    for (; g < groups; g += WIDTH) {
        vi square[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            square[i] = i < n ? (vi)scale_vector(values, w->scale_type, (row + i) * groups + g, groups - g) : (vi){0};
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

/* 2 * CHUNK columns of four bits, eight in each lane: they stay packed. */
INLINE void nibble_square(const uint8_t *p, int64_t row_bytes, int n, uint8_t *out) {
    vi square[WIDTH];
    for (int i = 0; i < WIDTH; i++) square[i] = i < n ? (vi)load_i8((const int8_t *)p + i * row_bytes) : (vi){0};
    transpose(square);
    for (int i = 0; i < WIDTH; i++) memcpy(out + i * CHUNK, &square[i], sizeof *square);
}

INLINE void tile_codes(const mf__tensor *w, int64_t row, int n, int width, uint8_t *out) {
    int64_t bits = bits_of(width), row_bytes = w->n_cols / 8 * bits;
    const uint8_t *p = (const uint8_t *)w->data + row * row_bytes;
    if (width == 4 && mf__cpu_pairs(w, WIDTH)) {
        for (int64_t c = 0; c < w->n_cols; c += 2 * CHUNK, p += CHUNK, out += CHUNK * WIDTH)
            if (n == WIDTH)
                nibble_square(p, row_bytes, WIDTH, out);
            else
                nibble_square(p, row_bytes, n, out);
        return;
    }
    for (int64_t c = 0; c < w->n_cols; c += CHUNK, p += CHUNK / 8 * bits, out += CHUNK * WIDTH)
        if (n == WIDTH && w->n_cols - c >= CHUNK)
            code_square(p, row_bytes, WIDTH, CHUNK, width, out);
        else
            code_square(p, row_bytes, n, w->n_cols - c < CHUNK ? (int)(w->n_cols - c) : CHUNK, width, out);
}

static void SET(tile_int8)(const mf__tensor *w, int64_t row, int n, mf__cpu_tile *out) {
    int64_t row_bytes = w->n_cols / 8 * bits_of(width_of(w)), left = w->n_rows - row - n;
    out->cols = w->n_cols;
    out->group = w->group;
    out->kind = mf__cpu_pairs(w, WIDTH) ? MF_CPU_NIBBLES : w->bits == 8 ? MF_CPU_BYTES : MF_CPU_SMALL_BYTES;
    out->next = (const uint8_t *)w->data + (row + n) * row_bytes;
    out->next_bytes = (left < WIDTH ? left : WIDTH) * row_bytes;
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
            scaled[r * n + j] = s[r] * load_f(x[j].scale + g);
            acc[r * n + j] = fma_of(b[r], load_f(x[j].scale + g) * load_f(x[j].sum + g), acc[r * n + j]);
        }
}

/* The sums of both planes as one. */
INLINE vf join(const vi *sums) {
    return __builtin_convertvector((sums[0] << LOW_BITS) + sums[1], vf);
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
    int vectors = two ? 1 : w->group / (2 * CHUNK);
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
                        vf *sum = &acc[r * n + j];
                        const int8_t *q = x[j].q[0] + c, *q_low = x[j].q[1] + c;
                        vi codes = dot4(dot4((vi){0}, low, load_i8(q), 4), high, load_i8(q + CHUNK), 4) << LOW_BITS;
                        codes = dot4(dot4(codes, low, load_i8(q_low), 4), high, load_i8(q_low + CHUNK), 4);
                        *sum = fma_of(__builtin_convertvector(codes, vf), pick(scaled[r * n + j], lane), *sum);
                    }
                }
    }
}

/* Groups of whole vectors of any codes. */
INLINE void vector_rows(const mf__tensor *w, int64_t groups, int64_t row, int n_rows, const mf__cpu_vec *x, int n,
                        int width, vf *acc) {
    walk at = walk_from(w, groups, row, n_rows, width);
    int step = CHUNK / 8 * bits_of(width); /* bytes of a vector of codes */
    int64_t c = 0;
    for (int64_t g = 0; g < at.groups; g += WIDTH) {
        int m = at.groups - g < WIDTH ? (int)(at.groups - g) : WIDTH;
        vf scaled[MAX_SUMS];
        vi lane = {0};
        walk_scales(&at, w, n_rows, g, m, x, n, scaled, acc);
        for (int i = 0; i < m; i++, lane += 1) {
            vi sums[MAX_SUMS][MF_CPU_PLANES];
            for (int s = 0; s < n_rows * n; s++)
                for (int k = 0; k < MF_CPU_PLANES; k++) sums[s][k] = (vi){0};
            for (int v = 0; v < w->group; v += CHUNK, c += CHUNK, at.p += step)
                for (int r = 0; r < n_rows; r++, at.ahead += step) {
                    vu8 codes = codes_at(at.p + r * at.row_bytes, width, step);
                    if (n_rows > 1) __builtin_prefetch(at.ahead);
                    for (int j = 0; j < n; j++)
                        for (int k = 0; k < MF_CPU_PLANES; k++)
                            sums[r * n + j][k] = dot4(sums[r * n + j][k], codes, load_i8(x[j].q[k] + c), width);
                }
            for (int k = 0; k < n_rows * n; k++) acc[k] = fma_of(join(sums[k]), pick(scaled[k], lane), acc[k]);
        }
    }
}

/* Groups of half a vector; behind the last there is a scale of zero. */
INLINE void half_rows(const mf__tensor *w, int64_t groups, int64_t row, int n_rows, const mf__cpu_vec *x, int n,
                      int width, vf *acc) {
    walk at = walk_from(w, groups, row, n_rows, width);
    int step = CHUNK / 8 * bits_of(width);
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
                    for (int k = 0; k < MF_CPU_PLANES; k++)
                        sums[k] = dot4((vi){0}, codes, load_i8(x[j].q[k] + c), width);
                    *sum = fma_of(join(sums), pick(scaled[r * n + j], pair), *sum);
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
    if (width == 4 && mf__cpu_pairs(w, WIDTH) && w->group > CHUNK)
        nibble_rows(w, groups, row, n_rows, x, n, false, acc);
    else if (width == 4 && mf__cpu_pairs(w, WIDTH))
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

/* n tokens in runs of equal length: a short one at the end would wait for its own sums. The next of n. */
INLINE int next_run(int n) {
    int runs = (n + TOKENS - 1) / TOKENS;
    return (n + runs - 1) / runs;
}

/* SOME columns of plane k of a token, from column c on; of pairs the even ones come first. */
INLINE void pack_some(const mf__cpu_vec *x, int k, int64_t c, bool pairs, int8_t *out) {
    int64_t in_block = c % (2 * CHUNK);
    const int8_t *first = x->q[k] + (pairs ? c - in_block + in_block / 2 : c);
    memcpy(out, first, SOME / 2);
    memcpy(out + SOME / 2, first + (pairs ? CHUNK : SOME / 2), SOME / 2);
}

/* [runs][groups]: [group / SOME][planes][tokens][SOME] values, [tokens] scales, [tokens] sums */
static void SET(pack_int8)(const mf__tensor *w, const mf__cpu_vec *x, int n, int8_t *out) {
    bool pairs = mf__cpu_pairs(w, WIDTH);
    int group = w->group;
    for (int run; n > 0; n -= run, x += run) {
        run = next_run(n);
        for (int64_t g = 0; g < w->n_cols / group; g++) {
            for (int64_t c = g * group; c < (g + 1) * group; c += SOME)
                for (int k = 0; k < MF_CPU_PLANES; k++)
                    for (int j = 0; j < run; j++, out += SOME) pack_some(&x[j], k, c, pairs, out);
            float *scales = (float *)(void *)out, *sums = scales + run;
            for (int j = 0; j < run; j++) {
                scales[j] = x[j].scale[g];
                sums[j] = x[j].sum[g];
            }
            out += 2 * run * (int)sizeof(float);
        }
    }
}

#ifndef OWN_DOT4_AT
INLINE vi dot4_at(vi acc, vu8 w, const int8_t *x, int bits) { /* dot4 with the same four values in every lane */
    return dot4(acc, w, splat4(x), bits);
}
#endif

/* Adds the products of a vector of codes and n tokens; they are at place c of SOME. */
INLINE void add_codes(vi (*sums)[TOKENS], vu8 codes, const int8_t *x, int n, int c, int bits) {
    for (int k = 0; k < MF_CPU_PLANES; k++)
        for (int j = 0; j < n; j++) sums[k][j] = dot4_at(sums[k][j], codes, x + (k * n + j) * SOME + c, bits);
}

/* What is needed next is fetched meanwhile, `lines` in each group. */
INLINE void tile_tokens(const mf__cpu_tile *w, const int8_t *x, int n, int kind, const uint8_t *next, int lines,
                        float *y) {
    const uint8_t *p = w->codes;
    vf total[TOKENS], part[TOKENS]; /* part: of the groups that share the tokens' scales, without them */
    vi sums[MF_CPU_PLANES][TOKENS];
    int64_t groups = w->cols / w->group;
    for (int j = 0; j < n; j++) total[j] = part[j] = (vf){0};
    for (int64_t g = 0; g < groups; g++) {
        for (int i = 0; i < lines; i++, next += MF_CPU_LINE) __builtin_prefetch(next, 0, 2);
        for (int j = 0; j < n; j++) sums[0][j] = sums[1][j] = (vi){0};
        for (int i = 0; i < w->group; i += SOME, x += MF_CPU_PLANES * n * SOME)
            for (int c = 0; c < SOME; c += kind == MF_CPU_NIBBLES ? 8 : 4, p += CHUNK) {
                vu8 codes;
                memcpy(&codes, p, sizeof codes);
                if (kind == MF_CPU_NIBBLES) {
                    add_codes(sums, codes & 15, x, n, c / 2, 4);
                    add_codes(sums, codes >> 4, x, n, SOME / 2 + c / 2, 4);
                } else {
                    add_codes(sums, codes, x, n, c, kind == MF_CPU_BYTES ? 8 : 6);
                }
            }
        vf scale = load_f(w->scales + g * WIDTH), bias = load_f(w->biases + g * WIDTH);
        for (int j = 0; j < n; j++, x += sizeof(float)) {
            float x_sum;
            memcpy(&x_sum, x + n * (int)sizeof x_sum, sizeof x_sum);
            part[j] = fma_of(__builtin_convertvector((sums[0][j] << LOW_BITS) + sums[1][j], vf), scale, part[j]);
            part[j] = fma_of(bias, splat(x_sum), part[j]);
        }
        if ((g + 1) % SPAN == 0 || g + 1 == groups)
            for (int j = 0; j < n; j++) {
                float x_scale;
                memcpy(&x_scale, x - (n - j) * (int)sizeof x_scale, sizeof x_scale);
                total[j] = fma_of(part[j], splat(x_scale), total[j]);
                part[j] = (vf){0};
            }
        x += n * (int)sizeof(float);
    }
    for (int j = 0; j < n; j++) store_f(y + j * WIDTH, total[j]);
}

/* One function per number of tokens and kind of codes. */
#define TILE_FN(kind, n)                                                                                               \
    static void tile_##kind##_##n(const mf__cpu_tile *w, const int8_t *x, const uint8_t *next, int lines, float *y) {  \
        tile_tokens(w, x, n, MF_CPU_##kind, next, lines, y);                                                           \
    }
#if TOKENS == 8
#define TILE_FNS(kind)                                                                                                 \
    TILE_FN(kind, 1)                                                                                                   \
    TILE_FN(kind, 2)                                                                                                   \
    TILE_FN(kind, 3)                                                                                                   \
    TILE_FN(kind, 4) TILE_FN(kind, 5) TILE_FN(kind, 6) TILE_FN(kind, 7) TILE_FN(kind, 8)
#define TILE_NAMES(kind)                                                                                               \
    {                                                                                                                  \
        tile_##kind##_1, tile_##kind##_2, tile_##kind##_3, tile_##kind##_4, tile_##kind##_5, tile_##kind##_6,          \
            tile_##kind##_7, tile_##kind##_8                                                                           \
    }
#else
#define TILE_FNS(kind) TILE_FN(kind, 1) TILE_FN(kind, 2) TILE_FN(kind, 3) TILE_FN(kind, 4)
#define TILE_NAMES(kind)                                                                                               \
    { tile_##kind##_1, tile_##kind##_2, tile_##kind##_3, tile_##kind##_4 }
#endif
TILE_FNS(NIBBLES)
TILE_FNS(SMALL_BYTES)
TILE_FNS(BYTES)

static void SET(many_int8)(const mf__cpu_tile *w, const int8_t *x, int n, float *y) {
    typedef void tile_fn(const mf__cpu_tile *, const int8_t *, const uint8_t *, int, float *);
    static tile_fn *const fns[][TOKENS] = {[MF_CPU_NIBBLES] = TILE_NAMES(NIBBLES),
                                           [MF_CPU_SMALL_BYTES] = TILE_NAMES(SMALL_BYTES),
                                           [MF_CPU_BYTES] = TILE_NAMES(BYTES)};
    int64_t groups = w->cols / w->group, steps = (n + TOKENS - 1) / TOKENS * groups;
    int lines = (int)((w->next_bytes + steps * MF_CPU_LINE - 1) / (steps * MF_CPU_LINE));
    const uint8_t *next = w->next;
    for (int run; n > 0; n -= run, y += run * WIDTH, next += groups * lines * MF_CPU_LINE) {
        run = next_run(n);
        fns[w->kind][run - 1](w, x, next, lines, y);
        x += run * MF_CPU_PACKED_BYTES(w->cols, groups);
    }
}

void SET(mf__cpu_int8)(mf__cpu_kernels *k) {
    k->lanes = WIDTH;
    k->quant_row = SET(quant_row);
    k->rows_int8 = SET(rows_int8);
    k->tile_int8 = SET(tile_int8);
    k->pack_int8 = SET(pack_int8);
    k->many_int8 = SET(many_int8);
}
