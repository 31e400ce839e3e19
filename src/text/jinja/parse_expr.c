/* Expressions, by precedence as in jinja2:
 *
 *   a if b else c  <  or  <  and  <  not  <  comparisons, in  <  + -  <  ~  <  * / // %  <  **  <  unary  <  filters,
 *   tests  <  . [] ()
 */
#include <string.h>

#include "text/jinja/ast.h"

#define MAX_DEPTH 150 /* 200 kB of stack, with AddressSanitizer 1 MB */

static mf_status parse_unary(jparser *p, bool with_filters, jnode **out);

/* ---- small tools ----------------------------------------------------------------------------------------------- */

mf_status mf__jp_fail(jparser *p, mf_status status, const char *what) {
    const jtoken *t = p->at;
    if (t->kind == JT_END)
        return mf__fail(p->err, status, "%s: line %d: %s, found the end of the template", p->t->name, t->line, what);
    return mf__fail(p->err, status, "%s: line %d: %s, found \"%.*s\"", p->t->name, t->line, what,
                    t->n > 40 ? 40 : (int)t->n, t->s ? t->s : "");
}

bool mf__jp_is(const jparser *p, jtoken_kind kind, const char *text) {
    return p->at->kind == kind && (!text || (p->at->n == strlen(text) && memcmp(p->at->s, text, p->at->n) == 0));
}

bool mf__jp_accept(jparser *p, jtoken_kind kind, const char *text) {
    if (!mf__jp_is(p, kind, text)) return false;
    p->at++;
    return true;
}

mf_status mf__jp_expect(jparser *p, jtoken_kind kind, const char *text) {
    if (mf__jp_accept(p, kind, text)) return MF_OK;
    char what[80] = "expected ";
    const char *name = text                   ? text
                       : kind == JT_NAME      ? "a name"
                       : kind == JT_BLOCK_END ? "%}"
                       : kind == JT_VAR_END   ? "}}"
                                              : "something else";
    strncat(what, name, 60);
    return mf__jp_fail(p, MF_E_FORMAT, what);
}

mf_status mf__jp_enter(jparser *p) {
    if (++p->depth <= MAX_DEPTH) return MF_OK;
    return mf__jp_fail(p, MF_E_LIMIT, "nested too deep, more than 150 blocks and brackets inside each other");
}

mf_status mf__jp_node(jparser *p, jnode_kind kind, jnode **out) {
    *out = NULL;
    void *memory;
    MF__TRY(mf__jinja_tree_alloc(p->t, 1, sizeof(jnode), &memory, p->err));
    jnode *n = memory;
    n->kind = kind;
    n->line = p->at->line;
    *out = n;
    return MF_OK;
}

/* A list of n members with room for one more: lists grow to powers of two. */
static mf_status grow(jparser *p, void **list, size_t n, size_t size) {
    if (n & (n - 1)) return MF_OK;
    void *more;
    MF__TRY(mf__jinja_tree_alloc(p->t, n ? n * 2 : 1, size, &more, p->err));
    if (n) memcpy(more, *list, n * size);
    *list = more;
    return MF_OK;
}

mf_status mf__jp_push(jparser *p, jnode *parent, jnode *child) {
    void *list = parent->list;
    MF__TRY(grow(p, &list, parent->n_list, sizeof *parent->list));
    parent->list = list;
    parent->list[parent->n_list++] = child;
    return MF_OK;
}

mf_status mf__jp_push_arg(jparser *p, jnode *call, jarg arg) {
    void *args = call->args;
    MF__TRY(grow(p, &args, call->n_args, sizeof *call->args));
    call->args = args;
    call->args[call->n_args++] = arg;
    return MF_OK;
}

static mf_status binary(jparser *p, jnode_kind kind, char op, jnode *a, jnode *b, jnode **out) {
    jnode *n;
    MF__TRY(mf__jp_node(p, kind, &n));
    n->op = op;
    n->a = a;
    n->b = b;
    n->line = a ? a->line : n->line;
    *out = n;
    return MF_OK;
}

/* ---- primaries ------------------------------------------------------------------------------------------------- */

static mf_status constant(jparser *p, jvalue v, jnode **out) {
    MF__TRY(mf__jp_node(p, JN_CONST, out));
    (*out)->value = v;
    return MF_OK;
}

