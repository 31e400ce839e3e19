/* Templates that mean harm: every one must end, with a result or an error, inside the budget of steps, depth and
 * memory. What is measured is the budget, never the clock; a template that escapes it runs into CTest's time limit, a
 * recursion that escapes it into the end of the stack. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "text/jinja/jinja.h"

static mf_status render(const char *source, const json_t *vars, const mf__jinja_options *opt, mf_error *err) {
    mf__jinja *t;
    mf__strbuf out = {0};
    mf_status status = mf__jinja_parse("t", source, strlen(source), &t, err);
    if (status == MF_OK) status = mf__jinja_render(t, vars, opt, &out, err);
    mf__jinja_free(t);
    mf__strbuf_free(&out);
    return status;
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SLOW 10
#endif
#endif
#if !defined(SLOW)
#define SLOW 1
#endif

/* With the limits everybody gets; under AddressSanitizer, which makes it slow, what must hit them gets fewer steps. */
static void ends(const char *source, mf_status want, const char *needle) {
    mf_error err = {0};
    mf__jinja_options opt = {.max_steps = !strcmp(needle, "steps") ? 20000000 / SLOW : 0};
    mf_status status = render(source, NULL, &opt, &err);
    if (status != want || (want != MF_OK && !strstr(err.text, needle)))
        fail_msg("%.100s: status %d \"%s\", expected %d \"%s\"", source, status, err.text, want, needle);
}

static char *repeated(const char *head, const char *part, size_t n, const char *tail) {
    size_t n_head = strlen(head), n_part = strlen(part), n_tail = strlen(tail);
    char *s = malloc(n_head + n_part * n + n_tail + 1), *p = s;
    assert_non_null(s);
    memcpy(p, head, n_head), p += n_head;
    for (size_t i = 0; i < n; i++) memcpy(p, part, n_part), p += n_part;
    memcpy(p, tail, n_tail + 1);
    return s;
}

static void ends_repeated(const char *head, const char *part, size_t n, const char *tail, mf_status want,
                          const char *needle) {
    char *s = repeated(head, part, n, tail);
    ends(s, want, needle);
    free(s);
}

static void ends_nested(const char *open, const char *close, size_t n) {
    char *head = repeated("{{ ", open, n, "1"), *s = repeated(head, close, n, " }}");
    ends(s, MF_E_LIMIT, "deep");
    free(s);
    free(head);
}

/* ---- depth ----------------------------------------------------------------------------------------------------- */

static void test_long_chains(void **state) {
    (void)state;
    ends_repeated("{{ 'a'", "|trim", 200000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{% set x", "|trim", 200000, " %}{% endset %}", MF_E_LIMIT, "deep");
    ends_repeated("{{ a", ".b", 200000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ a", "[0]", 200000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ a", "()", 200000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ 1", "+1", 200000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ 1", " and 1", 200000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ 1", "**1", 200000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ 1", " is true", 100000, " }}", MF_E_FORMAT, "test");
    ends_repeated("{{ 1", " if 1 else 1", 80000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ 1", " if 1", 100000, " }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ ", "not ", 100000, "1 }}", MF_E_LIMIT, "deep");
    ends_repeated("{{ ", "-", 100000, "1 }}", MF_E_LIMIT, "deep");
    ends_nested("(", ")", 100000);
    ends_nested("[", "]", 100000);
    ends_nested("{1:", "}", 100000);
    ends_nested("a(", ")", 100000);
    ends_nested("a[", "]", 100000);
    ends_nested("1|map(", ")", 100000);
    ends_nested("1 is in(", ")", 100000);
    ends_repeated("", "{% if 1 %}", 80000, "", MF_E_LIMIT, "deep");
    ends_repeated("", "{% for x in y %}", 50000, "", MF_E_LIMIT, "deep");
    ends_repeated("", "{% macro m() %}", 50000, "", MF_E_LIMIT, "deep");
    char *head = repeated("{% set ", "(", 100000, "a"), *target = repeated(head, ")", 100000, " = 1 %}");
    ends(target, MF_E_LIMIT, "deep");
    free(target);
    free(head);
    /* Long without being deep. */
    ends_repeated("{% if 0 %}", "{% elif 0 %}", 80000, "{% endif %}", MF_OK, "");
    ends_repeated("{{ 'a'", "~'a'", 200000, " }}", MF_OK, "");
    ends_repeated("{{ ", "'a'", 300000, " }}", MF_OK, "");
    ends_repeated("{{ 1", "==1", 300000, " }}", MF_OK, "");
    ends_repeated("{{ [", "1,", 400000, "]|length }}", MF_OK, "");
}

