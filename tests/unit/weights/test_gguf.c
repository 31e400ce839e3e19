/* GGUF files made by hand: read back, split, cut off at every byte, and wrong in every field. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/strbuf.h"
#include "util.h"
#include "weights/gguf.h"

/* ---- a writer of its own: bytes appended one field after the other ---- */

static void put(mf__strbuf *b, const void *p, size_t n) {
    assert_int_equal(mf__strbuf_append(b, p, n, NULL), MF_OK);
}

static void put_u32(mf__strbuf *b, uint32_t v) {
    put(b, &v, sizeof v);
}

static void put_u64(mf__strbuf *b, uint64_t v) {
    put(b, &v, sizeof v);
}

static void put_string(mf__strbuf *b, const char *text) {
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static void put_key(mf__strbuf *b, const char *key, uint32_t type) {
    put_string(b, key);
    put_u32(b, type);
}

static void put_tensor(mf__strbuf *b, const char *name, uint64_t cols, uint64_t rows, uint32_t type, uint64_t offset) {
    put_string(b, name);
    put_u32(b, rows ? 2 : 1);
    put_u64(b, cols);
    if (rows) put_u64(b, rows);
    put_u32(b, type);
    put_u64(b, offset);
}

static void put_header(mf__strbuf *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys) {
    put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, n_tensors);
    put_u64(b, n_keys);
}

static void pad(mf__strbuf *b, size_t align) {
    while (b->size % align) put(b, "", 1);
}

/* Keys of most types, an F32 vector of 4 and a Q8_0 matrix of 2 x 32. */
static void whole_file(mf__strbuf *b) {
    float vector[4] = {1, 2, 3, 4.5f}, eps = 1e-6f;
    uint16_t one = 0x3c00;
    put_header(b, 3, 2, 5);
    put_key(b, "general.architecture", 8);
    put_string(b, "qwen3moe");
    put_key(b, "general.alignment", 4);
    put_u32(b, 64);
    put_key(b, "x.eps", 6);
    put(b, &eps, 4);
    put_key(b, "x.flag", 7);
    put(b, "\1", 1);
    put_key(b, "tokens", 9);
    put_u32(b, 8);
    put_u64(b, 2);
    put_string(b, "a");
    put_string(b, "\xc4\xa0"
                  "b");
    put_tensor(b, "norm", 4, 0, 0, 0);
    put_tensor(b, "matrix", 32, 2, 8, 64);
    pad(b, 64);
    put(b, vector, sizeof vector);
    pad(b, 64);
    for (int row = 0; row < 2; row++) {
        put(b, &one, 2);
        for (int i = 0; i < 32; i++) put(b, &(char){(char)(i - 16 * row)}, 1);
    }
}

static mf_status parse(const void *bytes, size_t size, mf__gguf *g, mf_error *err) {
    return mf__gguf_parse("x.gguf", bytes, size, g, err);
}

static void read_back(void **state) {
    mf__strbuf b = {0};
    mf__gguf g;
    mf_error err = {0};
    mf__tensor t;
    float row[32];
    (void)state;
    whole_file(&b);
    if (parse(b.data, b.size, &g, &err)) fail_msg("%s", err.text);
    assert_string_equal(json_string_value(json_object_get(g.meta, "general.architecture")), "qwen3moe");
    assert_true(json_real_value(json_object_get(g.meta, "x.eps")) == (double)1e-6f);
    assert_true(json_is_true(json_object_get(g.meta, "x.flag")));
    assert_string_equal(json_string_value(json_array_get(json_object_get(g.meta, "tokens"), 1)), "\xc4\xa0"
                                                                                                 "b");
    assert_int_equal(mf__catalog_tensor(g.catalog, "matrix", 32, &t, &err), MF_OK);
    assert_true(t.type == MF_TYPE_Q8_0 && t.n_rows == 2 && t.n_cols == 32);
    mf__tensor_row_f32(&t, 1, row);
    for (int i = 0; i < 32; i++) assert_true(row[i] == (float)(i - 16));
    assert_int_equal(mf__catalog_tensor(g.catalog, "norm", 0, &t, &err), MF_OK);
    mf__tensor_row_f32(&t, 0, row);
    assert_true(row[3] == 4.5f);
    mf__gguf_close(&g);
    mf__strbuf_free(&b);
}

static void cut_off(void **state) {
    mf__strbuf b = {0};
    (void)state;
    whole_file(&b);
    for (size_t n = 0; n < b.size; n++) {
        uint8_t *exact = malloc(n ? n : 1);
        mf__gguf g;
        mf_error err = {0};
        assert_non_null(exact);
        memcpy(exact, b.data, n);
        mf_status status = parse(exact, n, &g, &err);
        assert_true(status == MF_E_FORMAT && err.text[0] && !g.catalog && !g.meta);
        free(exact);
    }
    mf__strbuf_free(&b);
}

