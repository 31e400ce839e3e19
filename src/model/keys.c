/* Config keys that several families share. */
#include "model/keys.h"

#include <string.h>

#include "model/family.h"

#define MAX_WIDTH (1 << 20)

mf_status mf__keys_attention(const json_t *text, const char *where, int32_t default_dim, mf__config *c, mf_error *err) {
    int64_t heads, kv_heads, dim;
    bool bias;
    MF__TRY(mf__json_get_int(text, where, "num_attention_heads", 1, 4096, &heads, err));
    MF__TRY(mf__json_opt_int(text, where, "num_key_value_heads", 1, 4096, heads, &kv_heads, err));
    int64_t usual = default_dim ? default_dim : c->n_hidden / heads;
    MF__TRY(mf__json_opt_int(text, where, "head_dim", 2, 4096, usual, &dim, err));
    MF__TRY(mf__json_opt_bool(text, where, "attention_bias", false, &bias, err));
    if (heads % kv_heads)
        return mf__fail(err, MF_E_FORMAT, "%s: %lld query heads cannot share %lld key/value heads", where,
                        (long long)heads, (long long)kv_heads);
    if (bias && !c->has.bias_qkv)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: attention_bias true is not supported by the family %s", where,
                        c->family->name);
    c->has.bias_qkv = c->has.bias_qkv && bias;
    c->has.bias_o = c->has.bias_o && bias;
    c->attn.n_heads = (int32_t)heads;
    c->attn.n_kv_heads = (int32_t)kv_heads;
    c->attn.head_dim = (int32_t)dim;
    return MF_OK;
}

/* ---- rope ------------------------------------------------------------------------------------------------------- */

static mf_status read_rope(const json_t *text, const char *where, double theta, double partial, mf__attn *attn,
                           mf__rope *rope, mf_error *err) {
    const json_t *newer = json_object_get(text, "rope_parameters");
    MF__TRY(mf__rope_parse(text, where, theta, rope, err));
    MF__TRY(mf__json_opt_double(text, where, "partial_rotary_factor", 0, 1, partial, &partial, err));
    if (json_is_object(newer))
        MF__TRY(mf__json_opt_double(newer, where, "partial_rotary_factor", 0, 1, partial, &partial, err));
    attn->n_rot = (int32_t)(attn->head_dim * (rope->part > 0 ? 1 : partial));
    if (attn->n_rot < 2 || attn->n_rot % 2 || attn->n_rot > MF_ROPE_MAX)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: head_dim %d with partial_rotary_factor %g rotates %d channels; an even number from 2 to "
                        "%d is needed",
                        where, attn->head_dim, partial, attn->n_rot, MF_ROPE_MAX);
    return MF_OK;
}

mf_status mf__keys_rope(const json_t *text, const char *where, double default_theta, double default_partial,
                        mf__config *c, mf_error *err) {
    return read_rope(text, where, default_theta, default_partial, &c->attn, &c->rope, err);
}

mf_status mf__keys_rope_of(const json_t *text, const char *where, mf__mixer mixer, double default_theta,
                           double default_partial, mf__config *c, mf_error *err) {
    mf__attn *attn = mixer == MF_MIX_SLIDING ? &c->sliding : &c->attn;
    mf__rope *rope = mixer == MF_MIX_SLIDING ? &c->sliding_rope : &c->rope;
    json_t *all = json_object_get(text, "rope_parameters"), *own = json_object_get(all, mf__mixer_key(mixer));
    bool apart = json_is_object(json_object_get(all, mf__mixer_key(MF_MIX_FULL))) ||
                 json_is_object(json_object_get(all, mf__mixer_key(MF_MIX_SLIDING)));
    if (!apart) return read_rope(text, where, default_theta, default_partial, attn, rope, err);
    json_t *alone = json_copy((json_t *)text);
    if (!alone || (own && json_object_set(alone, "rope_parameters", own))) {
        json_decref(alone);
        return mf__fail(err, MF_E_NOMEM, "no memory for a config");
    }
    if (!own) json_object_del(alone, "rope_parameters");
    mf_status st = read_rope(alone, where, default_theta, default_partial, attn, rope, err);
    json_decref(alone);
    return st;
}

mf_status mf__keys_want_bool(const json_t *text, const char *where, const char *key, bool value, mf_error *err) {
    bool found;
    MF__TRY(mf__json_opt_bool(text, where, key, value, &found, err));
    if (found == value) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED, "%s: %s is %s, known is %s", where, key, found ? "true" : "false",
                    value ? "true" : "false");
}

mf_status mf__keys_want(const json_t *text, const char *where, const char *key, const char *value, mf_error *err) {
    const json_t *found = json_object_get(text, key);
    const char *name = json_string_value(found);
    if (!found || json_is_null(found) || (name && !strcmp(name, value))) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED, "%s: %s is %s, known is \"%s\"", where, key,
                    name ? name : mf__json_type_name(found), value);
}

