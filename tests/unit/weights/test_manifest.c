/* The manifest of a native directory: what is read from it, and what is refused. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "util.h"

static uint8_t trunk[256];

static mf_status parse(const char *json, mf__native *out, mf_error *err) {
    mf_status status = mf__manifest_parse("m.json", json, strlen(json), trunk, sizeof trunk, out, err);
    if (status == MF_OK)
        check_catalog(out->catalog, trunk, sizeof trunk);
    else
        assert_null(out->catalog);
    return status;
}

#define T(offset, size, shape, dtype)                                                                                  \
    "{\"offset\":" #offset ",\"size\":" #size ",\"shape\":[" shape "],\"dtype\":\"" dtype "\"}"
#define TENSORS(list) "{\"tensors\":{" list "}}"

/* As the flash-moe tools write it: no block of ours, keys we do not know, bits beside U32. */
static void foreign_manifest(void **state) {
    (void)state;
    mf__native n;
    mf_error err = {0};
    mf_status status =
        parse("{\"model\":\"somewhere\",\"num_tensors\":3,\"tensors\":{"
              "\"model.layers.11.input_layernorm.weight\":" T(
                  0, 8, "4", "BF16") ","
                                     "\"model.layers.7.linear_attn.A_log\":" T(
                                         64, 16, "4", "F32") ","
                                                             "\"lm_head.weight\":{\"offset\":128,\"size\":32,\"shape\":"
                                                             "[2,4],\"dtype\":\"U32\",\"bits\":4}},"
                                                             "\"config\":{\"default_bits\":4}}",
              &n, &err);
    if (status != MF_OK) fail_msg("%s", err.text);
    assert_false(n.has_layout);
    assert_int_equal(n.n_experts, 0);
    assert_int_equal(n.n_layers, 12);
    assert_int_equal(mf__catalog_count(n.catalog), 3);
    assert_ptr_equal(mf__catalog_find(n.catalog, "lm_head.weight")->data, trunk + 128);
    assert_true(json_is_object(json_object_get(n.manifest, "config")));
    mf__native_close(&n);
    assert_null(n.catalog);
    mf__native_close(&n); /* closed twice is closed */
}

static void layer_numbers(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int n_layers;
    } names[] = {{"model.layers.0.x", 1}, {"model.layers.9999.x", 10000}, {"model.layers.5", 0},
                 {"model.layers.x.y", 0}, {"mtp.layers.3.x", 0},          {"model.layers.-1.x", 0},
                 {"model.layers..x", 0},  {"model.layers.007.x", 8},      {"language.model.layers.3.x", 0}};
    for (size_t i = 0; i < MF__COUNT(names); i++) {
        char json[200];
        snprintf(json, sizeof json, TENSORS("\"%s\":" T(0, 1, "1", "U8")), names[i].name);
        mf__native n;
        assert_int_equal(parse(json, &n, NULL), MF_OK);
        assert_int_equal(n.n_layers, names[i].n_layers);
        mf__native_close(&n);
    }
    mf_error err;
    mf__native n;
    assert_error(parse(TENSORS("\"model.layers.10000.x\":" T(0, 1, "1", "U8")), &n, &err), &err, MF_E_LIMIT, "layers",
                 NULL);
    assert_error(parse(TENSORS("\"model.layers.99999999999999999999.x\":" T(0, 1, "1", "U8")), &n, &err), &err,
                 MF_E_LIMIT, "layers", NULL);
}

