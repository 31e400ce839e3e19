/* The last part of making a grammar: what can be finished, how far it is, and what a key can become. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/automaton.h"

#define MAX_EMPTY 1000
#define MAX_TEXT (16 << 20)  /* bytes of a rule's shortest text; what is longer cannot be written */
#define MAX_REACH (1u << 24) /* bytes of all names of properties */

void mf__grammar_free(mf__grammar *g) {
    if (!g) return;
    for (uint32_t r = 0; g->rules && r < g->n_rules; r++) mf__keys_free(g->rules[r].keys);
    free(g->states);
    free(g->edges);
    free(g->calls);
    free(g->rules);
    free(g->reach);
    free(g->notes);
    free(g);
}

const char *mf__grammar_notes(const mf__grammar *g) {
    return g->notes ? g->notes : "";
}

uint32_t mf__grammar_states(const mf__grammar *g) {
    return g->n_states;
}

static uint32_t add_up(uint64_t a, uint64_t b) {
    return a >= MF__NEVER || b >= MF__NEVER ? MF__NEVER : a + b < MF__NEVER / 2 ? (uint32_t)(a + b) : MF__NEVER / 2;
}

/* The states of rule r are base[r] .. base[r + 1]; the rules that call it are callers[first_caller[r]] .. of r + 1. */
typedef struct measure {
    mf__grammar *g;
    uint32_t *base;
    uint32_t *first_caller, *callers;
    bool *dirty;   /* per rule: what it calls has become shorter */
    bool too_long; /* all texts of some rule are longer than MAX_TEXT */
} measure;

/* ---- distances --------------------------------------------------------------------------------------------------- */

/* The states of one rule, from the back, until nothing gets shorter. */
static void shorten_states(measure *m, uint32_t rule) {
    mf__grammar *g = m->g;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = m->base[rule + 1]; i-- > m->base[rule];) {
            mf__state *s = &g->states[i];
            uint32_t best = s->accept ? 0 : s->distance;
            for (uint32_t e = 0; e < s->n_edges; e++) {
                uint32_t d = add_up(g->states[g->edges[s->edges + e].to].distance, 1);
                if (d < best) best = d;
            }
            for (uint32_t e = 0; e < s->n_calls; e++) {
                const mf__call_edge *c = &g->calls[s->calls + e];
                uint32_t d = add_up(g->states[c->to].distance, g->rules[c->rule].shortest);
                if (d < best) best = d;
            }
            if (best < s->distance) s->distance = best, changed = true;
        }
    }
}

/* Bytes from one count to the next at least. */
static uint32_t cycle_of(measure *m, uint32_t rule, uint32_t *next) {
    mf__grammar *g = m->g;
    uint32_t base = m->base[rule], n = m->base[rule + 1] - base, best = MF__NEVER;
    for (uint32_t i = 0; i < n; i++) next[i] = MF__NEVER;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = n; i-- > 0;) {
            const mf__state *s = &g->states[base + i];
            for (uint32_t e = 0; e < (uint32_t)s->n_edges + s->n_calls; e++) {
                bool byte = e < s->n_edges;
                const mf__call_edge *c = byte ? NULL : &g->calls[s->calls + e - s->n_edges];
                uint32_t to = byte ? g->edges[s->edges + e].to : c->to;
                uint32_t d = add_up(g->states[to].mark == MF__MARK_COUNT ? 0 : next[to - base],
                                    byte ? 1 : g->rules[c->rule].shortest);
                if (d < next[i]) next[i] = d, changed = true;
            }
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (g->states[base + i].mark == MF__MARK_COUNT && next[i] < best) best = next[i];
    return best;
}

/* Labels that no state has: their keys cannot be written. */
static void find_labels(measure *m, uint32_t rule, uint32_t *seen) {
    mf__keys *k = m->g->rules[rule].keys;
    for (uint32_t i = 0; i < k->n_labels; i++) seen[i] = 0;
    for (uint32_t i = m->base[rule]; i < m->base[rule + 1]; i++)
        if (m->g->states[i].mark >= MF__MARK_KEY) seen[m->g->states[i].mark - MF__MARK_KEY] = 1;
    for (uint32_t i = 0; i < k->n_labels; i++)
        if (!seen[i]) k->value[i] = MF__NEVER;
}

