/* JSON Schema: goals to rules, listed values, the common rules. See schema.h. */
#include "text/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GOALS 30000
#define MAX_INDENT 40
#define MAX_COMPARED 50000000ull
#define MAX_COUNT 9e15 /* larger ones are the same: nobody writes so much */

/* ---- keywords ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *key;
    uint32_t type;
} keywords[] = {
    {"properties", TYPE_OBJECT},
    {"required", TYPE_OBJECT},
    {"additionalProperties", TYPE_OBJECT},
    {"patternProperties", TYPE_OBJECT},
    {"propertyNames", TYPE_OBJECT},
    {"minProperties", TYPE_OBJECT},
    {"maxProperties", TYPE_OBJECT},
    {"unevaluatedProperties", TYPE_OBJECT},
    {"items", TYPE_ARRAY},
    {"prefixItems", TYPE_ARRAY},
    {"additionalItems", TYPE_ARRAY},
    {"minItems", TYPE_ARRAY},
    {"maxItems", TYPE_ARRAY},
    {"uniqueItems", TYPE_ARRAY},
    {"contains", TYPE_ARRAY},
    {"unevaluatedItems", TYPE_ARRAY},
    {"pattern", TYPE_STRING},
    {"minLength", TYPE_STRING},
    {"maxLength", TYPE_STRING},
    {"format", TYPE_STRING},
    {"minimum", TYPE_INTEGER | TYPE_FRACTION},
    {"maximum", TYPE_INTEGER | TYPE_FRACTION},
    {"exclusiveMinimum", TYPE_INTEGER | TYPE_FRACTION},
    {"exclusiveMaximum", TYPE_INTEGER | TYPE_FRACTION},
    {"multipleOf", TYPE_INTEGER | TYPE_FRACTION},
};

uint32_t mf__schema_keyword_type(const char *key) {
    for (size_t i = 0; i < MF__COUNT(keywords); i++)
        if (strcmp(keywords[i].key, key) == 0) return keywords[i].type;
    return 0;
}

static mf_status type_named(mf__schemas *c, const json_t *schema, const char *name, uint32_t *mask) {
    static const struct {
        const char *name;
        uint32_t mask;
    } types[] = {{"string", TYPE_STRING},   {"integer", TYPE_INTEGER}, {"number", TYPE_INTEGER | TYPE_FRACTION},
                 {"boolean", TYPE_BOOLEAN}, {"null", TYPE_NULL},       {"object", TYPE_OBJECT},
                 {"array", TYPE_ARRAY},     {"any", TYPE_ALL}};
    char what[80];
    for (size_t i = 0; name && i < MF__COUNT(types); i++)
        if (strcmp(types[i].name, name) == 0) return *mask |= types[i].mask, MF_OK;
    if (!name) return mf__schema_fail(c, MF_E_FORMAT, schema, "type", "is not a name or a list of names");
    snprintf(what, sizeof what, "\"%.40s\" does not exist", name);
    return mf__schema_fail(c, MF_E_FORMAT, schema, "type", what);
}

mf_status mf__schema_type_mask(mf__schemas *c, const json_t *schema, uint32_t *mask) {
    const json_t *type = json_object_get(schema, "type");
    *mask = type ? 0 : TYPE_ALL;
    if (!type) return MF_OK;
    if (!json_is_array(type)) return type_named(c, schema, json_string_value(type), mask);
    for (size_t i = 0; i < json_array_size(type); i++)
        MF__TRY(type_named(c, schema, json_string_value(json_array_get(type, i)), mask));
    return MF_OK;
}

mf_status mf__schema_count(mf__schemas *c, const json_t *schema, const char *key, int64_t missing, int64_t *out) {
    const json_t *v = json_object_get(schema, key);
    *out = missing;
    if (!v) return MF_OK;
    double d = json_number_value(v);
    if (!json_is_number(v) || !(d >= 0) || floor(d) != d)
        return mf__schema_fail(c, MF_E_FORMAT, schema, key, "is not a count");
    *out = d >= MAX_COUNT ? (int64_t)MAX_COUNT : json_is_integer(v) ? json_integer_value(v) : (int64_t)d;
    return MF_OK;
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* Writes the way from `at` to `node` as a JSON pointer; false: it is not below. */
static bool find_place(const json_t *at, const json_t *node, char *out, size_t size, int depth) {
    const char *key;
    json_t *value;
    size_t used = strlen(out);
    if (at == node) return true;
    if (depth > 100) return false;
    for (size_t i = 0; i < json_array_size(at); i++) {
        snprintf(out + used, size - used, "/%zu", i);
        if (find_place(json_array_get(at, i), node, out, size, depth + 1)) return true;
    }
    json_object_foreach((json_t *)at, key, value) {
        if (!json_is_object(value) && !json_is_array(value) && value != node) continue;
        snprintf(out + used, size - used, "/%.60s", key);
        if (find_place(value, node, out, size, depth + 1)) return true;
    }
    out[used] = 0;
    return false;
}