static void rejects_tensors(void **state) {
    (void)state;
    static const struct {
        const char *json;
        mf_status status;
        const char *says, *and;
    } bad[] = {
        {"", MF_E_FORMAT, "m.json", ""},
        {"[]", MF_E_FORMAT, "m.json", "expected an object"},
        {"{}", MF_E_FORMAT, "tensors is nothing", "m.json"},
        {"{\"tensors\":[]}", MF_E_FORMAT, "tensors is an array", "m.json"},
        {"{\"tensors\":{}", MF_E_FORMAT, "m.json", ""},
        {TENSORS("\"a\":" T(0, 4, "1", "F32") ",\"a\":" T(0, 4, "1", "F32")), MF_E_FORMAT, "duplicate", "m.json"},
        {TENSORS("\"\":" T(0, 4, "1", "F32")), MF_E_FORMAT, "empty name", "m.json"},
        {TENSORS("\"a\\u0007\":" T(0, 4, "1", "F32")), MF_E_FORMAT, "control character", "m.json"},
        {TENSORS("\"a\":3"), MF_E_FORMAT, "tensor a", "an integer"},
        {TENSORS("\"a\":{\"size\":4,\"shape\":[1],\"dtype\":\"F32\"}"), MF_E_FORMAT, "tensor: a", "offset"},
        {TENSORS("\"a\":{\"offset\":0,\"shape\":[1],\"dtype\":\"F32\"}"), MF_E_FORMAT, "tensor: a", "size"},
        {TENSORS("\"a\":{\"offset\":0,\"size\":4,\"dtype\":\"F32\"}"), MF_E_FORMAT, "tensor a", "shape"},
        {TENSORS("\"a\":{\"offset\":0,\"size\":4,\"shape\":[1]}"), MF_E_FORMAT, "tensor a", "dtype"},
        {TENSORS("\"a\":" T(0, 4, "1", "Q4")), MF_E_UNSUPPORTED, "tensor a", "\"Q4\""},
        {TENSORS("\"a\":" T(0, 4, "-1", "F32")), MF_E_FORMAT, "tensor a", "is -1"},
        {TENSORS("\"a\":" T(0, 8, "1", "F32")), MF_E_FORMAT, "size 8", "needs 4"},
        {TENSORS("\"a\":" T(-4, 4, "1", "F32")), MF_E_FORMAT, "offset is -4", "tensor: a"},
        {TENSORS("\"a\":" T(253, 4, "1", "F32")), MF_E_FORMAT, "4 bytes at 253", "256 bytes"},
        {TENSORS("\"a\":" T(257, 0, "0", "F32")), MF_E_FORMAT, "0 bytes at 257", "256 bytes"},
        {TENSORS("\"a\":" T(9223372036854775807, 4, "1", "F32")), MF_E_FORMAT, "at 9223372036854775807", "tensor a"},
        {TENSORS("\"a\":" T(0.5, 4, "1", "F32")), MF_E_FORMAT, "offset is a real number", "tensor: a"},
    };
    for (size_t i = 0; i < MF__COUNT(bad); i++) {
        mf__native n;
        mf_error err = {0};
        mf_status status = parse(bad[i].json, &n, &err);
        if (status == MF_OK) fail_msg("accepted: %s", bad[i].json);
        assert_error(status, &err, bad[i].status, bad[i].says, bad[i].and, NULL);
    }
    mf__native n; /* the very end is inside */
    assert_int_equal(parse(TENSORS("\"a\":" T(252, 4, "1", "F32") ",\"e\":" T(256, 0, "0", "F32")), &n, NULL), MF_OK);
    mf__native_close(&n);
}

/* gate and up: AFFINE [32, 64] 4 bits; down: BF16 [64, 32]; see expected offsets below. */
#define PART(name, data)                                                                                               \
    "{\"name\":\"" name "\",\"dtype\":\"AFFINE\",\"rows\":32,\"cols\":64,\"bits\":4,\"group\":64,\"scale_dtype\":"     \
    "\"F16\",\"data\":" #data ",\"scales\":" #data ",\"biases\":1088}"
#define DOWN "{\"name\":\"down\",\"dtype\":\"BF16\",\"rows\":64,\"cols\":32,\"data\":2304}"
#define EXPERTS(list) "{\"count\":3,\"stride\":8192,\"bytes\":6400,\"parts\":[" list "]}"
#define BLOCK(block) "{\"tensors\":{},\"moeflux\":" block "}"

static void own_block(void **state) {
    (void)state;
    mf__native n;
    mf_error err = {0};
    if (parse(BLOCK("{\"version\":1,\"experts\":" EXPERTS(DOWN "," PART("gate", 0) "," PART("up", 1152)) "}"), &n,
              &err))
        fail_msg("%s", err.text);
    assert_true(n.has_layout);
    assert_int_equal(n.n_experts, 3);
    assert_int_equal(n.layout.stride, 8192);
    assert_int_equal(n.layout.bytes, 6400);
    assert_int_equal(n.layout.part[MF_PART_GATE].type, MF_TYPE_AFFINE);
    assert_int_equal(n.layout.part[MF_PART_GATE].scale_type, MF_TYPE_F16);
    assert_int_equal(n.layout.part[MF_PART_UP].data_off, 1152);
    assert_int_equal(n.layout.part[MF_PART_UP].biases_off, 1088);
    assert_int_equal(n.layout.part[MF_PART_DOWN].type, MF_TYPE_BF16);
    assert_int_equal(n.layout.part[MF_PART_DOWN].n_rows, 64);
    assert_int_equal(n.layout.part[MF_PART_DOWN].data_off, 2304);
    mf__native_close(&n);
    assert_int_equal(parse(BLOCK("{\"version\":1}"), &n, &err), MF_OK);
    assert_false(n.has_layout);
    mf__native_close(&n);
    assert_int_equal(parse(BLOCK("{\"version\":1,\"experts\":null,\"later\":[]}"), &n, &err), MF_OK);
    assert_false(n.has_layout);
    mf__native_close(&n);
}