static bool measure_keys(mf__grammar *g, mf__keys *k) {
    bool fine = k->max < 0 || (int64_t)k->n_required <= k->max;
    int64_t possible = 0;
    k->cheapest = MF__NEVER;
    k->others = false;
    for (uint32_t i = 0; i < k->n_labels; i++) {
        bool declared = i < k->n_declared, required = declared && (k->required[i / 64] >> i % 64 & 1);
        uint32_t value = k->value[i] == MF__NEVER ? MF__NEVER : g->rules[k->value[i]].shortest;
        k->member_cost[i] = add_up(value, declared ? strlen(k->names[i]) + 2 : 5);
        if (k->member_cost[i] < k->cheapest) k->cheapest = k->member_cost[i];
        bool can = k->member_cost[i] != MF__NEVER;
        possible += declared && can;
        if (!declared && can) k->others = true;
        fine = fine && (can || !required);
    }
    return fine && possible + k->others >= k->min;
}

/* Who calls whom; a rule is there as often as it calls. */
static mf_status find_callers(measure *m, mf_error *err) {
    const mf__grammar *g = m->g;
    m->first_caller = calloc((size_t)g->n_rules + 2, sizeof *m->first_caller);
    m->callers = malloc(((size_t)g->n_calls + 1) * sizeof *m->callers);
    m->dirty = malloc((size_t)g->n_rules + 1);
    if (!m->first_caller || !m->callers || !m->dirty) return mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
    memset(m->dirty, true, g->n_rules);
    for (uint32_t i = 0; i < g->n_calls; i++) m->first_caller[g->calls[i].rule + 2]++;
    for (uint32_t r = 2; r <= g->n_rules; r++) m->first_caller[r] += m->first_caller[r - 1];
    for (uint32_t i = 0; i < g->n_states; i++) /* counts up first_caller[rule + 1] to its final value */
        for (uint32_t e = 0; e < g->states[i].n_calls; e++)
            m->callers[m->first_caller[g->calls[g->states[i].calls + e].rule + 1]++] = g->states[i].rule;
    return MF_OK;
}

/* True: its shortest text got shorter. */
static bool shorten_rule(measure *m, uint32_t rule, uint32_t *scratch) {
    mf__grammar *g = m->g;
    const mf__key_sets none = {0};
    mf__rule *r = &g->rules[rule];
    const mf__state *start = &g->states[r->start];
    shorten_states(m, rule);
    uint64_t d = start->distance;
    if (r->kind == MF__RULE_COUNTED) {
        if ((r->max >= 0 && (int64_t)start->least > r->max) ||
            (start->most != MF__NEVER && (int64_t)start->most < r->min))
            return false;
        r->per_count = start->least < (uint64_t)r->min ? cycle_of(m, rule, scratch) : 0;
        if (d != MF__NEVER && start->least < (uint64_t)r->min)
            d = r->per_count == MF__NEVER ? MF__NEVER : mf__state_distance(g, &none, start, 0);
    } else if (r->kind == MF__RULE_OBJECT) {
        if (!measure_keys(g, r->keys)) return false;
        if (d != MF__NEVER) d = mf__state_distance(g, &none, start, 0);
    }
    if (d > MAX_TEXT && d != MF__NEVER) return m->too_long = true, false; /* nobody writes that */
    if (d >= r->shortest) return false;
    r->shortest = (uint32_t)d;
    return true;
}

/* Until nothing gets shorter. Rules call mostly those behind them. */
static void shorten_all(measure *m, uint32_t *scratch) {
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t r = m->g->n_rules; r-- > 0;) {
            if (!m->dirty[r]) continue;
            m->dirty[r] = false;
            if (!shorten_rule(m, r, scratch)) continue;
            for (uint32_t i = m->first_caller[r]; i < m->first_caller[r + 1]; i++) m->dirty[m->callers[i]] = true;
            changed = true;
        }
    }
}

static uint32_t target_of(const mf__grammar *g, const mf__state *s, uint32_t e) {
    return e < s->n_edges ? g->edges[s->edges + e].to : g->calls[s->calls + e - s->n_edges].to;
}

/* A walk for the most counts: strongly connected states (Tarjan) of a rule, those behind them first. */
typedef struct most_walk {
    uint32_t *number; /* per state of the rule: when it was met, from 1; 0: not yet; MF__NEVER: done */
    uint32_t *low, *next, *path, *open; /* path: states under way, the last on top; open: met, component not known */
    uint32_t n_met, n_path, n_open;
} most_walk;

