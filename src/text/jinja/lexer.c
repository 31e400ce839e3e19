/* From source to tokens, with jinja2's rules about white space around tags:
 *
 *   {%- and -%}   remove white space on that side
 *   trim_blocks   the newline behind a block tag or comment goes, unless it ends in +%}
 *   lstrip_blocks spaces before a block tag or comment that starts its line go, unless it begins with {%+
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/run.h"
#include "text/unicode.h"

#define MAX_SOURCE ((size_t)2 << 20) /* a hundred times the longest that models come with */

typedef struct lexer {
    mf__jinja *t;
    mf__jinja_syntax syntax;
    const char *src;
    size_t size, at;
    int line;
    bool line_starting; /* what was consumed last ended with a newline */
    jtoken *tokens;
    size_t n, capacity;
    mf_error *err;
} lexer;

static mf_status lex_fail(lexer *l, const char *what) {
    return mf__fail(l->err, MF_E_FORMAT, "%s: line %d: %s", l->t->name, l->line, what);
}

static mf_status add(lexer *l, jtoken token) {
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 256;
        jtoken *tokens = realloc(l->tokens, capacity * sizeof *tokens);
        if (!tokens) return mf__fail(l->err, MF_E_NOMEM, "%s: no memory for the template", l->t->name);
        l->tokens = tokens;
        l->capacity = capacity;
    }
    token.line = l->line;
    l->tokens[l->n++] = token;
    return MF_OK;
}

static bool looking_at(const lexer *l, const char *s) {
    size_t n = strlen(s);
    return n <= l->size - l->at && memcmp(l->src + l->at, s, n) == 0;
}

/* Moves on by n bytes, counting lines. */
static void advance(lexer *l, size_t n) {
    for (; n > 0 && l->at < l->size; n--)
        if (l->src[l->at++] == '\n') l->line++;
}

static size_t space_at(const lexer *l, size_t at) { /* bytes of a white space character; 0: none */
    uint32_t c;
    if (at >= l->size) return 0;
    size_t n = (size_t)mf__utf8_decode(l->src + at, &c);
    return mf__j_is_space(c) ? n : 0;
}

static size_t trim_end(const char *s, size_t n) {
    while (n > 0) {
        size_t start = n - 1;
        uint32_t c;
        while (start > 0 && ((uint8_t)s[start] & 0xC0) == 0x80) start--;
        mf__utf8_decode(s + start, &c);
        if (!mf__j_is_space(c)) break;
        n = start;
    }
    return n;
}

/* The text up to the next tag, less what the tag's left side takes away. */
static mf_status add_text(lexer *l, size_t start, size_t end, bool is_variable, char sign) {
    const char *s = l->src + start;
    size_t n = end - start;
    if (sign == '-') {
        n = trim_end(s, n);
    } else if (sign != '+' && !is_variable && !l->syntax.keep_indent) {
        size_t line = n;
        while (line > 0 && s[line - 1] != '\n') line--;
        if ((line > 0 || l->line_starting) && trim_end(s + line, n - line) == 0) n = line;
    }
    mf_status status = n ? add(l, (jtoken){.kind = JT_TEXT, .s = s, .n = n}) : MF_OK;
    advance(l, end - start);
    return status;
}

/* Behind a tag's right side: -%} takes all white space, a plain %} one newline (not for }}). */
static void after_tag(lexer *l, char sign, bool is_variable) {
    size_t from = l->at;
    if (sign == '-') {
        for (size_t n; (n = space_at(l, l->at)) > 0;) advance(l, n);
    } else if (sign != '+' && !is_variable && !l->syntax.keep_newline && looking_at(l, "\n")) {
        advance(l, 1);
    }
    l->line_starting = l->at > from && l->src[l->at - 1] == '\n';
}

static mf_status lex_comment(lexer *l) {
    advance(l, 2);
    while (l->at < l->size && !looking_at(l, "#}")) advance(l, 1);
    if (l->at == l->size) return lex_fail(l, "a comment {# that is not closed");
    char sign = l->src[l->at - 1];
    advance(l, 2);
    after_tag(l, sign, false);
    return MF_OK;
}

