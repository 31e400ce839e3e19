/* Native directories: written and read back, refused with a reason, and cleaned up after. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "util.h"

enum { HIDDEN = 64, INNER = 32, EXPERTS = 3, LAYERS = 3 };

static mf__expert_layout make_layout(int64_t align) {
    mf__expert_layout l = {0};
    for (int i = 0; i < MF_PART_COUNT; i++) {
        l.part[i].type = i == MF_PART_UP ? MF_TYPE_BF16 : MF_TYPE_AFFINE;
        l.part[i].n_rows = i == MF_PART_DOWN ? HIDDEN : INNER;
        l.part[i].n_cols = i == MF_PART_DOWN ? INNER : HIDDEN;
        l.part[i].bits = 4;
        l.part[i].group = 32;
        l.part[i].scale_type = MF_TYPE_F16;
    }
    assert_int_equal(mf__expert_layout_pack(&l, align, NULL), MF_OK);
    return l;
}

static uint8_t expert_byte(int layer, int expert, int64_t i) {
    return (uint8_t)(layer * 101 + expert * 37 + i * 7 + 1);
}

static void write_layer(mf__native_writer *w, int layer, const mf__expert_layout *l) {
    uint8_t *blob = malloc((size_t)l->bytes);
    assert_non_null(blob);
    assert_int_equal(mf__native_writer_experts_begin(w, layer, l, EXPERTS, NULL), MF_OK);
    for (int e = 0; e < EXPERTS; e++) {
        for (int64_t i = 0; i < l->bytes; i++) blob[i] = expert_byte(layer, e, i);
        assert_int_equal(mf__native_writer_expert(w, blob, NULL), MF_OK);
    }
    assert_int_equal(mf__native_writer_experts_end(w, NULL), MF_OK);
    free(blob);
}

static const float norm[HIDDEN] = {1, 2, 3};
static const uint8_t raw[77] = {5, 6, 7};

/* A small model with experts in layers 1 and 2. */
static void write_model(const char *dir) {
    mf__native_writer *w;
    mf_error err = {0};
    if (mf__native_writer_begin(dir, &w, &err)) fail_msg("%s", err.text);
    mf__entry entries[] = {make_entry("zz.raw", MF_TYPE_U8, 7, 11, raw),
                           make_entry("model.layers.0.norm.weight", MF_TYPE_F32, 1, HIDDEN, norm),
                           make_entry("model.layers.2.q.weight", MF_TYPE_U32, 2, 8, norm)};
    for (size_t i = 0; i < MF__COUNT(entries); i++)
        assert_int_equal(mf__native_writer_tensor(w, &entries[i], i == 2 ? 4 : 0, NULL), MF_OK);
    mf__expert_layout l = make_layout(4096);
    write_layer(w, 1, &l);
    write_layer(w, 2, &l);
    char *path = mf__native_writer_path(w, "config.json");
    assert_int_equal(mf__file_replace(path, "{\"model_type\":\"x\"}", 18, NULL), MF_OK);
    free(path);
    json_t *config = json_pack("{s:i}", "hidden_size", HIDDEN);
    if (mf__native_writer_finish(w, "a model", config, &err)) fail_msg("%s", err.text);
    json_decref(config);
}

static bool exists(const char *dir, const char *name) {
    char *path = join(dir, name);
    bool found = mf__path_exists(path);
    free(path);
    return found;
}

