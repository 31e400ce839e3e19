/* Families: what their configs switch, what is refused, what the documentation says about them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "maker.h"
#include "unit/base/scratch.h"
#include "weights/safetensors.h"

static mf_status parse(const char *json, mf__config *c, mf_error *err) {
    return mf__config_parse_text("config.json", json, strlen(json), c, err);
}

static mf__config parsed(const char *json) {
    mf__config c;
    mf_error err = {0};
    if (parse(json, &c, &err)) fail_msg("%s", err.text);
    return c;
}

static void refused(const char *json, mf_status want, const char *part) {
    mf__config c;
    mf_error err = {0};
    mf_status st = parse(json, &c, &err);
    if (st != want || !strstr(err.text, part))
        fail_msg("status %d (%s), expected %d with \"%s\"", st, err.text, want, part);
}

static void optional_parts(void **state) {
    (void)state;
    mf__config c = parsed(CONFIG_GLM(""));
    assert_true(c.has.bias_qkv && !c.has.bias_o && c.has.qk_norm == MF_QK_NORM_HEAD);
    assert_int_equal(c.attn.n_rot, 16); /* half of the head unless the config says otherwise */
    assert_true(c.dense[0] && !c.dense[1]);
    c = parsed(CONFIG_GLM(", \"partial_rotary_factor\": 0.25"));
    assert_int_equal(c.attn.n_rot, 8);

    c = parsed("{\"model_type\": \"glm4_moe\", " CONFIG_COMMON
               ", \"n_routed_experts\": 6, \"moe_intermediate_size\": 64}");
    assert_true(!c.has.bias_qkv && c.has.qk_norm == MF_QK_NORM_NONE && c.moe.n_shared_inner == 0 && !c.dense[0]);

    c = parsed(CONFIG_QWEN3(", \"mlp_only_layers\": [1], \"intermediate_size\": 99"));
    assert_true(!c.dense[0] && c.dense[1] && !c.dense[2] && c.n_dense_inner == 99);
    c = parsed(CONFIG_QWEN3(", \"decoder_sparse_step\": 2, \"intermediate_size\": 99"));
    assert_true(c.dense[0] && !c.dense[1] && c.dense[2] && !c.dense[3]);

    c = parsed(CONFIG_OSS(""));
    assert_true(c.mixer[0] == MF_MIX_SLIDING && c.mixer[1] == MF_MIX_FULL && c.attn.window == 5);
    assert_true(c.has.bias_qkv && c.has.bias_o && c.rope.yarn && !c.rope.truncate);
    assert_true(c.moe.glu.kind == MF_GLU_CLAMPED && c.moe.glu.limit == 7.0f && c.moe.glu.alpha == 1.702f);
    c = parsed(CONFIG_OSS(", \"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\", "
                          "\"full_attention\"]"));
    assert_true(c.mixer[0] == MF_MIX_FULL && c.mixer[2] == MF_MIX_SLIDING);

    c = parsed(CONFIG_MINIMAX(", \"rotary_dim\": 8"));
    assert_int_equal(c.attn.n_rot, 8);
}

/* Text has one position for all three streams of mrope: the sections change nothing. */
static void mrope_sections_do_not_matter(void **state) {
    (void)state;
    mf__config a =
        parsed(CONFIG_QWEN3_5(", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}"));
    mf__config b = parsed(CONFIG_QWEN3_5(", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0, "
                                         "\"mrope_section\": [11, 11, 10], \"mrope_interleaved\": true}"));
    assert_memory_equal(&a, &b, sizeof a);
}

