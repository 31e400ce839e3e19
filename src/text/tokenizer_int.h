/* What the tokenizer's own files share: encoding (tokenizer.c), loading (tokenizer_load.c), compiled files
 * (tokenizer_file.c). */
#ifndef MF_TEXT_TOKENIZER_INT_H
#define MF_TEXT_TOKENIZER_INT_H

#include "text/bpe.h"
#include "text/splitter.h"
#include "text/tokenizer.h"

#define MF__TOKENIZER_MAX_IDS (1 << 22) /* larger ids are taken for damage */
#define MF__ADDED_MAX_BYTES 1024

typedef struct mf__added_token {
    const char *text; /* as it appears in what is matched: normalized when that flag is set */
    uint32_t size;
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
} mf__added_token;

/* Tokens sorted by their bytes: matching narrows a range of them byte by byte. */
typedef struct mf__added_set {
    mf__added_token *tokens;
    size_t n;
    bool first[256]; /* bytes that some token begins with */
} mf__added_set;

struct mf__tokenizer {
    char *name;           /* the file, for errors */
    uint64_t source_size; /* bytes of the tokenizer.json it came from */
    int32_t n_vocab;
    uint32_t *offsets; /* n_vocab + 1: token id's bytes are bytes[offsets[id] .. offsets[id + 1]) */
    char *bytes;
    int32_t byte_ids[256]; /* the token of a single byte; -1: none */
    int32_t unk_id;        /* for bytes without a token; -1: they are dropped */
    bool fuse_unk, nfc, ignore_merges;
    mf__bpe_pairs pairs;
    uint8_t *is_word;    /* by id: a piece of text can be this token as a whole */
    int32_t *word_slots; /* for ignore_merges: open addressing from a piece's bytes to its id; -1: empty */
    uint32_t word_mask;
    mf__added_set added[2]; /* matched before normalization, and after it */
    mf__split_step *steps;  /* the pre-tokenizer, patterns owned */
    int n_steps;
    mf__splitter *splitter;
};

/* Once names, vocabulary, merges, added tokens and steps are in place: builds what is derived from them. */
mf_status mf__tokenizer_finish(mf__tokenizer *tok, mf_error *err);

/* A compiled tokenizer in memory; magic: whether bytes look like one. */
mf_status mf__tokenizer_write(const mf__tokenizer *tok, mf__strbuf *out, mf_error *err);
mf_status mf__tokenizer_read(const char *name, const uint8_t *bytes, size_t size, mf__tokenizer **out, mf_error *err);
bool mf__tokenizer_magic(const uint8_t *bytes, size_t size);
/* What the header of a compiled tokenizer of at least a header must say. */
uint64_t mf__tokenizer_checksum(const uint8_t *file, size_t size);

uint32_t mf__bytes_hash(const char *bytes, size_t n);

#endif
