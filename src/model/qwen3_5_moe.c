/* qwen3_5_moe: Qwen3.5-397B-A17B, Qwen3.6-35B-A3B and the story model.
 *
 * Three of four layers are Gated DeltaNet, every fourth is gated softmax attention; every layer ends in a mixture of
 * experts with a gated shared expert. Raw checkpoints store most norm weights minus one; converted ones do not. */
#include <string.h>

#include "base/json.h"
#include "model/parts.h"

static mf_status mixers(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *types = json_object_get(text, "layer_types");
    int64_t interval;
    MF__TRY(mf__json_opt_int(text, where, "full_attention_interval", 1, MF_MAX_LAYERS, 4, &interval, err));
    if (types && json_array_size(types) != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: layer_types has %zu entries, num_hidden_layers is %d", where,
                        json_array_size(types), c->n_layers);
    for (int32_t i = 0; i < c->n_layers; i++) {
        if (!types) {
            c->mixer[i] = (i + 1) % interval ? MF_MIX_LINEAR : MF_MIX_FULL;
            continue;
        }
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (type && !strcmp(type, "linear_attention"))
            c->mixer[i] = MF_MIX_LINEAR;
        else if (type && !strcmp(type, "full_attention"))
            c->mixer[i] = MF_MIX_FULL;
        else
            return mf__fail(err, MF_E_UNSUPPORTED,
                            "%s: layer_types[%d] is \"%s\"; known are linear_attention and full_attention", where, i,
                            type ? type : "(not a string)");
    }
    return MF_OK;
}

/* rope_parameters (newer) or keys at the top (older). */
static mf_status rope(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *rp = json_object_get(text, "rope_parameters");
    if (!json_is_object(rp)) rp = text;
    const json_t *type = json_object_get(rp, "rope_type");
    double theta, factor;
    if (json_is_string(type) && strcmp(json_string_value(type), "default"))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: rope_type \"%s\" (this family knows \"default\")", where,
                        json_string_value(type));
    MF__TRY(mf__json_opt_double(text, where, "partial_rotary_factor", 0, 1, 0.25, &factor, err));
    MF__TRY(mf__json_opt_double(rp, where, "partial_rotary_factor", 0, 1, factor, &factor, err));
    MF__TRY(mf__json_opt_double(rp, where, "rope_theta", 1, 1e12, 1e7, &theta, err));
    c->attn.theta = theta;
    c->attn.n_rot = (int32_t)(c->attn.head_dim * factor);
    if (c->attn.n_rot < 2 || c->attn.n_rot % 2 || c->attn.n_rot > 512)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: head_dim %d with partial_rotary_factor %g rotates %d channels; an even number from 2 to "
                        "512 is needed",
                        where, c->attn.head_dim, factor, c->attn.n_rot);
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t heads, kv_heads, dim, kh, kd, vh, vd, kernel, experts, top, inner, shared;
    bool bias;
    MF__TRY(mf__json_opt_bool(text, where, "attention_bias", false, &bias, err));
    if (bias) return mf__fail(err, MF_E_UNSUPPORTED, "%s: attention_bias true is not supported by this family", where);
    MF__TRY(mf__json_get_int(text, where, "num_attention_heads", 1, 4096, &heads, err));
    MF__TRY(mf__json_get_int(text, where, "num_key_value_heads", 1, 4096, &kv_heads, err));
    MF__TRY(mf__json_opt_int(text, where, "head_dim", 2, 4096, 256, &dim, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_num_key_heads", 1, 4096, 16, &kh, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_key_head_dim", 1, 4096, 128, &kd, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_num_value_heads", 1, 4096, 32, &vh, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_value_head_dim", 1, 4096, 128, &vd, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_conv_kernel_dim", 2, 8, 4, &kernel, err));
    MF__TRY(mf__json_get_int(text, where, "num_experts", 1, 65536, &experts, err));
    MF__TRY(mf__json_get_int(text, where, "num_experts_per_tok", 1, MF_MAX_TOPK, &top, err));
    MF__TRY(mf__json_get_int(text, where, "moe_intermediate_size", 1, 1 << 20, &inner, err));
    MF__TRY(mf__json_get_int(text, where, "shared_expert_intermediate_size", 1, 1 << 20, &shared, err));
    if (heads % kv_heads || vh % kh || top > experts)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: heads do not divide (attention %lld/%lld, linear %lld/%lld) or top %lld of %lld experts",
                        where, (long long)heads, (long long)kv_heads, (long long)vh, (long long)kh, (long long)top,
                        (long long)experts);
    c->attn.n_heads = (int32_t)heads, c->attn.n_kv_heads = (int32_t)kv_heads, c->attn.head_dim = (int32_t)dim;
    c->delta.n_k_heads = (int32_t)kh, c->delta.k_dim = (int32_t)kd;
    c->delta.n_v_heads = (int32_t)vh, c->delta.v_dim = (int32_t)vd, c->delta.n_kernel = (int32_t)kernel;
    c->moe.n_experts = (int32_t)experts, c->moe.top_k = (int32_t)top, c->moe.n_inner = (int32_t)inner;
    c->moe.n_shared_inner = (int32_t)shared, c->moe.renorm = true;
    MF__TRY(rope(text, where, c, err));
    return mixers(text, where, c, err);
}

