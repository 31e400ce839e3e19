/* config.json from a GGUF's metadata: the keys "ARCH.something" in the words of the published configs. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "convert/gguf.h"

typedef struct reader {
    const mf__gguf *g;
    const char *arch;
    json_t *out;
} reader;

static const json_t *find(const reader *r, const char *key) {
    char name[160];
    snprintf(name, sizeof name, "%s.%s", r->arch, key);
    return json_object_get(r->g->meta, name);
}

#define LAYERS 1024             /* that lists are made for: more than a config may have */
#define MOST ((int64_t)1 << 30) /* what is larger is none of these numbers, and products of two are numbers */

static int64_t bounded(int64_t v) {
    return v < -MOST ? -MOST : v > MOST ? MOST : v;
}

/* Some integers are given layer by layer; zeros stand for layers without. */
static bool integer_of(const json_t *value, int64_t *out) {
    *out = bounded(json_integer_value(value));
    if (json_is_integer(value)) return true;
    if (!json_is_array(value)) return false;
    for (size_t i = 0; i < json_array_size(value); i++) {
        int64_t v = bounded(json_integer_value(json_array_get(value, i)));
        if (v > *out) *out = v;
    }
    return true;
}

static mf_status need(const reader *r, const char *key, int64_t *out, mf_error *err) {
    if (integer_of(find(r, key), out)) return MF_OK;
    return mf__fail(err, MF_E_FORMAT, "the metadata has no integer %s.%s", r->arch, key);
}

static int64_t get(const reader *r, const char *key, int64_t otherwise) {
    int64_t v;
    return integer_of(find(r, key), &v) ? v : otherwise;
}

