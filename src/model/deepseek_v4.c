/* deepseek_v4: DeepSeek-V4-Flash, DeepSeek-V4-Pro.
 *
 * The residual is several streams (hyper-connections). Keys are values, one head for all; attention sees the newest
 * rows and compressed ones, all of them or those that an index picks. The first layers choose experts by the token
 * alone. */
#include <string.h>

#include "model/keys.h"
#include "model/parts.h"

/* Where compress_ratios has two numbers beside 0, the smaller is that of SPARSE layers. */
static void rates_of(const json_t *ratios, int64_t *sparse, int64_t *heavy) {
    int64_t low = 0, high = 0;
    for (size_t i = 0; i < json_array_size(ratios); i++) {
        int64_t v = json_integer_value(json_array_get(ratios, i));
        if (v > 0 && v <= 256 && (!low || v < low)) low = v;
        if (v > 0 && v <= 256 && v > high) high = v;
    }
    if (low < high) *sparse = low, *heavy = high;
}

/* compress_ratios as published: 0 sliding, else the positions of a compressed row, of which the smaller number is that
 * of SPARSE layers; or layer_types with compress_rates. */
static mf_status layer_kinds(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *ratios = json_object_get(text, "compress_ratios"), *rates = json_object_get(text, "compress_rates");
    int64_t heavy = 128, sparse = 4;
    if (json_is_object(rates)) {
        MF__TRY(mf__json_opt_int(rates, where, "heavily_compressed_attention", 1, 256, heavy, &heavy, err));
        MF__TRY(mf__json_opt_int(rates, where, "compressed_sparse_attention", 1, 256, sparse, &sparse, err));
    } else
        rates_of(ratios, &sparse, &heavy);
    if (json_is_array(ratios) && json_array_size(ratios) < (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: compress_ratios has %zu entries, num_hidden_layers is %d", where,
                        json_array_size(ratios), c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) {
        int64_t ratio = json_integer_value(json_array_get(ratios, (size_t)l));
        if (!json_is_array(ratios)) ratio = l < 2 ? 0 : l % 2 ? heavy : sparse; /* as in Flash */
        c->mixer[l] = ratio == heavy ? MF_MIX_HEAVY : ratio == sparse ? MF_MIX_SPARSE : MF_MIX_SLIDING;
        if (json_is_array(ratios) && ratio && c->mixer[l] == MF_MIX_SLIDING)
            return mf__fail(err, MF_E_UNSUPPORTED, "%s: compress_ratios[%d] is %lld, known are 0, %lld and %lld", where,
                            l, (long long)ratio, (long long)sparse, (long long)heavy);
    }
    if (256 % heavy || 256 % sparse)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: windows of %lld and %lld rows; divisors of 256 are supported",
                        where, (long long)heavy, (long long)sparse);
    c->far.heavy_step = (int32_t)heavy, c->far.step = (int32_t)sparse;
    MF__TRY(mf__keys_layer_types(text, where, c, err));
    return MF_OK;
}

static mf_status attention(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t rank, rot, groups, o_rank, window;
    double part;
    MF__TRY(mf__keys_attention(text, where, 512, c, err));
    MF__TRY(mf__json_get_int(text, where, "q_lora_rank", 1, 1 << 20, &rank, err));
    MF__TRY(mf__json_opt_double(text, where, "partial_rotary_factor", 0, 1, 64.0 / c->attn.head_dim, &part, err));
    MF__TRY(mf__json_opt_int(text, where, "qk_rope_head_dim", 2, c->attn.head_dim,
                             (int64_t)(part * c->attn.head_dim + 0.5), &rot, err));
    MF__TRY(mf__json_opt_int(text, where, "o_groups", 1, 16, 8, &groups, err));
    MF__TRY(mf__json_opt_int(text, where, "o_lora_rank", 1, 1 << 20, 1024, &o_rank, err));
    MF__TRY(mf__json_opt_int(text, where, "sliding_window", 1, 1 << 20, 128, &window, err));
    if (c->attn.n_kv_heads != 1 || rot % 2 || rot > MF_ROPE_MAX || c->attn.head_dim > MF_ROPE_MAX ||
        c->attn.n_heads % groups)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: %d heads of %d with %d key heads, %lld channels that turn and %lld output groups", where,
                        c->attn.n_heads, c->attn.head_dim, c->attn.n_kv_heads, (long long)rot, (long long)groups);
    c->mla.n_q_rank = (int32_t)rank;
    c->attn.n_rot = (int32_t)rot, c->attn.window = (int32_t)window;
    c->far.o_groups = (int32_t)groups, c->far.o_rank = (int32_t)o_rank;
    return MF_OK;
}

