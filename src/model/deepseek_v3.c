/* deepseek_v3: DeepSeek-V3 and R1, Cogito-V2-671B; Kimi-K2 is the same with other numbers.
 *
 * Every layer is multi-head latent attention. The first few end in a plain feed-forward, the others in a mixture of
 * experts with sigmoid routing by groups and a shared expert that is simply added. */
#include <string.h>

#include "base/json.h"
#include "model/import.h"
#include "model/parts.h"

/* A key that may be absent but, if there, must have this value. */
static mf_status want_string(const json_t *text, const char *where, const char *key, const char *value, mf_error *err) {
    const json_t *found = json_object_get(text, key);
    if (!found || json_is_null(found)) return MF_OK;
    if (json_is_string(found) && !strcmp(json_string_value(found), value)) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED, "%s: %s is %s%s, this family knows \"%s\"", where, key,
                    json_is_string(found) ? "" : mf__json_type_name(found),
                    json_is_string(found) ? json_string_value(found) : "", value);
}

static mf_status refuse_variants(const json_t *text, const char *where, mf_error *err) {
    int64_t freq;
    bool bias;
    MF__TRY(want_string(text, where, "hidden_act", "silu", err));
    MF__TRY(want_string(text, where, "scoring_func", "sigmoid", err));
    MF__TRY(want_string(text, where, "topk_method", "noaux_tc", err));
    MF__TRY(mf__json_opt_bool(text, where, "attention_bias", false, &bias, err));
    MF__TRY(mf__json_opt_int(text, where, "moe_layer_freq", 1, MF_MAX_LAYERS, 1, &freq, err));
    if (bias) return mf__fail(err, MF_E_UNSUPPORTED, "%s: attention_bias true is not supported by this family", where);
    if (freq != 1)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: moe_layer_freq is %lld, this family knows 1", where,
                        (long long)freq);
    return MF_OK;
}

static mf_status attention(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t heads, rank = 1536, latent, nope, rot, v_dim;
    bool interleave;
    MF__TRY(mf__json_get_int(text, where, "num_attention_heads", 1, 4096, &heads, err));
    if (json_object_get(text, "q_lora_rank")) /* null means none; absent, the published models' value */
        MF__TRY(mf__json_opt_int(text, where, "q_lora_rank", 1, 1 << 20, 0, &rank, err));
    MF__TRY(mf__json_get_int(text, where, "kv_lora_rank", 1, 1 << 16, &latent, err));
    MF__TRY(mf__json_get_int(text, where, "qk_nope_head_dim", 1, 4096, &nope, err));
    MF__TRY(mf__json_get_int(text, where, "qk_rope_head_dim", 2, MF_ROPE_MAX, &rot, err));
    MF__TRY(mf__json_get_int(text, where, "v_head_dim", 1, 4096, &v_dim, err));
    MF__TRY(mf__json_opt_bool(text, where, "rope_interleave", true, &interleave, err));
    if (rot % 2)
        return mf__fail(err, MF_E_FORMAT, "%s: qk_rope_head_dim is %lld, an even number is needed", where,
                        (long long)rot);
    c->attn.n_heads = c->attn.n_kv_heads = (int32_t)heads;
    c->attn.head_dim = (int32_t)(nope + rot);
    c->attn.n_rot = (int32_t)rot;
    c->mla.n_q_rank = (int32_t)rank, c->mla.n_latent = (int32_t)latent;
    c->mla.n_nope = (int32_t)nope, c->mla.n_rope = (int32_t)rot, c->mla.v_dim = (int32_t)v_dim;
    c->mla.half_split = !interleave;
    MF__TRY(mf__rope_parse(text, where, 1e4, &c->rope, err));
    c->attn.theta = c->rope.theta;
    return MF_OK;
}

