/* Constrained output: which texts a schema, a regular expression or a grammar lets through; masks; random answers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "make_tokenizer.h"
#include "random_answer.h"

#define EOS 400
#define N_VOCAB 420

static mf__tokenizer *tok;
static mf__token_trie *trie;

static int setup(void **state) {
    (void)state;
    mf__strbuf json = {0};
    mf_error err;
    /* Bytes, and some tokens that go across the borders of JSON. */
    make_tokenizer(
        &(make_options){
            .merges = "\\\" :\n\\\" ,\n: \\\"\n{ \\\"\n} ,\na b\nab c\n1 2\n12 ,\n] }\n[ [\n\u00c3 \u00a9\n\\\" }",
            .added = "[{\"id\":400,\"content\":\"<eos>\",\"special\":true},{\"id\":401,\"content\":"
                     "\"{}\",\"special\":true}]"},
        &json);
    if (mf__tokenizer_parse("t", json.data, json.size, &tok, &err) != MF_OK) fail_msg("%s", err.text);
    mf__strbuf_free(&json);
    return mf__token_trie_create(tok, &trie, &err) == MF_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    mf__token_trie_free(trie);
    mf__tokenizer_free(tok);
    return 0;
}

static mf__constraint *constrain(const mf__grammar *g) {
    mf__constraint *c;
    mf_error err = {0};
    if (mf__constraint_create(g, trie, N_VOCAB, (const int32_t[]){EOS}, 1, &c, &err) != MF_OK) fail_msg("%s", err.text);
    return c;
}

/* Is text let through, byte by byte, and complete at its end? Masks must agree with accept at every step. */
static bool matches(mf__constraint *c, const char *text) {
    mf_error err;
    const uint32_t *mask;
    mf__constraint_reset(c);
    for (const char *p = text; *p; p++) {
        int32_t id = (uint8_t)*p;
        assert_int_equal(mf__constraint_mask(c, &mask, &err), MF_OK);
        bool allowed = mask[id / 32] >> id % 32 & 1;
        assert_int_equal(mf__constraint_accept(c, id, &err) == MF_OK, allowed);
        if (!allowed) return false;
    }
    assert_int_equal(mf__constraint_mask(c, &mask, &err), MF_OK);
    assert_int_equal(mask[EOS / 32] >> EOS % 32 & 1, mf__constraint_complete(c));
    return mf__constraint_complete(c);
}

static void expect(mf__grammar *g, const char *what, const char *const *good, const char *const *wrong) {
    mf__constraint *c = constrain(g);
    for (; *good; good++)
        if (!matches(c, *good)) fail_msg("%s refuses %s", what, *good);
    for (; *wrong; wrong++)
        if (matches(c, *wrong)) fail_msg("%s lets %s through", what, *wrong);
    mf__constraint_free(c);
    mf__grammar_free(g);
}

static mf__grammar *schema_grammar(const char *schema) {
    mf__grammar *g;
    mf_error err = {0};
    json_t *json = json_loads(schema, JSON_DECODE_ANY, NULL);
    assert_non_null(json);
    if (mf__grammar_from_schema(json, &g, &err) != MF_OK) fail_msg("%s: %s", schema, err.text);
    json_decref(json);
    return g;
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SCHEMA(s, good, wrong) expect(schema_grammar(s), s, good, wrong)

static void test_types(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"boolean\"}", LIST("true", "false"), LIST("", "tru", "null", "truee", " true"));
    SCHEMA("{\"type\":[\"null\",\"integer\"]}", LIST("null", "0", "-12", "120"), LIST("01", "1.0", "-", "\"a\""));
    SCHEMA("{\"type\":\"number\"}", LIST("0", "-1.5", "1e5", "2.25E-3"), LIST("1.", ".5", "1e", "+1", "00"));
    SCHEMA("{\"type\":\"string\"}", LIST("\"\"", "\"a \\\" \\\\ \\n \\u00e9 é 你 😀\""),
           LIST("\"", "a", "\"\n\"", "\"\\x\"", "\"\\u00g0\"", "\"\\ud800\"", "\"\\u0000\"", "\"\xff\"", "\"\xc3\""));
    SCHEMA("{\"enum\":[1,\"a\",null,[1,{\"b\":2}]]}", LIST("1", "\"a\"", "null", "[1, {\"b\": 2}]"),
           LIST("2", "\"b\"", "[1]"));
    SCHEMA("{\"const\":\"q\\\"\\n\"}", LIST("\"q\\\"\\n\""), LIST("\"q\"", "\"\""));
    SCHEMA("{\"enum\":[1,\"a\"],\"type\":\"string\"}", LIST("\"a\""), LIST("1"));
    SCHEMA("true", LIST("1", "{}", "[1, {\"a\": null}]", "\"x\""), LIST("", "{", "[1,]", "{\"a\"}"));
}

