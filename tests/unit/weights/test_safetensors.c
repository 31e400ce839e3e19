/* One safetensors file: what is read, and every way in which a header can lie. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "util.h"

static mf_status parse(const char *header, size_t n_data, mf__catalog **cat, mf_error *err) {
    size_t size;
    uint8_t *bytes = safetensors_bytes(header, n_data, &size);
    mf_status status = mf__safetensors_parse("x.st", bytes, size, cat, err);
    if (status == MF_OK) check_catalog(*cat, bytes, size);
    mf__catalog_close(*cat);
    free(bytes);
    return status;
}

#define T(dtype, shape, begin, end)                                                                                    \
    "{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #begin "," #end "]}"

static void accepts(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
    } good[] = {
        {"{}", 0},
        {"{}   ", 0},
        {"{\"__metadata__\":{\"format\":\"pt\"},\"a\":" T("F32", "2,3", 0, 24) "}", 24},
        {"{\"b\":" T("BF16", "4", 24, 32) ",\"a\":" T("F32", "2,3", 0, 24) "}", 32},
        {"{\"scalar\":" T("F64", "", 0, 8) "}", 8},
        {"{\"empty\":" T("F32", "0,5", 4, 4) ",\"a\":" T("U8", "4", 0, 4) ",\"b\":" T("U8", "4", 4, 8) "}", 8},
        {"{\"a\":" T("I8", "1,1,1,1,1,3", 0, 3) "}", 3},
        {"{\"trailing\":" T("BOOL", "2", 0, 2) "}", 100},
        {"{\"extra\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"note\":[1,{}]}}", 1},
    };
    for (size_t i = 0; i < MF__COUNT(good); i++) {
        mf__catalog *cat;
        mf_error err = {0};
        if (parse(good[i].header, good[i].n_data, &cat, &err) != MF_OK) fail_msg("%s: %s", good[i].header, err.text);
    }
}

static void reads_values(void **state) {
    (void)state;
    size_t size;
    uint8_t *bytes = safetensors_bytes("{\"b\":" T("U16", "2,2", 3, 11) ",\"a\":" T("U8", "3", 0, 3) "}", 11, &size);
    mf__catalog *cat;
    assert_int_equal(mf__safetensors_parse("x.st", bytes, size, &cat, NULL), MF_OK);
    assert_int_equal(mf__catalog_count(cat), 2);
    assert_int_equal(mf__catalog_n_files(cat), 1);
    assert_string_equal(mf__catalog_file(cat, 0), "x.st");
    assert_null(mf__catalog_file(cat, 1));
    assert_null(mf__catalog_find(cat, "c"));
    assert_null(mf__catalog_find(cat, ""));
    assert_null(mf__catalog_at(cat, 2));
    const mf__entry *b = mf__catalog_find(cat, "b");
    assert_ptr_equal(b, mf__catalog_at(cat, 1));
    assert_int_equal(b->type, MF_TYPE_U16);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->dims[1], 2);
    assert_int_equal(b->size, 8);
    assert_int_equal(b->offset, size - 8); /* odd: nothing promises alignment */
    mf__tensor t;
    float row[2];
    assert_int_equal(mf__catalog_tensor(cat, "b", 2, &t, NULL), MF_OK);
    mf__tensor_row_f32(&t, 1, row);
    assert_true(row[0] == 0x0807 && row[1] == 0x0a09);
    mf__catalog_close(cat);
    free(bytes);
}

