/* Is a value valid by a schema? Needed for enum and const, whose values must satisfy whatever stands beside them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_DEPTH 100

typedef struct judge {
    mf__schemas *c;
    int depth;
} judge;

bool mf__json_same(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        if (json_is_integer(a) && json_is_integer(b)) return json_integer_value(a) == json_integer_value(b);
        return json_number_value(a) == json_number_value(b);
    }
    if (json_typeof(a) != json_typeof(b)) return false;
    if (json_is_array(a)) {
        if (json_array_size(a) != json_array_size(b)) return false;
        for (size_t i = 0; i < json_array_size(a); i++)
            if (!mf__json_same(json_array_get(a, i), json_array_get(b, i))) return false;
        return true;
    }
    if (!json_is_object(a)) return json_equal((json_t *)a, (json_t *)b);
    const char *key;
    json_t *value;
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)a, key, value) {
        const json_t *other = json_object_get(b, key);
        if (!other || !mf__json_same(value, other)) return false;
    }
    return true;
}

uint32_t mf__json_types(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_NULL: return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return TYPE_BOOLEAN;
    case JSON_INTEGER: return TYPE_INTEGER;
    case JSON_REAL: return json_real_value(v) == floor(json_real_value(v)) ? TYPE_INTEGER : TYPE_FRACTION;
    case JSON_STRING: return TYPE_STRING;
    case JSON_ARRAY: return TYPE_ARRAY;
    case JSON_OBJECT: return TYPE_OBJECT;
    }
    return 0;
}

static mf_status accepts(judge *j, literal l, const json_t *v, bool *out);

static mf_status child_accepts(judge *j, literal l, const json_t *schema, const json_t *v, bool *out) {
    return accepts(j, mf__literal_child(j->c, l, schema), v, out);
}

static int64_t characters(const json_t *v) {
    int64_t n = 0;
    for (const char *p = json_string_value(v), *end = p + json_string_length(v); p < end; p++)
        n += ((uint8_t)*p & 0xC0) != 0x80;
    return n;
}

/* The set of a pattern. Those of the last few are kept: a list of values is judged by the same ones. */
static mf_status pattern_set(mf__schemas *c, const char *pattern, size_t size, bool search,
                             const mf__pattern_set **out) {
    for (size_t i = 0; i < MF__COUNT(c->patterns); i++) {
        mf__pattern_set *p = &c->patterns[i];
        bool same = p->text && p->search == search && p->size == size && memcmp(p->text, pattern, size) == 0;
        if (same) return *out = p, MF_OK;
    }
    mf__pattern_set *s = &c->patterns[c->next_pattern++ % MF__COUNT(c->patterns)];
    mf__pattern_set_free(s);
    mf__lang_options o = {.search = search, .min = &s->min, .max = &s->max};
    MF__TRY(mf__lang_regex(pattern, size, o, &s->lang, c->err));
    s->text = malloc(size + 1);
    if (!s->text) return mf__pattern_set_free(s), mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    memcpy(s->text, pattern, size);
    s->size = size;
    s->search = search;
    *out = s;
    return MF_OK;
}

void mf__pattern_set_free(mf__pattern_set *s) {
    free(s->text);
    mf__lang_free(&s->lang);
    *s = (mf__pattern_set){0};
}

static mf_status matches(judge *j, literal l, const char *key, const char *pattern, size_t size, bool search,
                         const json_t *v, bool *out) {
    const mf__pattern_set *s = NULL;
    mf_status status = pattern_set(j->c, pattern, size, search, &s);
    if (status != MF_OK) return mf__schema_fail(j->c, status, l.node, key, "cannot be used");
    int64_t n = characters(v);
    *out = mf__lang_label(&s->lang, json_string_value(v), json_string_length(v)) != 0 && n >= s->min &&
           (s->max < 0 || n <= s->max);
    return MF_OK;
}

/* ---- one type each ----------------------------------------------------------------------------------------------- */

