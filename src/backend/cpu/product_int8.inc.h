/* Products of weights in groups with activations in two planes of bytes; compiled once per instruction set.
 *
 *   y = sum over groups of  x_scale * (scale * (sum of code * q)  +  bias * (sum of q))
 *
 * with x ~ x_scale * q: the rounding of x meets the weight itself, code * scale + bias, and not its two large parts one
 * by one. q = 2^7 q[0] + q[1]; codes are unsigned, the planes within +-127 and +-64, their sums exact. SPAN groups have
 * the same x_scale. */
#include "backend/cpu/groups.inc.h"

#define SPAN 4  /* groups that share a scale of activations */
#define SOME 32 /* columns that are in the same place for every tile: the smallest group */

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

/* Where rows of a quarter of a vector are after transpose4: row i * WIDTH / 4 + q in lane 4 q + i. */
INLINE vi from_rows(void) {
    vi v = {0};
    for (int r = 0; r < WIDTH; r++) v[r] = r % (WIDTH / 4) * 4 + r / (WIDTH / 4);
    return v;
}

/* n_groups groups of n rows, from `first` on: values [row + i][first + g] -> out [g][WIDTH]. Those of the next n rows
 * are prefetched. */
INLINE void turn_scales(const mf__tensor *w, const void *values, int64_t row, int n, int64_t first, int64_t n_groups,
                        float *out) {
    int64_t groups = w->n_cols / w->group, g = 0;
    const char *next = (const char *)values + (row + n) * groups * scale_bytes(w->scale_type);
    for (int64_t i = 0; n_groups == groups && i < n * groups * scale_bytes(w->scale_type); i += MF_CPU_LINE)
        __builtin_prefetch(next + i);
    if (w->scale_type == MF_TYPE_BF16 && groups == 8 && n == WIDTH) { /* rows of four lanes lie side by side */
        vi square[4], from = from_rows();
        for (int i = 0; i < 4; i++) square[i] = (vi)load_i8((const int8_t *)values + 16 * row + i * CHUNK);
        transpose4(square);
        for (int i = 0; i < 4; i++) {
            vi two = (vi)pick((vf)square[i], from);
            store_f(out + 2 * i * WIDTH, (vf)(two << 16));
            store_f(out + (2 * i + 1) * WIDTH, (vf)(two >> 16 << 16));
        }
        return;
    }
    for (; w->scale_type == MF_TYPE_BF16 && n_groups - g >= 2 * WIDTH; g += 2 * WIDTH) { /* two in each lane */
        vi square[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            square[i] = i < n ? (vi)load_i8((const int8_t *)values + 2 * ((row + i) * groups + first + g)) : (vi){0};
        transpose(square);
        for (int i = 0; i < WIDTH; i++) {
            store_f(out + (g + 2 * i) * WIDTH, (vf)(square[i] << 16));
            store_f(out + (g + 2 * i + 1) * WIDTH, (vf)(square[i] >> 16 << 16));
        }
    }
    for (; g < n_groups; g += WIDTH) {
        vi square[WIDTH];
        for (int i = 0; i < WIDTH; i++)
            square[i] =
                i < n ? (vi)scale_vector(values, w->scale_type, (row + i) * groups + first + g, n_groups - g) : (vi){0};
        transpose(square);
        for (int i = 0; i < WIDTH && i < n_groups - g; i++) memcpy(out + (g + i) * WIDTH, &square[i], sizeof *square);
    }
}

/* Scales and biases of n_groups groups of n rows, a row in each lane. */
static void SET(tile_scales)(const mf__tensor *w, int64_t row, int n, int64_t first, int64_t n_groups, float *scales,
                             float *biases) {
    turn_scales(w, w->scales, row, n, first, n_groups, scales);
    if (has_biases(w))
        turn_scales(w, w->biases, row, n, first, n_groups, biases);
    else
        for (int64_t i = 0; i < n_groups * WIDTH; i++) biases[i] = -centre_of(w) * scales[i];
}

/* n rows and m columns of codes; rows past the n-th are zeros. */
INLINE void code_square(const uint8_t *p, int64_t row_bytes, int n, int m, int width, uint8_t *out) {
    vi square[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        square[i] = i < n ? (vi)codes_at(p + i * row_bytes, width, m / 8 * bits_of(width)) : (vi){0};
    transpose(square);
    for (int i = 0; i < m / 4; i++) memcpy(out + i * CHUNK, &square[i], sizeof *square);
}

/* A vector of nibbles, of which there are n_bytes bytes: all or half. */
INLINE vu8 nibbles_at(const uint8_t *p, int n_bytes) {
    vu8 v = {0};
    if (n_bytes == CHUNK)
        memcpy(&v, p, CHUNK);
    else
        memcpy(&v, p, CHUNK / 2);
    return v;
}

/* 2 * CHUNK columns of four bits (or half as many), eight in each lane: they stay packed. */
INLINE void nibble_square(const uint8_t *p, int64_t row_bytes, int n, int n_bytes, uint8_t *out) {
    vi square[WIDTH];
    for (int i = 0; i < WIDTH; i++) square[i] = i < n ? (vi)nibbles_at(p + i * row_bytes, n_bytes) : (vi){0};
    transpose(square);
    for (int i = 0; i < WIDTH; i++) memcpy(out + i * CHUNK, &square[i], sizeof *square);
}

INLINE void tile_codes(const mf__tensor *w, int64_t row, int n, int width, uint8_t *out) {
    int64_t bits = bits_of(width), row_bytes = w->n_cols / 8 * bits;
    const uint8_t *p = (const uint8_t *)w->data + row * row_bytes;
    if (width == 4 && mf__cpu_pairs(w, WIDTH)) {
        for (int64_t c = 0; c < w->n_cols; c += 2 * CHUNK, p += CHUNK, out += CHUNK * WIDTH)
            if (w->n_cols - c < 2 * CHUNK)
                nibble_square(p, row_bytes, n, CHUNK / 2, out);
            else if (n == WIDTH)
                nibble_square(p, row_bytes, WIDTH, CHUNK, out);
            else
                nibble_square(p, row_bytes, n, CHUNK, out);
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
    SET(tile_scales)(w, row, n, 0, w->n_cols / w->group, out->scales, out->biases);
#define CODES(width) tile_codes(w, row, n, width, out->codes)
    EACH_WIDTH(width_of(w), CODES)
#undef CODES
}

/* ---- one order of additions -------------------------------------------------------------------------------------- */

/* A product of a row and a token, in every kernel: sums of a group are integers, and exact; groups are added up in
 * order, SPAN of them before the tokens' scale is multiplied with. A row of W in each lane. */
INLINE void add_group(vf *part, vi sum, vf scale, vf bias, float x_sum) {
    *part = fma_of(__builtin_convertvector(sum, vf), scale, *part);
    *part = fma_of(bias, splat(x_sum), *part);
}
INLINE bool ends_span(int64_t g, int64_t groups) {
    return (g + 1) % SPAN == 0 || g + 1 == groups;
}
INLINE void add_span(vf *total, vf *part, float x_scale) {
    *total = fma_of(*part, splat(x_scale), *total);
    *part = (vf){0};
}

/* ---- a few tokens: sums along the rows as they are stored -------------------------------------------------------- */

#define ALONG 2          /* tokens whose sums are taken at the same time */
#define SIDE 4           /* rows that are read side by side */
#define UNIT (WIDTH / 4) /* groups of each whose sums fill a vector */
#define SUM_GROUPS 256   /* of a row, whose sums are kept until they are added up */
#define SCALE_GROUPS 64  /* ... and whose scales are */
#define AHEAD 16384      /* bytes at least that are prefetched before they are used */

/* How codes lie in vectors: of nibbles, the low ones are the even columns; a vector has two groups, or one, or part of
 * one. */
typedef struct layout {
    int width;
    bool nibbles, two;
    int vectors; /* of a group; 1 where there are two in a vector */
} layout;

INLINE int layout_cols(layout l) {
    return l.nibbles ? 2 * CHUNK : CHUNK;
}
INLINE int layout_bytes(layout l) {
    return CHUNK / 8 * bits_of(l.width) * (l.nibbles ? 2 : 1);
}

/* The products of a vector of codes with columns c ... of n tokens; n_bytes: of them that there are. */
INLINE void add_vector(layout l, const uint8_t *p, int n_bytes, const mf__cpu_vec *x, int n, int64_t c, vi *sums,
                       int stride) {
    vu8 low, high = {0};
    if (l.nibbles) {
        high = nibbles_at(p, n_bytes);
        low = high & 15;
        high = high >> 4;
    } else {
        low = codes_at(p, l.width, n_bytes);
    }
    for (int j = 0; j < n; j++) {
        const int8_t *q = x[j].q[0] + c, *q_low = x[j].q[1] + c;
        vi highs = dot4((vi){0}, low, load_i8(q), l.width), *sum = &sums[j * stride];
        if (l.nibbles) highs = dot4(highs, high, load_i8(q + CHUNK), l.width);
        *sum = dot4(*sum + (highs << LOW_BITS), low, load_i8(q_low), l.width);
        if (l.nibbles) *sum = dot4(*sum, high, load_i8(q_low + CHUNK), l.width);
    }
}

/* The sums of m <= UNIT groups of SIDE rows, `stride` bytes from row to row, from column c on: out[j][g * WIDTH + row].
 */
INLINE void sum_unit(layout l, const uint8_t *p, const int64_t *rows, int m, const mf__cpu_vec *x, int n, int64_t c,
                     int32_t *out) {
    enum { ALL = SIDE * UNIT };
    vi sums[ALONG * ALL];
    int per = l.two ? 2 : 1, count = UNIT / per, step = layout_bytes(l);
    for (int i = 0; i < n * ALL; i++) sums[i] = (vi){0};
    for (int i = 0; i < count; i++)
        for (int k = 0; k < l.vectors && i * per < m; k++, p += step, c += layout_cols(l))
            for (int r = 0; r < SIDE; r++)
                add_vector(l, p + rows[r], i * per + per <= m ? step : step / 2, x, n, c, &sums[r * count + i], ALL);
    for (int j = 0; j < n; j++) {
        vi of_groups = sum_groups(&sums[j * ALL], l.two);
        for (int g = 0; g < m; g++)
            memcpy(out + j * SUM_GROUPS * WIDTH + g * WIDTH, (const int32_t *)&of_groups + SIDE * g, SIDE * 4);
    }
}

/* The sums of groups first .. first + m of SIDE rows at p. They are read side by side; rows that follow are prefetched
 * meanwhile, in the order in which they lie, into the second cache: far enough ahead that memory does not rest while
 * sums are added up. */
INLINE void sum_rows(layout l, const mf__tensor *w, const uint8_t *p, const int64_t *rows, int64_t first, int64_t m,
                     const mf__cpu_vec *x, int n, int32_t *out) {
    int64_t side_bytes = SIDE * (w->n_cols / 8) * bits_of(l.width), group_bytes = w->group / 8 * bits_of(l.width);
    const uint8_t *next = p + (AHEAD + side_bytes - 1) / side_bytes * side_bytes + SIDE * first * group_bytes;
    p += first * group_bytes;
    int64_t g = 0;
    for (; m - g >= UNIT; g += UNIT, p += UNIT * group_bytes, next += SIDE * UNIT * group_bytes) {
        for (int64_t i = 0; i < SIDE * UNIT * group_bytes; i += MF_CPU_LINE) __builtin_prefetch(next + i, 0, 2);
        sum_unit(l, p, rows, UNIT, x, n, (first + g) * w->group, out + g * WIDTH);
    }
    if (g < m) sum_unit(l, p, rows, (int)(m - g), x, n, (first + g) * w->group, out + g * WIDTH);
}

/* sums [n_groups][WIDTH] of groups first ... of W: added up. */
INLINE void add_sums(const int32_t *sums, int64_t first, int64_t n_groups, int64_t groups, const float *scales,
                     const float *biases, const mf__cpu_vec *x, vf *total, vf *part) {
    for (int64_t i = 0; i < n_groups; i++) {
        vi sum;
        memcpy(&sum, sums + i * WIDTH, sizeof sum);
        add_group(part, sum, load_f(scales + i * WIDTH), load_f(biases + i * WIDTH), x->sum[first + i]);
        if (ends_span(first + i, groups)) add_span(total, part, x->scale[first + i]);
    }
}

/* At most WIDTH rows of W times n tokens. */
INLINE void some_rows(layout l, const mf__tensor *w, int64_t row, int n_rows, const mf__cpu_vec *x, int n, float *y,
                      int64_t ld) {
    int32_t sums[ALONG][SUM_GROUPS * WIDTH];
    float scales[SCALE_GROUPS * WIDTH], biases[SCALE_GROUPS * WIDTH];
    vf total[ALONG], part[ALONG];
    int64_t groups = w->n_cols / w->group, row_bytes = w->n_cols / 8 * bits_of(l.width);
    const uint8_t *p = (const uint8_t *)w->data + row * row_bytes;
    for (int j = 0; j < n; j++) total[j] = part[j] = (vf){0};
    for (int64_t first = 0; first < groups; first += SUM_GROUPS) {
        int64_t m = groups - first < SUM_GROUPS ? groups - first : SUM_GROUPS;
        for (int r = 0; r < n_rows; r += SIDE) {
            int64_t rows[SIDE]; /* behind the last one it is that once more */
            for (int i = 0; i < SIDE; i++) rows[i] = (r + i < n_rows ? i : n_rows - 1 - r) * row_bytes;
            sum_rows(l, w, p + r * row_bytes, rows, first, m, x, n, sums[0] + r);
        }
        for (int64_t g = 0; g < m; g += SCALE_GROUPS) {
            int64_t some = m - g < SCALE_GROUPS ? m - g : SCALE_GROUPS;
            SET(tile_scales)(w, row, n_rows, first + g, some, scales, biases);
            for (int j = 0; j < n; j++)
                add_sums(sums[j] + g * WIDTH, first + g, some, groups, scales, biases, &x[j], &total[j], &part[j]);
        }
    }
    for (int j = 0; j < n; j++)
        if (n_rows == WIDTH)
            store_f(y + j * ld, total[j]);
        else
            memcpy(y + j * ld, &total[j], (size_t)n_rows * sizeof *y);
}

/* One function per width and number of tokens, so that both are constants inside, and what a vector holds. */
#define ROWS_FN(width, n)                                                                                              \
    static void rows_##width##_##n(const mf__tensor *w, int64_t row, int n_rows, const mf__cpu_vec *x, float *y,       \
                                   int64_t ld) {                                                                       \
        bool nibbles = width == 4 && mf__cpu_pairs(w, WIDTH);                                                          \
        int vectors = w->group / (nibbles ? 2 * CHUNK : CHUNK);                                                        \
        if (nibbles && vectors == 0)                                                                                   \
            some_rows((layout){width, width == 4, true, 1}, w, row, n_rows, x, n, y, ld);                              \
        else if (nibbles && vectors == 1)                                                                              \
            some_rows((layout){width, width == 4, false, 1}, w, row, n_rows, x, n, y, ld);                             \
        else if (nibbles)                                                                                              \
            some_rows((layout){width, width == 4, false, vectors}, w, row, n_rows, x, n, y, ld);                       \
        else if (vectors == 0)                                                                                         \
            some_rows((layout){width, false, true, 1}, w, row, n_rows, x, n, y, ld);                                   \
        else if (vectors == 1)                                                                                         \
            some_rows((layout){width, false, false, 1}, w, row, n_rows, x, n, y, ld);                                  \
        else                                                                                                           \
            some_rows((layout){width, false, false, vectors}, w, row, n_rows, x, n, y, ld);                            \
    }
ROWS_FN(2, 1)
ROWS_FN(3, 1)
ROWS_FN(5, 1)
ROWS_FN(6, 1)
ROWS_FN(E2M1, 1) /* what most files have */
ROWS_FN(E2M1, 2)
ROWS_FN(4, 1)
ROWS_FN(4, 2)
ROWS_FN(8, 1)
ROWS_FN(8, 2)

typedef void rows_fn(const mf__tensor *, int64_t, int, const mf__cpu_vec *, float *, int64_t);

static void SET(rows_int8)(const mf__tensor *w, int64_t row, int64_t n_rows, const mf__cpu_vec *x, int n, float *y,
                           int64_t ld) {
    static rows_fn *const one[9] = {[E2M1] = rows_E2M1_1, [2] = rows_2_1, [3] = rows_3_1, [4] = rows_4_1,
                                    [5] = rows_5_1,       [6] = rows_6_1, [8] = rows_8_1};
    static rows_fn *const two[9] = {[E2M1] = rows_E2M1_2, [4] = rows_4_2, [8] = rows_8_2};
    int width = width_of(w);
    for (int64_t i = 0; i < n_rows; i += WIDTH)
        for (int j = 0, m; j < n; j += m) {
            m = !two[width] || n - j == 1 ? 1 : 2;
            (m == 1 ? one : two)[width](w, row + i, n_rows - i < WIDTH ? (int)(n_rows - i) : WIDTH, x + j,
                                        y + j * ld + i, ld);
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
            add_group(&part[j], (sums[0][j] << LOW_BITS) + sums[1][j], scale, bias, x_sum);
        }
        if (ends_span(g, groups))
            for (int j = 0; j < n; j++) {
                float x_scale;
                memcpy(&x_scale, x - (n - j) * (int)sizeof x_scale, sizeof x_scale);
                add_span(&total[j], &part[j], x_scale);
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
