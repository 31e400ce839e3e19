/* "is" tests. */
#include <string.h>

#include "text/jinja/run.h"

#define KIND_TEST(name, condition)                                                                                     \
    static mf_status is_##name(jctx *c, jvalue v, const jbound *a, jvalue *out) {                                      \
        (void)c, (void)a;                                                                                              \
        *out = mf__j_bool(condition);                                                                                  \
        return MF_OK;                                                                                                  \
    }
KIND_TEST(defined, v.kind != J_UNDEFINED)
KIND_TEST(undefined, v.kind == J_UNDEFINED)
KIND_TEST(none, v.kind == J_NONE)
KIND_TEST(boolean, v.kind == J_BOOL)
KIND_TEST(true, v.kind == J_BOOL && v.b)
KIND_TEST(false, v.kind == J_BOOL && !v.b)
KIND_TEST(integer, v.kind == J_INT)
KIND_TEST(float, v.kind == J_FLOAT)
KIND_TEST(number, mf__j_is_number(v))
KIND_TEST(string, v.kind == J_STRING)
KIND_TEST(mapping, v.kind == J_DICT)
KIND_TEST(escaped, v.kind == J_STRING && v.form == JF_MARKUP)
KIND_TEST(iterable,
          v.kind == J_STRING || mf__j_is_list(v) || v.kind == J_DICT || v.kind == J_UNDEFINED || v.kind == J_LOOP)
KIND_TEST(sequence,
          v.kind == J_STRING || (mf__j_is_list(v) && !mf__j_is_view(v)) || v.kind == J_DICT || v.kind == J_UNDEFINED)
KIND_TEST(callable,
          v.kind == J_MACRO || v.kind == J_FUNCTION || v.kind == J_LOOP || v.kind == J_JOINER || v.kind == J_UNDEFINED)
KIND_TEST(filter, v.kind == J_STRING && mf__j_find_filter(v.s, v.n))
KIND_TEST(test, v.kind == J_STRING && mf__j_find_entry(mf__j_tests, v.s, v.n))

/* ---- numbers --------------------------------------------------------------------------------------------------- */

static mf_status is_divisible(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    jvalue rest;
    if (!mf__j_is_number(v)) return mf__j_fail(c, MF_E_INVALID, "is divisibleby: %s is not a number", mf__j_type(v));
    MF__TRY(mf__j_binary(c, '%', v, *a->at[0], &rest));
    *out = mf__j_bool(mf__j_is_number(rest) && mf__j_as_double(rest) == 0);
    return MF_OK;
}

static mf_status parity(jctx *c, jvalue v, const char *name, double want, jvalue *out) {
    jvalue rest;
    if (!mf__j_is_number(v)) return mf__j_fail(c, MF_E_INVALID, "is %s: %s is not a number", name, mf__j_type(v));
    MF__TRY(mf__j_binary(c, '%', v, mf__j_int(2), &rest));
    *out = mf__j_bool(mf__j_as_double(rest) == want);
    return MF_OK;
}
static mf_status is_even(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    (void)a;
    return parity(c, v, "even", 0, out);
}
static mf_status is_odd(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    (void)a;
    return parity(c, v, "odd", 1, out);
}

/* ---- texts ----------------------------------------------------------------------------------------------------- */

static mf_status method_test(jctx *c, jvalue v, const char *method, jvalue *out) {
    MF__TRY(mf__j_str(c, v, &v));
    return mf__j_apply(c, "test", mf__j_method(v, method, strlen(method)), v, &(jargs){0}, out);
}
static mf_status is_lower(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    (void)a;
    return method_test(c, v, "islower", out);
}
static mf_status is_upper(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    (void)a;
    return method_test(c, v, "isupper", out);
}

/* ---- comparisons ----------------------------------------------------------------------------------------------- */

#define COMPARE_TEST(name, op)                                                                                         \
    static mf_status is_##name(jctx *c, jvalue v, const jbound *a, jvalue *out) {                                      \
        bool holds;                                                                                                    \
        MF__TRY(mf__j_compare_op(c, op, v, *a->at[0], &holds));                                                        \
        *out = mf__j_bool(holds);                                                                                      \
        return MF_OK;                                                                                                  \
    }
COMPARE_TEST(eq, "==")
COMPARE_TEST(ne, "!=")
COMPARE_TEST(lt, "<")
COMPARE_TEST(le, "<=")
COMPARE_TEST(gt, ">")
COMPARE_TEST(ge, ">=")
COMPARE_TEST(in, "in")

static mf_status is_sameas(jctx *c, jvalue v, const jbound *a, jvalue *out) {
    bool same = v.kind == a->at[0]->kind;
    if (same && v.kind <= J_STRING) MF__TRY(mf__j_equal(c, v, *a->at[0], &same));
    *out = mf__j_bool(same && (v.kind <= J_STRING || v.dict == a->at[0]->dict));
    return MF_OK;
}

const jentry mf__j_tests[] = {
    {"defined", "", is_defined},
    {"undefined", "", is_undefined},
    {"none", "", is_none},
    {"boolean", "", is_boolean},
    {"true", "", is_true},
    {"false", "", is_false},
    {"integer", "", is_integer},
    {"float", "", is_float},
    {"number", "", is_number},
    {"string", "", is_string},
    {"mapping", "", is_mapping},
    {"escaped", "", is_escaped},
    {"iterable", "", is_iterable},
    {"sequence", "", is_sequence},
    {"callable", "", is_callable},
    {"filter", "", is_filter},
    {"test", "", is_test},
    {"divisibleby", "num", is_divisible},
    {"even", "", is_even},
    {"odd", "", is_odd},
    {"lower", "", is_lower},
    {"upper", "", is_upper},
    {"eq", "/b", is_eq},
    {"equalto", "/b", is_eq},
    {"==", "/b", is_eq},
    {"ne", "/b", is_ne},
    {"!=", "/b", is_ne},
    {"lt", "/b", is_lt},
    {"lessthan", "/b", is_lt},
    {"<", "/b", is_lt},
    {"le", "/b", is_le},
    {"<=", "/b", is_le},
    {"gt", "/b", is_gt},
    {"greaterthan", "/b", is_gt},
    {">", "/b", is_gt},
    {"ge", "/b", is_ge},
    {">=", "/b", is_ge},
    {"in", "seq", is_in},
    {"sameas", "other", is_sameas},
    {0},
};