/* The states from open[first] on are a component: any number where a count goes round in it. */
static void close_component(mf__grammar *g, uint32_t base, most_walk *w, uint32_t first, uint64_t enough) {
    uint64_t most = 0;
    for (uint32_t i = first; i < w->n_open; i++) {
        const mf__state *s = &g->states[base + w->open[i]];
        for (uint32_t e = 0; e < (uint32_t)s->n_edges + s->n_calls; e++) {
            uint32_t to = target_of(g, s, e);
            bool counts = g->states[to].mark == MF__MARK_COUNT, inside = w->number[to - base] != MF__NEVER;
            if (g->states[to].least == MF__NEVER) continue; /* it leads nowhere */
            uint64_t d = inside ? (counts ? MF__NEVER : 0) : (uint64_t)g->states[to].most + counts;
            if (d > most) most = d;
        }
    }
    for (uint32_t i = first; i < w->n_open; i++) {
        g->states[base + w->open[i]].most = most >= enough ? MF__NEVER : (uint32_t)most;
        w->number[w->open[i]] = MF__NEVER;
    }
    w->n_open = first;
}

static void meet(most_walk *w, uint32_t i) {
    w->number[i] = w->low[i] = ++w->n_met;
    w->next[i] = 0;
    w->path[w->n_path++] = w->open[w->n_open++] = i;
}

static void walk_from(mf__grammar *g, uint32_t base, most_walk *w, uint32_t start, uint64_t enough) {
    meet(w, start);
    while (w->n_path) {
        uint32_t i = w->path[w->n_path - 1];
        const mf__state *s = &g->states[base + i];
        if (w->next[i] < (uint32_t)s->n_edges + s->n_calls) {
            uint32_t to = target_of(g, s, w->next[i]++), k = to - base;
            if (g->states[to].least == MF__NEVER) continue;
            if (!w->number[k])
                meet(w, k);
            else if (w->number[k] != MF__NEVER && w->number[k] < w->low[i])
                w->low[i] = w->number[k];
            continue;
        }
        w->n_path--;
        if (w->n_path && w->low[i] < w->low[w->path[w->n_path - 1]]) w->low[w->path[w->n_path - 1]] = w->low[i];
        if (w->low[i] != w->number[i]) continue;
        uint32_t first = w->n_open;
        while (w->open[--first] != i) {
        }
        close_component(g, base, w, first, enough);
    }
}

/* scratch: five times as many as the rule has states. */
static void count_most(measure *m, uint32_t rule, uint32_t *scratch) {
    uint32_t base = m->base[rule], n = m->base[rule + 1] - base;
    most_walk w = {.number = scratch,
                   .low = scratch + n,
                   .next = scratch + 2 * (size_t)n,
                   .path = scratch + 3 * (size_t)n,
                   .open = scratch + 4 * (size_t)n};
    uint64_t min = (uint64_t)m->g->rules[rule].min; /* more than that need not be told apart */
    memset(w.number, 0, n * sizeof *w.number);
    for (uint32_t i = 0; i < n; i++)
        if (!w.number[i]) walk_from(m->g, base, &w, i, min < MF__NEVER ? min : MF__NEVER);
}

/* Counts on the way to the end, least and most; as many as the rule needs are any number. */
static void count_rule(measure *m, uint32_t rule, uint32_t *scratch) {
    mf__grammar *g = m->g;
    uint32_t base = m->base[rule], end = m->base[rule + 1];
    for (uint32_t i = base; i < end; i++) {
        g->states[i].least = g->states[i].accept ? 0 : MF__NEVER;
        g->states[i].most = 0;
    }
    for (bool changed = true; changed;) { /* only along ways that reach the end */
        changed = false;
        for (uint32_t i = end; i-- > base;) {
            mf__state *s = &g->states[i];
            for (uint32_t e = 0; e < (uint32_t)s->n_edges + s->n_calls; e++) {
                const mf__state *to =
                    &g->states[e < s->n_edges ? g->edges[s->edges + e].to : g->calls[s->calls + e - s->n_edges].to];
                uint32_t d = add_up(to->least, to->mark == MF__MARK_COUNT);
                if (d < s->least) s->least = d, changed = true;
            }
        }
    }
    count_most(m, rule, scratch);
}

