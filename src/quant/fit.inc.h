/* The search of fit.c, and the codes, for vectors of WIDTH floats (4, 8 or 16). SEARCH and CODES: the functions' names.
 *
 * WIDTH groups are searched together, each in a lane of its own: no group waits for its sums, and no two meet. Sums
 * over a group have an order that does not depend on the width, and nothing is rounded once where another machine would
 * round twice: all have the same result. Vectors are no wider than the machine's: comparisons of wider ones are taken
 * apart lane by lane. */
#include <math.h>
#include <string.h>
#if WIDTH > 4
#include <immintrin.h>
#endif

#include "quant/affine.h"
#include "quant/fit_int.h"
#include "quant/half.h"

#define MAX_GROUP 128
#define MAX_TRIES 6
#define STRANDS 16 /* a sum is that of 16 strands, each of every 16th value */
#define INLINE static inline __attribute__((always_inline))
#define EACH_LANE(k) for (int k = 0; k < WIDTH; k++)

/* How often, and how much more of the range is left out each time: the fewer codes, the more. */
typedef struct tries {
    int n, rounds; /* rounds: codes, then scale and bias */
    float step;
} tries;

static const tries TRIES[] = {[2] = {4, 3, 0.15f}, [3] = {3, 1, 0.12f}, [4] = {3, 1, 0.08f},
                              [5] = {2, 1, 0.06f}, [6] = {2, 1, 0.04f}, [8] = {1, 1, 0}};

/* With weights, which come with a calibration: time is no concern. */
static const tries WEIGHTED[] = {[2] = {6, 4, 0.1f},  [3] = {6, 3, 0.08f}, [4] = {5, 2, 0.06f},
                                 [5] = {4, 2, 0.05f}, [6] = {3, 2, 0.04f}, [8] = {2, 1, 0.02f}};

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef int32_t mask __attribute__((vector_size(4 * WIDTH)));
typedef double wide __attribute__((vector_size(4 * WIDTH))); /* half as many */
typedef int64_t wide_mask __attribute__((vector_size(4 * WIDTH)));
typedef float narrow __attribute__((vector_size(2 * WIDTH)));

/* One float of each lane's group. Between the passes over the values, loops over lanes, which have no branches, become
 * vectors. */
typedef struct lanes {
    float at[WIDTH];
} lanes;

/* Of x = code * scale + bias: sums over the codes that are nearest. product: of code and x. */
typedef struct sums {
    lanes code, square, product;
} sums;

typedef struct batch {
    vec x[MAX_GROUP], w[MAX_GROUP]; /* [group] of every lane; w: the columns' weights, where they have some */
    int group;
    float max_code;
    mf__type scale_type;
    bool short_values;
    lanes lo, hi;
    lanes count, total; /* sums: of the weights, of the values */
} batch;

INLINE vec load(const float *x) {
    vec v;
    memcpy(&v, x, sizeof v);
    return v;
}

INLINE lanes store(vec v) {
    lanes to;
    memcpy(&to, &v, sizeof to);
    return to;
}

/* a where it is larger (smaller), b elsewhere: where one is a NaN too. clamp: from 0 to most; by their bits, of which
 * the sign is that of a whole number too, processors do it beside products and sums. A NaN becomes 0, if it is the one
 * that arithmetic makes. nearest: of 0 to 255, ties to even. exact_add: sum + a * b, for products that have no more
 * than 24 bits; rounded once or twice is then the same. */
#if WIDTH == 16
#define larger(a, b) ((vec)_mm512_max_ps(a, b))
#define smaller(a, b) ((vec)_mm512_min_ps(a, b))
#define clamp(a, most) ((vec)_mm512_min_epi32(_mm512_max_epi32((__m512i)(a), (__m512i){0}), (__m512i)(most)))
#define nearest(a) ((vec)_mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define exact_add(a, b, sum) ((vec)_mm512_fmadd_ps(a, b, sum))
#elif WIDTH == 8
#define larger(a, b) ((vec)_mm256_max_ps(a, b))
#define smaller(a, b) ((vec)_mm256_min_ps(a, b))
#define clamp(a, most) ((vec)_mm256_min_epi32(_mm256_max_epi32((__m256i)(a), (__m256i){0}), (__m256i)(most)))
#define nearest(a) ((vec)_mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define exact_add(a, b, sum) ((vec)_mm256_fmadd_ps(a, b, sum))
#else
INLINE vec choose(mask m, vec yes, vec no) {
    return (vec)((m & (mask)yes) | (~m & (mask)no));
}
#define larger(a, b) choose((a) > (b), a, b)
#define smaller(a, b) choose((a) < (b), a, b)
#define clamp(a, most) smaller(larger(a, (vec){0}), most)
#define nearest(a) (((a) + 0x1p23f) - 0x1p23f)
#define exact_add(a, b, sum) ((sum) + (a) * (b))
#endif

