/* Constrained output: what a model may say next, so that the whole is valid whatever it wants to say.
 *
 *   JSON Schema, "any JSON", a regular expression, rules or a form
 *     --> automata over bytes that call each other               mf__grammar, immutable, shareable
 *     --> where a text is in them: a graph-structured stack       mf__constraint, one per answer
 *     --> one bit per token, most of it cached                    mf__constraint_mask
 *
 * Every text that can be begun can be finished: what leads nowhere is removed when a grammar is made. What would be too
 * large is MF_E_LIMIT then. A text that is ambiguous or nested beyond all measure (machine.c has the numbers) is
 * MF_E_LIMIT while it is said; masks and the sets of an object's keys are made as a text needs them, and kept. */
#ifndef MF_TEXT_GRAMMAR_GRAMMAR_H
#define MF_TEXT_GRAMMAR_GRAMMAR_H

#include "base/json.h"
#include "base/strbuf.h"
#include "text/tokenizer.h"

typedef struct mf__grammar mf__grammar;

/* JSON Schema, drafts 4 to 2020-12. All keywords but those that would need the values said before (uniqueItems but of a
 * few listed values), some inside "not" and in alternatives of "oneOf" that overlap, and $ref out of the schema: these
 * are MF_E_UNSUPPORTED, by a sentence with the keyword and its place. Members of objects come in any order (but see
 * mf__constraint_order), each declared one once. Formats that are not known are noted (mf__grammar_notes), or refused
 * by the strict form. Unknown keywords are annotations. */
mf_status mf__grammar_from_schema(const json_t *schema, mf__grammar **out, mf_error *err);
mf_status mf__grammar_from_schema_strict(const json_t *schema, mf__grammar **out, mf_error *err);
mf_status mf__grammar_any_json(mf__grammar **out, mf_error *err); /* an object or array */
mf_status mf__grammar_from_regex(const char *pattern, size_t size, mf__grammar **out, mf_error *err); /* whole text */

/* Rules "name ::= ...", the first tried is root: "text", [a-z], name, (...), x|y, x? x* x+ x{m,n}, # comments. */
mf_status mf__grammar_from_rules(const char *text, size_t size, mf__grammar **out, mf_error *err);

/* A form: texts around schemas, such as the call of a tool as a family of models writes it. Forms and what they point
 * to are read during the call alone. */
typedef enum mf__form_kind {
    MF__FORM_TEXT,     /* exactly `text` */
    MF__FORM_REGEX,    /* what the pattern `text` matches as a whole */
    MF__FORM_SCHEMA,   /* JSON that is valid by `schema`; $ref "#" is this schema */
    MF__FORM_UNTIL,    /* any text that ends with the first `text` in it: raw values up to their closing tag */
    MF__FORM_SEQUENCE, /* parts one behind the other; none: the empty text */
    MF__FORM_CHOICE,   /* one of the parts */
    MF__FORM_REPEAT,   /* parts[0], min to max times (max < 0: no limit); parts[1], if there is one, in between */
} mf__form_kind;

typedef struct mf__form {
    mf__form_kind kind;
    const char *text;
    size_t size;
    const json_t *schema;
    const struct mf__form *parts;
    size_t n_parts;
    int64_t min, max;
} mf__form;
mf_status mf__grammar_from_form(const mf__form *form, mf__grammar **out, mf_error *err);
void mf__grammar_free(mf__grammar *g);               /* NULL is fine */
const char *mf__grammar_notes(const mf__grammar *g); /* what of a schema is not enforced, a line each; "": nothing */
uint32_t mf__grammar_states(const mf__grammar *g);   /* its size */

/* Tries a grammar on a whole text: is it accepted? *at: how many bytes of it are a beginning of an accepted one. */
mf_status mf__grammar_accepts(const mf__grammar *g, const char *text, size_t size, bool *accepted, size_t *at,
                              mf_error *err);
/* Appends a random text that the grammar accepts. Not evenly distributed; the same for the same seed. */
mf_status mf__grammar_example(const mf__grammar *g, uint64_t seed, mf__strbuf *out, mf_error *err);

/* The tokens of a tokenizer by their bytes; added tokens are not among them. Immutable, shareable. */
typedef struct mf__token_trie mf__token_trie;
mf_status mf__token_trie_create(const mf__tokenizer *tok, mf__token_trie **out, mf_error *err);
/* With these added tokens, too: markers that a form has in its texts. */
mf_status mf__token_trie_create_with(const mf__tokenizer *tok, const int32_t *markers, size_t n, mf__token_trie **out,
                                     mf_error *err);
void mf__token_trie_free(mf__token_trie *trie);

typedef struct mf__constraint mf__constraint;

/* The grammar and the trie must outlive the constraint. n_vocab: length of a row of logits. eos: tokens that end the
 * answer; they are allowed exactly when the text so far is complete. */
mf_status mf__constraint_create(const mf__grammar *g, const mf__token_trie *trie, int32_t n_vocab, const int32_t *eos,
                                int n_eos, mf__constraint **out, mf_error *err);
void mf__constraint_free(mf__constraint *c);
void mf__constraint_reset(mf__constraint *c); /* to the beginning of the text */
/* From here on members of objects come in the schema's order. A required one comes
 * before all that the schema declares behind it; an optional one may be left out and still come later, so that nothing
 * that can be said in any order is lost. Those that are not declared come behind all required ones. */
void mf__constraint_order(mf__constraint *c);

/* The tokens that may come next: bit id % 32 of word id / 32. Valid until the next call on c. */
mf_status mf__constraint_mask(mf__constraint *c, const uint32_t **mask, mf_error *err);
/* Goes on by one token; MF_E_INVALID, with nothing changed, for one that may not come. */
mf_status mf__constraint_accept(mf__constraint *c, int32_t token, mf_error *err);
bool mf__constraint_complete(const mf__constraint *c); /* the text so far is valid as a whole */
bool mf__constraint_ended(const mf__constraint *c);    /* an eos token was accepted, or nothing can follow */

/* The same as accept for an answer that may have `left` more tokens behind this one: MF_E_LIMIT, with nothing changed,
 * where the shortest end has more bytes than that (every byte is a token). */
mf_status mf__constraint_accept_within(mf__constraint *c, int32_t token, uint64_t left, mf_error *err);

/* The shortest text to the end behind `token` (-1: from here) as tokens, each the longest that fits: how many, and the
 * first of them (-1: none is needed). *n is limit + 1 where there are more than `limit`. */
mf_status mf__constraint_way(mf__constraint *c, int32_t token, uint64_t limit, uint64_t *n, int32_t *first,
                             mf_error *err);

/* Appends the shortest text that completes what was said so far: for answers that run out of tokens. */
mf_status mf__constraint_shortest(mf__constraint *c, mf__strbuf *out, mf_error *err);

#endif