/* ---- experts ---------------------------------------------------------------------------------------------------- */

/* The first of several spellings of a key that is there, or the usual one. */
static const char *spelt(const json_t *text, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (json_object_get(text, names[i])) return names[i];
    return names[0];
}

static mf_status groups(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    static const char *const keys[] = {"n_group", "num_expert_group", NULL};
    int64_t n_groups, top_groups;
    MF__TRY(mf__json_opt_int(text, where, spelt(text, keys), 1, 65536, 1, &n_groups, err));
    MF__TRY(mf__json_opt_int(text, where, "topk_group", 1, 65536, 1, &top_groups, err));
    if (c->moe.n_experts % n_groups || top_groups > n_groups || c->moe.top_k > c->moe.n_experts / n_groups * top_groups)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: top %d of %d experts from the best %lld (topk_group) of %lld groups (n_group) is not "
                        "possible",
                        where, c->moe.top_k, c->moe.n_experts, (long long)top_groups, (long long)n_groups);
    if (n_groups > 1 && !c->has.groups)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: n_group %lld: the family %s has no expert groups", where,
                        (long long)n_groups, c->family->name);
    c->moe.n_groups = (int32_t)n_groups;
    c->moe.top_groups = (int32_t)top_groups;
    return MF_OK;
}

/* A number, or a list of equal ones: no layer may differ from the others. */
static mf_status get_same(const json_t *text, const char *where, const char *key, int64_t max, int64_t *out,
                          mf_error *err) {
    const json_t *list = json_object_get(text, key), *first = json_array_get(list, 0);
    if (!json_is_array(list)) return mf__json_get_int(text, where, key, 1, max, out, err);
    *out = json_integer_value(first);
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!json_is_integer(first) || !json_equal(json_array_get(list, i), first))
            return mf__fail(err, MF_E_UNSUPPORTED, "%s: %s differs from layer to layer, which is not supported", where,
                            key);
    if (!first || *out < 1 || *out > max)
        return mf__fail(err, MF_E_FORMAT, "%s: %s is a list of %lld, expected 1 to %lld", where, key, (long long)*out,
                        (long long)max);
    return MF_OK;
}

static mf_status shared_experts(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    static const char *const keys[] = {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts",
                                       "num_shared_expert", NULL};
    const char *key = spelt(text, keys);
    int64_t shared = 0;
    if (c->has.shared != MF_SHARED_PLAIN && c->has.shared != MF_SHARED_NONE) return MF_OK;
    if (json_is_array(json_object_get(text, key)))
        MF__TRY(get_same(text, where, key, 64, &shared, err));
    else
        MF__TRY(mf__json_opt_int(text, where, key, 0, 64, 0, &shared, err));
    if (shared && c->has.shared == MF_SHARED_NONE)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: %s %lld: the family %s has no shared expert", where, key,
                        (long long)shared, c->family->name);
    c->moe.n_shared_inner = (int32_t)shared * c->moe.n_inner;
    return MF_OK;
}

