/* Building automata, and finishing them: see nfa.h. */
#include "text/grammar/nfa.h"

#include <stdlib.h>
#include <string.h>

mf_status nfa_create(mf__grammar **out, mf_error *err) {
    *out = calloc(1, sizeof **out);
    if (!*out) return mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
    (*out)->n_edges = 1;
    return MF_OK;
}

void mf__grammar_free(mf__grammar *g) {
    if (!g) return;
    free(g->states);
    free(g->edges);
    free(g->rules);
    free(g);
}

static mf_status grow(void **array, uint32_t *capacity, size_t item, mf_error *err) {
    uint32_t n = *capacity ? *capacity * 2 : 256;
    void *more = realloc(*array, n * item);
    if (!more) return mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
    *array = more;
    *capacity = n;
    return MF_OK;
}

mf_status nfa_state_add(mf__grammar *g, uint32_t *state, mf_error *err) {
    *state = 0;
    if (g->n_states == MF__NFA_MAX_STATES)
        return mf__fail(err, MF_E_LIMIT,
                        "the schema or grammar is too large: more than %u states (large counts such as "
                        "maxLength or maxItems multiply)",
                        MF__NFA_MAX_STATES);
    if (g->n_states == g->states_capacity)
        MF__TRY(grow((void **)&g->states, &g->states_capacity, sizeof *g->states, err));
    g->states[g->n_states] = (nfa_state){0};
    *state = g->n_states++;
    return MF_OK;
}

mf_status nfa_rule_add(mf__grammar *g, uint32_t *rule, mf_error *err) {
    nfa_rule r = {0};
    *rule = 0;
    MF__TRY(nfa_state_add(g, &r.start, err));
    MF__TRY(nfa_state_add(g, &r.end, err));
    if (g->n_rules == g->rules_capacity) MF__TRY(grow((void **)&g->rules, &g->rules_capacity, sizeof *g->rules, err));
    g->rules[g->n_rules] = r;
    *rule = g->n_rules++;
    return MF_OK;
}

static mf_status add_edge(mf__grammar *g, uint32_t from, nfa_edge e, mf_error *err) {
    if (g->n_edges == MF__NFA_MAX_STATES * 8) return mf__fail(err, MF_E_LIMIT, "the schema or grammar is too large");
    if (g->n_edges >= g->edges_capacity) MF__TRY(grow((void **)&g->edges, &g->edges_capacity, sizeof *g->edges, err));
    e.next = g->states[from].edges;
    g->edges[g->n_edges] = e;
    g->states[from].edges = g->n_edges++;
    return MF_OK;
}

mf_status nfa_empty(mf__grammar *g, uint32_t from, uint32_t to, mf_error *err) {
    return add_edge(g, from, (nfa_edge){.kind = NFA_EMPTY, .to = to}, err);
}

mf_status nfa_bytes(mf__grammar *g, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to, mf_error *err) {
    return add_edge(g, from, (nfa_edge){.kind = NFA_BYTES, .lo = lo, .hi = hi, .to = to}, err);
}

mf_status nfa_call(mf__grammar *g, uint32_t from, uint32_t rule, uint32_t to, mf_error *err) {
    return add_edge(g, from, (nfa_edge){.kind = NFA_CALL, .rule = rule, .to = to}, err);
}

mf_status nfa_text(mf__grammar *g, uint32_t from, const char *s, size_t n, uint32_t to, mf_error *err) {
    if (n == 0) return nfa_empty(g, from, to, err);
    for (size_t i = 0; i < n; i++) {
        uint32_t next = to;
        if (i + 1 < n) MF__TRY(nfa_state_add(g, &next, err));
        MF__TRY(nfa_bytes(g, from, (uint8_t)s[i], (uint8_t)s[i], next, err));
        from = next;
    }
    return MF_OK;
}

/* ---- characters ------------------------------------------------------------------------------------------------ */

/* States from which 1, 2 or 3 continuation bytes lead to `to`; made when needed. */
typedef struct tails {
    uint32_t state[4];
    bool made[4];
} tails;

static mf_status tail(mf__grammar *g, tails *t, int n, uint32_t *out, mf_error *err) {
    if (!t->made[n]) {
        uint32_t next;
        MF__TRY(tail(g, t, n - 1, &next, err));
        MF__TRY(nfa_state_add(g, &t->state[n], err));
        MF__TRY(nfa_bytes(g, t->state[n], 0x80, 0xBF, next, err));
        t->made[n] = true;
    }
    *out = t->state[n];
    return MF_OK;
}