static mf_status string_keyword(judge *j, literal l, const char *key, const json_t *w, const json_t *v, bool *out) {
    int64_t n;
    if (strcmp(key, "pattern") == 0 && !json_is_string(w))
        return mf__schema_fail(j->c, MF_E_FORMAT, l.node, key, "is not a string");
    if (strcmp(key, "pattern") == 0)
        return matches(j, l, key, json_string_value(w), json_string_length(w), true, v, out);
    if (strcmp(key, "format") == 0) {
        const char *pattern = json_is_string(w) ? mf__format_pattern(json_string_value(w)) : NULL;
        return pattern ? matches(j, l, key, pattern, strlen(pattern), false, v, out) : MF_OK;
    }
    if (strcmp(key, "minLength") != 0 && strcmp(key, "maxLength") != 0) return MF_OK;
    MF__TRY(mf__schema_count(j->c, l.node, key, 0, &n));
    *out = key[1] == 'i' ? characters(v) >= n : characters(v) <= n;
    return MF_OK;
}

static mf_status number_keyword(literal l, const char *key, const json_t *w, const json_t *v, bool *out) {
    double a = json_number_value(v), b = json_number_value(w);
    if (strcmp(key, "minimum") == 0)
        *out = json_is_true(json_object_get(l.node, "exclusiveMinimum")) ? a > b : a >= b;
    else if (strcmp(key, "maximum") == 0)
        *out = json_is_true(json_object_get(l.node, "exclusiveMaximum")) ? a < b : a <= b;
    else if (strcmp(key, "exclusiveMinimum") == 0 && json_is_number(w))
        *out = a > b;
    else if (strcmp(key, "exclusiveMaximum") == 0 && json_is_number(w))
        *out = a < b;
    else if (strcmp(key, "multipleOf") == 0 && b > 0)
        *out = fabs(a / b - round(a / b)) < 1e-9 * (1 + fabs(a / b));
    return MF_OK;
}

static const json_t *item_schema(literal l, size_t i) {
    const json_t *prefix = json_object_get(l.node, "prefixItems"), *items = json_object_get(l.node, "items");
    if (!prefix && json_is_array(items)) prefix = items, items = json_object_get(l.node, "additionalItems");
    return i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
}

static mf_status contains_keyword(judge *j, literal l, const json_t *w, const json_t *v, bool *out) {
    int64_t min, max, n = 0;
    MF__TRY(mf__schema_count(j->c, l.node, "minContains", 1, &min));
    MF__TRY(mf__schema_count(j->c, l.node, "maxContains", -1, &max));
    for (size_t i = 0; i < json_array_size(v); i++) {
        bool fits = true;
        MF__TRY(child_accepts(j, l, w, json_array_get(v, i), &fits));
        n += fits;
    }
    *out = n >= min && (max < 0 || n <= max);
    return MF_OK;
}

static mf_status array_keyword(judge *j, literal l, const char *key, const json_t *w, const json_t *v, bool *out) {
    int64_t n;
    if (strcmp(key, "minItems") == 0 || strcmp(key, "maxItems") == 0) {
        MF__TRY(mf__schema_count(j->c, l.node, key, 0, &n));
        *out = key[1] == 'i' ? (int64_t)json_array_size(v) >= n : (int64_t)json_array_size(v) <= n;
    } else if (strcmp(key, "contains") == 0) {
        return contains_keyword(j, l, w, v, out);
    } else if (strcmp(key, "uniqueItems") == 0 && json_is_true(w)) {
        MF__TRY(mf__schema_pay(j->c, v, json_array_size(v), json_array_size(v)));
        for (size_t i = 0; i < json_array_size(v); i++)
            for (size_t k = 0; k < i; k++)
                if (mf__json_same(json_array_get(v, i), json_array_get(v, k))) *out = false;
    } else if (strcmp(key, "items") == 0 || (strcmp(key, "prefixItems") == 0 && !json_object_get(l.node, "items"))) {
        for (size_t i = 0; i < json_array_size(v) && *out; i++) {
            const json_t *schema = item_schema(l, i);
            if (schema) MF__TRY(child_accepts(j, l, schema, json_array_get(v, i), out));
        }
    } else if (strncmp(key, "unevaluated", 11) == 0) {
        return mf__schema_fail(j->c, MF_E_UNSUPPORTED, l.node, key, "beside listed values is not supported");
    }
    return MF_OK;
}

