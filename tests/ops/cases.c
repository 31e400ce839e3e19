/* The table: every op in the shapes that matter, with the error that is allowed beside it. */
#include <math.h>
#include <string.h>

#include "build.h"
#include "expect.h"

/* ---- data that random numbers do not give ---------------------------------------------------------------------- */

/* Gates between 0 and 1, with both ends among them: a decay of exactly 0 forgets everything. */
static void fill_gates(op_rig *rig) {
    for (int k = 1; k <= 2; k++) {
        float *x = rig->in[rig->op->in[k]];
        for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, k); i++)
            x[i] = i % 7 == 3 ? 0 : i % 7 == 5 ? 1 : (float)(op_random(rig) / 2 + 0.5);
    }
}

/* a so large that e^a overflows, and so small that it vanishes. */
static void fill_extremes(op_rig *rig) {
    static const float ends[] = {120, -120, 25, 19, -30, 0};
    float *a = rig->in[rig->op->in[0]], *b = rig->in[rig->op->in[1]];
    for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, 0); i++) a[i] = ends[i % 6];
    for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, 1); i++) b[i] = ends[(i + 2) % 6];
}

/* The same with heads that decay slowly: then the size of softplus shows. */
static void fill_slow_extremes(op_rig *rig) {
    fill_extremes(rig);
    float *a_log = (float *)rig->weights[rig->op->w[0]].data;
    for (int32_t h = 0; h < op_in_cols(rig, 1); h++) rig->w[rig->op->w[0]][h] = a_log[h] = (float)(-4 - h);
}

/* Logits of few different values: most are ties. */
static void fill_ties(op_rig *rig) {
    float *x = rig->in[rig->op->in[0]];
    for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, 0); i++) x[i] = (float)(int)(op_random(rig) * 3);
}

static void fill_large(op_rig *rig) {
    float *x = rig->in[rig->op->in[0]];
    for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, 0); i++) x[i] *= 90;
}

/* Keys and values from too large for f16 down to less than any group's scale, and parts that are all zero. */
static void fill_huge(op_rig *rig) {
    static const float ends[] = {1e6f, -7e4f, 65519, -65520, 3e-6f, -1e-7f, 1e-38f, -2049};
    for (int k = 0; k < 2; k++) {
        float *x = rig->in[rig->op->in[k]];
        for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, k); i++) x[i] = i / 64 % 2 ? 0 : ends[(i * 5 + k) % 8];
    }
}

/* Where an epsilon is as large as what it is added to. */
static void fill_tiny(op_rig *rig) {
    float *x = rig->in[rig->op->in[0]];
    for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, 0); i++) x[i] *= 1e-4f;
}

static void fill_zeros(op_rig *rig) {
    float *x = rig->in[rig->op->in[0]];
    for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, 0); i++) x[i] = 0;
}

/* Lists of blocks as MF_OP_INDEX makes them: ascending, the query's own block last, -1 behind; some lists are short. */
static void fill_lists(op_rig *rig, int32_t lists, int32_t n_picks, int32_t block) {
    int32_t *ids = rig->in[rig->op->in[1]], row = 0;
    for (int s = 0; s < rig->n_seqs; s++)
        for (int32_t i = 0; i < rig->c->seqs[s].n_rows; i++, row++)
            for (int32_t list = 0; list < lists; list++, ids += n_picks) {
                int32_t own = (int32_t)((rig->c->seqs[s].pos + i) / block), n = 0;
                for (int32_t b = 0; b < own && n + 1 < n_picks; b++)
                    if (op_random(rig) > 0 || own < n_picks) ids[n++] = b;
                ids[n++] = own;
                for (; n < n_picks; n++) ids[n] = -1;
            }
}

static void fill_blocks(op_rig *rig) {
    fill_lists(rig, rig->c->p.attn.n_lists, rig->c->p.attn.n_picks, rig->c->p.attn.block);
}

static void fill_rows(op_rig *rig) {
    fill_lists(rig, 1, rig->c->p.mla.n_picks, 1);
}

/* V rows that are complete by then, some of them. */
static void fill_far(op_rig *rig) {
    int32_t *ids = rig->in[rig->op->in[1]], n_picks = rig->c->p.far.n_picks;
    for (int s = 0; s < rig->n_seqs; s++)
        for (int32_t i = 0; i < rig->c->seqs[s].n_rows; i++, ids += n_picks) {
            int32_t all = (int32_t)((rig->c->seqs[s].pos + i + 1) / rig->c->p.far.step), n = 0;
            for (int32_t b = 0; b < all && n < n_picks; b++)
                if (op_random(rig) > 0) ids[n++] = b;
            for (; n < n_picks; n++) ids[n] = -1;
        }
}

/* Different experts, as values. */
static void fill_given(op_rig *rig) {
    float *x = rig->in[rig->op->in[1]];
    int32_t k = rig->c->p.route.top_k, n = rig->c->p.route.n_experts;
    for (int32_t i = 0; i < rig->n_rows * k; i++) x[i] = (float)((i / k * 5 + i % k * 7) % n);
}

/* Queries and keys of few different values: most scores are ties, many of them zero. */
static void fill_index_ties(op_rig *rig) {
    float *q = rig->in[rig->op->in[0]];
    for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, 0); i++) q[i] = (float)(int)(op_random(rig) * 2);
    for (int s = 0; s < rig->n_seqs; s++)
        for (int64_t i = 0; i < rig->state[s].n_blocks * op_block_floats(rig->c); i++) {
            rig->state[s].kv[i] = (float)(int)(op_random(rig) * 2);
            memcpy(rig->state[s].kv_bytes + i * 4, &rig->state[s].kv[i], 4);
        }
}

