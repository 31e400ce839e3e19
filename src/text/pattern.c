/* Reading tokenizer patterns: see pattern.h. Oniguruma's syntax, as far as tokenizers use it:
 *
 *   literals, . , [...] with ranges, nesting, negation and &&, [:posix:], \p{..} \P{..} \p{^..}, \s \d \w \h and their
 *   complements, \n \r \t \f \v \a \e \0, \xHH \x{..} \uHHHH, groups ( ) (?: ) (?> ) (?= ) (?! ) (?<= ) (?<! ) with
 *   (?i: ) (?-i: ) (?i), | , and the quantifiers ? * + {n} {n,} {n,m} {,m}, lazy with ? and possessive with + (not
 *   after braces, where Oniguruma takes + as a second quantifier). */
#include "text/pattern.h"

#include <stdlib.h>
#include <string.h>

#define MAX_GROUPS 64
#define MAX_CLASS_DEPTH 8

typedef struct reader {
    const char *where;
    const char *text;
    size_t size, at;
    bool fold[MAX_GROUPS + 1]; /* case-insensitive, per open group */
    int n_groups;
    mf__pattern_sets *sets;
    mf__strbuf *out;
    size_t group_start[MAX_GROUPS + 1]; /* offsets in out */
    mf_error *err;
} reader;

void mf__pattern_sets_free(mf__pattern_sets *sets) {
    for (int i = 0; i < sets->n; i++) mf__uset_free(&sets->sets[i]);
    sets->n = 0;
}

static mf_status unsupported(reader *r, size_t at, const char *what) {
    return mf__fail(r->err, MF_E_UNSUPPORTED, "%s: the pattern uses %s at byte %zu, which this reader does not know",
                    r->where, what, at);
}

static mf_status malformed(reader *r, size_t at, const char *what) {
    return mf__fail(r->err, MF_E_FORMAT, "%s: the pattern has %s at byte %zu", r->where, what, at);
}

static bool peek(const reader *r, const char *s) {
    size_t n = strlen(s);
    return n <= r->size - r->at && memcmp(r->text + r->at, s, n) == 0;
}

static bool accept(reader *r, const char *s) {
    if (!peek(r, s)) return false;
    r->at += strlen(s);
    return true;
}

static mf_status put(reader *r, const char *s) {
    return mf__strbuf_append(r->out, s, strlen(s), r->err);
}

/* Takes the set over, gives out its reference. */
static mf_status put_set(reader *r, mf__uset *set) {
    int i = 0;
    while (i < r->sets->n &&
           (r->sets->sets[i].n != set->n ||
            (set->n && memcmp(r->sets->sets[i].ranges, set->ranges, (size_t)set->n * sizeof *set->ranges) != 0)))
        i++;
    if (i == r->sets->n) {
        if (i == MF__PATTERN_MAX_SETS) {
            mf__uset_free(set);
            return mf__fail(r->err, MF_E_LIMIT, "%s: the patterns tell more than %d sets of characters apart", r->where,
                            MF__PATTERN_MAX_SETS);
        }
        r->sets->sets[r->sets->n++] = *set;
    } else {
        mf__uset_free(set);
    }
    *set = (mf__uset){0};
    char ref[2] = {MF__PATTERN_SET, (char)i};
    return mf__strbuf_append(r->out, ref, 2, r->err);
}

/* ---- characters and escapes ------------------------------------------------------------------------------------ */

static mf_status read_hex(reader *r, int max_digits, uint32_t *c) {
    size_t start = r->at;
    uint32_t v = 0;
    int n = 0;
    for (; n < max_digits && r->at < r->size; n++, r->at++) {
        char d = r->text[r->at];
        if (d >= '0' && d <= '9')
            v = v * 16 + (uint32_t)(d - '0');
        else if (d >= 'a' && d <= 'f')
            v = v * 16 + (uint32_t)(d - 'a' + 10);
        else if (d >= 'A' && d <= 'F')
            v = v * 16 + (uint32_t)(d - 'A' + 10);
        else
            break;
    }
    if (n == 0 || v >= MF__UNICODE_END) return malformed(r, start, "a bad hexadecimal character code");
    *c = v;
    return MF_OK;
}

