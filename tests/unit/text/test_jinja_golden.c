/* Chat template goldens: every line of render.jsonl must be exact, errors included.
 *
 *   test_jinja_golden DIR    DIR holds render.jsonl and the templates it names */
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

static const char *data_dir;

static mf__jinja *load(const char *name) {
    char *path = mf__path_join(data_dir, name), *source;
    size_t size;
    mf_error err;
    mf__jinja *t;
    if (mf__file_read(path, 1 << 20, &source, &size, &err) != MF_OK) fail_msg("%s", err.text);
    if (mf__jinja_parse(name, source, size, &t, &err) != MF_OK) fail_msg("%s", err.text);
    free(source);
    free(path);
    return t;
}

static void check_line(int n, const json_t *line) {
    const char *name = json_string_value(json_object_get(line, "template"));
    mf__jinja *t = load(name);
    const json_t *extra = json_object_get(line, "extra"), *expected = json_object_get(line, "expected");
    json_t *vars = json_deep_copy(extra);
    mf__jinja_options opt = {.strftime_now = json_string_value(json_object_get(extra, "strftime_now"))};
    json_object_del(vars, "strftime_now");
    json_object_set(vars, "messages", json_object_get(line, "messages"));
    json_object_set(vars, "tools", json_object_get(line, "tools"));
    json_object_set(vars, "add_generation_prompt", json_object_get(line, "add_generation_prompt"));
    mf__strbuf out = {0};
    mf_error err = {0};
    mf_status status = mf__jinja_render(t, vars, &opt, &out, &err);
    if (json_is_true(json_object_get(line, "error"))) {
        const char *message = json_string_value(json_object_get(line, "message"));
        if (status != MF_E_INVALID)
            fail_msg("line %d (%s): status %d, expected the error \"%s\"", n, name, status, message);
        if (!strstr(err.text, message)) fail_msg("line %d (%s): \"%s\" is not \"%s\"", n, name, err.text, message);
    } else {
        if (status != MF_OK) fail_msg("line %d: %s", n, err.text);
        size_t size = json_string_length(expected);
        if (out.size != size || memcmp(out.data ? out.data : "", json_string_value(expected), size) != 0) {
            size_t i = 0;
            while (i < size && i < out.size && out.data[i] == json_string_value(expected)[i]) i++;
            fail_msg("line %d (%s): differs at byte %zu: \"%.60s\", expected \"%.60s\"", n, name, i,
                     i < out.size ? out.data + i : "", json_string_value(expected) + i);
        }
    }
    mf__strbuf_free(&out);
    json_decref(vars);
    mf__jinja_free(t);
}

static void test_render(void **state) {
    (void)state;
    char *path = mf__path_join(data_dir, "render.jsonl"), *bytes;
    size_t size;
    mf_error err;
    int n = 0;
    if (mf__file_read(path, 64 << 20, &bytes, &size, &err) != MF_OK) fail_msg("%s", err.text);
    for (char *at = bytes, *end; at < bytes + size; at = end + 1) {
        end = memchr(at, '\n', (size_t)(bytes + size - at));
        if (!end) end = bytes + size;
        json_error_t why;
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_ALLOW_NUL, &why);
        if (!line) fail_msg("line %d: %s", n + 1, why.text);
        check_line(++n, line);
        json_decref(line);
    }
    assert_int_equal(n, 180);
    free(bytes);
    free(path);
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: test_jinja_golden DIR\n"), 2;
    data_dir = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_render)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
