/* The template interpreter: small templates against what jinja2 makes of them, error places, limits.
 *
 *   test_jinja FILE    {"template", "expected"} or {"template", "error"}, perhaps with "vars"; the last line has the
 *                      variables of those without */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "text/jinja/jinja.h"

static const char *case_file;

static mf_status render(const char *source, size_t size, const json_t *vars, mf__jinja_options opt, mf__strbuf *out,
                        mf_error *err) {
    mf__jinja *t;
    mf_status status = mf__jinja_parse("t", source, size, &t, err);
    if (status != MF_OK) return assert_null(t), status;
    status = mf__jinja_render(t, vars, &opt, out, err);
    mf__jinja_free(t);
    return status;
}

static int check_case(const json_t *line, const json_t *vars) {
    const json_t *source = json_object_get(line, "template"), *expected = json_object_get(line, "expected");
    mf__strbuf out = {0};
    mf_error err = {0};
    if (!source) return 0;
    if (json_object_get(line, "vars")) vars = json_object_get(line, "vars");
    mf_status status = render(json_string_value(source), json_string_length(source), vars,
                              (mf__jinja_options){.strftime_now = "2025"}, &out, &err);
    int bad = 0;
    if (!expected) {
        if (status == MF_OK)
            bad = 1,
            print_error("%s\n  made \"%.*s\", expected an error\n", json_string_value(source), (int)out.size, out.data);
        else if (strncmp(err.text, "t: line ", 8) != 0)
            bad = 1, print_error("%s\n  error \"%s\" has no line\n", json_string_value(source), err.text);
    } else if (status != MF_OK) {
        bad = 1, print_error("%s\n  %s\n", json_string_value(source), err.text);
    } else if (out.size != json_string_length(expected) ||
               (out.size && memcmp(out.data, json_string_value(expected), out.size) != 0)) {
        bad = 1, print_error("%s\n  made     \"%.*s\"\n  expected \"%s\"\n", json_string_value(source), (int)out.size,
                             out.data, json_string_value(expected));
    }
    mf__strbuf_free(&out);
    return bad;
}

static void test_cases(void **state) {
    (void)state;
    char *bytes;
    size_t size;
    mf_error err;
    int n = 0, bad = 0;
    if (mf__file_read(case_file, 16 << 20, &bytes, &size, &err) != MF_OK) fail_msg("%s", err.text);
    json_t *lines = json_array();
    for (char *at = bytes, *end; at < bytes + size; at = end + 1) {
        end = memchr(at, '\n', (size_t)(bytes + size - at));
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, NULL);
        assert_non_null(line);
        json_array_append_new(lines, line);
    }
    size_t last = json_array_size(lines) - 1;
    const json_t *vars = json_object_get(json_array_get(lines, last), "vars");
    assert_non_null(vars);
    for (size_t i = 0; i < last; i++, n++) bad += check_case(json_array_get(lines, i), vars);
    assert_int_equal(bad, 0);
    assert_true(n > 80);
    json_decref(lines);
    free(bytes);
}

static void expect_error(const char *source, mf_status want, const char *needle) {
    mf__strbuf out = {0};
    mf_error err = {0};
    mf__jinja_options opt = {.max_steps = 100000, .max_memory = 1 << 20, .max_output = 10000};
    mf_status status = render(source, strlen(source), NULL, opt, &out, &err);
    if (status != want || !strstr(err.text, needle))
        fail_msg("%.100s: status %d \"%s\", expected %d \"%s\"", source, status, err.text, want, needle);
    mf__strbuf_free(&out);
}

static void test_error_lines(void **state) {
    (void)state;
    expect_error("a\nb\n{{ x.y }}", MF_E_INVALID, "t: line 3: \"x\" is undefined");
    expect_error("{#\n\n#}\n{% if 1 %}\n  {{ 1 + 'a' }}\n{% endif %}", MF_E_INVALID, "line 5: int + str");
    expect_error("\n{% if %}", MF_E_FORMAT, "line 2");
    expect_error("{{ 'a\n\n", MF_E_FORMAT, "line 1");
    expect_error("{% for x in [1] %}\n{% endif %}", MF_E_UNSUPPORTED, "line 2");
    expect_error("{% if 1 %}\n\n", MF_E_FORMAT, "not closed");
    expect_error("{% macro m() %}\n{{ z() }}{% endmacro %}\n\n{{ m() }}", MF_E_INVALID, "line 2");
    expect_error("{{ '\xff' }}", MF_E_FORMAT, "UTF-8");
    expect_error("{{ 1e5e5 }}", MF_E_FORMAT, "line 1");
    char number[200] = "{{ 1";
    for (int i = 0; i < 14; i++) strcat(number, "0123456789");
    expect_error(strcat(number, "e1 }}"), MF_E_FORMAT, "too long");
    expect_error("{% include 'x' %}", MF_E_UNSUPPORTED, "include");
    expect_error("\n\n{{ raise_exception('no ' ~ 5) }}", MF_E_INVALID, "t: line 3: no 5");
}

