/* A hostile tokenizer.json, and any text given to it. The input is the JSON, a NUL, and the text. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n_json = zero ? (size_t)(zero - data) : size;
    const char *text = zero ? (const char *)zero + 1 : "some Text 123 \xC3\xA9";
    size_t n_text = zero ? size - n_json - 1 : strlen(text);
    mf__tokenizer *tok;
    mf_error err;
    if (mf__tokenizer_parse("fuzz", (const char *)data, n_json, &tok, &err) != MF_OK) return 0;
    for (int special = 0; special < 2; special++) {
        int32_t *ids;
        size_t n;
        if (mf__tokenizer_encode(tok, text, n_text, special, &ids, &n, &err) != MF_OK) continue;
        mf__detok d;
        mf__strbuf out = {0};
        mf__detok_init(&d, tok);
        for (size_t i = 0; i < n; i++)
            mf__detok_push(&d, ids[i], &out, &err);
        mf__detok_flush(&d, &out, &err);
        mf__strbuf_free(&out);
        free(ids);
    }
    mf__tokenizer_free(tok);
    return 0;
}
