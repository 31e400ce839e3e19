/* Which tokens may come next: the tree of tokens is walked along the places that their bytes lead to.
 *
 * What one item allows depends on its state, its register and what its rule returns to, and on nothing else, so it is
 * kept under a hash of these. Inside strings most tokens need no looking at (trie.h). */
#include "text/grammar/mask.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ENTRIES 256

mf_status mf__masks_init(mf__masks *k, const mf__token_trie *trie, int32_t n_vocab, mf_error *err) {
    *k = (mf__masks){.trie = trie, .n_vocab = n_vocab, .n_words = (size_t)n_vocab / 32 + 1};
    k->path = malloc(((size_t)trie->max_depth + 1) * sizeof *k->path);
    return k->path ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
}

static void forget(mf__masks *k) {
    for (int i = 0; i < MF__MASK_SLOTS; i++) {
        free(k->entries[i].mask);
        k->entries[i] = (mf__mask_entry){0};
    }
    k->n_entries = 0;
}

void mf__masks_deinit(mf__masks *k) {
    forget(k);
    free(k->path);
}

/* ---- walking ----------------------------------------------------------------------------------------------------- */

/* Walks a tree of tokens from a place; tokens that leave more than `left` bytes to the end do not count. */
static mf_status walk(mf__masks *k, mf__machine *m, const token_tree *t, const mf__place *from, uint64_t left,
                      uint32_t *mask, mf_error *err) {
    mf__place *path = k->path;
    path[0] = *from;
    path[0].n_nodes = m->n_nodes;
    path[0].n_edges = m->n_edges;
    path[0].n_sets = m->sets.n;
    uint32_t top = m->n_items; /* the items of `from` lie somewhere below */
    mf_status status = MF_OK;
    for (uint32_t i = 0; status == MF_OK && i < t->n_nodes;) {
        const trie_node *n = &t->nodes[i];
        const mf__place *before = &path[n->depth - 1];
        mf__place *here = &path[n->depth];
        m->n_items = n->depth == 1 ? top : before->first + before->n;
        m->n_nodes = before->n_nodes;
        m->n_edges = before->n_edges;
        mf__key_sets_cut(&m->sets, before->n_sets);
        status = mf__machine_step(m, before, n->byte, here, err);
        if (status != MF_OK || !mf__place_alive(here)) {
            i = n->after;
            continue;
        }
        i++;
        if (n->n_tokens == 0) continue;
        if (left != UINT64_MAX) {
            if (m->n_measured > before->n_nodes) m->n_measured = before->n_nodes;
            if (mf__machine_distance(m, here) > left) continue;
        }
        for (uint32_t j = 0; j < n->n_tokens; j++) {
            int32_t id = t->tokens[n->tokens + j];
            if (id < k->n_vocab) mask[id / 32] |= 1u << id % 32;
        }
    }
    m->n_items = top;
    m->n_nodes = path[0].n_nodes;
    m->n_edges = path[0].n_edges;
    mf__key_sets_cut(&m->sets, path[0].n_sets);
    if (m->n_measured > m->n_nodes) m->n_measured = m->n_nodes;
    return status;
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

/* The mask of plain tokens that fit; NULL: there is none. */
static const uint32_t *plain_tokens(const mf__masks *k, uint64_t room) {
    if (room >= k->trie->max_chars) return k->trie->plain[TRIE_LENGTHS + 1];
    return room && room <= TRIE_LENGTHS ? k->trie->plain[room] : NULL;
}

static void add_plain(const mf__masks *k, const uint32_t *plain, uint32_t *mask) {
    size_t n = k->n_words < k->trie->n_words ? k->n_words : k->trie->n_words, last = (size_t)k->n_vocab / 32;
    for (size_t i = 0; i < n && i < last; i++) mask[i] |= plain[i];
    if (last < n && k->n_vocab % 32) mask[last] |= plain[last] & ((1u << k->n_vocab % 32) - 1);
}

static mf_status item_mask(mf__masks *k, mf__machine *m, uint32_t index, uint32_t *mask, mf_error *err) {
    mf__place one = {.first = index, .n = 1};
    const uint32_t *plain = plain_tokens(k, plain_room(m, &m->items[index]));
    if (plain) add_plain(k, plain, mask);
    return walk(k, m, plain ? &k->trie->marked : &k->trie->all, &one, UINT64_MAX, mask, err);
}

/* ---- keeping ----------------------------------------------------------------------------------------------------- */

static uint64_t key_of(const mf__machine *m, const mf__item *item) {
    uint64_t h = m->nodes[item->node].hash * 0x9E3779B97F4A7C15u;
    h ^= ((uint64_t)item->state + 1) * 0xD6E8FEB86659FD93u;
    h = (h ^ h >> 31) + mf__reg_hash(m->g, &m->sets, item->state, item->reg) * 0xA0761D6478BD642Fu;
    h ^= h >> 29;
    h *= 0xE7037ED1A0B428DBu;
    h ^= h >> 32;
    return h ? h : 1;
}

static void merge(uint32_t *mask, const uint32_t *more, size_t n) {
    for (size_t i = 0; i < n; i++) mask[i] |= more[i];
}

mf_status mf__masks_add(mf__masks *k, mf__machine *m, const mf__place *at, uint32_t *mask, mf_error *err) {
    for (uint32_t i = 0; i < at->n; i++) {
        const mf__item *item = &m->items[at->first + i];
        uint64_t key = key_of(m, item);
        uint32_t slot = (uint32_t)key % MF__MASK_SLOTS;
        while (k->entries[slot].key && k->entries[slot].key != key) slot = (slot + 1) % MF__MASK_SLOTS;
        if (!k->entries[slot].key) {
            if (k->n_entries == MAX_ENTRIES) {
                forget(k);
                slot = (uint32_t)key % MF__MASK_SLOTS;
            }
            uint32_t *made = calloc(k->n_words, sizeof *made);
            if (!made) return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
            mf_status status = item_mask(k, m, at->first + i, made, err);
            if (status != MF_OK) return free(made), status;
            k->entries[slot] = (mf__mask_entry){key, made};
            k->n_entries++;
        }
        merge(mask, k->entries[slot].mask, k->n_words);
    }
    return MF_OK;
}

mf_status mf__masks_add_near(mf__masks *k, mf__machine *m, const mf__place *at, uint64_t left, uint32_t *mask,
                             mf_error *err) {
    return walk(k, m, &k->trie->all, at, left, mask, err);
}