static void test_numbers(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"integer\",\"minimum\":-5,\"maximum\":123}",
           LIST("-5", "-1", "0", "9", "10", "99", "100", "123"),
           LIST("-6", "-10", "124", "130", "200", "1000", "-0", "05"));
    SCHEMA("{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":101}", LIST("10", "55", "100"),
           LIST("9", "101", "-10", "1", "1000"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":1.5}", LIST("2", "1000000", "999999999999999999"), LIST("1", "0", "-2"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", LIST("0", "1", "0.25", "0.999"),
           LIST("1.5", "2", "-0.5", "-1"));
    SCHEMA("{\"type\":\"number\",\"minimum\":-2,\"exclusiveMaximum\":3}", LIST("-2", "-1.5", "2", "1.9", "0.0"),
           LIST("3", "3.1", "-2.5", "-3"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0.25,\"exclusiveMaximum\":0.8}",
           LIST("0.25", "0.250", "0.26", "0.3", "0.79999"),
           LIST("0", "1", "0.2", "0.2499", "0.8", "0.80", "0.81", "-0.3", "0."));
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":-1.5,\"maximum\":12.1}",
           LIST("-1.4999", "-1", "-0.5", "0", "0.0", "11.9", "12", "12.0", "12.1", "12.10"),
           LIST("-1.5", "-1.50", "-1.6", "-2", "-0", "-0.0", "12.11", "12.2", "13"));
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1e-4}", LIST("0.0001", "0.00009", "0.0000001"),
           LIST("0", "0.0", "0.0002", "0.00011", "1"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0.1}", LIST("0.1", "1", "1.05", "123456.5"), LIST("0.09", "0", "-1"));
    /* What rounds up to the bound is not below it. */
    SCHEMA("{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":10000000}", LIST("9999999.99999999"),
           LIST("9999999.9999999999", "10000000"));
}

static void test_strings(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
           LIST("\"ab\"", "\"\u3000 \"", "\"é你😀\"", "\"\\n\\\"\""), LIST("\"a\"", "\"abcd\"", "\"\""));
    SCHEMA("{\"type\":\"string\",\"pattern\":\"^[a-c]+-\\\\d{2}$\"}", LIST("\"a-12\"", "\"abc-00\""),
           LIST("\"-12\"", "\"a-1\"", "\"a-123\"", "\"d-12\""));
    SCHEMA("{\"type\":\"string\",\"pattern\":\"b\"}", LIST("\"b\"", "\"abc\""), LIST("\"a\"", "\"\""));
    SCHEMA("{\"type\":\"string\",\"pattern\":\"^a|c$\"}", LIST("\"ab\"", "\"bc\"", "\"a\""), LIST("\"ba\"", "\"cb\""));
    SCHEMA("{\"type\":\"string\",\"pattern\":\"^a*$\",\"minLength\":2,\"maxLength\":3}", LIST("\"aa\"", "\"aaa\""),
           LIST("\"a\"", "\"aaaa\"", "\"ab\""));
    SCHEMA("{\"type\":\"string\",\"pattern\":\"^[\\\"\\n\\\\\\\\]$\"}", LIST("\"\\\"\"", "\"\\n\"", "\"\\\\\""),
           LIST("\"n\"", "\"\\t\""));
    SCHEMA("{\"type\":\"string\",\"pattern\":\"^[^\\\\s]$\"}", LIST("\"x\""), LIST("\" \"", "\"\u3000\"", "\"\\n\""));
}

