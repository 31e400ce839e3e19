/* Tool calls in the models' notations: see the goldens of their templates for what each looks like.
 *
 *   Qwen3         {"name": N, "arguments": {...}}, several, or a list of them
 *   Qwen3-Coder   <function=N>\n<parameter=K>\nV\n</parameter>\n</function>
 *   GLM           N\n<arg_key>K</arg_key>\n<arg_value>V</arg_value>
 *   MiniMax       <invoke name="N"><parameter name="K">V</parameter></invoke>
 *   DeepSeek-V3.2 <|DSML|invoke name="N"><|DSML|parameter name="K" string="true">V</|DSML|parameter></|DSML|invoke>
 *   DeepSeek      <|tool_call_begin|>N<|tool_sep|>{...}<|tool_call_end|>,
 *                 V3 with function<|tool_sep|>N\n```json\n{...}\n```
 *   Kimi          <|tool_call_begin|>functions.N:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
 *
 * (calls_later.c has those of later models.) A value may contain the tag that closes it: it ends where something
 * follows that can follow a value. */
#include "reply/calls_int.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "reply/values.h"

#define MAX_CALLS 256
#define MAX_NAME 256

typedef mf__span span;

typedef mf__reading reading;

void mf__calls_free(mf__calls *calls) {
    for (size_t i = 0; i < calls->n; i++) {
        mf__strbuf_free(&calls->calls[i].name);
        mf__strbuf_free(&calls->calls[i].arguments);
        mf__strbuf_free(&calls->calls[i].id);
    }
    free(calls->calls);
    *calls = (mf__calls){0};
}

mf_status mf__call_add(mf__calls *calls, span name, mf__call **out, mf_error *err) {
    *out = NULL;
    if (calls->n == MAX_CALLS) return mf__fail(err, MF_E_LIMIT, "more than %d tool calls at once", MAX_CALLS);
    mf__call *more = realloc(calls->calls, (calls->n + 1) * sizeof *more);
    if (!more) return mf__fail(err, MF_E_NOMEM, "no memory for a tool call");
    calls->calls = more;
    *out = &calls->calls[calls->n++];
    **out = (mf__call){{0}, {0}, {0}};
    return mf__strbuf_append(&(*out)->name, name.s, name.n, err);
}

static mf_status is_none(reading *r) {
    *r->verdict = MF__CALLS_NONE;
    return MF_OK;
}

static mf_status is_open(reading *r) {
    *r->verdict = MF__CALLS_OPEN;
    return MF_OK;
}

bool mf__calls_is_name(span s) {
    if (!s.n || s.n > MAX_NAME) return false;
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.s[i] <= ' ' || strchr("<>{}\"", s.s[i])) return false;
    return true;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

/* Arguments as models write them: an object, nothing, null, or the text of an object as a string. */
static mf_status put_arguments(mf__call *call, span a, bool *good, mf_error *err) {
    *good = true;
    if (!a.n || mf__span_is(a, "null")) return mf__strbuf_append(&call->arguments, "{}", 2, err);
    if (a.s[0] == '{') return mf__strbuf_append(&call->arguments, a.s, a.n, err);
    if (a.s[0] != '"') return *good = false, MF_OK;
    MF__TRY(mf__json_unquote(&call->arguments, a, err));
    span inner = mf__span_trim((span){call->arguments.data, call->arguments.size});
    if (!inner.n) return mf__strbuf_append(&call->arguments, "{}", 2, err);
    *good = inner.s[0] == '{' && mf__json_is_value(inner);
    return MF_OK;
}

mf_status mf__calls_add(mf__calls *calls, span name, span arguments, mf__calls_verdict *verdict, mf_error *err) {
    mf__call *call;
    bool good;
    span n = mf__span_trim(name), a = mf__span_trim(arguments);
    *verdict = MF__CALLS_NONE;
    if (!mf__calls_is_name(n) || (a.n && !mf__json_is_value(a))) return MF_OK;
    MF__TRY(mf__call_add(calls, n, &call, err));
    MF__TRY(put_arguments(call, a, &good, err));
    if (good) *verdict = MF__CALLS_READ;
    return MF_OK;
}

