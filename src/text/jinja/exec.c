/* Running statements. */
#include <string.h>

#include "text/jinja/run.h"

mf_status mf__j_frame(jctx *c, jframe *parent, jframe **out) {
    void *frame;
    MF__TRY(mf__j_alloc(c, sizeof **out, &frame));
    *out = frame;
    **out = (jframe){.parent = parent};
    return MF_OK;
}

mf_status mf__j_set(jctx *c, jframe *f, const char *name, size_t n, jvalue value) {
    MF__TRY(mf__j_pay(c, 1 + f->n / 8));
    for (size_t i = 0; i < f->n; i++)
        if (f->vars[i].n_name == n && memcmp(f->vars[i].name, name, n) == 0) return f->vars[i].value = value, MF_OK;
    if (f->n == f->capacity) {
        size_t capacity = f->capacity ? f->capacity * 2 : 4;
        void *vars;
        MF__TRY(mf__j_alloc_array(c, capacity, sizeof *f->vars, &vars));
        if (f->n) memcpy(vars, f->vars, f->n * sizeof *f->vars);
        f->vars = vars;
        f->capacity = capacity;
    }
    f->vars[f->n++] = (jnamed){name, n, value};
    return MF_OK;
}

/* What the caller gets is limited; what is caught counts as memory. */
static mf_status check_output(jctx *c) {
    if (c->out->size - c->output <= c->opt.max_output || c->captures) return MF_OK;
    return mf__j_fail(c, MF_E_LIMIT, "the template writes more than %zu bytes", c->opt.max_output);
}

mf_status mf__j_emit(jctx *c, jvalue v) {
    if (c->autoescape && !(v.kind == J_STRING && v.form == JF_MARKUP)) MF__TRY(mf__j_escape(c, v, &v));
    MF__TRY(mf__j_print(c, v, c->out));
    return check_output(c);
}

static mf_status emit_text(jctx *c, const jnode *node) {
    MF__TRY(mf__j_put_text(c, c->out, node->s, node->n));
    return check_output(c);
}

mf_status mf__j_capture(jctx *c, const jnode *block, jvalue *out) {
    mf__strbuf text = {0}, *before = c->out;
    int flow;
    c->out = &text;
    c->captures++;
    mf_status status = mf__j_exec(c, block, &flow);
    c->captures--;
    c->out = before;
    MF__TRY(mf__j_take(c, status, &text, out));
    if (c->autoescape) out->form = JF_MARKUP;
    return MF_OK;
}

/* ---- assigning ------------------------------------------------------------------------------------------------- */

static mf_status assign(jctx *c, const jnode *target, jvalue v) {
    c->line = target->line;
    if (target->kind == JN_NAME) return mf__j_set(c, c->frame, target->s, target->n, v);
    if (target->kind == JN_ATTR) {
        jvalue ns;
        MF__TRY(mf__j_eval(c, target->a, &ns));
        if (ns.kind != J_NAMESPACE)
            return mf__j_fail(c, MF_E_INVALID, "\"%.*s\" is %s; only a namespace's members can be set",
                              (int)target->a->n, target->a->s, mf__j_type(ns));
        return mf__j_put(c, ns, mf__j_string(target->s, target->n), v);
    }
    const jlist *items;
    if (v.kind == J_UNDEFINED) return mf__j_undefined_error(c, v);
    MF__TRY(mf__j_iterate(c, v, &items));
    if (items->n != target->n_list)
        return mf__j_fail(c, MF_E_INVALID, "%zu values for %zu names", items->n, target->n_list);
    for (size_t i = 0; i < target->n_list; i++) MF__TRY(assign(c, target->list[i], items->items[i]));
    return MF_OK;
}

/* ---- loops ----------------------------------------------------------------------------------------------------- */

static mf_status filter_items(jctx *c, const jnode *node, const jlist **items) {
    jvalue kept;
    MF__TRY(mf__j_list(c, J_LIST, 0, &kept));
    for (size_t i = 0; i < (*items)->n; i++) {
        jvalue holds;
        MF__TRY(assign(c, node->a, (*items)->items[i]));
        MF__TRY(mf__j_eval(c, node->c, &holds));
        if (mf__j_truth(holds)) MF__TRY(mf__j_append(c, kept, (*items)->items[i]));
    }
    *items = kept.list;
    return MF_OK;
}

/* The body's frame is used for every iteration, emptied in between. The list may change under the loop, as in Python:
 * its length is asked anew each time. */
