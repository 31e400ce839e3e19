/* Tokens and the tree of a template. */
#ifndef MF_TEXT_JINJA_AST_H
#define MF_TEXT_JINJA_AST_H

#include "text/jinja/value.h"

typedef enum jtoken_kind {
    JT_TEXT,      /* literal text between tags */
    JT_VAR_BEGIN, /* {{ */
    JT_VAR_END,
    JT_BLOCK_BEGIN, /* {% */
    JT_BLOCK_END,
    JT_NAME,
    JT_INT,
    JT_FLOAT,
    JT_STRING,
    JT_OP,
    JT_END
} jtoken_kind;

typedef struct jtoken {
    jtoken_kind kind;
    int line;
    const char *s; /* text, name, operator, or the string after escapes */
    size_t n;
    int64_t i;
    double f;
} jtoken;

typedef enum jnode_kind {
    /* expressions */
    JN_CONST,
    JN_NAME,
    JN_LIST,    /* list */
    JN_TUPLE,   /* list */
    JN_DICT,    /* list: key, value, key, value */
    JN_ATTR,    /* a.name */
    JN_ITEM,    /* a[b] */
    JN_SLICE,   /* a[list[0]:list[1]:list[2]]; members may be NULL */
    JN_CALL,    /* a(args) */
    JN_FILTER,  /* a|name(args); a is NULL for the text of a filter block */
    JN_TEST,    /* a is name(args); op 'n': is not */
    JN_UNARY,   /* op '-' '+' */
    JN_BINARY,  /* op '+' '-' '*' '/' 'i' (//) '%' 'p' (**) */
    JN_CONCAT,  /* list joined by ~ */
    JN_COMPARE, /* a, then list of operands with ops in `names`: == != < <= > >= in notin */
    JN_AND,
    JN_OR,
    JN_NOT,
    JN_COND, /* a if b else c; c may be NULL */
    /* statements */
    JN_TEXT,
    JN_OUTPUT,       /* {{ a }} */
    JN_IF,           /* list: condition, block, condition, block, ...; c: else block or NULL */
    JN_FOR,          /* a: target, b: iterable, c: filter or NULL; list: body, else block or NULL; op 'r': recursive */
    JN_SET,          /* a: target, b: value */
    JN_SET_BLOCK,    /* a: target, b: filter chain or NULL, list: body */
    JN_MACRO,        /* name; names: parameters, args: defaults (NULL: none); list: body */
    JN_CALL_BLOCK,   /* a: call, b: macro for caller */
    JN_FILTER_BLOCK, /* a: filter chain, list: body */
    JN_WITH,         /* list: target, value, ..., body last */
    JN_NAMED_BLOCK,  /* {% block name %}; op 's': scoped; list: body */
    JN_AUTOESCAPE,   /* a: on or off; list: body */
    JN_BLOCK,        /* list of statements */
    JN_BREAK,
    JN_CONTINUE
} jnode_kind;

typedef struct jarg {
    const char *name; /* NULL: positional */
    size_t n_name;
    struct jnode *value;
    int star; /* 1: *value, 2: **value */
} jarg;

/* What a macro's body asks for, by name: jnode.flags */
#define J_VARARGS 1
#define J_KWARGS 2
#define J_CALLER 4

typedef struct jnode {
    jnode_kind kind;
    char op;
    uint8_t flags;
    int line;
    const char *s; /* name or text */
    size_t n;
    jvalue value; /* constants */
    struct jnode *a, *b, *c;
    struct jnode **list;
    size_t n_list;
    jarg *args;
    size_t n_args;
    const char **names; /* comparison operators */
} jnode;

struct mf__jinja {
    char *name;
    mf__arena arena; /* source copy, texts, tree */
    size_t memory;   /* bytes of the arena */
    jnode *root;
    jnode *blocks; /* list: those with a name */
};

/* Tokens of the source, JT_END last, to be freed by the caller; the texts they point to are in t's arena. */
mf_status mf__jinja_lex(mf__jinja *t, const mf__jinja_syntax *syntax, const char *source, size_t size, jtoken **out,
                        mf_error *err);

/* Memory for the tree, up to a limit. */
mf_status mf__jinja_tree_alloc(mf__jinja *t, size_t count, size_t size, void **out, mf_error *err);

/* Reading tokens into the tree. */
typedef struct jparser {
    mf__jinja *t;
    const jtoken *at;
    int depth; /* of blocks and expressions inside each other */
    int loops; /* open for loops: break and continue need one */
    mf_error *err;
} jparser;

mf_status mf__jp_enter(jparser *p); /* one deeper, or an error; back with p->depth-- */

mf_status mf__jp_fail(jparser *p, mf_status status, const char *what); /* "NAME: line N: WHAT, found ..." */
bool mf__jp_is(const jparser *p, jtoken_kind kind, const char *text);  /* text NULL: any */
bool mf__jp_accept(jparser *p, jtoken_kind kind, const char *text);
mf_status mf__jp_expect(jparser *p, jtoken_kind kind, const char *text);
mf_status mf__jp_node(jparser *p, jnode_kind kind, jnode **out);
mf_status mf__jp_push(jparser *p, jnode *parent, jnode *child); /* appends to parent->list */
mf_status mf__jp_push_arg(jparser *p, jnode *call, jarg arg);

mf_status mf__jp_expression(jparser *p, bool with_condition, jnode **out);
mf_status mf__jp_tuple(jparser *p, bool with_condition, jnode **out);        /* a, b, c or a single expression */
mf_status mf__jp_args(jparser *p, jnode *call);                              /* behind "(", through ")" */
mf_status mf__jp_filters(jparser *p, jnode *input, jnode **out, bool start); /* start: a filter name comes without | */

#endif
