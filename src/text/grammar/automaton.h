/* Grammars as they are run: deterministic automata over bytes that call each other.
 *
 * A rule has states of its own. A state leads on by bytes, each to one state, and by calls: a call reads a text of
 * another rule and goes on behind it. Several calls may begin at a state, so where a text is can be more than one
 * place; constraint.c keeps them all.
 *
 * A rule may count, which replaces copies of states: the count goes up on the way into states marked MF__MARK_COUNT and
 * must be in min..max at the end. An object's rule keeps which keys have been (mf__keys) instead.
 *
 * Invariant: from every state the rule's end can be reached; with counts and keys, wherever mf__state_enter
 * says so. */
#ifndef MF_TEXT_GRAMMAR_AUTOMATON_H
#define MF_TEXT_GRAMMAR_AUTOMATON_H

#include "text/grammar/grammar.h"

#define MF__NEVER UINT32_MAX

#define MF__MARK_NONE 0u
#define MF__MARK_COUNT 1u
#define MF__MARK_COMMA 2u /* in an object: a key must follow */
#define MF__MARK_QUOTE 3u /* ... and its opening quote has been */
#define MF__MARK_KEY 4u   /* plus the label: a key has been read up to its closing quote */

typedef struct mf__byte_edge {
    uint32_t to;
    uint8_t lo, hi;
} mf__byte_edge;

typedef struct mf__call_edge {
    uint32_t rule, to;
} mf__call_edge;

typedef struct mf__state {
    uint32_t edges, calls; /* first of them */
    uint16_t n_edges;      /* ascending, disjoint */
    uint16_t n_calls;
    uint32_t rule, mark;
    uint32_t distance; /* bytes to the end of the rule at least, whatever is counted */
    uint32_t least,
        most; /* counts on the way to the end of the rule; most may be MF__NEVER: any number. Within a key:
                 its bytes so far, if it can be a declared one; bytes to the object's end by way of another */
    uint32_t reach, n_reach; /* within a key: the labels of declared keys that it can still become, ascending */
    uint8_t accept;
    uint8_t open; /* any characters that need no escape in a JSON string may follow, as many as there are counts left */
    uint8_t in_key;  /* in an object, between a comma and a key's closing quote: one must be allowed */
    uint8_t others;  /* ... which may be one that is not declared */
    uint8_t closing; /* in an object: no key can follow */
} mf__state;

/* The keys of an object: each declared one at most once, in any order; the required ones; others, if there may be any.
 * Declared keys have labels 0 .. n_declared - 1; those of others say what their values must be. */
typedef struct mf__keys {
    uint32_t n_declared, n_labels, n_words;
    bool others;        /* there may be keys that are not declared */
    int64_t min, max;   /* how many keys; max < 0: no limit */
    uint64_t *required; /* [n_words]: a bit for each declared key */
    uint32_t n_required;
    uint32_t first_required; /* the lowest label of them; MF__NEVER: none */
    uint64_t *member_cost;   /* [n_labels]: bytes of a member with this key at least, with a comma */
    uint32_t *value;         /* [n_labels]: the rule of its value */
    uint64_t cheapest;       /* the least of member_cost, for counts that are not reached yet */
    char **names;            /* [n_declared]: as they are written, with quotes */
} mf__keys;

typedef enum mf__rule_kind { MF__RULE_PLAIN, MF__RULE_COUNTED, MF__RULE_OBJECT } mf__rule_kind;

typedef struct mf__rule {
    uint32_t start;
    uint32_t shortest;  /* bytes */
    uint32_t per_count; /* bytes of one more count at least */
    uint8_t kind;
    int64_t min, max; /* max < 0: no limit */
    mf__keys *keys;
} mf__rule;

struct mf__grammar {
    mf__state *states;
    mf__byte_edge *edges;
    mf__call_edge *calls;
    mf__rule *rules;
    uint32_t *reach;
    uint32_t n_states, n_edges, n_calls, n_rules, n_reach;
    uint32_t root;
    char *notes; /* what of a schema is not enforced, a sentence per line; NULL: nothing */
};

/* measure.c: removes what leads nowhere, measures distances. MF_E_INVALID when no text satisfies the grammar. */
mf_status mf__grammar_measure(mf__grammar *g, mf_error *err);

