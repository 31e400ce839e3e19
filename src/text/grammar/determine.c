/* From nondeterministic automata to those that are run: each rule by the subset construction, calls being letters like
 * bytes. Then what leads nowhere is removed, and distances are measured. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/nfa.h"

#define MAX_STATES (1u << 20)
#define MAX_WORK (1u << 26) /* members of all subsets: bounds the time */

typedef struct subset {
    uint32_t first, n, mark, slot;
} subset;

typedef struct maker {
    mf__nfa *n;
    mf__grammar *g;
    uint32_t states_capacity, edges_capacity, calls_capacity;
    subset *subsets; /* of the rule under way, by state - base */
    uint32_t base, n_subsets, subsets_capacity;
    uint32_t *members;
    uint32_t n_members, members_capacity;
    uint32_t *slots, slots_mask; /* hash table of subsets: index + 1 */
    uint32_t *stamp, now;        /* per NFA state: in the set being made */
    uint32_t *set, n_set;        /* that set */
    uint32_t *kernel, n_kernel, kernel_capacity;
    uint64_t work;
    mf_error *err;
} maker;

static mf_status no_memory(maker *m) {
    return mf__fail(m->err, MF_E_NOMEM, "no memory for a grammar");
}

static mf_status room(maker *m, void **array, uint32_t *capacity, uint32_t wanted, size_t item) {
    if (wanted <= *capacity) return MF_OK;
    uint32_t n = *capacity ? *capacity : 256;
    while (n < wanted) n *= 2;
    void *more = realloc(*array, n * item);
    if (!more) return no_memory(m);
    *array = more;
    *capacity = n;
    return MF_OK;
}

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void reach(maker *m, uint32_t state) {
    if (m->stamp[state] == m->now) return;
    m->stamp[state] = m->now;
    m->set[m->n_set++] = state;
}

static mf_status rehash(maker *m) {
    uint32_t mask = m->slots_mask ? m->slots_mask * 2 + 1 : 1023;
    uint32_t *slots = calloc((size_t)mask + 1, sizeof *slots);
    if (!slots) return no_memory(m);
    free(m->slots);
    m->slots = slots;
    m->slots_mask = mask;
    return MF_OK;
}

static uint32_t hash_set(const uint32_t *set, uint32_t n, uint32_t mark) {
    uint64_t h = mark + 1;
    for (uint32_t i = 0; i < n; i++) h = (h ^ set[i]) * 0xD6E8FEB86659FD93u, h ^= h >> 29;
    return (uint32_t)(h >> 20);
}

static mf_status refill_slots(maker *m) {
    MF__TRY(rehash(m));
    for (uint32_t i = 0; i < m->n_subsets; i++) {
        subset *s = &m->subsets[i];
        s->slot = hash_set(m->members + s->first, s->n, s->mark) & m->slots_mask;
        while (m->slots[s->slot]) s->slot = (s->slot + 1) & m->slots_mask;
        m->slots[s->slot] = i + 1;
    }
    return MF_OK;
}

/* The state of the kernel (its states, and all that they lead to by empty edges). */
static mf_status state_of(maker *m, uint32_t *out) {
    uint32_t mark = 0;
    m->now++;
    m->n_set = 0;
    for (uint32_t i = 0; i < m->n_kernel; i++) {
        uint32_t k = m->kernel[i];
        if (m->n->states[k].mark) mark = m->n->states[k].mark;
        reach(m, k);
    }
    for (uint32_t i = 0; i < m->n_set; i++)
        for (uint32_t e = m->n->states[m->set[i]].empties; e; e = m->n->edges[e].next) reach(m, m->n->edges[e].to);
    if (m->n_set > 1) qsort(m->set, m->n_set, sizeof *m->set, compare_u32);
    uint32_t at = hash_set(m->set, m->n_set, mark) & m->slots_mask;
    for (; m->slots[at]; at = (at + 1) & m->slots_mask) {
        const subset *s = &m->subsets[m->slots[at] - 1];
        if (s->mark == mark && s->n == m->n_set && memcmp(m->members + s->first, m->set, s->n * sizeof *m->set) == 0)
            return *out = m->base + m->slots[at] - 1, MF_OK;
    }
    m->work += m->n_set;
    if (m->g->n_states == MAX_STATES || m->work > MAX_WORK)
        return mf__fail(m->err, MF_E_LIMIT, "the schema or grammar is too large: more than %u states", MAX_STATES);
    MF__TRY(room(m, (void **)&m->g->states, &m->states_capacity, m->g->n_states + 1, sizeof *m->g->states));
    MF__TRY(room(m, (void **)&m->subsets, &m->subsets_capacity, m->n_subsets + 1, sizeof *m->subsets));
    MF__TRY(room(m, (void **)&m->members, &m->members_capacity, m->n_members + m->n_set, sizeof *m->members));
    memcpy(m->members + m->n_members, m->set, m->n_set * sizeof *m->set);
    m->subsets[m->n_subsets] = (subset){m->n_members, m->n_set, mark, at};
    m->n_members += m->n_set;
    m->slots[at] = ++m->n_subsets;
    m->g->states[m->g->n_states] = (mf__state){.mark = mark};
    *out = m->g->n_states++;
    return m->n_subsets * 2 > m->slots_mask ? refill_slots(m) : MF_OK;
}

