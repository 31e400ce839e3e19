/* Strict parsing, and members with ranges. */
#include "scratch.h"

#include "base/json.h"
#include "base/strbuf.h"

static mf_error err;

static mf_status parse(const char *text, size_t size) {
    json_t *root = (json_t *)&err; /* must be overwritten */
    mf_status status = mf__json_parse("x.json", text, size, &root, &err);
    if (status == MF_OK)
        assert_non_null(root);
    else
        assert_null(root);
    json_decref(root);
    return status;
}

static void hostile_texts_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        " ",
        "{",
        "[1,2",
        "{\"a\":1}x",
        "{\"a\":1} {\"b\":2}",
        "{\"a\":1,\"a\":2}",         /* duplicate */
        "{\"a\":{\"b\":1,\"b\":1}}", /* duplicate further in */
        "{\"\\u0061\":1,\"a\":2}",   /* duplicate by escape */
        "{a:1}",
        "{'a':1}",
        "[1,]",
        "[01]",
        "[NaN]",
        "[Infinity]",
        "[1e999]",
        "[123456789012345678901234567890]",
        "[\"\xff\xfe\"]",     /* not UTF-8 */
        "[\"\xed\xa0\x80\"]", /* a surrogate */
        "[\"\xc0\xaf\"]",     /* overlong */
        "[\"\\ud800\"]",
        "[\"\\u0000\"]",
        "[\"a\nb\"]",     /* raw control character */
        "\xef\xbb\xbf{}", /* byte order mark */
        "3",
        "\"text\"",
        "[tru]",
        "/* c */ {}",
    };
    for (size_t i = 0; i < MF__COUNT(bad); i++)
        if (parse(bad[i], strlen(bad[i])) != MF_E_FORMAT) fail_msg("accepted: %s", bad[i]);
    assert_int_equal(parse("{\"a\":1}\0", 8), MF_E_FORMAT); /* a NUL behind it */
    assert_int_equal(parse("{\"a\":1}", 7), MF_OK);
    assert_int_equal(parse("{\"a\":1} garbage", 7), MF_OK); /* only size bytes are looked at */
}

static void errors_name_file_line_and_column(void **state) {
    (void)state;
    const char *text = "{\n \"a\": 1,\n \"b\": }\n";
    assert_int_equal(parse(text, strlen(text)), MF_E_FORMAT);
    assert_contains(err.text, "x.json: line 3 column 7: ");
    assert_int_equal(parse("{\"dup\":1,\"dup\":2}", 17), MF_E_FORMAT);
    assert_contains(err.text, "duplicate");
}

static void depth_is_bounded(void **state) {
    (void)state;
    static char text[4000000];
    for (int depth = 64; depth <= 65; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        assert_int_equal(parse(text, (size_t)depth * 2), depth == 64 ? MF_OK : MF_E_LIMIT);
    }
    memset(text, '[', sizeof text);
    assert_int_equal(parse(text, sizeof text), MF_E_LIMIT);
    for (size_t i = 0; i + 5 <= sizeof text; i += 5)
        memcpy(text + i, "{\"a\":", 5);
    assert_int_equal(parse(text, sizeof text), MF_E_LIMIT);
    /* Brackets in strings, behind escaped quotes, are not depth. */
    mf__strbuf b = {0};
    mf__strbuf_append(&b, "[\"\\\\\",\"\\\"", 9, NULL);
    for (int i = 0; i < 200; i++)
        mf__strbuf_append(&b, "[{", 2, NULL);
    mf__strbuf_append(&b, "\"]", 2, NULL);
    assert_int_equal(parse(b.data, b.size), MF_OK);
    mf__strbuf_free(&b);
    /* And brackets behind them are. */
    mf__strbuf_append(&b, "[\"\\\\\",", 6, NULL);
    for (int i = 0; i < 200; i++)
        mf__strbuf_append(&b, "[", 1, NULL);
    assert_int_equal(parse(b.data, b.size), MF_E_LIMIT);
    mf__strbuf_free(&b);
}

static json_t *object(const char *text) {
    json_t *root;
    if (mf__json_parse("c.json", text, strlen(text), &root, &err) != MF_OK) fail_msg("%s", err.text);
    return root;
}

