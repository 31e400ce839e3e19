/* Statements, and the whole template. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja/ast.h"

#define MAX_TREE ((size_t)64 << 20)
#define MAX_BLOCKS 1000

static mf_status parse_block(jparser *p, const char *const *ends, jnode **out);

/* Behind the body: "{% endNAME" and what it may carry, to behind %}. The cursor stands on the name. */
static mf_status parse_end(jparser *p, const char *name) {
    MF__TRY(mf__jp_expect(p, JT_NAME, name));
    bool may_repeat = strcmp(name, "endmacro") == 0 || strcmp(name, "endblock") == 0; /* {% endmacro name %} */
    if (may_repeat && p->at->kind == JT_NAME) p->at++;
    return mf__jp_expect(p, JT_BLOCK_END, NULL);
}

/* A body up to {% end %}, which is consumed. */
static mf_status parse_body(jparser *p, const char *end, jnode **out) {
    const char *const ends[] = {end, NULL};
    MF__TRY(mf__jp_expect(p, JT_BLOCK_END, NULL));
    MF__TRY(parse_block(p, ends, out));
    return parse_end(p, end);
}

static mf_status parse_name_node(jparser *p, jnode **out) {
    if (p->at->kind != JT_NAME) return mf__jp_expect(p, JT_NAME, NULL);
    MF__TRY(mf__jp_node(p, JN_NAME, out));
    (*out)->s = p->at->s;
    (*out)->n = p->at->n;
    p->at++;
    return MF_OK;
}

static mf_status parse_targets(jparser *p, bool with_namespace, jnode **out);

/* A name, a namespace's member, or names in brackets. */
static mf_status parse_one_target(jparser *p, bool with_namespace, jnode **out) {
    bool round = mf__jp_is(p, JT_OP, "(");
    if (round || mf__jp_is(p, JT_OP, "[")) {
        MF__TRY(mf__jp_enter(p));
        p->at++;
        MF__TRY(parse_targets(p, with_namespace, out));
        p->depth--;
        return mf__jp_expect(p, JT_OP, round ? ")" : "]");
    }
    MF__TRY(parse_name_node(p, out));
    if (!with_namespace || !mf__jp_accept(p, JT_OP, ".")) return MF_OK;
    jnode *attr;
    MF__TRY(mf__jp_node(p, JN_ATTR, &attr));
    if (p->at->kind != JT_NAME) return mf__jp_expect(p, JT_NAME, NULL);
    attr->a = *out;
    attr->s = p->at->s;
    attr->n = p->at->n;
    p->at++;
    *out = attr;
    return MF_OK;
}

static mf_status parse_targets(jparser *p, bool with_namespace, jnode **out) {
    jnode *first, *tuple;
    MF__TRY(parse_one_target(p, with_namespace, &first));
    *out = first;
    if (!mf__jp_is(p, JT_OP, ",")) return MF_OK;
    MF__TRY(mf__jp_node(p, JN_TUPLE, &tuple));
    MF__TRY(mf__jp_push(p, tuple, first));
    while (mf__jp_accept(p, JT_OP, ",")) {
        bool more = (p->at->kind == JT_NAME && !mf__jp_is(p, JT_NAME, "in")) || mf__jp_is(p, JT_OP, "(") ||
                    mf__jp_is(p, JT_OP, "[");
        if (!more) break;
        MF__TRY(parse_one_target(p, with_namespace, &first));
        MF__TRY(mf__jp_push(p, tuple, first));
    }
    *out = tuple;
    return MF_OK;
}

static mf_status parse_if(jparser *p, jnode **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    jnode *n, *part;
    MF__TRY(mf__jp_node(p, JN_IF, &n));
    do {
        MF__TRY(mf__jp_tuple(p, true, &part));
        MF__TRY(mf__jp_push(p, n, part));
        MF__TRY(mf__jp_expect(p, JT_BLOCK_END, NULL));
        MF__TRY(parse_block(p, ends, &part));
        MF__TRY(mf__jp_push(p, n, part));
    } while (mf__jp_accept(p, JT_NAME, "elif"));
    if (mf__jp_accept(p, JT_NAME, "else")) {
        MF__TRY(mf__jp_expect(p, JT_BLOCK_END, NULL));
        MF__TRY(parse_block(p, ends + 2, &n->c));
    }
    *out = n;
    return parse_end(p, "endif");
}

