/* qwen3_next: Qwen3-Next-80B-A3B, Qwen3-Coder-Next.
 *
 * The maths of qwen3_5_moe; checkpoints keep the inputs of DeltaNet in two matrices, with the rows of each key head
 * together, which the import takes apart. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t interval, shared;
    MF__TRY(mf__keys_attention(text, where, 256, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e4, 0.25, c, err));
    MF__TRY(mf__keys_delta(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    MF__TRY(mf__keys_sparse_step(text, where, c, err));
    MF__TRY(mf__json_get_int(text, where, "shared_expert_intermediate_size", 1, 1 << 20, &shared, err));
    MF__TRY(mf__json_opt_int(text, where, "full_attention_interval", 1, MF_MAX_LAYERS, 4, &interval, err));
    c->moe.n_shared_inner = (int32_t)shared;
    for (int32_t l = 0; l < c->n_layers; l++) c->mixer[l] = (l + 1) % interval ? MF_MIX_LINEAR : MF_MIX_FULL;
    return mf__keys_layer_types(text, where, c, err);
}

/* in_proj_qkvz: for every key head q | k | its value heads' v | their z. in_proj_ba: for every key head b | a. Each
 * function gives the stored row of row r of ours. */

static int64_t values_per_key(const mf__config *c) {
    return c->delta.n_v_heads / c->delta.n_k_heads;
}

static int64_t qkvz_head(const mf__config *c) {
    return 2 * ((int64_t)c->delta.k_dim + values_per_key(c) * c->delta.v_dim);
}

/* Row r of the values (or of z, which has the same shape), `at` rows into its key head. */
static int64_t value_row(const mf__config *c, int64_t r, int64_t at) {
    int64_t per_head = values_per_key(c) * c->delta.v_dim;
    return r / per_head * qkvz_head(c) + at + r % per_head;
}

static int64_t row_qkv(const mf__config *c, int64_t r) {
    int64_t dim = c->delta.k_dim, keys = c->delta.n_k_heads * dim;
    if (r >= 2 * keys) return value_row(c, r - 2 * keys, 2 * dim);
    int64_t at = r < keys ? 0 : dim, row = r % keys;
    return row / dim * qkvz_head(c) + at + row % dim;
}

static int64_t row_z(const mf__config *c, int64_t r) {
    return value_row(c, r, 2 * (int64_t)c->delta.k_dim + values_per_key(c) * c->delta.v_dim);
}

static int64_t row_b(const mf__config *c, int64_t r) {
    int64_t n = values_per_key(c);
    return r / n * 2 * n + r % n;
}

static int64_t row_a(const mf__config *c, int64_t r) {
    return row_b(c, r) + values_per_key(c);
}

static const char *const TYPES[] = {"qwen3_next", NULL};
static const mf__regroup REGROUPS[] = {
    {"linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_qkvz.weight", row_qkv, NULL},
    {"linear_attn.in_proj_z.weight", "linear_attn.in_proj_qkvz.weight", row_z, NULL},
    {"linear_attn.in_proj_b.weight", "linear_attn.in_proj_ba.weight", row_b, NULL},
    {"linear_attn.in_proj_a.weight", "linear_attn.in_proj_ba.weight", row_a, NULL},
    {NULL, NULL, NULL, NULL},
};

const mf__family mf__qwen3_next = {.name = "qwen3_next",
                                   .models = "Qwen3-Next-80B-A3B, Qwen3-Coder-Next",
                                   .model_types = TYPES,
                                   .witness = "linear_attn.in_proj_qkvz.weight",
                                   .usual_ctx = 262144,
                                   .n_usual_eos = 2,
                                   .usual_eos = {151645, 151643},
                                   .has = {.mixers = 1u << MF_MIX_LINEAR | 1u << MF_MIX_FULL,
                                           .attn_gate = true,
                                           .qk_norm = MF_QK_NORM_HEAD,
                                           .zero_centred = true,
                                           .route = MF_ROUTE_SOFTMAX,
                                           .shared = MF_SHARED_GATED,
                                           .dense = true},
                                   .configure = configure,
                                   .regroups = REGROUPS,
                                   .zero_centred_norms = mf__zero_centred_norms,
                                   .raw_witness = "linear_attn.conv1d.weight",
                                   .raw_mixer = MF_MIX_LINEAR};
