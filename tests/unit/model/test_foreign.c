/* Directories made by the flash-moe tools: no config.json, no description of the experts, other folders. They are made
 * here from a converted model by taking away what those tools do not write. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "maker.h"
#include "unit/base/scratch.h"

/* The keys that the tools' manifests repeat; everything else of config.json is lost. */
static const char *const KEPT[] = {"hidden_size",
                                   "num_hidden_layers",
                                   "num_attention_heads",
                                   "num_key_value_heads",
                                   "head_dim",
                                   "vocab_size",
                                   "rms_norm_eps",
                                   "num_experts",
                                   "num_experts_per_tok",
                                   "moe_intermediate_size",
                                   "shared_expert_intermediate_size",
                                   "linear_num_value_heads",
                                   "linear_num_key_heads",
                                   "linear_key_head_dim",
                                   "linear_value_head_dim",
                                   "rope_theta",
                                   "n_routed_experts",
                                   "n_group",
                                   "topk_group",
                                   "first_k_dense_replace",
                                   "q_lora_rank",
                                   "kv_lora_rank",
                                   "qk_nope_head_dim",
                                   "qk_rope_head_dim",
                                   "v_head_dim",
                                   "n_shared_experts",
                                   "intermediate_size"};

static void remove_in(const char *dir, const char *name) {
    char *path = path_in(dir, name);
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* Rewrites DIR/model_weights.json: our own object goes, the config keeps the tools' keys, a name may change. */
static void strip_manifest(const char *dir, const char *from, const char *to) {
    char *path = path_in(dir, "model_weights.json");
    json_t *root = NULL, *config = json_object(), *tensors = json_object();
    const char *name;
    json_t *value;
    assert_int_equal(mf__json_read(path, 1 << 24, &root, NULL), MF_OK);
    json_object_del(root, "moeflux");
    for (size_t i = 0; i < MF__COUNT(KEPT); i++) {
        value = json_object_get(json_object_get(root, "config"), KEPT[i]);
        if (value) json_object_set(config, KEPT[i], value);
    }
    json_object_set_new(config, "default_bits", json_integer(4));
    json_object_set_new(root, "config", config);
    json_object_foreach(json_object_get(root, "tensors"), name, value) {
        char other[256];
        const char *at = from ? strstr(name, from) : NULL;
        snprintf(other, sizeof other, "%.*s%s%s", (int)(at ? at - name : 0), name, at ? to : "",
                 at ? at + strlen(from) : name);
        json_object_set(tensors, other, value);
    }
    json_object_set_new(root, "tensors", tensors);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
    free(path);
}

/* A model of 4-bit (or `bits`) experts in groups of 64 and what its logits are. The blobs of these small models are
 * shorter than a page, so the padding between them goes as well: the tools write none. */
static void squeeze(const char *dir, int n_layers, int64_t bytes, int n_experts) {
    for (int l = 0; l < n_layers; l++) {
        char name[64];
        snprintf(name, sizeof name, "packed_experts/layer_%02d.bin", l);
        char *path = path_in(dir, name), *data;
        size_t size;
        if (mf__path_exists(path)) {
            assert_int_equal(mf__file_read(path, 1 << 24, &data, &size, NULL), MF_OK);
            int64_t stride = (int64_t)size / n_experts;
            for (int e = 0; e < n_experts; e++) memmove(data + e * bytes, data + e * stride, (size_t)bytes);
            assert_int_equal(mf__file_replace(path, data, (size_t)(bytes * n_experts), NULL), MF_OK);
            free(data);
        }
        free(path);
    }
}

static char *make_foreign(void **state, const char *config, int bits, const char *from, const char *to,
                          float **logits) {
    maker m;
    mf__convert_options opt;
    mf__convert_options_init(&opt);
    opt.expert_bits = bits;
    maker_init(&m, config);
    const mf__config *c = &m.bp.config;
    const char *dir = maker_write(&m, *state, "model");
    *logits = checkpoint_logits(dir, &opt);
    char *native = malloc(512);
    assert_non_null(native);
    snprintf(native, 512, "%s.native", dir);
    remove_in(native, "config.json");
    strip_manifest(native, from, to);
    int64_t weights = 3 * (int64_t)c->moe.n_inner * c->n_hidden;
    squeeze(native, c->n_layers, weights * bits / 8 + weights / 64 * 4, c->moe.n_experts);
    maker_free(&m);
    return native;
}

static void opens_to(const char *dir, const float *want) {
    float *got = model_logits(dir, 0);
    assert_same_logits(got, want, 96);
    free(got);
}

static void rename_in(const char *dir, const char *from, const char *to) {
    char *a = path_in(dir, from), *b = path_in(dir, to);
    assert_int_equal(rename(a, b), 0);
    free(a);
    free(b);
}

static void opens_without_a_config(void **state) {
    float *want;
    char *dir = make_foreign(state, CONFIG_QWEN3_5(""), 4, NULL, NULL, &want);
    opens_to(dir, want);
    mf_model *m;
    assert_int_equal(mf_model_open(dir, NULL, &m, NULL), MF_OK);
    assert_string_equal(mf_model_info_get(m)->family, "qwen3_5_moe");
    assert_int_equal(mf_model_info_get(m)->n_ctx, 262144); /* the manifest does not say: as usual in the family */
    mf_model_close(m);
    free(want);
    free(dir);
}

/* The tree of the other converter: names with shared_experts, dense first layers, three folders below a parent. */
static void opens_latent_attention_in_a_tree(void **state) {
    float *want;
    char *dir = make_foreign(state, CONFIG_DEEPSEEK(""), 4, "mlp.shared_expert.", "mlp.shared_experts.", &want);
    opens_to(dir, want);
    char *artifacts = path_in(dir, "artifacts"), *root = path_in(dir, "root");
    assert_int_equal(mf__dir_make(artifacts, NULL), MF_OK);
    assert_int_equal(mf__dir_make(root, NULL), MF_OK);
    rename_in(dir, "model_weights.json", "artifacts/model_weights.json");
    rename_in(dir, "model_weights.bin", "artifacts/model_weights.bin");
    rename_in(dir, "packed_experts", "root/packed_experts");
    opens_to(dir, want);
    free(artifacts);
    free(root);
    free(want);
    free(dir);
}

static void opens_two_bits(void **state) {
    float *want;
    char *dir = make_foreign(state, CONFIG_QWEN3_5(""), 2, NULL, NULL, &want);
    rename_in(dir, "packed_experts", "packed_experts_2bit");
    opens_to(dir, want);
    rename_in(dir, "packed_experts_2bit", "packed_experts"); /* the files' size tells as well */
    opens_to(dir, want);
    free(want);
    free(dir);
}

static void says_what_is_missing(void **state) {
    float *want;
    char *dir = make_foreign(state, CONFIG_QWEN3_5(""), 4, NULL, NULL, &want);
    rename_in(dir, "packed_experts/layer_02.bin", "aside");
    assert_open_fails(dir, MF_E_NOT_FOUND, "packed_experts/layer_02.bin is missing: 1 of the 4 layers");
    rename_in(dir, "packed_experts/layer_01.bin", "aside1");
    assert_open_fails(dir, MF_E_NOT_FOUND, "layer_01.bin is missing (and more): 2 of the 4 layers");
    rename_in(dir, "aside", "packed_experts/layer_02.bin");
    rename_in(dir, "aside1", "packed_experts/layer_01.bin");
    opens_to(dir, want);

    char *path = path_in(dir, "packed_experts/layer_03.bin");
    assert_int_equal(truncate(path, 1000), 0);
    assert_open_fails(dir, MF_E_FORMAT, "layer_03.bin has 1000 bytes");
    free(path);
    path = path_in(dir, "packed_experts/layer_00.bin");
    assert_int_equal(truncate(path, 1000), 0);
    assert_open_fails(dir, MF_E_MISMATCH, "6 experts of 64 x 64 with 4 bits in groups of 64 would be");
    free(path);
    rename_in(dir, "packed_experts", "elsewhere");
    assert_open_fails(dir, MF_E_NOT_FOUND, "has no experts");
    free(want);
    free(dir);
}

/* Config and tensors that disagree: both values are told. */
static void compares_config_and_tensors(void **state) {
    float *want;
    char *dir = make_foreign(state, CONFIG_QWEN3_5(""), 4, NULL, NULL, &want),
         *path = path_in(dir, "model_weights.json");
    static const struct {
        const char *key;
        int value;
        const char *text;
    } rows[] = {{"num_hidden_layers", 5, "says 5 layers, model_weights.json has tensors of 4"},
                {"hidden_size", 32, "64"},
                {"vocab_size", 95, "96 x 64"}};
    for (size_t i = 0; i < MF__COUNT(rows); i++) {
        json_t *root = NULL;
        assert_int_equal(mf__json_read(path, 1 << 24, &root, NULL), MF_OK);
        json_t *changed = json_deep_copy(root);
        json_object_set_new(json_object_get(changed, "config"), rows[i].key, json_integer(rows[i].value));
        assert_int_equal(json_dump_file(changed, path, 0), 0);
        assert_open_fails(dir, MF_E_MISMATCH, rows[i].text);
        assert_int_equal(json_dump_file(root, path, 0), 0);
        json_decref(root);
        json_decref(changed);
    }
    opens_to(dir, want);

    json_t *root = NULL;
    assert_int_equal(mf__json_read(path, 1 << 24, &root, NULL), MF_OK);
    json_object_del(root, "config");
    assert_int_equal(json_dump_file(root, path, 0), 0);
    assert_open_fails(dir, MF_E_NOT_FOUND, "there is no config.json");
    json_decref(root);
    free(path);
    free(want);
    free(dir);
}

static void unknown_tensors(void **state) {
    float *want;
    char *dir = make_foreign(state, CONFIG_QWEN3(""), 4, "self_attn.q_norm.", "self_attn.query_norm.", &want);
    assert_open_fails(dir, MF_E_UNSUPPORTED, "those of no family");
    free(want);
    free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(opens_without_a_config),
        SCRATCH_TEST(opens_latent_attention_in_a_tree),
        SCRATCH_TEST(opens_two_bits),
        SCRATCH_TEST(says_what_is_missing),
        SCRATCH_TEST(compares_config_and_tensors),
        SCRATCH_TEST(unknown_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