static void place_of(const mf__schemas *c, const json_t *node, char out[256]) {
    strcpy(out, "#");
    if (!find_place(c->root, node, out, 256, 0)) strcpy(out, "#");
}

mf_status mf__schema_fail(mf__schemas *c, mf_status status, const json_t *node, const char *key, const char *what) {
    char place[256], inner[160] = "";
    if (c->probing) return status;
    place_of(c, node, place);
    if (key && strcmp(what, "cannot be used") == 0 && c->err) { /* a pattern: its own error says why */
        snprintf(inner, sizeof inner, ": %.150s", c->err->text);
        return mf__fail(c->err, status, "JSON Schema: %s: \"%s\" %s%s", place, key, what, inner);
    }
    if (!key) return mf__fail(c->err, status, "JSON Schema: %s %s", place, what);
    return mf__fail(c->err, status, "JSON Schema: %s: \"%s\" %s", place, key, what);
}

mf_status mf__schema_note(mf__schemas *c, const json_t *node, const char *key, const char *what) {
    char place[256];
    if (c->notes.size > 4000) return MF_OK; /* enough to see what is wrong */
    place_of(c, node, place);
    return mf__strbuf_printf(&c->notes, c->err, "%s: \"%s\" %s\n", place, key, what);
}

mf_status mf__schema_pay(mf__schemas *c, const json_t *value, uint64_t a, uint64_t b) {
    c->compared += a && b > MAX_COMPARED / a ? MAX_COMPARED + 1 : a * b;
    if (c->compared <= MAX_COMPARED) return MF_OK;
    return value ? mf__schema_fail(c, MF_E_LIMIT, value, NULL, "has too many values to compare") : MF_E_LIMIT;
}

/* ---- common rules ------------------------------------------------------------------------------------------------ */

mf_status mf__schema_regex(mf__schemas *c, const char *pattern, uint32_t from, uint32_t to) {
    mf__lang lang;
    MF__TRY(mf__lang_regex(pattern, strlen(pattern), (mf__lang_options){0}, &lang, c->err));
    mf_status status = mf__lang_fill(c->n, &lang, NFA_PLAIN, false, from, to);
    mf__lang_free(&lang);
    return status;
}

static mf_status regex_rule(mf__schemas *c, const char *pattern, uint32_t *rule) {
    MF__TRY(mf__nfa_rule(c->n, rule));
    nfa_rule r = c->n->rules[*rule];
    return mf__schema_regex(c, pattern, r.start, r.end);
}

/* Nothing, a space, or a new line with an indentation. */
mf_status mf__schema_space(mf__schemas *c, uint32_t *at) {
    uint32_t next, line;
    MF__TRY(mf__nfa_state(c->n, &next));
    MF__TRY(mf__nfa_state(c->n, &line));
    MF__TRY(mf__nfa_empty(c->n, *at, next));
    MF__TRY(mf__nfa_bytes(c->n, *at, ' ', ' ', next));
    MF__TRY(mf__nfa_bytes(c->n, *at, '\n', '\n', line));
    MF__TRY(mf__nfa_call(c->n, line, c->indent, next));
    *at = next;
    return MF_OK;
}

