/* Ops that treat every row, or every part of a row, alike. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

/* Work below this many values is done at once: waking threads would take longer. */
#define WORTH_SHARING 8192

static void share_rows(mf__cpu_run *r, mf__pool_fn *fn, int64_t n_items, int64_t item_values) {
    mf__pool_run(n_items * item_values < WORTH_SHARING ? NULL : r->pool, fn, r, n_items);
}

static void embed_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const int32_t *tokens = r->b->bufs[r->op->in[0]];
    const mf__tensor *table = &r->b->weights[r->op->w[0]];
    (void)thread;
    for (int64_t t = begin; t < end; t++) r->k->decode_row(table, tokens[t], mf__cpu_out(r, 0) + t * table->n_cols);
}

mf_status mf__cpu_embed(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, embed_rows, r->b->n_rows, r->b->weights[r->op->w[0]].n_cols);
    return MF_OK;
}

static void norm_parts(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int64_t part = r->op->p.norm.part, own = r->op->p.norm.apart ? mf__cpu_in_cols(r, 0) / part : 1; /* weights */
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        r->k->rms_norm(mf__cpu_in(r, 0) + i * part, mf__cpu_weights(r, 0) + i % own * part, r->op->p.norm.eps, part,
                       mf__cpu_out(r, 0) + i * part);
}

static int64_t n_parts(const mf__cpu_run *r) {
    return (int64_t)r->b->n_rows * mf__cpu_in_cols(r, 0) / r->op->p.norm.part;
}

mf_status mf__cpu_rms_norm(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, norm_parts, n_parts(r), r->op->p.norm.part);
    return MF_OK;
}

/* The keys of an index are few: plain C. */
static void layer_norm_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const float *w = mf__cpu_weights(r, 0), *b = mf__cpu_weights(r, 1);
    int32_t cols = mf__cpu_in_cols(r, 0);
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *x = mf__cpu_out(r, 0) + t * cols, mean = 0, square = 0;
        for (int32_t c = 0; c < cols; c++) mean += x[c];
        mean /= (float)cols;
        for (int32_t c = 0; c < cols; c++) square += (x[c] - mean) * (x[c] - mean);
        float scale = 1.0f / sqrtf(square / (float)cols + r->op->p.norm.eps);
        for (int32_t c = 0; c < cols; c++) x[c] = (x[c] - mean) * scale * w[c] + b[c];
    }
}

mf_status mf__cpu_layer_norm(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, layer_norm_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}

static void gated_norm_parts(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int64_t part = r->op->p.norm.part;
    void (*gate)(float *x, const float *z, int64_t n) = r->op->p.norm.sigmoid ? r->k->mul_sigmoid : r->k->mul_silu;
    norm_parts(ctx, begin, end, thread);
    gate(mf__cpu_out(r, 0) + begin * part, mf__cpu_in(r, 1) + begin * part, (end - begin) * part);
}

mf_status mf__cpu_gated_norm(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, gated_norm_parts, n_parts(r), r->op->p.norm.part);
    return MF_OK;
}

static void add_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int64_t cols = mf__cpu_in_cols(r, 0), at = begin * cols;
    (void)thread;
    r->k->add(mf__cpu_in(r, 0) + at, mf__cpu_in(r, 1) + at, (end - begin) * cols, mf__cpu_out(r, 0) + at);
}

mf_status mf__cpu_add(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, add_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}

/* Items are runs of values: a row of logits is long. */
#define MAP_VALUES 2048

static void map_values(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const float *w = mf__cpu_weights(r, 0);
    int64_t n = (int64_t)r->b->n_rows * mf__cpu_in_cols(r, 0), at = begin * MAP_VALUES, stop = end * MAP_VALUES;
    (void)thread;
    r->k->map(&r->op->p, w ? *w : 1, (stop < n ? stop : n) - at, mf__cpu_out(r, 0) + at);
}

static void grow_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    int64_t cols = mf__cpu_in_cols(r, 0);
    int32_t s = 0;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        while (t >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        float pos = (float)(r->b->segs[s].pos + t - r->b->segs[s].row0), *x = mf__cpu_out(r, 0) + t * cols;
        float factor = 1.0f + p->map.a * logf(1.0f + floorf((pos + p->map.c) / p->map.b));
        for (int64_t i = 0; i < cols; i++) x[i] *= factor;
    }
}