static double get_real(const reader *r, const char *key, double otherwise) {
    const json_t *v = find(r, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static void put(const reader *r, const char *key, int64_t v) {
    json_object_set_new(r->out, key, json_integer(v));
}

static void put_real(const reader *r, const char *key, double v) {
    json_object_set_new(r->out, key, json_real(v));
}

static void put_bool(const reader *r, const char *key, bool v) {
    json_object_set_new(r->out, key, json_boolean(v));
}

static void put_text(const reader *r, const char *key, const char *v) {
    json_object_set_new(r->out, key, json_string(v));
}

static bool has_tensor(const reader *r, const char *name) {
    return mf__catalog_find(r->g->catalog, name) != NULL;
}

/* "ours" = "theirs", which must be there. */
static mf_status copy(const reader *r, const char *ours, const char *theirs, mf_error *err) {
    int64_t v;
    MF__TRY(need(r, theirs, &v, err));
    put(r, ours, v);
    return MF_OK;
}

/* ---- what all have ---- */

/* f32 values stand for short decimal numbers: 1e-6f is meant as 1e-6. */
static double decimal(double v) {
    char text[32];
    double out = v;
    snprintf(text, sizeof text, "%.7g", v);
    sscanf(text, "%lf", &out);
    return out;
}

static void rope(const reader *r) {
    const char *type = json_string_value(find(r, "rope.scaling.type"));
    double factor = get_real(r, "rope.scaling.factor", 1);
    put_real(r, "rope_theta", decimal(get_real(r, "rope.freq_base", 10000)));
    if (!type || strcmp(type, "yarn")) return;
    json_t *yarn = json_pack(
        "{s:s, s:f, s:I, s:f, s:f}", "rope_type", "yarn", "factor", factor, "original_max_position_embeddings",
        (json_int_t)get(r, "rope.scaling.original_context_length", 4096), "beta_fast",
        get_real(r, "rope.scaling.yarn_beta_fast", 32), "beta_slow", get_real(r, "rope.scaling.yarn_beta_slow", 1));
    if (!strcmp(r->arch, "gpt-oss")) json_object_set_new(yarn, "truncate", json_false());
    if (find(r, "rope.scaling.yarn_log_multiplier")) {
        double all = decimal(10 * get_real(r, "rope.scaling.yarn_log_multiplier", 0.1));
        json_object_set_new(yarn, "mscale", json_real(all));
        json_object_set_new(yarn, "mscale_all_dim", json_real(all));
    }
    json_object_set_new(r->out, "rope_scaling", yarn);
}

static void end_tokens(const reader *r) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    json_t *ids = json_array();
    for (size_t i = 0; i < MF__COUNT(keys); i++) {
        const json_t *id = json_object_get(r->g->meta, keys[i]);
        if (json_is_integer(id) && (i == 0 || !json_equal(id, json_array_get(ids, 0))))
            json_array_append(ids, (json_t *)id);
    }
    if (json_array_size(ids)) json_object_set(r->out, "eos_token_id", ids);
    json_decref(ids);
}

static mf_status common(const reader *r, mf_error *err) {
    const mf__entry *embed = mf__catalog_find(r->g->catalog, "token_embd.weight");
    int64_t layers;
    if (!embed || embed->n_dims != 2)
        return mf__fail(err, MF_E_NOT_FOUND, "tensor token_embd.weight is missing, or is not a matrix");
    MF__TRY(need(r, "block_count", &layers, err));
    put(r, "num_hidden_layers", layers - get(r, "nextn_predict_layers", 0));
    put(r, "vocab_size", embed->dims[0]);
    MF__TRY(copy(r, "hidden_size", "embedding_length", err));
    MF__TRY(copy(r, "max_position_embeddings", "context_length", err));
    MF__TRY(copy(r, "num_attention_heads", "attention.head_count", err));
    put(r, "num_key_value_heads", get(r, "attention.head_count_kv", get(r, "attention.head_count", 1)));
    put_real(r, "rms_norm_eps", decimal(get_real(r, "attention.layer_norm_rms_epsilon", 1e-6)));
    put_bool(r, "tie_word_embeddings", !has_tensor(r, "output.weight"));
    MF__TRY(copy(r, "num_experts_per_tok", "expert_used_count", err));
    MF__TRY(copy(r, "moe_intermediate_size",
                 find(r, "expert_feed_forward_length") ? "expert_feed_forward_length" : "feed_forward_length", err));
    rope(r);
    end_tokens(r);
    return MF_OK;
}

static mf_status head_dim(const reader *r, bool partial, mf_error *err) {
    int64_t dim;
    MF__TRY(need(r, "attention.key_length", &dim, err));
    put(r, "head_dim", dim);
    if (partial && dim > 0)
        put_real(r, "partial_rotary_factor", (double)get(r, "rope.dimension_count", dim) / (double)dim);
    return MF_OK;
}

/* ---- architectures ---- */

static mf_status qwen_hybrid(const reader *r, mf_error *err) {
    int64_t inner, heads;
    MF__TRY(head_dim(r, true, err));
    MF__TRY(copy(r, "num_experts", "expert_count", err));
    MF__TRY(copy(r, "shared_expert_intermediate_size", "expert_shared_feed_forward_length", err));
    MF__TRY(copy(r, "linear_num_key_heads", "ssm.group_count", err));
    MF__TRY(copy(r, "linear_key_head_dim", "ssm.state_size", err));
    MF__TRY(copy(r, "linear_conv_kernel_dim", "ssm.conv_kernel", err));
    MF__TRY(need(r, "ssm.time_step_rank", &heads, err));
    MF__TRY(need(r, "ssm.inner_size", &inner, err));
    if (heads < 1) return mf__fail(err, MF_E_FORMAT, "%s.ssm.time_step_rank is %" PRId64, r->arch, heads);
    put(r, "linear_num_value_heads", heads);
    put(r, "linear_value_head_dim", inner / heads);
    put(r, "full_attention_interval", get(r, "full_attention_interval", 4));
    put_bool(r, "norm_topk_prob", true);
    return MF_OK;
}

static mf_status qwen3moe(const reader *r, mf_error *err) {
    MF__TRY(head_dim(r, false, err));
    put_bool(r, "norm_topk_prob", true);
    return copy(r, "num_experts", "expert_count", err);
}

static mf_status grouped_keys(const reader *r, mf_error *err) {
    int64_t dense = get(r, "leading_dense_block_count", 0);
    MF__TRY(copy(r, "n_routed_experts", "expert_count", err));
    put(r, "n_shared_experts", get(r, "expert_shared_count", 1));
    put(r, "first_k_dense_replace", dense);
    if (dense) MF__TRY(copy(r, "intermediate_size", "feed_forward_length", err));
    put(r, "n_group", get(r, "expert_group_count", 1));
    put(r, "topk_group", get(r, "expert_group_used_count", 1));
    put_real(r, "routed_scaling_factor", decimal(get_real(r, "expert_weights_scale", 1)));
    put_bool(r, "norm_topk_prob", !json_is_false(find(r, "expert_weights_norm")));
    return MF_OK;
}

static mf_status grouped_experts(const reader *r, mf_error *err) {
    MF__TRY(grouped_keys(r, err));
    if (get(r, "expert_gating_func", 2) != 2)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s.expert_gating_func is %" PRId64 "; known is 2, sigmoid (DeepSeek-V2 has another router)",
                        r->arch, get(r, "expert_gating_func", 2));
    return MF_OK;
}

