/* Regular expressions to sets of strings: an automaton over characters, made deterministic.
 *
 * ^ and $ are empty edges that can be passed only at the beginning and at the end. Looking ahead right behind ^, and
 * behind right before $, is an intersection with what is looked for. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/lang.h"
#include "text/grammar/regex.h"

#define MAX_CHAR_STATES 60000
#define MAX_WORK (1u << 25)
#define LARGE_COUNT 1000 /* repetitions that are counted rather than copied, where that can be done */

typedef enum edge_kind { ALWAYS, AT_BEGIN, AT_END } edge_kind;

/* A state leads on by the characters of one set, and by any number of empty edges. */
typedef struct cstate {
    uint32_t set;   /* index of a set plus 1; 0: none */
    uint32_t to;    /* by a character of the set */
    uint32_t empty; /* first empty edge; 0: none (edge 0 is not used) */
} cstate;

typedef struct cedge {
    uint32_t to, next;
    edge_kind kind;
} cedge;

typedef struct builder {
    const mf__regex *r;
    cstate *states;
    uint32_t n, capacity;
    cedge *edges;
    uint32_t n_edges, edges_capacity;
    uint32_t any; /* the set of all characters: r->n_sets + 1 */
    /* made deterministic */
    uint32_t *cuts, *class, n_cuts, n_classes;
    uint8_t *has;  /* [class][set]: the class is in the set */
    uint32_t *rep; /* a character of each class */
    uint32_t *stamp, now, *set, n_set;
    uint32_t *members, n_members, members_capacity;
    uint32_t *first; /* of state i in members; [i + 1] is its end */
    uint32_t n_subsets;
    uint32_t *slots, slots_mask;
    uint32_t *to;
    uint8_t *accept;
    uint64_t work;
    mf_error *err;
} builder;

static mf_status no_memory(builder *b) {
    return mf__fail(b->err, MF_E_NOMEM, "no memory for a regular expression");
}

static mf_status too_large(builder *b) {
    return mf__fail(b->err, MF_E_LIMIT, "the regular expression is too large: counts multiply");
}

static mf_status new_state(builder *b, uint32_t *out) {
    *out = 0;
    if (b->n >= MAX_CHAR_STATES) return too_large(b);
    if (b->n == b->capacity) {
        uint32_t capacity = b->capacity ? b->capacity * 2 : 64;
        cstate *more = realloc(b->states, capacity * sizeof *more);
        if (!more) return no_memory(b);
        b->states = more;
        b->capacity = capacity;
    }
    b->states[b->n] = (cstate){0};
    *out = b->n++;
    return MF_OK;
}

static mf_status link(builder *b, uint32_t from, uint32_t to, edge_kind kind) {
    if (b->n_edges + 1 >= b->edges_capacity) {
        uint32_t capacity = b->edges_capacity ? b->edges_capacity * 2 : 64;
        cedge *more = realloc(b->edges, capacity * sizeof *more);
        if (!more) return no_memory(b);
        b->edges = more;
        b->edges_capacity = capacity;
    }
    b->edges[++b->n_edges] = (cedge){to, b->states[from].empty, kind};
    b->states[from].empty = b->n_edges;
    return MF_OK;
}

/* ---- the tree as an automaton ------------------------------------------------------------------------------------ */

static mf_status fill(builder *b, uint32_t node, uint32_t from, uint32_t to);

static mf_status fill_repeat(builder *b, const regex_node *r, uint32_t from, uint32_t to) {
    uint32_t at = from, next;
    for (int64_t i = 0; i < (r->max < 0 ? r->min : r->max); i++) {
        if (i >= r->min) MF__TRY(link(b, at, to, ALWAYS));
        MF__TRY(new_state(b, &next));
        MF__TRY(fill(b, r->a, at, next));
        at = next;
    }
    if (r->max < 0) {
        uint32_t loop;
        MF__TRY(new_state(b, &loop));
        MF__TRY(link(b, at, loop, ALWAYS));
        MF__TRY(new_state(b, &next));
        MF__TRY(fill(b, r->a, loop, next));
        MF__TRY(link(b, next, loop, ALWAYS));
        at = loop;
    }
    return link(b, at, to, ALWAYS);
}