static void round_trip(void **state) {
    (void)state;
    char *top = scratch_make(), *dir = join(top, "model");
    write_model(dir);
    assert_false(exists(top, "model.partial"));
    assert_false(exists(dir, ".moeflux-partial"));
    mf__native n;
    mf_error err = {0};
    char *slashed = join(top, "model//");
    if (mf__native_open(slashed, &n, &err)) fail_msg("%s", err.text);
    free(slashed);
    assert_string_equal(n.dir, dir);
    assert_int_equal(n.n_layers, LAYERS);
    assert_int_equal(mf__catalog_count(n.catalog), 3);
    for (int64_t i = 0; i < 3; i++) assert_int_equal(mf__catalog_at(n.catalog, i)->offset % 64, 0);
    const mf__entry *e = mf__catalog_find(n.catalog, "zz.raw");
    assert_int_equal(e->dims[0], 7);
    assert_memory_equal(e->data, raw, sizeof raw);
    e = mf__catalog_find(n.catalog, "model.layers.0.norm.weight");
    assert_memory_equal(e->data, norm, sizeof norm);
    const json_t *tensors = json_object_get(n.manifest, "tensors");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(tensors, "model.layers.2.q.weight"), "bits")),
                     4);
    assert_null(json_object_get(json_object_get(tensors, "zz.raw"), "bits"));
    assert_int_equal(json_integer_value(json_object_get(n.manifest, "num_tensors")), 3);
    assert_string_equal(json_string_value(json_object_get(n.manifest, "model")), "a model");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(n.manifest, "config"), "hidden_size")), HIDDEN);
    assert_string_equal(json_string_value(json_object_get(n.config, "model_type")), "x");
    /* experts */
    mf__expert_layout l = make_layout(4096);
    assert_true(n.has_layout);
    assert_int_equal(n.n_experts, EXPERTS);
    assert_memory_equal(&n.layout.part[2].data_off, &l.part[2].data_off, sizeof(int64_t));
    assert_int_equal(n.layout.stride, l.stride);
    assert_int_equal(n.layout.bytes, l.bytes);
    assert_null(n.expert_files[0]);
    for (int layer = 1; layer < LAYERS; layer++) {
        size_t size;
        uint8_t *file = read_whole(".", n.expert_files[layer], &size);
        assert_int_equal(size, EXPERTS * l.stride);
        for (int x = 0; x < EXPERTS; x++)
            for (int64_t i = 0; i < l.stride; i++)
                assert_int_equal(file[x * l.stride + i], i < l.bytes ? expert_byte(layer, x, i) : 0);
        free(file);
    }
    mf__native_close(&n);
    free(dir);
    scratch_free(top);
}

static mf_status open_status(const char *dir, mf_error *err) {
    mf__native n;
    mf_status status = mf__native_open(dir, &n, err);
    if (status != MF_OK) assert_true(!n.catalog && !n.manifest && !n.dir && !n.expert_files);
    mf__native_close(&n);
    return status;
}

static void short_expert_file(void **state) {
    (void)state;
    char *top = scratch_make(), *dir = join(top, "model");
    write_model(dir);
    char *file = join(dir, "packed_experts/layer_02.bin");
    assert_int_equal(truncate(file, 3 * make_layout(4096).stride - 1), 0);
    mf_error err;
    char expected[64];
    snprintf(expected, sizeof expected, "expected %lld", 3 * (long long)make_layout(4096).stride);
    assert_error(open_status(dir, &err), &err, MF_E_FORMAT, "layer_02.bin", expected, "1 bytes short", NULL);
    unlink(file);
    assert_int_equal(open_status(dir, &err), MF_OK); /* a missing file is the model's business */
    free(file);
    char *trunk = join(dir, "model_weights.bin");
    struct stat st;
    assert_int_equal(stat(trunk, &st), 0);
    assert_int_equal(truncate(trunk, st.st_size - 1), 0);
    assert_error(open_status(dir, &err), &err, MF_E_FORMAT, "model_weights.json", "model_weights.bin", "cut off", NULL);
    unlink(trunk);
    assert_error(open_status(dir, &err), &err, MF_E_NOT_FOUND, "model_weights.bin is missing", NULL);
    free(trunk);
    free(dir);
    scratch_free(top);
}

/* A tree of the flash-moe tools: no block of ours, and the parts in three folders. */
static void foreign_tree(void **state) {
    (void)state;
    char *dir = scratch_make();
    static const char *const folders[] = {"artifacts", "root", "root/packed_experts", "mlx"};
    for (size_t i = 0; i < MF__COUNT(folders); i++) {
        char *path = join(dir, folders[i]);
        assert_int_equal(mkdir(path, 0777), 0);
        free(path);
    }
    write_text(dir, "artifacts/model_weights.json",
               "{\"tensors\":{\"model.layers.1.x\":{\"offset\":0,\"size\":4,\"shape\":[4],\"dtype\":\"U8\"}}}");
    write_text(dir, "artifacts/model_weights.bin", "abcd");
    write_text(dir, "root/packed_experts/layer_01.bin", "x");
    write_text(dir, "mlx/config.json", "{\"a\":1}");
    mf__native n;
    mf_error err = {0};
    if (mf__native_open(dir, &n, &err)) fail_msg("%s", err.text);
    assert_false(n.has_layout);
    assert_int_equal(n.n_layers, 2);
    assert_null(n.expert_files[0]);
    assert_non_null(strstr(n.expert_files[1], "root/packed_experts/layer_01.bin"));
    assert_non_null(n.config);
    assert_int_equal(mf__catalog_find(n.catalog, "model.layers.1.x")->data[3], 'd');
    mf__native_close(&n);
    scratch_free(dir);
}