static mf_status run_loop(jctx *c, const jnode *node, jloop *loop, jframe *frame) {
    c->frame = frame;
    for (loop->at = 0; loop->at < loop->items->n; loop->at++) {
        int flow;
        MF__TRY(mf__j_pay(c, 1));
        if (frame->escaped)
            MF__TRY(mf__j_frame(c, loop->frame, &frame)); /* a macro of the last round keeps its scope */
        frame->n = 0;
        c->frame = frame;
        MF__TRY(mf__j_set(c, frame, "loop", 4, (jvalue){.kind = J_LOOP, .loop = loop}));
        MF__TRY(assign(c, node->a, loop->items->items[loop->at]));
        MF__TRY(mf__j_exec(c, node->list[0], &flow));
        if (flow == JN_BREAK) break;
    }
    return MF_OK;
}

/* The whole loop over v, at a depth of recursion, in the scope `outer`. */
static mf_status loop_over(jctx *c, const jnode *node, jvalue v, int depth, jframe *outer, int *flow) {
    const jlist *items;
    jframe *frame;
    void *memory;
    MF__TRY(mf__j_iterate(c, v, &items));
    MF__TRY(mf__j_frame(c, outer, &frame));
    if (node->c) {
        c->frame = frame;
        MF__TRY(filter_items(c, node, &items));
    }
    c->frame = outer;
    if (items->n == 0) return node->list[1] ? mf__j_exec(c, node->list[1], flow) : MF_OK;
    MF__TRY(mf__j_alloc(c, sizeof(jloop), &memory));
    *(jloop *)memory = (jloop){.items = items, .depth = depth, .node = node->op == 'r' ? node : NULL, .frame = outer};
    MF__TRY(run_loop(c, node, memory, frame));
    c->frame = outer;
    return MF_OK;
}

static mf_status exec_for(jctx *c, const jnode *node, int *flow) {
    jvalue v;
    MF__TRY(mf__j_eval(c, node->b, &v));
    c->line = node->line;
    return loop_over(c, node, v, 0, c->frame, flow);
}

mf_status mf__j_call_loop(jctx *c, const jloop *loop, const jargs *args, jvalue *out) {
    mf__strbuf text = {0}, *before = c->out;
    jframe *frame = c->frame;
    int flow = 0;
    if (!loop->node) return mf__j_fail(c, MF_E_INVALID, "loop() needs a loop that says \"recursive\"");
    if (args->n != 1 || args->n_named) return mf__j_fail(c, MF_E_INVALID, "loop() takes one argument");
    MF__TRY(mf__j_enter(c));
    c->out = &text;
    c->captures++;
    mf_status status = loop_over(c, loop->node, args->pos[0], loop->depth + 1, loop->frame, &flow);
    c->captures--;
    c->out = before;
    c->frame = frame;
    MF__TRY(mf__j_take(c, status, &text, out));
    if (c->autoescape) out->form = JF_MARKUP;
    mf__j_leave(c);
    return MF_OK;
}

/* ---- macros ---------------------------------------------------------------------------------------------------- */

/* What no parameter takes: varargs, kwargs and the caller, where the macro asks for them. */
static mf_status bind_rest(jctx *c, const jnode *m, const jargs *args, const bool *taken, jframe *frame) {
    jvalue list, dict;
    MF__TRY(mf__j_list(c, J_TUPLE, 0, &list));
    MF__TRY(mf__j_dict(c, 0, &dict));
    for (size_t i = m->n_args; i < args->n; i++) MF__TRY(mf__j_append(c, list, args->pos[i]));
    for (size_t k = 0; k < args->n_named; k++) {
        const jnamed *a = &args->named[k];
        if (taken[k]) continue;
        if (mf__j_same_name(a->name, a->n_name, "caller"))
            MF__TRY(mf__j_set(c, frame, "caller", 6, a->value));
        else if (m->flags & J_KWARGS)
            MF__TRY(mf__j_put(c, dict, mf__j_string(a->name, a->n_name), a->value));
        else
            return mf__j_fail(c, MF_E_INVALID, "the macro \"%.*s\" has no parameter called \"%.*s\"", (int)m->n, m->s,
                              a->n_name > 40 ? 40 : (int)a->n_name, a->name);
    }
    if (m->flags & J_VARARGS) MF__TRY(mf__j_set(c, frame, "varargs", 7, list));
    return m->flags & J_KWARGS ? mf__j_set(c, frame, "kwargs", 6, dict) : MF_OK;
}

