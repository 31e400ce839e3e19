/* Byte-level BPE, driven by a model's tokenizer.json. */
#ifndef MF_TEXT_TOKENIZER_H
#define MF_TEXT_TOKENIZER_H

#include "base/strbuf.h"

typedef struct mf__tokenizer mf__tokenizer;

#define MF__TOKENIZER_COMPILED "tokenizer.bin"

/* path: a tokenizer.json, a compiled tokenizer, or a directory that has either (the compiled one is taken when it was
 * made from the tokenizer.json beside it). */
mf_status mf__tokenizer_open(const char *path, mf__tokenizer **out, mf_error *err);
/* From memory; name is for errors. */
mf_status mf__tokenizer_parse(const char *name, const char *json, size_t size, mf__tokenizer **out, mf_error *err);
/* Writes the compiled form, which opens in milliseconds and encodes exactly as tok does. */
mf_status mf__tokenizer_compile(const mf__tokenizer *tok, const char *path, mf_error *err);
void mf__tokenizer_free(mf__tokenizer *tok); /* NULL is fine */

int32_t mf__tokenizer_n_vocab(const mf__tokenizer *tok);              /* highest id + 1 */
int32_t mf__tokenizer_id(const mf__tokenizer *tok, const char *text); /* of an added token; -1 when there is none */

/* Encodes text (valid UTF-8, else MF_E_INVALID with the offset). special: added tokens in the text become their ids;
 * false: they are ordinary text. *ids is malloc'd. Safe to call from several threads. */
mf_status mf__tokenizer_encode(const mf__tokenizer *tok, const char *text, size_t size, bool special, int32_t **ids,
                               size_t *n_ids, mf_error *err);

/* The same with special, for a text with fences in it (fence.h; three bytes): no marker reaches across one, and all
 * else is as if they were not there. */
mf_status mf__tokenizer_encode_fenced(const mf__tokenizer *tok, const char *text, size_t size, const char *fence,
                                      int32_t **ids, size_t *n_ids, mf_error *err);

/* The raw bytes of one token (added tokens literally); *n 0 for an id without a token. Borrowed. */
const char *mf__tokenizer_bytes(const mf__tokenizer *tok, int32_t id, size_t *n);

/* Streaming: text that is decided comes out, an unfinished UTF-8 sequence is held back; what can no longer become valid
 * gives U+FFFD, one per maximal subpart. */
typedef struct mf__detok {
    const mf__tokenizer *tok;
    uint8_t held[4];
    int n_held;
} mf__detok;

void mf__detok_init(mf__detok *d, const mf__tokenizer *tok);

mf_status mf__detok_push(mf__detok *d, int32_t id, mf__strbuf *out, mf_error *err);
mf_status mf__detok_bytes(mf__detok *d, const char *bytes, size_t n, mf__strbuf *out, mf_error *err);
mf_status mf__detok_flush(mf__detok *d, mf__strbuf *out, mf_error *err);

#endif
