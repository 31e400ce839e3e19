/* JSON Schema: objects.
 *
 * Declared properties come in the schema's order, each required or not, so the automaton is a chain with two lanes:
 * before the first member that is there (no comma needed), and behind it. Further members follow if
 * additionalProperties says so; their keys are any strings but the declared names. */
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_PROPERTIES 2000

typedef struct lanes {
    uint32_t first, rest; /* nothing said yet; something said */
} lanes;

static bool is_required(const json_t *s, const char *name) {
    const json_t *list = json_object_get(s, "required");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *r = json_string_value(json_array_get(list, i));
        if (r && strcmp(r, name) == 0) return true;
    }
    return false;
}

/* "key": value as a rule of its own. key: a state pair that reads the quoted key. */
static mf_status value_behind_key(schema_ctx *c, uint32_t at, uint32_t value, uint32_t to) {
    uint32_t colon, space;
    MF__TRY(nfa_state_add(c->g, &colon, c->err));
    MF__TRY(nfa_state_add(c->g, &space, c->err));
    MF__TRY(nfa_bytes(c->g, at, ':', ':', colon, c->err));
    MF__TRY(nfa_call(c->g, colon, c->space, space, c->err));
    return nfa_call(c->g, space, value, to, c->err);
}

static mf_status member_rule(schema_ctx *c, const char *name, const json_t *schema, uint32_t *rule) {
    uint32_t value, key;
    json_t *string = json_string(name);
    MF__TRY(nfa_rule_add(c->g, rule, c->err));
    MF__TRY(nfa_state_add(c->g, &key, c->err));
    mf_status status = string ? schema_literal(c, string, c->g->rules[*rule].start, key)
                              : mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    json_decref(string);
    MF__TRY(status);
    MF__TRY(schema_rule(c, schema, &value));
    return value_behind_key(c, key, value, c->g->rules[*rule].end);
}

/* ---- keys that are not declared ---------------------------------------------------------------------------------- */

/* The names that share the first `depth` bytes are names[lo..hi); they are sorted. From `at`, every string that is none
 * of them leads to `to`; `free` reads any rest. Works on characters, so names branch at character borders. */
typedef struct other_keys {
    schema_ctx *c;
    const char **names;
    uint32_t free, to;
} other_keys;

static mf_status add_others(other_keys *k, uint32_t at, size_t lo, size_t hi, size_t depth) {
    schema_ctx *c = k->c;
    mf__uset rest = {0};
    bool ends = false;
    mf_status status = mf__uset_add(&rest, 0, 0, c->err); /* turned around below: all but what continues a name */
    for (size_t i = lo; status == MF_OK && i < hi;) {
        const char *name = k->names[i] + depth;
        if (!*name) {
            ends = true;
            i++;
            continue;
        }
        uint32_t ch, next;
        size_t n = (size_t)mf__utf8_decode(name, &ch), end = i;
        while (end < hi && strncmp(k->names[end] + depth, name, n) == 0) end++;
        mf__uset one = {0};
        status = nfa_state_add(c->g, &next, c->err);
        if (status == MF_OK) status = mf__uset_add(&one, ch, ch, c->err);
        if (status == MF_OK) status = nfa_chars(c->g, at, &one, true, next, c->err);
        if (status == MF_OK) status = mf__uset_add(&rest, ch, ch, c->err);
        mf__uset_free(&one);
        if (status == MF_OK) status = add_others(k, next, i, end, depth + n);
        i = end;
    }
    if (status == MF_OK) status = mf__uset_invert(&rest, c->err);
    if (status == MF_OK) status = nfa_chars(c->g, at, &rest, true, k->free, c->err);
    if (status == MF_OK && !ends) status = nfa_bytes(c->g, at, '"', '"', k->to, c->err);
    mf__uset_free(&rest);
    return status;
}

