/* One op at a time: making data. Running is in run.c. */
#include "harness.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "quant/affine.h"
#include "quant/half.h"

static void *take(mf__arena *arena, int64_t n, size_t size) {
    void *mem = mf__arena_array(arena, (size_t)n + 1, size);
    assert_non_null(mem);
    return mem;
}

double op_random(op_rig *rig) {
    uint64_t x = rig->random += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0;
}

static float *random_floats(op_rig *rig, int64_t n, double scale) {
    float *x = take(&rig->arena, n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(op_random(rig) * scale);
    return x;
}

/* ---- weights --------------------------------------------------------------------------------------------------- */

/* Fills the matrix t, whose memory is ours, with random values. */
static void encode(op_rig *rig, const mf__tensor *t) {
    int64_t cols = t->n_cols, row_bytes = mf__tensor_row_bytes(t), scale_bytes = mf__tensor_scale_bytes(t);
    float *row = take(&rig->arena, cols, sizeof *row);
    for (int64_t r = 0; r < t->n_rows; r++) {
        uint8_t *data = (uint8_t *)t->data + r * row_bytes;
        for (int64_t c = 0; c < cols; c++) row[c] = (float)op_random(rig);
        if (t->type == MF_TYPE_AFFINE) {
            uint8_t spare[64];
            mf__affine_encode_row(row, cols, t->bits, t->group, t->scale_type, data,
                                  (uint8_t *)t->scales + r * scale_bytes,
                                  t->biases ? (uint8_t *)t->biases + r * scale_bytes : spare);
            assert_true(t->biases || scale_bytes <= (int64_t)sizeof spare);
        } else if (t->type == MF_TYPE_F32) {
            memcpy(data, row, (size_t)row_bytes);
        } else if (mf__type_has_scales(t->type)) { /* any codes but NaN */
            for (int64_t i = 0; i < row_bytes; i++) data[i] = (uint8_t)(int)(row[i] * 127);
            if (t->type == MF_TYPE_F8_BLOCK)
                for (int64_t i = 0; i < row_bytes; i++) data[i] ^= (data[i] & 127) == 127;
        } else {
            for (int64_t c = 0; c < cols; c++) {
                uint16_t h = t->type == MF_TYPE_BF16 ? mf__f32_to_bf16(row[c]) : mf__f32_to_f16(row[c]);
                memcpy(data + c * 2, &h, 2);
            }
        }
    }
    if (!mf__type_has_scales(t->type) || t->type == MF_TYPE_AFFINE) return;
    int64_t n = mf__tensor_scale_rows(t) * scale_bytes / (mf__type_bits(t->scale_type) / 8);
    for (int64_t i = 0; i < n; i++) {
        float scale = (float)op_random(rig) + 1.5f;
        uint16_t half = t->scale_type == MF_TYPE_BF16 ? mf__f32_to_bf16(scale) : mf__f32_to_f16(scale);
        if (t->scale_type == MF_TYPE_U8)
            ((uint8_t *)t->scales)[i] = (uint8_t)(int)(120 + scale * 4);
        else if (t->scale_type == MF_TYPE_F32)
            memcpy((uint8_t *)t->scales + i * 4, &scale, 4);
        else
            memcpy((uint8_t *)t->scales + i * 2, &half, 2);
    }
}

static mf__type scale_type(const op_case *c) {
    static const mf__type types[] = {MF_TYPE_BF16, MF_TYPE_F16, MF_TYPE_F32};
    return c->w_type == MF_TYPE_MXFP4 ? MF_TYPE_U8 : types[c->scales];
}

static mf__tensor make_matrix(op_rig *rig, int64_t rows, int64_t cols) {
    const op_case *c = rig->c;
    mf__tensor t = {.type = c->w_type, .n_planes = 1, .n_rows = rows, .n_cols = cols};
    if (mf__type_has_scales(c->w_type))
        t.bits = c->bits, t.group = c->group, t.block_rows = c->block_rows, t.scale_type = scale_type(c);
    t.data = take(&rig->arena, rows * mf__tensor_row_bytes(&t), 1);
    if (t.group) t.scales = take(&rig->arena, mf__tensor_scale_rows(&t) * mf__tensor_scale_bytes(&t), 1);
    if (c->w_type == MF_TYPE_AFFINE && !c->centred) t.biases = take(&rig->arena, rows * mf__tensor_bias_bytes(&t), 1);
    encode(rig, &t);
    return t;
}

static double *values(op_rig *rig, const mf__tensor *t) {
    float *row = take(&rig->arena, t->n_cols, sizeof *row);
    double *v = take(&rig->arena, t->n_rows * t->n_cols, sizeof *v);
    for (int64_t r = 0; r < t->n_rows; r++) {
        mf__tensor_row_f32(t, r, row);
        for (int64_t c = 0; c < t->n_cols; c++) v[r * t->n_cols + c] = row[c];
    }
    return v;
}

static void make_weights(op_rig *rig) {
    for (int i = 0; i < rig->g->n_weights; i++) {
        const mf__weight_info *w = &rig->g->weights[i];
        mf__tensor *t = &rig->weights[i];
        if (w->kind == MF_WEIGHT_MATRIX)
            *t = make_matrix(rig, w->n_rows, w->n_cols);
        else
            *t = (mf__tensor){.type = MF_TYPE_F32,
                              .n_planes = 1,
                              .n_rows = w->n_rows,
                              .n_cols = w->n_cols,
                              .data = w->data ? w->data : random_floats(rig, w->n_rows * w->n_cols, 1)};
        rig->w[i] = values(rig, t);
    }
}

static void make_bank(op_rig *rig) {
    const op_case *c = rig->c;
    int64_t hidden = op_in_cols(rig, 0), inner = c->p.moe.n_inner;
    for (int p = 0; p < MF_PART_COUNT; p++) {
        rig->layout.part[p].type = c->w_type;
        rig->layout.part[p].n_rows = p == MF_PART_DOWN ? hidden : inner;
        rig->layout.part[p].n_cols = p == MF_PART_DOWN ? mf__glu_cols(&c->p.moe.glu, inner) : hidden;
        rig->layout.part[p].has_bias = c->option;
        if (!mf__type_has_scales(c->w_type)) continue;
        rig->layout.part[p].bits = c->bits;
        rig->layout.part[p].group = c->group;
        rig->layout.part[p].block_rows = c->block_rows;
        rig->layout.part[p].scale_type = scale_type(c);
    }
    assert_int_equal(mf__expert_layout_pack(&rig->layout, 64, NULL), MF_OK);
    rig->blobs = take(&rig->arena, c->n_experts * rig->layout.bytes, 1);
    for (int32_t e = 0; e < c->n_experts; e++)
        for (int p = 0; p < MF_PART_COUNT; p++) {
            uint8_t *blob = rig->blobs + e * rig->layout.bytes;
            mf__tensor t = mf__expert_view(&rig->layout, p, blob);
            encode(rig, &t);
            float *bias = (float *)(void *)(blob + rig->layout.part[p].bias_off);
            for (int64_t r = 0; c->option && r < rig->layout.part[p].n_rows; r++) bias[r] = (float)op_random(rig);
        }
}

/* ---- inputs and states ----------------------------------------------------------------------------------------- */

/* Distinct ids per row: the first cols of a shuffled pack. */
static int32_t *random_ids(op_rig *rig, int32_t cols, int32_t below) {
    int32_t *ids = take(&rig->arena, (int64_t)rig->n_rows * cols, sizeof *ids);
    int32_t *pack = take(&rig->arena, below, sizeof *pack);
    for (int32_t i = 0; i < below; i++) pack[i] = i;
    for (int32_t r = 0; r < rig->n_rows; r++)
        for (int32_t c = 0; c < cols; c++) {
            int32_t other = c + (int32_t)((op_random(rig) + 1) / 2 * (below - c)), id = pack[other];
            pack[other] = pack[c];
            ids[r * cols + c] = pack[c] = id;
        }
    return ids;
}

static void make_inputs(op_rig *rig) {
    for (int k = 0; k < MF_OP_IN; k++) {
        int16_t id = rig->op->in[k];
        if (id < 0) continue;
        const mf__buf_info *b = &rig->g->bufs[id];
        int32_t below = rig->c->n_experts ? rig->c->n_experts : rig->c->rows;
        rig->in[id] = b->is_int ? (void *)random_ids(rig, b->cols, below)
                                : (void *)random_floats(rig, (int64_t)rig->n_rows * b->cols, 1);
    }
}

int64_t op_block_bytes(const op_case *c) {
    return OP_BLOCK_ROWS * mf__kv_row_bytes(c->kv_type, c->k_cols) +
           op_v_rows(c) * mf__kv_row_bytes(c->kv_type, c->v_cols);
}

mf__kv op_kv(const op_case *c, char *const *pool, const int32_t *pages) {
    mf__kv kv = mf__kv_make(pool, pages, 0, OP_BLOCK_ROWS, c->kv_type, c->k_cols, c->v_cols);
    if (c->v_step) kv.v_step = c->v_step;
    return kv;
}

void op_decode_block(const op_case *c, const uint8_t *block, float *values) {
    char *pool[] = {(char *)block};
    mf__kv kv = op_kv(c, pool, (int32_t[]){0});
    for (int r = 0; r < OP_BLOCK_ROWS; r++)
        mf__kv_decode_row(c->kv_type, mf__kv_k(&kv, r), c->k_cols, 0, c->k_cols, values + r * c->k_cols);
    for (int r = 0; r < op_v_rows(c); r++)
        mf__kv_decode_row(c->kv_type, mf__kv_v(&kv, (int64_t)r * kv.v_step), c->v_cols, 0, c->v_cols,
                          values + OP_BLOCK_ROWS * c->k_cols + r * c->v_cols);
}

/* Random rows, and what is left of their values after being kept. */
static void make_kv(op_rig *rig, op_state *st) {
    const op_case *c = rig->c;
    int64_t floats = op_block_floats(c);
    st->kv = random_floats(rig, st->n_blocks * floats, 1);
    st->kv_bytes = take(&rig->arena, st->n_blocks, (size_t)op_block_bytes(c));
    for (int b = 0; b < st->n_blocks; b++) {
        char *pool[] = {(char *)st->kv_bytes + b * op_block_bytes(c)};
        mf__kv kv = op_kv(c, pool, (int32_t[]){0});
        float *values = st->kv + b * floats;
        for (int r = 0; r < OP_BLOCK_ROWS; r++)
            mf__kv_encode_row(c->kv_type, values + r * c->k_cols, c->k_cols, mf__kv_k(&kv, r));
        for (int r = 0; r < op_v_rows(c); r++)
            mf__kv_encode_row(c->kv_type, values + OP_BLOCK_ROWS * c->k_cols + r * c->v_cols, c->v_cols,
                              mf__kv_v(&kv, (int64_t)r * kv.v_step));
        op_decode_block(c, st->kv_bytes + b * op_block_bytes(c), values);
    }
}

static void make_states(op_rig *rig) {
    const op_case *c = rig->c;
    if (rig->op->kind == MF_OP_CONV1D) rig->conv_floats = c->p.conv.at + (c->p.conv.n_kernel - 1) * (int64_t)c->cols;
    if (rig->op->kind == MF_OP_COMPRESS) rig->conv_floats = mf__compress_kept(&c->p) * (int64_t)op_in_cols(rig, 0);
    if (rig->op->kind == MF_OP_DELTA_NET)
        rig->delta_floats = (int64_t)c->p.delta.n_v_heads * c->p.delta.v_dim * c->p.delta.k_dim;
    if (rig->op->kind == MF_OP_SSM) rig->delta_floats = (int64_t)c->p.ssm.n_heads * c->p.ssm.dim * c->p.ssm.n_state;
    for (int s = 0; s < rig->n_seqs; s++) {
        op_state *st = &rig->state[s];
        int64_t block = op_block_floats(c);
        if (block) st->n_blocks = (int32_t)((c->seqs[s].pos + c->seqs[s].n_rows + OP_BLOCK_ROWS - 1) / OP_BLOCK_ROWS);
        if (block) make_kv(rig, st);
        if (rig->conv_floats) st->conv = random_floats(rig, rig->conv_floats, 1);
        if (rig->delta_floats) st->delta = random_floats(rig, rig->delta_floats, 1);
    }
}

void op_rig_init(op_rig *rig, const op_case *c) {
    mf_error err = {0};
    *rig = (op_rig){.c = c};
    for (const char *p = c->name; *p; p++) rig->random = rig->random * 31 + (uint8_t)*p;
    assert_int_equal(mf__graph_create(c->name, &rig->g, NULL), MF_OK);
    c->build(rig->g, c);
    mf__graph_finish(rig->g, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(rig->g->n_ops, 1);
    rig->op = &rig->g->ops[0];
    for (; rig->n_seqs < OP_MAX_SEQS && c->seqs[rig->n_seqs].n_rows; rig->n_seqs++)
        rig->n_rows += c->seqs[rig->n_seqs].n_rows;
    make_inputs(rig);
    make_weights(rig);
    make_states(rig);
    if (c->n_experts) make_bank(rig);
    if (c->fill) c->fill(rig);
}

void op_rig_free(op_rig *rig) {
    mf__graph_free(rig->g);
    mf__arena_free(&rig->arena);
}

/* ---- results --------------------------------------------------------------------------------------------------- */

static double *widen(op_result *r, const float *x, int64_t n) {
    double *y = x ? take(&r->arena, n, sizeof *y) : NULL;
    for (int64_t i = 0; x && i < n; i++) y[i] = x[i];
    return y;
}

static int64_t kv_floats(const op_rig *rig, int s) {
    return rig->state[s].n_blocks * op_block_floats(rig->c);
}

void op_result_init(op_result *r, const op_rig *rig) {
    *r = (op_result){0};
    for (int k = 0; k < MF_OP_OUT; k++) {
        int16_t id = rig->op->out[k];
        if (id < 0) continue;
        int64_t n = (int64_t)rig->n_rows * rig->g->bufs[id].cols;
        r->out[id] = take(&r->arena, n, sizeof(double));
        for (int64_t i = 0; i < n; i++) r->out[id][i] = NAN;
    }
    for (int s = 0; s < rig->n_seqs; s++) {
        r->kv[s] = widen(r, rig->state[s].kv, kv_floats(rig, s));
        r->conv[s] = widen(r, rig->state[s].conv, rig->conv_floats);
        r->delta[s] = widen(r, rig->state[s].delta, rig->delta_floats);
    }
}

void op_result_free(op_result *r) {
    mf__arena_free(&r->arena);
}

static void compare(const char *what, const char *part, int index, const double *got, const double *want, int64_t n,
                    double tolerance) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++)
        if (fabs(want[i]) > largest) largest = fabs(want[i]);
    for (int64_t i = 0; i < n; i++) {
        bool same = got[i] == want[i] || (isnan(got[i]) && isnan(want[i]));
        if (same || fabs(got[i] - want[i]) <= tolerance * largest) continue;
        fail_msg("%s: %s %d, value %lld: %.9g, expected %.9g (off by %.2g of the largest, allowed %.2g)", what, part,
                 index, (long long)i, got[i], want[i], fabs(got[i] - want[i]) / largest, tolerance);
    }
}

void op_compare(const op_rig *rig, const char *what, const op_result *got, const op_result *want, double tolerance) {
    for (int k = 0; k < MF_OP_OUT; k++) {
        int16_t id = rig->op->out[k];
        if (id < 0) continue;
        const mf__buf_info *b = &rig->g->bufs[id];
        compare(what, "output", k, got->out[id], want->out[id], (int64_t)rig->n_rows * b->cols,
                b->is_int ? 0 : tolerance);
    }
    bool computed = rig->op->kind == MF_OP_COMPRESS; /* other rows are kept as they come */
    for (int s = 0; s < rig->n_seqs; s++) {
        if (got->kv[s])
            compare(what, "KV of sequence", s, got->kv[s], want->kv[s], kv_floats(rig, s), computed ? tolerance : 0);
        if (got->conv[s]) compare(what, "conv of sequence", s, got->conv[s], want->conv[s], rig->conv_floats, 0);
        if (got->delta[s])
            compare(what, "delta of sequence", s, got->delta[s], want->delta[s], rig->delta_floats, tolerance);
    }
}
