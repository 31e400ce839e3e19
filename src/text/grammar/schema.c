/* JSON Schema: keywords, references, alternatives. The types are in schema_types.c and schema_object.c. */
#include "text/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 64

static bool is_one_of(const char *word, const char *const *list) {
    for (; *list; list++)
        if (strcmp(word, *list) == 0) return true;
    return false;
}

/* Keywords that say nothing about what is valid. */
static const char *const notes[] = {
    "title",  "description",     "default",          "examples", "$schema",   "$id",    "$comment",
    "$defs",  "definitions",     "deprecated",       "readOnly", "writeOnly", "format", "$anchor",
    "strict", "contentEncoding", "contentMediaType", "nullable", NULL};
static const char *const known[] = {"type",
                                    "enum",
                                    "const",
                                    "properties",
                                    "required",
                                    "additionalProperties",
                                    "minProperties",
                                    "maxProperties",
                                    "items",
                                    "prefixItems",
                                    "minItems",
                                    "maxItems",
                                    "pattern",
                                    "minLength",
                                    "maxLength",
                                    "minimum",
                                    "maximum",
                                    "exclusiveMinimum",
                                    "exclusiveMaximum",
                                    "anyOf",
                                    "oneOf",
                                    "allOf",
                                    "$ref",
                                    NULL};

static mf_status check_keywords(schema_ctx *c, const json_t *s) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)s, key, value) {
        if (is_one_of(key, notes) || is_one_of(key, known)) continue;
        if (strcmp(key, "uniqueItems") == 0 && json_is_false(value)) continue;
        if (strcmp(key, "additionalItems") == 0 && json_is_false(value)) continue;
        return mf__fail(c->err, MF_E_UNSUPPORTED, "JSON Schema: \"%.60s\" is not supported", key);
    }
    return MF_OK;
}

static bool has_other(const json_t *s, const char *key) { /* any keyword that counts, other than key */
    const char *k;
    json_t *value;
    json_object_foreach((json_t *)s, k, value) if (strcmp(k, key) != 0 && is_one_of(k, known)) return true;
    return false;
}

mf_status schema_count(schema_ctx *c, const json_t *s, const char *key, int64_t missing, int64_t *out) {
    const json_t *v = json_object_get(s, key);
    *out = missing;
    if (!v) return MF_OK;
    double d = json_number_value(v);
    if (!json_is_number(v) || d < 0 || d != (double)(int64_t)d || d > 1e9)
        return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: \"%s\" is not a count", key);
    *out = (int64_t)d;
    return MF_OK;
}

/* ---- references ------------------------------------------------------------------------------------------------ */

/* The next token of a JSON pointer, unescaped (~1 is /, ~0 is ~). Returns what is left behind it. */
static const char *pointer_token(const char *p, char *out, size_t size) {
    size_t n = 0;
    for (; *p && *p != '/'; p++) {
        char ch = *p;
        if (ch == '~' && (p[1] == '0' || p[1] == '1')) ch = *++p == '1' ? '/' : '~';
        if (n + 1 < size) out[n++] = ch;
    }
    out[n] = 0;
    return p;
}

static mf_status resolve(schema_ctx *c, const char *ref, const json_t **out) {
    const json_t *at = c->root;
    const char *p = ref;
    char token[256];
    if (*p != '#' || (p[1] && p[1] != '/'))
        return mf__fail(c->err, MF_E_UNSUPPORTED, "JSON Schema: \"$ref\": \"%.80s\" leads out of the schema", ref);
    for (p++; *p == '/' && at;) {
        p = pointer_token(p + 1, token, sizeof token);
        at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(token, NULL, 10)) : json_object_get(at, token);
    }
    if (!at) return mf__fail(c->err, MF_E_NOT_FOUND, "JSON Schema: \"$ref\": \"%.80s\" leads nowhere", ref);
    *out = at;
    return MF_OK;
}

mf_status schema_rule(schema_ctx *c, const json_t *schema, uint32_t *rule) {
    for (size_t i = 0; i < c->n_memo; i++)
        if (c->memo[i].schema == schema) return *rule = c->memo[i].rule, MF_OK;
    if (json_is_true(schema) || (json_is_object(schema) && json_object_size(schema) == 0))
        return *rule = c->value, MF_OK;
    MF__TRY(nfa_rule_add(c->g, rule, c->err));
    schema_memo *more = realloc(c->memo, (c->n_memo + 1) * sizeof *more);
    if (!more) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    c->memo = more;
    c->memo[c->n_memo++] = (schema_memo){schema, *rule};
    nfa_rule r = c->g->rules[*rule];
    return schema_fill(c, schema, r.start, r.end);
}

