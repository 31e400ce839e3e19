/* Evaluating expressions. */
#include <math.h>
#include <string.h>

#include "text/jinja/run.h"

#define MAX_DEPTH 300

const jvalue *j_arg(const jargs *args, size_t at, const char *name) {
    if (at < args->n) return &args->pos[at];
    for (size_t i = 0; name && i < args->n_named; i++)
        if (args->named[i].n_name == strlen(name) && memcmp(args->named[i].name, name, args->named[i].n_name) == 0)
            return &args->named[i].value;
    return NULL;
}

static mf_status undefined_error(jctx *c, jvalue v) {
    if (v.s) return jfail(c, MF_E_INVALID, "\"%.*s\" is undefined", v.n > 80 ? 80 : (int)v.n, v.s);
    return jfail(c, MF_E_INVALID, "a value is undefined");
}

/* ---- names, attributes, items ------------------------------------------------------------------------------------ */

static mf_status eval_name(jctx *c, const jnode *node, jvalue *out) {
    for (const jframe *f = c->frame; f; f = f->parent)
        for (size_t i = f->n; i-- > 0;)
            if (f->vars[i].n_name == node->n && memcmp(f->vars[i].name, node->s, node->n) == 0)
                return *out = f->vars[i].value, MF_OK;
    size_t function;
    if (j_find_global(node->s, node->n, &function))
        *out = (jvalue){.kind = J_FUNCTION, .n = function};
    else
        *out = j_undefined(node->s, node->n);
    return MF_OK;
}

static bool is_name(const char *name, size_t n, const char *text) {
    return n == strlen(text) && memcmp(name, text, n) == 0;
}

static jvalue loop_attr(const jloop *l, const char *name, size_t n) {
    int64_t at = (int64_t)l->at, count = (int64_t)l->items->n;
    if (is_name(name, n, "index")) return j_int(at + 1);
    if (is_name(name, n, "index0")) return j_int(at);
    if (is_name(name, n, "revindex")) return j_int(count - at);
    if (is_name(name, n, "revindex0")) return j_int(count - at - 1);
    if (is_name(name, n, "first")) return j_bool(at == 0);
    if (is_name(name, n, "last")) return j_bool(at == count - 1);
    if (is_name(name, n, "length")) return j_int(count);
    if (is_name(name, n, "depth")) return j_int(1); /* of recursion, which there is none of */
    if (is_name(name, n, "depth0")) return j_int(0);
    if (is_name(name, n, "previtem") && at > 0) return l->items->items[at - 1];
    if (is_name(name, n, "nextitem") && at + 1 < count) return l->items->items[at + 1];
    return j_undefined(name, n);
}

static mf_status bind_method(jctx *c, jvalue v, size_t function, jvalue *out) {
    void *self;
    MF__TRY(j_alloc(c, sizeof v, &self));
    *(jvalue *)self = v;
    *out = (jvalue){.kind = J_FUNCTION, .n = function, .self = self};
    return MF_OK;
}

/* v.name: a method first, then a key. */
mf_status j_getattr(jctx *c, jvalue v, const char *name, size_t n, jvalue *out) {
    size_t function;
    *out = j_undefined(name, n);
    if (v.kind == J_UNDEFINED) return undefined_error(c, v);
    if (j_find_method(v, name, n, &function)) return bind_method(c, v, function, out);
    if (v.kind == J_LOOP) return *out = loop_attr(v.loop, name, n), MF_OK;
    if (v.kind == J_DICT || v.kind == J_NAMESPACE) {
        const jvalue *found = j_find(v.dict, j_string(name, n));
        if (found) *out = *found;
    }
    return MF_OK;
}

/* v[key]: a key or index first, then an attribute. */
mf_status j_getitem(jctx *c, jvalue v, jvalue key, jvalue *out) {
    *out = key.kind == J_STRING ? j_undefined(key.s, key.n) : j_undefined(NULL, 0);
    if (v.kind == J_UNDEFINED) return undefined_error(c, v);
    if (v.kind == J_DICT) {
        const jvalue *found = j_find(v.dict, key);
        if (found) return *out = *found, MF_OK;
    }
    if ((j_is_list(v) || v.kind == J_STRING) && (key.kind == J_INT || key.kind == J_BOOL)) {
        size_t count;
        MF__TRY(j_length(c, v, &count));
        int64_t i = key.kind == J_INT ? key.i : key.b;
        if (i < 0) i += (int64_t)count;
        if (i < 0 || i >= (int64_t)count) return MF_OK;
        if (j_is_list(v)) return *out = v.list->items[i], MF_OK;
        size_t at = j_utf8_offset(v.s, v.n, (size_t)i);
        *out = j_string(v.s + at, j_utf8_offset(v.s + at, v.n - at, 1));
        return MF_OK;
    }
    if (key.kind == J_STRING) return j_getattr(c, v, key.s, key.n, out);
    return MF_OK;
}

