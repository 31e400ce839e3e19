/* JSON Schema: arrays. The first items may have schemas of their own; behind them comes a loop, which counts. What must
 * be contained is kept in the states: how many of it there have been. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_PREFIX 2000
#define MAX_CONTAINS 3
#define MAX_MARKS 64 /* states of what has been contained */
#define MAX_UNIQUE 7

typedef struct wanted {
    literal what;
    int64_t min, max; /* max < 0: no limit */
} wanted;

typedef struct array_ctx {
    mf__schemas *c;
    const conjunction *j;
    int64_t min, max;
    size_t prefix;
    wanted contains[MAX_CONTAINS];
    int n_contains;
    uint32_t n_marks;
    bool unique;
    const json_t *where; /* a schema object, for errors */
} array_ctx;

/* ---- what is asked ----------------------------------------------------------------------------------------------- */

static void group_items(const json_t *s, const json_t **prefix, const json_t **rest) {
    *prefix = json_object_get(s, "prefixItems");
    *rest = json_object_get(s, "items");
    if (!*prefix && json_is_array(*rest)) {
        *prefix = *rest;
        *rest = json_object_get(s, "additionalItems");
    }
}

static mf_status add_contains(array_ctx *a, literal what, int64_t min, int64_t max) {
    if (min == 0 && max < 0) return MF_OK;
    if (a->n_contains == MAX_CONTAINS)
        return mf__schema_fail(a->c, MF_E_LIMIT, a->where, "contains", "is there too often");
    a->contains[a->n_contains++] = (wanted){what, min, max};
    return MF_OK;
}

static mf_status apply_counts(array_ctx *a, const fact *f) {
    int64_t least, most;
    bool group = f->kind == FACT_GROUP;
    if (group || strcmp(f->key, "minItems") == 0) {
        MF__TRY(mf__schema_count(a->c, f->of.node, "minItems", 0, &least));
        if (group && least > a->min) a->min = least;
        if (!group && (a->max < 0 || least - 1 < a->max)) a->max = least - 1;
        if (!group && least == 0) a->min = 1, a->max = 0;
    }
    if (group || strcmp(f->key, "maxItems") == 0) {
        MF__TRY(mf__schema_count(a->c, f->of.node, "maxItems", -1, &most));
        if (group && most >= 0 && (a->max < 0 || most < a->max)) a->max = most;
        if (!group && most + 1 > a->min) a->min = most + 1;
    }
    return MF_OK;
}

static mf_status read_facts(array_ctx *a) {
    for (uint32_t i = 0; i < a->j->n_facts; i++) {
        const fact *f = &a->j->facts[i];
        const json_t *s = f->of.node, *prefix, *rest, *contains = json_object_get(s, "contains");
        if (f->kind == FACT_CONTAINS) MF__TRY(add_contains(a, f->of, 1, -1));
        if (f->kind == FACT_NOT) MF__TRY(apply_counts(a, f));
        if (f->kind != FACT_GROUP) continue;
        a->where = s;
        MF__TRY(apply_counts(a, f));
        group_items(s, &prefix, &rest);
        if (json_array_size(prefix) > a->prefix) a->prefix = json_array_size(prefix);
        if (json_is_true(json_object_get(s, "uniqueItems"))) a->unique = true;
        if (contains) {
            int64_t min, max;
            MF__TRY(mf__schema_count(a->c, s, "minContains", 1, &min));
            MF__TRY(mf__schema_count(a->c, s, "maxContains", -1, &max));
            MF__TRY(add_contains(a, mf__literal_child(a->c, f->of, contains), min, max));
        }
    }
    return MF_OK;
}

/* Has another keyword, at or below the place of fact f, something to say about item i? */
static bool is_evaluated(const array_ctx *a, const fact *f, size_t i) {
    for (uint32_t k = 0; k < a->j->n_facts; k++) {
        const fact *o = &a->j->facts[k];
        const json_t *prefix, *rest;
        if (o->kind != FACT_GROUP || !mf__scope_below(a->c, o->scope, f->scope)) continue;
        group_items(o->of.node, &prefix, &rest);
        if (rest || i < json_array_size(prefix) || (o != f && json_object_get(o->of.node, "unevaluatedItems")))
            return true;
    }
    return false;
}

