/* Families: what their configs switch, what is refused, what the documentation says about them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "maker.h"
#include "quant/half.h"
#include "unit/base/scratch.h"
#include "weights/safetensors.h"

static bool strange_all; /* with a second argument: strange_numbers runs all that are accepted */

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
    refused(CONFIG_QWEN3(", \"use_sliding_window\": true"), MF_E_UNSUPPORTED, "use_sliding_window");
    refused(CONFIG_QWEN3(", \"hidden_act\": \"gelu\""), MF_E_UNSUPPORTED, "gelu");
    refused(CONFIG_QWEN3_5(", \"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\", "
                           "\"full_attention\"]"),
            MF_E_UNSUPPORTED, "layer_types[1] is \"sliding_attention\"");
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

#define CONFIG_FAR                                                                                                     \
    "{\"model_type\": \"deepseek_v4\", \"num_hidden_layers\": 3, \"hidden_size\": 64, \"vocab_size\": 96, "            \
    "\"max_position_embeddings\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 1, \"head_dim\": 32, "      \
    "\"qk_rope_head_dim\": 8, \"eos_token_id\": 1, \"q_lora_rank\": 32, \"o_groups\": 2, \"o_lora_rank\": 32, "        \
    "\"n_routed_experts\": 6, \"n_shared_experts\": 1, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, "    \
    "\"sliding_window\": 4, \"compress_ratios\": [0, 8, 4, 0], \"num_hash_layers\": 1, \"hc_mult\": 2, "               \
    "\"hc_sinkhorn_iters\": 3, \"index_n_heads\": 2, \"index_head_dim\": 32, \"index_topk\": 1}"

