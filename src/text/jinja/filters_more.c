/* Filters that apply other filters and tests, and those of numbers. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja/run.h"

static jargs rest(const jargs *args, size_t n) {
    if (args->n <= n) return (jargs){NULL, 0, args->named, args->n_named};
    return (jargs){args->pos + n, args->n - n, args->named, args->n_named};
}

/* ---- map and select -------------------------------------------------------------------------------------------- */

/* What counts as false, None among it, has no items. */
static mf_status items_if_any(jctx *c, jvalue v, const jlist **out) {
    return mf__j_iterate(c, mf__j_truth(v) ? v : mf__j_undefined(NULL, 0), out);
}

/* map(attribute=..., default=...) */
static mf_status map_attribute(jctx *c, const jlist *items, const jargs *args, jvalue out) {
    const jvalue *path = NULL, *other = NULL;
    for (size_t i = 0; i < args->n_named; i++) {
        const jnamed *a = &args->named[i];
        if (mf__j_same_name(a->name, a->n_name, "attribute"))
            path = &a->value;
        else if (mf__j_same_name(a->name, a->n_name, "default"))
            other = &a->value;
        else
            return mf__j_fail(c, MF_E_INVALID, "the filter \"map\" has no argument called \"%.*s\"",
                              a->n_name > 40 ? 40 : (int)a->n_name, a->name);
    }
    if (!path) return mf__j_fail(c, MF_E_INVALID, "map needs a filter's name or attribute=");
    for (size_t i = 0; i < items->n; i++) {
        jvalue v;
        MF__TRY(mf__j_attribute(c, items->items[i], path, &v));
        if (v.kind == J_UNDEFINED && other) v = *other;
        MF__TRY(mf__j_append(c, out, v));
    }
    return MF_OK;
}

static mf_status x_map(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    const jlist *items;
    MF__TRY(items_if_any(c, in, &items));
    MF__TRY(mf__j_list(c, J_LIST, items->n, out));
    mf__j_make_generator(out);
    if (a->all->n == 0) return map_attribute(c, items, a->all, *out);
    const jvalue *name = &a->all->pos[0];
    jargs more = rest(a->all, 1);
    MF__TRY(mf__j_need_string(c, name, "map"));
    for (size_t i = 0; i < items->n; i++) {
        jvalue v;
        MF__TRY(mf__j_filter(c, name->s, name->n, items->items[i], &more, &v));
        MF__TRY(mf__j_append(c, *out, v));
    }
    return MF_OK;
}

/* Keeps the items for which a test holds (or does not): of the item, or of one of its attributes. */
static mf_status select_items(jctx *c, jvalue in, const jargs *args, bool keep, bool by_attribute, jvalue *out) {
    const jlist *items;
    size_t at = by_attribute ? 1 : 0;
    const jvalue *test = args->n > at ? &args->pos[at] : NULL;
    jargs more = rest(args, at + 1);
    if (by_attribute && args->n == 0) return mf__j_fail(c, MF_E_INVALID, "selectattr needs an attribute");
    if (test) MF__TRY(mf__j_need_string(c, test, "select"));
    if (!test && args->n_named) return mf__j_fail(c, MF_E_INVALID, "select: arguments, but no test they are for");
    MF__TRY(items_if_any(c, in, &items));
    MF__TRY(mf__j_list(c, J_LIST, 0, out));
    for (size_t i = 0; i < items->n; i++) {
        jvalue v = items->items[i];
        MF__TRY(mf__j_pay(c, 1));
        if (by_attribute) MF__TRY(mf__j_attribute(c, v, &args->pos[0], &v));
        bool holds = mf__j_truth(v);
        if (test) MF__TRY(mf__j_test(c, test->s, test->n, v, &more, &holds));
        if (holds == keep) MF__TRY(mf__j_append(c, *out, items->items[i]));
    }
    mf__j_make_generator(out);
    return MF_OK;
}
static mf_status x_select(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    return select_items(c, in, a->all, true, false, out);
}
static mf_status x_reject(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    return select_items(c, in, a->all, false, false, out);
}
static mf_status x_selectattr(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    return select_items(c, in, a->all, true, true, out);
}
static mf_status x_rejectattr(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    return select_items(c, in, a->all, false, true, out);
}

static mf_status x_default(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    (void)c;
    bool use = in.kind == J_UNDEFINED || (mf__j_truth_arg(a->at[1], false) && !mf__j_truth(in));
    *out = !use ? in : a->at[0] ? *a->at[0] : mf__j_string("", 0);
    return MF_OK;
}

