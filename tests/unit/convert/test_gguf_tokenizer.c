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
#include "text/splitter.h"
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

/* ---- what the names stand for ------------------------------------------------------------------------------------ */

/* The patterns of a name, in the pre_tokenizer that is made of it. */
static json_t *pre_tokenizer_of(const char *pre) {
    json_t *made, *config;
    char why[240];
    mf_error err;
    mf__gguf g = {.meta = json_pack("{s:s, s:s, s:[s], s:[]}", "tokenizer.ggml.model", "gpt2", "tokenizer.ggml.pre",
                                    pre, "tokenizer.ggml.tokens", "a", "tokenizer.ggml.merges")};
    assert_int_equal(mf__gguf_tokenizer(&g, &made, &config, why, &err), MF_OK);
    if (!made) fail_msg("%s: %s", pre, why);
    json_t *steps = json_incref(json_object_get(json_object_get(made, "pre_tokenizer"), "pretokenizers"));
    json_decref(made);
    json_decref(config);
    json_decref(g.meta);
    return steps;
}

static const char *pattern_of(const json_t *steps, size_t i) {
    return json_string_value(json_object_get(json_object_get(json_array_get(steps, i), "pattern"), "Regex"));
}

/* A model may write an end of line as itself or as an escape. */
static void spell_out(const char *pattern, char *out) {
    for (; *pattern; pattern++) {
        bool escape = pattern[0] == '\\' && (pattern[1] == 'r' || pattern[1] == 'n');
        pattern += escape;
        *out++ = !escape ? *pattern : *pattern == 'r' ? '\r' : '\n';
    }
    *out = '\0';
}

static void same_patterns(const char *file, const char *pre) {
    char path[512], ours[2048], theirs[2048];
    json_t *root, *steps = pre_tokenizer_of(pre);
    mf_error err;
    snprintf(path, sizeof path, "%s/%s", tokenizers, file);
    if (mf__json_read(path, 1 << 26, &root, &err)) fail_msg("%s", err.text);
    const json_t *want = json_object_get(json_object_get(root, "pre_tokenizer"), "pretokenizers");
    assert_int_equal(json_array_size(steps), json_array_size(want));
    for (size_t i = 0; i + 1 < json_array_size(want); i++) { /* the last is ByteLevel */
        spell_out(pattern_of(steps, i), ours);
        spell_out(pattern_of(want, i), theirs);
        assert_string_equal(ours, theirs);
        const json_t *behavior = json_object_get(json_array_get(want, i), "behavior");
        assert_string_equal(json_string_value(behavior), "Isolated");
    }
    json_decref(steps);
    json_decref(root);
}

static void patterns(void **state) {
    (void)state;
    same_patterns("qwen3.json", "qwen2");
    same_patterns("deepseek_v3.json", "deepseek-v3");
}

static void pieces(void **state) {
    static const char text[] = "It's camelCase 1234 ab\u4e2d\u6587c \u4e2d x\u0301y ./\n";
    static const struct {
        const char *pre, *want;
    } cases[] = {
        {"qwen2", "It|'s| camelCase| |1|2|3|4| ab\u4e2d\u6587c| \u4e2d| x|\u0301y| ./\n"},
        {"qwen35", "It|'s| camelCase| |1|2|3|4| ab\u4e2d\u6587c| \u4e2d| x\u0301y| ./\n"},
        {"glm4", "It|'s| camelCase| |123|4| ab\u4e2d\u6587c| \u4e2d| x|\u0301y| ./\n"},
        {"gpt-4o", "It's| camel|Case| |123|4| ab\u4e2d\u6587c| \u4e2d| x\u0301y| ./\n"},
        {"kimi-k2", "It's| camel|Case| |123|4| ab|\u4e2d\u6587|c| |\u4e2d| x\u0301y| ./\n"},
        {"deepseek-v3", "It|'s| camelCase| |123|4| ab|\u4e2d\u6587|c| |\u4e2d| x\u0301y| ./\n"},
    };
    (void)state;
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        json_t *json = pre_tokenizer_of(cases[i].pre);
        mf__split_step steps[4] = {0};
        int n = (int)json_array_size(json) - 1;
        mf__splitter *splitter;
        mf__split_run run = {0};
        mf_error err;
        char got[400] = "";
        assert_in_range(n, 1, 3);
        for (int k = 0; k < n; k++) {
            const char *pattern = pattern_of(json, (size_t)k);
            steps[k] = (mf__split_step){.pattern = pattern, .size = strlen(pattern), .behavior = MF__SPLIT_ISOLATED};
        }
        if (mf__splitter_create(cases[i].pre, steps, n, &splitter, &err)) fail_msg("%s", err.text);
        assert_int_equal(mf__splitter_run(splitter, text, strlen(text), &run, &err), MF_OK);
        for (size_t k = 0; k < run.n_pieces; k++) {
            if (k) strcat(got, "|");
            strncat(got, run.text + run.pieces[k].start, run.pieces[k].end - run.pieces[k].start);
        }
        if (strcmp(got, cases[i].want)) fail_msg("%s: \"%s\", expected \"%s\"", cases[i].pre, got, cases[i].want);
        mf__split_run_free(&run);
        mf__splitter_free(splitter);
        json_decref(json);
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(known_kinds), cmocka_unit_test(patterns),
                                       cmocka_unit_test(pieces), cmocka_unit_test(unknown_kinds)};
    if (argc != 2) return 2;
    tokenizers = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