/* rope_parameters has "main" and "compress"; or there are rope_theta, compress_rope_theta and rope_scaling. */
static mf_status ropes(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    json_t *both = json_object_get(text, "rope_parameters"), *main = json_object_get(both, "main");
    json_t *compress = json_object_get(both, "compress"), *one = json_copy((json_t *)text);
    double theta;
    if (!one) return mf__fail(err, MF_E_NOMEM, "no memory for a config");
    mf_status st = mf__json_opt_double(text, where, "compress_rope_theta", 1, 1e12, 1.6e5, &theta, err);
    if (main)
        json_object_set(one, "rope_parameters", main);
    else
        json_object_del(one, "rope_scaling");
    if (st == MF_OK) st = mf__rope_parse(one, where, 1e4, &c->rope, err);
    if (compress)
        json_object_set(one, "rope_parameters", compress);
    else
        json_object_set(one, "rope_scaling", json_object_get(text, "rope_scaling"));
    json_object_set_new(one, "rope_theta", json_real(theta));
    if (st == MF_OK) st = mf__rope_parse(one, where, theta, &c->far.rope, err);
    json_decref(one);
    if (st == MF_OK && c->far.rope.attention_factor > 0 && c->far.rope.attention_factor != 1)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: an attention_factor of %g; known is 1", where,
                        c->far.rope.attention_factor);
    return st;
}