/* ---- groups into lanes ---- */

#if WIDTH == 16
#define INTERLEAVE_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define INTERLEAVE_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif WIDTH == 8
#define INTERLEAVE_LOW 0, 8, 1, 9, 2, 10, 3, 11
#define INTERLEAVE_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define INTERLEAVE_LOW 0, 4, 1, 5
#define INTERLEAVE_HIGH 2, 6, 3, 7
#endif
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (mask){__VA_ARGS__})
#endif

/* Rows are interleaved with those half of the rows further on; as often as 2 goes into their number, and rows have
 * become columns. */
INLINE void transpose(vec rows[WIDTH]) {
    for (int n = 1; n < WIDTH; n *= 2) {
        vec to[WIDTH];
        for (int i = 0; i < WIDTH / 2; i++) {
            to[2 * i] = SHUFFLE(rows[i], rows[i + WIDTH / 2], INTERLEAVE_LOW);
            to[2 * i + 1] = SHUFFLE(rows[i], rows[i + WIDTH / 2], INTERLEAVE_HIGH);
        }
        memcpy(rows, to, sizeof to);
    }
}

/* Of n groups; where there are fewer than lanes, the first one fills the rest. */
static void spread(const float *x, int group, int n, vec *out) {
    for (int i = 0; i < group; i += WIDTH) {
        vec rows[WIDTH];
        EACH_LANE(k) rows[k] = load(x + (k < n ? k : 0) * group + i);
        transpose(rows);
        memcpy(out + i, rows, sizeof rows);
    }
}

/* ---- sums ---- */

/* The strands of a sum, of which one loop makes every fourth: those 8 apart meet first, then 4, then 2. */
INLINE vec join_strands(vec a, vec b, vec c, vec d) {
    return (a + c) + (b + d);
}

INLINE vec code_of(vec v, vec bias, vec inverse, vec most) {
    vec q = (v - bias) * inverse;
    q = clamp(q, most);
    return nearest(q);
}

/* Which sums are wanted, known to the compiler. short_values: the values have so few bits that their products with
 * codes are exact. */
typedef struct kind {
    bool weighted, short_values;
} kind;

typedef struct strands {
    vec code, square, product;
} strands;

/* Without weights the sums of codes and their squares are whole numbers below 2^24: exact in any order. */
INLINE void add_codes(const batch *b, kind of, int i, vec q, strands *to) {
    vec v = b->x[i];
    if (of.weighted) {
        vec weighted = q * b->w[i];
        to->code += weighted;
        to->square += weighted * q;
        to->product += weighted * v;
    } else {
        to->code += q;
        to->square = exact_add(q, q, to->square);
        to->product = of.short_values ? exact_add(q, v, to->product) : to->product + q * v;
    }
}

INLINE void sums_of(const batch *b, kind of, const lanes *scale, const lanes *bias, sums *out) {
    vec from = load(bias->at), zero = {0}, most = zero + b->max_code, inverse = 1.0f / load(scale->at);
    vec code[4], square[4], product[4];
    strands to[4];
    for (int j = 0; j < 4; j++) to[j].code = to[j].square = zero;
    for (int k = 0; k < 4; k++) {
        for (int j = 0; j < 4; j++) {
            if (of.weighted) to[j].code = to[j].square = zero;
            to[j].product = zero;
        }
        for (int i = k; i < b->group; i += STRANDS)
            for (int j = 0; j < 4; j++)
                add_codes(b, of, i + 4 * j, code_of(b->x[i + 4 * j], from, inverse, most), &to[j]);
        product[k] = join_strands(to[0].product, to[1].product, to[2].product, to[3].product);
        code[k] = join_strands(to[0].code, to[1].code, to[2].code, to[3].code);
        square[k] = join_strands(to[0].square, to[1].square, to[2].square, to[3].square);
    }
    out->code = store(of.weighted ? join_strands(code[0], code[1], code[2], code[3]) : code[3]);
    out->square = store(of.weighted ? join_strands(square[0], square[1], square[2], square[3]) : square[3]);
    out->product = store(join_strands(product[0], product[1], product[2], product[3]));
}

