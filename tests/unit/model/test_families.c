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

/* docs/models.md has the table exactly as the code would print it: one line per feature, one column per family. */
static void documented(void **state) {
    (void)state;
    char *docs, line[1024], cell[128];
    size_t size;
    mf_error err;
    if (mf__file_read(docs_path, 1 << 20, &docs, &size, &err)) fail_msg("%s", err.text);
    for (int f = -1; f < MF_FEATURES; f++) {
        size_t n = (size_t)snprintf(line, sizeof line, "| %s |", f < 0 ? "" : mf__feature_name(f));
        for (int i = 0; mf__families[i]; i++) {
            if (f >= 0) mf__feature_text(&mf__families[i]->has, f, cell, sizeof cell);
            n += (size_t)snprintf(line + n, sizeof line - n, " %s |", f < 0 ? mf__families[i]->name : cell);
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
        SCRATCH_TEST(fewer_experts),
        cmocka_unit_test(documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
