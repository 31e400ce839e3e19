/* JSON Schema: objects.
 *
 * Members come in any order, declared ones once each (mf__keys), and others if the schema allows them. What a key's
 * value must be is found by the automaton that reads the key: declared names are branches of a tree, everything else
 * goes through the product of the patterns (patternProperties, propertyNames), whose labels say which of them match.
 * Each schema object that is part of a conjunction has its own say: its additionalProperties are about the keys that
 * its own properties and patterns do not name. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_PROPERTIES 20000
#define MAX_PATTERNS 14 /* two bits of a label each, and one for the names that are allowed */

typedef struct pattern {
    const fact *group;
    const json_t *schema;
} pattern;

typedef struct object_ctx {
    mf__schemas *c;
    const conjunction *j;
    json_t *index; /* name --> its number */
    const char **names;
    uint32_t n, capacity;
    bool *required;
    pattern patterns[MAX_PATTERNS];
    int n_patterns;
    mf__lang keys; /* labels: bit 0 the name is allowed; 1 + 2k pattern k matches; 2 + 2k ... for some engines */
    int64_t min, max;
    const json_t *where;
    mf__keys *order;
    uint32_t labels[256]; /* labels of keys that are not declared: what matches them */
    uint32_t n_others;
    /* the automaton */
    uint32_t *off;  /* per state of keys: away from all declared names */
    bool *off_done; /* ... and what follows is made */
    uint32_t *wide; /* per state of keys: see wide_state */
    uint32_t *label_state;
    uint32_t *sorted; /* names in the order of their bytes */
} object_ctx;

