/* make_gguf CHECKPOINT OUT.gguf: a checkpoint of the goldens as a GGUF file, with everything that GGUF's converters do
 * to tensors done here, from their description and without the library's reader: norms with 1 added, -exp(A_log), value
 * heads in tiled order, qkvz taken apart, kv_b split and transposed, experts stacked. Matrices are BF16 where that is
 * exact, all else is F32. Checkpoints of MLX are read too: decoded, and their norms have 1 added already.
 *
 * With a third argument N the tensors are spread over N files: OUT-00001-of-0000N.gguf and so on. With a fourth, q4_0,
 * q4_1, q5_0, q5_1 or q8_0, matrices are of that type; with a fifth they are F32 again, of those values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "gguf_file.h"
#include "weights/safetensors.h"

static mf__catalog *cat;
static json_t *config;
static const char *arch;

/* ---- the checkpoint ---- */

static int64_t number(const char *key) {
    const json_t *v = json_object_get(config, key);
    if (!json_is_integer(v)) {
        fprintf(stderr, "make_gguf: the config has no %s\n", key);
        exit(1);
    }
    return json_integer_value(v);
}

static double real(const char *key) {
    const json_t *v = json_object_get(config, key);
    if (!v) v = json_object_get(json_object_get(config, "rope_parameters"), key);
    CHECK(json_is_number(v));
    return json_number_value(v);
}

static bool has(const char *name) {
    return mf__catalog_find(cat, name) != NULL;
}

/* All values of a tensor, decoded; n is checked when not 0. Freed by the caller. */
float *values(const char *name, int64_t n) {
    mf__tensor t;
    mf_error err;
    if (mf__catalog_tensor(cat, name, 0, &t, &err)) fprintf(stderr, "make_gguf: %s\n", err.text);
    CHECK(mf__catalog_find(cat, name));
    int64_t rows = t.n_planes * t.n_rows;
    CHECK(!n || n == rows * t.n_cols);
    float *x = malloc((size_t)(rows * t.n_cols) * sizeof *x);
    CHECK(x);
    for (int64_t p = 0; p < t.n_planes; p++) {
        mf__tensor plane = mf__tensor_plane(&t, p);
        for (int64_t r = 0; r < t.n_rows; r++) mf__tensor_row_f32(&plane, r, x + (p * t.n_rows + r) * t.n_cols);
    }
    return x;
}

static const char *of(int layer, const char *rest) {
    static char names[4][160];
    static int next;
    char *s = names[next++ % 4];
    snprintf(s, sizeof names[0], "model.layers.%d.%s", layer, rest);
    return s;
}

static const char *blk(int layer, const char *rest) {
    static char names[4][160];
    static int next;
    char *s = names[next++ % 4];
    snprintf(s, sizeof names[0], "blk.%d.%s", layer, rest);
    return s;
}

static bool from_mlx(void) {
    return json_object_get(config, "quantization") != NULL;
}

static void matrix(const char *theirs, const char *ours, int64_t rows, int64_t cols) {
    float *x = values(ours, rows * cols);
    tensor(theirs, x, cols, rows, 0);
    free(x);
}

static void vector(const char *theirs, const char *ours, int64_t n, bool zero_centred) {
    float *x = values(ours, n);
    for (int64_t i = 0; zero_centred && !from_mlx() && i < n; i++) x[i] += 1;
    tensor(theirs, x, n, 0, 0);
    free(x);
}

static bool hybrid(void) {
    return !strcmp(arch, "qwen35moe") || !strcmp(arch, "qwen3next");
}

/* ---- parts of a layer ---- */