static mf_status parse_for(jparser *p, jnode **out) {
    static const char *const ends[] = {"else", "endfor", NULL};
    jnode *n, *body, *other = NULL;
    MF__TRY(mf__jp_node(p, JN_FOR, &n));
    MF__TRY(parse_targets(p, false, &n->a));
    MF__TRY(mf__jp_expect(p, JT_NAME, "in"));
    MF__TRY(mf__jp_tuple(p, false, &n->b));
    if (mf__jp_accept(p, JT_NAME, "if")) MF__TRY(mf__jp_expression(p, true, &n->c));
    if (mf__jp_accept(p, JT_NAME, "recursive")) n->op = 'r';
    MF__TRY(mf__jp_expect(p, JT_BLOCK_END, NULL));
    p->loops++;
    MF__TRY(parse_block(p, ends, &body));
    p->loops--;
    if (mf__jp_accept(p, JT_NAME, "else")) {
        MF__TRY(mf__jp_expect(p, JT_BLOCK_END, NULL));
        MF__TRY(parse_block(p, ends + 1, &other));
    }
    MF__TRY(mf__jp_push(p, n, body));
    MF__TRY(mf__jp_push(p, n, other));
    *out = n;
    return parse_end(p, "endfor");
}

static mf_status parse_set(jparser *p, jnode **out) {
    jnode *n, *body;
    MF__TRY(mf__jp_node(p, JN_SET, &n));
    MF__TRY(parse_targets(p, true, &n->a));
    *out = n;
    if (mf__jp_accept(p, JT_OP, "=")) {
        MF__TRY(mf__jp_tuple(p, true, &n->b));
        return mf__jp_expect(p, JT_BLOCK_END, NULL);
    }
    n->kind = JN_SET_BLOCK;
    if (mf__jp_is(p, JT_OP, "|")) MF__TRY(mf__jp_filters(p, NULL, &n->b, false));
    MF__TRY(parse_body(p, "endset", &body));
    return mf__jp_push(p, n, body);
}

/* Parameters with defaults: "(a, b=1)", the "(" consumed. */
static mf_status parse_parameters(jparser *p, jnode *macro) {
    while (!mf__jp_accept(p, JT_OP, ")")) {
        if (macro->n_args) MF__TRY(mf__jp_expect(p, JT_OP, ","));
        if (p->at->kind != JT_NAME) return mf__jp_expect(p, JT_NAME, NULL);
        jarg arg = {.name = p->at->s, .n_name = p->at->n};
        p->at++;
        if (mf__jp_accept(p, JT_OP, "="))
            MF__TRY(mf__jp_expression(p, true, &arg.value));
        else if (macro->n_args && macro->args[macro->n_args - 1].value)
            return mf__jp_fail(p, MF_E_FORMAT, "a parameter without a default behind one that has one");
        MF__TRY(mf__jp_push_arg(p, macro, arg));
    }
    return MF_OK;
}

/* What the body asks for by name: then the macro takes more arguments than it has parameters. */
static void find_flags(jnode *macro, const jtoken *from, const jtoken *to) {
    for (const jtoken *t = from; t < to; t++) {
        if (t->kind != JT_NAME || (t > from && t[-1].kind == JT_OP && t[-1].s[0] == '.')) continue;
        if (mf__j_same_name(t->s, t->n, "varargs")) macro->flags |= J_VARARGS;
        if (mf__j_same_name(t->s, t->n, "kwargs")) macro->flags |= J_KWARGS;
        if (mf__j_same_name(t->s, t->n, "caller")) macro->flags |= J_CALLER;
    }
}

/* Body of a macro or a call block, which loops around it do not reach into. */
static mf_status parse_macro_body(jparser *p, jnode *macro, const char *end) {
    jnode *body;
    int loops = p->loops;
    const jtoken *from = p->at;
    p->loops = 0;
    MF__TRY(parse_body(p, end, &body));
    p->loops = loops;
    find_flags(macro, from, p->at);
    return mf__jp_push(p, macro, body);
}

static mf_status parse_macro(jparser *p, jnode **out) {
    jnode *n;
    MF__TRY(mf__jp_node(p, JN_MACRO, &n));
    if (p->at->kind != JT_NAME) return mf__jp_expect(p, JT_NAME, NULL);
    n->s = p->at->s;
    n->n = p->at->n;
    p->at++;
    MF__TRY(mf__jp_expect(p, JT_OP, "("));
    MF__TRY(parse_parameters(p, n));
    *out = n;
    return parse_macro_body(p, n, "endmacro");
}

