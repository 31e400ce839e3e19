/* Filters of lists and dictionaries. */
#include <string.h>

#include "text/jinja/run.h"

mf_status mf__j_attribute(jctx *c, jvalue v, const jvalue *path, jvalue *out) {
    *out = v;
    if (!path || path->kind == J_NONE) return MF_OK;
    if (path->kind != J_STRING) return mf__j_getitem(c, v, *path, out);
    for (size_t i = 0; i <= path->n;) { /* dots lead on; what is a number is an index */
        const char *dot = i < path->n ? memchr(path->s + i, '.', path->n - i) : NULL;
        size_t n = dot ? (size_t)(dot - path->s) - i : path->n - i;
        int64_t index = 0;
        bool number = n > 0 && n < 10;
        for (size_t k = i; k < i + n && number; k++) {
            number = path->s[k] >= '0' && path->s[k] <= '9';
            index = index * 10 + (path->s[k] - '0');
        }
        MF__TRY(mf__j_pay(c, 1));
        MF__TRY(mf__j_getitem(c, *out, number ? mf__j_int(index) : mf__j_string(path->s + i, n), out));
        i += n + 1;
    }
    return MF_OK;
}

/* Texts are compared without case unless told otherwise. */
static mf_status key_of(jctx *c, jvalue v, const jvalue *path, bool case_sensitive, jvalue *out) {
    MF__TRY(mf__j_attribute(c, v, path, out));
    if (out->kind == J_STRING && !case_sensitive) return mf__j_change_case(c, *out, 'l', out);
    return MF_OK;
}

static mf_status x_length(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    size_t n;
    (void)a;
    MF__TRY(mf__j_length(c, in, &n));
    *out = mf__j_int((int64_t)n);
    return MF_OK;
}

static mf_status x_items(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    (void)a;
    if (in.kind != J_DICT && in.kind != J_UNDEFINED)
        return mf__j_fail(c, MF_E_INVALID, "items needs a dict, not %s", mf__j_type(in));
    if (in.kind == J_UNDEFINED)
        MF__TRY(mf__j_list(c, J_LIST, 0, out));
    else
        MF__TRY(mf__j_apply(c, "filter", mf__j_method(in, "items", 5), in, &(jargs){0}, out));
    mf__j_make_generator(out);
    return MF_OK;
}

static mf_status copy_list(jctx *c, const jlist *items, jvalue *out) {
    MF__TRY(mf__j_list(c, J_LIST, items->n, out));
    for (size_t i = 0; i < items->n; i++) MF__TRY(mf__j_append(c, *out, items->items[i]));
    return MF_OK;
}

static mf_status x_list(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    (void)a;
    MF__TRY(mf__j_iterate(c, in, &items));
    return copy_list(c, items, out);
}

static mf_status x_first(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    (void)a;
    MF__TRY(mf__j_iterate(c, in, &items));
    *out = items->n ? items->items[0] : mf__j_undefined(NULL, 0);
    return MF_OK;
}

static mf_status x_last(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    (void)a;
    MF__TRY(mf__j_iterate(c, in, &items));
    *out = items->n ? items->items[items->n - 1] : mf__j_undefined(NULL, 0);
    return MF_OK;
}

static mf_status x_reverse(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    (void)a;
    MF__TRY(mf__j_iterate(c, in, &items));
    MF__TRY(mf__j_list(c, J_LIST, items->n, out));
    for (size_t i = items->n; i-- > 0;) MF__TRY(mf__j_append(c, *out, items->items[i]));
    mf__j_make_generator(out);
    if (in.kind != J_STRING) return MF_OK;
    MF__TRY(mf__j_join(c, out->list, mf__j_string("", 0), out));
    out->form = in.form;
    return MF_OK;
}

/* What was seen is kept as keys of a dictionary, so that many items cost no more than their number. */
static mf_status x_unique(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    jvalue seen;
    bool case_sensitive = mf__j_truth_arg(a->at[0], false);
    MF__TRY(mf__j_iterate(c, in, &items));
    MF__TRY(mf__j_dict(c, 0, &seen));
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        jvalue key;
        MF__TRY(key_of(c, items->items[i], a->at[1], case_sensitive, &key));
        size_t before = seen.dict->n;
        MF__TRY(mf__j_put(c, seen, key, mf__j_none()));
        if (seen.dict->n > before) MF__TRY(mf__j_append(c, *out, items->items[i]));
    }
    mf__j_make_generator(out);
    return MF_OK;
}

/* ---- order ----------------------------------------------------------------------------------------------------- */

