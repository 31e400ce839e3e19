/* mimo_v2_flash: MiMo-V2-Flash.
 *
 * Most layers see a sliding window, with sinks, other key and value heads and another rope than the full ones; values
 * are narrower than keys and scaled before they are cached. */
#include "model/keys.h"
#include "model/parts.h"

/* hybrid_layer_pattern: 1 for sliding, 0 for full; or layer_types. */
static mf_status layer_kinds(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *pattern = json_object_get(text, "hybrid_layer_pattern");
    for (int32_t l = 0; l < c->n_layers; l++) c->mixer[l] = l && (l + 1) % 6 ? MF_MIX_SLIDING : MF_MIX_FULL;
    if (json_is_array(pattern) && json_array_size(pattern) != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: hybrid_layer_pattern has %zu entries, num_hidden_layers is %d", where,
                        json_array_size(pattern), c->n_layers);
    for (int32_t l = 0; json_is_array(pattern) && l < c->n_layers; l++)
        c->mixer[l] = json_integer_value(json_array_get(pattern, (size_t)l)) ? MF_MIX_SLIDING : MF_MIX_FULL;
    MF__TRY(mf__keys_layer_types(text, where, c, err));
    return mf__keys_window(text, where, c, err);
}

/* The sliding layers' twins of the keys. */
static mf_status sliding_heads(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t heads, kv, dim, v_dim;
    bool full_sinks, sliding_sinks;
    MF__TRY(mf__json_opt_int(text, where, "swa_num_attention_heads", 1, 4096, c->attn.n_heads, &heads, err));
    MF__TRY(mf__json_opt_int(text, where, "swa_num_key_value_heads", 1, 4096, 2 * c->attn.n_kv_heads, &kv, err));
    MF__TRY(mf__json_opt_int(text, where, "swa_head_dim", 2, 4096, c->attn.head_dim, &dim, err));
    MF__TRY(mf__json_opt_int(text, where, "swa_v_head_dim", 1, 4096, c->attn.v_dim, &v_dim, err));
    MF__TRY(mf__json_opt_bool(text, where, "add_full_attention_sink_bias", false, &full_sinks, err));
    MF__TRY(mf__json_opt_bool(text, where, "add_swa_attention_sink_bias", true, &sliding_sinks, err));
    if (heads % kv)
        return mf__fail(err, MF_E_FORMAT, "%s: %lld query heads cannot share %lld key/value heads in sliding layers",
                        where, (long long)heads, (long long)kv);
    c->has.sinks = (full_sinks ? 1u << MF_MIX_FULL : 0) | (sliding_sinks ? 1u << MF_MIX_SLIDING : 0);
    c->sliding = c->attn;
    c->sliding.n_heads = (int32_t)heads, c->sliding.n_kv_heads = (int32_t)kv;
    c->sliding.head_dim = (int32_t)dim, c->sliding.v_dim = (int32_t)v_dim;
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t v_dim;
    double v_scale, theta;
    MF__TRY(mf__keys_want(text, where, "scoring_func", "sigmoid", err));
    MF__TRY(mf__keys_want(text, where, "topk_method", "noaux_tc", err));
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__json_opt_int(text, where, "v_head_dim", 1, 4096, c->attn.head_dim, &v_dim, err));
    MF__TRY(mf__json_opt_double(text, where, "attention_value_scale", 0, 1e3, 0, &v_scale, err));
    c->attn.v_dim = (int32_t)v_dim;
    c->attn.v_scale = (float)v_scale;
    MF__TRY(layer_kinds(text, where, c, err));
    MF__TRY(sliding_heads(text, where, c, err));
    MF__TRY(mf__json_opt_double(text, where, "swa_rope_theta", 1, 1e12, 1e4, &theta, err));
    MF__TRY(mf__keys_rope_of(text, where, MF_MIX_FULL, 5e6, 0.334, c, err));
    MF__TRY(mf__keys_rope_of(text, where, MF_MIX_SLIDING, theta, 0.334, c, err));
    if (json_object_get(text, "swa_rope_theta")) c->sliding_rope.theta = theta;
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return mf__keys_first_dense(text, where, c, err);
}

static const char *const TYPES[] = {"mimo_v2_flash", "mimo_v2", NULL};
static const mf__alias ALIASES[] = {{"self_attn.sinks", "self_attn.attention_sink_bias"}, {NULL, NULL}};

const mf__family mf__mimo_v2_flash = {.name = "mimo_v2_flash",
                                      .models = "MiMo-V2-Flash",
                                      .model_types = TYPES,
                                      .witness = "self_attn.attention_sink_bias",
                                      .usual_ctx = 262144,
                                      .has = {.mixers = 1u << MF_MIX_FULL | 1u << MF_MIX_SLIDING,
                                              .sinks = 1u << MF_MIX_SLIDING,
                                              .value_scale = true,
                                              .route = MF_ROUTE_SIGMOID,
                                              .choice_bias = true,
                                              .groups = true,
                                              .dense = true},
                                      .configure = configure,
                                      .aliases = ALIASES};