static mf_status feed_forward(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t experts, top, inner, shared, groups, top_groups, dense, dense_inner = 0;
    double scale;
    MF__TRY(mf__json_get_int(text, where, "n_routed_experts", 1, 65536, &experts, err));
    MF__TRY(mf__json_get_int(text, where, "num_experts_per_tok", 1, MF_MAX_TOPK, &top, err));
    MF__TRY(mf__json_get_int(text, where, "moe_intermediate_size", 1, 1 << 20, &inner, err));
    MF__TRY(mf__json_opt_int(text, where, "n_shared_experts", 0, 64, 0, &shared, err));
    MF__TRY(mf__json_opt_int(text, where, "n_group", 1, 65536, 1, &groups, err));
    MF__TRY(mf__json_opt_int(text, where, "topk_group", 1, 65536, 1, &top_groups, err));
    MF__TRY(mf__json_opt_int(text, where, "first_k_dense_replace", 0, MF_MAX_LAYERS, 0, &dense, err));
    MF__TRY(mf__json_opt_double(text, where, "routed_scaling_factor", 0, 1e6, 1, &scale, err));
    MF__TRY(mf__json_opt_bool(text, where, "norm_topk_prob", true, &c->moe.renorm, err));
    if (dense) MF__TRY(mf__json_get_int(text, where, "intermediate_size", 1, 1 << 20, &dense_inner, err));
    if (experts % groups || top_groups > groups || top > experts / groups * top_groups)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: %lld experts in %lld groups, the best %lld of which give %lld experts: impossible", where,
                        (long long)experts, (long long)groups, (long long)top_groups, (long long)top);
    c->moe.n_experts = (int32_t)experts, c->moe.top_k = (int32_t)top, c->moe.n_inner = (int32_t)inner;
    c->moe.n_shared_inner = (int32_t)(shared * inner), c->moe.shared_plain = true;
    c->moe.n_groups = (int32_t)groups, c->moe.top_groups = (int32_t)top_groups, c->moe.route_scale = (float)scale;
    c->dense.n_layers = (int32_t)(dense < c->n_layers ? dense : c->n_layers);
    c->dense.n_inner = (int32_t)dense_inner;
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    for (int32_t i = 0; i < c->n_layers; i++) c->mixer[i] = MF_MIX_FULL;
    MF__TRY(refuse_variants(text, where, err));
    MF__TRY(attention(text, where, c, err));
    return feed_forward(text, where, c, err);
}

/* Newer MLX conversions store kv_b_proj as two tensors, the key half transposed. */
static void look(mf__config *c, const mf__catalog *cat) {
    c->mla.split_up = mf__import_has(cat, "model.layers.0.self_attn.embed_q.weight");
}

/* h -> norm -> latent attention -> h_mid -> norm (-> router) */
static mf_status build_mix(const mf__config *c, bool dense, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("latent attention", out, err));
    mf__graph *g = *out;
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, c->n_hidden);
    mf__normed x = mf__g_norm(g, h, mf__g_vector(g, "input_layernorm.weight", 1, c->n_hidden), c->eps);
    mf__residual h_mid = mf__g_add(g, h, mf__part_mla(g, c, x));
    mf__normed x2 = mf__g_norm(g, h_mid, mf__g_vector(g, "post_attention_layernorm.weight", 1, c->n_hidden), c->eps);
    if (!dense) {
        mf__op_params route = {.route = {.kind = MF_ROUTE_SIGMOID,
                                         .n_experts = c->moe.n_experts,
                                         .top_k = c->moe.top_k,
                                         .n_groups = c->moe.n_groups,
                                         .top_groups = c->moe.top_groups,
                                         .renorm = c->moe.renorm,
                                         .scale = c->moe.route_scale}};
        mf__part_router(g, c, x2, mf__g_vector(g, "mlp.gate.e_score_correction_bias", 1, c->moe.n_experts), route);
    }
    mf__g_export(g, h_mid.id, MF_PORT_H_MID);
    mf__g_export(g, x2.id, MF_PORT_H_POST);
    return mf__graph_finish(g, err);
}

static mf_status build_kind(const mf__config *c, bool dense, mf__layer_kind *kind, mf_error *err) {
    kind->name = dense ? "dense" : "moe";
    kind->k_cols = c->mla.n_latent;
    kind->v_cols = c->mla.n_rope;
    MF__TRY(build_mix(c, dense, &kind->mix, err));
    if (dense) return mf__part_dense(c, &kind->combine, err);
    if (c->moe.n_shared_inner) MF__TRY(mf__part_shared(c, &kind->shared, err));
    MF__TRY(mf__part_experts(c, &kind->experts, err));
    return mf__part_combine(c, &kind->combine, err);
}

static mf_status build(mf__blueprint *bp, mf_error *err) {
    const mf__config *c = &bp->config;
    bool any_dense = c->dense.n_layers > 0;
    bp->n_kinds = 1 + any_dense;
    MF__TRY(build_kind(c, false, &bp->kinds[0], err));
    if (any_dense) MF__TRY(build_kind(c, true, &bp->kinds[1], err));
    for (int32_t i = 0; i < c->n_layers; i++) bp->kind_of[i] = i < c->dense.n_layers;
    MF__TRY(mf__part_embed(c, &bp->embed, err));
    return mf__part_tail(c, &bp->tail, err);
}

static const char *const TYPES[] = {"deepseek_v3", "kimi_k2", NULL};

const mf__family mf__deepseek_v3 = {
    .name = "deepseek_v3", .model_types = TYPES, .configure = configure, .build = build, .look = look};