static void rejects_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t n_data;
        mf_status status;
        const char *says, *and;
    } bad[] = {
        {"", 0, MF_E_FORMAT, "does not begin with {", "x.st"},
        {"[]", 0, MF_E_FORMAT, "does not begin with {", "x.st"},
        {" {}", 0, MF_E_FORMAT, "does not begin with {", "x.st"},
        {"{", 1, MF_E_FORMAT, "x.st", ""},
        {"{}x", 0, MF_E_FORMAT, "x.st", "end of file"},
        {"{\"a\":" T("U8", "1", 0, 1) ",\"a\":" T("U8", "1", 1, 2) "}", 2, MF_E_FORMAT, "duplicate", "\"a\""},
        {"{\"\xff\":" T("U8", "1", 0, 1) "}", 1, MF_E_FORMAT, "0xff", "x.st"},
        {"{\"a\\u0000\":" T("U8", "1", 0, 1) "}", 1, MF_E_FORMAT, "x.st", ""},
        {"{\"\":" T("U8", "1", 0, 1) "}", 1, MF_E_FORMAT, "empty name", "x.st"},
        {"{\"a\\nb\":" T("U8", "1", 0, 1) "}", 1, MF_E_FORMAT, "control character", "0x0a"},
        {"{\"__metadata__\":7}", 0, MF_E_FORMAT, "__metadata__", "an integer"},
        {"{\"__metadata__\":{\"k\":7}}", 0, MF_E_FORMAT, "__metadata__", "expected a string"},
        {"{\"a\":1}", 0, MF_E_FORMAT, "tensor a", "an integer"},
        {"{\"a\":{}}", 0, MF_E_FORMAT, "tensor a", "dtype is nothing"},
        {"{\"a\":" T("F4", "1", 0, 1) "}", 1, MF_E_UNSUPPORTED, "tensor a", "\"F4\""},
        {"{\"a\":" T("AFFINE", "1", 0, 1) "}", 1, MF_E_UNSUPPORTED, "tensor a", "\"AFFINE\""},
        {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, MF_E_FORMAT, "tensor a", "shape is nothing"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":7,\"data_offsets\":[0,1]}}", 1, MF_E_FORMAT, "tensor a", "shape is"},
        {"{\"a\":" T("U8", "1.0", 0, 1) "}", 1, MF_E_FORMAT, "tensor a", "dimension 0 is a real"},
        {"{\"a\":" T("U8", "-1", 0, 1) "}", 1, MF_E_FORMAT, "tensor a", "is -1"},
        {"{\"a\":" T("U8", "1,1,1,1,1,1,1", 0, 1) "}", 1, MF_E_LIMIT, "7 dimensions", "6"},
        {"{\"a\":" T("U8", "4294967296,4294967296", 0, 0) "}", 0, MF_E_FORMAT, "tensor a", "2^50"},
        {"{\"a\":" T("U8", "0,4294967296,4294967296", 0, 0) "}", 0, MF_E_FORMAT, "tensor a", "2^50"},
        {"{\"a\":" T("U8", "9223372036854775807", 0, 9223372036854775807) "}", 0, MF_E_FORMAT, "tensor a", "2^50"},
        {"{\"a\":" T("U8", "9223372036854775808", 0, 1) "}", 1, MF_E_FORMAT, "too big", "x.st"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, MF_E_FORMAT, "tensor a", "data_offsets is nothing"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, MF_E_FORMAT, "tensor a", "two integers"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, MF_E_FORMAT, "tensor a", "two"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1.0]}}", 1, MF_E_FORMAT, "tensor a", "two"},
        {"{\"a\":" T("U8", "1", 1, 0) "}", 1, MF_E_FORMAT, "tensor a", "out of order"},
        {"{\"a\":" T("U8", "1", -1, 0) "}", 1, MF_E_FORMAT, "tensor a", "out of order"},
        {"{\"a\":" T("F32", "3", 0, 8) "}", 8, MF_E_FORMAT, "8 bytes are stored", "F32 [3] needs 12"},
        {"{\"a\":" T("F32", "2", 0, 8) "}", 5, MF_E_FORMAT, "x.st is 3 bytes short", "tensor a ends at byte 8"},
        {"{\"a\":" T("U8", "4", 0, 4) ",\"b\":" T("U8", "4", 3, 7) "}", 7, MF_E_FORMAT, "overlap", "a and b"},
        {"{\"a\":" T("U8", "4", 0, 4) ",\"b\":" T("U8", "4", 0, 4) "}", 8, MF_E_FORMAT, "overlap", "ends at 4"},
        {"{\"a\":" T("U8", "4", 0, 4) ",\"b\":" T("U8", "2", 5, 7) "}", 7, MF_E_FORMAT, "belong to no tensor", "b"},
        {"{\"a\":" T("U8", "4", 1, 5) "}", 5, MF_E_FORMAT, "belong to no tensor", "begins at 1"},
        {"{\"a\":" T("U8", "4", 0, 4) ",\"e\":" T("U8", "0", 2, 2) "}", 4, MF_E_FORMAT, "overlap", "e"},
    };
    for (size_t i = 0; i < MF__COUNT(bad); i++) {
        mf__catalog *cat = (mf__catalog *)&cat;
        mf_error err = {0};
        mf_status status = parse(bad[i].header, bad[i].n_data, &cat, &err);
        if (status == MF_OK) fail_msg("accepted: %s", bad[i].header);
        assert_null(cat);
        assert_error(status, &err, bad[i].status, bad[i].says, bad[i].and, NULL);
    }
}

static void rejects_lengths(void **state) {
    (void)state;
    static const uint8_t zeros[16] = {0};
    mf__catalog *cat;
    mf_error err;
    for (size_t n = 0; n < 8; n++)
        assert_error(mf__safetensors_parse("x.st", zeros, n, &cat, &err), &err, MF_E_FORMAT, "x.st has", "bytes", NULL);
    static const uint64_t lengths[] = {9, 100, 100000000, 100000001, UINT64_MAX, UINT64_MAX - 7, (uint64_t)1 << 63};
    for (size_t i = 0; i < MF__COUNT(lengths); i++) {
        uint8_t file[16] = {0};
        memcpy(file, &lengths[i], 8);
        memcpy(file + 8, "{}", 2);
        const char *says = lengths[i] > 100000000 ? "more than the 100000000 allowed" : "bytes short";
        assert_error(mf__safetensors_parse("x.st", file, sizeof file, &cat, &err), &err, MF_E_FORMAT, says, NULL);
    }
    char name[400], header[600];
    memset(name, 'n', sizeof name);
    name[256] = '\0';
    snprintf(header, sizeof header, "{\"%s\":" T("U8", "1", 0, 1) "}", name);
    assert_error(parse(header, 1, &cat, &err), &err, MF_E_LIMIT, "256 bytes", NULL);
    name[255] = '\0';
    snprintf(header, sizeof header, "{\"%s\":" T("U8", "1", 0, 1) "}", name);
    assert_int_equal(parse(header, 1, &cat, &err), MF_OK);
}

