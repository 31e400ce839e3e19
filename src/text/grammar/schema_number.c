/* JSON Schema: numbers. Bounds become regular expressions over digits, multiples an automaton of remainders; both are
 * sets of strings, and so are their intersections. Bounds are decimal numbers as they were written, never doubles. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define LARGEST_DIGITS 18
#define MAX_WHOLE UINT64_C(9999999999999999999)
#define FRACTION 340 /* digits that a double has behind the point at most, nearly */

/* With this many digits no two numbers round to the same double, so what is between the bounds here is so there. */
#define EXACT_DIGITS 15
#define MAX_FRACTION 10

typedef struct bound {
    bool there, excluded;
    bool negative, huge; /* huge: beyond MAX_WHOLE */
    uint64_t whole;
    char fraction[FRACTION]; /* without zeros at the end */
} bound;

typedef struct bounds {
    bound lo, hi;
} bounds;

static void read_number(const json_t *v, bound *b) {
    char text[40];
    *b = (bound){.there = true};
    if (json_is_integer(v)) {
        json_int_t i = json_integer_value(v);
        b->negative = i < 0;
        b->whole = i < 0 ? (uint64_t)0 - (uint64_t)i : (uint64_t)i;
        return;
    }
    double d = json_real_value(v);
    b->negative = d < 0;
    d = fabs(d);
    if (d > 9e18) {
        b->huge = true;
        return;
    }
    int precision = 0, n = 0;
    do snprintf(text, sizeof text, "%.*e", precision, d);
    while (strtod(text, NULL) != d && ++precision < 17);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    for (int i = 0; i <= precision || i <= exponent; i++) { /* digit i stands for 10^(exponent - i) */
        char digit = i > precision ? '0' : i == 0 ? text[0] : text[i + 1];
        if (i <= exponent) b->whole = b->whole * 10 + (uint64_t)(digit - '0');
    }
    for (int i = exponent + 1; i <= precision && n < FRACTION - 1; i++)
        b->fraction[n++] = i < 0 ? '0' : i == 0 ? text[0] : text[i + 1];
    while (n > 0 && b->fraction[n - 1] == '0') n--;
    b->fraction[n] = 0;
}

static int compare_magnitudes(const bound *a, const bound *b) {
    if (a->huge != b->huge) return a->huge ? 1 : -1;
    if (a->whole != b->whole) return a->whole < b->whole ? -1 : 1;
    return strcmp(a->fraction, b->fraction);
}

static int compare(const bound *a, const bound *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    int d = compare_magnitudes(a, b);
    return a->negative ? -d : d;
}

static void tighten(bound *old, bound b, bool low) {
    int d = old->there ? compare(&b, old) : low ? 1 : -1;
    if (low ? d > 0 : d < 0) *old = b;
    if (d == 0 && b.excluded) old->excluded = true;
}

static mf_status apply_bound(mf__schemas *c, const json_t *s, const char *key, bool negated, bounds *b) {
    const json_t *v = json_object_get(s, key);
    bool low = strstr(key, "inimum") != NULL, excluded = key[0] == 'e';
    if (!v || (excluded && json_is_boolean(v))) return MF_OK;
    if (!json_is_number(v)) return mf__schema_fail(c, MF_E_FORMAT, s, key, "is not a number");
    if (!excluded) excluded = json_is_true(json_object_get(s, low ? "exclusiveMinimum" : "exclusiveMaximum"));
    bound one;
    read_number(v, &one);
    one.excluded = excluded != negated;
    tighten(low != negated ? &b->lo : &b->hi, one, low != negated);
    return MF_OK;
}

static mf_status read_bounds(mf__schemas *c, const conjunction *j, bounds *b) {
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    *b = (bounds){0};
    for (uint32_t i = 0; i < j->n_facts; i++) {
        const fact *f = &j->facts[i];
        for (size_t k = 0; k < MF__COUNT(keys); k++) {
            if (f->kind == FACT_GROUP) MF__TRY(apply_bound(c, f->of.node, keys[k], false, b));
            if (f->kind == FACT_NOT && strcmp(f->key, keys[k]) == 0)
                MF__TRY(apply_bound(c, f->of.node, keys[k], true, b));
        }
    }
    return MF_OK;
}

/* ---- ranges as regular expressions ------------------------------------------------------------------------------- */

/* Strings of digits, compared with lo and hi place by place; a bound that ends goes on with zeros. */
typedef struct digit_range {
    const char *lo, *hi;
    bool above, below; /* the bound itself is excluded */
    int min, max;      /* how many digits */
} digit_range;