static void not_a_model(void **state) {
    (void)state;
    char *dir = scratch_make(), *missing = join(dir, "missing"), *file = join(dir, "file");
    mf_error err;
    assert_error(open_status(dir, &err), &err, MF_E_NOT_FOUND, "not a model directory", dir, "no model_weights.json",
                 NULL);
    assert_error(open_status(missing, &err), &err, MF_E_NOT_FOUND, missing, "does not exist", NULL);
    write_text(dir, "file", "x");
    assert_error(open_status(file, &err), &err, MF_E_INVALID, file, "is a file", NULL);
    /* checkpoints */
    write_text(dir, "model.safetensors.index.json", "{}");
    char command[100];
    snprintf(command, sizeof command, "moeflux convert %s OUT", dir);
    assert_error(open_status(dir, &err), &err, MF_E_NOT_FOUND, "checkpoint", command, NULL);
    char *index = join(dir, "model.safetensors.index.json");
    unlink(index);
    free(index);
    /* unfinished conversions */
    write_text(dir, "model_weights.bin", "x");
    assert_error(open_status(dir, &err), &err, MF_E_NOT_FOUND, "did not finish", NULL);
    char *partial = join(dir, "missing.partial/");
    assert_int_equal(mkdir(partial, 0777), 0);
    assert_error(open_status(missing, &err), &err, MF_E_NOT_FOUND, "missing.partial", "did not finish", NULL);
    write_text(partial, "model_weights.json", "{\"tensors\":{}}");
    write_text(partial, "model_weights.bin", "");
    assert_error(open_status(partial, &err), &err, MF_E_FORMAT, "unfinished conversion", NULL);
    /* damaged json */
    write_text(dir, "model_weights.json", "{\"tensors\":");
    assert_error(open_status(dir, &err), &err, MF_E_FORMAT, "model_weights.json", NULL);
    write_text(dir, "model_weights.json", "{\"tensors\":{}}");
    assert_int_equal(open_status(dir, &err), MF_OK);
    write_text(dir, "config.json", "{");
    assert_error(open_status(dir, &err), &err, MF_E_FORMAT, "config.json", NULL);
    free(partial);
    free(missing);
    free(file);
    scratch_free(dir);
}

static void targets_refused(void **state) {
    (void)state;
    char *top = scratch_make(), *dir = join(top, "model");
    mf__native_writer *w;
    mf_error err;
    write_text(top, "file", "x");
    char *below_file = join(top, "file/model"), *no_parent = join(top, "none/model");
    assert_error(mf__native_writer_begin(below_file, &w, &err), &err, MF_E_NOT_FOUND, "file/model.partial", NULL);
    assert_null(w);
    assert_error(mf__native_writer_begin(no_parent, &w, &err), &err, MF_E_NOT_FOUND, "none/model.partial", NULL);
    write_model(dir);
    assert_error(mf__native_writer_begin(dir, &w, &err), &err, MF_E_EXISTS, dir, "exists already", NULL);
    char *link = join(top, "dangling");
    assert_int_equal(symlink("nowhere", link), 0);
    assert_error(mf__native_writer_begin(link, &w, &err), &err, MF_E_EXISTS, "exists already", NULL);
    if (geteuid() != 0) { /* root may write anywhere */
        char *locked = join(top, "locked"), *inside = join(locked, "model");
        assert_int_equal(mkdir(locked, 0555), 0);
        assert_error(mf__native_writer_begin(inside, &w, &err), &err, MF_E_IO, "locked/model.partial", NULL);
        free(locked);
        free(inside);
    }
    free(link);
    free(below_file);
    free(no_parent);
    free(dir);
    scratch_free(top);
}

/* Makes DIR.partial as a killed run leaves it: with a marker that nobody holds. */
static void make_leftover(const char *partial) {
    assert_int_equal(mkdir(partial, 0777), 0);
    char *experts = join(partial, "packed_experts");
    assert_int_equal(mkdir(experts, 0777), 0);
    free(experts);
    write_text(partial, ".moeflux-partial", "config.json\ntokenizer.json\n");
    write_text(partial, "model_weights.bin", "half");
    write_text(partial, "tokenizer.json", "half");
    write_text(partial, ".moeflux-12-ab-0.tmp", "half");
    write_text(partial, "packed_experts/layer_00.bin", "half");
}