/* Characters lo..hi, all with n bytes. Ranges that fill whole blocks of continuation bytes share their tails. */
static mf_status add_block(mf__grammar *g, tails *t, uint32_t from, uint32_t lo, uint32_t hi, int n, bool lead,
                           mf_error *err) {
    static const uint8_t leads[] = {0, 0, 0xC0, 0xE0, 0xF0};
    uint32_t next;
    uint8_t base = lead ? leads[n] : 0x80;
    if (n == 1) return nfa_bytes(g, from, (uint8_t)(base + lo), (uint8_t)(base + hi), t->state[0], err);
    uint32_t shift = (uint32_t)(6 * (n - 1)), mask = (1u << shift) - 1, first = lo >> shift, last = hi >> shift;
    if ((lo & mask) != 0 && first < last) { /* a head that begins inside a block */
        MF__TRY(add_block(g, t, from, lo, (first << shift) | mask, n, lead, err));
        return add_block(g, t, from, (first + 1) << shift, hi, n, lead, err);
    }
    if ((hi & mask) != mask && first < last) {
        MF__TRY(add_block(g, t, from, lo, (last << shift) - 1, n, lead, err));
        return add_block(g, t, from, last << shift, hi, n, lead, err);
    }
    if ((lo & mask) == 0 && (hi & mask) == mask) {
        MF__TRY(tail(g, t, n - 1, &next, err));
    } else {
        MF__TRY(nfa_state_add(g, &next, err));
        MF__TRY(add_block(g, t, next, lo & mask, hi & mask, n - 1, false, err));
    }
    return nfa_bytes(g, from, (uint8_t)(base + first), (uint8_t)(base + last), next, err);
}

static mf_status add_range(mf__grammar *g, tails *t, uint32_t from, uint32_t lo, uint32_t hi, mf_error *err) {
    static const uint32_t limits[][3] = {{0, 0x7F, 1},
                                         {0x80, 0x7FF, 2},
                                         {0x800, 0xD7FF, 3},
                                         {0xE000, 0xFFFF, 3},
                                         {0x10000, 0x10FFFF, 4}}; /* surrogates are no characters */
    for (size_t i = 0; i < MF__COUNT(limits); i++) {
        uint32_t a = lo > limits[i][0] ? lo : limits[i][0], b = hi < limits[i][1] ? hi : limits[i][1];
        if (a <= b) MF__TRY(add_block(g, t, from, a, b, (int)limits[i][2], true, err));
    }
    return MF_OK;
}

/* The escapes of a JSON string behind the backslash. All controls together share one \\u00XX. */
static mf_status add_controls(mf__grammar *g, uint32_t from, uint32_t to, mf_error *err) {
    uint32_t s[4];
    for (int i = 0; i < 4; i++) MF__TRY(nfa_state_add(g, &s[i], err));
    MF__TRY(nfa_text(g, from, "u00", 3, s[0], err));
    MF__TRY(nfa_bytes(g, s[0], '0', '0', s[1], err));
    MF__TRY(nfa_bytes(g, s[0], '1', '1', s[2], err));
    MF__TRY(nfa_bytes(g, s[1], '1', '9', to, err));
    MF__TRY(nfa_bytes(g, s[2], '0', '9', to, err));
    MF__TRY(nfa_bytes(g, s[1], 'a', 'f', to, err));
    return nfa_bytes(g, s[2], 'a', 'f', to, err);
}

static mf_status add_escapes(mf__grammar *g, uint32_t from, const mf__uset *set, uint32_t to, mf_error *err) {
    static const char plain[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\", hex[] = "0123456789abcdef";
    bool any = false, all = true;
    for (uint32_t c = 1; c < 0x20; c++) {
        bool has = mf__uset_has(set, c);
        any = any || has;
        all = all && has;
    }
    if (!any && !mf__uset_has(set, '"') && !mf__uset_has(set, '\\')) return MF_OK;
    uint32_t slash;
    MF__TRY(nfa_state_add(g, &slash, err));
    MF__TRY(nfa_bytes(g, from, '\\', '\\', slash, err));
    for (size_t i = 0; i < sizeof letters - 1; i++)
        if (mf__uset_has(set, (uint8_t)plain[i]))
            MF__TRY(nfa_bytes(g, slash, (uint8_t)letters[i], (uint8_t)letters[i], to, err));
    if (all) return add_controls(g, slash, to, err);
    for (uint32_t c = 1; any && c < 0x20; c++)
        if (mf__uset_has(set, c))
            MF__TRY(nfa_text(g, slash, (const char[]){'u', '0', '0', hex[c >> 4], hex[c & 15]}, 5, to, err));
    return MF_OK;
}

mf_status nfa_chars(mf__grammar *g, uint32_t from, const mf__uset *set, bool in_json, uint32_t to, mf_error *err) {
    tails t = {.state = {to}, .made = {true}};
    if (in_json) MF__TRY(add_escapes(g, from, set, to, err));
    for (int i = 0; i < set->n; i++) {
        uint32_t lo = set->ranges[i].first, hi = set->ranges[i].last;
        if (in_json && lo < 0x20) lo = 0x20;
        while (lo <= hi) { /* runs between the characters that are escaped */
            uint32_t end = hi;
            if (in_json && lo <= '"' && end >= '"')
                end = '"' - 1;
            else if (in_json && lo > '"' && lo <= '\\' && end >= '\\')
                end = '\\' - 1;
            if (lo <= end) MF__TRY(add_range(g, &t, from, lo, end, err));
            lo = end == hi ? hi + 1 : end + 2;
        }
    }
    return MF_OK;
}

/* ---- finishing ------------------------------------------------------------------------------------------------- */

static uint32_t add_up(uint32_t a, uint32_t b) {
    return a == MF__NFA_NEVER || b == MF__NFA_NEVER ? MF__NFA_NEVER
           : a + b < MF__NFA_NEVER / 2              ? a + b
                                                    : MF__NFA_NEVER / 2;
}

static uint32_t greater(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Shortest ways to each rule's end, by repeated passes until nothing changes. */
static void measure(mf__grammar *g) {
    for (uint32_t s = 0; s < g->n_states; s++) g->states[s].length = g->states[s].depth = MF__NFA_NEVER;
    for (uint32_t r = 0; r < g->n_rules; r++) g->states[g->rules[r].end].length = g->states[g->rules[r].end].depth = 0;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = g->n_states; s-- > 0;)
            for (uint32_t i = g->states[s].edges; i; i = g->edges[i].next) {
                const nfa_edge *e = &g->edges[i];
                const nfa_state *to = &g->states[e->to],
                                *in = e->kind == NFA_CALL ? &g->states[g->rules[e->rule].start] : NULL;
                uint32_t length = add_up(to->length, in ? in->length : e->kind == NFA_BYTES);
                uint32_t depth = in ? greater(to->depth, add_up(in->depth, 1)) : to->depth;
                if (length < g->states[s].length) g->states[s].length = length, changed = true;
                if (depth < g->states[s].depth) g->states[s].depth = depth, changed = true;
            }
    }
}