static mf_status glm4moe(const reader *r, mf_error *err) {
    MF__TRY(head_dim(r, true, err));
    put_bool(r, "use_qk_norm", has_tensor(r, "blk.0.attn_q_norm.weight"));
    put_bool(r, "attention_bias", has_tensor(r, "blk.0.attn_q.bias"));
    return grouped_experts(r, err);
}

static mf_status latent_keys(const reader *r, mf_error *err) {
    int64_t rot, key;
    MF__TRY(need(r, "rope.dimension_count", &rot, err));
    key = get(r, "attention.key_length_mla", get(r, "attention.key_length", 0));
    MF__TRY(copy(r, "kv_lora_rank", "attention.kv_lora_rank", err));
    if (find(r, "attention.q_lora_rank"))
        MF__TRY(copy(r, "q_lora_rank", "attention.q_lora_rank", err));
    else
        json_object_set_new(r->out, "q_lora_rank", json_null());
    put(r, "num_key_value_heads", get(r, "attention.head_count", 1));
    put(r, "qk_rope_head_dim", rot);
    put(r, "qk_nope_head_dim", key - rot);
    put(r, "v_head_dim", get(r, "attention.value_length_mla", get(r, "attention.value_length", 0)));
    return MF_OK;
}

static mf_status deepseek2(const reader *r, mf_error *err) {
    MF__TRY(latent_keys(r, err));
    put_text(r, "scoring_func", "sigmoid");
    put_text(r, "topk_method", "noaux_tc");
    return grouped_experts(r, err);
}

static mf_status gpt_oss(const reader *r, mf_error *err) {
    MF__TRY(head_dim(r, false, err));
    put_bool(r, "attention_bias", true);
    put(r, "sliding_window", get(r, "attention.sliding_window", 128));
    MF__TRY(copy(r, "intermediate_size", "expert_feed_forward_length", err));
    return copy(r, "num_local_experts", "expert_count", err);
}

/* ---- architectures that came later ---- */

static int64_t n_layers(const reader *r) {
    int64_t n = json_integer_value(json_object_get(r->out, "num_hidden_layers"));
    return n < LAYERS ? n : LAYERS;
}

/* Under key a word for every layer: which of the two. */
static void put_layers(const reader *r, const char *key, const bool which[LAYERS], const char *yes, const char *no) {
    json_t *words = json_array();
    for (int64_t l = 0; l < n_layers(r); l++) json_array_append_new(words, json_string(which[l] ? yes : no));
    json_object_set_new(r->out, key, words);
}

/* Layers that have a tensor "blk.N.TENSOR". */
static void find_layers(const reader *r, const char *tensor, bool out[LAYERS]) {
    for (int64_t l = 0; l < n_layers(r); l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%" PRId64 ".%s", l, tensor);
        out[l] = has_tensor(r, name);
    }
}

/* Which layers have no experts is told by their tensors. */
static void dense_layers(const reader *r) {
    bool sparse[LAYERS] = {false};
    find_layers(r, "ffn_gate_inp.weight", sparse);
    put_layers(r, "mlp_layer_types", sparse, "sparse", "dense");
    if (find(r, "feed_forward_length")) put(r, "intermediate_size", get(r, "feed_forward_length", 0));
}