static mf_status into_kernel(maker *m, uint32_t state) {
    MF__TRY(room(m, (void **)&m->kernel, &m->kernel_capacity, m->n_kernel + 1, sizeof *m->kernel));
    m->kernel[m->n_kernel++] = state;
    return MF_OK;
}

/* ---- one state --------------------------------------------------------------------------------------------------- */

static mf_status add_byte_edge(maker *m, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to) {
    mf__grammar *g = m->g;
    mf__state *s = &g->states[from];
    mf__byte_edge *last = s->n_edges ? &g->edges[g->n_edges - 1] : NULL;
    if (last && last->to == to && last->hi + 1 == lo) return last->hi = hi, MF_OK;
    MF__TRY(room(m, (void **)&g->edges, &m->edges_capacity, g->n_edges + 1, sizeof *g->edges));
    if (s->n_edges++ == 0) s->edges = g->n_edges;
    g->edges[g->n_edges++] = (mf__byte_edge){to, lo, hi};
    return MF_OK;
}

/* Ranges of bytes are cut where an edge begins or ends; edges[] are those of the subset by their number. */
static mf_status byte_edges(maker *m, uint32_t from, const uint32_t *edges, uint32_t n) {
    bool cut[257] = {true};
    for (uint32_t i = 0; i < n; i++) cut[m->n->edges[edges[i]].lo] = cut[m->n->edges[edges[i]].hi + 1] = true;
    for (int lo = 0, hi; lo < 256; lo = hi) {
        for (hi = lo + 1; hi < 256 && !cut[hi]; hi++) {
        }
        m->n_kernel = 0;
        for (uint32_t i = 0; i < n; i++) {
            const nfa_edge *e = &m->n->edges[edges[i]];
            if (e->lo <= lo && e->hi >= lo) MF__TRY(into_kernel(m, e->to));
        }
        if (m->n_kernel == 0) continue;
        uint32_t to;
        MF__TRY(state_of(m, &to));
        MF__TRY(add_byte_edge(m, from, (uint8_t)lo, (uint8_t)(hi - 1), to));
    }
    return MF_OK;
}

static int by_rule(const void *a, const void *b) {
    const mf__call_edge *x = a, *y = b;
    if (x->rule != y->rule) return x->rule < y->rule ? -1 : 1;
    return x->to < y->to ? -1 : x->to > y->to;
}

static mf_status call_edges(maker *m, uint32_t from, mf__call_edge *calls, uint32_t n) {
    mf__grammar *g = m->g;
    if (n > 1) qsort(calls, n, sizeof *calls, by_rule);
    for (uint32_t i = 0, next; i < n; i = next) {
        m->n_kernel = 0;
        for (next = i; next < n && calls[next].rule == calls[i].rule; next++) MF__TRY(into_kernel(m, calls[next].to));
        uint32_t to;
        MF__TRY(state_of(m, &to));
        MF__TRY(room(m, (void **)&g->calls, &m->calls_capacity, g->n_calls + 1, sizeof *g->calls));
        if (g->states[from].n_calls == UINT16_MAX)
            return mf__fail(m->err, MF_E_LIMIT, "the schema or grammar has more than %d alternatives", UINT16_MAX);
        if (g->states[from].n_calls++ == 0) g->states[from].calls = g->n_calls;
        g->calls[g->n_calls++] = (mf__call_edge){calls[i].rule, to};
    }
    return MF_OK;
}