/* What item i must be; with: also these of contains, and without the others where their number is limited. */
static mf_status item_goal(array_ctx *a, size_t i, uint32_t with, goal *g) {
    *g = (goal){0};
    for (uint32_t k = 0; k < a->j->n_facts; k++) {
        const fact *f = &a->j->facts[k];
        const json_t *prefix, *rest, *left = json_object_get(f->of.node, "unevaluatedItems");
        if (f->kind == FACT_ITEMS) MF__TRY(mf__goal_add(a->c, g, f->of));
        if (f->kind != FACT_GROUP) continue;
        group_items(f->of.node, &prefix, &rest);
        const json_t *item = i < json_array_size(prefix) ? json_array_get(prefix, i) : rest;
        if (item) MF__TRY(mf__goal_add(a->c, g, mf__literal_child(a->c, f->of, item)));
        if (left && !json_is_true(left) && a->n_contains)
            return mf__schema_fail(a->c, MF_E_UNSUPPORTED, f->of.node, "unevaluatedItems",
                                   "beside \"contains\" is not supported");
        if (left && !is_evaluated(a, f, i)) MF__TRY(mf__goal_add(a->c, g, mf__literal_child(a->c, f->of, left)));
    }
    for (int k = 0; k < a->n_contains; k++) {
        literal l = a->contains[k].what;
        if (!(with >> k & 1)) {
            if (a->contains[k].max < 0) continue;
            l.negated = !l.negated;
        }
        MF__TRY(mf__goal_add(a->c, g, l));
    }
    return MF_OK;
}

static bool goal_is_false(const goal *g) {
    for (uint32_t i = 0; i < g->n; i++)
        if (json_is_boolean(g->items[i].node) && json_is_true(g->items[i].node) == g->items[i].negated) return true;
    return false;
}

/* The rule of item i; MF__NEVER: there can be none. */
static mf_status item_rule(array_ctx *a, size_t i, uint32_t with, uint32_t *rule) {
    goal g;
    mf_status status = item_goal(a, i, with, &g);
    if (status == MF_OK && goal_is_false(&g)) return mf__goal_free(&g), *rule = MF__NEVER, MF_OK;
    if (status != MF_OK) return mf__goal_free(&g), status;
    return mf__goal_rule(a->c, &g, rule);
}

/* ---- what has been contained ------------------------------------------------------------------------------------- */

static uint32_t levels(const wanted *w) {
    return (uint32_t)(w->max >= 0 ? w->max : w->min) + 1;
}

static mf_status count_marks(array_ctx *a) {
    uint64_t n = 1;
    for (int k = 0; k < a->n_contains; k++) {
        if (a->contains[k].max >= 0 && a->contains[k].max < a->contains[k].min) n = 0;
        if (a->contains[k].min > MAX_MARKS || a->contains[k].max > MAX_MARKS) n = MAX_MARKS + 1;
        if (n <= MAX_MARKS) n *= levels(&a->contains[k]);
    }
    if (n > MAX_MARKS) return mf__schema_fail(a->c, MF_E_LIMIT, a->where, "contains", "has too large counts");
    a->n_marks = (uint32_t)n;
    return MF_OK;
}

/* From mark `from` by an item that is in the sets of `with`; MF__NEVER: too many. */
static uint32_t next_mark(const array_ctx *a, uint32_t from, uint32_t with) {
    uint32_t to = 0, factor = 1;
    for (int k = 0; k < a->n_contains; k++) {
        uint32_t n = levels(&a->contains[k]), level = from / factor % n;
        if (with >> k & 1) {
            if (level + 1 == n && a->contains[k].max >= 0) return MF__NEVER;
            if (level + 1 < n) level++;
        }
        to += level * factor;
        factor *= n;
    }
    return to;
}

static bool mark_is_final(const array_ctx *a, uint32_t mark) {
    uint32_t factor = 1;
    for (int k = 0; k < a->n_contains; k++) {
        uint32_t n = levels(&a->contains[k]);
        if ((int64_t)(mark / factor % n) < a->contains[k].min) return false;
        factor *= n;
    }
    return true;
}

/* ---- the automaton ----------------------------------------------------------------------------------------------- */