static mf_status wanted_gate(const reader *r, int64_t kind, const char *name, mf_error *err) {
    int64_t found = get(r, "expert_gating_func", kind);
    if (found == kind || found == 0) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED, "%s.expert_gating_func is %" PRId64 "; known is %" PRId64 ", %s", r->arch,
                    found, kind, name);
}

/* Heads, and experts of one width: what most have. */
static mf_status plain(const reader *r, mf_error *err) {
    if (find(r, "attention.key_length")) MF__TRY(head_dim(r, false, err));
    put_bool(r, "attention_bias", has_tensor(r, "blk.0.attn_output.bias"));
    put_real(r, "routed_scaling_factor", decimal(get_real(r, "expert_weights_scale", 1)));
    if (find(r, "expert_weights_norm")) put_bool(r, "norm_topk_prob", json_is_true(find(r, "expert_weights_norm")));
    return copy(r, "num_experts", "expert_count", err);
}

/* q and k are stored so that rope turns neighbours. */
static mf_status mixtral(const reader *r, mf_error *err) {
    if (!find(r, "expert_count"))
        return mf__fail(err, MF_E_UNSUPPORTED, "general.architecture is \"llama\" without experts; Mixtral has them");
    MF__TRY(plain(r, err));
    put_bool(r, "rope_interleave", true);
    put(r, "intermediate_size", get(r, "feed_forward_length", 0));
    if (get(r, "attention.sliding_window", 0) > 0) put(r, "sliding_window", get(r, "attention.sliding_window", 0));
    return MF_OK;
}

static mf_status olmoe(const reader *r, mf_error *err) {
    MF__TRY(plain(r, err));
    if (find(r, "attention.clamp_kqv")) put_real(r, "clip_qkv", decimal(get_real(r, "attention.clamp_kqv", 0)));
    put(r, "intermediate_size", get(r, "feed_forward_length", 0));
    return MF_OK;
}

static mf_status qwen2moe(const reader *r, mf_error *err) {
    MF__TRY(plain(r, err));
    put_bool(r, "attention_bias", false);
    put_bool(r, "qkv_bias", has_tensor(r, "blk.0.attn_q.bias"));
    return copy(r, "shared_expert_intermediate_size", "expert_shared_feed_forward_length", err);
}

static mf_status dots1(const reader *r, mf_error *err) {
    MF__TRY(plain(r, err));
    MF__TRY(wanted_gate(r, 2, "sigmoid", err));
    dense_layers(r);
    return copy(r, "n_shared_experts", "expert_shared_count", err);
}

/* The shared expert's width in experts. */
static void shared_width(const reader *r, const char *key) {
    int64_t one = get(r, "expert_feed_forward_length", get(r, "feed_forward_length", 1));
    put(r, key, get(r, "expert_shared_feed_forward_length", one) / (one > 0 ? one : 1));
}

static mf_status hy_v3(const reader *r, mf_error *err) {
    MF__TRY(plain(r, err));
    MF__TRY(wanted_gate(r, 2, "sigmoid", err));
    shared_width(r, "num_shared_experts");
    dense_layers(r);
    return MF_OK;
}

static mf_status hunyuan_moe(const reader *r, mf_error *err) {
    MF__TRY(plain(r, err));
    shared_width(r, "num_shared_expert");
    return MF_OK;
}

static mf_status ernie_moe(const reader *r, mf_error *err) {
    MF__TRY(plain(r, err));
    put(r, "moe_layer_start_index", get(r, "leading_dense_block_count", 1));
    put(r, "moe_layer_interval", get(r, "interleave_moe_layer_step", 1));
    put(r, "moe_num_shared_experts", get(r, "expert_shared_count", 0));
    return copy(r, "intermediate_size", "feed_forward_length", err);
}

static mf_status indexed(const reader *r, mf_error *err) {
    const json_t *types = find(r, "attention.indexer.types");
    MF__TRY(deepseek2(r, err));
    MF__TRY(copy(r, "index_n_heads", "attention.indexer.head_count", err));
    MF__TRY(copy(r, "index_head_dim", "attention.indexer.key_length", err));
    MF__TRY(copy(r, "index_topk", "attention.indexer.top_k", err));
    if (!json_is_array(types)) return MF_OK;
    json_t *named = json_array();
    for (int64_t l = 0; l < n_layers(r); l++) {
        const json_t *v = json_array_get(types, (size_t)l);
        json_array_append_new(named, json_string(json_is_true(v) || json_integer_value(v) ? "full" : "shared"));
    }
    json_object_set_new(r->out, "indexer_types", named);
    return MF_OK;
}

