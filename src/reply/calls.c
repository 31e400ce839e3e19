/* Tool calls in the models' notations: see the goldens of their templates for what each looks like.
 *
 *   Qwen3         {"name": N, "arguments": {...}}
 *   Qwen3-Coder   <function=N>\n<parameter=K>\nV\n</parameter>\n</function>
 *   GLM           N\n<arg_key>K</arg_key>\n<arg_value>V</arg_value>
 *   MiniMax       <invoke name="N"><parameter name="K">V</parameter></invoke>
 *   DeepSeek      <|tool_call_begin|>N<|tool_sep|>{...}<|tool_call_end|>, V3 with
 * "function<|tool_sep|>N\n```json\n{...}\n```" Kimi
 * <|tool_call_begin|>functions.N:0<|tool_call_argument_begin|>{...}<|tool_call_end|> */
#include "reply/calls.h"

#include <stdlib.h>
#include <string.h>

#define MAX_CALLS 256

typedef struct span {
    const char *s;
    size_t n;
} span;

void mf__calls_free(mf__calls *calls) {
    for (size_t i = 0; i < calls->n; i++) {
        mf__strbuf_free(&calls->calls[i].name);
        mf__strbuf_free(&calls->calls[i].arguments);
    }
    free(calls->calls);
    *calls = (mf__calls){0};
}

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static span trim(span s) {
    while (s.n && is_space(s.s[0])) s.s++, s.n--;
    while (s.n && is_space(s.s[s.n - 1])) s.n--;
    return s;
}

/* One newline on each side, as the templates write them around values. */
static span trim_lines(span s) {
    if (s.n && s.s[0] == '\n') s.s++, s.n--;
    if (s.n && s.s[s.n - 1] == '\n') s.n--;
    return s;
}

/* Splits s at the first `mark`: *head before it, the rest behind it stays in s. False (s untouched) without it. */
static bool cut(span *s, const char *mark, span *head) {
    size_t n = strlen(mark);
    const char *p = s->n >= n ? memmem(s->s, s->n, mark, n) : NULL;
    if (!p) return false;
    *head = (span){s->s, (size_t)(p - s->s)};
    s->n -= head->n + n;
    s->s = p + n;
    return true;
}

static bool begins(span s, const char *mark) {
    return s.n >= strlen(mark) && memcmp(s.s, mark, strlen(mark)) == 0;
}

