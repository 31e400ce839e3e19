/* Forms and constraints for the public header: grammars (src/text/grammar) with an owner count. */
#include "reply/form.h"

#include <stdlib.h>
#include <string.h>

/* ---- forms ------------------------------------------------------------------------------------------------------ */

mf_status mf__form_of_grammar(mf__grammar *grammar, mf_form **out, mf_error *err) {
    mf_form *f = *out = calloc(1, sizeof *f);
    if (!f) {
        mf__grammar_free(grammar);
        return mf__fail(err, MF_E_NOMEM, "no memory for a form");
    }
    atomic_init(&f->owners, 1);
    f->grammar = grammar;
    return MF_OK;
}

static mf_status from_schema(const char *source, size_t size, mf__grammar **out, mf_error *err) {
    json_t *schema;
    json_error_t why;
    schema = json_loadb(source, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!schema)
        return mf__fail(err, MF_E_FORMAT, "the schema is not JSON: %s (line %d, column %d)", why.text, why.line,
                        why.column);
    mf_status st = mf__grammar_from_schema(schema, out, err);
    json_decref(schema);
    return st;
}

static mf_status make_grammar(mf_form_kind kind, const char *source, size_t size, mf__grammar **out, mf_error *err) {
    static const char object[] = "{\"type\":\"object\"}";
    switch (kind) {
    case MF_FORM_JSON: return mf__grammar_any_json(out, err);
    case MF_FORM_JSON_OBJECT: return from_schema(object, sizeof object - 1, out, err);
    case MF_FORM_SCHEMA: return from_schema(source, size, out, err);
    case MF_FORM_REGEX: return mf__grammar_from_regex(source, size, out, err);
    case MF_FORM_GRAMMAR: return mf__grammar_from_rules(source, size, out, err);
    }
    return mf__fail(err, MF_E_INVALID, "mf_form_create: there is no form of kind %d", (int)kind);
}

mf_status mf_form_create(mf_form_kind kind, const char *source, size_t size, mf_form **out, mf_error *err) {
    mf__grammar *grammar = NULL;
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_form_create: out is NULL");
    *out = NULL;
    if (!source && size) return mf__fail(err, MF_E_INVALID, "mf_form_create: source is NULL");
    if (size > MF__MAX_BYTES) return mf__fail(err, MF_E_INVALID, "mf_form_create: a source of %zu bytes", size);
    MF__TRY(make_grammar(kind, source ? source : "", size, &grammar, err));
    return mf__form_of_grammar(grammar, out, err);
}

const mf_form *mf__form_keep(const mf_form *form) {
    if (form) atomic_fetch_add(&((mf_form *)form)->owners, 1);
    return form;
}

void mf_form_free(mf_form *form) {
    if (!form || atomic_fetch_sub(&form->owners, 1) != 1) return;
    mf__grammar_free(form->grammar);
    free(form);
}

/* ---- constraints ------------------------------------------------------------------------------------------------ */

mf_status mf__constraint_of(const mf_form *form, const mf__token_trie *trie, int32_t n_vocab, const int32_t *eos,
                            int n_eos, mf_constraint **out, mf_error *err) {
    mf_constraint *c = *out = calloc(1, sizeof *c);
    if (!c) return mf__fail(err, MF_E_NOMEM, "no memory for a constraint");
    mf_status st = mf__constraint_create(form->grammar, trie, n_vocab, eos, n_eos, &c->inner, err);
    if (st == MF_OK) {
        c->form = mf__form_keep(form);
    } else {
        free(c);
        *out = NULL;
    }
    return st;
}

mf_status mf_constraint_create(const mf_form *form, const mf_text *text, int32_t n_vocab, const int32_t *eos, int n_eos,
                               mf_constraint **out, mf_error *err) {
    const mf__token_trie *trie;
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_constraint_create: out is NULL");
    *out = NULL;
    if (!form || !text || n_vocab <= 0 || n_eos < 0 || (n_eos && !eos))
        return mf__fail(err, MF_E_INVALID, "mf_constraint_create: an argument is NULL or negative");
    MF__TRY(mf__text_trie(text, &trie, err));
    return mf__constraint_of(form, trie, n_vocab, eos, n_eos, out, err);
}

void mf_constraint_free(mf_constraint *c) {
    if (!c) return;
    mf__constraint_free(c->inner);
    mf_form_free((mf_form *)c->form);
    free(c);
}

void mf_constraint_reset(mf_constraint *c) {
    if (c) mf__constraint_reset(c->inner);
}

mf_status mf_constraint_mask(mf_constraint *c, const uint32_t **mask, mf_error *err) {
    if (!c || !mask) return mf__fail(err, MF_E_INVALID, "mf_constraint_mask: an argument is NULL");
    return mf__constraint_mask(c->inner, mask, err);
}

mf_status mf_constraint_accept(mf_constraint *c, int32_t token, mf_error *err) {
    if (!c) return mf__fail(err, MF_E_INVALID, "mf_constraint_accept: constraint is NULL");
    return mf__constraint_accept(c->inner, token, err);
}

bool mf_constraint_complete(const mf_constraint *c) {
    return c && mf__constraint_complete(c->inner);
}

bool mf_constraint_ended(const mf_constraint *c) {
    return c && mf__constraint_ended(c->inner);
}

mf_status mf_constraint_shortest(mf_constraint *c, char *utf8, size_t max, size_t *n, mf_error *err) {
    mf__strbuf text = {0};
    if (!c || !n || (max && !utf8)) return mf__fail(err, MF_E_INVALID, "mf_constraint_shortest: an argument is NULL");
    mf_status st = mf__constraint_shortest(c->inner, &text, err);
    if (st == MF_OK) {
        *n = text.size;
        if (text.size && max) memcpy(utf8, text.data, text.size < max ? text.size : max);
    }
    mf__strbuf_free(&text);
    return st;
}