/* {% raw %} at the cursor? Then everything up to {% endraw %} is text. */
static mf_status lex_raw(lexer *l, bool *was_raw) {
    size_t i = l->at + 2;
    *was_raw = false;
    if (i < l->size && (l->src[i] == '-' || l->src[i] == '+')) i++;
    while (i < l->size && space_at(l, i)) i += space_at(l, i);
    if (l->size - i < 3 || memcmp(l->src + i, "raw", 3) != 0) return MF_OK;
    i += 3;
    while (i < l->size && space_at(l, i)) i += space_at(l, i);
    char sign = i < l->size ? l->src[i] : 0;
    if (sign == '-' || sign == '+') i++;
    if (l->size - i < 2 || memcmp(l->src + i, "%}", 2) != 0) return MF_OK;
    *was_raw = true;
    advance(l, i + 2 - l->at);
    after_tag(l, sign, true); /* the newline behind {% raw %} stays */
    size_t start = l->at;
    for (size_t k = l->at; k < l->size; k++) {
        size_t e = k + 2;
        if (l->src[k] != '{' || k + 1 >= l->size || l->src[k + 1] != '%') continue;
        char left = e < l->size ? l->src[e] : 0;
        if (left == '-' || left == '+') e++;
        while (e < l->size && space_at(l, e)) e += space_at(l, e);
        if (l->size - e < 6 || memcmp(l->src + e, "endraw", 6) != 0) continue;
        e += 6;
        while (e < l->size && space_at(l, e)) e += space_at(l, e);
        char right = e < l->size ? l->src[e] : 0;
        if (right == '-' || right == '+') e++;
        if (l->size - e < 2 || memcmp(l->src + e, "%}", 2) != 0) continue;
        MF__TRY(add_text(l, start, k, false, left));
        advance(l, e + 2 - l->at);
        after_tag(l, right, false);
        return MF_OK;
    }
    return lex_fail(l, "{% raw %} that is not closed");
}

/* ---- inside tags ----------------------------------------------------------------------------------------------- */