/* Layers without key/value heads are linear, with as many heads as the others. */
static mf_status kimi_linear(const reader *r, mf_error *err) {
    const json_t *kv = find(r, "attention.head_count_kv");
    bool linear[LAYERS] = {false};
    if (!json_is_array(kv))
        return mf__fail(err, MF_E_FORMAT, "the metadata has no list %s.attention.head_count_kv", r->arch);
    MF__TRY(wanted_gate(r, 2, "sigmoid", err));
    MF__TRY(latent_keys(r, err));
    MF__TRY(grouped_keys(r, err));
    MF__TRY(copy(r, "linear_num_heads", "attention.head_count", err));
    MF__TRY(copy(r, "linear_head_dim", "kda.head_dim", err));
    MF__TRY(copy(r, "linear_conv_kernel_dim", "ssm.conv_kernel", err));
    for (int64_t l = 0; l < n_layers(r); l++) linear[l] = !json_integer_value(json_array_get(kv, (size_t)l));
    put_layers(r, "layer_types", linear, "linear_attention", "full_attention");
    return MF_OK;
}

/* What a layer is, its tensors tell. */
static mf_status nemotron_h(const reader *r, mf_error *err) {
    bool state[LAYERS] = {false}, attention[LAYERS] = {false}, sparse[LAYERS] = {false};
    int64_t heads, inner, width = 1;
    MF__TRY(head_dim(r, false, err));
    MF__TRY(wanted_gate(r, 2, "sigmoid", err));
    MF__TRY(grouped_keys(r, err));
    MF__TRY(copy(r, "conv_kernel", "ssm.conv_kernel", err));
    MF__TRY(copy(r, "ssm_state_size", "ssm.state_size", err));
    MF__TRY(copy(r, "n_groups", "ssm.group_count", err));
    MF__TRY(copy(r, "mamba_num_heads", "ssm.time_step_rank", err));
    MF__TRY(copy(r, "moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length", err));
    MF__TRY(need(r, "ssm.time_step_rank", &heads, err));
    MF__TRY(need(r, "ssm.inner_size", &inner, err));
    if (heads < 1) return mf__fail(err, MF_E_FORMAT, "%s.ssm.time_step_rank is %" PRId64, r->arch, heads);
    put(r, "mamba_head_dim", inner / heads);
    put(r, "moe_latent_size", get(r, "moe_latent_size", 0));
    put_real(r, "layer_norm_epsilon", decimal(get_real(r, "attention.layer_norm_rms_epsilon", 1e-5)));
    find_layers(r, "ssm_in.weight", state);
    find_layers(r, "attn_q.weight", attention);
    find_layers(r, "ffn_gate_inp.weight", sparse);
    json_t *types = json_array();
    for (int64_t l = 0; l < n_layers(r); l++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%" PRId64 ".ffn_up.weight", l);
        const mf__entry *up = mf__catalog_find(r->g->catalog, name);
        if (up && up->n_dims == 2) width = up->dims[0];
        json_array_append_new(types, json_string(state[l]       ? "mamba"
                                                 : attention[l] ? "attention"
                                                 : sparse[l]    ? "moe"
                                                                : "mlp"));
    }
    json_object_set_new(r->out, "layers_block_type", types);
    put(r, "intermediate_size", width);
    return MF_OK;
}

static mf_status mistral4(const reader *r, mf_error *err) {
    json_t *yarn = json_object_get(r->out, "rope_scaling");
    MF__TRY(wanted_gate(r, 1, "softmax", err));
    MF__TRY(latent_keys(r, err));
    MF__TRY(grouped_keys(r, err));
    if (!yarn) return MF_OK;
    json_object_set_new(yarn, "rope_theta", json_real(decimal(get_real(r, "rope.freq_base", 10000))));
    json_object_set_new(yarn, "llama_4_scaling_beta",
                        json_real(decimal(get_real(r, "attention.temperature_scale", 0))));
    json_object_set(r->out, "rope_parameters", yarn);
    json_object_del(r->out, "rope_scaling");
    return MF_OK;
}

