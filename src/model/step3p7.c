/* step3p7: the text model of Step-3.7-Flash, and Step-3.5-Flash.
 *
 * Most layers see a sliding window, with more query heads and another rope than the full ones; every head's output has
 * a gate. In some layers the activation is cut behind silu. transformers spells the config one way (rope_parameters,
 * mlp_layer_types), the published one is another (lists by layer, attention_other_setting, moe_layers_enum). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/keys.h"
#include "model/names.h"
#include "model/parts.h"

/* A list by layer, which may go on for layers that predict further tokens. NULL: there is none. */
static mf_status list_of(const json_t *text, const char *where, const char *key, const mf__config *c,
                         const json_t **out, mf_error *err) {
    const json_t *list = json_object_get(text, key);
    *out = json_is_array(list) ? list : NULL;
    if (!*out || json_array_size(list) >= (size_t)c->n_layers) return MF_OK;
    return mf__fail(err, MF_E_FORMAT, "%s: %s has %zu entries, num_hidden_layers is %d", where, key,
                    json_array_size(list), c->n_layers);
}

static mf_status layer_kinds(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *types;
    int64_t window;
    MF__TRY(list_of(text, where, "layer_types", c, &types, err));
    for (int32_t l = 0; l < c->n_layers; l++) {
        const char *name = json_string_value(json_array_get(types, (size_t)l));
        bool full = types ? name && !strcmp(name, mf__mixer_key(MF_MIX_FULL)) : l % 4 == 0;
        c->mixer[l] = full ? MF_MIX_FULL : MF_MIX_SLIDING; /* what is neither is refused by mf__config_parse */
    }
    MF__TRY(mf__json_opt_int(text, where, "sliding_window", 1, 1 << 30, 512, &window, err));
    c->attn.window = (int32_t)window;
    return MF_OK;
}

static mf_status share(const char *where, mf__attn *a, int64_t heads, int64_t kv, mf_error *err) {
    if (heads % kv)
        return mf__fail(err, MF_E_FORMAT, "%s: %lld query heads cannot share %lld key/value heads", where,
                        (long long)heads, (long long)kv);
    a->n_heads = (int32_t)heads, a->n_kv_heads = (int32_t)kv;
    return MF_OK;
}

static mf_status heads(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *other = json_object_get(text, "attention_other_setting");
    int64_t kv, n, other_kv, dim;
    double scalar;
    MF__TRY(mf__keys_attention(text, where, 128, c, err));
    MF__TRY(mf__json_opt_bool(text, where, "use_head_wise_attn_gate", true, &c->has.head_gate, err));
    MF__TRY(mf__json_opt_int(text, where, "num_attention_groups", 1, 4096, c->attn.n_kv_heads, &kv, err));
    MF__TRY(mf__json_opt_double(text, where, "query_pre_attn_scalar", 1e-3, 1e6, c->attn.head_dim, &scalar, err));
    MF__TRY(share(where, &c->attn, c->attn.n_heads, kv, err));
    c->attn.scale = (float)(1 / sqrt(scalar));
    c->sliding = c->attn;
    n = c->attn.n_heads, other_kv = kv, dim = c->attn.head_dim;
    MF__TRY(mf__json_opt_int(text, where, "num_sliding_attention_heads", 1, 4096, n, &n, err));
    if (json_is_object(other)) {
        MF__TRY(mf__json_opt_int(other, where, "num_attention_heads", 1, 4096, n, &n, err));
        MF__TRY(mf__json_opt_int(other, where, "num_attention_groups", 1, 4096, kv, &other_kv, err));
        MF__TRY(mf__json_opt_int(other, where, "head_dim", 2, 4096, dim, &dim, err));
    }
    c->sliding.head_dim = (int32_t)dim;
    return share(where, &c->sliding, n, other_kv, err);
}