mf_status mf__keys_create(uint32_t n_declared, uint32_t n_labels, mf__keys **out, mf_error *err);
void mf__keys_free(mf__keys *k);

/* keys.c: which keys an object has had. The register of an object's rule is the number of such a set, 0 for the empty
 * one; equal sets have equal numbers. Sets are made while a text is read and forgotten in the reverse order. */
typedef struct mf__key_set {
    const mf__keys *keys;
    uint32_t words; /* its bits, from here on */
    uint32_t slot;
    uint32_t n_declared, n_others;
    uint32_t missing;       /* required ones that are not in it */
    uint32_t first_missing; /* the lowest label of those; MF__NEVER: none */
    uint64_t cost;          /* bytes that those need at least */
    uint64_t hash;          /* of what is in it: numbers are used again */
} mf__key_set;

typedef struct mf__key_sets {
    mf__key_set *sets; /* 0 is not used */
    uint32_t n, capacity;
    uint64_t *words;
    uint32_t n_words, words_capacity;
    uint32_t *slots, mask;
    bool ordered; /* a required key comes before those with higher labels, and before any that is not declared */
    bool failed;  /* no memory, or too many */
} mf__key_sets;

void mf__key_sets_deinit(mf__key_sets *k);
void mf__key_sets_cut(mf__key_sets *k, uint32_t n); /* forgets those from n on */

bool mf__keys_enter(const mf__grammar *g, mf__key_sets *sets, const mf__state *s, uint64_t *reg);
bool mf__keys_final(const mf__keys *k, const mf__key_sets *sets, uint64_t reg);
bool mf__keys_others(const mf__keys *k, const mf__key_sets *sets,
                     uint64_t reg); /* may one that is not declared come? */
uint64_t mf__keys_distance(const mf__grammar *g, const mf__key_sets *sets, const mf__state *s, uint64_t reg);

/* A register as part of a hash. */
static inline uint64_t mf__reg_hash(const mf__grammar *g, const mf__key_sets *sets, uint32_t state, uint64_t reg) {
    bool set = reg && g->rules[g->states[state].rule].kind == MF__RULE_OBJECT;
    return set ? sets->sets[reg].hash : reg;
}

/* Goes into a state: what is counted changes. False: it cannot be finished from there. */
static inline bool mf__state_enter(const mf__grammar *g, mf__key_sets *sets, const mf__state *s, uint64_t *reg) {
    const mf__rule *r = &g->rules[s->rule];
    if (r->kind == MF__RULE_PLAIN) return true;
    if (r->kind == MF__RULE_OBJECT) return mf__keys_enter(g, sets, s, reg);
    uint64_t n = *reg + (s->mark == MF__MARK_COUNT), min = (uint64_t)r->min;
    if (r->max >= 0 && n + s->least > (uint64_t)r->max) return false;
    if (n < min && s->most != MF__NEVER && n + s->most < min) return false;
    *reg = r->max < 0 && n > min ? min : n; /* without a limit it does not matter how many more */
    return true;
}

/* May the rule end here? The state accepts. */
static inline bool mf__state_final(const mf__grammar *g, const mf__key_sets *sets, const mf__state *s, uint64_t reg) {
    const mf__rule *r = &g->rules[s->rule];
    if (r->kind == MF__RULE_PLAIN) return true;
    if (r->kind == MF__RULE_OBJECT) return mf__keys_final(r->keys, sets, reg);
    return reg >= (uint64_t)r->min && (r->max < 0 || reg <= (uint64_t)r->max);
}

/* Bytes to the end of the rule. */
static inline uint64_t mf__state_distance(const mf__grammar *g, const mf__key_sets *sets, const mf__state *s,
                                          uint64_t reg) {
    const mf__rule *r = &g->rules[s->rule];
    if (r->kind == MF__RULE_OBJECT) return mf__keys_distance(g, sets, s, reg);
    uint64_t sum = s->distance;
    if (r->kind == MF__RULE_COUNTED && reg + s->least < (uint64_t)r->min)
        sum += ((uint64_t)r->min - reg - s->least) * r->per_count;
    return sum;
}

#endif