static void test_arrays(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", LIST("[]", "[1]", "[1, 2,3]", "[\n  1,\n  2\n]"),
           LIST("[1,]", "[,1]", "[1 2]", "[\"a\"]", "["));
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"null\"},\"minItems\":1,\"maxItems\":2}",
           LIST("[null]", "[null, null]"), LIST("[]", "[null,null,null]"));
    SCHEMA("{\"type\":\"array\",\"minItems\":2}", LIST("[1, 2]", "[1,2,3]"), LIST("[1]", "[]"));
    SCHEMA("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"type\":\"boolean\"}],\"items\":false}",
           LIST("[]", "[null]", "[null, true]"), LIST("[true]", "[null,true,1]"));
}

static void test_objects(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},\"c\":{\"type\":"
           "\"null\"}},"
           "\"required\":[\"b\"]}",
           LIST("{\"b\": null}", "{\"a\":null,\"b\":null}", "{ \"b\":null, \"c\": null }",
                "{\n\"a\": null, \"b\": null, \"c\": null}", "{\"b\":null,\"a\":null}", "{\"b\":null,\"d\":1}",
                "{\"d\":1,\"b\":null}"),
           LIST("{}", "{\"a\":null}", "{\"b\":null,}", "{,\"b\":null}", "{\"b\":null \"c\":null}",
                "{\"b\":null,\"b\":null}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":"
           "\"integer\"}}",
           LIST("{}", "{\"ab\":null}", "{\"a\":1}", "{\"abc\":1,\"x\":2}", "{\"\":1}", "{\"é\":1}"),
           LIST("{\"ab\":1}", "{\"x\":null}", "{\"x\":1,\"ab\":1}"));
}

static void test_objects_counts(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"object\"}", LIST("{}", "{\"a\": {\"b\": []}}"), LIST("[]", "{1:2}"));
    SCHEMA("{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}", LIST("{\"a\":1}", "{\"a\":1,\"b\":2}"),
           LIST("{}", "{\"a\":1,\"b\":2,\"c\":3}"));
    SCHEMA("{\"required\":[\"k\"]}", LIST("{\"k\":1}"), LIST("{}", "{\"a\":1}"));
}

static void test_choices(void **state) {
    (void)state;
    SCHEMA("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}]}",
           LIST("1", "[]", "[1,[2,[]]]"), LIST("null", "[null]"));
    SCHEMA("{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/"
           "$defs/a~1b\"}}}}}",
           LIST("{}", "{\"n\":{\"n\":{}}}"), LIST("{\"n\":1}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"}},\"anyOf\":[{"
           "\"required\":"
           "[\"a\"]},{\"required\":[\"b\"]}]}",
           LIST("{\"a\":null}", "{\"b\":null}", "{\"a\":null,\"b\":null}"), LIST("{}"));
    SCHEMA("{\"type\":\"integer\",\"anyOf\":[true]}", LIST("1"), LIST("\"a\"", "null", "[]"));
    SCHEMA("{\"type\":\"integer\",\"anyOf\":[false,{\"minimum\":3}]}", LIST("3"), LIST("2", "null"));
    SCHEMA("{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", LIST("\"a\"", "null"), LIST("1"));
}

static void bad_schema(const char *schema, mf_status want) {
    mf__grammar *g = NULL;
    mf_error err = {0};
    json_t *json = json_loads(schema, JSON_DECODE_ANY, NULL);
    mf_status status = mf__grammar_from_schema(json, &g, &err);
    if (status != want) fail_msg("%s: status %d \"%s\", expected %d", schema, status, err.text, want);
    assert_null(g);
    assert_true(strlen(err.text) > 10);
    json_decref(json);
}

