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

mf_status mf__keys_rope(const json_t *text, const char *where, double default_theta, double default_partial,
                        mf__config *c, mf_error *err) {
    const json_t *newer = json_object_get(text, "rope_parameters");
    double partial;
    MF__TRY(mf__rope_parse(text, where, default_theta, &c->rope, err));
    if (c->rope.yarn && !c->has.yarn)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: rope scaling \"yarn\" is not supported by the family %s", where,
                        c->family->name);
    MF__TRY(mf__json_opt_double(text, where, "partial_rotary_factor", 0, 1, default_partial, &partial, err));
    if (json_is_object(newer))
        MF__TRY(mf__json_opt_double(newer, where, "partial_rotary_factor", 0, 1, partial, &partial, err));
    c->attn.n_rot = (int32_t)(c->attn.head_dim * partial);
    if (c->attn.n_rot < 2 || c->attn.n_rot % 2 || c->attn.n_rot > MF_ROPE_MAX)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: head_dim %d with partial_rotary_factor %g rotates %d channels; an even number from 2 to "
                        "%d is needed",
                        where, c->attn.head_dim, partial, c->attn.n_rot, MF_ROPE_MAX);
    return MF_OK;
}

mf_status mf__keys_want(const json_t *text, const char *where, const char *key, const char *value, mf_error *err) {
    const json_t *found = json_object_get(text, key);
    const char *name = json_string_value(found);
    if (!found || json_is_null(found) || (name && !strcmp(name, value))) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED, "%s: %s is %s, known is \"%s\"", where, key,
                    name ? name : mf__json_type_name(found), value);
}

/* ---- experts ---------------------------------------------------------------------------------------------------- */

static mf_status groups(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t n_groups, top_groups;
    MF__TRY(mf__json_opt_int(text, where, "n_group", 1, 65536, 1, &n_groups, err));
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

mf_status mf__keys_moe(const json_t *text, const char *where, const char *width_key, bool default_renorm, mf__config *c,
                       mf_error *err) {
    static const char *const counts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const char *count = counts[0];
    int64_t experts, top, inner;
    for (size_t i = 0; i < MF__COUNT(counts); i++)
        if (json_object_get(text, counts[i])) count = counts[i];
    MF__TRY(mf__json_get_int(text, where, count, 1, 65536, &experts, err));
    MF__TRY(mf__json_get_int(text, where, "num_experts_per_tok", 1, MF_MAX_TOPK, &top, err));
    MF__TRY(mf__json_get_int(text, where, width_key, 1, MAX_WIDTH, &inner, err));
    MF__TRY(mf__json_opt_bool(text, where, "norm_topk_prob", default_renorm, &c->moe.renorm, err));
    MF__TRY(mf__json_opt_double(text, where, "routed_scaling_factor", -1e6, 1e6, 1, &c->moe.scale, err));
    if (top > experts)
        return mf__fail(err, MF_E_FORMAT, "%s: num_experts_per_tok is %lld, but %s is %lld", where, (long long)top,
                        count, (long long)experts);
    c->moe.n_experts = (int32_t)experts;
    c->moe.top_k = (int32_t)top;
    c->moe.n_inner = (int32_t)inner;
    c->moe.glu.kind = c->has.glu;
    if (c->has.shared == MF_SHARED_PLAIN) {
        int64_t shared;
        MF__TRY(mf__json_opt_int(text, where, "n_shared_experts", 0, 64, 0, &shared, err));
        c->moe.n_shared_inner = (int32_t)(shared * inner);
    }
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

mf_status mf__keys_first_dense(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t n, inner;
    MF__TRY(mf__json_opt_int(text, where, "first_k_dense_replace", 0, MF_MAX_LAYERS, 0, &n, err));
    if (!n) return MF_OK;
    MF__TRY(mf__json_get_int(text, where, "intermediate_size", 1, MAX_WIDTH, &inner, err));
    c->n_dense_inner = (int32_t)inner;
    for (int32_t l = 0; l < n && l < c->n_layers; l++) c->dense[l] = true;
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
