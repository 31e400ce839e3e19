/* Markers in what people write are ordinary text.
 *
 * A string of a request may hold a marker, say in a question about <|im_end|>, or half of one that a template
 * completes. Before a template sees it, a noncharacter (the fence) is put into every marker, and at the string's ends
 * where a marker could be completed there. The rendered text goes to mf__tokenizer_encode_fenced, where no marker
 * reaches across a fence, and fences vanish before the text is split: the tokens are those of the text without them. */
#ifndef MF_TEXT_FENCE_H
#define MF_TEXT_FENCE_H

#include "base/json.h"
#include "text/tokenizer.h"

#define MF__FENCE_BYTES 3

#define MF__MAX_PLACES 16

typedef struct mf__fence {
    char fence[MF__FENCE_BYTES + 1];                  /* UTF-8 */
    char places[MF__MAX_PLACES][MF__FENCE_BYTES + 1]; /* for who wants to find a place again in the rendered text */
    int n_places;
} mf__fence;

/* Noncharacters that no string of the value has; MF_E_INVALID where too few are left. */
mf_status mf__fence_choose(const json_t *value, int n_places, mf__fence *out, mf_error *err);
/* -1: s (three bytes) is the fence; 0, 1, ...: that place; else -2. */
int mf__fence_is(const mf__fence *f, const char *s);

/* What is known about a tokenizer's markers; the tokenizer must outlive it. Immutable. */
typedef struct mf__fencer mf__fencer;
mf_status mf__fencer_create(const mf__tokenizer *tok, mf__fencer **out, mf_error *err);
void mf__fencer_free(mf__fencer *f); /* NULL is fine */

/* A copy of the value with fences in all its strings and keys. reasoning: in the content of an assistant's message,
 * reasoning that stands in front keeps its <think> and </think>, since the template looks for them. */
mf_status mf__fence_value(const mf__fencer *fencer, const mf__fence *f, bool reasoning, const json_t *value,
                          json_t **out, mf_error *err);

#endif