static int hex_value(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One escape at s (behind the backslash). Returns bytes taken; 0: it is none and the backslash stays. */
static size_t unescape(const char *s, size_t n, char *out, size_t *n_out) {
    static const char letters[] = "abfnrtv\\'\"", bytes[] = "\a\b\f\n\r\t\v\\'\"";
    *n_out = 0;
    if (n == 0) return 0;
    const char *p = s[0] ? strchr(letters, s[0]) : NULL;
    if (s[0] == '\n') return 1;
    if (p) return out[(*n_out)++] = bytes[p - letters], 1;
    size_t digits = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    uint32_t c = 0;
    if (digits) {
        if (n < digits + 1) return 0;
        for (size_t i = 1; i <= digits; i++) {
            if (hex_value(s[i]) < 0) return 0;
            c = c << 4 | (uint32_t)hex_value(s[i]);
        }
        if (c >= MF__UNICODE_END || (c >= 0xD800 && c < 0xE000)) return 0;
        *n_out = (size_t)mf__utf8_encode(c, out);
        return digits + 1;
    }
    size_t k = 0;
    for (; k < 3 && k < n && s[k] >= '0' && s[k] <= '7'; k++) c = c * 8 + (uint32_t)(s[k] - '0');
    if (k) *n_out = (size_t)mf__utf8_encode(c, out);
    return k;
}

static mf_status lex_string(lexer *l) {
    char quote = l->src[l->at];
    size_t end = l->at + 1;
    while (end < l->size && l->src[end] != quote) end += l->src[end] == '\\' ? 2 : 1;
    if (end >= l->size) return lex_fail(l, "a string that is not closed");
    const char *s = l->src + l->at + 1;
    size_t n = end - l->at - 1, k = 0;
    void *memory;
    MF__TRY(mf__jinja_tree_alloc(l->t, n + 4, 1, &memory, l->err));
    char *text = memory;
    for (size_t i = 0; i < n;) {
        size_t taken = 0, made;
        if (s[i] == '\\') taken = unescape(s + i + 1, n - i - 1, text + k, &made);
        if (taken) {
            k += made;
            i += taken + 1;
        } else {
            text[k++] = s[i++];
        }
    }
    mf_status status = add(l, (jtoken){.kind = JT_STRING, .s = text, .n = k});
    advance(l, end + 1 - l->at);
    return status;
}

static bool digit_at(const lexer *l, size_t i) {
    return i < l->size && l->src[i] >= '0' && l->src[i] <= '9';
}

static mf_status add_integer(lexer *l, const char *digits, int base) {
    errno = 0;
    jtoken t = {.kind = JT_INT, .i = strtoll(digits, NULL, base)};
    if (errno) return lex_fail(l, "an integer of more than 64 bits, too large for moeflux");
    return add(l, t);
}

/* 0x, 0o, 0b: the base, or 0. */
static int base_at(const lexer *l) {
    char c = l->src[l->at] == '0' && l->at + 2 < l->size ? (char)(l->src[l->at + 1] | 32) : 0;
    int base = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0, v = hex_value(l->src[l->at + (base ? 2 : 0)]);
    return base && v >= 0 && v < base ? base : 0;
}

/* Digits (with _ between), an optional fraction, an optional exponent. */
static mf_status lex_number(lexer *l) {
    char text[128];
    int base = base_at(l), part = 0; /* 0: whole, 1: fraction, 2: exponent */
    size_t n = 0, i = l->at + (base ? 2 : 0);
    for (; i < l->size; i++) {
        char c = l->src[i];
        if (c == '_' && i + 1 < l->size && hex_value(l->src[i + 1]) >= 0) continue;
        if (n + 3 >= sizeof text) return lex_fail(l, "a number that is too long");
        if (base) {
            if (hex_value(c) < 0 || hex_value(c) >= base) break;
        } else if (c == '.' && part == 0 && digit_at(l, i + 1)) {
            part = 1;
        } else if ((c == 'e' || c == 'E') && part < 2 && i + 1 < l->size &&
                   digit_at(l, i + 1 + (l->src[i + 1] == '+' || l->src[i + 1] == '-'))) {
            part = 2;
            text[n++] = c;
            c = l->src[++i];
        } else if (!digit_at(l, i)) {
            break;
        }
        text[n++] = c;
    }
    text[n] = 0;
    l->at = i;
    return part ? add(l, (jtoken){.kind = JT_FLOAT, .f = strtod(text, NULL)}) : add_integer(l, text, base ? base : 10);
}

/* Bytes of a name's next character; 0: it ends here. Letters of any alphabet, as in Python. */
static size_t name_at(const lexer *l, size_t at, bool first) {
    uint32_t ch;
    if (at >= l->size) return 0;
    size_t n = (size_t)mf__utf8_decode(l->src + at, &ch);
    if (ch < 0x80)
        return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || ch == '_' || (!first && ch >= '0' && ch <= '9');
    const char *k = mf__j_category(ch);
    return k[0] == 'L' || (!first && (k[0] == 'M' || strcmp(k, "Nd") == 0)) ? n : 0;
}

static mf_status lex_operator(lexer *l) {
    static const char *const ops[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "*", "/", "%", "~", "[",
                                      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < MF__COUNT(ops); i++)
        if (looking_at(l, ops[i])) {
            l->at += strlen(ops[i]);
            return add(l, (jtoken){.kind = JT_OP, .s = ops[i], .n = strlen(ops[i])});
        }
    return lex_fail(l, "a character that means nothing in a tag");
}

/* From behind {{ or {% to behind }} or %}. Inside brackets an end mark is two operators. */
static mf_status lex_tag(lexer *l, bool is_variable) {
    const char *end = is_variable ? "}}" : "%}";
    int open = 0;
    while (l->at < l->size) {
        char c = l->src[l->at];
        size_t n = space_at(l, l->at);
        bool signed_end =
            (c == '-' || (c == '+' && !is_variable)) && l->size - l->at > 2 && memcmp(l->src + l->at + 1, end, 2) == 0;
        if (n) {
            advance(l, n);
        } else if (open == 0 && (signed_end || looking_at(l, end))) {
            MF__TRY(add(l, (jtoken){.kind = is_variable ? JT_VAR_END : JT_BLOCK_END, .s = end, .n = 2}));
            advance(l, signed_end ? 3 : 2);
            after_tag(l, signed_end ? c : 0, is_variable);
            return MF_OK;
        } else if (c == '"' || c == '\'') {
            MF__TRY(lex_string(l));
        } else if (c >= '0' && c <= '9') {
            MF__TRY(lex_number(l));
        } else if (name_at(l, l->at, true)) {
            size_t start = l->at;
            for (size_t k; (k = name_at(l, l->at, false)) > 0;) l->at += k;
            MF__TRY(add(l, (jtoken){.kind = JT_NAME, .s = l->src + start, .n = l->at - start}));
        } else {
            if (c == '(' || c == '[' || c == '{') open++;
            if (c == ')' || c == ']' || c == '}') open--;
            if (open < 0) return lex_fail(l, "a closing bracket without an opening one");
            MF__TRY(lex_operator(l));
        }
    }
    return lex_fail(l, is_variable ? "{{ that is not closed" : "{% that is not closed");
}

static mf_status lex_all(lexer *l) {
    l->line_starting = true;
    while (l->at < l->size) {
        size_t i = l->at;
        while (i + 1 < l->size && !(l->src[i] == '{' && strchr("{%#", l->src[i + 1]) && l->src[i + 1])) i++;
        if (i + 1 >= l->size) return add_text(l, l->at, l->size, true, 0);
        char kind = l->src[i + 1], sign = i + 2 < l->size ? l->src[i + 2] : 0;
        if (kind == '{' && sign == '+') sign = 0;
        MF__TRY(add_text(l, l->at, i, kind == '{', sign));
        if (kind == '#') {
            MF__TRY(lex_comment(l));
            continue;
        }
        bool raw = false;
        if (kind == '%') MF__TRY(lex_raw(l, &raw));
        if (raw) continue;
        advance(l, sign == '-' || (sign == '+' && kind == '%') ? 3 : 2);
        MF__TRY(add(l, (jtoken){.kind = kind == '{' ? JT_VAR_BEGIN : JT_BLOCK_BEGIN}));
        MF__TRY(lex_tag(l, kind == '{'));
    }
    return MF_OK;
}

/* All line ends become \n, and the last one goes. */
static mf_status copy_source(lexer *l, const char *source, size_t size) {
    void *memory;
    size_t n = 0;
    MF__TRY(mf__jinja_tree_alloc(l->t, size + 1, 1, &memory, l->err));
    char *src = memory;
    for (size_t i = 0; i < size; i++) {
        if (source[i] == '\r' && i + 1 < size && source[i + 1] == '\n') continue;
        src[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && src[n - 1] == '\n' && !l->syntax.keep_last_newline) n--;
    l->src = src;
    l->size = n;
    return MF_OK;
}

mf_status mf__jinja_lex(mf__jinja *t, const mf__jinja_syntax *syntax, const char *source, size_t size, jtoken **out,
                        mf_error *err) {
    lexer l = {.t = t, .line = 1, .err = err};
    size_t bad;
    *out = NULL;
    if (syntax) l.syntax = *syntax;
    if (size > MAX_SOURCE)
        return mf__fail(err, MF_E_LIMIT, "%s: a template of %zu bytes is too large, at most %zu", t->name, size,
                        MAX_SOURCE);
    if (!mf__utf8_valid(source, size, &bad))
        return mf__fail(err, MF_E_FORMAT, "%s: not valid UTF-8 at byte %zu", t->name, bad);
    mf_status status = copy_source(&l, source, size);
    if (status == MF_OK) status = lex_all(&l);
    if (status == MF_OK) status = add(&l, (jtoken){.kind = JT_END});
    *out = l.tokens;
    return status;
}