static mf_status fill(builder *b, uint32_t node, uint32_t from, uint32_t to) {
    const regex_node *r = &b->r->nodes[node];
    uint32_t middle;
    switch ((regex_kind)r->kind) {
    case REGEX_EMPTY: return link(b, from, to, ALWAYS);
    case REGEX_SET:
        MF__TRY(new_state(b, &middle));
        b->states[middle].set = r->a + 1;
        b->states[middle].to = to;
        return link(b, from, middle, ALWAYS);
    case REGEX_THEN:
        MF__TRY(new_state(b, &middle));
        MF__TRY(fill(b, r->a, from, middle));
        return fill(b, r->b, middle, to);
    case REGEX_OR: MF__TRY(fill(b, r->a, from, to)); return fill(b, r->b, from, to);
    case REGEX_REPEAT: return fill_repeat(b, r, from, to);
    case REGEX_BEGIN: return link(b, from, to, AT_BEGIN);
    case REGEX_END: return link(b, from, to, AT_END);
    case REGEX_AHEAD:
    case REGEX_BEHIND: break;
    }
    return mf__fail(b->err, MF_E_UNSUPPORTED, "the regular expression looks ahead or behind in the middle");
}

static mf_status any_text(builder *b, uint32_t at) {
    uint32_t state;
    MF__TRY(new_state(b, &state));
    b->states[state].set = b->any;
    b->states[state].to = at;
    return link(b, at, state, ALWAYS);
}

/* ---- deterministic ----------------------------------------------------------------------------------------------- */

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Characters that are in the same sets are one class. */
static mf_status find_classes(builder *b) {
    uint32_t n = 1, n_sets = b->r->n_sets;
    for (uint32_t i = 0; i < n_sets; i++) n += 2 * (uint32_t)b->r->sets[i].n;
    b->cuts = malloc(((size_t)n + 1) * sizeof *b->cuts);
    b->class = malloc(((size_t)n + 1) * sizeof *b->class);
    b->rep = malloc(((size_t)n + 1) * sizeof *b->rep);
    b->has = malloc(((size_t)n + 1) * (n_sets + 2));
    if (!b->cuts || !b->class || !b->rep || !b->has) return no_memory(b);
    b->cuts[0] = 0;
    n = 1;
    for (uint32_t i = 0; i < n_sets; i++)
        for (int k = 0; k < b->r->sets[i].n; k++) {
            b->cuts[n++] = b->r->sets[i].ranges[k].first;
            if (b->r->sets[i].ranges[k].last + 1 < MF__UNICODE_END) b->cuts[n++] = b->r->sets[i].ranges[k].last + 1;
        }
    qsort(b->cuts, n, sizeof *b->cuts, compare_u32);
    for (uint32_t i = 0; i < n; i++) {
        if (b->n_cuts && b->cuts[b->n_cuts - 1] == b->cuts[i]) continue;
        uint32_t c = b->cuts[i];
        uint8_t *has = b->has + (size_t)b->n_classes * (n_sets + 2);
        for (uint32_t k = 0; k < n_sets; k++) has[k + 1] = mf__uset_has(&b->r->sets[k], c);
        has[0] = 0;
        has[n_sets + 1] = 1;
        uint32_t class = 0;
        while (class < b->n_classes && memcmp(b->has + (size_t) class * (n_sets + 2), has, n_sets + 2) != 0) class ++;
        if (class == b->n_classes) b->rep[b->n_classes++] = c;
        b->class[b->n_cuts] = class;
        b->cuts[b->n_cuts++] = c;
    }
    return MF_OK;
}

static void reach(builder *b, uint32_t state) {
    if (b->stamp[state] == b->now) return;
    b->stamp[state] = b->now;
    b->set[b->n_set++] = state;
}

/* Closes the set over empty edges that can be passed here. */
static void close_set(builder *b, bool begin, bool end) {
    for (uint32_t i = 0; i < b->n_set; i++)
        for (uint32_t e = b->states[b->set[i]].empty; e; e = b->edges[e].next) {
            edge_kind kind = b->edges[e].kind;
            if (kind == ALWAYS || (kind == AT_BEGIN && begin) || (kind == AT_END && end)) reach(b, b->edges[e].to);
        }
}