mf_status mf__cpu_map(mf__cpu_run *r, mf_error *err) {
    (void)err;
    int64_t cols = mf__cpu_in_cols(r, 0), n = r->b->n_rows * cols;
    if (r->op->p.map.kind == MF_MAP_POSITION)
        share_rows(r, grow_rows, r->b->n_rows, cols);
    else
        share_rows(r, map_values, (n + MAP_VALUES - 1) / MAP_VALUES, MAP_VALUES);
    return MF_OK;
}

/* Row t of the first output is a times that of the first input. */
static void scale_row(const mf__cpu_run *r, int64_t t, float a) {
    const mf__op_params scale = {.map = {.kind = MF_MAP_SCALE, .a = a}};
    int64_t cols = mf__cpu_in_cols(r, 0);
    float *y = mf__cpu_out(r, 0) + t * cols;
    memcpy(y, mf__cpu_in(r, 0) + t * cols, (size_t)cols * sizeof *y);
    r->k->map(&scale, 1, cols, y);
}

static void weigh_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *share = mf__cpu_out(r, 1) + t;
        scale_row(r, t, *share);
        *share = 1;
    }
}

static void identity_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int32_t top = r->op->p.identity.top_k, n = r->op->p.identity.n_experts;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int32_t *ids = (int32_t *)r->b->bufs[r->op->out[1]] + t * top, first = 0;
        float *shares = mf__cpu_out(r, 2) + t * top, sum = 0;
        for (int32_t k = top - 1; k >= 0; k--) first = ids[k] < n ? ids[k] : first;
        for (int32_t k = 0; k < top; k++) {
            if (ids[k] < n) continue;
            sum += shares[k];
            ids[k] = first, shares[k] = 0;
        }
        scale_row(r, t, sum);
    }
}

mf_status mf__cpu_identity(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, identity_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}

mf_status mf__cpu_weigh(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, weigh_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}

static void glu_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int64_t cols = mf__cpu_in_cols(r, 0), at = begin * cols;
    (void)thread;
    r->k->glu(&r->op->p.glu, mf__cpu_in(r, 0) + at, mf__cpu_in(r, 1) + at, (end - begin) * cols,
              mf__cpu_out(r, 0) + at);
}

mf_status mf__cpu_glu(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, glu_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}

static void sigmoid_gate_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int64_t cols = mf__cpu_in_cols(r, 0), part = r->op->p.gate.part, at = begin * cols;
    (void)thread;
    if (part == 1) r->k->mul_sigmoid(mf__cpu_out(r, 0) + at, mf__cpu_in(r, 1) + at, (end - begin) * cols);
    for (int64_t i = at / part; part > 1 && i < end * cols / part; i++) {
        const mf__op_params scale = {.map = {.kind = MF_MAP_SCALE, .a = 1.0f / (1.0f + expf(-mf__cpu_in(r, 1)[i]))}};
        r->k->map(&scale, 1, part, mf__cpu_out(r, 0) + i * part);
    }
}

mf_status mf__cpu_sigmoid_gate(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, sigmoid_gate_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}

/* Each query and key head at the front of a row gets unit length; queries also / sqrt(dim). */
static void qk_norm_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int32_t heads = r->op->p.delta.n_k_heads, dim = r->op->p.delta.k_dim, cols = mf__cpu_in_cols(r, 0);
    float q_scale = 1.0f / sqrtf((float)dim);
    (void)thread;
    for (int64_t t = begin; t < end; t++)
        for (int32_t h = 0; h < 2 * heads; h++)
            r->k->scale_to_unit(mf__cpu_out(r, 0) + t * cols + (int64_t)h * dim, dim, h < heads ? q_scale : 1.0f);
}

mf_status mf__cpu_qk_norm(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, qk_norm_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}

static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

static void decay_beta_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const float *a = mf__cpu_in(r, 0), *b = mf__cpu_in(r, 1);
    const float *a_log = mf__cpu_weights(r, 0), *dt_bias = mf__cpu_weights(r, 1);
    int32_t heads = mf__cpu_in_cols(r, 0);
    (void)thread;
    for (int64_t i = begin * heads; i < end * heads; i++) {
        mf__cpu_out(r, 0)[i] = expf(-expf(a_log[i % heads]) * softplus(a[i] + dt_bias[i % heads]));
        mf__cpu_out(r, 1)[i] = 1.0f / (1.0f + expf(-b[i]));
    }
}

