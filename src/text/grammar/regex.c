/* Regular expressions as automata: the common part of ECMA 262 and PCRE that has no look-around and no back references.
 *
 *   pattern --parse--> automaton over characters --x counter of characters--> automaton over bytes
 *
 * Anchors ^ and $ count at the ends of the pattern and of its alternatives only. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/nfa.h"

#define MAX_CHAR_STATES 20000
#define MAX_REPEAT 1000
#define MAX_DEPTH 50

/* The automaton over characters: a state leads on by the characters of one set, and by any number of empty edges. */
typedef struct cstate {
    int set;        /* index of a set; -1: none */
    uint32_t to;    /* by a character of the set */
    uint32_t empty; /* first empty edge; 0: none (edge 0 is not used) */
} cstate;

typedef struct cedge {
    uint32_t to, next;
} cedge;

typedef struct builder {
    const char *text;
    size_t size, at;
    cstate *states;
    uint32_t n, capacity;
    cedge *edges;
    uint32_t n_edges, edges_capacity;
    mf__uset *sets;
    int n_sets, sets_capacity;
    int depth;
    mf_error *err;
} builder;

typedef struct part {
    uint32_t start, end;
    bool from_begin, to_end; /* anchored */
} part;

static mf_status bad(builder *b, mf_status status, const char *what) {
    return mf__fail(b->err, status, "the regular expression has %s at byte %zu: %.*s", what, b->at,
                    b->size > 80 ? 80 : (int)b->size, b->text);
}

static mf_status new_state(builder *b, uint32_t *out) {
    *out = 0;
    if (b->n >= MAX_CHAR_STATES) return bad(b, MF_E_LIMIT, "too many parts");
    if (b->n == b->capacity) {
        uint32_t capacity = b->capacity ? b->capacity * 2 : 64;
        cstate *more = realloc(b->states, capacity * sizeof *more);
        if (!more) return mf__fail(b->err, MF_E_NOMEM, "no memory for a regular expression");
        b->states = more;
        b->capacity = capacity;
    }
    b->states[b->n] = (cstate){.set = -1};
    *out = b->n++;
    return MF_OK;
}

static mf_status link(builder *b, uint32_t from, uint32_t to) {
    if (b->n_edges + 1 >= b->edges_capacity) {
        uint32_t capacity = b->edges_capacity ? b->edges_capacity * 2 : 64;
        cedge *more = realloc(b->edges, capacity * sizeof *more);
        if (!more) return mf__fail(b->err, MF_E_NOMEM, "no memory for a regular expression");
        b->edges = more;
        b->edges_capacity = capacity;
    }
    b->edges[++b->n_edges] = (cedge){to, b->states[from].empty};
    b->states[from].empty = b->n_edges;
    return MF_OK;
}

static mf_status add_set(builder *b, mf__uset *set, part *out) {
    if (b->n_sets == b->sets_capacity) {
        int capacity = b->sets_capacity ? b->sets_capacity * 2 : 16;
        mf__uset *more = realloc(b->sets, (size_t)capacity * sizeof *more);
        if (!more) {
            mf__uset_free(set);
            return mf__fail(b->err, MF_E_NOMEM, "no memory for a regular expression");
        }
        b->sets = more;
        b->sets_capacity = capacity;
    }
    b->sets[b->n_sets++] = *set; /* owned from here on */
    *set = (mf__uset){0};
    *out = (part){0};
    MF__TRY(new_state(b, &out->start));
    MF__TRY(new_state(b, &out->end));
    b->states[out->start].set = b->n_sets - 1;
    b->states[out->start].to = out->end;
    return MF_OK;
}

/* ---- parsing --------------------------------------------------------------------------------------------------- */

static bool peek(const builder *b, char c) {
    return b->at < b->size && b->text[b->at] == c;
}

static bool take(builder *b, char c) {
    if (!peek(b, c)) return false;
    b->at++;
    return true;
}