static mf_status add_items(array_ctx *a, size_t i, uint32_t with, const uint32_t *before, const uint32_t *behind) {
    uint32_t rule;
    MF__TRY(item_rule(a, i, with, &rule));
    for (uint32_t mark = 0; rule != MF__NEVER && mark < a->n_marks; mark++) {
        uint32_t to = next_mark(a, mark, with);
        if (to != MF__NEVER) MF__TRY(mf__nfa_call(a->c->n, before[mark], rule, behind[to]));
    }
    return MF_OK;
}

/* Item i between states by mark, and what follows it: a comma and the states `next`, or the end. */
static mf_status add_position(array_ctx *a, size_t i, const uint32_t *before, bool loop, uint32_t close,
                              const uint32_t *next) {
    mf__nfa *n = a->c->n;
    uint32_t behind[MAX_MARKS];
    for (uint32_t mark = 0; mark < a->n_marks; mark++) {
        MF__TRY(mf__nfa_state(n, &behind[mark]));
        if (loop) n->states[behind[mark]].mark = MF__MARK_COUNT;
    }
    for (uint32_t with = 0; with < 1u << a->n_contains; with++) MF__TRY(add_items(a, i, with, before, behind));
    for (uint32_t mark = 0; mark < a->n_marks; mark++) {
        uint32_t at = behind[mark];
        if ((loop || (int64_t)i + 1 >= a->min) && mark_is_final(a, mark)) {
            uint32_t end = at;
            MF__TRY(mf__schema_space(a->c, &end));
            MF__TRY(mf__nfa_empty(n, end, close));
        }
        if (!next) continue;
        MF__TRY(mf__nfa_then_text(n, &at, ",", 1));
        MF__TRY(mf__schema_space(a->c, &at));
        MF__TRY(mf__nfa_empty(n, at, next[mark]));
    }
    return MF_OK;
}

static mf_status new_states(array_ctx *a, uint32_t *states) {
    for (uint32_t mark = 0; mark < a->n_marks; mark++) MF__TRY(mf__nfa_state(a->c->n, &states[mark]));
    return MF_OK;
}

static mf_status fill_items(array_ctx *a, uint32_t start, uint32_t close) {
    uint32_t before[MAX_MARKS], next[MAX_MARKS];
    bool rest = a->max < 0 || a->max > (int64_t)a->prefix;
    size_t prefix = rest ? a->prefix : (size_t)a->max;
    if (a->min == 0 && mark_is_final(a, 0)) MF__TRY(mf__nfa_empty(a->c->n, start, close));
    MF__TRY(new_states(a, before));
    MF__TRY(mf__nfa_empty(a->c->n, start, before[0]));
    for (size_t i = 0; i < prefix; i++) {
        bool more = i + 1 < prefix || rest;
        MF__TRY(new_states(a, next));
        MF__TRY(add_position(a, i, before, false, close, more ? next : NULL));
        memcpy(before, next, sizeof before);
    }
    return rest ? add_position(a, a->prefix, before, true, close, before) : MF_OK;
}

/* ---- items that are all different -------------------------------------------------------------------------------- */

/* The values that an item can be, if they are few; false: they are not. */
static mf_status few_values(array_ctx *a, json_t *values, bool *few) {
    goal g;
    conjunctions list = {0};
    mf_status status = item_goal(a, 0, 0, &g);
    if (status == MF_OK) status = mf__goal_expand(a->c, &g, &list);
    *few = status == MF_OK;
    for (uint32_t i = 0; *few && i < list.n; i++) {
        const conjunction *j = &list.items[i];
        *few = j->values != NULL && !j->excluded && j->n_facts == 0;
        for (size_t k = 0; *few && k < json_array_size(j->values) && json_array_size(values) <= MAX_UNIQUE; k++) {
            json_t *v = json_array_get(j->values, k);
            bool known = !(mf__json_types(v) & j->types);
            for (size_t m = 0; m < json_array_size(values) && !known; m++)
                known = mf__json_same(v, json_array_get(values, m));
            if (!known) json_array_append(values, v);
        }
    }
    *few = *few && json_array_size(values) <= MAX_UNIQUE;
    mf__conjunctions_free(&list);
    mf__goal_free(&g);
    return status;
}

