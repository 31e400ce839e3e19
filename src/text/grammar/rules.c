/* The grammar notation: rules of texts, character sets, names, groups and repetitions.
 *
 *   # a list of numbers
 *   root   ::= "[" number ("," number)* "]"
 *   number ::= "-"? [0-9]+
 *
 * A rule goes on until the next "name ::=". */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/nfa.h"

#define MAX_RULES 2000
#define MAX_DEPTH 50

typedef struct named_rule {
    const char *name;
    size_t n;
    uint32_t rule;
    bool defined;
} named_rule;

typedef struct reader {
    const char *text;
    size_t size, at;
    mf__nfa nfa;
    named_rule rules[MAX_RULES];
    size_t n_rules;
    int depth;
    mf_error *err;
} reader;

static mf_status bad(reader *r, mf_status status, const char *what) {
    int line = 1;
    for (size_t i = 0; i < r->at && i < r->size; i++) line += r->text[i] == '\n';
    return mf__fail(r->err, status, "grammar, line %d: %s", line, what);
}

static void skip(reader *r) {
    while (r->at < r->size) {
        char c = r->text[r->at];
        if (c == '#')
            while (r->at < r->size && r->text[r->at] != '\n') r->at++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            r->at++;
        else
            return;
    }
}

static bool take(reader *r, const char *s) {
    size_t n = strlen(s);
    if (n > r->size - r->at || memcmp(r->text + r->at, s, n) != 0) return false;
    r->at += n;
    return true;
}

static size_t name_length(const reader *r) {
    size_t n = 0;
    for (; r->at + n < r->size; n++) {
        char c = r->text[r->at + n];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && (n == 0 || !((c >= '0' && c <= '9') || c == '-'))) break;
    }
    return n;
}

static mf_status find_rule(reader *r, const char *name, size_t n, named_rule **out) {
    for (size_t i = 0; i < r->n_rules; i++)
        if (r->rules[i].n == n && memcmp(r->rules[i].name, name, n) == 0) return *out = &r->rules[i], MF_OK;
    if (r->n_rules == MAX_RULES) return bad(r, MF_E_LIMIT, "too many rules");
    *out = &r->rules[r->n_rules++];
    **out = (named_rule){.name = name, .n = n};
    return mf__nfa_rule(&r->nfa, &(*out)->rule);
}

/* "name ::=" at the cursor: the next rule begins here. */
static bool at_definition(reader *r) {
    size_t start = r->at, n = name_length(r);
    r->at += n;
    while (r->at < r->size && (r->text[r->at] == ' ' || r->text[r->at] == '\t')) r->at++;
    bool yes = n && take(r, "::=");
    r->at = start;
    return yes;
}

static mf_status read_char(reader *r, uint32_t *c) {
    static const char letters[] = "nrt\\\"]-[^", bytes[] = "\n\r\t\\\"]-[^";
    if (!take(r, "\\")) {
        r->at += (size_t)mf__utf8_decode(r->text + r->at, c);
        return MF_OK;
    }
    char e = r->at < r->size ? r->text[r->at++] : 0;
    const char *p = e ? strchr(letters, e) : NULL;
    if (p) return *c = (uint8_t)bytes[p - letters], MF_OK;
    int n = e == 'x' ? 2 : e == 'u' ? 4 : 0;
    if (!n) return bad(r, MF_E_FORMAT, "an escape that is not known");
    for (*c = 0; n > 0; n--, r->at++) {
        char d = r->at < r->size ? r->text[r->at] : 0;
        int v = d >= '0' && d <= '9'   ? d - '0'
                : d >= 'a' && d <= 'f' ? d - 'a' + 10
                : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                       : -1;
        if (v < 0) return bad(r, MF_E_FORMAT, "a bad hexadecimal number");
        *c = *c << 4 | (uint32_t)v;
    }
    return MF_OK;
}

static mf_status read_text(reader *r, uint32_t from, uint32_t to) {
    while (!take(r, "\"")) {
        uint32_t c = 0, next;
        char utf8[4];
        if (r->at >= r->size || r->text[r->at] == '\n') return bad(r, MF_E_FORMAT, "a text that is not closed");
        MF__TRY(read_char(r, &c));
        MF__TRY(mf__nfa_state(&r->nfa, &next));
        MF__TRY(mf__nfa_text(&r->nfa, from, utf8, (size_t)mf__utf8_encode(c, utf8), next));
        from = next;
    }
    return mf__nfa_empty(&r->nfa, from, to);
}

static mf_status read_set(reader *r, uint32_t from, uint32_t to) {
    mf__uset set = {0};
    mf_status status = MF_OK;
    bool negate = take(r, "^");
    while (status == MF_OK && !take(r, "]")) {
        uint32_t lo = 0, hi;
        if (r->at >= r->size || r->text[r->at] == '\n') {
            status = bad(r, MF_E_FORMAT, "a [ that is not closed");
            break;
        }
        status = read_char(r, &lo);
        hi = lo;
        if (status == MF_OK && r->at + 1 < r->size && r->text[r->at] == '-' && r->text[r->at + 1] != ']') {
            r->at++;
            status = read_char(r, &hi);
        }
        if (status == MF_OK && hi < lo) status = bad(r, MF_E_FORMAT, "a bad range");
        if (status == MF_OK) status = mf__uset_add(&set, lo, hi, r->err);
    }
    if (status == MF_OK && negate) status = mf__uset_invert(&set, r->err);
    if (status == MF_OK) status = mf__nfa_chars(&r->nfa, from, &set, NFA_PLAIN, to);
    mf__uset_free(&set);
    return status;
}

