/* lfm2_moe: LFM2-8B-A1B, LFM2-24B-A2B. Most layers have a short convolution in place of attention. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t dense, inner, kernel;
    double eps;
    MF__TRY(mf__keys_want_bool(text, where, "conv_bias", false, err));
    MF__TRY(mf__json_opt_bool(text, where, "use_expert_bias", true, &c->has.choice_bias, err));
    MF__TRY(mf__json_opt_double(text, where, "norm_eps", 0, 1, 1e-5, &eps, err));
    MF__TRY(mf__json_opt_int(text, where, "conv_L_cache", 2, 8, 3, &kernel, err));
    MF__TRY(mf__json_opt_int(text, where, "num_dense_layers", 0, MF_MAX_LAYERS, 2, &dense, err));
    MF__TRY(mf__json_get_int(text, where, "intermediate_size", 1, 1 << 20, &inner, err));
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e6, 1, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    if (!json_is_array(json_object_get(text, "layer_types")))
        return mf__fail(err, MF_E_FORMAT, "%s: layer_types is missing: which layers are convolutions?", where);
    MF__TRY(mf__keys_layer_types(text, where, c, err));
    if (!json_object_get(text, "tie_word_embeddings")) c->tied_head = true;
    for (int32_t l = 0; l < c->n_layers; l++) c->dense[l] = l < dense;
    c->eps = (float)eps;
    c->moe.eps = 1e-6f;
    c->delta.n_kernel = (int32_t)kernel;
    c->n_dense_inner = (int32_t)inner;
    return MF_OK;
}

static const char *const TYPES[] = {"lfm2_moe", NULL};
static const mf__alias ALIASES[] = {{"input_layernorm.", "operator_norm."},
                                    {"post_attention_layernorm.", "ffn_norm."},
                                    {"model.norm.", "model.embedding_norm."},
                                    {"self_attn.o_proj.", "self_attn.out_proj."},
                                    {"self_attn.q_norm.", "self_attn.q_layernorm."},
                                    {"self_attn.k_norm.", "self_attn.k_layernorm."},
                                    {"mlp.gate.e_score_correction_bias", "feed_forward.expert_bias"},
                                    {"mlp.gate.", "feed_forward.gate."},
                                    {"mlp.gate_proj.", "feed_forward.w1."},
                                    {"mlp.up_proj.", "feed_forward.w3."},
                                    {"mlp.down_proj.", "feed_forward.w2."},
                                    {NULL, NULL}};
static const mf__expert_spelling EACH = {.weight = {"feed_forward.experts.#.w1.weight",
                                                    "feed_forward.experts.#.w3.weight",
                                                    "feed_forward.experts.#.w2.weight"}};
static const mf__expert_spelling SWITCH = {.weight = {"feed_forward.switch_mlp.gate_proj.weight",
                                                      "feed_forward.switch_mlp.up_proj.weight",
                                                      "feed_forward.switch_mlp.down_proj.weight"}};
static const mf__expert_spelling *const EXPERTS[] = {&EACH, &SWITCH, NULL};

const mf__family mf__lfm2_moe = {.name = "lfm2_moe",
                                 .models = "LFM2-8B-A1B, LFM2-24B-A2B",
                                 .model_types = TYPES,
                                 .witness = "conv.in_proj.weight",
                                 .usual_ctx = 128000,
                                 .has = {.mixers = 1u << MF_MIX_FULL | 1u << MF_MIX_CONV,
                                         .qk_norm = MF_QK_NORM_HEAD,
                                         .route = MF_ROUTE_SIGMOID,
                                         .choice_bias = true,
                                         .shared = MF_SHARED_NONE,
                                         .dense = true},
                                 .configure = configure,
                                 .aliases = ALIASES,
                                 .experts = EXPERTS};