static void refuses_what_it_does_not_have(void **state) {
    (void)state;
    refused(CONFIG_QWEN3(", \"attention_bias\": true"), MF_E_UNSUPPORTED, "attention_bias");
    refused(CONFIG_QWEN3(", \"use_sliding_window\": true"), MF_E_UNSUPPORTED, "use_sliding_window");
    refused(CONFIG_QWEN3(", \"hidden_act\": \"gelu\""), MF_E_UNSUPPORTED, "gelu");
    refused(CONFIG_QWEN3_5(", \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", "
                           "\"full_attention\"]"),
            MF_E_UNSUPPORTED, "layer_types[1] is \"sliding_attention\"");
    refused(CONFIG_GLM(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}"), MF_E_UNSUPPORTED, "yarn");
    refused(CONFIG_MINIMAX(", \"n_group\": 2, \"topk_group\": 1"), MF_E_UNSUPPORTED, "n_group");
    refused("{\"model_type\": \"llama\"}", MF_E_UNSUPPORTED, "gpt_oss");
}

/* Every family must be told from its tensors alone. */
static void witnesses(void **state) {
    static const char *const configs[] = {CONFIG_QWEN3_5(""), CONFIG_QWEN3(""), CONFIG_GLM(""), CONFIG_OSS(""),
                                          CONFIG_DEEPSEEK("")};
    for (size_t i = 0; i < MF__COUNT(configs); i++) {
        maker m;
        mf__catalog *cat;
        char name[16];
        snprintf(name, sizeof name, "w%zu", i);
        maker_init(&m, configs[i]);
        assert_int_equal(mf__safetensors_open(maker_write(&m, *state, name), &cat, NULL), MF_OK);
        const mf__family *family = mf__family_guess(cat);
        assert_non_null(family);
        assert_string_equal(family->name, m.bp.config.family->name);
        mf__catalog_close(cat);
        maker_free(&m);
    }
}

/* ---- families that are names and flags -------------------------------------------------------------------------- */

#define CONFIG_ATTENTION                                                                                               \
    "\"num_hidden_layers\": 3, \"hidden_size\": 64, \"vocab_size\": 96, \"max_position_embeddings\": 64, "             \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, \"eos_token_id\": 1, "
#define CONFIG_LATENT                                                                                                  \
    CONFIG_ATTENTION                                                                                                   \
    "\"q_lora_rank\": 32, \"kv_lora_rank\": 32, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": "   \
    "16, "                                                                                                             \
    "\"n_routed_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, \"n_shared_experts\": 1, "    \
    "\"intermediate_size\": 48, "

/* A family's config, and how its published tensors are spelt where the graphs say something else. */
typedef struct spelt {
    const char *family, *config;
    const char *names[7][2];
    const char *ops; /* in the mix graph of the last layer: these labels, in this order */
} spelt;

static const spelt SPELT[] = {
    {"glm4_moe_lite",
     "{\"model_type\": \"glm4_moe_lite\", " CONFIG_LATENT
     "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"], \"routed_scaling_factor\": 1.8}",
     {{"mlp.shared_expert.", "mlp.shared_experts."}},
     "q_a_norm q_b_proj q_rope kv_a_norm k_rope mla_attention o_proj router"},
    {"mixtral",
     "{\"model_type\": \"mixtral\", " CONFIG_ATTENTION
     "\"num_local_experts\": 6, \"num_experts_per_tok\": 2, \"intermediate_size\": 32}",
     {{"mlp.gate.weight", "block_sparse_moe.gate.weight"}},
     "q_proj k_proj v_proj q_rope k_rope attention o_proj router"},
    {"olmoe",
     "{\"model_type\": \"olmoe\", " CONFIG_ATTENTION
     "\"num_experts\": 6, \"num_experts_per_tok\": 3, \"intermediate_size\": 32, \"clip_qkv\": 1.5}",
     {{NULL}},
     "q_norm k_norm q_clip k_clip v_clip q_rope k_rope attention"},
    {"qwen2_moe",
     "{\"model_type\": \"qwen2_moe\", " CONFIG_ATTENTION
     "\"num_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, "
     "\"shared_expert_intermediate_size\": 48}",
     {{NULL}},
     "q_proj k_proj v_proj q_rope k_rope attention"},
    {"dots1",
     "{\"model_type\": \"dots1\", " CONFIG_ATTENTION
     "\"n_routed_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, \"n_shared_experts\": 2, "
     "\"first_k_dense_replace\": 1, \"intermediate_size\": 48}",
     {{"mlp.shared_expert.", "mlp.shared_experts."}},
     "q_norm k_norm q_rope k_rope attention"},
    {"hy_v3",
     "{\"model_type\": \"hy_v3\", " CONFIG_ATTENTION
     "\"num_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, \"num_shared_experts\": 1, "
     "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"], \"intermediate_size\": 48, "
     "\"router_scaling_factor\": 2.8}",
     {{"mlp.gate.e_score_correction_bias", "mlp.expert_bias"},
      {"mlp.gate.weight", "mlp.router.gate.weight"},
      {"mlp.shared_expert.", "mlp.shared_mlp."}},
     "q_norm k_norm q_rope k_rope attention"},
    {"hunyuan_v1_moe",
     "{\"model_type\": \"hunyuan_v1_moe\", " CONFIG_ATTENTION
     "\"num_experts\": 6, \"moe_topk\": [3, 3, 3], \"intermediate_size\": 32, \"rope_scaling\": {\"type\": "
     "\"dynamic\", "
     "\"alpha\": 1000.0, \"factor\": 1.0}}",
     {{"mlp.gate.weight", "mlp.gate.wg.weight"},
      {"mlp.shared_expert.", "mlp.shared_mlp."},
      {"self_attn.q_norm.", "self_attn.query_layernorm."},
      {"self_attn.k_norm.", "self_attn.key_layernorm."}},
     "q_rope k_rope q_norm k_norm attention"},
    {"ernie4_5_moe",
     "{\"model_type\": \"ernie4_5_moe\", " CONFIG_ATTENTION
     "\"moe_num_experts\": 6, \"moe_k\": 3, \"moe_intermediate_size\": 32, \"moe_num_shared_experts\": 2, "
     "\"intermediate_size\": 48, \"tie_word_embeddings\": true}",
     {{"mlp.gate.e_score_correction_bias", "mlp.moe_statics.e_score_correction_bias"},
      {"mlp.shared_expert.", "mlp.shared_experts."}},
     "q_rope k_rope attention o_proj router"},
    {"mistral4",
     "{\"model_type\": \"mistral4\", " CONFIG_LATENT
     "\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 8.0, \"original_max_position_embeddings\": 8, "
     "\"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"llama_4_scaling_beta\": 0.1}}",
     {{"mlp.shared_expert.", "mlp.shared_experts."},
      {"model.", "language_model.model."},
      {"lm_head", "language_model.lm_head"}},
     "q_b_proj q_rope q_grow kv_a_norm k_rope mla_attention"},
    {"deepseek_v32",
     "{\"model_type\": \"deepseek_v32\", " CONFIG_LATENT
     "\"index_n_heads\": 2, \"index_head_dim\": 16, \"index_topk\": 5}",
     {{"mlp.shared_expert.", "mlp.shared_experts."}},
     "q_rope k_rope index_k_norm index_k_rope kv_append index_q_rope index_weights index mla_attention"},
    {"minimax_m3_vl",
     "{\"model_type\": \"minimax_m3_vl\", \"text_config\": {" CONFIG_ATTENTION
     "\"num_local_experts\": 6, \"num_experts_per_tok\": 3, \"intermediate_size\": 32, \"dense_intermediate_size\": "
     "48, "
     "\"moe_layer_freq\": [0, 1, 1], \"rotary_dim\": 8, \"sparse_attention_config\": {\"sparse_attention_freq\": [0, "
     "0, "
     "1], \"sparse_num_index_heads\": 2, \"sparse_index_dim\": 16, \"sparse_block_size\": 4, \"sparse_topk_blocks\": "
     "2, "
     "\"sparse_local_block\": 1}}}",
     {{"mlp.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias"},
      {"mlp.gate.weight", "block_sparse_moe.gate.weight"},
      {"mlp.shared_expert.", "block_sparse_moe.shared_experts."},
      {"self_attn.indexer.q_", "self_attn.index_q_"},
      {"self_attn.indexer.k_", "self_attn.index_k_"}},
     "q_norm k_norm q_rope k_rope index_k_norm index_k_rope kv_append index_q_norm index_q_rope index attention"},
};

