/* deepseek_v3: DeepSeek-V3 and R1, Cogito-V2-671B; Kimi-K2 is the same with other numbers.
 *
 * Every layer is multi-head latent attention. The first few end in a plain feed-forward, the others in a mixture of
 * experts with sigmoid routing by groups and a shared expert that is simply added. */
#include "model/keys.h"
#include "model/names.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    MF__TRY(mf__keys_latent(text, where, 1e4, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return mf__keys_first_dense(text, where, c, err);
}

static const char *const TYPES[] = {"deepseek_v3", "kimi_k2", NULL};

const mf__family mf__deepseek_v3 = {.name = "deepseek_v3",
                                    .models = "DeepSeek-V3, DeepSeek-R1, Cogito-V2-671B, Kimi-K2",
                                    .model_types = TYPES,
                                    .witness = "self_attn.kv_a_proj_with_mqa.weight",
                                    .usual_ctx = 163840,
                                    .n_usual_eos = 1,
                                    .usual_eos = {1},
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