static mf_status read_choice(reader *r, uint32_t from, uint32_t to);

static mf_status read_atom(reader *r, uint32_t from, uint32_t to) {
    if (take(r, "\"")) return read_text(r, from, to);
    if (take(r, "[")) return read_set(r, from, to);
    if (take(r, "(")) {
        if (++r->depth > MAX_DEPTH) return bad(r, MF_E_LIMIT, "groups nested too deep");
        MF__TRY(read_choice(r, from, to));
        r->depth--;
        return take(r, ")") ? MF_OK : bad(r, MF_E_FORMAT, "a ( that is not closed");
    }
    size_t n = name_length(r);
    named_rule *rule = NULL;
    if (!n) return bad(r, MF_E_FORMAT, "expected a text, a set, a name or (");
    MF__TRY(find_rule(r, r->text + r->at, n, &rule));
    r->at += n;
    return mf__nfa_call(&r->nfa, from, rule->rule, to);
}

static bool read_number(reader *r, int64_t *out) {
    size_t start = r->at;
    for (*out = 0; r->at < r->size && r->text[r->at] >= '0' && r->text[r->at] <= '9'; r->at++)
        if (*out < INT64_MAX / 20) *out = *out * 10 + (r->text[r->at] - '0');
    return r->at > start;
}

/* {n}, {n,} or {n,m}, behind the brace. */
static mf_status read_braces(reader *r, int64_t *min, int64_t *max) {
    bool fine = read_number(r, min);
    *max = *min;
    if (fine && take(r, ",") && !read_number(r, max)) *max = -1;
    if (!fine || !take(r, "}") || (*max >= 0 && *max < *min))
        return bad(r, MF_E_FORMAT, "a bad count; expected {n}, {n,} or {n,m}");
    return MF_OK;
}

/* An atom with its count. */
static mf_status read_item(reader *r, uint32_t *at) {
    mf__nfa *n = &r->nfa;
    uint32_t start, end, rule;
    int64_t min, max;
    MF__TRY(mf__nfa_state(n, &start));
    MF__TRY(mf__nfa_state(n, &end));
    MF__TRY(read_atom(r, start, end));
    if (take(r, "{")) {
        MF__TRY(read_braces(r, &min, &max));
        MF__TRY(mf__nfa_repeat(n, start, end, min, max, &rule));
        return mf__nfa_then_call(n, at, rule);
    }
    bool plus = take(r, "+"), star = !plus && take(r, "*"), maybe = !plus && !star && take(r, "?");
    MF__TRY(mf__nfa_empty(n, *at, start));
    if (plus || star) MF__TRY(mf__nfa_empty(n, end, start));
    if (star || maybe) MF__TRY(mf__nfa_empty(n, start, end));
    *at = end;
    return mf__nfa_then_empty(n, at);
}

static mf_status read_choice(reader *r, uint32_t from, uint32_t to) {
    do {
        uint32_t at;
        MF__TRY(mf__nfa_state(&r->nfa, &at));
        MF__TRY(mf__nfa_empty(&r->nfa, from, at));
        for (skip(r); r->at < r->size && !strchr("|)", r->text[r->at]) && !at_definition(r); skip(r))
            MF__TRY(read_item(r, &at));
        MF__TRY(mf__nfa_empty(&r->nfa, at, to));
    } while (take(r, "|"));
    return MF_OK;
}

static mf_status read_all(reader *r) {
    for (skip(r); r->at < r->size; skip(r)) {
        size_t n = name_length(r);
        named_rule *rule = NULL;
        if (!n || !at_definition(r)) return bad(r, MF_E_FORMAT, "expected \"name ::=\"");
        MF__TRY(find_rule(r, r->text + r->at, n, &rule));
        if (rule->defined) return bad(r, MF_E_FORMAT, "a rule that is there twice");
        rule->defined = true;
        r->at += n;
        skip(r);
        take(r, "::=");
        nfa_rule pair = r->nfa.rules[rule->rule];
        MF__TRY(read_choice(r, pair.start, pair.end));
        if (r->at < r->size && r->text[r->at] == ')') return bad(r, MF_E_FORMAT, "a ) without (");
    }
    bool root = false;
    for (size_t i = 0; i < r->n_rules; i++) {
        if (!r->rules[i].defined)
            return mf__fail(r->err, MF_E_NOT_FOUND, "grammar: rule \"%.*s\" is used but not there",
                            r->rules[i].n > 60 ? 60 : (int)r->rules[i].n, r->rules[i].name);
        if (r->rules[i].n == 4 && memcmp(r->rules[i].name, "root", 4) == 0) root = true, r->nfa.root = r->rules[i].rule;
    }
    return root ? MF_OK : mf__fail(r->err, MF_E_NOT_FOUND, "grammar: there is no rule \"root\"");
}

mf_status mf__grammar_from_rules(const char *text, size_t size, mf__grammar **out, mf_error *err) {
    size_t where;
    *out = NULL;
    if (!mf__utf8_valid(text, size, &where))
        return mf__fail(err, MF_E_FORMAT, "grammar: not valid UTF-8 at byte %zu", where);
    reader *r = calloc(1, sizeof *r);
    if (!r) return mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
    *r = (reader){.text = text, .size = size, .err = err};
    mf__nfa_init(&r->nfa, err);
    mf_status status = read_all(r);
    if (status == MF_OK) status = mf__nfa_finish(&r->nfa, out);
    mf__nfa_deinit(&r->nfa);
    free(r);
    return status;
}
