/* Regular expressions: the common part of ECMA 262, PCRE and Python, as a tree. regex_lang.c makes a set of strings of
 * it. */
#include "text/grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 50
#define MAX_NODES 20000

typedef struct reader {
    const char *text;
    size_t size, at;
    mf__regex *r;
    bool wide, no_case;
    int depth;
    mf_error *err;
} reader;

static mf_status bad(reader *b, mf_status status, const char *what) {
    return mf__fail(b->err, status, "the regular expression has %s at byte %zu: %.*s", what, b->at,
                    b->size > 80 ? 80 : (int)b->size, b->text);
}

static mf_status add_node(reader *b, regex_node node, uint32_t *out) {
    mf__regex *r = b->r;
    *out = 0;
    if (r->n_nodes == MAX_NODES) return bad(b, MF_E_LIMIT, "too many parts");
    if (r->n_nodes == r->nodes_capacity) {
        uint32_t capacity = r->nodes_capacity ? r->nodes_capacity * 2 : 64;
        regex_node *more = realloc(r->nodes, capacity * sizeof *more);
        if (!more) return mf__fail(b->err, MF_E_NOMEM, "no memory for a regular expression");
        r->nodes = more;
        r->nodes_capacity = capacity;
    }
    r->nodes[r->n_nodes] = node;
    *out = r->n_nodes++;
    return MF_OK;
}

static mf_status add_set(reader *b, mf__uset *set, uint32_t *out) {
    mf__regex *r = b->r;
    if (b->no_case) MF__TRY(mf__uset_close_case(set, b->err));
    if (r->n_sets == r->sets_capacity) {
        uint32_t capacity = r->sets_capacity ? r->sets_capacity * 2 : 16;
        mf__uset *more = realloc(r->sets, capacity * sizeof *more);
        if (!more) return mf__fail(b->err, MF_E_NOMEM, "no memory for a regular expression");
        r->sets = more;
        r->sets_capacity = capacity;
    }
    r->sets[r->n_sets++] = *set; /* owned from here on */
    *set = (mf__uset){0};
    return add_node(b, (regex_node){.kind = REGEX_SET, .a = r->n_sets - 1}, out);
}

static bool peek(const reader *b, char c) {
    return b->at < b->size && b->text[b->at] == c;
}

static bool take(reader *b, char c) {
    if (!peek(b, c)) return false;
    b->at++;
    return true;
}

