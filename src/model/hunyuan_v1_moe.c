/* hunyuan_v1_moe: Hunyuan-A13B. Every layer has experts and a shared one of the same width; the norms of queries and
 * keys come after rope. Its configs may give a number for every layer: they must be equal. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    static const char *const counts[] = {"num_shared_expert", "n_shared_experts", "num_shared_experts"};
    bool said = false, norm, mixed;
    MF__TRY(mf__keys_want_bool(text, where, "use_cla", false, err));
    MF__TRY(mf__json_opt_bool(text, where, "use_qk_norm", true, &norm, err));
    MF__TRY(mf__json_opt_bool(text, where, "use_mixed_mlp_moe", true, &mixed, err));
    if (!norm) c->has.qk_norm = MF_QK_NORM_NONE;
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e4, 1, c, err));
    const char *width = json_object_get(text, "moe_intermediate_size") ? "moe_intermediate_size" : "intermediate_size";
    MF__TRY(mf__keys_moe(text, where, width, true, c, err));
    for (size_t i = 0; i < MF__COUNT(counts); i++) said = said || json_object_get(text, counts[i]);
    if (!said) c->moe.n_shared_inner = c->moe.n_inner;
    if (!mixed) c->moe.n_shared_inner = 0;
    return MF_OK;
}

static const char *const TYPES[] = {"hunyuan_v1_moe", "hunyuan", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.", "mlp.gate.wg."},
                                    {"mlp.shared_expert.", "mlp.shared_mlp."},
                                    {"self_attn.q_norm.", "self_attn.query_layernorm."},
                                    {"self_attn.k_norm.", "self_attn.key_layernorm."},
                                    {NULL, NULL}};

const mf__family mf__hunyuan_v1_moe = {.name = "hunyuan_v1_moe",
                                       .models = "Hunyuan-A13B",
                                       .model_types = TYPES,
                                       .usual_ctx = 32768,
                                       .has = {.mixers = 1u << MF_MIX_FULL,
                                               .bias_qkv = true,
                                               .bias_o = true,
                                               .qk_norm = MF_QK_NORM_HEAD,
                                               .qk_norm_last = true,
                                               .rope_alpha = true,
                                               .route = MF_ROUTE_SOFTMAX,
                                               .shared = MF_SHARED_PLAIN},
                                       .configure = configure,
                                       .aliases = ALIASES};
