/* Grammars that are large, deep or ambiguous: they are written to the end, or refused before the first token. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/grammar/grammar.h"

static bool accepts(const mf__grammar *g, const char *text, size_t size) {
    bool accepted;
    size_t at;
    mf_error err = {0};
    if (mf__grammar_accepts(g, text, size, &accepted, &at, &err) != MF_OK) fail_msg("%s", err.text);
    return accepted;
}

static mf__grammar *rules(const char *text) {
    mf__grammar *g;
    mf_error err = {0};
    if (mf__grammar_from_rules(text, strlen(text), &g, &err) != MF_OK) fail_msg("%s", err.text);
    return g;
}

static mf__grammar *schema(json_t *s) {
    mf__grammar *g;
    mf_error err = {0};
    if (mf__grammar_from_schema(s, &g, &err) != MF_OK) fail_msg("%s", err.text);
    json_decref(s);
    return g;
}

/* Expressions whose beginning does not say what they are; 500 parentheses deep. */
static void test_ambiguous(void **state) {
    (void)state;
    mf__grammar *g = rules("root ::= expr\nexpr ::= term \"+\" expr | term \"-\" expr | term\n"
                           "term ::= \"(\" expr \")\" | [0-9]+\n");
    char text[2001];
    memset(text, '(', 500);
    memcpy(text + 500, "1+2-3", 5);
    memset(text + 505, ')', 500);
    assert_true(accepts(g, text, 1005));
    assert_false(accepts(g, text, 1004));
    mf__grammar_free(g);
    g = rules("root ::= list\nlist ::= list \"a\" | list list | \"b\"\n"); /* left recursive, and in many ways */
    memset(text, 'b', 60);
    assert_true(accepts(g, text, 60));
    text[30] = 'a';
    assert_true(accepts(g, text, 60));
    text[30] = 'c';
    assert_false(accepts(g, text, 60));
    mf__grammar_free(g);
}

static void test_large_lists(void **state) {
    (void)state;
    json_t *values = json_array(), *properties = json_object();
    char text[64];
    for (int i = 0; i < 4100; i++) {
        snprintf(text, sizeof text, "value %d of many", i * 7919);
        json_array_append_new(values, json_string(text));
    }
    for (int i = 0; i < 1500; i++) {
        snprintf(text, sizeof text, "property%d", i * 31);
        json_object_set_new(properties, text, json_pack("{s:s}", "type", "integer"));
    }
    mf__grammar *g = schema(json_pack("{s:o}", "enum", values));
    assert_true(accepts(g, "\"value 7919 of many\"", 20));
    assert_false(accepts(g, "\"value 7918 of many\"", 20));
    mf__grammar_free(g);
    g = schema(json_pack("{s:s,s:o,s:b}", "type", "object", "properties", properties, "additionalProperties", 0));
    assert_true(accepts(g, "{\"property31\":1,\"property0\":2}", 30));
    assert_false(accepts(g, "{\"property32\":1}", 16));
    mf__grammar_free(g);
}

static void test_long_constant(void **state) {
    (void)state;
    size_t n = 200000;
    char *text = malloc(n + 3);
    memset(text, 'x', n + 2);
    text[0] = text[n + 1] = '"';
    text[n + 2] = 0;
    mf__grammar *g = schema(json_pack("{s:s#}", "const", text + 1, (int)n));
    assert_true(accepts(g, text, n + 2));
    text[100000] = 'y';
    assert_false(accepts(g, text, n + 2));
    mf__strbuf example = {0};
    mf_error err;
    assert_int_equal(mf__grammar_example(g, 1, &example, &err), MF_OK);
    assert_int_equal(example.size, n + 2);
    mf__strbuf_free(&example);
    mf__grammar_free(g);
    free(text);
}