/* A number of the layers of one kind, from a list by layer (or one number for all); they must have the same. */
static mf_status number_of(const json_t *text, const char *where, const char *key, mf__mixer mixer, double otherwise,
                           const mf__config *c, json_t **out, mf_error *err) {
    const json_t *list, *first = NULL;
    MF__TRY(list_of(text, where, key, c, &list, err));
    for (int32_t l = 0; list && l < c->n_layers; l++) {
        const json_t *v = json_array_get(list, (size_t)l);
        if (c->mixer[l] != mixer) continue;
        if (!first) first = v;
        if (!json_is_number(v) || json_number_value(v) != json_number_value(first))
            return mf__fail(err, MF_E_UNSUPPORTED, "%s: %s[%d] is not as in the other layers of its kind", where, key,
                            l);
    }
    if (!list && json_is_number(json_object_get(text, key))) first = json_object_get(text, key);
    *out = json_real(first ? json_number_value(first) : otherwise);
    return *out ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a config");
}

/* rope_theta and partial_rotary_factors by layer, and rope_scaling for the kinds in yarn_only_types, as an entry of
 * rope_parameters. */
static mf_status rope_of(const json_t *text, const char *where, mf__mixer mixer, const mf__config *c, json_t *all,
                         mf_error *err) {
    const json_t *scaling = json_object_get(text, "rope_scaling"), *only = json_object_get(text, "yarn_only_types");
    json_t *theta = NULL, *part = NULL;
    bool scaled = !json_array_size(only), full = mixer == MF_MIX_FULL;
    for (size_t i = 0; i < json_array_size(only); i++) {
        const char *name = json_string_value(json_array_get(only, i));
        scaled = scaled || (name && !strcmp(name, mf__mixer_key(mixer)));
    }
    json_t *own = scaled && json_is_object(scaling) ? json_copy((json_t *)scaling) : json_object();
    mf_status st = number_of(text, where, "rope_theta", mixer, full ? 5e6 : 1e4, c, &theta, err);
    if (st == MF_OK) st = number_of(text, where, "partial_rotary_factors", mixer, full ? 0.5 : 1, c, &part, err);
    json_object_set_new(own, "rope_theta", theta);
    json_object_set_new(own, "partial_rotary_factor", part);
    json_object_set_new(all, mf__mixer_key(mixer), own);
    return st;
}

static mf_status ropes(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    json_t *plain = NULL, *all = NULL;
    mf_status st = MF_OK;
    if (!json_is_object(json_object_get(text, "rope_parameters"))) {
        plain = json_copy((json_t *)text), all = json_object();
        if (!plain || !all) st = mf__fail(err, MF_E_NOMEM, "no memory for a config");
        if (st == MF_OK) st = rope_of(text, where, MF_MIX_FULL, c, all, err);
        if (st == MF_OK) st = rope_of(text, where, MF_MIX_SLIDING, c, all, err);
        json_object_del(plain, "rope_theta");
        json_object_del(plain, "rope_scaling");
        json_object_set_new(plain, "rope_parameters", all);
        text = plain;
    }
    if (st == MF_OK) st = mf__keys_rope_of(text, where, MF_MIX_FULL, 5e6, 0.5, c, err);
    if (st == MF_OK) st = mf__keys_rope_of(text, where, MF_MIX_SLIDING, 1e4, 1, c, err);
    json_decref(plain);
    return st;
}

/* mlp_layer_types; or moe_layers_enum, "3,4,5". */
static mf_status dense_layers(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const char *list = json_string_value(json_object_get(text, "moe_layers_enum"));
    int64_t inner;
    if (!list) return mf__keys_first_dense(text, where, c, err);
    for (int32_t l = 0; l < c->n_layers; l++) c->dense[l] = true;
    for (const char *at = list; *at;) {
        char *end;
        long l = strtol(at, &end, 10);
        if (end == at || (*end && *end != ','))
            return mf__fail(err, MF_E_FORMAT, "%s: moe_layers_enum is \"%.80s\", expected numbers like \"3,4,5\"",
                            where, list);
        if (l >= 0 && l < c->n_layers) c->dense[l] = false;
        at = *end ? end + 1 : end;
    }
    MF__TRY(mf__json_get_int(text, where, "intermediate_size", 1, 1 << 20, &inner, err));
    c->n_dense_inner = (int32_t)inner;
    return MF_OK;
}