static void prune(mf__grammar *g) {
    for (uint32_t i = 0; i < g->n_states; i++) {
        mf__state *s = &g->states[i];
        uint16_t n = 0;
        for (uint32_t e = 0; e < s->n_edges; e++) {
            mf__byte_edge edge = g->edges[s->edges + e];
            if (g->states[edge.to].distance != MF__NEVER) g->edges[s->edges + n++] = edge;
        }
        s->n_edges = n;
        n = 0;
        for (uint32_t e = 0; e < s->n_calls; e++) {
            mf__call_edge call = g->calls[s->calls + e];
            if (g->states[call.to].distance != MF__NEVER && g->rules[call.rule].shortest != MF__NEVER)
                g->calls[s->calls + n++] = call;
        }
        s->n_calls = n;
    }
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static uint32_t follow(const mf__grammar *g, uint32_t from, uint8_t byte) {
    const mf__state *s = &g->states[from];
    for (uint32_t e = 0; e < s->n_edges; e++)
        if (byte >= g->edges[s->edges + e].lo && byte <= g->edges[s->edges + e].hi) return g->edges[s->edges + e].to;
    return MF__NEVER;
}

/* The states of a key: from a comma or an opening quote up to the closing quote. */
static void flood_keys(measure *m, uint32_t rule, uint32_t *todo) {
    mf__grammar *g = m->g;
    uint32_t n = 0;
    for (uint32_t i = m->base[rule]; i < m->base[rule + 1]; i++)
        if (g->states[i].mark == MF__MARK_COMMA || g->states[i].mark == MF__MARK_QUOTE)
            g->states[i].in_key = 1, todo[n++] = i;
    while (n) {
        const mf__state *s = &g->states[todo[--n]];
        for (uint32_t e = 0; e < (uint32_t)s->n_edges + s->n_calls; e++) {
            uint32_t to = e < s->n_edges ? g->edges[s->edges + e].to : g->calls[s->calls + e - s->n_edges].to;
            if (g->states[to].in_key || g->states[to].mark >= MF__MARK_KEY) continue;
            g->states[to].in_key = 1;
            todo[n++] = to;
        }
    }
}

/* The states from which no key can follow any more. */
static void find_closing(measure *m, uint32_t rule) {
    mf__grammar *g = m->g;
    for (uint32_t i = m->base[rule]; i < m->base[rule + 1]; i++) g->states[i].closing = !g->states[i].in_key;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = m->base[rule + 1]; i-- > m->base[rule];) {
            mf__state *s = &g->states[i];
            for (uint32_t e = 0; s->closing && e < (uint32_t)s->n_edges + s->n_calls; e++) {
                uint32_t to = e < s->n_edges ? g->edges[s->edges + e].to : g->calls[s->calls + e - s->n_edges].to;
                if (!g->states[to].closing) s->closing = 0, changed = true;
            }
        }
    }
}

/* Which states of a key can become one that is not declared, and how far that is. */
static void find_others(measure *m, uint32_t rule) {
    mf__grammar *g = m->g;
    const mf__keys *k = g->rules[rule].keys;
    for (uint32_t i = m->base[rule]; i < m->base[rule + 1]; i++) g->states[i].most = MF__NEVER;
    for (bool changed = k->others; changed;) {
        changed = false;
        for (uint32_t i = m->base[rule + 1]; i-- > m->base[rule];) {
            mf__state *s = &g->states[i];
            for (uint32_t e = 0; s->in_key && e < (uint32_t)s->n_edges + s->n_calls; e++) {
                bool byte = e < s->n_edges;
                const mf__state *to =
                    &g->states[byte ? g->edges[s->edges + e].to : g->calls[s->calls + e - s->n_edges].to];
                uint32_t d = to->mark >= MF__MARK_KEY + k->n_declared ? add_up(to->distance, 1)
                             : to->in_key                             ? add_up(to->most, byte)
                                                                      : MF__NEVER;
                if (d < s->most) s->most = d, changed = true;
            }
        }
    }
    for (uint32_t i = m->base[rule]; i < m->base[rule + 1]; i++) {
        g->states[i].others = g->states[i].in_key && g->states[i].most != MF__NEVER;
        g->states[i].least = 0;
    }
}

/* Declared names lead each along one way from the opening quote. Twice: counts, then fills. */
static void walk_names(measure *m, uint32_t rule, uint32_t quote, bool fill) {
    mf__grammar *g = m->g;
    const mf__keys *k = g->rules[rule].keys;
    for (uint32_t label = 0; label < k->n_declared; label++) {
        const char *name = k->names[label];
        uint32_t at = quote, depth = 1, size = (uint32_t)strlen(name);
        while (depth < size && at != MF__NEVER) at = follow(g, at, (uint8_t)name[depth]), depth++;
        if (at == MF__NEVER || g->states[at].mark != MF__MARK_KEY + label) continue; /* it cannot be there */
        at = quote;
        for (depth = 1; depth < size; at = follow(g, at, (uint8_t)name[depth]), depth++) {
            mf__state *s = &g->states[at];
            s->least = depth;
            if (fill) g->reach[s->reach + s->n_reach] = label;
            s->n_reach++;
        }
    }
}