/* One bound of a slice, clipped as Python does. */
static mf_status slice_bound(jctx *c, const jnode *node, int64_t n, int64_t step, int64_t missing, int64_t *out) {
    jvalue v;
    *out = missing;
    if (!node) return MF_OK;
    MF__TRY(j_eval(c, node, &v));
    if (v.kind == J_NONE) return MF_OK;
    if (v.kind != J_INT) return jfail(c, MF_E_INVALID, "a slice bound is %s, not an integer", j_type(v));
    int64_t i = v.i < 0 ? (v.i < -n ? -1 : v.i + n) : v.i; /* -1: before the first */
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    *out = i < low ? low : i > high ? high : i;
    return MF_OK;
}

static mf_status eval_slice(jctx *c, const jnode *node, jvalue *out) {
    jvalue v, step_value = j_int(1);
    MF__TRY(j_eval(c, node->a, &v));
    if (v.kind == J_UNDEFINED) return undefined_error(c, v);
    if (!j_is_list(v) && v.kind != J_STRING) return jfail(c, MF_E_INVALID, "%s cannot be sliced", j_type(v));
    if (node->list[2]) MF__TRY(j_eval(c, node->list[2], &step_value));
    if (step_value.kind == J_NONE) step_value = j_int(1);
    if (step_value.kind != J_INT || step_value.i == 0 || step_value.i == INT64_MIN)
        return jfail(c, MF_E_INVALID, "a slice's step is not an integer other than 0");
    const jlist *items;
    MF__TRY(j_iterate(c, v, &items));
    int64_t n = (int64_t)items->n, step = step_value.i, start, stop;
    MF__TRY(slice_bound(c, node->list[0], n, step, step < 0 ? n - 1 : 0, &start));
    MF__TRY(slice_bound(c, node->list[1], n, step, step < 0 ? -1 : n, &stop));
    jvalue list;
    MF__TRY(j_list(c, v.kind == J_TUPLE ? J_TUPLE : J_LIST, 0, &list));
    size_t bytes = 0;
    for (int64_t i = start; step < 0 ? i > stop : i < stop;) {
        MF__TRY(j_append(c, list, items->items[i]));
        bytes += v.kind == J_STRING ? items->items[i].n : 0;
        if (step > 0 ? step >= stop - i : step <= stop - i) break;
        i += step;
    }
    if (v.kind != J_STRING) return *out = list, MF_OK;
    void *text;
    MF__TRY(j_alloc(c, bytes, &text));
    bytes = 0;
    for (size_t i = 0; i < list.list->n; bytes += list.list->items[i].n, i++)
        memcpy((char *)text + bytes, list.list->items[i].s, list.list->items[i].n);
    *out = j_string(text, bytes);
    return MF_OK;
}

/* ---- operators ------------------------------------------------------------------------------------------------- */

static mf_status concat_text(jctx *c, jvalue a, jvalue b, jvalue *out) {
    void *text;
    MF__TRY(j_alloc(c, a.n + b.n, &text));
    if (a.n) memcpy(text, a.s, a.n);
    if (b.n) memcpy((char *)text + a.n, b.s, b.n);
    *out = j_string(text, a.n + b.n);
    return MF_OK;
}

static mf_status repeat(jctx *c, jvalue v, int64_t times, jvalue *out) {
    if (times < 0) times = 0;
    if (v.kind == J_STRING) {
        void *text;
        if (v.n && (uint64_t)times > c->opt.max_memory / v.n) return jfail(c, MF_E_LIMIT, "a text repeated too often");
        MF__TRY(j_alloc(c, v.n * (size_t)times, &text));
        for (int64_t i = 0; i < times && v.n; i++) memcpy((char *)text + (size_t)i * v.n, v.s, v.n);
        *out = j_string(text, v.n * (size_t)times);
        return MF_OK;
    }
    MF__TRY(j_list(c, v.kind, 0, out));
    for (int64_t i = 0; i < times && v.list->n; i++)
        for (size_t k = 0; k < v.list->n; k++) MF__TRY(j_append(c, *out, v.list->items[k]));
    return MF_OK;
}

