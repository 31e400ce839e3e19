/* "is" tests. */
#include <string.h>

#include "text/jinja/run.h"

static bool named(const char *name, size_t n, const char *text) {
    return n == strlen(text) && memcmp(name, text, n) == 0;
}

/* Tests of the value alone. *found is false when the name is not one of them. */
static bool plain_test(const char *name, size_t n, jvalue v, bool *found) {
    *found = true;
    if (named(name, n, "defined")) return v.kind != J_UNDEFINED;
    if (named(name, n, "undefined")) return v.kind == J_UNDEFINED;
    if (named(name, n, "none")) return v.kind == J_NONE;
    if (named(name, n, "boolean")) return v.kind == J_BOOL;
    if (named(name, n, "true")) return v.kind == J_BOOL && v.b;
    if (named(name, n, "false")) return v.kind == J_BOOL && !v.b;
    if (named(name, n, "integer")) return v.kind == J_INT;
    if (named(name, n, "float")) return v.kind == J_FLOAT;
    if (named(name, n, "number")) return j_is_number(v);
    if (named(name, n, "string")) return v.kind == J_STRING;
    if (named(name, n, "mapping")) return v.kind == J_DICT;
    if (named(name, n, "iterable") || named(name, n, "sequence"))
        return v.kind == J_STRING || j_is_list(v) || v.kind == J_DICT || v.kind == J_UNDEFINED;
    if (named(name, n, "callable")) return v.kind == J_MACRO || v.kind == J_FUNCTION;
    *found = false;
    return false;
}

static mf_status number_test(jctx *c, const char *name, size_t n, jvalue v, const jargs *args, bool *found, bool *out) {
    const jvalue *by = j_arg(args, 0, "num");
    *found = true;
    bool even = named(name, n, "even"), odd = named(name, n, "odd"), div = named(name, n, "divisibleby");
    if (!even && !odd && !div) return *found = false, MF_OK;
    if (v.kind != J_INT) return jfail(c, MF_E_INVALID, "is %.*s: %s is not an integer", (int)n, name, j_type(v));
    if (div && (!by || by->kind != J_INT || by->i == 0))
        return jfail(c, MF_E_INVALID, "is divisibleby: needs an integer other than 0");
    *out = even ? v.i % 2 == 0 : odd ? v.i % 2 != 0 : by->i == -1 || v.i % by->i == 0;
    return MF_OK;
}

static mf_status case_test(jctx *c, char how, jvalue v, bool *out) {
    jvalue s, changed, other;
    MF__TRY(j_str(c, v, &s));
    MF__TRY(j_change_case(c, s, how, &changed));
    MF__TRY(j_change_case(c, s, how == 'u' ? 'l' : 'u', &other));
    *out = j_equal(s, changed) && !j_equal(changed, other); /* some letter has a case */
    return MF_OK;
}

mf_status j_test(jctx *c, const char *name, size_t n, jvalue v, const jargs *args, bool *out) {
    static const struct {
        const char *name;
        char op;
    } compares[] = {{"eq", '='}, {"equalto", '='},     {"ne", '!'}, {"lt", '<'},     {"lessthan", '<'}, {"le", 'l'},
                    {"gt", '>'}, {"greaterthan", '>'}, {"ge", 'g'}, {"sameas", 's'}, {"in", 'i'}};
    bool found;
    *out = plain_test(name, n, v, &found);
    if (found) return MF_OK;
    MF__TRY(number_test(c, name, n, v, args, &found, out));
    if (found) return MF_OK;
    if (named(name, n, "lower") || named(name, n, "upper")) return case_test(c, name[0], v, out);
    const jvalue *b = j_arg(args, 0, NULL);
    for (size_t i = 0; i < MF__COUNT(compares); i++) {
        if (!named(name, n, compares[i].name)) continue;
        if (!b) return jfail(c, MF_E_INVALID, "is %.*s: needs a value to compare with", (int)n, name);
        int order = 0;
        switch (compares[i].op) {
        case '=': *out = j_equal(v, *b); return MF_OK;
        case '!': *out = !j_equal(v, *b); return MF_OK;
        case 'i': return j_contains(c, v, *b, out);
        case 's': *out = v.kind == b->kind && (v.kind <= J_STRING ? j_equal(v, *b) : v.dict == b->dict); return MF_OK;
        default: break;
        }
        MF__TRY(j_compare(c, v, *b, &order));
        *out = compares[i].op == '<'   ? order < 0
               : compares[i].op == 'l' ? order <= 0
               : compares[i].op == '>' ? order > 0
                                       : order >= 0;
        return MF_OK;
    }
    return jfail(c, MF_E_UNSUPPORTED, "the test \"%.*s\" is not known", n > 40 ? 40 : (int)n, name);
}