static void assert_ops(const spelt *f, const mf__blueprint *bp) {
    const mf__graph *g = bp->kinds[bp->kind_of[bp->config.n_layers - 1]].mix;
    char label[32];
    int at = 0;
    for (const char *p = f->ops; *p; p += strcspn(p, " "), p += *p == ' ') {
        snprintf(label, sizeof label, "%.*s", (int)strcspn(p, " "), p);
        while (at < g->n_ops && strcmp(g->ops[at].label, label)) at++;
        if (at == g->n_ops) fail_msg("%s: no %s in its place", f->family, label);
    }
}

/* A config and published names lead to the same model as the graphs' own names. */
static void published_names(void **state) {
    for (size_t i = 0; i < MF__COUNT(SPELT); i++) {
        const spelt *f = &SPELT[i];
        maker m;
        char name[64];
        maker_init(&m, f->config);
        assert_string_equal(m.bp.config.family->name, f->family);
        assert_ops(f, &m.bp);
        snprintf(name, sizeof name, "%s-ours", f->family);
        float *ours = checkpoint_logits(maker_write(&m, *state, name), NULL);
        for (int k = 0; k < 7 && f->names[k][0]; k++) maker_rename(&m, f->names[k][0], f->names[k][1]);
        snprintf(name, sizeof name, "%s-theirs", f->family);
        float *theirs = checkpoint_logits(maker_write(&m, *state, name), NULL);
        assert_same_logits(ours, theirs, 96);
        free(ours);
        free(theirs);
        maker_free(&m);
    }
}