/* A decay for each channel: head by head. */
static void decay_heads(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const float *a_log = mf__cpu_weights(r, 0), *dt_bias = mf__cpu_weights(r, 1);
    int64_t heads = mf__cpu_in_cols(r, 1), dim = mf__cpu_in_cols(r, 0) / heads;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t h = i % heads;
        r->k->decay(expf(a_log[h]), mf__cpu_in(r, 0) + i * dim, dt_bias + h * dim, dim, mf__cpu_out(r, 0) + i * dim);
        mf__cpu_out(r, 1)[i] = 1.0f / (1.0f + expf(-mf__cpu_in(r, 1)[i]));
    }
}

mf_status mf__cpu_decay_beta(mf__cpu_run *r, mf_error *err) {
    (void)err;
    if (r->op->p.delta.by_channel)
        share_rows(r, decay_heads, (int64_t)r->b->n_rows * mf__cpu_in_cols(r, 1),
                   4 * mf__cpu_in_cols(r, 0) / mf__cpu_in_cols(r, 1));
    else
        share_rows(r, decay_beta_rows, r->b->n_rows, 32 * mf__cpu_in_cols(r, 0));
    return MF_OK;
}

/* y = h (if there is one) + (sum_k share_k pair_k + sigmoid(score) shared), slots in order. */
static void combine_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const float *pairs = mf__cpu_in(r, 1), *shares = mf__cpu_in(r, 2), *shared = mf__cpu_in(r, 3);
    const float *score = mf__cpu_in(r, 4);
    int64_t cols = r->g->bufs[r->op->out[0]].cols, top = r->op->p.moe.top_k;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *y = mf__cpu_out(r, 0) + t * cols;
        memset(y, 0, (size_t)cols * sizeof *y);
        for (int64_t k = 0; k < top; k++) r->k->axpy(shares[t * top + k], pairs + (t * top + k) * cols, cols, y);
        if (shared) r->k->axpy(score ? 1.0f / (1.0f + expf(-score[t])) : 1.0f, shared + t * cols, cols, y);
        if (r->op->in[0] >= 0) r->k->add(mf__cpu_in(r, 0) + t * cols, y, cols, y);
    }
}

mf_status mf__cpu_combine(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, combine_rows, r->b->n_rows, (int64_t)mf__cpu_in_cols(r, 1) / 4);
    return MF_OK;
}

static void cut_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int64_t first = r->op->p.cut.n_first, cols = mf__cpu_in_cols(r, 0), rest = cols - first;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *x = mf__cpu_in(r, 0) + t * cols;
        memcpy(mf__cpu_out(r, 0) + t * first, x, (size_t)first * sizeof(float));
        memcpy(mf__cpu_out(r, 1) + t * rest, x + first, (size_t)rest * sizeof(float));
    }
}

mf_status mf__cpu_split(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, cut_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}

static void join_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int64_t n_a = mf__cpu_in_cols(r, 0), n_b = r->op->in[1] < 0 ? 0 : mf__cpu_in_cols(r, 1);
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        float *y = mf__cpu_out(r, 0) + t * (n_a + n_b);
        memcpy(y, mf__cpu_in(r, 0) + t * n_a, (size_t)n_a * sizeof *y);
        if (n_b) memcpy(y + n_a, mf__cpu_in(r, 1) + t * n_b, (size_t)n_b * sizeof *y);
    }
}

mf_status mf__cpu_join(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, join_rows, r->b->n_rows, r->g->bufs[r->op->out[0]].cols);
    return MF_OK;
}

static void split_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    int64_t dim = r->op->p.split.head_dim, heads = r->op->p.split.n_heads;
    const float *u = mf__cpu_in(r, 0);
    (void)thread;
    for (int64_t i = begin * heads; i < end * heads; i++) {
        memcpy(mf__cpu_out(r, 0) + i * dim, u + 2 * i * dim, (size_t)dim * sizeof(float));
        memcpy(mf__cpu_out(r, 1) + i * dim, u + (2 * i + 1) * dim, (size_t)dim * sizeof(float));
    }
}

mf_status mf__cpu_split_q_gate(mf__cpu_run *r, mf_error *err) {
    (void)err;
    share_rows(r, split_rows, r->b->n_rows, mf__cpu_in_cols(r, 0));
    return MF_OK;
}
