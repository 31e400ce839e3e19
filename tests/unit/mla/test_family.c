/* The graphs that a DeepSeek-V3 or Kimi-K2 config gives: each test names something that is easy to get wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/family.h"

/* The published numbers of DeepSeek-V3; extra goes before the closing brace. */
#define DEEPSEEK(extra)                                                                                                \
    "{\"model_type\": \"deepseek_v3\", \"num_hidden_layers\": 61, \"hidden_size\": 7168, \"vocab_size\": 129280, "     \
    "\"num_attention_heads\": 128, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "       \
    "\"v_head_dim\": 128, \"first_k_dense_replace\": 3, \"intermediate_size\": 18432, \"n_routed_experts\": 256, "     \
    "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, \"n_shared_experts\": 1, \"n_group\": 8, "           \
    "\"topk_group\": 4, \"routed_scaling_factor\": 2.5, \"norm_topk_prob\": true, \"rms_norm_eps\": 1e-6, "            \
    "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"num_nextn_predict_layers\": 1, "                  \
    "\"max_position_embeddings\": 163840, \"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", "              \
    "\"factor\": 40, \"original_max_position_embeddings\": 4096, \"beta_fast\": 32, \"beta_slow\": 1, "                \
    "\"mscale\": 1.0, \"mscale_all_dim\": 1.0}" extra "}"

static mf_status parse(const char *json, mf__config *out, mf_error *err) {
    return mf__config_parse_text("config.json", json, strlen(json), out, err);
}

static mf__blueprint build(const char *json, bool split_up) {
    mf__config config;
    mf__blueprint bp;
    mf_error err = {0};
    if (parse(json, &config, &err) != MF_OK) fail_msg("%s", err.text);
    config.mla.split_up = split_up;
    if (mf__blueprint_build(&config, &bp, &err) != MF_OK) fail_msg("%s", err.text);
    return bp;
}

/* The op with that label, or NULL. */
static const mf__op *op_of(const mf__graph *g, const char *label) {
    for (int i = 0; i < g->n_ops; i++)
        if (!strcmp(g->ops[i].label, label)) return &g->ops[i];
    return NULL;
}

static const mf__op *need(const mf__graph *g, const char *label) {
    const mf__op *op = op_of(g, label);
    if (!op) fail_msg("graph %s has no op %s", g->name, label);
    return op;
}

static const mf__weight_info *weight_of(const mf__graph *g, const char *name) {
    for (int i = 0; i < g->n_weights; i++)
        if (!strcmp(g->weights[i].name, name)) return &g->weights[i];
    return NULL;
}

/* The order in which two ops touch the same buffer in place. */
static bool in_place_before(const mf__op *first, const mf__op *second, int16_t buf) {
    return first->out[0] == buf && first < second;
}

static const mf__graph *moe_mix(const mf__blueprint *bp) {
    return bp->kinds[bp->kind_of[60]].mix;
}

static void softmax_scale_has_mscale_squared(void **state) {
    mf__blueprint bp = build(DEEPSEEK(""), false);
    (void)state;
    assert_float_equal(need(moe_mix(&bp), "mla_attention")->p.mla.scale, 0.135234, 1e-6);
    mf__blueprint_free(&bp);
}

static void no_yarn_when_not_given(void **state) {
    const char *with = DEEPSEEK("");
    char without[2048];
    (void)state;
    snprintf(without, sizeof without, "%.*s}", (int)(strstr(with, ", \"rope_scaling\"") - with), with);
    mf__blueprint bp = build(without, false);
    const mf__weight_info *freq = weight_of(moe_mix(&bp), "rope.inv_freq");
    assert_float_equal(need(moe_mix(&bp), "mla_attention")->p.mla.scale, 1 / sqrt(192), 1e-7);
    assert_float_equal(freq->data[31], pow(1e4, -62.0 / 64), 1e-9);
    mf__blueprint_free(&bp);
}

static void frequencies_reach_the_graph(void **state) {
    mf__blueprint bp = build(DEEPSEEK(""), false);
    const mf__weight_info *freq = weight_of(moe_mix(&bp), "rope.inv_freq");
    (void)state;
    assert_non_null(freq);
    assert_int_equal(freq->n_cols, 32);
    assert_float_equal(freq->data[23], 3.33380e-5, 1e-9);
    mf__blueprint_free(&bp);
}

