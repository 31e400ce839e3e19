/* JSON Schema: the common rules, strings, numbers, arrays. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_INDENT 16
#define LARGEST_DIGITS 18
#define LARGEST 999999999999999999 /* of so many digits: it fits an int64 */

static mf_status regex(schema_ctx *c, const char *pattern, uint32_t from, uint32_t to) {
    return nfa_regex_add(c->g, from, &(nfa_regex){.pattern = pattern, .size = strlen(pattern), .max = -1}, to, c->err);
}

static mf_status common_rule(schema_ctx *c, const char *pattern, uint32_t *rule) {
    MF__TRY(nfa_rule_add(c->g, rule, c->err));
    nfa_rule r = c->g->rules[*rule];
    return regex(c, pattern, r.start, r.end);
}

static mf_status text(schema_ctx *c, uint32_t *at, const char *s) { /* moves on */
    uint32_t next;
    MF__TRY(nfa_state_add(c->g, &next, c->err));
    MF__TRY(nfa_text(c->g, *at, s, strlen(s), next, c->err));
    *at = next;
    return MF_OK;
}

static mf_status call(schema_ctx *c, uint32_t *at, uint32_t rule) {
    uint32_t next;
    MF__TRY(nfa_state_add(c->g, &next, c->err));
    MF__TRY(nfa_call(c->g, *at, rule, next, c->err));
    *at = next;
    return MF_OK;
}

/* Open bracket, then members behind each other with commas, then the closing one. */
static mf_status common_list(schema_ctx *c, const char *open, const char *close, bool keys, uint32_t rule) {
    nfa_rule r = c->g->rules[rule];
    uint32_t at = r.start, member, end;
    MF__TRY(text(c, &at, open));
    MF__TRY(call(c, &at, c->space));
    MF__TRY(nfa_state_add(c->g, &end, c->err));
    MF__TRY(nfa_text(c->g, end, close, 1, r.end, c->err));
    MF__TRY(nfa_empty(c->g, at, end, c->err));
    MF__TRY(nfa_state_add(c->g, &member, c->err));
    MF__TRY(nfa_empty(c->g, at, member, c->err));
    at = member;
    if (keys) {
        MF__TRY(call(c, &at, c->string));
        MF__TRY(text(c, &at, ":"));
        MF__TRY(call(c, &at, c->space));
    }
    MF__TRY(call(c, &at, c->value));
    uint32_t more = at;
    MF__TRY(text(c, &more, ","));
    MF__TRY(nfa_call(c->g, more, c->space, member, c->err));
    return nfa_call(c->g, at, c->space, end, c->err);
}

static mf_status make_value(schema_ctx *c) {
    nfa_rule r = c->g->rules[c->value];
    static const char *const words[] = {"true", "false", "null"};
    for (size_t i = 0; i < MF__COUNT(words); i++)
        MF__TRY(nfa_text(c->g, r.start, words[i], strlen(words[i]), r.end, c->err));
    const uint32_t rules[] = {c->string, c->number, c->object, c->array};
    for (size_t i = 0; i < MF__COUNT(rules); i++) MF__TRY(nfa_call(c->g, r.start, rules[i], r.end, c->err));
    return MF_OK;
}

/* A string without further conditions: characters and escapes; no NUL, which many readers refuse, and no surrogates. */
static mf_status make_string(schema_ctx *c) {
    MF__TRY(nfa_rule_add(c->g, &c->string, c->err));
    nfa_rule r = c->g->rules[c->string];
    uint32_t at = r.start, body;
    mf__uset all = {0};
    MF__TRY(text(c, &at, "\""));
    body = at;
    c->g->states[body].free = MF__NFA_NEVER;
    mf_status status = mf__uset_add(&all, 1, MF__UNICODE_END - 1, c->err);
    if (status == MF_OK) status = nfa_chars(c->g, body, &all, true, body, c->err);
    mf__uset_free(&all);
    MF__TRY(status);
    MF__TRY(
        regex(c, "\\\\u([1-9a-cefA-CEF][0-9a-fA-F]{3}|0[1-9a-fA-F][0-9a-fA-F]{2}|00[2-9a-fA-F][0-9a-fA-F])", at, body));
    return nfa_text(c->g, body, "\"", 1, r.end, c->err);
}

