/* What JSON Schemas allow, keyword by keyword, and a sample of the JSON-Schema-Test-Suite.
 *
 *   test_schema_keywords SUITE.jsonl */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/grammar/grammar.h"

static const char *suite_path, *real_path;

/* A schema, texts that it accepts, texts that it does not; ' stands for ". */
typedef struct expectation {
    const char *schema, *good[6], *bad[6];
} expectation;

static const expectation expectations[] = {
    {"{'allOf':[{'properties':{'a':{'type':'integer'}},'required':['a']},{'properties':{'b':{'type':'null'}}}]}",
     {"{'a':1}", "{'b':null,'a':1}", "{'a':1,'c':[]}"},
     {"{}", "{'a':null}", "{'a':1,'b':1}"}},
    {"{'allOf':[{'minimum':3},{'maximum':5}],'type':'integer'}", {"3", "5"}, {"2", "6", "3.5"}},
    {"{'allOf':[{'pattern':'a'},{'pattern':'b'},{'maxLength':3}],'type':'string'}",
     {"'ab'", "'bxa'"},
     {"'a'", "'abxx'"}},
    {"{'type':'object','patternProperties':{'^x':{'type':'integer'}},'additionalProperties':{'type':'null'}}",
     {"{'x1':1}", "{'y':null,'x':2}"},
     {"{'x':null}", "{'y':1}"}},
    {"{'type':'object','properties':{'xa':{'minimum':5}},'patternProperties':{'^x':{'type':'integer'}}}",
     {"{'xa':5}", "{'xb':1}", "{'c':'d'}"},
     {"{'xa':4}", "{'xa':'s'}", "{'xb':'s'}"}},
    {"{'type':'object','patternProperties':{'^x$':{'type':'integer'}},'additionalProperties':{'type':'null'}}",
     {"{'x':1}", "{'xy':null}"},
     {"{'x\\n':null}", "{'x\\n':1}"}}, /* to some engines $ is before a last end of line, too */
    {"{'oneOf':[{'type':'integer'},{'minimum':2,'type':'number'}]}", {"1", "2.5", "-3"}, {"2", "7", "1.5"}},
    {"{'type':'object','oneOf':[{'required':['a']},{'required':['b']}]}",
     {"{'a':1}", "{'b':1,'c':2}"},
     {"{}", "{'a':1,'b':2}"}},
    {"{'$ref':'#/$defs/n','maximum':3,'$defs':{'n':{'type':'integer'}}}", {"3"}, {"4", "'a'"}},
    {"{'$schema':'http://json-schema.org/draft-07/schema#','$ref':'#/definitions/n','maximum':3,"
     "'definitions':{'n':{'type':'integer'}}}",
     {"3", "4"},
     {"'a'"}},
    {"{'type':'string','not':{'enum':['a','b']}}", {"'c'", "'ab'", "''"}, {"'a'", "'b'"}},
    {"{'type':'integer','not':{'minimum':3}}", {"2"}, {"3"}},
    {"{'type':'object','not':{'required':['a']}}", {"{}", "{'b':1}"}, {"{'a':1}"}},
    {"{'type':'object','dependentRequired':{'a':['b']}}", {"{}", "{'b':1}", "{'a':1,'b':2}"}, {"{'a':1}"}},
    {"{'if':{'properties':{'k':{'const':1}},'required':['k']},'then':{'required':['x']},'type':'object'}",
     {"{'k':1,'x':0}", "{'k':2}", "{}"},
     {"{'k':1}"}},
    {"{'type':'object','propertyNames':{'maxLength':2}}", {"{'ab':1}"}, {"{'abc':1}"}},
    {"{'type':'array','contains':{'const':1}}", {"[1]", "[2, 1, 3]"}, {"[]", "[2]"}},
    {"{'type':'array','contains':{'const':1},'maxContains':1}", {"[1, 2]"}, {"[1, 1]", "[2]"}},
    {"{'items':{'$ref':'#it'},'$defs':{'x':{'$anchor':'it','type':'null'}},'type':'array'}", {"[null]"}, {"[1]"}},
    {"{'$id':'http://a/b/','items':{'$ref':'c.json'},'$defs':{'x':{'$id':'c.json','type':'null'}},'type':'array'}",
     {"[null]"},
     {"[1]"}},
    {"{'$ref':'#/$defs/a%20b%25','$defs':{'a b%':{'type':'null'}}}", {"null"}, {"1"}},
    {"{'anyOf':[{'properties':{'a':true},'additionalProperties':false},{'required':['z']}],'type':'object'}",
     {"{'a':1}", "{'z':1,'y':2}"},
     {"{'y':2}"}},
    {"{'anyOf':[{'items':{'type':'null'}},{'minItems':2}],'type':'array'}", {"[null]", "[1, 2]"}, {"[1]"}},
    {"{'type':'integer','minimum':9007199254740993,'maximum':9007199254740995}",
     {"9007199254740993", "9007199254740995"},
     {"9007199254740992", "9007199254740996"}},
    {"{'multipleOf':0.05,'type':'number'}", {"0.1", "1.15", "-3", "7.05"}, {"0.12", "1.151"}},
    {"{'multipleOf':7,'type':'integer','minimum':100}", {"105", "112"}, {"98", "100"}},
    {"{'const':{'a':[1,2.5]}}", {"{'a': [1, 2.5]}", "{'a':[1,2.5]}"}, {"{'a':[1]}"}},
    {"{'type':'object','minProperties':2,'properties':{'a':true,'b':true}}",
     {"{'a':1,'b':2}", "{'a':1,'c':2}"},
     {"{}", "{'a':1}", "{'c':1,'d':2}"}}, /* two that are not declared could be the same */
    {"{'type':'object','properties':{'a':true},'unevaluatedProperties':false,'allOf':[{'properties':{'b':true}}]}",
     {"{'a':1,'b':2}"},
     {"{'c':1}"}},
    {"{'type':'array','uniqueItems':true,'items':{'enum':[1,2,3]}}", {"[3, 1]", "[]"}, {"[1, 1]", "[4]"}},
    {"{'unknown':{'not':'a schema'},'type':'null'}", {"null"}, {"1"}},
    {"{'pattern':'^(?!no)[a-z]+$','type':'string'}", {"'yes'", "'n'"}, {"'no'", "'nope'"}},
};