/* Pairs are (2i, 2i+1), on the last channels of a query head and on the one shared key part. */
static void rope_is_interleaved(void **state) {
    mf__blueprint bp = build(DEEPSEEK(""), false);
    const mf__op *q = need(moe_mix(&bp), "q_rope"), *k = need(moe_mix(&bp), "k_rope");
    (void)state;
    assert_true(q->p.rope.interleaved && k->p.rope.interleaved);
    assert_int_equal(q->p.rope.offset, 128);
    assert_int_equal(q->p.rope.n_rot, 64);
    assert_int_equal(q->p.rope.n_heads, 128);
    assert_int_equal(k->p.rope.n_heads, 1);
    assert_int_equal(k->p.rope.offset, 0);
    mf__blueprint_free(&bp);
    bp = build(DEEPSEEK(", \"rope_interleave\": false"), false);
    assert_false(need(moe_mix(&bp), "q_rope")->p.rope.interleaved);
    mf__blueprint_free(&bp);
}

/* What is cached: the latent after its norm and k_pe after its rotation, and k_pe meets no norm. */
static void cache_holds_normed_latent_and_rotated_key(void **state) {
    mf__blueprint bp = build(DEEPSEEK(""), false);
    const mf__graph *g = moe_mix(&bp);
    const mf__op *split = need(g, "latent | k_pe"), *append = need(g, "kv_append");
    const mf__op *norm = need(g, "kv_a_norm"), *rope = need(g, "k_rope");
    (void)state;
    assert_int_equal(g->bufs[split->out[0]].cols, 512);
    assert_int_equal(g->bufs[split->out[1]].cols, 64);
    assert_int_equal(append->in[0], split->out[0]);
    assert_int_equal(append->in[1], split->out[1]);
    assert_true(in_place_before(norm, append, append->in[0]));
    assert_true(in_place_before(rope, append, append->in[1]));
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == MF_OP_RMS_NORM) assert_int_not_equal(g->ops[i].in[0], split->out[1]);
    const mf__layer_kind *kind = &bp.kinds[bp.kind_of[60]];
    assert_int_equal(61 * (kind->k_cols + kind->v_cols) * 4, 140544);
    mf__blueprint_free(&bp);
}

static void queries_with_and_without_a_latent(void **state) {
    mf__blueprint bp = build(DEEPSEEK(", \"q_lora_rank\": 1536"), false);
    (void)state;
    assert_non_null(weight_of(moe_mix(&bp), "self_attn.q_a_proj.weight"));
    assert_int_equal(need(moe_mix(&bp), "q_a_norm")->p.norm.part, 1536);
    mf__blueprint_free(&bp);
    bp = build(DEEPSEEK(", \"q_lora_rank\": null"), false);
    assert_null(weight_of(moe_mix(&bp), "self_attn.q_a_proj.weight"));
    assert_int_equal(weight_of(moe_mix(&bp), "self_attn.q_proj.weight")->n_rows, 128 * 192);
    mf__blueprint_free(&bp);
}

static void first_layers_are_dense(void **state) {
    mf__blueprint bp = build(DEEPSEEK(""), false);
    (void)state;
    for (int l = 0; l < 61; l++) {
        const mf__layer_kind *kind = &bp.kinds[bp.kind_of[l]];
        assert_int_equal(kind->experts == NULL, l < 3);
        assert_int_equal(op_of(kind->mix, "route") == NULL, l < 3);
        if (l < 3) assert_int_equal(weight_of(kind->combine, "mlp.gate_proj.weight")->n_rows, 18432);
    }
    mf__blueprint_free(&bp);
}

/* The shared expert is added as it is: no gate in its graph, no score in the sum. */
static void shared_expert_has_no_gate(void **state) {
    mf__blueprint bp = build(DEEPSEEK(""), false);
    const mf__layer_kind *kind = &bp.kinds[bp.kind_of[60]];
    const mf__op *combine = need(kind->combine, "combine");
    (void)state;
    assert_int_equal(weight_of(kind->shared, "mlp.shared_expert.gate_proj.weight")->n_rows, 2048);
    assert_null(op_of(kind->shared, "shared_score"));
    assert_true(combine->in[3] >= 0);
    assert_int_equal(combine->in[4], -1);
    mf__blueprint_free(&bp);
}

