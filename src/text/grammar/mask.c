/* Which tokens may come next: the trees of tokens are walked along the places that their bytes lead to.
 *
 * Most of it does not depend on where a rule returns to. So the walk is made for an item as if its rule were the whole
 * grammar, and kept by state and register: the tokens that stay within the rule, and the nodes of the tree where the
 * rule ends. For a place it goes on only from those. Inside strings most tokens need no looking at (trie.h). */
#include "text/grammar/mask.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 256
#define NODE_BITS 30

mf_status mf__masks_init(mf__masks *k, const mf__token_trie *trie, int32_t n_vocab, mf_error *err) {
    *k = (mf__masks){.trie = trie, .n_vocab = n_vocab, .n_words = (size_t)n_vocab / 32 + 1};
    k->path = malloc(((size_t)trie->max_depth + 1) * sizeof *k->path);
    k->tables = malloc(MF__MASK_TABLES * sizeof *k->tables);
    return k->path && k->tables ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
}

static void forget(mf__mask_cache *c) {
    for (int i = 0; i < MF__MASK_SLOTS; i++) {
        free(c->entries[i].mask);
        free(c->entries[i].ends);
        c->entries[i] = (mf__mask_entry){0};
    }
    c->n = 0;
}

void mf__masks_forget(mf__masks *k) {
    forget(&k->whole);
    forget(&k->alone);
}

