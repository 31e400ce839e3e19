/* Grammars while they are made: nondeterministic automata over bytes. A rule is a pair of states, start and end; an
 * edge consumes a byte of a range, consumes nothing, or calls a rule and goes on behind it. mf__nfa_finish makes of
 * them what is run (automaton.h). */
#ifndef MF_TEXT_GRAMMAR_NFA_H
#define MF_TEXT_GRAMMAR_NFA_H

#include "text/grammar/automaton.h"
#include "text/unicode.h"

#define MF__NFA_MAX_STATES (1u << 21)

typedef enum nfa_kind { NFA_EMPTY, NFA_BYTES, NFA_CALL } nfa_kind;

typedef struct nfa_edge {
    uint8_t kind, lo, hi;
    uint32_t rule;     /* of NFA_CALL */
    uint32_t to, next; /* next edge of the same state; 0: none (edge 0 is not used) */
} nfa_edge;

typedef struct nfa_state {
    uint32_t edges;   /* first edge that consumes a byte or calls; 0: none */
    uint32_t empties; /* first empty edge */
    uint32_t mark;    /* what happens on the way in: MF__MARK_..., or a key's label plus MF__MARK_KEY */
} nfa_state;

typedef struct nfa_rule {
    uint32_t start, end;
    int64_t min, max; /* of a counted rule */
    uint8_t kind;
    mf__keys *keys; /* of an object, owned */
} nfa_rule;

typedef struct mf__nfa {
    nfa_state *states;
    nfa_edge *edges;
    nfa_rule *rules;
    uint32_t n_states, n_edges, n_rules, states_capacity, edges_capacity, rules_capacity;
    uint32_t root;
    mf_error *err;
} mf__nfa;

void mf__nfa_init(mf__nfa *n, mf_error *err);
void mf__nfa_deinit(mf__nfa *n);
mf_status mf__nfa_state(mf__nfa *n, uint32_t *state);
mf_status mf__nfa_rule(mf__nfa *n, uint32_t *rule); /* with a start and an end */
mf_status mf__nfa_empty(mf__nfa *n, uint32_t from, uint32_t to);
mf_status mf__nfa_bytes(mf__nfa *n, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to);
mf_status mf__nfa_call(mf__nfa *n, uint32_t from, uint32_t rule, uint32_t to);

/* A counted rule: what is between two states, min to max times (max < 0: no limit). It becomes a rule of its own. */
mf_status mf__nfa_repeat(mf__nfa *n, uint32_t start, uint32_t end, int64_t min, int64_t max, uint32_t *rule);

/* The same from *at to a new state, which *at becomes. */
mf_status mf__nfa_then_text(mf__nfa *n, uint32_t *at, const char *s, size_t size);
mf_status mf__nfa_then_call(mf__nfa *n, uint32_t *at, uint32_t rule);
mf_status mf__nfa_then_empty(mf__nfa *n, uint32_t *at);

/* The text s from `from` to `to`. */
mf_status mf__nfa_text(mf__nfa *n, uint32_t from, const char *s, size_t size, uint32_t to);

/* One character of the set, as UTF-8. */
typedef enum nfa_form {
    NFA_PLAIN,       /* as it is */
    NFA_JSON,        /* inside a JSON string: escaped where it must be */
    NFA_JSON_ESCAPES /* ... and where the set has all of U+0080 and up, those also as \uXXXX */
} nfa_form;
mf_status mf__nfa_chars(mf__nfa *n, uint32_t from, const mf__uset *set, nfa_form form, uint32_t to);

/* Makes the grammar: automata made deterministic, what leads nowhere removed. MF_E_INVALID when no text satisfies it.
 */
mf_status mf__nfa_finish(mf__nfa *n, mf__grammar **out);

#endif