static mf_status float_op(jctx *c, char op, double a, double b, jvalue *out) {
    if ((op == '/' || op == 'i' || op == '%') && b == 0) return jfail(c, MF_E_INVALID, "division by zero");
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
    *out = j_float(r);
    return MF_OK;
}

static mf_status int_power(jctx *c, int64_t a, int64_t b, jvalue *out) {
    int64_t r = 1;
    if (b < 0) return float_op(c, 'p', (double)a, (double)b, out);
    for (; b > 0; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(r, a, &r)) return jfail(c, MF_E_LIMIT, "an integer too large");
        if (b > 1 && __builtin_mul_overflow(a, a, &a)) return jfail(c, MF_E_LIMIT, "an integer too large");
    }
    *out = j_int(r);
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
        if (b == 0) return jfail(c, MF_E_INVALID, "division by zero");
        over = a == INT64_MIN && b == -1;
        if (over) break;
        r = op == 'i' ? a / b : a % b;
        if (a % b != 0 && (a < 0) != (b < 0)) r = op == 'i' ? r - 1 : r + b;
        break;
    }
    if (over) return jfail(c, MF_E_LIMIT, "an integer too large");
    *out = j_int(r);
    return MF_OK;
}

static mf_status eval_binary(jctx *c, const jnode *node, jvalue *out) {
    jvalue a, b;
    MF__TRY(j_eval(c, node->a, &a));
    MF__TRY(j_eval(c, node->b, &b));
    c->line = node->line;
    char op = node->op;
    if (a.kind == J_UNDEFINED) return undefined_error(c, a);
    if (b.kind == J_UNDEFINED) return undefined_error(c, b);
    if (j_is_number(a) && j_is_number(b)) {
        if (a.kind == J_FLOAT || b.kind == J_FLOAT)
            return float_op(c, op,
                            a.kind == J_FLOAT ? a.f
                            : a.kind == J_INT ? (double)a.i
                                              : a.b,
                            b.kind == J_FLOAT ? b.f
                            : b.kind == J_INT ? (double)b.i
                                              : b.b,
                            out);
        return int_op(c, op, a.kind == J_INT ? a.i : a.b, b.kind == J_INT ? b.i : b.b, out);
    }
    if (op == '+' && a.kind == J_STRING && b.kind == J_STRING) return concat_text(c, a, b, out);
    if (op == '+' && j_is_list(a) && a.kind == b.kind) {
        MF__TRY(j_list(c, a.kind, a.list->n + b.list->n, out));
        for (size_t i = 0; i < a.list->n; i++) MF__TRY(j_append(c, *out, a.list->items[i]));
        for (size_t i = 0; i < b.list->n; i++) MF__TRY(j_append(c, *out, b.list->items[i]));
        return MF_OK;
    }
    if (op == '*' && (a.kind == J_STRING || j_is_list(a)) && b.kind == J_INT) return repeat(c, a, b.i, out);
    if (op == '*' && (b.kind == J_STRING || j_is_list(b)) && a.kind == J_INT) return repeat(c, b, a.i, out);
    const char *name = op == 'i' ? "//" : op == 'p' ? "**" : (const char[]){op, 0};
    return jfail(c, MF_E_INVALID, "%s %s %s is not possible", j_type(a), name, j_type(b));
}

mf_status j_contains(jctx *c, jvalue item, jvalue container, bool *out) {
    *out = false;
    if (container.kind == J_STRING) {
        if (item.kind != J_STRING) return jfail(c, MF_E_INVALID, "%s in str: needs a str", j_type(item));
        *out = item.n == 0 || (container.n >= item.n && memmem(container.s, container.n, item.s, item.n) != NULL);
        return MF_OK;
    }
    if (container.kind == J_DICT) return *out = j_find(container.dict, item) != NULL, MF_OK;
    const jlist *items;
    MF__TRY(j_iterate(c, container, &items));
    for (size_t i = 0; i < items->n && !*out; i++) *out = j_equal(items->items[i], item);
    return MF_OK;
}