/* Brackets around members with commas in between. */
static mf_status common_list(mf__schemas *c, const char *open, const char *close, bool keys, uint32_t rule) {
    mf__nfa *n = c->n;
    uint32_t at = n->rules[rule].start, to = n->rules[rule].end, member, end;
    MF__TRY(mf__nfa_then_text(n, &at, open, 1));
    MF__TRY(mf__schema_space(c, &at));
    MF__TRY(mf__nfa_state(n, &end));
    MF__TRY(mf__nfa_text(n, end, close, 1, to));
    MF__TRY(mf__nfa_empty(n, at, end));
    MF__TRY(mf__nfa_state(n, &member));
    MF__TRY(mf__nfa_empty(n, at, member));
    at = member;
    if (keys) {
        MF__TRY(mf__nfa_then_call(n, &at, c->string));
        MF__TRY(mf__nfa_then_text(n, &at, ":", 1));
        MF__TRY(mf__schema_space(c, &at));
    }
    MF__TRY(mf__nfa_then_call(n, &at, c->value));
    uint32_t more = at;
    MF__TRY(mf__nfa_then_text(n, &more, ",", 1));
    MF__TRY(mf__schema_space(c, &more));
    MF__TRY(mf__nfa_empty(n, more, member));
    MF__TRY(mf__schema_space(c, &at));
    return mf__nfa_empty(n, at, end);
}

static mf_status free_string(mf__schemas *c, uint32_t from, uint32_t to) {
    mf__lang any;
    uint32_t at = from, end;
    MF__TRY(mf__nfa_then_text(c->n, &at, "\"", 1));
    MF__TRY(mf__nfa_state(c->n, &end));
    MF__TRY(mf__lang_any(&any, c->err));
    mf_status status = mf__lang_fill(c->n, &any, NFA_JSON_ESCAPES, false, at, end);
    mf__lang_free(&any);
    MF__TRY(status);
    return mf__nfa_text(c->n, end, "\"", 1, to);
}

static mf_status make_common(mf__schemas *c) {
    mf__nfa *n = c->n;
    char indent[32];
    static const char *const words[] = {"true", "false", "null"};
    snprintf(indent, sizeof indent, "[ \\t]{0,%d}", MAX_INDENT);
    MF__TRY(regex_rule(c, indent, &c->indent));
    MF__TRY(regex_rule(c, "-?(0|[1-9][0-9]{0,17})", &c->integer));
    MF__TRY(regex_rule(c, "-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", &c->number));
    MF__TRY(mf__nfa_rule(n, &c->string));
    MF__TRY(free_string(c, n->rules[c->string].start, n->rules[c->string].end));
    MF__TRY(mf__nfa_rule(n, &c->never));
    MF__TRY(mf__nfa_rule(n, &c->value));
    MF__TRY(mf__nfa_rule(n, &c->object));
    MF__TRY(mf__nfa_rule(n, &c->array));
    MF__TRY(common_list(c, "{", "}", true, c->object));
    MF__TRY(common_list(c, "[", "]", false, c->array));
    nfa_rule r = n->rules[c->value];
    for (size_t i = 0; i < MF__COUNT(words); i++) MF__TRY(mf__nfa_text(n, r.start, words[i], strlen(words[i]), r.end));
    const uint32_t rules[] = {c->string, c->number, c->object, c->array};
    for (size_t i = 0; i < MF__COUNT(rules); i++) MF__TRY(mf__nfa_call(n, r.start, rules[i], r.end));
    return MF_OK;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static mf_status string_literal(mf__schemas *c, const json_t *value, uint32_t from, uint32_t to) {
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    if (!text) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    mf_status status = mf__nfa_text(c->n, from, text, strlen(text), to);
    free(text);
    return status;
}

static mf_status number_literal(mf__schemas *c, const json_t *value, uint32_t from, uint32_t to) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)), shorter[40];
    if (!text) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    double d = json_number_value(value);
    if (json_is_real(value)) /* the shortest that reads as the same */
        for (int precision = 1; precision <= 17; precision++) {
            snprintf(shorter, sizeof shorter, "%.*g", precision, d);
            if (strtod(shorter, NULL) == d) break;
        }
    else
        snprintf(shorter, sizeof shorter, "%s", text);
    mf_status status = mf__nfa_text(c->n, from, shorter, strlen(shorter), to);
    bool whole = !strpbrk(shorter, ".en");
    if (status == MF_OK && json_is_real(value) && whole) { /* 1.0 and 1 */
        strcat(shorter, ".0");
        status = mf__nfa_text(c->n, from, shorter, strlen(shorter), to);
    }
    free(text);
    return status;
}