static void leftovers(void **state) {
    (void)state;
    char *top = scratch_make(), *dir = join(top, "model"), *partial = join(top, "model.partial");
    mf__native_writer *w;
    mf_error err = {0};
    make_leftover(partial);
    write_model(dir); /* cleared and done */
    assert_false(mf__path_exists(partial));
    assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
    /* a stranger's file anywhere: nothing is touched */
    static const char *const strangers[] = {"notes.txt", "tokenizer", "packed_experts/notes.txt", "json"};
    for (size_t i = 0; i < MF__COUNT(strangers); i++) {
        make_leftover(partial);
        write_text(partial, strangers[i], "mine");
        const char *name = strrchr(strangers[i], '/') ? strrchr(strangers[i], '/') + 1 : strangers[i];
        assert_error(mf__native_writer_begin(dir, &w, &err), &err, MF_E_EXISTS, "model.partial", name, NULL);
        assert_true(exists(partial, "model_weights.bin") && exists(partial, strangers[i]));
        assert_int_equal(mf__dir_remove(partial, NULL), MF_OK);
    }
    /* no marker: not ours at all */
    assert_int_equal(mkdir(partial, 0777), 0);
    assert_error(mf__native_writer_begin(dir, &w, &err), &err, MF_E_EXISTS, "was not made by moeflux", NULL);
    assert_true(mf__path_exists(partial));
    assert_int_equal(rmdir(partial), 0);
    /* one that is being written */
    mf__native_writer *second;
    assert_int_equal(mf__native_writer_begin(dir, &w, &err), MF_OK);
    assert_error(mf__native_writer_begin(dir, &second, &err), &err, MF_E_EXISTS, "another", NULL);
    assert_true(exists(partial, "model_weights.bin"));
    mf__native_writer_abort(w);
    assert_false(mf__path_exists(partial));
    mf__native_writer_abort(NULL);
    /* DIR appears meanwhile: it is not replaced, even empty */
    assert_int_equal(mf__native_writer_begin(dir, &w, &err), MF_OK);
    assert_int_equal(mkdir(dir, 0777), 0);
    assert_error(mf__native_writer_finish(w, "m", NULL, &err), &err, MF_E_EXISTS, dir, NULL);
    assert_false(mf__path_exists(partial));
    assert_false(exists(dir, "model_weights.json"));
    free(partial);
    free(dir);
    scratch_free(top);
}

static void misuse(void **state) {
    (void)state;
    char *top = scratch_make(), *dir = join(top, "model"), *partial = join(top, "model.partial");
    mf__native_writer *w;
    mf_error err;
    mf__expert_layout l = make_layout(64), other = make_layout(128);
    other.stride += 64;
    uint8_t *blob = calloc(1, (size_t)l.bytes);
    assert_non_null(blob);
    mf__entry good = make_entry("a", MF_TYPE_U8, 1, 4, raw), bad = good;
    bad.size = 5;
    static const char *const names[] = {"", ".", "..", ".hidden", "a/b", "a\nb"};
#define BROKEN(step, status, ...)                                                                                      \
    do {                                                                                                               \
        assert_int_equal(mf__native_writer_begin(dir, &w, NULL), MF_OK);                                               \
        assert_error(step, &err, status, __VA_ARGS__, NULL);                                                           \
        assert_error(mf__native_writer_finish(w, "m", NULL, &err), &err, MF_E_INTERNAL, "failed", NULL);               \
        assert_false(mf__path_exists(dir) || mf__path_exists(partial));                                                \
    } while (0)
    BROKEN(mf__native_writer_tensor(w, &bad, 0, &err), MF_E_INVALID, "needs 4");
    BROKEN((mf__native_writer_tensor(w, &good, 0, &err), mf__native_writer_tensor(w, &good, 0, &err)), MF_E_INVALID,
           "twice");
    BROKEN(mf__native_writer_expert(w, blob, &err), MF_E_INTERNAL, "not expected");
    BROKEN(mf__native_writer_experts_end(w, &err), MF_E_INTERNAL, "ends");
    BROKEN((mf__native_writer_experts_begin(w, 0, &l, 2, &err), mf__native_writer_expert(w, blob, &err),
            mf__native_writer_experts_end(w, &err)),
           MF_E_INTERNAL, "1 of 2");
    BROKEN((mf__native_writer_experts_begin(w, 0, &l, 1, &err), mf__native_writer_experts_begin(w, 1, &l, 1, &err)),
           MF_E_INTERNAL, "not complete");
    BROKEN((write_layer(w, 0, &l), mf__native_writer_experts_begin(w, 1, &other, EXPERTS, &err)), MF_E_INVALID,
           "layer 1");
    BROKEN((write_layer(w, 0, &l), mf__native_writer_experts_begin(w, 0, &l, EXPERTS, &err)), MF_E_EXISTS,
           "layer_00.bin");
    BROKEN(mf__native_writer_experts_begin(w, -1, &l, 1, &err), MF_E_INVALID, "layer -1");
#undef BROKEN
    assert_int_equal(mf__native_writer_begin(dir, &w, NULL), MF_OK);
    for (size_t i = 0; i < MF__COUNT(names); i++) assert_null(mf__native_writer_path(w, names[i]));
    /* a model without experts or config */
    assert_int_equal(mf__native_writer_tensor(w, &good, 0, &err), MF_OK);
    assert_int_equal(mf__native_writer_finish(w, "m", NULL, &err), MF_OK);
    mf__native n;
    assert_int_equal(mf__native_open(dir, &n, &err), MF_OK);
    assert_false(n.has_layout);
    assert_null(json_object_get(n.manifest, "config"));
    assert_null(n.config);
    mf__native_close(&n);
    free(blob);
    free(partial);
    free(dir);
    scratch_free(top);
}