static void test_bad_schemas(void **state) {
    (void)state;
    bad_schema("false", MF_E_INVALID);
    bad_schema("7", MF_E_FORMAT);
    bad_schema("{\"type\":\"thing\"}", MF_E_FORMAT);
    bad_schema("{\"type\":7}", MF_E_FORMAT);
    bad_schema("{\"$ref\":\"#/nowhere\"}", MF_E_NOT_FOUND);
    bad_schema("{\"$ref\":\"http://x\"}", MF_E_UNSUPPORTED);
    bad_schema("{\"$ref\":\"#\"}", MF_E_INVALID);
    bad_schema("{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", MF_E_INVALID);
    bad_schema("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", MF_E_INVALID);
    bad_schema("{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/a\"},\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":"
               "\"#/$defs/a\"},{\"type\":\"null\"}]}}}",
               MF_E_INVALID);
    bad_schema("{\"not\":{}}", MF_E_INVALID);
    bad_schema("{\"not\":{\"patternProperties\":{\"a\":false}}}", MF_E_UNSUPPORTED);
    bad_schema("{\"type\":\"array\",\"uniqueItems\":true}", MF_E_UNSUPPORTED);
    bad_schema("{\"type\":\"object\",\"minProperties\":2}", MF_E_UNSUPPORTED);
    bad_schema("{\"type\":\"string\",\"minLength\":5,\"maxLength\":4}", MF_E_INVALID);
    bad_schema("{\"type\":\"string\",\"maxLength\":-1}", MF_E_FORMAT);
    bad_schema("{\"type\":\"string\",\"pattern\":\"(\"}", MF_E_FORMAT);
    bad_schema("{\"type\":\"string\",\"pattern\":\"b(?=a)\"}", MF_E_UNSUPPORTED);
    bad_schema("{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", MF_E_INVALID);
    bad_schema("{\"enum\":[]}", MF_E_INVALID);
    bad_schema("{\"type\":\"object\",\"additionalProperties\":false,\"required\":[\"z\"]}", MF_E_INVALID);
}

static mf__grammar *regex_grammar(const char *pattern) {
    mf__grammar *g;
    mf_error err = {0};
    if (mf__grammar_from_regex(pattern, strlen(pattern), &g, &err) != MF_OK) fail_msg("%s: %s", pattern, err.text);
    return g;
}

static void test_regex(void **state) {
    (void)state;
    expect(regex_grammar("(ab|c)*d?"), "regex", LIST("", "d", "ab", "abcabd"), LIST("a", "dd", "abd "));
    expect(regex_grammar("[^a-c]{2}"), "regex", LIST("xy", "é你", "\xF0\x9F\x98\x80z"),
           LIST("x", "ax", "\xc3", "\xff\xff"));
    expect(regex_grammar("x{2,3}|y+?"), "regex", LIST("xx", "xxx", "y", "yyy"), LIST("x", "xxxx", ""));
    expect(regex_grammar("[\u0430-\u044f\u4e00-\u9fff]"), "regex", LIST("\u0430", "\u044f", "\u4e00", "\u9fff"),
           LIST("a", "\u042f", "\u0450", "\ua000"));
    expect(regex_grammar("\\u{1F600}\\x41\\.\\p{Lu}"), "regex", LIST("\U0001F600A.\u00c4"),
           LIST("A.", "\U0001F600A.\u00e4"));
    mf__grammar *g;
    mf_error err;
    static const char *const bad[] = {
        "(", "a)", "[", "*a", "a{3,2}", "a**", "\\1", "a{}", "a{3abc}", "(?>a)", "((a{999}){999}){999}", "\xff"};
    for (size_t i = 0; i < MF__COUNT(bad); i++) {
        assert_int_not_equal(mf__grammar_from_regex(bad[i], strlen(bad[i]), &g, &err), MF_OK);
        assert_null(g);
    }
}

