/* Bare values: "12" is a number or a text, as the tool's schema has it. */
#include "reply/values.h"

#include <string.h>

#define MAX_DEPTH 16

const json_t *mf__tool_find(const json_t *tools, mf__span name) {
    size_t i;
    const json_t *tool;
    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *inner = json_object_get(tool, "function");
        if (json_is_object(inner)) tool = inner;
        const char *is = json_string_value(json_object_get(tool, "name"));
        if (is && mf__span_is(name, is)) return tool;
    }
    return NULL;
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

enum { T_STRING = 1, T_NUMBER = 2, T_BOOLEAN = 4, T_NULL = 8, T_OBJECT = 16, T_ARRAY = 32, T_ANY = 63 };

static int type_of_name(const char *name) {
    static const struct {
        const char *name;
        int type;
    } all[] = {{"string", T_STRING}, {"integer", T_NUMBER}, {"number", T_NUMBER}, {"boolean", T_BOOLEAN},
               {"null", T_NULL},     {"object", T_OBJECT},  {"array", T_ARRAY}};
    for (size_t i = 0; name && i < MF__COUNT(all); i++)
        if (!strcmp(name, all[i].name)) return all[i].type;
    return 0;
}

static int type_of_value(const json_t *v) {
    return json_is_string(v)    ? T_STRING
           : json_is_number(v)  ? T_NUMBER
           : json_is_boolean(v) ? T_BOOLEAN
           : json_is_null(v)    ? T_NULL
           : json_is_object(v)  ? T_OBJECT
                                : T_ARRAY;
}

/* "#/$defs/Name" in the tool's parameters. */
static const json_t *follow(const json_t *root, const char *ref) {
    if (strncmp(ref, "#/", 2)) return NULL;
    for (ref += 2; root && *ref;) {
        size_t n = strcspn(ref, "/");
        root = json_object_getn(root, ref, n);
        ref += n + (ref[n] == '/');
    }
    return root;
}

static int types_of(const json_t *root, const json_t *schema, int depth);

static int types_of_all(const json_t *root, const json_t *schemas, int depth) {
    size_t i;
    const json_t *s;
    int types = 0;
    json_array_foreach((json_t *)schemas, i, s) types |= types_of(root, s, depth + 1);
    return types;
}

/* The types that a schema allows; 0: it does not say. */
static int types_of(const json_t *root, const json_t *schema, int depth) {
    size_t i;
    const json_t *v, *type = json_object_get(schema, "type"), *constant = json_object_get(schema, "const");
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    int types = type_of_name(json_string_value(type));
    if (depth > MAX_DEPTH) return 0;
    json_array_foreach((json_t *)type, i, v) types |= type_of_name(json_string_value(v));
    if (types) return types;
    if (constant) return type_of_value(constant);
    json_array_foreach(json_object_get(schema, "enum"), i, v) types |= type_of_value(v);
    if (!types) types = types_of_all(root, json_object_get(schema, "anyOf"), depth);
    if (!types) types = types_of_all(root, json_object_get(schema, "oneOf"), depth);
    if (!types) types = types_of_all(root, json_object_get(schema, "allOf"), depth);
    return !types && ref ? types_of(root, follow(root, ref), depth + 1) : types;
}

static int declared_types(const json_t *tool, mf__span key) {
    const json_t *parameters = json_object_get(tool, "parameters");
    if (!parameters) parameters = json_object_get(tool, "input_schema");
    const json_t *property = json_object_getn(json_object_get(parameters, "properties"), key.s, key.n);
    return property ? types_of(parameters, property, 0) : 0;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* The type of a text that is JSON; Python's words count. 0: it is none. */
static int type_of_text(mf__span s, mf__span *json) {
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    *json = s = mf__span_trim(s);
    for (size_t i = 0; i < MF__COUNT(words); i++)
        if (mf__span_is(s, words[i][0])) *json = s = (mf__span){words[i][1], strlen(words[i][1])};
    if (!mf__json_is_value(s)) return 0;
    switch (s.s[0]) {
    case '"': return T_STRING;
    case '{': return T_OBJECT;
    case '[': return T_ARRAY;
    case 'n': return T_NULL;
    case 't':
    case 'f': return T_BOOLEAN;
    default: return T_NUMBER;
    }
}

/* Where a text may stand, all is text but what another declared type is written as. A string in quotes is taken for a
 * string of JSON only where the schema does not know strings. */
mf_status mf__value_put(mf__strbuf *out, const json_t *tool, mf__span key, mf__span raw, mf_error *err) {
    mf__span json;
    int allowed = declared_types(tool, key), is = type_of_text(raw, &json);
    if (!allowed) allowed = T_ANY;
    bool typed = is && is != T_STRING && (allowed & is);
    if (!typed && !(allowed & T_STRING)) typed = is != 0; /* of another type than it should be, but JSON */
    return typed ? mf__strbuf_append(out, json.s, json.n, err) : mf__json_quote(out, raw, err);
}
