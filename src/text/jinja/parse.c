/* Statements, and the whole template. */
#include <stdlib.h>
#include <string.h>

#include "text/jinja/ast.h"

#define MAX_DEPTH 60

static mf_status parse_block(jparser *p, const char *const *ends, jnode **out);

/* Behind the body: "{% endNAME" and what it may carry, to behind %}. The cursor stands on the name. */
static mf_status parse_end(jparser *p, const char *name) {
    MF__TRY(jp_expect(p, JT_NAME, name));
    if (p->at->kind == JT_NAME) p->at++; /* {% endmacro name %} */
    return jp_expect(p, JT_BLOCK_END, NULL);
}

/* A body up to {% end %}, which is consumed. */
static mf_status parse_body(jparser *p, const char *end, jnode **out) {
    const char *const ends[] = {end, NULL};
    MF__TRY(jp_expect(p, JT_BLOCK_END, NULL));
    MF__TRY(parse_block(p, ends, out));
    return parse_end(p, end);
}

static mf_status parse_name_node(jparser *p, jnode **out) {
    if (p->at->kind != JT_NAME) return jp_expect(p, JT_NAME, NULL);
    MF__TRY(jp_node(p, JN_NAME, out));
    (*out)->s = p->at->s;
    (*out)->n = p->at->n;
    p->at++;
    return MF_OK;
}

mf_status jp_target(jparser *p, bool with_namespace, jnode **out) {
    jnode *first, *tuple;
    bool parens = jp_accept(p, JT_OP, "(");
    MF__TRY(parse_name_node(p, &first));
    if (with_namespace && jp_accept(p, JT_OP, ".")) {
        jnode *attr;
        MF__TRY(jp_node(p, JN_ATTR, &attr));
        if (p->at->kind != JT_NAME) return jp_expect(p, JT_NAME, NULL);
        attr->a = first;
        attr->s = p->at->s;
        attr->n = p->at->n;
        p->at++;
        first = attr;
    }
    *out = first;
    if (jp_is(p, JT_OP, ",")) {
        MF__TRY(jp_node(p, JN_TUPLE, &tuple));
        MF__TRY(jp_push(p, tuple, first));
        while (jp_accept(p, JT_OP, ",") && p->at->kind == JT_NAME && !jp_is(p, JT_NAME, "in")) {
            MF__TRY(parse_name_node(p, &first));
            MF__TRY(jp_push(p, tuple, first));
        }
        *out = tuple;
    }
    return parens ? jp_expect(p, JT_OP, ")") : MF_OK;
}

static mf_status parse_if(jparser *p, jnode **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    jnode *n, *part;
    MF__TRY(jp_node(p, JN_IF, &n));
    do {
        MF__TRY(jp_tuple(p, true, &part));
        MF__TRY(jp_push(p, n, part));
        MF__TRY(jp_expect(p, JT_BLOCK_END, NULL));
        MF__TRY(parse_block(p, ends, &part));
        MF__TRY(jp_push(p, n, part));
    } while (jp_accept(p, JT_NAME, "elif"));
    if (jp_accept(p, JT_NAME, "else")) {
        MF__TRY(jp_expect(p, JT_BLOCK_END, NULL));
        MF__TRY(parse_block(p, ends + 2, &n->c));
    }
    *out = n;
    return parse_end(p, "endif");
}

static mf_status parse_for(jparser *p, jnode **out) {
    static const char *const ends[] = {"else", "endfor", NULL};
    jnode *n, *body, *other = NULL;
    MF__TRY(jp_node(p, JN_FOR, &n));
    MF__TRY(jp_target(p, false, &n->a));
    MF__TRY(jp_expect(p, JT_NAME, "in"));
    MF__TRY(jp_tuple(p, false, &n->b));
    if (jp_accept(p, JT_NAME, "if")) MF__TRY(jp_expression(p, true, &n->c));
    if (jp_is(p, JT_NAME, "recursive")) return jp_fail(p, MF_E_UNSUPPORTED, "recursive loops are not supported");
    MF__TRY(jp_expect(p, JT_BLOCK_END, NULL));
    p->loops++;
    MF__TRY(parse_block(p, ends, &body));
    p->loops--;
    if (jp_accept(p, JT_NAME, "else")) {
        MF__TRY(jp_expect(p, JT_BLOCK_END, NULL));
        MF__TRY(parse_block(p, ends + 1, &other));
    }
    MF__TRY(jp_push(p, n, body));
    MF__TRY(jp_push(p, n, other));
    *out = n;
    return parse_end(p, "endfor");
}

