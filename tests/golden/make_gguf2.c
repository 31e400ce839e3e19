/* The families that came later, for make_gguf: tensors are renamed by a table, experts stacked, and what GGUF's
 * converters change is changed. Metadata as they write it. */
#include <math.h>
#include <string.h>

#include "gguf_file.h"

static const json_t *config;
static const mf__catalog *cat;
static const char *arch;
static int n_layers;
static const char *stem; /* of the checkpoint's names */

/* Of a layer; # in a name: experts, stacked. "+" in front: 1 is added. */
static const char *const NAMES[][2] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"self_attn.query_layernorm.weight", "attn_q_norm.weight"},
    {"self_attn.key_layernorm.weight", "attn_k_norm.weight"},
    {"self_attn.attention_sink_bias", "attn_sinks.weight"},
    {"self_attn.q_a_proj.weight", "attn_q_a.weight"},
    {"self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight"},
    {"self_attn.q_b_proj.weight", "attn_q_b.weight"},
    {"self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight"},
    {"self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight"},
    {"self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    {"self_attn.indexer.wk.weight", "indexer.attn_k.weight"},
    {"self_attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    {"self_attn.indexer.k_norm.weight", "indexer.k_norm.weight"},
    {"self_attn.indexer.k_norm.bias", "indexer.k_norm.bias"},
    {"self_attn.indexer.q_proj.weight", "indexer.q_proj.weight"},
    {"self_attn.indexer.k_proj.weight", "indexer.k_proj.weight"},
    {"self_attn.indexer.q_norm.weight", "indexer.q_norm.weight"},
    {"mlp.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.router.gate.weight", "ffn_gate_inp.weight"},
    {"mlp.gate.wg.weight", "ffn_gate_inp.weight"},
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight"},
    {"router.proj.weight", "ffn_gate_inp.weight"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.moe_statics.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.expert_bias", "exp_probs_b"},
    {"mlp.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_mlp.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_mlp.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_mlp.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"mlp.experts.#.gate_proj.weight", "ffn_gate_exps.weight"},
    {"mlp.experts.#.up_proj.weight", "ffn_up_exps.weight"},
    {"mlp.experts.#.down_proj.weight", "ffn_down_exps.weight"},
    {"block_sparse_moe.experts.#.w1.weight", "ffn_gate_exps.weight"},
    {"block_sparse_moe.experts.#.w3.weight", "ffn_up_exps.weight"},
    {"block_sparse_moe.experts.#.w2.weight", "ffn_down_exps.weight"},
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"experts.down_proj", "ffn_down_exps.weight"},
    {"feed_forward.router.weight", "ffn_gate_inp.weight"},
    {"feed_forward.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"feed_forward.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"feed_forward.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"feed_forward.gate_proj.weight", "ffn_gate.weight"},
    {"feed_forward.up_proj.weight", "ffn_up.weight"},
    {"feed_forward.down_proj.weight", "ffn_down.weight"},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"layer_scalar", "layer_output_scale.weight"},
    {"self_attn.q_conv1d.weight", "ssm_conv1d_q.weight"},
    {"self_attn.k_conv1d.weight", "ssm_conv1d_k.weight"},
    {"self_attn.v_conv1d.weight", "ssm_conv1d_v.weight"},
    {"self_attn.f_a_proj.weight", "ssm_f_a.weight"},
    {"self_attn.f_b_proj.weight", "ssm_f_b.weight"},
    {"self_attn.g_a_proj.weight", "ssm_g_a.weight"},
    {"self_attn.g_b_proj.weight", "ssm_g_b.weight"},
    {"self_attn.b_proj.weight", "ssm_beta.weight"},
    {"self_attn.dt_bias", "ssm_dt.bias"},
    {"self_attn.A_log", "ssm_a"},
    {"self_attn.o_norm.weight", "ssm_norm.weight"},
    {"block_sparse_moe.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"block_sparse_moe.shared_experts.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"block_sparse_moe.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    {"block_sparse_moe.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    {"block_sparse_moe.gate_proj.weight", "ffn_gate.weight"},
    {"block_sparse_moe.up_proj.weight", "ffn_up.weight"},
    {"block_sparse_moe.down_proj.weight", "ffn_down.weight"},
    {"norm.weight", "attn_norm.weight"},
    {"mixer.in_proj.weight", "ssm_in.weight"},
    {"mixer.conv1d.weight", "ssm_conv1d.weight"},
    {"mixer.conv1d.bias", "ssm_conv1d.bias"},
    {"mixer.dt_bias", "ssm_dt.bias"},
    {"mixer.A_log", "ssm_a"},
    {"mixer.D", "ssm_d"},
    {"mixer.norm.weight", "ssm_norm.weight"},
    {"mixer.out_proj.weight", "ssm_out.weight"},
    {"mixer.q_proj.weight", "attn_q.weight"},
    {"mixer.k_proj.weight", "attn_k.weight"},
    {"mixer.v_proj.weight", "attn_v.weight"},
    {"mixer.o_proj.weight", "attn_output.weight"},
    {"mixer.up_proj.weight", "ffn_up.weight"},
    {"mixer.down_proj.weight", "ffn_down.weight"},
    {"mixer.gate.weight", "ffn_gate_inp.weight"},
    {"mixer.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mixer.shared_experts.up_proj.weight", "ffn_up_shexp.weight"},
    {"mixer.shared_experts.down_proj.weight", "ffn_down_shexp.weight"},
    {"mixer.experts.#.up_proj.weight", "ffn_up_exps.weight"},
    {"mixer.experts.#.down_proj.weight", "ffn_down_exps.weight"},
    {"attn_norm.weight", "attn_norm.weight"},
    {"ffn_norm.weight", "ffn_norm.weight"},
    {"attn.attn_sink", "attn_sinks.weight"},
    {"attn.wq_a.weight", "attn_q_a.weight"},
    {"attn.q_norm.weight", "attn_q_a_norm.weight"},
    {"attn.wq_b.weight", "attn_q_b.weight"},
    {"attn.wkv.weight", "attn_kv.weight"},
    {"attn.norm.weight", "attn_kv_a_norm.weight"},
    {"attn.wo_a.weight", "attn_output_a.weight"},
    {"attn.wo_b.weight", "attn_output_b.weight"},
    {"attn.compressor.wkv.weight", "attn_compressor_kv.weight"},
    {"attn.compressor.wgate.weight", "attn_compressor_gate.weight"},
    {"attn.compressor.ape", "attn_compressor_ape.weight"},
    {"attn.compressor.norm.weight", "attn_compressor_norm.weight"},
    {"attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"},
    {"attn.indexer.weights_proj.weight", "indexer.proj.weight"},
    {"attn.indexer.compressor.wkv.weight", "indexer_compressor_kv.weight"},
    {"attn.indexer.compressor.wgate.weight", "indexer_compressor_gate.weight"},
    {"attn.indexer.compressor.ape", "indexer_compressor_ape.weight"},
    {"attn.indexer.compressor.norm.weight", "indexer_compressor_norm.weight"},
    {"hc_attn_fn", "hc_attn_fn.weight"},
    {"hc_attn_base", "hc_attn_base.weight"},
    {"hc_attn_scale", "hc_attn_scale.weight"},
    {"hc_ffn_fn", "hc_ffn_fn.weight"},
    {"hc_ffn_base", "hc_ffn_base.weight"},
    {"hc_ffn_scale", "hc_ffn_scale.weight"},
    {"ffn.gate.weight", "ffn_gate_inp.weight"},
    {"ffn.gate.bias", "exp_probs_b.bias"},
    {"ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"},
    {"ffn.shared_experts.w1.weight", "ffn_gate_shexp.weight"},
    {"ffn.shared_experts.w3.weight", "ffn_up_shexp.weight"},
    {"ffn.shared_experts.w2.weight", "ffn_down_shexp.weight"},
    {"ffn.experts.#.w1.weight", "ffn_gate_exps.weight"},
    {"ffn.experts.#.w3.weight", "ffn_up_exps.weight"},
    {"ffn.experts.#.w2.weight", "ffn_down_exps.weight"},
};

static const char *const TOP[][2] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                     {"model.norm.weight", "output_norm.weight"},
                                     {"backbone.embeddings.weight", "token_embd.weight"},
                                     {"backbone.norm_f.weight", "output_norm.weight"},
                                     {"lm_head.weight", "output.weight"},
                                     {"head.weight", "output.weight"},
                                     {"model.hc_head.hc_fn", "output_hc_fn.weight"},
                                     {"model.hc_head.hc_base", "output_hc_base.weight"},
                                     {"model.hc_head.hc_scale", "output_hc_scale.weight"}};

static int64_t number(const char *key) {
    const json_t *v = json_object_get(config, key);
    if (!json_is_integer(v)) fprintf(stderr, "make_gguf: the config has no %s\n", key);
    CHECK(json_is_integer(v));
    return json_integer_value(v);
}

static double real_in(const json_t *object, const char *key, double otherwise) {
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static bool is(const char *name) {
    return !strcmp(arch, name);
}

/* ---- tensors ---- */

/* Rows of each head from (i, i + n/2) to (2i, 2i+1). */
static void interleave(float *x, int64_t rows, int64_t cols, int64_t dim) {
    float *copy = malloc((size_t)(rows * cols) * sizeof *copy);
    CHECK(copy);
    memcpy(copy, x, (size_t)(rows * cols) * sizeof *copy);
    for (int64_t r = 0; r < rows; r++) {
        int64_t head = r / dim, i = r % dim, from = i % 2 ? dim / 2 + i / 2 : i / 2;
        memcpy(x + r * cols, copy + (head * dim + from) * cols, (size_t)cols * sizeof *x);
    }
    free(copy);
}

static void put(const char *theirs, const mf__entry *e) {
    int64_t n = 1, *d = (int64_t[]){0, 0, 0, 0};
    CHECK(e->n_dims >= 1 && e->n_dims <= 4);
    for (int i = 0; i < e->n_dims; i++) n *= e->dims[i];
    for (int i = 0; i < e->n_dims; i++) d[i] = e->dims[e->n_dims - 1 - i];
    float *x = values(e->name, n);
    size_t len = strlen(theirs);
    bool norm = len > 11 && !strcmp(theirs + len - 11, "norm.weight");
    for (int64_t i = 0; is("minimax-m3") && norm && i < n; i++) x[i] += 1;
    if (is("llama") && (strstr(theirs, "attn_q.weight") || strstr(theirs, "attn_k.weight")))
        interleave(x, d[1], d[0], number("head_dim"));
    if (strstr(theirs, "exp_probs_b")) d[0] = n, d[1] = 0;
    bool rates = strstr(theirs, ".ssm_a") && !strstr(theirs, ".ssm_alpha");
    if (rates) d[0] = 1, d[1] = n, d[2] = 0;
    for (int64_t i = 0; rates && i < n; i++) x[i] = -expf(x[i]);
    tensor(theirs, x, d[0], d[1], d[2]);
    free(x);
}

static void put_stacked(const char *theirs, const char *ours, int layer, const char *mark) {
    const char *key = json_object_get(config, "n_routed_experts")    ? "n_routed_experts"
                      : json_object_get(config, "num_local_experts") ? "num_local_experts"
                      : json_object_get(config, "moe_num_experts")   ? "moe_num_experts"
                                                                     : "num_experts";
    int64_t n = number(key), rows = 0, cols = 0;
    float *all = NULL;
    for (int64_t e = 0; e < n; e++) {
        char name[200];
        snprintf(name, sizeof name, "%s.layers.%d.%.*s%d%s", stem, layer, (int)(mark - ours), ours, (int)e, mark + 1);
        const mf__entry *entry = mf__catalog_find(cat, name);
        if (!entry && e == 0) return;
        CHECK(entry && entry->n_dims == 2);
        rows = entry->dims[0], cols = entry->dims[1];
        if (!all) all = malloc((size_t)(n * rows * cols) * sizeof *all);
        CHECK(all);
        float *x = values(name, rows * cols);
        memcpy(all + e * rows * cols, x, (size_t)(rows * cols) * sizeof *x);
        free(x);
    }
    tensor(theirs, all, cols, rows, n);
    free(all);
}

/* gate and up in one, as transformers has them where the published files do not: [planes][2 n][cols] */
static void put_halves(int layer, const char *ours, const char *gate, const char *up) {
    char name[200], theirs[2][200];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, ours);
    snprintf(theirs[0], sizeof theirs[0], "blk.%d.%s", layer, gate);
    snprintf(theirs[1], sizeof theirs[1], "blk.%d.%s", layer, up);
    const mf__entry *e = mf__catalog_find(cat, name);
    if (!e) return;
    int64_t planes = e->n_dims == 3 ? e->dims[0] : 1, rows = e->dims[e->n_dims - 2], cols = e->dims[e->n_dims - 1];
    int64_t half = rows / 2 * cols;
    float *x = values(name, planes * rows * cols), *part = malloc((size_t)(planes * half) * sizeof *part);
    CHECK(part);
    for (int i = 0; i < 2; i++) {
        for (int64_t p = 0; p < planes; p++)
            memcpy(part + p * half, x + (2 * p + i) * half, (size_t)half * sizeof *part);
        tensor(theirs[i], part, cols, rows / 2, e->n_dims == 3 ? planes : 0);
    }
    free(part);
    free(x);
}

/* Columns [first, first + n) of experts that are stored [experts][in][out], as rows. */
static void put_turned(int layer, const char *ours, const char *theirs, int half, int halves) {
    char name[200], to[200];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, ours);
    snprintf(to, sizeof to, "blk.%d.%s", layer, theirs);
    const mf__entry *e = mf__catalog_find(cat, name);
    if (!e) return;
    int64_t planes = e->dims[0], cols = e->dims[1], all = e->dims[2], rows = all / halves;
    float *x = values(name, planes * cols * all), *y = malloc((size_t)(planes * cols * rows) * sizeof *y);
    CHECK(y);
    for (int64_t p = 0; p < planes; p++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) y[(p * rows + r) * cols + c] = x[(p * cols + c) * all + half * rows + r];
    tensor(to, y, cols, rows, planes);
    free(y);
    free(x);
}

static void put_layer(int l) {
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        char ours[200], theirs[200];
        const char *mark = strchr(NAMES[i][0], '#'), *rest = NAMES[i][1];
        if (is("gemma4") && !strcmp(NAMES[i][0], "post_attention_layernorm.weight"))
            rest = "post_attention_norm.weight";
        if (is("minimax-m3") && strstr(rest, "gate_up")) continue;
        snprintf(ours, sizeof ours, "%s.layers.%d.%s", stem, l, NAMES[i][0]);
        snprintf(theirs, sizeof theirs, "blk.%d.%s", l, rest);
        const mf__entry *e = mark ? NULL : mf__catalog_find(cat, ours);
        if (mark) put_stacked(theirs, NAMES[i][0], l, mark);
        if (e) put(theirs, e);
    }
    if (is("minimax-m3")) {
        put_halves(l, "mlp.gate_up_proj.weight", "ffn_gate.weight", "ffn_up.weight");
        put_halves(l, "mlp.experts.gate_up_proj", "ffn_gate_exps.weight", "ffn_up_exps.weight");
        put_halves(l, "mlp.shared_experts.gate_up_proj.weight", "ffn_gate_shexp.weight", "ffn_up_shexp.weight");
    }
    put_turned(l, "feed_forward.experts.gate_up_proj", "ffn_gate_exps.weight", 0, 2);
    put_turned(l, "feed_forward.experts.gate_up_proj", "ffn_up_exps.weight", 1, 2);
    put_turned(l, "feed_forward.experts.down_proj", "ffn_down_exps.weight", 0, 1);
    char kv_b[64];
    snprintf(kv_b, sizeof kv_b, "model.layers.%d.self_attn.kv_b_proj.weight", l);
    if (mf__catalog_find(cat, kv_b)) split_kv_b(l);
}