static mf_status bind_parameters(jctx *c, const jnode *m, const jargs *args, jframe *frame) {
    void *memory;
    if (args->n > m->n_args && !(m->flags & J_VARARGS))
        return mf__j_fail(c, MF_E_INVALID, "the macro \"%.*s\" takes %zu arguments, %zu given", (int)m->n, m->s,
                          m->n_args, args->n);
    MF__TRY(mf__j_alloc_array(c, args->n_named + 1, sizeof(bool), &memory));
    bool *taken = memory;
    for (size_t i = 0; i < m->n_args; i++) {
        const jarg *p = &m->args[i];
        jvalue v = mf__j_undefined(p->name, p->n_name);
        bool given = i < args->n;
        if (given) v = args->pos[i];
        MF__TRY(mf__j_pay(c, args->n_named / 4));
        for (size_t k = 0; k < args->n_named; k++)
            if (args->named[k].n_name == p->n_name && memcmp(args->named[k].name, p->name, p->n_name) == 0) {
                if (given) return mf__j_fail(c, MF_E_INVALID, "argument %.*s is given twice", (int)p->n_name, p->name);
                v = args->named[k].value;
                taken[k] = given = true;
            }
        if (!given && p->value) MF__TRY(mf__j_eval(c, p->value, &v));
        MF__TRY(mf__j_set(c, frame, p->name, p->n_name, v));
    }
    return bind_rest(c, m, args, taken, frame);
}

mf_status mf__j_call_macro(jctx *c, const jmacro *macro, const jargs *args, jvalue *out) {
    jframe *before = c->frame, *frame;
    bool autoescape = c->autoescape;
    MF__TRY(mf__j_frame(c, macro->frame, &frame));
    c->frame = frame;
    c->autoescape = macro->autoescape;
    MF__TRY(bind_parameters(c, macro->node, args, frame));
    MF__TRY(mf__j_capture(c, macro->node->list[0], out));
    c->frame = before;
    c->autoescape = autoescape;
    return MF_OK;
}

static mf_status make_macro(jctx *c, const jnode *node, jvalue *out) {
    void *memory;
    MF__TRY(mf__j_alloc(c, sizeof(jmacro), &memory));
    *(jmacro *)memory = (jmacro){node, c->frame, c->autoescape};
    *out = (jvalue){.kind = J_MACRO, .macro = memory};
    for (jframe *f = c->frame; f && !f->escaped; f = f->parent) f->escaped = true;
    return MF_OK;
}

static mf_status exec_call_block(jctx *c, const jnode *node) {
    jvalue caller, callee, text;
    jargs args;
    void *named;
    MF__TRY(make_macro(c, node->b, &caller));
    MF__TRY(mf__j_eval(c, node->a->a, &callee));
    MF__TRY(mf__j_args(c, node->a, &args));
    MF__TRY(mf__j_alloc_array(c, args.n_named + 1, sizeof(jnamed), &named));
    if (args.n_named) memcpy(named, args.named, args.n_named * sizeof(jnamed));
    args.named = named;
    args.named[args.n_named++] = (jnamed){"caller", 6, caller};
    c->line = node->line;
    MF__TRY(mf__j_call(c, callee, &args, &text));
    return mf__j_emit(c, text);
}

/* ---- blocks with a name ---------------------------------------------------------------------------------------- */

static const jnode *find_block(const jctx *c, const char *name, size_t n) {
    const jnode *all = c->template->blocks;
    for (size_t i = 0; i < all->n_list; i++)
        if (all->list[i]->n == n && memcmp(all->list[i]->s, name, n) == 0) return all->list[i];
    return NULL;
}

bool mf__j_has_block(const jctx *c, const char *name, size_t n) {
    return find_block(c, name, n) != NULL;
}

/* A block sees the template's own variables only, unless it is `scoped`. */
static mf_status exec_named_block(jctx *c, const jnode *node, int *flow) {
    jframe *outer = c->frame, *frame;
    MF__TRY(mf__j_frame(c, node->op == 's' ? outer : c->globals, &frame));
    c->frame = frame;
    MF__TRY(mf__j_exec(c, node->list[0], flow));
    c->frame = outer;
    return MF_OK;
}

mf_status mf__j_call_block(jctx *c, const char *name, size_t n, jvalue *out) {
    const jnode *node = find_block(c, name, n);
    jframe *outer = c->frame, *frame;
    if (!node) return mf__j_fail(c, MF_E_INVALID, "no block \"%.*s\"", n > 40 ? 40 : (int)n, name);
    MF__TRY(mf__j_frame(c, c->globals, &frame));
    c->frame = frame;
    MF__TRY(mf__j_capture(c, node->list[0], out));
    c->frame = outer;
    return MF_OK;
}

/* ---- statements ------------------------------------------------------------------------------------------------ */

static mf_status exec_if(jctx *c, const jnode *node, int *flow) {
    for (size_t i = 0; i < node->n_list; i += 2) {
        jvalue v;
        MF__TRY(mf__j_eval(c, node->list[i], &v));
        if (mf__j_truth(v)) return mf__j_exec(c, node->list[i + 1], flow);
    }
    return node->c ? mf__j_exec(c, node->c, flow) : MF_OK;
}

