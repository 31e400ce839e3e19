/* mistral4: Mistral-Small-4. Latent attention as in DeepSeek-V3, with queries that grow with their position; the router
 * is a softmax, by groups. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *rope = json_object_get(text, "rope_parameters");
    double beta = 0;
    MF__TRY(mf__keys_latent(text, where, 1e4, c, err));
    if (json_is_object(rope)) MF__TRY(mf__json_opt_double(rope, where, "llama_4_scaling_beta", 0, 1e3, 0, &beta, err));
    if (beta > 0 && !c->rope.yarn)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: llama_4_scaling_beta without YaRN, whose original_max_position_embeddings it counts in",
                        where);
    c->attn.grow = (float)beta;
    c->attn.grow_step = (float)c->rope.original_ctx;
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return mf__keys_first_dense(text, where, c, err);
}

static const char *const TYPES[] = {"mistral4", NULL};

const mf__family mf__mistral4 = {.name = "mistral4",
                                 .models = "Mistral-Small-4-119B",
                                 .model_types = TYPES,
                                 .usual_ctx = 262144,
                                 .has = {.mixers = 1u << MF_MIX_LATENT,
                                         .grow = true,
                                         .bias_qkv = true,
                                         .bias_o = true,
                                         .interleaved = true,
                                         .yarn = true,
                                         .route = MF_ROUTE_SOFTMAX,
                                         .groups = true,
                                         .shared = MF_SHARED_PLAIN,
                                         .dense = true},
                                 .configure = configure,
                                 .aliases = mf__aliases_of_deepseek,
                                 .look = mf__look_latent};
