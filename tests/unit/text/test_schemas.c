/* Random schemas (tools/random_schemas.py --list), random logits, and every answer judged by a validator that shares
 * nothing with the grammars.
 *
 *   test_schemas SCHEMAS.jsonl TOKENIZER */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/file.h"
#include "random_answer.h"
#include "validate.h"

#define N_SCHEMAS 60
#define N_ANSWERS 4

static const char *schemas_path, *tokenizer_path;

/* The judge can say no: a line each of schema, valid, not valid. */
static const char *const judged[][3] = {
    {"{\"type\":\"integer\",\"minimum\":2}", "2", "1"},
    {"{\"type\":[\"null\",\"integer\"]}", "3.0", "3.5"},
    {"{\"exclusiveMaximum\":2}", "1.9", "2"},
    {"{\"enum\":[1,{\"a\":[null]}]}", "{\"a\":[null]}", "{\"a\":[]}"},
    {"{\"const\":\"é\"}", "\"é\"", "\"e\""},
    {"{\"minLength\":2,\"maxLength\":3}", "\"é你\"", "\"é\""},
    {"{\"maxLength\":3}", "\"é你b\"", "\"abcd\""},
    {"{\"items\":{\"type\":\"null\"},\"maxItems\":2}", "[null]", "[1]"},
    {"{\"maxItems\":1}", "[1]", "[1,2]"},
    {"{\"prefixItems\":[{\"type\":\"null\"}],\"items\":false}", "[null]", "[null,1]"},
    {"{\"properties\":{\"a\":{\"type\":\"null\"}},\"additionalProperties\":false}", "{\"a\":null}", "{\"b\":null}"},
    {"{\"properties\":{\"a\":{\"type\":\"null\"}}}", "{\"b\":1}", "{\"a\":1}"},
    {"{\"required\":[\"a\"]}", "{\"a\":1}", "{}"},
    {"{\"minProperties\":1}", "{\"a\":1}", "{}"},
    {"{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"string\"}]}", "null", "1"},
    {"{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"integer\"}]}", "1.5", "1"},
    {"{\"allOf\":[{\"minimum\":1},{\"maximum\":3}]}", "2", "4"},
    {"{\"$ref\":\"#/$defs/a~1b~0\",\"$defs\":{\"a/b~\":{\"type\":\"null\"}}}", "null", "1"},
    {"{\"pattern\":\"^a(b|c{2}){1,2}$\"}", "\"abcc\"", "\"abc\""},
    {"{\"pattern\":\"a|^[^b-d]$\"}", "\"e\"", "\"c\""},
    {"{\"pattern\":\"^\\\\w+\\\\.\\\\d*$\"}", "\"a_1.\"", "\"a.x\""},
    {"{\"pattern\":\"^(ab?)*$\"}", "\"aaba\"", "\"abba\""},
    {"{\"pattern\":\"^.x\"}", "\"你x\"", "\"\\nx\""},
};

static void test_judge(void **state) {
    (void)state;
    for (size_t i = 0; i < MF__COUNT(judged); i++) {
        json_t *s = json_loads(judged[i][0], 0, NULL), *good = json_loads(judged[i][1], JSON_DECODE_ANY, NULL);
        json_t *wrong = json_loads(judged[i][2], JSON_DECODE_ANY, NULL);
        assert_true(s && good && wrong);
        if (!validate(s, s, good)) fail_msg("%s refuses %s", judged[i][0], judged[i][1]);
        if (validate(s, s, wrong)) fail_msg("%s takes %s", judged[i][0], judged[i][2]);
        json_decref(s);
        json_decref(good);
        json_decref(wrong);
    }
}

static void check_schema(random_speaker *r, const mf__token_trie *trie, const char *line, const json_t *schema) {
    mf__grammar *g;
    mf_error err = {0};
    if (mf__grammar_from_schema(schema, &g, &err) != MF_OK) fail_msg("%s: %s", line, err.text);
    assert_int_equal(mf__constraint_create(g, trie, r->n_vocab, &r->eos, 1, &r->c, &err), MF_OK);
    for (int i = 0; i < N_ANSWERS; i++) {
        mf__strbuf text = {0};
        bool whole;
        r->brief = i % 2;
        if (random_answer(r, &text, &whole, &err) != MF_OK) fail_msg("%s: %s", line, err.text);
        json_t *answer = json_loadb(text.data, text.size, JSON_DECODE_ANY, NULL);
        if (!answer) fail_msg("%s: not JSON: %.*s", line, (int)text.size, text.data);
        if (!validate(schema, schema, answer)) fail_msg("%s: not valid: %.*s", line, (int)text.size, text.data);
        json_decref(answer);
        mf__strbuf_free(&text);
    }
    mf__constraint_free(r->c);
    mf__grammar_free(g);
}

static void test_answers(void **state) {
    (void)state;
    mf_error err = {0};
    mf__tokenizer *tok;
    mf__token_trie *trie;
    mf_sampler_options so;
    char *lines;
    size_t size;
    int n = 0;
    if (mf__tokenizer_open(tokenizer_path, &tok, &err) != MF_OK) fail_msg("%s", err.text);
    assert_int_equal(mf__token_trie_create(tok, &trie, &err), MF_OK);
    mf_sampler_options_init(&so);
    so.temperature = 1;
    int32_t n_vocab = mf__tokenizer_n_vocab(tok) + 1;
    random_speaker r = {.tok = tok, .n_vocab = n_vocab, .eos = n_vocab - 1, .max_tokens = 60, .seed = 12345};
    r.logits = malloc((size_t)n_vocab * sizeof *r.logits);
    assert_non_null(r.logits);
    assert_int_equal(mf_sampler_create(&so, n_vocab, &r.sampler, &err), MF_OK);
    if (mf__file_read(schemas_path, 1 << 20, &lines, &size, &err) != MF_OK) fail_msg("%s", err.text);
    for (char *line = lines, *end; line < lines + size; line = end + 1, n++) {
        end = memchr(line, '\n', (size_t)(lines + size - line));
        assert_non_null(end);
        *end = '\0';
        json_t *schema = json_loads(line, JSON_DECODE_ANY, NULL);
        assert_non_null(schema);
        check_schema(&r, trie, line, schema);
        json_decref(schema);
    }
    assert_int_equal(n, N_SCHEMAS);
    free(lines);
    free(r.logits);
    mf_sampler_free(r.sampler);
    mf__token_trie_free(trie);
    mf__tokenizer_free(tok);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: test_schemas SCHEMAS.jsonl TOKENIZER\n"), 2;
    schemas_path = argv[1];
    tokenizer_path = argv[2];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_judge), cmocka_unit_test(test_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
