/* minimax_m3_vl: the text model of MiniMax-M3. Some layers attend to the whole context, the others to blocks of it that
 * an index picks. Norms are stored as w - 1, also those of queries, keys and the index. */
#include <string.h>

#include "model/keys.h"
#include "model/parts.h"

/* A key at the top, or its older spelling in sparse_attention_config. */
static mf_status index_key(const json_t *text, const char *where, const char *key, const char *older, int64_t usual,
                           int32_t *out, mf_error *err) {
    const json_t *inner = json_object_get(text, "sparse_attention_config");
    int64_t v = usual;
    if (json_is_object(inner)) MF__TRY(mf__json_opt_int(inner, where, older, 0, MF_MAX_PICKS, usual, &v, err));
    MF__TRY(mf__json_opt_int(text, where, key, 0, MF_MAX_PICKS, v, &v, err));
    *out = (int32_t)v;
    return MF_OK;
}

static mf_status sparse_layers(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const json_t *sparse = json_object_get(text, "sparse_attention_config");
    const json_t *list = json_object_get(sparse, "sparse_attention_freq");
    int64_t first = 0;
    if (json_is_array(list) && json_array_size(list) != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT, "%s: sparse_attention_freq has %zu entries, num_hidden_layers is %d", where,
                        json_array_size(list), c->n_layers);
    if (json_is_object(sparse)) /* synthetic models, of any number of layers */
        MF__TRY(mf__json_opt_int(sparse, where, "first_full_layers", 0, MF_MAX_LAYERS, 0, &first, err));
    for (int32_t l = 0; l < c->n_layers; l++)
        c->mixer[l] = list ? (json_integer_value(json_array_get(list, (size_t)l)) ? MF_MIX_BLOCKS : MF_MIX_FULL)
                           : (l < first ? MF_MIX_FULL : MF_MIX_BLOCKS);
    return mf__keys_layer_types(text, where, c, err);
}

static mf_status index_keys(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    MF__TRY(index_key(text, where, "index_n_heads", "sparse_num_index_heads", 4, &c->index.n_heads, err));
    MF__TRY(index_key(text, where, "index_head_dim", "sparse_index_dim", 128, &c->index.dim, err));
    MF__TRY(index_key(text, where, "index_block_size", "sparse_block_size", 128, &c->index.block, err));
    MF__TRY(index_key(text, where, "index_topk_blocks", "sparse_topk_blocks", 16, &c->index.top_k, err));
    MF__TRY(index_key(text, where, "index_local_blocks", "sparse_local_block", 1, &c->index.local, err));
    if (c->index.n_heads < 1 || c->attn.n_heads % c->index.n_heads ||
        (c->attn.n_kv_heads % c->index.n_heads && c->index.n_heads % c->attn.n_kv_heads) ||
        c->index.dim < c->attn.n_rot || c->index.block < 2 || c->index.top_k < 1 || c->index.local > c->index.top_k)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: an index with %d heads of %d channels, for %d key/value heads that turn %d; the best %d "
                        "(the newest %d among them) of blocks of %d rows",
                        where, c->index.n_heads, c->index.dim, c->attn.n_kv_heads, c->attn.n_rot, c->index.top_k,
                        c->index.local, c->index.block);
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t rotary, shared, dense;
    double alpha, limit;
    MF__TRY(mf__keys_want(text, where, "scoring_func", "sigmoid", err));
    MF__TRY(mf__keys_want_bool(text, where, "use_qk_norm", true, err));
    MF__TRY(mf__keys_want_bool(text, where, "use_routing_bias", true, err));
    MF__TRY(mf__keys_attention(text, where, 128, c, err));
    MF__TRY(mf__json_opt_int(text, where, "rotary_dim", 1, c->attn.head_dim, c->attn.head_dim / 2, &rotary, err));
    MF__TRY(mf__keys_rope(text, where, 5e6, (double)rotary / c->attn.head_dim, c, err));
    MF__TRY(sparse_layers(text, where, c, err));
    MF__TRY(index_keys(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "intermediate_size", true, c, err));
    MF__TRY(mf__json_opt_int(text, where, "shared_intermediate_size", 0, 1 << 20, c->moe.n_inner, &shared, err));
    MF__TRY(mf__json_opt_double(text, where, "swiglu_alpha", 0, 1e3, 1.702, &alpha, err));
    MF__TRY(mf__json_opt_double(text, where, "swiglu_limit", 1e-3, 1e6, 7, &limit, err));
    c->moe.n_shared_inner = (int32_t)shared;
    c->moe.glu.alpha = (float)alpha, c->moe.glu.limit = (float)limit;
    MF__TRY(mf__keys_first_dense(text, where, c, err));
    MF__TRY(mf__json_opt_int(text, where, "dense_intermediate_size", 1, 1 << 20,
                             c->n_dense_inner ? c->n_dense_inner : 1, &dense, err));
    if (c->n_dense_inner) c->n_dense_inner = (int32_t)dense;
    return MF_OK;
}

/* transformers keeps gate and up in one matrix, the rows of gate first. */
static int64_t row_gate(const mf__config *c, int64_t r) {
    (void)c;
    return r;
}
static int64_t row_dense_up(const mf__config *c, int64_t r) {
    return c->n_dense_inner + r;
}
static int64_t row_shared_up(const mf__config *c, int64_t r) {
    return c->moe.n_shared_inner + r;
}

static const char *const TYPES[] = {"minimax_m3_vl_text", "minimax_m3_vl", "minimax_m3", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias"},
                                    {"mlp.gate.", "block_sparse_moe.gate."},
                                    {"mlp.shared_expert.", "mlp.shared_experts."},
                                    {"mlp.shared_expert.", "block_sparse_moe.shared_experts."},
                                    {"self_attn.indexer.q_", "self_attn.index_q_"},
                                    {"self_attn.indexer.k_", "self_attn.index_k_"},
                                    {NULL, NULL}};
static const mf__regroup REGROUPS[] = {
    {"mlp.shared_expert.gate_proj.weight", "mlp.shared_experts.gate_up_proj.weight", row_gate, NULL},
    {"mlp.shared_expert.up_proj.weight", "mlp.shared_experts.gate_up_proj.weight", row_shared_up, NULL},
    {"mlp.gate_proj.weight", "mlp.gate_up_proj.weight", row_gate, NULL},
    {"mlp.up_proj.weight", "mlp.gate_up_proj.weight", row_dense_up, NULL},
    {NULL, NULL, NULL, NULL},
};
static const char *const NORMS[] = {"layernorm.weight", "_norm.weight", "model.norm.weight", NULL};

const mf__family mf__minimax_m3_vl = {.name = "minimax_m3_vl",
                                      .models = "MiniMax-M3",
                                      .model_types = TYPES,
                                      .other_act = "swigluoai",
                                      .usual_ctx = 196608,
                                      .n_usual_eos = 1,
                                      .usual_eos = {200020},
                                      .has = {.mixers = 1u << MF_MIX_FULL | 1u << MF_MIX_BLOCKS,
                                              .qk_norm = MF_QK_NORM_HEAD,
                                              .zero_centred = true,
                                              .route = MF_ROUTE_SIGMOID,
                                              .choice_bias = true,
                                              .shared = MF_SHARED_PLAIN,
                                              .glu = MF_GLU_CLAMPED,
                                              .dense = true},
                                      .configure = configure,
                                      .aliases = ALIASES,
                                      .regroups = REGROUPS,
                                      .experts = mf__expert_spellings_w123,
                                      .zero_centred_norms = NORMS};