/* Counts are counted: a large one takes no more states than a small one. */
static void test_counts(void **state) {
    (void)state;
    uint32_t states[2];
    const json_int_t lengths[] = {10, 65535};
    for (int k = 0; k < 2; k++) {
        json_t *properties = json_object();
        char name[8];
        for (int i = 0; i < 10; i++) {
            snprintf(name, sizeof name, "s%d", i);
            json_object_set_new(properties, name,
                                json_pack("{s:s,s:I}", "type", "string", "maxLength", lengths[k] + (json_int_t)i));
        }
        mf__grammar *g = schema(json_pack("{s:s,s:o}", "type", "object", "properties", properties));
        states[k] = mf__grammar_states(g);
        mf__grammar_free(g);
    }
    assert_int_equal(states[0], states[1]);
    mf__grammar *g = schema(
        json_pack("{s:s,s:I,s:I}", "type", "string", "minLength", (json_int_t)2, "maxLength", (json_int_t)4294967297));
    assert_true(accepts(g, "\"ab\"", 4)); /* 2^32 + 1 is not 1 */
    assert_false(accepts(g, "\"a\"", 3));
    mf__grammar_free(g);
    g = rules("root ::= \"a\"{2,4294967297}");
    assert_true(accepts(g, "aaa", 3));
    assert_false(accepts(g, "a", 1));
    mf__grammar_free(g);
    g = schema(
        json_pack("{s:s,s:I,s:{s:s}}", "type", "array", "maxItems", (json_int_t)1 << 40, "items", "type", "null"));
    assert_true(accepts(g, "[null,null]", 11));
    mf__grammar_free(g);
}

static mf__grammar *regex(const char *pattern) {
    mf__grammar *g;
    mf_error err = {0};
    if (mf__grammar_from_regex(pattern, strlen(pattern), &g, &err) != MF_OK) fail_msg("%s: %s", pattern, err.text);
    return g;
}

/* Counts inside patterns, where the rest has one width: they show in the length. `rest` characters are not counted. */
static void test_counts_in_patterns(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *before, *behind;
        size_t min, max;
    } all[] = {{"^[a-z]{1,65535}$", "", "", 1, 65535},
               {"^[a-z]{2,}$", "", "", 2, 200000},
               {"^#(x|y)[a-z]{3,40000}-\\d{2}$", "#x", "-12", 3, 40000},
               {"^(?=a)[a-z]{1,65535}$", "", "", 1, 65535},
               {"^[a-z]{5000}$", "", "", 5000, 5000}};
    static char text[200100], quoted[200200];
    for (size_t i = 0; i < MF__COUNT(all); i++) {
        mf__grammar *g[2] = {regex(all[i].pattern),
                             schema(json_pack("{s:s,s:s}", "type", "string", "pattern", all[i].pattern))};
        assert_true(mf__grammar_states(g[0]) < 200);
        for (int k = 0; k < 5; k++) {
            size_t n = k == 0 ? all[i].min - 1 : k == 1 ? all[i].min : k == 2 ? all[i].max / 2 : all[i].max + (k == 4);
            bool fits = n >= all[i].min && (n <= all[i].max || all[i].max == 200000);
            size_t size = (size_t)snprintf(text, sizeof text, "%s", all[i].before);
            memset(text + size, 'a', n);
            size += n + (size_t)snprintf(text + size + n, 10, "%s", all[i].behind);
            size_t with = (size_t)snprintf(quoted, sizeof quoted, "\"%s\"", text);
            if (accepts(g[0], text, size) != fits || accepts(g[1], quoted, with) != fits)
                fail_msg("%s: %zu times", all[i].pattern, n);
        }
        mf__grammar_free(g[0]);
        mf__grammar_free(g[1]);
    }
    /* together with lengths, and beside listed values */
    mf__grammar *g =
        schema(json_pack("{s:s,s:s,s:i}", "type", "string", "pattern", "^[a-z]{1,65535}$", "maxLength", 3));
    assert_true(accepts(g, "\"abc\"", 5));
    assert_false(accepts(g, "\"abcd\"", 6));
    mf__grammar_free(g);
    g = schema(json_pack("{s:s,s:[s,s,s]}", "pattern", "^[a-z]{2,65535}$", "enum", "a", "ab", "A"));
    assert_true(accepts(g, "\"ab\"", 4));
    assert_false(accepts(g, "\"a\"", 3));
    mf__grammar_free(g);
    /* a pattern that may match anywhere: more at its ends says nothing */
    g = schema(json_pack("{s:s,s:s}", "type", "string", "pattern", "[a-z]{2,65535}"));
    assert_true(accepts(g, "\"1ab2\"", 6));
    assert_false(accepts(g, "\"1a2b\"", 6));
    mf__grammar_free(g);
}

