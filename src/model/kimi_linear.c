/* kimi_linear: Kimi-Linear-48B-A3B.
 *
 * Three of four layers are Kimi Delta Attention, the others latent attention without rope; experts as in DeepSeek-V3.
 */
#include <string.h>

#include "model/keys.h"
#include "model/parts.h"

/* Published configs have an object with lists of layers, counted from 1; transformers writes layer_types. */
static mf_status layer_lists(const json_t *linear, const char *where, mf__config *c, mf_error *err) {
    const json_t *kda = json_object_get(linear, "kda_layers");
    if (!json_is_array(kda))
        return mf__fail(err, MF_E_FORMAT, "%s: linear_attn_config has no list kda_layers: which layers are linear?",
                        where);
    for (size_t i = 0; i < json_array_size(kda); i++) {
        json_int_t l = json_integer_value(json_array_get(kda, i));
        if (l < 1)
            return mf__fail(err, MF_E_FORMAT, "%s: kda_layers[%zu] is %lld, expected a layer counted from 1", where, i,
                            (long long)l);
        if (l <= c->n_layers) c->mixer[l - 1] = MF_MIX_LINEAR;
    }
    return MF_OK;
}

static mf_status layers(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *linear = json_object_get(text, "linear_attn_config"), *types = json_object_get(text, "layer_types");
    if (!json_is_array(types)) return layer_lists(linear, where, c, err);
    if (json_array_size(types) != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: layer_types has %zu entries, num_hidden_layers is %d", where,
                        json_array_size(types), c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) { /* other words are refused later */
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        if (type && !strcmp(type, mf__mixer_key(MF_MIX_LINEAR))) c->mixer[l] = MF_MIX_LINEAR;
    }
    return MF_OK;
}

static mf_status heads(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *own = json_object_get(text, "linear_attn_config");
    bool nested = json_is_object(own);
    int64_t n, dim, kernel;
    if (!nested) own = text;
    MF__TRY(mf__json_get_int(own, where, nested ? "num_heads" : "linear_num_heads", 1, 4096, &n, err));
    MF__TRY(mf__json_get_int(own, where, nested ? "head_dim" : "linear_head_dim", 1, 4096, &dim, err));
    MF__TRY(mf__json_opt_int(own, where, nested ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 2, 8, 4, &kernel,
                             err));
    if (n * dim > 1 << 20)
        return mf__fail(err, MF_E_FORMAT, "%s: %lld linear heads of %lld channels", where, (long long)n,
                        (long long)dim);
    c->delta.n_k_heads = c->delta.n_v_heads = (int32_t)n;
    c->delta.k_dim = c->delta.v_dim = (int32_t)dim;
    c->delta.n_kernel = (int32_t)kernel;
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t ctx;
    bool renorm;
    MF__TRY(mf__keys_want(text, where, "moe_router_activation_func", "sigmoid", err));
    MF__TRY(mf__keys_want_bool(text, where, "mla_use_nope", true, err));
    MF__TRY(mf__json_opt_int(text, where, "model_max_length", 1, 1 << 30, c->n_ctx, &ctx, err));
    MF__TRY(mf__json_opt_bool(text, where, "moe_renormalize", true, &renorm, err));
    MF__TRY(mf__keys_latent(text, where, 1e4, c, err));
    if (!json_object_get(text, "q_lora_rank")) c->mla.n_q_rank = 0;
    MF__TRY(heads(text, where, c, err));
    MF__TRY(layers(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", renorm, c, err));
    if (!json_object_get(text, "max_position_embeddings")) c->n_ctx = (int32_t)ctx;
    return mf__keys_first_dense(text, where, c, err);
}

static const char *const TYPES[] = {"kimi_linear", NULL};
static const mf__alias ALIASES[] = {{"mlp.shared_expert.", "block_sparse_moe.shared_experts."},
                                    {"mlp.shared_expert.", "mlp.shared_experts."},
                                    {"mlp.gate.e_score_correction_bias", "mlp.e_score_correction_bias"},
                                    {"block_sparse_moe.switch_mlp.", "mlp.switch_mlp."},
                                    {"mlp.", "block_sparse_moe."}, /* dense layers, too, where transformers saves */
                                    {"q_conv1d.", "q_conv.conv."}, /* MLX */
                                    {"k_conv1d.", "k_conv.conv."},
                                    {"v_conv1d.", "v_conv.conv."},
                                    {NULL, NULL}};

const mf__family mf__kimi_linear = {.name = "kimi_linear",
                                    .models = "Kimi-Linear-48B-A3B",
                                    .model_types = TYPES,
                                    .has = {.mixers = 1u << MF_MIX_LINEAR | 1u << MF_MIX_LATENT,
                                            .channel_decay = true,
                                            .nope = true,
                                            .bias_qkv = true,
                                            .bias_o = true,
                                            .route = MF_ROUTE_SIGMOID,
                                            .choice_bias = true,
                                            .groups = true,
                                            .shared = MF_SHARED_PLAIN,
                                            .dense = true},
                                    .configure = configure,
                                    .aliases = ALIASES,
                                    .experts = mf__expert_spellings_w123,
                                    .look = mf__look_latent};
