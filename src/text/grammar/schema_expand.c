/* Goals to alternatives: see schema.h. A conjunction takes its literals apart until only facts about single types are
 * left; where a keyword offers a choice, the conjunction is copied for each way to go on. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_WORK 12000       /* alternatives of all goals together */
#define MAX_ALTERNATIVES 600 /* of one goal */
#define MAX_PROBE 48         /* ... of a question whether there are any */
#define MAX_LITERALS 5000    /* schemas that must hold together */
#define MAX_BRANCHES 1000    /* choices of one alternative */

typedef enum branch_kind {
    ANY_OF,
    ONE_OF,
    IF_THEN,
    NEEDS_KEYS,   /* dependentRequired: key --> list */
    NEEDS_SCHEMA, /* dependentSchemas: key --> schema */
    NOT_KEYWORDS, /* one of a schema's keywords does not hold */
    NOT_ALL_OF,
    NOT_ONE_OF,
    NOT_IF,
    NOT_REQUIRED,
    NOT_PROPERTIES
} branch_kind;

typedef struct branch {
    branch_kind kind;
    literal of; /* the schema object */
    const char *key;
    const json_t *value;
    uint32_t scope;
} branch;

static mf_status no_memory(mf__schemas *c) {
    return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
}

static mf_status room(mf__schemas *c, void **array, uint32_t *capacity, uint32_t wanted, size_t item) {
    if (wanted <= *capacity) return MF_OK;
    uint32_t n = *capacity ? *capacity * 2 : 8;
    while (n < wanted) n *= 2;
    void *more = realloc(*array, n * item);
    if (!more) return no_memory(c);
    *array = more;
    *capacity = n;
    return MF_OK;
}

/* ---- conjunctions ------------------------------------------------------------------------------------------------ */

static void conjunction_free(conjunction *j) {
    json_decref(j->values);
    json_decref(j->excluded);
    free(j->facts);
    free(j->pending);
    free(j->pending_scope);
    free(j->branches);
    free(j->seen);
    *j = (conjunction){0};
}

void mf__conjunctions_free(conjunctions *list) {
    for (uint32_t i = 0; i < list->n; i++) conjunction_free(&list->items[i]);
    free(list->items);
    *list = (conjunctions){0};
}

static mf_status copy_array(mf__schemas *c, const void *from, uint32_t n, size_t item, void **out, uint32_t *capacity) {
    *capacity = n;
    *out = NULL;
    if (n == 0) return MF_OK;
    *out = malloc(n * item);
    if (!*out) return *capacity = 0, no_memory(c);
    memcpy(*out, from, n * item);
    return MF_OK;
}

static mf_status conjunction_copy(mf__schemas *c, const conjunction *j, conjunction *out) {
    uint32_t same;
    *out = (conjunction){.types = j->types};
    MF__TRY(copy_array(c, j->facts, j->n_facts, sizeof *j->facts, (void **)&out->facts, &out->facts_capacity));
    out->n_facts = j->n_facts;
    MF__TRY(
        copy_array(c, j->pending, j->n_pending, sizeof *j->pending, (void **)&out->pending, &out->pending_capacity));
    MF__TRY(
        copy_array(c, j->pending_scope, j->n_pending, sizeof *j->pending_scope, (void **)&out->pending_scope, &same));
    out->n_pending = j->n_pending;
    MF__TRY(copy_array(c, j->branches, j->n_branches, sizeof *j->branches, (void **)&out->branches,
                       &out->branches_capacity));
    out->n_branches = j->n_branches;
    MF__TRY(copy_array(c, j->seen, j->n_seen, sizeof *j->seen, (void **)&out->seen, &out->seen_capacity));
    out->n_seen = j->n_seen;
    out->values = json_incref(j->values); /* replaced, never changed */
    out->excluded = json_incref(j->excluded);
    return MF_OK;
}

static mf_status add_pending(mf__schemas *c, conjunction *j, literal l, uint32_t scope) {
    uint32_t capacity = j->pending_capacity;
    MF__TRY(room(c, (void **)&j->pending, &j->pending_capacity, j->n_pending + 1, sizeof *j->pending));
    MF__TRY(room(c, (void **)&j->pending_scope, &capacity, j->n_pending + 1, sizeof *j->pending_scope));
    j->pending[j->n_pending] = l;
    j->pending_scope[j->n_pending++] = scope;
    return MF_OK;
}