static void test_deep_values(void **state) {
    (void)state;
#define NEST "{% set n = namespace(t='a', u='a') %}{% for i in range(30000) %}"
    ends(NEST "{% set n.t = (n.t,) %}{% endfor %}{{ 'abc'.startswith(n.t) }}", MF_E_INVALID, "tuple");
    ends(NEST "{% set n.t = (n.t,) %}{% endfor %}{{ 'abc'.endswith(('c', n.t)) }}", MF_OK, "");
    ends(NEST "{% set n.t = (n.t,) %}{% endfor %}{{ {n.t: 1} }}", MF_E_LIMIT, "deep");
    ends(NEST "{% set n.t = (n.t,) %}{% endfor %}{{ n.t in {1: 2} }}", MF_E_LIMIT, "deep");
    ends(NEST "{% set n.t = (n.t,) %}{% endfor %}{{ n.t }}", MF_E_LIMIT, "deep");
    ends(NEST "{% set n.t = (n.t,) %}{% endfor %}{{ n.t|tojson }}", MF_E_LIMIT, "deep");
    ends(NEST "{% set n.t = (n.t,) %}{% set n.u = (n.u,) %}{% endfor %}{{ n.t == n.u }}", MF_E_LIMIT, "deep");
    ends(NEST "{% set n.t = (n.t,) %}{% set n.u = (n.u,) %}{% endfor %}{{ n.t < n.u }}", MF_E_LIMIT, "deep");
    ends(NEST "{% set n.t = {'a': n.t} %}{% set n.u = {'a': n.u} %}{% endfor %}{{ n.t == n.u }}", MF_E_LIMIT, "deep");
    ends(NEST "{% set n.t = {'a': n.t} %}{% endfor %}{{ {n.t: 1} }}", MF_E_INVALID, "dict");
    ends(NEST "{% set n.t = [n.t] %}{% endfor %}{{ n.t|string }}", MF_E_LIMIT, "deep");
    ends("{% set a = {} %}{% set _ = a.update({'a': a}) %}{% set b = {} %}{% set _ = b.update({'a': b}) %}{{ a == b }}",
         MF_E_LIMIT, "deep");
    /* Dicts that are equal through tuples as keys. */
    ends(NEST "{% set n.t = (n.t, 1) %}{% set n.u = (n.u, 1) %}{% endfor %}{{ {1: n.t} == {1: n.u} }}", MF_E_LIMIT,
         "deep");
    /* Tuples in tuples are no prefixes in Python either, however deep. */
    ends("{% macro f(a) %}{{ f(a) }}{% endmacro %}{{ f(1) }}", MF_E_LIMIT, "deep");
    ends("{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}{% endcall %}{% endmacro %}"
         "{{ g() }}",
         MF_E_LIMIT, "deep");
}

static void test_map_of_map(void **state) {
    (void)state;
    char *args = repeated("", "'map', ", 100000, "'upper'");
    char *s = repeated("{% set n = namespace(l=['a']) %}{% for i in range(100000) %}{% set n.l = [n.l] %}{% endfor %}"
                       "{{ n.l|map(",
                       args, 1, ")|list }}");
    ends(s, MF_E_LIMIT, "deep");
    free(s);
    free(args);
}

/* ---- time ------------------------------------------------------------------------------------------------------ */

