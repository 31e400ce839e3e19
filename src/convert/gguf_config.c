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

/* Some integers are given layer by layer; zeros stand for layers without. */
static bool integer_of(const json_t *value, int64_t *out) {
    *out = json_integer_value(value);
    if (json_is_integer(value)) return true;
    if (!json_is_array(value)) return false;
    for (size_t i = 0; i < json_array_size(value); i++) {
        int64_t v = json_integer_value(json_array_get(value, i));
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
    MF__TRY(copy(r, "moe_intermediate_size", "expert_feed_forward_length", err));
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

static mf_status grouped_experts(const reader *r, mf_error *err) {
    int64_t dense = get(r, "leading_dense_block_count", 0);
    MF__TRY(copy(r, "n_routed_experts", "expert_count", err));
    put(r, "n_shared_experts", get(r, "expert_shared_count", 1));
    put(r, "first_k_dense_replace", dense);
    if (dense) MF__TRY(copy(r, "intermediate_size", "feed_forward_length", err));
    put(r, "n_group", get(r, "expert_group_count", 1));
    put(r, "topk_group", get(r, "expert_group_used_count", 1));
    put_real(r, "routed_scaling_factor", decimal(get_real(r, "expert_weights_scale", 1)));
    put_bool(r, "norm_topk_prob", !json_is_false(find(r, "expert_weights_norm")));
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

static mf_status deepseek2(const reader *r, mf_error *err) {
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
    return mf__fail(
        err, MF_E_UNSUPPORTED,
        "general.architecture is \"%.60s\"; known are qwen35moe, qwen3next, qwen3moe, deepseek2, glm4moe and "
        "gpt-oss",
        arch ? arch : "(missing)");
}