static mf_status add_child(mf__schemas *c, conjunction *j, literal parent, const json_t *node, bool negated,
                           uint32_t scope) {
    literal l = mf__literal_child(c, parent, node);
    l.negated = negated;
    return add_pending(c, j, l, scope);
}

static mf_status add_fact(mf__schemas *c, conjunction *j, fact f) {
    MF__TRY(room(c, (void **)&j->facts, &j->facts_capacity, j->n_facts + 1, sizeof *j->facts));
    j->facts[j->n_facts++] = f;
    return MF_OK;
}

static mf_status add_branch(mf__schemas *c, conjunction *j, branch b) {
    if (j->n_branches == MAX_BRANCHES)
        return mf__schema_fail(c, MF_E_LIMIT, b.of.node, b.key, "is one choice of too many");
    MF__TRY(room(c, (void **)&j->branches, &j->branches_capacity, j->n_branches + 1, sizeof *j->branches));
    j->branches[j->n_branches++] = b;
    return MF_OK;
}

static bool is_dead(const conjunction *j) {
    return j->types == 0 || (j->values && json_array_size(j->values) == 0);
}

/* Only the listed values are left. */
static mf_status keep_values(mf__schemas *c, conjunction *j, const json_t *list) {
    MF__TRY(mf__schema_pay(c, list, json_array_size(list), json_array_size(j->values)));
    json_t *kept = json_array();
    if (!kept) return no_memory(c);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *v = json_array_get(list, i);
        bool fine = (mf__json_types(v) & j->types) && !j->values;
        for (size_t k = 0; k < json_array_size(j->values) && !fine; k++)
            fine = mf__json_same(v, json_array_get(j->values, k));
        if (fine) json_array_append(kept, v);
    }
    json_decref(j->values);
    j->values = kept;
    return MF_OK;
}

static mf_status exclude_values(mf__schemas *c, conjunction *j, const json_t *list) {
    json_t *all = j->excluded ? json_copy(j->excluded) : json_array();
    if (!all) return no_memory(c);
    json_array_extend(all, (json_t *)list);
    json_decref(j->excluded);
    j->excluded = all;
    return MF_OK;
}

static mf_status one_value(mf__schemas *c, const json_t *value, json_t **out) {
    *out = json_array();
    return *out && json_array_append(*out, (json_t *)value) == 0 ? MF_OK : no_memory(c);
}

/* ---- schemas that hold ------------------------------------------------------------------------------------------- */

static mf_status check_list(mf__schemas *c, literal l, const char *key, const json_t *list) {
    if (json_is_array(list) && json_array_size(list)) return MF_OK;
    return mf__schema_fail(c, MF_E_FORMAT, l.node, key, "is not a list of schemas");
}

static mf_status hold_dependencies(mf__schemas *c, conjunction *j, literal l, const char *keyword, uint32_t scope) {
    const json_t *all = json_object_get(l.node, keyword);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)all, key, value) {
        branch_kind kind = json_is_array(value) || json_is_string(value) ? NEEDS_KEYS : NEEDS_SCHEMA;
        if (json_is_array(value) && json_array_size(value) == 0) continue;
        MF__TRY(add_branch(c, j, (branch){kind, l, key, value, scope}));
    }
    return MF_OK;
}

static mf_status hold_values(mf__schemas *c, conjunction *j, literal l) {
    const json_t *list = json_object_get(l.node, "enum"), *constant = json_object_get(l.node, "const");
    json_t *one;
    if (list && !json_is_array(list)) return mf__schema_fail(c, MF_E_FORMAT, l.node, "enum", "is not a list");
    if (list) MF__TRY(keep_values(c, j, list));
    if (!constant) return MF_OK;
    MF__TRY(one_value(c, constant, &one));
    mf_status status = keep_values(c, j, one);
    json_decref(one);
    return status;
}

static bool has_type_keywords(const json_t *schema) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) if (mf__schema_keyword_type(key)) return true;
    return false;
}

