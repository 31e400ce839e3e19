/* llama4_text: the text model of Llama 4 Scout and Maverick.
 *
 * Most layers attend within chunks, with rope and then norms without weights; every fourth sees everything, with
 * neither, and with queries that grow with their position. A token goes to one expert, whose score multiplies its
 * input.
 */
#include "model/keys.h"
#include "model/parts.h"

/* no_rope_layers: 0 for a layer without rope; an empty list, as in the published configs, is none. */
static mf_status layer_kinds(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *list = json_object_get(text, "no_rope_layers");
    size_t n = json_array_size(list);
    int64_t interval;
    MF__TRY(mf__json_opt_int(text, where, "no_rope_layer_interval", 1, MF_MAX_LAYERS, 4, &interval, err));
    if (n && n != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: no_rope_layers has %zu entries, num_hidden_layers is %d", where, n,
                        c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) {
        bool turns = n ? json_integer_value(json_array_get(list, (size_t)l)) != 0 : (l + 1) % interval != 0;
        c->mixer[l] = turns ? MF_MIX_CHUNKED : MF_MIX_FULL;
    }
    return MF_OK; /* layer_types must say the same: mf__config_parse looks */
}

/* Layers with a rope and those without one. */
static mf_status heads(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *tuned = json_object_get(text, "attn_temperature_tuning"); /* a bool; 4 in the first configs */
    double grow, step;
    int64_t chunk;
    bool norm;
    if (json_is_null(json_object_get(text, "attention_chunk_size")))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: attention_chunk_size is null, a number is needed", where);
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__keys_rope(text, where, 5e5, 1, c, err));
    MF__TRY(mf__json_opt_bool(text, where, "use_qk_norm", true, &norm, err));
    MF__TRY(mf__json_opt_int(text, where, "attention_chunk_size", 1, 1 << 30, 8192, &chunk, err));
    MF__TRY(mf__json_opt_double(text, where, "attn_scale", 0, 1e3, 0.1, &grow, err));
    MF__TRY(mf__json_opt_double(text, where, "floor_scale", 1, 1e9, 8192, &step, err));
    if (!norm) c->has.qk_norm = MF_QK_NORM_NONE;
    c->sliding = c->attn;
    c->sliding_rope = c->rope;
    c->sliding.window = (int32_t)chunk;
    c->attn.n_rot = 0;
    c->attn.grow = json_is_false(tuned) || (json_is_integer(tuned) && !json_integer_value(tuned)) ? 0 : (float)grow;
    c->attn.grow_step = (float)step;
    c->attn.grow_from = 1;
    return MF_OK;
}

/* moe_layers, or every interleave_moe_layer_step-th layer; the others are dense. */
static mf_status dense_layers(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *list = json_object_get(text, "moe_layers");
    int64_t step, inner;
    bool any = false;
    MF__TRY(mf__json_opt_int(text, where, "interleave_moe_layer_step", 1, MF_MAX_LAYERS, 1, &step, err));
    for (int32_t l = 0; l < c->n_layers; l++) {
        c->dense[l] = json_is_array(list) || (l + 1) % step != 0;
        for (size_t i = 0; i < json_array_size(list); i++)
            if (json_integer_value(json_array_get(list, i)) == l) c->dense[l] = false;
        any = any || c->dense[l];
    }
    if (!any) return MF_OK;
    MF__TRY(mf__json_get_int(text, where, "intermediate_size_mlp", 1, 1 << 20, &inner, err));
    c->n_dense_inner = (int32_t)inner;
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    MF__TRY(layer_kinds(text, where, c, err));
    MF__TRY(heads(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "intermediate_size", false, c, err));
    if (c->moe.top_k != 1)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: num_experts_per_tok is %d, known is 1: a token's input is multiplied by one score", where,
                        c->moe.top_k);
    c->moe.n_shared_inner = c->moe.n_inner;
    return dense_layers(text, where, c, err);
}

static const char *const TYPES[] = {"llama4_text", "llama4", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.", "feed_forward.router."}, {"mlp.", "feed_forward."}, {NULL, NULL}};
static const mf__expert_spelling FUSED = {.weight = {"feed_forward.experts.gate_up_proj",
                                                     "feed_forward.experts.gate_up_proj",
                                                     "feed_forward.experts.down_proj"},
                                          .fuse = MF_FUSE_HALVES,
                                          .transposed = true};
static const mf__expert_spelling MLX = {.weight = {"feed_forward.experts.gate_proj.weight",
                                                   "feed_forward.experts.up_proj.weight",
                                                   "feed_forward.experts.down_proj.weight"}};
static const mf__expert_spelling SWITCH = {
    .weight = {"mlp.switch_mlp.gate_proj.weight", "mlp.switch_mlp.up_proj.weight", "mlp.switch_mlp.down_proj.weight"}};
static const mf__expert_spelling *const EXPERTS[] = {&FUSED, &MLX, &SWITCH, NULL};

const mf__family mf__llama4_text = {.name = "llama4_text",
                                    .models = "Llama-4-Scout-17B-16E, Llama-4-Maverick-17B-128E",
                                    .model_types = TYPES,
                                    .usual_ctx = 1048576,
                                    .has = {.mixers = 1u << MF_MIX_CHUNKED | 1u << MF_MIX_FULL,
                                            .qk_norm = MF_QK_NORM_BARE,
                                            .qk_norm_last = true,
                                            .nope_full = true,
                                            .grow = true,
                                            .interleaved = true,
                                            .route = MF_ROUTE_TOPK_SIGMOID,
                                            .weigh_first = true,
                                            .shared = MF_SHARED_PLAIN,
                                            .dense = true},
                                    .configure = configure,
                                    .aliases = ALIASES,
                                    .experts = EXPERTS};