/* What is not known is named. */
static void test_unknown(void **state) {
    (void)state;
    expect_error("{{ 1|nosuch }}", MF_E_UNSUPPORTED, "the filter \"nosuch\" is not known");
    expect_error("{{ [1]|map('nosuch')|list }}", MF_E_UNSUPPORTED, "the filter \"nosuch\" is not known");
    expect_error("{{ 1 is nosuch }}", MF_E_UNSUPPORTED, "the test \"nosuch\" is not known");
    expect_error("{{ [1]|select('nosuch')|list }}", MF_E_UNSUPPORTED, "the test \"nosuch\" is not known");
    expect_error("{{ 'a'.nosuch() }}", MF_E_INVALID, "str has no attribute or method \"nosuch\"");
    expect_error("{{ {}.nosuch() }}", MF_E_INVALID, "dict has no attribute or method \"nosuch\"");
    expect_error("{{ (5).nosuch() }}", MF_E_INVALID, "int has no attribute or method \"nosuch\"");
    expect_error("{{ nosuch() }}", MF_E_INVALID, "\"nosuch\" is undefined");
    expect_error("{% nosuch %}", MF_E_UNSUPPORTED, "nosuch");
    expect_error("{{ 'a'|upper(1) }}", MF_E_INVALID, "the filter \"upper\" takes at most 0 arguments, 1 given");
    expect_error("{{ 'a'|trim(x=1) }}", MF_E_INVALID, "the filter \"trim\" has no argument called \"x\"");
    expect_error("{{ 'a'|replace('b') }}", MF_E_INVALID, "the filter \"replace\" needs \"new\"");
    expect_error("{{ 'a'|replace('b', old='c') }}", MF_E_INVALID, "the filter \"replace\" got \"old\" twice");
    expect_error("{{ 'a'.strip(chars='b') }}", MF_E_INVALID, "the method \"strip\" has no argument called \"chars\"");
    expect_error("{{ [1]|map(attribute='a', x=1)|list }}", MF_E_INVALID, "\"x\"");
    expect_error("{{ 1 is divisibleby(by=1) }}", MF_E_INVALID,
                 "the test \"divisibleby\" has no argument called \"by\"");
    expect_error("{{ range(1, 2, 3, 4) }}", MF_E_INVALID, "the function \"range\" takes at most 3 arguments, 4 given");
    expect_error("{% macro m(a) %}{% endmacro %}{{ m(b=1) }}", MF_E_INVALID, "no parameter called \"b\"");
}

/* White space around tags as jinja2 reads it by default, and as models want it. */
static void test_syntax(void **state) {
    (void)state;
    static const char source[] = "  {% if true %}\n  a\n  {% endif %}\nb\n";
    static const struct {
        mf__jinja_syntax syntax;
        const char *want;
    } cases[] = {{{0}, "  a\nb"},
                 {{.keep_newline = true}, "\n  a\n\nb"},
                 {{.keep_indent = true}, "    a\n  b"},
                 {{.keep_newline = true, .keep_indent = true}, "  \n  a\n  \nb"},
                 {{.keep_last_newline = true}, "  a\nb\n"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mf__jinja *t;
        mf__strbuf out = {0};
        mf_error err;
        assert_int_equal(mf__jinja_parse_as("t", source, strlen(source), &cases[i].syntax, &t, &err), MF_OK);
        assert_int_equal(mf__jinja_render(t, NULL, NULL, &out, &err), MF_OK);
        assert_string_equal(out.data, cases[i].want);
        mf__strbuf_free(&out);
        mf__jinja_free(t);
    }
}

static void test_limits(void **state) {
    (void)state;
    expect_error("{% set r = range(1000) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}", MF_E_LIMIT,
                 "steps");
    expect_error("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", MF_E_LIMIT, "nested deeper");
    expect_error(
        "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        MF_E_LIMIT, "memory");
    expect_error("{{ 'x' * 100000000000 }}", MF_E_LIMIT, "");
    expect_error("{{ 'x' * 100000 }}", MF_E_LIMIT, "writes more than");
    expect_error("{{ range(10000000) }}", MF_E_LIMIT, "");
    expect_error("{% set a = [] %}{% set _ = a.append(a) %}{% set b = [] %}{% set _ = b.append(b) %}{{ a < b }}",
                 MF_E_LIMIT, "nested");
    /* Two trees of 2^40 leaves made of 40 shared lists each are not compared leaf by leaf. */
    expect_error("{% set n = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% set n.b = "
                 "[n.b, n.b] %}"
                 "{% endfor %}{{ raise_exception('done') if n.a != n.b }}",
                 MF_E_LIMIT, "steps");
    expect_error("{{ 9223372036854775808 }}", MF_E_FORMAT, "large");
    expect_error("{{ 999999999999999999 * 1000 }}", MF_E_LIMIT, "large");
    expect_error("{{ '99999999999999999999'|int }}", MF_E_LIMIT, "large");
    expect_error("{{ 1e20|int }}", MF_E_LIMIT, "large");
    expect_error("{{ 9223372036854775807|round(-1) }}", MF_E_LIMIT, "large");
    expect_error("{{ range(-9223372036854775807 - 1, 0, 4611686018427387904)[::-1] }}", MF_E_LIMIT, "large");
    expect_error("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", MF_E_LIMIT, "nested");
    expect_error("{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", MF_E_LIMIT, "nested");
    char deep[4000] = "{{ ";
    for (int i = 0; i < 1500; i++) strcat(deep, "(");
    expect_error(deep, MF_E_FORMAT, "");
    strcat(deep, "1");
    for (int i = 0; i < 1500; i++) strcat(deep, ")");
    strcat(deep, " }}");
    expect_error(deep, MF_E_LIMIT, "nested too deep");
    strcpy(deep, "");
    for (int i = 0; i < 200; i++) strcat(deep, "{% if 1 %}");
    expect_error(deep, MF_E_LIMIT, "nested too deep");
    strcpy(deep, "{{ 1");
    for (int i = 0; i < 900; i++) strcat(deep, "+1");
    strcat(deep, " }}");
    expect_error(deep, MF_E_LIMIT, "nested deeper");
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: test_jinja FILE\n"), 2;
    case_file = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_error_lines),
                                       cmocka_unit_test(test_unknown), cmocka_unit_test(test_syntax),
                                       cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