static void router_follows_the_config(void **state) {
    mf__blueprint bp = build(DEEPSEEK(""), false);
    const mf__graph *g = moe_mix(&bp);
    const mf__op *op = need(g, "route");
    (void)state;
    assert_int_equal(op->p.route.kind, MF_ROUTE_SIGMOID);
    assert_int_equal(op->p.route.n_groups, 8);
    assert_int_equal(op->p.route.top_groups, 4);
    assert_int_equal(op->p.route.top_k, 8);
    assert_true(op->p.route.renorm);
    assert_float_equal(op->p.route.scale, 2.5, 0);
    assert_true(op->w[0] >= 0);
    assert_string_equal(g->weights[op->w[0]].name, "mlp.gate.e_score_correction_bias");
    mf__blueprint_free(&bp);
}

static void both_spellings_of_the_expansion(void **state) {
    mf__blueprint bp = build(DEEPSEEK(""), false);
    (void)state;
    assert_int_equal(weight_of(moe_mix(&bp), "self_attn.kv_b_proj.weight")->n_rows, 128 * 256);
    mf__blueprint_free(&bp);
    bp = build(DEEPSEEK(""), true);
    assert_null(weight_of(moe_mix(&bp), "self_attn.kv_b_proj.weight"));
    assert_int_equal(weight_of(moe_mix(&bp), "self_attn.embed_q.weight")->n_rows, 128 * 512);
    assert_int_equal(weight_of(moe_mix(&bp), "self_attn.embed_q.weight")->n_cols, 128);
    assert_int_equal(weight_of(moe_mix(&bp), "self_attn.unembed_out.weight")->n_rows, 128 * 128);
    mf__blueprint_free(&bp);
}

static void kimi_is_the_same_family(void **state) {
    mf__blueprint bp =
        build("{\"model_type\": \"kimi_k2\", \"num_hidden_layers\": 61, \"hidden_size\": 7168, \"vocab_size\": 163840, "
              "\"num_attention_heads\": 64, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "
              "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"first_k_dense_replace\": 1, \"intermediate_size\": "
              "18432, \"n_routed_experts\": 384, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, "
              "\"n_shared_experts\": 1, \"n_group\": 1, \"topk_group\": 1, \"routed_scaling_factor\": 2.827, "
              "\"rope_theta\": 50000, \"rms_norm_eps\": 1e-5, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 32, "
              "\"original_max_position_embeddings\": 4096, \"beta_fast\": 1, \"beta_slow\": 1, \"mscale\": 1, "
              "\"mscale_all_dim\": 1}}",
              false);
    const mf__op *op = need(moe_mix(&bp), "route");
    (void)state;
    assert_string_equal(bp.config.family->name, "deepseek_v3");
    assert_int_equal(op->p.route.n_experts, 384);
    assert_int_equal(op->p.route.n_groups, 1);
    assert_float_equal(op->p.route.scale, 2.827f, 1e-7);
    assert_int_equal(bp.kind_of[0] == bp.kind_of[1], 0);
    assert_int_equal(bp.kind_of[1], bp.kind_of[60]);
    mf__blueprint_free(&bp);
}

static void other_variants_are_refused(void **state) {
    static const char *const extras[] = {DEEPSEEK(", \"mlp_bias\": true"), DEEPSEEK(", \"moe_layer_freq\": 2"),
                                         DEEPSEEK(", \"hidden_act\": \"gelu\"")};
    mf__config config;
    mf_error err;
    (void)state;
    for (size_t k = 0; k < MF__COUNT(extras); k++) assert_int_equal(parse(extras[k], &config, &err), MF_E_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_scale_has_mscale_squared),
        cmocka_unit_test(no_yarn_when_not_given),
        cmocka_unit_test(frequencies_reach_the_graph),
        cmocka_unit_test(rope_is_interleaved),
        cmocka_unit_test(cache_holds_normed_latent_and_rotated_key),
        cmocka_unit_test(queries_with_and_without_a_latent),
        cmocka_unit_test(first_layers_are_dense),
        cmocka_unit_test(shared_expert_has_no_gate),
        cmocka_unit_test(router_follows_the_config),
        cmocka_unit_test(both_spellings_of_the_expansion),
        cmocka_unit_test(kimi_is_the_same_family),
        cmocka_unit_test(other_variants_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