/* What a config switches, seen in the numbers that graphs are built from. */
static void numbers_of_the_new(void **state) {
    (void)state;
    mf__config c = parsed(SPELT[6].config); /* hunyuan_v1_moe */
    assert_true(c.has.qk_norm_last && c.rope.alpha == 1000 && c.moe.top_k == 3 && c.moe.n_shared_inner == 32);
    float plain[8], turned[8];
    mf__rope_frequencies(&c.rope, 16, turned);
    c.rope.alpha = 0;
    mf__rope_frequencies(&c.rope, 16, plain);
    assert_true(plain[0] == turned[0] && plain[7] > turned[7] * 900 && plain[7] < turned[7] * 1100);
    c = parsed(SPELT[7].config); /* ernie4_5_moe */
    assert_true(c.has.interleaved && c.dense[0] && !c.dense[1] && c.moe.n_shared_inner == 64 && c.has.choice_bias);
    c = parsed(SPELT[8].config); /* mistral4 */
    assert_true(c.attn.grow == 0.1f && c.attn.grow_step == 8 && c.mla.eps == 1e-6f && !c.has.choice_bias);
    c = parsed(SPELT[10].config); /* minimax_m3_vl */
    assert_true(c.mixer[1] == MF_MIX_FULL && c.mixer[2] == MF_MIX_BLOCKS && c.index.block == 4 && c.dense[0]);
    assert_true(c.n_dense_inner == 48 && c.moe.n_shared_inner == 32 && c.moe.glu.limit == 7);
    refused("{\"model_type\": \"hunyuan_v1_moe\", " CONFIG_ATTENTION
            "\"num_experts\": 6, \"moe_topk\": [3, 2, 3], \"intermediate_size\": 32}",
            MF_E_UNSUPPORTED, "moe_topk differs from layer to layer");
    refused("{\"model_type\": \"glm_moe_dsa\", " CONFIG_LATENT
            "\"index_n_heads\": 2, \"index_head_dim\": 16, \"index_topk\": 5, \"index_topk_pattern\": \"SFF\"}",
            MF_E_FORMAT, "first layer has no index");
    refused(CONFIG_QWEN3(", \"rope_parameters\": {\"rope_type\": \"dynamic\", \"alpha\": 10.0}"), MF_E_UNSUPPORTED,
            "dynamic");
    refused(CONFIG_QWEN3(", \"n_shared_experts\": 1"), MF_E_UNSUPPORTED, "no shared expert");
    c = parsed("{\"model_type\": \"glm_moe_dsa\", " CONFIG_LATENT
               "\"index_n_heads\": 2, \"index_head_dim\": 16, \"index_topk\": 5, \"index_topk_freq\": 2, "
               "\"index_skip_topk_offset\": 1}");
    assert_true(c.mixer[0] == MF_MIX_INDEXED && c.mixer[1] == MF_MIX_REUSED && c.mixer[2] == MF_MIX_INDEXED);
    c = parsed("{\"model_type\": \"mimo_v2_flash\", " CONFIG_ATTENTION
               "\"v_head_dim\": 8, \"attention_value_scale\": 0.707, \"n_routed_experts\": 6, \"num_experts_per_tok\": "
               "3, \"moe_intermediate_size\": 32, \"intermediate_size\": 48, \"hybrid_layer_pattern\": [0, 1, 1], "
               "\"sliding_window\": 8, \"swa_num_key_value_heads\": 4, \"rope_theta\": 5000000.0, "
               "\"swa_rope_theta\": 10000.0, \"partial_rotary_factor\": 0.5, \"moe_layer_freq\": [0, 1, 1]}");
    assert_true(c.sliding.n_kv_heads == 4 && c.attn.n_kv_heads == 2 && c.sliding.window == 8 && c.attn.v_dim == 8);
    assert_true(c.rope.theta == 5e6 && c.sliding_rope.theta == 1e4 && c.has.sinks == 1u << MF_MIX_SLIDING);
    assert_true(c.dense[0] && !c.dense[1] && c.mixer[0] == MF_MIX_FULL && c.mixer[1] == MF_MIX_SLIDING);
}

