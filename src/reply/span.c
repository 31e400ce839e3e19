/* Stretches of text, and a scanner for JSON that knows values that are cut. */
#include "reply/span.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode.h"

#define MAX_DEPTH 256

bool mf__is_space(char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

mf__span mf__span_trim(mf__span s) {
    while (s.n && mf__is_space(s.s[0])) s.s++, s.n--;
    while (s.n && mf__is_space(s.s[s.n - 1])) s.n--;
    return s;
}

bool mf__span_begins(mf__span s, const char *mark) {
    size_t n = strlen(mark);
    return s.n >= n && !memcmp(s.s, mark, n);
}

bool mf__span_is(mf__span s, const char *text) {
    return s.n == strlen(text) && !memcmp(s.s, text, s.n);
}

void mf__span_skip(mf__span *s, size_t n) {
    s->s += n;
    s->n -= n;
}

bool mf__span_cut(mf__span *s, const char *mark, mf__span *head) {
    size_t n = strlen(mark);
    const char *p = s->n >= n ? memmem(s->s, s->n, mark, n) : NULL;
    if (!p) return false;
    *head = (mf__span){s->s, (size_t)(p - s->s)};
    mf__span_skip(s, head->n + n);
    return true;
}

/* ---- scanning ---------------------------------------------------------------------------------------------------- */

/* The parts of a value; each moves *at behind what it read. */

static mf__json_verdict scan_string(mf__span s, size_t *at) {
    for (size_t i = *at + 1; i < s.n; i++) {
        uint8_t c = (uint8_t)s.s[i];
        if (c == '"') return *at = i + 1, MF__JSON_WHOLE;
        if (c < 0x20) return MF__JSON_BAD;
        if (c != '\\') continue;
        if (++i == s.n) return MF__JSON_CUT;
        if (!strchr("\"\\/bfnrtu", s.s[i]) || !s.s[i]) return MF__JSON_BAD;
        for (int k = 0; s.s[i] == 'u' && k < 4; k++) {
            if (i + 1 + (size_t)k >= s.n) return MF__JSON_CUT;
            char h = s.s[i + 1 + (size_t)k];
            if (!((h >= '0' && h <= '9') || (h >= 'a' && h <= 'f') || (h >= 'A' && h <= 'F'))) return MF__JSON_BAD;
        }
    }
    return MF__JSON_CUT;
}

static size_t digits(mf__span s, size_t i) {
    while (i < s.n && s.s[i] >= '0' && s.s[i] <= '9') i++;
    return i;
}

static mf__json_verdict scan_number(mf__span s, size_t *at) {
    size_t i = *at + (s.s[*at] == '-'), from = i;
    i = digits(s, i);
    if (i == from) return i == s.n ? MF__JSON_CUT : MF__JSON_BAD;
    if (s.s[from] == '0' && i > from + 1) return MF__JSON_BAD;
    if (i < s.n && s.s[i] == '.') {
        from = ++i;
        i = digits(s, i);
        if (i == from) return i == s.n ? MF__JSON_CUT : MF__JSON_BAD;
    }
    if (i < s.n && (s.s[i] == 'e' || s.s[i] == 'E')) {
        i++;
        if (i < s.n && (s.s[i] == '+' || s.s[i] == '-')) i++;
        from = i;
        i = digits(s, i);
        if (i == from) return i == s.n ? MF__JSON_CUT : MF__JSON_BAD;
    }
    return *at = i, MF__JSON_WHOLE;
}

static mf__json_verdict scan_word(mf__span s, size_t *at) {
    static const char *const words[] = {"true", "false", "null"};
    for (int k = 0; k < 3; k++) {
        size_t n = strlen(words[k]), there = s.n - *at < n ? s.n - *at : n;
        if (memcmp(s.s + *at, words[k], there)) continue;
        return there < n ? MF__JSON_CUT : (*at += n, MF__JSON_WHOLE);
    }
    return MF__JSON_BAD;
}

static mf__json_verdict scan_scalar(mf__span s, size_t *at, bool *in_string) {
    char c = s.s[*at];
    if (c == '"') {
        mf__json_verdict v = scan_string(s, at);
        *in_string = v == MF__JSON_CUT;
        return v;
    }
    return c == '-' || (c >= '0' && c <= '9') ? scan_number(s, at) : scan_word(s, at);
}

/* What may come next inside an object or array. */
typedef enum expects { VALUE, FIRST_VALUE, KEY, FIRST_KEY, COLON, COMMA } expects;

mf__json_verdict mf__json_scan(mf__span s, size_t *n, bool *in_string) {
    char open[MAX_DEPTH];
    int depth = 0;
    expects next = VALUE;
    *in_string = false;
    for (size_t at = 0; at < s.n;) {
        char c = s.s[at];
        if (mf__is_space(c) && depth) {
            at++;
            continue;
        }
        bool key = next == KEY || next == FIRST_KEY;
        if (next == COLON || next == COMMA) {
            if (next == COLON ? c == ':' : c == ',') {
                next = next == COLON || open[depth - 1] == '[' ? VALUE : KEY;
                at++;
                continue;
            }
            if (next == COLON || c != (open[depth - 1] == '[' ? ']' : '}')) return MF__JSON_BAD;
            at++;
            depth--;
        } else if ((c == ']' && next == FIRST_VALUE) || (c == '}' && next == FIRST_KEY)) {
            at++;
            depth--;
        } else if (!key && (c == '{' || c == '[')) {
            if (depth == MAX_DEPTH) return MF__JSON_BAD;
            open[depth++] = c;
            next = c == '[' ? FIRST_VALUE : FIRST_KEY;
            at++;
            continue;
        } else {
            if (key && c != '"') return MF__JSON_BAD;
            mf__json_verdict v = scan_scalar(s, &at, in_string);
            if (v != MF__JSON_WHOLE) return v;
        }
        if (!depth) return *n = at, MF__JSON_WHOLE;
        next = key ? COLON : COMMA;
        if (c == ']' || c == '}') next = COMMA;
    }
    return MF__JSON_CUT;
}

bool mf__json_is_value(mf__span s) {
    size_t n;
    bool in_string;
    s = mf__span_trim(s);
    return s.n && mf__json_scan(s, &n, &in_string) == MF__JSON_WHOLE && n == s.n;
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

static mf__span take_value(mf__span *at) {
    size_t n = 0;
    bool in_string;
    *at = mf__span_trim(*at);
    if (mf__json_scan(*at, &n, &in_string) != MF__JSON_WHOLE) n = 0;
    mf__span v = {at->s, n};
    mf__span_skip(at, n);
    *at = mf__span_trim(*at);
    return v;
}

bool mf__json_next_member(mf__span *at, mf__span *key, mf__span *value) {
    *at = mf__span_trim(*at);
    if (!at->n || (at->s[0] != '{' && at->s[0] != ',')) return false;
    mf__span_skip(at, 1);
    *key = take_value(at);
    if (key->n < 2 || !at->n || at->s[0] != ':') return false;
    *key = (mf__span){key->s + 1, key->n - 2};
    mf__span_skip(at, 1);
    *value = take_value(at);
    return value->n > 0;
}

bool mf__json_member(mf__span object, const char *key, mf__span *value) {
    mf__span name, v;
    bool found = false;
    while (mf__json_next_member(&object, &name, &v))
        if (mf__span_is(name, key)) *value = v, found = true; /* of two the last one counts */
    return found;
}

/* ---- strings ----------------------------------------------------------------------------------------------------- */

mf_status mf__json_unquote(mf__strbuf *out, mf__span s, mf_error *err) {
    json_t *string = json_loadb(s.s, s.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    mf_status st = MF_OK;
    if (json_is_string(string))
        st = mf__strbuf_append(out, json_string_value(string), json_string_length(string), err);
    else /* an escape that stands for half a character */
        st = mf__strbuf_append(out, s.s + 1, s.n - 2, err);
    json_decref(string);
    return st;
}

mf_status mf__json_quote(mf__strbuf *out, mf__span s, mf_error *err) {
    static const char hex[] = "0123456789abcdef";
    MF__TRY(mf__strbuf_append(out, "\"", 1, err));
    size_t done = 0;
    for (size_t i = 0; i < s.n; i++) {
        uint8_t c = (uint8_t)s.s[i];
        const char *named = c == '"' ? "\\\"" : c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : NULL;
        if (c == '\t') named = "\\t";
        if (!named && c >= 0x20) continue;
        char code[7] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15], 0};
        MF__TRY(mf__strbuf_append(out, s.s + done, i - done, err));
        MF__TRY(mf__strbuf_append(out, named ? named : code, named ? 2 : 6, err));
        done = i + 1;
    }
    MF__TRY(mf__strbuf_append(out, s.s + done, s.n - done, err));
    return mf__strbuf_append(out, "\"", 1, err);
}
