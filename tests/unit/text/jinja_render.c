/* Renders many templates, for the scripts in tools/ that compare with jinja2: reads JSON lines
 *
 *   {"template": "...", "vars": {...}, "syntax": {"trim_blocks": true, "lstrip_blocks": true, "keep_trailing_newline":
 *    false}, "strftime_now": "..."}
 *
 * ("syntax" and "strftime_now" may be missing) and writes {"text": "..."} or {"error": "..."} for each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/jinja.h"

static bool switched_off(const json_t *syntax, const char *key) {
    const json_t *v = json_object_get(syntax, key);
    return v && !json_is_true(v);
}

static mf_status render(const json_t *line, mf__strbuf *out, mf_error *err) {
    const json_t *source = json_object_get(line, "template"), *syntax = json_object_get(line, "syntax");
    mf__jinja_syntax s = {.keep_newline = switched_off(syntax, "trim_blocks"),
                          .keep_indent = switched_off(syntax, "lstrip_blocks"),
                          .keep_last_newline = json_is_true(json_object_get(syntax, "keep_trailing_newline"))};
    mf__jinja_options opt = {.strftime_now = json_string_value(json_object_get(line, "strftime_now"))};
    mf__jinja *t;
    if (!json_is_string(source)) return mf__fail(err, MF_E_FORMAT, "a line without \"template\"");
    MF__TRY(mf__jinja_parse_as("t", json_string_value(source), json_string_length(source), &s, &t, err));
    mf_status status = mf__jinja_render(t, json_object_get(line, "vars"), &opt, out, err);
    mf__jinja_free(t);
    return status;
}

static int one(const char *text, size_t size) {
    mf__strbuf out = {0};
    mf_error err;
    json_t *line = json_loadb(text, size, JSON_ALLOW_NUL, NULL), *result;
    if (!line) return fprintf(stderr, "a line that is no JSON\n"), 1;
    if (render(line, &out, &err) == MF_OK)
        result = json_pack("{s:o}", "text", json_stringn(out.data ? out.data : "", out.size));
    else
        result = json_pack("{s:s}", "error", err.text);
    char *dump = result ? json_dumps(result, JSON_COMPACT) : NULL;
    if (dump) puts(dump);
    free(dump);
    json_decref(result);
    json_decref(line);
    mf__strbuf_free(&out);
    return !dump;
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    int bad = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0;) bad |= one(line, (size_t)n);
    free(line);
    return bad;
}