static mf_status compare_once(jctx *c, const char *op, jvalue a, jvalue b, bool *out) {
    int order;
    if (strcmp(op, "==") == 0) return *out = j_equal(a, b), MF_OK;
    if (strcmp(op, "!=") == 0) return *out = !j_equal(a, b), MF_OK;
    if (strcmp(op, "in") == 0) return j_contains(c, a, b, out);
    if (strcmp(op, "notin") == 0) {
        MF__TRY(j_contains(c, a, b, out));
        *out = !*out;
        return MF_OK;
    }
    if (a.kind == J_UNDEFINED) return undefined_error(c, a);
    if (b.kind == J_UNDEFINED) return undefined_error(c, b);
    MF__TRY(j_compare(c, a, b, &order));
    *out = op[0] == '<' ? order < 0 || (op[1] && order == 0) : order > 0 || (op[1] && order == 0);
    return MF_OK;
}

static mf_status eval_compare(jctx *c, const jnode *node, jvalue *out) {
    jvalue a, b;
    bool holds = true;
    MF__TRY(j_eval(c, node->a, &a));
    for (size_t i = 0; i < node->n_list && holds; i++, a = b) {
        MF__TRY(j_eval(c, node->list[i], &b));
        c->line = node->line;
        MF__TRY(compare_once(c, node->names[i], a, b, &holds));
    }
    *out = j_bool(holds);
    return MF_OK;
}

static mf_status eval_concat(jctx *c, const jnode *node, jvalue *out) {
    mf__strbuf b = {0};
    mf_status status = MF_OK;
    for (size_t i = 0; status == MF_OK && i < node->n_list; i++) {
        jvalue v;
        status = j_eval(c, node->list[i], &v);
        if (status == MF_OK) status = j_print(c, v, &b);
    }
    if (status == MF_OK) status = j_copy(c, b.data, b.size, out);
    mf__strbuf_free(&b);
    return status;
}

static mf_status eval_list(jctx *c, const jnode *node, jvalue *out) {
    jvalue v, key;
    if (node->kind == JN_DICT) {
        MF__TRY(j_dict(c, node->n_list / 2, out));
        for (size_t i = 0; i < node->n_list; i += 2) {
            MF__TRY(j_eval(c, node->list[i], &key));
            MF__TRY(j_eval(c, node->list[i + 1], &v));
            if (key.kind > J_STRING && key.kind != J_TUPLE)
                return jfail(c, MF_E_INVALID, "%s cannot be a key", j_type(key));
            MF__TRY(j_put(c, *out, key, v));
        }
        return MF_OK;
    }
    MF__TRY(j_list(c, node->kind == JN_TUPLE ? J_TUPLE : J_LIST, node->n_list, out));
    for (size_t i = 0; i < node->n_list; i++) {
        MF__TRY(j_eval(c, node->list[i], &v));
        MF__TRY(j_append(c, *out, v));
    }
    return MF_OK;
}

static mf_status eval_unary(jctx *c, const jnode *node, jvalue *out) {
    jvalue v;
    MF__TRY(j_eval(c, node->a, &v));
    if (v.kind == J_FLOAT) return *out = j_float(node->op == '-' ? -v.f : v.f), MF_OK;
    if (v.kind != J_INT && v.kind != J_BOOL) return jfail(c, MF_E_INVALID, "%c%s is not possible", node->op, j_type(v));
    int64_t i = v.kind == J_INT ? v.i : v.b;
    return int_op(c, node->op, 0, i, out);
}

/* ---- calls, filters, tests --------------------------------------------------------------------------------------- */

mf_status j_args(jctx *c, const jnode *call, jargs *out) {
    void *pos, *named;
    *out = (jargs){0};
    if (call->n_args == 0) return MF_OK;
    MF__TRY(j_alloc(c, (call->n_args + 1) * sizeof(jvalue), &pos)); /* one more for caller */
    MF__TRY(j_alloc(c, (call->n_args + 1) * sizeof(jnamed), &named));
    out->pos = pos;
    out->named = named;
    for (size_t i = 0; i < call->n_args; i++) {
        jvalue v;
        MF__TRY(j_eval(c, call->args[i].value, &v));
        if (call->args[i].name)
            out->named[out->n_named++] = (jnamed){call->args[i].name, call->args[i].n_name, v};
        else
            out->pos[out->n++] = v;
    }
    return MF_OK;
}