static void sort_names(const char **names, size_t n) { /* few: insertion is enough */
    for (size_t i = 1; i < n; i++)
        for (size_t k = i; k > 0 && strcmp(names[k - 1], names[k]) > 0; k--) {
            const char *t = names[k];
            names[k] = names[k - 1];
            names[k - 1] = t;
        }
}

static mf_status other_member_rule(schema_ctx *c, const char **names, size_t n, uint32_t value, uint32_t *rule) {
    uint32_t body, key;
    mf__uset all = {0};
    other_keys k = {.c = c, .names = names};
    MF__TRY(nfa_rule_add(c->g, rule, c->err));
    MF__TRY(nfa_state_add(c->g, &body, c->err));
    MF__TRY(nfa_state_add(c->g, &key, c->err));
    MF__TRY(nfa_state_add(c->g, &k.free, c->err));
    k.to = key;
    MF__TRY(nfa_bytes(c->g, c->g->rules[*rule].start, '"', '"', body, c->err));
    mf_status status = mf__uset_add(&all, 1, MF__UNICODE_END - 1, c->err);
    if (status == MF_OK) status = nfa_chars(c->g, k.free, &all, true, k.free, c->err);
    mf__uset_free(&all);
    MF__TRY(status);
    MF__TRY(nfa_bytes(c->g, k.free, '"', '"', key, c->err));
    MF__TRY(add_others(&k, body, 0, n, 0));
    return value_behind_key(c, key, value, c->g->rules[*rule].end);
}

/* ---- the object ------------------------------------------------------------------------------------------------ */

/* A member at this point of the chain: *at moves on. */
static mf_status add_member(schema_ctx *c, uint32_t rule, bool optional, lanes *at) {
    lanes next;
    uint32_t comma, space;
    MF__TRY(nfa_state_add(c->g, &next.first, c->err));
    MF__TRY(nfa_state_add(c->g, &next.rest, c->err));
    MF__TRY(nfa_state_add(c->g, &comma, c->err));
    MF__TRY(nfa_state_add(c->g, &space, c->err));
    MF__TRY(nfa_call(c->g, at->first, rule, next.rest, c->err));
    MF__TRY(nfa_bytes(c->g, at->rest, ',', ',', comma, c->err));
    MF__TRY(nfa_call(c->g, comma, c->space, space, c->err));
    MF__TRY(nfa_call(c->g, space, rule, next.rest, c->err));
    if (optional) {
        MF__TRY(nfa_empty(c->g, at->first, next.first, c->err));
        MF__TRY(nfa_empty(c->g, at->rest, next.rest, c->err));
    }
    *at = next;
    return MF_OK;
}

/* Further members: at least min, at most max (< 0: any number). */
static mf_status add_further(schema_ctx *c, uint32_t rule, int64_t min, int64_t max, lanes *at) {
    if (max > MAX_PROPERTIES || min > MAX_PROPERTIES)
        return mf__fail(c->err, MF_E_LIMIT, "JSON Schema: more than %d properties", MAX_PROPERTIES);
    for (int64_t i = 0; i < (max < 0 ? min : max); i++) MF__TRY(add_member(c, rule, i >= min, at));
    if (max >= 0) return MF_OK;
    lanes end = *at;
    MF__TRY(add_member(c, rule, true, &end));
    MF__TRY(nfa_empty(c->g, end.rest, at->rest, c->err)); /* and again */
    *at = end;
    return MF_OK;
}

/* The rule of further members; UINT32_MAX: there are none. Without a word about them there are none beside declared
 * properties, which is narrower than the schema. */
static mf_status further_rule(schema_ctx *c, const json_t *s, const char **names, size_t n, int64_t needed,
                              uint32_t *rule) {
    const json_t *more = json_object_get(s, "additionalProperties");
    uint32_t value = c->value;
    *rule = UINT32_MAX;
    if (json_is_false(more) || (!more && n > 0 && needed <= 0)) return MF_OK;
    if (more) MF__TRY(schema_rule(c, more, &value));
    return other_member_rule(c, names, n, value, rule);
}

