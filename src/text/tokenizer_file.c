/* The compiled tokenizer: everything tokenizer.json says, in a form that is read in one pass.
 *
 *   "MFTOK1\r\n"  8 bytes
 *   checksum     8 bytes, little-endian, of all that follows
 *   then numbers (LEB128) and byte strings (length, bytes):
 *     source size, flags, n_vocab, unk id + 1
 *     n_vocab times: length * 2 + is-word
 *     all tokens' bytes
 *     256 times: the byte's token id + 1
 *     n merges, in the order of the hash table: left, right, rank, merged
 *     n added tokens: set, id, flags, text
 *     n steps: pattern, flags, behavior
 *
 * Nothing is trusted: ids, lengths and counts are checked as they are read. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_int.h"
#include "text/tokenizer_steps.h"

static const uint8_t magic[8] = {'M', 'F', 'T', 'O', 'K', '1', '\r', '\n'};
#define HEADER 16

enum { FLAG_NFC = 1, FLAG_IGNORE_MERGES = 2, FLAG_FUSE_UNK = 4 };
enum { ADDED_SPECIAL = 1, ADDED_LSTRIP = 2, ADDED_RSTRIP = 4, ADDED_SINGLE_WORD = 8 };
enum { STEP_LITERAL = 1, STEP_INVERT = 2, STEP_PREFIX = 4 };

uint64_t mf__tokenizer_checksum(const uint8_t *file, size_t size) {
    const uint8_t *p = file + HEADER;
    size_t n = size - HEADER;
    uint64_t h = 0x9E3779B97F4A7C15u ^ n;
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t w = 0;
        for (int i = 0; i < 8; i++) w |= (uint64_t)p[i] << 8 * i;
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 29;
    }
    for (; n > 0; n--, p++) h = (h ^ *p) * 0x100000001B3u;
    return h ^ h >> 32;
}

bool mf__tokenizer_magic(const uint8_t *bytes, size_t size) {
    return size >= HEADER && memcmp(bytes, magic, sizeof magic) == 0;
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

typedef struct writer {
    mf__strbuf *out;
    mf_status status; /* the first failure; later writes do nothing */
    mf_error *err;
} writer;

static void put_bytes(writer *w, const void *bytes, size_t n) {
    if (w->status == MF_OK) w->status = mf__strbuf_append(w->out, bytes, n, w->err);
}

static void put(writer *w, uint64_t v) {
    uint8_t b[10];
    size_t n = 0;
    do {
        b[n++] = (uint8_t)((v & 0x7F) | (v > 0x7F ? 0x80 : 0));
        v >>= 7;
    } while (v);
    put_bytes(w, b, n);
}

/* In the order of the table's slots: reading them back then fills the new table from front to back instead of missing
 * the cache at every merge. */
static void put_merges(writer *w, const mf__bpe_pairs *pairs) {
    size_t capacity = (size_t)pairs->mask + 1, n = 0;
    for (size_t i = 0; i < capacity; i++) n += pairs->slots[i].left >= 0;
    put(w, n);
    for (size_t i = 0; i < capacity; i++) {
        const mf__bpe_pair *p = &pairs->slots[i];
        if (p->left < 0) continue;
        put(w, (uint64_t)p->left);
        put(w, (uint64_t)p->right);
        put(w, p->rank);
        put(w, (uint64_t)p->merged);
    }
}

static void put_added(writer *w, const mf__tokenizer *tok) {
    put(w, tok->added[0].n + tok->added[1].n);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < tok->added[k].n; i++) {
            const mf__added_token *t = &tok->added[k].tokens[i];
            put(w, (uint64_t)k);
            put(w, (uint64_t)t->id);
            put(w, (t->special ? ADDED_SPECIAL : 0u) | (t->lstrip ? ADDED_LSTRIP : 0u) |
                       (t->rstrip ? ADDED_RSTRIP : 0u) | (t->single_word ? ADDED_SINGLE_WORD : 0u));
            put(w, t->size);
            put_bytes(w, t->text, t->size);
        }
}