static mf_status hex(builder *b, int digits, uint32_t *c) {
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

static mf_status braced_property(builder *b, bool negate, mf__uset *set) {
    const char *end = b->at < b->size && b->text[b->at] == '{' ? memchr(b->text + b->at, '}', b->size - b->at) : NULL;
    bool found;
    if (!end) return bad(b, MF_E_FORMAT, "a bad \\p");
    const char *name = b->text + b->at + 1;
    MF__TRY(mf__uset_add_property(set, name, (size_t)(end - name), &found, b->err));
    if (!found) return bad(b, MF_E_UNSUPPORTED, "an unknown \\p");
    b->at = (size_t)(end - b->text) + 1;
    return negate ? mf__uset_invert(set, b->err) : MF_OK;
}

/* \d, \w and \s mean ASCII to some engines and Unicode to others. What is generated must satisfy either, so a set that
 * allows is the narrow one, and a set that forbids (wide) has all that any engine counts. */
static mf_status shorthand(builder *b, char letter, bool wide, mf__uset *set) {
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
    return negate ? mf__uset_invert(set, b->err) : MF_OK;
}

/* Behind a backslash. */
static mf_status escape(builder *b, bool wide, bool *single, uint32_t *c, mf__uset *set) {
    static const char letters[] = "nrtfv0", bytes[] = "\n\r\t\f\v\0";
    if (b->at == b->size) return bad(b, MF_E_FORMAT, "a backslash at its end");
    char e = b->text[b->at++];
    const char *p = e ? strchr(letters, e) : NULL;
    *single = true;
    if (p) return *c = (uint8_t)bytes[p - letters], MF_OK;
    if (e == 'x') return hex(b, 2, c);
    if (e == 'u' && take(b, '{')) {
        for (*c = 0; b->at < b->size && !peek(b, '}');) {
            uint32_t digit;
            MF__TRY(hex(b, 1, &digit));
            if ((*c = *c << 4 | digit) >= MF__UNICODE_END) return bad(b, MF_E_FORMAT, "a bad character code");
        }
        return take(b, '}') ? MF_OK : bad(b, MF_E_FORMAT, "a bad character code");
    }
    if (e == 'u') return hex(b, 4, c);
    if (strchr("dwsDWS", e)) return *single = false, shorthand(b, e, wide, set);
    if (e == 'p' || e == 'P') return *single = false, braced_property(b, e == 'P', set);
    if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '1' && e <= '9'))
        return bad(b, MF_E_UNSUPPORTED, "an escape that is not supported");
    b->at--;
    b->at += (size_t)mf__utf8_decode(b->text + b->at, c);
    return MF_OK;
}

static mf_status class_item(builder *b, bool wide, bool *single, uint32_t *c, mf__uset *set) {
    *single = true;
    if (take(b, '\\')) {
        if (take(b, 'b')) return *c = '\b', MF_OK;
        return escape(b, wide, single, c, set);
    }
    b->at += (size_t)mf__utf8_decode(b->text + b->at, c);
    return MF_OK;
}

static mf_status read_class(builder *b, mf__uset *set) {
    bool negate = take(b, '^');
    while (!take(b, ']')) {
        uint32_t lo = 0, hi = 0;
        bool single = true, single_hi = true;
        mf__uset part_set = {0};
        if (b->at == b->size) return bad(b, MF_E_FORMAT, "a [ that is not closed");
        mf_status status = class_item(b, negate, &single, &lo, &part_set);
        hi = lo;
        if (status == MF_OK && single && peek(b, '-') && b->at + 1 < b->size && b->text[b->at + 1] != ']') {
            b->at++;
            status = class_item(b, negate, &single_hi, &hi, &part_set);
            if (status == MF_OK && (!single_hi || hi < lo)) status = bad(b, MF_E_FORMAT, "a bad range");
        }
        if (status == MF_OK && single) status = mf__uset_add(set, lo, hi, b->err);
        if (status == MF_OK) status = mf__uset_union(set, &part_set, b->err);
        mf__uset_free(&part_set);
        MF__TRY(status);
    }
    return negate ? mf__uset_invert(set, b->err) : MF_OK;
}

static mf_status parse_choice(builder *b, part *out);

static mf_status parse_atom(builder *b, part *out) {
    mf__uset set = {0};
    mf_status status = MF_OK;
    uint32_t c = 0;
    bool single = false;
    if (take(b, '(')) {
        if (take(b, '?') && !take(b, ':')) return bad(b, MF_E_UNSUPPORTED, "a kind of group that is not supported");
        if (++b->depth > MAX_DEPTH) return bad(b, MF_E_LIMIT, "groups nested too deep");
        MF__TRY(parse_choice(b, out));
        b->depth--;
        return take(b, ')') ? MF_OK : bad(b, MF_E_FORMAT, "a ( that is not closed");
    }
    if (take(b, '[')) {
        status = read_class(b, &set);
    } else if (take(b, '.')) {
        status = mf__uset_add(&set, '\n', '\n', b->err);
        if (status == MF_OK) status = mf__uset_add(&set, '\r', '\r', b->err);
        if (status == MF_OK) status = mf__uset_add(&set, 0x2028, 0x2029, b->err);
        if (status == MF_OK) status = mf__uset_invert(&set, b->err);
    } else if (take(b, '\\')) {
        status = escape(b, false, &single, &c, &set);
    } else {
        if (strchr("*+?{", b->text[b->at]) && b->text[b->at])
            return bad(b, MF_E_FORMAT, "a quantifier without an object");
        single = true;
        b->at += (size_t)mf__utf8_decode(b->text + b->at, &c);
    }
    if (status == MF_OK && single) status = mf__uset_add(&set, c, c, b->err);
    if (status != MF_OK) return mf__uset_free(&set), status;
    return add_set(b, &set, out);
}

