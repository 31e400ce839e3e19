/* Running statements, and rendering a whole template. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja/run.h"

#define MAX_DEPTH 300

mf_status j_frame(jctx *c, jframe *parent, jframe **out) {
    void *frame;
    MF__TRY(j_alloc(c, sizeof **out, &frame));
    *out = frame;
    **out = (jframe){.parent = parent};
    return MF_OK;
}

mf_status j_set(jctx *c, jframe *f, const char *name, size_t n, jvalue value) {
    for (size_t i = 0; i < f->n; i++)
        if (f->vars[i].n_name == n && memcmp(f->vars[i].name, name, n) == 0) return f->vars[i].value = value, MF_OK;
    if (f->n == f->capacity) {
        size_t capacity = f->capacity ? f->capacity * 2 : 8;
        void *vars;
        MF__TRY(j_alloc(c, capacity * sizeof *f->vars, &vars));
        if (f->n) memcpy(vars, f->vars, f->n * sizeof *f->vars);
        f->vars = vars;
        f->capacity = capacity;
    }
    f->vars[f->n++] = (jnamed){name, n, value};
    return MF_OK;
}

mf_status j_emit(jctx *c, jvalue v) {
    size_t before = c->out->size;
    MF__TRY(j_print(c, v, c->out));
    c->written += c->out->size - before;
    if (c->written > c->opt.max_output)
        return jfail(c, MF_E_LIMIT, "the template writes more than %zu bytes", c->opt.max_output);
    return MF_OK;
}

mf_status j_capture(jctx *c, const jnode *block, jvalue *out) {
    mf__strbuf text = {0}, *before = c->out;
    int flow;
    c->out = &text;
    mf_status status = j_exec(c, block, &flow);
    c->out = before;
    if (status == MF_OK) status = j_copy(c, text.data, text.size, out);
    mf__strbuf_free(&text);
    return status;
}

/* ---- assigning ------------------------------------------------------------------------------------------------- */

static mf_status assign(jctx *c, const jnode *target, jvalue v) {
    c->line = target->line;
    if (target->kind == JN_NAME) return j_set(c, c->frame, target->s, target->n, v);
    if (target->kind == JN_ATTR) {
        jvalue ns;
        MF__TRY(j_eval(c, target->a, &ns));
        if (ns.kind != J_NAMESPACE)
            return jfail(c, MF_E_INVALID, "\"%.*s\" is %s; only a namespace's members can be set", (int)target->a->n,
                         target->a->s, j_type(ns));
        return j_put(c, ns, j_string(target->s, target->n), v);
    }
    const jlist *items;
    MF__TRY(j_iterate(c, v, &items));
    if (items->n != target->n_list) return jfail(c, MF_E_INVALID, "%zu values for %zu names", items->n, target->n_list);
    for (size_t i = 0; i < items->n; i++) MF__TRY(assign(c, target->list[i], items->items[i]));
    return MF_OK;
}

/* ---- loops ----------------------------------------------------------------------------------------------------- */

static mf_status filter_items(jctx *c, const jnode *node, const jlist **items) {
    jvalue kept;
    MF__TRY(j_list(c, J_LIST, 0, &kept));
    for (size_t i = 0; i < (*items)->n; i++) {
        jvalue holds;
        MF__TRY(assign(c, node->a, (*items)->items[i]));
        MF__TRY(j_eval(c, node->c, &holds));
        if (j_truth(holds)) MF__TRY(j_append(c, kept, (*items)->items[i]));
    }
    *items = kept.list;
    return MF_OK;
}

/* The body's frame is used for every iteration, emptied in between. The list may change under the loop, as in Python:
 * its length is asked anew each time. */
static mf_status run_loop(jctx *c, const jnode *node, const jlist *items, jframe *frame) {
    void *memory;
    MF__TRY(j_alloc(c, sizeof(jloop), &memory));
    jloop *loop = memory;
    *loop = (jloop){.items = items};
    c->frame = frame;
    for (loop->at = 0; loop->at < items->n; loop->at++) {
        int flow;
        if (++c->steps > c->opt.max_steps)
            return jfail(c, MF_E_LIMIT, "the template takes more than %lld steps", (long long)c->opt.max_steps);
        frame->n = 0;
        MF__TRY(j_set(c, frame, "loop", 4, (jvalue){.kind = J_LOOP, .loop = loop}));
        MF__TRY(assign(c, node->a, items->items[loop->at]));
        MF__TRY(j_exec(c, node->list[0], &flow));
        if (flow == JN_BREAK) break;
    }
    return MF_OK;
}