/* ---- metadata ---- */

static void rope_keys(void) {
    const json_t *rope = json_object_get(config, "rope_parameters"), *full = json_object_get(rope, "full_attention");
    const json_t *sliding = json_object_get(rope, "sliding_attention"), *main = json_object_get(rope, "main");
    const json_t *scaled = json_object_get(rope, "compress") ? json_object_get(rope, "compress") : rope;
    const char *type = json_string_value(json_object_get(scaled, "rope_type"));
    double base = real_in(full ? full : main ? main : rope, "rope_theta", 1e4);
    if (is("hunyuan-moe")) {
        double d = (double)number("head_dim");
        base *= pow(real_in(rope, "alpha", 1), d / (d - 2));
    }
    key_f32("rope.freq_base", base);
    if (sliding) key_f32("rope.freq_base_swa", real_in(sliding, "rope_theta", 1e4));
    if (!type || strcmp(type, "yarn")) return;
    key_text("rope.scaling.type", "yarn");
    key_f32("rope.scaling.factor", real_in(scaled, "factor", 1));
    key_u32("rope.scaling.original_context_length", (int64_t)real_in(scaled, "original_max_position_embeddings", 0));
    if (json_object_get(scaled, "mscale_all_dim"))
        key_f32("rope.scaling.yarn_log_multiplier", 0.1 * real_in(scaled, "mscale_all_dim", 0));
    if (json_object_get(scaled, "llama_4_scaling_beta"))
        key_f32("attention.temperature_scale", real_in(scaled, "llama_4_scaling_beta", 0));
}