/* {"name", "arguments"}, or the same in "function". */
static mf_status read_call_object(reading *r, span object) {
    span name, args = {"", 0}, inner, id;
    mf__strbuf text = {0};
    if (!mf__span_begins(object, "{")) return is_none(r);
    if (!mf__json_member(object, "name", &name) && mf__json_member(object, "function", &inner) && inner.s[0] == '{')
        object = inner;
    if (!mf__json_member(object, "name", &name) || name.s[0] != '"') return is_none(r);
    if (!mf__json_member(object, "arguments", &args)) mf__json_member(object, "parameters", &args);
    mf_status st = mf__json_unquote(&text, name, r->err);
    if (st == MF_OK) st = mf__calls_add(r->calls, (span){text.data, text.size}, args, r->verdict, r->err);
    if (st == MF_OK && *r->verdict == MF__CALLS_READ && mf__json_member(object, "id", &id) && id.s[0] == '"')
        st = mf__json_unquote(&r->calls->calls[r->calls->n - 1].id, id, r->err);
    mf__strbuf_free(&text);
    return st;
}

static mf_status read_call_list(reading *r, span list) {
    size_t n;
    bool in_string;
    mf__span_skip(&list, 1);
    for (list = mf__span_trim(list); list.n && list.s[0] != ']'; list = mf__span_trim(list)) {
        if (mf__json_scan(list, &n, &in_string) != MF__JSON_WHOLE) return is_none(r);
        MF__TRY(read_call_object(r, (span){list.s, n}));
        if (*r->verdict != MF__CALLS_READ) return MF_OK;
        mf__span_skip(&list, n);
        list = mf__span_trim(list);
        if (mf__span_begins(list, ",")) mf__span_skip(&list, 1);
    }
    return MF_OK;
}

/* Objects and lists of them, one behind the other, perhaps with commas in between. */
static mf_status read_json(reading *r, span s) {
    size_t n;
    bool in_string;
    for (; s.n; s = mf__span_trim(s)) {
        mf__json_verdict v = mf__json_scan(s, &n, &in_string);
        if (v != MF__JSON_WHOLE) return v == MF__JSON_CUT && in_string ? is_open(r) : is_none(r);
        MF__TRY(s.s[0] == '[' ? read_call_list(r, (span){s.s, n}) : read_call_object(r, (span){s.s, n}));
        if (*r->verdict != MF__CALLS_READ) return MF_OK;
        mf__span_skip(&s, n);
        s = mf__span_trim(s);
        if (mf__span_begins(s, ",")) mf__span_skip(&s, 1);
    }
    return MF_OK;
}

/* ---- values in tags ---------------------------------------------------------------------------------------------- */

mf_status mf__call_key(reading *r, mf__call *call, span key) {
    bool first = call->arguments.size <= 1;
    MF__TRY(mf__strbuf_append(&call->arguments, ", ", first ? 0 : 2, r->err));
    MF__TRY(mf__json_quote(&call->arguments, key, r->err));
    return mf__strbuf_append(&call->arguments, ": ", 2, r->err);
}

mf_status mf__call_argument(reading *r, mf__call *call, span key, span value) {
    const json_t *tool = mf__tool_find(r->tools, (span){call->name.data, call->name.size});
    MF__TRY(mf__call_key(r, call, key));
    return mf__value_put(&call->arguments, tool, key, value, r->err);
}

bool mf__call_cut_value(span *s, const char *close, const char *const next[], span *value) {
    span rest = *s, head;
    while (mf__span_cut(&rest, close, &head)) {
        span after = mf__span_trim(rest);
        bool ends = !after.n;
        for (int i = 0; next[i] && !ends; i++) ends = mf__span_begins(after, next[i]);
        if (!ends) continue;
        *value = (span){s->s, (size_t)(head.s + head.n - s->s)};
        *s = after;
        return true;
    }
    return false;
}

/* One newline on each side, as the templates write them around values. */
static span trim_lines(span s) {
    if (s.n && s.s[0] == '\n') s.s++, s.n--;
    if (s.n && s.s[s.n - 1] == '\n') s.n--;
    return s;
}