static mf_status no_memory(object_ctx *o) {
    return mf__fail(o->c->err, MF_E_NOMEM, "no memory for a schema");
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static mf_status declare(object_ctx *o, const char *name, bool required) {
    const json_t *known = json_object_get(o->index, name);
    uint32_t i = known ? (uint32_t)json_integer_value(known) : o->n;
    if (!known) {
        if (o->n == MAX_PROPERTIES) return mf__schema_fail(o->c, MF_E_LIMIT, o->where, "properties", "are too many");
        if (o->n == o->capacity) {
            uint32_t capacity = o->capacity ? o->capacity * 2 : 16;
            const char **names = realloc(o->names, capacity * sizeof *names);
            if (names) o->names = names;
            bool *flags = realloc(o->required, capacity * sizeof *flags);
            if (flags) o->required = flags;
            if (!names || !flags) return no_memory(o);
            o->capacity = capacity;
        }
        if (json_object_set_new(o->index, name, json_integer(o->n)) != 0) return no_memory(o);
        o->names[o->n] = name;
        o->required[o->n++] = false;
    }
    o->required[i] = o->required[i] || required;
    return MF_OK;
}

static mf_status declare_required(object_ctx *o, const fact *f) {
    const json_t *required = json_object_get(f->of.node, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *name = json_string_value(json_array_get(required, i));
        if (!name) return mf__schema_fail(o->c, MF_E_FORMAT, f->of.node, "required", "is not a list of names");
        MF__TRY(declare(o, name, true));
    }
    return MF_OK;
}

static mf_status apply_counts(object_ctx *o, const fact *f) {
    int64_t least, most;
    bool group = f->kind == FACT_GROUP;
    MF__TRY(mf__schema_count(o->c, f->of.node, "minProperties", 0, &least));
    MF__TRY(mf__schema_count(o->c, f->of.node, "maxProperties", -1, &most));
    if (group) {
        if (least > o->min) o->min = least;
        if (most >= 0 && (o->max < 0 || most < o->max)) o->max = most;
    } else if (strcmp(f->key, "minProperties") == 0) {
        if (least == 0) o->min = 1, o->max = 0;
        if (o->max < 0 || least - 1 < o->max) o->max = least - 1;
    } else if (strcmp(f->key, "maxProperties") == 0) {
        if (most + 1 > o->min) o->min = most + 1;
    }
    return MF_OK;
}

static mf_status read_facts(object_ctx *o) {
    const char *name;
    json_t *schema;
    for (int pass = 0; pass < 2; pass++) /* properties first, so that they keep their order */
        for (uint32_t i = 0; i < o->j->n_facts; i++) {
            const fact *f = &o->j->facts[i];
            if (f->kind == FACT_GROUP && pass == 0) {
                o->where = f->of.node;
                json_object_foreach(json_object_get(f->of.node, "properties"), name, schema)
                    MF__TRY(declare(o, name, false));
                json_object_foreach(json_object_get(f->of.node, "patternProperties"), name, schema) {
                    if (o->n_patterns == MAX_PATTERNS)
                        return mf__schema_fail(o->c, MF_E_LIMIT, f->of.node, "patternProperties", "are too many");
                    o->patterns[o->n_patterns++] = (pattern){f, schema};
                }
            }
            if (pass == 0) continue;
            if (f->kind == FACT_GROUP) MF__TRY(declare_required(o, f));
            if (f->kind == FACT_GROUP || f->kind == FACT_NOT) MF__TRY(apply_counts(o, f));
            if (f->kind == FACT_REQUIRE) MF__TRY(declare(o, f->key, true));
            if (f->kind == FACT_ABSENT || f->kind == FACT_PROPERTY) MF__TRY(declare(o, f->key, false));
        }
    return MF_OK;
}

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

/* Those of the listed values of a conjunction that are valid names. */
static mf_status listed_names(object_ctx *o, const conjunction *j, mf__lang *out) {
    size_t n = 0;
    mf__text_span *texts = malloc((json_array_size(j->values) + 1) * sizeof *texts);
    mf_status status = texts ? MF_OK : no_memory(o);
    for (size_t k = 0; status == MF_OK && k < json_array_size(j->values); k++) {
        const json_t *v = json_array_get(j->values, k);
        bool fine = json_is_string(v);
        for (uint32_t m = 0; status == MF_OK && fine && m < j->n_facts; m++)
            status = mf__fact_accepts(o->c, &j->facts[m], v, &fine);
        if (fine) texts[n++] = (mf__text_span){json_string_value(v), json_string_length(v)};
    }
    if (status == MF_OK) status = mf__lang_texts(texts, n, out, o->c->err);
    free(texts);
    return status;
}

/* The strings that a goal allows. */
static mf_status names_lang(object_ctx *o, const goal *g, mf__lang *out) {
    conjunctions list;
    MF__TRY(mf__goal_expand(o->c, g, &list));
    mf_status status = mf__lang_texts(NULL, 0, out, o->c->err);
    for (uint32_t i = 0; status == MF_OK && i < list.n; i++) {
        const conjunction *j = &list.items[i];
        mf__lang one = {0};
        int64_t min, max;
        if (!(j->types & TYPE_STRING)) continue;
        status = j->values ? listed_names(o, j, &one) : mf__schema_string_lang(o->c, j, true, &one, &min, &max);
        if (status == MF_OK && !one.n_states) status = mf__lang_any(&one, o->c->err);
        if (status == MF_OK) status = mf__lang_restrict(out, &one, MF__LANG_OR, o->c->err);
        mf__lang_free(&one);
    }
    mf__conjunctions_free(&list);
    return status;
}

static mf_status pair_with(object_ctx *o, const mf__lang *more, int shift) {
    mf__lang both;
    MF__TRY(mf__lang_combine(&o->keys, more, MF__LANG_PAIR, shift, &both, o->c->err));
    mf__lang_free(&o->keys);
    o->keys = both;
    return mf__lang_minimise(&o->keys, o->c->err);
}

static const char *pattern_text(const object_ctx *o, int k) {
    const char *text;
    json_t *schema;
    json_object_foreach(json_object_get(o->patterns[k].group->of.node, "patternProperties"), text,
                        schema) if (schema == o->patterns[k].schema) return text;
    return "";
}

static mf_status make_keys(object_ctx *o) {
    goal g = {0};
    mf_status status = MF_OK;
    for (uint32_t i = 0; status == MF_OK && i < o->j->n_facts; i++) {
        const fact *f = &o->j->facts[i];
        const json_t *names = f->kind == FACT_GROUP ? json_object_get(f->of.node, "propertyNames") : NULL;
        if (names) status = mf__goal_add(o->c, &g, mf__literal_child(o->c, f->of, names));
    }
    if (status == MF_OK) status = g.n ? names_lang(o, &g, &o->keys) : mf__lang_any(&o->keys, o->c->err);
    mf__goal_free(&g);
    for (int k = 0; status == MF_OK && k < 2 * o->n_patterns; k++) {
        const char *text = pattern_text(o, k / 2);
        mf__lang one;
        status = mf__lang_regex(text, strlen(text), (mf__lang_options){.search = true, .wide = k % 2}, &one, o->c->err);
        if (status != MF_OK)
            return mf__schema_fail(o->c, status, o->patterns[k / 2].group->of.node, "patternProperties",
                                   "cannot be used");
        status = pair_with(o, &one, 1 + k);
        mf__lang_free(&one);
    }
    return status;
}

/* ---- what values must be ----------------------------------------------------------------------------------------- */

/* Does the group say something about the key, but for unevaluatedProperties? name: NULL for keys not declared. */
static bool says(const object_ctx *o, const fact *f, const char *name, uint32_t label) {
    if (name && json_object_get(json_object_get(f->of.node, "properties"), name)) return true;
    for (int k = 0; k < o->n_patterns; k++)
        if (o->patterns[k].group == f && (label >> (1 + 2 * k) & 1)) return true;
    return json_object_get(f->of.node, "additionalProperties") != NULL;
}

static bool is_evaluated(const object_ctx *o, const fact *f, const char *name, uint32_t label) {
    for (uint32_t k = 0; k < o->j->n_facts; k++) {
        const fact *g = &o->j->facts[k];
        if (g->kind != FACT_GROUP || !mf__scope_below(o->c, g->scope, f->scope)) continue;
        if (says(o, g, name, label) || (g != f && json_object_get(g->of.node, "unevaluatedProperties"))) return true;
    }
    return false;
}

static mf_status group_goal(object_ctx *o, const fact *f, const char *name, uint32_t label, goal *g) {
    const json_t *s = f->of.node, *more = json_object_get(s, "additionalProperties");
    const json_t *declared = name ? json_object_get(json_object_get(s, "properties"), name) : NULL;
    const json_t *left = json_object_get(s, "unevaluatedProperties");
    bool sure = declared != NULL; /* all engines agree that something names it */
    if (declared) MF__TRY(mf__goal_add(o->c, g, mf__literal_child(o->c, f->of, declared)));
    for (int k = 0; k < o->n_patterns; k++) {
        if (o->patterns[k].group != f || !(label >> (2 + 2 * k) & 1)) continue;
        MF__TRY(mf__goal_add(o->c, g, mf__literal_child(o->c, f->of, o->patterns[k].schema)));
        sure = sure || (label >> (1 + 2 * k) & 1);
    }
    if (!sure && more) MF__TRY(mf__goal_add(o->c, g, mf__literal_child(o->c, f->of, more)));
    if (left && !is_evaluated(o, f, name, label)) MF__TRY(mf__goal_add(o->c, g, mf__literal_child(o->c, f->of, left)));
    return MF_OK;
}

static mf_status key_goal(object_ctx *o, const char *name, uint32_t label, goal *g) {
    *g = (goal){0};
    for (uint32_t i = 0; i < o->j->n_facts; i++) {
        const fact *f = &o->j->facts[i];
        if (f->kind == FACT_GROUP) MF__TRY(group_goal(o, f, name, label, g));
        if (!name || !f->key || strcmp(f->key, name) != 0) continue;
        if (f->kind == FACT_PROPERTY) MF__TRY(mf__goal_add(o->c, g, f->of));
        if (f->kind == FACT_ABSENT) MF__TRY(mf__goal_add(o->c, g, (literal){json_false(), 0, false}));
    }
    return MF_OK;
}

static bool goal_is_false(const goal *g) {
    for (uint32_t i = 0; i < g->n; i++)
        if (json_is_boolean(g->items[i].node) && json_is_true(g->items[i].node) == g->items[i].negated) return true;
    return false;
}

/* The rule of the values of a key; MF__NEVER: it cannot be there. */
static mf_status value_rule(object_ctx *o, const char *name, uint32_t label, uint32_t *rule) {
    goal g;
    mf_status status = key_goal(o, name, label, &g);
    if (status == MF_OK && (goal_is_false(&g) || !(label & 1))) return mf__goal_free(&g), *rule = MF__NEVER, MF_OK;
    if (status != MF_OK) return mf__goal_free(&g), status;
    return mf__goal_rule(o->c, &g, rule);
}

/* ---- the order of keys ------------------------------------------------------------------------------------------- */

/* A name as it is written: with quotes and escapes, one way only. */
static char *written(const char *name) {
    static const char plain[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\", hex[] = "0123456789abcdef";
    char *out = malloc(strlen(name) * 6 + 3), *p = out;
    if (!out) return NULL;
    *p++ = '"';
    for (; *name; name++) {
        const char *e = strchr(plain, *name);
        uint8_t b = (uint8_t)*name;
        if (e) {
            *p++ = '\\';
            *p++ = letters[e - plain];
        } else if (b < 0x20) {
            memcpy(p, "\\u00", 4);
            p[4] = hex[b >> 4];
            p[5] = hex[b & 15];
            p += 6;
        } else {
            *p++ = *name;
        }
    }
    *p++ = '"';
    *p = 0;
    return out;
}

/* Which labels keys that are not declared can have. */
static mf_status find_others(object_ctx *o) {
    for (uint32_t s = 1; s < o->keys.n_states; s++) {
        uint32_t label = o->keys.label[s], rule;
        bool known = false;
        for (uint32_t i = 0; i < o->n_others && !known; i++) known = o->labels[i] == label;
        if (known || !(label & 1)) continue;
        MF__TRY(value_rule(o, NULL, label, &rule));
        if (rule == MF__NEVER) continue;
        if (o->n_others == MF__COUNT(o->labels))
            return mf__schema_fail(o->c, MF_E_LIMIT, o->where, "patternProperties", "overlap in too many ways");
        o->labels[o->n_others++] = label;
    }
    return MF_OK;
}

static mf_status make_order(object_ctx *o) {
    MF__TRY(find_others(o));
    MF__TRY(mf__keys_create(o->n, o->n + o->n_others, &o->order, o->c->err));
    mf__keys *k = o->order;
    k->others = o->n_others > 0;
    k->min = o->min;
    k->max = o->max;
    for (uint32_t i = o->n; i-- > 0;)
        if (o->required[i]) k->required[i / 64] |= (uint64_t)1 << i % 64, k->n_required++, k->first_required = i;
    for (uint32_t i = 0; i < o->n; i++) {
        uint32_t label = mf__lang_label(&o->keys, o->names[i], strlen(o->names[i]));
        MF__TRY(value_rule(o, o->names[i], label, &k->value[i]));
        if (k->value[i] == MF__NEVER) k->value[i] = o->c->never;
        if (!(k->names[i] = written(o->names[i]))) return no_memory(o);
    }
    for (uint32_t i = 0; i < o->n_others; i++) MF__TRY(value_rule(o, NULL, o->labels[i], &k->value[o->n + i]));
    /* Keys that are free could repeat, and a repeated key counts once. */
    if (k->others && o->min > (int64_t)o->n + 1)
        return mf__schema_fail(o->c, MF_E_UNSUPPORTED, o->where, "minProperties",
                               "with more than one undeclared property is not supported");
    return MF_OK;
}

/* ---- the automaton ----------------------------------------------------------------------------------------------- */

static uint32_t other_label(const object_ctx *o, uint32_t key_state) {
    for (uint32_t i = 0; i < o->n_others; i++)
        if (o->labels[i] == o->keys.label[key_state]) return o->n + i;
    return MF__NEVER;
}

static mf_status off_state(object_ctx *o, uint32_t key_state, uint32_t *out) {
    if (o->off[key_state] == MF__NEVER) MF__TRY(mf__nfa_state(o->c->n, &o->off[key_state]));
    *out = o->off[key_state];
    return MF_OK;
}

static bool is_plain(uint32_t c) {
    return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

typedef struct leaving {
    object_ctx *o;
    uint32_t at;
    const mf__uset *by;
} leaving;

static mf_status leave_to(void *user, uint32_t to, mf__uset *set) {
    const leaving *l = user;
    uint32_t next;
    MF__TRY(mf__uset_intersect(set, l->by, l->o->c->err));
    if (!set->n) return MF_OK;
    MF__TRY(off_state(l->o, to, &next));
    return mf__nfa_chars(l->o->c->n, l->at, set, NFA_JSON, next);
}

/* Characters of a set lead away from declared names, to where the patterns are then. */
static mf_status leave_by(object_ctx *o, uint32_t at, uint32_t key_state, const mf__uset *by) {
    return mf__lang_targets(&o->keys, key_state, leave_to, &(leaving){o, at, by}, o->c->err);
}

static mf_status all_but(object_ctx *o, const mf__uset *except, mf__uset *out) {
    mf_status status = mf__uset_add(out, 0, 0, o->c->err);
    if (status == MF_OK) status = mf__uset_union(out, except, o->c->err);
    return status == MF_OK ? mf__uset_invert(out, o->c->err) : status;
}

/* The state that all characters but plain ASCII lead away from: one for all names, so that they share what is behind.
 */
static mf_status wide_state(object_ctx *o, uint32_t key_state, uint32_t *out) {
    if (o->wide[key_state] == MF__NEVER) {
        mf__uset ascii = {0}, others = {0};
        mf_status status = mf__nfa_state(o->c->n, &o->wide[key_state]);
        for (uint32_t c = 0x20; status == MF_OK && c < 0x80; c++)
            if (is_plain(c)) status = mf__uset_add(&ascii, c, c, o->c->err);
        if (status == MF_OK) status = all_but(o, &ascii, &others);
        if (status == MF_OK) status = leave_by(o, o->wide[key_state], key_state, &others);
        mf__uset_free(&ascii);
        mf__uset_free(&others);
        MF__TRY(status);
    }
    *out = o->wide[key_state];
    return MF_OK;
}

/* All characters but those in `except` lead away from declared names. */
static mf_status leave_names(object_ctx *o, uint32_t at, uint32_t key_state, const mf__uset *except) {
    uint32_t wide, next;
    for (int i = 0; i < except->n; i++)
        if (!is_plain(except->ranges[i].first) || !is_plain(except->ranges[i].last)) {
            mf__uset set = {0};
            mf_status status = all_but(o, except, &set);
            if (status == MF_OK) status = leave_by(o, at, key_state, &set);
            mf__uset_free(&set);
            return status;
        }
    MF__TRY(wide_state(o, key_state, &wide));
    MF__TRY(mf__nfa_empty(o->c->n, at, wide));
    for (uint32_t lo = 0x20, hi; lo < 0x80; lo = hi + 1) {
        uint32_t to = mf__lang_next(&o->keys, key_state, lo);
        hi = lo;
        if (!is_plain(lo) || mf__uset_has(except, lo) || !to) continue;
        while (hi + 1 < 0x80 && is_plain(hi + 1) && !mf__uset_has(except, hi + 1) &&
               mf__lang_next(&o->keys, key_state, hi + 1) == to)
            hi++;
        MF__TRY(off_state(o, to, &next));
        MF__TRY(mf__nfa_bytes(o->c->n, at, (uint8_t)lo, (uint8_t)hi, next));
    }
    return MF_OK;
}

/* One character of a name; *at goes on behind it. */
static mf_status add_character(object_ctx *o, uint32_t *at, uint32_t c) {
    mf__uset one = {0};
    uint32_t next;
    mf_status status = mf__nfa_state(o->c->n, &next);
    if (status == MF_OK) status = mf__uset_add(&one, c, c, o->c->err);
    if (status == MF_OK) status = mf__nfa_chars(o->c->n, *at, &one, NFA_JSON, next);
    mf__uset_free(&one);
    *at = next;
    return status;
}

/* What may follow instead of a character of a declared name: `taken` are those. ends: a declared name ends here. */
static mf_status add_leaving(object_ctx *o, uint32_t at, uint32_t key_state, const mf__uset *taken, bool ends) {
    uint32_t label = ends ? MF__NEVER : other_label(o, key_state);
    if (o->n_others) MF__TRY(leave_names(o, at, key_state, taken));
    return label == MF__NEVER ? MF_OK : mf__nfa_bytes(o->c->n, at, '"', '"', o->label_state[label]);
}

/* From `at`, where sorted names lo .. hi share their first `depth` bytes. Goes on along the last branch, so that it
 * calls itself only where names part. */
static mf_status add_names(object_ctx *o, uint32_t at, uint32_t lo, uint32_t hi, size_t depth, uint32_t key_state) {
    for (bool more = true; more;) {
        mf__uset taken = {0};
        bool ends = false;
        mf_status status = MF_OK;
        uint32_t from = at, here = key_state;
        more = false;
        for (uint32_t i = lo, end, last = hi; status == MF_OK && i < last; i = end) {
            const char *name = o->names[o->sorted[i]] + depth;
            uint32_t c, next = from;
            end = i + 1;
            if (!*name) {
                ends = true;
                status = mf__nfa_bytes(o->c->n, from, '"', '"', o->label_state[o->sorted[i]]);
                continue;
            }
            size_t size = (size_t)mf__utf8_decode(name, &c);
            while (end < last && strncmp(o->names[o->sorted[end]] + depth, name, size) == 0) end++;
            status = mf__uset_add(&taken, c, c, o->c->err);
            if (status == MF_OK) status = add_character(o, &next, c);
            uint32_t to = mf__lang_next(&o->keys, here, c);
            if (status == MF_OK && end < last) status = add_names(o, next, i, end, depth + size, to);
            if (end < last) continue;
            lo = i, at = next, key_state = to, depth += size, more = true;
        }
        if (status == MF_OK) status = add_leaving(o, from, here, &taken, ends);
        mf__uset_free(&taken);
        MF__TRY(status);
    }
    return MF_OK;
}

static mf_status add_off_states(object_ctx *o) {
    static const mf__uset none = {0};
    for (bool more = true; more;) { /* each may lead to ones not made before */
        more = false;
        for (uint32_t s = 1; s < o->keys.n_states; s++) {
            if (o->off[s] == MF__NEVER || o->off_done[s]) continue;
            o->off_done[s] = more = true;
            MF__TRY(leave_names(o, o->off[s], s, &none));
            if (other_label(o, s) != MF__NEVER)
                MF__TRY(mf__nfa_bytes(o->c->n, o->off[s], '"', '"', o->label_state[other_label(o, s)]));
        }
    }
    return MF_OK;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static mf_status sort_names(object_ctx *o) {
    const char **names = malloc(((size_t)o->n + 1) * sizeof *names);
    o->sorted = malloc(((size_t)o->n + 1) * sizeof *o->sorted);
    if (!names || !o->sorted) return free(names), no_memory(o);
    if (o->n) memcpy(names, o->names, o->n * sizeof *names);
    qsort(names, o->n, sizeof *names, compare_names);
    for (uint32_t i = 0; i < o->n; i++)
        o->sorted[i] = (uint32_t)json_integer_value(json_object_get(o->index, names[i]));
    free(names);
    return MF_OK;
}

/* ": value" behind each key; then a comma and the next key, or the end. */
static mf_status add_members(object_ctx *o, uint32_t quote, uint32_t to) {
    mf__nfa *n = o->c->n;
    uint32_t end, comma[3], close;
    MF__TRY(mf__nfa_state(n, &end));
    for (uint32_t i = 0; i < o->order->n_labels; i++) {
        uint32_t at = o->label_state[i];
        n->states[at].mark = MF__MARK_KEY + i;
        MF__TRY(mf__nfa_then_text(n, &at, ":", 1));
        MF__TRY(mf__schema_space(o->c, &at));
        MF__TRY(mf__nfa_call(n, at, o->order->value[i], end));
    }
    for (int i = 0; i < 3; i++) {
        MF__TRY(mf__nfa_state(n, &comma[i]));
        n->states[comma[i]].mark = MF__MARK_COMMA;
    }
    MF__TRY(mf__nfa_bytes(n, end, ',', ',', comma[0]));
    MF__TRY(mf__nfa_bytes(n, comma[0], ' ', ' ', comma[1]));
    MF__TRY(mf__nfa_bytes(n, comma[0], '\n', '\n', comma[2]));
    MF__TRY(mf__nfa_call(n, comma[2], o->c->indent, comma[1]));
    MF__TRY(mf__nfa_bytes(n, comma[0], '"', '"', quote));
    MF__TRY(mf__nfa_bytes(n, comma[1], '"', '"', quote));
    close = end;
    MF__TRY(mf__schema_space(o->c, &close));
    return mf__nfa_bytes(n, close, '}', '}', to);
}

static mf_status add_automaton(object_ctx *o, uint32_t from, uint32_t to) {
    mf__nfa *n = o->c->n;
    uint32_t at = from, quote;
    o->off = malloc(((size_t)o->keys.n_states + 1) * sizeof *o->off);
    o->label_state = malloc(((size_t)o->order->n_labels + 1) * sizeof *o->label_state);
    o->off_done = calloc((size_t)o->keys.n_states + 1, sizeof *o->off_done);
    o->wide = malloc(((size_t)o->keys.n_states + 1) * sizeof *o->wide);
    if (!o->off || !o->off_done || !o->wide || !o->label_state) return no_memory(o);
    for (uint32_t i = 0; i < o->keys.n_states; i++) o->off[i] = o->wide[i] = MF__NEVER;
    for (uint32_t i = 0; i < o->order->n_labels; i++) MF__TRY(mf__nfa_state(n, &o->label_state[i]));
    MF__TRY(sort_names(o));
    MF__TRY(mf__nfa_then_text(n, &at, "{", 1));
    MF__TRY(mf__schema_space(o->c, &at));
    MF__TRY(mf__nfa_bytes(n, at, '}', '}', to));
    MF__TRY(mf__nfa_state(n, &quote));
    n->states[quote].mark = MF__MARK_QUOTE;
    MF__TRY(mf__nfa_bytes(n, at, '"', '"', quote));
    MF__TRY(add_names(o, quote, 0, o->n, 0, o->keys.start));
    MF__TRY(add_off_states(o));
    return add_members(o, quote, to);
}

static mf_status make_object(object_ctx *o, uint32_t from, uint32_t to) {
    uint32_t rule;
    MF__TRY(read_facts(o));
    if (o->max >= 0 && o->min > o->max) return MF_OK;
    MF__TRY(make_keys(o));
    MF__TRY(make_order(o));
    MF__TRY(mf__nfa_rule(o->c->n, &rule));
    o->c->n->rules[rule].kind = MF__RULE_OBJECT;
    o->c->n->rules[rule].keys = o->order;
    nfa_rule r = o->c->n->rules[rule];
    MF__TRY(add_automaton(o, r.start, r.end));
    return mf__nfa_call(o->c->n, from, rule, to);
}

mf_status mf__schema_object(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to) {
    object_ctx o = {.c = c, .j = j, .index = json_object(), .max = -1, .where = c->root};
    mf_status status = o.index ? MF_OK : no_memory(&o);
    bool owned = false;
    if (status == MF_OK) {
        uint32_t rules = c->n->n_rules;
        status = make_object(&o, from, to);
        for (uint32_t i = rules; i < c->n->n_rules; i++) owned = owned || c->n->rules[i].keys == o.order;
    }
    if (!owned) mf__keys_free(o.order);
    json_decref(o.index);
    free(o.names);
    free(o.required);
    free(o.off);
    free(o.off_done);
    free(o.wide);
    free(o.label_state);
    free(o.sorted);
    mf__lang_free(&o.keys);
    return status;
}
