/* Operators: arithmetic, comparisons, slices. */
#include <math.h>
#include <string.h>

#include "text/jinja/run.h"

mf_status mf__j_too_large(jctx *c) {
    return mf__j_fail(c, MF_E_LIMIT, "an integer of more than 64 bits, too large for moeflux");
}

/* ---- slices ---------------------------------------------------------------------------------------------------- */

/* One bound of a slice, clipped as Python does. */
static mf_status slice_bound(jctx *c, jvalue v, int64_t n, int64_t step, int64_t missing, int64_t *out) {
    *out = missing;
    if (v.kind == J_NONE) return MF_OK;
    if (!mf__j_is_int(v)) return mf__j_fail(c, MF_E_INVALID, "a slice bound is %s, not an integer", mf__j_type(v));
    int64_t i = mf__j_as_int(v);
    if (i < 0) i = i < -n ? -1 : i + n; /* -1: before the first */
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    *out = i < low ? low : i > high ? high : i;
    return MF_OK;
}

/* s[start:stop] of a text is a part of it: nothing is copied. */
static jvalue text_part(jvalue v, int64_t start, int64_t stop) {
    size_t from = mf__j_utf8_offset(v.s, v.n, (size_t)start);
    size_t n = stop > start ? mf__j_utf8_offset(v.s + from, v.n - from, (size_t)(stop - start)) : 0;
    jvalue part = mf__j_string(v.s + from, n);
    part.form = v.form;
    return part;
}

static mf_status pick(jctx *c, const jlist *items, int64_t start, int64_t stop, int64_t step, jvalue list) {
    for (int64_t i = start; step < 0 ? i > stop : i < stop;) {
        MF__TRY(mf__j_append(c, list, items->items[i]));
        if (step > 0 ? step >= stop - i : step <= stop - i) break;
        i += step;
    }
    return MF_OK;
}

mf_status mf__j_slice(jctx *c, jvalue v, const jvalue bounds[3], jvalue *out) {
    if (v.kind == J_UNDEFINED) return mf__j_undefined_error(c, v);
    bool view = mf__j_is_view(v);
    if ((!mf__j_is_list(v) && v.kind != J_STRING) || view)
        return mf__j_fail(c, MF_E_INVALID, "%s cannot be sliced", mf__j_type(v));
    jvalue by = bounds[2].kind == J_NONE ? mf__j_int(1) : bounds[2];
    if (!mf__j_is_int(by) || mf__j_as_int(by) == 0 || mf__j_as_int(by) == INT64_MIN)
        return mf__j_fail(c, MF_E_INVALID, "a slice's step is not an integer other than 0");
    size_t count;
    MF__TRY(mf__j_length(c, v, &count));
    int64_t n = (int64_t)count, step = mf__j_as_int(by), start, stop;
    MF__TRY(slice_bound(c, bounds[0], n, step, step < 0 ? n - 1 : 0, &start));
    MF__TRY(slice_bound(c, bounds[1], n, step, step < 0 ? -1 : n, &stop));
    if (v.kind == J_STRING && step == 1) return *out = text_part(v, start, stop), MF_OK;
    const jlist *items;
    jvalue list;
    MF__TRY(mf__j_iterate(c, v, &items));
    MF__TRY(mf__j_list(c, v.kind == J_TUPLE ? J_TUPLE : J_LIST, 0, &list));
    MF__TRY(pick(c, items, start, stop, step, list));
    *out = list;
    if (v.kind == J_LIST && v.form == JF_RANGE) {
        const int64_t *r = v.list->range;
        int64_t first, end, by_both;
        if (__builtin_mul_overflow(start, r[2], &first) || __builtin_add_overflow(first, r[0], &first) ||
            __builtin_mul_overflow(stop, r[2], &end) || __builtin_add_overflow(end, r[0], &end) ||
            __builtin_mul_overflow(step, r[2], &by_both))
            return mf__j_too_large(c);
        out->form = JF_RANGE;
        return mf__j_set_range(c, *out, first, end, by_both);
    }
    if (v.kind != J_STRING) return MF_OK;
    MF__TRY(mf__j_join(c, list.list, mf__j_string("", 0), out));
    out->form = v.form;
    return MF_OK;
}

/* ---- arithmetic ------------------------------------------------------------------------------------------------ */