/* <function=N> ... </function>, several in a row. */
static mf_status read_functions(reading *r, span s) {
    static const char *const next[] = {"<parameter=", "</function>", NULL};
    span name, key, value;
    mf__call *call;
    *r->verdict = MF__CALLS_NONE;
    while (mf__span_begins(s, "<function=")) {
        *r->verdict = MF__CALLS_NONE;
        mf__span_skip(&s, strlen("<function="));
        if (!mf__span_cut(&s, ">", &name) || !mf__calls_is_name(mf__span_trim(name))) return MF_OK;
        MF__TRY(mf__call_add(r->calls, mf__span_trim(name), &call, r->err));
        MF__TRY(mf__strbuf_append(&call->arguments, "{", 1, r->err));
        for (s = mf__span_trim(s); mf__span_begins(s, "<parameter=");) {
            mf__span_skip(&s, strlen("<parameter="));
            if (!mf__span_cut(&s, ">", &key)) return MF_OK;
            if (!mf__call_cut_value(&s, "</parameter>", next, &value)) return is_open(r);
            MF__TRY(mf__call_argument(r, call, mf__span_trim(key), trim_lines(value)));
        }
        MF__TRY(mf__strbuf_append(&call->arguments, "}", 1, r->err));
        if (mf__span_begins(s, "</function>"))
            mf__span_skip(&s, strlen("</function>"));
        else if (s.n)
            return MF_OK;
        s = mf__span_trim(s);
        *r->verdict = MF__CALLS_READ;
    }
    return s.n ? is_none(r) : MF_OK;
}

static mf_status read_glm(reading *r, span s) {
    static const char *const next[] = {"<arg_key>", NULL};
    span name = s, key, value, rest;
    const char *p = s.n ? memmem(s.s, s.n, "<arg_key>", 9) : NULL;
    mf__call *call;
    if (p) name.n = (size_t)(p - s.s);
    mf__span_skip(&s, name.n);
    name = mf__span_trim(name);
    if (!mf__calls_is_name(name)) return is_none(r);
    MF__TRY(mf__call_add(r->calls, name, &call, r->err));
    MF__TRY(mf__strbuf_append(&call->arguments, "{", 1, r->err));
    while (mf__span_begins(s, "<arg_key>")) {
        mf__span_skip(&s, strlen("<arg_key>"));
        if (!mf__span_cut(&s, "</arg_key>", &key) || !mf__span_cut(&s, "<arg_value>", &rest) || mf__span_trim(rest).n)
            return is_none(r);
        if (!mf__call_cut_value(&s, "</arg_value>", next, &value)) return is_open(r);
        MF__TRY(mf__call_argument(r, call, mf__span_trim(key), value));
    }
    if (s.n) return is_none(r);
    return mf__strbuf_append(&call->arguments, "}", 1, r->err);
}

/* <invoke name="N"> ... </invoke>, several in a row: MiniMax, and with DSML in the tags DeepSeek. */
typedef struct invoke_tags {
    const char *open, *close, *parameter, *parameter_end;
} invoke_tags;

static const invoke_tags minimax_tags = {"<invoke name=\"", "</invoke>", "<parameter name=\"", "</parameter>"};
static const invoke_tags dsml_tags = {"<｜DSML｜invoke name=\"", "</｜DSML｜invoke>", "<｜DSML｜parameter name=\"",
                                      "</｜DSML｜parameter>"};

static mf_status read_parameter(reading *r, const invoke_tags *t, mf__call *call, span *s, bool *good) {
    const char *const next[] = {t->parameter, t->close, NULL};
    span key, attributes, value;
    *good = false;
    mf__span_skip(s, strlen(t->parameter));
    if (!mf__span_cut(s, "\"", &key) || !mf__span_cut(s, ">", &attributes)) return is_none(r);
    if (!mf__call_cut_value(s, t->parameter_end, next, &value)) return is_open(r);
    *good = true;
    attributes = mf__span_trim(attributes);
    if (mf__span_is(attributes, "string=\"true\"")) {
        MF__TRY(mf__call_key(r, call, key));
        return mf__json_quote(&call->arguments, value, r->err);
    }
    if (mf__span_is(attributes, "string=\"false\"") && mf__json_is_value(value)) {
        value = mf__span_trim(value);
        MF__TRY(mf__call_key(r, call, key));
        return mf__strbuf_append(&call->arguments, value.s, value.n, r->err);
    }
    return mf__call_argument(r, call, key, value);
}