static void test_rules(void **state) {
    (void)state;
    mf__grammar *g;
    mf_error err = {0};
    static const char rules[] =
        "# nested\nroot ::= \"(\" root* \")\" | num{1,2} tail?\nnum ::= [0-9] | \"\\x41\\n\"\n  | \"é\"\n"
        "tail ::= (\"!\" | \"?\")+ [^a]\n";
    if (mf__grammar_from_rules(rules, sizeof rules - 1, &g, &err) != MF_OK) fail_msg("%s", err.text);
    expect(g, "rules", LIST("()", "(()(12))", "1", "A\né", "7!?x", "(1!é)"), LIST("(", "123", "1!", "1!a", ""));
    static const char *const bad[] = {"",
                                      "x ::= \"a\"",
                                      "root ::= y",
                                      "root ::= \"a\"{}",
                                      "root ::= \"a\"{3abc}",
                                      "root ::= \"a\"{3,2}",
                                      "root ::= \"a",
                                      "root ::= (",
                                      "root ::= [z-a]",
                                      "root ::= \"a\"\nroot ::= \"b\"",
                                      "root ::= )",
                                      "= x",
                                      "root ::= a\na ::= b\nb ::= a"};
    for (size_t i = 0; i < MF__COUNT(bad); i++) {
        if (mf__grammar_from_rules(bad[i], strlen(bad[i]), &g, &err) == MF_OK) fail_msg("%s is taken", bad[i]);
        assert_null(g);
    }
}

static mf__grammar *form_grammar(const mf__form *form) {
    mf__grammar *g;
    mf_error err = {0};
    if (mf__grammar_from_form(form, &g, &err) != MF_OK) fail_msg("%s", err.text);
    return g;
}

#define TEXT(s)                                                                                                        \
    { .kind = MF__FORM_TEXT, .text = (s), .size = strlen(s) }
#define UNTIL(s)                                                                                                       \
    { .kind = MF__FORM_UNTIL, .text = (s), .size = strlen(s) }
#define PARTS(p) .parts = (p), .n_parts = MF__COUNT(p)

/* Calls of two tools, in parallel: tags around JSON by each tool's own schema. */
static void test_form_calls(void **state) {
    (void)state;
    json_t *a = json_loads("{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/$defs/n\"}},\"required\":[\"n\"],"
                           "\"additionalProperties\":false,\"$defs\":{\"n\":{\"type\":\"integer\"}}}",
                           0, NULL);
    json_t *b = json_loads("{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"s\":{\"$ref\":"
                           "\"#/$defs/n\"}},\"$defs\":{\"n\":{\"type\":\"boolean\"}}}",
                           0, NULL);
    assert_true(a && b);
    const mf__form call_a[] = {TEXT("<c>a "), {.kind = MF__FORM_SCHEMA, .schema = a}, TEXT("</c>")};
    const mf__form call_b[] = {TEXT("<c>b "), {.kind = MF__FORM_SCHEMA, .schema = b}, TEXT("</c>")};
    const mf__form calls[] = {{.kind = MF__FORM_SEQUENCE, PARTS(call_a)}, {.kind = MF__FORM_SEQUENCE, PARTS(call_b)}};
    const mf__form some[] = {{.kind = MF__FORM_CHOICE, PARTS(calls)}, TEXT("\n")};
    expect(form_grammar(&(mf__form){.kind = MF__FORM_REPEAT, PARTS(some), .min = 1, .max = 3}), "calls",
           LIST("<c>a {\"n\": 1}</c>", "<c>b {\"s\":true}</c>\n<c>a {\"n\":2}</c>",
                "<c>b {}</c>\n<c>b {}</c>\n<c>b {}</c>"),
           LIST("", "<c>a {\"n\":true}</c>", "<c>b {\"n\":1}</c>", "<c>b {}</c>\n", "<c>b {}</c><c>b {}</c>",
                "<c>b {}</c>\n<c>b {}</c>\n<c>b {}</c>\n<c>b {}</c>"));
    expect(form_grammar(&(mf__form){.kind = MF__FORM_REPEAT, PARTS(some), .min = 0, .max = -1}), "calls",
           LIST("", "<c>b {}</c>", "<c>b {}</c>\n<c>b {}</c>\n<c>b {}</c>\n<c>b {}</c>"), LIST("\n", "<c>b {}</c>\n"));
    json_decref(a);
    json_decref(b);
}