/* The state of the set, made if need be; 0 for the empty one. */
static mf_status state_of(builder *b, uint32_t *out) {
    *out = 0;
    if (b->n_set == 0) return MF_OK;
    if (b->n_set > 1) qsort(b->set, b->n_set, sizeof *b->set, compare_u32);
    uint64_t h = 1;
    for (uint32_t i = 0; i < b->n_set; i++) h = (h ^ b->set[i]) * 0xD6E8FEB86659FD93u, h ^= h >> 29;
    uint32_t at = (uint32_t)(h >> 20) & b->slots_mask;
    for (; b->slots[at]; at = (at + 1) & b->slots_mask) {
        uint32_t s = b->slots[at], n = b->first[s + 1] - b->first[s];
        if (n == b->n_set && memcmp(b->members + b->first[s], b->set, n * sizeof *b->set) == 0) return *out = s, MF_OK;
    }
    b->work += b->n_set;
    if (b->n_subsets >= MF__LANG_MAX_STATES || b->work > MAX_WORK) return too_large(b);
    while (b->n_members + b->n_set > b->members_capacity) {
        uint32_t capacity = b->members_capacity ? b->members_capacity * 2 : 256;
        uint32_t *more = realloc(b->members, capacity * sizeof *more);
        if (!more) return no_memory(b);
        b->members = more;
        b->members_capacity = capacity;
    }
    memcpy(b->members + b->n_members, b->set, b->n_set * sizeof *b->set);
    b->n_members += b->n_set;
    *out = b->slots[at] = b->n_subsets++;
    b->first[b->n_subsets] = b->n_members;
    return MF_OK;
}

/* Does the string end well in this state? final: the automaton's end. */
static bool ends_well(builder *b, uint32_t s, bool begin, uint32_t final) {
    b->now++;
    b->n_set = 0;
    for (uint32_t i = b->first[s]; i < b->first[s + 1]; i++) reach(b, b->members[i]);
    close_set(b, begin, true);
    return b->stamp[final] == b->now;
}

static mf_status determine(builder *b, uint32_t start, uint32_t final, mf__lang *out) {
    uint32_t slots = 64, first;
    MF__TRY(find_classes(b));
    while (slots < 2 * MF__LANG_MAX_STATES && slots < 16 * b->n) slots *= 2;
    slots *= 4;
    b->slots_mask = slots - 1;
    b->slots = calloc(slots, sizeof *b->slots);
    b->stamp = calloc((size_t)b->n + 1, sizeof *b->stamp);
    b->set = malloc(((size_t)b->n + 1) * sizeof *b->set);
    b->first = calloc((size_t)MF__LANG_MAX_STATES + 2, sizeof *b->first);
    if (!b->slots || !b->stamp || !b->set || !b->first) return no_memory(b);
    b->n_subsets = 1; /* 0 is dead */
    b->now = 1;
    reach(b, start);
    close_set(b, true, false);
    MF__TRY(state_of(b, &first));
    uint32_t capacity = 0, n_sets = b->r->n_sets;
    for (uint32_t s = 1; s < b->n_subsets; s++) {
        if (b->n_subsets * 2 > b->slots_mask) return too_large(b);
        if (s >= capacity) {
            capacity = capacity ? capacity * 2 : 64;
            uint32_t *more = realloc(b->to, (size_t)capacity * b->n_classes * sizeof *more);
            if (more) b->to = more;
            uint8_t *accept = realloc(b->accept, capacity);
            if (accept) b->accept = accept;
            if (!more || !accept) return no_memory(b);
        }
        b->accept[s] = ends_well(b, s, s == first, final);
        for (uint32_t k = 0; k < b->n_classes; k++) {
            const uint8_t *has = b->has + (size_t)k * (n_sets + 2);
            b->now++;
            b->n_set = 0;
            for (uint32_t i = b->first[s]; i < b->first[s + 1]; i++) {
                const cstate *c = &b->states[b->members[i]];
                if (has[c->set]) reach(b, c->to);
            }
            close_set(b, false, false);
            uint32_t to;
            MF__TRY(state_of(b, &to));
            b->to[(size_t)s * b->n_classes + k] = to;
        }
    }
    MF__TRY(mf__lang_make(out, b->n_subsets, b->n_classes, b->n_cuts, b->err));
    out->start = first;
    memcpy(out->cuts, b->cuts, b->n_cuts * sizeof *out->cuts);
    memcpy(out->class, b->class, b->n_cuts * sizeof *out->class);
    memcpy(out->to + b->n_classes, b->to + b->n_classes, (size_t)(b->n_subsets - 1) * b->n_classes * sizeof *out->to);
    for (uint32_t s = 1; s < b->n_subsets; s++) out->label[s] = b->accept[s];
    return MF_OK;
}

