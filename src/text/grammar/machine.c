/* Running a grammar: see machine.h. */
#include "text/grammar/machine.h"

#include <stdlib.h>
#include <string.h>

#define MAX_ITEMS 100000  /* of one place */
#define MAX_NODES 4000000 /* of a text */
#define FEW 12            /* items that are looked through one by one */
#define COLLECT 20000     /* nodes and edges that are not worth tidying up */

static mf_status grow(void **array, uint32_t *capacity, size_t item, mf_error *err) {
    uint32_t n = *capacity ? *capacity * 2 : 256;
    void *more = realloc(*array, n * item);
    if (!more) return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
    *array = more;
    *capacity = n;
    return MF_OK;
}

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 32;
}

mf_status mf__machine_init(mf__machine *m, const mf__grammar *g, mf_error *err) {
    *m = (mf__machine){.g = g, .n_edges = 1, .collect_at = COLLECT};
    m->rule_serial = calloc((size_t)g->n_rules + 1, sizeof *m->rule_serial);
    m->rule_node = calloc((size_t)g->n_rules + 1, sizeof *m->rule_node);
    if (!m->rule_serial || !m->rule_node) return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
    return grow((void **)&m->edges, &m->edges_capacity, sizeof *m->edges, err);
}

void mf__machine_deinit(mf__machine *m) {
    free(m->items);
    free(m->nodes);
    free(m->edges);
    free(m->rule_serial);
    free(m->rule_node);
    free(m->seen);
    mf__key_sets_deinit(&m->sets);
}

void mf__machine_cut(mf__machine *m, const mf__place *p) {
    m->n_items = p->first + p->n;
    m->n_nodes = p->n_nodes;
    m->n_edges = p->n_edges;
    mf__key_sets_cut(&m->sets, p->n_sets);
    if (m->n_measured > m->n_nodes) m->n_measured = m->n_nodes;
}

/* ---- making a place ---------------------------------------------------------------------------------------------- */

static uint32_t item_slot(const mf__machine *m, const mf__item *i) {
    return (uint32_t)mix(((uint64_t)i->state << 32 | i->node) ^ i->reg * 0x9E3779B97F4A7C15u) & m->seen_mask;
}

static void put_seen(mf__machine *m, uint32_t index) {
    uint32_t at = item_slot(m, &m->items[index]);
    while (m->seen[at]) at = (at + 1) & m->seen_mask;
    m->seen[at] = index + 1;
    m->n_seen++;
}

/* Begins to use the table, or a larger one, for the items of the place from `first` on. */
static mf_status use_table(mf__machine *m, uint32_t first, mf_error *err) {
    uint32_t wanted = m->seen_mask ? m->seen_mask : 255;
    while (wanted / 4 < m->n_items - first) wanted = wanted * 2 + 1;
    if (wanted != m->seen_mask) {
        uint32_t *table = malloc(((size_t)wanted + 1) * sizeof *table);
        if (!table) return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
        free(m->seen);
        m->seen = table;
        m->seen_mask = wanted;
    }
    memset(m->seen, 0, ((size_t)m->seen_mask + 1) * sizeof *m->seen);
    m->n_seen = 0;
    for (uint32_t i = first; i < m->n_items; i++) put_seen(m, i);
    return MF_OK;
}

/* Adds an item (its register is that behind entering the state) unless it is there. */
static mf_status add_item(mf__machine *m, mf__place *p, mf__item item, mf_error *err) {
    if (!m->n_seen) {
        for (uint32_t i = p->first; i < m->n_items; i++)
            if (m->items[i].state == item.state && m->items[i].node == item.node && m->items[i].reg == item.reg)
                return MF_OK;
    } else {
        for (uint32_t at = item_slot(m, &item); m->seen[at]; at = (at + 1) & m->seen_mask) {
            const mf__item *i = &m->items[m->seen[at] - 1];
            if (i->state == item.state && i->node == item.node && i->reg == item.reg) return MF_OK;
        }
    }
    if (m->n_items - p->first >= MAX_ITEMS)
        return mf__fail(err, MF_E_LIMIT, "the grammar is too ambiguous here: more than %d ways to read the text",
                        MAX_ITEMS);
    if (m->n_items == m->items_capacity) MF__TRY(grow((void **)&m->items, &m->items_capacity, sizeof *m->items, err));
    m->items[m->n_items++] = item;
    if (m->n_seen) {
        put_seen(m, m->n_items - 1);
        if (m->n_seen * 2 > m->seen_mask) return use_table(m, p->first, err);
    } else if (m->n_items - p->first > FEW) {
        return use_table(m, p->first, err);
    }
    return MF_OK;
}