static void test_work_is_paid(void **state) {
    (void)state;
    /* Two trees of 2^40 leaves made of 40 shared lists each. */
    ends("{% set n = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% set n.b = "
         "[n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
         MF_E_LIMIT, "steps");
    ends("{% set n = namespace(a={1: 1}, b={1: 1}) %}{% for i in range(40) %}{% set n.a = {1: n.a, 2: n.a} %}"
         "{% set n.b = {1: n.b, 2: n.b} %}{% endfor %}{{ n.a == n.b }}",
         MF_E_LIMIT, "steps");
    ends("{% set n = namespace(a=(1,), b=(1,)) %}{% for i in range(40) %}{% set n.a = (n.a, n.a) %}{% set n.b = "
         "(n.b, n.b) %}{% endfor %}{{ n.a < n.b }}",
         MF_E_LIMIT, "steps");
    ends("{% set n = namespace(a=(1,)) %}{% for i in range(40) %}{% set n.a = (n.a, n.a) %}{% endfor %}{{ {n.a: 1} }}",
         MF_E_LIMIT, "steps");
    ends("{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ 'b' in s }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ s|length }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ s == s ~ '' }}{% endfor %}", MF_E_LIMIT, "");
    ends("{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ s.find('b') }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ s.count('b') }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ s[29999999] }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set s = ' ' * 30000000 %}{% for i in range(100000) %}{{ s.strip() }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set s = 'a' * 30000 %}{% for i in range(100000) %}{{ s.strip(s) }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set s = 'a' * 3000000 %}{{ s.strip('b' * 3000000 ~ 'a') }}", MF_E_LIMIT, "steps");
    ends("{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ s.startswith(s) }}{% endfor %}", MF_E_LIMIT,
         "steps");
    ends("{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{{ s.isdigit() }}{{ s is upper }}{% endfor %}",
         MF_E_LIMIT, "");
    ends("{% set s = 'ab' * 3000000 %}{% for i in range(100000) %}{% set x = s.rsplit('bb', 9) %}{% endfor %}",
         MF_E_LIMIT, "steps");
    ends("{% set l = range(100000)|list %}{% for i in l %}{{ -1 in l }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set l = range(100000)|list %}{% for i in l %}{{ l.count(-1) }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set l = range(100000)|list %}{% for i in l %}{% set _ = l.insert(0, 1) %}{% endfor %}", MF_E_LIMIT, "");
    ends("{% set l = range(100000)|list %}{% for i in range(100000) %}{{ l.pop(0) }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set l = range(100000)|list %}{% for i in l %}{{ l|max }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set l = range(100000)|list %}{% for i in l %}{{ l|sum }}{% endfor %}", MF_E_LIMIT, "steps");
    ends("{% set l = range(100000)|list %}{% for i in l %}{{ l|sort|first }}{% endfor %}", MF_E_LIMIT, "");
    ends("{{ 'a' * 3000000 in ['a' * 3000000 ~ 'b'] * 1000 }}", MF_OK, "");
    ends("{{ ('a' * 3000000)[1:] in [('a' * 3000000)[1:]] * 100000 }}", MF_OK, "");
    ends("{% set s = ('a' * 3000000) %}{{ (s ~ 'b') in [s ~ 'c'] * 100000 }}", MF_E_LIMIT, "steps");
    ends("{% set s %}{% for i in range(100000) %}{{ i }}{% endfor %}{% endset %}"
         "{% for i in range(100000) %}{% set x = s|upper %}{% endfor %}",
         MF_E_LIMIT, "");
}

/* Dictionaries are looked up by their keys' hash: a hundred thousand keys cost no more than a list of as many. */
static void test_large_dictionaries(void **state) {
    (void)state;
    ends("{% set d = {} %}{% for i in range(100000) %}{% set _ = d.update({i: i}) %}{% endfor %}"
         "{% for i in range(100000) %}{% if d[i] != i or d.get(i ~ '') %}{{ raise_exception('wrong') }}{% endif %}"
         "{% endfor %}{% if d|length != 100000 %}{{ raise_exception('wrong') }}{% endif %}",
         MF_OK, "");
    ends("{% set d = {} %}{% for i in range(50000) %}{% set _ = d.update({'k' ~ i: i}) %}{% endfor %}"
         "{% for i in range(50000) %}{% if d['k' ~ i] != i %}{{ raise_exception('wrong') }}{% endif %}{% endfor %}",
         MF_OK, "");
    ends("{{ range(100000)|unique|list|length }}", MF_OK, "");
    /* Taking out of the middle moves what follows, which is paid for. */
    ends("{% set d = dict() %}{% for i in range(100000) %}{% set _ = d.update({i: i}) %}{% endfor %}"
         "{% for i in range(100000) %}{% set _ = d.pop(i) %}{% endfor %}",
         MF_E_LIMIT, "steps");
    ends("{% set d = dict() %}{% for i in range(1000) %}{% set _ = d.update({i: i}) %}{% endfor %}"
         "{% for i in range(0, 1000, 2) %}{% set _ = d.pop(i) %}{% endfor %}{% for i in range(1000) %}"
         "{% if (i in d) != (i % 2 == 1) %}{{ raise_exception('wrong') }}{% endif %}{% endfor %}",
         MF_OK, "");
    /* 1, 1.0 and true are one key; so are 0, -0.0 and false. */
    ends("{% set d = {} %}{% for i in range(100) %}{% set _ = d.update({i: i}) %}{% endfor %}"
         "{% set _ = d.update({1.0: 'a', true: 'b', -0.0: 'c'}) %}"
         "{% if d|length != 100 or d[1] != 'b' or d[false] != 'c' or d[50.0] != 50 %}{{ raise_exception('wrong') }}"
         "{% endif %}",
         MF_OK, "");
}