/* The strings of a tree; before and behind: any text may be there. */
static mf_status tree_lang(const mf__regex *r, uint32_t node, bool before, bool behind, mf__lang *out, mf_error *err) {
    builder b = {.r = r, .any = r->n_sets + 1, .err = err};
    uint32_t start, end;
    mf_status status = new_state(&b, &start);
    if (status == MF_OK) status = new_state(&b, &end);
    if (status == MF_OK && before) status = any_text(&b, start);
    if (status == MF_OK) status = fill(&b, node, start, end);
    if (status == MF_OK && behind) status = any_text(&b, end);
    if (status == MF_OK) status = determine(&b, start, end, out);
    free(b.states);
    free(b.edges);
    free(b.cuts);
    free(b.class);
    free(b.has);
    free(b.rep);
    free(b.stamp);
    free(b.set);
    free(b.members);
    free(b.first);
    free(b.slots);
    free(b.to);
    free(b.accept);
    return status;
}

/* ---- looking ahead and behind ------------------------------------------------------------------------------------ */

/* The leftmost (or rightmost) part of a sequence. */
static regex_node *end_part(mf__regex *r, uint32_t node, bool right) {
    while (r->nodes[node].kind == REGEX_THEN) node = right ? r->nodes[node].b : r->nodes[node].a;
    return &r->nodes[node];
}

/* Takes a look off the beginning of a sequence (behind a ^, which is kept) or off its end (before a $): *look is its
 * node. whole: the sequence must match the whole string, so that its ends are the string's. */
static bool take_look(mf__regex *r, uint32_t root, bool whole, bool right, regex_node *look) {
    uint32_t path[2] = {root, root};
    bool anchored = whole;
    regex_kind anchor = right ? REGEX_END : REGEX_BEGIN, kind = right ? REGEX_BEHIND : REGEX_AHEAD;
    regex_node *part = end_part(r, root, right);
    if (part->kind == kind && anchored) return *look = *part, *part = (regex_node){.kind = REGEX_EMPTY}, true;
    if (part->kind == (uint8_t)anchor) { /* the part next to it */
        uint32_t node = root;
        while (r->nodes[node].kind == REGEX_THEN) {
            path[0] = path[1];
            path[1] = node;
            node = right ? r->nodes[node].b : r->nodes[node].a;
        }
        if (r->nodes[root].kind != REGEX_THEN) return false;
        uint32_t other = right ? r->nodes[path[1]].a : r->nodes[path[1]].b;
        part = end_part(r, other, right);
        if (part->kind == kind) return *look = *part, *part = (regex_node){.kind = REGEX_EMPTY}, true;
        if (part->kind == REGEX_EMPTY && path[1] != root) { /* one was taken: the next */
            for (uint32_t up = root; up != path[1]; up = right ? r->nodes[up].b : r->nodes[up].a) {
                regex_node *next = end_part(r, right ? r->nodes[up].a : r->nodes[up].b, right);
                if (next->kind == kind) return *look = *next, *next = (regex_node){.kind = REGEX_EMPTY}, true;
                if (next->kind != REGEX_EMPTY) break;
            }
        }
    }
    return false;
}

static mf_status sequence_lang(mf__regex *r, uint32_t root, bool search, mf__lang *out, mf_error *err) {
    regex_node looks[16];
    bool behind[16];
    int n = 0;
    for (int right = 0; right < 2; right++)
        while (n < 16 && take_look(r, root, !search, right, &looks[n])) behind[n++] = right;
    MF__TRY(tree_lang(r, root, search, search, out, err));
    mf_status status = MF_OK;
    for (int i = 0; status == MF_OK && i < n; i++) { /* what is ahead is at the beginning, with anything behind it */
        mf__lang look = {0};
        status = tree_lang(r, looks[i].a, behind[i], !behind[i], &look, err);
        if (status == MF_OK)
            status = mf__lang_restrict(out, &look, looks[i].min ? MF__LANG_AND_NOT : MF__LANG_AND, err);
        mf__lang_free(&look);
    }
    if (status != MF_OK) mf__lang_free(out);
    return status;
}

static mf_status choice_lang(mf__regex *r, uint32_t root, bool search, mf__lang *out, mf_error *err) {
    bool looks = false;
    for (uint32_t i = 0; i < r->n_nodes; i++)
        looks = looks || r->nodes[i].kind == REGEX_AHEAD || r->nodes[i].kind == REGEX_BEHIND;
    if (!looks || r->nodes[root].kind != REGEX_OR) return sequence_lang(r, root, search, out, err);
    mf__lang other = {0};
    uint32_t b = r->nodes[root].b;
    MF__TRY(choice_lang(r, r->nodes[root].a, search, out, err));
    mf_status status = choice_lang(r, b, search, &other, err);
    if (status == MF_OK) status = mf__lang_restrict(out, &other, MF__LANG_OR, err);
    mf__lang_free(&other);
    if (status != MF_OK) mf__lang_free(out);
    return status;
}

/* ---- counts ------------------------------------------------------------------------------------------------------ */

