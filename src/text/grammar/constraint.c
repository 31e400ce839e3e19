/* Running a grammar: see grammar.h.
 *
 * A stack is a state of the rule being read, on top of the states to return to. Stacks share their lower parts: each is
 * a node {state, below}, made once. A place is the set of all stacks that the text so far can be at; places are made
 * once too, and remember where each byte leads and which tokens are allowed. When the memory of places grows too large
 * it is thrown away except for the present one.
 *
 * Invariant: every stack in a place can be finished within the depth limit, so a place is never a dead end. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/nfa.h"
#include "text/grammar/trie.h"

#define NONE UINT32_MAX
#define UNKNOWN (-2)
#define DEAD (-1)
#define MAX_STACKS 4096 /* in one place */
#define MAX_PLACES 8192
#define MAX_NODES (1u << 16)
#define MAX_MASKS 256

typedef struct node {
    uint32_t state, below; /* below: NONE at the bottom */
    uint32_t depth;
} node;

typedef struct place {
    uint32_t first, n; /* its stacks: members[first .. first + n), ascending */
    bool complete;     /* the text may end here */
    int32_t *next;     /* by byte; NULL until asked */
    uint32_t *mask;    /* NULL until asked */
} place;

struct mf__constraint {
    const mf__grammar *g;
    const mf__token_trie *trie;
    int32_t n_vocab;
    int32_t *eos;
    int n_eos;
    bool ended;
    int32_t here; /* the present place */
    node *nodes;
    uint32_t n_nodes, nodes_capacity;
    uint32_t *node_slots, node_mask; /* hash table of nodes */
    uint32_t *members;
    uint32_t n_members, members_capacity;
    place *places;
    int32_t n_places, places_capacity;
    int32_t *place_slots;
    uint32_t place_mask;
    int n_masks;
    /* scratch of one step */
    uint32_t *found, n_found, found_capacity; /* nodes of the place being made */
    uint64_t *todo;                           /* pending (state, below) */
    uint32_t n_todo, todo_capacity;
    uint64_t *seen;       /* open addressing; 0: empty */
    uint32_t *seen_slots; /* those in use, to empty them again */
    uint32_t seen_mask, n_seen;
    bool complete;
    int32_t *path; /* places by depth while walking the trie */
};

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
}

static uint32_t mix(uint64_t h) {
    h *= 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 11);
}

