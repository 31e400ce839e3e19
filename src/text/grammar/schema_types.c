/* JSON Schema: the common rules, strings, numbers, arrays. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_INDENT 16
#define LARGEST 999999999999999999 /* 18 digits: every one fits an int64 */

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

/* Digit strings of one length between lo and hi, from position i on. tight: so far equal to that bound. */
static mf_status digits(schema_ctx *c, uint32_t from, const char *lo, const char *hi, bool tight_lo, bool tight_hi,
                        uint32_t to) {
    if (!*lo) return nfa_empty(c->g, from, to, c->err);
    char a = tight_lo ? *lo : '0', b = tight_hi ? *hi : '9';
    for (char d = a; d <= b;) { /* digits that are at no bound go together */
        bool at_lo = tight_lo && d == a, at_hi = tight_hi && d == b;
        char last = at_lo || at_hi ? d : (tight_hi ? (char)(b - 1) : b);
        uint32_t next;
        MF__TRY(nfa_state_add(c->g, &next, c->err));
        MF__TRY(nfa_bytes(c->g, from, (uint8_t)d, (uint8_t)last, next, c->err));
        MF__TRY(digits(c, next, lo + 1, hi + 1, at_lo, at_hi, to));
        d = (char)(last + 1);
    }
    return MF_OK;
}

/* Whole numbers lo..hi, 0 <= lo, without leading zeros. */
static mf_status naturals(schema_ctx *c, uint32_t from, int64_t lo, int64_t hi, uint32_t to) {
    for (int64_t top = 9, bottom = 0; lo <= hi && bottom <= hi; bottom = top + 1, top = top * 10 + 9) {
        char a[24], b[24];
        int64_t first = lo > bottom ? lo : bottom, last = hi < top ? hi : top;
        if (first > last) continue;
        snprintf(a, sizeof a, "%lld", (long long)first);
        snprintf(b, sizeof b, "%lld", (long long)last);
        MF__TRY(digits(c, from, a, b, true, true, to));
        if (top >= LARGEST) break;
    }
    return MF_OK;
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

/* Numbers of [lo, hi], 0 <= lo, behind an optional sign: whole ones, and with fraction those whose whole part leaves
 * room for any. */
static mf_status magnitudes(schema_ctx *c, uint32_t from, bounds b, int64_t least, bool fractions, uint32_t to) {
    if (b.hi < 0 || b.lo > (double)LARGEST) return MF_OK;
    double first = ceil(b.lo) + (b.above && ceil(b.lo) == b.lo), last = floor(b.hi) - (b.below && floor(b.hi) == b.hi);
    if (last > (double)LARGEST) last = (double)LARGEST;
    if (first < (double)least) first = (double)least;
    if (first <= last) MF__TRY(naturals(c, from, (int64_t)first, last >= 1e18 ? LARGEST : (int64_t)last, to));
    last = floor(b.hi) - 1;
    if (!fractions || first > last) return MF_OK;
    uint32_t whole;
    MF__TRY(nfa_state_add(c->g, &whole, c->err));
    MF__TRY(naturals(c, from, (int64_t)first, last >= 1e15 ? 999999999999999 : (int64_t)last, whole));
    return regex(c, "\\.[0-9]{1,10}", whole, to);
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
    if (down.lo < 0) down.lo = 0, down.above = false;
    MF__TRY(magnitudes(c, from, up, 0, !integer, to));
    MF__TRY(nfa_state_add(c->g, &minus, c->err));
    MF__TRY(nfa_bytes(c->g, from, '-', '-', minus, c->err));
    return magnitudes(c, minus, down, 1, !integer, to); /* no -0 */
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