/* A config's key, in one of its spellings, as a number of the metadata. */
static void copy(const char *key, const char *ours, const char *or_else) {
    if (json_object_get(config, ours))
        key_u32(key, number(ours));
    else if (or_else && json_object_get(config, or_else))
        key_u32(key, number(or_else));
}

static void list(const char *key, const char *ours, const char *one, int64_t yes, int64_t no) {
    const json_t *types = json_object_get(config, ours);
    int64_t v[64];
    CHECK(n_layers <= 64);
    for (int l = 0; l < n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        v[l] = type && !strcmp(type, one) ? yes : no;
    }
    key_list(key, v, n_layers);
}

static void latent_keys(void) {
    int64_t rot = number("qk_rope_head_dim"), lora = number("kv_lora_rank");
    if (json_is_integer(json_object_get(config, "q_lora_rank")))
        key_u32("attention.q_lora_rank", number("q_lora_rank"));
    key_u32("attention.kv_lora_rank", lora);
    key_u32("attention.key_length", lora + rot);
    key_u32("attention.value_length", lora);
    key_u32("attention.key_length_mla", number("qk_nope_head_dim") + rot);
    key_u32("attention.value_length_mla", number("v_head_dim"));
    key_u32("rope.dimension_count", rot);
    if (!is("kimi-linear")) {
        key_u32("attention.head_count_kv", 1);
        return;
    }
    list("attention.head_count_kv", "layer_types", "full_attention", 1, 0);
    key_u32("kda.head_dim", number("linear_head_dim"));
    key_u32("ssm.conv_kernel", number("linear_conv_kernel_dim"));
}