mf_status mf__tokenizer_write(const mf__tokenizer *tok, mf__strbuf *out, mf_error *err) {
    writer w = {out, MF_OK, err};
    size_t start = out->size;
    put_bytes(&w, magic, sizeof magic);
    put_bytes(&w, (const uint8_t[8]){0}, 8);
    put(&w, tok->source_size);
    put(&w, (tok->nfc ? FLAG_NFC : 0u) | (tok->ignore_merges ? FLAG_IGNORE_MERGES : 0u) |
                (tok->fuse_unk ? FLAG_FUSE_UNK : 0u));
    put(&w, (uint64_t)tok->n_vocab);
    put(&w, (uint64_t)(tok->unk_id + 1));
    for (int32_t id = 0; id < tok->n_vocab; id++)
        put(&w, (uint64_t)(tok->offsets[id + 1] - tok->offsets[id]) * 2 + tok->is_word[id]);
    put_bytes(&w, tok->bytes, tok->offsets[tok->n_vocab]);
    for (int b = 0; b < 256; b++) put(&w, (uint64_t)(tok->byte_ids[b] + 1));
    put_merges(&w, &tok->pairs);
    put_added(&w, tok);
    put(&w, (uint64_t)tok->n_steps);
    for (int i = 0; i < tok->n_steps; i++) {
        const mf__split_step *s = &tok->steps[i];
        put(&w, s->size);
        put_bytes(&w, s->pattern, s->size);
        put(&w, (s->literal ? STEP_LITERAL : 0u) | (s->invert ? STEP_INVERT : 0u) | (s->prefix ? STEP_PREFIX : 0u));
        put(&w, (uint64_t)s->behavior);
    }
    if (w.status != MF_OK) return w.status;
    uint8_t *head = (uint8_t *)out->data + start;
    uint64_t sum = mf__tokenizer_checksum(head, out->size - start);
    for (int i = 0; i < 8; i++) head[8 + i] = (uint8_t)(sum >> 8 * i);
    return MF_OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *name;
    const uint8_t *at, *end;
    mf_error *err;
} reader;

static mf_status damaged(reader *r, const char *what) {
    return mf__fail(r->err, MF_E_FORMAT, "%s: damaged compiled tokenizer: %s; make it again from tokenizer.json",
                    r->name, what);
}

/* A number of at most max. */
static mf_status get(reader *r, uint64_t max, const char *what, uint64_t *out) {
    uint64_t v = 0; /* below 2^63 */
    for (int shift = 0; shift < 63; shift += 7) {
        if (r->at == r->end) return damaged(r, what);
        uint8_t b = *r->at++;
        v |= (uint64_t)(b & 0x7F) << shift;
        if (b < 0x80) {
            if (v > max) return damaged(r, what);
            *out = v;
            return MF_OK;
        }
    }
    return damaged(r, what);
}

static mf_status get_id(reader *r, const mf__tokenizer *tok, const char *what, int32_t *out) {
    uint64_t v = 0;
    if (tok->n_vocab == 0) return damaged(r, what);
    MF__TRY(get(r, (uint64_t)tok->n_vocab - 1, what, &v));
    *out = (int32_t)v;
    return MF_OK;
}

static mf_status get_text(reader *r, size_t max, const char *what, char **out, size_t *n) {
    uint64_t size = 0;
    MF__TRY(get(r, max, what, &size));
    if (size > (uint64_t)(r->end - r->at)) return damaged(r, what);
    *out = malloc(size + 1);
    if (!*out) return mf__fail(r->err, MF_E_NOMEM, "%s: no memory", r->name);
    memcpy(*out, r->at, size);
    (*out)[size] = 0;
    r->at += size;
    *n = size;
    return MF_OK;
}

static mf_status read_vocab(reader *r, mf__tokenizer *tok) {
    uint64_t v = 0, total = 0;
    size_t n = (size_t)tok->n_vocab;
    if ((uint64_t)(r->end - r->at) < n) return damaged(r, "vocabulary");
    tok->offsets = malloc((n + 1) * sizeof *tok->offsets);
    tok->is_word = malloc(n + 1);
    if (!tok->offsets || !tok->is_word) return mf__fail(r->err, MF_E_NOMEM, "%s: no memory", r->name);
    for (size_t i = 0; i < n; i++) {
        MF__TRY(get(r, UINT32_MAX, "token length", &v));
        tok->offsets[i] = (uint32_t)total;
        tok->is_word[i] = v & 1 && v > 1;
        total += v / 2;
        if (total > UINT32_MAX) return damaged(r, "token lengths");
    }
    tok->offsets[n] = (uint32_t)total;
    if (total > (uint64_t)(r->end - r->at)) return damaged(r, "token bytes");
    tok->bytes = malloc(total + 1);
    if (!tok->bytes) return mf__fail(r->err, MF_E_NOMEM, "%s: no memory", r->name);
    memcpy(tok->bytes, r->at, total);
    r->at += total;
    for (int b = 0; b < 256; b++) {
        MF__TRY(get(r, n, "byte token", &v));
        tok->byte_ids[b] = (int32_t)v - 1;
    }
    return MF_OK;
}

static mf_status read_merges(reader *r, mf__tokenizer *tok) {
    uint64_t n = 0, rank = 0;
    MF__TRY(get(r, (uint64_t)(r->end - r->at) / 4, "number of merges", &n));
    MF__TRY(mf__bpe_pairs_init(&tok->pairs, n, r->err));
    for (uint64_t i = 0; i < n; i++) {
        int32_t left = 0, right = 0, merged = 0;
        MF__TRY(get_id(r, tok, "merge", &left));
        MF__TRY(get_id(r, tok, "merge", &right));
        MF__TRY(get(r, UINT32_MAX - 1, "merge", &rank));
        MF__TRY(get_id(r, tok, "merge", &merged));
        mf__bpe_pairs_set(&tok->pairs, left, right, (uint32_t)rank, merged);
    }
    return MF_OK;
}

