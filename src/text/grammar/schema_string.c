/* JSON Schema: strings. What patterns and formats say is a set of strings (lang.h); lengths are counted where the set
 * allows it, and become a part of it where not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define PRODUCT 60000 /* states of a pattern times a length up to which both are multiplied */

/* Strings while what is asked of them is read: a set (without states: any), and how many characters they have. */
typedef struct strings {
    mf__lang lang;
    int64_t min, max;
} strings;

static void limit_length(strings *s, int64_t min, int64_t max) {
    if (min > s->min) s->min = min;
    if (max >= 0 && (s->max < 0 || max < s->max)) s->max = max;
}

static mf_status restrict_regex(mf__schemas *c, const fact *f, const char *key, const char *pattern, size_t size,
                                bool search, strings *s) {
    mf__lang one, *lang = &s->lang;
    int64_t min, max;
    bool negated = f->kind == FACT_NOT;
    mf__lang_options o = {.search = search, .wide = negated, .min = negated ? NULL : &min, .max = &max};
    mf_status status = mf__lang_regex(pattern, size, o, &one, c->err);
    if (status != MF_OK) return mf__schema_fail(c, status, f->of.node, key, "cannot be used");
    if (!negated) limit_length(s, min, max);
    if (!lang->n_states && !negated) return *lang = one, MF_OK;
    if (!lang->n_states) status = mf__lang_any(lang, c->err);
    if (status == MF_OK) status = mf__lang_restrict(lang, &one, negated ? MF__LANG_AND_NOT : MF__LANG_AND, c->err);
    mf__lang_free(&one);
    return status;
}

static mf_status apply_format(mf__schemas *c, const fact *f, strings *s) {
    const json_t *format = json_object_get(f->of.node, "format");
    const char *name = json_string_value(format), *pattern = name ? mf__format_pattern(name) : NULL;
    char what[128];
    if (pattern) return restrict_regex(c, f, "format", pattern, strlen(pattern), false, s);
    if (!name) return MF_OK;
    snprintf(what, sizeof what, "\"%.60s\" is not enforced", name);
    if (c->options.strict) return mf__schema_fail(c, MF_E_UNSUPPORTED, f->of.node, "format", what);
    return c->probing ? MF_OK : mf__schema_note(c, f->of.node, "format", what);
}

static mf_status apply_lengths(mf__schemas *c, const fact *f, strings *s) {
    int64_t least, most;
    bool negated = f->kind == FACT_NOT;
    MF__TRY(mf__schema_count(c, f->of.node, "minLength", 0, &least));
    MF__TRY(mf__schema_count(c, f->of.node, "maxLength", -1, &most));
    if (negated && f->key[1] == 'i') most = least - 1, least = 0;
    if (negated && f->key[1] == 'a') least = most + 1, most = -1;
    if (negated && most < -1) return s->min = 1, s->max = 0, MF_OK;
    if (negated && f->key[1] == 'i' && most == -1) return s->min = 1, s->max = 0, MF_OK; /* minLength 0 always holds */
    limit_length(s, least, most);
    return MF_OK;
}

static mf_status apply_fact(mf__schemas *c, const fact *f, strings *s) {
    const json_t *pattern = json_object_get(f->of.node, "pattern");
    bool group = f->kind == FACT_GROUP;
    if (!group && f->kind != FACT_NOT) return MF_OK;
    if (pattern && (group || strcmp(f->key, "pattern") == 0)) {
        if (!json_is_string(pattern)) return mf__schema_fail(c, MF_E_FORMAT, f->of.node, "pattern", "is not a string");
        MF__TRY(restrict_regex(c, f, "pattern", json_string_value(pattern), json_string_length(pattern), true, s));
    }
    if (group || strcmp(f->key, "format") == 0) MF__TRY(apply_format(c, f, s));
    return group || strstr(f->key, "Length") ? apply_lengths(c, f, s) : MF_OK;
}

static mf_status exclude_texts(mf__schemas *c, const json_t *values, strings *s) {
    size_t n = 0, size = json_array_size(values);
    mf__lang all = {0};
    mf__text_span *texts = malloc((size + 1) * sizeof *texts);
    mf_status status = texts ? MF_OK : mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    for (size_t i = 0; status == MF_OK && i < size; i++) {
        const json_t *v = json_array_get(values, i);
        if (json_is_string(v)) texts[n++] = (mf__text_span){json_string_value(v), json_string_length(v)};
    }
    if (status == MF_OK && n && !s->lang.n_states) status = mf__lang_any(&s->lang, c->err);
    if (status == MF_OK && n) status = mf__lang_texts(texts, n, &all, c->err);
    if (status == MF_OK && n) status = mf__lang_restrict(&s->lang, &all, MF__LANG_AND_NOT, c->err);
    mf__lang_free(&all);
    free(texts);
    return status;
}

/* The lengths become part of the set. */
static mf_status fold_lengths(mf__schemas *c, strings *s) {
    mf__lang length = {0};
    bool none = s->max >= 0 && s->min > s->max;
    if (s->min == 0 && s->max < 0) return MF_OK;
    if (!s->lang.n_states) MF__TRY(mf__lang_any(&s->lang, c->err));
    MF__TRY(none ? mf__lang_texts(NULL, 0, &length, c->err) : mf__lang_lengths(s->min, s->max, &length, c->err));
    mf_status status = mf__lang_restrict(&s->lang, &length, MF__LANG_AND, c->err);
    mf__lang_free(&length);
    return status;
}