/* A family's config, and how its published tensors are spelt where the graphs say something else. */
typedef struct spelt {
    const char *family, *config;
    const char *names[10][2];
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
    {"glm_moe_dsa",
     "{\"model_type\": \"glm_moe_dsa\", " CONFIG_LATENT
     "\"index_n_heads\": 2, \"index_head_dim\": 16, \"index_topk\": 5, \"index_topk_pattern\": \"FFS\", "
     "\"first_k_dense_replace\": 1, \"indexer_rope_interleave\": true}",
     {{"mlp.shared_expert.", "mlp.shared_experts."}},
     "q_rope k_rope kv_append mla_attention o_proj router"},
    {"mimo_v2_flash",
     "{\"model_type\": \"mimo_v2_flash\", " CONFIG_ATTENTION
     "\"v_head_dim\": 8, \"attention_value_scale\": 0.707, \"n_routed_experts\": 6, \"num_experts_per_tok\": 3, "
     "\"moe_intermediate_size\": 32, \"intermediate_size\": 48, \"hybrid_layer_pattern\": [0, 1, 1], "
     "\"sliding_window\": 8, \"swa_num_key_value_heads\": 4, \"partial_rotary_factor\": 0.5, "
     "\"moe_layer_freq\": [0, 1, 1], \"layernorm_epsilon\": 1e-05}",
     {{"self_attn.sinks", "self_attn.attention_sink_bias"}},
     "v_scale q_rope k_rope kv_append attention o_proj router"},
    {"gemma4",
     "{\"model_type\": \"gemma4\", \"text_config\": {" CONFIG_ATTENTION
     "\"num_experts\": 6, \"top_k_experts\": 3, \"moe_intermediate_size\": 32, \"intermediate_size\": 48, "
     "\"enable_moe_block\": true, \"attention_k_eq_v\": true, \"global_head_dim\": 32, "
     "\"num_global_key_value_heads\": 1, \"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", "
     "\"sliding_attention\", \"full_attention\"], \"final_logit_softcapping\": 30.0, \"rope_parameters\": "
     "{\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0, \"partial_rotary_factor\": "
     "0.25}, \"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}}}",
     {{"mlp.gate.weight", "router.proj.weight"}, {"model.", "model.language_model."}},
     "q_proj k_proj v_norm q_norm k_norm q_rope k_rope attention o_proj attn_norm router router_scale"},
    {"lfm2_moe",
     "{\"model_type\": \"lfm2_moe\", " CONFIG_ATTENTION
     "\"num_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, \"intermediate_size\": 48, "
     "\"num_dense_layers\": 1, \"norm_eps\": 1e-05, \"layer_types\": [\"conv\", \"full_attention\", \"conv\"]}",
     {{"input_layernorm.", "operator_norm."},
      {"post_attention_layernorm.", "ffn_norm."},
      {"model.norm.", "model.embedding_norm."},
      {"self_attn.o_proj.", "self_attn.out_proj."},
      {"self_attn.q_norm.", "self_attn.q_layernorm."},
      {"mlp.gate.e_score_correction_bias", "feed_forward.expert_bias"},
      {"mlp.gate.weight", "feed_forward.gate.weight"},
      {"mlp.gate_proj.", "feed_forward.w1."},
      {"mlp.up_proj.", "feed_forward.w3."},
      {"mlp.down_proj.", "feed_forward.w2."}},
     "in_proj glu conv glu out_proj router"},
    {"kimi_linear",
     "{\"model_type\": \"kimi_linear\", " CONFIG_ATTENTION
     "\"num_experts\": 6, \"num_experts_per_token\": 3, \"moe_intermediate_size\": 32, \"intermediate_size\": 48, "
     "\"first_k_dense_replace\": 1, \"num_shared_experts\": 1, \"routed_scaling_factor\": 2.5, \"kv_lora_rank\": 32, "
     "\"q_lora_rank\": null, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, "
     "\"linear_attn_config\": {\"num_heads\": 2, \"head_dim\": 16, \"short_conv_kernel_size\": 4, "
     "\"full_attn_layers\": [2], \"kda_layers\": [1, 3]}}",
     {{"mlp.shared_expert.", "block_sparse_moe.shared_experts."},
      {"mlp.gate.", "block_sparse_moe.gate."},
      {"q_conv1d.", "q_conv.conv."}},
     "q_proj k_proj v_proj conv conv conv qk_norm delta_net gated_norm o_proj router"},
    {"nemotron_h",
     "{\"model_type\": \"nemotron_h\", " CONFIG_ATTENTION
     "\"n_routed_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, \"intermediate_size\": 48, "
     "\"n_shared_experts\": 1, \"moe_shared_expert_intermediate_size\": 64, \"routed_scaling_factor\": 2.5, "
     "\"mamba_num_heads\": 4, \"mamba_head_dim\": 16, \"n_groups\": 2, \"ssm_state_size\": 16, "
     "\"hybrid_override_pattern\": \"*EM\"}",
     {{"input_layernorm.", "norm."},
      {"post_attention_layernorm.", "norm."},
      {"model.embed_tokens.", "model.embeddings."},
      {"model.norm.", "model.norm_f."},
      {"self_attn.", "mixer."},
      {"mlp.shared_expert.", "mixer.shared_experts."},
      {"mlp.", "mixer."},
      {"model.", "backbone."}},
     "in_proj conv ssm glu ssm_norm out_proj"},
    {"deepseek_v4",
     CONFIG_FAR,
     {{"mlp.gate.e_score_correction_bias", "ffn.gate.bias"},
      {"mlp.gate.", "ffn.gate."},
      {"mlp.shared_expert.gate_proj.", "ffn.shared_experts.w1."},
      {"mlp.shared_expert.up_proj.", "ffn.shared_experts.w3."},
      {"mlp.shared_expert.down_proj.", "ffn.shared_experts.w2."},
      {"model.embed_tokens.", "embed."},
      {"lm_head.", "head."},
      {"model.", ""}},
     "wq_a q_latent_norm wq_b q_norm q_rope wkv kv_norm kv_rope kv_append compress index far_attention o_rope wo_b"},
    {"llama4_text",
     "{\"model_type\": \"llama4\", \"text_config\": {" CONFIG_ATTENTION
     "\"num_local_experts\": 6, \"num_experts_per_tok\": 1, \"intermediate_size\": 32, \"intermediate_size_mlp\": 48, "
     "\"interleave_moe_layer_step\": 2, \"moe_layers\": [1, 2], \"attention_chunk_size\": 8, \"no_rope_layers\": [0, "
     "1, 1], \"floor_scale\": 4}}",
     {{"mlp.gate.weight", "feed_forward.router.weight"},
      {"mlp.", "feed_forward."},
      {"model.", "language_model.model."},
      {"lm_head", "language_model.lm_head"}},
     "q_proj k_proj v_proj q_rope k_rope q_norm k_norm kv_append attention o_proj router route weigh"},
    {"step3p7",
     "{\"model_type\": \"step3p7\", \"text_config\": {" CONFIG_ATTENTION
     "\"n_routed_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, \"intermediate_size\": 48, "
     "\"mlp_layer_types\": [\"dense\", \"sparse\", \"sparse\"], \"num_sliding_attention_heads\": 6, "
     "\"share_expert_dim\": 48, \"sliding_window\": 8, \"swiglu_limits\": [0.0, 0.5, 0.0]}}",
     {{"mlp.gate.e_score_correction_bias", "moe.router_bias"},
      {"mlp.gate.weight", "moe.gate.weight"},
      {"mlp.shared_expert.", "share_expert."}},
     "q_norm k_norm q_rope k_rope kv_append attention g_proj o_proj router"},
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
        for (int k = 0; k < 10 && f->names[k][0]; k++) maker_rename(&m, f->names[k][0], f->names[k][1]);
        snprintf(name, sizeof name, "%s-theirs", f->family);
        float *theirs = checkpoint_logits(maker_write(&m, *state, name), NULL);
        assert_same_logits(ours, theirs, 96);
        free(ours);
        free(theirs);
        maker_free(&m);
    }
}