static mf_status parse_call_block(jparser *p, jnode **out) {
    jnode *n;
    MF__TRY(mf__jp_node(p, JN_CALL_BLOCK, &n));
    MF__TRY(mf__jp_node(p, JN_MACRO, &n->b));
    n->b->s = "caller";
    n->b->n = 6;
    if (mf__jp_accept(p, JT_OP, "(")) MF__TRY(parse_parameters(p, n->b));
    MF__TRY(mf__jp_expression(p, true, &n->a));
    if (n->a->kind != JN_CALL) return mf__jp_fail(p, MF_E_FORMAT, "expected a call behind {% call");
    *out = n;
    return parse_macro_body(p, n->b, "endcall");
}

static mf_status parse_filter_block(jparser *p, jnode **out) {
    jnode *n, *body;
    MF__TRY(mf__jp_node(p, JN_FILTER_BLOCK, &n));
    MF__TRY(mf__jp_filters(p, NULL, &n->a, true));
    MF__TRY(parse_body(p, "endfilter", &body));
    *out = n;
    return mf__jp_push(p, n, body);
}

static mf_status parse_with(jparser *p, jnode **out) {
    jnode *n, *part;
    MF__TRY(mf__jp_node(p, JN_WITH, &n));
    while (p->at->kind != JT_BLOCK_END) {
        if (n->n_list) MF__TRY(mf__jp_expect(p, JT_OP, ","));
        MF__TRY(parse_one_target(p, false, &part));
        MF__TRY(mf__jp_push(p, n, part));
        MF__TRY(mf__jp_expect(p, JT_OP, "="));
        MF__TRY(mf__jp_expression(p, true, &part));
        MF__TRY(mf__jp_push(p, n, part));
    }
    MF__TRY(parse_body(p, "endwith", &part));
    *out = n;
    return mf__jp_push(p, n, part);
}

static mf_status parse_named_block(jparser *p, jnode **out) {
    jnode *n, *body, *all = p->t->blocks;
    MF__TRY(mf__jp_node(p, JN_NAMED_BLOCK, &n));
    if (p->at->kind != JT_NAME) return mf__jp_expect(p, JT_NAME, NULL);
    n->s = p->at->s;
    n->n = p->at->n;
    for (size_t i = 0; i < all->n_list; i++)
        if (all->list[i]->n == n->n && memcmp(all->list[i]->s, n->s, n->n) == 0)
            return mf__jp_fail(p, MF_E_FORMAT, "a second block of this name");
    if (all->n_list >= MAX_BLOCKS) return mf__jp_fail(p, MF_E_LIMIT, "more than 1000 blocks with a name");
    p->at++;
    if (mf__jp_accept(p, JT_NAME, "scoped")) n->op = 's';
    mf__jp_accept(p, JT_NAME, "required");
    MF__TRY(mf__jp_push(p, all, n));
    int loops = p->loops;
    p->loops = 0;
    MF__TRY(parse_body(p, "endblock", &body));
    p->loops = loops;
    *out = n;
    return mf__jp_push(p, n, body);
}

static mf_status parse_autoescape(jparser *p, jnode **out) {
    jnode *n, *body;
    MF__TRY(mf__jp_node(p, JN_AUTOESCAPE, &n));
    MF__TRY(mf__jp_expression(p, true, &n->a));
    MF__TRY(parse_body(p, "endautoescape", &body));
    *out = n;
    return mf__jp_push(p, n, body);
}

