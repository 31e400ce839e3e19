/* Tool calls in the notations of models that came later:
 *
 *   Hy3         <tool_call:opensource>N<tool_sep:opensource> <arg_key:..>K</arg_key:..> <arg_value:..>V</arg_value:..>
 *               </tool_call:opensource>, several in a row
 *   MiniMax-M3  NS<invoke name="N">NS<K>V NS</K>NS</invoke>, NS being ]<]minimax[>[; values may be elements again,
 *               lists are <item>s
 *   Mistral     N[ARGS]{...}, before the next [TOOL_CALLS]; [CALL_ID] may stand between; or a list of objects
 *   Gemma 4     call:N{K:<|"|>text<|"|>,K:12,K:{K:V},K:[V]} */
#include <string.h>

#include "reply/calls_int.h"
#include "reply/values.h"

typedef mf__span span;

#define MAX_NAME 256
#define MAX_DEPTH 32

static mf_status is(mf__reading *r, mf__calls_verdict verdict) {
    *r->verdict = verdict;
    return MF_OK;
}

static mf_status put(mf__reading *r, mf__call *call, const char *text) {
    return mf__strbuf_append(&call->arguments, text, strlen(text), r->err);
}

static bool skip(span *s, const char *mark) {
    if (!mf__span_begins(*s, mark)) return false;
    mf__span_skip(s, strlen(mark));
    return true;
}

/* ---- Hy3 --------------------------------------------------------------------------------------------------------- */

#define HY3(tag) "<" tag ":opensource>"
#define HY3_END(tag) "</" tag ":opensource>"

mf_status mf__calls_read_hy3(mf__reading *r, span s) {
    static const char *const next[] = {HY3("arg_key"), HY3_END("tool_call"), NULL};
    span name, key, rest, value;
    mf__call *call;
    *r->verdict = MF__CALLS_NONE;
    while (skip(&s, HY3("tool_call"))) {
        *r->verdict = MF__CALLS_NONE;
        if (!mf__span_cut(&s, HY3("tool_sep"), &name) || !mf__calls_is_name(mf__span_trim(name))) return MF_OK;
        MF__TRY(mf__call_add(r->calls, mf__span_trim(name), &call, r->err));
        MF__TRY(put(r, call, "{"));
        for (s = mf__span_trim(s); skip(&s, HY3("arg_key"));) {
            if (!mf__span_cut(&s, HY3_END("arg_key"), &key) || !mf__span_cut(&s, HY3("arg_value"), &rest) ||
                mf__span_trim(rest).n)
                return is(r, MF__CALLS_NONE);
            if (!mf__call_cut_value(&s, HY3_END("arg_value"), next, &value)) return is(r, MF__CALLS_OPEN);
            MF__TRY(mf__call_argument(r, call, mf__span_trim(key), value));
        }
        MF__TRY(put(r, call, "}"));
        if (!skip(&s, HY3_END("tool_call")) && s.n) return MF_OK;
        s = mf__span_trim(s);
        *r->verdict = MF__CALLS_READ;
    }
    return s.n ? is(r, MF__CALLS_NONE) : MF_OK;
}

/* ---- MiniMax-M3 -------------------------------------------------------------------------------------------------- */

#define NS "]<]minimax[>["

/* NS<tag>: its name, if *s begins with an opening one. */
static bool take_tag(span *s, span *tag) {
    span rest = *s;
    if (!skip(&rest, NS "<") || mf__span_begins(rest, "/") || !mf__span_cut(&rest, ">", tag) || !tag->n ||
        tag->n > MAX_NAME)
        return false;
    *s = rest;
    return true;
}

/* The element's inside: what lies before the NS</tag> that closes it. Elements of its name may lie in it. */
static bool take_inside(span *s, span tag, span *inside) {
    char open[MAX_NAME + 32], close[MAX_NAME + 32];
    size_t n_open = (size_t)snprintf(open, sizeof open, NS "<%.*s>", (int)tag.n, tag.s);
    size_t n_close = (size_t)snprintf(close, sizeof close, NS "</%.*s>", (int)tag.n, tag.s);
    int depth = 1;
    for (size_t i = 0; i < s->n;) {
        span at = {s->s + i, s->n - i};
        const char *mark = memmem(at.s, at.n, NS, sizeof NS - 1);
        if (!mark) return false;
        i = (size_t)(mark - s->s);
        at = (span){mark, s->n - i};
        bool opens = at.n >= n_open && !memcmp(at.s, open, n_open);
        bool closes = at.n >= n_close && !memcmp(at.s, close, n_close);
        depth += opens - closes;
        if (depth == 0) {
            *inside = (span){s->s, i};
            mf__span_skip(s, i + n_close);
            return true;
        }
        i += opens ? n_open : closes ? n_close : sizeof NS - 1;
    }
    return false;
}

