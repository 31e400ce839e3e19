/* Building automata: see nfa.h. */
#include "text/grammar/nfa.h"

#include <stdlib.h>
#include <string.h>

void mf__nfa_init(mf__nfa *n, mf_error *err) {
    *n = (mf__nfa){.n_edges = 1, .err = err};
}

void mf__nfa_deinit(mf__nfa *n) {
    for (uint32_t r = 0; r < n->n_rules; r++) mf__keys_free(n->rules[r].keys);
    free(n->states);
    free(n->edges);
    free(n->rules);
}

static mf_status grow(mf__nfa *n, void **array, uint32_t *capacity, size_t item) {
    uint32_t wanted = *capacity ? *capacity * 2 : 256;
    void *more = realloc(*array, wanted * item);
    if (!more) return mf__fail(n->err, MF_E_NOMEM, "no memory for a grammar");
    *array = more;
    *capacity = wanted;
    return MF_OK;
}

static mf_status too_large(mf__nfa *n) {
    return mf__fail(n->err, MF_E_LIMIT, "the schema or grammar is too large: more than %u states", MF__NFA_MAX_STATES);
}

mf_status mf__nfa_state(mf__nfa *n, uint32_t *state) {
    *state = 0;
    if (n->n_states == MF__NFA_MAX_STATES) return too_large(n);
    if (n->n_states == n->states_capacity)
        MF__TRY(grow(n, (void **)&n->states, &n->states_capacity, sizeof *n->states));
    n->states[n->n_states] = (nfa_state){0};
    *state = n->n_states++;
    return MF_OK;
}

mf_status mf__nfa_rule(mf__nfa *n, uint32_t *rule) {
    nfa_rule r = {.max = -1};
    *rule = 0;
    MF__TRY(mf__nfa_state(n, &r.start));
    MF__TRY(mf__nfa_state(n, &r.end));
    if (n->n_rules == n->rules_capacity) MF__TRY(grow(n, (void **)&n->rules, &n->rules_capacity, sizeof *n->rules));
    n->rules[n->n_rules] = r;
    *rule = n->n_rules++;
    return MF_OK;
}

static mf_status add_edge(mf__nfa *n, uint32_t from, nfa_edge e) {
    if (n->n_edges >= MF__NFA_MAX_STATES * 4) return too_large(n);
    if (n->n_edges >= n->edges_capacity) MF__TRY(grow(n, (void **)&n->edges, &n->edges_capacity, sizeof *n->edges));
    uint32_t *list = e.kind == NFA_EMPTY ? &n->states[from].empties : &n->states[from].edges;
    e.next = *list;
    n->edges[n->n_edges] = e;
    *list = n->n_edges++;
    return MF_OK;
}

mf_status mf__nfa_empty(mf__nfa *n, uint32_t from, uint32_t to) {
    return add_edge(n, from, (nfa_edge){.kind = NFA_EMPTY, .to = to});
}

mf_status mf__nfa_bytes(mf__nfa *n, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to) {
    return add_edge(n, from, (nfa_edge){.kind = NFA_BYTES, .lo = lo, .hi = hi, .to = to});
}

mf_status mf__nfa_call(mf__nfa *n, uint32_t from, uint32_t rule, uint32_t to) {
    return add_edge(n, from, (nfa_edge){.kind = NFA_CALL, .rule = rule, .to = to});
}

mf_status mf__nfa_text(mf__nfa *n, uint32_t from, const char *s, size_t size, uint32_t to) {
    if (size == 0) return mf__nfa_empty(n, from, to);
    for (size_t i = 0; i < size; i++) {
        uint32_t next = to;
        if (i + 1 < size) MF__TRY(mf__nfa_state(n, &next));
        MF__TRY(mf__nfa_bytes(n, from, (uint8_t)s[i], (uint8_t)s[i], next));
        from = next;
    }
    return MF_OK;
}

mf_status mf__nfa_then_text(mf__nfa *n, uint32_t *at, const char *s, size_t size) {
    uint32_t next;
    MF__TRY(mf__nfa_state(n, &next));
    MF__TRY(mf__nfa_text(n, *at, s, size, next));
    *at = next;
    return MF_OK;
}

mf_status mf__nfa_then_call(mf__nfa *n, uint32_t *at, uint32_t rule) {
    uint32_t next;
    MF__TRY(mf__nfa_state(n, &next));
    MF__TRY(mf__nfa_call(n, *at, rule, next));
    *at = next;
    return MF_OK;
}

mf_status mf__nfa_then_empty(mf__nfa *n, uint32_t *at) {
    uint32_t next;
    MF__TRY(mf__nfa_state(n, &next));
    MF__TRY(mf__nfa_empty(n, *at, next));
    *at = next;
    return MF_OK;
}

mf_status mf__nfa_repeat(mf__nfa *n, uint32_t start, uint32_t end, int64_t min, int64_t max, uint32_t *rule) {
    uint32_t body, loop, one;
    MF__TRY(mf__nfa_rule(n, &body));
    MF__TRY(mf__nfa_empty(n, n->rules[body].start, start));
    MF__TRY(mf__nfa_empty(n, end, n->rules[body].end));
    MF__TRY(mf__nfa_rule(n, rule));
    nfa_rule *r = &n->rules[*rule];
    r->kind = MF__RULE_COUNTED;
    r->min = min;
    r->max = max;
    nfa_rule ends = *r;
    MF__TRY(mf__nfa_state(n, &loop));
    MF__TRY(mf__nfa_state(n, &one));
    n->states[one].mark = MF__MARK_COUNT;
    MF__TRY(mf__nfa_empty(n, ends.start, loop));
    MF__TRY(mf__nfa_call(n, loop, body, one));
    MF__TRY(mf__nfa_empty(n, one, loop));
    return mf__nfa_empty(n, loop, ends.end);
}