/* One tensor of one row, with a chosen description. */
static mf_status one_tensor(uint64_t cols, uint64_t rows, uint32_t type, uint64_t offset, mf_error *err) {
    mf__strbuf b = {0};
    mf__gguf g;
    put_header(&b, 3, 1, 0);
    put_tensor(&b, "blk.7.ffn_up.weight", cols, rows, type, offset);
    pad(&b, 32);
    for (int i = 0; i < 64; i++) put_u32(&b, 0);
    mf_status status = parse(b.data, b.size, &g, err);
    mf__gguf_close(&g);
    mf__strbuf_free(&b);
    return status;
}

static void refused(void **state) {
    mf_error err;
    mf__gguf g;
    mf__strbuf b = {0};
    (void)state;
    assert_int_equal(one_tensor(64, 1, 0, 0, &err), MF_OK);
    assert_error(one_tensor(64, 1, 16, 0, &err), &err, MF_E_UNSUPPORTED, "blk.7.ffn_up.weight", "IQ2_XXS", NULL);
    assert_error(one_tensor(64, 1, 77, 0, &err), &err, MF_E_UNSUPPORTED, "(77)", NULL);
    assert_error(one_tensor(33, 1, 8, 0, &err), &err, MF_E_FORMAT, "blocks of 32", NULL);
    assert_error(one_tensor(64, 1, 0, 32, &err), &err, MF_E_FORMAT, "256 bytes at 32", NULL);
    assert_error(one_tensor(64, 1, 0, UINT64_MAX, &err), &err, MF_E_FORMAT, "offset", NULL);
    assert_error(one_tensor(UINT64_MAX, 1, 0, 0, &err), &err, MF_E_FORMAT, "dimension 0", NULL);
    assert_error(one_tensor(1ull << 40, 1ull << 40, 0, 0, &err), &err, MF_E_FORMAT, "dimension 1", NULL);
    put_header(&b, 1, 0, 0);
    assert_error(parse(b.data, b.size, &g, &err), &err, MF_E_UNSUPPORTED, "version 1", NULL);
    mf__strbuf_clear(&b);
    put_header(&b, 3, UINT64_MAX, 0);
    assert_error(parse(b.data, b.size, &g, &err), &err, MF_E_FORMAT, "table of tensors", NULL);
    mf__strbuf_clear(&b);
    put_header(&b, 3, 0, 1); /* an array of more than the file can hold */
    put_key(&b, "k", 9);
    put_u32(&b, 4);
    put_u64(&b, UINT64_MAX / 8);
    assert_error(parse(b.data, b.size, &g, &err), &err, MF_E_FORMAT, "an array", NULL);
    mf__strbuf_clear(&b);
    put_header(&b, 3, 0, 2); /* a key twice */
    for (int i = 0; i < 2; i++) {
        put_key(&b, "same", 0);
        put(&b, "x", 1);
    }
    assert_error(parse(b.data, b.size, &g, &err), &err, MF_E_FORMAT, "same", NULL);
    mf__strbuf_free(&b);
}

static void write_split(const char *dir, int no, int count, int number, const char *tensor) {
    mf__strbuf b = {0};
    char name[64];
    put_header(&b, 3, 1, 2);
    put_key(&b, "split.count", 4);
    put_u32(&b, (uint32_t)count);
    put_key(&b, "split.no", 4);
    put_u32(&b, (uint32_t)number);
    put_tensor(&b, tensor, 4, 0, 0, 0);
    pad(&b, 32);
    put_u64(&b, 0);
    put_u64(&b, 0);
    snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", no, count);
    write_file(dir, name, b.data, b.size);
    mf__strbuf_free(&b);
}

static void splits(void **state) {
    char *top = scratch_make(), *first = join(top, "m-00001-of-00003.gguf"),
         *second = join(top, "m-00002-of-00003.gguf");
    mf__gguf g;
    mf_error err = {0};
    (void)state;
    for (int i = 0; i < 2; i++) write_split(top, i + 1, 3, i, i ? "b" : "a");
    assert_error(mf__gguf_open(first, &g, &err), &err, MF_E_NOT_FOUND, "m-00003-of-00003.gguf", NULL);
    write_split(top, 3, 3, 2, "b");
    assert_error(mf__gguf_open(first, &g, &err), &err, MF_E_FORMAT, "tensor b is there twice", NULL);
    write_split(top, 3, 3, 1, "c");
    assert_error(mf__gguf_open(first, &g, &err), &err, MF_E_MISMATCH, "not part 3", NULL);
    write_split(top, 3, 3, 2, "c");
    if (mf__gguf_open(first, &g, &err)) fail_msg("%s", err.text);
    assert_int_equal(mf__catalog_count(g.catalog), 3);
    mf__gguf_close(&g);
    assert_error(mf__gguf_open(second, &g, &err), &err, MF_E_INVALID, "part 2", "-00001-of-00003.gguf", NULL);
    assert_true(mf__gguf_is(first));
    write_text(top, "x", "GGU");
    char *other = join(top, "x");
    assert_false(mf__gguf_is(other) || mf__gguf_is(top));
    free(other);
    free(second);
    free(first);
    scratch_free(top);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(read_back), cmocka_unit_test(cut_off),
                                       cmocka_unit_test(refused), cmocka_unit_test(splits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