/* The key to sort by: one attribute, or several with commas between them, as a tuple. */
static mf_status sort_key(jctx *c, jvalue v, const jvalue *path, bool case_sensitive, jvalue *out) {
    if (!path || path->kind != J_STRING || !path->n || !memchr(path->s, ',', path->n))
        return key_of(c, v, path, case_sensitive, out);
    MF__TRY(mf__j_list(c, J_TUPLE, 0, out));
    for (size_t i = 0; i <= path->n;) {
        const char *comma = i < path->n ? memchr(path->s + i, ',', path->n - i) : NULL;
        size_t n = comma ? (size_t)(comma - path->s) - i : path->n - i;
        jvalue one = mf__j_string(path->s + i, n), key;
        MF__TRY(key_of(c, v, &one, case_sensitive, &key));
        MF__TRY(mf__j_append(c, *out, key));
        i += n + 1;
    }
    return MF_OK;
}

typedef struct order {
    const jvalue *path;
    bool reverse, case_sensitive;
} order;

static mf_status sorted_pairs(jctx *c, const jlist *items, order by, jpair **out) {
    void *pairs;
    MF__TRY(mf__j_alloc_array(c, items->n + 1, sizeof(jpair), &pairs));
    *out = pairs;
    for (size_t i = 0; i < items->n; i++) {
        (*out)[i].value = items->items[i];
        MF__TRY(sort_key(c, items->items[i], by.path, by.case_sensitive, &(*out)[i].key));
    }
    return mf__j_sort_pairs(c, *out, items->n, by.reverse);
}

static mf_status sort_by(jctx *c, const jlist *items, order by, jvalue *out) {
    jpair *pairs;
    MF__TRY(sorted_pairs(c, items, by, &pairs));
    MF__TRY(mf__j_list(c, J_LIST, items->n, out));
    for (size_t i = 0; i < items->n; i++) MF__TRY(mf__j_append(c, *out, pairs[i].value));
    return MF_OK;
}

static mf_status x_sort(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    MF__TRY(mf__j_iterate(c, in, &items));
    return sort_by(c, items, (order){a->at[2], mf__j_truth_arg(a->at[0], false), mf__j_truth_arg(a->at[1], false)},
                   out);
}

static mf_status x_dictsort(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jvalue *by = a->at[1];
    jvalue items, index = mf__j_int(by && mf__j_is_text(*by, "value"));
    if (by && !mf__j_is_text(*by, "value") && !mf__j_is_text(*by, "key"))
        return mf__j_fail(c, MF_E_INVALID, "dictsort: by is \"key\" or \"value\"");
    if (in.kind != J_DICT) return mf__j_fail(c, MF_E_INVALID, "dictsort needs a dict, not %s", mf__j_type(in));
    MF__TRY(x_items(c, in, a, &items));
    return sort_by(c, items.list, (order){&index, mf__j_truth_arg(a->at[2], false), mf__j_truth_arg(a->at[0], false)},
                   out);
}

/* Items in order of the attribute, those with the same one in a tuple (grouper, list). */
static mf_status x_groupby(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    jpair *pairs;
    bool case_sensitive = mf__j_truth_arg(a->at[2], false);
    MF__TRY(mf__j_iterate(c, in, &items));
    void *memory;
    MF__TRY(mf__j_alloc_array(c, items->n + 1, sizeof(jpair), &memory));
    pairs = memory;
    for (size_t i = 0; i < items->n; i++) {
        jvalue key;
        MF__TRY(mf__j_attribute(c, items->items[i], a->at[0], &key));
        if (key.kind == J_UNDEFINED && a->at[1]) key = *a->at[1];
        if (key.kind == J_UNDEFINED && items->n > 1) return mf__j_undefined_error(c, key);
        if (key.kind == J_STRING && !case_sensitive) MF__TRY(mf__j_change_case(c, key, 'l', &key));
        pairs[i] = (jpair){key, items->items[i]};
    }
    MF__TRY(mf__j_sort_pairs(c, pairs, items->n, false));
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    jvalue group, list = mf__j_none(), grouper;
    for (size_t i = 0; i < items->n; i++) {
        bool same = i > 0;
        if (i > 0) MF__TRY(mf__j_equal(c, pairs[i - 1].key, pairs[i].key, &same));
        if (!same) {
            MF__TRY(mf__j_attribute(c, pairs[i].value, a->at[0], &grouper)); /* as the first one writes it */
            if (grouper.kind == J_UNDEFINED && a->at[1]) grouper = *a->at[1];
            MF__TRY(mf__j_list(c, J_LIST, 0, &list));
            MF__TRY(mf__j_pair(c, grouper, list, &group));
            group.form = JF_GROUP;
            MF__TRY(mf__j_append(c, *out, group));
        }
        MF__TRY(mf__j_append(c, list, pairs[i].value));
    }
    return MF_OK;
}

