/* Random weights, straight in the stored form: codes are random bits, scales are chosen so that activations keep their
 * size from layer to layer.
 *
 * With code uniform in 0 ... m and bias = -scale * m / 2, values have the mean 0 and the deviation
 * scale * sqrt(((m + 1)^2 - 1) / 12). Matrices get 1 / sqrt(columns); those that write into the residual stream less.
 *
 * Popularity. Channel 0 of the residual stream is kept constant: every embedding has its largest value there, and no
 * matrix that writes into the stream writes to it. After a norm it is about PEAK / growth, so column 0 of a router is a
 * bias for each expert. An expert is chosen when bias + noise is above a threshold, the noise being normal: the bias
 * that makes that happen with probability p is quantile(p) deviations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/strbuf.h"
#include "convert/synth_int.h"
#include "quant/half.h"

#define BRANCH_GAIN 0.05  /* what a branch adds to the residual stream, of the embeddings' size */
#define ROUTER_NOISE 1.5  /* deviation of router logits */
#define PEAK 1.7320508076 /* the largest value of a uniform distribution, in deviations */
#define MOST_POPULAR 0.98 /* no expert is chosen more often than this */

typedef mf__synth_state synth;
typedef mf__synth_weight weight;
typedef mf__synth_item item;

/* ---- random numbers: a counter for each row, so that rows can be made in any order ---- */

typedef struct random {
    uint64_t at;
} random_t;

/* A counter, and both halves of a wide product of it: one multiplication for eight bytes. */
static inline uint64_t draw(random_t *r) {
    r->at += 0xA0761D6478BD642Fu;
    unsigned __int128 wide = (unsigned __int128)r->at * (r->at ^ 0xE7037ED1A0B428DBu);
    return (uint64_t)(wide >> 64) ^ (uint64_t)wide;
}

static random_t random_of(uint64_t seed, const char *name, int64_t a, int64_t b) {
    int64_t key[3] = {(int64_t)seed, a, b};
    random_t r = {mf__hash_bytes(name, strlen(name)) ^ mf__hash_bytes(key, sizeof key)};
    draw(&r);
    return r;
}

static double uniform(random_t *r) {
    return (double)(draw(r) >> 11) * 0x1p-53;
}

/* The sum of twelve: near enough to normal for weights. */
static float normal(random_t *r) {
    double sum = -6;
    for (int i = 0; i < 12; i += 4) {
        uint64_t u = draw(r);
        for (int k = 0; k < 4; k++, u >>= 16) sum += (double)(u & 0xffff) / 65536.0;
    }
    return (float)sum;
}

static void random_bytes(random_t *r, uint8_t *out, int64_t n) {
    for (; n >= 8; n -= 8, out += 8) {
        uint64_t u = draw(r);
        memcpy(out, &u, 8);
    }
    uint64_t u = draw(r);
    memcpy(out, &u, (size_t)n);
}

/* ---- matrices ---- */

/* Matrices whose output is added to the residual stream. */
static bool writes_stream(const char *name) {
    return mf__text_ends_with(name, "o_proj.weight") || mf__text_ends_with(name, "out_proj.weight") ||
           mf__text_ends_with(name, "down_proj.weight");
}

static double deviation_of(const char *name, int64_t n_cols) {
    if (!strcmp(name, "model.embed_tokens.weight")) return 1;
    return (writes_stream(name) ? BRANCH_GAIN : 1) / sqrt((double)n_cols);
}

/* One row in affine form. zero: the row is all zeros, whatever its codes. */
static void affine_row(random_t *r, const mf__tensor *form, double deviation, bool zero, uint8_t *codes,
                       uint8_t *scales, uint8_t *biases) {
    double top = (double)((1 << form->bits) - 1), unit = sqrt(((top + 1) * (top + 1) - 1) / 12);
    uint16_t pairs[4][2]; /* groups differ a little */
    for (int i = 0; i < 4; i++) {
        float scale = zero ? 0 : mf__bf16_to_f32(mf__f32_to_bf16((float)(deviation / unit * (0.9 + i / 15.0))));
        pairs[i][0] = mf__f32_to_bf16(scale);
        pairs[i][1] = mf__f32_to_bf16((float)(-scale * top / 2));
    }
    random_bytes(r, codes, mf__tensor_row_bytes(form));
    uint64_t bits = 0;
    for (int64_t g = 0; g < form->n_cols / form->group; g++, bits >>= 2) {
        if (g % 32 == 0) bits = draw(r);
        memcpy(scales + 2 * g, &pairs[bits & 3][0], 2);
        memcpy(biases + 2 * g, &pairs[bits & 3][1], 2);
    }
}