/* ---- alternatives ---------------------------------------------------------------------------------------------- */

/* base (less `without`) and alt as one schema. Members that both have must agree, be lists of required keys, or be
 * properties without a common name. */
static mf_status merge(schema_ctx *c, const json_t *base, const char *without, const json_t *alt, const json_t **out) {
    json_t *m = json_is_true(alt) ? json_object() : json_copy((json_t *)alt);
    const char *key;
    json_t *value;
    if (!m || json_array_append_new(c->made, m) != 0) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    json_object_foreach((json_t *)base, key, value) {
        json_t *other = json_object_get(m, key);
        if (strcmp(key, without) == 0 || is_one_of(key, notes)) continue;
        if (!other || json_equal(other, value)) {
            json_object_set(m, key, value);
        } else if (strcmp(key, "required") == 0) {
            json_t *both = json_copy(other);
            json_array_extend(both, value);
            json_object_set_new(m, key, both);
        } else if (strcmp(key, "properties") == 0) {
            json_t *both = json_copy(value);
            const char *name;
            json_t *property;
            json_object_foreach(other, name, property) {
                const json_t *there = json_object_get(both, name);
                if (there && !json_equal((json_t *)there, property) && json_object_size(there) > 0) {
                    json_decref(both);
                    return mf__fail(c->err, MF_E_UNSUPPORTED, "JSON Schema: property \"%.60s\" is described twice",
                                    name);
                }
                json_object_set(both, name, property);
            }
            json_object_set_new(m, key, both);
        } else {
            return mf__fail(c->err, MF_E_UNSUPPORTED, "JSON Schema: \"%.60s\" stands beside and inside \"%s\"", key,
                            without);
        }
    }
    *out = m;
    return MF_OK;
}

static const char *single_type(const json_t *s) {
    return json_string_value(json_object_get(s, "type"));
}

/* Can no value satisfy both? Told by their types, or by constants of a common required property. */
static bool exclusive(const json_t *a, const json_t *b) {
    const char *ta = single_type(a), *tb = single_type(b);
    if (ta && tb && strcmp(ta, tb) != 0) return !(strstr("integer number", ta) && strstr("integer number", tb));
    const json_t *ca = json_object_get(a, "const"), *cb = json_object_get(b, "const");
    if (ca && cb) return !json_equal((json_t *)ca, (json_t *)cb);
    const char *name;
    json_t *pa;
    json_object_foreach(json_object_get(a, "properties"), name, pa) {
        ca = json_object_get(pa, "const");
        cb = json_object_get(json_object_get(json_object_get(b, "properties"), name), "const");
        if (ca && cb && !json_equal((json_t *)ca, (json_t *)cb)) return true;
    }
    return false;
}

static const json_t *follow(schema_ctx *c, const json_t *s) {
    const char *ref = json_string_value(json_object_get(s, "$ref"));
    const json_t *target;
    return ref && resolve(c, ref, &target) == MF_OK ? target : s;
}

static mf_status fill_choice(schema_ctx *c, const json_t *s, const char *key, uint32_t from, uint32_t to) {
    const json_t *list = json_object_get(s, key);
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n == 0) return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: \"%s\" is not a list", key);
    if (strcmp(key, "allOf") == 0 && n > 1)
        return mf__fail(c->err, MF_E_UNSUPPORTED, "JSON Schema: \"allOf\" of %zu schemas is not supported", n);
    for (size_t i = 0; strcmp(key, "oneOf") == 0 && i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (!exclusive(follow(c, json_array_get(list, i)), follow(c, json_array_get(list, k))))
                return mf__fail(c->err, MF_E_UNSUPPORTED,
                                "JSON Schema: alternatives %zu and %zu of \"oneOf\" may both "
                                "hold; use \"anyOf\"",
                                k, i);
    for (size_t i = 0; i < n; i++) {
        const json_t *alt = json_array_get(list, i);
        uint32_t rule;
        if (has_other(s, key) && !json_is_false(alt)) MF__TRY(merge(c, s, key, alt, &alt));
        MF__TRY(schema_rule(c, alt, &rule));
        MF__TRY(nfa_call(c->g, from, rule, to, c->err));
    }
    return MF_OK;
}