/* h -> norm -> mixer -> h_mid -> norm -> router */
static mf_status build_mix(const mf__config *c, mf__mixer mixer, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create(mixer == MF_MIX_FULL ? "full attention" : "linear attention", out, err));
    mf__graph *g = *out;
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, c->n_hidden);
    mf__normed x = mf__g_norm(g, h, mf__g_vector(g, "input_layernorm.weight", 1, c->n_hidden), c->eps);
    mf__act a = mixer == MF_MIX_FULL ? mf__part_gated_attention(g, c, x) : mf__part_delta_net(g, c, x);
    mf__residual h_mid = mf__g_add(g, h, a);
    mf__normed x2 = mf__g_norm(g, h_mid, mf__g_vector(g, "post_attention_layernorm.weight", 1, c->n_hidden), c->eps);
    mf__op_params route = {.route = {.kind = MF_ROUTE_SOFTMAX,
                                     .n_experts = c->moe.n_experts,
                                     .top_k = c->moe.top_k,
                                     .renorm = c->moe.renorm,
                                     .scale = 1.0f}};
    mf__part_router(g, c, x2, MF_NO_WEIGHT, route);
    mf__g_export(g, h_mid.id, MF_PORT_H_MID);
    mf__g_export(g, x2.id, MF_PORT_H_POST);
    return mf__graph_finish(g, err);
}

static mf_status build_kind(const mf__config *c, mf__mixer mixer, mf__layer_kind *kind, mf_error *err) {
    if (mixer == MF_MIX_FULL) {
        kind->name = "full";
        kind->k_cols = kind->v_cols = c->attn.n_kv_heads * c->attn.head_dim;
    } else {
        int64_t keys = (int64_t)c->delta.n_k_heads * c->delta.k_dim;
        int64_t values = (int64_t)c->delta.n_v_heads * c->delta.v_dim;
        kind->name = "linear";
        kind->conv_floats = (c->delta.n_kernel - 1) * (2 * keys + values);
        kind->delta_floats = values * c->delta.k_dim;
    }
    MF__TRY(build_mix(c, mixer, &kind->mix, err));
    MF__TRY(mf__part_shared(c, &kind->shared, err));
    MF__TRY(mf__part_experts(c, &kind->experts, err));
    return mf__part_combine(c, &kind->combine, err);
}

static mf_status build(mf__blueprint *bp, mf_error *err) {
    const mf__config *c = &bp->config;
    bp->n_kinds = 2;
    MF__TRY(build_kind(c, MF_MIX_LINEAR, &bp->kinds[0], err));
    MF__TRY(build_kind(c, MF_MIX_FULL, &bp->kinds[1], err));
    for (int32_t i = 0; i < c->n_layers; i++) bp->kind_of[i] = c->mixer[i] == MF_MIX_FULL;
    MF__TRY(mf__part_embed(c, &bp->embed, err));
    return mf__part_tail(c, &bp->tail, err);
}

static const char *const TYPES[] = {"qwen3_5_moe", "qwen3_5_moe_text", NULL};
static const char *const NORMS[] = {".input_layernorm.weight",  ".post_attention_layernorm.weight",
                                    ".self_attn.q_norm.weight", ".self_attn.k_norm.weight",
                                    "model.norm.weight",        NULL};

const mf__family mf__qwen3_5_moe = {.name = "qwen3_5_moe",
                                    .model_types = TYPES,
                                    .configure = configure,
                                    .build = build,
                                    .zero_centred_norms = NORMS,
                                    .raw_witness = "linear_attn.conv1d.weight",
                                    .raw_mixer = MF_MIX_LINEAR};