/* Formats: what must and what must not be taken. */
static const struct {
    const char *format, *good[5], *bad[5];
} formats[] = {
    {"date", {"2024-02-29", "1999-12-31"}, {"2023-02-29", "2024-13-01", "2024-1-1", "x"}},
    {"time", {"12:00:00Z", "23:59:59.5+01:30"}, {"24:00:00Z", "12:00:00", "12:00"}},
    {"date-time", {"2024-02-29T12:00:00Z"}, {"2024-02-30T12:00:00Z", "2024-02-29", "2024-02-29 12:00:00Z"}},
    {"email", {"a.b@c.de"}, {"a", "a@", "@b.c", "a b@c.de"}},
    {"uuid", {"123e4567-e89b-12d3-a456-426614174000"}, {"123e4567", "123e4567-e89b-12d3-a456-42661417400g"}},
    {"ipv4", {"127.0.0.1", "255.255.255.255"}, {"256.0.0.1", "1.2.3", "01.2.3.4"}},
    {"ipv6", {"::1", "2001:db8::8a2e:370:7334", "::ffff:1.2.3.4"}, {"1::2::3", "12345::", ":1"}},
    {"uri", {"https://a.b/c?d=e#f", "urn:x:y", "mailto:a@b.c"}, {"a/b", "//a", "http://a b"}},
    {"iri", {"http://\u00e9.de/\u4e2d", "urn:a"}, {"not-an-iri", "http://a b"}},
    {"uri-template", {"http://a/{b}{?c,d*}", "x"}, {"http://a/{", "{b"}},
    {"regex", {"^a+(b|[^a-z\\\\d])*$", "(?:x{2})?"}, {"*", "(", "a)", "[", "\\\\"}},
    {"hostname", {"a", "www.example.com"}, {"-a", "a..b", "a_b"}},
};

static char *quoted(const char *text) { /* ' --> " */
    char *out = strdup(text);
    for (char *p = out; *p; p++) *p = *p == '\'' ? '"' : *p;
    return out;
}

static mf__grammar *compile(const json_t *schema, const char *what) {
    mf__grammar *g = NULL;
    mf_error err = {0};
    if (mf__grammar_from_schema(schema, &g, &err) != MF_OK) fail_msg("%s: %s", what, err.text);
    return g;
}

static bool accepts(const mf__grammar *g, const char *text) {
    bool accepted;
    size_t at;
    mf_error err = {0};
    if (mf__grammar_accepts(g, text, strlen(text), &accepted, &at, &err) != MF_OK) fail_msg("%s: %s", text, err.text);
    return accepted;
}

static void expect(const mf__grammar *g, const char *what, const char *const *texts, size_t n, bool good) {
    for (size_t i = 0; i < n && texts[i]; i++) {
        char *text = quoted(texts[i]);
        if (accepts(g, text) != good) fail_msg("%s %s %s", what, good ? "refuses" : "accepts", text);
        free(text);
    }
}

