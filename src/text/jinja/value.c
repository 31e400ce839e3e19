/* Values: making, comparing, iterating. */
#include "text/jinja/value.h"

#include <string.h>

#include "text/unicode.h"

mf_status mf__j_copy(jctx *c, const char *s, size_t n, jvalue *out) {
    void *copy;
    MF__TRY(mf__j_alloc(c, n, &copy));
    if (n) memcpy(copy, s, n);
    *out = mf__j_string(copy, n);
    return MF_OK;
}

mf_status mf__j_list(jctx *c, jkind kind, size_t capacity, jvalue *out) {
    void *list, *items = NULL;
    MF__TRY(mf__j_alloc(c, sizeof(jlist), &list));
    if (capacity) MF__TRY(mf__j_alloc_array(c, capacity, sizeof(jvalue), &items));
    *(jlist *)list = (jlist){.items = items, .capacity = capacity};
    *out = (jvalue){.kind = kind, .list = list};
    return MF_OK;
}

mf_status mf__j_append(jctx *c, jvalue list, jvalue item) {
    jlist *l = list.list;
    MF__TRY(mf__j_pay(c, 1));
    if (l->n == l->capacity) {
        size_t capacity = l->capacity ? l->capacity * 2 : 4;
        void *items;
        MF__TRY(mf__j_alloc_array(c, capacity, sizeof(jvalue), &items));
        if (l->n) memcpy(items, l->items, l->n * sizeof(jvalue));
        l->items = items;
        l->capacity = capacity;
    }
    l->items[l->n++] = item;
    return MF_OK;
}

mf_status mf__j_pair(jctx *c, jvalue a, jvalue b, jvalue *out) {
    MF__TRY(mf__j_list(c, J_TUPLE, 2, out));
    MF__TRY(mf__j_append(c, *out, a));
    return mf__j_append(c, *out, b);
}

mf_status mf__j_set_range(jctx *c, jvalue list, int64_t first, int64_t end, int64_t step) {
    void *memory;
    MF__TRY(mf__j_alloc_array(c, 3, sizeof(int64_t), &memory));
    memcpy(memory, (const int64_t[]){first, end, step}, 3 * sizeof(int64_t));
    list.list->range = memory;
    return MF_OK;
}

static mf_status object_from_json(jctx *c, const json_t *json, jvalue *out) {
    const char *key;
    json_t *value;
    MF__TRY(mf__j_dict(c, json_object_size(json), out));
    json_object_foreach((json_t *)json, key, value) {
        jpair *p = &out->dict->pairs[out->dict->n]; /* keys are distinct already: no need to look for them */
        p->key = mf__j_string(key, strlen(key));
        MF__TRY(mf__j_from_json(c, value, &p->value));
        out->dict->n++;
    }
    out->dict->stale = true;
    return MF_OK;
}

mf_status mf__j_from_json(jctx *c, const json_t *json, jvalue *out) {
    MF__TRY(mf__j_pay(c, 1));
    switch (json ? json_typeof(json) : JSON_NULL) {
    case JSON_NULL: *out = mf__j_none(); return MF_OK;
    case JSON_TRUE: *out = mf__j_bool(true); return MF_OK;
    case JSON_FALSE: *out = mf__j_bool(false); return MF_OK;
    case JSON_INTEGER: *out = mf__j_int(json_integer_value(json)); return MF_OK;
    case JSON_REAL: *out = mf__j_float(json_real_value(json)); return MF_OK;
    case JSON_STRING: *out = mf__j_string(json_string_value(json), json_string_length(json)); return MF_OK;
    case JSON_ARRAY:
        MF__TRY(mf__j_enter(c));
        MF__TRY(mf__j_list(c, J_LIST, json_array_size(json), out));
        for (size_t i = 0; i < json_array_size(json); i++) {
            jvalue item;
            MF__TRY(mf__j_from_json(c, json_array_get(json, i), &item));
            MF__TRY(mf__j_append(c, *out, item));
        }
        mf__j_leave(c);
        return MF_OK;
    case JSON_OBJECT:
        MF__TRY(mf__j_enter(c));
        MF__TRY(object_from_json(c, json, out));
        mf__j_leave(c);
        return MF_OK;
    }
    return mf__j_fail(c, MF_E_INTERNAL, "a JSON value of unknown type");
}

/* ---- asking ---------------------------------------------------------------------------------------------------- */

const char *mf__j_type(jvalue v) {
    static const char *const names[] = {
        [J_UNDEFINED] = "undefined", [J_NONE] = "None",           [J_BOOL] = "bool",     [J_INT] = "int",
        [J_FLOAT] = "float",         [J_STRING] = "str",          [J_LIST] = "list",     [J_TUPLE] = "tuple",
        [J_DICT] = "dict",           [J_NAMESPACE] = "namespace", [J_LOOP] = "loop",     [J_MACRO] = "macro",
        [J_FUNCTION] = "function",   [J_CYCLER] = "cycler",       [J_JOINER] = "joiner", [J_BLOCKS] = "self"};
    return names[v.kind];
}

