/* Evaluating expressions: names, attributes, calls, and the rest by way of operators.c. */
#include <string.h>

#include "text/jinja/run.h"

mf_status mf__j_undefined_error(jctx *c, jvalue v) {
    int n = v.n > 80 ? 80 : (int)v.n;
    if (v.s && v.form == JF_ATTRIBUTE)
        return mf__j_fail(c, MF_E_INVALID, "%s has no attribute or method \"%.*s\"",
                          mf__j_type((jvalue){.kind = (jkind)v.owner}), n, v.s);
    if (v.s) return mf__j_fail(c, MF_E_INVALID, "\"%.*s\" is undefined", n, v.s);
    return mf__j_fail(c, MF_E_INVALID, "a value is undefined");
}

/* ---- names, attributes, items ---------------------------------------------------------------------------------- */

static mf_status function_value(jctx *c, const jentry *e, jvalue self, jvalue *out) {
    void *memory;
    MF__TRY(mf__j_alloc(c, sizeof(jfunction), &memory));
    *(jfunction *)memory = (jfunction){e, self};
    *out = (jvalue){.kind = J_FUNCTION, .function = memory};
    return MF_OK;
}

static mf_status eval_name(jctx *c, const jnode *node, jvalue *out) {
    for (const jframe *f = c->frame; f; f = f->parent) {
        MF__TRY(mf__j_pay(c, f->n / 8));
        for (size_t i = f->n; i-- > 0;)
            if (f->vars[i].n_name == node->n && memcmp(f->vars[i].name, node->s, node->n) == 0)
                return *out = f->vars[i].value, MF_OK;
    }
    const jentry *e = mf__j_global(node->s, node->n);
    if (e) return function_value(c, e, mf__j_none(), out);
    *out = mf__j_same_name(node->s, node->n, "self") ? (jvalue){.kind = J_BLOCKS} : mf__j_undefined(node->s, node->n);
    return MF_OK;
}

static jvalue missing_attribute(jvalue v, const char *name, size_t n) {
    jvalue u = mf__j_undefined(name, n);
    u.form = JF_ATTRIBUTE;
    u.owner = (uint8_t)v.kind;
    return u;
}

static jvalue loop_attr(jvalue v, const char *name, size_t n) {
    const jloop *l = v.loop;
    int64_t at = (int64_t)l->at, count = (int64_t)l->items->n;
    if (mf__j_same_name(name, n, "index")) return mf__j_int(at + 1);
    if (mf__j_same_name(name, n, "index0")) return mf__j_int(at);
    if (mf__j_same_name(name, n, "revindex")) return mf__j_int(count - at);
    if (mf__j_same_name(name, n, "revindex0")) return mf__j_int(count - at - 1);
    if (mf__j_same_name(name, n, "first")) return mf__j_bool(at == 0);
    if (mf__j_same_name(name, n, "last")) return mf__j_bool(at == count - 1);
    if (mf__j_same_name(name, n, "length")) return mf__j_int(count);
    if (mf__j_same_name(name, n, "depth")) return mf__j_int(l->depth + 1);
    if (mf__j_same_name(name, n, "depth0")) return mf__j_int(l->depth);
    if (mf__j_same_name(name, n, "previtem") && at > 0) return l->items->items[at - 1];
    if (mf__j_same_name(name, n, "nextitem") && at + 1 < count) return l->items->items[at + 1];
    return missing_attribute(v, name, n);
}

static mf_status macro_attr(jctx *c, jvalue v, const char *name, size_t n, jvalue *out) {
    const jnode *m = v.macro->node;
    if (mf__j_same_name(name, n, "name")) return *out = mf__j_string(m->s, m->n), MF_OK;
    if (mf__j_same_name(name, n, "caller")) return *out = mf__j_bool(m->flags & J_CALLER), MF_OK;
    if (mf__j_same_name(name, n, "catch_kwargs")) return *out = mf__j_bool(m->flags & J_KWARGS), MF_OK;
    if (mf__j_same_name(name, n, "catch_varargs")) return *out = mf__j_bool(m->flags & J_VARARGS), MF_OK;
    if (!mf__j_same_name(name, n, "arguments")) return MF_OK;
    MF__TRY(mf__j_list(c, J_TUPLE, m->n_args, out));
    for (size_t i = 0; i < m->n_args; i++)
        MF__TRY(mf__j_append(c, *out, mf__j_string(m->args[i].name, m->args[i].n_name)));
    return MF_OK;
}