static void rejects_own_block(void **state) {
    (void)state;
    static const struct {
        const char *block;
        mf_status status;
        const char *says, *and;
    } bad[] = {
        {"7", MF_E_FORMAT, "m.json", "an integer"},
        {"{}", MF_E_FORMAT, "version", "m.json"},
        {"{\"version\":0}", MF_E_FORMAT, "version is 0", "m.json"},
        {"{\"version\":\"1\"}", MF_E_FORMAT, "version", "string"},
        {"{\"version\":2}", MF_E_UNSUPPORTED, "version 2", "up to 1"},
        {"{\"version\":1,\"experts\":[]}", MF_E_FORMAT, "experts", "an array"},
        {"{\"version\":1,\"experts\":{}}", MF_E_FORMAT, "experts", "count"},
        {"{\"version\":1,\"experts\":{\"count\":0,\"stride\":1,\"bytes\":1}}", MF_E_FORMAT, "count is 0", ""},
        {"{\"version\":1,\"experts\":{\"count\":65537,\"stride\":1,\"bytes\":1}}", MF_E_FORMAT, "count is 65537", ""},
        {"{\"version\":1,\"experts\":{\"count\":1,\"stride\":1,\"bytes\":1}}", MF_E_FORMAT, "parts is nothing", ""},
        {"{\"version\":1,\"experts\":" EXPERTS(DOWN) "}", MF_E_FORMAT, "parts", "expected an array of 3"},
        {"{\"version\":1,\"experts\":" EXPERTS(DOWN "," DOWN "," PART("up", 0)) "}", MF_E_FORMAT, "\"down\"", "twice"},
        {"{\"version\":1,\"experts\":" EXPERTS(DOWN "," PART("side", 0) "," PART("up", 0)) "}", MF_E_FORMAT, "\"side\"",
         "not known"},
        {"{\"version\":1,\"experts\":" EXPERTS(DOWN ",1," PART("up", 0)) "}", MF_E_FORMAT, "part 1", "an integer"},
        {"{\"version\":1,\"experts\":" EXPERTS(DOWN "," PART("gate", 6400) "," PART("up", 0)) "}", MF_E_FORMAT,
         "expert part gate", "do not fit"},
        {"{\"version\":1,\"experts\":{\"count\":3,\"stride\":6399,\"bytes\":6400,\"parts\":[" DOWN
         "," PART("gate", 0) "," PART("up", 0) "]}}",
         MF_E_FORMAT, "stride", "6399"},
        {"{\"version\":1,\"experts\":{\"count\":3,\"stride\":6399,\"bytes\":6399,\"parts\":[" DOWN
         "," PART("gate", 0) "," PART("up", 0) "]}}",
         MF_E_FORMAT, "expert part down", "6399"},
        {"{\"version\":1,\"experts\":" EXPERTS("{\"name\":\"down\",\"dtype\":\"I8\",\"rows\":1,\"cols\":1,\"data\":0}"
                                               "," PART("gate", 0) "," PART("up", 0)) "}",
         MF_E_FORMAT, "expert part down", "I8"},
        {"{\"version\":1,\"experts\":" EXPERTS("{\"name\":\"down\",\"dtype\":\"Q\",\"rows\":1,\"cols\":1,\"data\":0}"
                                               "," PART("gate", 0) "," PART("up", 0)) "}",
         MF_E_UNSUPPORTED, "\"Q\"", "part 0"},
        {"{\"version\":1,\"experts\":" EXPERTS(
             "{\"name\":\"down\",\"dtype\":\"AFFINE\",\"rows\":1,\"cols\":64,"
             "\"bits\":7,\"group\":64,\"scale_dtype\":\"F16\",\"data\":0,\"scales\":0,"
             "\"biases\":0}," PART("gate", 0) "," PART("up", 0)) "}",
         MF_E_FORMAT, "7 bits", "down"},
        {"{\"version\":1,\"experts\":" EXPERTS(
             "{\"name\":\"down\",\"dtype\":\"AFFINE\",\"rows\":1,\"cols\":64,"
             "\"bits\":4,\"group\":64,\"scale_dtype\":\"AFFINE\",\"data\":0,\"scales\":"
             "0,\"biases\":0}," PART("gate", 0) "," PART("up", 0)) "}",
         MF_E_UNSUPPORTED, "scale_dtype", "AFFINE"},
    };
    for (size_t i = 0; i < MF__COUNT(bad); i++) {
        char json[2000];
        snprintf(json, sizeof json, BLOCK("%s"), bad[i].block);
        mf__native n;
        mf_error err = {0};
        mf_status status = parse(json, &n, &err);
        if (status == MF_OK) fail_msg("accepted: %s", json);
        assert_error(status, &err, bad[i].status, bad[i].says, bad[i].and, "m.json", NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(foreign_manifest), cmocka_unit_test(layer_numbers),     cmocka_unit_test(rejects_tensors),
        cmocka_unit_test(own_block),        cmocka_unit_test(rejects_own_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
