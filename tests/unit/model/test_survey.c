/* Surveys: sizes of known models, the same for a checkpoint and for what convert makes of it, and what is said about
 * those that cannot be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/survey.h"
#include "maker.h"
#include "unit/base/scratch.h"

static mf__survey survey(const char *dir) {
    mf__survey s;
    mf_error err = {0};
    if (mf__survey_make(dir, &s, &err)) fail_msg("%s", err.text);
    return s;
}

static void only_problem(const char *dir, bool known, const char *part) {
    mf__survey s = survey(dir);
    assert_int_equal(s.known, known);
    if (s.n_problems != 1 || !strstr(s.problems[0].text, part))
        fail_msg("%d problems, the first: %s; expected one with \"%s\"", s.n_problems, s.problems[0].text, part);
    mf__survey_free(&s);
}

static void sizes(void **state) {
    maker m;
    maker_init(&m, CONFIG_GLM(""));
    maker_add(&m, "model.layers.4.eh_proj.weight", 2, (int64_t[]){64, 128}); /* predicts further tokens: not used */
    const char *dir = maker_write(&m, *state, "glm");
    mf__survey s = survey(dir);
    assert_int_equal(s.n_problems, 0);
    assert_true(s.known && !s.is_native && s.has_layout);
    int64_t attention = (2 * 128 * 64 + 2 * 64 * 64 + 128 + 2 * 64 + 2 * 32) * 2; /* q and o; k and v; biases; norms */
    assert_int_equal(s.part_bytes[MF_SURVEY_EMBED], 96 * 64 * 2);
    assert_int_equal(s.part_bytes[MF_SURVEY_HEAD], 96 * 64 * 2);
    assert_int_equal(s.part_bytes[MF_SURVEY_ATTENTION], 4 * attention);
    assert_int_equal(s.part_bytes[MF_SURVEY_DENSE], 3 * 128 * 64 * 2);
    assert_int_equal(s.part_bytes[MF_SURVEY_SHARED], 3 * 3 * 64 * 64 * 2);
    assert_int_equal(s.part_bytes[MF_SURVEY_ROUTER], 3 * (6 * 64 + 6) * 2);
    assert_int_equal(s.part_bytes[MF_SURVEY_REST], 9 * 64 * 2);
    assert_int_equal(s.unused_bytes, 64 * 128 * 2);
    assert_int_equal(s.n_moe_layers, 3);
    assert_int_equal(s.layout.bytes, 3 * 64 * 64 * 2);
    assert_int_equal(s.cold_bytes, 3 * 3 * s.layout.bytes);
    assert_int_equal(s.expert_bytes, 3 * 6 * s.layout.bytes);
    assert_int_equal(s.resident_bytes, s.trunk_bytes - 96 * 64 * 2 + s.cold_bytes);
    assert_int_equal(mf__blueprint_kv_bytes(&s.bp, MF_TYPE_F32), 4 * 2 * 64 * 4);
    assert_int_equal(mf__blueprint_kv_bytes(&s.bp, MF_TYPE_F16), 4 * 2 * 64 * 2);
    assert_int_equal(mf__blueprint_kv_bytes(&s.bp, MF_TYPE_I8), 4 * 2 * (64 + 4));
    assert_int_equal(s.state_bytes, 0);

    char native[512];
    snprintf(native, sizeof native, "%s.native", dir);
    free(checkpoint_logits(dir, NULL));
    mf__survey n = survey(native);
    mf_model *model;
    assert_int_equal(n.n_problems, 0);
    assert_true(n.known && n.is_native);
    assert_int_equal(n.part_bytes[MF_SURVEY_DENSE], s.part_bytes[MF_SURVEY_DENSE]);
    assert_int_equal(n.expert_bytes, s.expert_bytes);
    assert_int_equal(n.unused_bytes, 0);
    assert_int_equal(mf_model_open(native, NULL, &model, NULL), MF_OK);
    assert_int_equal(n.trunk_bytes, mf_model_info_get(model)->trunk_bytes);
    assert_int_equal(n.expert_bytes, mf_model_info_get(model)->expert_bytes);
    assert_int_equal(mf__blueprint_kv_bytes(&n.bp, MF_TYPE_F16), mf_model_info_get(model)->kv_bytes_per_token);
    mf_model_close(model);
    mf__survey_free(&s);
    mf__survey_free(&n);
    maker_free(&m);
}

/* The features are the model's own, not all that its family may have. */
static void features_of_the_model(void **state) {
    maker m;
    char text[64];
    maker_init(&m, CONFIG_GLM(""));
    mf__survey s = survey(maker_write(&m, *state, "dense"));
    assert_true(s.bp.config.has.dense && !s.bp.config.has.groups && s.bp.config.has.shared == MF_SHARED_PLAIN);
    mf__survey_free(&s);
    maker_free(&m);
    maker_init(&m, CONFIG_QWEN3(""));
    s = survey(maker_write(&m, *state, "plain"));
    mf__feature_text(&s.bp.config.has, 0, text, sizeof text);
    assert_string_equal(text, "full");
    assert_true(!s.bp.config.has.dense && !s.bp.config.has.yarn);
    mf__survey_free(&s);
    maker_free(&m);
}

static void problems(void **state) {
    maker m;
    maker_init(&m, CONFIG_QWEN3(""));
    maker_remove(&m, "model.layers.2.self_attn.k_proj.weight");
    only_problem(maker_write(&m, *state, "lacking"), true, "model.layers.2.self_attn.k_proj.weight");
    maker_remove(&m, "model.layers.1.mlp.experts.4.up_proj.weight");
    maker_remove(&m, "model.norm.weight");
    mf__survey s = survey(maker_write(&m, *state, "lacking_more"));
    assert_int_equal(s.n_problems, 3);
    assert_non_null(strstr(s.problems[2].text, "expert 4 of layer 1"));
    assert_int_equal(s.n_moe_layers, 4); /* what can be said is said */
    mf__survey_free(&s);
    maker_free(&m);

    maker_init(&m, CONFIG_QWEN3(""));
    m.config = "{\"model_type\": \"mamba\"}";
    only_problem(maker_write(&m, *state, "unknown"), false, "model_type \"mamba\" is not supported");
    m.config = CONFIG_QWEN3(", \"use_sliding_window\": true");
    only_problem(maker_write(&m, *state, "sliding"), false, "use_sliding_window");
    m.config = CONFIG_QWEN3(", \"quantization_config\": {\"quant_method\": \"awq\"}");
    only_problem(maker_write(&m, *state, "awq"), true, "quantized by \"awq\"");
    maker_free(&m);

    mf_error err = {0};
    assert_int_equal(mf__survey_make(*state, &s, &err), MF_E_NOT_FOUND); /* neither the one nor the other */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(sizes),
        SCRATCH_TEST(features_of_the_model),
        SCRATCH_TEST(problems),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