static mf_status exec_for(jctx *c, const jnode *node, int *flow) {
    jvalue v;
    const jlist *items;
    jframe *outer = c->frame, *frame;
    MF__TRY(j_eval(c, node->b, &v));
    c->line = node->line;
    MF__TRY(j_iterate(c, v, &items));
    MF__TRY(j_frame(c, outer, &frame));
    mf_status status = MF_OK;
    if (node->c) {
        c->frame = frame;
        status = filter_items(c, node, &items);
        c->frame = outer;
    }
    if (status == MF_OK && items->n) status = run_loop(c, node, items, frame);
    c->frame = outer;
    if (status == MF_OK && items->n == 0 && node->list[1]) return j_exec(c, node->list[1], flow);
    return status;
}

/* ---- macros ---------------------------------------------------------------------------------------------------- */

static mf_status bind_parameters(jctx *c, const jnode *m, const jargs *args, jframe *frame) {
    size_t used = 0;
    if (args->n > m->n_args)
        return jfail(c, MF_E_INVALID, "macro %.*s takes %zu arguments, %zu given", (int)m->n, m->s, m->n_args, args->n);
    for (size_t i = 0; i < m->n_args; i++) {
        const jarg *p = &m->args[i];
        jvalue v = j_undefined(p->name, p->n_name);
        bool given = i < args->n;
        if (given) v = args->pos[i];
        for (size_t k = 0; k < args->n_named; k++)
            if (args->named[k].n_name == p->n_name && memcmp(args->named[k].name, p->name, p->n_name) == 0) {
                if (given) return jfail(c, MF_E_INVALID, "argument %.*s is given twice", (int)p->n_name, p->name);
                v = args->named[k].value;
                given = true;
                used++;
            }
        if (!given && p->value) MF__TRY(j_eval(c, p->value, &v));
        MF__TRY(j_set(c, frame, p->name, p->n_name, v));
    }
    for (size_t k = 0; k < args->n_named; k++)
        if (args->named[k].n_name == 6 && memcmp(args->named[k].name, "caller", 6) == 0) {
            MF__TRY(j_set(c, frame, "caller", 6, args->named[k].value));
            used++;
        }
    if (used < args->n_named)
        return jfail(c, MF_E_INVALID, "macro %.*s has no parameter of a given name", (int)m->n, m->s);
    return MF_OK;
}

mf_status j_call_macro(jctx *c, const jmacro *macro, const jargs *args, jvalue *out) {
    jframe *before = c->frame, *frame;
    MF__TRY(j_frame(c, macro->frame, &frame));
    c->frame = frame;
    mf_status status = bind_parameters(c, macro->node, args, frame);
    if (status == MF_OK) status = j_capture(c, macro->node->list[0], out);
    c->frame = before;
    return status;
}

static mf_status make_macro(jctx *c, const jnode *node, jvalue *out) {
    void *memory;
    MF__TRY(j_alloc(c, sizeof(jmacro), &memory));
    jmacro *macro = memory;
    *macro = (jmacro){node, c->frame};
    *out = (jvalue){.kind = J_MACRO, .macro = macro};
    return MF_OK;
}

static mf_status exec_call_block(jctx *c, const jnode *node) {
    jvalue caller, callee, text;
    jargs args;
    void *named;
    MF__TRY(make_macro(c, node->b, &caller));
    MF__TRY(j_eval(c, node->a->a, &callee));
    MF__TRY(j_args(c, node->a, &args));
    MF__TRY(j_alloc(c, (args.n_named + 1) * sizeof(jnamed), &named));
    if (args.n_named) memcpy(named, args.named, args.n_named * sizeof(jnamed));
    args.named = named;
    args.named[args.n_named++] = (jnamed){"caller", 6, caller};
    c->line = node->line;
    MF__TRY(j_call(c, callee, &args, &text));
    return j_emit(c, text);
}