static mf_status expand(maker *m, uint32_t from) {
    subset s = m->subsets[from - m->base];
    uint32_t n_bytes = 0, n_calls = 0;
    for (uint32_t i = 0; i < s.n; i++)
        for (uint32_t e = m->n->states[m->members[s.first + i]].edges; e; e = m->n->edges[e].next) {
            n_bytes += m->n->edges[e].kind == NFA_BYTES;
            n_calls += m->n->edges[e].kind == NFA_CALL;
        }
    uint32_t *bytes = malloc((n_bytes + 1) * sizeof *bytes);
    mf__call_edge *calls = malloc((n_calls + 1) * sizeof *calls);
    mf_status status = bytes && calls ? MF_OK : no_memory(m);
    n_bytes = n_calls = 0;
    for (uint32_t i = 0; status == MF_OK && i < s.n; i++)
        for (uint32_t e = m->n->states[m->members[s.first + i]].edges; e; e = m->n->edges[e].next) {
            const nfa_edge *edge = &m->n->edges[e];
            if (edge->kind == NFA_BYTES) bytes[n_bytes++] = e;
            if (edge->kind == NFA_CALL) calls[n_calls++] = (mf__call_edge){edge->rule, edge->to};
        }
    if (status == MF_OK && n_bytes) status = byte_edges(m, from, bytes, n_bytes);
    if (status == MF_OK && n_calls) status = call_edges(m, from, calls, n_calls);
    free(bytes);
    free(calls);
    return status;
}

static mf_status make_rule(maker *m, uint32_t rule) {
    nfa_rule *r = &m->n->rules[rule];
    m->base = m->g->n_states;
    for (uint32_t i = 0; i < m->n_subsets; i++) m->slots[m->subsets[i].slot] = 0;
    m->n_subsets = m->n_members = 0;
    m->kernel[0] = r->start;
    m->n_kernel = 1;
    mf__rule *out = &m->g->rules[rule];
    *out = (mf__rule){.kind = r->kind, .min = r->min, .max = r->max, .keys = r->keys};
    r->keys = NULL; /* moved */
    MF__TRY(state_of(m, &out->start));
    for (uint32_t s = m->base; s < m->g->n_states; s++) {
        MF__TRY(expand(m, s));
        const subset *sub = &m->subsets[s - m->base];
        for (uint32_t i = 0; i < sub->n; i++) m->g->states[s].accept |= m->members[sub->first + i] == r->end;
        m->g->states[s].rule = rule;
    }
    return MF_OK;
}

static mf_status make_rules(maker *m) {
    uint32_t n = m->n->n_states + 1;
    m->stamp = calloc(n, sizeof *m->stamp);
    m->set = malloc(n * sizeof *m->set);
    m->g->rules = calloc(m->n->n_rules + 1, sizeof *m->g->rules);
    if (!m->stamp || !m->set || !m->g->rules) return no_memory(m);
    MF__TRY(rehash(m));
    MF__TRY(room(m, (void **)&m->kernel, &m->kernel_capacity, 1, sizeof *m->kernel));
    m->g->n_rules = m->n->n_rules;
    m->g->root = m->n->root;
    for (uint32_t r = 0; r < m->n->n_rules; r++) MF__TRY(make_rule(m, r));
    return MF_OK;
}

mf_status mf__nfa_finish(mf__nfa *n, mf__grammar **out) {
    maker m = {.n = n, .g = calloc(1, sizeof(mf__grammar)), .err = n->err};
    *out = NULL;
    mf_status status = m.g ? make_rules(&m) : no_memory(&m);
    free(m.subsets);
    free(m.members);
    free(m.slots);
    free(m.stamp);
    free(m.set);
    free(m.kernel);
    if (status == MF_OK) status = mf__grammar_measure(m.g, n->err);
    if (status != MF_OK) return mf__grammar_free(m.g), status;
    *out = m.g;
    return MF_OK;
}