/* Neighbours are one string. */
static mf_status parse_string(jparser *p, jnode **out) {
    const jtoken *first = p->at;
    size_t n = 0;
    for (; p->at->kind == JT_STRING; p->at++) n += p->at->n;
    if (p->at == first + 1) return constant(p, mf__j_string(first->s, n), out);
    void *joined;
    MF__TRY(mf__jinja_tree_alloc(p->t, n + 1, 1, &joined, p->err));
    n = 0;
    for (const jtoken *t = first; t < p->at; n += t->n, t++) memcpy((char *)joined + n, t->s, t->n);
    return constant(p, mf__j_string(joined, n), out);
}

static mf_status parse_list(jparser *p, jnode **out) {
    MF__TRY(mf__jp_node(p, JN_LIST, out));
    while (!mf__jp_accept(p, JT_OP, "]")) {
        jnode *item;
        if ((*out)->n_list) MF__TRY(mf__jp_expect(p, JT_OP, ","));
        if (mf__jp_accept(p, JT_OP, "]")) break;
        MF__TRY(mf__jp_expression(p, true, &item));
        MF__TRY(mf__jp_push(p, *out, item));
    }
    return MF_OK;
}

static mf_status parse_dict(jparser *p, jnode **out) {
    MF__TRY(mf__jp_node(p, JN_DICT, out));
    while (!mf__jp_accept(p, JT_OP, "}")) {
        jnode *key, *value;
        if ((*out)->n_list) MF__TRY(mf__jp_expect(p, JT_OP, ","));
        if (mf__jp_accept(p, JT_OP, "}")) break;
        MF__TRY(mf__jp_expression(p, true, &key));
        MF__TRY(mf__jp_expect(p, JT_OP, ":"));
        MF__TRY(mf__jp_expression(p, true, &value));
        MF__TRY(mf__jp_push(p, *out, key));
        MF__TRY(mf__jp_push(p, *out, value));
    }
    return MF_OK;
}

static mf_status parse_parens(jparser *p, jnode **out) {
    if (mf__jp_accept(p, JT_OP, ")")) return mf__jp_node(p, JN_TUPLE, out);
    MF__TRY(mf__jp_tuple(p, true, out));
    return mf__jp_expect(p, JT_OP, ")");
}

static mf_status parse_primary(jparser *p, jnode **out) {
    const jtoken *t = p->at;
    switch (t->kind) {
    case JT_NAME:
        p->at++;
        if (t->n == 4 && (memcmp(t->s, "true", 4) == 0 || memcmp(t->s, "True", 4) == 0))
            return constant(p, mf__j_bool(true), out);
        if (t->n == 5 && (memcmp(t->s, "false", 5) == 0 || memcmp(t->s, "False", 5) == 0))
            return constant(p, mf__j_bool(false), out);
        if (t->n == 4 && (memcmp(t->s, "none", 4) == 0 || memcmp(t->s, "None", 4) == 0))
            return constant(p, mf__j_none(), out);
        MF__TRY(mf__jp_node(p, JN_NAME, out));
        (*out)->line = t->line;
        (*out)->s = t->s;
        (*out)->n = t->n;
        return MF_OK;
    case JT_STRING: return parse_string(p, out);
    case JT_INT: p->at++; return constant(p, mf__j_int(t->i), out);
    case JT_FLOAT: p->at++; return constant(p, mf__j_float(t->f), out);
    default: break;
    }
    if (mf__jp_accept(p, JT_OP, "(")) return parse_parens(p, out);
    if (mf__jp_accept(p, JT_OP, "[")) return parse_list(p, out);
    if (mf__jp_accept(p, JT_OP, "{")) return parse_dict(p, out);
    return mf__jp_fail(p, MF_E_FORMAT, "expected an expression");
}

/* ---- . [] () | is ---------------------------------------------------------------------------------------------- */

static bool named_arg(const jparser *p) {
    return p->at->kind == JT_NAME && p->at[1].kind == JT_OP && p->at[1].n == 1 && p->at[1].s[0] == '=';
}