static void attention(int l) {
    int64_t h = number("hidden_size"), d = number("head_dim"), n = number("num_attention_heads");
    int64_t kv = number("num_key_value_heads");
    matrix(blk(l, "attn_q.weight"), of(l, "self_attn.q_proj.weight"), n * d * (hybrid() ? 2 : 1), h);
    matrix(blk(l, "attn_k.weight"), of(l, "self_attn.k_proj.weight"), kv * d, h);
    matrix(blk(l, "attn_v.weight"), of(l, "self_attn.v_proj.weight"), kv * d, h);
    matrix(blk(l, "attn_output.weight"), of(l, "self_attn.o_proj.weight"), h, n * d);
    if (has(of(l, "self_attn.q_norm.weight"))) {
        vector(blk(l, "attn_q_norm.weight"), of(l, "self_attn.q_norm.weight"), d, hybrid());
        vector(blk(l, "attn_k_norm.weight"), of(l, "self_attn.k_norm.weight"), d, hybrid());
    }
    if (has(of(l, "self_attn.q_proj.bias"))) {
        vector(blk(l, "attn_q.bias"), of(l, "self_attn.q_proj.bias"), n * d, false);
        vector(blk(l, "attn_k.bias"), of(l, "self_attn.k_proj.bias"), kv * d, false);
        vector(blk(l, "attn_v.bias"), of(l, "self_attn.v_proj.bias"), kv * d, false);
    }
    if (has(of(l, "self_attn.o_proj.bias")))
        vector(blk(l, "attn_output.bias"), of(l, "self_attn.o_proj.bias"), h, false);
    if (has(of(l, "self_attn.sinks"))) vector(blk(l, "attn_sinks.weight"), of(l, "self_attn.sinks"), n, false);
}

void split_kv_b(int l) {
    int64_t n = number("num_attention_heads"), lora = number("kv_lora_rank"), nope = number("qk_nope_head_dim");
    int64_t v = number("v_head_dim");
    float *both = values(of(l, "self_attn.kv_b_proj.weight"), n * (nope + v) * lora);
    float *kb = malloc((size_t)(n * nope * lora) * 4), *vb = malloc((size_t)(n * v * lora) * 4);
    CHECK(kb && vb);
    for (int64_t i = 0; i < n; i++) {
        const float *head = both + i * (nope + v) * lora;
        for (int64_t r = 0; r < nope; r++)
            for (int64_t c = 0; c < lora; c++) kb[(i * lora + c) * nope + r] = head[r * lora + c];
        memcpy(vb + i * v * lora, head + nope * lora, (size_t)(v * lora) * 4);
    }
    tensor(blk(l, "attn_k_b.weight"), kb, nope, lora, n);
    tensor(blk(l, "attn_v_b.weight"), vb, lora, v, n);
    free(kb);
    free(vb);
    free(both);
}

static void latent(int l) {
    int64_t h = number("hidden_size"), n = number("num_attention_heads"), q = number("q_lora_rank");
    int64_t lora = number("kv_lora_rank"), nope = number("qk_nope_head_dim"), rot = number("qk_rope_head_dim");
    int64_t v = number("v_head_dim");
    matrix(blk(l, "attn_q_a.weight"), of(l, "self_attn.q_a_proj.weight"), q, h);
    vector(blk(l, "attn_q_a_norm.weight"), of(l, "self_attn.q_a_layernorm.weight"), q, false);
    matrix(blk(l, "attn_q_b.weight"), of(l, "self_attn.q_b_proj.weight"), n * (nope + rot), q);
    matrix(blk(l, "attn_kv_a_mqa.weight"), of(l, "self_attn.kv_a_proj_with_mqa.weight"), lora + rot, h);
    vector(blk(l, "attn_kv_a_norm.weight"), of(l, "self_attn.kv_a_layernorm.weight"), lora, false);
    matrix(blk(l, "attn_output.weight"), of(l, "self_attn.o_proj.weight"), h, n * v);
    split_kv_b(l);
}

/* Value heads from the published order (those of a key head together) to GGUF's; rows_each rows of row values. */
static void tile(float *x, int64_t nk, int64_t nv, int64_t rows_each, int64_t row) {
    int64_t head = rows_each * row, per_key = nv / nk;
    float *copy = malloc((size_t)(nv * head) * 4);
    CHECK(copy);
    memcpy(copy, x, (size_t)(nv * head) * 4);
    for (int64_t k = 0; k < nk; k++)
        for (int64_t i = 0; i < per_key; i++)
            memcpy(x + (i * nk + k) * head, copy + (k * per_key + i) * head, (size_t)head * 4);
    free(copy);
}