static mf_status read_added(reader *r, mf__tokenizer *tok) {
    uint64_t n = 0, set = 0, flags = 0;
    MF__TRY(get(r, (uint64_t)(r->end - r->at) / 4, "number of added tokens", &n));
    for (int k = 0; k < 2; k++) {
        tok->added[k].tokens = calloc(n + 1, sizeof(mf__added_token));
        if (!tok->added[k].tokens) return mf__fail(r->err, MF_E_NOMEM, "%s: no memory", r->name);
    }
    for (uint64_t i = 0; i < n; i++) {
        mf__added_token t = {0};
        char *text = NULL;
        size_t size = 0;
        MF__TRY(get(r, 1, "added token", &set));
        MF__TRY(get_id(r, tok, "added token", &t.id));
        MF__TRY(get(r, 15, "added token", &flags));
        MF__TRY(get_text(r, 4 * MF__ADDED_MAX_BYTES, "added token", &text, &size));
        t.text = text;
        t.size = (uint32_t)size;
        t.special = flags & ADDED_SPECIAL;
        t.normalized = set;
        t.lstrip = flags & ADDED_LSTRIP;
        t.rstrip = flags & ADDED_RSTRIP;
        t.single_word = flags & ADDED_SINGLE_WORD;
        tok->added[set].tokens[tok->added[set].n++] = t;
        if (size == 0) return damaged(r, "added token");
    }
    return MF_OK;
}

static mf_status read_steps(reader *r, mf__tokenizer *tok) {
    uint64_t n = 0, flags = 0, behavior = 0;
    MF__TRY(get(r, MF__STEPS_MAX, "number of steps", &n));
    tok->steps = calloc(n + 1, sizeof *tok->steps);
    if (!tok->steps) return mf__fail(r->err, MF_E_NOMEM, "%s: no memory", r->name);
    for (uint64_t i = 0; i < n; i++) {
        mf__split_step *s = &tok->steps[i];
        char *pattern = NULL;
        MF__TRY(get_text(r, 1 << 20, "pattern", &pattern, &s->size));
        s->pattern = pattern;
        tok->n_steps++;
        MF__TRY(get(r, 7, "step", &flags));
        MF__TRY(get(r, MF__SPLIT_MERGED_WITH_NEXT, "step", &behavior));
        s->literal = flags & STEP_LITERAL;
        s->invert = flags & STEP_INVERT;
        s->prefix = flags & STEP_PREFIX;
        s->behavior = (mf__split_behavior)behavior;
    }
    return r->at == r->end ? MF_OK : damaged(r, "bytes behind the end");
}

static mf_status read_all(reader *r, mf__tokenizer *tok) {
    uint64_t flags = 0, n = 0, unk = 0, sum = 0;
    for (int i = 0; i < 8; i++) sum |= (uint64_t)r->at[8 + i] << 8 * i;
    if (mf__tokenizer_checksum(r->at, (size_t)(r->end - r->at)) != sum) return damaged(r, "the checksum differs");
    r->at += HEADER;
    MF__TRY(get(r, UINT64_MAX, "source size", &tok->source_size));
    MF__TRY(get(r, 7, "flags", &flags));
    MF__TRY(get(r, MF__TOKENIZER_MAX_IDS, "vocabulary size", &n));
    MF__TRY(get(r, n, "unknown token", &unk));
    tok->nfc = flags & FLAG_NFC;
    tok->ignore_merges = flags & FLAG_IGNORE_MERGES;
    tok->fuse_unk = flags & FLAG_FUSE_UNK;
    tok->n_vocab = (int32_t)n;
    tok->unk_id = (int32_t)unk - 1;
    MF__TRY(read_vocab(r, tok));
    MF__TRY(read_merges(r, tok));
    MF__TRY(read_added(r, tok));
    MF__TRY(read_steps(r, tok));
    return mf__tokenizer_finish(tok, r->err);
}

mf_status mf__tokenizer_read(const char *name, const uint8_t *bytes, size_t size, mf__tokenizer **out, mf_error *err) {
    reader r = {name, bytes, bytes + size, err};
    *out = NULL;
    if (!mf__tokenizer_magic(bytes, size)) return damaged(&r, "not a compiled tokenizer");
    mf__tokenizer *tok = calloc(1, sizeof *tok);
    if (tok) tok->name = strdup(name);
    if (!tok || !tok->name) {
        free(tok);
        return mf__fail(err, MF_E_NOMEM, "%s: no memory for the tokenizer", name);
    }
    mf_status status = read_all(&r, tok);
    if (status != MF_OK) return mf__tokenizer_free(tok), status;
    *out = tok;
    return MF_OK;
}