/* A state for each set of values that have been. */
static mf_status fill_unique(array_ctx *a, const json_t *values, uint32_t start, uint32_t close) {
    mf__nfa *n = a->c->n;
    size_t n_values = json_array_size(values);
    uint32_t before[1 << MAX_UNIQUE], behind[1 << MAX_UNIQUE], rules[MAX_UNIQUE];
    for (size_t i = 0; i < n_values; i++) {
        MF__TRY(mf__nfa_rule(n, &rules[i]));
        nfa_rule r = n->rules[rules[i]];
        MF__TRY(mf__schema_literal(a->c, json_array_get(values, i), r.start, r.end));
    }
    for (uint32_t set = 0; set < 1u << n_values; set++) {
        MF__TRY(mf__nfa_state(n, &before[set]));
        MF__TRY(mf__nfa_state(n, &behind[set]));
    }
    MF__TRY(mf__nfa_empty(n, start, before[0]));
    if (a->min == 0) MF__TRY(mf__nfa_empty(n, start, close));
    for (uint32_t set = 0; set < 1u << n_values; set++) {
        int64_t size = 0;
        for (uint32_t bits = set; bits; bits &= bits - 1) size++;
        for (size_t i = 0; i < n_values && (a->max < 0 || size < a->max); i++)
            if (!(set >> i & 1)) MF__TRY(mf__nfa_call(n, before[set], rules[i], behind[set | 1u << i]));
        if (set == 0) continue;
        uint32_t end = behind[set], at = behind[set];
        if (size >= a->min) {
            MF__TRY(mf__schema_space(a->c, &end));
            MF__TRY(mf__nfa_empty(n, end, close));
        }
        MF__TRY(mf__nfa_then_text(n, &at, ",", 1));
        MF__TRY(mf__schema_space(a->c, &at));
        MF__TRY(mf__nfa_empty(n, at, before[set]));
    }
    return MF_OK;
}

static mf_status fill_different(array_ctx *a, uint32_t start, uint32_t close) {
    json_t *values = json_array();
    bool few = false;
    mf_status status = values ? MF_OK : mf__fail(a->c->err, MF_E_NOMEM, "no memory for a schema");
    if (status == MF_OK && a->prefix == 0 && a->n_contains == 0) status = few_values(a, values, &few);
    if (status == MF_OK && few) status = fill_unique(a, values, start, close);
    json_decref(values);
    if (status != MF_OK || few) return status;
    return mf__schema_fail(a->c, MF_E_UNSUPPORTED, a->where, "uniqueItems",
                           "is not supported (but of a few listed values)");
}

mf_status mf__schema_array(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to) {
    array_ctx a = {.c = c, .j = j, .max = -1, .where = c->root};
    uint32_t rule, close;
    MF__TRY(read_facts(&a));
    MF__TRY(count_marks(&a));
    if (a.n_marks == 0 || (a.max >= 0 && a.min > a.max)) return MF_OK;
    if (a.prefix > MAX_PREFIX) return mf__schema_fail(c, MF_E_LIMIT, a.where, "prefixItems", "is too long");
    MF__TRY(mf__nfa_rule(c->n, &rule));
    nfa_rule *r = &c->n->rules[rule];
    r->kind = MF__RULE_COUNTED; /* items behind the prefix */
    r->min = a.min > (int64_t)a.prefix ? a.min - (int64_t)a.prefix : 0;
    r->max = a.max < 0 ? -1 : a.max > (int64_t)a.prefix ? a.max - (int64_t)a.prefix : 0;
    bool different = a.unique && a.max != 0 && a.max != 1;
    if (different) r->kind = MF__RULE_PLAIN;
    uint32_t at = r->start, end = r->end;
    MF__TRY(mf__nfa_then_text(c->n, &at, "[", 1));
    MF__TRY(mf__schema_space(c, &at));
    MF__TRY(mf__nfa_state(c->n, &close));
    MF__TRY(mf__nfa_text(c->n, close, "]", 1, end));
    MF__TRY(different ? fill_different(&a, at, close) : fill_items(&a, at, close));
    return mf__nfa_call(c->n, from, rule, to);
}