static mf_status member_accepts(judge *j, literal l, const char *name, const json_t *v, bool *out) {
    const json_t *declared = json_object_get(json_object_get(l.node, "properties"), name);
    const json_t *more = json_object_get(l.node, "additionalProperties");
    bool known = declared != NULL;
    const char *pattern;
    json_t *schema, *text = json_string(name);
    mf_status status = text ? MF_OK : mf__fail(j->c->err, MF_E_NOMEM, "no memory for a schema");
    if (status == MF_OK && declared) status = child_accepts(j, l, declared, v, out);
    json_object_foreach(json_object_get(l.node, "patternProperties"), pattern, schema) {
        bool fits = false;
        if (status == MF_OK) status = matches(j, l, "patternProperties", pattern, strlen(pattern), true, text, &fits);
        known = known || fits;
        if (status == MF_OK && fits && *out) status = child_accepts(j, l, schema, v, out);
    }
    if (status == MF_OK && !known && more && *out) status = child_accepts(j, l, more, v, out);
    json_decref(text);
    return status;
}

static mf_status object_keyword(judge *j, literal l, const char *key, const json_t *w, const json_t *v, bool *out) {
    int64_t n;
    const char *name;
    json_t *value;
    if (strcmp(key, "minProperties") == 0 || strcmp(key, "maxProperties") == 0) {
        MF__TRY(mf__schema_count(j->c, l.node, key, 0, &n));
        *out = key[1] == 'i' ? (int64_t)json_object_size(v) >= n : (int64_t)json_object_size(v) <= n;
    } else if (strcmp(key, "required") == 0) {
        for (size_t i = 0; i < json_array_size(w); i++) {
            name = json_string_value(json_array_get(w, i));
            if (name && !json_object_get(v, name)) *out = false;
        }
    } else if (strcmp(key, "propertyNames") == 0) {
        json_object_foreach((json_t *)v, name, value) {
            json_t *text = json_string(name);
            mf_status status = text && *out ? child_accepts(j, l, w, text, out) : MF_OK;
            json_decref(text);
            MF__TRY(status);
        }
    } else if (strncmp(key, "unevaluated", 11) == 0) {
        return mf__schema_fail(j->c, MF_E_UNSUPPORTED, l.node, key, "beside listed values is not supported");
    } else if (strcmp(key, "properties") == 0 || strcmp(key, "patternProperties") == 0 ||
               strcmp(key, "additionalProperties") == 0) {
        json_object_foreach((json_t *)v, name, value) if (*out) MF__TRY(member_accepts(j, l, name, value, out));
    }
    return MF_OK;
}

static mf_status type_keyword(judge *j, literal l, const char *key, const json_t *v, bool *out) {
    const json_t *w = json_object_get(l.node, key);
    uint32_t type = mf__schema_keyword_type(key), is = mf__json_types(v);
    *out = true;
    if (!(type & is)) return MF_OK;
    if (is == TYPE_STRING) return string_keyword(j, l, key, w, v, out);
    if (is == TYPE_ARRAY) return array_keyword(j, l, key, w, v, out);
    if (is == TYPE_OBJECT) return object_keyword(j, l, key, w, v, out);
    return number_keyword(l, key, w, v, out);
}

/* ---- the rest ---------------------------------------------------------------------------------------------------- */

static mf_status count_valid(judge *j, literal l, const json_t *list, const json_t *v, size_t *n) {
    *n = 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        bool fits = true;
        MF__TRY(child_accepts(j, l, json_array_get(list, i), v, &fits));
        *n += fits;
    }
    return MF_OK;
}

static mf_status needs_accept(judge *j, literal l, const json_t *all, const json_t *v, bool *out) {
    const char *key;
    json_t *need;
    json_object_foreach((json_t *)all, key, need) {
        if (!json_is_object(v) || !json_object_get(v, key) || !*out) continue;
        for (size_t i = 0; i < json_array_size(need); i++)
            if (!json_object_get(v, json_string_value(json_array_get(need, i)))) *out = false;
        if (json_is_string(need) && !json_object_get(v, json_string_value(need))) *out = false;
        if (json_is_object(need) || json_is_boolean(need)) MF__TRY(child_accepts(j, l, need, v, out));
    }
    return MF_OK;
}