/* Sizes that multiply are refused with a sentence, in bounded time and memory. */
static void test_refused(void **state) {
    (void)state;
    static const char *const patterns[] = {"(a|b)*a(a|b){30}", "((a{900}){900}){900}", "(x{60000}y){60000}"};
    mf__grammar *g;
    mf_error err;
    for (size_t i = 0; i < MF__COUNT(patterns); i++) {
        assert_int_equal(mf__grammar_from_regex(patterns[i], strlen(patterns[i]), &g, &err), MF_E_LIMIT);
        assert_true(strlen(err.text) > 20);
    }
    static const char empty[] = "root ::= (\"a\"?){0,1000000}";
    assert_int_equal(mf__grammar_from_rules(empty, sizeof empty - 1, &g, &err), MF_E_LIMIT);
    static const char long_text[] = "{\"type\":\"string\",\"minLength\":1e18}";
    json_t *too_long = json_loads(long_text, 0, NULL);
    assert_int_equal(mf__grammar_from_schema(too_long, &g, &err), MF_E_LIMIT);
    json_decref(too_long);
    json_t *needs = json_object();
    char name[8];
    for (int i = 0; i < 30; i++) { /* 2^30 alternatives */
        snprintf(name, sizeof name, "k%d", i);
        json_object_set_new(needs, name, json_pack("[s]", "x"));
    }
    json_t *s = json_pack("{s:s,s:o}", "type", "object", "dependentRequired", needs);
    assert_int_equal(mf__grammar_from_schema(s, &g, &err), MF_E_LIMIT);
    json_decref(s);
}

/* What is many, deep or long: refused, or compiled in no time. Each of these took minutes or the whole stack once. */
static void test_hostile(void **state) {
    (void)state;
    mf__grammar *g;
    mf_error err;
    static char name[100001];
    memset(name, 'n', sizeof name - 1);
    g = schema(json_pack("{s:s,s:{s:{},s:{}}}", "type", "object", "properties", name, name + 1));
    mf__grammar_free(g);
    g = schema(json_pack("{s:s,s:I}", "type", "string", "minLength", (json_int_t)10000000));
    mf__grammar_free(g);
    json_t *many = json_array();
    for (int i = 0; i < 30000; i++) json_array_append_new(many, json_object());
    json_t *s = json_pack("{s:O}", "allOf", many);
    assert_int_equal(mf__grammar_from_schema(s, &g, &err), MF_OK);
    mf__grammar_free(g);
    json_decref(s);
    s = json_pack("{s:O}", "oneOf", many);
    assert_int_equal(mf__grammar_from_schema(s, &g, &err), MF_E_LIMIT);
    json_decref(s);
    for (int i = 0; i < 30000; i++) json_array_set_new(many, (size_t)i, json_pack("{s:i}", "minimum", i));
    s = json_pack("{s:O}", "allOf", many);
    assert_int_equal(mf__grammar_from_schema(s, &g, &err), MF_E_LIMIT);
    json_decref(s);
    for (int i = 0; i < 30000; i++) json_array_set_new(many, (size_t)i, json_integer(i));
    s = json_pack("{s:O,s:[{s:o}]}", "enum", many, "allOf", "enum", json_copy(many));
    assert_int_equal(mf__grammar_from_schema(s, &g, &err), MF_E_LIMIT);
    json_decref(s);
    s = json_pack("{s:s,s:b,s:{s:O}}", "type", "array", "uniqueItems", 1, "items", "enum", many);
    assert_int_equal(mf__grammar_from_schema(s, &g, &err), MF_E_UNSUPPORTED);
    json_decref(s);
    json_decref(many);
    json_t *names = json_array();
    for (int i = 0; i < 2000; i++) json_array_append_new(names, json_sprintf("name number %d", i));
    g = schema(json_pack("{s:s,s:{s:o}}", "type", "object", "propertyNames", "enum", names));
    assert_true(accepts(g, "{\"name number 7\":1}", 19));
    assert_false(accepts(g, "{\"name number x\":1}", 19));
    mf__grammar_free(g);
    /* rules that call those before them */
    mf__strbuf text = {0};
    mf__strbuf_printf(&text, NULL, "r0 ::= \"x\"\n");
    for (int i = 1; i < 1900; i++)
        mf__strbuf_printf(&text, NULL, "r%d ::= r%d \"some text\" | \"y\" r%d\n", i, i - 1, i - 1);
    mf__strbuf_printf(&text, NULL, "root ::= r1899\n");
    mf__grammar_free(rules(text.data));
    mf__strbuf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ambiguous),     cmocka_unit_test(test_large_lists),
                                       cmocka_unit_test(test_long_constant), cmocka_unit_test(test_counts),
                                       cmocka_unit_test(test_refused),       cmocka_unit_test(test_counts_in_patterns),
                                       cmocka_unit_test(test_hostile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