static mf_status grow(void **array, uint32_t *capacity, size_t item, mf_error *err) {
    uint32_t n = *capacity ? *capacity * 2 : 256;
    void *more = realloc(*array, n * item);
    if (!more) return no_memory(err);
    *array = more;
    *capacity = n;
    return MF_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------------------------- */

/* The node {state, below}; the tables were sized so that they never fill (see make_room). */
static mf_status get_node(mf__constraint *c, uint32_t state, uint32_t below, uint32_t *out, mf_error *err) {
    uint32_t i = mix((uint64_t)state << 32 | below) & c->node_mask;
    for (; c->node_slots[i] != NONE; i = (i + 1) & c->node_mask) {
        const node *n = &c->nodes[c->node_slots[i]];
        if (n->state == state && n->below == below) return *out = c->node_slots[i], MF_OK;
    }
    if (c->n_nodes >= 2 * MAX_NODES) return mf__fail(err, MF_E_LIMIT, "the grammar is too ambiguous here");
    if (c->n_nodes == c->nodes_capacity) MF__TRY(grow((void **)&c->nodes, &c->nodes_capacity, sizeof *c->nodes, err));
    c->nodes[c->n_nodes] = (node){state, below, below == NONE ? 0 : c->nodes[below].depth + 1};
    *out = c->node_slots[i] = c->n_nodes++;
    return MF_OK;
}

/* ---- making a place -------------------------------------------------------------------------------------------- */

/* Notes (state, below) for closing over, once, unless it could not be finished within the depth limit. */
static mf_status visit(mf__constraint *c, uint32_t state, uint32_t below, mf_error *err) {
    uint32_t depth = below == NONE ? 0 : c->nodes[below].depth + 1;
    if (depth + c->g->states[state].depth > MF__NFA_MAX_DEPTH) return MF_OK;
    uint64_t key = ((uint64_t)state << 32 | below) + 1;
    uint32_t i = mix(key) & c->seen_mask;
    for (; c->seen[i]; i = (i + 1) & c->seen_mask)
        if (c->seen[i] == key) return MF_OK;
    if (c->n_seen * 2 > c->seen_mask) return mf__fail(err, MF_E_LIMIT, "the grammar is too ambiguous here");
    c->seen[i] = key;
    c->seen_slots[c->n_seen++] = i;
    if (c->n_todo == c->todo_capacity) MF__TRY(grow((void **)&c->todo, &c->todo_capacity, sizeof *c->todo, err));
    c->todo[c->n_todo++] = key - 1;
    return MF_OK;
}

static void begin_place(mf__constraint *c) {
    while (c->n_seen) c->seen[c->seen_slots[--c->n_seen]] = 0;
    c->n_found = c->n_todo = 0;
    c->complete = false;
}

/* Follows everything that consumes nothing; what is left are stacks whose top waits for a byte. */
static mf_status close_place(mf__constraint *c, mf_error *err) {
    while (c->n_todo) {
        uint64_t key = c->todo[--c->n_todo];
        uint32_t state = (uint32_t)(key >> 32), below = (uint32_t)key, back;
        bool waits = false;
        for (uint32_t i = c->g->states[state].edges; i; i = c->g->edges[i].next) {
            const nfa_edge *e = &c->g->edges[i];
            if (e->kind == NFA_BYTES) {
                waits = true;
            } else if (e->kind == NFA_EMPTY) {
                MF__TRY(visit(c, e->to, below, err));
            } else {
                uint32_t depth = below == NONE ? 0 : c->nodes[below].depth + 1;
                if (depth + c->g->states[e->to].depth > MF__NFA_MAX_DEPTH) continue;
                MF__TRY(get_node(c, e->to, below, &back, err));
                MF__TRY(visit(c, c->g->rules[e->rule].start, back, err));
            }
        }
        /* Only a rule's end has no edges. */
        if (c->g->states[state].length == 0 && c->g->states[state].edges == 0) {
            if (below == NONE)
                c->complete = true;
            else
                MF__TRY(visit(c, c->nodes[below].state, c->nodes[below].below, err));
        }
        if (!waits) continue;
        if (c->n_found == MAX_STACKS) return mf__fail(err, MF_E_LIMIT, "the grammar is too ambiguous here");
        if (c->n_found == c->found_capacity)
            MF__TRY(grow((void **)&c->found, &c->found_capacity, sizeof *c->found, err));
        MF__TRY(get_node(c, state, below, &c->found[c->n_found++], err));
    }
    return MF_OK;
}

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The place with the stacks found; DEAD when there are none and the text is not complete either. */
static mf_status get_place(mf__constraint *c, int32_t *out, mf_error *err) {
    *out = DEAD;
    if (c->n_found == 0 && !c->complete) return MF_OK;
    if (c->n_found > 1) qsort(c->found, c->n_found, sizeof *c->found, compare_u32);
    uint64_t h = c->complete;
    for (uint32_t i = 0; i < c->n_found; i++) h = (h ^ c->found[i]) * 0xD6E8FEB86659FD93u;
    uint32_t slot = mix(h) & c->place_mask;
    for (; c->place_slots[slot] >= 0; slot = (slot + 1) & c->place_mask) {
        const place *p = &c->places[c->place_slots[slot]];
        if (p->complete == c->complete && p->n == c->n_found &&
            (p->n == 0 || memcmp(c->members + p->first, c->found, p->n * sizeof *c->found) == 0))
            return *out = c->place_slots[slot], MF_OK;
    }
    if (c->n_places >= 2 * MAX_PLACES) return mf__fail(err, MF_E_LIMIT, "the grammar is too ambiguous here");
    if (c->n_places == c->places_capacity) {
        uint32_t capacity = (uint32_t)c->places_capacity;
        MF__TRY(grow((void **)&c->places, &capacity, sizeof *c->places, err));
        c->places_capacity = (int32_t)capacity;
    }
    while (c->n_members + c->n_found > c->members_capacity)
        MF__TRY(grow((void **)&c->members, &c->members_capacity, sizeof *c->members, err));
    if (c->n_found) memcpy(c->members + c->n_members, c->found, c->n_found * sizeof *c->found);
    c->places[c->n_places] = (place){.first = c->n_members, .n = c->n_found, .complete = c->complete};
    c->n_members += c->n_found;
    *out = c->place_slots[slot] = c->n_places++;
    return MF_OK;
}

static mf_status make_step(mf__constraint *c, int32_t from, uint8_t byte, int32_t *out, mf_error *err) {
    begin_place(c);
    uint32_t first = c->places[from].first, n = c->places[from].n;
    for (uint32_t k = 0; k < n; k++) {
        node top = c->nodes[c->members[first + k]];
        for (uint32_t i = c->g->states[top.state].edges; i; i = c->g->edges[i].next) {
            const nfa_edge *e = &c->g->edges[i];
            if (e->kind == NFA_BYTES && byte >= e->lo && byte <= e->hi) MF__TRY(visit(c, e->to, top.below, err));
        }
    }
    MF__TRY(close_place(c, err));
    return get_place(c, out, err);
}

/* Where `byte` leads from a place. */
static inline mf_status step(mf__constraint *c, int32_t from, uint8_t byte, int32_t *out, mf_error *err) {
    place *p = &c->places[from];
    if (p->next && p->next[byte] != UNKNOWN) return *out = p->next[byte], MF_OK;
    if (!p->next) {
        p->next = malloc(256 * sizeof *p->next);
        if (!p->next) return no_memory(err);
        for (int i = 0; i < 256; i++) p->next[i] = UNKNOWN;
    }
    MF__TRY(make_step(c, from, byte, out, err));
    c->places[from].next[byte] = *out; /* places may have moved */
    return MF_OK;
}

/* ---- room ------------------------------------------------------------------------------------------------------ */

static void forget_places(mf__constraint *c) {
    for (int32_t i = 0; i < c->n_places; i++) {
        free(c->places[i].next);
        free(c->places[i].mask);
    }
    c->n_places = c->n_masks = 0;
    c->n_nodes = c->n_members = 0;
    memset(c->node_slots, 0xFF, ((size_t)c->node_mask + 1) * sizeof *c->node_slots);
    memset(c->place_slots, 0xFF, ((size_t)c->place_mask + 1) * sizeof *c->place_slots);
}

/* Puts a stack back, bottom first, from the nodes as they were. */
static mf_status restore_stack(mf__constraint *c, const node *old, uint32_t top, uint32_t *out, mf_error *err) {
    uint32_t chain[MF__NFA_MAX_DEPTH + 4], n = 0, below = NONE;
    for (uint32_t i = top; i != NONE && n < MF__COUNT(chain); i = old[i].below) chain[n++] = i;
    while (n-- > 0) MF__TRY(get_node(c, old[chain[n]].state, below, &below, err));
    *out = below;
    return MF_OK;
}

/* Between tokens, when the tables are half full: keeps the present place and nothing else. */
static mf_status make_room(mf__constraint *c, mf_error *err) {
    if (c->n_places < MAX_PLACES && c->n_nodes < MAX_NODES && c->n_masks < MAX_MASKS) return MF_OK;
    place here = c->places[c->here];
    node *old = malloc(((size_t)c->n_nodes + 1) * sizeof *old);
    uint32_t *tops = malloc(((size_t)here.n + 1) * sizeof *tops);
    mf_status status = MF_OK;
    if (old && tops) {
        memcpy(old, c->nodes, c->n_nodes * sizeof *old);
        if (here.n) memcpy(tops, c->members + here.first, here.n * sizeof *tops);
        forget_places(c);
        c->n_found = 0;
        c->complete = here.complete;
        for (uint32_t i = 0; status == MF_OK && i < here.n; i++) /* found has had room for as many before */
            status = restore_stack(c, old, tops[i], &c->found[c->n_found++], err);
        if (status == MF_OK) status = get_place(c, &c->here, err);
    } else {
        status = no_memory(err);
    }
    free(old);
    free(tops);
    return status;
}

/* ---- life ------------------------------------------------------------------------------------------------------ */

static mf_status start(mf__constraint *c, mf_error *err) {
    begin_place(c);
    c->ended = false;
    MF__TRY(visit(c, c->g->rules[c->g->root].start, NONE, err));
    MF__TRY(close_place(c, err));
    return get_place(c, &c->here, err);
}

mf_status mf__constraint_create(const mf__grammar *g, const mf__token_trie *trie, int32_t n_vocab, const int32_t *eos,
                                int n_eos, mf__constraint **out, mf_error *err) {
    *out = NULL;
    for (int i = 0; i < n_eos; i++)
        if (eos[i] < 0 || eos[i] >= n_vocab)
            return mf__fail(err, MF_E_TOKEN, "end token %d; the vocabulary has %d", (int)eos[i], (int)n_vocab);
    mf__constraint *c = calloc(1, sizeof *c);
    if (!c) return no_memory(err);
    c->g = g;
    c->trie = trie;
    c->n_vocab = n_vocab;
    c->n_eos = n_eos;
    c->node_mask = 4 * MAX_NODES - 1;
    c->place_mask = 4 * MAX_PLACES - 1;
    c->seen_mask = 8 * MAX_STACKS - 1;
    c->eos = malloc(((size_t)n_eos + 1) * sizeof *c->eos);
    c->node_slots = malloc(((size_t)c->node_mask + 1) * sizeof *c->node_slots);
    c->place_slots = malloc(((size_t)c->place_mask + 1) * sizeof *c->place_slots);
    c->seen = calloc((size_t)c->seen_mask + 1, sizeof *c->seen);
    c->seen_slots = malloc(((size_t)c->seen_mask + 1) * sizeof *c->seen_slots);
    c->path = malloc(((size_t)trie->max_depth + 1) * sizeof *c->path);
    mf_status status;
    if (c->eos && c->node_slots && c->place_slots && c->seen && c->seen_slots && c->path) {
        if (n_eos) memcpy(c->eos, eos, (size_t)n_eos * sizeof *eos);
        forget_places(c);
        status = start(c, err);
    } else {
        status = no_memory(err);
    }
    if (status != MF_OK) return mf__constraint_free(c), status;
    *out = c;
    return MF_OK;
}

void mf__constraint_free(mf__constraint *c) {
    if (!c) return;
    for (int32_t i = 0; i < c->n_places; i++) {
        free(c->places[i].next);
        free(c->places[i].mask);
    }
    free(c->eos);
    free(c->nodes);
    free(c->node_slots);
    free(c->members);
    free(c->places);
    free(c->place_slots);
    free(c->found);
    free(c->todo);
    free(c->seen);
    free(c->seen_slots);
    free(c->path);
    free(c);
}

void mf__constraint_reset(mf__constraint *c) {
    start(c, NULL); /* the first place is there already: nothing to fail */
}

/* ---- tokens ---------------------------------------------------------------------------------------------------- */

/* Walks a tree of tokens along the places that their bytes lead to. */
static mf_status walk(mf__constraint *c, const token_tree *t, int32_t from, uint32_t *mask, mf_error *err) {
    c->path[0] = from;
    for (uint32_t i = 0; i < t->n_nodes;) {
        const trie_node *n = &t->nodes[i];
        int32_t to = DEAD;
        MF__TRY(step(c, c->path[n->depth - 1], n->byte, &to, err));
        if (to == DEAD) {
            i = n->after;
            continue;
        }
        c->path[n->depth] = to;
        for (uint32_t k = 0; k < n->n_tokens; k++) {
            int32_t id = t->tokens[n->tokens + k];
            if (id < c->n_vocab) mask[id / 32] |= 1u << id % 32;
        }
        i++;
    }
    return MF_OK;
}

/* Can a plain character begin here? Not in a state that waits for a quote or a backslash only. */
static bool takes_plain(const mf__constraint *c, uint32_t state) {
    for (uint32_t i = c->g->states[state].edges; i; i = c->g->edges[i].next) {
        const nfa_edge *e = &c->g->edges[i];
        bool quote = e->lo == e->hi && (e->lo == '"' || e->lo == '\\');
        if (e->kind == NFA_BYTES && !quote) return true;
    }
    return false;
}

/* Inside a free JSON string the answer for plain tokens is known. Returns the mask of those allowed; NULL when all
 * tokens must be looked at. */
static const uint32_t *plain_tokens(const mf__constraint *c, const place *p) {
    uint32_t room = 0, others = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t state = c->nodes[c->members[p->first + i]].state, free_chars = c->g->states[state].free;
        if (free_chars > room)
            room = free_chars;
        else if (free_chars == 0 && takes_plain(c, state))
            others++;
    }
    if (room == 0 || (others && room != MF__NFA_NEVER)) return NULL;
    if (room >= c->trie->max_chars) return c->trie->plain[TRIE_LENGTHS + 1];
    return room <= TRIE_LENGTHS ? c->trie->plain[room] : NULL;
}