/* From place `at` on; tight: so far equal to that bound. Nothing may be written where there is no way: then "[]". */
static mf_status digits(mf__schemas *c, mf__strbuf *out, const digit_range *r, int at, bool tight_lo, bool tight_hi) {
    int n_lo = (int)strlen(r->lo), n_hi = (int)strlen(r->hi);
    if (!tight_lo && !tight_hi)
        return mf__strbuf_printf(out, c->err, "[0-9]{%d,%d}", at < r->min ? r->min - at : 0, r->max - at);
    bool enough = !tight_lo || (at >= n_lo && !r->above), not_more = !tight_hi || !r->below || at < n_hi, first = true;
    MF__TRY(mf__strbuf_append(out, "(?:", 3, c->err));
    if (at >= r->min && enough && not_more) first = false; /* the empty alternative */
    char a = tight_lo && at < n_lo ? r->lo[at] : '0', b = !tight_hi ? '9' : at < n_hi ? r->hi[at] : '0';
    for (char d = a; at < r->max && d <= b;) { /* digits that are at no bound go together */
        bool at_lo = tight_lo && d == a, at_hi = tight_hi && d == b;
        char last = at_lo || at_hi ? d : (tight_hi ? (char)(b - 1) : b);
        MF__TRY(mf__strbuf_printf(out, c->err, "%s[%c-%c]", first ? "" : "|", d, last));
        MF__TRY(digits(c, out, r, at + 1, at_lo, at_hi));
        first = false;
        d = (char)(last + 1);
    }
    return mf__strbuf_append(out, first ? "[])" : ")", first ? 3 : 1, c->err);
}

static mf_status next_alternative(mf__schemas *c, mf__strbuf *out, bool *any) {
    mf_status status = *any ? mf__strbuf_append(out, "|", 1, c->err) : MF_OK;
    *any = true;
    return status;
}

/* Whole numbers lo..hi of n digits, without leading zeros; behind: what follows each of them. */
static mf_status naturals(mf__schemas *c, mf__strbuf *out, uint64_t lo, uint64_t hi, int n, const char *behind,
                          bool *any) {
    uint64_t bottom = n == 1 ? 0 : 1, top = 9;
    for (int i = 1; i < n; i++) bottom *= 10, top = top * 10 + 9;
    if (lo < bottom) lo = bottom;
    if (hi > top) hi = top;
    if (lo > hi) return MF_OK;
    char a[24], b[24];
    snprintf(a, sizeof a, "%" PRIu64, lo);
    snprintf(b, sizeof b, "%" PRIu64, hi);
    MF__TRY(next_alternative(c, out, any));
    MF__TRY(digits(c, out, &(digit_range){.lo = a, .hi = b, .min = n, .max = n}, 0, true, true));
    return mf__strbuf_append(out, behind, strlen(behind), c->err);
}

static int fraction_digits(int n_whole) {
    return n_whole + MAX_FRACTION <= EXACT_DIGITS ? MAX_FRACTION : EXACT_DIGITS - n_whole;
}

/* "whole.fraction" for a whole part that one or both bounds share: those decide about the fraction. */
static mf_status edge_fractions(mf__schemas *c, mf__strbuf *out, const bounds *b, uint64_t whole, bool *any) {
    char text[24];
    int n = snprintf(text, sizeof text, "%" PRIu64, whole);
    bool at_lo = b->lo.there && whole == b->lo.whole, at_hi = b->hi.there && whole == b->hi.whole;
    digit_range r = {b->lo.fraction, b->hi.fraction, b->lo.excluded, b->hi.excluded, 1, fraction_digits(n)};
    if (n >= EXACT_DIGITS) return MF_OK;
    if ((at_lo && (int)strlen(r.lo) >= r.max) || (at_hi && (int)strlen(r.hi) >= r.max)) r.max = EXACT_DIGITS - n;
    size_t longest = at_lo ? strlen(r.lo) : 0;
    if (at_hi && strlen(r.hi) > longest) longest = strlen(r.hi);
    if (whole == 0 && (int)longest >= r.max) r.max = (int)longest + 3; /* small bounds: leading zeros are not digits */
    MF__TRY(next_alternative(c, out, any));
    MF__TRY(mf__strbuf_printf(out, c->err, "%s\\.", text));
    return digits(c, out, &r, 0, at_lo, at_hi);
}