static mf_status add_call(mf__calls *calls, span name, mf__call **out, mf_error *err) {
    *out = NULL;
    if (calls->n == MAX_CALLS) return mf__fail(err, MF_E_LIMIT, "more than %d tool calls at once", MAX_CALLS);
    mf__call *more = realloc(calls->calls, (calls->n + 1) * sizeof *more);
    if (!more) return mf__fail(err, MF_E_NOMEM, "no memory for a tool call");
    calls->calls = more;
    *out = &calls->calls[calls->n++];
    **out = (mf__call){{0}, {0}};
    return mf__strbuf_append(&(*out)->name, name.s, name.n, err);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static json_t *parse_any(span s) {
    return json_loadb(s.s, s.n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
}

/* The length of the JSON value at s, which is known to be valid JSON. */
static size_t value_length(span s) {
    size_t depth = 0;
    for (size_t i = 0; i < s.n; i++) {
        char c = s.s[i];
        if (c == '"') {
            for (i++; i < s.n && s.s[i] != '"'; i++) i += s.s[i] == '\\';
            if (depth == 0) return i + 1;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return i;
            if (--depth == 0) return i + 1;
        } else if (depth == 0 && (c == ',' || is_space(c))) {
            return i;
        }
    }
    return s.n;
}

/* The text of a member's value, as the model wrote it: numbers keep their digits. object is valid JSON. */
static bool member(span object, const char *key, span *out) {
    size_t n_key = strlen(key);
    span s = trim(object);
    if (!begins(s, "{")) return false;
    s.s++, s.n--;
    for (s = trim(s); s.n && s.s[0] == '"'; s = trim(s)) {
        size_t n = value_length(s);
        bool same = n == n_key + 2 && memcmp(s.s + 1, key, n_key) == 0;
        s = trim((span){s.s + n, s.n - n});
        if (!begins(s, ":")) return false;
        s = trim((span){s.s + 1, s.n - 1});
        n = value_length(s);
        if (same) return *out = (span){s.s, n}, true;
        s = trim((span){s.s + n, s.n - n});
        if (!begins(s, ",")) return false;
        s.s++, s.n--;
    }
    return false;
}

mf_status mf__calls_add(mf__calls *calls, const char *name, size_t n_name, const char *args, size_t n_args,
                        bool *readable, mf_error *err) {
    span n = trim((span){name, n_name}), a = trim((span){args, n_args});
    if (a.n == 0) a = (span){"{}", 2};
    json_t *value = parse_any(a);
    *readable = n.n > 0 && (json_is_object(value) || json_is_string(value));
    mf_status status = MF_OK;
    if (*readable) {
        mf__call *call;
        status = add_call(calls, n, &call, err);
        /* Arguments written as a string are the text of the object. */
        if (status == MF_OK && json_is_string(value))
            status = mf__strbuf_append(&call->arguments, json_string_value(value), json_string_length(value), err);
        else if (status == MF_OK)
            status = mf__strbuf_append(&call->arguments, a.s, a.n, err);
    }
    json_decref(value);
    return status;
}

static mf_status read_json(span block, mf__calls *calls, bool *readable, mf_error *err) {
    json_t *object = parse_any(block);
    const char *name = json_string_value(json_object_get(object, "name"));
    span args = {"{}", 2};
    *readable = name && *name;
    if (*readable && !member(block, "arguments", &args)) member(block, "parameters", &args);
    mf_status status = *readable ? mf__calls_add(calls, name, strlen(name), args.s, args.n, readable, err) : MF_OK;
    json_decref(object);
    return status;
}

/* ---- values without quotes --------------------------------------------------------------------------------------- */

/* The type that the request's tools give a parameter; NULL: not said. */
static const char *declared_type(const json_t *tools, span name, span key) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *f = json_array_get(tools, i), *inner = json_object_get(f, "function"), *p;
        if (inner) f = inner;
        const char *fname = json_string_value(json_object_get(f, "name"));
        if (!fname || strlen(fname) != name.n || memcmp(fname, name.s, name.n) != 0) continue;
        p = json_object_get(json_object_get(f, "parameters"), "properties");
        const json_t *type = json_object_get(json_object_getn(p, key.s, key.n), "type");
        if (json_is_array(type)) { /* a choice: a string only if nothing else is possible */
            for (size_t k = 0; k < json_array_size(type); k++) {
                const char *t = json_string_value(json_array_get(type, k));
                if (t && strcmp(t, "string") != 0) return "any";
            }
            return "string";
        }
        return json_string_value(type);
    }
    return NULL;
}

static mf_status put_string(mf__strbuf *out, span s, mf_error *err) {
    json_t *string = json_stringn(s.s, s.n);
    char *text = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    if (!text)
        return mf__fail(err, MF_E_INVALID, "a tool call's text is not valid UTF-8, or there is no memory for it");
    mf_status status = mf__strbuf_append(out, text, strlen(text), err);
    free(text);
    return status;
}

/* A bare value as JSON: a string unless the tool's types, or without them the value's look, say otherwise. */
static mf_status put_value(mf__strbuf *out, const char *type, span raw, mf_error *err) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    span s = trim(raw);
    if (type && strcmp(type, "string") == 0) return put_string(out, raw, err);
    for (size_t i = 0; i < MF__COUNT(words); i++)
        if (s.n == strlen(words[i][0]) && memcmp(s.s, words[i][0], s.n) == 0)
            return mf__strbuf_append(out, words[i][1], strlen(words[i][1]), err);
    json_t *value = s.n ? parse_any(s) : NULL;
    bool bare = value && !json_is_string(value);
    json_decref(value);
    return bare ? mf__strbuf_append(out, s.s, s.n, err) : put_string(out, raw, err);
}

static mf_status put_argument(mf__call *call, const json_t *tools, span key, span value, mf_error *err) {
    span name = {call->name.data, call->name.size};
    MF__TRY(mf__strbuf_append(&call->arguments, call->arguments.size > 1 ? ", " : "", call->arguments.size > 1 ? 2 : 0,
                              err));
    MF__TRY(put_string(&call->arguments, key, err));
    MF__TRY(mf__strbuf_append(&call->arguments, ": ", 2, err));
    return put_value(&call->arguments, declared_type(tools, name, key), value, err);
}