/* DeepSeek-V4 as published: FP8 in blocks, experts of FP4 in bytes, both with powers of two as scales. */
static const float FP4[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

static uint8_t code_of(float x, bool four) {
    for (int i = 0; i < (four ? 16 : 255); i++) {
        float v = four ? (i & 8 ? -FP4[i & 7] : FP4[i & 7]) : mf__f8_e4m3_to_f32((uint8_t)i);
        if (v == x) return (uint8_t)i;
    }
    fail_msg("%g has no code", (double)x);
    return 0;
}

static void store_published(maker *m, maker_tensor *t, bool four) {
    int64_t rows = t->dims[0], cols = t->dims[1], n = rows * cols;
    uint8_t *bytes = mf__arena_array(&m->arena, (size_t)n, 1);
    int64_t dims[2] = {four ? rows : (rows + 127) / 128, four ? cols / 32 : (cols + 127) / 128};
    char name[200];
    assert_non_null(bytes);
    for (int64_t i = 0; i < n; i++) {
        uint8_t code = code_of(t->values[i] * 64, four);
        if (four)
            bytes[i / 2] |= (uint8_t)(code << (i % 2 ? 4 : 0));
        else
            bytes[i] = code;
    }
    t->type = four ? MF_TYPE_I8 : MF_TYPE_F8_E4M3;
    t->bytes = bytes;
    if (four) t->dims[1] = cols / 2;
    snprintf(name, sizeof name, "%.*sscale", (int)(strlen(t->name) - strlen("weight")), t->name);
    maker_tensor *s = maker_add(m, name, 2, dims);
    s->type = MF_TYPE_U8;
    uint8_t *scales = mf__arena_array(&m->arena, (size_t)(dims[0] * dims[1]), 1);
    assert_non_null(scales);
    memset(scales, 127 - 6, (size_t)(dims[0] * dims[1]));
    s->bytes = scales;
}

static void published_storage(void **state) {
    maker m;
    maker_init(&m, CONFIG_FAR);
    for (int i = 0; i < m.n; i++)
        for (int64_t k = 0; strstr(m.tensors[i].name, ".experts.") && k < maker_count(&m.tensors[i]); k++)
            m.tensors[i].values[k] = FP4[maker_random(&m) % 8] * (maker_random(&m) % 2 ? 1.0f : -1.0f) / 64;
    float *plain = checkpoint_logits(maker_write(&m, *state, "plain"), NULL);
    for (int i = 0, n = m.n; i < n; i++) {
        maker_tensor *t = &m.tensors[i];
        bool expert = strstr(t->name, ".experts.") != NULL, product = strstr(t->name, ".attn.w") && t->n_dims == 2;
        if (expert || product || strstr(t->name, "shared_expert.")) store_published(&m, t, expert);
    }
    float *stored = checkpoint_logits(maker_write(&m, *state, "stored"), NULL);
    assert_same_logits(plain, stored, 96);
    mf__type type;
    assert_true(mf__type_parse("F8_E8M0", &type) && type == MF_TYPE_U8);
    free(plain);
    free(stored);
    maker_free(&m);
}

/* A bias that the graphs know nothing of is not left out. */
static void unknown_bias(void **state) {
    maker m;
    maker_init(&m, CONFIG_QWEN3(""));
    maker_add(&m, "model.layers.1.self_attn.o_proj.bias", 1, (int64_t[]){64});
    assert_convert_fails(maker_write(&m, *state, "biased"), MF_E_UNSUPPORTED, "o_proj.bias is in the checkpoint");
    maker_free(&m);
    maker_init(&m, CONFIG_QWEN3(", \"attention_bias\": true"));
    free(checkpoint_logits(maker_write(&m, *state, "said"), NULL));
    maker_free(&m);
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

/* The published config says things otherwise than transformers. */
static void numbers_of_step(void **state) {
    (void)state;
#define STEP(extra)                                                                                                    \
    "{\"model_type\": \"step3p5\", \"num_hidden_layers\": 3, \"hidden_size\": 64, \"vocab_size\": 96, "                \
    "\"max_position_embeddings\": 64, \"num_attention_heads\": 4, \"num_attention_groups\": 2, \"head_dim\": 16, "     \
    "\"attention_other_setting\": {\"num_attention_heads\": 6, \"num_attention_groups\": 2, \"head_dim\": 16}, "       \
    "\"moe_num_experts\": 6, \"moe_top_k\": 3, \"moe_intermediate_size\": 32, \"intermediate_size\": 48, "             \
    "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"sliding_attention\", \"full_attention\"]" extra    \
    "}"
    mf__config c = parsed(STEP(", \"moe_layers_enum\": \"1,2,3\", \"rope_theta\": [5000000.0, 10000.0, 10000.0, 1.0], "
                               "\"partial_rotary_factors\": [0.5, 1.0, 1.0, 0.5], \"yarn_only_types\": "
                               "[\"full_attention\"], \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2.0}, "
                               "\"moe_router_scaling_factor\": 3.0, \"swiglu_limits\": [0, null, 7.0, 0], "
                               "\"swiglu_limits_shared\": [0, 0, 16.0, 0]"));
    assert_true(c.mixer[0] == MF_MIX_FULL && c.mixer[1] == MF_MIX_SLIDING && c.dense[0] && !c.dense[1]);
    assert_true(c.attn.n_heads == 4 && c.sliding.n_heads == 6 && c.attn.n_kv_heads == 2 && c.sliding.window == 512);
    assert_true(c.attn.n_rot == 8 && c.sliding.n_rot == 16 && c.rope.theta == 5e6 && c.sliding_rope.theta == 1e4);
    assert_true(c.rope.llama3 && !c.sliding_rope.llama3 && c.moe.scale == 3 && c.moe.n_shared_inner == 32);
    assert_true(mf__config_glu(&c, 1).kind == MF_GLU_SILU && mf__config_glu(&c, 2).limit == 7);
    assert_true(mf__config_dense_glu(&c, 2).limit == 16 && mf__config_dense_glu(&c, 0).kind == MF_GLU_SILU);
    mf__blueprint bp;
    assert_int_equal(mf__blueprint_build(&c, &bp, NULL), MF_OK);
    assert_true(bp.n_kinds == 3 && bp.kind_of[1] != bp.kind_of[2]); /* which differ in their limits alone */
    mf__blueprint_free(&bp);
    refused(STEP(", \"rope_theta\": [5000000.0, 10000.0, 20000.0, 1.0]"), MF_E_UNSUPPORTED, "rope_theta[2]");
    refused(STEP(", \"swiglu_limits\": [0, 0]"), MF_E_FORMAT, "swiglu_limits has 2 entries");
    refused(STEP(", \"swiglu_limits\": [0, -1, 0]"), MF_E_FORMAT, "swiglu_limits[1] is negative");
    refused(STEP(", \"moe_layers_enum\": \"1;2\""), MF_E_FORMAT, "moe_layers_enum");
    refused(STEP(", \"norm_expert_weight\": false"), MF_E_UNSUPPORTED, "norm_expert_weight");
}

/* "model.layers.N.X" as LongCat spells it: two of our layers are one there. */
static void rename_pair(maker_tensor *t) {
    static const char *const halves[][2] = {{"self_attn.", "self_attn."},
                                            {"input_layernorm.", "input_layernorm."},
                                            {"post_attention_layernorm.", "post_attention_layernorm."},
                                            {"mlp.gate_proj.", "mlps.#gate_proj."},
                                            {"mlp.up_proj.", "mlps.#up_proj."},
                                            {"mlp.down_proj.", "mlps.#down_proj."}};
    char rest[128], name[200];
    int layer;
    if (sscanf(t->name, "model.layers.%d.%127s", &layer, rest) != 2) return;
    snprintf(name, sizeof name, "model.layers.%d.%s", layer / 2, rest);
    for (size_t i = 0; i < MF__COUNT(halves); i++) {
        const char *theirs = halves[i][1], *mark = strchr(theirs, '#');
        size_t n = strlen(halves[i][0]);
        if (strncmp(rest, halves[i][0], n)) continue;
        int head = mark ? (int)(mark - theirs) : (int)strlen(theirs);
        snprintf(name, sizeof name, "model.layers.%d.%.*s%d.%s%s", layer / 2, head, theirs, layer % 2,
                 mark ? mark + 1 : "", rest + n);
    }
    snprintf(t->name, sizeof t->name, "%.*s", (int)sizeof t->name - 1, name);
}

static void numbers_of_longcat(void **state) {
#define LONGCAT(extra)                                                                                                 \
    "{\"model_type\": \"longcat_flash\", \"num_layers\": 2, \"hidden_size\": 64, \"vocab_size\": 96, "                 \
    "\"max_position_embeddings\": 64, \"num_attention_heads\": 4, \"q_lora_rank\": 16, \"kv_lora_rank\": 32, "         \
    "\"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": 16, \"n_routed_experts\": 6, "                 \
    "\"moe_topk\": 3, \"expert_ffn_hidden_size\": 32, \"ffn_hidden_size\": 48, \"zero_expert_num\": 4, "               \
    "\"routed_scaling_factor\": 6.0" extra "}"
    mf__config c = parsed(LONGCAT(""));
    assert_true(c.n_layers == 4 && c.dense[0] && !c.dense[1] && c.dense[2] && !c.dense[3] && !c.moe.renorm);
    assert_true(c.mla.q_scale == 2 && c.mla.kv_scale == sqrtf(2) && c.moe.n_identity == 4 && c.moe.scale == 6);
    c = parsed(LONGCAT(", \"mla_scale_q_lora\": false, \"mla_scale_kv_lora\": false"));
    assert_true(c.mla.q_scale == 0 && c.mla.kv_scale == 0);
    refused(LONGCAT(", \"zero_expert_type\": \"drop\""), MF_E_UNSUPPORTED, "zero_expert_type");
    maker m;
    maker_init(&m, LONGCAT(""));
    assert_ops(&(spelt){"longcat_flash",
                        "",
                        {{NULL}},
                        "q_b_proj q_scale q_rope kv_a_norm kv_scale k_rope kv_append "
                        "mla_attention o_proj residual norm router route identity"},
               &m.bp);
    maker_rename(&m, "mlp.gate.e_score_correction_bias", "mlp.router.e_score_correction_bias");
    maker_rename(&m, "mlp.gate.weight", "mlp.router.classifier.weight");
    for (int i = 0; i < m.n; i++) rename_pair(&m.tensors[i]);
    free(checkpoint_logits(maker_write(&m, *state, "longcat"), NULL));
    maker_free(&m);
}

/* More kinds of layers than there is room for. */
static void many_kinds(void **state) {
    char json[8192], limits[4096] = "";
    mf_error err = {0};
    mf__blueprint bp;
    (void)state;
    for (int l = 0; l < 100; l++) snprintf(limits + strlen(limits), 16, "%s%d", l ? ", " : "", l);
    snprintf(json, sizeof json,
             "{\"model_type\": \"step3p5\", \"num_hidden_layers\": 100, \"hidden_size\": 64, \"vocab_size\": 96, "
             "\"max_position_embeddings\": 64, \"num_attention_heads\": 4, \"head_dim\": 16, \"moe_num_experts\": 6, "
             "\"moe_top_k\": 3, \"moe_intermediate_size\": 32, \"swiglu_limits\": [%s]}",
             limits);
    mf__config c = parsed(json);
    assert_int_equal(mf__blueprint_build(&c, &bp, &err), MF_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "of another kind"));
}

static void numbers_of_llama4(void **state) {
    (void)state;
#define LLAMA4(extra)                                                                                                  \
    "{\"model_type\": \"llama4_text\", " CONFIG_ATTENTION                                                              \
    "\"num_local_experts\": 6, \"intermediate_size\": 32, \"intermediate_size_mlp\": 48" extra "}"
    mf__config c = parsed(LLAMA4(", \"num_experts_per_tok\": 1, \"no_rope_layers\": [1, 1, 0]"));
    assert_true(c.mixer[0] == MF_MIX_CHUNKED && c.mixer[2] == MF_MIX_FULL && !c.dense[0] && c.has.nope_full);
    assert_true(c.sliding.n_rot == 16 && c.sliding.window == 8192 && c.sliding.grow == 0);
    assert_true(c.attn.n_rot == 0 && c.attn.grow == 0.1f && c.attn.grow_step == 8192 && c.attn.grow_from == 1);
    assert_true(c.moe.n_shared_inner == 32 && c.has.qk_norm == MF_QK_NORM_BARE && !c.moe.renorm);
    c = parsed(LLAMA4(", \"num_experts_per_tok\": 1, \"no_rope_layers\": [], \"no_rope_layer_interval\": 2, "
                      "\"interleave_moe_layer_step\": 2, \"use_qk_norm\": false, \"attn_temperature_tuning\": false, "
                      "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 16.0, \"low_freq_factor\": 1.0, "
                      "\"high_freq_factor\": 1.0, \"original_max_position_embeddings\": 8192}"));
    assert_true(c.mixer[0] == MF_MIX_CHUNKED && c.mixer[1] == MF_MIX_FULL && c.mixer[2] == MF_MIX_CHUNKED);
    assert_true(c.dense[0] && !c.dense[1] && c.dense[2] && c.n_dense_inner == 48 && c.attn.grow == 0);
    assert_true(c.has.qk_norm == MF_QK_NORM_NONE && c.has.rope_slow);
    float freq[64], plain[64]; /* Scout's: channels that turn less than once are slowed down, the others are not */
    mf__rope_frequencies(&c.sliding_rope, 128, freq);
    c.sliding_rope.llama3 = false;
    mf__rope_frequencies(&c.sliding_rope, 128, plain);
    for (int i = 0; i < 64; i++) assert_true(freq[i] == (plain[i] * 8192 < 6.28 ? plain[i] / 16 : plain[i]));
    refused(LLAMA4(", \"num_experts_per_tok\": 2"), MF_E_UNSUPPORTED, "num_experts_per_tok is 2, known is 1");
    refused(LLAMA4(", \"num_experts_per_tok\": 1, \"no_rope_layers\": [1, 1]"), MF_E_FORMAT, "no_rope_layers has 2");
    refused(LLAMA4(", \"num_experts_per_tok\": 1, \"no_rope_layers\": [1, 1, 0], \"layer_types\": "
                   "[\"chunked_attention\", \"full_attention\", \"full_attention\"]"),
            MF_E_UNSUPPORTED, "layer_types[1]");
}

/* Every key that changes the mathematics is used or refused. */
static void flags_of_the_new(void **state) {
    (void)state;
#define MIXTRAL(extra)                                                                                                 \
    "{\"model_type\": \"mixtral\", " CONFIG_ATTENTION                                                                  \
    "\"num_local_experts\": 6, \"num_experts_per_tok\": 2, \"intermediate_size\": 32" extra "}"
#define LATENT(type, extra) "{\"model_type\": \"" type "\", " CONFIG_LATENT "\"routed_scaling_factor\": 2.0" extra "}"
    float plain[8], slow[8];
    mf__config c = parsed(MIXTRAL(""));
    mf__rope_frequencies(&c.rope, 16, plain);
    c = parsed(MIXTRAL(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}"));
    mf__rope_frequencies(&c.rope, 16, slow);
    for (int i = 0; i < 8; i++) assert_true(plain[i] == slow[i] * 4);
    assert_true(c.has.rope_slow && !c.has.yarn);
    c = parsed(MIXTRAL(", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
                       "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64}"));
    mf__rope_frequencies(&c.rope, 16, slow);
    assert_true(plain[0] == slow[0] && plain[7] == slow[7] * 8 && plain[1] > slow[1] && plain[1] < slow[1] * 8);
    c = parsed(MIXTRAL(", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}, \"sliding_window\": 7"));
    assert_true(c.has.yarn && c.mixer[0] == MF_MIX_SLIDING && c.attn.window == 7);
    refused(MIXTRAL(", \"rope_scaling\": {\"type\": \"longrope\"}"), MF_E_UNSUPPORTED, "longrope");
    refused(MIXTRAL(", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5.0}}"), MF_E_UNSUPPORTED,
            "kinds of layers");
    refused(MIXTRAL(", \"attention_bias\": true"), MF_E_UNSUPPORTED, "attention_bias");
    refused(MIXTRAL(", \"mlp_bias\": true"), MF_E_UNSUPPORTED, "mlp_bias");
    refused(MIXTRAL(", \"layer_types\": [\"full_attention\", \"sliding_attention\"]"), MF_E_UNSUPPORTED,
            "layer_types[1]");
    refused(MIXTRAL(", \"per_layer_config\": {\"1\": {\"head_dim\": 8}}"), MF_E_UNSUPPORTED, "per_layer_config");
    c = parsed(LATENT("mistral4", ", \"scoring_func\": \"softmax\", \"attention_bias\": true"));
    assert_true(c.has.bias_qkv && c.has.bias_o);
    refused(LATENT("glm4_moe_lite", ", \"scoring_func\": \"softmax\""), MF_E_UNSUPPORTED, "scoring_func");
    refused(LATENT("glm4_moe_lite", ", \"moe_layer_freq\": 2"), MF_E_UNSUPPORTED, "moe_layer_freq");
    c = parsed("{\"model_type\": \"qwen2_moe\", " CONFIG_ATTENTION
               "\"num_experts\": 6, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 32, "
               "\"shared_expert_intermediate_size\": 48, \"use_sliding_window\": true, \"max_window_layers\": 1, "
               "\"sliding_window\": 9, \"norm_topk_prob\": true}");
    assert_true(c.mixer[0] == MF_MIX_FULL && c.mixer[1] == MF_MIX_SLIDING && c.attn.window == 9 && c.moe.renorm);
    c = parsed(SPELT[12].config); /* mimo_v2_flash */
    assert_true(c.eps == 1e-5f);
    c = parsed(SPELT[17].config); /* deepseek_v4 */
    assert_true(c.far.heavy_step == 8 && c.far.step == 4 && c.mixer[1] == MF_MIX_HEAVY && c.hashed[0] && !c.hashed[1]);
    mf_error err;
    c = parsed(SPELT[6].config); /* hunyuan_v1_moe: its base is made larger already */
    assert_int_equal(mf__config_stretch(&c, 2, &err), MF_E_UNSUPPORTED);
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

/* ---- configs with strange numbers -------------------------------------------------------------------------------- */

/* The numbers of a config, counted in its order: number `at` becomes value. False: there are not so many. */
static bool replace_number(json_t *in, int *at, double value) {
    const char *key;
    json_t *v;
    void *next;
    size_t i;
    json_object_foreach_safe(in, next, key, v) {
        if (json_is_number(v) && (*at)-- == 0)
            return json_object_set_new(in, key,
                                       value == floor(value) ? json_integer((json_int_t)value) : json_real(value)) == 0;
        if (replace_number(v, at, value)) return true;
    }
    json_array_foreach(in, i, v) {
        if (json_is_number(v) && (*at)-- == 0) return json_array_set_new(in, i, json_integer((json_int_t)value)) == 0;
        if (replace_number(v, at, value)) return true;
    }
    return false;
}

/* Whether it is small enough to be run here. */
static bool is_small(const mf__config *c) {
    return c->n_layers <= 8 && c->n_hidden <= 256 && c->n_vocab <= 256 && c->moe.n_experts <= 16 &&
           c->moe.n_inner <= 256 && c->moe.n_shared_inner <= 512 && c->n_dense_inner <= 512 && c->attn.n_heads <= 64 &&
           c->attn.head_dim <= 256 && c->index.n_heads <= 16 && c->index.dim <= 256 && c->hc.n <= 8 &&
           c->mla.n_q_rank <= 256 && c->mla.n_latent <= 256 && c->mla.v_dim <= 256 && c->mla.n_nope <= 256;
}

/* What is accepted can be run, in chunks of any size, on both backends. */
static void run_both(const char *text, const char *root, int n) {
    static const char *const backends[] = {"ref", "cpu"};
    static const size_t chunks[] = {MAKER_TOKENS, 4};
    maker m;
    mf__convert_options keep;
    mf_error err = {0};
    char name[32], native[512];
    float logits[2][256];
    maker_init(&m, text);
    snprintf(name, sizeof name, "strange%d", n);
    const char *dir = maker_write(&m, root, name);
    snprintf(native, sizeof native, "%s.native", dir);
    mf__convert_options_init(&keep);
    if (mf__convert(dir, native, &keep, &err)) fail_msg("%s\n%s", text, err.text);
    for (int b = 0; b < 2; b++) {
        mf_model_options opt;
        mf_model *model;
        mf_session *s;
        mf_model_options_init(&opt);
        opt.backend = backends[b], opt.n_threads = 1, opt.exact = true;
        if (mf_model_open(native, &opt, &model, &err)) { /* told by the whole alone: all layers may be dense */
            if (b || !strstr(err.text, "not supported")) fail_msg("%s\n%s", text, err.text);
            break;
        }
        if (mf_session_create(model, NULL, &s, &err)) fail_msg("%s\n%s", text, err.text);
        size_t vocab = (size_t)mf_model_info_get(model)->n_vocab, most = MAKER_TOKENS;
        if ((size_t)mf_model_info_get(model)->n_ctx < most) most = (size_t)mf_model_info_get(model)->n_ctx;
        for (size_t at = 0, k; at < most; at += k) {
            int32_t tokens[MAKER_TOKENS];
            k = most - at < chunks[b] ? most - at : chunks[b];
            for (size_t i = 0; i < k; i++) tokens[i] = (int32_t)((at + i) * 37 + 11) % (int32_t)vocab;
            if (mf_eval_prompt(s, tokens, k, (int64_t)at, logits[b], vocab, &err)) fail_msg("%s\n%s", text, err.text);
        }
        mf_session_free(s);
        mf_model_close(model);
        float most_off = 0, largest = 0;
        for (size_t i = 0; b && i < vocab; i++) {
            largest = fmaxf(largest, fabsf(logits[0][i]));
            most_off = fmaxf(most_off, fabsf(logits[0][i] - logits[1][i]));
            if (isfinite(logits[0][i]) != isfinite(logits[1][i])) most_off = INFINITY;
        }
        if (most_off > 1e-3f * largest) print_message("%s\n  differ by %g of %g\n", text, most_off, largest);
    }
    maker_free(&m);
}

/* Each number of each family's config replaced: by an error that is said, or by a model that runs. */
static void strange_numbers(void **state) {
    static const double VALUES[] = {0, 1, 2, 3, 5, 7, 24, 100, -1, -7, 0.5, 65537, 1 << 20, 2147483648.0, 9e15};
    int n_ok = 0, n_refused = 0, n_run = 0;
    for (size_t f = 0; f < MF__COUNT(SPELT); f++)
        for (int at = 0;; at++) {
            bool there = false;
            for (size_t v = 0; v < MF__COUNT(VALUES); v++) {
                if (!strange_all && there && (f + (size_t)at + v) % 4) continue; /* a quarter of them, evenly */
                json_t *json = json_loads(SPELT[f].config, 0, NULL);
                int left = at;
                there = replace_number(json, &left, VALUES[v]);
                char *text = json_dumps(json, 0);
                mf__config c;
                mf__blueprint bp;
                mf_error err = {0};
                mf_status st = there ? parse(text, &c, &err) : MF_E_FORMAT;
                bool build = st == MF_OK && (strange_all || ++n_ok % 17 == 0); /* graphs take their time */
                if (build && (st = mf__blueprint_build(&c, &bp, &err)) == MF_OK) {
                    if (is_small(&c) && (strange_all || n_ok % 51 == 0)) run_both(text, *state, n_run++);
                    mf__blueprint_free(&bp);
                } else if (there && st != MF_OK) {
                    n_refused++;
                    if (strlen(err.text) < 20 || st == MF_E_INTERNAL) fail_msg("%s\n%d: %s", text, st, err.text);
                }
                free(text);
                json_decref(json);
            }
            if (!there) break;
        }
    if (strange_all) print_message("%d run, %d refused\n", n_run, n_refused);
    assert_true(strange_all || (n_ok > 150 && n_run > 2));
    assert_true(n_refused > 200);
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
    strange_all = argc > 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optional_parts),
        cmocka_unit_test(mrope_sections_do_not_matter),
        cmocka_unit_test(refuses_what_it_does_not_have),
        SCRATCH_TEST(witnesses),
        SCRATCH_TEST(published_names),
        SCRATCH_TEST(published_storage),
        SCRATCH_TEST(unknown_bias),
        cmocka_unit_test(flags_of_the_new),
        cmocka_unit_test(numbers_of_the_new),
        cmocka_unit_test(numbers_of_llama4),
        cmocka_unit_test(numbers_of_step),
        cmocka_unit_test(many_kinds),
        SCRATCH_TEST(numbers_of_longcat),
        SCRATCH_TEST(fewer_experts),
        SCRATCH_TEST(strange_numbers),
        cmocka_unit_test(documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