static mf_status keyword(judge *j, literal l, const char *key, const json_t *v, bool *out) {
    const json_t *w = json_object_get(l.node, key);
    size_t n;
    uint32_t mask;
    if (strcmp(key, "type") == 0) {
        MF__TRY(mf__schema_type_mask(j->c, l.node, &mask));
        *out = (mask & mf__json_types(v)) != 0;
    } else if (strcmp(key, "enum") == 0) {
        *out = false;
        MF__TRY(mf__schema_pay(j->c, w, json_array_size(w), 1));
        for (size_t i = 0; i < json_array_size(w) && !*out; i++) *out = mf__json_same(v, json_array_get(w, i));
    } else if (strcmp(key, "const") == 0) {
        *out = mf__json_same(v, w);
    } else if (strcmp(key, "$ref") == 0 || strcmp(key, "$dynamicRef") == 0 || strcmp(key, "$recursiveRef") == 0) {
        literal target;
        MF__TRY(mf__schema_resolve(j->c, l, key, &target));
        return accepts(j, target, v, out);
    } else if (strcmp(key, "allOf") == 0 || strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) {
        MF__TRY(count_valid(j, l, w, v, &n));
        *out = key[0] == 'a' && key[1] == 'l' ? n == json_array_size(w) : key[0] == 'a' ? n > 0 : n == 1;
    } else if (strcmp(key, "not") == 0) {
        MF__TRY(child_accepts(j, l, w, v, out));
        *out = !*out;
    } else if (strcmp(key, "if") == 0) {
        MF__TRY(child_accepts(j, l, w, v, out));
        const json_t *then = json_object_get(l.node, *out ? "then" : "else");
        *out = true;
        if (then) return child_accepts(j, l, then, v, out);
    } else if (strncmp(key, "dependen", 8) == 0) {
        return needs_accept(j, l, w, v, out);
    } else {
        return type_keyword(j, l, key, v, out);
    }
    return MF_OK;
}

static mf_status accepts(judge *j, literal l, const json_t *v, bool *out) {
    *out = !json_is_false(l.node);
    if (!json_is_object(l.node)) return MF_OK;
    if (++j->depth > MAX_DEPTH) return mf__fail(j->c->err, MF_E_LIMIT, "JSON Schema: listed values nested too deep");
    const char *key;
    json_t *value;
    bool only_ref = j->c->legacy && json_is_string(json_object_get(l.node, "$ref"));
    json_object_foreach((json_t *)l.node, key, value) {
        bool fits = true;
        if (!*out || (only_ref && strcmp(key, "$ref") != 0)) continue;
        MF__TRY(keyword(j, l, key, v, &fits));
        *out = *out && fits;
    }
    j->depth--;
    return MF_OK;
}

mf_status mf__schema_accepts(mf__schemas *c, literal l, const json_t *value, bool *out) {
    judge j = {.c = c};
    MF__TRY(accepts(&j, l, value, out));
    if (l.negated) *out = !*out;
    return MF_OK;
}

mf_status mf__fact_accepts(mf__schemas *c, const fact *f, const json_t *value, bool *out) {
    judge j = {.c = c};
    const char *key;
    json_t *w;
    *out = true;
    switch (f->kind) {
    case FACT_GROUP:
        json_object_foreach((json_t *)f->of.node, key, w) {
            bool fits = true;
            if (mf__schema_keyword_type(key) && *out) MF__TRY(type_keyword(&j, f->of, key, value, &fits));
            *out = *out && fits;
        }
        return MF_OK;
    case FACT_NOT:
        *out = (mf__json_types(value) & mf__schema_keyword_type(f->key)) != 0;
        if (*out) MF__TRY(type_keyword(&j, f->of, f->key, value, out));
        *out = !*out;
        return MF_OK;
    case FACT_REQUIRE: *out = json_object_get(value, f->key) != NULL; return MF_OK;
    case FACT_ABSENT: *out = json_object_get(value, f->key) == NULL; return MF_OK;
    case FACT_PROPERTY:
        if (!json_object_get(value, f->key)) return MF_OK;
        return mf__schema_accepts(c, f->of, json_object_get(value, f->key), out);
    case FACT_CONTAINS:
    case FACT_ITEMS:
        for (size_t i = 0; i < json_array_size(value); i++) {
            bool fits = true;
            MF__TRY(mf__schema_accepts(c, f->of, json_array_get(value, i), &fits));
            if (f->kind == FACT_CONTAINS && fits) return *out = true, MF_OK;
            if (f->kind == FACT_ITEMS && !fits) return *out = false, MF_OK;
        }
        *out = f->kind == FACT_ITEMS;
        return MF_OK;
    }
    return MF_OK;
}