mf_status schema_common(schema_ctx *c) {
    char space[64];
    snprintf(space, sizeof space, " ?|\\n[ \\t]{0,%d}", MAX_INDENT);
    MF__TRY(common_rule(c, space, &c->space));
    MF__TRY(common_rule(c, "-?(0|[1-9][0-9]{0,17})", &c->integer));
    MF__TRY(common_rule(c, "-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?", &c->number));
    MF__TRY(make_string(c));
    MF__TRY(nfa_rule_add(c->g, &c->value, c->err));
    MF__TRY(nfa_rule_add(c->g, &c->object, c->err));
    MF__TRY(nfa_rule_add(c->g, &c->array, c->err));
    MF__TRY(common_list(c, "{", "}", true, c->object));
    MF__TRY(common_list(c, "[", "]", false, c->array));
    return make_value(c);
}

/* ---- strings --------------------------------------------------------------------------------------------------- */

mf_status schema_string(schema_ctx *c, const json_t *s, uint32_t from, uint32_t to) {
    const json_t *pattern = json_object_get(s, "pattern");
    nfa_regex r = {.pattern = "[^]*", .size = 4, .in_json = true, .any = true};
    uint32_t at = from, end;
    MF__TRY(schema_count(c, s, "minLength", 0, &r.min));
    MF__TRY(schema_count(c, s, "maxLength", -1, &r.max));
    if (pattern && !json_is_string(pattern))
        return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: \"pattern\" is no text");
    if (!pattern && r.min == 0 && r.max < 0) return nfa_call(c->g, from, c->string, to, c->err);
    if (pattern) {
        r.pattern = json_string_value(pattern);
        r.size = json_string_length(pattern);
        r.search = true;
        r.any = false;
    }
    MF__TRY(text(c, &at, "\""));
    MF__TRY(nfa_state_add(c->g, &end, c->err));
    MF__TRY(nfa_regex_add(c->g, at, &r, end, c->err));
    return nfa_text(c->g, end, "\"", 1, to, c->err);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

/* Strings of digits, compared with lo and hi place by place; a bound that ends goes on with zeros. */
typedef struct digit_range {
    const char *lo, *hi;
    bool above, below; /* the bound itself is excluded */
    int min, max;      /* how many digits */
} digit_range;

/* From place `at` on; tight: so far equal to that bound. */
static mf_status digits(schema_ctx *c, uint32_t from, const digit_range *r, int at, bool tight_lo, bool tight_hi,
                        uint32_t to) {
    int n_lo = (int)strlen(r->lo), n_hi = (int)strlen(r->hi);
    if (!tight_lo && !tight_hi) {
        char any[40];
        snprintf(any, sizeof any, "[0-9]{%d,%d}", at < r->min ? r->min - at : 0, r->max - at);
        return regex(c, any, from, to);
    }
    bool enough = !tight_lo || (at >= n_lo && !r->above), not_more = !tight_hi || !r->below || at < n_hi;
    if (at >= r->min && enough && not_more) MF__TRY(nfa_empty(c->g, from, to, c->err));
    if (at == r->max) return MF_OK;
    char a = tight_lo && at < n_lo ? r->lo[at] : '0', b = !tight_hi ? '9' : at < n_hi ? r->hi[at] : '0';
    for (char d = a; d <= b;) { /* digits that are at no bound go together */
        bool at_lo = tight_lo && d == a, at_hi = tight_hi && d == b;
        char last = at_lo || at_hi ? d : (tight_hi ? (char)(b - 1) : b);
        uint32_t next;
        MF__TRY(nfa_state_add(c->g, &next, c->err));
        MF__TRY(nfa_bytes(c->g, from, (uint8_t)d, (uint8_t)last, next, c->err));
        MF__TRY(digits(c, next, r, at + 1, at_lo, at_hi, to));
        d = (char)(last + 1);
    }
    return MF_OK;
}

