/* Arguments while they are written: see pieces.h. */
#include "reply/pieces.h"

#include <string.h>

typedef mf__span span;
typedef enum head { HEAD_FOUND, HEAD_CUT, HEAD_NONE } head;

static void skip_space(span *s) {
    while (s->n && mf__is_space(s->s[0])) mf__span_skip(s, 1);
}

/* Takes `mark` off s, and white space before it. */
static head take(span *s, const char *mark) {
    size_t n = strlen(mark);
    skip_space(s);
    if (memcmp(s->s, mark, s->n < n ? s->n : n) != 0) return HEAD_NONE;
    if (s->n < n) return HEAD_CUT;
    mf__span_skip(s, n);
    return HEAD_FOUND;
}

#define TAKE(s, mark)                                                                                                  \
    do {                                                                                                               \
        head taken = take(s, mark);                                                                                    \
        if (taken != HEAD_FOUND) return taken;                                                                         \
    } while (0)

/* The opening bracket of the arguments follows; it stays. */
static head object_follows(span *s) {
    span rest = *s;
    TAKE(&rest, "{");
    skip_space(s);
    return HEAD_FOUND;
}

/* {"name": N, "arguments": { */
static head json_head(span *s, mf__piece *out) {
    size_t n;
    bool in_string;
    TAKE(s, "{");
    TAKE(s, "\"name\"");
    TAKE(s, ":");
    skip_space(s);
    mf__json_verdict v = mf__json_scan(*s, &n, &in_string);
    if (v != MF__JSON_WHOLE) return v == MF__JSON_CUT ? HEAD_CUT : HEAD_NONE;
    if (s->s[0] != '"') return HEAD_NONE;
    out->name = (span){s->s, n};
    out->quoted = true;
    mf__span_skip(s, n);
    TAKE(s, ",");
    TAKE(s, "\"arguments\"");
    TAKE(s, ":");
    return object_follows(s);
}

/* <|tool_call_begin|>functions.N:0<|tool_call_argument_begin|>{ */
static head kimi_head(span *s, mf__piece *out) {
    TAKE(s, "<|tool_call_begin|>");
    if (!mf__span_cut(s, "<|tool_call_argument_begin|>", &out->id)) return HEAD_CUT;
    out->name = out->id = mf__span_trim(out->id);
    if (mf__span_begins(out->name, "functions.")) mf__span_skip(&out->name, strlen("functions."));
    const char *colon = out->name.n ? memrchr(out->name.s, ':', out->name.n) : NULL;
    if (colon) out->name.n = (size_t)(colon - out->name.s);
    return object_follows(s);
}

/* <|tool_call_begin|>N<|tool_sep|>{, or function<|tool_sep|>N, an end of line and ```json before it. */
static head deepseek_head(span *s, mf__piece *out) {
    TAKE(s, "<｜tool▁call▁begin｜>");
    if (!mf__span_cut(s, "<｜tool▁sep｜>", &out->name)) return HEAD_CUT;
    span rest = *s;
    skip_space(&rest);
    if (!rest.n) return HEAD_CUT;
    if (rest.s[0] == '{') return object_follows(s);
    if (!mf__span_cut(s, "\n", &out->name)) return HEAD_CUT;
    TAKE(s, "```json");
    return object_follows(s);
}

static head find_head(mf__notation notation, span name, span *s, mf__piece *out) {
    *out = (mf__piece){.name = name};
    switch (notation) {
    case MF__NOTATION_TAGS: return json_head(s, out);
    case MF__NOTATION_KIMI: return kimi_head(s, out);
    case MF__NOTATION_DEEPSEEK: return deepseek_head(s, out);
    case MF__NOTATION_HARMONY: return object_follows(s);
    default: return HEAD_NONE;
    }
}

/* What is between two calls of a block. */
static void skip_closing(mf__notation notation, span *s) {
    const char *mark = notation == MF__NOTATION_KIMI ? "<|tool_call_begin|>" : "<｜tool▁call▁begin｜>";
    const char *next = s->n ? memmem(s->s, s->n, mark, strlen(mark)) : NULL;
    if (next) mf__span_skip(s, (size_t)(next - s->s));
}

/* Bytes of s that belong to the arguments; the last bracket ends them. */
static size_t scan(mf__pieces *p, span s) {
    for (size_t i = 0; i < s.n; i++) {
        char c = s.s[i];
        if (p->escaped) {
            p->escaped = false;
        } else if (p->in_string) {
            p->escaped = c == '\\';
            p->in_string = c != '"';
        } else if (c == '"') {
            p->in_string = true;
        } else if (c == '{' || c == '[') {
            p->depth++;
        } else if ((c == '}' || c == ']') && --p->depth == 0) {
            p->inside = false;
            return i + 1;
        }
    }
    return s.n;
}

mf__pieces_event mf__pieces_next(mf__pieces *p, mf__notation notation, span name, span block, mf__piece *out) {
    span rest = {block.s + p->at, block.n - p->at};
    if (p->blind || !rest.n) return MF__PIECES_WAIT;
    if (p->inside) {
        size_t n = scan(p, rest);
        *out = (mf__piece){.text = {rest.s, n}};
        p->at += n;
        p->n_given += n;
        bool more = notation == MF__NOTATION_KIMI || notation == MF__NOTATION_DEEPSEEK;
        p->blind = !p->inside && !more;
        return MF__PIECES_MORE;
    }
    if (p->n_begun) skip_closing(notation, &rest);
    head found = find_head(notation, name, &rest, out);
    p->blind = found == HEAD_NONE && !p->n_begun; /* behind a call: its closing marker, and then perhaps the next */
    if (found != HEAD_FOUND) return MF__PIECES_WAIT;
    p->at = (size_t)(rest.s - block.s);
    p->n_given = 0;
    p->n_begun++;
    p->inside = true;
    p->depth = 0;
    p->in_string = p->escaped = false;
    return MF__PIECES_BEGIN;
}