mf_status mf__schema_literal(mf__schemas *c, const json_t *value, uint32_t from, uint32_t to) {
    mf__nfa *n = c->n;
    const char *key;
    json_t *member;
    bool object = json_is_object(value);
    if (json_is_number(value)) return number_literal(c, value, from, to);
    if (!object && !json_is_array(value)) return string_literal(c, value, from, to);
    uint32_t at = from;
    size_t i = 0, size = object ? json_object_size(value) : json_array_size(value);
    MF__TRY(mf__nfa_then_text(n, &at, object ? "{" : "[", 1));
    MF__TRY(mf__schema_space(c, &at));
    void *iter = object ? json_object_iter((json_t *)value) : NULL;
    for (; i < size; i++) {
        uint32_t next;
        member = object ? json_object_iter_value(iter) : json_array_get(value, i);
        if (i) MF__TRY(mf__nfa_then_text(n, &at, ",", 1));
        if (i) MF__TRY(mf__schema_space(c, &at));
        if (object) {
            key = json_object_iter_key(iter);
            json_t *name = json_string(key);
            MF__TRY(mf__nfa_state(n, &next));
            mf_status status = name ? string_literal(c, name, at, next) : mf__fail(c->err, MF_E_NOMEM, "no memory");
            json_decref(name);
            MF__TRY(status);
            at = next;
            MF__TRY(mf__nfa_then_text(n, &at, ":", 1));
            MF__TRY(mf__schema_space(c, &at));
            iter = json_object_iter_next((json_t *)value, iter);
        }
        MF__TRY(mf__nfa_state(n, &next));
        MF__TRY(mf__schema_literal(c, member, at, next));
        at = next;
    }
    if (size) MF__TRY(mf__schema_space(c, &at));
    return mf__nfa_text(n, at, object ? "}" : "]", 1, to);
}

static mf_status fill_values(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to) {
    MF__TRY(mf__schema_pay(c, j->values, json_array_size(j->values), json_array_size(j->excluded)));
    for (size_t i = 0; i < json_array_size(j->values); i++) {
        const json_t *v = json_array_get(j->values, i);
        bool fine = (mf__json_types(v) & j->types) != 0;
        for (size_t k = 0; k < json_array_size(j->excluded) && fine; k++)
            fine = !mf__json_same(v, json_array_get(j->excluded, k));
        for (uint32_t k = 0; k < j->n_facts && fine; k++) MF__TRY(mf__fact_accepts(c, &j->facts[k], v, &fine));
        if (fine) MF__TRY(mf__schema_literal(c, v, from, to));
    }
    return MF_OK;
}

static mf_status fill_words(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to) {
    static const struct {
        const char *text;
        uint32_t type;
        json_type kind;
    } words[] = {
        {"null", TYPE_NULL, JSON_NULL}, {"true", TYPE_BOOLEAN, JSON_TRUE}, {"false", TYPE_BOOLEAN, JSON_FALSE}};
    for (size_t i = 0; i < MF__COUNT(words); i++) {
        bool fine = (j->types & words[i].type) != 0;
        for (size_t k = 0; k < json_array_size(j->excluded) && fine; k++)
            fine = json_typeof(json_array_get(j->excluded, k)) != words[i].kind;
        if (fine) MF__TRY(mf__nfa_text(c->n, from, words[i].text, strlen(words[i].text), to));
    }
    return MF_OK;
}

/* Values that are excluded as wholes can be told from others only where they are simple. */
static mf_status check_excluded(mf__schemas *c, const conjunction *j) {
    for (size_t k = 0; k < json_array_size(j->excluded); k++) {
        const json_t *v = json_array_get(j->excluded, k);
        if ((json_is_object(v) || json_is_array(v)) && (mf__json_types(v) & j->types))
            return mf__schema_fail(c, MF_E_UNSUPPORTED, c->root, "not",
                                   "of an object or array as a constant is not supported");
    }
    return MF_OK;
}

static mf_status fill_conjunction(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to) {
    if (j->values) return fill_values(c, j, from, to);
    if (j->types == TYPE_ALL && j->n_facts == 0 && !j->excluded) return mf__nfa_call(c->n, from, c->value, to);
    MF__TRY(check_excluded(c, j));
    MF__TRY(fill_words(c, j, from, to));
    if (j->types & (TYPE_INTEGER | TYPE_FRACTION)) MF__TRY(mf__schema_number(c, j, from, to));
    if (j->types & TYPE_STRING) MF__TRY(mf__schema_string(c, j, from, to));
    if (j->types & TYPE_ARRAY) MF__TRY(mf__schema_array(c, j, from, to));
    return j->types & TYPE_OBJECT ? mf__schema_object(c, j, from, to) : MF_OK;
}