static mf_status go_back(mf__machine *m, mf__place *p, const mf__return *e, mf_error *err) {
    if (e->node == MF__NO_NODE) return p->complete = true, MF_OK;
    return add_item(m, p, (mf__item){e->state, e->node, e->reg}, err);
}

static mf_status add_edge(mf__machine *m, uint32_t node, mf__return e, mf_error *err) {
    if (m->n_edges == m->edges_capacity) MF__TRY(grow((void **)&m->edges, &m->edges_capacity, sizeof *m->edges, err));
    e.next = m->nodes[node].edges;
    m->edges[m->n_edges] = e;
    m->nodes[node].edges = m->n_edges++;
    return MF_OK;
}

/* The node of a call of the rule at this position, made if it is the first. */
static mf_status call_node(mf__machine *m, mf__place *p, uint32_t rule, uint32_t *out, bool *made, mf_error *err) {
    *made = m->rule_serial[rule] != m->serial;
    if (!*made) return *out = m->rule_node[rule], MF_OK;
    if (m->n_nodes == MAX_NODES) return mf__fail(err, MF_E_LIMIT, "the text is nested too deep for its grammar");
    if (m->n_nodes == m->nodes_capacity) MF__TRY(grow((void **)&m->nodes, &m->nodes_capacity, sizeof *m->nodes, err));
    m->rule_serial[rule] = m->serial;
    *out = m->rule_node[rule] = m->n_nodes;
    m->nodes[m->n_nodes++] = (mf__node){.rule = rule};
    mf__item item = {m->g->rules[rule].start, *out, 0};
    if (!mf__state_enter(m->g, &m->sets, &m->g->states[item.state], &item.reg))
        return MF_OK; /* never: it can be finished */
    return add_item(m, p, item, err);
}

/* Nothing is left to do in a state but to end the rule. */
static bool only_ends(const mf__grammar *g, const mf__state *s) {
    return s->accept && s->n_edges == 0 && s->n_calls == 0 && g->rules[s->rule].kind == MF__RULE_PLAIN;
}

static mf_status call(mf__machine *m, mf__place *p, mf__item from, const mf__call_edge *c, uint32_t first_node,
                      mf_error *err) {
    const mf__state *to = &m->g->states[c->to];
    mf__return back = {c->to, from.node, from.reg, 0};
    uint32_t node = 0;
    bool made = false;
    if (!mf__state_enter(m->g, &m->sets, to, &back.reg)) return MF_OK;
    MF__TRY(call_node(m, p, c->rule, &node, &made, err));
    if (made && from.node < first_node && only_ends(m->g, to)) { /* the caller's edges are complete: share them */
        m->nodes[node].edges = m->nodes[from.node].edges;
        return MF_OK;
    }
    MF__TRY(add_edge(m, node, back, err));
    return m->nodes[node].returned ? go_back(m, p, &back, err) : MF_OK;
}

/* Hashes of the nodes made in this step; a node that is its own caller is like no other. */
static void hash_nodes(mf__machine *m, uint32_t first) {
    for (uint32_t i = first; i < m->n_nodes; i++) {
        uint64_t h = 1;
        for (uint32_t e = m->nodes[i].edges; e; e = m->edges[e].next) {
            const mf__return *r = &m->edges[e];
            uint64_t caller = r->node == MF__NO_NODE ? 7 : r->node < i ? m->nodes[r->node].hash : mix(m->serial << 8);
            uint64_t reg = r->node == MF__NO_NODE ? 0 : mf__reg_hash(m->g, &m->sets, r->state, r->reg);
            h += mix(mix((uint64_t)r->state << 20 ^ reg) + caller);
        }
        m->nodes[i].hash = h;
    }
}