/* Numbers of [lo, hi], both not negative; without a bound, any. */
static mf_status magnitudes(mf__schemas *c, mf__strbuf *out, const bounds *b, bool fractions, bool exponents,
                            bool *any) {
    bool none = !b->hi.there || b->hi.huge;
    bool zero = !b->lo.there || (b->lo.whole == 0 && !b->lo.fraction[0] && !b->lo.huge);
    if (b->lo.huge) return MF_OK;
    if (none && zero && fractions && exponents) {
        MF__TRY(next_alternative(c, out, any));
        const char *text =
            b->lo.there && b->lo.excluded
                ? "(?:[1-9][0-9]{0,15}(?:\\.[0-9]{1,20})?|0\\.[0-9]{0,9}[1-9][0-9]{0,10})(?:[eE][+-]?[0-9]{1,2})?"
                : "(?:0|[1-9][0-9]{0,15})(?:\\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,2})?";
        return mf__strbuf_append(out, text, strlen(text), c->err);
    }
    uint64_t top = 1;
    for (int i = 0; i < LARGEST_DIGITS; i++) top *= 10;
    uint64_t first = b->lo.there ? b->lo.whole + (b->lo.fraction[0] || b->lo.excluded) : 0;
    uint64_t last = none ? (first >= top ? MAX_WHOLE : top - 1) : b->hi.whole;
    bool cut = !none && !b->hi.fraction[0] && b->hi.excluded;
    if (!(cut && last == 0))
        for (int n = 1; n <= LARGEST_DIGITS + 1; n++) MF__TRY(naturals(c, out, first, last - cut, n, "", any));
    if (!fractions) return MF_OK;
    uint64_t lo = b->lo.there ? b->lo.whole : 0, hi = none ? top : b->hi.whole;
    for (int n = 1; n < EXACT_DIGITS && hi > 0; n++) { /* between the bounds: any fraction */
        char behind[40];
        snprintf(behind, sizeof behind, "\\.[0-9]{1,%d}", fraction_digits(n));
        MF__TRY(naturals(c, out, b->lo.there ? lo + 1 : 0, hi - 1, n, behind, any));
    }
    if (b->lo.there && (none || lo <= hi)) MF__TRY(edge_fractions(c, out, b, lo, any));
    return !none && (hi > lo || !b->lo.there) ? edge_fractions(c, out, b, hi, any) : MF_OK;
}

/* The part that is not negative, and the part that is, turned around. */
static mf_status bounds_regex(mf__schemas *c, mf__strbuf *out, const bounds *b, bool fractions, bool exponents) {
    bounds up = *b, down = {b->hi, b->lo};
    bool any = false;
    MF__TRY(mf__strbuf_append(out, "(?:", 3, c->err));
    if (!(b->hi.there && b->hi.negative)) {
        if (up.lo.there && up.lo.negative) up.lo = (bound){0};
        MF__TRY(magnitudes(c, out, &up, fractions, exponents, &any));
    }
    if (!(b->lo.there && !b->lo.negative)) {
        if (!down.lo.there || !down.lo.negative) down.lo = (bound){.there = true, .excluded = true}; /* no -0 */
        mf__strbuf negative = {0};
        bool some = false;
        down.lo.negative = down.hi.negative = false;
        mf_status status = magnitudes(c, &negative, &down, fractions, exponents, &some);
        if (status == MF_OK && some) status = next_alternative(c, out, &any);
        if (status == MF_OK && some) status = mf__strbuf_printf(out, c->err, "-(?:%s)", negative.data);
        mf__strbuf_free(&negative);
        MF__TRY(status);
    }
    return mf__strbuf_append(out, any ? ")" : "[])", any ? 1 : 3, c->err);
}

/* ---- multiples --------------------------------------------------------------------------------------------------- */