/* ---- values and types ------------------------------------------------------------------------------------------ */

mf_status schema_literal(schema_ctx *c, const json_t *value, uint32_t from, uint32_t to) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    if (!text) return mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    mf_status status = nfa_text(c->g, from, text, strlen(text), to, c->err);
    free(text);
    return status;
}

static bool value_has_type(const json_t *v, const char *type) {
    static const struct {
        const char *name;
        json_type a, b;
    } types[] = {{"string", JSON_STRING, JSON_STRING}, {"integer", JSON_INTEGER, JSON_INTEGER},
                 {"number", JSON_INTEGER, JSON_REAL},  {"boolean", JSON_TRUE, JSON_FALSE},
                 {"null", JSON_NULL, JSON_NULL},       {"object", JSON_OBJECT, JSON_OBJECT},
                 {"array", JSON_ARRAY, JSON_ARRAY}};
    for (size_t i = 0; i < MF__COUNT(types); i++)
        if (strcmp(types[i].name, type) == 0) return json_typeof(v) == types[i].a || json_typeof(v) == types[i].b;
    return false;
}

static bool value_allowed(const json_t *s, const json_t *v) {
    const json_t *type = json_object_get(s, "type"), *constant = json_object_get(s, "const");
    if (constant && !json_equal((json_t *)constant, (json_t *)v)) return false;
    if (json_is_string(type)) return value_has_type(v, json_string_value(type));
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *t = json_string_value(json_array_get(type, i));
        if (t && value_has_type(v, t)) return true;
    }
    return !type;
}

/* Listed values; keywords about their insides would have to be applied to each, so they must not be there. */
static mf_status fill_values(schema_ctx *c, const json_t *s, uint32_t from, uint32_t to) {
    const json_t *list = json_object_get(s, "enum"), *constant = json_object_get(s, "const");
    const char *key;
    json_t *value;
    static const char *const fine[] = {"enum", "const", "type", NULL};
    json_object_foreach((json_t *)s, key, value) if (is_one_of(key, known) && !is_one_of(key, fine)) return mf__fail(
        c->err, MF_E_UNSUPPORTED, "JSON Schema: \"%.60s\" beside listed values", key);
    if (list && !json_is_array(list)) return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: \"enum\" is not a list");
    for (size_t i = 0; i < json_array_size(list); i++)
        if (value_allowed(s, json_array_get(list, i))) MF__TRY(schema_literal(c, json_array_get(list, i), from, to));
    if (!list && value_allowed(s, constant)) MF__TRY(schema_literal(c, constant, from, to));
    return MF_OK;
}

static mf_status fill_type(schema_ctx *c, const json_t *s, const char *type, uint32_t from, uint32_t to) {
    if (strcmp(type, "string") == 0) return schema_string(c, s, from, to);
    if (strcmp(type, "integer") == 0) return schema_number(c, s, true, from, to);
    if (strcmp(type, "number") == 0) return schema_number(c, s, false, from, to);
    if (strcmp(type, "object") == 0) return schema_object(c, s, from, to);
    if (strcmp(type, "array") == 0) return schema_array(c, s, from, to);
    if (strcmp(type, "null") == 0) return nfa_text(c->g, from, "null", 4, to, c->err);
    if (strcmp(type, "boolean") == 0) {
        MF__TRY(nfa_text(c->g, from, "true", 4, to, c->err));
        return nfa_text(c->g, from, "false", 5, to, c->err);
    }
    return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: type \"%.40s\" does not exist", type);
}

/* Without "type": what the other keywords speak of. Narrower than the schema, never wider. */
static const char *implied_type(const json_t *s) {
    static const struct {
        const char *key, *type;
    } hints[] = {{"properties", "object"},      {"required", "object"},      {"additionalProperties", "object"},
                 {"minProperties", "object"},   {"maxProperties", "object"}, {"items", "array"},
                 {"prefixItems", "array"},      {"minItems", "array"},       {"maxItems", "array"},
                 {"pattern", "string"},         {"minLength", "string"},     {"maxLength", "string"},
                 {"minimum", "number"},         {"maximum", "number"},       {"exclusiveMinimum", "number"},
                 {"exclusiveMaximum", "number"}};
    for (size_t i = 0; i < MF__COUNT(hints); i++)
        if (json_object_get(s, hints[i].key)) return hints[i].type;
    return NULL;
}

