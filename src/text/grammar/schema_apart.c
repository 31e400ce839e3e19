/* JSON Schema: what shows about alternatives without making rules of them. */
#include <string.h>

#include "text/grammar/schema.h"

static bool lists_apart(mf__schemas *c, const json_t *a, const json_t *b) {
    const json_t *one = json_object_get(a, "const"), *other = json_object_get(b, "const");
    const json_t *list = json_object_get(a, "enum"), *others = json_object_get(b, "enum");
    size_t n = one ? 1 : json_array_size(list), m = other ? 1 : json_array_size(others);
    if (!n || !m || mf__schema_pay(c, NULL, n, m) != MF_OK) return false;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < m; k++)
            if (mf__json_same(one ? one : json_array_get(list, i), other ? other : json_array_get(others, k)))
                return false;
    return true;
}

static bool is_object_only(const json_t *schema) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type && strcmp(type, "object") == 0;
}

bool mf__schemas_differ(mf__schemas *c, const json_t *a, const json_t *b) {
    const json_t *required = json_object_get(a, "required"), *also = json_object_get(b, "required");
    const json_t *properties = json_object_get(a, "properties"), *others = json_object_get(b, "properties");
    if (c->legacy && (json_object_get(a, "$ref") || json_object_get(b, "$ref"))) return false;
    if (lists_apart(c, a, b)) return true;
    if (!is_object_only(a) || !is_object_only(b)) return false;
    for (size_t i = 0; i < json_array_size(required) && i < 8; i++)
        for (size_t k = 0; k < json_array_size(also) && k < 8; k++) {
            const char *key = json_string_value(json_array_get(required, i));
            const char *same = json_string_value(json_array_get(also, k));
            if (!key || !same || strcmp(key, same) != 0) continue;
            const json_t *p = json_object_get(properties, key), *q = json_object_get(others, key);
            bool refs = c->legacy && (json_object_get(p, "$ref") || json_object_get(q, "$ref"));
            if (!refs && lists_apart(c, p, q)) return true;
        }
    return false;
}

bool mf__conjunction_contradicts(mf__schemas *c, const conjunction *j, int depth) {
    if (j->types != TYPE_OBJECT) return false;
    for (uint32_t i = 0; i < j->n_facts; i++) {
        const fact *f = &j->facts[i];
        const json_t *required = f->kind == FACT_GROUP ? json_object_get(f->of.node, "required") : NULL;
        size_t n = f->kind == FACT_REQUIRE ? 1 : json_array_size(required);
        if (mf__schema_pay(c, NULL, n, j->n_facts) != MF_OK) return false; /* who knows */
        for (size_t k = 0; k < n; k++) {
            const char *key = f->kind == FACT_REQUIRE ? f->key : json_string_value(json_array_get(required, k));
            goal g = {0};
            bool dead = false;
            for (uint32_t m = 0; key && m < j->n_facts && !dead; m++) {
                const fact *o = &j->facts[m];
                const json_t *p =
                    o->kind == FACT_GROUP ? json_object_get(json_object_get(o->of.node, "properties"), key) : NULL;
                if (o->kind == FACT_ABSENT && strcmp(o->key, key) == 0) dead = true;
                if (o->kind == FACT_PROPERTY && strcmp(o->key, key) == 0) mf__goal_add(c, &g, o->of);
                if (p) mf__goal_add(c, &g, mf__literal_child(c, o->of, p));
                if (o->kind == FACT_GROUP && !p && json_is_false(json_object_get(o->of.node, "additionalProperties")) &&
                    !json_object_get(o->of.node, "patternProperties"))
                    dead = true;
            }
            dead = dead || (depth > 0 && g.n > 1 && mf__goal_is_empty(c, &g, depth - 1));
            dead = dead || (g.n == 1 && json_is_boolean(g.items[0].node) &&
                            json_is_true(g.items[0].node) == g.items[0].negated);
            mf__goal_free(&g);
            if (dead) return true;
        }
    }
    return false;
}
