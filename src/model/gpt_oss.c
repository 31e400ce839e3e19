/* gpt_oss: gpt-oss-20b, gpt-oss-120b.
 *
 * Layers alternate between a sliding window and full attention, with a sink in every head's softmax; everything has
 * biases; the activation is clamped. Experts are published as MXFP4, or as bf16 [in][out] with the columns of gate and
 * up in turn. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t window;
    double limit;
    MF__TRY(mf__keys_attention(text, where, 64, c, err));
    if (!json_object_get(text, "attention_bias")) c->has.bias_qkv = c->has.bias_o = true;
    MF__TRY(mf__keys_rope(text, where, 150000, 1, c, err));
    MF__TRY(mf__keys_moe(text, where, "intermediate_size", false, c, err));
    MF__TRY(mf__json_opt_int(text, where, "sliding_window", 1, 1 << 30, 128, &window, err));
    MF__TRY(mf__json_opt_double(text, where, "swiglu_limit", 1e-3, 1e6, 7, &limit, err));
    c->attn.window = (int32_t)window;
    c->moe.glu.alpha = 1.702f;
    c->moe.glu.limit = (float)limit;
    for (int32_t l = 0; l < c->n_layers; l++) c->mixer[l] = l % 2 ? MF_MIX_FULL : MF_MIX_SLIDING;
    return mf__keys_layer_types(text, where, c, err);
}

static const char *const TYPES[] = {"gpt_oss", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.", "mlp.router."}, {NULL, NULL}};

static const mf__expert_spelling MXFP4 = {
    .weight = {"mlp.experts.gate_up_proj_blocks", "mlp.experts.gate_up_proj_blocks", "mlp.experts.down_proj_blocks"},
    .bias = {"mlp.experts.gate_up_proj_bias", "mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"},
    .fuse = MF_FUSE_INTERLEAVED};
static const mf__expert_spelling PLAIN = {
    .weight = {"mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"},
    .bias = {"mlp.experts.gate_up_proj_bias", "mlp.experts.gate_up_proj_bias", "mlp.experts.down_proj_bias"},
    .fuse = MF_FUSE_INTERLEAVED,
    .transposed = true};
static const mf__expert_spelling MLX = {
    .weight = {"mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight", "mlp.experts.down_proj.weight"},
    .bias = {"mlp.experts.gate_proj.bias", "mlp.experts.up_proj.bias", "mlp.experts.down_proj.bias"}};
static const mf__expert_spelling *const EXPERTS[] = {&MXFP4, &PLAIN, &MLX, NULL};

const mf__family mf__gpt_oss = {.name = "gpt_oss",
                                .models = "gpt-oss-20b, gpt-oss-120b",
                                .model_types = TYPES,
                                .witness = "self_attn.sinks",
                                .usual_ctx = 131072,
                                .n_usual_eos = 2,
                                .usual_eos = {200002, 199999},
                                .has = {.mixers = 1u << MF_MIX_SLIDING | 1u << MF_MIX_FULL,
                                        .bias_qkv = true,
                                        .bias_o = true,
                                        .sinks = 1u << MF_MIX_SLIDING | 1u << MF_MIX_FULL,
                                        .yarn = true,
                                        .route = MF_ROUTE_TOPK_SOFTMAX,
                                        .route_bias = true,
                                        .glu = MF_GLU_CLAMPED,
                                        .expert_bias = true},
                                .configure = configure,
                                .aliases = ALIASES,
                                .experts = EXPERTS};