static mf_status fill_object_schema(schema_ctx *c, const json_t *s, uint32_t from, uint32_t to) {
    static const char *const choices[] = {"anyOf", "oneOf", "allOf"};
    const json_t *type = json_object_get(s, "type");
    const char *ref = json_string_value(json_object_get(s, "$ref"));
    MF__TRY(check_keywords(c, s));
    if (ref) {
        const json_t *target;
        uint32_t rule;
        if (has_other(s, "$ref")) return mf__fail(c->err, MF_E_UNSUPPORTED, "JSON Schema: keywords beside \"$ref\"");
        MF__TRY(resolve(c, ref, &target));
        MF__TRY(schema_rule(c, target, &rule));
        return nfa_call(c->g, from, rule, to, c->err);
    }
    for (size_t i = 0; i < MF__COUNT(choices); i++)
        if (json_object_get(s, choices[i])) return fill_choice(c, s, choices[i], from, to);
    if (json_object_get(s, "enum") || json_object_get(s, "const")) return fill_values(c, s, from, to);
    if (json_is_string(type)) return fill_type(c, s, json_string_value(type), from, to);
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *one = json_string_value(json_array_get(type, i));
        if (!one) return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: \"type\" is not a name or a list of names");
        MF__TRY(fill_type(c, s, one, from, to));
    }
    if (json_is_array(type)) return MF_OK;
    if (type) return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: \"type\" is not a name or a list of names");
    const char *implied = implied_type(s);
    return implied ? fill_type(c, s, implied, from, to) : nfa_call(c->g, from, c->value, to, c->err);
}

mf_status schema_fill(schema_ctx *c, const json_t *schema, uint32_t from, uint32_t to) {
    if (json_is_true(schema)) return nfa_call(c->g, from, c->value, to, c->err);
    if (json_is_false(schema)) return MF_OK; /* nothing is valid: no way from here to there */
    if (!json_is_object(schema))
        return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: a schema is %s, not an object", mf__json_type_name(schema));
    if (++c->depth > MAX_DEPTH) return mf__fail(c->err, MF_E_LIMIT, "JSON Schema: nested deeper than %d", MAX_DEPTH);
    mf_status status = fill_object_schema(c, schema, from, to);
    c->depth--;
    return status;
}

mf_status schema_root(schema_ctx *c, const json_t *schema, uint32_t *rule) {
    c->root = schema;
    c->n_memo = 0;
    return schema_rule(c, schema, rule);
}

static mf_status build(const json_t *schema, mf__grammar **out, mf_error *err) {
    schema_ctx c = {.root = schema, .made = json_array(), .err = err};
    *out = NULL;
    mf_status status = c.made ? nfa_create(&c.g, err) : mf__fail(err, MF_E_NOMEM, "no memory for a schema");
    if (status == MF_OK) status = schema_common(&c);
    if (status == MF_OK && schema) {
        status = schema_rule(&c, schema, &c.g->root);
    } else if (status == MF_OK) { /* any JSON: an object or an array */
        status = nfa_rule_add(c.g, &c.g->root, err);
        nfa_rule r = c.g->n_rules ? c.g->rules[c.g->root] : (nfa_rule){0};
        if (status == MF_OK) status = nfa_call(c.g, r.start, c.object, r.end, err);
        if (status == MF_OK) status = nfa_call(c.g, r.start, c.array, r.end, err);
    }
    if (status == MF_OK) status = nfa_finish(c.g, err);
    free(c.memo);
    json_decref(c.made);
    if (status != MF_OK) return mf__grammar_free(c.g), status;
    *out = c.g;
    return MF_OK;
}

mf_status mf__grammar_from_schema(const json_t *schema, mf__grammar **out, mf_error *err) {
    if (!schema) return *out = NULL, mf__fail(err, MF_E_INVALID, "no JSON Schema given");
    return build(schema, out, err);
}

mf_status mf__grammar_any_json(mf__grammar **out, mf_error *err) {
    return build(NULL, out, err);
}
