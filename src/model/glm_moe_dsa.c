/* glm_moe_dsa: GLM-5. DeepSeek-V3's latent attention over rows that an index picks; some layers have no index and see
 * what the nearest earlier one picked. */
#include <string.h>

#include "model/keys.h"
#include "model/parts.h"

/* indexer_types ("full", "shared"), or index_topk_pattern ("FSSF..."), or index_topk_freq with index_skip_topk_offset:
 * layer i has an index where max(i - offset + 1, 0) is a multiple of freq. */
static mf_status shared_layers(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *types = json_object_get(text, "indexer_types");
    const char *pattern = json_string_value(json_object_get(text, "index_topk_pattern"));
    int64_t freq, offset;
    MF__TRY(mf__json_opt_int(text, where, "index_topk_freq", 1, MF_MAX_LAYERS, 1, &freq, err));
    MF__TRY(mf__json_opt_int(text, where, "index_skip_topk_offset", 0, MF_MAX_LAYERS, 2, &offset, err));
    if ((json_is_array(types) && json_array_size(types) != (size_t)c->n_layers) ||
        (!json_is_array(types) && pattern && strlen(pattern) < (size_t)c->n_layers))
        return mf__fail(err, MF_E_FORMAT, "%s: indexer_types or index_topk_pattern has %zu entries for %d layers",
                        where, json_is_array(types) ? json_array_size(types) : strlen(pattern), c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        int64_t since = l - offset + 1 > 0 ? l - offset + 1 : 0;
        bool shared = since % freq != 0;
        if (json_is_array(types))
            shared = type && !strcmp(type, "shared");
        else if (pattern)
            shared = pattern[l] == 'S';
        c->mixer[l] = shared ? MF_MIX_REUSED : MF_MIX_INDEXED;
    }
    if (c->mixer[0] == MF_MIX_REUSED)
        return mf__fail(err, MF_E_FORMAT, "%s: the first layer has no index, and there is none before it", where);
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    MF__TRY(mf__keys_latent(text, where, 1e6, c, err));
    MF__TRY(mf__keys_index(text, where, true, c, err));
    MF__TRY(shared_layers(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return mf__keys_first_dense(text, where, c, err);
}

static const char *const TYPES[] = {"glm_moe_dsa", NULL};

const mf__family mf__glm_moe_dsa = {.name = "glm_moe_dsa",
                                    .models = "GLM-5, GLM-5.1",
                                    .model_types = TYPES,
                                    .usual_ctx = 202752,
                                    .has = {.mixers = 1u << MF_MIX_INDEXED | 1u << MF_MIX_REUSED,
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