static mf_status put_xml(mf__reading *r, mf__call *call, span value, int depth, bool *good) {
    span rest = mf__span_trim(value), tag, inside;
    if (depth > MAX_DEPTH) return *good = false, MF_OK;
    if (!mf__span_begins(rest, NS "<")) return mf__value_put(&call->arguments, NULL, (span){"", 0}, value, r->err);
    bool list = mf__span_begins(rest, NS "<item>"), first = true;
    MF__TRY(put(r, call, list ? "[" : "{"));
    for (; *good && take_tag(&rest, &tag); first = false) {
        *good = take_inside(&rest, tag, &inside) && list == mf__span_is(tag, "item");
        if (!*good) return MF_OK;
        if (!first) MF__TRY(put(r, call, ", "));
        if (!list) MF__TRY(mf__json_quote(&call->arguments, tag, r->err));
        if (!list) MF__TRY(put(r, call, ": "));
        MF__TRY(put_xml(r, call, inside, depth + 1, good));
        rest = mf__span_trim(rest);
    }
    *good = *good && !rest.n;
    return put(r, call, list ? "]" : "}");
}

static mf_status read_element(mf__reading *r, mf__call *call, span *s, bool *good) {
    span tag, inside;
    *good = take_tag(s, &tag);
    if (!*good) return is(r, MF__CALLS_NONE);
    *good = take_inside(s, tag, &inside);
    if (!*good) return is(r, MF__CALLS_OPEN);
    *s = mf__span_trim(*s);
    if (!mf__span_begins(mf__span_trim(inside), NS "<")) return mf__call_argument(r, call, tag, inside);
    MF__TRY(mf__call_key(r, call, tag));
    MF__TRY(put_xml(r, call, inside, 0, good));
    return *good ? MF_OK : is(r, MF__CALLS_NONE);
}

mf_status mf__calls_read_minimax3(mf__reading *r, span s) {
    span name, rest;
    mf__call *call;
    bool good;
    *r->verdict = MF__CALLS_NONE;
    while (skip(&s, NS "<invoke name=\"")) {
        *r->verdict = MF__CALLS_NONE;
        if (!mf__span_cut(&s, "\"", &name) || !mf__calls_is_name(name) || !mf__span_cut(&s, ">", &rest)) return MF_OK;
        MF__TRY(mf__call_add(r->calls, name, &call, r->err));
        MF__TRY(put(r, call, "{"));
        for (s = mf__span_trim(s); mf__span_begins(s, NS "<") && !mf__span_begins(s, NS "</");) {
            MF__TRY(read_element(r, call, &s, &good));
            if (!good) return MF_OK;
        }
        MF__TRY(put(r, call, "}"));
        if (!skip(&s, NS "</invoke>") && s.n) return MF_OK;
        s = mf__span_trim(s);
        *r->verdict = MF__CALLS_READ;
    }
    return s.n ? is(r, MF__CALLS_NONE) : MF_OK;
}

/* ---- Mistral ----------------------------------------------------------------------------------------------------- */

mf_status mf__calls_read_mistral(mf__reading *r, span s) {
    span name, args, id = {"", 0};
    do {
        s = mf__span_trim(s);
        if (!mf__span_cut(&s, "[ARGS]", &name)) return is(r, MF__CALLS_NONE);
        span before, rest = name;
        id.n = 0;
        if (mf__span_cut(&rest, "[CALL_ID]", &before)) name = before, id = mf__span_trim(rest);
        if (!mf__call_take_object(r, &s, &args)) return MF_OK;
        MF__TRY(mf__calls_add(r->calls, name, args, r->verdict, r->err));
        if (*r->verdict != MF__CALLS_READ) return MF_OK;
        MF__TRY(mf__strbuf_append(&r->calls->calls[r->calls->n - 1].id, id.s, id.n, r->err));
    } while (skip(&s, "[TOOL_CALLS]"));
    return s.n ? is(r, MF__CALLS_NONE) : MF_OK;
}

/* ---- Gemma 4 ----------------------------------------------------------------------------------------------------- */

#define QUOTE "<|\"|>"

typedef enum taken { TAKEN, TAKEN_OPEN, TAKEN_NOT } taken;

static void skip_space(span *s) {
    while (s->n && mf__is_space(s->s[0])) mf__span_skip(s, 1);
}