static void expert_keys(void) {
    const json_t *types = json_object_get(config, "mlp_layer_types");
    const char *scale =
        json_object_get(config, "routed_scaling_factor") ? "routed_scaling_factor" : "router_scaling_factor";
    int64_t dense = 0;
    while (json_array_get(types, (size_t)dense) &&
           !strcmp(json_string_value(json_array_get(types, (size_t)dense)), "dense"))
        dense++;
    copy("expert_count", "num_experts", "n_routed_experts");
    copy("expert_count", "num_local_experts", "moe_num_experts");
    copy("expert_used_count", "num_experts_per_tok", "moe_k");
    copy("expert_used_count", "moe_topk", "top_k_experts");
    copy("expert_used_count", "num_experts_per_token", NULL);
    if (is("minimax-m3"))
        key_u32("expert_feed_forward_length", number("intermediate_size"));
    else if (!is("llama") && !is("olmoe"))
        copy("expert_feed_forward_length", "moe_intermediate_size", "intermediate_size");
    copy("expert_shared_count", "n_shared_experts", "moe_num_shared_experts");
    if (is("kimi-linear")) copy("expert_shared_count", "num_shared_experts", NULL);
    if (is("minimax-m3")) key_u32("expert_shared_count", 1);
    copy("expert_group_count", "n_group", NULL);
    copy("expert_group_used_count", "topk_group", NULL);
    if (is("ernie4_5-moe")) key_u32("leading_dense_block_count", number("moe_layer_start_index"));
    if (is("ernie4_5-moe")) key_u32("interleave_moe_layer_step", number("moe_layer_interval"));
    if (!is("ernie4_5-moe"))
        key_u32("leading_dense_block_count", types ? dense : (int64_t)real_in(config, "first_k_dense_replace", 0));
    if (json_object_get(config, scale)) key_f32("expert_weights_scale", real_in(config, scale, 1));
    if (json_object_get(config, "norm_topk_prob") && !is("qwen2moe") && !is("olmoe"))
        key_bool("expert_weights_norm", json_is_true(json_object_get(config, "norm_topk_prob")));
}