/* ---- fewer experts per token ------------------------------------------------------------------------------------ */

typedef struct heard {
    int n_warnings;
    char text[256];
} heard;

static void listen(void *user, mf_log_level level, const char *text) {
    heard *h = user;
    if (level < MF_LOG_WARN) return;
    h->n_warnings++;
    snprintf(h->text, sizeof h->text, "%s", text);
}

static void fewer_experts(void **state) {
    maker m;
    maker_init(&m, CONFIG_QWEN3(""));
    const char *dir = maker_write(&m, *state, "three");
    char native[512];
    snprintf(native, sizeof native, "%s.native", dir);
    float *three = checkpoint_logits(dir, NULL), *two = model_logits(native, 2), *own = model_logits(native, 3);
    assert_same_logits(three, own, 96);
    assert_memory_not_equal(three, two, 96 * sizeof(float));
    char *other = strstr(m.config, "\"num_experts_per_tok\": 3");
    assert_non_null(other);
    other[strlen("\"num_experts_per_tok\": ")] = '2'; /* a model made with two is what two of three should equal */
    float *made = checkpoint_logits(maker_write(&m, *state, "two"), NULL);
    assert_same_logits(two, made, 96);

    heard h = {0};
    mf_model_options opt;
    mf_model *model;
    mf_error err;
    mf_model_options_init(&opt);
    opt.log = (mf_log_sink){.write = listen, .user = &h};
    opt.experts_per_token = 3;
    assert_int_equal(mf_model_open(native, &opt, &model, &err), MF_OK);
    assert_int_equal(h.n_warnings, 0);
    assert_int_equal(mf_model_info_get(model)->n_experts_per_token, mf_model_info_get(model)->n_experts_trained);
    mf_model_close(model);
    opt.experts_per_token = 1;
    assert_int_equal(mf_model_open(native, &opt, &model, &err), MF_OK);
    assert_int_equal(h.n_warnings, 1);
    assert_non_null(strstr(h.text, "lossy"));
    assert_int_equal(mf_model_info_get(model)->n_experts_per_token, 1);
    assert_int_equal(mf_model_info_get(model)->n_experts_trained, 3);
    mf_model_close(model);
    for (int bad = -1; bad <= 4; bad += 5) {
        opt.experts_per_token = bad;
        assert_int_equal(mf_model_open(native, &opt, &model, &err), MF_E_INVALID);
        assert_non_null(strstr(err.text, "1 to 3"));
    }
    free(three);
    free(two);
    free(own);
    free(made);
    maker_free(&m);
}

/* ---- the documentation ------------------------------------------------------------------------------------------ */

static const char *docs_path;

/* docs/models.md has the table exactly as the code would print it: one line per family, one column per feature. */
static void documented(void **state) {
    (void)state;
    char *docs, line[1024], cell[128];
    size_t size;
    mf_error err;
    if (mf__file_read(docs_path, 1 << 20, &docs, &size, &err)) fail_msg("%s", err.text);
    for (int i = -1; i < 0 || mf__families[i]; i++) {
        size_t n = (size_t)snprintf(line, sizeof line, "| %s |", i < 0 ? "" : mf__families[i]->name);
        for (int f = 0; f < MF_FEATURES; f++) {
            if (i >= 0) mf__feature_text(&mf__families[i]->has, f, cell, sizeof cell);
            n += (size_t)snprintf(line + n, sizeof line - n, " %s |", i < 0 ? mf__feature_name(f) : cell);
        }
        snprintf(line + n, sizeof line - n, "\n");
        if (!strstr(docs, line)) fail_msg("docs/models.md lacks this line of the table:\n%s", line);
    }
    for (int i = 0; mf__families[i]; i++)
        if (!strstr(docs, mf__families[i]->models)) fail_msg("docs/models.md lacks: %s", mf__families[i]->models);
    free(docs);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    docs_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optional_parts),
        cmocka_unit_test(mrope_sections_do_not_matter),
        cmocka_unit_test(refuses_what_it_does_not_have),
        SCRATCH_TEST(witnesses),
        SCRATCH_TEST(published_names),
        cmocka_unit_test(numbers_of_the_new),
        SCRATCH_TEST(fewer_experts),
        cmocka_unit_test(documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