static mf_status extreme(jctx *c, jvalue in, const jbound *a, int sign, jvalue *out) {
    const jlist *items;
    jvalue best, key;
    bool case_sensitive = mf__j_truth_arg(a->at[0], false);
    MF__TRY(mf__j_iterate(c, in, &items));
    *out = mf__j_undefined(NULL, 0);
    for (size_t i = 0; i < items->n; i++) {
        int side = 1;
        MF__TRY(key_of(c, items->items[i], a->at[1], case_sensitive, &key));
        if (i) MF__TRY(mf__j_compare(c, key, best, &side));
        if (i && (side == 2 || side * sign <= 0)) continue;
        best = key;
        *out = items->items[i];
    }
    return MF_OK;
}
static mf_status x_max(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    return extreme(c, in, a, 1, out);
}
static mf_status x_min(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    return extreme(c, in, a, -1, out);
}

/* ---- pieces ---------------------------------------------------------------------------------------------------- */

static mf_status need_count(jctx *c, const jvalue *v, const char *what, size_t *out) {
    int64_t n;
    *out = 1;
    MF__TRY(mf__j_int_arg(c, v, what, 0, &n));
    if (n <= 0) return mf__j_fail(c, MF_E_INVALID, "%s needs a number above 0", what);
    *out = (size_t)n;
    return MF_OK;
}

static bool given(const jvalue *v) {
    return v && v->kind != J_NONE;
}

static mf_status x_batch(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    size_t n;
    jvalue row = mf__j_none();
    MF__TRY(need_count(c, a->at[0], "batch", &n));
    MF__TRY(mf__j_iterate(c, in, &items));
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        if (i % n == 0) {
            MF__TRY(mf__j_list(c, J_LIST, 0, &row));
            MF__TRY(mf__j_append(c, *out, row));
        }
        MF__TRY(mf__j_append(c, row, items->items[i]));
    }
    while (items->n && given(a->at[1]) && row.list->n < n) MF__TRY(mf__j_append(c, row, *a->at[1]));
    mf__j_make_generator(out);
    return MF_OK;
}

/* As many columns as asked for, the first ones longer by one where it does not come out even. */
static mf_status x_slice(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    size_t n;
    MF__TRY(need_count(c, a->at[0], "slice", &n));
    MF__TRY(mf__j_iterate(c, in, &items));
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    size_t each = items->n / n, longer = items->n % n;
    for (size_t i = 0, at = 0; i < n; i++) {
        jvalue row;
        size_t many = each + (i < longer);
        MF__TRY(mf__j_list(c, J_LIST, 0, &row));
        for (size_t k = 0; k < many; k++) MF__TRY(mf__j_append(c, row, items->items[at++]));
        if (given(a->at[1]) && i >= longer) MF__TRY(mf__j_append(c, row, *a->at[1]));
        MF__TRY(mf__j_append(c, *out, row));
    }
    mf__j_make_generator(out);
    return MF_OK;
}

static mf_status x_sum(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    MF__TRY(mf__j_iterate(c, in, &items));
    *out = a->at[1] ? *a->at[1] : mf__j_int(0);
    for (size_t i = 0; i < items->n; i++) {
        jvalue v;
        MF__TRY(mf__j_pay(c, 1));
        MF__TRY(mf__j_attribute(c, items->items[i], a->at[0], &v));
        if (out->kind == J_STRING) return mf__j_fail(c, MF_E_INVALID, "sum of str; use join");
        MF__TRY(mf__j_binary(c, '+', *out, v, out));
    }
    return MF_OK;
}

const jentry mf__j_list_filters[] = {
    {"length", "", x_length},
    {"count", "", x_length},
    {"items", "", x_items},
    {"list", "", x_list},
    {"first", "", x_first},
    {"last", "", x_last},
    {"reverse", "", x_reverse},
    {"unique", "case_sensitive?,attribute?", x_unique},
    {"sort", "reverse?,case_sensitive?,attribute?", x_sort},
    {"dictsort", "case_sensitive?,by?,reverse?", x_dictsort},
    {"groupby", "attribute,default?,case_sensitive?", x_groupby},
    {"max", "case_sensitive?,attribute?", x_max},
    {"min", "case_sensitive?,attribute?", x_min},
    {"batch", "linecount,fill_with?", x_batch},
    {"slice", "slices,fill_with?", x_slice},
    {"sum", "attribute?,start?", x_sum},
    {0},
};