/* Decimals whose value times 10^places is a multiple of `of`. */
static mf_status multiples(mf__schemas *c, uint32_t of, int places, mf__lang *out) {
    /* classes: 0 anything else, 1 '-', 2 '.', 3 .. 12 the digits; states: 1 start, 2 behind '-', then by digits behind
     * the point (-1: no point yet) and remainder */
    static const uint32_t cuts[] = {0, '-', '.', '/', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', ':'};
    static const uint32_t class[] = {0, 1, 2, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0};
    MF__TRY(mf__lang_make(out, 3 + (uint32_t)(places + 2) * of, 13, MF__COUNT(cuts), c->err));
    memcpy(out->cuts, cuts, sizeof cuts);
    memcpy(out->class, class, sizeof class);
    out->to[1 * 13 + 1] = 2;
    for (int behind = -1; behind <= places; behind++)
        for (uint32_t r = 0; r < of; r++) {
            uint32_t s = 3 + (uint32_t)(behind + 1) * of + r;
            uint64_t scaled = r;
            for (int i = behind < 0 ? 0 : behind; i < places; i++) scaled = scaled * 10 % of;
            out->label[s] = scaled == 0 && behind != 0;
            if (behind < 0 && places > 0) out->to[s * 13 + 2] = 3 + of + r;
            for (uint32_t d = 0; d < 10 && behind < places; d++) {
                int to = behind < 0 ? -1 : behind + 1;
                out->to[s * 13 + 3 + d] = 3 + (uint32_t)(to + 1) * of + (uint32_t)(((uint64_t)r * 10 + d) % of);
            }
            if (behind < 0 && places == 0)
                for (uint32_t d = 0; d < 10; d++) out->to[s * 13 + 3 + d] = 3 + (uint32_t)(((uint64_t)r * 10 + d) % of);
        }
    for (uint32_t d = 0; d < 10; d++) out->to[1 * 13 + 3 + d] = out->to[2 * 13 + 3 + d] = 3 + d % of;
    return MF_OK;
}

static mf_status restrict_multiple(mf__schemas *c, const json_t *schema, mf__lang *lang) {
    const json_t *v = json_object_get(schema, "multipleOf");
    bound b;
    uint64_t of;
    if (!v) return MF_OK;
    if (!json_is_number(v) || json_number_value(v) <= 0)
        return mf__schema_fail(c, MF_E_FORMAT, schema, "multipleOf", "is not a number above 0");
    read_number(v, &b);
    int places = (int)strlen(b.fraction);
    of = b.whole;
    for (int i = 0; i < places && of < 100000; i++) of = of * 10 + (uint64_t)(b.fraction[i] - '0');
    if (b.huge || places > 10 || of * (uint64_t)(places + 2) >= MF__LANG_MAX_STATES - 3)
        return mf__schema_fail(c, MF_E_LIMIT, schema, "multipleOf", "has too many digits");
    mf__lang one = {0};
    mf_status status = multiples(c, (uint32_t)of, places, &one);
    if (status == MF_OK) status = mf__lang_restrict(lang, &one, MF__LANG_AND, c->err);
    mf__lang_free(&one);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static mf_status restrict_text(mf__schemas *c, const char *pattern, mf__lang_op op, mf__lang *lang) {
    mf__lang one;
    MF__TRY(mf__lang_regex(pattern, strlen(pattern), (mf__lang_options){0}, &one, c->err));
    mf_status status = mf__lang_restrict(lang, &one, op, c->err);
    mf__lang_free(&one);
    return status;
}

static mf_status exclude_number(mf__schemas *c, const json_t *v, mf__lang *lang) {
    bound b;
    char pattern[FRACTION + 64];
    read_number(v, &b);
    if (b.huge) return MF_OK;
    snprintf(pattern, sizeof pattern, b.fraction[0] ? "%s%" PRIu64 "\\.%s0*" : "%s%" PRIu64 "(\\.%s0*)?",
             b.negative                       ? "-"
             : b.whole == 0 && !b.fraction[0] ? "-?"
                                              : "",
             b.whole, b.fraction);
    return restrict_text(c, pattern, MF__LANG_AND_NOT, lang);
}

static bool is_special(const conjunction *j, bool *multiple) {
    bool special = false;
    *multiple = false;
    for (uint32_t i = 0; i < j->n_facts; i++)
        if (j->facts[i].kind == FACT_GROUP && json_object_get(j->facts[i].of.node, "multipleOf"))
            *multiple = special = true;
    for (size_t i = 0; i < json_array_size(j->excluded); i++)
        special = special || json_is_number(json_array_get(j->excluded, i));
    return special;
}

mf_status mf__schema_number(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to) {
    bounds b;
    bool fractions = j->types & TYPE_FRACTION, whole = j->types & TYPE_INTEGER, multiple;
    bool special = is_special(j, &multiple) || !whole;
    MF__TRY(read_bounds(c, j, &b));
    if (!b.lo.there && !b.hi.there && !special) return mf__nfa_call(c->n, from, fractions ? c->number : c->integer, to);
    if (b.lo.there && b.hi.there && compare(&b.lo, &b.hi) > 0) return MF_OK;
    mf__strbuf pattern = {0};
    mf__lang lang = {0};
    mf_status status = bounds_regex(c, &pattern, &b, fractions, !special);
    if (status == MF_OK) status = mf__lang_regex(pattern.data, pattern.size, (mf__lang_options){0}, &lang, c->err);
    for (uint32_t i = 0; status == MF_OK && multiple && i < j->n_facts; i++)
        if (j->facts[i].kind == FACT_GROUP) status = restrict_multiple(c, j->facts[i].of.node, &lang);
    for (size_t i = 0; status == MF_OK && i < json_array_size(j->excluded); i++)
        if (json_is_number(json_array_get(j->excluded, i)))
            status = exclude_number(c, json_array_get(j->excluded, i), &lang);
    if (status == MF_OK && !whole) status = restrict_text(c, "-?[0-9]+\\.[0-9]*[1-9]", MF__LANG_AND, &lang);
    if (status == MF_OK) status = mf__lang_fill(c->n, &lang, NFA_PLAIN, false, from, to);
    mf__lang_free(&lang);
    mf__strbuf_free(&pattern);
    return status;
}
