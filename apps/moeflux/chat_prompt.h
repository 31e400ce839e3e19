/* A conversation as a prompt: the tokens, and the places where states are worth keeping.
 *
 * Markers such as <|im_end|> in what people write are ordinary text: they cannot end a message early. */
#ifndef MOEFLUX_CHAT_PROMPT_H
#define MOEFLUX_CHAT_PROMPT_H

#include "text/chat.h"

#define CHAT_MAX_MARKS 8

typedef struct chat_prompt {
    int32_t *ids;
    size_t n_ids;
    int64_t marks[CHAT_MAX_MARKS]; /* ends of the system prompt and of the latest turns, and the end; rising */
    size_t n_marks;
    bool in_reasoning; /* the text ends inside <think> */
} chat_prompt;

/* known: the tokens of an earlier prompt with the model's answer. Where their text is the beginning of this one they
 * are taken as they are, since a model may spell a text with other tokens than the tokenizer does. May be NULL. */
mf_status chat_prompt_make(const mf__chat *f, const mf__tokenizer *tok, const mf__chat_request *r, const int32_t *known,
                           size_t n_known, chat_prompt *out, mf_error *err);
void chat_prompt_free(chat_prompt *p);

#endif
