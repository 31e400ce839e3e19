/* A form with its owners counted: constraints and replies keep the grammar they were made with. */
#ifndef MF_REPLY_FORM_H
#define MF_REPLY_FORM_H

#include <stdatomic.h>

#include "text/text.h"

struct mf_form {
    atomic_int owners;
    mf__grammar *grammar;
};

/* Takes the grammar over, also when it fails. */
mf_status mf__form_of_grammar(mf__grammar *grammar, mf_form **out, mf_error *err);
const mf_form *mf__form_keep(const mf_form *form); /* one more owner; NULL is fine */

/* A constraint over any of the text's tries. */
mf_status mf__constraint_of(const mf_form *form, const mf__token_trie *trie, int32_t n_vocab, const int32_t *eos,
                            int n_eos, mf_constraint **out, mf_error *err);

/* The grammar's constraint inside a public one. */
struct mf_constraint {
    const mf_form *form;
    mf__constraint *inner;
};

#endif