/* Of scale and bias as they are stored. */
INLINE lanes error_of(const batch *b, kind of, const lanes *scale, const lanes *bias) {
    vec s = load(scale->at), from = load(bias->at), zero = {0}, most = zero + b->max_code, inverse = 1.0f / s, error[4];
    for (int k = 0; k < 4; k++) {
        vec e[4] = {zero, zero, zero, zero};
        for (int i = k; i < b->group; i += STRANDS)
            for (int j = 0; j < 4; j++) {
                vec v = b->x[i + 4 * j], q = code_of(v, from, inverse, most);
                vec d = v - (of.short_values ? exact_add(q, s, from) : q * s + from), off = d;
                if (of.weighted) off = d * b->w[i + 4 * j];
                e[j] += off * d;
            }
        error[k] = join_strands(e[0], e[1], e[2], e[3]);
    }
    return store(join_strands(error[0], error[1], error[2], error[3]));
}

/* The smallest and the largest value, the sum, and whether products with codes and scales are exact: there are 16 bits
 * of mantissa at most, as with BF16 and F16, and nothing is near the end of what a float can be. */
INLINE void look_at(batch *b) {
    vec lo = b->x[0], hi = lo, zero = {0}, total[4];
    mask bits = (mask)zero;
    for (int k = 0; k < 4; k++) {
        vec t[4] = {zero, zero, zero, zero};
        for (int i = k; i < b->group; i += STRANDS)
            for (int j = 0; j < 4; j++) {
                vec v = b->x[i + 4 * j];
                lo = smaller(v, lo);
                hi = larger(v, hi);
                bits |= (mask)v;
                t[j] += v;
            }
        total[k] = join_strands(t[0], t[1], t[2], t[3]);
    }
    b->lo = store(lo);
    b->hi = store(hi);
    b->total = store(join_strands(total[0], total[1], total[2], total[3]));
    EACH_LANE(k) b->count.at[k] = (float)b->group;
    bool fit = b->scale_type != MF_TYPE_F32;
    EACH_LANE(k) fit = fit & !(bits[k] & 0xff) & (b->lo.at[k] > -0x1p100f) & (b->hi.at[k] < 0x1p100f);
    b->short_values = fit;
}

/* w: [group] of every lane's group, of n. */
INLINE void weigh(batch *b, const float *w, int n) {
    vec zero = {0}, count[4], total[4];
    spread(w, b->group, n, b->w);
    for (int k = 0; k < 4; k++) {
        vec c[4] = {zero, zero, zero, zero}, t[4] = {zero, zero, zero, zero};
        for (int i = k; i < b->group; i += STRANDS)
            for (int j = 0; j < 4; j++) {
                c[j] += b->w[i + 4 * j];
                t[j] += b->w[i + 4 * j] * b->x[i + 4 * j];
            }
        count[k] = join_strands(c[0], c[1], c[2], c[3]);
        total[k] = join_strands(t[0], t[1], t[2], t[3]);
    }
    b->count = store(join_strands(count[0], count[1], count[2], count[3]));
    b->total = store(join_strands(total[0], total[1], total[2], total[3]));
}

/* ---- the search ---- */

INLINE void round_as_stored(mf__type type, lanes *v) {
    if (type == MF_TYPE_BF16)
        EACH_LANE(k) v->at[k] = mf__bf16_to_f32(mf__f32_to_bf16(v->at[k]));
    else
        EACH_LANE(k) v->at[k] = mf__affine_as_stored(v->at[k], type);
}

INLINE wide load_wide(const float *x) {
    narrow v;
    memcpy(&v, x, sizeof v);
    return __builtin_convertvector(v, wide);
}