static void kind_keys(void) {
    int64_t one = is("gemma4") ? 0 : (int64_t)real_in(config, "num_key_value_heads", 1);
    if (is("mimo2")) {
        list("attention.head_count_kv", "layer_types", "sliding_attention", 2 * one, one);
        list("attention.sliding_window_pattern", "layer_types", "sliding_attention", 1, 0);
        key_u32("attention.key_length", number("head_dim"));
        key_u32("attention.value_length", number("v_head_dim"));
        key_u32("rope.dimension_count", (int64_t)(0.334 * (double)number("head_dim")));
        key_f32("attention.value_scale", real_in(config, "attention_value_scale", 1));
    } else if (is("gemma4")) {
        const json_t *full = json_object_get(json_object_get(config, "per_layer_config"), "2");
        list("attention.head_count_kv", "layer_types", "sliding_attention", number("num_key_value_heads"),
             (int64_t)real_in(full, "num_key_value_heads", 0));
        list("attention.sliding_window_pattern", "layer_types", "sliding_attention", 1, 0);
        key_u32("attention.key_length", (int64_t)real_in(full, "head_dim", 0));
        key_u32("attention.key_length_swa", number("head_dim"));
        key_f32("final_logit_softcapping", real_in(config, "final_logit_softcapping", 0));
    } else if (json_object_get(config, "kv_lora_rank")) {
        latent_keys();
    } else {
        key_u32("attention.head_count_kv", one);
        copy("attention.key_length", "head_dim", NULL);
    }
    if (is("nemotron_h_moe")) {
        key_u32("ssm.conv_kernel", number("conv_kernel"));
        key_u32("ssm.state_size", number("ssm_state_size"));
        key_u32("ssm.group_count", number("n_groups"));
        key_u32("ssm.time_step_rank", number("mamba_num_heads"));
        key_u32("ssm.inner_size", number("mamba_num_heads") * number("mamba_head_dim"));
        key_u32("expert_shared_feed_forward_length", number("moe_shared_expert_intermediate_size"));
    }
    if (is("minimax-m3")) {
        key_u32("rope.dimension_count", number("rotary_dim"));
        key_u32("attention.indexer.block_size", number("index_block_size"));
        key_u32("attention.indexer.local_blocks", number("index_local_blocks"));
        key_u32("attention.indexer.top_k", number("index_topk_blocks"));
    }
    if (is("llama4")) {
        key_u32("interleave_moe_layer_step", number("interleave_moe_layer_step"));
        key_u32("attention.sliding_window", number("attention_chunk_size"));
        key_u32("attention.temperature_length", number("floor_scale"));
    }
    if (is("glm-dsa")) list("attention.indexer.types", "indexer_types", "full", 1, 0);
    if (is("hunyuan-moe")) key_u32("expert_shared_feed_forward_length", number("intermediate_size"));
    if (is("hy_v3")) key_u32("expert_shared_feed_forward_length", number("moe_intermediate_size"));
    if (is("qwen2moe")) key_u32("expert_shared_feed_forward_length", number("shared_expert_intermediate_size"));
}