/* Whole numbers lo..hi of n digits, 0 <= lo, without leading zeros. */
static mf_status naturals(schema_ctx *c, uint32_t from, int64_t lo, int64_t hi, int n, uint32_t to) {
    int64_t bottom = n == 1 ? 0 : 1, top = 9;
    for (int i = 1; i < n; i++) bottom *= 10, top = top * 10 + 9;
    if (lo < bottom) lo = bottom;
    if (hi > top) hi = top;
    if (lo > hi) return MF_OK;
    char a[24], b[24];
    snprintf(a, sizeof a, "%lld", (long long)lo);
    snprintf(b, sizeof b, "%lld", (long long)hi);
    return digits(c, from, &(digit_range){.lo = a, .hi = b, .min = n, .max = n}, 0, true, true, to);
}

typedef struct bounds {
    double lo, hi;
    bool above, below; /* the bound itself is excluded */
} bounds;

static mf_status read_bounds(schema_ctx *c, const json_t *s, bounds *b) {
    static const char *const keys[] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};
    *b = (bounds){-(double)LARGEST, (double)LARGEST, false, false};
    for (int i = 0; i < 4; i++) {
        const json_t *v = json_object_get(s, keys[i]);
        if (!v) continue;
        if (!json_is_number(v)) return mf__fail(c->err, MF_E_FORMAT, "JSON Schema: \"%s\" is not a number", keys[i]);
        double d = json_number_value(v);
        bool exclusive = i % 2;
        if (i < 2 && (d > b->lo || (d == b->lo && exclusive))) b->lo = d, b->above = exclusive;
        if (i >= 2 && (d < b->hi || (d == b->hi && exclusive))) b->hi = d, b->below = exclusive;
    }
    return MF_OK;
}

/* The digits behind the point of the shortest decimal that reads as d, 0 <= d. */
static void fraction_of(double d, char out[400]) {
    char text[40];
    int precision = 14, n = 0;
    do snprintf(text, sizeof text, "%.*e", precision, d);
    while (strtod(text, NULL) != d && ++precision < 17);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    for (int i = exponent + 1; i <= precision; i++) out[n++] = i < 0 ? '0' : i == 0 ? text[0] : text[i + 1];
    while (n > 0 && out[n - 1] == '0') n--;
    out[n] = 0;
}

/* With this many digits no two numbers round to the same double, so what is between the bounds here is so there. */
#define EXACT_DIGITS 15
#define MAX_FRACTION 10

static int fraction_digits(int n_whole) {
    return n_whole + MAX_FRACTION <= EXACT_DIGITS ? MAX_FRACTION : EXACT_DIGITS - n_whole;
}

/* "whole.fraction" for a whole part that one or both bounds share: those decide about the fraction. */
static mf_status edge_fractions(schema_ctx *c, uint32_t from, const bounds *b, int64_t whole, uint32_t to) {
    char lo[400], hi[400], text_whole[24];
    int n = snprintf(text_whole, sizeof text_whole, "%lld", (long long)whole);
    if (n >= EXACT_DIGITS) return MF_OK;
    MF__TRY(text(c, &from, text_whole));
    MF__TRY(text(c, &from, "."));
    fraction_of(b->lo, lo);
    fraction_of(b->hi, hi);
    digit_range r = {lo, hi, b->above, b->below, 1, fraction_digits(n)};
    if ((int)strlen(lo) >= r.max || (int)strlen(hi) >= r.max) r.max = EXACT_DIGITS - n;
    return digits(c, from, &r, 0, whole == (int64_t)floor(b->lo), whole == (int64_t)floor(b->hi), to);
}