static mf_status add_word(reader *r, mf__uset *set) {
    bool found;
    MF__TRY(mf__uset_add_property(set, "Alphabetic", 10, &found, r->err));
    MF__TRY(mf__uset_add_property(set, "M", 1, &found, r->err));
    MF__TRY(mf__uset_add_property(set, "Nd", 2, &found, r->err));
    return mf__uset_add_property(set, "Pc", 2, &found, r->err);
}

/* The characters of a one-letter class: s d w h. */
static mf_status add_shorthand(reader *r, char letter, mf__uset *set) {
    bool found;
    switch (letter) {
    case 's': return mf__uset_add_property(set, "White_Space", 11, &found, r->err);
    case 'd': return mf__uset_add_property(set, "Nd", 2, &found, r->err);
    case 'w': return add_word(r, set);
    default:
        MF__TRY(mf__uset_add(set, '0', '9', r->err));
        MF__TRY(mf__uset_add(set, 'A', 'F', r->err));
        return mf__uset_add(set, 'a', 'f', r->err);
    }
}

static mf_status add_property(reader *r, size_t start, bool negate, mf__uset *set) {
    if (!accept(r, "{")) return malformed(r, start, "a \\p without braces");
    if (accept(r, "^")) negate = !negate;
    const char *name = r->text + r->at;
    const char *end = memchr(name, '}', r->size - r->at);
    if (!end) return malformed(r, start, "a \\p{ that is not closed");
    size_t n = (size_t)(end - name);
    r->at += n + 1;
    bool found;
    MF__TRY(mf__uset_add_property(set, name, n, &found, r->err));
    if (!found)
        return mf__fail(r->err, MF_E_UNSUPPORTED,
                        "%s: the pattern uses \\p{%.*s}, a property this build has no table for", r->where,
                        n > 40 ? 40 : (int)n, name);
    return negate ? mf__uset_invert(set, r->err) : MF_OK;
}

/* Reads the escape behind a backslash. *single: it is the one character *c; otherwise the characters are in set,
 * which was empty. */