/* What is no method: parts of loops, macros, cyclers, groups. *out is left alone where there is none. */
static mf_status plain_attr(jctx *c, jvalue v, const char *name, size_t n, jvalue *out) {
    if (v.kind == J_LOOP) return *out = loop_attr(v, name, n), MF_OK;
    if (v.kind == J_MACRO) return macro_attr(c, v, name, n, out);
    if (v.kind == J_TUPLE && v.form == JF_GROUP && mf__j_same_name(name, n, "grouper")) *out = v.list->items[0];
    if (v.kind == J_TUPLE && v.form == JF_GROUP && mf__j_same_name(name, n, "list")) *out = v.list->items[1];
    if (v.kind == J_CYCLER && mf__j_same_name(name, n, "current")) *out = v.cycler->items[v.cycler->at];
    if (v.kind == J_BLOCKS) MF__TRY(mf__j_pay(c, c->template->blocks->n_list / 8));
    if (v.kind == J_BLOCKS && mf__j_has_block(c, name, n))
        return function_value(c, mf__j_global("super", 5), mf__j_string(name, n), out);
    return MF_OK;
}

/* v.name: a method first, then a key. */
mf_status mf__j_getattr(jctx *c, jvalue v, const char *name, size_t n, jvalue *out) {
    *out = missing_attribute(v, name, n);
    if (v.kind == J_UNDEFINED) return mf__j_undefined_error(c, v);
    const jentry *e = mf__j_method(v, name, n);
    if (e) return function_value(c, e, v, out);
    if (v.kind == J_DICT || v.kind == J_NAMESPACE) {
        const jvalue *found;
        MF__TRY(mf__j_find(c, v.dict, mf__j_string(name, n), &found));
        if (found) *out = *found;
        return MF_OK;
    }
    return plain_attr(c, v, name, n, out);
}

static mf_status item_at(jctx *c, jvalue v, int64_t i, jvalue *out) {
    size_t count;
    MF__TRY(mf__j_length(c, v, &count));
    if (i < 0) i += (int64_t)count;
    if (i < 0 || i >= (int64_t)count) return MF_OK;
    if (mf__j_is_list(v)) return *out = v.list->items[i], MF_OK;
    size_t at = mf__j_utf8_offset(v.s, v.n, (size_t)i);
    *out = mf__j_string(v.s + at, mf__j_utf8_offset(v.s + at, v.n - at, 1));
    out->form = v.form;
    return MF_OK;
}