static mf_status fill_mask(mf__constraint *c, int32_t from, uint32_t *mask, mf_error *err) {
    const uint32_t *plain = plain_tokens(c, &c->places[from]);
    size_t words = (size_t)c->n_vocab / 32 + 1;
    if (!plain) return walk(c, &c->trie->all, from, mask, err);
    memcpy(mask, plain, (words < c->trie->n_words ? words : c->trie->n_words) * sizeof *mask);
    if (c->n_vocab % 32) mask[words - 1] &= (1u << c->n_vocab % 32) - 1; /* nothing behind the model's vocabulary */
    if (c->n_vocab % 32 == 0) mask[words - 1] = 0;
    return walk(c, &c->trie->marked, from, mask, err);
}

mf_status mf__constraint_mask(mf__constraint *c, const uint32_t **out, mf_error *err) {
    *out = NULL;
    MF__TRY(make_room(c, err));
    if (!c->places[c->here].mask) {
        uint32_t *mask = calloc((size_t)c->n_vocab / 32 + 1, sizeof *mask);
        if (!mask) return no_memory(err);
        mf_status status = fill_mask(c, c->here, mask, err);
        if (status != MF_OK) return free(mask), status;
        for (int i = 0; c->places[c->here].complete && i < c->n_eos; i++) mask[c->eos[i] / 32] |= 1u << c->eos[i] % 32;
        c->places[c->here].mask = mask;
        c->n_masks++;
    }
    *out = c->places[c->here].mask;
    return MF_OK;
}