static bool take_text(reader *b, const char *s) {
    size_t n = strlen(s);
    if (n > b->size - b->at || memcmp(b->text + b->at, s, n) != 0) return false;
    b->at += n;
    return true;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

static mf_status hex(reader *b, int digits, uint32_t *c) {
    *c = 0;
    for (int i = 0; i < digits; i++, b->at++) {
        char d = b->at < b->size ? b->text[b->at] : 0;
        int v = d >= '0' && d <= '9'   ? d - '0'
                : d >= 'a' && d <= 'f' ? d - 'a' + 10
                : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                       : -1;
        if (v < 0) return bad(b, MF_E_FORMAT, "a bad hexadecimal number");
        *c = *c << 4 | (uint32_t)v;
    }
    return MF_OK;
}

/* Behind \u. */
static mf_status unicode_escape(reader *b, uint32_t *c) {
    if (!take(b, '{')) {
        uint32_t low;
        MF__TRY(hex(b, 4, c));
        if (*c < 0xD800 || *c > 0xDBFF || !take_text(b, "\\u")) return MF_OK;
        MF__TRY(hex(b, 4, &low));
        if (low < 0xDC00 || low > 0xDFFF) return bad(b, MF_E_FORMAT, "half a surrogate pair");
        *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
        return MF_OK;
    }
    for (*c = 0; b->at < b->size && !peek(b, '}');) {
        uint32_t digit;
        MF__TRY(hex(b, 1, &digit));
        if ((*c = *c << 4 | digit) >= MF__UNICODE_END) return bad(b, MF_E_FORMAT, "a bad character code");
    }
    return take(b, '}') ? MF_OK : bad(b, MF_E_FORMAT, "a bad character code");
}

static mf_status braced_property(reader *b, bool negate, mf__uset *set) {
    const char *end = b->at < b->size && b->text[b->at] == '{' ? memchr(b->text + b->at, '}', b->size - b->at) : NULL;
    bool found;
    const char *name = b->text + b->at + 1;
    size_t n = end ? (size_t)(end - name) : 1;
    if (!end) name--; /* \pL */
    if (b->at >= b->size) return bad(b, MF_E_FORMAT, "a bad \\p");
    const char *equals = memchr(name, '=', n);
    if (equals) n -= (size_t)(equals + 1 - name), name = equals + 1; /* Script=Greek */
    MF__TRY(mf__uset_add_property(set, name, n, &found, b->err));
    if (!found) return bad(b, MF_E_UNSUPPORTED, "an unknown \\p");
    b->at = end ? (size_t)(end - b->text) + 1 : b->at + 1;
    return negate ? mf__uset_invert(set, b->err) : MF_OK;
}

/* \d, \w and \s mean ASCII to some engines and Unicode to others. What must match is the narrow set, which all agree
 * on; wide has all that any engine counts. Turned around, it is the other way round. */
static mf_status shorthand(reader *b, char letter, bool wide, mf__uset *set) {
    bool found, negate = letter < 'a';
    if (negate) wide = !wide;
    switch (letter | 0x20) {
    case 'd':
        MF__TRY(mf__uset_add(set, '0', '9', b->err));
        if (wide) MF__TRY(mf__uset_add_property(set, "Nd", 2, &found, b->err));
        break;
    case 'w':
        MF__TRY(mf__uset_add(set, '0', '9', b->err));
        MF__TRY(mf__uset_add(set, 'A', 'Z', b->err));
        MF__TRY(mf__uset_add(set, '_', '_', b->err));
        MF__TRY(mf__uset_add(set, 'a', 'z', b->err));
        for (size_t i = 0; wide && i < 4; i++) {
            static const char *const more[] = {"Alphabetic", "M", "N", "Pc"};
            MF__TRY(mf__uset_add_property(set, more[i], strlen(more[i]), &found, b->err));
        }
        break;
    default:
        MF__TRY(mf__uset_add(set, 9, 13, b->err));
        MF__TRY(mf__uset_add(set, ' ', ' ', b->err));
        if (!wide) break;
        MF__TRY(mf__uset_add_property(set, "White_Space", 11, &found, b->err));
        MF__TRY(mf__uset_add(set, 0x1C, 0x1F, b->err));
        MF__TRY(mf__uset_add(set, 0x180E, 0x180E, b->err));
        MF__TRY(mf__uset_add(set, 0xFEFF, 0xFEFF, b->err));
        break;
    }
    b->r->ambiguous = true;
    return negate ? mf__uset_invert(set, b->err) : MF_OK;
}

/* Behind a backslash. */
static mf_status escape(reader *b, bool wide, bool *single, uint32_t *c, mf__uset *set) {
    static const char letters[] = "nrtfv0ae", bytes[] = "\n\r\t\f\v\0\a\033";
    if (b->at == b->size) return bad(b, MF_E_FORMAT, "a backslash at its end");
    char e = b->text[b->at++];
    const char *p = e ? strchr(letters, e) : NULL;
    *single = true;
    if (p) return *c = (uint8_t)bytes[p - letters], MF_OK;
    if (e == 'x') return hex(b, 2, c);
    if (e == 'u') return unicode_escape(b, c);
    if (e && strchr("dwsDWS", e)) return *single = false, shorthand(b, e, wide, set);
    if (e == 'p' || e == 'P') return *single = false, braced_property(b, e == 'P', set);
    if (e == 'c' && b->at < b->size && ((b->text[b->at] | 0x20) >= 'a' && (b->text[b->at] | 0x20) <= 'z'))
        return *c = b->text[b->at++] & 0x1F, MF_OK;
    if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '1' && e <= '9'))
        return bad(b, MF_E_UNSUPPORTED, "an escape that is not supported");
    b->at--;
    b->at += (size_t)mf__utf8_decode(b->text + b->at, c);
    return MF_OK;
}

static mf_status class_item(reader *b, bool wide, bool *single, uint32_t *c, mf__uset *set) {
    *single = true;
    if (take(b, '\\')) {
        if (take(b, 'b')) return *c = '\b', MF_OK;
        return escape(b, wide, single, c, set);
    }
    b->at += (size_t)mf__utf8_decode(b->text + b->at, c);
    return MF_OK;
}