bool mf__j_same_name(const char *a, size_t n, const char *text) {
    return n == strlen(text) && memcmp(a, text, n) == 0;
}

bool mf__j_is_text(jvalue v, const char *text) {
    return v.kind == J_STRING && mf__j_same_name(v.s, v.n, text);
}

bool mf__j_truth(jvalue v) {
    switch (v.kind) {
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL: return v.b;
    case J_INT: return v.i != 0;
    case J_FLOAT: return v.f != 0;
    case J_STRING: return v.n != 0;
    case J_LIST:
    case J_TUPLE: return v.list->n != 0 || (v.kind == J_LIST && v.form == JF_GENERATOR);
    case J_DICT: return v.dict->n != 0;
    default: return true;
    }
}

static mf_status equal_lists(jctx *c, const jlist *a, const jlist *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n && i < b->n; i++) MF__TRY(mf__j_equal(c, a->items[i], b->items[i], out));
    return MF_OK;
}

static mf_status equal_dicts(jctx *c, const jdict *a, const jdict *b, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const jvalue *other;
        MF__TRY(mf__j_find(c, b, a->pairs[i].key, &other));
        *out = other != NULL;
        if (other) MF__TRY(mf__j_equal(c, a->pairs[i].value, *other, out));
    }
    return MF_OK;
}

static mf_status equal_parts(jctx *c, jvalue a, jvalue b, bool *out) {
    switch (a.kind) {
    case J_UNDEFINED:
    case J_NONE: *out = true; return MF_OK;
    case J_STRING:
        *out = a.n == b.n;
        if (!*out || a.s == b.s) return MF_OK;
        MF__TRY(mf__j_pay_bytes(c, a.n, J_COPIED));
        *out = memcmp(a.s, b.s, a.n) == 0;
        return MF_OK;
    case J_LIST:
    case J_TUPLE: *out = a.list == b.list; return *out ? MF_OK : equal_lists(c, a.list, b.list, out);
    case J_DICT: *out = a.dict == b.dict; return *out ? MF_OK : equal_dicts(c, a.dict, b.dict, out);
    case J_FUNCTION: *out = a.function->entry == b.function->entry; return MF_OK;
    default: *out = a.dict == b.dict; return MF_OK;
    }
}

/* Lists that share parts can describe a tree of any size, so each comparison is paid for. */
mf_status mf__j_equal(jctx *c, jvalue a, jvalue b, bool *out) {
    MF__TRY(mf__j_pay(c, 1));
    if (mf__j_is_number(a) && mf__j_is_number(b)) {
        *out = a.kind == J_FLOAT || b.kind == J_FLOAT ? mf__j_as_double(a) == mf__j_as_double(b)
                                                      : mf__j_as_int(a) == mf__j_as_int(b);
        return MF_OK;
    }
    *out = false;
    if (a.kind != b.kind) return MF_OK;
    MF__TRY(mf__j_enter(c));
    MF__TRY(equal_parts(c, a, b, out));
    mf__j_leave(c);
    return MF_OK;
}

static mf_status compare_lists(jctx *c, const jlist *a, const jlist *b, int *order) {
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        MF__TRY(mf__j_equal(c, a->items[i], b->items[i], &same));
        if (!same) return mf__j_compare(c, a->items[i], b->items[i], order);
    }
    *order = a->n < b->n ? -1 : a->n > b->n;
    return MF_OK;
}

mf_status mf__j_compare(jctx *c, jvalue a, jvalue b, int *order) {
    MF__TRY(mf__j_pay(c, 1));
    if (mf__j_is_int(a) && mf__j_is_int(b)) {
        int64_t x = mf__j_as_int(a), y = mf__j_as_int(b);
        *order = x < y ? -1 : x > y;
        return MF_OK;
    }
    if (mf__j_is_number(a) && mf__j_is_number(b)) {
        double x = mf__j_as_double(a), y = mf__j_as_double(b);
        *order = x < y ? -1 : x > y ? 1 : x == y ? 0 : 2; /* 2: NaN, neither less nor greater nor equal */
        return MF_OK;
    }
    if (a.kind == J_STRING && b.kind == J_STRING) {
        size_t n = a.n < b.n ? a.n : b.n;
        MF__TRY(mf__j_pay_bytes(c, n, J_COPIED));
        int d = n ? memcmp(a.s, b.s, n) : 0;
        *order = d ? (d < 0 ? -1 : 1) : a.n < b.n ? -1 : a.n > b.n;
        return MF_OK;
    }
    if (a.kind != b.kind || !mf__j_is_list(a) || (a.kind == J_LIST && (a.form || b.form)))
        return mf__j_fail(c, MF_E_INVALID, "%s and %s cannot be ordered", mf__j_type(a), mf__j_type(b));
    MF__TRY(mf__j_enter(c));
    MF__TRY(compare_lists(c, a.list, b.list, order));
    mf__j_leave(c);
    return MF_OK;
}