/* How many characters all strings of a tree have; -1: not all the same, or very many. */
static int64_t width_of(const mf__regex *r, uint32_t node) {
    const regex_node *n = &r->nodes[node];
    int64_t a, b;
    switch ((regex_kind)n->kind) {
    case REGEX_SET: return 1;
    case REGEX_THEN:
        a = width_of(r, n->a), b = width_of(r, n->b);
        return a < 0 || b < 0 || a + b > MAX_CHAR_STATES ? -1 : a + b;
    case REGEX_OR: a = width_of(r, n->a), b = width_of(r, n->b); return a == b ? a : -1;
    case REGEX_REPEAT:
        a = n->min == n->max && n->max <= MAX_CHAR_STATES ? width_of(r, n->a) : -1;
        return a < 0 || a * n->max > MAX_CHAR_STATES ? -1 : a * n->max;
    default: return 0;
    }
}

/* A sequence whose parts all have one width but for a character that is repeated up to very many times: how many times
 * shows in how long the string is. The repetition becomes any number, and *min and *max the lengths. */
static void take_count(mf__regex *r, bool search, int64_t *min, int64_t *max) {
    regex_node *large = NULL;
    int64_t others = 0;
    bool begins = !search, ends = !search, more = true;
    for (uint32_t node = r->root; more; node = r->nodes[node].a) { /* from the last part to the first */
        more = r->nodes[node].kind == REGEX_THEN;
        uint32_t part = more ? r->nodes[node].b : node;
        regex_node *p = &r->nodes[part];
        if (p->kind == REGEX_EMPTY) continue;
        if (!large && others == 0 && p->kind == REGEX_END) ends = true;
        if (!ends) return;
        begins = !search || p->kind == REGEX_BEGIN;
        if (!large && p->kind == REGEX_REPEAT && (p->max < 0 ? p->min : p->max) > LARGE_COUNT &&
            width_of(r, p->a) == 1) {
            large = p;
            continue;
        }
        int64_t width = width_of(r, part);
        if (width < 0) return;
        others += width;
    }
    if (!large || !begins) return;
    *min = others + large->min;
    *max = large->max < 0 ? -1 : others + large->max;
    large->min = 0;
    large->max = -1;
}

/* At an end where anything may stand beside it, more of the same says nothing. */
static void trim_ends(mf__regex *r, uint32_t node) {
    if (r->nodes[node].kind == REGEX_OR) {
        uint32_t b = r->nodes[node].b;
        trim_ends(r, r->nodes[node].a);
        trim_ends(r, b);
        return;
    }
    for (int right = 0; right < 2; right++) {
        regex_node *part = end_part(r, node, right);
        if (part->kind == REGEX_REPEAT) part->max = part->min;
    }
}

mf_status mf__lang_regex(const char *pattern, size_t size, mf__lang_options o, mf__lang *out, mf_error *err) {
    mf__regex r;
    *out = (mf__lang){0};
    if (o.min) *o.min = 0, *o.max = -1;
    MF__TRY(mf__regex_parse(pattern, size, o.wide, &r, err));
    if (o.min) take_count(&r, o.search, o.min, o.max);
    if (o.search) trim_ends(&r, r.root);
    mf_status status = choice_lang(&r, r.root, o.search, out, err);
    if (status == MF_OK) status = mf__lang_minimise(out, err);
    mf__regex_free(&r);
    return status;
}

mf_status mf__grammar_from_regex(const char *pattern, size_t size, mf__grammar **out, mf_error *err) {
    mf__lang lang;
    mf__nfa n;
    uint32_t rule;
    *out = NULL;
    int64_t min, max;
    MF__TRY(mf__lang_regex(pattern, size, (mf__lang_options){.min = &min, .max = &max}, &lang, err));
    bool counted = min > 0 || max >= 0;
    mf__nfa_init(&n, err);
    mf_status status = counted && !mf__lang_gapless(&lang)
                           ? mf__fail(err, MF_E_LIMIT, "the regular expression is too large: counts multiply")
                           : mf__nfa_rule(&n, &rule);
    if (status == MF_OK && counted)
        n.rules[rule].kind = MF__RULE_COUNTED, n.rules[rule].min = min, n.rules[rule].max = max;
    if (status == MF_OK) status = mf__lang_fill(&n, &lang, NFA_PLAIN, counted, n.rules[rule].start, n.rules[rule].end);
    if (status == MF_OK) status = mf__nfa_finish(&n, out);
    mf__nfa_deinit(&n);
    mf__lang_free(&lang);
    return status;
}