/* Raw values end at the first closing tag, also where the tag overlaps itself. */
static void test_form_until(void **state) {
    (void)state;
    const mf__form value[] = {TEXT("<p=x>"), UNTIL("\n</p>"), TEXT("!")};
    expect(form_grammar(&(mf__form){.kind = MF__FORM_SEQUENCE, PARTS(value)}), "until",
           LIST("<p=x>\n</p>!", "<p=x>a\"<é</p \n\n</p>!", "<p=x>\n<\n</p>!"),
           LIST("<p=x></p>!", "<p=x>\n</p>", "<p=x>\n</p>a\n</p>!", "<p=x>\xff\n</p>!"));
    const mf__form twice = UNTIL("aab");
    expect(form_grammar(&twice), "until", LIST("aab", "aaaab", "abaab", "xaab"), LIST("ab", "aabaab", "aabx"));
    mf__grammar *g;
    mf_error err;
    const mf__form none = UNTIL(""), endless[] = {TEXT("a"), TEXT("b"), TEXT("c")};
    assert_int_equal(mf__grammar_from_form(&none, &g, &err), MF_E_INVALID);
    assert_int_equal(mf__grammar_from_form(&(mf__form){.kind = MF__FORM_CHOICE}, &g, &err), MF_E_INVALID);
    assert_int_equal(mf__grammar_from_form(&(mf__form){.kind = MF__FORM_REPEAT, PARTS(endless)}, &g, &err),
                     MF_E_INVALID);
}

/* A mask must be exactly the tokens whose bytes can follow. */
static void test_masks(void **state) {
    (void)state;
    mf__grammar *g =
        schema_grammar("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},\"required\":[\"ab\"]}");
    mf__constraint *c = constrain(g);
    mf_error err;
    const char *steps = "{\"ab\": 12}";
    const uint32_t *mask;
    for (const char *p = steps;; p++) {
        uint32_t copy[N_VOCAB / 32 + 1];
        assert_int_equal(mf__constraint_mask(c, &mask, &err), MF_OK);
        memcpy(copy, mask, sizeof copy);
        for (int32_t id = 0; id < N_VOCAB; id++) {
            size_t n;
            const char *bytes = mf__tokenizer_bytes(tok, id, &n);
            char text[64];
            snprintf(text, sizeof text, "%.*s%.*s", (int)(p - steps), steps, (int)n, bytes);
            mf__constraint *other = constrain(g);
            bool can = n > 0 && id < EOS;
            for (size_t i = 0; can && i < (size_t)(p - steps) + n; i++)
                can = mf__constraint_accept(
                          other, i < (size_t)(p - steps) ? (uint8_t)steps[i] : (uint8_t)bytes[i - (size_t)(p - steps)],
                          &err) == MF_OK;
            if (id == EOS) can = *p == 0;
            mf__constraint_free(other);
            if ((copy[id / 32] >> id % 32 & 1) != can)
                fail_msg("after %.*s token %d (%.*s) is %s", (int)(p - steps), steps, (int)id, (int)n, bytes,
                         can ? "missing" : "allowed");
        }
        if (!*p) break;
        assert_int_equal(mf__constraint_accept(c, (uint8_t)*p, &err), MF_OK);
    }
    assert_int_equal(mf__constraint_accept(c, 401, &err), MF_E_INVALID); /* an added token, though its text is {} */
    assert_int_equal(mf__constraint_accept(c, EOS, &err), MF_OK);
    assert_true(mf__constraint_ended(c));
    mf__constraint_free(c);
    mf__grammar_free(g);
}