static void prune(mf__grammar *g) {
    for (uint32_t s = 0; s < g->n_states; s++)
        for (uint32_t *link = &g->states[s].edges; *link;) {
            const nfa_edge *e = &g->edges[*link];
            bool dead = g->states[e->to].length == MF__NFA_NEVER ||
                        (e->kind == NFA_CALL && g->states[g->rules[e->rule].start].length == MF__NFA_NEVER);
            if (dead)
                *link = e->next;
            else
                link = &g->edges[*link].next;
        }
}

/* Depth-first over "rule a can begin with a call of rule b". mark: 0 new, 1 open, 2 done. */
typedef struct walk {
    mf__grammar *g;
    uint8_t *mark;     /* per rule */
    uint32_t *seen;    /* per state: the rule it was last reached from, plus 1 */
    uint32_t *pending; /* stack of states */
    int depth;
} walk;

static bool left_recursive(walk *w, uint32_t rule, uint32_t base) {
    mf__grammar *g = w->g;
    uint32_t n = base;
    if (w->mark[rule] == 2) return false;
    if (w->mark[rule] == 1 || w->depth > 2000) return true;
    w->mark[rule] = 1;
    w->depth++;
    w->pending[n++] = g->rules[rule].start;
    w->seen[g->rules[rule].start] = rule + 1;
    bool bad = false;
    while (n > base && !bad) {
        uint32_t s = w->pending[--n];
        for (uint32_t i = g->states[s].edges; i && !bad; i = g->edges[i].next) {
            const nfa_edge *e = &g->edges[i];
            if (e->kind == NFA_BYTES) continue;
            if (e->kind == NFA_CALL) {
                bad = left_recursive(w, e->rule, n);
                if (g->states[g->rules[e->rule].start].length != 0) continue;
            }
            if (w->seen[e->to] != rule + 1) {
                w->seen[e->to] = rule + 1;
                w->pending[n++] = e->to;
            }
        }
    }
    w->mark[rule] = 2;
    w->depth--;
    return bad;
}

static mf_status check_left_recursion(mf__grammar *g, mf_error *err) {
    walk w = {g, calloc(g->n_rules + 1, 1), calloc(g->n_states + 1, sizeof(uint32_t)),
              malloc((g->n_states + 1) * sizeof(uint32_t)), 0};
    mf_status status = MF_OK;
    if (!w.mark || !w.seen || !w.pending) status = mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
    for (uint32_t r = 0; status == MF_OK && r < g->n_rules; r++)
        if (left_recursive(&w, r, 0))
            status = mf__fail(err, MF_E_INVALID, "the schema or grammar refers to itself without anything in between");
    free(w.mark);
    free(w.seen);
    free(w.pending);
    return status;
}

mf_status nfa_finish(mf__grammar *g, mf_error *err) {
    measure(g);
    const nfa_state *start = &g->states[g->rules[g->root].start];
    if (start->length == MF__NFA_NEVER) return mf__fail(err, MF_E_INVALID, "no text satisfies the schema or grammar");
    if (start->depth > MF__NFA_MAX_DEPTH)
        return mf__fail(err, MF_E_LIMIT, "the schema or grammar needs %u nested parts; the limit is %d",
                        (unsigned)start->depth, MF__NFA_MAX_DEPTH);
    prune(g);
    return check_left_recursion(g, err);
}