/* Numbers of [lo, hi], 0 <= lo, behind an optional sign. */
static mf_status magnitudes(schema_ctx *c, uint32_t from, bounds b, bool fractions, uint32_t to) {
    if (b.hi < 0 || b.lo > (double)LARGEST) return MF_OK;
    if (b.hi > (double)LARGEST) b.hi = (double)LARGEST;
    double first = ceil(b.lo) + (b.above && ceil(b.lo) == b.lo), last = floor(b.hi) - (b.below && floor(b.hi) == b.hi);
    int64_t lo = (int64_t)first, hi = last >= (double)LARGEST ? LARGEST : (int64_t)last;
    for (int n = 1; n <= LARGEST_DIGITS; n++) MF__TRY(naturals(c, from, lo, hi, n, to));
    if (!fractions) return MF_OK;
    lo = (int64_t)floor(b.lo);
    hi = (int64_t)floor(b.hi);
    for (int n = 1; n < EXACT_DIGITS; n++) { /* between the bounds: any fraction */
        uint32_t whole;
        char any[40];
        MF__TRY(nfa_state_add(c->g, &whole, c->err));
        MF__TRY(naturals(c, from, lo + 1, hi - 1, n, whole));
        snprintf(any, sizeof any, "\\.[0-9]{1,%d}", fraction_digits(n));
        MF__TRY(regex(c, any, whole, to));
    }
    MF__TRY(edge_fractions(c, from, &b, lo, to));
    return hi > lo ? edge_fractions(c, from, &b, hi, to) : MF_OK;
}

mf_status schema_number(schema_ctx *c, const json_t *s, bool integer, uint32_t from, uint32_t to) {
    if (!json_object_get(s, "minimum") && !json_object_get(s, "maximum") && !json_object_get(s, "exclusiveMinimum") &&
        !json_object_get(s, "exclusiveMaximum"))
        return nfa_call(c->g, from, integer ? c->integer : c->number, to, c->err);
    bounds b;
    uint32_t minus;
    MF__TRY(read_bounds(c, s, &b));
    bounds up = b, down = {-b.hi, -b.lo, b.below, b.above};
    if (up.lo < 0) up.lo = 0, up.above = false;
    if (down.lo <= 0) down.lo = 0, down.above = true; /* no -0 */
    MF__TRY(magnitudes(c, from, up, !integer, to));
    MF__TRY(nfa_state_add(c->g, &minus, c->err));
    MF__TRY(nfa_bytes(c->g, from, '-', '-', minus, c->err));
    return magnitudes(c, minus, down, !integer, to);
}

/* ---- arrays ---------------------------------------------------------------------------------------------------- */

/* Item number i: one of prefixItems, or items. *rule is UINT32_MAX when there can be none. */
static mf_status item_rule(schema_ctx *c, const json_t *s, size_t i, uint32_t *rule) {
    const json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
    *rule = c->value;
    if (i < json_array_size(prefix)) return schema_rule(c, json_array_get(prefix, i), rule);
    if (json_is_false(items)) return *rule = UINT32_MAX, MF_OK;
    return items ? schema_rule(c, items, rule) : MF_OK;
}

mf_status schema_array(schema_ctx *c, const json_t *s, uint32_t from, uint32_t to) {
    int64_t min, max;
    uint32_t at = from, end, rule, first;
    size_t n_prefix = json_array_size(json_object_get(s, "prefixItems"));
    MF__TRY(schema_count(c, s, "minItems", 0, &min));
    MF__TRY(schema_count(c, s, "maxItems", -1, &max));
    MF__TRY(text(c, &at, "["));
    MF__TRY(call(c, &at, c->space));
    MF__TRY(nfa_state_add(c->g, &end, c->err));
    MF__TRY(nfa_text(c->g, end, "]", 1, to, c->err));
    if (min == 0) MF__TRY(nfa_empty(c->g, at, end, c->err));
    for (int64_t i = 0; max < 0 || i < max; i++) { /* at: before item i, comma and space behind us */
        bool last_kind = max < 0 && i + 1 >= min && (uint64_t)i >= n_prefix;
        MF__TRY(item_rule(c, s, (size_t)i, &rule));
        if (rule == UINT32_MAX) break;
        MF__TRY(nfa_state_add(c->g, &first, c->err)); /* its own state: "]" may not follow a comma */
        MF__TRY(nfa_empty(c->g, at, first, c->err));
        at = first;
        MF__TRY(call(c, &at, rule));
        if (i + 1 >= min) MF__TRY(nfa_call(c->g, at, c->space, end, c->err));
        MF__TRY(text(c, &at, ","));
        if (last_kind) return nfa_call(c->g, at, c->space, first, c->err); /* and again */
        MF__TRY(call(c, &at, c->space));
    }
    return MF_OK;
}
