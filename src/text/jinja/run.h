/* What evaluation, filters and methods share. */
#ifndef MF_TEXT_JINJA_RUN_H
#define MF_TEXT_JINJA_RUN_H

#include "text/jinja/ast.h"

typedef struct jnamed {
    const char *name;
    size_t n_name;
    jvalue value;
} jnamed;

typedef struct jargs {
    jvalue *pos;
    size_t n;
    jnamed *named;
    size_t n_named;
} jargs;

struct jframe { /* one scope of variables */
    jframe *parent;
    jnamed *vars;
    size_t n, capacity;
    bool escaped; /* a macro was defined in it, and may outlive it */
};

mf_status mf__j_frame(jctx *c, jframe *parent, jframe **out);
mf_status mf__j_set(jctx *c, jframe *frame, const char *name, size_t n, jvalue value);

/* eval.c */
mf_status mf__j_eval(jctx *c, const jnode *node, jvalue *out);
mf_status mf__j_args(jctx *c, const jnode *call, jargs *out);
mf_status mf__j_call(jctx *c, jvalue callee, const jargs *args, jvalue *out);
mf_status mf__j_filter_chain(jctx *c, const jnode *filter, jvalue input, jvalue *out);
mf_status mf__j_getattr(jctx *c, jvalue v, const char *name, size_t n, jvalue *out);
mf_status mf__j_getitem(jctx *c, jvalue v, jvalue key, jvalue *out);
mf_status mf__j_undefined_error(jctx *c, jvalue v);

/* operators.c */
mf_status mf__j_too_large(jctx *c); /* the error for integers of more than 64 bits */
mf_status mf__j_slice(jctx *c, jvalue v, const jvalue bounds[3], jvalue *out); /* bounds: None where missing */
mf_status mf__j_binary(jctx *c, char op, jvalue a, jvalue b, jvalue *out);
mf_status mf__j_unary(jctx *c, char op, jvalue v, jvalue *out);
mf_status mf__j_contains(jctx *c, jvalue item, jvalue container, bool *out);
mf_status mf__j_compare_op(jctx *c, const char *op, jvalue a, jvalue b, bool *out); /* "==", "<", "in", ... */

/* exec.c */
mf_status mf__j_exec(jctx *c, const jnode *block, int *flow); /* flow: 0, or JN_BREAK, JN_CONTINUE */
mf_status mf__j_emit(jctx *c, jvalue v);
/* Runs a block with its output caught as a string. */
mf_status mf__j_capture(jctx *c, const jnode *block, jvalue *out);
mf_status mf__j_call_macro(jctx *c, const jmacro *macro, const jargs *args, jvalue *out);
mf_status mf__j_call_loop(jctx *c, const jloop *loop, const jargs *args, jvalue *out); /* a recursive loop's loop() */
mf_status mf__j_call_block(jctx *c, const char *name, size_t n, jvalue *out);          /* self.name() */
bool mf__j_has_block(const jctx *c, const char *name, size_t n);

/* ---- functions: filters, tests, methods and globals, all called alike ------------------------------------------ */

#define J_MAX_PARAMS 6

typedef struct jbound { /* arguments by parameter; NULL: not given */
    const jvalue *at[J_MAX_PARAMS];
    const jargs *all; /* as they were given */
} jbound;

typedef mf_status jfn(jctx *c, jvalue self, const jbound *a, jvalue *out);

/* params: "old,new,count?": what may be given, by place or by name, ? for what need not be. A '/' in front: by place
 * only. "*": anything, the function looks at a->all itself. */
typedef struct jentry {
    const char *name, *params;
    jfn *fn;
} jentry;

/* calls.c: finds, binds the arguments, calls. what: "filter", "method", ... for errors. */
const jentry *mf__j_find_entry(const jentry *table, const char *name, size_t n); /* table ends with a NULL name */
mf_status mf__j_apply(jctx *c, const char *what, const jentry *e, jvalue self, const jargs *args, jvalue *out);
const jentry *mf__j_method(jvalue self, const char *name, size_t n); /* NULL: it has none of this name */
const jentry *mf__j_global(const char *name, size_t n);
const jentry *mf__j_find_filter(const char *name, size_t n);
mf_status mf__j_filter(jctx *c, const char *name, size_t n, jvalue input, const jargs *args, jvalue *out);
mf_status mf__j_test(jctx *c, const char *name, size_t n, jvalue v, const jargs *args, bool *out);

/* Reading arguments: the default where it was not given (or is None), an error for another type. */
mf_status mf__j_int_arg(jctx *c, const jvalue *v, const char *what, int64_t missing, int64_t *out);
mf_status mf__j_need_string(jctx *c, const jvalue *v, const char *what);
bool mf__j_truth_arg(const jvalue *v, bool missing);

/* The tables. */
extern const jentry mf__j_text_filters[], mf__j_list_filters[], mf__j_pick_filters[], mf__j_number_filters[],
    mf__j_tests[], mf__j_string_methods[], mf__j_string_search[], mf__j_list_methods[], mf__j_tuple_methods[],
    mf__j_dict_methods[], mf__j_loop_methods[], mf__j_cycler_methods[], mf__j_globals[];

/* strings.c, casing.c, format.c: texts, for methods and filters. */
mf_status mf__j_strip(jctx *c, jvalue s, const jvalue *chars, int sides, jvalue *out); /* 1: left, 2: right, 3: both */
mf_status mf__j_replace(jctx *c, jvalue s, jvalue from, jvalue to, int64_t count, jvalue *out);
mf_status mf__j_split_spaces(jctx *c, jvalue s, int64_t limit, jvalue *out);
mf_status mf__j_escape(jctx *c, jvalue v, jvalue *out); /* to markup */
mf_status mf__j_change_case(jctx *c, jvalue s, char how,
                            jvalue *out); /* 'u'pper, 'l'ower, 't'itle, 'c'apitalize, 's'wap */
mf_status mf__j_casefold(jctx *c, jvalue s, jvalue *out);
jfn mf__j_upper, mf__j_lower, mf__j_capitalize;
bool mf__j_is_digit(uint32_t ch);   /* decimal digits and others */
bool mf__j_is_numeric(uint32_t ch); /* these, and all other numbers */
bool mf__j_is_lower(uint32_t ch);
bool mf__j_is_upper(uint32_t ch);
bool mf__j_is_cased(uint32_t ch);
const char *mf__j_category(uint32_t ch);                                          /* "Lu", "Nd", ... */
jfn mf__j_format, mf__j_format_map;                                               /* str.format */
mf_status mf__j_percent(jctx *c, jvalue format, jvalue args, jvalue *out);        /* format % args */
mf_status mf__j_join(jctx *c, const jlist *items, jvalue separator, jvalue *out); /* printed, one behind the other */
mf_status mf__j_attribute(jctx *c, jvalue v, const jvalue *path, jvalue *out);    /* "a.b", an index; NULL: v itself */

#endif