static void test_many_names(void **state) {
    (void)state;
    /* 40,000 variables in one scope, each looked for. */
    char *s = malloc(1 << 20);
    size_t n = 0;
    for (int i = 0; i < 40000; i++) n += (size_t)sprintf(s + n, "{%%set a%d=z%%}", i);
    ends(s, MF_E_LIMIT, "steps");
    /* A macro with as many parameters, all given by name. */
    n = (size_t)sprintf(s, "{%% macro m(z");
    for (int i = 0; i < 40000; i++) n += (size_t)sprintf(s + n, ",a%d", i);
    n += (size_t)sprintf(s + n, ") %%}{%% endmacro %%}{{ m(z=1");
    for (int i = 0; i < 40000; i++) n += (size_t)sprintf(s + n, ",a%d=1", i);
    sprintf(s + n, ") }}");
    ends(s, MF_E_LIMIT, "steps");
    /* str.format with as many arguments by name. */
    n = (size_t)sprintf(s, "{{ ('{a39999}' * 40000).format(z=1");
    for (int i = 0; i < 40000; i++) n += (size_t)sprintf(s + n, ",a%d=1", i);
    sprintf(s + n, ") }}");
    ends(s, MF_E_LIMIT, "steps");
    free(s);
}

/* Many keys in a request: the table that finds them is built in as many steps. */
static void test_many_keys(void **state) {
    (void)state;
    json_t *keys = json_object(), *vars = json_object();
    mf_error err = {0};
    mf__jinja_options opt = {.max_steps = 20000000 / SLOW};
    char key[16];
    for (int i = 0; i < 60000; i++) {
        snprintf(key, sizeof key, "%07d", i);
        json_object_set_new(keys, key, json_null());
    }
    json_object_set_new(vars, "keys", keys);
    mf_status status = render("{{ keys.x }}", vars, &opt, &err);
    if (status != MF_OK) fail_msg("%s", err.text);
    json_decref(vars);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static void test_memory(void **state) {
    (void)state;
    ends("{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
         MF_E_LIMIT, "memory");
    ends("{% set n = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
         MF_E_LIMIT, "memory");
    ends("{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}", MF_E_LIMIT,
         "memory");
    ends("{% set s = 'x' * 10000000 %}{{ s.replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx') }}", MF_E_LIMIT, "memory");
    ends("{{ 'x' * 100000000000 }}", MF_E_LIMIT, "memory");
    ends("{{ [1] * 100000000000 }}", MF_E_LIMIT, "memory");
    ends("{{ ('\n' * 10000000)|indent(100, true, true) }}", MF_E_LIMIT, "memory");
    ends("{{ ['x' * 1000000] * 1000 }}", MF_E_LIMIT, "memory");
    ends("{{ (['x' * 1000000] * 1000)|tojson }}", MF_E_LIMIT, "memory");
    ends("{{ (['x' * 1000000] * 1000)|join }}", MF_E_LIMIT, "memory");
    ends("{% for i in range(10000) %}{% set x %}{{ 'x' * 1000000 }}{% endset %}{% endfor %}", MF_E_LIMIT, "");
    ends("{% for i in range(10000) %}{{ 'x' * 1000000 }}{% endfor %}", MF_E_LIMIT, "");
    /* Inner texts are gone when the outer one is written: what counts is what is held at once. */
    ends_repeated("", "(", 0, "{{ ('x' * 20000000)|length }}", MF_OK, "");
    ends_repeated("{{ 1 }}", " ", 5000000, "", MF_E_LIMIT, "too large");
}

static bool stop_after(void *data) {
    return --*(int *)data < 0;
}

static void test_cancel(void **state) {
    (void)state;
    mf_error err = {0};
    const char *endless = "{% for i in range(100000) %}{% for j in range(100) %}{% endfor %}{% endfor %}";
    int left = 3;
    mf__jinja_options opt = {.cancel = stop_after, .cancel_data = &left};
    assert_int_equal(render(endless, NULL, &opt, &err), MF_E_CANCELLED);
    assert_non_null(strstr(err.text, "t: line 1"));
    assert_int_equal(left, -1);
    left = 1000000;
    assert_int_equal(render("{{ 1 }}", NULL, &opt, &err), MF_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_long_chains),
        cmocka_unit_test(test_deep_values),
        cmocka_unit_test(test_map_of_map),
        cmocka_unit_test(test_work_is_paid),
        cmocka_unit_test(test_large_dictionaries),
        cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_many_keys),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