mf_status mf__constraint_accept(mf__constraint *c, int32_t token, mf_error *err) {
    for (int i = 0; i < c->n_eos; i++)
        if (token == c->eos[i] && c->places[c->here].complete) return c->ended = true, MF_OK;
    MF__TRY(make_room(c, err));
    size_t n;
    const char *bytes = mf__tokenizer_bytes(c->trie->tok, token, &n);
    int32_t to = c->here;
    for (size_t i = 0; i < n && to != DEAD; i++) MF__TRY(step(c, to, (uint8_t)bytes[i], &to, err));
    if (n == 0 || to == DEAD || c->ended)
        return mf__fail(err, MF_E_INVALID, "token %d is not allowed by the grammar here", (int)token);
    c->here = to;
    return MF_OK;
}

bool mf__constraint_complete(const mf__constraint *c) {
    return c->places[c->here].complete;
}

bool mf__constraint_ended(const mf__constraint *c) {
    return c->ended || c->places[c->here].n == 0;
}

/* ---- the shortest end ------------------------------------------------------------------------------------------ */

/* Bytes that a stack needs to be finished at least. */
static uint64_t rest_of(const mf__constraint *c, uint32_t top) {
    uint64_t sum = 0;
    for (uint32_t i = top; i != NONE; i = c->nodes[i].below) sum += c->g->states[c->nodes[i].state].length;
    return sum;
}

static uint64_t rest_of_place(const mf__constraint *c, int32_t at) {
    const place *p = &c->places[at];
    uint64_t best = p->complete ? 0 : UINT64_MAX;
    for (uint32_t i = 0; i < p->n; i++) {
        uint64_t rest = rest_of(c, c->members[p->first + i]);
        if (rest < best) best = rest;
    }
    return best;
}

mf_status mf__constraint_shortest(mf__constraint *c, mf__strbuf *out, mf_error *err) {
    for (int32_t at = c->here; !c->places[at].complete;) {
        int32_t best = DEAD, to = DEAD;
        uint64_t best_rest = UINT64_MAX;
        char byte = 0;
        for (int b = 0; b < 256; b++) {
            MF__TRY(step(c, at, (uint8_t)b, &to, err));
            uint64_t rest = to == DEAD ? UINT64_MAX : rest_of_place(c, to);
            if (rest < best_rest) best_rest = rest, best = to, byte = (char)b;
        }
        if (best == DEAD) return mf__fail(err, MF_E_INTERNAL, "the grammar came to a dead end");
        MF__TRY(mf__strbuf_append(out, &byte, 1, err));
        at = best;
    }
    return MF_OK;
}