/* A string between its own quotes, or of JSON. */
static mf_status take_text(mf__reading *r, mf__call *call, span *s, taken *out) {
    span text;
    size_t n;
    bool in_string;
    *out = TAKEN;
    if (skip(s, QUOTE)) {
        if (!mf__span_cut(s, QUOTE, &text)) return *out = TAKEN_OPEN, MF_OK;
        return mf__json_quote(&call->arguments, text, r->err);
    }
    mf__json_verdict v = mf__json_scan(*s, &n, &in_string);
    if (v != MF__JSON_WHOLE) return *out = v == MF__JSON_CUT && in_string ? TAKEN_OPEN : TAKEN_NOT, MF_OK;
    MF__TRY(mf__strbuf_append(&call->arguments, s->s, n, r->err));
    mf__span_skip(s, n);
    return MF_OK;
}

/* A key: bare, or a text. */
static mf_status take_key(mf__reading *r, mf__call *call, span *s, taken *out) {
    size_t n = 0;
    *out = TAKEN;
    if (mf__span_begins(*s, QUOTE) || mf__span_begins(*s, "\"")) return take_text(r, call, s, out);
    while (n < s->n && !strchr(":,{}[]", s->s[n])) n++;
    span key = mf__span_trim((span){s->s, n});
    if (!key.n || n == s->n) return *out = TAKEN_NOT, MF_OK;
    mf__span_skip(s, n);
    return mf__json_quote(&call->arguments, key, r->err);
}

static mf_status take_value(mf__reading *r, mf__call *call, span *s, int depth, taken *out);

/* {K:V,...} or [V,...] behind its opening bracket. */
static mf_status take_members(mf__reading *r, mf__call *call, span *s, char close, int depth, taken *out) {
    MF__TRY(put(r, call, close == '}' ? "{" : "["));
    *out = TAKEN;
    for (bool first = true;; first = false) {
        skip_space(s);
        if (s->n && s->s[0] == close) break;
        if (!first && !skip(s, ",")) return *out = TAKEN_NOT, MF_OK;
        if (!first) MF__TRY(put(r, call, ", "));
        skip_space(s);
        if (close == '}') {
            MF__TRY(take_key(r, call, s, out));
            if (*out != TAKEN) return MF_OK;
            skip_space(s);
            if (!skip(s, ":")) return *out = TAKEN_NOT, MF_OK;
            MF__TRY(put(r, call, ": "));
        }
        MF__TRY(take_value(r, call, s, depth + 1, out));
        if (*out != TAKEN) return MF_OK;
    }
    mf__span_skip(s, 1);
    return put(r, call, close == '}' ? "}" : "]");
}

static mf_status take_value(mf__reading *r, mf__call *call, span *s, int depth, taken *out) {
    skip_space(s);
    *out = TAKEN_NOT;
    if (depth > MAX_DEPTH || !s->n) return MF_OK;
    if (skip(s, "{")) return take_members(r, call, s, '}', depth, out);
    if (skip(s, "[")) return take_members(r, call, s, ']', depth, out);
    if (mf__span_begins(*s, QUOTE) || s->s[0] == '"') return take_text(r, call, s, out);
    size_t n = 0;
    while (n < s->n && !strchr(",}]", s->s[n])) n++;
    span word = mf__span_trim((span){s->s, n});
    if (!word.n || n == s->n) return MF_OK;
    mf__span_skip(s, n);
    *out = TAKEN;
    return mf__value_put(&call->arguments, NULL, (span){"", 0}, word, r->err);
}

mf_status mf__calls_read_gemma(mf__reading *r, span s) {
    span name;
    mf__call *call;
    taken got = TAKEN_NOT;
    *r->verdict = MF__CALLS_NONE;
    while (skip(&s, "call:")) {
        *r->verdict = MF__CALLS_NONE;
        if (!mf__span_cut(&s, "{", &name) || !mf__calls_is_name(mf__span_trim(name))) return MF_OK;
        MF__TRY(mf__call_add(r->calls, mf__span_trim(name), &call, r->err));
        MF__TRY(take_members(r, call, &s, '}', 0, &got));
        if (got != TAKEN) return is(r, got == TAKEN_OPEN ? MF__CALLS_OPEN : MF__CALLS_NONE);
        s = mf__span_trim(s);
        *r->verdict = MF__CALLS_READ;
    }
    return s.n ? is(r, MF__CALLS_NONE) : MF_OK;
}

bool mf__calls_later_may_be(mf__notation notation, span s) {
    switch (notation) {
    case MF__NOTATION_HY3: return mf__call_agrees(s, HY3("tool_call"));
    case MF__NOTATION_MINIMAX3: return mf__call_agrees(s, NS "<invoke name=\"");
    case MF__NOTATION_GEMMA: return mf__call_agrees(s, "call:");
    default: return mf__calls_is_name((span){s.s, 1}) || s.s[0] == '[' || s.s[0] == '{';
    }
}