/* v[key]: a key or index first, then an attribute. */
mf_status mf__j_getitem(jctx *c, jvalue v, jvalue key, jvalue *out) {
    *out = key.kind == J_STRING ? missing_attribute(v, key.s, key.n) : mf__j_undefined(NULL, 0);
    if (v.kind == J_UNDEFINED) return mf__j_undefined_error(c, v);
    if (v.kind == J_DICT) {
        const jvalue *found = NULL;
        if (key.kind != J_LIST && key.kind != J_DICT) MF__TRY(mf__j_find(c, v.dict, key, &found));
        if (found) return *out = *found, MF_OK;
    }
    bool view = mf__j_is_view(v);
    if (((mf__j_is_list(v) && !view) || v.kind == J_STRING) && mf__j_is_int(key))
        return item_at(c, v, mf__j_as_int(key), out);
    if (key.kind == J_STRING) return mf__j_getattr(c, v, key.s, key.n, out);
    return MF_OK;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

static mf_status add_stars(jctx *c, const jarg *arg, jvalue v, jvalue *pos, jvalue *named) {
    if (arg->star == 1) {
        const jlist *items;
        MF__TRY(mf__j_iterate(c, v, &items));
        for (size_t i = 0; i < items->n; i++) MF__TRY(mf__j_append(c, *pos, items->items[i]));
        return MF_OK;
    }
    if (v.kind != J_DICT) return mf__j_fail(c, MF_E_INVALID, "** needs a dict, not %s", mf__j_type(v));
    for (size_t i = 0; i < v.dict->n; i++) {
        if (v.dict->pairs[i].key.kind != J_STRING)
            return mf__j_fail(c, MF_E_INVALID, "** needs str for names, not %s", mf__j_type(v.dict->pairs[i].key));
        MF__TRY(mf__j_put(c, *named, v.dict->pairs[i].key, v.dict->pairs[i].value));
    }
    return MF_OK;
}

/* Calls with * or **: collected in a list and a dict first. */
static mf_status star_args(jctx *c, const jnode *call, jargs *out) {
    jvalue pos, named;
    MF__TRY(mf__j_list(c, J_LIST, 0, &pos));
    MF__TRY(mf__j_dict(c, 0, &named));
    for (size_t i = 0; i < call->n_args; i++) {
        const jarg *a = &call->args[i];
        jvalue v;
        MF__TRY(mf__j_eval(c, a->value, &v));
        if (a->star)
            MF__TRY(add_stars(c, a, v, &pos, &named));
        else if (a->name)
            MF__TRY(mf__j_put(c, named, mf__j_string(a->name, a->n_name), v));
        else
            MF__TRY(mf__j_append(c, pos, v));
    }
    void *memory;
    MF__TRY(mf__j_alloc_array(c, named.dict->n + 1, sizeof(jnamed), &memory));
    *out = (jargs){pos.list->items, pos.list->n, memory, named.dict->n};
    for (size_t i = 0; i < named.dict->n; i++)
        out->named[i] = (jnamed){named.dict->pairs[i].key.s, named.dict->pairs[i].key.n, named.dict->pairs[i].value};
    return MF_OK;
}

mf_status mf__j_args(jctx *c, const jnode *call, jargs *out) {
    void *pos = NULL, *named = NULL;
    size_t n_named = 0;
    *out = (jargs){0};
    if (!call->n_args) return MF_OK;
    for (size_t i = 0; i < call->n_args; i++) {
        if (call->args[i].star) return star_args(c, call, out);
        n_named += call->args[i].name != NULL;
    }
    if (n_named < call->n_args) MF__TRY(mf__j_alloc_array(c, call->n_args - n_named, sizeof(jvalue), &pos));
    if (n_named) MF__TRY(mf__j_alloc_array(c, n_named, sizeof(jnamed), &named));
    out->pos = pos;
    out->named = named;
    for (size_t i = 0; i < call->n_args; i++) {
        jvalue v;
        MF__TRY(mf__j_eval(c, call->args[i].value, &v));
        if (call->args[i].name)
            out->named[out->n_named++] = (jnamed){call->args[i].name, call->args[i].n_name, v};
        else
            out->pos[out->n++] = v;
    }
    return MF_OK;
}

static mf_status call_joiner(jctx *c, jcycler *j, const jargs *args, jvalue *out) {
    if (args->n || args->n_named) return mf__j_fail(c, MF_E_INVALID, "a joiner is called without arguments");
    *out = j->at++ ? j->items[0] : mf__j_string("", 0);
    return MF_OK;
}

mf_status mf__j_call(jctx *c, jvalue callee, const jargs *args, jvalue *out) {
    switch (callee.kind) {
    case J_FUNCTION: {
        const jfunction *f = callee.function;
        return mf__j_apply(c, f->self.kind == J_NONE ? "function" : "method", f->entry, f->self, args, out);
    }
    case J_MACRO: return mf__j_call_macro(c, callee.macro, args, out);
    case J_LOOP: return mf__j_call_loop(c, callee.loop, args, out);
    case J_JOINER: return call_joiner(c, callee.cycler, args, out);
    case J_UNDEFINED: return mf__j_undefined_error(c, callee);
    default: return mf__j_fail(c, MF_E_INVALID, "%s cannot be called", mf__j_type(callee));
    }
}

/* A method that is called where it is looked up needs no value of its own. */
static mf_status eval_call(jctx *c, const jnode *node, jvalue *out) {
    jvalue callee, self;
    jargs args;
    const jentry *method = NULL;
    if (node->a->kind == JN_ATTR) {
        MF__TRY(mf__j_eval(c, node->a->a, &self));
        c->line = node->line;
        method = mf__j_method(self, node->a->s, node->a->n);
        if (!method) MF__TRY(mf__j_getattr(c, self, node->a->s, node->a->n, &callee));
    } else {
        MF__TRY(mf__j_eval(c, node->a, &callee));
    }
    MF__TRY(mf__j_args(c, node, &args));
    c->line = node->line;
    if (method) return mf__j_apply(c, "method", method, self, &args, out);
    return mf__j_call(c, callee, &args, out);
}

/* The chain of filters whose innermost input is missing (a block's text) gets `input` there. */
mf_status mf__j_filter_chain(jctx *c, const jnode *filter, jvalue input, jvalue *out) {
    jargs args;
    MF__TRY(mf__j_enter(c));
    if (filter->a && filter->a->kind == JN_FILTER)
        MF__TRY(mf__j_filter_chain(c, filter->a, input, &input));
    else if (filter->a)
        MF__TRY(mf__j_eval(c, filter->a, &input));
    MF__TRY(mf__j_args(c, filter, &args));
    c->line = filter->line;
    MF__TRY(mf__j_filter(c, filter->s, filter->n, input, &args, out));
    mf__j_leave(c);
    return MF_OK;
}

static mf_status eval_test(jctx *c, const jnode *node, jvalue *out) {
    jvalue v;
    jargs args;
    bool holds;
    MF__TRY(mf__j_eval(c, node->a, &v));
    MF__TRY(mf__j_args(c, node, &args));
    c->line = node->line;
    MF__TRY(mf__j_test(c, node->s, node->n, v, &args, &holds));
    *out = mf__j_bool(holds != (node->op == 'n'));
    return MF_OK;
}

/* ---- the other nodes ------------------------------------------------------------------------------------------- */

static mf_status eval_binary(jctx *c, const jnode *node, jvalue *out) {
    jvalue a, b;
    MF__TRY(mf__j_eval(c, node->a, &a));
    MF__TRY(mf__j_eval(c, node->b, &b));
    c->line = node->line;
    return mf__j_binary(c, node->op, a, b, out);
}

static mf_status eval_slice(jctx *c, const jnode *node, jvalue *out) {
    jvalue v, bounds[3];
    MF__TRY(mf__j_eval(c, node->a, &v));
    for (int i = 0; i < 3; i++) {
        bounds[i] = mf__j_none();
        if (node->list[i]) MF__TRY(mf__j_eval(c, node->list[i], &bounds[i]));
    }
    c->line = node->line;
    return mf__j_slice(c, v, bounds, out);
}

static mf_status eval_compare(jctx *c, const jnode *node, jvalue *out) {
    jvalue a, b;
    bool holds = true;
    MF__TRY(mf__j_eval(c, node->a, &a));
    for (size_t i = 0; i < node->n_list && holds; i++, a = b) {
        MF__TRY(mf__j_eval(c, node->list[i], &b));
        c->line = node->line;
        MF__TRY(mf__j_compare_op(c, node->names[i], a, b, &holds));
    }
    *out = mf__j_bool(holds);
    return MF_OK;
}

/* a ~ b ~ c: the texts of all. With autoescape, markup among them makes markup of the whole. */
static mf_status eval_concat(jctx *c, const jnode *node, jvalue *out) {
    jvalue parts;
    MF__TRY(mf__j_list(c, J_LIST, node->n_list, &parts));
    for (size_t i = 0; i < node->n_list; i++) {
        jvalue v;
        MF__TRY(mf__j_eval(c, node->list[i], &v));
        MF__TRY(mf__j_append(c, parts, v));
    }
    return mf__j_join(c, parts.list, mf__j_string("", 0), out);
}

static mf_status eval_list(jctx *c, const jnode *node, jvalue *out) {
    jvalue v, key;
    if (node->kind == JN_DICT) {
        MF__TRY(mf__j_dict(c, node->n_list / 2, out));
        for (size_t i = 0; i < node->n_list; i += 2) {
            MF__TRY(mf__j_eval(c, node->list[i], &key));
            MF__TRY(mf__j_eval(c, node->list[i + 1], &v));
            MF__TRY(mf__j_put(c, *out, key, v));
        }
        return MF_OK;
    }
    MF__TRY(mf__j_list(c, node->kind == JN_LIST ? J_LIST : J_TUPLE, node->n_list, out));
    for (size_t i = 0; i < node->n_list; i++) {
        MF__TRY(mf__j_eval(c, node->list[i], &v));
        MF__TRY(mf__j_append(c, *out, v));
    }
    return MF_OK;
}

static mf_status eval_item(jctx *c, const jnode *node, jvalue *out) {
    jvalue v, key;
    MF__TRY(mf__j_eval(c, node->a, &v));
    MF__TRY(mf__j_eval(c, node->b, &key));
    c->line = node->line;
    return mf__j_getitem(c, v, key, out);
}

static mf_status eval_node(jctx *c, const jnode *node, jvalue *out) {
    jvalue v;
    switch (node->kind) {
    case JN_CONST: *out = node->value; return MF_OK;
    case JN_NAME: return eval_name(c, node, out);
    case JN_LIST:
    case JN_TUPLE:
    case JN_DICT: return eval_list(c, node, out);
    case JN_ATTR: MF__TRY(mf__j_eval(c, node->a, &v)); return mf__j_getattr(c, v, node->s, node->n, out);
    case JN_ITEM: return eval_item(c, node, out);
    case JN_SLICE: return eval_slice(c, node, out);
    case JN_CALL: return eval_call(c, node, out);
    case JN_FILTER: return mf__j_filter_chain(c, node, mf__j_none(), out);
    case JN_TEST: return eval_test(c, node, out);
    case JN_UNARY: MF__TRY(mf__j_eval(c, node->a, &v)); return mf__j_unary(c, node->op, v, out);
    case JN_BINARY: return eval_binary(c, node, out);
    case JN_CONCAT: return eval_concat(c, node, out);
    case JN_COMPARE: return eval_compare(c, node, out);
    case JN_AND:
    case JN_OR:
        MF__TRY(mf__j_eval(c, node->a, out));
        if (mf__j_truth(*out) == (node->kind == JN_OR)) return MF_OK;
        return mf__j_eval(c, node->b, out);
    case JN_NOT:
        MF__TRY(mf__j_eval(c, node->a, &v));
        *out = mf__j_bool(!mf__j_truth(v));
        return MF_OK;
    case JN_COND:
        MF__TRY(mf__j_eval(c, node->b, &v));
        if (mf__j_truth(v)) return mf__j_eval(c, node->a, out);
        *out = mf__j_undefined(NULL, 0);
        return node->c ? mf__j_eval(c, node->c, out) : MF_OK;
    default: return mf__j_fail(c, MF_E_INTERNAL, "not an expression");
    }
}

mf_status mf__j_eval(jctx *c, const jnode *node, jvalue *out) {
    c->line = node->line;
    MF__TRY(mf__j_pay(c, 1));
    MF__TRY(mf__j_enter(c));
    MF__TRY(eval_node(c, node, out));
    mf__j_leave(c);
    return MF_OK;
}
