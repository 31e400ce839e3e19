/* Calling what is built in: tables of functions, arguments bound to parameters. */
#include <string.h>

#include "text/jinja/run.h"

const jentry *mf__j_find_entry(const jentry *table, const char *name, size_t n) {
    for (; table->name; table++)
        if (n && table->name[0] == name[0] && mf__j_same_name(name, n, table->name)) return table;
    return NULL;
}

/* ---- arguments ------------------------------------------------------------------------------------------------- */

typedef struct param {
    const char *name;
    size_t n;
    bool optional;
} param;

static size_t read_params(const char *text, param out[J_MAX_PARAMS], bool *by_place) {
    size_t n = 0;
    *by_place = text[0] == '/';
    for (text += *by_place; *text && n < J_MAX_PARAMS; n++) {
        size_t k = strcspn(text, ",?");
        out[n] = (param){text, k, text[k] == '?'};
        text += k + (text[k] == '?');
        text += *text == ',';
    }
    return n;
}

static mf_status bind(jctx *c, const char *what, const jentry *e, const jargs *args, jbound *out) {
    param params[J_MAX_PARAMS];
    bool by_place;
    *out = (jbound){.all = args};
    if (e->params[0] == '*') return MF_OK;
    size_t n = read_params(e->params, params, &by_place);
    if (args->n > n)
        return mf__j_fail(c, MF_E_INVALID, "the %s \"%s\" takes at most %zu arguments, %zu given", what, e->name, n,
                          args->n);
    for (size_t i = 0; i < args->n; i++) out->at[i] = &args->pos[i];
    for (size_t k = 0; k < args->n_named; k++) {
        const jnamed *a = &args->named[k];
        size_t i = by_place ? n : 0;
        while (i < n && (params[i].n != a->n_name || memcmp(params[i].name, a->name, a->n_name) != 0)) i++;
        if (i == n)
            return mf__j_fail(c, MF_E_INVALID, "the %s \"%s\" has no argument called \"%.*s\"", what, e->name,
                              a->n_name > 40 ? 40 : (int)a->n_name, a->name);
        if (out->at[i])
            return mf__j_fail(c, MF_E_INVALID, "the %s \"%s\" got \"%.*s\" twice", what, e->name, (int)params[i].n,
                              params[i].name);
        out->at[i] = &a->value;
    }
    for (size_t i = 0; i < n; i++)
        if (!out->at[i] && !params[i].optional)
            return mf__j_fail(c, MF_E_INVALID, "the %s \"%s\" needs \"%.*s\"", what, e->name, (int)params[i].n,
                              params[i].name);
    return MF_OK;
}

mf_status mf__j_apply(jctx *c, const char *what, const jentry *e, jvalue self, const jargs *args, jvalue *out) {
    jbound bound;
    MF__TRY(mf__j_pay(c, 1));
    MF__TRY(mf__j_enter(c));
    MF__TRY(bind(c, what, e, args, &bound));
    MF__TRY(e->fn(c, self, &bound, out));
    mf__j_leave(c);
    return MF_OK;
}

mf_status mf__j_int_arg(jctx *c, const jvalue *v, const char *what, int64_t missing, int64_t *out) {
    *out = missing;
    if (!v) return MF_OK;
    if (!mf__j_is_int(*v)) return mf__j_fail(c, MF_E_INVALID, "%s needs an integer, not %s", what, mf__j_type(*v));
    *out = mf__j_as_int(*v);
    return MF_OK;
}

mf_status mf__j_need_string(jctx *c, const jvalue *v, const char *what) {
    if (v && v->kind == J_STRING) return MF_OK;
    return mf__j_fail(c, MF_E_INVALID, "%s needs a str, not %s", what, v ? mf__j_type(*v) : "nothing");
}

bool mf__j_truth_arg(const jvalue *v, bool missing) {
    return v ? mf__j_truth(*v) : missing;
}

/* ---- finding --------------------------------------------------------------------------------------------------- */

const jentry *mf__j_method(jvalue self, const char *name, size_t n) {
    const jentry *e = NULL;
    switch (self.kind) {
    case J_STRING:
        e = mf__j_find_entry(mf__j_string_methods, name, n);
        return e ? e : mf__j_find_entry(mf__j_string_search, name, n);
    case J_LIST: return mf__j_find_entry(self.form ? mf__j_tuple_methods : mf__j_list_methods, name, n);
    case J_TUPLE: return mf__j_find_entry(mf__j_tuple_methods, name, n);
    case J_DICT: return mf__j_find_entry(mf__j_dict_methods, name, n);
    case J_LOOP: return mf__j_find_entry(mf__j_loop_methods, name, n);
    case J_CYCLER: return mf__j_find_entry(mf__j_cycler_methods, name, n);
    default: return NULL;
    }
}

const jentry *mf__j_global(const char *name, size_t n) {
    return mf__j_find_entry(mf__j_globals, name, n);
}

const jentry *mf__j_find_filter(const char *name, size_t n) {
    static const jentry *const tables[] = {mf__j_text_filters, mf__j_list_filters, mf__j_pick_filters,
                                           mf__j_number_filters};
    const jentry *e = NULL;
    for (size_t i = 0; i < MF__COUNT(tables) && !e; i++) e = mf__j_find_entry(tables[i], name, n);
    return e;
}

mf_status mf__j_filter(jctx *c, const char *name, size_t n, jvalue input, const jargs *args, jvalue *out) {
    const jentry *e = mf__j_find_filter(name, n);
    if (e) return mf__j_apply(c, "filter", e, input, args, out);
    return mf__j_fail(c, MF_E_UNSUPPORTED, "the filter \"%.*s\" is not known", n > 40 ? 40 : (int)n, name);
}

mf_status mf__j_test(jctx *c, const char *name, size_t n, jvalue v, const jargs *args, bool *out) {
    const jentry *e = mf__j_find_entry(mf__j_tests, name, n);
    jvalue holds;
    if (!e) return mf__j_fail(c, MF_E_UNSUPPORTED, "the test \"%.*s\" is not known", n > 40 ? 40 : (int)n, name);
    MF__TRY(mf__j_apply(c, "test", e, v, args, &holds));
    *out = mf__j_truth(holds);
    return MF_OK;
}
