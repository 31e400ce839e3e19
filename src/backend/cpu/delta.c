/* Gated DeltaNet: the convolution by channels, the delta rule by rows of the state. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

#define CHANNELS 64           /* an item of the convolution */
#define LARGE_STATE (1 << 18) /* values of a layer: no cache keeps those of all layers until the next token */
#define ROWS 32               /* an item of the delta rule: rows of one head's state */

/* ---- convolution ------------------------------------------------------------------------------------------------- */

/* The last kernel - 1 inputs become the state. Going up in k, a row is read before it is overwritten. */
static void keep_inputs(const mf__segment *seg, const float *x, const mf__op_params *p, int64_t c, int64_t n) {
    int64_t channels = p->conv.n_channels;
    int32_t kernel = p->conv.n_kernel;
    for (int32_t k = 0; k + 1 < kernel; k++) {
        int32_t row = seg->n_rows - (kernel - 1) + k;
        const float *from = row < 0 ? seg->state->conv_in + p->conv.at + (int64_t)(row + kernel - 1) * channels
                                    : x + (int64_t)(seg->row0 + row) * channels;
        memmove(seg->state->conv_out + p->conv.at + (int64_t)k * channels + c, from + c, (size_t)n * sizeof(float));
    }
}

static void conv_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const float *x = mf__cpu_in(r, 0), *w = mf__cpu_weights(r, 0);
    int64_t channels = r->op->p.conv.n_channels, c = begin * CHANNELS, stop = end * CHANNELS;
    int32_t kernel = r->op->p.conv.n_kernel;
    if (stop > channels) stop = channels;
    (void)thread;
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        int64_t at = seg->row0 * channels + c;
        r->k->conv(&(mf__cpu_conv){.x = x + at,
                                   .before = seg->state->conv_in + r->op->p.conv.at + c,
                                   .w = w + c * kernel,
                                   .bias = mf__cpu_weights(r, 1) ? mf__cpu_weights(r, 1) + c : NULL,
                                   .y = mf__cpu_out(r, 0) + at,
                                   .stride = channels,
                                   .n_channels = stop - c,
                                   .n_rows = seg->n_rows,
                                   .kernel = kernel,
                                   .plain = r->op->p.conv.plain});
        keep_inputs(seg, x, &r->op->p, c, stop - c);
    }
}

mf_status mf__cpu_conv1d(mf__cpu_run *r, mf_error *err) {
    (void)err;
    int64_t channels = r->op->p.conv.n_channels;
    mf__pool_run(channels * r->b->n_rows < 4096 ? NULL : r->pool, conv_items, r, (channels + CHANNELS - 1) / CHANNELS);
    return MF_OK;
}

/* ---- the delta rule ---------------------------------------------------------------------------------------------- */

static void delta_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    int32_t k_dim = p->delta.k_dim, v_dim = p->delta.v_dim, n_v = p->delta.n_v_heads, cols = mf__cpu_in_cols(r, 0);
    int64_t decays = p->delta.by_channel ? k_dim : 1; /* of a head */
    int64_t keys = (int64_t)p->delta.n_k_heads * k_dim, per_head = (v_dim + ROWS - 1) / ROWS;
    bool large = (int64_t)n_v * v_dim * k_dim >= LARGE_STATE;
    (void)thread;
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        for (int64_t item = begin; item < end; item++) {
            int64_t h = item / per_head, row = item % per_head * ROWS, k_head = h / (n_v / p->delta.n_k_heads);
            int64_t state = (h * v_dim + row) * k_dim;
            const float *first = mf__cpu_in(r, 0) + (int64_t)seg->row0 * cols;
            mf__cpu_delta d = {.S_in = seg->state->delta_in + state,
                               .S_out = seg->state->delta_out + state,
                               .q = first + k_head * k_dim,
                               .k = first + keys + k_head * k_dim,
                               .v = first + 2 * keys + h * v_dim + row,
                               .decay = mf__cpu_in(r, 1) + ((int64_t)seg->row0 * n_v + h) * decays,
                               .beta = mf__cpu_in(r, 2) + (int64_t)seg->row0 * n_v + h,
                               .o = mf__cpu_out(r, 0) + ((int64_t)seg->row0 * n_v + h) * v_dim + row,
                               .qkv_stride = cols,
                               .gate_stride = n_v,
                               .decay_stride = n_v * decays,
                               .by_channel = p->delta.by_channel,
                               .o_stride = (int64_t)n_v * v_dim,
                               .n_rows = v_dim - row < ROWS ? (int32_t)(v_dim - row) : ROWS,
                               .n_steps = seg->n_rows,
                               .k_dim = k_dim,
                               .past = large && seg->state->delta_in != seg->state->delta_out};
            r->k->delta(&d);
        }
    }
}

mf_status mf__cpu_delta_net(mf__cpu_run *r, mf_error *err) {
    (void)err;
    int64_t per_head = (r->op->p.delta.v_dim + ROWS - 1) / ROWS;
    mf__pool_run(r->pool, delta_items, r, r->op->p.delta.n_v_heads * per_head);
    return MF_OK;
}

/* ---- Mamba-2 ----------------------------------------------------------------------------------------------------- */

static void ssm_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    int64_t dim = p->ssm.dim, n = p->ssm.n_state, heads = p->ssm.n_heads, cols = mf__cpu_in_cols(r, 0);
    (void)thread;
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        for (int64_t h = begin; h < end; h++) {
            const float *row = mf__cpu_in(r, 0) + (int64_t)seg->row0 * cols;
            r->k->ssm(&(mf__cpu_ssm){.S_in = seg->state->delta_in + h * dim * n,
                                     .S_out = seg->state->delta_out + h * dim * n,
                                     .u = row + h * dim,
                                     .B = row + heads * dim + h / (heads / p->ssm.n_groups) * n,
                                     .dt = mf__cpu_in(r, 1) + (int64_t)seg->row0 * heads + h,
                                     .y = mf__cpu_out(r, 0) + ((int64_t)seg->row0 * heads + h) * dim,
                                     .to_C = p->ssm.n_groups * n,
                                     .stride = cols,
                                     .dt_stride = heads,
                                     .y_stride = heads * dim,
                                     .rate = expf(mf__cpu_weights(r, 0)[h]),
                                     .bias = mf__cpu_weights(r, 1)[h],
                                     .direct = mf__cpu_weights(r, 2)[h],
                                     .n_steps = seg->n_rows,
                                     .dim = (int32_t)dim,
                                     .n_state = (int32_t)n});
        }
    }
}

mf_status mf__cpu_ssm_run(mf__cpu_run *r, mf_error *err) {
    (void)err;
    mf__pool_run(r->pool, ssm_items, r, r->op->p.ssm.n_heads);
    return MF_OK;
}
