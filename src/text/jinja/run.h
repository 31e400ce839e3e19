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

/* Argument number `at`, or the one called name; NULL when it was not given. */
const jvalue *j_arg(const jargs *args, size_t at, const char *name);

struct jframe { /* one scope of variables */
    jframe *parent;
    jnamed *vars;
    size_t n, capacity;
};

mf_status j_frame(jctx *c, jframe *parent, jframe **out);
mf_status j_set(jctx *c, jframe *frame, const char *name, size_t n, jvalue value);

mf_status j_eval(jctx *c, const jnode *node, jvalue *out);
mf_status j_exec(jctx *c, const jnode *block, int *flow); /* flow: 0, or JN_BREAK, JN_CONTINUE */
mf_status j_emit(jctx *c, jvalue v);
/* Runs a block with its output caught as a string. */
mf_status j_capture(jctx *c, const jnode *block, jvalue *out);
mf_status j_args(jctx *c, const jnode *call, jargs *out);
mf_status j_call(jctx *c, jvalue callee, const jargs *args, jvalue *out);
mf_status j_call_macro(jctx *c, const jmacro *macro, const jargs *args, jvalue *out);
mf_status j_filter_chain(jctx *c, const jnode *filter, jvalue input, jvalue *out);
mf_status j_getattr(jctx *c, jvalue v, const char *name, size_t n, jvalue *out);
mf_status j_getitem(jctx *c, jvalue v, jvalue key, jvalue *out);
mf_status j_contains(jctx *c, jvalue item, jvalue container, bool *out);

/* methods.c: functions bound to a value, and the global ones. */
bool j_find_method(jvalue self, const char *name, size_t n, size_t *function);
bool j_find_global(const char *name, size_t n, size_t *function);
mf_status j_call_function(jctx *c, jvalue function, const jargs *args, jvalue *out);
mf_status j_strip(jctx *c, jvalue s, const jvalue *chars, int sides, jvalue *out); /* 1: left, 2: right, 3: both */
mf_status j_replace(jctx *c, jvalue s, jvalue from, jvalue to, int64_t count, jvalue *out);
mf_status j_change_case(jctx *c, jvalue s, char how, jvalue *out); /* 'u'pper, 'l'ower, 't'itle, 'c'apitalize */

/* filters.c and tests.c */
mf_status j_filter(jctx *c, const char *name, size_t n, jvalue input, const jargs *args, jvalue *out);
mf_status j_test(jctx *c, const char *name, size_t n, jvalue v, const jargs *args, bool *out);

#endif
