/* Any bytes as text. What is not UTF-8 is refused; the rest comes back as it was from its tokens, in pieces of whole
 * characters; compiled, a tokenizer says the same. The bytes as token ids give UTF-8, whatever they are. The first byte
 * chooses the tokenizer. */
#include <stdlib.h>
#include <string.h>

#include "../unit/text/make_tokenizer.h"
#include "base/json.h"
#include "text/tokenizer_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define SPLIT(pattern)                                                                                                 \
    "{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":\"" pattern "\"}},"
#define STEPS(splits)                                                                                                  \
    "{\"type\":\"Sequence\",\"pretokenizers\":[" splits                                                                \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}"
#define WORDS(marks, digits)                                                                                           \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{L}" marks "]+|\\\\p{N}" digits                  \
    "| ?[^\\\\s\\\\p{L}" marks "\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"

static const struct {
    const char *pre;
    bool nfc;
} kinds[] = {
    {STEPS(SPLIT(WORDS("", ""))), true},
    {STEPS(SPLIT(WORDS("\\\\p{M}", "{1,3}"))), false},
    {STEPS(SPLIT("\\\\p{N}{1,3}") SPLIT("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+")
               SPLIT("[!-/:-~][A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?[\\\\p{L}\\\\p{M}]+| "
                     "?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+")),
     false},
    {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}", false},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

static const mf__tokenizer *tokenizer(size_t kind, bool compiled) {
    static mf__tokenizer *made[N_KINDS][2];
    if (made[kind][0]) return made[kind][compiled];
    mf__strbuf json = {0}, bytes = {0};
    mf_error err;
    make_tokenizer(&(make_options){.merges = "a a\naa aa\nt h\nth e\n\u0120 the\n\u00c3 \u00a9\ne \u00cc\n1 2\n12 3",
                                   .pre = kinds[kind].pre,
                                   .normalizer = kinds[kind].nfc ? "{\"type\":\"NFC\"}" : NULL,
                                   .added = "[{\"id\":300,\"content\":\"<|end|>\",\"special\":true},"
                                            "{\"id\":301,\"content\":\"\u00e9\u00e9\",\"special\":false}]"},
                   &json);
    if (mf__tokenizer_parse("fuzz", json.data, json.size, &made[kind][0], &err) != MF_OK) abort();
    if (mf__tokenizer_write(made[kind][0], &bytes, &err) != MF_OK) abort();
    if (mf__tokenizer_read("fuzz", (const uint8_t *)bytes.data, bytes.size, &made[kind][1], &err) != MF_OK) abort();
    mf__strbuf_free(&json);
    mf__strbuf_free(&bytes);
    return made[kind][compiled];
}

static bool is_utf8(const char *text, size_t size) { /* another opinion than the tokenizer's own */
    json_t *string = json_stringn(text, size);
    json_decref(string);
    return string != NULL;
}

/* The text of the ids; every piece must be whole characters. */
static mf__strbuf decode(const mf__tokenizer *tok, const int32_t *ids, size_t n) {
    mf__detok d;
    mf__strbuf out = {0};
    mf_error err;
    mf__detok_init(&d, tok);
    for (size_t i = 0; i <= n; i++) {
        size_t before = out.size;
        if (i < n ? mf__detok_push(&d, ids[i], &out, &err) : mf__detok_flush(&d, &out, &err)) abort();
        if (out.size > before && !is_utf8(out.data + before, out.size - before)) abort();
    }
    return out;
}

static void round_trip(size_t kind, bool special, const char *text, size_t size) {
    int32_t *ids, *again;
    size_t n, n_again;
    mf_error err;
    bool valid = is_utf8(text, size);
    mf_status status = mf__tokenizer_encode(tokenizer(kind, false), text, size, special, &ids, &n, &err);
    if (status != (valid ? MF_OK : MF_E_INVALID)) abort();
    if (!valid) return;
    if (mf__tokenizer_encode(tokenizer(kind, true), text, size, special, &again, &n_again, &err) != MF_OK) abort();
    if (n != n_again || (n && memcmp(ids, again, n * sizeof *ids) != 0)) abort();
    free(again);
    mf__strbuf back = decode(tokenizer(kind, false), ids, n);
    if (!kinds[kind].nfc && (back.size != size || (size && memcmp(back.data, text, size) != 0))) abort();
    if (kinds[kind].nfc) { /* normal already: encoding what came back changes nothing */
        if (mf__tokenizer_encode(tokenizer(kind, false), back.data, back.size, false, &again, &n_again, &err)) abort();
        mf__strbuf same = decode(tokenizer(kind, false), again, n_again);
        if (same.size != back.size || (same.size && memcmp(same.data, back.data, same.size) != 0)) abort();
        mf__strbuf_free(&same);
        free(again);
    }
    mf__strbuf_free(&back);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    size_t kind = data[0] % N_KINDS;
    for (int special = 0; special < 2; special++) round_trip(kind, special, (const char *)data + 1, size - 1);
    int32_t *ids = malloc(size * sizeof *ids);
    if (!ids) return 0;
    for (size_t i = 0; i < size; i++) ids[i] = (int32_t)data[i] + (i % 8 == 7 ? 60 : 0); /* some are no tokens */
    mf__strbuf text = decode(tokenizer(kind, false), ids, size);
    mf__strbuf_free(&text);
    free(ids);
    return 0;
}