static mf_status read_invokes(reading *r, const invoke_tags *t, span s) {
    span name, rest;
    mf__call *call;
    bool good;
    *r->verdict = MF__CALLS_NONE;
    while (mf__span_begins(s, t->open)) {
        *r->verdict = MF__CALLS_NONE;
        mf__span_skip(&s, strlen(t->open));
        if (!mf__span_cut(&s, "\"", &name) || !mf__calls_is_name(name) || !mf__span_cut(&s, ">", &rest)) return MF_OK;
        MF__TRY(mf__call_add(r->calls, name, &call, r->err));
        MF__TRY(mf__strbuf_append(&call->arguments, "{", 1, r->err));
        for (s = mf__span_trim(s); mf__span_begins(s, t->parameter);) {
            MF__TRY(read_parameter(r, t, call, &s, &good));
            if (!good) return MF_OK;
        }
        MF__TRY(mf__strbuf_append(&call->arguments, "}", 1, r->err));
        if (mf__span_begins(s, t->close))
            mf__span_skip(&s, strlen(t->close));
        else if (s.n)
            return MF_OK;
        s = mf__span_trim(s);
        *r->verdict = MF__CALLS_READ;
    }
    return s.n ? is_none(r) : MF_OK;
}

/* ---- calls between special tokens ------------------------------------------------------------------------------ */

bool mf__call_take_object(reading *r, span *s, span *object) {
    size_t n = 0;
    bool in_string;
    *s = mf__span_trim(*s);
    mf__json_verdict v = mf__json_scan(*s, &n, &in_string);
    *r->verdict = v == MF__JSON_CUT && in_string ? MF__CALLS_OPEN : MF__CALLS_NONE;
    if (v != MF__JSON_WHOLE && s->n && s->s[0] != '<' && s->s[0] != '`') return false;
    *object = (span){s->s, v == MF__JSON_WHOLE ? n : 0};
    mf__span_skip(s, object->n);
    *s = mf__span_trim(*s);
    return true;
}

static void skip_if(span *s, const char *mark) {
    if (mf__span_begins(*s, mark)) mf__span_skip(s, strlen(mark));
    *s = mf__span_trim(*s);
}

static mf_status read_deepseek(reading *r, span s) {
    static const char begin[] = "<｜tool▁call▁begin｜>", sep[] = "<｜tool▁sep｜>", fence[] = "\n```json";
    span name, args;
    *r->verdict = MF__CALLS_NONE;
    while (mf__span_begins(s, begin)) {
        mf__span_skip(&s, sizeof begin - 1);
        if (!mf__span_cut(&s, sep, &name)) return is_none(r);
        const char *line = memchr(s.s, '\n', s.n);
        if (line && mf__span_begins((span){line, (size_t)(s.s + s.n - line)}, fence)) { /* V3: the name comes second */
            name = (span){s.s, (size_t)(line - s.s)};
            mf__span_skip(&s, name.n + sizeof fence - 1);
        }
        if (!mf__call_take_object(r, &s, &args)) return MF_OK;
        MF__TRY(mf__calls_add(r->calls, name, args, r->verdict, r->err));
        if (*r->verdict != MF__CALLS_READ) return MF_OK;
        skip_if(&s, "```");
        skip_if(&s, "<｜tool▁call▁end｜>");
    }
    return s.n ? is_none(r) : MF_OK;
}

