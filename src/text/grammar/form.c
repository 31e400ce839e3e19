/* Forms to rules: texts, schemas and raw values put together. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/lang.h"
#include "text/grammar/schema.h"

#define MAX_DEPTH 32

typedef struct form_ctx {
    mf__nfa *n;
    mf__schemas *schemas;
    int depth;
    mf_error *err;
} form_ctx;

static mf_status fill(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to);

/* ---- any text up to a tag ---------------------------------------------------------------------------------------- */

/* The failure function of Knuth, Morris and Pratt: the longest proper border of each prefix. */
static void borders(const char *tag, size_t n, size_t *border) {
    border[0] = 0;
    for (size_t i = 1, k = 0; i < n; i++) {
        while (k && tag[i] != tag[k]) k = border[k - 1];
        border[i] = k += tag[i] == tag[k];
    }
}

static size_t after_byte(const char *tag, const size_t *border, size_t k, char byte) {
    while (k && tag[k] != byte) k = border[k - 1];
    return k + (tag[k] == byte);
}

/* From state[k], where the last k bytes are the tag's first k: by a byte of the tag onward or back; by any other
 * character to the beginning. */
static mf_status fill_until_state(form_ctx *c, const mf__form *f, const size_t *border, const uint32_t *state,
                                  size_t k) {
    mf__uset rest = {0};
    mf_status status = mf__uset_add(&rest, 0, 0, c->err);
    for (int b = 1; status == MF_OK && b < 0x80; b++) {
        if (!memchr(f->text, b, f->size)) continue;
        status = mf__uset_add(&rest, (uint32_t)b, (uint32_t)b, c->err);
        if (status == MF_OK)
            status =
                mf__nfa_bytes(c->n, state[k], (uint8_t)b, (uint8_t)b, state[after_byte(f->text, border, k, (char)b)]);
    }
    if (status == MF_OK) status = mf__uset_invert(&rest, c->err);
    if (status == MF_OK) status = mf__nfa_chars(c->n, state[k], &rest, NFA_PLAIN, state[0]);
    mf__uset_free(&rest);
    return status;
}

static mf_status fill_until(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    for (size_t i = 0; i < f->size; i++)
        if ((uint8_t)f->text[i] >= 0x80 || !f->text[i])
            return mf__fail(c->err, MF_E_UNSUPPORTED, "a closing tag that is not ASCII");
    if (f->size == 0) return mf__fail(c->err, MF_E_INVALID, "an empty closing tag");
    size_t *border = malloc(f->size * sizeof *border);
    uint32_t *state = malloc((f->size + 1) * sizeof *state);
    mf_status status = border && state ? MF_OK : mf__fail(c->err, MF_E_NOMEM, "no memory for a form");
    if (status == MF_OK) borders(f->text, f->size, border);
    for (size_t k = 0; status == MF_OK && k < f->size; k++) status = mf__nfa_state(c->n, &state[k]);
    if (status == MF_OK) state[f->size] = to;
    for (size_t k = 0; status == MF_OK && k < f->size; k++) status = fill_until_state(c, f, border, state, k);
    if (status == MF_OK) status = mf__nfa_empty(c->n, from, state[0]);
    free(border);
    free(state);
    return status;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static mf_status fill_schema(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    uint32_t rule;
    if (!f->schema) return mf__fail(c->err, MF_E_INVALID, "a form without its schema");
    MF__TRY(mf__schemas_rule(c->schemas, f->schema, &rule));
    return mf__nfa_call(c->n, from, rule, to);
}

static mf_status fill_sequence(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    for (size_t i = 0; i < f->n_parts; i++) {
        uint32_t next;
        MF__TRY(mf__nfa_state(c->n, &next));
        MF__TRY(fill(c, &f->parts[i], from, next));
        from = next;
    }
    return mf__nfa_empty(c->n, from, to);
}

static mf_status part_rule(form_ctx *c, const mf__form *f, uint32_t *rule) {
    MF__TRY(mf__nfa_rule(c->n, rule));
    nfa_rule r = c->n->rules[*rule];
    return fill(c, f, r.start, r.end);
}

static mf_status fill_repeat(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    uint32_t rule, part, loop, one;
    if (f->n_parts < 1 || f->n_parts > 2 || f->min < 0 || (f->max >= 0 && f->max < f->min))
        return mf__fail(c->err, MF_E_INVALID, "a repetition of %zu parts, %lld to %lld times", f->n_parts,
                        (long long)f->min, (long long)f->max);
    MF__TRY(part_rule(c, &f->parts[0], &part));
    MF__TRY(mf__nfa_rule(c->n, &rule));
    nfa_rule *r = &c->n->rules[rule];
    r->kind = MF__RULE_COUNTED;
    r->min = f->min;
    r->max = f->max;
    uint32_t start = r->start, end = r->end;
    MF__TRY(mf__nfa_state(c->n, &loop));
    MF__TRY(mf__nfa_state(c->n, &one));
    c->n->states[one].mark = MF__MARK_COUNT;
    if (f->min == 0) MF__TRY(mf__nfa_empty(c->n, start, end));
    MF__TRY(mf__nfa_empty(c->n, start, loop));
    MF__TRY(mf__nfa_call(c->n, loop, part, one));
    MF__TRY(mf__nfa_empty(c->n, one, end));
    MF__TRY(f->n_parts == 2 ? fill(c, &f->parts[1], one, loop) : mf__nfa_empty(c->n, one, loop));
    return mf__nfa_call(c->n, from, rule, to);
}

static mf_status fill_regex(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    mf__lang lang;
    MF__TRY(mf__lang_regex(f->text, f->size, (mf__lang_options){0}, &lang, c->err));
    mf_status status = mf__lang_fill(c->n, &lang, NFA_PLAIN, false, from, to);
    mf__lang_free(&lang);
    return status;
}

static mf_status fill_kind(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    switch (f->kind) {
    case MF__FORM_TEXT: return mf__nfa_text(c->n, from, f->text, f->size, to);
    case MF__FORM_REGEX: return fill_regex(c, f, from, to);
    case MF__FORM_SCHEMA: return fill_schema(c, f, from, to);
    case MF__FORM_UNTIL: return fill_until(c, f, from, to);
    case MF__FORM_SEQUENCE: return fill_sequence(c, f, from, to);
    case MF__FORM_CHOICE:
        for (size_t i = 0; i < f->n_parts; i++) MF__TRY(fill(c, &f->parts[i], from, to));
        return MF_OK;
    case MF__FORM_REPEAT: return fill_repeat(c, f, from, to);
    }
    return mf__fail(c->err, MF_E_INVALID, "a form of an unknown kind");
}

static mf_status fill(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    if (++c->depth > MAX_DEPTH) return mf__fail(c->err, MF_E_LIMIT, "forms nested deeper than %d", MAX_DEPTH);
    mf_status status = fill_kind(c, f, from, to);
    c->depth--;
    return status;
}

mf_status mf__grammar_from_form(const mf__form *form, mf__grammar **out, mf_error *err) {
    mf__nfa n;
    form_ctx c = {.n = &n, .err = err};
    *out = NULL;
    mf__nfa_init(&n, err);
    mf_status status = mf__schemas_create(&n, &(mf__schema_options){0}, &c.schemas, err);
    if (status == MF_OK) status = part_rule(&c, form, &n.root);
    if (status == MF_OK) status = mf__schemas_finish(c.schemas, out);
    mf__schemas_free(c.schemas);
    mf__nfa_deinit(&n);
    return status;
}
