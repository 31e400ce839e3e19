/* Filters: value|name(arguments). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/run.h"

typedef mf_status filter_fn(jctx *c, jvalue in, const jargs *args, jvalue *out);

static bool truth_arg(const jargs *args, size_t at, const char *name, bool missing) {
    const jvalue *v = j_arg(args, at, name);
    return v ? j_truth(*v) : missing;
}

/* ---- text ------------------------------------------------------------------------------------------------------ */

static mf_status x_tojson(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *indent = j_arg(args, 1, "indent"), *separators = j_arg(args, 2, "separators");
    jjson_format f = {
        truth_arg(args, 0, "ensure_ascii", false), truth_arg(args, 3, "sort_keys", false), -1, ", ", ": ", 2, 2};
    if (indent && indent->kind == J_INT) {
        f.indent = indent->i < 0 ? 0 : indent->i > 32 ? 32 : (int)indent->i;
        f.item_separator = ",";
        f.n_item_separator = 1;
    }
    if (separators && j_is_list(*separators) && separators->list->n == 2 &&
        separators->list->items[0].kind == J_STRING && separators->list->items[1].kind == J_STRING) {
        f.item_separator = separators->list->items[0].s;
        f.n_item_separator = separators->list->items[0].n;
        f.key_separator = separators->list->items[1].s;
        f.n_key_separator = separators->list->items[1].n;
    }
    mf__strbuf b = {0};
    mf_status status = j_tojson(c, in, &f, &b, 0);
    if (status == MF_OK) status = j_copy(c, b.data, b.size, out);
    mf__strbuf_free(&b);
    return status;
}

static mf_status x_string(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    (void)args;
    return j_str(c, in, out);
}

static mf_status x_trim(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    jvalue s;
    MF__TRY(j_str(c, in, &s));
    return j_strip(c, s, j_arg(args, 0, "chars"), 3, out);
}

static mf_status x_case(jctx *c, jvalue in, char how, jvalue *out) {
    jvalue s;
    MF__TRY(j_str(c, in, &s));
    return j_change_case(c, s, how, out);
}
static mf_status x_upper(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    (void)args;
    return x_case(c, in, 'u', out);
}
static mf_status x_lower(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    (void)args;
    return x_case(c, in, 'l', out);
}
static mf_status x_title(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    (void)args;
    return x_case(c, in, 't', out);
}
static mf_status x_capitalize(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    (void)args;
    return x_case(c, in, 'c', out);
}

static mf_status x_replace(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *from = j_arg(args, 0, "old"), *to = j_arg(args, 1, "new"), *count = j_arg(args, 2, "count");
    jvalue s, a, b;
    if (!from || !to) return jfail(c, MF_E_INVALID, "replace needs two texts");
    MF__TRY(j_str(c, in, &s));
    MF__TRY(j_str(c, *from, &a));
    MF__TRY(j_str(c, *to, &b));
    return j_replace(c, s, a, b, count && count->kind == J_INT ? count->i : -1, out);
}

static mf_status x_escape(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    (void)args;
    MF__TRY(j_str(c, in, out));
    for (size_t i = 0; i < MF__COUNT(to); i++)
        MF__TRY(j_replace(c, *out, j_string(from + i, 1), j_string(to[i], strlen(to[i])), -1, out));
    return MF_OK;
}

static mf_status x_indent(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *width = j_arg(args, 0, "width");
    bool first = truth_arg(args, 1, "first", false), blank = truth_arg(args, 2, "blank", false);
    jvalue s, pad = j_string("    ", 4);
    mf__strbuf b = {0};
    mf_status status = j_str(c, in, &s);
    if (status == MF_OK && width && width->kind == J_STRING) pad = *width;
    int64_t n = width && width->kind == J_INT ? width->i : -1;
    if (n > 1000) return jfail(c, MF_E_LIMIT, "indent by %lld", (long long)n);
    for (size_t i = 0; status == MF_OK && i <= s.n;) {
        const char *end = i < s.n ? memchr(s.s + i, '\n', s.n - i) : NULL;
        size_t stop = end ? (size_t)(end - s.s) : s.n;
        bool empty = stop == i;
        if ((i > 0 || first) && (!empty || blank)) {
            if (n < 0) status = j_print(c, pad, &b);
            for (int64_t k = 0; status == MF_OK && k < n; k++) status = j_print(c, j_string(" ", 1), &b);
        }
        if (status == MF_OK) status = j_print(c, j_string(s.s + i, stop + (end ? 1 : 0) - i), &b);
        i = stop + 1;
    }
    if (status == MF_OK) status = j_copy(c, b.data, b.size, out);
    mf__strbuf_free(&b);
    return status;
}