/* new where good, else as it was */
INLINE void replace(wide_mask good, wide new, float *x) {
    narrow v = __builtin_convertvector((wide)((good & (wide_mask) new) | (~good & (wide_mask)load_wide(x))), narrow);
    memcpy(x, &v, sizeof v);
}

/* The best scale and bias for codes with these sums; as they were where all codes are one. */
INLINE void solve(const batch *b, const sums *of, lanes *scale, lanes *bias) {
    for (int k = 0; k < WIDTH; k += WIDTH / 2) {
        wide code = load_wide(of->code.at + k), total = load_wide(b->total.at + k), count = load_wide(b->count.at + k);
        wide det = count * load_wide(of->square.at + k) - code * code, zero = {0};
        wide s = (count * load_wide(of->product.at + k) - code * total) / det;
        replace(det > zero, s, scale->at + k);
        replace(det > zero, (total - s * code) / count, bias->at + k);
    }
}

/* Takes *scale and *bias, as stored, to others with a smaller error where there are some. */
INLINE void search(const batch *b, kind of, const tries *how, lanes *scale, lanes *bias) {
    lanes s[MAX_TRIES], from[MAX_TRIES];
    for (int t = 0; t < how->n; t++) EACH_LANE(k) {
            float half = (b->hi.at[k] - b->lo.at[k]) * 0.5f * (1.0f - how->step * (float)t);
            s[t].at[k] = 2 * half / b->max_code;
            from[t].at[k] = (b->lo.at[k] + b->hi.at[k]) * 0.5f - half;
        }
    for (int round = 0; round < how->rounds; round++)
        for (int t = 0; t < how->n; t++) {
            sums got;
            sums_of(b, of, &s[t], &from[t], &got);
            solve(b, &got, &s[t], &from[t]);
        }
    lanes least = error_of(b, of, scale, bias);
    for (int t = 0; t < how->n; t++) {
        round_as_stored(b->scale_type, &s[t]);
        round_as_stored(b->scale_type, &from[t]);
        lanes error = error_of(b, of, &s[t], &from[t]);
        EACH_LANE(k) {
            bool better = (s[t].at[k] > 0) & (error.at[k] < least.at[k]) & (b->hi.at[k] > b->lo.at[k]);
            least.at[k] = better ? error.at[k] : least.at[k];
            scale->at[k] = better ? s[t].at[k] : scale->at[k];
            bias->at[k] = better ? from[t].at[k] : bias->at[k];
        }
    }
}

/* MLX's rule, as mf__affine_choose_row has it. */
INLINE void choose_by_rule(const batch *b, lanes *scale, lanes *bias) {
    EACH_LANE(k) {
        float lo = b->lo.at[k], hi = b->hi.at[k], s = (hi - lo) / b->max_code;
        bool low = fabsf(lo) > fabsf(hi);
        s = s < 1e-7f ? 1e-7f : s;
        s = low ? s : -s;
        float edge = low ? lo : hi, steps = rintf(edge / s), divided = edge / steps;
        scale->at[k] = steps != 0 ? divided : s;
        bias->at[k] = steps != 0 ? edge : 0;
    }
    round_as_stored(b->scale_type, scale);
    round_as_stored(b->scale_type, bias);
}

INLINE void put(const lanes *v, mf__type type, int64_t first, int n, void *out) {
    for (int k = 0; k < n; k++) {
        uint16_t h = mf__f32_to_bf16(v->at[k]);
        if (type == MF_TYPE_BF16)
            memcpy((uint16_t *)out + first + k, &h, sizeof h);
        else
            mf__affine_scale_set(out, type, first + k, v->at[k]);
    }
}

