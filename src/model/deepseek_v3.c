/* deepseek_v3: DeepSeek-V3 and R1, Cogito-V2-671B; Kimi-K2 is the same with other numbers.
 *
 * Every layer is multi-head latent attention. The first few end in a plain feed-forward, the others in a mixture of
 * experts with sigmoid routing by groups and a shared expert that is simply added. */
#include "model/keys.h"
#include "model/names.h"
#include "model/parts.h"

static mf_status refuse_variants(const json_t *text, const char *where, mf_error *err) {
    int64_t freq;
    bool bias;
    MF__TRY(mf__keys_want(text, where, "scoring_func", "sigmoid", err));
    MF__TRY(mf__keys_want(text, where, "topk_method", "noaux_tc", err));
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
    c->attn.n_heads = c->attn.n_kv_heads = (int32_t)heads;
    c->attn.head_dim = (int32_t)(nope + rot);
    c->attn.n_rot = (int32_t)rot;
    c->mla.n_q_rank = (int32_t)rank, c->mla.n_latent = (int32_t)latent;
    c->mla.n_nope = (int32_t)nope, c->mla.n_rope = (int32_t)rot, c->mla.v_dim = (int32_t)v_dim;
    return mf__rope_parse(text, where, 1e4, &c->rope, err);
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    for (int32_t l = 0; l < c->n_layers; l++) c->mixer[l] = MF_MIX_LATENT;
    MF__TRY(refuse_variants(text, where, err));
    MF__TRY(attention(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return mf__keys_first_dense(text, where, c, err);
}

/* Newer MLX conversions store kv_b_proj as two tensors, the key half transposed. */
static void look(mf__config *c, const mf__catalog *cat) {
    char spelt[MF_MAX_NAME];
    c->mla.split_up = mf__names_find(cat, c->family, "model.layers.0.self_attn.embed_q.weight", spelt) != NULL;
}

static const char *const TYPES[] = {"deepseek_v3", "kimi_k2", NULL};
static const mf__alias ALIASES[] = {{"mlp.shared_expert.", "mlp.shared_experts."}, {NULL, NULL}};

const mf__family mf__deepseek_v3 = {.name = "deepseek_v3",
                                    .models = "DeepSeek-V3, DeepSeek-R1, Cogito-V2-671B, Kimi-K2",
                                    .model_types = TYPES,
                                    .witness = "self_attn.kv_a_proj_with_mqa.weight",
                                    .usual_ctx = 163840,
                                    .n_usual_eos = 1,
                                    .usual_eos = {1},
                                    .has = {.mixers = 1u << MF_MIX_LATENT,
                                            .interleaved = true,
                                            .yarn = true,
                                            .route = MF_ROUTE_SIGMOID,
                                            .choice_bias = true,
                                            .groups = true,
                                            .shared = MF_SHARED_PLAIN,
                                            .dense = true},
                                    .configure = configure,
                                    .aliases = ALIASES,
                                    .look = look};