/* The record of a shard: what is written is read, and anything else is refused with a sentence. */
static void shard_records(void **state) {
    uint64_t owners[] = {1, 2, 16, 17, 0, 0, 0, 0, 31, 4, 8, 1};
    const mf__shard in = {.n_ranks = 5, .rank = 4, .n_layers = 3, .n_experts = 4, .trunk = true, .owners = owners};
    const struct {
        const char *from, *to; /* one piece of the record is another */
    } wrong[] = {{"\"moeflux_shard\": 1", "\"moeflux_shard\": 2"},
                 {"\"ranks\": 5", "\"ranks\": 65"},
                 {"\"ranks\": 5", "\"ranks\": 4"},
                 {"\"ranks\": 5", "\"ranks\": 1"},
                 {"\"rank\": 4", "\"rank\": 5"},
                 {"\"rank\": 4", "\"rank\": -1"},
                 {"\"layers\": 3", "\"layers\": 10000"},
                 {"\"experts\": 4", "\"experts\": 65536"},
                 {"\"experts\": 4", "\"experts\": 3"},
                 {"01021011", "0102101G"},
                 {"01021011", "01021021"},
                 {"\"owners\"", "\"owner\""},
                 {"]}", ""}};
    mf__shard *out;
    mf_error err = {0};
    (void)state;
    char *text = mf__shard_text(&in);
    assert_non_null(text);
    assert_int_equal(mf__shard_parse("x", text, strlen(text), &out, &err), MF_OK);
    assert_true(out->n_ranks == 5 && out->rank == 4 && out->n_layers == 3 && out->n_experts == 4 && out->trunk);
    assert_memory_equal(out->owners, owners, sizeof owners);
    assert_true(mf__shard_has(out, 0, 2) && !mf__shard_has(out, 0, 0) && mf__shard_has(out, 2, 0));
    uint64_t placement = mf__shard_placement(out);
    out->owners[0] = 2;
    assert_true(mf__shard_placement(out) != placement);
    mf__shard_free(out);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *at = strstr(text, wrong[i].from), other[1024];
        assert_non_null(at);
        snprintf(other, sizeof other, "%.*s%s%s", (int)(at - text), text, wrong[i].to, at + strlen(wrong[i].from));
        if (mf__shard_parse("x", other, strlen(other), &out, &err) == MF_OK) fail_msg("%s was taken", other);
        assert_null(out);
        assert_true(err.text[0]);
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shard_records), cmocka_unit_test(round_trip),  cmocka_unit_test(short_expert_file),
        cmocka_unit_test(foreign_tree),  cmocka_unit_test(not_a_model), cmocka_unit_test(targets_refused),
        cmocka_unit_test(leftovers),     cmocka_unit_test(misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