mf_status mf__jp_args(jparser *p, jnode *call) {
    bool named = false, stars = false;
    while (!mf__jp_accept(p, JT_OP, ")")) {
        jarg arg = {0};
        if (call->n_args) MF__TRY(mf__jp_expect(p, JT_OP, ","));
        if (mf__jp_accept(p, JT_OP, ")")) break;
        if (mf__jp_accept(p, JT_OP, "*")) {
            arg.star = 1;
        } else if (mf__jp_accept(p, JT_OP, "**")) {
            arg.star = 2;
            stars = true;
        } else if (named_arg(p)) {
            arg.name = p->at->s;
            arg.n_name = p->at->n;
            p->at += 2;
            named = true;
        } else if (named) {
            return mf__jp_fail(p, MF_E_FORMAT, "a positional argument behind a named one");
        }
        if (stars && arg.star != 2) return mf__jp_fail(p, MF_E_FORMAT, "an argument behind a ** one");
        MF__TRY(mf__jp_expression(p, true, &arg.value));
        MF__TRY(mf__jp_push_arg(p, call, arg));
    }
    return MF_OK;
}

/* a[b], a[b:c:d]; a[b, c] and a[] have a tuple for a key. */
static mf_status parse_subscript(jparser *p, jnode *a, jnode **out) {
    jnode *n, *tuple = NULL, *part[3] = {NULL, NULL, NULL};
    int k = 0;
    bool slice = false;
    MF__TRY(mf__jp_node(p, JN_ITEM, &n));
    n->a = a;
    n->line = a->line;
    while (!mf__jp_is(p, JT_OP, "]")) {
        if (mf__jp_accept(p, JT_OP, ":")) {
            slice = true;
            if (++k == 3) return mf__jp_fail(p, MF_E_FORMAT, "a slice has at most three parts");
        } else if (part[k] && !slice && mf__jp_accept(p, JT_OP, ",")) {
            if (!tuple) MF__TRY(mf__jp_node(p, JN_TUPLE, &tuple));
            MF__TRY(mf__jp_push(p, tuple, part[k]));
            part[k] = NULL;
        } else {
            if (part[k]) return mf__jp_fail(p, MF_E_FORMAT, "expected ]");
            MF__TRY(mf__jp_expression(p, true, &part[k]));
        }
    }
    p->at++;
    if (slice) {
        if (tuple) return mf__jp_fail(p, MF_E_UNSUPPORTED, "a slice among several indices");
        n->kind = JN_SLICE;
        for (int i = 0; i < 3; i++) MF__TRY(mf__jp_push(p, n, part[i]));
    } else {
        if (!part[0] && !tuple) MF__TRY(mf__jp_node(p, JN_TUPLE, &tuple));
        if (part[0] && tuple) MF__TRY(mf__jp_push(p, tuple, part[0]));
        n->b = tuple ? tuple : part[0];
    }
    *out = n;
    return MF_OK;
}

static mf_status parse_postfix(jparser *p, jnode *a, jnode **out) {
    for (;;) {
        jnode *n = NULL;
        if (mf__jp_accept(p, JT_OP, ".")) {
            if (p->at->kind == JT_INT) {
                jnode *index;
                MF__TRY(constant(p, mf__j_int(p->at->i), &index));
                MF__TRY(binary(p, JN_ITEM, 0, a, index, &n));
            } else {
                if (p->at->kind != JT_NAME) return mf__jp_expect(p, JT_NAME, NULL);
                MF__TRY(binary(p, JN_ATTR, 0, a, NULL, &n));
                n->s = p->at->s;
                n->n = p->at->n;
            }
            p->at++;
        } else if (mf__jp_accept(p, JT_OP, "[")) {
            MF__TRY(parse_subscript(p, a, &n));
        } else if (mf__jp_accept(p, JT_OP, "(")) {
            MF__TRY(binary(p, JN_CALL, 0, a, NULL, &n));
            MF__TRY(mf__jp_args(p, n));
        } else {
            *out = a;
            return MF_OK;
        }
        a = n;
    }
}

static mf_status parse_test(jparser *p, jnode *a, jnode **out) {
    jnode *n;
    MF__TRY(binary(p, JN_TEST, 0, a, NULL, &n));
    if (mf__jp_accept(p, JT_NAME, "not")) n->op = 'n';
    if (p->at->kind != JT_NAME) return mf__jp_expect(p, JT_NAME, NULL);
    n->line = p->at->line;
    n->s = p->at->s;
    n->n = p->at->n;
    p->at++;
    if (mf__jp_is(p, JT_NAME, "is")) return mf__jp_fail(p, MF_E_FORMAT, "one test behind another");
    bool word = p->at->kind == JT_NAME && !mf__jp_is(p, JT_NAME, "else") && !mf__jp_is(p, JT_NAME, "or") &&
                !mf__jp_is(p, JT_NAME, "and") && !mf__jp_is(p, JT_NAME, "if") && !mf__jp_is(p, JT_NAME, "in") &&
                !mf__jp_is(p, JT_NAME, "not");
    if (mf__jp_accept(p, JT_OP, "(")) {
        MF__TRY(mf__jp_args(p, n));
    } else if (word || p->at->kind == JT_STRING || p->at->kind == JT_INT || p->at->kind == JT_FLOAT ||
               mf__jp_is(p, JT_OP, "[") || mf__jp_is(p, JT_OP, "{")) {
        jarg arg = {0};
        MF__TRY(parse_primary(p, &arg.value));
        MF__TRY(parse_postfix(p, arg.value, &arg.value));
        MF__TRY(mf__jp_push_arg(p, n, arg));
    }
    *out = n;
    return MF_OK;
}

