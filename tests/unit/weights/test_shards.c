/* Checkpoint directories: a single file, shards under an index, and what can be wrong between index and shards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "util.h"

#define ONE(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}"
#define TWO(first, second)                                                                                             \
    "{\"" first "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"" second                                 \
    "\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}"
#define INDEX "model.safetensors.index.json"

static mf_status open_dir(const char *dir, mf_error *err) {
    mf__catalog *cat;
    mf_status status = mf__safetensors_open(dir, &cat, err);
    if (status != MF_OK) assert_null(cat);
    mf__catalog_close(cat);
    return status;
}

static void sharded(void **state) {
    (void)state;
    char *dir = scratch_make();
    write_safetensors(dir, "s1.safetensors", TWO("a", "c"), 8);
    write_safetensors(dir, "s2.safetensors", TWO("b", "unlisted"), 8);
    write_text(dir, INDEX,
               "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\","
               "\"c\":\"s1.safetensors\"}}");
    mf__catalog *cat;
    mf_error err = {0};
    if (mf__safetensors_open(dir, &cat, &err) != MF_OK) fail_msg("%s", err.text);
    assert_int_equal(mf__catalog_n_files(cat), 2); /* each shard once */
    assert_int_equal(mf__catalog_count(cat), 3);   /* what the index does not list is not there */
    assert_null(mf__catalog_find(cat, "unlisted"));
    const mf__entry *b = mf__catalog_find(cat, "b"), *c = mf__catalog_find(cat, "c");
    assert_non_null(strstr(mf__catalog_file(cat, b->file), "s2.safetensors"));
    assert_non_null(strstr(mf__catalog_file(cat, c->file), "s1.safetensors"));
    assert_int_equal(c->data[0], 4);
    assert_int_equal(b->data[0], 0);
    mf__catalog_close(cat);
    /* a single file, when there is one, goes first */
    write_safetensors(dir, "model.safetensors", ONE("only"), 4);
    assert_int_equal(mf__safetensors_open(dir, &cat, NULL), MF_OK);
    assert_int_equal(mf__catalog_count(cat), 1);
    assert_non_null(mf__catalog_find(cat, "only"));
    mf__catalog_close(cat);
    scratch_free(dir);
}

static void disagreements(void **state) {
    (void)state;
    char *dir = scratch_make();
    mf_error err;
    write_safetensors(dir, "s1.safetensors", ONE("a"), 4);
    write_safetensors(dir, "s2.safetensors", TWO("b", "a"), 8);

    write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"x\":\"s1.safetensors\"}}");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "tensor x", "s1.safetensors", "does not have it", NULL);

    write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\"}}");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "tensor a", "s2.safetensors", "s1.safetensors", NULL);

    write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s3.safetensors\"}}");
    assert_error(open_dir(dir, &err), &err, MF_E_NOT_FOUND, "s3.safetensors is missing", INDEX, NULL);

    static const char *const names[] = {"../s1.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\\\b"};
    for (size_t i = 0; i < MF__COUNT(names); i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", names[i]);
        write_text(dir, INDEX, text);
        assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "name of a file beside the index", INDEX, NULL);
    }
    write_text(dir, INDEX, "{\"weight_map\":{\"a\":7}}");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "a is an integer", NULL);
    write_text(dir, INDEX, "{\"weight_map\":[]}");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "weight_map is an array", NULL);
    write_text(dir, INDEX, "{}");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "weight_map is nothing", NULL);
    write_text(dir, INDEX, "[1]");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "weight_map is nothing", NULL);
    write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\"");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, INDEX, NULL);
    write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "duplicate", NULL);
    /* a damaged shard names itself */
    write_text(dir, INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\"}}");
    write_safetensors(dir, "s1.safetensors", ONE("a"), 1);
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "s1.safetensors is 3 bytes short", NULL);
    scratch_free(dir);
}

static void not_checkpoints(void **state) {
    (void)state;
    char *dir = scratch_make();
    mf_error err;
    assert_error(open_dir(dir, &err), &err, MF_E_NOT_FOUND, dir, "not a checkpoint", NULL);
    write_text(dir, "model_weights.json", "{}");
    assert_error(open_dir(dir, &err), &err, MF_E_NOT_FOUND, "converted model", NULL);
    char *path = join(dir, "nothing.safetensors");
    assert_error(open_dir(path, &err), &err, MF_E_NOT_FOUND, "nothing.safetensors", NULL);
    free(path);
    write_text(dir, "model.safetensors", "");
    assert_error(open_dir(dir, &err), &err, MF_E_FORMAT, "has 0 bytes", NULL);
    scratch_free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharded),
        cmocka_unit_test(disagreements),
        cmocka_unit_test(not_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