static void delta_inputs(int l, int64_t h, int64_t nk, int64_t kd, int64_t nv, int64_t vd) {
    int64_t keys_ = nk * kd, vals = nv * vd, per = nv / nk * vd;
    if (!strcmp(arch, "qwen35moe")) {
        float *qkv = values(of(l, "linear_attn.in_proj_qkv.weight"), (2 * keys_ + vals) * h);
        float *z = values(of(l, "linear_attn.in_proj_z.weight"), vals * h);
        float *a = values(of(l, "linear_attn.in_proj_a.weight"), nv * h);
        float *b = values(of(l, "linear_attn.in_proj_b.weight"), nv * h);
        tile(qkv + 2 * keys_ * h, nk, nv, vd, h);
        tile(z, nk, nv, vd, h);
        tile(a, nk, nv, 1, h);
        tile(b, nk, nv, 1, h);
        tensor(blk(l, "attn_qkv.weight"), qkv, h, 2 * keys_ + vals, 0);
        tensor(blk(l, "attn_gate.weight"), z, h, vals, 0);
        tensor(blk(l, "ssm_alpha.weight"), a, h, nv, 0);
        tensor(blk(l, "ssm_beta.weight"), b, h, nv, 0);
        free(qkv), free(z), free(a), free(b);
        return;
    }
    float *all = values(of(l, "linear_attn.in_proj_qkvz.weight"), (2 * keys_ + 2 * vals) * h);
    float *qkv = malloc((size_t)((2 * keys_ + vals) * h) * 4), *z = malloc((size_t)(vals * h) * 4);
    CHECK(qkv && z);
    for (int64_t k = 0; k < nk; k++) {
        const float *from = all + k * (2 * kd + 2 * per) * h;
        memcpy(qkv + k * kd * h, from, (size_t)(kd * h) * 4);
        memcpy(qkv + (keys_ + k * kd) * h, from + kd * h, (size_t)(kd * h) * 4);
        memcpy(qkv + (2 * keys_ + k * per) * h, from + 2 * kd * h, (size_t)(per * h) * 4);
        memcpy(z + k * per * h, from + (2 * kd + per) * h, (size_t)(per * h) * 4);
    }
    tensor(blk(l, "attn_qkv.weight"), qkv, h, 2 * keys_ + vals, 0);
    tensor(blk(l, "attn_gate.weight"), z, h, vals, 0);
    matrix(blk(l, "ssm_ba.weight"), of(l, "linear_attn.in_proj_ba.weight"), 2 * nv, h);
    free(all), free(qkv), free(z);
}

static void delta(int l) {
    int64_t h = number("hidden_size"), nk = number("linear_num_key_heads"), kd = number("linear_key_head_dim");
    int64_t nv = number("linear_num_value_heads"), vd = number("linear_value_head_dim");
    int64_t kernel = number("linear_conv_kernel_dim"), channels = 2 * nk * kd + nv * vd;
    bool tiled = !strcmp(arch, "qwen35moe");
    delta_inputs(l, h, nk, kd, nv, vd);
    float *conv = values(of(l, "linear_attn.conv1d.weight"), channels * kernel);
    float *a = values(of(l, "linear_attn.A_log"), nv), *dt = values(of(l, "linear_attn.dt_bias"), nv);
    float *out = values(of(l, "linear_attn.out_proj.weight"), h * nv * vd);
    for (int64_t i = 0; i < nv; i++) a[i] = (float)-exp((double)a[i]);
    if (tiled) {
        tile(conv + 2 * nk * kd * kernel, nk, nv, vd, kernel);
        tile(a, nk, nv, 1, 1);
        tile(dt, nk, nv, 1, 1);
        for (int64_t r = 0; r < h; r++) tile(out + r * nv * vd, nk, nv, 1, vd);
    }
    tensor(blk(l, "ssm_conv1d.weight"), conv, kernel, channels, 0);
    tensor(blk(l, "ssm_a"), a, nv, 0, 0);
    tensor(blk(l, "ssm_dt.bias"), dt, nv, 0, 0);
    tensor(blk(l, "ssm_out.weight"), out, nv * vd, h, 0);
    vector(blk(l, "ssm_norm.weight"), of(l, "linear_attn.norm.weight"), vd, false);
    free(conv), free(a), free(dt), free(out);
}