static mf_status exec_with(jctx *c, const jnode *node, int *flow) {
    jframe *outer = c->frame, *frame;
    MF__TRY(mf__j_frame(c, outer, &frame));
    for (size_t i = 0; i + 1 < node->n_list; i += 2) {
        jvalue v;
        c->frame = outer; /* values see the outer scope only */
        MF__TRY(mf__j_eval(c, node->list[i + 1], &v));
        c->frame = frame;
        MF__TRY(assign(c, node->list[i], v));
    }
    c->frame = frame;
    MF__TRY(mf__j_exec(c, node->list[node->n_list - 1], flow));
    c->frame = outer;
    return MF_OK;
}

static mf_status exec_autoescape(jctx *c, const jnode *node, int *flow) {
    bool before = c->autoescape;
    jvalue v;
    MF__TRY(mf__j_eval(c, node->a, &v));
    jframe *outer = c->frame, *frame;
    MF__TRY(mf__j_frame(c, outer, &frame));
    c->frame = frame;
    c->autoescape = mf__j_truth(v);
    MF__TRY(mf__j_exec(c, node->list[0], flow));
    c->autoescape = before;
    c->frame = outer;
    return MF_OK;
}

/* The texts of set blocks and filter blocks have a scope of their own. */
static mf_status capture_scoped(jctx *c, const jnode *block, jvalue *out) {
    jframe *outer = c->frame, *frame;
    MF__TRY(mf__j_frame(c, outer, &frame));
    c->frame = frame;
    MF__TRY(mf__j_capture(c, block, out));
    c->frame = outer;
    return MF_OK;
}

static mf_status exec_one(jctx *c, const jnode *node, int *flow) {
    jvalue v;
    c->line = node->line;
    MF__TRY(mf__j_pay(c, 1));
    switch (node->kind) {
    case JN_TEXT: return emit_text(c, node);
    case JN_OUTPUT:
        MF__TRY(mf__j_eval(c, node->a, &v));
        c->line = node->line;
        return mf__j_emit(c, v);
    case JN_IF: return exec_if(c, node, flow);
    case JN_FOR: return exec_for(c, node, flow);
    case JN_SET: MF__TRY(mf__j_eval(c, node->b, &v)); return assign(c, node->a, v);
    case JN_SET_BLOCK:
        MF__TRY(capture_scoped(c, node->list[0], &v));
        if (node->b) MF__TRY(mf__j_filter_chain(c, node->b, v, &v));
        return assign(c, node->a, v);
    case JN_MACRO: MF__TRY(make_macro(c, node, &v)); return mf__j_set(c, c->frame, node->s, node->n, v);
    case JN_CALL_BLOCK: return exec_call_block(c, node);
    case JN_FILTER_BLOCK:
        MF__TRY(capture_scoped(c, node->list[0], &v));
        MF__TRY(mf__j_filter_chain(c, node->a, v, &v));
        return mf__j_emit(c, v);
    case JN_WITH: return exec_with(c, node, flow);
    case JN_NAMED_BLOCK: return exec_named_block(c, node, flow);
    case JN_AUTOESCAPE: return exec_autoescape(c, node, flow);
    case JN_BLOCK: return mf__j_exec(c, node, flow);
    case JN_BREAK:
    case JN_CONTINUE: *flow = (int)node->kind; return MF_OK;
    default: return mf__j_fail(c, MF_E_INTERNAL, "not a statement");
    }
}

mf_status mf__j_exec(jctx *c, const jnode *block, int *flow) {
    *flow = 0;
    c->line = block->line;
    MF__TRY(mf__j_enter(c));
    for (size_t i = 0; i < block->n_list && *flow == 0; i++) MF__TRY(exec_one(c, block->list[i], flow));
    mf__j_leave(c);
    return MF_OK;
}

static mf_status render(jctx *c, const json_t *variables) {
    const char *key;
    json_t *value;
    int flow;
    MF__TRY(mf__j_frame(c, NULL, &c->globals));
    c->frame = c->globals;
    json_object_foreach((json_t *)variables, key, value) {
        jvalue v;
        MF__TRY(mf__j_from_json(c, value, &v));
        MF__TRY(mf__j_set(c, c->globals, key, strlen(key), v));
    }
    return mf__j_exec(c, c->template->root, &flow);
}

mf_status mf__jinja_render(const mf__jinja *t, const json_t *variables, const mf__jinja_options *opt, mf__strbuf *out,
                           mf_error *err) {
    jctx c = {.template = t, .name = t->name, .out = out, .output = out->size, .err = err, .line = 1};
    if (opt) c.opt = *opt;
    mf__j_begin(&c);
    mf_status status = render(&c, variables);
    mf__arena_free(&c.arena);
    json_decref(c.kept);
    return status;
}