static mf_status experts(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *types = json_object_get(text, "mlp_layer_types");
    int64_t hashed;
    double limit;
    MF__TRY(mf__keys_want(text, where, "scoring_func", "sqrtsoftplus", err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    MF__TRY(mf__json_opt_int(text, where, "num_hash_layers", 0, MF_MAX_LAYERS, 3, &hashed, err));
    MF__TRY(mf__json_opt_double(text, where, "swiglu_limit", 1e-3, 1e6, 10, &limit, err));
    c->moe.glu.limit = (float)limit;
    c->moe.table_k = c->moe.top_k;
    for (int32_t l = 0; l < c->n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        if (json_is_array(types) && (!type || (strcmp(type, "hash_moe") && strcmp(type, "moe"))))
            return mf__fail(err, MF_E_UNSUPPORTED, "%s: mlp_layer_types[%d] is %s, known are moe and hash_moe", where,
                            l, type ? type : "not a string");
        c->hashed[l] = json_is_array(types) ? !strcmp(type, "hash_moe") : l < hashed;
    }
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t streams, steps, heads, dim, top_k;
    double eps;
    MF__TRY(attention(text, where, c, err));
    MF__TRY(layer_kinds(text, where, c, err));
    MF__TRY(ropes(text, where, c, err));
    MF__TRY(experts(text, where, c, err));
    MF__TRY(mf__json_opt_int(text, where, "index_n_heads", 1, 4096, 64, &heads, err));
    MF__TRY(mf__json_opt_int(text, where, "index_head_dim", c->attn.n_rot, 4096, 128, &dim, err));
    MF__TRY(mf__json_opt_int(text, where, "index_topk", 1, MF_MAX_PICKS, 512, &top_k, err));
    MF__TRY(mf__json_opt_int(text, where, "hc_mult", 2, 16, 4, &streams, err));
    MF__TRY(mf__json_opt_int(text, where, "hc_sinkhorn_iters", 1, 1000, 20, &steps, err));
    MF__TRY(mf__json_opt_double(text, where, "hc_eps", 0, 1, 1e-6, &eps, err));
    c->index.n_heads = (int32_t)heads, c->index.dim = (int32_t)dim;
    c->index.top_k = (int32_t)top_k, c->index.block = 1;
    c->hc.n = (int32_t)streams, c->hc.n_steps = (int32_t)steps, c->hc.eps = (float)eps;
    return MF_OK;
}

/* wo_a has the matrices of all groups one below the other. */
/* clang-format off */
#define GROUP(i) static int64_t row_of_group_##i(const mf__config *c, int64_t r) { return (int64_t)(i) * c->far.o_rank + r; }
#define REGROUP(i) {"attn.wo_a." #i ".weight", "attn.wo_a.weight", row_of_group_##i, NULL}
GROUP(0) GROUP(1) GROUP(2) GROUP(3) GROUP(4) GROUP(5) GROUP(6) GROUP(7)
GROUP(8) GROUP(9) GROUP(10) GROUP(11) GROUP(12) GROUP(13) GROUP(14) GROUP(15)
static const mf__regroup REGROUPS[] = {
    REGROUP(0), REGROUP(1), REGROUP(2), REGROUP(3), REGROUP(4), REGROUP(5), REGROUP(6), REGROUP(7),
    REGROUP(8), REGROUP(9), REGROUP(10), REGROUP(11), REGROUP(12), REGROUP(13), REGROUP(14), REGROUP(15),
    {NULL, NULL, NULL, NULL}};
/* clang-format on */

static const char *const TYPES[] = {"deepseek_v4", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.e_score_correction_bias", "ffn.gate.bias"},
                                    {"mlp.gate.", "ffn.gate."},
                                    {"mlp.shared_expert.gate_proj.", "ffn.shared_experts.w1."},
                                    {"mlp.shared_expert.up_proj.", "ffn.shared_experts.w3."},
                                    {"mlp.shared_expert.down_proj.", "ffn.shared_experts.w2."},
                                    {"attn.kv_norm.", "attn.norm."},
                                    {"model.hc_head_", "model.hc_head.hc_"},
                                    {"model.embed_tokens.", "embed."},
                                    {"lm_head.", "head."},
                                    {NULL, NULL}};
static const mf__expert_spelling EACH = {
    .weight = {"ffn.experts.#.w1.weight", "ffn.experts.#.w3.weight", "ffn.experts.#.w2.weight"}};
static const mf__expert_spelling SWITCH = {
    .weight = {"ffn.switch_mlp.gate_proj.weight", "ffn.switch_mlp.up_proj.weight", "ffn.switch_mlp.down_proj.weight"}};
static const mf__expert_spelling *const EXPERTS[] = {&EACH, &SWITCH, NULL};

const mf__family mf__deepseek_v4 = {.name = "deepseek_v4",
                                    .models = "DeepSeek-V4-Flash, DeepSeek-V4-Pro",
                                    .model_types = TYPES,
                                    .usual_ctx = 1048576,
                                    .n_usual_eos = 1,
                                    .usual_eos = {1},
                                    .has = {.mixers = 1u << MF_MIX_SLIDING | 1u << MF_MIX_HEAVY | 1u << MF_MIX_SPARSE,
                                            .far = true,
                                            .sinks = 1u << MF_MIX_SLIDING | 1u << MF_MIX_HEAVY | 1u << MF_MIX_SPARSE,
                                            .qk_norm = MF_QK_NORM_HEAD,
                                            .interleaved = true,
                                            .yarn = true,
                                            .streams = true,
                                            .hashed = true,
                                            .route = MF_ROUTE_SQRT_SOFTPLUS,
                                            .choice_bias = true,
                                            .shared = MF_SHARED_PLAIN,
                                            .glu = MF_GLU_LIMITED},
                                    .configure = configure,
                                    .aliases = ALIASES,
                                    .regroups = REGROUPS,
                                    .experts = EXPERTS};