/* lengths: they become part of the set; else *min and *max have them. A set without states: any string. */
mf_status mf__schema_string_lang(mf__schemas *c, const conjunction *j, bool lengths, mf__lang *out, int64_t *min,
                                 int64_t *max) {
    strings s = {.max = -1};
    mf_status status = MF_OK;
    for (uint32_t i = 0; status == MF_OK && i < j->n_facts; i++) status = apply_fact(c, &j->facts[i], &s);
    if (status == MF_OK) status = exclude_texts(c, j->excluded, &s);
    if (status == MF_OK && lengths) status = fold_lengths(c, &s);
    if (status != MF_OK) return mf__lang_free(&s.lang), status;
    *out = s.lang;
    *min = s.min;
    *max = s.max;
    return MF_OK;
}

/* Quotes around the strings of a set; counted: of these lengths. */
static mf_status quoted(mf__schemas *c, const strings *s, bool counted, uint32_t from, uint32_t to) {
    mf__nfa *n = c->n;
    uint32_t rule = 0, at = from, end = to, close;
    if (counted) {
        MF__TRY(mf__nfa_rule(n, &rule));
        nfa_rule *r = &n->rules[rule];
        r->kind = MF__RULE_COUNTED;
        r->min = s->min;
        r->max = s->max;
        at = r->start;
        end = r->end;
    }
    MF__TRY(mf__nfa_then_text(n, &at, "\"", 1));
    MF__TRY(mf__nfa_state(n, &close));
    MF__TRY(mf__lang_fill(n, &s->lang, NFA_JSON_ESCAPES, counted, at, close));
    MF__TRY(mf__nfa_text(n, close, "\"", 1, end));
    return counted ? mf__nfa_call(n, from, rule, to) : MF_OK;
}

static mf_status fill_strings(mf__schemas *c, const conjunction *j, strings *s, uint32_t from, uint32_t to) {
    bool lengths = s->min > 0 || s->max >= 0;
    if (s->max >= 0 && s->min > s->max) return MF_OK;
    if (!s->lang.n_states && !lengths) return mf__nfa_call(c->n, from, c->string, to);
    if (!s->lang.n_states) MF__TRY(mf__lang_any(&s->lang, c->err));
    if (!lengths || mf__lang_gapless(&s->lang)) return quoted(c, s, lengths, from, to);
    if (s->lang.n_states * (uint64_t)(s->max < 0 ? s->min : s->max) > PRODUCT)
        return mf__schema_fail(c, MF_E_LIMIT, j->facts[0].of.node, "pattern", "and lengths together are too large");
    MF__TRY(fold_lengths(c, s));
    return quoted(c, s, false, from, to);
}

static mf_status make_string(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to) {
    strings s;
    MF__TRY(mf__schema_string_lang(c, j, false, &s.lang, &s.min, &s.max));
    mf_status status = fill_strings(c, j, &s, from, to);
    mf__lang_free(&s.lang);
    return status;
}

/* What is asked of a string, as a text: the same strings have one rule. */
static mf_status string_key(mf__schemas *c, const conjunction *j, mf__strbuf *out) {
    static const char *const keys[] = {"pattern", "format", "minLength", "maxLength"};
    for (uint32_t i = 0; i < j->n_facts; i++)
        for (size_t k = 0; k < MF__COUNT(keys); k++) {
            const fact *f = &j->facts[i];
            const json_t *v = f->kind == FACT_GROUP || (f->kind == FACT_NOT && strcmp(f->key, keys[k]) == 0)
                                  ? json_object_get(f->of.node, keys[k])
                                  : NULL;
            char *text = v ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
            if (text) MF__TRY(mf__strbuf_printf(out, c->err, "%d%zu%s ", (int)f->kind, k, text));
            free(text);
        }
    for (size_t i = 0; i < json_array_size(j->excluded); i++) {
        const json_t *v = json_array_get(j->excluded, i);
        char *text = json_is_string(v) ? json_dumps(v, JSON_ENCODE_ANY) : NULL;
        if (text) MF__TRY(mf__strbuf_printf(out, c->err, "-%s ", text));
        free(text);
    }
    return MF_OK;
}

mf_status mf__schema_string(mf__schemas *c, const conjunction *j, uint32_t from, uint32_t to) {
    mf__strbuf key = {0};
    uint32_t rule = 0;
    mf_status status = string_key(c, j, &key);
    const json_t *known = key.size ? json_object_get(c->strings, key.data) : NULL;
    if (status == MF_OK && !key.size) {
        rule = c->string;
    } else if (status == MF_OK && known) {
        rule = (uint32_t)json_integer_value(known);
    } else if (status == MF_OK) {
        status = mf__nfa_rule(c->n, &rule);
        nfa_rule r = status == MF_OK ? c->n->rules[rule] : (nfa_rule){0};
        if (status == MF_OK) status = make_string(c, j, r.start, r.end);
        if (status == MF_OK && json_object_set_new(c->strings, key.data, json_integer(rule)) != 0)
            status = mf__fail(c->err, MF_E_NOMEM, "no memory for a schema");
    }
    mf__strbuf_free(&key);
    return status == MF_OK ? mf__nfa_call(c->n, from, rule, to) : status;
}