static mf_status add_texts(jctx *c, jvalue a, jvalue b, jvalue *out) {
    void *text;
    if (a.form != b.form) { /* markup and a plain text make markup */
        MF__TRY(mf__j_escape(c, a, &a));
        MF__TRY(mf__j_escape(c, b, &b));
    }
    MF__TRY(mf__j_alloc(c, a.n + b.n, &text));
    if (a.n) memcpy(text, a.s, a.n);
    if (b.n) memcpy((char *)text + a.n, b.s, b.n);
    *out = mf__j_string(text, a.n + b.n);
    out->form = a.form;
    return MF_OK;
}

static mf_status add_lists(jctx *c, jvalue a, jvalue b, jvalue *out) {
    MF__TRY(mf__j_list(c, a.kind, a.list->n + b.list->n, out));
    if (a.list->n) memcpy(out->list->items, a.list->items, a.list->n * sizeof(jvalue));
    if (b.list->n) memcpy(out->list->items + a.list->n, b.list->items, b.list->n * sizeof(jvalue));
    out->list->n = a.list->n + b.list->n;
    return MF_OK;
}

static mf_status repeat(jctx *c, jvalue v, int64_t times, jvalue *out) {
    size_t n = v.kind == J_STRING ? v.n : v.list->n * sizeof(jvalue);
    const void *from = v.kind == J_STRING ? (const void *)v.s : v.list->items;
    void *to;
    if (times < 0 || n == 0) times = 0;
    MF__TRY(mf__j_alloc_array(c, (size_t)times, n ? n : 1, &to));
    MF__TRY(mf__j_pay_bytes(c, (size_t)times, 4));
    for (int64_t i = 0; i < times; i++) memcpy((char *)to + (size_t)i * n, from, n);
    if (v.kind == J_STRING) {
        *out = mf__j_string(to, n * (size_t)times);
        out->form = v.form;
        return MF_OK;
    }
    MF__TRY(mf__j_list(c, v.kind, 0, out));
    out->list->items = to;
    out->list->n = out->list->capacity = v.list->n * (size_t)times;
    return MF_OK;
}

static mf_status float_op(jctx *c, char op, double a, double b, jvalue *out) {
    if ((op == '/' || op == 'i' || op == '%') && b == 0) return mf__j_fail(c, MF_E_INVALID, "division by zero");
    if (op == 'p' && a == 0 && b < 0) return mf__j_fail(c, MF_E_INVALID, "zero to a negative power");
    if (op == 'p' && a < 0 && b != floor(b))
        return mf__j_fail(c, MF_E_INVALID, "a negative number to a fractional power");
    double r = 0;
    switch (op) {
    case '+': r = a + b; break;
    case '-': r = a - b; break;
    case '*': r = a * b; break;
    case '/': r = a / b; break;
    case 'i': r = floor(a / b); break;
    case '%':
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        break;
    default: r = pow(a, b); break;
    }
    *out = mf__j_float(r);
    return MF_OK;
}

static mf_status int_power(jctx *c, int64_t a, int64_t b, jvalue *out) {
    int64_t r = 1;
    if (b < 0) return float_op(c, 'p', (double)a, (double)b, out);
    for (; b > 0; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(r, a, &r)) return mf__j_too_large(c);
        if (b > 1 && __builtin_mul_overflow(a, a, &a)) return mf__j_too_large(c);
    }
    *out = mf__j_int(r);
    return MF_OK;
}

static mf_status int_op(jctx *c, char op, int64_t a, int64_t b, jvalue *out) {
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case '+': over = __builtin_add_overflow(a, b, &r); break;
    case '-': over = __builtin_sub_overflow(a, b, &r); break;
    case '*': over = __builtin_mul_overflow(a, b, &r); break;
    case '/': return float_op(c, op, (double)a, (double)b, out);
    case 'p': return int_power(c, a, b, out);
    default:
        if (b == 0) return mf__j_fail(c, MF_E_INVALID, "division by zero");
        over = a == INT64_MIN && b == -1;
        if (over) break;
        r = op == 'i' ? a / b : a % b;
        if (a % b != 0 && (a < 0) != (b < 0)) r = op == 'i' ? r - 1 : r + b;
        break;
    }
    if (over) return mf__j_too_large(c);
    *out = mf__j_int(r);
    return MF_OK;
}