static void far_keys(void) {
    const json_t *rates = json_object_get(config, "compress_rates"), *types = json_object_get(config, "layer_types");
    int64_t v[64], hashed = 0;
    for (int l = 0; l < n_layers; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        const char *mlp = json_string_value(json_array_get(json_object_get(config, "mlp_layer_types"), (size_t)l));
        v[l] = json_integer_value(json_object_get(rates, type));
        hashed += !strcmp(mlp, "hash_moe");
    }
    key_list("attention.compress_ratios", v, n_layers);
    key_u32("hash_layer_count", hashed);
    key_u32("rope.dimension_count", number("qk_rope_head_dim"));
    key_u32("attention.q_lora_rank", number("q_lora_rank"));
    key_u32("attention.output_group_count", number("o_groups"));
    key_u32("attention.output_lora_rank", number("o_lora_rank"));
    key_f32("attention.compress_rope_freq_base", real_in(config, "compress_rope_theta", 0));
    key_u32("hyper_connection.count", number("hc_mult"));
    key_u32("hyper_connection.sinkhorn_iterations", number("hc_sinkhorn_iters"));
    key_f32("hyper_connection.epsilon", real_in(config, "hc_eps", 0));
}

static void metadata(void) {
    key_u32("block_count", n_layers);
    copy("context_length", "max_position_embeddings", "model_max_length");
    key_u32("embedding_length", number("hidden_size"));
    key_u32("attention.head_count", number("num_attention_heads"));
    key_f32("attention.layer_norm_rms_epsilon",
            real_in(config, is("nemotron_h_moe") ? "layer_norm_epsilon" : "rms_norm_eps", 1e-6));
    copy("feed_forward_length",
         is("minimax-m3") ? "dense_intermediate_size"
         : is("llama4")   ? "intermediate_size_mlp"
                          : "intermediate_size",
         NULL);
    if (json_is_integer(json_object_get(config, "sliding_window")) && !is("qwen2moe"))
        copy("attention.sliding_window", "sliding_window", NULL);
    copy("attention.indexer.head_count", "index_n_heads", NULL);
    copy("attention.indexer.key_length", "index_head_dim", NULL);
    copy("attention.indexer.top_k", "index_topk", NULL);
    rope_keys();
    expert_keys();
    kind_keys();
    if (is("deepseek4")) far_keys();
    if (json_object_get(config, "swiglu_limit"))
        key_reals("swiglu_clamp_exp", real_in(config, "swiglu_limit", 0), n_layers);
}

