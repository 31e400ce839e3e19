/* The built-in chat format, for models that carry no template of their own. */
#include "text/chat.h"

#include <string.h>

static mf_status check_text(const char *what, const char *text, size_t i, mf_error *err) {
    static const char *const markers[] = {"<|im_start|>", "<|im_end|>"};
    if (!text) return mf__fail(err, MF_E_INVALID, "message %zu has no %s", i, what);
    for (size_t k = 0; k < MF__COUNT(markers); k++)
        if (strstr(text, markers[k]))
            return mf__fail(err, MF_E_INVALID, "the %s of message %zu contains %s, which would end it early", what, i,
                            markers[k]);
    return MF_OK;
}

mf_status mf__chat_render(const mf__chat_message *messages, size_t n, bool add_generation_prompt, mf__strbuf *out,
                          mf_error *err) {
    for (size_t i = 0; i < n; i++) {
        MF__TRY(check_text("role", messages[i].role, i, err));
        MF__TRY(check_text("content", messages[i].content, i, err));
    }
    for (size_t i = 0; i < n; i++)
        MF__TRY(mf__strbuf_printf(out, err, "<|im_start|>%s\n%s<|im_end|>\n", messages[i].role, messages[i].content));
    return add_generation_prompt ? mf__strbuf_printf(out, err, "<|im_start|>assistant\n") : MF_OK;
}