/* Follows everything that consumes nothing. */
static mf_status close_place(mf__machine *m, mf__place *p, mf_error *err) {
    uint32_t first_node = m->n_nodes;
    for (uint32_t k = p->first; k < m->n_items; k++) {
        mf__item item = m->items[k];
        const mf__state *s = &m->g->states[item.state];
        for (uint32_t i = 0; i < s->n_calls; i++)
            MF__TRY(call(m, p, item, &m->g->calls[s->calls + i], first_node, err));
        if (!s->accept || !mf__state_final(m->g, &m->sets, s, item.reg)) continue;
        if (item.node >= first_node) m->nodes[item.node].returned = true;
        for (uint32_t e = m->nodes[item.node].edges; e; e = m->edges[e].next) {
            mf__return back = m->edges[e]; /* edges may move */
            MF__TRY(go_back(m, p, &back, err));
        }
    }
    uint32_t n = p->first;
    for (uint32_t k = p->first; k < m->n_items; k++) /* those that wait for no byte have done their part */
        if (m->g->states[m->items[k].state].n_edges) m->items[n++] = m->items[k];
    m->n_items = n;
    p->n = n - p->first;
    p->n_nodes = m->n_nodes;
    p->n_edges = m->n_edges;
    p->n_sets = m->sets.n;
    if (m->sets.failed) return mf__fail(err, MF_E_LIMIT, "the text has too many different objects for its grammar");
    if (m->n_nodes > first_node) hash_nodes(m, first_node);
    return MF_OK;
}

mf_status mf__machine_step(mf__machine *m, const mf__place *from, uint8_t byte, mf__place *out, mf_error *err) {
    const mf__grammar *g = m->g;
    mf__place source = *from;
    *out = (mf__place){.first = m->n_items, .n_nodes = m->n_nodes, .n_edges = m->n_edges};
    m->serial++;
    m->n_seen = 0;
    bool simple = true;
    for (uint32_t i = 0; i < source.n; i++) {
        mf__item item = m->items[source.first + i];
        const mf__byte_edge *e = mf__state_edge(g, &g->states[item.state], byte);
        if (!e) continue;
        item.state = e->to;
        const mf__state *to = &g->states[e->to];
        if (!mf__state_enter(g, &m->sets, to, &item.reg)) continue;
        simple = simple && !to->accept && to->n_calls == 0;
        MF__TRY(add_item(m, out, item, err));
    }
    if (!simple) return close_place(m, out, err);
    out->n = m->n_items - out->first;
    out->n_sets = m->sets.n;
    return m->sets.failed ? mf__fail(err, MF_E_LIMIT, "the text has too many different objects for its grammar")
                          : MF_OK;
}

mf_status mf__machine_return(mf__machine *m, uint32_t node, mf__place *out, mf_error *err) {
    *out = (mf__place){.first = m->n_items};
    m->serial++;
    m->n_seen = 0;
    for (uint32_t e = m->nodes[node].edges; e; e = m->edges[e].next) {
        mf__return back = m->edges[e];
        MF__TRY(go_back(m, out, &back, err));
    }
    return close_place(m, out, err);
}

mf_status mf__machine_push(mf__machine *m, mf__item item, mf_error *err) {
    while (m->n_items + 2 >= m->items_capacity)
        MF__TRY(grow((void **)&m->items, &m->items_capacity, sizeof *m->items, err));
    m->items[m->n_items++] = item;
    return MF_OK;
}

mf_status mf__machine_alone(mf__machine *m, uint32_t *node, mf_error *err) {
    if (m->n_nodes == m->nodes_capacity) MF__TRY(grow((void **)&m->nodes, &m->nodes_capacity, sizeof *m->nodes, err));
    *node = m->n_nodes;
    m->nodes[m->n_nodes++] = (mf__node){0};
    return add_edge(m, *node, (mf__return){.node = MF__NO_NODE}, err);
}

mf_status mf__machine_start(mf__machine *m, mf__place *out, mf_error *err) {
    uint32_t node = 0;
    bool made = false;
    m->n_items = m->n_nodes = m->n_measured = 0;
    m->n_edges = 1;
    mf__key_sets_cut(&m->sets, 1);
    m->serial++;
    m->n_seen = 0;
    *out = (mf__place){0};
    MF__TRY(call_node(m, out, m->g->root, &node, &made, err));
    MF__TRY(add_edge(m, node, (mf__return){.node = MF__NO_NODE}, err));
    return close_place(m, out, err);
}

/* ---- distances ----------------------------------------------------------------------------------------------------
 */