/* swiglu_clamp_exp: a number for every layer, of which the first stands for all. */
static void limit(const reader *r, double usual) {
    const json_t *first = json_array_get(find(r, "swiglu_clamp_exp"), 0);
    put_real(r, "swiglu_limit", json_is_number(first) ? decimal(json_number_value(first)) : usual);
}

static mf_status minimax_m3(const reader *r, mf_error *err) {
    MF__TRY(plain(r, err));
    MF__TRY(wanted_gate(r, 2, "sigmoid", err));
    bool sparse[LAYERS] = {false};
    put_bool(r, "zero_centred_norms", false); /* 1 is added already */
    limit(r, 7);
    put(r, "rotary_dim", get(r, "rope.dimension_count", 64));
    put(r, "index_n_heads", get(r, "attention.indexer.head_count", 4));
    put(r, "index_head_dim", get(r, "attention.indexer.key_length", 128));
    put(r, "index_topk_blocks", get(r, "attention.indexer.top_k", 16));
    put(r, "index_block_size", get(r, "attention.indexer.block_size", 128));
    put(r, "index_local_blocks", get(r, "attention.indexer.local_blocks", 1));
    dense_layers(r);
    put(r, "dense_intermediate_size", get(r, "feed_forward_length", 0));
    put(r, "intermediate_size", get(r, "expert_feed_forward_length", 0));
    put(r, "shared_intermediate_size", get(r, "expert_feed_forward_length", 0) * get(r, "expert_shared_count", 1));
    find_layers(r, "indexer.q_proj.weight", sparse);
    put_layers(r, "layer_types", sparse, "minimax_m3_sparse", "full_attention");
    return MF_OK;
}

/* Windows by attention.sliding_window_pattern, and in each of the two kinds of layers the number of key/value heads. */
static mf_status windows(const reader *r, int64_t *full_kv, int64_t *sliding_kv, mf_error *err) {
    const json_t *pattern = find(r, "attention.sliding_window_pattern"), *kv = find(r, "attention.head_count_kv");
    bool sliding[LAYERS] = {false};
    *full_kv = *sliding_kv = get(r, "attention.head_count_kv", 1);
    for (int64_t l = 0; l < n_layers(r); l++) {
        const json_t *p = json_array_get(pattern, (size_t)l), *v = json_array_get(kv, (size_t)l);
        sliding[l] = json_is_true(p) || json_integer_value(p);
        if (v) *(sliding[l] ? sliding_kv : full_kv) = json_integer_value(v);
    }
    put_layers(r, "layer_types", sliding, "sliding_attention", "full_attention");
    if (!json_is_array(pattern))
        return mf__fail(err, MF_E_FORMAT, "the metadata has no list %s.attention.sliding_window_pattern", r->arch);
    return copy(r, "sliding_window", "attention.sliding_window", err);
}

static mf_status mimo2(const reader *r, mf_error *err) {
    int64_t full, sliding;
    MF__TRY(head_dim(r, true, err));
    MF__TRY(plain(r, err));
    MF__TRY(wanted_gate(r, 2, "sigmoid", err));
    MF__TRY(windows(r, &full, &sliding, err));
    put(r, "num_key_value_heads", full);
    put(r, "swa_num_key_value_heads", sliding);
    put(r, "v_head_dim", get(r, "attention.value_length", 128));
    put_real(r, "swa_rope_theta", decimal(get_real(r, "rope.freq_base_swa", 10000)));
    if (find(r, "attention.value_scale"))
        put_real(r, "attention_value_scale", decimal(get_real(r, "attention.value_scale", 0)));
    dense_layers(r);
    return MF_OK;
}

