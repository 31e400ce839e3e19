/* Grammars as automata over bytes. A rule is a pair of states, start and end; an edge consumes a byte of a range,
 * consumes nothing, or calls a rule and goes on behind it. */
#ifndef MF_TEXT_GRAMMAR_NFA_H
#define MF_TEXT_GRAMMAR_NFA_H

#include "text/grammar/grammar.h"
#include "text/unicode.h"

#define MF__NFA_MAX_STATES 400000u
#define MF__NFA_MAX_DEPTH 200 /* of nested calls while running */
#define MF__NFA_NEVER UINT32_MAX

typedef enum nfa_kind { NFA_EMPTY, NFA_BYTES, NFA_CALL } nfa_kind;

typedef struct nfa_edge {
    uint8_t kind, lo, hi;
    uint32_t rule;     /* of NFA_CALL */
    uint32_t to, next; /* next edge of the same state; 0: none (edge 0 is not used) */
} nfa_edge;

typedef struct nfa_state {
    uint32_t edges;  /* first edge; 0: none */
    uint32_t length; /* bytes to the end of the rule at least; MF__NFA_NEVER: it cannot be reached */
    uint32_t depth;  /* nested calls needed to get there at least */
    uint32_t free;   /* inside a JSON string: that many characters of any kind may come; MF__NFA_NEVER: no limit */
} nfa_state;

typedef struct nfa_rule {
    uint32_t start, end;
} nfa_rule;

struct mf__grammar {
    nfa_state *states;
    nfa_edge *edges;
    nfa_rule *rules;
    uint32_t n_states, n_edges, n_rules, states_capacity, edges_capacity, rules_capacity;
    uint32_t root;
};

mf_status nfa_create(mf__grammar **out, mf_error *err);
mf_status nfa_state_add(mf__grammar *g, uint32_t *state, mf_error *err);
mf_status nfa_rule_add(mf__grammar *g, uint32_t *rule, mf_error *err); /* with a start and an end */
mf_status nfa_empty(mf__grammar *g, uint32_t from, uint32_t to, mf_error *err);
mf_status nfa_bytes(mf__grammar *g, uint32_t from, uint8_t lo, uint8_t hi, uint32_t to, mf_error *err);
mf_status nfa_call(mf__grammar *g, uint32_t from, uint32_t rule, uint32_t to, mf_error *err);

/* The text s from `from` to `to`. */
mf_status nfa_text(mf__grammar *g, uint32_t from, const char *s, size_t n, uint32_t to, mf_error *err);

/* One character of the set, as UTF-8. in_json: as it is written inside a JSON string, escaped where it must be. */
mf_status nfa_chars(mf__grammar *g, uint32_t from, const mf__uset *set, bool in_json, uint32_t to, mf_error *err);

/* Removes what leads nowhere and computes lengths and depths. MF_E_INVALID when no text satisfies the grammar or a
 * rule can call itself without consuming anything. */
mf_status nfa_finish(mf__grammar *g, mf_error *err);

/* regex.c: pattern from `from` to `to`, over characters as in nfa_chars. search: it may match anywhere in the text, as
 * JSON Schema's pattern does (else the whole text). min and max count characters; max < 0: no limit. */
typedef struct nfa_regex {
    const char *pattern;
    size_t size;
    bool search, in_json;
    bool any; /* the pattern is "any text": its states are marked as free */
    int64_t min, max;
} nfa_regex;
mf_status nfa_regex_add(mf__grammar *g, uint32_t from, const nfa_regex *regex, uint32_t to, mf_error *err);

#endif