/* Whatever the logits, the answer parses; when it runs too long the shortest end completes it. */
static void test_random_answers(void **state) {
    (void)state;
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\",\"maxLength\":4},\"l\":{\"type\":\"array\","
        "\"items\":{\"type\":"
        "\"object\",\"properties\":{\"k\":{\"type\":\"number\"}},\"required\":[\"k\"]},\"minItems\":1}},\"required\":["
        "\"s\",\"l\"]}",
        "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
        "t\"},{}]}}}}",
        "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"object\",\"additionalProperties\":{\"type\":"
        "\"string\"}}}",
    };
    mf_sampler_options so;
    mf_sampler_options_init(&so);
    so.temperature = 1;
    float logits[N_VOCAB];
    mf_error err;
    random_speaker r = {.tok = tok, .logits = logits, .n_vocab = N_VOCAB, .eos = EOS, .max_tokens = 120, .seed = 1};
    assert_int_equal(mf_sampler_create(&so, N_VOCAB, &r.sampler, &err), MF_OK);
    for (size_t k = 0; k <= MF__COUNT(schemas); k++) {
        mf__grammar *g = NULL;
        if (k < MF__COUNT(schemas))
            g = schema_grammar(schemas[k]);
        else
            assert_int_equal(mf__grammar_any_json(&g, &err), MF_OK);
        r.c = constrain(g);
        for (int round = 0; round < 40; round++) {
            mf__strbuf text = {0};
            bool whole;
            if (round == 20) mf__constraint_order(r.c);
            if (random_answer(&r, &text, &whole, &err) != MF_OK) fail_msg("%s", err.text);
            json_error_t why;
            json_t *json = json_loadb(text.data, text.size, 0, &why);
            if (!json) fail_msg("%s in %.*s", why.text, (int)text.size, text.data);
            json_decref(json);
            mf__strbuf_free(&text);
        }
        mf__constraint_free(r.c);
        mf__grammar_free(g);
    }
    mf_sampler_free(r.sampler);
}

/* An answer that may have n tokens is complete within them, whatever is chosen: each token is tried from the highest
 * number on, and taken where the text can still be ended. */
static void test_tokens_left(void **state) {
    (void)state;
    mf__grammar *g = schema_grammar(
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":3},\"b\":{\"type\":\"array\","
        "\"minItems\":1,\"items\":{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"x\",\"long constant\"]}},"
        "\"required\":[\"k\"]}}},\"required\":[\"a\",\"b\"]}");
    mf__constraint *c = constrain(g);
    mf_error err;
    mf__strbuf shortest = {0};
    assert_int_equal(mf__constraint_shortest(c, &shortest, &err), MF_OK);
    uint64_t least = shortest.size; /* every byte is a token */
    mf__strbuf_free(&shortest);
    assert_true(least > 10 && least < 60);
    for (uint64_t n = least; n < least + 80; n++) {
        mf__constraint_reset(c);
        uint64_t left = n;
        for (; left && !mf__constraint_ended(c); left--) {
            const uint32_t *mask;
            int32_t id = EOS;
            assert_int_equal(mf__constraint_mask(c, &mask, &err), MF_OK);
            uint32_t copy[N_VOCAB / 32 + 1];
            memcpy(copy, mask, sizeof copy);
            for (int32_t k = EOS; k-- > 0;) {
                id = (int32_t)((k + (int32_t)n * 37) % EOS);
                if (!(copy[id / 32] >> id % 32 & 1)) continue;
                mf_status status = mf__constraint_accept_within(c, id, left - 1, &err);
                if (status == MF_OK) break;
                assert_int_equal(status, MF_E_LIMIT);
                id = EOS;
            }
            if (id == EOS) break;
        }
        assert_true(mf__constraint_complete(c));
    }
    mf__constraint_free(c);
    mf__grammar_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),       cmocka_unit_test(test_numbers),     cmocka_unit_test(test_strings),
        cmocka_unit_test(test_arrays),      cmocka_unit_test(test_objects),     cmocka_unit_test(test_objects_counts),
        cmocka_unit_test(test_choices),     cmocka_unit_test(test_bad_schemas), cmocka_unit_test(test_regex),
        cmocka_unit_test(test_rules),       cmocka_unit_test(test_form_calls),  cmocka_unit_test(test_form_until),
        cmocka_unit_test(test_tokens_left), cmocka_unit_test(test_masks),       cmocka_unit_test(test_random_answers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
