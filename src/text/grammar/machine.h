/* Where a text is in a grammar: the machine under constraint.c and mask.c.
 *
 * A place is a set of items {state, register, node}: the rule being read, and where it goes on when the rule ends. A
 * node is one call of one rule at one position of the text, with an edge {state, register, node} for each place that
 * called it: all of them share the rule's reading, so that ambiguous and recursive grammars take polynomial time and
 * memory (this is generalised LL parsing on a graph-structured stack). A call that is the last thing its caller does
 * inherits the caller's edges, so repetitions written as recursion do not grow the stack.
 *
 * Nodes, edges and items are kept in stacks that a walk over tokens grows and cuts off again.
 *
 * Invariant: every item can be finished. A place without items is the end of the text, or it is no place. */
#ifndef MF_TEXT_GRAMMAR_MACHINE_H
#define MF_TEXT_GRAMMAR_MACHINE_H

#include "text/grammar/automaton.h"
#include "text/grammar/trie.h"

#define MF__NO_NODE UINT32_MAX /* the caller of the whole */

typedef struct mf__item {
    uint32_t state, node;
    uint64_t reg;
} mf__item;

typedef struct mf__return {
    uint32_t state, node; /* node MF__NO_NODE: the text is complete */
    uint64_t reg;         /* after entering the state */
    uint32_t next;        /* edge; 0: none (edge 0 is not used) */
} mf__return;

typedef struct mf__node {
    uint32_t edges; /* first */
    uint32_t rule;
    bool returned;     /* at the position where it began */
    uint64_t hash;     /* equal for nodes that return to the same */
    uint64_t distance; /* bytes from its return to the end of the text at least */
} mf__node;

typedef struct mf__place {
    uint32_t first, n;                 /* of the items */
    bool complete;                     /* the text may end here */
    uint32_t n_nodes, n_edges, n_sets; /* how high the stacks were afterwards */
} mf__place;

typedef struct mf__machine {
    const mf__grammar *g;
    mf__item *items;
    mf__node *nodes;
    mf__return *edges;
    uint32_t n_items, items_capacity, n_nodes, nodes_capacity, n_edges, edges_capacity;
    mf__key_sets sets;
    uint32_t n_measured;   /* nodes whose distance is known */
    uint32_t collect_at;   /* nodes and edges when they are tidied up next */
    uint64_t serial;       /* of the step under way */
    uint64_t *rule_serial; /* per rule: the step it was last called in */
    uint32_t *rule_node;   /* ... and the node of that call */
    uint32_t *seen;        /* hash table of a large place's items: index + 1 */
    uint32_t seen_mask;
    uint32_t n_seen; /* items of the place that are in it; 0: it is not used */
} mf__machine;

mf_status mf__machine_init(mf__machine *m, const mf__grammar *g, mf_error *err);
void mf__machine_deinit(mf__machine *m);

/* The beginning of the text; cuts all stacks off first. */
mf_status mf__machine_start(mf__machine *m, mf__place *out, mf_error *err);
/* Where a byte leads from a place. *out lies on top of the stacks; without items and not complete: nowhere. */
mf_status mf__machine_step(mf__machine *m, const mf__place *from, uint8_t byte, mf__place *out, mf_error *err);
/* Where a text goes on when the rule of a node ends here. */
mf_status mf__machine_return(mf__machine *m, uint32_t node, mf__place *out, mf_error *err);
/* A node on top of the stack that returns to nothing but the end of the text. */
mf_status mf__machine_alone(mf__machine *m, uint32_t *node, mf_error *err);
/* An item on top of the stack, with room for one more. */
mf_status mf__machine_push(mf__machine *m, mf__item item, mf_error *err);
/* Cuts the stacks off behind a place. */
void mf__machine_cut(mf__machine *m, const mf__place *p);
/* Forgets everything but one place, which moves to the bottom of the items. */
mf_status mf__machine_keep(mf__machine *m, mf__place *p, mf_error *err);

/* Bytes to the end of the text at least. */
uint64_t mf__machine_distance(mf__machine *m, const mf__place *p);

static inline bool mf__place_alive(const mf__place *p) {
    return p->n || p->complete;
}

static inline const mf__byte_edge *mf__state_edge(const mf__grammar *g, const mf__state *s, uint8_t byte) {
    const mf__byte_edge *e = g->edges + s->edges;
    uint32_t lo = 0, hi = s->n_edges;
    while (lo < hi) {
        uint32_t middle = (lo + hi) / 2;
        if (e[middle].hi < byte)
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo < s->n_edges && e[lo].lo <= byte ? &e[lo] : NULL;
}

#endif