static mf_status read_escape(reader *r, bool *single, uint32_t *c, mf__uset *set) {
    size_t start = r->at - 1;
    if (r->at == r->size) return malformed(r, start, "a backslash at its end");
    unsigned char e = (unsigned char)r->text[r->at];
    *single = true;
    if (e >= 0x80) {
        r->at += (size_t)mf__utf8_decode(r->text + r->at, c);
        return MF_OK;
    }
    r->at++;
    switch (e) {
    case 'n': *c = '\n'; return MF_OK;
    case 'r': *c = '\r'; return MF_OK;
    case 't': *c = '\t'; return MF_OK;
    case 'f': *c = '\f'; return MF_OK;
    case 'v': *c = '\v'; return MF_OK;
    case 'a': *c = '\a'; return MF_OK;
    case 'e': *c = 0x1B; return MF_OK;
    case 'u': return read_hex(r, 4, c);
    case 'x':
        if (!accept(r, "{")) return read_hex(r, 2, c);
        MF__TRY(read_hex(r, 8, c));
        return accept(r, "}") ? MF_OK : malformed(r, start, "a \\x{ that is not closed");
    case 'p':
    case 'P': *single = false; return add_property(r, start, e == 'P', set);
    case 's':
    case 'd':
    case 'w':
    case 'h': *single = false; return add_shorthand(r, (char)e, set);
    case 'S':
    case 'D':
    case 'W':
    case 'H':
        *single = false;
        MF__TRY(add_shorthand(r, (char)(e - 'A' + 'a'), set));
        return mf__uset_invert(set, r->err);
    default: break;
    }
    if ((e >= '0' && e <= '9') || (e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z')) {
        char what[8] = {'\\', (char)e, 0};
        return unsupported(r, start, what);
    }
    *c = e;
    return MF_OK;
}

/* ---- classes in brackets --------------------------------------------------------------------------------------- */

static mf_status read_class(reader *r, int depth, mf__uset *set);

static mf_status read_posix(reader *r, mf__uset *set) {
    size_t start = r->at - 2;
    bool negate = accept(r, "^"), found = false;
    if (accept(r, "alnum:]")) {
        MF__TRY(mf__uset_add_property(set, "Alphabetic", 10, &found, r->err));
        MF__TRY(mf__uset_add_property(set, "Nd", 2, &found, r->err));
    } else if (accept(r, "alpha:]")) {
        MF__TRY(mf__uset_add_property(set, "Alphabetic", 10, &found, r->err));
    } else if (accept(r, "digit:]")) {
        MF__TRY(mf__uset_add_property(set, "Nd", 2, &found, r->err));
    } else if (accept(r, "space:]")) {
        MF__TRY(mf__uset_add_property(set, "White_Space", 11, &found, r->err));
    } else if (accept(r, "upper:]")) {
        MF__TRY(mf__uset_add_property(set, "Uppercase", 9, &found, r->err));
    } else if (accept(r, "lower:]")) {
        MF__TRY(mf__uset_add_property(set, "Lowercase", 9, &found, r->err));
    } else if (accept(r, "word:]")) {
        MF__TRY(add_word(r, set));
    } else {
        return unsupported(r, start, "a [:class:]");
    }
    return negate ? mf__uset_invert(set, r->err) : MF_OK;
}

/* One item: a character, a range, an escape, a nested class. Adds it to set. */
static mf_status read_class_item(reader *r, int depth, mf__uset *set) {
    mf__uset part = {0};
    uint32_t first = 0, last = 0;
    bool single = true;
    size_t start = r->at;
    mf_status status = MF_OK;
    if (accept(r, "[:")) {
        single = false;
        status = read_posix(r, &part);
    } else if (accept(r, "[")) {
        single = false;
        status = read_class(r, depth + 1, &part);
    } else if (accept(r, "\\")) {
        status = read_escape(r, &single, &first, &part);
    } else {
        r->at += (size_t)mf__utf8_decode(r->text + r->at, &first);
    }
    last = first;
    /* "a-z", but not the '-' of "a-]" nor of "\s-x". */
    if (status == MF_OK && single && peek(r, "-") && r->at + 1 < r->size && r->text[r->at + 1] != ']') {
        r->at++;
        bool range = true;
        if (accept(r, "\\"))
            status = read_escape(r, &range, &last, &part);
        else if (peek(r, "["))
            range = false;
        else
            r->at += (size_t)mf__utf8_decode(r->text + r->at, &last);
        if (status == MF_OK && (!range || last < first)) status = malformed(r, start, "a bad range in brackets");
    }
    if (status == MF_OK && single) status = mf__uset_add(&part, first, last, r->err);
    if (status == MF_OK) status = mf__uset_union(set, &part, r->err);
    mf__uset_free(&part);
    return status;
}

/* Behind the opening bracket, to behind the closing one. Items are collected in set; at && what was collected so far
 * is intersected into `left`. */
static mf_status read_class(reader *r, int depth, mf__uset *set) {
    size_t start = r->at;
    if (depth > MAX_CLASS_DEPTH) return malformed(r, start, "brackets nested too deep");
    bool negate = accept(r, "^"), intersect = false, first = true;
    mf__uset left = {0};
    mf_status status = MF_OK;
    while (status == MF_OK) {
        if (r->at == r->size) {
            status = malformed(r, start, "a bracket that is not closed");
        } else if (!first && accept(r, "]")) {
            break;
        } else if (accept(r, "&&")) {
            status = intersect ? mf__uset_intersect(&left, set, r->err) : mf__uset_union(&left, set, r->err);
            mf__uset_free(set);
            intersect = true;
        } else {
            status = read_class_item(r, depth, set);
        }
        first = false;
    }
    if (status == MF_OK && intersect) status = mf__uset_intersect(set, &left, r->err);
    mf__uset_free(&left);
    if (status != MF_OK) return status;
    if (depth == 0 && r->fold[r->n_groups]) MF__TRY(mf__uset_close_case(set, r->err));
    return negate ? mf__uset_invert(set, r->err) : MF_OK;
}

/* ---- groups, quantifiers, the whole ---------------------------------------------------------------------------- */

static mf_status open_group(reader *r) {
    static const char *const kinds[] = {"?:", "?>", "?=", "?!", "?<=", "?<!"};
    size_t start = r->at - 1, out_start = r->out->size;
    bool fold = r->fold[r->n_groups];
    const char *opening = "(?:"; /* a capturing group is as good as any */
    char known[8];
    if (accept(r, "?i)")) return r->fold[r->n_groups] = true, MF_OK;
    if (accept(r, "?-i)")) return r->fold[r->n_groups] = false, MF_OK;
    if (accept(r, "?i:")) {
        fold = true;
    } else if (accept(r, "?-i:")) {
        fold = false;
    } else if (peek(r, "?")) {
        size_t k = 0;
        while (k < MF__COUNT(kinds) && !accept(r, kinds[k])) k++;
        if (k == MF__COUNT(kinds)) return unsupported(r, start, "a kind of group");
        known[0] = '(';
        memcpy(known + 1, kinds[k], strlen(kinds[k]) + 1);
        opening = known;
    }
    if (r->n_groups == MAX_GROUPS) return malformed(r, start, "groups nested too deep");
    MF__TRY(put(r, opening));
    r->n_groups++;
    r->fold[r->n_groups] = fold;
    r->group_start[r->n_groups] = out_start;
    return MF_OK;
}

/* {n}, {n,}, {n,m} or {,m} at the cursor, in PCRE2's spelling; false when the brace is an ordinary character. */
static bool read_braces(reader *r, char out[32]) {
    unsigned long n[2] = {0, 0};
    int digits[2] = {0, 0}, k = 0;
    size_t i = r->at + 1;
    for (; i < r->size && r->text[i] != '}'; i++) {
        char c = r->text[i];
        if (c == ',' && k == 0) {
            k = 1;
        } else if (c >= '0' && c <= '9' && digits[k] < 5) {
            n[k] = n[k] * 10 + (unsigned long)(c - '0');
            digits[k]++;
        } else {
            return false;
        }
    }
    if (i == r->size || (!digits[0] && !digits[1])) return false;
    mf__strbuf b = {0};
    mf_status status = mf__strbuf_printf(&b, NULL, k == 0 ? "{%lu}" : digits[1] ? "{%lu,%lu}" : "{%lu,}", n[0], n[1]);
    if (status == MF_OK && b.size < 32) memcpy(out, b.data, b.size + 1);
    mf__strbuf_free(&b);
    r->at = i + 1;
    return true;
}

static mf_status wrap_atom(reader *r, size_t atom) {
    mf__strbuf tail = {0};
    mf_status status = mf__strbuf_append(&tail, r->out->data + atom, r->out->size - atom, r->err);
    r->out->size = atom;
    if (status == MF_OK) status = put(r, "(?:");
    if (status == MF_OK) status = mf__strbuf_append(r->out, tail.data, tail.size, r->err);
    if (status == MF_OK) status = put(r, ")");
    mf__strbuf_free(&tail);
    return status;
}

/* All quantifiers behind the atom that begins at offset `atom` of the output. */
static mf_status read_quantifiers(reader *r, size_t atom) {
    bool again = false;
    while (r->at < r->size) {
        char q[32] = {0};
        size_t start = r->at;
        bool braces = false;
        if (peek(r, "*") || peek(r, "+") || peek(r, "?"))
            q[0] = r->text[r->at++];
        else if (peek(r, "{") && read_braces(r, q))
            braces = true;
        else
            return MF_OK;
        if (again) MF__TRY(wrap_atom(r, atom));
        MF__TRY(put(r, q));
        if (braces && peek(r, "?") && !strchr(q, ',')) return unsupported(r, start, "{n}?");
        if (accept(r, "?"))
            MF__TRY(put(r, "?"));
        else if (!braces && accept(r, "+"))
            MF__TRY(put(r, "+"));
        again = true;
    }
    return MF_OK;
}

static mf_status put_char(reader *r, uint32_t c) {
    mf__uset set = {0};
    mf_status status = mf__uset_add(&set, c, c, r->err);
    if (status == MF_OK && r->fold[r->n_groups]) status = mf__uset_close_case(&set, r->err);
    if (status != MF_OK) return mf__uset_free(&set), status;
    return put_set(r, &set);
}

/* A bracket class, an escape, a dot or a literal character. */
static mf_status read_atom(reader *r) {
    mf__uset set = {0};
    mf_status status = MF_OK;
    uint32_t c = 0;
    bool single = false;
    if (accept(r, "[")) {
        status = read_class(r, 0, &set);
    } else if (accept(r, ".")) {
        status = mf__uset_add(&set, '\n', '\n', r->err);
        if (status == MF_OK) status = mf__uset_invert(&set, r->err);
    } else if (accept(r, "\\A")) {
        return put(r, "\\A");
    } else if (accept(r, "\\z")) {
        return put(r, "\\z");
    } else if (accept(r, "\\")) {
        status = read_escape(r, &single, &c, &set);
    } else {
        single = true;
        r->at += (size_t)mf__utf8_decode(r->text + r->at, &c);
    }
    if (status == MF_OK && single) return put_char(r, c);
    if (status != MF_OK) return mf__uset_free(&set), status;
    return put_set(r, &set);
}

static mf_status read_regex(reader *r) {
    while (r->at < r->size) {
        size_t start = r->at, atom = r->out->size;
        if (peek(r, "^") || peek(r, "$")) return unsupported(r, start, "a line anchor");
        if (peek(r, "*") || peek(r, "+") || peek(r, "?")) return malformed(r, start, "a quantifier without an object");
        if (accept(r, "|")) {
            MF__TRY(put(r, "|"));
        } else if (accept(r, "(")) {
            MF__TRY(open_group(r));
        } else if (accept(r, ")")) {
            if (r->n_groups == 0) return malformed(r, start, "a ) without (");
            atom = r->group_start[r->n_groups--];
            MF__TRY(put(r, ")"));
            MF__TRY(read_quantifiers(r, atom));
        } else {
            MF__TRY(read_atom(r));
            MF__TRY(read_quantifiers(r, atom));
        }
    }
    return r->n_groups ? malformed(r, r->size, "a ( that is not closed") : MF_OK;
}

mf_status mf__pattern_read(const char *where, const char *pattern, size_t size, bool literal, mf__pattern_sets *sets,
                           mf__strbuf *out, mf_error *err) {
    reader r = {.where = where, .text = pattern, .size = size, .sets = sets, .out = out, .err = err};
    size_t bad;
    if (size > MF__PATTERN_MAX_BYTES)
        return mf__fail(err, MF_E_LIMIT, "%s: a pattern of %zu bytes; the limit is %d", where, size,
                        MF__PATTERN_MAX_BYTES);
    if (!mf__utf8_valid(pattern, size, &bad)) return malformed(&r, bad, "invalid UTF-8");
    if (!literal) return read_regex(&r);
    while (r.at < size) {
        uint32_t c;
        r.at += (size_t)mf__utf8_decode(pattern + r.at, &c);
        MF__TRY(put_char(&r, c));
    }
    return MF_OK;
}