typedef struct fill {
    const synth *s;
    const weight *w;
    item *it;
    uint8_t *data, *scales, *biases;
    double deviation;
    bool zero_first, peak;
} fill;

/* Row r of a trunk matrix. The largest code in column 0 of an embedding is the stream's constant. */
static void fill_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const fill *f = ctx;
    const mf__tensor *form = &f->w->form;
    int64_t row = mf__tensor_row_bytes(form), side = mf__tensor_scale_bytes(form);
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = f->it->begin + i;
        random_t r = random_of(f->s->opt->seed, f->w->name, at, 0);
        uint8_t *codes = f->data + i * row;
        affine_row(&r, form, f->deviation, f->zero_first && at == 0, codes, f->scales + i * side, f->biases + i * side);
        if (f->peak) codes[0] |= (uint8_t)((1 << form->bits) - 1);
    }
}

static void fill_matrix(const synth *s, item *it) {
    const weight *w = it->w;
    int64_t rows = it->end - it->begin, data = rows * mf__tensor_row_bytes(&w->form);
    int64_t side = rows * mf__tensor_scale_bytes(&w->form);
    fill f = {.s = s,
              .w = w,
              .it = it,
              .data = it->out,
              .scales = it->out + data,
              .biases = it->out + data + side,
              .deviation = deviation_of(w->name, w->n_cols),
              .zero_first = writes_stream(w->name),
              .peak = !strcmp(w->name, "model.embed_tokens.weight")};
    mf__pool_run(s->pool, fill_rows, &f, rows);
}

/* ---- routers ---- */

/* The inverse of the normal distribution, by bisection: a few hundred calls per layer. */
static double quantile(double p) {
    double lo = -10, hi = 10;
    for (int i = 0; i < 60; i++) {
        double mid = (lo + hi) / 2;
        if (0.5 * erfc(-mid * 0.70710678118654752) < p)
            lo = mid;
        else
            hi = mid;
    }
    return (lo + hi) / 2;
}

/* How often each rank is chosen, per token: share_i = c / (i + 1)^s, at most MOST_POPULAR, top_k in all. */
static void zipf_shares(int n, int top_k, double s, double *share) {
    double left = top_k, sum = 0;
    int first = 0;
    for (int i = 0; i < n; i++) sum += share[i] = pow(i + 1, -s);
    while (first < n && left * share[first] / sum > MOST_POPULAR) {
        sum -= share[first];
        share[first++] = MOST_POPULAR;
        left -= MOST_POPULAR;
    }
    for (int i = first; i < n; i++) share[i] *= left / sum;
}

/* bias[e] in logits; which expert has which rank is another draw in every layer. */
static bool popularity_biases(const synth *s, int layer, float *bias) {
    int n = s->bp.config.moe.n_experts;
    double *share = malloc((size_t)n * sizeof *share);
    int *order = malloc((size_t)n * sizeof *order);
    bool ok = share && order;
    if (ok) {
        random_t r = random_of(s->opt->seed, "popularity", layer, 0);
        zipf_shares(n, s->bp.config.moe.top_k, s->opt->popularity, share);
        for (int i = 0; i < n; i++) order[i] = i;
        for (int i = n - 1; i > 0; i--) {
            int k = (int)(draw(&r) % (uint64_t)(i + 1)), t = order[i];
            order[i] = order[k];
            order[k] = t;
        }
        for (int i = 0; i < n; i++) bias[order[i]] = (float)(ROUTER_NOISE * quantile(share[i]));
    }
    free(share);
    free(order);
    return ok;
}

