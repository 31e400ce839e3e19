/* hy_v3: Hy3-preview (Hunyuan 3). */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    MF__TRY(mf__keys_want_bool(text, where, "qk_norm", true, err));
    MF__TRY(mf__keys_want_bool(text, where, "route_norm", true, err));
    MF__TRY(mf__keys_want_bool(text, where, "moe_router_use_sigmoid", true, err));
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e4, 1, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return mf__keys_first_dense(text, where, c, err);
}

static const char *const TYPES[] = {"hy_v3", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.e_score_correction_bias", "mlp.expert_bias"},
                                    {"mlp.gate.", "mlp.router.gate."},
                                    {"mlp.shared_expert.", "mlp.shared_mlp."},
                                    {NULL, NULL}};

const mf__family mf__hy_v3 = {.name = "hy_v3",
                              .models = "Hy3-preview",
                              .model_types = TYPES,
                              .usual_ctx = 262144,
                              .has = {.mixers = 1u << MF_MIX_FULL,
                                      .bias_qkv = true,
                                      .bias_o = true,
                                      .qk_norm = MF_QK_NORM_HEAD,
                                      .route = MF_ROUTE_SIGMOID,
                                      .choice_bias = true,
                                      .shared = MF_SHARED_PLAIN,
                                      .dense = true},
                              .configure = configure,
                              .aliases = ALIASES};
