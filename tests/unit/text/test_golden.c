/* Tokenizer goldens: every line of <name>.encode.jsonl and <name>.decode_stream.jsonl must be exact.
 *
 *   test_golden DIR    DIR holds {stories,qwen3,deepseek_v3}.json and their .jsonl files; missing names are skipped,
 *                      but one must be there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_int.h"

static const char *data_dir;

typedef void line_fn(const mf__tokenizer *tok, const char *where, const json_t *line);

static void assert_bytes(const char *where, const char *what, const char *got, size_t n_got, const char *want,
                         size_t n_want) {
    if (n_got == n_want && (n_got == 0 || memcmp(got, want, n_got) == 0)) return;
    fail_msg("%s: %s is \"%.*s\" (%zu bytes), expected \"%.*s\" (%zu bytes)", where, what, (int)n_got, got ? got : "",
             n_got, (int)n_want, want, n_want);
}

static void decode(const mf__tokenizer *tok, const json_t *ids, mf__strbuf *out) {
    mf__detok d;
    mf_error err;
    mf__detok_init(&d, tok);
    for (size_t i = 0; i < json_array_size(ids); i++)
        assert_int_equal(mf__detok_push(&d, (int32_t)json_integer_value(json_array_get(ids, i)), out, &err), MF_OK);
    assert_int_equal(mf__detok_flush(&d, out, &err), MF_OK);
}

static void check_encode(const mf__tokenizer *tok, const char *where, const json_t *line) {
    const json_t *text = json_object_get(line, "text"), *want = json_object_get(line, "ids");
    const json_t *decoded = json_object_get(line, "decoded");
    mf_error err = {0};
    int32_t *ids;
    size_t n;
    if (mf__tokenizer_encode(tok, json_string_value(text), json_string_length(text),
                             json_is_true(json_object_get(line, "special")), &ids, &n, &err) != MF_OK)
        fail_msg("%s: %s", where, err.text);
    bool same = n == json_array_size(want);
    for (size_t i = 0; same && i < n; i++) same = ids[i] == json_integer_value(json_array_get(want, i));
    if (!same) {
        size_t i = 0;
        while (i < n && i < json_array_size(want) && ids[i] == json_integer_value(json_array_get(want, i))) i++;
        fail_msg("%s: \"%s\": id %zu is %d, expected %lld (%zu ids, expected %zu)", where, json_string_value(text), i,
                 i < n ? (int)ids[i] : -1, (long long)json_integer_value(json_array_get(want, i)), n,
                 json_array_size(want));
    }
    free(ids);
    mf__strbuf out = {0};
    decode(tok, want, &out);
    assert_bytes(where, "decoded text", out.data, out.size, json_string_value(decoded), json_string_length(decoded));
    mf__strbuf_free(&out);
}

static void check_stream(const mf__tokenizer *tok, const char *where, const json_t *line) {
    const json_t *ids = json_object_get(line, "ids"), *pieces = json_object_get(line, "pieces");
    const json_t *flush = json_object_get(line, "flush");
    mf__detok d;
    mf_error err;
    mf__strbuf out = {0};
    mf__detok_init(&d, tok);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *piece = json_array_get(pieces, i);
        mf__strbuf_clear(&out);
        assert_int_equal(mf__detok_push(&d, (int32_t)json_integer_value(json_array_get(ids, i)), &out, &err), MF_OK);
        assert_bytes(where, "piece", out.data, out.size, json_string_value(piece), json_string_length(piece));
    }
    mf__strbuf_clear(&out);
    assert_int_equal(mf__detok_flush(&d, &out, &err), MF_OK);
    assert_bytes(where, "flush", out.data, out.size, json_string_value(flush), json_string_length(flush));
    mf__strbuf_free(&out);
}

static int each_line(const mf__tokenizer *tok, const char *name, const char *kind, line_fn *check) {
    char file[160], where[200];
    snprintf(file, sizeof file, "%s.%s.jsonl", name, kind);
    char *path = mf__path_join(data_dir, file), *bytes;
    size_t size;
    mf_error err;
    if (mf__file_read(path, 64 << 20, &bytes, &size, &err) != MF_OK) fail_msg("%s", err.text);
    int n = 0;
    for (char *at = bytes, *end; at < bytes + size; at = end + 1) {
        end = memchr(at, '\n', (size_t)(bytes + size - at));
        if (!end) end = bytes + size;
        json_error_t why;
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, &why);
        snprintf(where, sizeof where, "%s line %d", file, ++n);
        if (!line) fail_msg("%s: %s", where, why.text);
        check(tok, where, line);
        json_decref(line);
    }
    free(bytes);
    free(path);
    return n;
}

static bool check_tokenizer(const char *name) {
    char file[80];
    mf_error err;
    mf__tokenizer *tok;
    snprintf(file, sizeof file, "%s.json", name);
    char *path = mf__path_join(data_dir, file);
    bool there = mf__path_exists(path);
    if (there) {
        if (mf__tokenizer_open(path, &tok, &err) != MF_OK) fail_msg("%s", err.text);
        assert_int_equal(each_line(tok, name, "encode", check_encode), 1500);
        assert_int_equal(each_line(tok, name, "decode_stream", check_stream), 150);
        /* Compiled and read back it must say the same. */
        mf__strbuf compiled = {0};
        mf__tokenizer *again;
        assert_int_equal(mf__tokenizer_write(tok, &compiled, &err), MF_OK);
        if (mf__tokenizer_read("compiled", (const uint8_t *)compiled.data, compiled.size, &again, &err) != MF_OK)
            fail_msg("%s", err.text);
        each_line(again, name, "encode", check_encode);
        each_line(again, name, "decode_stream", check_stream);
        assert_int_equal(mf__tokenizer_n_vocab(tok), mf__tokenizer_n_vocab(again));
        mf__tokenizer_free(again);
        mf__strbuf_free(&compiled);
        mf__tokenizer_free(tok);
    }
    free(path);
    return there;
}

static void test_stories(void **state) {
    (void)state;
    if (!check_tokenizer("stories")) skip();
}

static void test_qwen3(void **state) {
    (void)state;
    if (!check_tokenizer("qwen3")) skip();
}

static void test_deepseek_v3(void **state) {
    (void)state;
    if (!check_tokenizer("deepseek_v3")) skip();
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: test_golden DIR\n"), 2;
    data_dir = argv[1];
    if (!mf__path_is_dir(data_dir)) return fprintf(stderr, "%s is not a directory\n", data_dir), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stories),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_deepseek_v3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