/* A matrix of BF16: a router, or one whose rows do not split into groups. */
static mf_status fill_plain(const synth *s, const weight *w, uint8_t *out, mf_error *err) {
    float *bias = calloc((size_t)w->n_rows, sizeof *bias);
    bool biased = w->router && s->opt->popularity > 0;
    if (!bias || (biased && !popularity_biases(s, w->layer, bias))) {
        free(bias);
        return mf__fail(err, MF_E_NOMEM, "no memory for a router");
    }
    /* the stream has grown by 2 * layer + 1 branches when the router sees it */
    double constant = PEAK / sqrt(1 + (2 * w->layer + 1) * BRANCH_GAIN * BRANCH_GAIN);
    double deviation = w->router ? ROUTER_NOISE / sqrt((double)w->n_cols) : deviation_of(w->name, w->n_cols);
    for (int64_t e = 0; e < w->n_rows; e++) {
        random_t r = random_of(s->opt->seed, w->name, e, 0);
        bool zero = writes_stream(w->name) && e == 0;
        for (int64_t c = 0; c < w->n_cols; c++) {
            double v = zero ? 0 : w->router && c == 0 ? bias[e] / constant : deviation * normal(&r);
            uint16_t h = mf__f32_to_bf16((float)v);
            memcpy(out + 2 * (e * w->n_cols + c), &h, 2);
        }
    }
    free(bias);
    return MF_OK;
}

/* ---- vectors ---- */

static void fill_vector(const synth *s, const weight *w, uint8_t *out) {
    random_t r = random_of(s->opt->seed, w->name, 0, 0);
    int64_t n_experts = s->bp.config.moe.n_experts;
    bool norm = strstr(w->name, "norm") != NULL, conv = strstr(w->name, "conv1d") != NULL;
    for (int64_t i = 0; i < w->n_rows * w->n_cols; i++) {
        float v = 0; /* biases, sinks */
        if (norm || mf__text_ends_with(w->name, "scale") || mf__text_ends_with(w->name, "layer_scalar")) v = 1;
        if (conv) v = (float)(uniform(&r) - 0.5);
        if (mf__text_ends_with(w->name, "tid2eid")) v = (float)((i % w->n_cols * 7 + i / w->n_cols * 5) % n_experts);
        if (mf__text_ends_with(w->name, "A_log")) v = (float)log(1 + 15 * uniform(&r));
        if (mf__text_ends_with(w->name, "dt_bias")) v = (float)log(expm1(0.001 * pow(100, uniform(&r))));
        memcpy(out + 4 * i, &v, 4);
    }
}

/* ---- experts ---- */

/* Returns its checksum. A small copy has codes of its own: it says nothing sensible either. */
static uint64_t fill_expert(const synth *s, const mf__expert_layout *l, int layer, int expert, uint8_t *blob) {
    for (int p = 0; p < MF_PART_COUNT; p++) {
        mf__tensor form = mf__expert_view(l, (mf__expert_part)p, NULL);
        int64_t row = mf__tensor_row_bytes(&form), side = mf__tensor_scale_bytes(&form);
        bool down = p == MF_PART_DOWN;
        random_t r = random_of(s->opt->seed, mf__expert_part_name((mf__expert_part)p), layer, expert);
        double deviation = (down ? BRANCH_GAIN * 4 : 1) / sqrt((double)form.n_cols); /* a mean of a few: smaller */
        for (int64_t i = 0; i < form.n_rows; i++)
            affine_row(&r, &form, deviation, down && i == 0, blob + l->part[p].data_off + i * row,
                       blob + l->part[p].scales_off + i * side, blob + l->part[p].biases_off + i * side);
    }
    memset(blob + l->bytes, 0, (size_t)(l->stride - l->bytes));
    return mf__hash_bytes(blob, (size_t)l->bytes);
}

static void fill_experts(void *ctx, int64_t begin, int64_t end, int thread) {
    const fill *f = ctx;
    (void)thread;
    const synth *s = f->s;
    item *it = f->it;
    uint8_t *small = it->out + it->count * s->layout.stride;
    for (int64_t i = begin; i < end; i++) {
        int e = it->first + (int)i;
        it->hashes[i] = fill_expert(s, &s->layout, it->layer, e, it->out + i * s->layout.stride);
        if (s->opt->also_bits)
            it->small_hashes[i] = fill_expert(s, &s->small, it->layer, e, small + i * s->small.stride);
    }
}

mf_status mf__synth_fill(mf__synth_state *s, mf__synth_item *it, mf_error *err) {
    fill f = {.s = s, .it = it};
    if (!it->w)
        mf__pool_run(s->pool, fill_experts, &f, it->count);
    else if (it->w->vector)
        fill_vector(s, it->w, it->out);
    else if (it->w->form.type == MF_TYPE_AFFINE)
        fill_matrix(s, it);
    else
        return fill_plain(s, it->w, it->out, err);
    return MF_OK;
}