/* The full layers' pairs that do not turn are divided by 1e30. */
static void rope_freqs(void) {
    const json_t *rope = json_object_get(json_object_get(config, "rope_parameters"), "full_attention");
    const json_t *full = json_object_get(json_object_get(config, "per_layer_config"), "2");
    int64_t half = (int64_t)real_in(full, "head_dim", 0) / 2;
    float x[512];
    CHECK(half > 0 && half <= 512);
    for (int64_t i = 0; i < half; i++)
        x[i] = (double)i < real_in(rope, "partial_rotary_factor", 1) * (double)half ? 1.0f : 1e30f;
    tensor("rope_freqs.weight", x, half, 0, 0);
}

bool later_family(const char *type, const json_t *the_config, const mf__catalog *the_cat, int files) {
    static const char *const archs[][2] = {{"mixtral", "llama"},
                                           {"llama4_text", "llama4"},
                                           {"olmoe", "olmoe"},
                                           {"qwen2_moe", "qwen2moe"},
                                           {"dots1", "dots1"},
                                           {"hy_v3", "hy_v3"},
                                           {"hunyuan_v1_moe", "hunyuan-moe"},
                                           {"mistral4", "mistral4"},
                                           {"mimo_v2_flash", "mimo2"},
                                           {"ernie4_5_moe", "ernie4_5-moe"},
                                           {"gemma4_text", "gemma4"},
                                           {"deepseek_v4", "deepseek4"},
                                           {"minimax_m3_vl_text", "minimax-m3"},
                                           {"glm_moe_dsa", "glm-dsa"},
                                           {"deepseek_v32", "deepseek32"},
                                           {"glm4_moe_lite", "deepseek2"},
                                           {"kimi_linear", "kimi-linear"},
                                           {"nemotron_h", "nemotron_h_moe"}};
    config = the_config, cat = the_cat, arch = NULL;
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (!strcmp(type, archs[i][0])) arch = archs[i][1];
    if (!arch) return false;
    stem = is("nemotron_h_moe") ? "backbone" : "model";
    n_layers = json_object_get(config, "num_hidden_layers")
                   ? (int)number("num_hidden_layers")
                   : (int)json_array_size(json_object_get(config, "layers_block_type"));
    gguf_begin(arch, files);
    metadata();
    for (size_t i = 0; i < sizeof TOP / sizeof TOP[0]; i++) {
        const mf__entry *e = mf__catalog_find(cat, TOP[i][0]);
        if (e) put(TOP[i][1], e);
    }
    for (int l = 0; l < n_layers; l++) put_layer(l);
    if (is("gemma4")) rope_freqs();
    return true;
}