/* Some keys are no numbers: they are picked last. */
static void fill_index_nan(op_rig *rig) {
    for (int s = 0; s < rig->n_seqs; s++)
        for (int64_t i = 0; i < rig->state[s].n_blocks * op_block_floats(rig->c); i += 1 + i % 29) {
            rig->state[s].kv[i] = i % 2 ? NAN : -INFINITY;
            memcpy(rig->state[s].kv_bytes + i * 4, &rig->state[s].kv[i], 4);
        }
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

#define ONE                                                                                                            \
    {                                                                                                                  \
        { 1, 0 }                                                                                                       \
    }
#define FEW                                                                                                            \
    {                                                                                                                  \
        {3, 0}, {1, 9}, {                                                                                              \
            5, 2                                                                                                       \
        }                                                                                                              \
    } /* sequences that begin, go on by one token, go on by a chunk */
#define MANY                                                                                                           \
    {                                                                                                                  \
        { 17, 0 }                                                                                                      \
    } /* more rows than a tile */
#define LATE                                                                                                           \
    {                                                                                                                  \
        {3, 4000}, {                                                                                                   \
            2, 0                                                                                                       \
        }                                                                                                              \
    }
#define ROPE(h, d, o, n, il, s)                                                                                        \
    {                                                                                                                  \
        .rope = {.n_heads = h, .head_dim = d, .offset = o, .n_rot = n, .interleaved = il, .scale = s }                 \
    }
#define ATTN(h, kv, d)                                                                                                 \
    {                                                                                                                  \
        .attn = {.n_heads = h, .n_kv_heads = kv, .head_dim = d, .scale = 0.35f }                                       \
    }
#define WINDOW(h, kv, d, w)                                                                                            \
    {                                                                                                                  \
        .attn = {.n_heads = h, .n_kv_heads = kv, .head_dim = d, .scale = 0.35f, .window = w }                          \
    }
#define CHUNK(h, kv, d, w)                                                                                             \
    {                                                                                                                  \
        .attn = {.n_heads = h, .n_kv_heads = kv, .head_dim = d, .scale = 0.35f, .window = w, .chunked = true }         \
    }
#define VALUES(h, kv, d, v, w)                                                                                         \
    {                                                                                                                  \
        .attn = {.n_heads = h, .n_kv_heads = kv, .head_dim = d, .v_dim = v, .scale = 0.35f, .window = w }              \
    }
#define PICKED(h, kv, d, l, n, b)                                                                                      \
    {                                                                                                                  \
        .attn = {                                                                                                      \
            .n_heads = h,                                                                                              \
            .n_kv_heads = kv,                                                                                          \
            .head_dim = d,                                                                                             \
            .scale = 0.35f,                                                                                            \
            .n_lists = l,                                                                                              \
            .n_picks = n,                                                                                              \
            .block = b                                                                                                 \
        }                                                                                                              \
    }
#define INDEX(h, d, a, k, b, l)                                                                                        \
    {                                                                                                                  \
        .index = {.n_heads = h, .dim = d, .at = a, .top_k = k, .block = b, .local = l }                                \
    }
#define MLA_PICKED(h, n, no, ro, v, k)                                                                                 \
    {                                                                                                                  \
        .mla = {                                                                                                       \
            .n_heads = h,                                                                                              \
            .n_latent = n,                                                                                             \
            .n_nope = no,                                                                                              \
            .n_rope = ro,                                                                                              \
            .v_dim = v,                                                                                                \
            .scale = 0.2f,                                                                                             \
            .form = MF_MLA_ABSORBED,                                                                                   \
            .n_picks = k                                                                                               \
        }                                                                                                              \
    }
#define FAR(h, d, w, s, k)                                                                                             \
    {                                                                                                                  \
        .far = {.n_heads = h, .dim = d, .window = w, .step = s, .n_picks = k, .scale = 0.35f }                         \
    }
#define MAP(k, x, y)                                                                                                   \
    {                                                                                                                  \
        .map = {.kind = MF_MAP_##k, .a = x, .b = y }                                                                   \
    }
#define MLA(h, n, no, ro, v, f)                                                                                        \
    {                                                                                                                  \
        .mla = {.n_heads = h, .n_latent = n, .n_nope = no, .n_rope = ro, .v_dim = v, .scale = 0.2f, .form = f }        \
    }
#define DELTA(nk, kd, nv, vd)                                                                                          \
    {                                                                                                                  \
        .delta = {.n_k_heads = nk, .k_dim = kd, .n_v_heads = nv, .v_dim = vd }                                         \
    }
#define ROUTE(k, n, top, ng, tg, re, s)                                                                                \
    {                                                                                                                  \
        .route = {                                                                                                     \
            .kind = k,                                                                                                 \
            .n_experts = n,                                                                                            \
            .top_k = top,                                                                                              \
            .n_groups = ng,                                                                                            \
            .top_groups = tg,                                                                                          \
            .renorm = re,                                                                                              \
            .scale = s                                                                                                 \
        }                                                                                                              \
    }
#define MOE(top, inner)                                                                                                \
    {                                                                                                                  \
        .moe = {.top_k = top, .n_inner = inner }                                                                       \
    }
#define MOE_SQUARES(top, inner)                                                                                        \
    {                                                                                                                  \
        .moe = {.top_k = top, .n_inner = inner, .glu = {.kind = MF_GLU_RELU2} }                                        \
    }
#define MOE_CLAMPED(top, inner)                                                                                        \
    {                                                                                                                  \
        .moe = {.top_k = top, .n_inner = inner, .glu = {MF_GLU_CLAMPED, 1.702f, 1.5f} }                                \
    }
#define CLAMPED(l)                                                                                                     \
    {                                                                                                                  \
        .glu = { MF_GLU_CLAMPED, 1.702f, l }                                                                           \
    }
#define NORM(e, n)                                                                                                     \
    {                                                                                                                  \
        .norm = {.eps = e, .part = n }                                                                                 \
    }
#define MXFP4 .w_type = MF_TYPE_MXFP4, .bits = 4, .group = MF_MXFP4_GROUP
#define F8(rows, gr) .w_type = MF_TYPE_F8_BLOCK, .bits = 8, .block_rows = rows, .group = gr
#define AFFINE(b, gr) .w_type = MF_TYPE_AFFINE, .bits = b, .group = gr

const op_case OP_CASES[] = {
    {"embed f32", 0, build_embed, expect_embed, .seqs = FEW, .cols = 24, .rows = 11},
    {"embed bf16", 0, build_embed, expect_embed, .seqs = FEW, .cols = 24, .rows = 11, .w_type = MF_TYPE_BF16},
    {"embed f16", 0, build_embed, expect_embed, .seqs = FEW, .cols = 29, .rows = 11, .w_type = MF_TYPE_F16},
    {"embed 2 bits", 0, build_embed, expect_embed, .seqs = FEW, .cols = 96, .rows = 11, AFFINE(2, 32)},
    {"embed 3 bits", 0, build_embed, expect_embed, .seqs = FEW, .cols = 128, .rows = 11, AFFINE(3, 128)},
    {"embed 4 bits", 0, build_embed, expect_embed, .seqs = FEW, .cols = 128, .rows = 11, AFFINE(4, 64)},
    {"embed 4 bits, f32", 0, build_embed, expect_embed, .seqs = FEW, .cols = 128, .rows = 11, AFFINE(4, 64),
     .scales = OP_SCALES_F32},
    {"embed 4 bits, f16", 0, build_embed, expect_embed, .seqs = FEW, .cols = 128, .rows = 11, AFFINE(4, 32),
     .scales = OP_SCALES_F16},
    {"embed 5 bits", 0, build_embed, expect_embed, .seqs = FEW, .cols = 128, .rows = 11, AFFINE(5, 32)},
    {"embed 6 bits", 0, build_embed, expect_embed, .seqs = FEW, .cols = 128, .rows = 11, AFFINE(6, 64)},
    {"embed 8 bits, centred", 0, build_embed, expect_embed, .seqs = FEW, .cols = 128, .rows = 11, AFFINE(8, 64),
     .centred = true},
    {"embed many groups", 0, build_embed, expect_embed, .seqs = ONE, .cols = 2144, .rows = 3, AFFINE(4, 32)},
    {"embed mxfp4", 0, build_embed, expect_embed, .seqs = FEW, .cols = 96, .rows = 11, MXFP4},
    {"embed fp8", 0, build_embed, expect_embed, .seqs = FEW, .cols = 96, .rows = 11, F8(4, 32)},
    {"embed fp8 cut off", 0, build_embed, expect_embed, .seqs = FEW, .cols = 75, .rows = 11, F8(4, 32),
     .scales = OP_SCALES_F32},

    {"rms_norm row", 2e-6, build_norm, expect_rms_norm, .seqs = FEW, .cols = 96, .p = NORM(1e-6f, 0)},
    {"rms_norm zero row", 2e-6, build_norm, expect_rms_norm, fill_zeros, .seqs = ONE, .cols = 8, .p = NORM(1e-6f, 0)},
    {"rms_norm heads", 2e-6, build_part_norm, expect_rms_norm, .seqs = FEW, .cols = 96, .p = NORM(1e-5f, 32)},

    {"layer_norm", 4e-6, build_layer_norm, expect_layer_norm, .seqs = FEW, .cols = 40, .p = NORM(1e-6f, 0)},
    {"layer_norm tiny", 4e-6, build_layer_norm, expect_layer_norm, fill_tiny, .seqs = FEW, .cols = 40,
     .p = NORM(1e-6f, 0)},

    {"matmul f32", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 96, .rows = 13},
    {"matmul f32 bias", 2e-6, build_matmul, expect_matmul, .seqs = MANY, .cols = 96, .rows = 13, .option = true},
    {"matmul one row out", 2e-6, build_matmul, expect_matmul, .seqs = MANY, .cols = 40, .rows = 1},
    {"matmul bf16", 2e-6, build_matmul, expect_matmul, .seqs = MANY, .cols = 96, .rows = 13, .w_type = MF_TYPE_BF16},
    {"matmul f16", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 96, .rows = 13, .w_type = MF_TYPE_F16},
    {"matmul 2 bits", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 128, .rows = 13, AFFINE(2, 64)},
    {"matmul 3 bits", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 128, .rows = 13, AFFINE(3, 32)},
    {"matmul 4 bits", 2e-6, build_matmul, expect_matmul, .seqs = MANY, .cols = 256, .rows = 13, AFFINE(4, 64)},
    {"matmul 4 bits one", 2e-6, build_matmul, expect_matmul, .seqs = ONE, .cols = 256, .rows = 13, AFFINE(4, 128)},
    {"matmul mxfp4", 2e-6, build_matmul, expect_matmul, .seqs = MANY, .cols = 96, .rows = 13, MXFP4},
    {"matmul mxfp4 one", 2e-6, build_matmul, expect_matmul, .seqs = ONE, .cols = 160, .rows = 13, MXFP4},
    {"matmul fp8", 2e-6, build_matmul, expect_matmul, .seqs = MANY, .cols = 256, .rows = 13, F8(8, 128)},
    {"matmul fp8 cut off", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 75, .rows = 13, F8(5, 24)},
    {"matmul fp8 f32 scales", 2e-6, build_matmul, expect_matmul, .seqs = ONE, .cols = 128, .rows = 13, F8(128, 128),
     .scales = OP_SCALES_F32},
    {"matmul f16 scales", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 192, .rows = 13, AFFINE(4, 64),
     .scales = OP_SCALES_F16},
    {"matmul f32 scales", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 192, .rows = 13, AFFINE(4, 64),
     .scales = OP_SCALES_F32},
    {"matmul centred", 2e-6, build_matmul, expect_matmul, .seqs = MANY, .cols = 128, .rows = 13, AFFINE(4, 32),
     .centred = true},
    {"matmul centred 8 bits", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 128, .rows = 13, AFFINE(8, 32),
     .centred = true, .scales = OP_SCALES_F16},
    {"matmul 5 bits", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 128, .rows = 13, AFFINE(5, 64)},
    {"matmul 6 bits", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 128, .rows = 13, AFFINE(6, 32)},
    {"matmul 8 bits", 2e-6, build_matmul, expect_matmul, .seqs = FEW, .cols = 256, .rows = 13, AFFINE(8, 64)},

    {"split_q_gate", 0, build_split, expect_split_q_gate, .seqs = FEW, .p = {.split = {3, 4}}},

    {"rope halves", 1e-6, build_rope, expect_rope, .seqs = FEW, .p = ROPE(3, 16, 0, 8, false, 1)},
    {"rope late", 1e-6, build_rope, expect_rope, .seqs = LATE, .p = ROPE(2, 16, 0, 16, false, 1)},
    {"rope interleaved", 1e-6, build_rope, expect_rope, .seqs = LATE, .p = ROPE(2, 16, 0, 8, true, 1)},
    {"rope back", 1e-6, build_rope, expect_rope, .seqs = LATE,
     .p = {.rope =
               {.n_heads = 2, .head_dim = 16, .offset = 8, .n_rot = 8, .interleaved = true, .back = true, .scale = 1}}},
    {"rope behind offset", 1e-6, build_rope, expect_rope, .seqs = FEW, .p = ROPE(2, 16, 8, 8, true, 1.25f)},

    {"kv_append", 0, build_kv_append, expect_kv_append, .seqs = FEW, .k_cols = 6, .v_cols = 4},
    {"kv_append across blocks", 0, build_kv_append, expect_kv_append, .seqs = {{9, 3}, {1, 4}, {1, 7}}, .k_cols = 6,
     .v_cols = 6},

    {"kv_append f16", 0, build_kv_append, expect_kv_append, .seqs = FEW, .k_cols = 37, .v_cols = 4,
     .kv_type = MF_TYPE_F16},
    {"kv_append f16 of extremes", 0, build_kv_append, expect_kv_append, fill_huge, .seqs = FEW, .k_cols = 20,
     .v_cols = 20, .kv_type = MF_TYPE_F16},
    {"kv_append int8", 0, build_kv_append, expect_kv_append, .seqs = {{9, 3}, {1, 4}, {1, 7}}, .k_cols = 150,
     .v_cols = 7, .kv_type = MF_TYPE_I8},
    {"kv_append int8 of extremes", 0, build_kv_append, expect_kv_append, fill_huge, .seqs = FEW, .k_cols = 128,
     .v_cols = 70, .kv_type = MF_TYPE_I8},

    {"attention", 2e-6, build_attention, expect_attention, .seqs = FEW, .p = ATTN(4, 4, 8), .k_cols = 32, .v_cols = 32},
    {"attention grouped", 2e-6, build_attention, expect_attention, .seqs = FEW, .p = ATTN(6, 2, 8), .k_cols = 16,
     .v_cols = 16},
    {"attention across blocks", 2e-6, build_attention, expect_attention, .seqs = {{7, 2}, {1, 11}, {1, 12}},
     .p = ATTN(4, 2, 8), .k_cols = 16, .v_cols = 16},
    {"attention window", 2e-6, build_attention, expect_attention, .seqs = FEW, .p = WINDOW(4, 2, 8, 3), .k_cols = 16,
     .v_cols = 16},
    {"attention window of one", 2e-6, build_attention, expect_attention, .seqs = FEW, .p = WINDOW(2, 2, 8, 1),
     .k_cols = 16, .v_cols = 16},
    {"attention sinks", 2e-6, build_attention, expect_attention, .seqs = FEW, .p = ATTN(4, 2, 8), .k_cols = 16,
     .v_cols = 16, .option = true},
    {"attention window, sinks", 2e-6, build_attention, expect_attention, .seqs = MANY, .p = WINDOW(4, 2, 8, 5),
     .k_cols = 16, .v_cols = 16, .option = true},
    {"attention chunk", 2e-6, build_attention, expect_attention, .seqs = {{7, 2}, {1, 11}, {1, 12}},
     .p = CHUNK(4, 2, 8, 4), .k_cols = 16, .v_cols = 16},
    {"attention chunk of one", 2e-6, build_attention, expect_attention, .seqs = FEW, .p = CHUNK(2, 2, 8, 1),
     .k_cols = 16, .v_cols = 16},
    {"attention chunks f16", 2e-6, build_attention, expect_attention, .seqs = LATE, .p = CHUNK(4, 1, 8, 7), .k_cols = 8,
     .v_cols = 8, .kv_type = MF_TYPE_F16},
    {"attention f16", 2e-6, build_attention, expect_attention, .seqs = {{7, 2}, {1, 11}, {1, 12}}, .p = ATTN(6, 3, 13),
     .k_cols = 39, .v_cols = 39, .kv_type = MF_TYPE_F16},
    {"attention int8", 2e-6, build_attention, expect_attention, .seqs = {{7, 2}, {1, 11}, {1, 12}}, .p = ATTN(6, 3, 40),
     .k_cols = 120, .v_cols = 120, .kv_type = MF_TYPE_I8},
    {"attention narrow values", 2e-6, build_attention, expect_attention, .seqs = FEW, .p = VALUES(6, 2, 12, 8, 0),
     .k_cols = 24, .v_cols = 16},
    {"attention wide values f16", 2e-6, build_attention, expect_attention, .seqs = {{7, 2}, {1, 11}, {1, 12}},
     .p = VALUES(4, 2, 9, 13, 5), .k_cols = 18, .v_cols = 26, .option = true, .kv_type = MF_TYPE_F16},
    {"attention narrow values int8", 2e-6, build_attention, expect_attention, .seqs = {{7, 2}, {1, 11}, {1, 12}},
     .p = VALUES(4, 2, 48, 32, 0), .k_cols = 96, .v_cols = 64, .kv_type = MF_TYPE_I8},
    {"attention steep", 2e-5, build_attention, expect_attention, fill_large, .seqs = MANY, .p = ATTN(2, 1, 8),
     .k_cols = 8, .v_cols = 8},

    {"attention picked", 2e-6, build_attention_picked, expect_attention, fill_blocks,
     .seqs = {{3, 0}, {1, 21}, {5, 12}}, .rows = 16, .p = PICKED(4, 2, 8, 2, 4, 2), .k_cols = 16, .v_cols = 21},
    {"attention picked, lists share a kv head", 2e-6, build_attention_picked, expect_attention, fill_blocks,
     .seqs = {{3, 0}, {1, 21}, {5, 12}}, .rows = 16, .p = PICKED(8, 2, 8, 4, 4, 2), .k_cols = 16, .v_cols = 21},
    {"attention picked, one list", 2e-6, build_attention_picked, expect_attention, fill_blocks,
     .seqs = {{3, 0}, {1, 70}, {17, 12}}, .rows = 80, .p = PICKED(6, 2, 8, 1, 40, 1), .k_cols = 16, .v_cols = 16,
     .kv_type = MF_TYPE_F16},
    {"attention picked int8", 2e-6, build_attention_picked, expect_attention, fill_blocks,
     .seqs = {{3, 0}, {1, 70}, {17, 12}}, .rows = 80, .p = PICKED(4, 4, 16, 2, 3, 5), .k_cols = 64, .v_cols = 80,
     .kv_type = MF_TYPE_I8},

    {"index together", 0, build_index, expect_index, .seqs = {{3, 0}, {1, 21}, {20, 2}}, .option = true,
     .p = INDEX(3, 10, 4, 3, 1, 0), .k_cols = 4, .v_cols = 14},
    {"index apart", 0, build_index, expect_index, .seqs = {{3, 0}, {1, 21}, {20, 2}}, .p = INDEX(2, 16, 6, 2, 4, 1),
     .k_cols = 4, .v_cols = 22},
    {"index ties", 0, build_index, expect_index, fill_index_ties, .seqs = {{3, 0}, {1, 61}, {20, 30}}, .option = true,
     .p = INDEX(2, 3, 4, 7, 1, 0), .k_cols = 4, .v_cols = 7},
    {"index local blocks", 0, build_index, expect_index, .seqs = {{3, 0}, {1, 61}, {20, 30}},
     .p = INDEX(2, 16, 0, 3, 3, 2), .k_cols = 4, .v_cols = 16, .kv_type = MF_TYPE_F16},
    {"index in rounds", 0, build_index, expect_index, .seqs = {{2, 2030}}, .p = INDEX(2, 16, 0, 2, 600, 1), .k_cols = 4,
     .v_cols = 16},
    {"index many heads", 0, build_index, expect_index, .seqs = {{3, 0}, {1, 70}, {20, 30}}, .option = true,
     .p = INDEX(11, 20, 4, 9, 1, 0), .k_cols = 4, .v_cols = 24, .kv_type = MF_TYPE_F16},
    {"index many heads apart", 0, build_index, expect_index, .seqs = {{1, 70}, {20, 30}}, .p = INDEX(9, 33, 0, 2, 5, 1),
     .k_cols = 4, .v_cols = 33},
    {"index full lists", 0, build_index, expect_index, .seqs = {{2, 4200}}, .option = true,
     .p = INDEX(2, 4, 4, 700, 1, 0), .k_cols = 4, .v_cols = 8},
    {"index full lists, ties", 0, build_index, expect_index, fill_index_ties, .seqs = {{2, 4200}}, .option = true,
     .p = INDEX(2, 3, 4, 700, 1, 3), .k_cols = 4, .v_cols = 7},
    {"index no numbers", 0, build_index, expect_index, fill_index_nan, .seqs = {{3, 0}, {1, 61}, {20, 30}},
     .p = INDEX(2, 3, 4, 7, 1, 0), .k_cols = 4, .v_cols = 7},
    {"index of compressed rows", 0, build_index, expect_index, .seqs = {{3, 0}, {1, 61}, {20, 30}}, .option = true,
     .p = {.index = {.n_heads = 3, .dim = 10, .at = 6, .top_k = 4, .block = 1, .step = 4}}, .k_cols = 4, .v_cols = 16,
     .v_step = 4},
    {"compress", 2e-6, build_compress, expect_compress, .seqs = {{3, 0}, {1, 9}, {5, 2}, {9, 3}},
     .p = {.compress = {.step = 4, .n_parts = 1, .width = {12}, .n_rot = 4, .eps = 1e-6f}}, .k_cols = 3, .v_cols = 12,
     .v_step = 4},
    {"compress overlap", 2e-6, build_compress, expect_compress, .seqs = {{3, 0}, {1, 9}, {5, 2}, {19, 3}},
     .p = {.compress = {.step = 4, .overlap = true, .n_parts = 2, .width = {12, 8}, .n_rot = 4, .eps = 1e-6f}},
     .k_cols = 3, .v_cols = 20, .v_step = 4},
    {"far attention", 2e-6, build_far_attention, expect_far_attention, .seqs = {{3, 0}, {1, 61}, {20, 30}},
     .p = FAR(4, 8, 5, 4, 0), .k_cols = 8, .v_cols = 8, .v_step = 4},
    {"far attention, newest rows alone", 2e-6, build_far_attention, expect_far_attention,
     .seqs = {{3, 0}, {1, 61}, {20, 30}}, .p = FAR(4, 8, 5, 0, 0), .k_cols = 8, .v_cols = 4},
    {"far attention picked f16", 2e-6, build_far_attention, expect_far_attention, fill_far,
     .seqs = {{3, 0}, {1, 61}, {20, 30}}, .rows = 32, .option = true, .p = FAR(6, 12, 7, 4, 5), .k_cols = 12,
     .v_cols = 18, .v_step = 4, .kv_type = MF_TYPE_F16},
    {"far attention int8", 2e-6, build_far_attention, expect_far_attention, .seqs = {{3, 0}, {1, 61}, {20, 30}},
     .p = FAR(3, 64, 7, 2, 0), .k_cols = 64, .v_cols = 70, .v_step = 2, .kv_type = MF_TYPE_I8},
    {"streams_read", 4e-6, build_streams_read, expect_streams_read, .seqs = MANY, .cols = 24,
     .p = {.streams = {.n = 4, .n_steps = 5, .eps = 1e-6f, .hc_eps = 1e-3f}}},
    {"streams_read alone", 4e-6, build_streams_read, expect_streams_read, .seqs = FEW, .cols = 24,
     .p = {.streams = {.n = 3, .eps = 1e-6f, .hc_eps = 1e-6f}}},
    {"streams_write", 2e-6, build_streams_write, expect_streams_write, .seqs = FEW, .cols = 24,
     .p = {.streams = {.n = 4}}},
    {"copy", 0, build_copy, expect_join, .seqs = FEW, .cols = 9},
    {"join", 0, build_join, expect_join, .seqs = FEW, .cols = 9, .rows = 5},

    {"split", 0, build_split_at, expect_split, .seqs = FEW, .cols = 13, .p = {.cut = {9}}},
    {"mla absorbed", 2e-6, build_mla, expect_mla_attention, .seqs = FEW, .p = MLA(3, 16, 8, 4, 6, MF_MLA_ABSORBED),
     .k_cols = 16, .v_cols = 4},
    {"mla unabsorbed", 2e-6, build_mla, expect_mla_attention, .seqs = FEW, .p = MLA(3, 16, 8, 4, 6, MF_MLA_UNABSORBED),
     .k_cols = 16, .v_cols = 4},
    {"mla two matrices", 2e-6, build_mla, expect_mla_attention, .seqs = FEW, .option = true,
     .p = MLA(2, 16, 8, 4, 8, MF_MLA_ABSORBED), .k_cols = 16, .v_cols = 4},
    {"mla 4 bits", 2e-6, build_mla, expect_mla_attention, .seqs = {{7, 2}, {1, 70}, {1, 12}},
     .p = MLA(2, 64, 8, 4, 8, MF_MLA_UNABSORBED), .k_cols = 64, .v_cols = 4, AFFINE(4, 64)},
    {"mla by cost", 4e-6, build_mla, expect_mla_attention, .seqs = {{40, 0}, {1, 70}, {9, 3}}, .cut_matters = true,
     .p = MLA(2, 32, 8, 4, 8, MF_MLA_BY_COST), .k_cols = 32, .v_cols = 4},

    {"mla picked", 2e-6, build_mla_picked, expect_mla_attention, fill_rows, .seqs = {{3, 0}, {1, 70}, {20, 12}},
     .rows = 80, .p = MLA_PICKED(3, 16, 8, 4, 6, 12), .k_cols = 16, .v_cols = 9},
    {"mla picked int8", 2e-6, build_mla_picked, expect_mla_attention, fill_rows, .seqs = {{3, 0}, {1, 70}, {20, 12}},
     .rows = 80, .p = MLA_PICKED(2, 64, 8, 4, 8, 40), .k_cols = 64, .v_cols = 68, .kv_type = MF_TYPE_I8},
    {"mla absorbed f16", 2e-6, build_mla, expect_mla_attention, .seqs = FEW, .p = MLA(3, 21, 8, 5, 6, MF_MLA_ABSORBED),
     .k_cols = 21, .v_cols = 5, .kv_type = MF_TYPE_F16},
    {"mla unabsorbed int8", 2e-6, build_mla, expect_mla_attention, .seqs = FEW,
     .p = MLA(3, 80, 8, 4, 6, MF_MLA_UNABSORBED), .k_cols = 80, .v_cols = 4, .kv_type = MF_TYPE_I8},

    {"sigmoid_gate", 1e-6, build_sigmoid_gate, expect_sigmoid_gate, .seqs = FEW, .cols = 24},
    {"sigmoid_gate per head", 1e-6, build_sigmoid_gate, expect_sigmoid_gate, .seqs = MANY, .cols = 52, .rows = 4},
    {"sigmoid_gate extreme", 1e-6, build_sigmoid_gate, expect_sigmoid_gate, fill_extremes, .seqs = FEW, .cols = 24},

    {"conv1d", 2e-6, build_conv1d, expect_conv1d, .seqs = FEW, .cols = 20, .p = {.conv = {20, 4, false, 0}}},
    {"conv1d plain", 2e-6, build_conv1d, expect_conv1d, .seqs = FEW, .cols = 20, .p = {.conv = {20, 3, true, 0}}},
    {"conv1d further on", 2e-6, build_conv1d, expect_conv1d, .seqs = FEW, .cols = 20,
     .p = {.conv = {.n_channels = 20, .n_kernel = 4, .at = 33}}},
    {"conv1d bias", 2e-6, build_conv1d, expect_conv1d, .seqs = FEW, .cols = 20, .option = true,
     .p = {.conv = {20, 4, false, 0}}},
    {"conv1d kernel 2", 2e-6, build_conv1d, expect_conv1d, .seqs = FEW, .cols = 20, .p = {.conv = {20, 2, false, 0}}},
    {"conv1d kernel 8", 2e-6, build_conv1d, expect_conv1d, .seqs = {{3, 0}, {9, 5}, {1, 1}}, .cols = 5,
     .p = {.conv = {5, 8, false, 0}}},

    {"qk_norm", 2e-6, build_qk_norm, expect_qk_norm, .seqs = FEW, .p = DELTA(2, 16, 4, 8)},
    {"qk_norm tiny", 2e-6, build_qk_norm, expect_qk_norm, fill_tiny, .seqs = ONE, .p = DELTA(2, 16, 4, 8)},
    {"qk_norm zeros", 2e-6, build_qk_norm, expect_qk_norm, fill_zeros, .seqs = ONE, .p = DELTA(2, 16, 4, 8)},
    {"decay_beta", 2e-6, build_decay_beta, expect_decay_beta, .seqs = FEW, .cols = 4},
    {"decay_beta extreme", 2e-6, build_decay_beta, expect_decay_beta, fill_extremes, .seqs = FEW, .cols = 4},
    {"decay_beta slow", 2e-6, build_decay_beta, expect_decay_beta, fill_slow_extremes, .seqs = FEW, .cols = 4},
    {"decay_beta channels", 2e-6, build_decay_beta, expect_decay_beta, .seqs = FEW, .cols = 40, .rows = 2},
    {"decay_beta channels extreme", 2e-6, build_decay_beta, expect_decay_beta, fill_extremes, .seqs = FEW, .cols = 57,
     .rows = 3},
    {"decay_beta channels slow", 2e-6, build_decay_beta, expect_decay_beta, fill_slow_extremes, .seqs = FEW, .cols = 57,
     .rows = 3},

    {"delta_net", 4e-6, build_delta_net, expect_delta_net, fill_gates, .seqs = FEW, .p = DELTA(2, 8, 2, 8)},
    {"delta_net shared keys", 4e-6, build_delta_net, expect_delta_net, fill_gates, .seqs = FEW, .p = DELTA(2, 8, 6, 4)},
    {"delta_net wide values", 4e-6, build_delta_net, expect_delta_net, fill_gates, .seqs = {{12, 0}},
     .p = DELTA(1, 4, 2, 16)},
    {"delta_net channels", 4e-6, build_delta_net, expect_delta_net, fill_gates, .seqs = FEW,
     .p = {.delta = {2, 16, 4, 20, true}}},
    {"delta_net channels, narrow", 4e-6, build_delta_net, expect_delta_net, fill_gates, .seqs = FEW,
     .p = {.delta = {2, 7, 2, 5, true}}},
    {"ssm", 4e-6, build_ssm, expect_ssm, .seqs = FEW, .p = {.ssm = {4, 8, 2, 16}}},
    {"ssm odd", 4e-6, build_ssm, expect_ssm, .seqs = FEW, .p = {.ssm = {6, 5, 3, 19}}},
    {"gated_norm sigmoid", 2e-6, build_gated_norm, expect_gated_norm, .seqs = FEW, .cols = 32,
     .p = {.norm = {.eps = 1e-6f, .part = 8, .sigmoid = true}}},
    {"gated_norm", 2e-6, build_gated_norm, expect_gated_norm, .seqs = FEW, .cols = 32, .p = NORM(1e-6f, 8)},

    {"rms_norm parts apart", 2e-6, build_parts_norm, expect_rms_norm, .seqs = FEW, .cols = 40,
     .p = {.norm = {.eps = 1e-6f, .part = 10, .apart = true}}},
    {"add", 1e-7, build_add, expect_add, .seqs = FEW, .cols = 24},
    {"map scale", 1e-6, build_map, expect_map, .seqs = FEW, .cols = 24, .p = MAP(SCALE, 0.707f, 0)},
    {"map scale, weight", 1e-6, build_map, expect_map, .seqs = FEW, .cols = 24, .option = true, .p = MAP(SCALE, 1, 0)},
    {"map clamp", 0, build_map, expect_map, .seqs = FEW, .cols = 24, .p = MAP(CLAMP, 0.4f, 0)},
    {"map square", 1e-6, build_map, expect_map, .seqs = FEW, .cols = 29, .p = MAP(RELU2, 0, 0)},
    {"map cap", 1e-6, build_map, expect_map, fill_large, .seqs = MANY, .cols = 500, .p = MAP(CAP, 30, 0)},
    {"map position", 1e-6, build_map, expect_map, .seqs = LATE, .cols = 24, .p = MAP(POSITION, 0.1f, 32)},
    {"map position, few", 1e-6, build_map, expect_map, .seqs = FEW, .cols = 24, .p = MAP(POSITION, 0.5f, 3)},
    {"map position, from", 1e-6, build_map, expect_map, .seqs = FEW, .cols = 24,
     .p = {.map = {.kind = MF_MAP_POSITION, .a = 0.5f, .b = 3, .c = 1}}},
    {"glu", 1e-6, build_glu, expect_glu, .seqs = FEW, .cols = 24},
    {"glu clamped", 1e-6, build_glu, expect_glu, .seqs = FEW, .cols = 24, .p = CLAMPED(0.5f)},
    {"glu clamped extreme", 1e-6, build_glu, expect_glu, fill_extremes, .seqs = FEW, .cols = 24, .p = CLAMPED(7)},
    {"glu limited", 1e-6, build_glu, expect_glu, .seqs = FEW, .cols = 24, .p = {.glu = {MF_GLU_LIMITED, 0, 0.5f}}},
    {"glu cut", 1e-6, build_glu, expect_glu, .seqs = FEW, .cols = 24, .p = {.glu = {MF_GLU_CUT, 0, 0.2f}}},
    {"glu cut extreme", 1e-6, build_glu, expect_glu, fill_extremes, .seqs = FEW, .cols = 24,
     .p = {.glu = {MF_GLU_CUT, 0, 7}}},
    {"glu product", 1e-6, build_glu, expect_glu, .seqs = FEW, .cols = 24, .p = {.glu = {MF_GLU_PRODUCT, 0, 0}}},
    {"glu gelu", 1e-6, build_glu, expect_glu, .seqs = FEW, .cols = 24, .p = {.glu = {MF_GLU_GELU, 0, 0}}},
    {"glu gelu extreme", 1e-6, build_glu, expect_glu, fill_extremes, .seqs = FEW, .cols = 24,
     .p = {.glu = {MF_GLU_GELU, 0, 0}}},
    {"glu extreme", 1e-6, build_glu, expect_glu, fill_extremes, .seqs = FEW, .cols = 24},

    {"route softmax", 2e-6, build_route, expect_route, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 24, 5, 1, 1, true, 1)},
    {"route softmax as is", 2e-6, build_route, expect_route, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 24, 5, 1, 1, false, 2.5f)},
    {"route softmax ties", 2e-6, build_route, expect_route, fill_ties, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 24, 8, 1, 1, true, 1)},
    {"route softmax large", 2e-6, build_route, expect_route, fill_large, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 24, 8, 1, 1, true, 1)},
    {"route softmax all", 2e-6, build_route, expect_route, .seqs = FEW,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 4, 4, 1, 1, true, 1)},
    {"route softmax bias", 2e-6, build_route, expect_route, .seqs = MANY, .option = true,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 24, 5, 1, 1, true, 1)},
    {"route softmax bias as is", 2e-6, build_route, expect_route, .seqs = MANY, .option = true,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 24, 5, 1, 1, false, 6)},
    {"route softmax groups", 2e-6, build_route, expect_route, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 24, 6, 4, 2, true, 1)},
    {"route softmax factors", 2e-6, build_route, expect_route, .seqs = MANY, .rows = 1,
     .p = ROUTE(MF_ROUTE_SOFTMAX, 24, 6, 1, 1, true, 1)},
    {"route sqrt softplus", 2e-6, build_route, expect_route, .seqs = MANY, .option = true,
     .p = ROUTE(MF_ROUTE_SQRT_SOFTPLUS, 24, 5, 1, 1, true, 1.5f)},
    {"route given", 2e-6, build_route_given, expect_route, fill_given, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_SQRT_SOFTPLUS, 24, 3, 1, 1, true, 1.5f)},
    {"route top-k softmax", 2e-6, build_route, expect_route, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_TOPK_SOFTMAX, 24, 4, 1, 1, false, 1)},
    {"route top-k sigmoid", 2e-6, build_route, expect_route, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_TOPK_SIGMOID, 24, 1, 1, 1, false, 1)},
    {"route top-k sigmoid large", 2e-6, build_route, expect_route, fill_large, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_TOPK_SIGMOID, 24, 3, 1, 1, false, 1)},
    {"identity", 1e-6, build_identity, expect_identity, .seqs = MANY, .cols = 70, .rows = 9,
     .p = {.identity = {.n_experts = 5, .top_k = 3}}},
    {"identity alone", 1e-6, build_identity, expect_identity, .seqs = MANY, .cols = 16, .rows = 6,
     .p = {.identity = {.n_experts = 1, .top_k = 4}}},
    {"weigh", 1e-6, build_weigh, expect_weigh, .seqs = MANY, .cols = 70},
    {"route sigmoid", 2e-6, build_route, expect_route, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_SIGMOID, 24, 5, 1, 1, true, 2.5f)},
    {"route sigmoid bias", 2e-6, build_route, expect_route, .seqs = MANY, .option = true,
     .p = ROUTE(MF_ROUTE_SIGMOID, 24, 5, 1, 1, true, 2.5f)},
    {"route sigmoid groups", 2e-6, build_route, expect_route, .seqs = MANY, .option = true,
     .p = ROUTE(MF_ROUTE_SIGMOID, 24, 6, 4, 2, true, 2.5f)},
    {"route sigmoid group ties", 2e-6, build_route, expect_route, fill_ties, .seqs = MANY,
     .p = ROUTE(MF_ROUTE_SIGMOID, 24, 6, 4, 2, false, 1)},

    {"experts f32", 4e-6, build_experts, expect_experts, .seqs = FEW, .cols = 32, .p = MOE(3, 16), .n_experts = 8},
    {"experts bf16", 4e-6, build_experts, expect_experts, .seqs = MANY, .cols = 32, .p = MOE(2, 48), .n_experts = 3,
     .w_type = MF_TYPE_BF16},
    {"experts 4 bits", 4e-6, build_experts, expect_experts, .seqs = MANY, .cols = 128, .p = MOE(4, 64), .n_experts = 6,
     AFFINE(4, 64)},
    {"experts 8 bits", 4e-6, build_experts, expect_experts, .seqs = ONE, .cols = 64, .p = MOE(4, 32), .n_experts = 6,
     AFFINE(8, 32)},
    {"experts squares", 4e-6, build_experts, expect_experts, .seqs = MANY, .cols = 64, .p = MOE_SQUARES(3, 32),
     .n_experts = 5, AFFINE(4, 64)},
    {"experts squares f32", 4e-6, build_experts, expect_experts, .seqs = FEW, .cols = 40, .p = MOE_SQUARES(3, 19),
     .n_experts = 5},
    {"experts biases", 4e-6, build_experts, expect_experts, .seqs = MANY, .cols = 32, .p = MOE(3, 16), .n_experts = 5,
     .option = true},
    {"experts clamped", 4e-6, build_experts, expect_experts, .seqs = FEW, .cols = 32, .p = MOE_CLAMPED(3, 16),
     .n_experts = 5, .option = true},
    {"experts mxfp4", 4e-6, build_experts, expect_experts, .seqs = MANY, .cols = 64, .p = MOE_CLAMPED(2, 96),
     .n_experts = 4, .option = true, MXFP4},
    {"experts fp8", 4e-6, build_experts, expect_experts, .seqs = MANY, .cols = 64, .p = MOE(2, 40), .n_experts = 4,
     F8(16, 32)},
    {"experts some absent", 4e-6, build_experts, expect_experts, .seqs = FEW, .cols = 32, .p = MOE(3, 16),
     .n_experts = 8, .every_other = true},

    {"combine", 1e-6, build_combine, expect_combine, .seqs = FEW, .cols = 24, .p = MOE(3, 0)},
    {"combine shared", 1e-6, build_combine, expect_combine, .seqs = FEW, .cols = 24, .rows = 1, .p = MOE(3, 0)},
    {"combine alone", 1e-6, build_combine, expect_combine, .seqs = FEW, .cols = 24, .option = true, .p = MOE(3, 0)},
    {"combine gated shared", 1e-6, build_combine, expect_combine, .seqs = FEW, .cols = 24, .rows = 2, .p = MOE(3, 0)},
};

const int OP_N_CASES = (int)MF__COUNT(OP_CASES);