static uint64_t item_distance(const mf__machine *m, uint32_t state, uint32_t node, uint64_t reg) {
    if (node == MF__NO_NODE) return 0;
    uint64_t behind = m->nodes[node].distance, d = mf__state_distance(m->g, &m->sets, &m->g->states[state], reg);
    return behind == UINT64_MAX || d == UINT64_MAX ? UINT64_MAX : behind + d;
}

uint64_t mf__machine_distance(mf__machine *m, const mf__place *p) {
    for (uint32_t i = m->n_measured; i < m->n_nodes; i++) m->nodes[i].distance = UINT64_MAX;
    for (bool changed = m->n_measured < m->n_nodes; changed;) { /* once, but for callers made in the same step */
        changed = false;
        for (uint32_t i = m->n_measured; i < m->n_nodes; i++)
            for (uint32_t e = m->nodes[i].edges; e; e = m->edges[e].next) {
                uint64_t d = item_distance(m, m->edges[e].state, m->edges[e].node, m->edges[e].reg);
                if (d < m->nodes[i].distance) m->nodes[i].distance = d, changed = true;
            }
    }
    m->n_measured = m->n_nodes;
    uint64_t best = p->complete ? 0 : UINT64_MAX;
    for (uint32_t i = 0; i < p->n; i++) {
        const mf__item *item = &m->items[p->first + i];
        uint64_t d = item_distance(m, item->state, item->node, item->reg);
        if (d < best) best = d;
    }
    return best;
}

/* ---- keeping one place ------------------------------------------------------------------------------------------- */

static void mark_nodes(const mf__machine *m, const mf__place *p, uint32_t *map, uint32_t *todo) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_nodes; i++) map[i] = MF__NO_NODE;
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t node = m->items[p->first + i].node;
        if (map[node] == MF__NO_NODE) map[node] = 0, todo[n++] = node;
    }
    while (n) {
        uint32_t e = m->nodes[todo[--n]].edges;
        for (; e; e = m->edges[e].next) {
            uint32_t node = m->edges[e].node;
            if (node != MF__NO_NODE && map[node] == MF__NO_NODE) map[node] = 0, todo[n++] = node;
        }
    }
}

/* Nodes that can still be returned to, moved together. */
static mf_status collect(mf__machine *m, mf__place *p, mf_error *err) {
    uint32_t *map = malloc((size_t)m->n_nodes * sizeof *map + 4), *todo = malloc((size_t)m->n_nodes * sizeof *todo + 4);
    mf__return *old = malloc((size_t)m->n_edges * sizeof *old);
    if (!map || !todo || !old) {
        free(map);
        free(todo);
        free(old);
        return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
    }
    mark_nodes(m, p, map, todo);
    memcpy(old, m->edges, (size_t)m->n_edges * sizeof *old);
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_nodes; i++)
        if (map[i] != MF__NO_NODE) map[i] = n, m->nodes[n++] = m->nodes[i];
    m->n_nodes = n;
    m->n_edges = 1;
    mf_status status = MF_OK;
    for (uint32_t i = 0; status == MF_OK && i < n; i++) {
        uint32_t e = m->nodes[i].edges;
        for (m->nodes[i].edges = 0; status == MF_OK && e; e = old[e].next) {
            mf__return r = old[e];
            if (r.node != MF__NO_NODE) r.node = map[r.node];
            status = add_edge(m, i, r, err);
        }
    }
    for (uint32_t i = 0; i < p->n; i++) m->items[p->first + i].node = map[m->items[p->first + i].node];
    m->n_measured = 0;
    free(map);
    free(todo);
    free(old);
    return status;
}

mf_status mf__machine_keep(mf__machine *m, mf__place *p, mf_error *err) {
    if (p->n && p->first) memmove(m->items, m->items + p->first, p->n * sizeof *m->items);
    p->first = 0;
    m->n_items = p->n;
    m->n_nodes = p->n_nodes;
    m->n_edges = p->n_edges;
    mf__key_sets_cut(&m->sets, p->n_sets);
    if (m->n_nodes + m->n_edges > m->collect_at) {
        MF__TRY(collect(m, p, err));
        m->collect_at = (m->n_nodes + m->n_edges) * 2 + COLLECT;
    }
    if (m->n_measured > m->n_nodes) m->n_measured = m->n_nodes;
    p->n_nodes = m->n_nodes;
    p->n_edges = m->n_edges;
    return MF_OK;
}
