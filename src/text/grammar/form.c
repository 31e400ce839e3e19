/* Forms to rules: texts, schemas and raw values put together. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/schema.h"

#define MAX_DEPTH 32
#define MAX_REPEAT 1000

typedef struct form_ctx {
    schema_ctx schemas;
    mf__grammar *g;
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
            status = nfa_bytes(c->g, state[k], (uint8_t)b, (uint8_t)b, state[after_byte(f->text, border, k, (char)b)],
                               c->err);
    }
    if (status == MF_OK) status = mf__uset_invert(&rest, c->err);
    if (status == MF_OK) status = nfa_chars(c->g, state[k], &rest, false, state[0], c->err);
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
    for (size_t k = 0; status == MF_OK && k < f->size; k++) status = nfa_state_add(c->g, &state[k], c->err);
    if (status == MF_OK) state[f->size] = to;
    for (size_t k = 0; status == MF_OK && k < f->size; k++) status = fill_until_state(c, f, border, state, k);
    if (status == MF_OK) status = nfa_empty(c->g, from, state[0], c->err);
    free(border);
    free(state);
    return status;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

static mf_status fill_schema(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    uint32_t rule;
    if (!f->schema) return mf__fail(c->err, MF_E_INVALID, "a form without its schema");
    MF__TRY(schema_root(&c->schemas, f->schema, &rule));
    return nfa_call(c->g, from, rule, to, c->err);
}

static mf_status fill_sequence(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    for (size_t i = 0; i < f->n_parts; i++) {
        uint32_t next;
        MF__TRY(nfa_state_add(c->g, &next, c->err));
        MF__TRY(fill(c, &f->parts[i], from, next));
        from = next;
    }
    return nfa_empty(c->g, from, to, c->err);
}

static mf_status part_rule(form_ctx *c, const mf__form *f, uint32_t *rule) {
    MF__TRY(nfa_rule_add(c->g, rule, c->err));
    nfa_rule r = c->g->rules[*rule];
    return fill(c, f, r.start, r.end);
}

static mf_status fill_repeat(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    uint32_t part, between = 0, at = from, next;
    if (f->n_parts < 1 || f->n_parts > 2 || f->min < 0 || (f->max >= 0 && f->max < f->min))
        return mf__fail(c->err, MF_E_INVALID, "a repetition of %zu parts, %lld to %lld times", f->n_parts,
                        (long long)f->min, (long long)f->max);
    if (f->min > MAX_REPEAT || f->max > MAX_REPEAT)
        return mf__fail(c->err, MF_E_LIMIT, "a form repeated more than %d times", MAX_REPEAT);
    MF__TRY(part_rule(c, &f->parts[0], &part));
    if (f->n_parts == 2) MF__TRY(part_rule(c, &f->parts[1], &between));
    if (f->min == 0) MF__TRY(nfa_empty(c->g, from, to, c->err));
    for (int64_t i = 1; f->max < 0 || i <= f->max; i++) { /* at: before part i, behind what separates it */
        uint32_t before;
        MF__TRY(nfa_state_add(c->g, &before, c->err));
        MF__TRY(nfa_empty(c->g, at, before, c->err));
        MF__TRY(nfa_state_add(c->g, &next, c->err));
        MF__TRY(nfa_call(c->g, before, part, next, c->err));
        if (i >= f->min) MF__TRY(nfa_empty(c->g, next, to, c->err));
        bool again = f->max < 0 && i >= f->min;
        if (!again) MF__TRY(nfa_state_add(c->g, &at, c->err));
        uint32_t then = again ? before : at;
        MF__TRY(f->n_parts == 2 ? nfa_call(c->g, next, between, then, c->err) : nfa_empty(c->g, next, then, c->err));
        if (again) return MF_OK;
    }
    return MF_OK;
}

static mf_status fill_kind(form_ctx *c, const mf__form *f, uint32_t from, uint32_t to) {
    switch (f->kind) {
    case MF__FORM_TEXT: return nfa_text(c->g, from, f->text, f->size, to, c->err);
    case MF__FORM_REGEX:
        return nfa_regex_add(c->g, from, &(nfa_regex){.pattern = f->text, .size = f->size, .max = -1}, to, c->err);
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
    form_ctx c = {.schemas = {.made = json_array(), .err = err}, .err = err};
    *out = NULL;
    mf_status status = c.schemas.made ? nfa_create(&c.g, err) : mf__fail(err, MF_E_NOMEM, "no memory for a form");
    c.schemas.g = c.g;
    if (status == MF_OK) status = schema_common(&c.schemas);
    if (status == MF_OK) status = part_rule(&c, form, &c.g->root);
    if (status == MF_OK) status = nfa_finish(c.g, err);
    free(c.schemas.memo);
    json_decref(c.schemas.made);
    if (status != MF_OK) return mf__grammar_free(c.g), status;
    *out = c.g;
    return MF_OK;
}
