/* Sets of strings, as deterministic automata over characters: what patterns, lengths and names say about a string, in a
 * form that can be intersected and turned around. State 0 is the dead one; a state's label is 0 where no string of the
 * set ends. */
#ifndef MF_TEXT_GRAMMAR_LANG_H
#define MF_TEXT_GRAMMAR_LANG_H

#include "text/grammar/nfa.h"

#define MF__LANG_MAX_STATES 20000u

typedef struct mf__lang {
    uint32_t n_states, n_classes, n_cuts, start;
    uint32_t *cuts;  /* [n_cuts], ascending from 0: where runs of characters begin ... */
    uint32_t *class; /* ... and their classes: characters of one class lead to the same */
    uint32_t *to;    /* [n_states][n_classes] */
    uint32_t *label; /* [n_states] */
} mf__lang;

void mf__lang_free(mf__lang *l); /* the parts; zero-initialise */
mf_status mf__lang_make(mf__lang *l, uint32_t n_states, uint32_t n_classes, uint32_t n_cuts, mf_error *err);

/* regex.c. search: it may match anywhere in the string, as JSON Schema's pattern does (else the whole). wide: \d, \w
 * and \s are all that any engine takes them for, else what all do: what must match is narrow, what must not is wide.
 * min, max (NULL: all is said by the set): a large count such as that of ^[a-z]{1,65535}$ becomes lengths that the
 * strings must have, too; 0 and -1 where there are none. */
typedef struct mf__lang_options {
    bool search, wide;
    int64_t *min, *max;
} mf__lang_options;
mf_status mf__lang_regex(const char *pattern, size_t size, mf__lang_options o, mf__lang *out, mf_error *err);

mf_status mf__lang_any(mf__lang *out, mf_error *err);
typedef struct mf__text_span {
    const char *s;
    size_t size;
} mf__text_span;
mf_status mf__lang_texts(const mf__text_span *texts, size_t n, mf__lang *out, mf_error *err);
mf_status mf__lang_lengths(int64_t min, int64_t max, mf__lang *out, mf_error *err); /* max < 0: no limit */
typedef enum mf__lang_op { MF__LANG_AND, MF__LANG_AND_NOT, MF__LANG_OR, MF__LANG_PAIR } mf__lang_op;
/* PAIR: the label of a in bits 0 to shift - 1, that of b above. */
mf_status mf__lang_combine(const mf__lang *a, const mf__lang *b, mf__lang_op op, int shift, mf__lang *out,
                           mf_error *err);
mf_status mf__lang_restrict(mf__lang *a, const mf__lang *b, mf__lang_op op, mf_error *err); /* a becomes the result */
mf_status mf__lang_minimise(mf__lang *l, mf_error *err);
uint32_t mf__lang_label(const mf__lang *l, const char *text, size_t size);
uint32_t mf__lang_next(const mf__lang *l, uint32_t state, uint32_t c);

/* For each state that s leads to, the characters that do (but U+0000). */
typedef mf_status mf__lang_target_fn(void *user, uint32_t to, mf__uset *set);
mf_status mf__lang_targets(const mf__lang *l, uint32_t s, mf__lang_target_fn *fn, void *user, mf_error *err);

/* The strings of every length that is between the least and the most have no gaps, from any state: then a counter can
 * stand for copies of the states. */
bool mf__lang_gapless(const mf__lang *l);

/* The strings from one state to another. counted: each character counts (nfa_rule.min and max). */
mf_status mf__lang_fill(mf__nfa *n, const mf__lang *l, nfa_form form, bool counted, uint32_t from, uint32_t to);

#endif