/* The pairs of full layers that turn have the factor 1 in rope_freqs. */
static double turning_part(const reader *r) {
    const mf__entry *e = mf__catalog_find(r->g->catalog, "rope_freqs.weight");
    int64_t n = 0;
    if (!e || e->type != MF_TYPE_F32 || e->n_dims != 1 || !e->data) return 0.25;
    for (int64_t i = 0; i < e->dims[0]; i++) {
        float f;
        memcpy(&f, (const char *)e->data + 4 * i, sizeof f);
        n += f < 1e20f;
    }
    return (double)n / (double)e->dims[0];
}

static mf_status gemma4(const reader *r, mf_error *err) {
    int64_t full, sliding, last = json_integer_value(json_object_get(r->out, "num_hidden_layers")) - 1;
    char value[48];
    MF__TRY(windows(r, &full, &sliding, err));
    MF__TRY(copy(r, "global_head_dim", "attention.key_length", err));
    MF__TRY(copy(r, "head_dim", "attention.key_length_swa", err));
    MF__TRY(copy(r, "num_experts", "expert_count", err));
    MF__TRY(copy(r, "intermediate_size", "feed_forward_length", err));
    snprintf(value, sizeof value, "blk.%" PRId64 ".attn_v.weight", last);
    put(r, "num_key_value_heads", sliding);
    put(r, "num_global_key_value_heads", full);
    put_bool(r, "attention_k_eq_v", !has_tensor(r, value));
    put_bool(r, "enable_moe_block", true);
    put(r, "hidden_size_per_layer_input", get(r, "embedding_length_per_layer_input", 0));
    put(r, "num_kv_shared_layers", get(r, "attention.shared_kv_layers", 0));
    if (find(r, "final_logit_softcapping"))
        put_real(r, "final_logit_softcapping", decimal(get_real(r, "final_logit_softcapping", 0)));
    json_object_set_new(r->out, "rope_parameters",
                        json_pack("{s:{s:s, s:f, s:f}, s:{s:s, s:f}}", "full_attention", "rope_type", "proportional",
                                  "rope_theta", decimal(get_real(r, "rope.freq_base", 1e6)), "partial_rotary_factor",
                                  turning_part(r), "sliding_attention", "rope_type", "default", "rope_theta",
                                  decimal(get_real(r, "rope.freq_base_swa", 1e4))));
    return MF_OK;
}

static mf_status deepseek4(const reader *r, mf_error *err) {
    const json_t *ratios = find(r, "attention.compress_ratios");
    static const char *const numbers[][2] = {{"q_lora_rank", "attention.q_lora_rank"},
                                             {"qk_rope_head_dim", "rope.dimension_count"},
                                             {"sliding_window", "attention.sliding_window"},
                                             {"n_shared_experts", "expert_shared_count"},
                                             {"index_n_heads", "attention.indexer.head_count"},
                                             {"index_head_dim", "attention.indexer.key_length"},
                                             {"index_topk", "attention.indexer.top_k"},
                                             {"o_groups", "attention.output_group_count"},
                                             {"o_lora_rank", "attention.output_lora_rank"},
                                             {"hc_mult", "hyper_connection.count"},
                                             {"hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations"},
                                             {"num_hash_layers", "hash_layer_count"}};
    MF__TRY(head_dim(r, false, err));
    MF__TRY(plain(r, err));
    for (size_t i = 0; i < MF__COUNT(numbers); i++) MF__TRY(copy(r, numbers[i][0], numbers[i][1], err));
    put_real(r, "hc_eps", decimal(get_real(r, "hyper_connection.epsilon", 1e-6)));
    put_real(r, "compress_rope_theta", decimal(get_real(r, "attention.compress_rope_freq_base", 1.6e5)));
    limit(r, 10);
    if (!json_is_array(ratios))
        return mf__fail(err, MF_E_FORMAT, "the metadata has no list %s.attention.compress_ratios", r->arch);
    json_object_set(r->out, "compress_ratios", (json_t *)ratios);
    return MF_OK;
}

/* llama3's scaling is stored as what it makes of each pair of channels: 1, the factor, or, where there is a ramp as in
 * Llama 3, something between. */
