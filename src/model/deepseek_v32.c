/* deepseek_v32: DeepSeek-V3.2-Exp, DeepSeek-V3.2. DeepSeek-V3 with an index in every layer, which turns halves where
 * the attention turns pairs. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    MF__TRY(mf__keys_latent(text, where, 1e4, c, err));
    MF__TRY(mf__keys_index(text, where, false, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return mf__keys_first_dense(text, where, c, err);
}

static const char *const TYPES[] = {"deepseek_v32", NULL};

const mf__family mf__deepseek_v32 = {.name = "deepseek_v32",
                                     .models = "DeepSeek-V3.2, DeepSeek-V3.2-Exp",
                                     .model_types = TYPES,
                                     .usual_ctx = 163840,
                                     .n_usual_eos = 1,
                                     .usual_eos = {1},
                                     .has = {.mixers = 1u << MF_MIX_INDEXED,
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