static void stacked(int l, const char *theirs, const char *part, int64_t e, int64_t rows, int64_t cols) {
    char name[96];
    snprintf(name, sizeof name, "mlp.switch_mlp.%s.weight", part);
    if (has(of(l, name))) {
        float *x = values(of(l, name), e * rows * cols);
        tensor(blk(l, theirs), x, cols, rows, e);
        free(x);
        return;
    }
    float *all = malloc((size_t)(e * rows * cols) * 4);
    CHECK(all);
    for (int64_t i = 0; i < e; i++) {
        snprintf(name, sizeof name, "mlp.experts.%d.%s.weight", (int)i, part);
        float *one = values(of(l, name), rows * cols);
        memcpy(all + i * rows * cols, one, (size_t)(rows * cols) * 4);
        free(one);
    }
    tensor(blk(l, theirs), all, cols, rows, e);
    free(all);
}

/* gpt-oss: [expert][in][2 * out], gate and up in turns; GGUF has them apart and the other way round. */
static void gpt_oss_experts(int l, int64_t e, int64_t inner, int64_t h) {
    float *gu = values(of(l, "mlp.experts.gate_up_proj"), e * h * 2 * inner);
    float *gub = values(of(l, "mlp.experts.gate_up_proj_bias"), e * 2 * inner);
    float *down = values(of(l, "mlp.experts.down_proj"), e * inner * h);
    float *x = malloc((size_t)(e * inner * h) * 4), *b = malloc((size_t)(e * inner) * 4);
    CHECK(x && b);
    for (int half = 0; half < 2; half++) {
        for (int64_t i = 0; i < e; i++)
            for (int64_t r = 0; r < inner; r++) {
                b[i * inner + r] = gub[i * 2 * inner + 2 * r + half];
                for (int64_t c = 0; c < h; c++) x[(i * inner + r) * h + c] = gu[(i * h + c) * 2 * inner + 2 * r + half];
            }
        tensor(blk(l, half ? "ffn_up_exps.weight" : "ffn_gate_exps.weight"), x, h, inner, e);
        tensor(blk(l, half ? "ffn_up_exps.bias" : "ffn_gate_exps.bias"), b, inner, e, 0);
    }
    for (int64_t i = 0; i < e; i++)
        for (int64_t r = 0; r < h; r++)
            for (int64_t c = 0; c < inner; c++) x[(i * h + r) * inner + c] = down[(i * inner + c) * h + r];
    tensor(blk(l, "ffn_down_exps.weight"), x, inner, h, e);
    float *db = values(of(l, "mlp.experts.down_proj_bias"), e * h);
    tensor(blk(l, "ffn_down_exps.bias"), db, h, e, 0);
    free(gu), free(gub), free(down), free(x), free(b), free(db);
}

static void glu(int l, const char *ours, const char *suffix, int64_t inner, int64_t h) {
    static const char *const parts[] = {"gate", "up", "down"};
    for (int p = 0; p < 3; p++) {
        char theirs[64], name[96];
        snprintf(theirs, sizeof theirs, "ffn_%s%s.weight", parts[p], suffix);
        snprintf(name, sizeof name, "mlp.%s%s_proj.weight", ours, parts[p]);
        matrix(blk(l, theirs), of(l, name), p == 2 ? h : inner, p == 2 ? inner : h);
    }
}

