/* qwen3_5_moe: Qwen3.5-397B-A17B, Qwen3.6-35B-A3B and the story model.
 *
 * Three of four layers are Gated DeltaNet, every fourth is gated softmax attention; every layer ends in a mixture of
 * experts with a gated shared expert. Raw checkpoints store most norm weights minus one; converted ones do not. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t interval, shared;
    MF__TRY(mf__keys_attention(text, where, 256, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e7, 0.25, c, err));
    MF__TRY(mf__keys_delta(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    MF__TRY(mf__json_get_int(text, where, "shared_expert_intermediate_size", 1, 1 << 20, &shared, err));
    MF__TRY(mf__json_opt_int(text, where, "full_attention_interval", 1, MF_MAX_LAYERS, 4, &interval, err));
    c->moe.n_shared_inner = (int32_t)shared;
    c->moe.renorm = true; /* whatever norm_topk_prob says */
    for (int32_t l = 0; l < c->n_layers; l++) c->mixer[l] = (l + 1) % interval ? MF_MIX_LINEAR : MF_MIX_FULL;
    return mf__keys_layer_types(text, where, c, err);
}

/* GGUF files have the value heads in another order: the first of every key head, then the second of each, and so on.
 * Each function gives the place there of row (or column) r of ours. */

static int64_t tiled_head(const mf__config *c, int64_t head) {
    int64_t per_key = c->delta.n_v_heads / c->delta.n_k_heads;
    return head % per_key * c->delta.n_k_heads + head / per_key;
}

static int64_t tiled_row(const mf__config *c, int64_t r) {
    return tiled_head(c, r / c->delta.v_dim) * c->delta.v_dim + r % c->delta.v_dim;
}

static int64_t tiled_qkv(const mf__config *c, int64_t r) {
    int64_t keys = 2 * (int64_t)c->delta.n_k_heads * c->delta.k_dim;
    return r < keys ? r : keys + tiled_row(c, r - keys);
}

static const mf__regroup REGROUPS[] = {
    {"linear_attn.in_proj_qkv.weight", "linear_attn.tiled_qkv.weight", tiled_qkv, NULL},
    {"linear_attn.in_proj_z.weight", "linear_attn.tiled_z.weight", tiled_row, NULL},
    {"linear_attn.in_proj_a.weight", "linear_attn.tiled_a.weight", tiled_head, NULL},
    {"linear_attn.in_proj_b.weight", "linear_attn.tiled_b.weight", tiled_head, NULL},
    {"linear_attn.out_proj.weight", "linear_attn.tiled_out.weight", NULL, tiled_head},
    {NULL, NULL, NULL, NULL},
};

static const char *const TYPES[] = {"qwen3_5_moe", "qwen3_5_moe_text", NULL};

const mf__family mf__qwen3_5_moe = {.name = "qwen3_5_moe",
                                    .models = "Qwen3.5-397B-A17B, Qwen3.6-35B-A3B",
                                    .model_types = TYPES,
                                    .witness = "linear_attn.in_proj_qkv.weight",
                                    .usual_ctx = 262144,
                                    .n_usual_eos = 2,
                                    .usual_eos = {248046, 248044},
                                    .has = {.mixers = 1u << MF_MIX_LINEAR | 1u << MF_MIX_FULL,
                                            .attn_gate = true,
                                            .qk_norm = MF_QK_NORM_HEAD,
                                            .zero_centred = true,
                                            .route = MF_ROUTE_SOFTMAX,
                                            .shared = MF_SHARED_GATED},
                                    .configure = configure,
                                    .regroups = REGROUPS,
                                    .zero_centred_norms = mf__zero_centred_norms,
                                    .raw_witness = "linear_attn.conv1d.weight",
                                    .raw_mixer = MF_MIX_LINEAR};