/* A statement; the cursor is behind {%. */
static mf_status parse_statement(jparser *p, jnode **out) {
    if (mf__jp_accept(p, JT_NAME, "if")) return parse_if(p, out);
    if (mf__jp_accept(p, JT_NAME, "for")) return parse_for(p, out);
    if (mf__jp_accept(p, JT_NAME, "set")) return parse_set(p, out);
    if (mf__jp_accept(p, JT_NAME, "macro")) return parse_macro(p, out);
    if (mf__jp_accept(p, JT_NAME, "call")) return parse_call_block(p, out);
    if (mf__jp_accept(p, JT_NAME, "filter")) return parse_filter_block(p, out);
    if (mf__jp_accept(p, JT_NAME, "with")) return parse_with(p, out);
    if (mf__jp_accept(p, JT_NAME, "block")) return parse_named_block(p, out);
    if (mf__jp_accept(p, JT_NAME, "autoescape")) return parse_autoescape(p, out);
    if (mf__jp_accept(p, JT_NAME, "generation"))
        return parse_body(p, "endgeneration", out); /* marks training targets */
    bool stop = mf__jp_is(p, JT_NAME, "break");
    if (stop || mf__jp_is(p, JT_NAME, "continue")) {
        if (!p->loops) return mf__jp_fail(p, MF_E_FORMAT, "outside a loop");
        MF__TRY(mf__jp_node(p, stop ? JN_BREAK : JN_CONTINUE, out));
        p->at++;
        return mf__jp_expect(p, JT_BLOCK_END, NULL);
    }
    return mf__jp_fail(p, p->at->kind == JT_NAME ? MF_E_UNSUPPORTED : MF_E_FORMAT, "a tag that is not known here");
}

/* Statements up to one of `ends` (NULL: the end of the template). The cursor is left on the end's name. */
static mf_status parse_block(jparser *p, const char *const *ends, jnode **out) {
    jnode *block, *child;
    MF__TRY(mf__jp_enter(p));
    MF__TRY(mf__jp_node(p, JN_BLOCK, &block));
    while (p->at->kind != JT_END) {
        if (p->at->kind == JT_TEXT) {
            MF__TRY(mf__jp_node(p, JN_TEXT, &child));
            child->s = p->at->s;
            child->n = p->at->n;
            p->at++;
        } else if (mf__jp_accept(p, JT_VAR_BEGIN, NULL)) {
            MF__TRY(mf__jp_node(p, JN_OUTPUT, &child));
            MF__TRY(mf__jp_tuple(p, true, &child->a));
            MF__TRY(mf__jp_expect(p, JT_VAR_END, NULL));
        } else {
            MF__TRY(mf__jp_expect(p, JT_BLOCK_BEGIN, NULL));
            for (const char *const *e = ends; e && *e; e++)
                if (mf__jp_is(p, JT_NAME, *e)) {
                    p->depth--;
                    *out = block;
                    return MF_OK;
                }
            MF__TRY(parse_statement(p, &child));
        }
        MF__TRY(mf__jp_push(p, block, child));
    }
    if (ends) return mf__jp_fail(p, MF_E_FORMAT, "a block that is not closed");
    p->depth--;
    *out = block;
    return MF_OK;
}

mf_status mf__jinja_tree_alloc(mf__jinja *t, size_t count, size_t size, void **out, mf_error *err) {
    *out = NULL;
    if (count * size > MAX_TREE || t->memory > MAX_TREE - count * size)
        return mf__fail(err, MF_E_LIMIT, "%s: the template is too large", t->name);
    t->memory += count * size;
    *out = mf__arena_array(&t->arena, count, size);
    return *out ? MF_OK : mf__fail(err, MF_E_NOMEM, "%s: no memory for the template", t->name);
}

static mf_status parse_tokens(mf__jinja *t, const jtoken *tokens, mf_error *err) {
    jparser p = {.t = t, .at = tokens, .err = err};
    MF__TRY(mf__jp_node(&p, JN_BLOCK, &t->blocks));
    return parse_block(&p, NULL, &t->root);
}

mf_status mf__jinja_parse_as(const char *name, const char *source, size_t size, const mf__jinja_syntax *syntax,
                             mf__jinja **out, mf_error *err) {
    *out = NULL;
    mf__jinja *t = calloc(1, sizeof *t);
    if (!t || !(t->name = strdup(name))) {
        free(t);
        return mf__fail(err, MF_E_NOMEM, "%s: no memory for the template", name);
    }
    jtoken *tokens = NULL;
    mf_status status = mf__jinja_lex(t, syntax, source, size, &tokens, err);
    if (status == MF_OK) status = parse_tokens(t, tokens, err);
    free(tokens);
    if (status != MF_OK) return mf__jinja_free(t), status;
    *out = t;
    return MF_OK;
}

mf_status mf__jinja_parse(const char *name, const char *source, size_t size, mf__jinja **out, mf_error *err) {
    return mf__jinja_parse_as(name, source, size, NULL, out, err);
}

void mf__jinja_free(mf__jinja *t) {
    if (!t) return;
    mf__arena_free(&t->arena);
    free(t->name);
    free(t);
}
