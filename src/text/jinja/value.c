/* Values: making, comparing, iterating. */
#include "text/jinja/value.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/unicode.h"

#define MAX_NESTING 64

mf_status jfail(jctx *c, mf_status status, const char *fmt, ...) {
    char text[MF_ERROR_TEXT];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return mf__fail(c->err, status, "%s: line %d: %s", c->name, c->line, text);
}

mf_status j_alloc(jctx *c, size_t size, void **out) {
    *out = NULL;
    if (size > c->opt.max_memory || c->memory > c->opt.max_memory - size)
        return jfail(c, MF_E_LIMIT, "the template uses more than %zu bytes of memory", c->opt.max_memory);
    c->memory += size + 16;
    *out = mf__arena_alloc(&c->arena, size ? size : 1);
    return *out ? MF_OK : jfail(c, MF_E_NOMEM, "no memory for %zu bytes", size);
}

mf_status j_copy(jctx *c, const char *s, size_t n, jvalue *out) {
    void *copy;
    MF__TRY(j_alloc(c, n, &copy));
    if (n) memcpy(copy, s, n);
    *out = j_string(copy, n);
    return MF_OK;
}

mf_status j_list(jctx *c, jkind kind, size_t capacity, jvalue *out) {
    void *list, *items = NULL;
    MF__TRY(j_alloc(c, sizeof(jlist), &list));
    if (capacity) MF__TRY(j_alloc(c, capacity * sizeof(jvalue), &items));
    *(jlist *)list = (jlist){items, 0, capacity};
    *out = (jvalue){.kind = kind, .list = list};
    return MF_OK;
}

mf_status j_append(jctx *c, jvalue list, jvalue item) {
    jlist *l = list.list;
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 4;
        void *items;
        MF__TRY(j_alloc(c, capacity * sizeof(jvalue), &items));
        if (l->n) memcpy(items, l->items, l->n * sizeof(jvalue));
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->n++] = item;
    return MF_OK;
}

mf_status j_dict(jctx *c, size_t capacity, jvalue *out) {
    void *dict, *pairs = NULL;
    MF__TRY(j_alloc(c, sizeof(jdict), &dict));
    if (capacity) MF__TRY(j_alloc(c, capacity * sizeof(jpair), &pairs));
    *(jdict *)dict = (jdict){pairs, 0, capacity};
    *out = (jvalue){.kind = J_DICT, .dict = dict};
    return MF_OK;
}

static mf_status add_pair(jctx *c, jdict *d, jvalue key, jvalue value) {
    if (d->n == d->capacity) {
        size_t capacity = d->capacity ? d->capacity * 2 : 4;
        void *pairs;
        MF__TRY(j_alloc(c, capacity * sizeof(jpair), &pairs));
        if (d->n) memcpy(pairs, d->pairs, d->n * sizeof(jpair));
        d->pairs = pairs;
        d->capacity = capacity;
    }
    d->pairs[d->n++] = (jpair){key, value};
    return MF_OK;
}

const jvalue *j_find(const jdict *dict, jvalue key) {
    for (size_t i = 0; i < dict->n; i++)
        if (j_equal(dict->pairs[i].key, key)) return &dict->pairs[i].value;
    return NULL;
}

mf_status j_put(jctx *c, jvalue dict, jvalue key, jvalue value) {
    jvalue *there = (jvalue *)j_find(dict.dict, key);
    if (there) return *there = value, MF_OK;
    return add_pair(c, dict.dict, key, value);
}

static mf_status from_json(jctx *c, const json_t *json, jvalue *out, int depth) {
    if (depth > MAX_NESTING) return jfail(c, MF_E_LIMIT, "variables nested deeper than %d", MAX_NESTING);
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_NULL: *out = j_none(); return MF_OK;
    case JSON_TRUE: *out = j_bool(true); return MF_OK;
    case JSON_FALSE: *out = j_bool(false); return MF_OK;
    case JSON_INTEGER: *out = j_int(json_integer_value(json)); return MF_OK;
    case JSON_REAL: *out = j_float(json_real_value(json)); return MF_OK;
    case JSON_STRING: *out = j_string(json_string_value(json), json_string_length(json)); return MF_OK;
    case JSON_ARRAY:
        MF__TRY(j_list(c, J_LIST, json_array_size(json), out));
        for (size_t i = 0; i < json_array_size(json); i++) {
            jvalue item;
            MF__TRY(from_json(c, json_array_get(json, i), &item, depth + 1));
            MF__TRY(j_append(c, *out, item));
        }
        return MF_OK;
    case JSON_OBJECT: {
        const char *key;
        json_t *value;
        MF__TRY(j_dict(c, json_object_size(json), out));
        json_object_foreach((json_t *)json, key, value) {
            jvalue item;
            MF__TRY(from_json(c, value, &item, depth + 1));
            MF__TRY(add_pair(c, out->dict, j_string(key, strlen(key)), item)); /* keys are distinct already */
        }
        return MF_OK;
    }
    }
    return jfail(c, MF_E_INTERNAL, "a JSON value of unknown type");
}