static void feed_forward(int l) {
    int64_t h = number("hidden_size");
    if (has(of(l, "mlp.gate_proj.weight"))) {
        glu(l, "", "", number("intermediate_size"), h);
        return;
    }
    bool oss = !strcmp(arch, "gpt-oss");
    int64_t inner = number(oss ? "intermediate_size" : "moe_intermediate_size");
    int64_t e = json_integer_value(json_object_get(config, "num_experts"));
    if (!e) e = json_integer_value(json_object_get(config, "num_local_experts"));
    if (!e) e = number("n_routed_experts");
    matrix(blk(l, "ffn_gate_inp.weight"), of(l, oss ? "mlp.router.weight" : "mlp.gate.weight"), e, h);
    if (oss) {
        vector(blk(l, "ffn_gate_inp.bias"), of(l, "mlp.router.bias"), e, false);
        gpt_oss_experts(l, e, inner, h);
        return;
    }
    stacked(l, "ffn_gate_exps.weight", "gate_proj", e, inner, h);
    stacked(l, "ffn_up_exps.weight", "up_proj", e, inner, h);
    stacked(l, "ffn_down_exps.weight", "down_proj", e, h, inner);
    if (has(of(l, "mlp.gate.e_score_correction_bias")))
        vector(blk(l, "exp_probs_b.bias"), of(l, "mlp.gate.e_score_correction_bias"), e, false);
    if (has(of(l, "mlp.shared_experts.up_proj.weight"))) glu(l, "shared_experts.", "_shexp", inner, h);
    if (has(of(l, "mlp.shared_expert.up_proj.weight"))) {
        glu(l, "shared_expert.", "_shexp", number("shared_expert_intermediate_size"), h);
        vector(blk(l, "ffn_gate_inp_shexp.weight"), of(l, "mlp.shared_expert_gate.weight"), h, false);
    }
}

/* ---- metadata ---- */

static void yarn_keys(void) {
    const json_t *rope = json_object_get(config, "rope_parameters");
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type || strcmp(type, "yarn")) return;
    key_text("rope.scaling.type", "yarn");
    key_f32("rope.scaling.factor", real("factor"));
    key_u32("rope.scaling.original_context_length",
            json_integer_value(json_object_get(rope, "original_max_position_embeddings")));
    if (json_object_get(rope, "mscale_all_dim"))
        key_f32("rope.scaling.yarn_log_multiplier", 0.1 * real("mscale_all_dim"));
}

static void expert_keys(const char *count) {
    key_u32("expert_count", number(count));
    key_u32("expert_used_count", number("num_experts_per_tok"));
    key_u32("expert_feed_forward_length",
            number(!strcmp(arch, "gpt-oss") ? "intermediate_size" : "moe_intermediate_size"));
}

static void grouped_keys(void) {
    expert_keys("n_routed_experts");
    key_u32("leading_dense_block_count", number("first_k_dense_replace"));
    key_u32("feed_forward_length", number("intermediate_size"));
    key_u32("expert_shared_count", number("n_shared_experts"));
    key_u32("expert_group_count", number("n_group"));
    key_u32("expert_group_used_count", number("topk_group"));
    key_f32("expert_weights_scale", real("routed_scaling_factor"));
    key_bool("expert_weights_norm", json_is_true(json_object_get(config, "norm_topk_prob")));
    key_u32("expert_gating_func", 2);
}

