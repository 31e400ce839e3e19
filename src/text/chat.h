/* From messages to the text a model was trained to continue. */
#ifndef MF_TEXT_CHAT_H
#define MF_TEXT_CHAT_H

#include "base/strbuf.h"

typedef struct mf__chat_message {
    const char *role; /* "system", "user", "assistant", ... */
    const char *content;
} mf__chat_message;

/* Appends the messages in the form <|im_start|>role\ncontent<|im_end|>\n and, if asked, the opening of the answer.
 * Refuses roles and contents that hold the markers themselves: they would end the message early. */
mf_status mf__chat_render(const mf__chat_message *messages, size_t n, bool add_generation_prompt, mf__strbuf *out,
                          mf_error *err);

#endif
