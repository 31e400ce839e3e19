/* gemma4: the text model of Gemma 4 26B-A4B.
 *
 * Sliding and full layers have heads of their own sizes and ropes of their own; full layers may use keys as values.
 * Every layer has a dense feed-forward beside the experts, norms before and behind everything, and a scalar that the
 * residual is multiplied by at its end. The router reads the residual through a norm of its own. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/keys.h"
#include "model/parts.h"

/* Parts of the smaller Gemma 4 models that the one with experts does not use. */
static mf_status refuse_variants(const json_t *text, const char *where, mf_error *err) {
    int64_t per_layer, shared;
    bool moe;
    MF__TRY(mf__json_opt_bool(text, where, "enable_moe_block", false, &moe, err));
    MF__TRY(mf__json_opt_int(text, where, "hidden_size_per_layer_input", 0, 1 << 20, 0, &per_layer, err));
    MF__TRY(mf__json_opt_int(text, where, "num_kv_shared_layers", 0, MF_MAX_LAYERS, 0, &shared, err));
    MF__TRY(mf__keys_want(text, where, "hidden_activation", "gelu_pytorch_tanh", err));
    const char *both = json_string_value(json_object_get(text, "use_bidirectional_attention"));
    if (both && !strcmp(both, "all"))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: use_bidirectional_attention is \"all\"; text is read causally",
                        where);
    if (moe && !per_layer && !shared) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED,
                    "%s: of Gemma 4 the model with experts is supported (enable_moe_block true, no "
                    "hidden_size_per_layer_input, no num_kv_shared_layers)",
                    where);
}

/* What per_layer_config says of a full layer, which must be the same for all of them. */
static mf_status per_layer(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *all = json_object_get(text, "per_layer_config");
    int64_t dim, kv, first_dim = 0, first_kv = 0;
    for (int32_t l = 0; json_is_object(all) && l < c->n_layers; l++) {
        char key[16];
        snprintf(key, sizeof key, "%d", l);
        const json_t *own = json_object_get(all, key);
        if (!own) continue;
        const mf__attn *usual = c->mixer[l] == MF_MIX_SLIDING ? &c->sliding : &c->attn;
        MF__TRY(mf__json_opt_int(own, where, "head_dim", 2, 4096, usual->head_dim, &dim, err));
        MF__TRY(mf__json_opt_int(own, where, "num_key_value_heads", 1, 4096, usual->n_kv_heads, &kv, err));
        bool same = c->mixer[l] == MF_MIX_SLIDING ? dim == usual->head_dim && kv == usual->n_kv_heads
                                                  : !first_dim || (dim == first_dim && kv == first_kv);
        if (!same)
            return mf__fail(err, MF_E_UNSUPPORTED, "%s: per_layer_config: layer %d is not like the others of its kind",
                            where, l);
        if (c->mixer[l] == MF_MIX_SLIDING) continue;
        first_dim = dim, first_kv = kv;
    }
    if (!first_dim) return MF_OK;
    c->attn.head_dim = (int32_t)first_dim, c->attn.n_kv_heads = (int32_t)first_kv;
    return MF_OK;
}

static mf_status heads(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t dim, kv;
    MF__TRY(mf__keys_attention(text, where, 256, c, err));
    c->attn.scale = 1;
    c->sliding = c->attn;
    MF__TRY(mf__json_opt_int(text, where, "global_head_dim", 2, 4096, c->attn.head_dim, &dim, err));
    MF__TRY(mf__json_opt_int(text, where, "num_global_key_value_heads", 1, 4096, c->attn.n_kv_heads, &kv, err));
    MF__TRY(mf__json_opt_bool(text, where, "attention_k_eq_v", false, &c->attn.k_is_v, err));
    c->attn.head_dim = (int32_t)dim;
    if (c->attn.k_is_v) c->attn.n_kv_heads = (int32_t)kv; /* else they are as many as in the others */
    MF__TRY(per_layer(text, where, c, err));
    if (c->attn.n_heads % c->attn.n_kv_heads)
        return mf__fail(err, MF_E_FORMAT, "%s: %d query heads cannot share %d key/value heads in full layers", where,
                        c->attn.n_heads, c->attn.n_kv_heads);
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t dense;
    double cap;
    MF__TRY(refuse_variants(text, where, err));
    for (int32_t l = 0; l < c->n_layers; l++)
        c->mixer[l] = (l + 1) % 6 && l + 1 < c->n_layers ? MF_MIX_SLIDING : MF_MIX_FULL;
    MF__TRY(mf__keys_layer_types(text, where, c, err));
    MF__TRY(mf__keys_window(text, where, c, err));
    MF__TRY(heads(text, where, c, err));
    MF__TRY(mf__keys_rope_of(text, where, MF_MIX_FULL, 1e6, 1, c, err));
    MF__TRY(mf__keys_rope_of(text, where, MF_MIX_SLIDING, 1e4, 1, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    MF__TRY(mf__json_get_int(text, where, "intermediate_size", 1, 1 << 20, &dense, err));
    MF__TRY(mf__json_opt_double(text, where, "final_logit_softcapping", 1e-3, 1e6, 0, &cap, err));
    if (!json_object_get(text, "tie_word_embeddings")) c->tied_head = true;
    c->moe.n_shared_inner = (int32_t)dense;
    c->embed_scale = (float)sqrt(c->n_hidden);
    c->logit_cap = (float)cap;
    return MF_OK;
}

static const char *const TYPES[] = {"gemma4_text", "gemma4", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.", "router.proj."}, {NULL, NULL}};
static const mf__expert_spelling FUSED = {
    .weight = {"experts.gate_up_proj", "experts.gate_up_proj", "experts.down_proj"}, .fuse = MF_FUSE_HALVES};
static const mf__expert_spelling MLX = {.weight = {"experts.switch_glu.gate_proj.weight",
                                                   "experts.switch_glu.up_proj.weight",
                                                   "experts.switch_glu.down_proj.weight"}};
static const mf__expert_spelling *const EXPERTS[] = {&FUSED, &MLX, NULL};

const mf__family mf__gemma4 = {.name = "gemma4",
                               .models = "Gemma-4-26B-A4B",
                               .model_types = TYPES,
                               .witness = "router.per_expert_scale",
                               .usual_ctx = 262144,
                               .n_usual_eos = 2,
                               .usual_eos = {1, 106},
                               .act = "gelu_pytorch_tanh",
                               .has = {.mixers = 1u << MF_MIX_FULL | 1u << MF_MIX_SLIDING,
                                       .bias_qkv = true,
                                       .bias_o = true,
                                       .qk_norm = MF_QK_NORM_HEAD,
                                       .value_norm = true,
                                       .key_is_value = true,
                                       .rope_part = true,
                                       .route = MF_ROUTE_SOFTMAX,
                                       .sandwich = true,
                                       .route_apart = true,
                                       .shared = MF_SHARED_DENSE,
                                       .glu = MF_GLU_GELU},
                               .configure = configure,
                               .aliases = ALIASES,
                               .experts = EXPERTS};
