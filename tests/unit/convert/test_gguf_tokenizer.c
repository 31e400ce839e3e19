/* A tokenizer that went through GGUF's metadata encodes as the tokenizer.json it came from. The metadata is made here
 * from the file: tokens by id, their kinds, merges as "a b", and the name of the way to split. */
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
#include "convert/gguf.h"
#include "text/tokenizer.h"

static const char *tokenizers;

static json_t *metadata_of(const json_t *tokenizer, const char *pre) {
    json_t *tokens = json_array(), *types = json_array(), *merges = json_array(), *value;
    const json_t *model = json_object_get(tokenizer, "model");
    const char *text;
    size_t i, n = 0;
    json_object_foreach(json_object_get(model, "vocab"), text, value) if ((size_t)json_integer_value(value) >= n) n =
        (size_t)json_integer_value(value) + 1;
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, value) {
        size_t id = (size_t)json_integer_value(json_object_get(value, "id"));
        if (id >= n) n = id + 1;
    }
    for (i = 0; i < n; i++) {
        json_array_append_new(tokens, json_string("[gap]"));
        json_array_append_new(types, json_integer(5));
    }
    json_object_foreach(json_object_get(model, "vocab"), text, value) {
        size_t id = (size_t)json_integer_value(value);
        json_array_set_new(tokens, id, json_string(text));
        json_array_set_new(types, id, json_integer(1));
    }
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, value) {
        size_t id = (size_t)json_integer_value(json_object_get(value, "id"));
        json_array_set(tokens, id, json_object_get(value, "content"));
        json_array_set_new(types, id, json_integer(json_is_true(json_object_get(value, "special")) ? 3 : 4));
    }
    json_array_foreach(json_object_get(model, "merges"), i, value) {
        char pair[1024];
        if (json_is_array(value))
            snprintf(pair, sizeof pair, "%s %s", json_string_value(json_array_get(value, 0)),
                     json_string_value(json_array_get(value, 1)));
        else
            snprintf(pair, sizeof pair, "%s", json_string_value(value));
        json_array_append_new(merges, json_string(pair));
    }
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:i}", "tokenizer.ggml.model", "gpt2", "tokenizer.ggml.pre", pre,
                     "tokenizer.ggml.tokens", tokens, "tokenizer.ggml.token_type", types, "tokenizer.ggml.merges",
                     merges, "tokenizer.ggml.eos_token_id", 1);
}

static mf__tokenizer *parse(const json_t *root) {
    char *text = json_dumps(root, JSON_COMPACT);
    mf__tokenizer *tok;
    mf_error err;
    assert_non_null(text);
    if (mf__tokenizer_parse("tokenizer.json", text, strlen(text), &tok, &err)) fail_msg("%s", err.text);
    free(text);
    return tok;
}

static void same_ids(const mf__tokenizer *a, const mf__tokenizer *b, const char *text) {
    int32_t *x, *y;
    size_t n, m;
    assert_int_equal(mf__tokenizer_encode(a, text, strlen(text), true, &x, &n, NULL), MF_OK);
    assert_int_equal(mf__tokenizer_encode(b, text, strlen(text), true, &y, &m, NULL), MF_OK);
    if (n != m || memcmp(x, y, n * sizeof *x)) fail_msg("\"%s\" is encoded differently", text);
    free(x);
    free(y);
}

static void through_gguf(const char *file, const char *pre, const char *special) {
    static const char *const texts[] = {"Hello world, it's 2024!",
                                        "  leading\n\n\tspaces  and   runs \r\n",
                                        "1234567 x86_64 3.14159",
                                        "na\xc3\xafve caf\xc3\xa9 e\xcc\x81t\xc3\xa9",
                                        "\xe4\xb8\xad\xe6\x96\x87\xe3\x81\xb2\xe3\x82\x89 \xf0\x9f\x98\x80!",
                                        "def f(x):\n    return {'a': [x]}\n",
                                        "I'LL we've DON'T"};
    char path[512];
    json_t *root, *made, *config;
    char why[240];
    mf_error err;
    snprintf(path, sizeof path, "%s/%s", tokenizers, file);
    if (mf__json_read(path, 1 << 26, &root, &err)) fail_msg("%s", err.text);
    mf__gguf g = {.meta = metadata_of(root, pre)};
    assert_int_equal(mf__gguf_tokenizer(&g, &made, &config, why, &err), MF_OK);
    assert_non_null(made);
    assert_true(json_is_string(json_object_get(config, "eos_token")));
    mf__tokenizer *a = parse(root), *b = parse(made);
    for (size_t i = 0; i < MF__COUNT(texts); i++) same_ids(a, b, texts[i]);
    same_ids(a, b, special);
    assert_true(mf__tokenizer_id(b, special) >= 0);
    mf__tokenizer_free(a);
    mf__tokenizer_free(b);
    json_decref(made);
    json_decref(config);
    json_decref(g.meta);
    json_decref(root);
}

static void known_kinds(void **state) {
    (void)state;
    through_gguf("qwen3.json", "qwen2", "<|im_start|>");
    through_gguf("deepseek_v3.json", "deepseek-v3",
                 "<\xef\xbd\x9c"
                 "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>");
}

static void unknown_kinds(void **state) {
    json_t *made, *config;
    char why[240];
    mf__gguf g = {.meta = json_pack("{s:s, s:s}", "tokenizer.ggml.model", "llama", "tokenizer.ggml.pre", "default")};
    (void)state;
    assert_int_equal(mf__gguf_tokenizer(&g, &made, &config, why, NULL), MF_OK);
    assert_true(!made && !config && strstr(why, "llama"));
    json_decref(g.meta);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_kinds), cmocka_unit_test(unknown_kinds)};
    if (argc != 2) return 2;
    tokenizers = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