static mf_status parse_set(jparser *p, jnode **out) {
    jnode *n, *body;
    MF__TRY(jp_node(p, JN_SET, &n));
    MF__TRY(jp_target(p, true, &n->a));
    *out = n;
    if (jp_accept(p, JT_OP, "=")) {
        MF__TRY(jp_tuple(p, true, &n->b));
        return jp_expect(p, JT_BLOCK_END, NULL);
    }
    n->kind = JN_SET_BLOCK;
    if (jp_is(p, JT_OP, "|")) MF__TRY(jp_filters(p, NULL, &n->b, false));
    MF__TRY(parse_body(p, "endset", &body));
    return jp_push(p, n, body);
}

/* Parameters with defaults: "(a, b=1)", the "(" consumed. */
static mf_status parse_parameters(jparser *p, jnode *macro) {
    size_t capacity = 0;
    while (!jp_accept(p, JT_OP, ")")) {
        if (macro->n_args) MF__TRY(jp_expect(p, JT_OP, ","));
        if (p->at->kind != JT_NAME) return jp_expect(p, JT_NAME, NULL);
        jarg arg = {p->at->s, p->at->n, NULL};
        p->at++;
        if (jp_accept(p, JT_OP, "=")) MF__TRY(jp_expression(p, true, &arg.value));
        if (macro->n_args == capacity) {
            capacity = capacity ? capacity * 2 : 4;
            jarg *args = mf__arena_array(&p->t->arena, capacity, sizeof *args);
            if (!args) return mf__fail(p->err, MF_E_NOMEM, "%s: no memory for the template", p->t->name);
            if (macro->n_args) memcpy(args, macro->args, macro->n_args * sizeof *args);
            macro->args = args;
        }
        macro->args[macro->n_args++] = arg;
    }
    return MF_OK;
}

static mf_status parse_macro(jparser *p, jnode **out) {
    jnode *n, *body;
    int loops = p->loops;
    MF__TRY(jp_node(p, JN_MACRO, &n));
    if (p->at->kind != JT_NAME) return jp_expect(p, JT_NAME, NULL);
    n->s = p->at->s;
    n->n = p->at->n;
    p->at++;
    MF__TRY(jp_expect(p, JT_OP, "("));
    MF__TRY(parse_parameters(p, n));
    p->loops = 0;
    MF__TRY(parse_body(p, "endmacro", &body));
    p->loops = loops;
    *out = n;
    return jp_push(p, n, body);
}

static mf_status parse_call_block(jparser *p, jnode **out) {
    jnode *n, *body;
    MF__TRY(jp_node(p, JN_CALL_BLOCK, &n));
    MF__TRY(jp_node(p, JN_MACRO, &n->b));
    n->b->s = "caller";
    n->b->n = 6;
    if (jp_accept(p, JT_OP, "(")) MF__TRY(parse_parameters(p, n->b));
    MF__TRY(jp_expression(p, true, &n->a));
    if (n->a->kind != JN_CALL) return jp_fail(p, MF_E_FORMAT, "expected a call behind {% call");
    MF__TRY(parse_body(p, "endcall", &body));
    *out = n;
    return jp_push(p, n->b, body);
}

static mf_status parse_filter_block(jparser *p, jnode **out) {
    jnode *n, *body;
    MF__TRY(jp_node(p, JN_FILTER_BLOCK, &n));
    MF__TRY(jp_filters(p, NULL, &n->a, true));
    MF__TRY(parse_body(p, "endfilter", &body));
    *out = n;
    return jp_push(p, n, body);
}