static mf_status class_part(reader *b, bool wide, mf__uset *set, mf__uset *part) {
    uint32_t lo = 0, hi = 0;
    bool single = true, single_hi = true;
    MF__TRY(class_item(b, wide, &single, &lo, part));
    hi = lo;
    if (peek(b, '-') && b->at + 1 < b->size && b->text[b->at + 1] != ']') {
        size_t dash = b->at++;
        uint32_t end = 0;
        if (single) MF__TRY(class_item(b, wide, &single_hi, &end, part));
        if (!single || !single_hi) { /* [\w-.]: the dash stands for itself */
            b->at = single ? b->at : dash + 1;
            MF__TRY(mf__uset_add(set, '-', '-', b->err));
        } else if (end < lo) {
            return bad(b, MF_E_FORMAT, "a bad range");
        } else {
            hi = end;
        }
    }
    if (single) MF__TRY(mf__uset_add(set, lo, hi, b->err));
    return mf__uset_union(set, part, b->err);
}

static mf_status read_class(reader *b, mf__uset *set) {
    bool negate = take(b, '^');
    if (b->no_case && negate) return bad(b, MF_E_UNSUPPORTED, "a negated set that ignores case");
    while (!take(b, ']')) {
        mf__uset part = {0};
        if (b->at == b->size) return bad(b, MF_E_FORMAT, "a [ that is not closed");
        mf_status status = class_part(b, negate != b->wide, set, &part);
        mf__uset_free(&part);
        MF__TRY(status);
    }
    return negate ? mf__uset_invert(set, b->err) : MF_OK;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static mf_status read_choice(reader *b, uint32_t *out);

/* Behind "(?": which kind of group. */
static mf_status group_kind(reader *b, regex_node *node) {
    static const struct {
        const char *text;
        uint8_t kind, negate;
    } looks[] = {{"=", REGEX_AHEAD, 0}, {"!", REGEX_AHEAD, 1}, {"<=", REGEX_BEHIND, 0}, {"<!", REGEX_BEHIND, 1}};
    *node = (regex_node){.kind = REGEX_EMPTY};
    if (take(b, ':')) return MF_OK;
    for (size_t i = 0; i < MF__COUNT(looks); i++)
        if (take_text(b, looks[i].text)) {
            *node = (regex_node){.kind = looks[i].kind, .min = looks[i].negate};
            return MF_OK;
        }
    if (take_text(b, "P<") || take(b, '<')) { /* a name */
        while (b->at < b->size && !peek(b, '>')) b->at++;
        if (take(b, '>')) return MF_OK;
    }
    return bad(b, MF_E_UNSUPPORTED, "a kind of group that is not supported");
}

static mf_status read_group(reader *b, uint32_t *out) {
    regex_node node = {.kind = REGEX_EMPTY};
    if (take(b, '?')) MF__TRY(group_kind(b, &node));
    if (++b->depth > MAX_DEPTH) return bad(b, MF_E_LIMIT, "groups nested too deep");
    MF__TRY(read_choice(b, out));
    b->depth--;
    if (!take(b, ')')) return bad(b, MF_E_FORMAT, "a ( that is not closed");
    if (node.kind == REGEX_EMPTY) return MF_OK;
    node.a = *out;
    return add_node(b, node, out);
}

static mf_status read_set(reader *b, mf__uset *set) {
    uint32_t c = 0;
    bool single = false;
    if (take(b, '[')) return read_class(b, set);
    if (take(b, '.')) {
        MF__TRY(mf__uset_add(set, '\n', '\n', b->err));
        if (!b->wide) MF__TRY(mf__uset_add(set, '\r', '\r', b->err)); /* some engines let . match these */
        if (!b->wide) MF__TRY(mf__uset_add(set, 0x2028, 0x2029, b->err));
        b->r->ambiguous = true;
        return mf__uset_invert(set, b->err);
    }
    if (take(b, '\\')) {
        MF__TRY(escape(b, b->wide, &single, &c, set));
    } else {
        single = true;
        b->at += (size_t)mf__utf8_decode(b->text + b->at, &c);
    }
    return single ? mf__uset_add(set, c, c, b->err) : MF_OK;
}

static bool read_number(reader *b, int64_t *out) {
    size_t start = b->at;
    for (*out = 0; b->at < b->size && b->text[b->at] >= '0' && b->text[b->at] <= '9'; b->at++)
        if (*out < INT32_MAX) *out = *out * 10 + (b->text[b->at] - '0');
    return b->at > start;
}

/* {n}, {n,}, {n,m} at the cursor? Moves behind it. */
static bool read_braces(reader *b, int64_t *min, int64_t *max) {
    size_t start = b->at;
    bool fine = take(b, '{') && read_number(b, min);
    *max = *min;
    if (fine && take(b, ',') && !read_number(b, max)) *max = -1;
    fine = fine && take(b, '}');
    if (!fine) b->at = start;
    return fine;
}

/* To some engines $ is also before a last end of line. */
static mf_status read_end(reader *b, uint32_t *out) {
    uint32_t end, line;
    mf__uset set = {0};
    MF__TRY(add_node(b, (regex_node){.kind = REGEX_END}, out));
    if (!b->wide) return MF_OK;
    end = *out;
    mf_status status = mf__uset_add(&set, '\n', '\n', b->err);
    if (status == MF_OK) status = add_set(b, &set, &line);
    mf__uset_free(&set);
    MF__TRY(status);
    MF__TRY(add_node(b, (regex_node){.kind = REGEX_THEN, .a = line, .b = end}, &line));
    return add_node(b, (regex_node){.kind = REGEX_OR, .a = end, .b = line}, out);
}

static mf_status read_atom(reader *b, uint32_t *out) {
    int64_t min, max;
    mf__uset set = {0};
    if (take(b, '(')) return read_group(b, out);
    if (take(b, '^') || take_text(b, "\\A")) return add_node(b, (regex_node){.kind = REGEX_BEGIN}, out);
    if (take(b, '$') || take_text(b, "\\Z") || take_text(b, "\\z")) return read_end(b, out);
    if (peek(b, '*') || peek(b, '+') || peek(b, '?') || read_braces(b, &min, &max))
        return bad(b, MF_E_FORMAT, "a quantifier without an object");
    mf_status status = read_set(b, &set);
    if (status == MF_OK) status = add_set(b, &set, out);
    mf__uset_free(&set);
    return status;
}

static mf_status read_repeat(reader *b, uint32_t *out) {
    int64_t min, max;
    MF__TRY(read_atom(b, out));
    if (take(b, '*')) {
        min = 0, max = -1;
    } else if (take(b, '+')) {
        min = 1, max = -1;
    } else if (take(b, '?')) {
        min = 0, max = 1;
    } else if (peek(b, '{')) {
        if (!read_braces(b, &min, &max) || (max >= 0 && max < min)) return bad(b, MF_E_FORMAT, "a bad {n,m}");
    } else {
        return MF_OK;
    }
    take(b, '?'); /* lazy or greedy: the same strings */
    if (peek(b, '*') || peek(b, '+') || peek(b, '?') || peek(b, '{'))
        return bad(b, MF_E_FORMAT, "two quantifiers in a row");
    return add_node(b, (regex_node){.kind = REGEX_REPEAT, .a = *out, .min = min, .max = max}, out);
}

static mf_status read_sequence(reader *b, uint32_t *out) {
    MF__TRY(add_node(b, (regex_node){.kind = REGEX_EMPTY}, out));
    while (b->at < b->size && !peek(b, '|') && !peek(b, ')')) {
        uint32_t one;
        MF__TRY(read_repeat(b, &one));
        if (b->r->nodes[*out].kind == REGEX_EMPTY)
            *out = one;
        else
            MF__TRY(add_node(b, (regex_node){.kind = REGEX_THEN, .a = *out, .b = one}, out));
    }
    return MF_OK;
}

static mf_status read_choice(reader *b, uint32_t *out) {
    MF__TRY(read_sequence(b, out));
    while (take(b, '|')) {
        uint32_t other;
        MF__TRY(read_sequence(b, &other));
        MF__TRY(add_node(b, (regex_node){.kind = REGEX_OR, .a = *out, .b = other}, out));
    }
    return MF_OK;
}

mf_status mf__regex_parse(const char *pattern, size_t size, bool wide, mf__regex *out, mf_error *err) {
    size_t where;
    *out = (mf__regex){0};
    if (!mf__utf8_valid(pattern, size, &where))
        return mf__fail(err, MF_E_FORMAT, "the regular expression is not valid UTF-8 at byte %zu", where);
    reader b = {.text = pattern, .size = size, .r = out, .wide = wide, .err = err};
    b.no_case = take_text(&b, "(?i)");
    mf_status status = read_choice(&b, &out->root);
    if (status == MF_OK && b.at < b.size) status = bad(&b, MF_E_FORMAT, "a ) without (");
    if (status != MF_OK) mf__regex_free(out);
    return status;
}

void mf__regex_free(mf__regex *r) {
    for (uint32_t i = 0; i < r->n_sets; i++) mf__uset_free(&r->sets[i]);
    free(r->sets);
    free(r->nodes);
    *r = (mf__regex){0};
}