static mf_status read_kimi(reading *r, span s) {
    static const char begin[] = "<|tool_call_begin|>";
    span id, name, args;
    *r->verdict = MF__CALLS_NONE;
    while (mf__span_begins(s, begin)) {
        mf__span_skip(&s, sizeof begin - 1);
        if (!mf__span_cut(&s, "<|tool_call_argument_begin|>", &id)) return is_none(r);
        name = id = mf__span_trim(id);
        if (mf__span_begins(name, "functions.")) mf__span_skip(&name, strlen("functions."));
        const char *colon = name.n ? memrchr(name.s, ':', name.n) : NULL;
        if (colon) name.n = (size_t)(colon - name.s);
        if (!mf__call_take_object(r, &s, &args)) return MF_OK;
        MF__TRY(mf__calls_add(r->calls, name, args, r->verdict, r->err));
        if (*r->verdict != MF__CALLS_READ) return MF_OK;
        MF__TRY(mf__strbuf_append(&r->calls->calls[r->calls->n - 1].id, id.s, id.n, r->err));
        skip_if(&s, "<|tool_call_end|>");
    }
    return s.n ? is_none(r) : MF_OK;
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

mf_status mf__calls_read(mf__notation notation, const json_t *tools, span block, mf__calls *out,
                         mf__calls_verdict *verdict, mf_error *err) {
    span s = mf__span_trim(block);
    reading r = {tools, out, verdict, err};
    mf_status st = MF_OK;
    *out = (mf__calls){0};
    *verdict = s.n ? MF__CALLS_READ : MF__CALLS_NONE;
    if (notation == MF__NOTATION_DEEPSEEK)
        st = read_deepseek(&r, s);
    else if (notation == MF__NOTATION_KIMI)
        st = read_kimi(&r, s);
    else if (notation == MF__NOTATION_MINIMAX)
        st = read_invokes(&r, &minimax_tags, s);
    else if (notation == MF__NOTATION_DSML)
        st = read_invokes(&r, &dsml_tags, s);
    else if (notation == MF__NOTATION_HY3)
        st = mf__calls_read_hy3(&r, s);
    else if (notation == MF__NOTATION_MINIMAX3)
        st = mf__calls_read_minimax3(&r, s);
    else if (notation == MF__NOTATION_GEMMA)
        st = mf__calls_read_gemma(&r, s);
    else if (notation == MF__NOTATION_MISTRAL && s.n && s.s[0] != '[' && s.s[0] != '{')
        st = mf__calls_read_mistral(&r, s);
    else if (mf__span_begins(s, "{") || mf__span_begins(s, "["))
        st = read_json(&r, s);
    else if (mf__span_begins(s, "<function="))
        st = read_functions(&r, s);
    else if (s.n)
        st = read_glm(&r, s);
    if (*verdict == MF__CALLS_READ && !out->n) *verdict = MF__CALLS_NONE;
    if (st != MF_OK || *verdict != MF__CALLS_READ) mf__calls_free(out);
    return st;
}

bool mf__call_agrees(span s, const char *mark) {
    size_t n = strlen(mark);
    return !memcmp(s.s, mark, s.n < n ? s.n : n);
}

/* A GLM call: a name, then white space, then the first key. */
static bool may_be_glm(span s) {
    size_t n = 0;
    while (n < s.n && (isalnum((unsigned char)s.s[n]) || strchr("_-.:/", s.s[n]))) n++;
    span after = {s.s + n, s.n - n};
    while (after.n && mf__is_space(after.s[0])) mf__span_skip(&after, 1);
    return n > 0 && n <= MAX_NAME && (!after.n || mf__call_agrees(after, "<arg_key>"));
}

bool mf__calls_may_be(mf__notation notation, span s) {
    while (s.n && mf__is_space(s.s[0])) mf__span_skip(&s, 1);
    if (!s.n) return true;
    switch (notation) {
    case MF__NOTATION_DEEPSEEK: return mf__call_agrees(s, "<｜tool▁call▁begin｜>");
    case MF__NOTATION_KIMI: return mf__call_agrees(s, "<|tool_call_begin|>");
    case MF__NOTATION_MINIMAX: return mf__call_agrees(s, minimax_tags.open);
    case MF__NOTATION_DSML: return mf__call_agrees(s, dsml_tags.open);
    case MF__NOTATION_HY3:
    case MF__NOTATION_MINIMAX3:
    case MF__NOTATION_GEMMA:
    case MF__NOTATION_MISTRAL: return mf__calls_later_may_be(notation, s);
    default: return s.s[0] == '{' || s.s[0] == '[' || mf__call_agrees(s, "<function=") || may_be_glm(s);
    }
}