/* ---- collections ----------------------------------------------------------------------------------------------- */

static mf_status x_length(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    size_t n;
    (void)args;
    MF__TRY(j_length(c, in, &n));
    *out = j_int((int64_t)n);
    return MF_OK;
}

static mf_status attribute_of(jctx *c, jvalue v, const jvalue *path, jvalue *out) {
    *out = v;
    if (!path || path->kind == J_NONE) return MF_OK;
    if (path->kind != J_STRING) return j_getitem(c, v, *path, out);
    for (size_t i = 0; i <= path->n;) { /* dots lead on */
        const char *dot = i < path->n ? memchr(path->s + i, '.', path->n - i) : NULL;
        size_t n = dot ? (size_t)(dot - path->s) - i : path->n - i;
        MF__TRY(j_getitem(c, *out, j_string(path->s + i, n), out));
        i += n + 1;
    }
    return MF_OK;
}

static mf_status x_join(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *sep = j_arg(args, 0, "d"), *path = j_arg(args, 1, "attribute");
    const jlist *list;
    mf__strbuf b = {0};
    MF__TRY(j_iterate(c, in, &list));
    mf_status status = MF_OK;
    for (size_t i = 0; status == MF_OK && i < list->n; i++) {
        jvalue v;
        status = attribute_of(c, list->items[i], path, &v);
        if (status == MF_OK && i && sep) status = j_print(c, *sep, &b);
        if (status == MF_OK) status = j_print(c, v, &b);
    }
    if (status == MF_OK) status = j_copy(c, b.data, b.size, out);
    mf__strbuf_free(&b);
    return status;
}

static mf_status x_items(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    size_t function;
    (void)args;
    if (in.kind == J_UNDEFINED) return j_list(c, J_LIST, 0, out);
    if (in.kind != J_DICT || !j_find_method(in, "items", 5, &function))
        return jfail(c, MF_E_INVALID, "items needs a dict, not %s", j_type(in));
    return j_call_function(c, (jvalue){.kind = J_FUNCTION, .n = function, .self = &in}, &(jargs){0}, out);
}

static mf_status x_list(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jlist *items;
    (void)args;
    MF__TRY(j_iterate(c, in, &items));
    MF__TRY(j_list(c, J_LIST, items->n, out));
    for (size_t i = 0; i < items->n; i++) MF__TRY(j_append(c, *out, items->items[i]));
    return MF_OK;
}

static mf_status x_first(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jlist *items;
    (void)args;
    MF__TRY(j_iterate(c, in, &items));
    *out = items->n ? items->items[0] : j_undefined(NULL, 0);
    return MF_OK;
}

static mf_status x_last(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jlist *items;
    (void)args;
    MF__TRY(j_iterate(c, in, &items));
    *out = items->n ? items->items[items->n - 1] : j_undefined(NULL, 0);
    return MF_OK;
}

static mf_status x_reverse(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jlist *items;
    (void)args;
    MF__TRY(j_iterate(c, in, &items));
    MF__TRY(j_list(c, J_LIST, items->n, out));
    for (size_t i = items->n; i-- > 0;) MF__TRY(j_append(c, *out, items->items[i]));
    if (in.kind != J_STRING) return MF_OK;
    return x_join(c, *out, &(jargs){0}, out);
}

