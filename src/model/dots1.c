/* dots1: dots.llm1. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e7, 1, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    MF__TRY(mf__keys_first_dense(text, where, c, err));
    MF__TRY(mf__keys_layer_types(text, where, c, err));
    return mf__keys_window(text, where, c, err);
}

static const char *const TYPES[] = {"dots1", NULL};

const mf__family mf__dots1 = {.name = "dots1",
                              .models = "dots.llm1",
                              .model_types = TYPES,
                              .usual_ctx = 32768,
                              .has = {.mixers = 1u << MF_MIX_FULL | 1u << MF_MIX_SLIDING,
                                      .bias_qkv = true,
                                      .bias_o = true,
                                      .qk_norm = MF_QK_NORM_HEAD,
                                      .route = MF_ROUTE_SIGMOID,
                                      .choice_bias = true,
                                      .groups = true,
                                      .shared = MF_SHARED_PLAIN,
                                      .dense = true},
                              .configure = configure,
                              .aliases = mf__aliases_of_deepseek};