void SEARCH(const float *x, const float *w, const mf__tensor *form, void *scales, void *biases) {
    mf__type type = form->scale_type;
    int group = form->group, scale_bytes = mf__type_bits(type) / 8;
    int64_t n_groups = form->n_cols / group;
    batch b;
    b.group = group;
    b.max_code = (float)((1 << form->bits) - 1);
    b.scale_type = type;
    for (int64_t g = 0; g < n_groups; g += WIDTH, x += WIDTH * group) {
        int n = n_groups - g < WIDTH ? (int)(n_groups - g) : WIDTH;
        lanes scale, bias, values;
        spread(x, group, n, b.x);
        look_at(&b);
        values = b.total;
        choose_by_rule(&b, &scale, &bias);
        if (b.short_values)
            search(&b, (kind){.short_values = true}, &TRIES[form->bits], &scale, &bias);
        else
            search(&b, (kind){0}, &TRIES[form->bits], &scale, &bias);
        if (w) {
            weigh(&b, w + g * group, n);
            search(&b, (kind){.weighted = true}, &WEIGHTED[form->bits], &scale, &bias);
        }
        put(&scale, type, g, n, scales);
        put(&bias, type, g, n, biases);
        for (int k = 0; k < n; k++)
            if (!isfinite(values.at[k])) /* which NaN a range has is the rule's to say; nothing better is found */
                mf__affine_choose_row(x + k * group, group, form->bits, group, type,
                                      (uint8_t *)scales + (g + k) * scale_bytes,
                                      (uint8_t *)biases + (g + k) * scale_bytes);
    }
}

/* ---- the codes ---- */

/* Eight values at a time, in the order of mf__affine_error. */
#if WIDTH == 4
#define PARTS 2
typedef vec part;
#define part_nearest(a) nearest(a)
#define part_larger(a, b) larger(a, b)
#define part_smaller(a, b) smaller(a, b)
#else
#define PARTS 1
typedef float part __attribute__((vector_size(32)));
#define part_nearest(a) ((part)_mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
#define part_larger(a, b) ((part)_mm256_max_ps(a, b))
#define part_smaller(a, b) ((part)_mm256_min_ps(a, b))
#endif
#define AT_ONCE 1024

INLINE part load_part(const float *x) {
    part v;
    memcpy(&v, x, sizeof v);
    return v;
}

INLINE float sum_part(const part v[PARTS]) {
    float s[8];
    memcpy(s, v, sizeof s);
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

/* Nearest codes of a group, ties to even, and how far they are from it. Clamping first gives the same result as
 * clamping last (rounding is monotone and the bounds are integers) and keeps the value where adding 2^23 rounds it to
 * an integer. A NaN becomes 0. */
INLINE mf__fit_loss codes_of(const float *x, int group, float scale, float bias, float max_code, float *codes) {
    part zero = {0}, most = zero + max_code, error[PARTS], total[PARTS];
    for (int p = 0; p < PARTS; p++) error[p] = total[p] = zero;
    for (int i = 0; i < group; i += 8)
        for (int p = 0; p < PARTS; p++) {
            part v = load_part(x + i + p * (8 / PARTS)), q = (v - bias) / scale;
            q = part_larger(q, zero);
            q = part_smaller(q, most);
            q = part_nearest(q);
            memcpy(codes + i + p * (8 / PARTS), &q, sizeof q);
            part d = v - (q * scale + bias);
            error[p] += d * d;
            total[p] += v * v;
        }
    return (mf__fit_loss){sum_part(error), sum_part(total)};
}

INLINE float get(const void *from, mf__type type, int64_t i) {
    uint16_t h;
    if (type != MF_TYPE_BF16) return mf__affine_scale(from, type, i);
    memcpy(&h, (const uint16_t *)from + i, sizeof h);
    return mf__bf16_to_f32(h);
}

void CODES(const float *x, const mf__tensor *form, const void *scales, const void *biases, void *codes,
           mf__fit_loss *loss) {
    int group = form->group, n;
    uint8_t *out = codes;
    int64_t g = 0;
    for (int64_t i = 0; i < form->n_cols; i += n, out += n / 8 * form->bits) {
        float q[AT_ONCE];
        uint8_t bytes[AT_ONCE];
        n = form->n_cols - i < AT_ONCE ? (int)(form->n_cols - i) : AT_ONCE;
        for (int k = 0; k < n; k += group, g++) {
            float scale = get(scales, form->scale_type, g), bias = get(biases, form->scale_type, g);
            mf__fit_loss of = codes_of(x + i + k, group, scale, bias, (float)((1 << form->bits) - 1), q + k);
            if (loss) loss[g] = of;
        }
        for (int k = 0; k < n; k++) bytes[k] = (uint8_t)(int)q[k];
        mf__affine_pack_row(bytes, n, form->bits, out);
    }
}
