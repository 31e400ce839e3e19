/* A hostile tokenizer.json, and any text given to it. The input is the JSON, a NUL, and the text; or, beginning with
 * its magic, a hostile compiled tokenizer, whose checksum is put right here. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const mf__tokenizer *tok, const char *text, size_t n_text) {
    mf_error err;
    for (int special = 0; special < 2; special++) {
        int32_t *ids;
        size_t n;
        if (mf__tokenizer_encode(tok, text, n_text, special, &ids, &n, &err) != MF_OK) continue;
        mf__detok d;
        mf__strbuf out = {0};
        mf__detok_init(&d, tok);
        for (size_t i = 0; i < n; i++) mf__detok_push(&d, ids[i], &out, &err);
        mf__detok_flush(&d, &out, &err);
        mf__strbuf_free(&out);
        free(ids);
    }
}

static mf_status open_compiled(const uint8_t *data, size_t size, mf__tokenizer **tok, mf_error *err) {
    uint8_t *copy = malloc(size);
    if (!copy) return MF_E_NOMEM;
    memcpy(copy, data, size);
    uint64_t sum = mf__tokenizer_checksum(copy, size);
    for (int i = 0; i < 8; i++) copy[8 + i] = (uint8_t)(sum >> 8 * i);
    mf_status status = mf__tokenizer_read("fuzz", copy, size, tok, err);
    free(copy);
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char some[] = "some Text 123 \xC3\xA9<|x|>";
    mf__tokenizer *tok;
    mf_error err;
    if (mf__tokenizer_magic(data, size)) {
        if (open_compiled(data, size, &tok, &err) != MF_OK) return 0;
        use(tok, some, sizeof some - 1);
    } else {
        const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
        size_t n_json = zero ? (size_t)(zero - data) : size;
        if (mf__tokenizer_parse("fuzz", (const char *)data, n_json, &tok, &err) != MF_OK) return 0;
        use(tok, zero ? (const char *)zero + 1 : some, zero ? size - n_json - 1 : sizeof some - 1);
    }
    mf__tokenizer_free(tok);
    return 0;
}