/* ---- statements ------------------------------------------------------------------------------------------------ */

static mf_status exec_if(jctx *c, const jnode *node, int *flow) {
    for (size_t i = 0; i < node->n_list; i += 2) {
        jvalue v;
        MF__TRY(j_eval(c, node->list[i], &v));
        if (j_truth(v)) return j_exec(c, node->list[i + 1], flow);
    }
    return node->c ? j_exec(c, node->c, flow) : MF_OK;
}

static mf_status exec_with(jctx *c, const jnode *node, int *flow) {
    jframe *outer = c->frame, *frame;
    MF__TRY(j_frame(c, outer, &frame));
    mf_status status = MF_OK;
    for (size_t i = 0; status == MF_OK && i + 1 < node->n_list; i += 2) {
        jvalue v;
        status = j_eval(c, node->list[i + 1], &v); /* values see the outer scope only */
        c->frame = frame;
        if (status == MF_OK) status = assign(c, node->list[i], v);
        c->frame = outer;
    }
    c->frame = frame;
    if (status == MF_OK) status = j_exec(c, node->list[node->n_list - 1], flow);
    c->frame = outer;
    return status;
}

static mf_status exec_one(jctx *c, const jnode *node, int *flow) {
    jvalue v;
    c->line = node->line;
    switch (node->kind) {
    case JN_TEXT: return j_emit(c, j_string(node->s, node->n));
    case JN_OUTPUT:
        MF__TRY(j_eval(c, node->a, &v));
        c->line = node->line;
        return j_emit(c, v);
    case JN_IF: return exec_if(c, node, flow);
    case JN_FOR: return exec_for(c, node, flow);
    case JN_SET: MF__TRY(j_eval(c, node->b, &v)); return assign(c, node->a, v);
    case JN_SET_BLOCK:
        MF__TRY(j_capture(c, node->list[0], &v));
        if (node->b) MF__TRY(j_filter_chain(c, node->b, v, &v));
        return assign(c, node->a, v);
    case JN_MACRO: MF__TRY(make_macro(c, node, &v)); return j_set(c, c->frame, node->s, node->n, v);
    case JN_CALL_BLOCK: return exec_call_block(c, node);
    case JN_FILTER_BLOCK:
        MF__TRY(j_capture(c, node->list[0], &v));
        MF__TRY(j_filter_chain(c, node->a, v, &v));
        return j_emit(c, v);
    case JN_WITH: return exec_with(c, node, flow);
    case JN_BLOCK: return j_exec(c, node, flow);
    case JN_BREAK:
    case JN_CONTINUE: *flow = (int)node->kind; return MF_OK;
    default: return jfail(c, MF_E_INTERNAL, "not a statement");
    }
}

mf_status j_exec(jctx *c, const jnode *block, int *flow) {
    *flow = 0;
    c->line = block->line;
    if (++c->depth > MAX_DEPTH) return jfail(c, MF_E_LIMIT, "the template nests deeper than %d", MAX_DEPTH);
    for (size_t i = 0; i < block->n_list && *flow == 0; i++) MF__TRY(exec_one(c, block->list[i], flow));
    c->depth--;
    return MF_OK;
}

mf_status mf__jinja_render(const mf__jinja *t, const json_t *variables, const mf__jinja_options *opt, mf__strbuf *out,
                           mf_error *err) {
    jctx c = {.template = t, .name = t->name, .out = out, .err = err, .line = 1};
    if (opt) c.opt = *opt;
    if (!c.opt.max_steps) c.opt.max_steps = 20000000;
    if (!c.opt.max_memory) c.opt.max_memory = (size_t)256 << 20;
    if (!c.opt.max_output) c.opt.max_output = (size_t)64 << 20;
    const char *key;
    json_t *value;
    int flow;
    mf_status status = j_frame(&c, NULL, &c.frame);
    json_object_foreach((json_t *)variables, key, value) {
        jvalue v;
        if (status == MF_OK) status = j_from_json(&c, value, &v);
        if (status == MF_OK) status = j_set(&c, c.frame, key, strlen(key), v);
    }
    if (status == MF_OK) status = j_exec(&c, t->root, &flow);
    mf__arena_free(&c.arena);
    return status;
}