static mf_status find_reach(measure *m, uint32_t rule, mf_error *err) {
    mf__grammar *g = m->g;
    uint32_t quote = MF__NEVER, total = 0;
    for (uint32_t i = m->base[rule]; i < m->base[rule + 1]; i++)
        if (g->states[i].mark == MF__MARK_QUOTE && g->states[i].in_key) quote = i;
    if (quote == MF__NEVER) return MF_OK; /* no keys at all */
    walk_names(m, rule, quote, false);
    for (uint32_t i = m->base[rule]; i < m->base[rule + 1]; i++) {
        g->states[i].reach = g->n_reach + total;
        total += g->states[i].n_reach;
        g->states[i].n_reach = 0;
    }
    if (total > MAX_REACH - g->n_reach)
        return mf__fail(err, MF_E_LIMIT, "the names of all properties together are too long");
    uint32_t *more = realloc(g->reach, ((size_t)g->n_reach + total + 1) * sizeof *more);
    if (!more) return mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
    g->reach = more;
    walk_names(m, rule, quote, true);
    g->n_reach += total;
    for (uint32_t i = m->base[rule]; i < m->base[rule + 1]; i++) { /* before the quote: all of them */
        mf__state *s = &g->states[i];
        if (s->in_key && s->n_reach == 0 && follow(g, i, '"') == quote)
            s->reach = g->states[quote].reach, s->n_reach = g->states[quote].n_reach;
        if (s->in_key && s->mark == MF__MARK_COMMA)
            s->reach = g->states[quote].reach, s->n_reach = g->states[quote].n_reach;
    }
    return MF_OK;
}

/* ---- open states ------------------------------------------------------------------------------------------------- */

/* Do the bytes lo..hi all lead to states that have the level? */
static bool all_lead(const mf__grammar *g, const mf__state *s, int lo, int hi, const uint8_t *level, uint8_t want) {
    int at = lo;
    for (uint32_t e = 0; e < s->n_edges && at <= hi; e++) {
        const mf__byte_edge *edge = &g->edges[s->edges + e];
        if (edge->hi < at) continue;
        if (edge->lo > at || !(level[edge->to] & want)) return false;
        at = edge->hi + 1;
    }
    return at > hi;
}

/* Levels: 1 a character may begin; 2, 4, 8: one, two, three any continuation bytes follow; 16, 32: after E0, ED; 64,
 * 128: after F0, F4. */
static uint8_t level_of(const mf__grammar *g, const mf__state *s, const uint8_t *level) {
    uint8_t was = level[s - g->states], is = 0;
    if ((was & 1) && all_lead(g, s, 0x20, '"' - 1, level, 1) && all_lead(g, s, '"' + 1, '\\' - 1, level, 1) &&
        all_lead(g, s, '\\' + 1, 0x7F, level, 1) && all_lead(g, s, 0xC2, 0xDF, level, 2) &&
        all_lead(g, s, 0xE0, 0xE0, level, 16) && all_lead(g, s, 0xE1, 0xEC, level, 4) &&
        all_lead(g, s, 0xED, 0xED, level, 32) && all_lead(g, s, 0xEE, 0xEF, level, 4) &&
        all_lead(g, s, 0xF0, 0xF0, level, 64) && all_lead(g, s, 0xF1, 0xF3, level, 8) &&
        all_lead(g, s, 0xF4, 0xF4, level, 128))
        is |= 1;
    if ((was & 2) && all_lead(g, s, 0x80, 0xBF, level, 1)) is |= 2;
    if ((was & 4) && all_lead(g, s, 0x80, 0xBF, level, 2)) is |= 4;
    if ((was & 8) && all_lead(g, s, 0x80, 0xBF, level, 4)) is |= 8;
    if ((was & 16) && all_lead(g, s, 0xA0, 0xBF, level, 2)) is |= 16;
    if ((was & 32) && all_lead(g, s, 0x80, 0x9F, level, 2)) is |= 32;
    if ((was & 64) && all_lead(g, s, 0x90, 0xBF, level, 4)) is |= 64;
    if ((was & 128) && all_lead(g, s, 0x80, 0x8F, level, 4)) is |= 128;
    return is;
}