/* ---- goals ------------------------------------------------------------------------------------------------------- */

void mf__goal_free(goal *g) {
    free(g->items);
    *g = (goal){0};
}

static int compare_literals(const literal *a, const literal *b) {
    if (a->node != b->node) return (uintptr_t)a->node < (uintptr_t)b->node ? -1 : 1;
    return (int)a->negated - (int)b->negated;
}

/* Keeps a goal in order of appearance (properties come in that order); what is there already is not added. */
mf_status mf__goal_add(mf__schemas *c, goal *g, literal l) {
    if (json_is_true(l.node) && !l.negated) return MF_OK;
    if (json_is_object(l.node) && json_object_size(l.node) == 0 && !l.negated) return MF_OK;
    for (uint32_t i = 0; i < g->n; i++)
        if (compare_literals(&g->items[i], &l) == 0) return MF_OK;
    if (g->n == g->capacity) {
        uint32_t n = g->capacity ? g->capacity * 2 : 4;
        literal *more = realloc(g->items, n * sizeof *more);
        if (!more) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
        g->items = more;
        g->capacity = n;
    }
    g->items[g->n++] = l;
    return MF_OK;
}

static uint64_t goal_hash(const goal *g) {
    uint64_t h = g->n;
    for (uint32_t i = 0; i < g->n; i++)
        h = (h ^ ((uint64_t)(uintptr_t)g->items[i].node >> 3) * 2 ^ g->items[i].negated) * 0xD6E8FEB86659FD93u,
        h ^= h >> 31;
    return h;
}

static bool same_goal(const goal *a, const goal *b) {
    if (a->n != b->n) return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (compare_literals(&a->items[i], &b->items[i]) != 0) return false;
    return true;
}

static mf_status grow_goals(mf__schemas *c) {
    if (c->n_goals >= MAX_GOALS)
        return mf__fail(c->err, MF_E_LIMIT, "JSON Schema: more than %d parts together", MAX_GOALS);
    if (c->n_goals == c->goals_capacity) {
        uint32_t n = c->goals_capacity ? c->goals_capacity * 2 : 64;
        goal_rule *more = realloc(c->goals, n * sizeof *more);
        if (!more) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
        c->goals = more;
        c->goals_capacity = n;
    }
    if (c->n_goals * 2 < c->goal_mask) return MF_OK;
    uint32_t mask = c->goal_mask ? c->goal_mask * 2 + 1 : 255;
    uint32_t *slots = calloc((size_t)mask + 1, sizeof *slots);
    if (!slots) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    free(c->goal_slots);
    c->goal_slots = slots;
    c->goal_mask = mask;
    for (uint32_t i = 0; i < c->n_goals; i++) {
        uint32_t at = (uint32_t)(c->goals[i].hash >> 16) & mask;
        while (slots[at]) at = (at + 1) & mask;
        slots[at] = i + 1;
    }
    return MF_OK;
}

mf_status mf__goal_rule(mf__schemas *c, goal *g, uint32_t *rule) {
    mf_status status = MF_OK;
    if (g->n == 0) return *rule = c->value, MF_OK;
    uint64_t hash = goal_hash(g);
    status = grow_goals(c);
    for (uint32_t at = (uint32_t)(hash >> 16) & c->goal_mask; status == MF_OK; at = (at + 1) & c->goal_mask) {
        if (!c->goal_slots[at]) {
            status = mf__nfa_rule(c->n, rule);
            if (status != MF_OK) break;
            c->goals[c->n_goals] = (goal_rule){*g, *rule, hash};
            c->goal_slots[at] = ++c->n_goals;
            *g = (goal){0};
            return MF_OK;
        }
        const goal_rule *known = &c->goals[c->goal_slots[at] - 1];
        if (known->hash == hash && same_goal(&known->g, g)) {
            *rule = known->rule;
            break;
        }
    }
    mf__goal_free(g);
    return status;
}