static mf_status x_unique(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jlist *items;
    (void)args;
    MF__TRY(j_iterate(c, in, &items));
    MF__TRY(j_list(c, J_LIST, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        bool there;
        c->steps += (int64_t)out->list->n;
        if (c->steps > c->opt.max_steps) return jfail(c, MF_E_LIMIT, "the template takes too many steps");
        MF__TRY(j_contains(c, items->items[i], *out, &there));
        if (!there) MF__TRY(j_append(c, *out, items->items[i]));
    }
    return MF_OK;
}

/* Merge sort, stable, by (key) with text compared without case as jinja2 does unless told otherwise. */
static mf_status sort_pairs(jctx *c, jpair *a, jpair *scratch, size_t n, bool reverse) {
    if (n < 2) return MF_OK;
    size_t half = n / 2, i = 0, j = half, k = 0;
    MF__TRY(sort_pairs(c, a, scratch, half, reverse));
    MF__TRY(sort_pairs(c, a + half, scratch, n - half, reverse));
    while (i < half && j < n) {
        int order;
        MF__TRY(j_compare(c, a[i].key, a[j].key, &order));
        bool left = reverse ? order >= 0 : order <= 0;
        scratch[k++] = left ? a[i++] : a[j++];
    }
    while (i < half) scratch[k++] = a[i++];
    while (j < n) scratch[k++] = a[j++];
    memcpy(a, scratch, n * sizeof *a);
    return MF_OK;
}

static mf_status sort_by(jctx *c, const jlist *items, const jvalue *path, bool reverse, bool case_sensitive,
                         jvalue *out) {
    void *pairs, *scratch;
    MF__TRY(j_alloc(c, (items->n + 1) * sizeof(jpair), &pairs));
    MF__TRY(j_alloc(c, (items->n + 1) * sizeof(jpair), &scratch));
    for (size_t i = 0; i < items->n; i++) {
        jpair *p = (jpair *)pairs + i;
        p->value = items->items[i];
        MF__TRY(attribute_of(c, p->value, path, &p->key));
        if (p->key.kind == J_STRING && !case_sensitive) MF__TRY(j_change_case(c, p->key, 'l', &p->key));
    }
    MF__TRY(sort_pairs(c, pairs, scratch, items->n, reverse));
    MF__TRY(j_list(c, J_LIST, items->n, out));
    for (size_t i = 0; i < items->n; i++) MF__TRY(j_append(c, *out, ((jpair *)pairs)[i].value));
    return MF_OK;
}

static mf_status x_sort(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jlist *items;
    MF__TRY(j_iterate(c, in, &items));
    return sort_by(c, items, j_arg(args, 2, "attribute"), truth_arg(args, 0, "reverse", false),
                   truth_arg(args, 1, "case_sensitive", false), out);
}

static mf_status x_dictsort(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *by = j_arg(args, 1, "by");
    jvalue items, index = j_int(by && j_is_text(*by, "value"));
    MF__TRY(x_items(c, in, args, &items));
    return sort_by(c, items.list, &index, truth_arg(args, 2, "reverse", false),
                   truth_arg(args, 0, "case_sensitive", false), out);
}

static mf_status extreme(jctx *c, jvalue in, int sign, jvalue *out) {
    const jlist *items;
    MF__TRY(j_iterate(c, in, &items));
    *out = items->n ? items->items[0] : j_undefined(NULL, 0);
    for (size_t i = 1; i < items->n; i++) {
        int order;
        MF__TRY(j_compare(c, items->items[i], *out, &order));
        if (order * sign > 0) *out = items->items[i];
    }
    return MF_OK;
}
static mf_status x_max(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    (void)args;
    return extreme(c, in, 1, out);
}
static mf_status x_min(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    (void)args;
    return extreme(c, in, -1, out);
}

/* ---- map and select -------------------------------------------------------------------------------------------- */

static jargs rest(const jargs *args, size_t n) {
    if (args->n <= n) return (jargs){NULL, 0, args->named, args->n_named};
    return (jargs){args->pos + n, args->n - n, args->named, args->n_named};
}

static mf_status x_map(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *path = j_arg(args, SIZE_MAX, "attribute"), *other = j_arg(args, SIZE_MAX, "default");
    const jlist *items;
    MF__TRY(j_iterate(c, in, &items));
    MF__TRY(j_list(c, J_LIST, items->n, out));
    if (!path && (args->n == 0 || args->pos[0].kind != J_STRING))
        return jfail(c, MF_E_INVALID, "map needs a filter's name or attribute=");
    for (size_t i = 0; i < items->n; i++) {
        jvalue v;
        if (path) {
            MF__TRY(attribute_of(c, items->items[i], path, &v));
            if (v.kind == J_UNDEFINED && other) v = *other;
        } else {
            jargs more = rest(args, 1);
            MF__TRY(j_filter(c, args->pos[0].s, args->pos[0].n, items->items[i], &more, &v));
        }
        MF__TRY(j_append(c, *out, v));
    }
    return MF_OK;
}

/* Keeps the items for which a test holds (or does not): of the item, or of one of its attributes. */
static mf_status select_items(jctx *c, jvalue in, const jargs *args, bool keep, bool by_attribute, jvalue *out) {
    const jlist *items;
    size_t at = by_attribute ? 1 : 0;
    const jvalue *test = j_arg(args, at, NULL);
    if (by_attribute && args->n == 0) return jfail(c, MF_E_INVALID, "selectattr needs an attribute");
    if (test && test->kind != J_STRING) return jfail(c, MF_E_INVALID, "select needs a test's name");
    MF__TRY(j_iterate(c, in, &items));
    MF__TRY(j_list(c, J_LIST, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        jvalue v = items->items[i];
        jargs more = rest(args, at + 1);
        if (by_attribute) MF__TRY(attribute_of(c, v, &args->pos[0], &v));
        bool holds = j_truth(v);
        if (test) MF__TRY(j_test(c, test->s, test->n, v, &more, &holds));
        if (holds == keep) MF__TRY(j_append(c, *out, items->items[i]));
    }
    return MF_OK;
}
static mf_status x_select(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    return select_items(c, in, args, true, false, out);
}
static mf_status x_reject(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    return select_items(c, in, args, false, false, out);
}
static mf_status x_selectattr(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    return select_items(c, in, args, true, true, out);
}
static mf_status x_rejectattr(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    return select_items(c, in, args, false, true, out);
}

/* ---- numbers and defaults -------------------------------------------------------------------------------------- */

static mf_status x_default(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *other = j_arg(args, 0, "default_value");
    (void)c;
    bool use = in.kind == J_UNDEFINED || (truth_arg(args, 1, "boolean", false) && !j_truth(in));
    *out = !use ? in : other ? *other : j_string("", 0);
    return MF_OK;
}

/* The number a text or number stands for; false: none. */
static bool to_number(jvalue v, double *f, int64_t *i, bool *is_int) {
    char text[64], *end;
    *is_int = v.kind == J_INT || v.kind == J_BOOL;
    *i = v.kind == J_INT ? v.i : v.kind == J_BOOL ? v.b : 0;
    *f = v.kind == J_FLOAT ? v.f : (double)*i;
    if (j_is_number(v)) return true;
    if (v.kind != J_STRING || v.n == 0 || v.n >= sizeof text) return false;
    memcpy(text, v.s, v.n);
    text[v.n] = 0;
    *i = strtoll(text, &end, 10);
    *is_int = *end == 0;
    *f = strtod(text, &end);
    return *end == 0;
}

static mf_status x_int(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *other = j_arg(args, 0, "default");
    double f;
    int64_t i;
    bool is_int;
    (void)c;
    *out = other ? *other : j_int(0);
    if (!to_number(in, &f, &i, &is_int)) return MF_OK;
    if (is_int)
        *out = j_int(i);
    else if (f > -9e18 && f < 9e18)
        *out = j_int((int64_t)f);
    return MF_OK;
}

static mf_status x_float(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *other = j_arg(args, 0, "default");
    double f;
    int64_t i;
    bool is_int;
    (void)c;
    *out = to_number(in, &f, &i, &is_int) ? j_float(f) : other ? *other : j_float(0);
    return MF_OK;
}

static mf_status x_abs(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    (void)args;
    if (in.kind == J_FLOAT) return *out = j_float(fabs(in.f)), MF_OK;
    if (in.kind != J_INT || in.i == INT64_MIN) return jfail(c, MF_E_INVALID, "abs of %s", j_type(in));
    *out = j_int(in.i < 0 ? -in.i : in.i);
    return MF_OK;
}

static mf_status x_round(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *precision = j_arg(args, 0, "precision"), *method = j_arg(args, 1, "method");
    double f, scale;
    int64_t i;
    bool is_int;
    if (!j_is_number(in) || !to_number(in, &f, &i, &is_int)) return jfail(c, MF_E_INVALID, "round of %s", j_type(in));
    scale = pow(10, precision && precision->kind == J_INT ? (double)precision->i : 0);
    f *= scale;
    f = method && j_is_text(*method, "ceil")    ? ceil(f)
        : method && j_is_text(*method, "floor") ? floor(f)
                                                : nearbyint(f);
    *out = j_float(f / scale);
    return MF_OK;
}

static mf_status x_sum(jctx *c, jvalue in, const jargs *args, jvalue *out) {
    const jvalue *path = j_arg(args, 0, "attribute");
    const jlist *items;
    double f = 0;
    int64_t i = 0;
    bool ints = true;
    MF__TRY(j_iterate(c, in, &items));
    for (size_t k = 0; k < items->n; k++) {
        jvalue v;
        MF__TRY(attribute_of(c, items->items[k], path, &v));
        if (!j_is_number(v)) return jfail(c, MF_E_INVALID, "sum of %s", j_type(v));
        if (v.kind == J_FLOAT) ints = false;
        f += v.kind == J_FLOAT ? v.f : v.kind == J_INT ? (double)v.i : v.b;
        if (v.kind != J_FLOAT && __builtin_add_overflow(i, v.kind == J_INT ? v.i : v.b, &i)) ints = false;
    }
    *out = ints ? j_int(i) : j_float(f);
    return MF_OK;
}

/* ---- the table ------------------------------------------------------------------------------------------------- */

mf_status j_filter(jctx *c, const char *name, size_t n, jvalue input, const jargs *args, jvalue *out) {
    static const struct {
        const char *name;
        filter_fn *fn;
    } filters[] = {
        {"tojson", x_tojson},
        {"string", x_string},
        {"safe", x_string},
        {"trim", x_trim},
        {"upper", x_upper},
        {"lower", x_lower},
        {"title", x_title},
        {"capitalize", x_capitalize},
        {"replace", x_replace},
        {"escape", x_escape},
        {"e", x_escape},
        {"indent", x_indent},
        {"length", x_length},
        {"count", x_length},
        {"join", x_join},
        {"items", x_items},
        {"list", x_list},
        {"first", x_first},
        {"last", x_last},
        {"reverse", x_reverse},
        {"unique", x_unique},
        {"sort", x_sort},
        {"dictsort", x_dictsort},
        {"max", x_max},
        {"min", x_min},
        {"map", x_map},
        {"select", x_select},
        {"reject", x_reject},
        {"selectattr", x_selectattr},
        {"rejectattr", x_rejectattr},
        {"default", x_default},
        {"d", x_default},
        {"int", x_int},
        {"float", x_float},
        {"abs", x_abs},
        {"round", x_round},
        {"sum", x_sum},
    };
    if (++c->steps > c->opt.max_steps)
        return jfail(c, MF_E_LIMIT, "the template takes more than %lld steps", (long long)c->opt.max_steps);
    for (size_t i = 0; i < MF__COUNT(filters); i++)
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0)
            return filters[i].fn(c, input, args, out);
    return jfail(c, MF_E_UNSUPPORTED, "the filter \"%.*s\" is not known", n > 40 ? 40 : (int)n, name);
}