static void slowed_pairs(const reader *r) {
    const mf__entry *e = mf__catalog_find(r->g->catalog, "rope_freqs.weight");
    double most = 1;
    bool ramp = false;
    if (!e || e->type != MF_TYPE_F32 || e->n_dims != 1 || !e->data) return;
    const uint8_t *data = e->data;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < e->dims[0]; i++) {
            float f;
            memcpy(&f, data + 4 * i, sizeof f);
            if (pass == 0 && f > most && f < 1e6f) most = (double)f;
            if (pass == 1) ramp = ramp || (f > 1 && (double)f < most);
        }
    if (most > 1)
        json_object_set_new(r->out, "rope_scaling",
                            json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor", most,
                                      "low_freq_factor", 1.0, "high_freq_factor", ramp ? 4.0 : 1.0,
                                      "original_max_position_embeddings", 8192));
}

/* Chunks and growing queries are not in the metadata of published files: they are as all of them have them. */
static mf_status llama4(const reader *r, mf_error *err) {
    MF__TRY(plain(r, err));
    MF__TRY(copy(r, "intermediate_size", "expert_feed_forward_length", err));
    MF__TRY(copy(r, "intermediate_size_mlp", "feed_forward_length", err));
    put(r, "interleave_moe_layer_step", get(r, "interleave_moe_layer_step", 1));
    put(r, "attention_chunk_size", get(r, "attention.sliding_window", 8192));
    put(r, "floor_scale", get(r, "attention.temperature_length", 8192));
    put_bool(r, "use_qk_norm", get(r, "expert_count", 0) != 128); /* Scout has the norms, Maverick has not */
    slowed_pairs(r);
    return MF_OK;
}

static const struct {
    const char *arch, *model_type;
    mf_status (*read)(const reader *r, mf_error *err);
} ARCHS[] = {
    {"qwen35moe", "qwen3_5_moe_text", qwen_hybrid},
    {"qwen3next", "qwen3_next", qwen_hybrid},
    {"qwen3moe", "qwen3_moe", qwen3moe},
    {"deepseek2", "deepseek_v3", deepseek2},
    {"glm4moe", "glm4_moe", glm4moe},
    {"gpt-oss", "gpt_oss", gpt_oss},
    {"llama", "mixtral", mixtral},
    {"llama4", "llama4_text", llama4},
    {"olmoe", "olmoe", olmoe},
    {"qwen2moe", "qwen2_moe", qwen2moe},
    {"dots1", "dots1", dots1},
    {"hy_v3", "hy_v3", hy_v3},
    {"hunyuan-moe", "hunyuan_v1_moe", hunyuan_moe},
    {"ernie4_5-moe", "ernie4_5_moe", ernie_moe},
    {"mistral4", "mistral4", mistral4},
    {"mimo2", "mimo_v2_flash", mimo2},
    {"gemma4", "gemma4_text", gemma4},
    {"minimax-m3", "minimax_m3_vl_text", minimax_m3},
    {"deepseek32", "deepseek_v32", indexed},
    {"glm-dsa", "glm_moe_dsa", indexed},
    {"deepseek4", "deepseek_v4", deepseek4},
    {"kimi-linear", "kimi_linear", kimi_linear},
    {"nemotron_h_moe", "nemotron_h", nemotron_h},
};

mf_status mf__gguf_config(const mf__gguf *g, json_t **out, mf_error *err) {
    const char *arch = json_string_value(json_object_get(g->meta, "general.architecture"));
    *out = NULL;
    for (size_t i = 0; i < MF__COUNT(ARCHS); i++) {
        if (!arch || strcmp(arch, ARCHS[i].arch)) continue;
        reader r = {g, ARCHS[i].arch, json_object()};
        if (!r.out) return mf__fail(err, MF_E_NOMEM, "no memory for a config");
        put_text(&r, "model_type", ARCHS[i].model_type);
        mf_status status = common(&r, err);
        if (status == MF_OK) status = ARCHS[i].read(&r, err);
        if (status == MF_OK)
            *out = r.out;
        else
            json_decref(r.out);
        return status;
    }
    char known[512] = "";
    for (size_t i = 0; i < MF__COUNT(ARCHS); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", ARCHS[i].arch);
    }
    return mf__fail(err, MF_E_UNSUPPORTED, "general.architecture is \"%.60s\"; known are %s", arch ? arch : "(missing)",
                    known);
}