mf_status j_from_json(jctx *c, const json_t *json, jvalue *out) {
    return from_json(c, json, out, 0);
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

const char *j_type(jvalue v) {
    static const char *const names[] = {"undefined", "None", "bool",      "int",  "float", "str",     "list",
                                        "tuple",     "dict", "namespace", "loop", "macro", "function"};
    return names[v.kind];
}

bool j_is_text(jvalue v, const char *text) {
    return v.kind == J_STRING && v.n == strlen(text) && memcmp(v.s, text, v.n) == 0;
}

bool j_truth(jvalue v) {
    switch (v.kind) {
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL: return v.b;
    case J_INT: return v.i != 0;
    case J_FLOAT: return v.f != 0;
    case J_STRING: return v.n != 0;
    case J_LIST:
    case J_TUPLE: return v.list->n != 0;
    case J_DICT: return v.dict->n != 0;
    default: return true;
    }
}

static double as_double(jvalue v) {
    return v.kind == J_FLOAT ? v.f : v.kind == J_INT ? (double)v.i : (double)v.b;
}

static int64_t as_int(jvalue v) {
    return v.kind == J_INT ? v.i : v.b;
}

/* `work` bounds the comparison: lists that share parts can describe a tree of any size. What is too deep or too large
 * counts as different. */
static bool equal(jvalue a, jvalue b, int depth, int64_t *work) {
    if (j_is_number(a) && j_is_number(b)) {
        if (a.kind == J_FLOAT || b.kind == J_FLOAT) return as_double(a) == as_double(b);
        return as_int(a) == as_int(b);
    }
    if (a.kind != b.kind || depth > MAX_NESTING || --*work < 0) return false;
    switch (a.kind) {
    case J_UNDEFINED:
    case J_NONE: return true;
    case J_STRING: return a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
    case J_LIST:
    case J_TUPLE:
        if (a.list->n != b.list->n) return false;
        for (size_t i = 0; i < a.list->n; i++)
            if (!equal(a.list->items[i], b.list->items[i], depth + 1, work)) return false;
        return true;
    case J_DICT:
        if (a.dict->n != b.dict->n) return false;
        for (size_t i = 0; i < a.dict->n; i++) {
            const jvalue *other = j_find(b.dict, a.dict->pairs[i].key);
            if (!other || !equal(a.dict->pairs[i].value, *other, depth + 1, work)) return false;
        }
        return true;
    case J_FUNCTION: return a.n == b.n && a.self == b.self;
    default: return a.dict == b.dict;
    }
}

bool j_equal(jvalue a, jvalue b) {
    int64_t work = 1000000;
    return equal(a, b, 0, &work);
}

static mf_status compare(jctx *c, jvalue a, jvalue b, int *order, int depth) {
    if (depth > MAX_NESTING) return jfail(c, MF_E_LIMIT, "a value nested deeper than %d", MAX_NESTING);
    if (j_is_number(a) && j_is_number(b)) {
        if (a.kind == J_FLOAT || b.kind == J_FLOAT)
            *order = as_double(a) < as_double(b) ? -1 : as_double(a) > as_double(b);
        else
            *order = as_int(a) < as_int(b) ? -1 : as_int(a) > as_int(b);
        return MF_OK;
    }
    if (a.kind == J_STRING && b.kind == J_STRING) {
        int d = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
        *order = d ? (d < 0 ? -1 : 1) : a.n < b.n ? -1 : a.n > b.n;
        return MF_OK;
    }
    if (a.kind == b.kind && j_is_list(a)) {
        for (size_t i = 0; i < a.list->n && i < b.list->n; i++)
            if (!j_equal(a.list->items[i], b.list->items[i]))
                return compare(c, a.list->items[i], b.list->items[i], order, depth + 1);
        *order = a.list->n < b.list->n ? -1 : a.list->n > b.list->n;
        return MF_OK;
    }
    return jfail(c, MF_E_INVALID, "%s and %s cannot be ordered", j_type(a), j_type(b));
}

mf_status j_compare(jctx *c, jvalue a, jvalue b, int *order) {
    return compare(c, a, b, order, 0);
}

/* ---- text and iteration ---------------------------------------------------------------------------------------- */

size_t j_utf8_count(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((uint8_t)s[i] & 0xC0) != 0x80;
    return count;
}

size_t j_utf8_offset(const char *s, size_t n, size_t chars) {
    size_t i = 0;
    while (i < n && chars > 0) {
        i++;
        while (i < n && ((uint8_t)s[i] & 0xC0) == 0x80) i++;
        chars--;
    }
    return i;
}

bool j_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

mf_status j_length(jctx *c, jvalue v, size_t *n) {
    switch (v.kind) {
    case J_UNDEFINED: *n = 0; return MF_OK;
    case J_STRING: *n = j_utf8_count(v.s, v.n); return MF_OK;
    case J_LIST:
    case J_TUPLE: *n = v.list->n; return MF_OK;
    case J_DICT: *n = v.dict->n; return MF_OK;
    case J_LOOP: *n = v.loop->items->n; return MF_OK;
    default: return jfail(c, MF_E_INVALID, "%s has no length", j_type(v));
    }
}

mf_status j_iterate(jctx *c, jvalue v, const jlist **out) {
    static const jlist none = {0};
    jvalue list;
    *out = &none;
    if (v.kind == J_UNDEFINED) return MF_OK;
    if (j_is_list(v)) return *out = v.list, MF_OK;
    if (v.kind == J_DICT) {
        MF__TRY(j_list(c, J_LIST, v.dict->n, &list));
        for (size_t i = 0; i < v.dict->n; i++) MF__TRY(j_append(c, list, v.dict->pairs[i].key));
    } else if (v.kind == J_STRING) {
        MF__TRY(j_list(c, J_LIST, j_utf8_count(v.s, v.n), &list));
        for (size_t i = 0; i < v.n;) {
            size_t k = j_utf8_offset(v.s + i, v.n - i, 1);
            MF__TRY(j_append(c, list, j_string(v.s + i, k)));
            i += k;
        }
    } else {
        return jfail(c, MF_E_INVALID, "%s cannot be iterated", j_type(v));
    }
    *out = list.list;
    return MF_OK;
}