mf_status j_call(jctx *c, jvalue callee, const jargs *args, jvalue *out) {
    if (callee.kind == J_FUNCTION) return j_call_function(c, callee, args, out);
    if (callee.kind == J_MACRO) return j_call_macro(c, callee.macro, args, out);
    if (callee.kind == J_UNDEFINED) return undefined_error(c, callee);
    return jfail(c, MF_E_INVALID, "%s cannot be called", j_type(callee));
}

static mf_status eval_call(jctx *c, const jnode *node, jvalue *out) {
    jvalue callee;
    jargs args;
    MF__TRY(j_eval(c, node->a, &callee));
    MF__TRY(j_args(c, node, &args));
    c->line = node->line;
    return j_call(c, callee, &args, out);
}

/* The chain of filters whose innermost input is missing (a block's text) gets `input` there. */
mf_status j_filter_chain(jctx *c, const jnode *filter, jvalue input, jvalue *out) {
    jargs args;
    if (filter->a && filter->a->kind == JN_FILTER)
        MF__TRY(j_filter_chain(c, filter->a, input, &input));
    else if (filter->a)
        MF__TRY(j_eval(c, filter->a, &input));
    MF__TRY(j_args(c, filter, &args));
    c->line = filter->line;
    return j_filter(c, filter->s, filter->n, input, &args, out);
}

static mf_status eval_test(jctx *c, const jnode *node, jvalue *out) {
    jvalue v;
    jargs args;
    bool holds;
    MF__TRY(j_eval(c, node->a, &v));
    MF__TRY(j_args(c, node, &args));
    c->line = node->line;
    MF__TRY(j_test(c, node->s, node->n, v, &args, &holds));
    *out = j_bool(holds != (node->op == 'n'));
    return MF_OK;
}

static mf_status eval_node(jctx *c, const jnode *node, jvalue *out) {
    jvalue v;
    switch (node->kind) {
    case JN_CONST: *out = node->value; return MF_OK;
    case JN_NAME: return eval_name(c, node, out);
    case JN_LIST:
    case JN_TUPLE:
    case JN_DICT: return eval_list(c, node, out);
    case JN_ATTR: MF__TRY(j_eval(c, node->a, &v)); return j_getattr(c, v, node->s, node->n, out);
    case JN_ITEM: {
        jvalue key;
        MF__TRY(j_eval(c, node->a, &v));
        MF__TRY(j_eval(c, node->b, &key));
        return j_getitem(c, v, key, out);
    }
    case JN_SLICE: return eval_slice(c, node, out);
    case JN_CALL: return eval_call(c, node, out);
    case JN_FILTER: return j_filter_chain(c, node, j_none(), out);
    case JN_TEST: return eval_test(c, node, out);
    case JN_UNARY: return eval_unary(c, node, out);
    case JN_BINARY: return eval_binary(c, node, out);
    case JN_CONCAT: return eval_concat(c, node, out);
    case JN_COMPARE: return eval_compare(c, node, out);
    case JN_AND:
    case JN_OR:
        MF__TRY(j_eval(c, node->a, out));
        if (j_truth(*out) == (node->kind == JN_OR)) return MF_OK;
        return j_eval(c, node->b, out);
    case JN_NOT:
        MF__TRY(j_eval(c, node->a, &v));
        *out = j_bool(!j_truth(v));
        return MF_OK;
    case JN_COND:
        MF__TRY(j_eval(c, node->b, &v));
        if (j_truth(v)) return j_eval(c, node->a, out);
        *out = j_undefined(NULL, 0);
        return node->c ? j_eval(c, node->c, out) : MF_OK;
    default: return jfail(c, MF_E_INTERNAL, "not an expression");
    }
}

mf_status j_eval(jctx *c, const jnode *node, jvalue *out) {
    c->line = node->line;
    if (++c->steps > c->opt.max_steps)
        return jfail(c, MF_E_LIMIT, "the template takes more than %lld steps", (long long)c->opt.max_steps);
    if (++c->depth > MAX_DEPTH) return jfail(c, MF_E_LIMIT, "the template nests deeper than %d", MAX_DEPTH);
    mf_status status = eval_node(c, node, out);
    c->depth--;
    return status;
}
