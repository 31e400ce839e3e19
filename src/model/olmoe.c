/* olmoe: OLMoE-1B-7B. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    double clip;
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e4, 1, c, err));
    MF__TRY(mf__json_opt_double(text, where, "clip_qkv", 1e-6, 1e6, 0, &clip, err));
    c->attn.clip = (float)clip;
    return mf__keys_moe(text, where, "intermediate_size", false, c, err);
}

static const char *const TYPES[] = {"olmoe", NULL};

const mf__family mf__olmoe = {.name = "olmoe",
                              .models = "OLMoE-1B-7B",
                              .model_types = TYPES,
                              .usual_ctx = 4096,
                              .has = {.mixers = 1u << MF_MIX_FULL,
                                      .bias_qkv = true,
                                      .bias_o = true,
                                      .qk_norm = MF_QK_NORM_JOINT,
                                      .clip = true,
                                      .route = MF_ROUTE_SOFTMAX},
                              .configure = configure};