static mf_status make_goal(mf__schemas *c, uint32_t index) {
    conjunctions list;
    goal_rule g = c->goals[index];
    nfa_rule r = c->n->rules[g.rule];
    c->n_scopes = 0;
    MF__TRY(mf__goal_expand(c, &g.g, &list));
    mf_status status = MF_OK;
    for (uint32_t i = 0; status == MF_OK && i < list.n; i++)
        status = fill_conjunction(c, &list.items[i], r.start, r.end);
    mf__conjunctions_free(&list);
    return status;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

mf_status mf__schemas_create(mf__nfa *n, const mf__schema_options *o, mf__schemas **out, mf_error *err) {
    mf__schemas *c = *out = calloc(1, sizeof *c);
    if (!c) return mf__fail(err, MF_E_NOMEM, "no memory for a schema");
    c->n = n;
    c->options = *o;
    c->err = err;
    c->strings = json_object();
    mf_status status = c->strings ? make_common(c) : mf__fail(err, MF_E_NOMEM, "no memory for a schema");
    if (status != MF_OK) mf__schemas_free(c), *out = NULL;
    return status;
}

static void forget_goals(mf__schemas *c) {
    for (uint32_t i = 0; i < c->n_goals; i++) mf__goal_free(&c->goals[i].g);
    c->n_goals = c->n_done = 0;
    if (c->goal_slots) memset(c->goal_slots, 0, ((size_t)c->goal_mask + 1) * sizeof *c->goal_slots);
}

void mf__schemas_free(mf__schemas *c) {
    if (!c) return;
    forget_goals(c);
    for (uint32_t i = 0; i < c->n_resources; i++) free(c->resources[i].uri);
    free(c->resources);
    free(c->anchors);
    free(c->scopes);
    free(c->goals);
    free(c->goal_slots);
    for (size_t i = 0; i < MF__COUNT(c->patterns); i++) mf__pattern_set_free(&c->patterns[i]);
    mf__strbuf_free(&c->notes);
    json_decref(c->strings);
    free(c);
}

static bool is_legacy(const json_t *schema) {
    const char *dialect = json_string_value(json_object_get(schema, "$schema"));
    return dialect && strstr(dialect, "json-schema.org/draft-0") != NULL;
}

mf_status mf__schemas_rule(mf__schemas *c, const json_t *schema, uint32_t *rule) {
    goal g = {0};
    forget_goals(c); /* those of another schema */
    c->root = schema;
    c->legacy = is_legacy(schema);
    MF__TRY(mf__schema_resources(c, schema));
    MF__TRY(mf__goal_add(c, &g, (literal){schema, 0, false}));
    MF__TRY(mf__goal_rule(c, &g, rule));
    for (; c->n_done < c->n_goals; c->n_done++) MF__TRY(make_goal(c, c->n_done));
    return MF_OK;
}

mf_status mf__schemas_finish(mf__schemas *c, mf__grammar **out) {
    MF__TRY(mf__nfa_finish(c->n, out));
    (*out)->notes = c->notes.data;
    c->notes = (mf__strbuf){0};
    return MF_OK;
}

static mf_status build(const json_t *schema, const mf__schema_options *o, mf__grammar **out, mf_error *err) {
    mf__nfa n;
    mf__schemas *c = NULL;
    *out = NULL;
    mf__nfa_init(&n, err);
    mf_status status = mf__schemas_create(&n, o, &c, err);
    if (status == MF_OK && schema) {
        status = mf__schemas_rule(c, schema, &n.root);
    } else if (status == MF_OK) { /* any JSON: an object or an array */
        status = mf__nfa_rule(&n, &n.root);
        nfa_rule r = n.rules[n.root];
        if (status == MF_OK) status = mf__nfa_call(&n, r.start, c->object, r.end);
        if (status == MF_OK) status = mf__nfa_call(&n, r.start, c->array, r.end);
    }
    if (status == MF_OK) status = mf__schemas_finish(c, out);
    mf__schemas_free(c);
    mf__nfa_deinit(&n);
    return status;
}

mf_status mf__grammar_from_schema(const json_t *schema, mf__grammar **out, mf_error *err) {
    if (!schema) return *out = NULL, mf__fail(err, MF_E_INVALID, "no JSON Schema given");
    return build(schema, &(mf__schema_options){0}, out, err);
}

mf_status mf__grammar_from_schema_strict(const json_t *schema, mf__grammar **out, mf_error *err) {
    if (!schema) return *out = NULL, mf__fail(err, MF_E_INVALID, "no JSON Schema given");
    return build(schema, &(mf__schema_options){.strict = true}, out, err);
}

mf_status mf__grammar_any_json(mf__grammar **out, mf_error *err) {
    return build(NULL, &(mf__schema_options){0}, out, err);
}