static void metadata(void) {
    key_u32("block_count", number("num_hidden_layers"));
    key_u32("context_length", number("max_position_embeddings"));
    key_u32("embedding_length", number("hidden_size"));
    key_u32("attention.head_count", number("num_attention_heads"));
    key_f32("attention.layer_norm_rms_epsilon", real("rms_norm_eps"));
    key_f32("rope.freq_base", real("rope_theta"));
    yarn_keys();
    if (!strcmp(arch, "deepseek2")) {
        int64_t rot = number("qk_rope_head_dim"), lora = number("kv_lora_rank");
        key_u32("attention.head_count_kv", 1);
        key_u32("attention.q_lora_rank", number("q_lora_rank"));
        key_u32("attention.kv_lora_rank", lora);
        key_u32("attention.key_length", lora + rot);
        key_u32("attention.value_length", lora);
        key_u32("attention.key_length_mla", number("qk_nope_head_dim") + rot);
        key_u32("attention.value_length_mla", number("v_head_dim"));
        key_u32("rope.dimension_count", rot);
        grouped_keys();
        return;
    }
    int64_t d = number("head_dim");
    key_u32("attention.head_count_kv", number("num_key_value_heads"));
    key_u32("attention.key_length", d);
    key_u32("attention.value_length", d);
    if (hybrid()) {
        key_u32("rope.dimension_count", (int64_t)(real("partial_rotary_factor") * (double)d));
        expert_keys("num_experts");
        key_u32("expert_shared_feed_forward_length", number("shared_expert_intermediate_size"));
        key_u32("ssm.conv_kernel", number("linear_conv_kernel_dim"));
        key_u32("ssm.state_size", number("linear_key_head_dim"));
        key_u32("ssm.group_count", number("linear_num_key_heads"));
        key_u32("ssm.time_step_rank", number("linear_num_value_heads"));
        key_u32("ssm.inner_size", number("linear_num_value_heads") * number("linear_value_head_dim"));
        key_u32("full_attention_interval", 4);
    } else if (!strcmp(arch, "glm4moe")) {
        key_u32("rope.dimension_count", (int64_t)(real("partial_rotary_factor") * (double)d));
        grouped_keys();
    } else {
        expert_keys("num_local_experts");
        if (!strcmp(arch, "gpt-oss")) key_u32("attention.sliding_window", number("sliding_window"));
    }
}

static const char *arch_of(const char *type) {
    static const char *const rows[][2] = {
        {"qwen3_5_moe_text", "qwen35moe"}, {"qwen3_next", "qwen3next"}, {"qwen3_moe", "qwen3moe"},
        {"glm4_moe", "glm4moe"},           {"gpt_oss", "gpt-oss"},      {"deepseek_v3", "deepseek2"}};
    for (size_t i = 0; i < MF__COUNT(rows); i++)
        if (!strcmp(type, rows[i][0])) return rows[i][1];
    CHECK(!"a known model_type");
    return NULL;
}

static void first_family(const char *type, int files) {
    arch = arch_of(type);
    gguf_begin(arch, files);
    metadata();
    int64_t h = number("hidden_size"), v = number("vocab_size");
    matrix("token_embd.weight", "model.embed_tokens.weight", v, h);
    vector("output_norm.weight", "model.norm.weight", h, hybrid());
    matrix("output.weight", "lm_head.weight", v, h);
    for (int l = 0; l < number("num_hidden_layers"); l++) {
        bool latent_kv = !strcmp(arch, "deepseek2");
        vector(blk(l, "attn_norm.weight"), of(l, "input_layernorm.weight"), h, hybrid());
        vector(blk(l, latent_kv || !strcmp(arch, "qwen3moe") ? "ffn_norm.weight" : "post_attention_norm.weight"),
               of(l, "post_attention_layernorm.weight"), h, hybrid());
        if (latent_kv)
            latent(l);
        else if (has(of(l, "linear_attn.A_log")))
            delta(l);
        else
            attention(l);
        feed_forward(l);
    }
}

int main(int argc, char **argv) {
    char path[1024];
    CHECK(argc >= 3);
    snprintf(path, sizeof path, "%s/config.json", argv[1]);
    CHECK(mf__json_read(path, 1 << 20, &config, NULL) == MF_OK);
    CHECK(mf__safetensors_open(argv[1], &cat, NULL) == MF_OK);
    const char *type = json_string_value(json_object_get(config, "model_type"));
    int files = argc > 3 ? atoi(argv[3]) : 1;
    if (argc > 4) gguf_quantize(argv[4], argc > 5);
    if (!later_family(type, config, cat, files)) first_family(type, files);
    gguf_end(argv[2]);
    mf__catalog_close(cat);
    json_decref(config);
    return 0;
}