static void integers(void **state) {
    (void)state;
    json_t *o = object("{\"n\":8,\"big\":9223372036854775807,\"r\":8.0,\"s\":\"8\",\"t\":true,\"z\":null}");
    int64_t v = -5;
    assert_int_equal(mf__json_get_int(o, "c.json", "n", 1, 8, &v, &err), MF_OK);
    assert_int_equal(v, 8);
    assert_int_equal(mf__json_get_int(o, "c.json", "big", 0, INT64_MAX, &v, &err), MF_OK);
    assert_true(v == INT64_MAX);
    assert_int_equal(mf__json_get_int(o, "c.json", "n", 1, 7, &v, &err), MF_E_FORMAT);
    assert_string_equal(err.text, "c.json: n is 8, expected 1 to 7");
    assert_int_equal(mf__json_get_int(o, "c.json", "n", 9, 10, &v, &err), MF_E_FORMAT);
    assert_int_equal(mf__json_get_int(o, "c.json", "r", 1, 9, &v, &err), MF_E_FORMAT);
    assert_string_equal(err.text, "c.json: r is a real number, expected an integer");
    assert_int_equal(mf__json_get_int(o, "c.json", "s", 1, 9, &v, &err), MF_E_FORMAT);
    assert_string_equal(err.text, "c.json: s is the string \"8\", expected an integer");
    assert_int_equal(mf__json_get_int(o, "c.json", "gone", 1, 9, &v, &err), MF_E_FORMAT);
    assert_string_equal(err.text, "c.json: gone is missing, expected an integer");
    assert_int_equal(mf__json_get_int(o, "c.json", "z", 1, 9, &v, &err), MF_E_FORMAT);
    assert_true(v == INT64_MAX); /* untouched by the failures */
    assert_int_equal(mf__json_opt_int(o, "c.json", "z", 1, 9, 4, &v, &err), MF_OK);
    assert_int_equal(v, 4);
    assert_int_equal(mf__json_opt_int(o, "c.json", "gone", 1, 9, 5, &v, &err), MF_OK);
    assert_int_equal(v, 5);
    assert_int_equal(mf__json_opt_int(o, "c.json", "n", 1, 9, 5, &v, &err), MF_OK);
    assert_int_equal(v, 8);
    assert_int_equal(mf__json_opt_int(o, "c.json", "n", 1, 7, 5, &v, &err), MF_E_FORMAT);
    assert_int_equal(mf__json_opt_int(o, "c.json", "t", 0, 7, 5, &v, &err), MF_E_FORMAT);
    json_decref(o);
}

static void numbers_booleans_and_strings(void **state) {
    (void)state;
    json_t *o = object("{\"r\":1e-6,\"i\":10000000,\"b\":true,\"f\":false,\"s\":\"x\",\"z\":null,\"n\":-1}");
    double d = 0;
    assert_int_equal(mf__json_opt_double(o, "c", "r", 0, 1, 9, &d, &err), MF_OK);
    assert_true(d == 1e-6);
    assert_int_equal(mf__json_opt_double(o, "c", "i", 0, 1e8, 9, &d, &err), MF_OK);
    assert_true(d == 1e7);
    assert_int_equal(mf__json_opt_double(o, "c", "gone", 0, 1, 9, &d, &err), MF_OK);
    assert_true(d == 9);
    assert_int_equal(mf__json_opt_double(o, "c", "n", 0, 1, 9, &d, &err), MF_E_FORMAT);
    assert_string_equal(err.text, "c: n is -1, expected 0 to 1");
    assert_int_equal(mf__json_opt_double(o, "c", "s", 0, 1, 9, &d, &err), MF_E_FORMAT);
    bool b = false;
    assert_int_equal(mf__json_opt_bool(o, "c", "b", false, &b, &err), MF_OK);
    assert_true(b);
    assert_int_equal(mf__json_opt_bool(o, "c", "f", true, &b, &err), MF_OK);
    assert_false(b);
    assert_int_equal(mf__json_opt_bool(o, "c", "z", true, &b, &err), MF_OK);
    assert_true(b);
    assert_int_equal(mf__json_opt_bool(o, "c", "i", true, &b, &err), MF_E_FORMAT);
    assert_string_equal(err.text, "c: i is an integer, expected true or false");
    const char *s = NULL;
    assert_int_equal(mf__json_get_string(o, "c", "s", &s, &err), MF_OK);
    assert_string_equal(s, "x");
    assert_int_equal(mf__json_get_string(o, "c", "b", &s, &err), MF_E_FORMAT);
    assert_string_equal(err.text, "c: b is true, expected a string");
    assert_int_equal(mf__json_get_string(o, "c", "gone", &s, &err), MF_E_FORMAT);
    assert_int_equal(mf__json_get_string(NULL, "c: part", "s", &s, &err), MF_E_FORMAT);
    assert_string_equal(err.text, "c: part: found nothing, expected an object with s");
    json_decref(o);
}

static void files_are_read_with_a_limit(void **state) {
    json_t *root;
    const char *path = scratch_text(state, "a.json", "{\"a\":[1,2]}");
    assert_int_equal(mf__json_read(path, 11, &root, &err), MF_OK);
    assert_int_equal(json_array_size(json_object_get(root, "a")), 2);
    json_decref(root);
    assert_int_equal(mf__json_read(path, 10, &root, &err), MF_E_LIMIT);
    assert_null(root);
    assert_contains(err.text, path);
    assert_int_equal(mf__json_read(scratch_path(state, "none.json"), 10, &root, &err), MF_E_NOT_FOUND);
    path = scratch_text(state, "b.json", "{\"a\":[1,2}");
    assert_int_equal(mf__json_read(path, 100, &root, &err), MF_E_FORMAT);
    assert_contains(err.text, path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_texts_are_refused),
        cmocka_unit_test(errors_name_file_line_and_column),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(integers),
        cmocka_unit_test(numbers_booleans_and_strings),
        SCRATCH_TEST(files_are_read_with_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
