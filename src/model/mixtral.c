/* mixtral: Mixtral-8x7B, Mixtral-8x22B. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *window = json_object_get(text, "sliding_window");
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 1e6, 1, c, err));
    MF__TRY(mf__json_opt_bool(text, where, "rope_interleave", false, &c->has.interleaved, err)); /* of GGUF files */
    MF__TRY(mf__keys_moe(text, where, "intermediate_size", true, c, err));
    for (int32_t l = 0; l < c->n_layers; l++)
        c->mixer[l] = window && !json_is_null(window) ? MF_MIX_SLIDING : MF_MIX_FULL;
    return mf__keys_window(text, where, c, err);
}

static const char *const TYPES[] = {"mixtral", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.", "block_sparse_moe.gate."}, {NULL, NULL}};

const mf__family mf__mixtral = {.name = "mixtral",
                                .models = "Mixtral-8x7B, Mixtral-8x22B",
                                .model_types = TYPES,
                                .usual_ctx = 32768,
                                .has = {.mixers = 1u << MF_MIX_FULL | 1u << MF_MIX_SLIDING, .route = MF_ROUTE_SOFTMAX},
                                .configure = configure,
                                .aliases = ALIASES,
                                .experts = mf__expert_spellings_w123};