/* As many tensors as the largest checkpoints have: quadratic work anywhere would not end in the test's time. */
static void many_tensors(void **state) {
    (void)state;
    const int n = 90000;
    mf__strbuf header = {0};
    assert_int_equal(mf__strbuf_append(&header, "{", 1, NULL), MF_OK);
    for (int i = 0; i < n; i++) {
        int at = (int)((int64_t)i * 7919 % n); /* names and places in different orders */
        assert_int_equal(
            mf__strbuf_printf(&header, NULL,
                              "%s\"model.layers.%d.mlp.experts.%d.weight\":{\"dtype\":\"U8\",\"shape\":[1],"
                              "\"data_offsets\":[%d,%d]}",
                              i ? "," : "", i % 61, i, at, at + 1),
            MF_OK);
    }
    assert_int_equal(mf__strbuf_append(&header, "}", 1, NULL), MF_OK);
    size_t size;
    uint8_t *bytes = safetensors_bytes(header.data, (size_t)n, &size);
    mf__catalog *cat;
    assert_int_equal(mf__safetensors_parse("big.st", bytes, size, &cat, NULL), MF_OK);
    assert_int_equal(mf__catalog_count(cat), n);
    check_catalog(cat, bytes, size);
    mf__catalog_close(cat);
    free(bytes);
    mf__strbuf_free(&header);
}

static void write_round_trip(void **state) {
    (void)state;
    char *dir = scratch_make(), *path = join(dir, "out.safetensors");
    float a[6] = {1, 2, 3, 4, 5, 6};
    uint8_t b[5] = {9, 8, 7, 6, 5};
    mf__entry entries[] = {make_entry("z.a", MF_TYPE_F32, 2, 3, a),
                           make_entry("b", MF_TYPE_U8, 1, 5, b),
                           make_entry("empty", MF_TYPE_F16, 0, 4, NULL),
                           {.name = "scalar", .type = MF_TYPE_I16, .data = b, .size = 2}};
    mf_error err = {0};
    assert_int_equal(mf__safetensors_write(path, entries, MF__COUNT(entries), &err), MF_OK);
    mf__catalog *cat;
    assert_int_equal(mf__safetensors_open(path, &cat, &err), MF_OK);
    assert_int_equal(mf__catalog_count(cat), 4);
    for (size_t i = 0; i < MF__COUNT(entries); i++) {
        const mf__entry *e = mf__catalog_find(cat, entries[i].name);
        assert_non_null(e);
        assert_int_equal(e->type, entries[i].type);
        assert_int_equal(e->n_dims, entries[i].n_dims);
        assert_memory_equal(e->dims, entries[i].dims, sizeof e->dims);
        assert_int_equal(e->size, entries[i].size);
        if (e->size) assert_memory_equal(e->data, entries[i].data, (size_t)e->size);
    }
    assert_int_equal(mf__catalog_find(cat, "z.a")->offset % 64, 0);
    mf__catalog_close(cat);

    /* what cannot be written leaves the old file */
    mf__entry twice[] = {entries[0], entries[0]};
    assert_error(mf__safetensors_write(path, twice, 2, &err), &err, MF_E_INVALID, "twice", NULL);
    mf__entry wrong = entries[0];
    wrong.size--;
    assert_error(mf__safetensors_write(path, &wrong, 1, &err), &err, MF_E_INVALID, "needs 24", NULL);
    wrong = entries[0];
    wrong.type = MF_TYPE_AFFINE;
    assert_error(mf__safetensors_write(path, &wrong, 1, &err), &err, MF_E_INVALID, "AFFINE", NULL);
    wrong = entries[0];
    wrong.name = "\xff";
    assert_error(mf__safetensors_write(path, &wrong, 1, &err), &err, MF_E_INVALID, "UTF-8", NULL);
    assert_int_equal(mf__safetensors_open(path, &cat, &err), MF_OK);
    assert_int_equal(mf__catalog_count(cat), 4);
    mf__catalog_close(cat);
    free(path);
    scratch_free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts),         cmocka_unit_test(reads_values), cmocka_unit_test(rejects_headers),
        cmocka_unit_test(rejects_lengths), cmocka_unit_test(many_tensors), cmocka_unit_test(write_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
