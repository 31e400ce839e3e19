/* glm4_moe: GLM-4.5, GLM-4.6, GLM-4.5-Air. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    bool qk_norm;
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e4, 0.5, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    MF__TRY(mf__keys_first_dense(text, where, c, err));
    MF__TRY(mf__json_opt_bool(text, where, "use_qk_norm", false, &qk_norm, err));
    if (!qk_norm) c->has.qk_norm = MF_QK_NORM_NONE;
    return MF_OK;
}

static const char *const TYPES[] = {"glm4_moe", NULL};

const mf__family mf__glm4_moe = {.name = "glm4_moe",
                                 .models = "GLM-4.5, GLM-4.6, GLM-4.5-Air",
                                 .model_types = TYPES,
                                 .witness = "mlp.gate.e_score_correction_bias",
                                 .usual_ctx = 131072,
                                 .n_usual_eos = 2,
                                 .usual_eos = {151329, 151336},
                                 .has = {.mixers = 1u << MF_MIX_FULL,
                                         .bias_qkv = true,
                                         .qk_norm = MF_QK_NORM_HEAD,
                                         .route = MF_ROUTE_SIGMOID,
                                         .choice_bias = true,
                                         .groups = true,
                                         .shared = MF_SHARED_PLAIN,
                                         .dense = true},
                                 .configure = configure,
                                 .aliases = mf__aliases_of_deepseek};