/* 0 and null: the layer has none. */
static mf_status limits(const json_t *text, const char *where, const char *key, const mf__config *c, float *out,
                        mf_error *err) {
    const json_t *list;
    MF__TRY(list_of(text, where, key, c, &list, err));
    for (int32_t l = 0; list && l < c->n_layers; l++) {
        const json_t *v = json_array_get(list, (size_t)l);
        out[l] = json_is_number(v) ? (float)json_number_value(v) : 0;
        if ((!json_is_number(v) && !json_is_null(v)) || out[l] < 0)
            return mf__fail(err, MF_E_FORMAT, "%s: %s[%d] is %s, expected null or a number that is not negative", where,
                            key, l, json_is_number(v) ? "negative" : mf__json_type_name(v));
    }
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t shared;
    MF__TRY(mf__keys_want(text, where, "moe_router_activation", "sigmoid", err));
    MF__TRY(mf__keys_want_bool(text, where, "norm_expert_weight", true, err));
    MF__TRY(mf__keys_want_bool(text, where, "use_moe_router_bias", true, err));
    MF__TRY(mf__keys_want_bool(text, where, "zero_centered", true, err));
    MF__TRY(layer_kinds(text, where, c, err));
    MF__TRY(heads(text, where, c, err));
    MF__TRY(ropes(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    MF__TRY(mf__json_opt_int(text, where, "share_expert_dim", 1, 1 << 20, c->moe.n_inner, &shared, err));
    c->moe.n_shared_inner = (int32_t)shared;
    MF__TRY(limits(text, where, "swiglu_limits", c, c->limit, err));
    MF__TRY(limits(text, where, "swiglu_limits_shared", c, c->dense_limit, err));
    return dense_layers(text, where, c, err);
}

/* MLX's files have norms as they are. */
static void look(mf__config *c, const mf__catalog *cat) {
    for (int32_t l = 0; l < c->n_layers; l++) {
        char name[MF_MAX_NAME], spelt[MF_MAX_NAME];
        snprintf(name, sizeof name, "model.layers.%d.mlp.switch_mlp.gate_proj.weight", l);
        c->plain_norms = c->plain_norms || mf__names_find(cat, c->family, name, spelt);
    }
}

static const char *const TYPES[] = {"step3p7", "step3p5", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.e_score_correction_bias", "moe.router_bias"},
                                    {"mlp.gate.e_score_correction_bias", "mlp.gate.router_bias"},
                                    {"mlp.gate.", "moe.gate."},
                                    {"mlp.gate.", "mlp.gate.gate."},
                                    {"mlp.shared_expert.", "share_expert."},
                                    {"mlp.shared_expert.", "mlp.share_expert."},
                                    {NULL, NULL}};
static const mf__expert_spelling STACKED = {
    .weight = {"moe.gate_proj.weight", "moe.up_proj.weight", "moe.down_proj.weight"}};
static const mf__expert_spelling MLX = {
    .weight = {"mlp.switch_mlp.gate_proj.weight", "mlp.switch_mlp.up_proj.weight", "mlp.switch_mlp.down_proj.weight"}};
static const mf__expert_spelling *const EXPERTS[] = {&STACKED, &MLX, NULL};

const mf__family mf__step3p7 = {.name = "step3p7",
                                .models = "Step-3.5-Flash, Step-3.7-Flash",
                                .model_types = TYPES,
                                .usual_ctx = 262144,
                                .has = {.mixers = 1u << MF_MIX_FULL | 1u << MF_MIX_SLIDING,
                                        .head_gate = true,
                                        .qk_norm = MF_QK_NORM_HEAD,
                                        .zero_centred = true,
                                        .route = MF_ROUTE_SIGMOID,
                                        .choice_bias = true,
                                        .shared = MF_SHARED_PLAIN,
                                        .glu = MF_GLU_CUT,
                                        .dense = true},
                                .configure = configure,
                                .aliases = ALIASES,
                                .experts = EXPERTS,
                                .zero_centred_norms = mf__zero_centred_norms,
                                .look = look};