/* What has no order may still be equal, None and None. */
static mf_status compare_keys(jctx *c, jvalue a, jvalue b, int *order) {
    if (a.kind == b.kind && (a.kind == J_NONE || a.kind == J_UNDEFINED)) return *order = 0, MF_OK;
    return mf__j_compare(c, a, b, order);
}

/* Merge sort. */
static mf_status sort_with(jctx *c, jpair *a, jpair *scratch, size_t n, bool reverse) {
    if (n < 2) return MF_OK;
    size_t half = n / 2, i = 0, j = half, k = 0;
    MF__TRY(sort_with(c, a, scratch, half, reverse));
    MF__TRY(sort_with(c, a + half, scratch, n - half, reverse));
    while (i < half && j < n) {
        int order;
        MF__TRY(compare_keys(c, a[i].key, a[j].key, &order));
        bool left = reverse ? order >= 0 : order <= 0 || order == 2;
        scratch[k++] = left ? a[i++] : a[j++];
    }
    while (i < half) scratch[k++] = a[i++];
    while (j < n) scratch[k++] = a[j++];
    memcpy(a, scratch, n * sizeof *a);
    return MF_OK;
}

mf_status mf__j_sort_pairs(jctx *c, jpair *a, size_t n, bool reverse) {
    void *scratch;
    MF__TRY(mf__j_alloc_array(c, n, sizeof *a, &scratch));
    return sort_with(c, a, scratch, n, reverse);
}

/* ---- text and iteration ---------------------------------------------------------------------------------------- */

size_t mf__j_utf8_count(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((uint8_t)s[i] & 0xC0) != 0x80;
    return count;
}

size_t mf__j_utf8_offset(const char *s, size_t n, size_t chars) {
    size_t i = 0;
    while (i < n && chars > 0) {
        i++;
        while (i < n && ((uint8_t)s[i] & 0xC0) == 0x80) i++;
        chars--;
    }
    return i;
}

bool mf__j_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

const char *mf__j_search(jvalue s, jvalue what) {
    if (what.n > s.n) return NULL;
    if (what.n == 0) return s.s ? s.s : "";
    return memmem(s.s, s.n, what.s, what.n);
}

mf_status mf__j_length(jctx *c, jvalue v, size_t *n) {
    switch (v.kind) {
    case J_UNDEFINED: *n = 0; return MF_OK;
    case J_STRING:
        MF__TRY(mf__j_pay_bytes(c, v.n, J_SEARCHED));
        *n = mf__j_utf8_count(v.s, v.n);
        return MF_OK;
    case J_LIST:
        if (v.form == JF_GENERATOR)
            return mf__j_fail(c, MF_E_INVALID,
                              "a generator (of map, select, ...) has no length; |list makes it a list");
        *n = v.list->n;
        return MF_OK;
    case J_TUPLE: *n = v.list->n; return MF_OK;
    case J_DICT: *n = v.dict->n; return MF_OK;
    case J_LOOP: *n = v.loop->items->n; return MF_OK;
    default: return mf__j_fail(c, MF_E_INVALID, "%s has no length", mf__j_type(v));
    }
}

static mf_status characters(jctx *c, jvalue v, jvalue *list) {
    size_t n;
    MF__TRY(mf__j_length(c, v, &n));
    MF__TRY(mf__j_list(c, J_LIST, n, list));
    for (size_t i = 0; i < v.n;) {
        size_t k = mf__j_utf8_offset(v.s + i, v.n - i, 1);
        MF__TRY(mf__j_append(c, *list, mf__j_string(v.s + i, k)));
        i += k;
    }
    return MF_OK;
}

mf_status mf__j_iterate(jctx *c, jvalue v, const jlist **out) {
    static const jlist none = {0};
    jvalue list;
    *out = &none;
    if (v.kind == J_UNDEFINED) return MF_OK;
    if (v.kind == J_LIST && v.form == JF_GENERATOR) {
        MF__TRY(mf__j_list(c, J_LIST, 0, &list));
        *list.list = *v.list;
        v.list->n = v.list->capacity = 0;
        return *out = list.list, MF_OK;
    }
    if (mf__j_is_list(v)) return *out = v.list, MF_OK;
    if (v.kind == J_DICT) {
        MF__TRY(mf__j_list(c, J_LIST, v.dict->n, &list));
        for (size_t i = 0; i < v.dict->n; i++) MF__TRY(mf__j_append(c, list, v.dict->pairs[i].key));
    } else if (v.kind == J_STRING) {
        MF__TRY(characters(c, v, &list));
    } else {
        return mf__j_fail(c, MF_E_INVALID, "%s cannot be iterated", mf__j_type(v));
    }
    *out = list.list;
    return MF_OK;
}