mf_status mf__keys_moe(const json_t *text, const char *where, const char *width_key, bool default_renorm, mf__config *c,
                       mf_error *err) {
    static const char *const counts[] = {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
                                         NULL};
    static const char *const tops[] = {
        "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "top_k_experts", NULL};
    static const char *const scales[] = {"routed_scaling_factor", "router_scaling_factor", "moe_router_scaling_factor",
                                         NULL};
    const char *count = spelt(text, counts), *top_key = spelt(text, tops);
    int64_t experts, top, inner;
    MF__TRY(get_same(text, where, count, 65536, &experts, err));
    MF__TRY(get_same(text, where, top_key, MF_MAX_TOPK, &top, err));
    MF__TRY(get_same(text, where, width_key, MAX_WIDTH, &inner, err));
    MF__TRY(mf__json_opt_bool(text, where, "norm_topk_prob", default_renorm, &c->moe.renorm, err));
    MF__TRY(mf__json_opt_double(text, where, spelt(text, scales), -1e6, 1e6, 1, &c->moe.scale, err));
    if (top > experts)
        return mf__fail(err, MF_E_FORMAT, "%s: %s is %lld, but %s is %lld", where, top_key, (long long)top, count,
                        (long long)experts);
    c->moe.n_experts = (int32_t)experts;
    c->moe.top_k = (int32_t)top;
    c->moe.n_inner = (int32_t)inner;
    c->moe.glu.kind = c->has.glu;
    MF__TRY(shared_experts(text, where, c, err));
    return groups(text, where, c, err);
}

mf_status mf__keys_sparse_step(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *only = json_object_get(text, "mlp_only_layers");
    int64_t step, inner;
    bool any = false;
    MF__TRY(mf__json_opt_int(text, where, "decoder_sparse_step", 1, MF_MAX_LAYERS, 1, &step, err));
    for (int32_t l = 0; l < c->n_layers; l++) {
        c->dense[l] = (l + 1) % step != 0;
        for (size_t i = 0; i < json_array_size(only); i++) {
            const json_t *v = json_array_get(only, i);
            c->dense[l] = c->dense[l] || (json_is_integer(v) && json_integer_value(v) == l);
        }
        any = any || c->dense[l];
    }
    if (!any) return MF_OK;
    MF__TRY(mf__json_get_int(text, where, "intermediate_size", 1, MAX_WIDTH, &inner, err));
    c->n_dense_inner = (int32_t)inner;
    return MF_OK;
}

static mf_status mlp_types(const json_t *types, const char *where, mf__config *c, mf_error *err) {
    if (json_array_size(types) != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: mlp_layer_types has %zu entries, num_hidden_layers is %d", where,
                        json_array_size(types), c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) {
        const char *name = json_string_value(json_array_get(types, (size_t)l));
        if (!name || (strcmp(name, "dense") && strcmp(name, "sparse")))
            return mf__fail(err, MF_E_UNSUPPORTED, "%s: mlp_layer_types[%d] is %s, known are dense and sparse", where,
                            l, name ? name : "not a string");
        c->dense[l] = !strcmp(name, "dense");
    }
    return MF_OK;
}

/* A list of 1 (experts) and 0 (none). */
static mf_status layer_freq(const json_t *list, const char *where, mf__config *c, mf_error *err) {
    if (json_array_size(list) != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: moe_layer_freq has %zu entries, num_hidden_layers is %d", where,
                        json_array_size(list), c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) c->dense[l] = !json_integer_value(json_array_get(list, (size_t)l));
    return MF_OK;
}

mf_status mf__keys_first_dense(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *types = json_object_get(text, "mlp_layer_types"), *freq = json_object_get(text, "moe_layer_freq");
    int64_t n, inner;
    bool any = false;
    if (json_is_integer(freq) && json_integer_value(freq) != 1)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: moe_layer_freq is %lld, known are 1 and a list", where,
                        (long long)json_integer_value(freq));
    MF__TRY(mf__json_opt_int(text, where, "first_k_dense_replace", 0, MF_MAX_LAYERS, 0, &n, err));
    for (int32_t l = 0; l < c->n_layers; l++) c->dense[l] = l < n;
    if (types && !json_is_null(types))
        MF__TRY(mlp_types(types, where, c, err));
    else if (json_is_array(freq))
        MF__TRY(layer_freq(freq, where, c, err));
    for (int32_t l = 0; l < c->n_layers; l++) any = any || c->dense[l];
    if (!any) return MF_OK;
    MF__TRY(mf__json_get_int(text, where, "intermediate_size", 1, MAX_WIDTH, &inner, err));
    c->n_dense_inner = (int32_t)inner;
    return MF_OK;
}

/* ---- kinds of layers -------------------------------------------------------------------------------------------- */