mf_status mf__jp_filters(jparser *p, jnode *input, jnode **out, bool start) {
    while (start || mf__jp_accept(p, JT_OP, "|")) {
        jnode *n;
        start = false;
        MF__TRY(binary(p, JN_FILTER, 0, input, NULL, &n));
        if (p->at->kind != JT_NAME) return mf__jp_expect(p, JT_NAME, NULL);
        n->line = p->at->line;
        n->s = p->at->s;
        n->n = p->at->n;
        p->at++;
        if (mf__jp_accept(p, JT_OP, "(")) MF__TRY(mf__jp_args(p, n));
        input = n;
    }
    *out = input;
    return MF_OK;
}

static mf_status parse_filter_chain(jparser *p, jnode *a, jnode **out) {
    for (;;) {
        if (mf__jp_is(p, JT_OP, "|")) {
            MF__TRY(mf__jp_filters(p, a, &a, false));
        } else if (mf__jp_accept(p, JT_NAME, "is")) {
            MF__TRY(parse_test(p, a, &a));
        } else if (mf__jp_is(p, JT_OP, "(") || mf__jp_is(p, JT_OP, ".") || mf__jp_is(p, JT_OP, "[")) {
            MF__TRY(parse_postfix(p, a, &a));
        } else {
            *out = a;
            return MF_OK;
        }
    }
}

/* ---- operators ------------------------------------------------------------------------------------------------- */

static mf_status parse_unary(jparser *p, bool with_filters, jnode **out) {
    jnode *a;
    MF__TRY(mf__jp_enter(p));
    if (mf__jp_is(p, JT_OP, "-") || mf__jp_is(p, JT_OP, "+")) {
        char op = p->at++->s[0];
        MF__TRY(parse_unary(p, false, &a));
        MF__TRY(binary(p, JN_UNARY, op, a, NULL, &a));
    } else {
        MF__TRY(parse_primary(p, &a));
        MF__TRY(parse_postfix(p, a, &a));
    }
    if (with_filters) MF__TRY(parse_filter_chain(p, a, &a));
    p->depth--;
    *out = a;
    return MF_OK;
}

static mf_status parse_power(jparser *p, jnode **out) {
    jnode *b;
    MF__TRY(parse_unary(p, true, out));
    while (mf__jp_accept(p, JT_OP, "**")) {
        MF__TRY(parse_unary(p, true, &b));
        MF__TRY(binary(p, JN_BINARY, 'p', *out, b, out));
    }
    return MF_OK;
}

static mf_status parse_product(jparser *p, jnode **out) {
    static const char *const ops[] = {"*", "//", "/", "%"};
    static const char codes[] = "*i/%";
    jnode *b;
    MF__TRY(parse_power(p, out));
    for (;;) {
        size_t k = 0;
        while (k < MF__COUNT(ops) && !mf__jp_accept(p, JT_OP, ops[k])) k++;
        if (k == MF__COUNT(ops)) return MF_OK;
        MF__TRY(parse_power(p, &b));
        MF__TRY(binary(p, JN_BINARY, codes[k], *out, b, out));
    }
}

static mf_status parse_concat(jparser *p, jnode **out) {
    jnode *first, *n;
    MF__TRY(parse_product(p, &first));
    *out = first;
    if (!mf__jp_is(p, JT_OP, "~")) return MF_OK;
    MF__TRY(mf__jp_node(p, JN_CONCAT, &n));
    n->line = first->line;
    MF__TRY(mf__jp_push(p, n, first));
    while (mf__jp_accept(p, JT_OP, "~")) {
        MF__TRY(parse_product(p, &first));
        MF__TRY(mf__jp_push(p, n, first));
    }
    *out = n;
    return MF_OK;
}