/* min..max copies of what stands between `from` and b->at in the pattern; it was parsed once, into *out. */
static mf_status repeat(builder *b, size_t from, size_t to, long min, long max, part *out) {
    part whole = {0}, one = *out;
    size_t after = b->at;
    MF__TRY(new_state(b, &whole.start));
    uint32_t at = whole.start;
    MF__TRY(new_state(b, &whole.end));
    for (long i = 0; i < (max < 0 ? (min ? min : 1) : max); i++) {
        if (i > 0) {
            b->at = from;
            MF__TRY(parse_atom(b, &one));
            if (b->at != to) return bad(b, MF_E_INTERNAL, "a repetition");
        }
        if (i >= min) MF__TRY(link(b, at, whole.end));
        MF__TRY(link(b, at, one.start));
        at = one.end;
        if (max < 0 && i + 1 >= min) {
            uint32_t again;
            MF__TRY(new_state(b, &again)); /* back for more, or on */
            MF__TRY(link(b, at, again));
            MF__TRY(link(b, again, one.start));
            at = again;
        }
    }
    b->at = after;
    *out = whole;
    return link(b, at, whole.end);
}

static bool read_number(builder *b, long *out) {
    size_t start = b->at;
    for (*out = 0; b->at < b->size && b->text[b->at] >= '0' && b->text[b->at] <= '9' && *out < 100000; b->at++)
        *out = *out * 10 + (b->text[b->at] - '0');
    return b->at > start;
}

static mf_status parse_repeat(builder *b, part *out) {
    size_t from = b->at;
    MF__TRY(parse_atom(b, out));
    size_t to = b->at;
    long min, max;
    if (take(b, '*')) {
        min = 0, max = -1;
    } else if (take(b, '+')) {
        min = 1, max = -1;
    } else if (take(b, '?')) {
        min = 0, max = 1;
    } else if (take(b, '{')) {
        if (!read_number(b, &min)) return bad(b, MF_E_FORMAT, "a bad {n,m}");
        max = min;
        if (take(b, ',') && !read_number(b, &max)) max = -1;
        if (!take(b, '}') || (max >= 0 && max < min)) return bad(b, MF_E_FORMAT, "a bad {n,m}");
        if (min > MAX_REPEAT || max > MAX_REPEAT) return bad(b, MF_E_LIMIT, "a count that is too large");
    } else {
        return MF_OK;
    }
    take(b, '?'); /* lazy or greedy: the same texts */
    if (strchr("*+?{", b->at < b->size ? b->text[b->at] : 'x')) return bad(b, MF_E_FORMAT, "two quantifiers in a row");
    return repeat(b, from, to, min, max, out);
}

static mf_status parse_sequence(builder *b, part *out) {
    *out = (part){0};
    MF__TRY(new_state(b, &out->start));
    out->end = out->start;
    if (take(b, '^')) out->from_begin = true;
    while (b->at < b->size && !peek(b, '|') && !peek(b, ')')) {
        part one;
        if (out->to_end || peek(b, '^')) return bad(b, MF_E_UNSUPPORTED, "an anchor inside");
        if (take(b, '$')) {
            out->to_end = true;
            continue;
        }
        MF__TRY(parse_repeat(b, &one));
        MF__TRY(link(b, out->end, one.start));
        out->end = one.end;
    }
    return MF_OK;
}

/* Anchors must agree between alternatives inside a group; at the top each keeps its own (see add_search). */
static mf_status parse_choice(builder *b, part *out) {
    part whole = {0}, one;
    MF__TRY(new_state(b, &whole.start));
    MF__TRY(new_state(b, &whole.end));
    do {
        MF__TRY(parse_sequence(b, &one));
        if (one.from_begin || one.to_end) return bad(b, MF_E_UNSUPPORTED, "an anchor inside a group");
        MF__TRY(link(b, whole.start, one.start));
        MF__TRY(link(b, one.end, whole.end));
    } while (take(b, '|'));
    *out = whole;
    return MF_OK;
}