static mf_status hold_references(mf__schemas *c, conjunction *j, literal l, bool negated, uint32_t scope) {
    static const char *const keys[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    for (size_t i = 0; i < MF__COUNT(keys); i++) {
        literal target;
        if (!json_object_get(l.node, keys[i])) continue;
        MF__TRY(mf__schema_resolve(c, l, keys[i], &target));
        target.negated = negated;
        MF__TRY(add_pending(c, j, target, scope));
    }
    return MF_OK;
}

static mf_status hold(mf__schemas *c, conjunction *j, literal l, uint32_t scope) {
    const json_t *s = l.node, *list;
    uint32_t mask;
    if (c->legacy && json_is_string(json_object_get(s, "$ref"))) return hold_references(c, j, l, false, scope);
    MF__TRY(mf__schema_type_mask(c, s, &mask));
    j->types &= mask;
    MF__TRY(hold_values(c, j, l));
    if (has_type_keywords(s)) MF__TRY(add_fact(c, j, (fact){.kind = FACT_GROUP, .of = l, .scope = scope}));
    if ((list = json_object_get(s, "allOf"))) { /* the last is looked at first: so what they declare is in order */
        MF__TRY(check_list(c, l, "allOf", list));
        for (size_t i = json_array_size(list); i-- > 0;)
            MF__TRY(add_child(c, j, l, json_array_get(list, i), false, scope));
    }
    MF__TRY(hold_references(c, j, l, false, scope));
    if ((list = json_object_get(s, "anyOf"))) {
        MF__TRY(check_list(c, l, "anyOf", list));
        MF__TRY(add_branch(c, j, (branch){ANY_OF, l, "anyOf", list, scope}));
    }
    if ((list = json_object_get(s, "oneOf"))) {
        MF__TRY(check_list(c, l, "oneOf", list));
        MF__TRY(add_branch(c, j, (branch){ONE_OF, l, "oneOf", list, scope}));
    }
    if (json_object_get(s, "not")) MF__TRY(add_child(c, j, l, json_object_get(s, "not"), true, scope));
    if (json_object_get(s, "if") && (json_object_get(s, "then") || json_object_get(s, "else")))
        MF__TRY(add_branch(c, j, (branch){IF_THEN, l, "if", json_object_get(s, "if"), scope}));
    MF__TRY(hold_dependencies(c, j, l, "dependentRequired", scope));
    MF__TRY(hold_dependencies(c, j, l, "dependentSchemas", scope));
    return hold_dependencies(c, j, l, "dependencies", scope);
}

/* ---- schemas that do not hold ------------------------------------------------------------------------------------ */

static bool counts_when_negated(const json_t *schema, const char *key) {
    static const char *const more[] = {"type",          "enum",  "const", "$ref",  "$dynamicRef",
                                       "$recursiveRef", "allOf", "anyOf", "oneOf", "not"};
    for (size_t i = 0; i < MF__COUNT(more); i++)
        if (strcmp(key, more[i]) == 0) return true;
    if (strcmp(key, "if") == 0) return json_object_get(schema, "then") || json_object_get(schema, "else");
    if (strcmp(key, "uniqueItems") == 0 && !json_is_true(json_object_get(schema, key))) return false;
    if (strcmp(key, "required") == 0 && json_array_size(json_object_get(schema, key)) == 0) return false;
    if (strcmp(key, "additionalProperties") == 0 && json_is_true(json_object_get(schema, key))) return false;
    if (strncmp(key, "dependen", 8) == 0 || strcmp(key, "unevaluatedProperties") == 0) return true;
    return mf__schema_keyword_type(key) != 0;
}

static mf_status refute_values(mf__schemas *c, conjunction *j, const json_t *list, const json_t *constant) {
    json_t *one;
    if (list) return exclude_values(c, j, list);
    MF__TRY(one_value(c, constant, &one));
    mf_status status = exclude_values(c, j, one);
    json_decref(one);
    return status;
}

/* One keyword of l does not hold. */
static mf_status refute_keyword(mf__schemas *c, conjunction *j, literal l, const char *key, uint32_t scope) {
    const json_t *value = json_object_get(l.node, key);
    uint32_t mask, type = mf__schema_keyword_type(key);
    if (strcmp(key, "type") == 0) {
        MF__TRY(mf__schema_type_mask(c, l.node, &mask));
        j->types &= ~mask;
        return MF_OK;
    }
    if (strcmp(key, "enum") == 0) return refute_values(c, j, value, NULL);
    if (strcmp(key, "const") == 0) return refute_values(c, j, NULL, value);
    if (key[0] == '$') return hold_references(c, j, l, true, scope);
    if (strcmp(key, "not") == 0) return add_child(c, j, l, value, false, scope);
    if (strcmp(key, "anyOf") == 0) {
        for (size_t i = 0; i < json_array_size(value); i++)
            MF__TRY(add_child(c, j, l, json_array_get(value, i), true, scope));
        return MF_OK;
    }
    if (strcmp(key, "allOf") == 0) return add_branch(c, j, (branch){NOT_ALL_OF, l, key, value, scope});
    if (strcmp(key, "oneOf") == 0) return add_branch(c, j, (branch){NOT_ONE_OF, l, key, value, scope});
    if (strcmp(key, "if") == 0) return add_branch(c, j, (branch){NOT_IF, l, key, value, scope});
    j->types &= type;
    if (strcmp(key, "required") == 0) return add_branch(c, j, (branch){NOT_REQUIRED, l, key, value, scope});
    if (strcmp(key, "properties") == 0) return add_branch(c, j, (branch){NOT_PROPERTIES, l, key, value, scope});
    if (strcmp(key, "items") == 0 && !json_is_array(value) && !json_object_get(l.node, "prefixItems")) {
        literal item = mf__literal_child(c, l, value);
        item.negated = true;
        return add_fact(c, j, (fact){.kind = FACT_CONTAINS, .of = item});
    }
    if (strcmp(key, "contains") == 0 && !json_object_get(l.node, "minContains") &&
        !json_object_get(l.node, "maxContains")) {
        literal item = mf__literal_child(c, l, value);
        item.negated = true;
        return add_fact(c, j, (fact){.kind = FACT_ITEMS, .of = item});
    }
    static const char *const plain[] = {"pattern",          "minLength",     "maxLength",     "format",
                                        "minimum",          "maximum",       "minItems",      "maxItems",
                                        "exclusiveMinimum", "minProperties", "maxProperties", "exclusiveMaximum"};
    for (size_t i = 0; i < MF__COUNT(plain); i++)
        if (strcmp(key, plain[i]) == 0) return add_fact(c, j, (fact){.kind = FACT_NOT, .of = l, .key = plain[i]});
    return mf__schema_fail(c, MF_E_UNSUPPORTED, l.node, key,
                           "inside \"not\" (or an overlapping \"oneOf\") is not supported");
}

static mf_status refute(mf__schemas *c, conjunction *j, literal l, uint32_t scope) {
    const char *key, *only = NULL;
    json_t *value;
    size_t n = 0;
    if (c->legacy && json_is_string(json_object_get(l.node, "$ref"))) return hold_references(c, j, l, true, scope);
    json_object_foreach((json_t *)l.node, key, value) if (counts_when_negated(l.node, key)) n++, only = key;
    if (n == 0) return j->types = 0, MF_OK; /* it always holds */
    if (n == 1) return refute_keyword(c, j, l, only, scope);
    return add_branch(c, j, (branch){NOT_KEYWORDS, l, NULL, NULL, scope});
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

static mf_status enter_scope(mf__schemas *c, literal l, uint32_t parent, uint32_t *out) {
    for (uint32_t s = parent; s != MF__NEVER; s = c->scopes[s].parent)
        if (c->scopes[s].node == l.node && c->scopes[s].negated == l.negated)
            return mf__schema_fail(c, MF_E_INVALID, l.node, NULL, "refers to itself without anything in between");
    MF__TRY(room(c, (void **)&c->scopes, &c->scopes_capacity, c->n_scopes + 1, sizeof *c->scopes));
    c->scopes[c->n_scopes] = (schema_scope){parent, l.node, l.negated};
    *out = c->n_scopes++;
    return MF_OK;
}

bool mf__scope_below(const mf__schemas *c, uint32_t scope, uint32_t top) {
    while (scope != MF__NEVER && scope != top && !c->scopes[scope].negated) scope = c->scopes[scope].parent;
    return scope == top; /* what is inside "not" says nothing to the outside */
}

/* Takes all pending literals apart. */
static mf_status settle(mf__schemas *c, conjunction *j) {
    while (j->n_pending && !is_dead(j)) {
        literal l = j->pending[--j->n_pending];
        uint32_t scope = MF__NEVER, parent = j->pending_scope[j->n_pending];
        if (json_is_boolean(l.node)) {
            if (json_is_true(l.node) == l.negated) j->types = 0;
            continue;
        }
        if (!json_is_object(l.node))
            return mf__schema_fail(c, MF_E_FORMAT, l.node, NULL,
                                   "is not a schema: neither an object nor true or false");
        MF__TRY(enter_scope(c, l, parent, &scope));
        bool seen = json_object_size(l.node) == 0 && !l.negated;
        for (uint32_t i = 0; i < j->n_seen && !seen; i++)
            seen = j->seen[i].node == l.node && j->seen[i].negated == l.negated;
        if (seen) continue;
        if (j->n_seen == MAX_LITERALS)
            return mf__schema_fail(c, MF_E_LIMIT, l.node, NULL, "is one of too many schemas that hold together");
        MF__TRY(room(c, (void **)&j->seen, &j->seen_capacity, j->n_seen + 1, sizeof *j->seen));
        j->seen[j->n_seen++] = l;
        MF__TRY(l.negated ? refute(c, j, l, scope) : hold(c, j, l, scope));
    }
    return MF_OK;
}

/* ---- choices ----------------------------------------------------------------------------------------------------- */

static mf_status push(mf__schemas *c, conjunctions *list, const conjunction *j, conjunction **out) {
    if (list->n >= MAX_ALTERNATIVES * 4)
        return mf__fail(c->err, MF_E_LIMIT, "JSON Schema: too many alternatives together");
    MF__TRY(room(c, (void **)&list->items, &list->capacity, list->n + 1, sizeof *list->items));
    list->items[list->n] = (conjunction){0};
    *out = &list->items[list->n++];
    return conjunction_copy(c, j, *out);
}

/* Is it certain that no value satisfies both, beside what j says already? */
static bool exclude_each_other(mf__schemas *c, const conjunction *j, literal a, literal b) {
    goal g = {0};
    bool empty = mf__goal_add(c, &g, a) == MF_OK && mf__goal_add(c, &g, b) == MF_OK;
    if (empty) {
        for (uint32_t i = 0; i < j->n_facts && empty; i++) /* what stands beside may tell them apart */
            if (j->facts[i].kind == FACT_GROUP) {
                static const char *const fine[] = {"$ref",
                                                   "allOf",
                                                   "anyOf",
                                                   "oneOf",
                                                   "not",
                                                   "if",
                                                   "dependencies",
                                                   "dependentSchemas",
                                                   "dependentRequired"};
                bool simple = true;
                for (size_t k = 0; k < MF__COUNT(fine); k++)
                    simple = simple && !json_object_get(j->facts[i].of.node, fine[k]);
                if (simple) empty = mf__goal_add(c, &g, j->facts[i].of) == MF_OK;
            }
        empty = empty && mf__goal_is_empty(c, &g, 2);
    }
    mf__goal_free(&g);
    return empty;
}

static mf_status split_one_of(mf__schemas *c, const conjunction *j, const branch *b, conjunctions *out) {
    size_t n = json_array_size(b->value);
    if (n > MAX_ALTERNATIVES) return mf__schema_fail(c, MF_E_LIMIT, b->of.node, "oneOf", "has too many alternatives");
    bool *apart = calloc(n * n + 1, 1);
    mf_status status = apart ? MF_OK : no_memory(c);
    for (size_t i = 0; status == MF_OK && i < n; i++)
        for (size_t k = 0; k < i && c->work <= MAX_WORK; k++) {
            literal one = mf__literal_child(c, b->of, json_array_get(b->value, i));
            literal other = mf__literal_child(c, b->of, json_array_get(b->value, k));
            bool differ = mf__schemas_differ(c, one.node, other.node) || exclude_each_other(c, j, one, other);
            apart[i * n + k] = apart[k * n + i] = differ;
        }
    for (size_t i = 0; status == MF_OK && i < n; i++) {
        conjunction *next;
        status = push(c, out, j, &next);
        if (status == MF_OK) status = add_child(c, next, b->of, json_array_get(b->value, i), false, b->scope);
        for (size_t k = 0; status == MF_OK && k < n; k++)
            if (k != i && !apart[i * n + k])
                status = add_child(c, next, b->of, json_array_get(b->value, k), true, b->scope);
    }
    free(apart);
    return status;
}

static mf_status split_if(mf__schemas *c, const conjunction *j, const branch *b, bool refuted, conjunctions *out) {
    static const char *const keys[] = {"then", "else"};
    for (int i = 0; i < 2; i++) {
        const json_t *then = json_object_get(b->of.node, keys[i]);
        conjunction *next;
        if (refuted && !then) continue;
        MF__TRY(push(c, out, j, &next));
        MF__TRY(add_child(c, next, b->of, b->value, i == 1, b->scope));
        if (then) MF__TRY(add_child(c, next, b->of, then, refuted, b->scope));
    }
    return MF_OK;
}

static mf_status require(mf__schemas *c, conjunction *j, const char *key, bool there) {
    j->types &= TYPE_OBJECT;
    return add_fact(c, j, (fact){.kind = there ? FACT_REQUIRE : FACT_ABSENT, .key = key});
}

/* No object; an object without the key; one with it and what it needs. */
static mf_status split_needs(mf__schemas *c, const conjunction *j, const branch *b, conjunctions *out) {
    conjunction *next;
    if (j->types & ~(uint32_t)TYPE_OBJECT) {
        MF__TRY(push(c, out, j, &next));
        next->types &= ~(uint32_t)TYPE_OBJECT;
    }
    MF__TRY(push(c, out, j, &next));
    MF__TRY(require(c, next, b->key, false));
    MF__TRY(push(c, out, j, &next));
    MF__TRY(require(c, next, b->key, true));
    if (b->kind == NEEDS_SCHEMA) return add_child(c, next, b->of, b->value, false, b->scope);
    if (json_is_string(b->value)) return require(c, next, json_string_value(b->value), true);
    for (size_t i = 0; i < json_array_size(b->value); i++) {
        const char *key = json_string_value(json_array_get(b->value, i));
        if (!key) return mf__schema_fail(c, MF_E_FORMAT, b->of.node, "dependentRequired", "is not a list of names");
        MF__TRY(require(c, next, key, true));
    }
    return MF_OK;
}

static mf_status split_list(mf__schemas *c, const conjunction *j, const branch *b, bool negated, conjunctions *out) {
    for (size_t i = 0; i < json_array_size(b->value); i++) {
        conjunction *next;
        MF__TRY(push(c, out, j, &next));
        MF__TRY(add_child(c, next, b->of, json_array_get(b->value, i), negated, b->scope));
    }
    return MF_OK;
}

/* None of them holds, or two do. */
static mf_status split_not_one_of(mf__schemas *c, const conjunction *j, const branch *b, conjunctions *out) {
    size_t n = json_array_size(b->value);
    conjunction *next;
    if (n > 6)
        return mf__schema_fail(c, MF_E_UNSUPPORTED, b->of.node, "oneOf", "inside \"not\" has too many alternatives");
    MF__TRY(push(c, out, j, &next));
    for (size_t i = 0; i < n; i++) MF__TRY(add_child(c, next, b->of, json_array_get(b->value, i), true, b->scope));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++) {
            MF__TRY(push(c, out, j, &next));
            MF__TRY(add_child(c, next, b->of, json_array_get(b->value, i), false, b->scope));
            MF__TRY(add_child(c, next, b->of, json_array_get(b->value, k), false, b->scope));
        }
    return MF_OK;
}

static mf_status split_not_keywords(mf__schemas *c, const conjunction *j, const branch *b, conjunctions *out) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)b->of.node, key, value) {
        conjunction *next;
        if (!counts_when_negated(b->of.node, key)) continue;
        MF__TRY(push(c, out, j, &next));
        MF__TRY(refute_keyword(c, next, b->of, key, b->scope));
    }
    return MF_OK;
}

