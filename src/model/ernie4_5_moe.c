/* ernie4_5_moe: ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B. Experts are weighed by a softmax and chosen with a bias. */
#include "model/keys.h"
#include "model/parts.h"

/* Layers from start to end have experts, of them every interval-th. */
static mf_status dense_layers(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t start, end, interval, inner;
    MF__TRY(mf__json_opt_int(text, where, "moe_layer_start_index", 0, MF_MAX_LAYERS, 1, &start, err));
    MF__TRY(mf__json_opt_int(text, where, "moe_layer_end_index", -1, MF_MAX_LAYERS, -1, &end, err));
    MF__TRY(mf__json_opt_int(text, where, "moe_layer_interval", 1, MF_MAX_LAYERS, 1, &interval, err));
    MF__TRY(mf__json_get_int(text, where, "intermediate_size", 1, 1 << 20, &inner, err));
    if (end < 0) end = c->n_layers - 1;
    for (int32_t l = 0; l < c->n_layers; l++) c->dense[l] = l < start || l > end || (l + 1) % interval;
    c->n_dense_inner = (int32_t)inner;
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    double least;
    MF__TRY(mf__keys_want_bool(text, where, "use_bias", false, err));
    MF__TRY(mf__keys_want_bool(text, where, "use_rmsnorm", true, err));
    MF__TRY(mf__json_opt_double(text, where, "moe_norm_min", 0, 1, 1e-12, &least, err));
    if (least > 1e-6) /* the sum of the best of 65536 is never less */
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: moe_norm_min is %g, at most 1e-6 is supported", where, least);
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 5e5, 1, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    return dense_layers(text, where, c, err);
}

static const char *const TYPES[] = {"ernie4_5_moe", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.e_score_correction_bias", "mlp.moe_statics.e_score_correction_bias"},
                                    {"mlp.shared_expert.", "mlp.shared_experts."},
                                    {NULL, NULL}};

const mf__family mf__ernie4_5_moe = {.name = "ernie4_5_moe",
                                     .models = "ERNIE-4.5-21B-A3B, ERNIE-4.5-300B-A47B",
                                     .model_types = TYPES,
                                     .usual_ctx = 131072,
                                     .has = {.mixers = 1u << MF_MIX_FULL,
                                             .interleaved = true,
                                             .route = MF_ROUTE_SOFTMAX,
                                             .choice_bias = true,
                                             .shared = MF_SHARED_PLAIN,
                                             .dense = true},
                                     .configure = configure,
                                     .aliases = ALIASES};
