/* The tokens of the latest answers with their prompts. A model may spell a text with other tokens than the tokenizer
 * does: when a conversation goes on, its prompt is given the tokens that were said, so that the state behind them fits.
 */
#ifndef MOEFLUX_HISTORY_H
#define MOEFLUX_HISTORY_H

#include <stddef.h>
#include <stdint.h>

typedef struct history history;

history *history_create(size_t max_tokens); /* of all entries; NULL: no memory */
void history_free(history *h);              /* NULL is fine, here and below */

/* Any thread. n_prompt of the n tokens were the prompt. What does not fit is forgotten, the oldest first. */
void history_add(history *h, const int32_t *ids, size_t n_prompt, size_t n);

/* The tokens of an entry whose prompt is the beginning of ids and whose answer is not: malloc'd; NULL: there is none.
 */
int32_t *history_find(history *h, const int32_t *ids, size_t n, size_t *n_found);

#endif