static mf_status split_not_keys(mf__schemas *c, const conjunction *j, const branch *b, conjunctions *out) {
    conjunction *next;
    if (b->kind == NOT_REQUIRED) {
        for (size_t i = 0; i < json_array_size(b->value); i++) {
            const char *key = json_string_value(json_array_get(b->value, i));
            if (!key) return mf__schema_fail(c, MF_E_FORMAT, b->of.node, "required", "is not a list of names");
            MF__TRY(push(c, out, j, &next));
            MF__TRY(require(c, next, key, false));
        }
        return MF_OK;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)b->value, key, value) {
        literal l = mf__literal_child(c, b->of, value);
        l.negated = true;
        if (json_is_true(value)) continue;
        MF__TRY(push(c, out, j, &next));
        MF__TRY(require(c, next, key, true));
        MF__TRY(add_fact(c, next, (fact){.kind = FACT_PROPERTY, .key = key, .of = l}));
    }
    return MF_OK;
}

static mf_status split(mf__schemas *c, conjunction *j, conjunctions *out) {
    branch b = j->branches[--j->n_branches];
    switch (b.kind) {
    case ANY_OF: return split_list(c, j, &b, false, out);
    case NOT_ALL_OF: return split_list(c, j, &b, true, out);
    case ONE_OF: return split_one_of(c, j, &b, out);
    case IF_THEN: return split_if(c, j, &b, false, out);
    case NOT_IF: return split_if(c, j, &b, true, out);
    case NEEDS_KEYS:
    case NEEDS_SCHEMA: return split_needs(c, j, &b, out);
    case NOT_ONE_OF: return split_not_one_of(c, j, &b, out);
    case NOT_KEYWORDS: return split_not_keywords(c, j, &b, out);
    case NOT_REQUIRED:
    case NOT_PROPERTIES: return split_not_keys(c, j, &b, out);
    }
    return MF_OK;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static mf_status expand(mf__schemas *c, conjunctions *todo, conjunctions *out, uint32_t limit) {
    while (todo->n) {
        conjunction j = todo->items[--todo->n];
        mf_status status = ++c->work > MAX_WORK
                               ? mf__fail(c->err, MF_E_LIMIT, "JSON Schema: too many alternatives together")
                               : settle(c, &j);
        if (status == MF_OK && !is_dead(&j) && j.n_branches) {
            conjunctions more = {0};
            status = mf__conjunction_contradicts(c, &j, 0) ? MF_OK : split(c, &j, &more);
            for (uint32_t i = more.n; status == MF_OK && i-- > 0;) {
                status = room(c, (void **)&todo->items, &todo->capacity, todo->n + 1, sizeof *todo->items);
                if (status == MF_OK) todo->items[todo->n++] = more.items[i], more.n = i;
            }
            mf__conjunctions_free(&more);
        } else if (status == MF_OK && !is_dead(&j) && !mf__conjunction_contradicts(c, &j, c->probing ? 1 : 2)) {
            if (out->n >= limit)
                status =
                    mf__fail(c->err, MF_E_LIMIT, "JSON Schema: more than %u alternatives together", (unsigned)limit);
            if (status == MF_OK) status = room(c, (void **)&out->items, &out->capacity, out->n + 1, sizeof *out->items);
            if (status == MF_OK) {
                out->items[out->n++] = j;
                continue;
            }
        }
        conjunction_free(&j);
        MF__TRY(status);
    }
    return MF_OK;
}

static mf_status expand_goal(mf__schemas *c, const goal *g, uint32_t limit, conjunctions *out) {
    conjunctions todo = {0};
    conjunction first = {.types = TYPE_ALL};
    *out = (conjunctions){0};
    mf_status status = MF_OK;
    for (uint32_t i = g->n; status == MF_OK && i-- > 0;) status = add_pending(c, &first, g->items[i], MF__NEVER);
    if (status == MF_OK) status = room(c, (void **)&todo.items, &todo.capacity, 1, sizeof *todo.items);
    if (status == MF_OK) {
        todo.items[todo.n++] = first;
        status = expand(c, &todo, out, limit);
    } else {
        conjunction_free(&first);
    }
    mf__conjunctions_free(&todo);
    if (status != MF_OK) mf__conjunctions_free(out);
    return status;
}

mf_status mf__goal_expand(mf__schemas *c, const goal *g, conjunctions *out) {
    return expand_goal(c, g, MAX_ALTERNATIVES, out);
}

bool mf__goal_is_empty(mf__schemas *c, const goal *g, int depth) {
    conjunctions list;
    mf_error ignored, *err = c->err;
    uint32_t n_scopes = c->n_scopes;
    if (c->probing >= 3) return false;
    c->probing++;
    c->err = &ignored;
    bool empty = expand_goal(c, g, MAX_PROBE, &list) == MF_OK;
    for (uint32_t i = 0; i < list.n && empty; i++)
        empty = depth > 0 && mf__conjunction_contradicts(c, &list.items[i], depth);
    if (empty && list.n == 0) empty = true;
    mf__conjunctions_free(&list);
    c->err = err;
    c->probing--;
    c->n_scopes = n_scopes;
    return empty;
}
