/* glm4_moe_lite: GLM-4.7-Flash. DeepSeek-V3 in small, with GLM's numbers. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    MF__TRY(mf__keys_latent(text, where, 1e6, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return mf__keys_first_dense(text, where, c, err);
}

static const char *const TYPES[] = {"glm4_moe_lite", NULL};

const mf__family mf__glm4_moe_lite = {.name = "glm4_moe_lite",
                                      .models = "GLM-4.7-Flash",
                                      .model_types = TYPES,
                                      .usual_ctx = 202752,
                                      .has = {.mixers = 1u << MF_MIX_LATENT,
                                              .bias_qkv = true,
                                              .bias_o = true,
                                              .interleaved = true,
                                              .yarn = true,
                                              .route = MF_ROUTE_SIGMOID,
                                              .choice_bias = true,
                                              .groups = true,
                                              .shared = MF_SHARED_PLAIN,
                                              .dense = true},
                                      .configure = configure,
                                      .aliases = mf__aliases_of_deepseek,
                                      .look = mf__look_latent};
