/* The order of an object's keys while it is run: see mf__key_order. The register has the place in the order in its low
 * half, the number of keys so far in its high half. */
#include <stdlib.h>

#include "text/grammar/automaton.h"

mf_status mf__key_order_create(uint32_t n_declared, uint32_t n_labels, mf__key_order **out, mf_error *err) {
    mf__key_order *k = *out = calloc(1, sizeof *k);
    if (k) {
        *k = (mf__key_order){.n_declared = n_declared, .n_labels = n_labels, .max = -1};
        k->next_required = calloc(n_declared + 1, sizeof *k->next_required);
        k->required_from = calloc(n_declared + 1, sizeof *k->required_from);
        k->possible_from = calloc(n_declared + 1, sizeof *k->possible_from);
        k->cost_from = calloc(n_declared + 1, sizeof *k->cost_from);
        k->member_cost = calloc(n_labels + 1, sizeof *k->member_cost);
        k->value = calloc(n_labels + 1, sizeof *k->value);
        k->names = calloc(n_declared + 1, sizeof *k->names);
        if (k->next_required && k->required_from && k->possible_from && k->cost_from && k->member_cost && k->value &&
            k->names)
            return MF_OK;
    }
    mf__key_order_free(k);
    *out = NULL;
    return mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
}

void mf__key_order_free(mf__key_order *k) {
    if (!k) return;
    for (uint32_t i = 0; k->names && i < k->n_declared; i++) free(k->names[i]);
    free(k->names);
    free(k->next_required);
    free(k->required_from);
    free(k->possible_from);
    free(k->cost_from);
    free(k->member_cost);
    free(k->value);
    free(k);
}

static uint32_t place_of(uint64_t reg) {
    return (uint32_t)reg;
}

static int64_t count_of(uint64_t reg) {
    return (int64_t)(reg >> 32);
}

/* May declared key i come now? */
static bool allows(const mf__key_order *k, uint64_t reg, uint32_t i) {
    if (i < place_of(reg) || i > k->next_required[place_of(reg)]) return false;
    if (!k->counted) return true;
    int64_t n = count_of(reg) + 1;
    return (k->max < 0 || n + k->required_from[i + 1] <= k->max) && (k->others || n + k->possible_from[i + 1] >= k->min);
}

bool mf__keys_others(const mf__key_order *k, uint64_t reg) {
    return k->others && k->next_required[place_of(reg)] == k->n_declared &&
           (k->max < 0 || !k->counted || count_of(reg) < k->max);
}

static bool any_key(const mf__grammar *g, const mf__key_order *k, const mf__state *s, uint64_t reg) {
    if (s->others && mf__keys_others(k, reg)) return true;
    const uint32_t *list = g->reach + s->reach;
    uint32_t lo = 0, hi = s->n_reach;
    while (lo < hi) { /* the first at or behind the place */
        uint32_t middle = (lo + hi) / 2;
        if (list[middle] < place_of(reg))
            lo = middle + 1;
        else
            hi = middle;
    }
    for (; lo < s->n_reach && list[lo] <= k->next_required[place_of(reg)]; lo++)
        if (allows(k, reg, list[lo])) return true;
    return false;
}

bool mf__keys_enter(const mf__grammar *g, const mf__state *s, uint64_t *reg) {
    const mf__key_order *k = g->rules[s->rule].keys;
    if (s->in_key) return any_key(g, k, s, *reg);
    if (s->closing) return mf__keys_final(k, *reg);
    if (s->mark < MF__MARK_KEY) return true;
    uint32_t label = s->mark - MF__MARK_KEY;
    bool declared = label < k->n_declared;
    if (declared ? !allows(k, *reg, label) : !mf__keys_others(k, *reg)) return false;
    int64_t n = k->counted ? count_of(*reg) + 1 : 0;
    if (k->counted && k->max < 0 && n > k->min) n = k->min; /* enough: it does not matter how many more */
    *reg = (uint64_t)n << 32 | (declared ? label + 1 : k->n_declared);
    return true;
}

bool mf__keys_final(const mf__key_order *k, uint64_t reg) {
    return k->next_required[place_of(reg)] == k->n_declared && (!k->counted || count_of(reg) >= k->min);
}

/* What is behind the present member: the required ones that are left, and more where too few would be. */
static uint64_t rest(const mf__key_order *k, uint64_t reg) {
    uint64_t sum = k->cost_from[place_of(reg)];
    int64_t n = count_of(reg) + k->required_from[place_of(reg)];
    if (k->counted && n < k->min) sum += (uint64_t)(k->min - n) * k->cheapest;
    return sum;
}

uint64_t mf__keys_distance(const mf__grammar *g, const mf__state *s, uint64_t reg) {
    const mf__key_order *k = g->rules[s->rule].keys;
    if (!s->in_key) return s->distance + (s->accept ? 0 : rest(k, reg));
    uint64_t best = UINT64_MAX, one = k->counted ? (uint64_t)1 << 32 : 0;
    for (uint32_t i = 0; i < s->n_reach; i++) {
        uint32_t label = g->reach[s->reach + i];
        if (!allows(k, reg, label)) continue;
        uint64_t d = k->member_cost[label] - s->least + rest(k, ((reg + one) & ~(uint64_t)UINT32_MAX) | (label + 1));
        if (d < best) best = d;
    }
    if (!s->others || !mf__keys_others(k, reg)) return best;
    uint64_t d = (uint64_t)s->most + 2 + k->cheapest + rest(k, ((reg + one) & ~(uint64_t)UINT32_MAX) | k->n_declared);
    return d < best ? d : best;
}