/* A state that takes any characters before going on. */
static mf_status any_text(builder *b, uint32_t from, uint32_t to) {
    mf__uset all = {0};
    part one;
    MF__TRY(mf__uset_add(&all, 0, MF__UNICODE_END - 1, b->err));
    MF__TRY(add_set(b, &all, &one));
    MF__TRY(link(b, from, one.start));
    MF__TRY(link(b, one.end, one.start));
    MF__TRY(link(b, one.end, to));
    return link(b, from, to);
}

static mf_status parse_all(builder *b, bool search, part *out) {
    part one;
    *out = (part){0};
    MF__TRY(new_state(b, &out->start));
    MF__TRY(new_state(b, &out->end));
    do {
        MF__TRY(parse_sequence(b, &one));
        if (search && !one.from_begin)
            MF__TRY(any_text(b, out->start, one.start));
        else
            MF__TRY(link(b, out->start, one.start));
        if (search && !one.to_end)
            MF__TRY(any_text(b, one.end, out->end));
        else
            MF__TRY(link(b, one.end, out->end));
    } while (take(b, '|'));
    return b->at == b->size ? MF_OK : bad(b, MF_E_FORMAT, "a ) without (");
}

/* ---- to bytes -------------------------------------------------------------------------------------------------- */

/* Copies of the character automaton, one per number of characters read, as far as the limits need it. */
static mf_status lower(builder *b, mf__grammar *g, uint32_t from, const nfa_regex *r, const part *p, uint32_t to) {
    int64_t top = r->max >= 0 ? r->max : r->min; /* counts above are not told apart */
    if (top > 0 && (uint64_t)(top + 1) * b->n > MF__NFA_MAX_STATES)
        return mf__fail(b->err, MF_E_LIMIT, "a pattern with lengths up to %lld is too large", (long long)top);
    size_t total = (size_t)(top + 1) * b->n;
    uint32_t *map = malloc(total * sizeof *map); /* [count][state] */
    if (!map) return mf__fail(b->err, MF_E_NOMEM, "no memory for a regular expression");
    mf_status status = MF_OK;
    for (size_t i = 0; status == MF_OK && i < total; i++) status = nfa_state_add(g, &map[i], b->err);
    if (status == MF_OK) status = nfa_empty(g, from, map[p->start], b->err);
    for (int64_t k = 0; status == MF_OK && k <= top; k++)
        for (uint32_t s = 0; status == MF_OK && s < b->n; s++) {
            const cstate *cs = &b->states[s];
            uint32_t here = map[(size_t)k * b->n + s];
            for (uint32_t e = cs->empty; status == MF_OK && e; e = b->edges[e].next)
                status = nfa_empty(g, here, map[(size_t)k * b->n + b->edges[e].to], b->err);
            int64_t next = k < top ? k + 1 : r->max >= 0 ? -1 : k;
            if (status == MF_OK && cs->set >= 0 && next >= 0)
                status = nfa_chars(g, here, &b->sets[cs->set], r->in_json, map[(size_t)next * b->n + cs->to], b->err);
            if (r->any && cs->set >= 0) g->states[here].free = r->max < 0 ? MF__NFA_NEVER : (uint32_t)(r->max - k);
            if (status == MF_OK && s == p->end && k >= r->min) status = nfa_empty(g, here, to, b->err);
        }
    free(map);
    return status;
}

mf_status nfa_regex_add(mf__grammar *g, uint32_t from, const nfa_regex *r, uint32_t to, mf_error *err) {
    builder b = {.text = r->pattern, .size = r->size, .err = err};
    part p;
    size_t where;
    mf_status status = MF_OK;
    if (!mf__utf8_valid(r->pattern, r->size, &where))
        status = mf__fail(err, MF_E_FORMAT, "the regular expression is not valid UTF-8 at byte %zu", where);
    if (status == MF_OK) status = parse_all(&b, r->search, &p);
    if (status == MF_OK) status = lower(&b, g, from, r, &p, to);
    for (int i = 0; i < b.n_sets; i++) mf__uset_free(&b.sets[i]);
    free(b.sets);
    free(b.edges);
    free(b.states);
    return status;
}

mf_status mf__grammar_from_regex(const char *pattern, size_t size, mf__grammar **out, mf_error *err) {
    mf__grammar *g;
    nfa_regex r = {.pattern = pattern, .size = size, .max = -1};
    *out = NULL;
    MF__TRY(nfa_create(&g, err));
    mf_status status = nfa_rule_add(g, &g->root, err);
    if (status == MF_OK) status = nfa_regex_add(g, g->rules[g->root].start, &r, g->rules[g->root].end, err);
    if (status == MF_OK) status = nfa_finish(g, err);
    if (status != MF_OK) return mf__grammar_free(g), status;
    *out = g;
    return MF_OK;
}