mf_status mf__keys_delta(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t kh, kd, vh, vd, kernel;
    MF__TRY(mf__json_opt_int(text, where, "linear_num_key_heads", 1, 4096, 16, &kh, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_key_head_dim", 1, 4096, 128, &kd, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_num_value_heads", 1, 4096, 32, &vh, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_value_head_dim", 1, 4096, 128, &vd, err));
    MF__TRY(mf__json_opt_int(text, where, "linear_conv_kernel_dim", 2, 8, 4, &kernel, err));
    if (vh % kh)
        return mf__fail(err, MF_E_FORMAT, "%s: %lld linear value heads cannot share %lld key heads", where,
                        (long long)vh, (long long)kh);
    c->delta.n_k_heads = (int32_t)kh, c->delta.k_dim = (int32_t)kd;
    c->delta.n_v_heads = (int32_t)vh, c->delta.v_dim = (int32_t)vd;
    c->delta.n_kernel = (int32_t)kernel;
    return MF_OK;
}

static mf_status layer_type(const json_t *value, const char *where, int layer, mf__config *c, mf_error *err) {
    const char *name = json_string_value(value);
    for (int m = 0; name && m < MF_MIX_COUNT; m++) {
        if (strcmp(name, mf__mixer_key((mf__mixer)m)) || !(c->has.mixers & 1u << m)) continue;
        c->mixer[layer] = (mf__mixer)m;
        return MF_OK;
    }
    return mf__fail(err, MF_E_UNSUPPORTED, "%s: layer_types[%d] is \"%s\", which the family %s does not have", where,
                    layer, name ? name : "(not a string)", c->family->name);
}

mf_status mf__keys_layer_types(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *types = json_object_get(text, "layer_types");
    if (!types || json_is_null(types)) return MF_OK;
    if (json_array_size(types) != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: layer_types has %zu entries, num_hidden_layers is %d", where,
                        json_array_size(types), c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) MF__TRY(layer_type(json_array_get(types, (size_t)l), where, l, c, err));
    return MF_OK;
}

mf_status mf__keys_window(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t window;
    bool any = false;
    for (int32_t l = 0; l < c->n_layers; l++) any = any || c->mixer[l] == MF_MIX_SLIDING;
    if (!any) return MF_OK;
    MF__TRY(mf__json_get_int(text, where, "sliding_window", 1, 1 << 30, &window, err));
    c->attn.window = (int32_t)window;
    return MF_OK;
}

/* ---- latent attention ------------------------------------------------------------------------------------------- */

/* What DeepSeek-V3 may say of its router. */
static mf_status want_router(const json_t *text, const char *where, const mf__config *c, mf_error *err) {
    if (c->has.route == MF_ROUTE_SOFTMAX) return mf__keys_want(text, where, "scoring_func", "softmax", err);
    MF__TRY(mf__keys_want(text, where, "scoring_func", "sigmoid", err));
    return mf__keys_want(text, where, "topk_method", "noaux_tc", err);
}

mf_status mf__keys_latent(const json_t *text, const char *where, double default_theta, mf__config *c, mf_error *err) {
    int64_t heads, rank = 1536, latent, nope, rot, v_dim;
    bool bias;
    MF__TRY(want_router(text, where, c, err));
    MF__TRY(mf__json_opt_bool(text, where, "attention_bias", false, &bias, err));
    c->has.bias_qkv = c->has.bias_o = bias;
    MF__TRY(mf__json_get_int(text, where, "num_attention_heads", 1, 4096, &heads, err));
    if (json_object_get(text, "q_lora_rank")) /* null means none; absent, the published models' value */
        MF__TRY(mf__json_opt_int(text, where, "q_lora_rank", 1, 1 << 20, 0, &rank, err));
    MF__TRY(mf__json_get_int(text, where, "kv_lora_rank", 1, 1 << 16, &latent, err));
    MF__TRY(mf__json_get_int(text, where, "qk_nope_head_dim", 1, 4096, &nope, err));
    MF__TRY(mf__json_get_int(text, where, "qk_rope_head_dim", 2, MF_ROPE_MAX, &rot, err));
    MF__TRY(mf__json_get_int(text, where, "v_head_dim", 1, 4096, &v_dim, err));
    MF__TRY(mf__json_opt_bool(text, where, "rope_interleave", true, &c->has.interleaved, err));
    if (rot % 2)
        return mf__fail(err, MF_E_FORMAT, "%s: qk_rope_head_dim is %lld, an even number is needed", where,
                        (long long)rot);
    for (int32_t l = 0; l < c->n_layers; l++) c->mixer[l] = MF_MIX_LATENT;
    c->attn.n_heads = c->attn.n_kv_heads = (int32_t)heads;
    c->attn.head_dim = (int32_t)(nope + rot);
    c->attn.n_rot = (int32_t)rot;
    c->mla.n_q_rank = (int32_t)rank, c->mla.n_latent = (int32_t)latent;
    c->mla.n_nope = (int32_t)nope, c->mla.n_rope = (int32_t)rot, c->mla.v_dim = (int32_t)v_dim;
    c->mla.eps = 1e-6f;
    return mf__rope_parse(text, where, default_theta, &c->rope, err);
}

mf_status mf__keys_index(const json_t *text, const char *where, bool interleaved, mf__config *c, mf_error *err) {
    int64_t heads, dim, top_k;
    MF__TRY(mf__json_opt_bool(text, where, "indexer_rope_interleave", interleaved, &interleaved, err));
    MF__TRY(mf__json_get_int(text, where, "index_n_heads", 1, 4096, &heads, err));
    MF__TRY(mf__json_get_int(text, where, "index_head_dim", 2, 4096, &dim, err));
    MF__TRY(mf__json_get_int(text, where, "index_topk", 1, MF_MAX_PICKS, &top_k, err));
    if (!c->mla.n_q_rank || dim < c->mla.n_rope)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: an index with heads of %lld channels needs q_lora_rank, and qk_rope_head_dim (%d) of at "
                        "most as many",
                        where, (long long)dim, c->mla.n_rope);
    for (int32_t l = 0; l < c->n_layers; l++) c->mixer[l] = MF_MIX_INDEXED;
    c->index.n_heads = (int32_t)heads, c->index.dim = (int32_t)dim;
    c->index.top_k = (int32_t)top_k, c->index.block = 1;
    c->index.interleaved = interleaved;
    return MF_OK;
}