/* <function=N> ... </function>, or <invoke name="N"> ... </invoke>; several in a row. */
static mf_status read_functions(span s, const json_t *tools, bool invoke, mf__calls *calls, bool *readable,
                                mf_error *err) {
    span name, body, key, value, rest;
    while (cut(&s, invoke ? "<invoke name=\"" : "<function=", &rest)) {
        *readable = false;
        if (!cut(&s, invoke ? "\">" : ">", &name) || trim(name).n == 0) return MF_OK;
        if (!cut(&s, invoke ? "</invoke>" : "</function>", &body)) body = s, s.n = 0;
        mf__call *call;
        MF__TRY(add_call(calls, trim(name), &call, err));
        MF__TRY(mf__strbuf_append(&call->arguments, "{", 1, err));
        while (cut(&body, invoke ? "<parameter name=\"" : "<parameter=", &rest)) {
            if (!cut(&body, invoke ? "\">" : ">", &key) || !cut(&body, "</parameter>", &value)) return MF_OK;
            MF__TRY(put_argument(call, tools, trim(key), invoke ? value : trim_lines(value), err));
        }
        MF__TRY(mf__strbuf_append(&call->arguments, "}", 1, err));
        *readable = true;
    }
    return MF_OK;
}

static mf_status read_glm(span s, const json_t *tools, mf__calls *calls, bool *readable, mf_error *err) {
    span name = s, key, value, rest;
    const char *p = s.n ? memmem(s.s, s.n, "<arg_key>", 9) : NULL;
    if (p) name.n = (size_t)(p - s.s);
    name = trim(name);
    if (name.n == 0 || memchr(name.s, '\n', name.n) || memchr(name.s, '<', name.n) || memchr(name.s, '{', name.n))
        return MF_OK;
    mf__call *call;
    MF__TRY(add_call(calls, name, &call, err));
    MF__TRY(mf__strbuf_append(&call->arguments, "{", 1, err));
    while (cut(&s, "<arg_key>", &rest)) {
        if (!cut(&s, "</arg_key>", &key) || !cut(&s, "<arg_value>", &rest) || !cut(&s, "</arg_value>", &value))
            return MF_OK;
        MF__TRY(put_argument(call, tools, trim(key), value, err));
    }
    *readable = true;
    return mf__strbuf_append(&call->arguments, "}", 1, err);
}

/* ---- calls between special tokens ------------------------------------------------------------------------------ */

static mf_status read_deepseek(span s, mf__calls *calls, bool *readable, mf_error *err) {
    span one, name, rest, fence;
    while (cut(&s, "<｜tool▁call▁begin｜>", &rest)) {
        if (!cut(&s, "<｜tool▁call▁end｜>", &one)) one = s, s.n = 0;
        *readable = false;
        if (!cut(&one, "<｜tool▁sep｜>", &name)) return MF_OK;
        if (cut(&one, "\n```json", &rest)) { /* V3: the type came first, the name second */
            name = rest;
            if (cut(&one, "```", &fence)) one = fence;
        }
        MF__TRY(mf__calls_add(calls, name.s, name.n, one.s, one.n, readable, err));
        if (!*readable) return MF_OK;
    }
    return MF_OK;
}

static mf_status read_kimi(span s, mf__calls *calls, bool *readable, mf_error *err) {
    span one, name, rest;
    while (cut(&s, "<|tool_call_begin|>", &rest)) {
        if (!cut(&s, "<|tool_call_end|>", &one)) one = s, s.n = 0;
        *readable = false;
        if (!cut(&one, "<|tool_call_argument_begin|>", &name)) return MF_OK;
        name = trim(name);
        if (begins(name, "functions.")) name.s += 10, name.n -= 10;
        const char *colon = name.n ? memrchr(name.s, ':', name.n) : NULL;
        if (colon) name.n = (size_t)(colon - name.s);
        MF__TRY(mf__calls_add(calls, name.s, name.n, one.s, one.n, readable, err));
        if (!*readable) return MF_OK;
    }
    return MF_OK;
}

mf_status mf__calls_read(mf__notation notation, const json_t *tools, const char *block, size_t n, mf__calls *out,
                         bool *readable, mf_error *err) {
    span s = trim((span){block, n});
    mf_status status = MF_OK;
    *out = (mf__calls){0};
    *readable = false;
    if (notation == MF__NOTATION_DEEPSEEK)
        status = read_deepseek(s, out, readable, err);
    else if (notation == MF__NOTATION_KIMI)
        status = read_kimi(s, out, readable, err);
    else if (notation == MF__NOTATION_MINIMAX)
        status = read_functions(s, tools, true, out, readable, err);
    else if (begins(s, "{"))
        status = read_json(s, out, readable, err);
    else if (begins(s, "<function="))
        status = read_functions(s, tools, false, out, readable, err);
    else
        status = read_glm(s, tools, out, readable, err);
    if (status != MF_OK || !*readable) mf__calls_free(out);
    return status;
}