static mf_status parse_sum(jparser *p, jnode **out) {
    jnode *b;
    MF__TRY(parse_concat(p, out));
    while (mf__jp_is(p, JT_OP, "+") || mf__jp_is(p, JT_OP, "-")) {
        char op = p->at++->s[0];
        MF__TRY(parse_concat(p, &b));
        MF__TRY(binary(p, JN_BINARY, op, *out, b, out));
    }
    return MF_OK;
}

static mf_status parse_compare(jparser *p, jnode **out) {
    static const char *const ops[] = {"==", "!=", "<=", ">=", "<", ">"};
    jnode *n = NULL, *b;
    MF__TRY(parse_sum(p, out));
    for (;;) {
        const char *op = NULL;
        for (size_t k = 0; k < MF__COUNT(ops) && !op; k++)
            if (mf__jp_accept(p, JT_OP, ops[k])) op = ops[k];
        if (!op && mf__jp_accept(p, JT_NAME, "in")) op = "in";
        if (!op && mf__jp_is(p, JT_NAME, "not") && p->at[1].kind == JT_NAME && p->at[1].n == 2 &&
            memcmp(p->at[1].s, "in", 2) == 0) {
            p->at += 2;
            op = "notin";
        }
        if (!op) return MF_OK;
        MF__TRY(parse_sum(p, &b));
        if (!n) {
            MF__TRY(binary(p, JN_COMPARE, 0, *out, NULL, &n));
            *out = n;
        }
        void *names = n->names;
        MF__TRY(grow(p, &names, n->n_list, sizeof *n->names));
        n->names = names;
        n->names[n->n_list] = op;
        MF__TRY(mf__jp_push(p, n, b));
    }
}

static mf_status parse_not(jparser *p, jnode **out) {
    if (!mf__jp_accept(p, JT_NAME, "not")) return parse_compare(p, out);
    jnode *a;
    MF__TRY(mf__jp_enter(p));
    MF__TRY(parse_not(p, &a));
    p->depth--;
    return binary(p, JN_NOT, 0, a, NULL, out);
}

static mf_status parse_and(jparser *p, jnode **out) {
    jnode *b;
    MF__TRY(parse_not(p, out));
    while (mf__jp_accept(p, JT_NAME, "and")) {
        MF__TRY(parse_not(p, &b));
        MF__TRY(binary(p, JN_AND, 0, *out, b, out));
    }
    return MF_OK;
}

static mf_status parse_or(jparser *p, jnode **out) {
    jnode *b;
    MF__TRY(parse_and(p, out));
    while (mf__jp_accept(p, JT_NAME, "or")) {
        MF__TRY(parse_and(p, &b));
        MF__TRY(binary(p, JN_OR, 0, *out, b, out));
    }
    return MF_OK;
}

mf_status mf__jp_expression(jparser *p, bool with_condition, jnode **out) {
    MF__TRY(mf__jp_enter(p));
    MF__TRY(parse_or(p, out));
    while (with_condition && mf__jp_accept(p, JT_NAME, "if")) {
        jnode *n;
        MF__TRY(binary(p, JN_COND, 0, *out, NULL, &n));
        MF__TRY(parse_or(p, &n->b));
        if (mf__jp_accept(p, JT_NAME, "else")) MF__TRY(mf__jp_expression(p, true, &n->c));
        *out = n;
    }
    p->depth--;
    return MF_OK;
}

static bool tuple_ends(const jparser *p) {
    return p->at->kind == JT_BLOCK_END || p->at->kind == JT_VAR_END || mf__jp_is(p, JT_OP, ")") ||
           mf__jp_is(p, JT_OP, "=") || mf__jp_is(p, JT_NAME, "in") || mf__jp_is(p, JT_NAME, "recursive");
}

mf_status mf__jp_tuple(jparser *p, bool with_condition, jnode **out) {
    jnode *first, *n;
    MF__TRY(mf__jp_expression(p, with_condition, &first));
    *out = first;
    if (!mf__jp_is(p, JT_OP, ",")) return MF_OK;
    MF__TRY(mf__jp_node(p, JN_TUPLE, &n));
    MF__TRY(mf__jp_push(p, n, first));
    while (mf__jp_accept(p, JT_OP, ",") && !tuple_ends(p)) {
        MF__TRY(mf__jp_expression(p, with_condition, &first));
        MF__TRY(mf__jp_push(p, n, first));
    }
    *out = n;
    return MF_OK;
}