static bool repeatable(jvalue v) {
    return v.kind == J_STRING || (mf__j_is_list(v) && !(v.kind == J_LIST && v.form));
}

mf_status mf__j_binary(jctx *c, char op, jvalue a, jvalue b, jvalue *out) {
    if (a.kind == J_STRING && op == '%') return mf__j_percent(c, a, b, out);
    if (a.kind == J_UNDEFINED) return mf__j_undefined_error(c, a);
    if (b.kind == J_UNDEFINED) return mf__j_undefined_error(c, b);
    if (mf__j_is_int(a) && mf__j_is_int(b)) return int_op(c, op, mf__j_as_int(a), mf__j_as_int(b), out);
    if (mf__j_is_number(a) && mf__j_is_number(b)) return float_op(c, op, mf__j_as_double(a), mf__j_as_double(b), out);
    if (op == '+' && a.kind == J_STRING && b.kind == J_STRING) return add_texts(c, a, b, out);
    if (op == '+' && a.kind == b.kind && repeatable(a) && repeatable(b)) return add_lists(c, a, b, out);
    if (op == '*' && repeatable(a) && mf__j_is_int(b)) return repeat(c, a, mf__j_as_int(b), out);
    if (op == '*' && repeatable(b) && mf__j_is_int(a)) return repeat(c, b, mf__j_as_int(a), out);
    const char *name = op == 'i' ? "//" : op == 'p' ? "**" : (const char[]){op, 0};
    return mf__j_fail(c, MF_E_INVALID, "%s %s %s is not possible", mf__j_type(a), name, mf__j_type(b));
}

mf_status mf__j_unary(jctx *c, char op, jvalue v, jvalue *out) {
    if (v.kind == J_UNDEFINED) return mf__j_undefined_error(c, v);
    if (v.kind == J_FLOAT) return *out = mf__j_float(op == '-' ? -v.f : v.f), MF_OK;
    if (!mf__j_is_int(v)) return mf__j_fail(c, MF_E_INVALID, "%c %s is not possible", op, mf__j_type(v));
    int64_t i = mf__j_as_int(v);
    if (op == '-' && i == INT64_MIN) return mf__j_too_large(c);
    *out = mf__j_int(op == '-' ? -i : i);
    return MF_OK;
}

/* ---- comparisons ----------------------------------------------------------------------------------------------- */

mf_status mf__j_contains(jctx *c, jvalue item, jvalue container, bool *out) {
    *out = false;
    if (container.kind == J_STRING) {
        if (item.kind != J_STRING) return mf__j_fail(c, MF_E_INVALID, "%s in str: needs a str", mf__j_type(item));
        const char *p = mf__j_search(container, item);
        *out = p != NULL;
        return mf__j_pay_bytes(c, p ? (size_t)(p - container.s) + item.n : container.n, J_SEARCHED);
    }
    if (container.kind == J_DICT) {
        const jvalue *found;
        MF__TRY(mf__j_find(c, container.dict, item, &found));
        *out = found != NULL;
        return MF_OK;
    }
    const jlist *items;
    MF__TRY(mf__j_iterate(c, container, &items));
    for (size_t i = 0; i < items->n && !*out; i++) MF__TRY(mf__j_equal(c, items->items[i], item, out));
    return MF_OK;
}

mf_status mf__j_compare_op(jctx *c, const char *op, jvalue a, jvalue b, bool *out) {
    int order;
    if (strcmp(op, "==") == 0) return mf__j_equal(c, a, b, out);
    if (strcmp(op, "in") == 0) return mf__j_contains(c, a, b, out);
    if (strcmp(op, "!=") == 0 || strcmp(op, "notin") == 0) {
        MF__TRY(op[0] == '!' ? mf__j_equal(c, a, b, out) : mf__j_contains(c, a, b, out));
        *out = !*out;
        return MF_OK;
    }
    if (a.kind == J_UNDEFINED) return mf__j_undefined_error(c, a);
    if (b.kind == J_UNDEFINED) return mf__j_undefined_error(c, b);
    MF__TRY(mf__j_compare(c, a, b, &order));
    *out = order != 2 && ((op[1] && order == 0) || (op[0] == '<' ? order < 0 : order > 0));
    return MF_OK;
}