static mf_status find_open(measure *m, mf_error *err) {
    mf__grammar *g = m->g;
    uint8_t *level = malloc((size_t)g->n_states + 1);
    if (!level) return mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
    for (uint32_t i = 0; i < g->n_states; i++) { /* most states are not, which shows at once */
        const mf__state *s = &g->states[i];
        bool start = follow(g, i, 'a') != MF__NEVER && follow(g, i, 0xE1) != MF__NEVER;
        level[i] = start ? 1 : follow(g, i, 0x8F) != MF__NEVER || follow(g, i, 0xA0) != MF__NEVER ? 0xFE : 0;
        (void)s;
    }
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < g->n_states; i++) {
            if (!level[i]) continue;
            uint8_t is = level_of(g, &g->states[i], level);
            if (is != level[i]) level[i] = is, changed = true;
        }
    }
    for (uint32_t i = 0; i < g->n_states; i++) g->states[i].open = level[i] & 1;
    free(level);
    return MF_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

/* Texts that may be empty can be counted any number of times at one place of the text. */
static mf_status check_empty(const measure *m, mf_error *err) {
    const mf__grammar *g = m->g;
    for (uint32_t i = 0; i < g->n_states; i++) {
        const mf__state *s = &g->states[i];
        const mf__rule *r = &g->rules[s->rule];
        for (uint32_t e = 0; r->kind == MF__RULE_COUNTED && e < s->n_calls; e++) {
            const mf__call_edge *c = &g->calls[s->calls + e];
            bool counts = g->states[c->to].mark == MF__MARK_COUNT, empty = g->rules[c->rule].shortest == 0;
            if (counts && empty && (r->min > MAX_EMPTY || r->max > MAX_EMPTY))
                return mf__fail(err, MF_E_LIMIT, "what may be empty is repeated more than %d times", MAX_EMPTY);
        }
    }
    return MF_OK;
}

static mf_status measure_all(measure *m, uint32_t *scratch, mf_error *err) {
    mf__grammar *g = m->g;
    for (uint32_t i = 0; i < g->n_states; i++) g->states[i].distance = MF__NEVER;
    for (uint32_t r = 0; r < g->n_rules; r++) g->rules[r].shortest = MF__NEVER;
    for (uint32_t r = 0; r < g->n_rules; r++) {
        if (g->rules[r].kind == MF__RULE_COUNTED) count_rule(m, r, scratch);
        if (g->rules[r].kind == MF__RULE_OBJECT) find_labels(m, r, scratch);
    }
    MF__TRY(find_callers(m, err));
    shorten_all(m, scratch);
    if (g->rules[g->root].shortest == MF__NEVER && m->too_long)
        return mf__fail(err, MF_E_LIMIT, "every text that satisfies the schema or grammar is longer than %d bytes",
                        MAX_TEXT);
    if (g->rules[g->root].shortest == MF__NEVER)
        return mf__fail(err, MF_E_INVALID, "no text satisfies the schema or grammar");
    prune(g);
    MF__TRY(check_empty(m, err));
    for (uint32_t r = 0; r < g->n_rules; r++) {
        if (g->rules[r].kind == MF__RULE_COUNTED) count_rule(m, r, scratch); /* what is pruned counts no more */
        if (g->rules[r].kind != MF__RULE_OBJECT || g->rules[r].shortest == MF__NEVER) continue;
        flood_keys(m, r, scratch);
        find_closing(m, r);
        find_others(m, r);
        MF__TRY(find_reach(m, r, err));
    }
    return find_open(m, err);
}

mf_status mf__grammar_measure(mf__grammar *g, mf_error *err) {
    measure m = {.g = g, .base = malloc(((size_t)g->n_rules + 1) * sizeof *m.base)};
    size_t n_scratch = (size_t)g->n_states * 5; /* five times the states of any rule, or the keys of an object */
    for (uint32_t r = 0; r < g->n_rules; r++)
        if (g->rules[r].keys && g->rules[r].keys->n_labels > n_scratch) n_scratch = g->rules[r].keys->n_labels;
    uint32_t *scratch = malloc((n_scratch + 1) * sizeof *scratch);
    mf_status status = MF_OK;
    if (m.base && scratch) {
        uint32_t at = 0;
        for (uint32_t r = 0; r < g->n_rules; r++) {
            m.base[r] = at;
            while (at < g->n_states && g->states[at].rule == r) at++;
        }
        m.base[g->n_rules] = at;
        status = measure_all(&m, scratch, err);
    } else {
        status = mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
    }
    free(m.base);
    free(m.first_caller);
    free(m.callers);
    free(m.dirty);
    free(scratch);
    return status;
}