static mf_status x_attr(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    MF__TRY(mf__j_need_string(c, a->at[0], "attr"));
    if (in.kind != J_DICT) return mf__j_getattr(c, in, a->at[0]->s, a->at[0]->n, out);
    const jentry *e = mf__j_method(in, a->at[0]->s, a->at[0]->n); /* not the keys of a dict */
    *out = mf__j_undefined(a->at[0]->s, a->at[0]->n);
    return e ? mf__j_getattr(c, in, a->at[0]->s, a->at[0]->n, out) : MF_OK;
}

#define MAX_JSON ((size_t)512 << 10)
#define JSON_BYTES 64 /* that a byte of JSON may take in memory */

/* A text of JSON as a value. Some models' templates read their tool calls' arguments with it. */
static mf_status x_from_json(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    json_error_t why;
    (void)a;
    MF__TRY(mf__j_need_string(c, &in, "from_json"));
    if (in.n > MAX_JSON) return mf__j_fail(c, MF_E_LIMIT, "from_json of more than %zu bytes", MAX_JSON);
    MF__TRY(mf__j_pay(c, in.n));
    MF__TRY(mf__j_hold(c, in.n * JSON_BYTES));
    json_t *json = json_loadb(in.n ? in.s : "", in.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why);
    if (!json) return mf__j_fail(c, MF_E_INVALID, "from_json: %s (column %d)", why.text, why.column);
    if (!c->kept) c->kept = json_array();
    if (json_array_append_new(c->kept, json)) return mf__j_fail(c, MF_E_NOMEM, "no memory for JSON");
    return mf__j_from_json(c, json, out);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* A text as Python reads a number: spaces around it, _ between digits. */
static bool plain_digits(jvalue v, char text[128]) {
    const char *s = v.s, *end = v.s + v.n;
    size_t n = 0;
    while (s < end && strchr(" \t\n\r\v\f", *s) && *s) s++;
    while (end > s && strchr(" \t\n\r\v\f", end[-1]) && end[-1]) end--;
    for (; s < end; s++) {
        bool between = n > 0 && s + 1 < end && text[n - 1] != '_' && s[1] != '_';
        if (*s == '_' && between) continue;
        if (n + 1 >= 128 || !*s || strchr(" \t\n\r\v\f_", *s)) return false;
        text[n++] = *s;
    }
    text[n] = 0;
    return n > 0;
}

static bool text_to_double(jvalue v, double *out) {
    char text[128], *end;
    if (!plain_digits(v, text) || strpbrk(text, "xXpP(")) return false; /* C would read hexadecimal */
    *out = strtod(text, &end);
    return *end == 0;
}

/* *large: an integer, but one of more than 64 bits. */
static bool text_to_int(jvalue v, int base, int64_t *out, bool *large) {
    char text[128], *end;
    *large = false;
    if (!plain_digits(v, text)) return false;
    char *digits = text + (text[0] == '-' || text[0] == '+');
    char kind = digits[0] == '0' && digits[1] ? (char)(digits[1] | 32) : 0;
    int named = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
    if (named && (base == named || base == 0)) {
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
        base = named;
        if (!digits[0] || digits[0] == '-' || digits[0] == '+') return false;
    }
    if (base == 0) base = 10;
    if (base == 16 && kind == 'x' && named != 16) return false;
    errno = 0;
    *out = strtoll(text, &end, base);
    *large = errno == ERANGE && *end == 0;
    return *end == 0 && end != text;
}

static mf_status x_int(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    int64_t i, base;
    double f = in.f;
    bool large = false;
    MF__TRY(mf__j_int_arg(c, a->at[1], "int: base", 10, &base));
    *out = a->at[0] ? *a->at[0] : mf__j_int(0);
    if (in.kind == J_UNDEFINED) return mf__j_undefined_error(c, in);
    if (mf__j_is_int(in)) return *out = mf__j_int(mf__j_as_int(in)), MF_OK;
    if (in.kind != J_FLOAT && in.kind != J_STRING) return MF_OK;
    if (in.kind == J_STRING) {
        bool whole = base >= 0 && base <= 36 && base != 1 && text_to_int(in, (int)base, &i, &large);
        if (large) return mf__j_too_large(c);
        if (whole) return *out = mf__j_int(i), MF_OK;
        if (!text_to_double(in, &f)) return MF_OK;
    }
    if (isnan(f) || isinf(f)) return MF_OK;
    if (f < -0x1p63 || f >= 0x1p63) return mf__j_too_large(c);
    *out = mf__j_int((int64_t)f);
    return MF_OK;
}

static mf_status x_float(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    double f;
    *out = a->at[0] ? *a->at[0] : mf__j_float(0);
    if (in.kind == J_UNDEFINED) return mf__j_undefined_error(c, in);
    if (mf__j_is_number(in))
        *out = mf__j_float(mf__j_as_double(in));
    else if (in.kind == J_STRING && text_to_double(in, &f))
        *out = mf__j_float(f);
    return MF_OK;
}

static mf_status x_abs(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    (void)a;
    if (in.kind == J_FLOAT) return *out = mf__j_float(fabs(in.f)), MF_OK;
    if (!mf__j_is_int(in)) return mf__j_fail(c, MF_E_INVALID, "abs of %s", mf__j_type(in));
    return mf__j_unary(c, mf__j_as_int(in) < 0 ? '-' : '+', in, out);
}

/* To tens, hundreds, ...: half goes to the even one. */
static mf_status round_int(jctx *c, int64_t i, int64_t precision, jvalue *out) {
    uint64_t unit = 1, u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    *out = mf__j_int(0);
    if (precision < -18) return MF_OK;
    for (int64_t k = precision; k < 0; k++) unit *= 10;
    uint64_t low = u / unit * unit, more = u - low;
    if (more * 2 > unit || (more * 2 == unit && low / unit % 2)) low += unit;
    if (low > INT64_MAX) return mf__j_too_large(c);
    *out = mf__j_int(i < 0 ? -(int64_t)low : (int64_t)low);
    return MF_OK;
}

static mf_status x_round(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    int64_t precision;
    char text[1024];
    const char *method = a->at[1] ? "" : "common";
    MF__TRY(mf__j_int_arg(c, a->at[0], "round", 0, &precision));
    for (int i = 0; a->at[1] && i < 3; i++) {
        static const char *const methods[] = {"common", "ceil", "floor"};
        if (mf__j_is_text(*a->at[1], methods[i])) method = methods[i];
    }
    if (!*method) return mf__j_fail(c, MF_E_INVALID, "round: method is \"common\", \"ceil\" or \"floor\"");
    if (!mf__j_is_number(in)) return mf__j_fail(c, MF_E_INVALID, "round of %s", mf__j_type(in));
    if (precision > 300 || precision < -300)
        return mf__j_fail(c, MF_E_LIMIT, "round to %lld digits", (long long)precision);
    double f = mf__j_as_double(in), scale = pow(10, (double)precision);
    if (*method == 'c' && method[1] == 'o' && mf__j_is_int(in))
        return round_int(c, mf__j_as_int(in), precision < 0 ? precision : 0, out);
    if (*method == 'f' || method[1] == 'e') {
        *out = mf__j_float((*method == 'f' ? floor(f * scale) : ceil(f * scale)) / scale);
    } else if (precision < 0) {
        *out = mf__j_float(nearbyint(f * scale) / scale);
    } else { /* the decimal digits nearest to what the float is */
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        *out = mf__j_float(strtod(text, NULL));
    }
    return MF_OK;
}

static mf_status x_filesizeformat(jctx *c, jvalue in, const jbound *a, jvalue *out) {
    static const char *const decimal[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    bool two = mf__j_truth_arg(a->at[0], false);
    double base = two ? 1024 : 1000, bytes, unit = base;
    char text[64];
    int i = 0;
    if (mf__j_is_number(in))
        bytes = mf__j_as_double(in);
    else if (in.kind != J_STRING || !text_to_double(in, &bytes))
        return mf__j_fail(c, MF_E_INVALID, "filesizeformat of %s", mf__j_type(in));
    if (bytes == 1) return mf__j_copy(c, "1 Byte", 6, out);
    if (bytes < base) {
        snprintf(text, sizeof text, "%.0f Bytes", trunc(bytes));
    } else {
        for (unit = base * base; i < 7 && bytes >= unit; i++) unit *= base;
        snprintf(text, sizeof text, "%.1f %s", base * bytes / unit, (two ? binary : decimal)[i]);
    }
    for (char *p = text; *p && *p != ' '; p++)
        if (*p == ',') *p = '.';
    return mf__j_copy(c, text, strlen(text), out);
}

const jentry mf__j_pick_filters[] = {
    {"map", "*", x_map},
    {"select", "*", x_select},
    {"reject", "*", x_reject},
    {"selectattr", "*", x_selectattr},
    {"rejectattr", "*", x_rejectattr},
    {"default", "default_value?,boolean?", x_default},
    {"d", "default_value?,boolean?", x_default},
    {"attr", "name", x_attr},
    {"from_json", "", x_from_json},
    {0},
};

const jentry mf__j_number_filters[] = {
    {"int", "default?,base?", x_int},
    {"float", "default?", x_float},
    {"abs", "", x_abs},
    {"round", "precision?,method?", x_round},
    {"filesizeformat", "binary?", x_filesizeformat},
    {0},
};