static mf_status add_declared(schema_ctx *c, const json_t *s, const char **names, size_t *n, size_t *n_required,
                              lanes *at) {
    const json_t *properties = json_object_get(s, "properties"), *required = json_object_get(s, "required");
    const json_t *more = json_object_get(s, "additionalProperties");
    const char *name;
    json_t *schema;
    uint32_t rule;
    *n = *n_required = 0;
    json_object_foreach((json_t *)properties, name, schema) {
        bool must = is_required(s, name);
        if (*n == MAX_PROPERTIES)
            return mf__fail(c->err, MF_E_LIMIT, "JSON Schema: more than %d properties", MAX_PROPERTIES);
        MF__TRY(member_rule(c, name, schema, &rule));
        MF__TRY(add_member(c, rule, !must, at));
        names[(*n)++] = name;
        *n_required += must;
    }
    for (size_t i = 0; i < json_array_size(required); i++) { /* required but not declared */
        name = json_string_value(json_array_get(required, i));
        if (!name) return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: \"required\" is not a list of names");
        bool known = false;
        for (size_t k = 0; k < *n && !known; k++) known = strcmp(names[k], name) == 0;
        if (known) continue;
        if (*n == MAX_PROPERTIES)
            return mf__fail(c->err, MF_E_LIMIT, "JSON Schema: more than %d properties", MAX_PROPERTIES);
        MF__TRY(member_rule(c, name, more ? more : json_true(), &rule));
        MF__TRY(add_member(c, rule, false, at));
        names[(*n)++] = name;
        ++*n_required;
    }
    return MF_OK;
}

mf_status schema_object(schema_ctx *c, const json_t *s, uint32_t from, uint32_t to) {
    const char *names[MAX_PROPERTIES];
    size_t n, n_required;
    int64_t min, max;
    uint32_t open, rule;
    lanes at;
    MF__TRY(schema_count(c, s, "minProperties", 0, &min));
    MF__TRY(schema_count(c, s, "maxProperties", -1, &max));
    MF__TRY(nfa_state_add(c->g, &open, c->err));
    MF__TRY(nfa_state_add(c->g, &at.first, c->err));
    MF__TRY(nfa_state_add(c->g, &at.rest, c->err));
    MF__TRY(nfa_bytes(c->g, from, '{', '{', open, c->err));
    MF__TRY(nfa_call(c->g, open, c->space, at.first, c->err));
    MF__TRY(add_declared(c, s, names, &n, &n_required, &at));
    /* Counts are kept by the required members and the further ones alone; optional ones in between are not counted. */
    min -= (int64_t)n_required;
    if (min > 0 && n > n_required)
        return mf__fail(c->err, MF_E_UNSUPPORTED,
                        "JSON Schema: \"minProperties\" above the number of required properties");
    if (min > 1) /* keys that are free could repeat, and a repeated key counts once */
        return mf__fail(c->err, MF_E_UNSUPPORTED,
                        "JSON Schema: \"minProperties\" with more than one undeclared property");
    if (max >= 0 && (int64_t)n > max)
        return mf__fail(c->err, MF_E_UNSUPPORTED, "JSON Schema: \"maxProperties\" below the number of properties");
    sort_names(names, n);
    MF__TRY(further_rule(c, s, names, n, min, &rule));
    if (rule != UINT32_MAX)
        MF__TRY(add_further(c, rule, min > 0 ? min : 0, max < 0 ? -1 : max - (int64_t)n, &at));
    else if (min > 0)
        return MF_OK; /* cannot be satisfied: no way to the end */
    uint32_t end;
    MF__TRY(nfa_state_add(c->g, &end, c->err));
    MF__TRY(nfa_empty(c->g, at.first, end, c->err));
    MF__TRY(nfa_call(c->g, at.rest, c->space, end, c->err));
    return nfa_bytes(c->g, end, '}', '}', to, c->err);
}