static void test_keywords(void **state) {
    (void)state;
    for (size_t i = 0; i < MF__COUNT(expectations); i++) {
        char *text = quoted(expectations[i].schema);
        json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
        assert_non_null(schema);
        mf__grammar *g = compile(schema, text);
        expect(g, text, expectations[i].good, 6, true);
        expect(g, text, expectations[i].bad, 6, false);
        mf__grammar_free(g);
        json_decref(schema);
        free(text);
    }
}

static void test_formats(void **state) {
    (void)state;
    for (size_t i = 0; i < MF__COUNT(formats); i++) {
        json_t *schema = json_pack("{s:s,s:s}", "type", "string", "format", formats[i].format);
        mf__grammar *g = compile(schema, formats[i].format);
        for (int good = 0; good < 2; good++) {
            const char *const *list = good ? formats[i].good : formats[i].bad;
            for (int k = 0; k < 5 && list[k]; k++) {
                char text[100];
                snprintf(text, sizeof text, "\"%s\"", list[k]);
                if (accepts(g, text) != good) fail_msg("%s: %s", formats[i].format, text);
            }
        }
        assert_string_equal(mf__grammar_notes(g), "");
        mf__grammar_free(g);
        json_decref(schema);
    }
}

/* A format that is not known is said, and refused where that is asked for. */
static void test_unknown_format(void **state) {
    (void)state;
    json_t *schema =
        json_loads("{\"items\":{\"type\":\"string\",\"format\":\"moon-phase\"},\"type\":\"array\"}", 0, NULL);
    mf__grammar *g = compile(schema, "format");
    mf_error err;
    assert_non_null(strstr(mf__grammar_notes(g), "#/items"));
    assert_non_null(strstr(mf__grammar_notes(g), "moon-phase"));
    mf__grammar_free(g);
    assert_int_equal(mf__grammar_from_schema_strict(schema, &g, &err), MF_E_UNSUPPORTED);
    assert_null(g);
    assert_non_null(strstr(err.text, "#/items"));
    json_decref(schema);
}

/* What cannot be done is refused by a sentence that names the keyword and its place. */
static void test_refusals(void **state) {
    (void)state;
    static const char *const refused[][2] = {
        {"{'properties':{'l':{'uniqueItems':true,'type':'array'}}}", "#/properties/l: \"uniqueItems\""},
        {"{'properties':{'l':{'not':{'propertyNames':{'maxLength':2}}}}}", "#/properties/l/not: \"propertyNames\""},
        {"{'items':[{'$ref':'http://elsewhere/x'}]}", "#/items/0: \"$ref\""},
        {"{'items':{'pattern':'a(?=b)c'}}", "#/items: \"pattern\""},
        {"{'items':{'type':'strin'}}", "#/items: \"type\""},
    };
    for (size_t i = 0; i < MF__COUNT(refused); i++) {
        char *text = quoted(refused[i][0]);
        json_t *schema = json_loads(text, 0, NULL);
        mf__grammar *g;
        mf_error err = {0};
        assert_int_not_equal(mf__grammar_from_schema(schema, &g, &err), MF_OK);
        if (!strstr(err.text, refused[i][1])) fail_msg("%s: %s", text, err.text);
        json_decref(schema);
        free(text);
    }
}

static void check_group(const json_t *line) {
    const char *what = json_string_value(json_object_get(line, "from"));
    const json_t *texts = json_object_get(line, "texts"), *valid = json_object_get(line, "valid");
    mf__grammar *g = compile(json_object_get(line, "schema"), what);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        if (accepts(g, text) != json_is_true(json_array_get(valid, i))) fail_msg("%s: %s", what, text);
    }
    mf__grammar_free(g);
}

static void check_file(const char *path, size_t least) {
    mf_error err = {0};
    char *lines;
    size_t size, n = 0;
    if (mf__file_read(path, 1 << 20, &lines, &size, &err) != MF_OK) fail_msg("%s", err.text);
    for (char *line = lines, *end; line < lines + size; line = end + 1, n++) {
        end = memchr(line, '\n', (size_t)(lines + size - line));
        assert_non_null(end);
        json_t *group = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, NULL);
        assert_non_null(group);
        check_group(group);
        json_decref(group);
    }
    assert_true(n >= least);
    free(lines);
}

static void test_suite(void **state) {
    (void)state;
    check_file(suite_path, 100);
}

static void test_real(void **state) {
    (void)state;
    check_file(real_path, 7);
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: test_schema_keywords SUITE.jsonl REAL.jsonl\n"), 2;
    suite_path = argv[1];
    real_path = argv[2];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_keywords),       cmocka_unit_test(test_formats),
                                       cmocka_unit_test(test_unknown_format), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_suite),          cmocka_unit_test(test_real)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