static mf_status parse_with(jparser *p, jnode **out) {
    jnode *n, *part;
    MF__TRY(jp_node(p, JN_WITH, &n));
    while (p->at->kind != JT_BLOCK_END) {
        if (n->n_list) MF__TRY(jp_expect(p, JT_OP, ","));
        MF__TRY(jp_target(p, false, &part));
        MF__TRY(jp_push(p, n, part));
        MF__TRY(jp_expect(p, JT_OP, "="));
        MF__TRY(jp_expression(p, true, &part));
        MF__TRY(jp_push(p, n, part));
    }
    MF__TRY(parse_body(p, "endwith", &part));
    *out = n;
    return jp_push(p, n, part);
}

/* A statement; the cursor is behind {%. */
static mf_status parse_statement(jparser *p, jnode **out) {
    if (jp_accept(p, JT_NAME, "if")) return parse_if(p, out);
    if (jp_accept(p, JT_NAME, "for")) return parse_for(p, out);
    if (jp_accept(p, JT_NAME, "set")) return parse_set(p, out);
    if (jp_accept(p, JT_NAME, "macro")) return parse_macro(p, out);
    if (jp_accept(p, JT_NAME, "call")) return parse_call_block(p, out);
    if (jp_accept(p, JT_NAME, "filter")) return parse_filter_block(p, out);
    if (jp_accept(p, JT_NAME, "with")) return parse_with(p, out);
    if (jp_accept(p, JT_NAME, "generation")) return parse_body(p, "endgeneration", out); /* marks training targets */
    bool stop = jp_is(p, JT_NAME, "break");
    if (stop || jp_is(p, JT_NAME, "continue")) {
        if (!p->loops) return jp_fail(p, MF_E_FORMAT, "outside a loop");
        MF__TRY(jp_node(p, stop ? JN_BREAK : JN_CONTINUE, out));
        p->at++;
        return jp_expect(p, JT_BLOCK_END, NULL);
    }
    return jp_fail(p, p->at->kind == JT_NAME ? MF_E_UNSUPPORTED : MF_E_FORMAT, "a tag that is not known here");
}

/* Statements up to one of `ends` (NULL: the end of the template). The cursor is left on the end's name. */
static mf_status parse_block(jparser *p, const char *const *ends, jnode **out) {
    jnode *block, *child;
    if (++p->depth > MAX_DEPTH) return jp_fail(p, MF_E_LIMIT, "blocks nested too deep");
    MF__TRY(jp_node(p, JN_BLOCK, &block));
    while (p->at->kind != JT_END) {
        if (p->at->kind == JT_TEXT) {
            MF__TRY(jp_node(p, JN_TEXT, &child));
            child->s = p->at->s;
            child->n = p->at->n;
            p->at++;
        } else if (jp_accept(p, JT_VAR_BEGIN, NULL)) {
            MF__TRY(jp_node(p, JN_OUTPUT, &child));
            MF__TRY(jp_tuple(p, true, &child->a));
            MF__TRY(jp_expect(p, JT_VAR_END, NULL));
        } else {
            MF__TRY(jp_expect(p, JT_BLOCK_BEGIN, NULL));
            for (const char *const *e = ends; e && *e; e++)
                if (jp_is(p, JT_NAME, *e)) {
                    p->depth--;
                    *out = block;
                    return MF_OK;
                }
            MF__TRY(parse_statement(p, &child));
        }
        MF__TRY(jp_push(p, block, child));
    }
    if (ends) return jp_fail(p, MF_E_FORMAT, "a block that is not closed");
    p->depth--;
    *out = block;
    return MF_OK;
}

mf_status mf__jinja_parse(const char *name, const char *source, size_t size, mf__jinja **out, mf_error *err) {
    *out = NULL;
    mf__jinja *t = calloc(1, sizeof *t);
    if (!t || !(t->name = strdup(name))) {
        free(t);
        return mf__fail(err, MF_E_NOMEM, "%s: no memory for the template", name);
    }
    jtoken *tokens = NULL;
    mf_status status = mf__jinja_lex(t, source, size, &tokens, err);
    if (status == MF_OK) {
        jparser p = {.t = t, .at = tokens, .err = err};
        status = parse_block(&p, NULL, &t->root);
    }
    if (status != MF_OK) return mf__jinja_free(t), status;
    *out = t;
    return MF_OK;
}

void mf__jinja_free(mf__jinja *t) {
    if (!t) return;
    mf__arena_free(&t->arena);
    free(t->name);
    free(t);
}