void mf__masks_deinit(mf__masks *k) {
    mf__masks_forget(k);
    free(k->path);
    free(k->tables);
    free(k->ends);
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

static const token_tree *tree_of(const mf__masks *k, uint32_t number) {
    return number == 0 ? &k->trie->all : number == 1 ? &k->trie->marked : &k->trie->longer;
}

/* Where each byte leads from a state; MF__NEVER: nowhere. */
static const uint32_t *table_of(mf__masks *k, const mf__grammar *g, uint32_t state) {
    uint32_t slot = state % MF__MASK_TABLES, *table = k->tables[slot];
    if (k->table_state[slot] == state + 1) return table;
    k->table_state[slot] = state + 1;
    for (int b = 0; b < 256; b++) table[b] = MF__NEVER;
    for (uint32_t e = 0; e < g->states[state].n_edges; e++) {
        const mf__byte_edge *edge = &g->edges[g->states[state].edges + e];
        for (int b = edge->lo; b <= edge->hi; b++) table[b] = edge->to;
    }
    return table;
}

static bool is_simple(const mf__grammar *g, const mf__state *s) {
    bool key = g->rules[s->rule].kind == MF__RULE_OBJECT && s->mark >= MF__MARK_KEY; /* it would make a set */
    return s->n_calls == 0 && !s->accept && !key;
}

static mf_status note_end(mf__masks *k, uint32_t tree, uint32_t node, mf_error *err) {
    if (k->n_ends == k->ends_capacity) {
        uint32_t n = k->ends_capacity ? k->ends_capacity * 2 : 256;
        uint32_t *more = realloc(k->ends, n * sizeof *more);
        if (!more) return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
        k->ends = more;
        k->ends_capacity = n;
    }
    k->ends[k->n_ends++] = tree << NODE_BITS | node;
    return MF_OK;
}

typedef enum fast { FAST_DEAD, FAST_DONE, FAST_NOT } fast;

/* A step from a single item that stays one, without the machine; FAST_NOT: the machine must do it. The places of such
 * steps are not set: nothing was added to the stacks since path[0]. */
static inline fast fast_step(mf__masks *k, mf__machine *m, const mf__mask_step *from, uint8_t byte, mf__mask_step *to) {
    const mf__grammar *g = m->g;
    uint32_t next = table_of(k, g, from->state)[byte];
    if (next == MF__NEVER) return FAST_DEAD;
    const mf__state *s = &g->states[next];
    if (!is_simple(g, s)) return FAST_NOT;
    to->reg = from->reg;
    if (!mf__state_enter(g, &m->sets, s, &to->reg)) return FAST_DEAD;
    to->state = next;
    return FAST_DONE;
}

static mf_status slow_step(mf__machine *m, const mf__mask_step *start, const mf__mask_step *from, uint8_t byte,
                           uint32_t node, mf__mask_step *to, mf_error *err) {
    mf__place before = from->state == MF__NEVER ? from->place : start->place;
    m->n_items = before.first + before.n;
    m->n_nodes = before.n_nodes;
    m->n_edges = before.n_edges;
    mf__key_sets_cut(&m->sets, before.n_sets);
    if (from->state != MF__NEVER) { /* as an item on top: there is room, see item_alone */
        m->items[m->n_items] = (mf__item){from->state, node, from->reg};
        before.first = m->n_items++;
        before.n = 1;
    }
    to->state = MF__NEVER;
    return mf__machine_step(m, &before, byte, &to->place, err);
}

/* Walks nodes first .. end of a tree; path[depth - 1] of the first is set. alone: notes where the text may end. */
static mf_status walk(mf__masks *k, mf__machine *m, uint32_t tree, uint32_t first, uint32_t end, bool alone,
                      uint32_t node, uint32_t *mask, mf_error *err) {
    const token_tree *t = tree_of(k, tree);
    for (uint32_t i = first; i < end;) {
        const trie_node *n = &t->nodes[i];
        mf__mask_step *before = &k->path[n->depth - 1], *here = &k->path[n->depth];
        fast done = before->state == MF__NEVER ? FAST_NOT : fast_step(k, m, before, n->byte, here);
        if (done == FAST_NOT) MF__TRY(slow_step(m, &k->path[0], before, n->byte, node, here, err));
        if (done == FAST_DEAD || (done == FAST_NOT && !mf__place_alive(&here->place))) {
            i = n->after;
            continue;
        }
        for (uint32_t j = 0; j < n->n_tokens; j++) {
            int32_t id = t->tokens[n->tokens + j];
            if (id < k->n_vocab) mask[id / 32] |= 1u << id % 32;
        }
        if (alone && done == FAST_NOT && here->place.complete && n->after > i + 1) MF__TRY(note_end(k, tree, i, err));
        i++;
    }
    return MF_OK;
}

static void begin_walk(mf__masks *k, mf__machine *m, uint32_t depth, const mf__place *at) {
    k->path[depth] = (mf__mask_step){.place = *at, .state = MF__NEVER};
    k->path[depth].place.n_nodes = m->n_nodes;
    k->path[depth].place.n_edges = m->n_edges;
    k->path[depth].place.n_sets = m->sets.n;
}

/* How many plain characters an item takes whatever they are; 0: they must be looked at. */
static uint64_t plain_room(const mf__machine *m, const mf__item *item) {
    const mf__grammar *g = m->g;
    const mf__state *s = &g->states[item->state];
    const mf__rule *r = &g->rules[s->rule];
    if (!s->open) return 0;
    if (r->kind == MF__RULE_PLAIN) return UINT64_MAX;
    if (r->kind == MF__RULE_OBJECT) return s->others && mf__keys_others(r->keys, &m->sets, item->reg) ? UINT64_MAX : 0;
    if (r->max < 0) return UINT64_MAX;
    uint64_t used = item->reg + s->least; /* in a string the end is always near: least is the same in all its states */
    return used < (uint64_t)r->max ? (uint64_t)r->max - used : 0;
}

static void add_plain(const mf__masks *k, const uint32_t *plain, uint32_t *mask) {
    size_t n = k->n_words < k->trie->n_words ? k->n_words : k->trie->n_words, last = (size_t)k->n_vocab / 32;
    for (size_t i = 0; i < n && i < last; i++) mask[i] |= plain[i];
    if (last < n && k->n_vocab % 32) mask[last] |= plain[last] & ((1u << k->n_vocab % 32) - 1);
}

/* What an item allows as far as its own rule goes. */
static mf_status item_alone(mf__masks *k, mf__machine *m, mf__item item, uint32_t *mask, mf_error *err) {
    uint64_t room = plain_room(m, &item);
    mf__place top = {.first = m->n_items, .n_nodes = m->n_nodes, .n_edges = m->n_edges, .n_sets = m->sets.n};
    uint32_t node;
    MF__TRY(mf__machine_alone(m, &node, err));
    item.node = node;
    MF__TRY(mf__machine_push(m, item, err));
    mf__place one = {.first = top.first, .n = 1};
    begin_walk(k, m, 0, &one);
    k->path[0].state = is_simple(m->g, &m->g->states[item.state]) ? item.state : MF__NEVER;
    k->path[0].reg = item.reg;
    k->n_ends = 0;
    mf_status status = MF_OK;
    if (room == 0) {
        status = walk(k, m, 0, 0, k->trie->all.n_nodes, true, node, mask, err);
    } else {
        bool all = room >= k->trie->max_chars;
        add_plain(k, k->trie->plain[all ? TRIE_LENGTHS + 1 : room < TRIE_LENGTHS ? room : TRIE_LENGTHS], mask);
        status = walk(k, m, 1, 0, k->trie->marked.n_nodes, true, node, mask, err);
        if (status == MF_OK && !all && room > TRIE_LENGTHS)
            status = walk(k, m, 2, 0, k->trie->longer.n_nodes, true, node, mask, err);
    }
    mf__machine_cut(m, &top);
    return status;
}

/* ---- keeping ----------------------------------------------------------------------------------------------------- */

static uint64_t mix_key(uint64_t h, uint64_t more) {
    h = (h ^ h >> 31) + more * 0xA0761D6478BD642Fu;
    h ^= h >> 29;
    h *= 0xE7037ED1A0B428DBu;
    h ^= h >> 32;
    return h ? h : 1;
}

/* A count that is far from its limits, counted in tokens, is like any other. */
static uint64_t reg_of(const mf__masks *k, const mf__machine *m, const mf__item *item) {
    const mf__rule *r = &m->g->rules[m->g->states[item->state].rule];
    uint64_t far = (uint64_t)k->trie->max_depth + m->g->states[item->state].least;
    if (r->kind == MF__RULE_COUNTED && r->max >= 0 && item->reg >= (uint64_t)r->min &&
        item->reg + far < (uint64_t)r->max)
        return (uint64_t)r->min;
    return mf__reg_hash(m->g, &m->sets, item->state, item->reg);
}

/* The entry with the key, or an empty one for it. */
static mf__mask_entry *find(mf__mask_cache *c, uint64_t key) {
    if (c->n == MAX_ENTRIES) forget(c);
    uint32_t slot = (uint32_t)key % MF__MASK_SLOTS;
    while (c->entries[slot].key && c->entries[slot].key != key) slot = (slot + 1) % MF__MASK_SLOTS;
    return &c->entries[slot];
}

static mf_status fill_entry(mf__mask_cache *c, mf__mask_entry *e, uint64_t key, uint32_t *mask, mf_error *err) {
    (void)err;
    e->key = key;
    e->mask = mask;
    c->n++;
    return MF_OK;
}

static mf_status alone_entry(mf__masks *k, mf__machine *m, const mf__item *item, mf__mask_entry **out, mf_error *err) {
    uint64_t key = mix_key(((uint64_t)item->state + 1) * 0xD6E8FEB86659FD93u, reg_of(k, m, item));
    mf__mask_entry *e = *out = find(&k->alone, key);
    if (e->key) return MF_OK;
    uint32_t *mask = calloc(k->n_words, sizeof *mask);
    if (!mask) return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
    mf_status status = item_alone(k, m, *item, mask, err);
    uint32_t *ends = status == MF_OK ? malloc((size_t)k->n_ends * sizeof *ends + 4) : NULL;
    if (status == MF_OK && !ends) status = mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
    if (status != MF_OK) return free(mask), status;
    if (k->n_ends) memcpy(ends, k->ends, k->n_ends * sizeof *ends);
    e->ends = ends;
    e->n_ends = k->n_ends;
    return fill_entry(&k->alone, e, key, mask, err);
}

/* Tokens that go on behind the end of the item's rule. */
static mf_status go_on(mf__masks *k, mf__machine *m, uint32_t node, const mf__mask_entry *e, uint32_t *mask,
                       mf_error *err) {
    mf__place top = {.first = m->n_items, .n_nodes = m->n_nodes, .n_edges = m->n_edges, .n_sets = m->sets.n}, behind;
    if (e->n_ends == 0) return MF_OK;
    mf_status status = mf__machine_return(m, node, &behind, err);
    for (uint32_t i = 0; status == MF_OK && behind.n && i < e->n_ends; i++) {
        uint32_t tree = e->ends[i] >> NODE_BITS, at = e->ends[i] & ((1u << NODE_BITS) - 1);
        const trie_node *n = &tree_of(k, tree)->nodes[at];
        begin_walk(k, m, n->depth, &behind);
        k->path[n->depth].place.n_nodes = behind.n_nodes;
        k->path[n->depth].place.n_edges = behind.n_edges;
        k->path[n->depth].place.n_sets = behind.n_sets;
        status = walk(k, m, tree, at + 1, n->after, false, node, mask, err);
    }
    mf__machine_cut(m, &top);
    return status;
}

static void merge(uint32_t *mask, const uint32_t *more, size_t n) {
    for (size_t i = 0; i < n; i++) mask[i] |= more[i];
}

mf_status mf__masks_add(mf__masks *k, mf__machine *m, const mf__place *at, uint32_t *mask, mf_error *err) {
    for (uint32_t i = 0; i < at->n; i++) {
        mf__item item = m->items[at->first + i];
        uint64_t key = mix_key(((uint64_t)item.state + 1) * 0xD6E8FEB86659FD93u, reg_of(k, m, &item));
        mf__mask_entry *whole = find(&k->whole, mix_key(key, m->nodes[item.node].hash)), *alone;
        if (!whole->key) {
            MF__TRY(alone_entry(k, m, &item, &alone, err));
            if (alone->n_ends == 0) { /* nothing to add, nothing to keep */
                merge(mask, alone->mask, k->n_words);
                continue;
            }
            uint32_t *made = malloc(k->n_words * sizeof *made);
            if (!made) return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
            memcpy(made, alone->mask, k->n_words * sizeof *made);
            mf_status status = go_on(k, m, item.node, alone, made, err);
            if (status != MF_OK) return free(made), status;
            MF__TRY(fill_entry(&k->whole, whole, mix_key(key, m->nodes[item.node].hash), made, err));
        }
        merge(mask, whole->mask, k->n_words);
    }
    return MF_OK;
}
