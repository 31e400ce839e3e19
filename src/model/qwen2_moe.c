/* qwen2_moe: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B. */
#include "model/keys.h"
#include "model/parts.h"

/* With use_sliding_window: as layer_types says, else in the layers from max_window_layers on. */
static mf_status windows(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    bool sliding;
    int64_t first;
    MF__TRY(mf__json_opt_bool(text, where, "use_sliding_window", false, &sliding, err));
    MF__TRY(mf__json_opt_int(text, where, "max_window_layers", 0, 1 << 20, 28, &first, err));
    for (int32_t l = 0; l < c->n_layers; l++) c->mixer[l] = sliding && l >= first ? MF_MIX_SLIDING : MF_MIX_FULL;
    MF__TRY(mf__keys_layer_types(text, where, c, err));
    return mf__keys_window(text, where, c, err);
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    bool bias;
    int64_t shared;
    MF__TRY(windows(text, where, c, err));
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__json_opt_bool(text, where, "qkv_bias", true, &bias, err));
    c->has.bias_qkv = bias;
    MF__TRY(mf__keys_rope(text, where, 1e6, 1, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", false, c, err));
    MF__TRY(mf__json_get_int(text, where, "shared_expert_intermediate_size", 1, 1 << 20, &shared, err));
    c->moe.n_shared_inner = (int32_t)shared;
    return mf__keys_sparse_step(text, where, c, err);
}

static const char *const TYPES[] = {"qwen2_moe", NULL};

const mf__family mf__qwen2_moe = {.name = "qwen2_moe",
                                  .models = "Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
                                  .model_types = TYPES,
                                  .usual_ctx = 32768,
                                  .has = {.mixers = 1u << MF_MIX_FULL | 1u << MF_MIX_SLIDING,
                                          .bias_qkv = true,
                                          .yarn = true,
                                          .route = MF_ROUTE_SOFTMAX,
                                          .shared = MF_SHARED_GATED,
                                          .dense = true},
                                  .configure = configure};
