/* Encoding text:
 *
 *   text -> [added tokens cut out] -> NFC -> [added tokens that match normalized text cut out]
 *        -> splitter -> pieces -> bytes -> merges -> ids
 *
 * Everything a call changes lives in its own `encoder`; the tokenizer is read-only. */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "text/nfc.h"
#include "text/tokenizer_int.h"
#include "text/unicode.h"

/* Texts repeat their words: a direct-mapped table from piece to ids, per call, for texts worth it. */
#define CACHE_SLOTS 16384
#define CACHE_FROM_BYTES 4096
#define CACHE_MAX_PIECE 32

typedef struct cached {
    uint32_t hash;
    uint8_t size, n_ids; /* size 0: empty */
    char text[CACHE_MAX_PIECE];
    uint32_t at; /* the ids are ids[at .. at + n_ids) of the output */
} cached;

typedef struct encoder {
    const mf__tokenizer *tok;
    int32_t *ids;
    size_t n, capacity;
    mf__split_run split;
    mf__bpe_scratch bpe;
    mf__strbuf normalized, unfenced;
    const char *fence; /* three bytes that part markers and are no text; NULL: none */
    cached *cache;
    mf_error *err;
} encoder;

uint32_t mf__bytes_hash(const char *bytes, size_t n) {
    uint64_t h = n * 0x9E3779B97F4A7C15u;
    for (; n >= 8; n -= 8, bytes += 8) {
        uint64_t w;
        memcpy(&w, bytes, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    uint64_t w = 0;
    for (size_t i = 0; i < n; i++) w |= (uint64_t)(uint8_t)bytes[i] << 8 * i;
    h = (h ^ w) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

static mf_status reserve_ids(encoder *e, size_t more) {
    if (more <= e->capacity - e->n) return MF_OK;
    size_t capacity = e->capacity + e->capacity / 2 + more + 64;
    int32_t *ids = realloc(e->ids, capacity * sizeof *ids);
    if (!ids) return mf__fail(e->err, MF_E_NOMEM, "%s: no memory for %zu token ids", e->tok->name, capacity);
    e->ids = ids;
    e->capacity = capacity;
    return MF_OK;
}

static int32_t find_word(const mf__tokenizer *tok, const char *piece, size_t size) {
    if (!tok->word_slots) return -1;
    for (uint32_t i = mf__bytes_hash(piece, size) & tok->word_mask;; i = (i + 1) & tok->word_mask) {
        int32_t id = tok->word_slots[i];
        if (id < 0) return -1;
        if (tok->offsets[id + 1] - tok->offsets[id] == size && memcmp(tok->bytes + tok->offsets[id], piece, size) == 0)
            return id;
    }
}

static mf_status merge_piece(encoder *e, const char *piece, size_t size) {
    const mf__tokenizer *tok = e->tok;
    MF__TRY(reserve_ids(e, size));
    int32_t word = find_word(tok, piece, size);
    if (word >= 0) return e->ids[e->n++] = word, MF_OK;
    int32_t *ids = e->ids + e->n;
    size_t n = 0;
    bool fused = false;
    for (size_t i = 0; i < size; i++) {
        int32_t id = tok->byte_ids[(uint8_t)piece[i]];
        bool unknown = id < 0;
        if (unknown) id = fused ? -1 : tok->unk_id;
        if (id >= 0) ids[n++] = id;
        fused = unknown && tok->fuse_unk;
    }
    MF__TRY(mf__bpe_merge(&tok->pairs, &e->bpe, ids, &n, MF__BPE_SCAN, e->err));
    e->n += n;
    return MF_OK;
}

static mf_status encode_piece(encoder *e, const char *piece, size_t size) {
    if (!e->cache || size > CACHE_MAX_PIECE || size < 2) return merge_piece(e, piece, size);
    uint32_t hash = mf__bytes_hash(piece, size);
    cached *c = &e->cache[hash % CACHE_SLOTS];
    if (c->hash == hash && c->size == size && memcmp(c->text, piece, size) == 0) {
        MF__TRY(reserve_ids(e, c->n_ids));
        memcpy(e->ids + e->n, e->ids + c->at, c->n_ids * sizeof *e->ids);
        e->n += c->n_ids;
        return MF_OK;
    }
    size_t at = e->n;
    MF__TRY(merge_piece(e, piece, size));
    if (at > UINT32_MAX) return MF_OK;
    c->hash = hash;
    c->size = (uint8_t)size;
    c->n_ids = (uint8_t)(e->n - at);
    c->at = (uint32_t)at;
    memcpy(c->text, piece, size);
    return MF_OK;
}

/* The text without its fences. */
static mf_status take_down_fences(encoder *e, const char **text, size_t *size) {
    const char *at = *text, *fence = e->fence && *size ? memmem(at, *size, e->fence, 3) : NULL;
    if (!fence) return MF_OK;
    const char *end = at + *size;
    mf__strbuf_clear(&e->unfenced);
    for (; fence; fence = memmem(at, (size_t)(end - at), e->fence, 3)) {
        MF__TRY(mf__strbuf_append(&e->unfenced, at, (size_t)(fence - at), e->err));
        at = fence + 3;
    }
    MF__TRY(mf__strbuf_append(&e->unfenced, at, (size_t)(end - at), e->err));
    *text = e->unfenced.data ? e->unfenced.data : "";
    *size = e->unfenced.size;
    return MF_OK;
}

static mf_status encode_plain(encoder *e, const char *text, size_t size) {
    MF__TRY(take_down_fences(e, &text, &size));
    if (!size) return MF_OK;
    MF__TRY(mf__splitter_run(e->tok->splitter, text, size, &e->split, e->err));
    for (size_t i = 0; i < e->split.n_pieces; i++) {
        mf__piece p = e->split.pieces[i];
        MF__TRY(encode_piece(e, e->split.text + p.start, p.end - p.start));
    }
    return MF_OK;
}

/* ---- added tokens ---------------------------------------------------------------------------------------------- */

/* The longest token of the set that text begins with. The tokens that share the first `depth` bytes with text are
 * those in [lo, hi); the one that ends there, if any, is the first of them. */
static const mf__added_token *longest(const mf__added_set *set, const char *text, size_t size) {
    size_t lo = 0, hi = set->n;
    const mf__added_token *best = NULL;
    for (uint32_t depth = 0; lo < hi; depth++) {
        if (set->tokens[lo].size == depth) {
            best = &set->tokens[lo++];
            if (lo == hi) break;
        }
        if (depth == size) break;
        uint8_t b = (uint8_t)text[depth];
        size_t left = lo, right = hi;
        while (left < right) { /* first with a byte >= b */
            size_t mid = (left + right) / 2;
            if ((uint8_t)set->tokens[mid].text[depth] < b)
                left = mid + 1;
            else
                right = mid;
        }
        size_t first = left;
        right = hi;
        while (left < right) { /* first with a byte > b */
            size_t mid = (left + right) / 2;
            if ((uint8_t)set->tokens[mid].text[depth] <= b)
                left = mid + 1;
            else
                right = mid;
        }
        lo = first;
        hi = left;
    }
    return best;
}

static bool is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Letters, marks, digits and connectors: what \w means. */
static bool is_word(uint32_t c) {
    int lo = 0, hi = mf__unicode_n_category_runs;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (mf__unicode_category_runs[mid] >> 8 <= c)
            lo = mid;
        else
            hi = mid;
    }
    const char *name = mf__unicode_category_names[mf__unicode_category_runs[lo] & 0xFF];
    return name[0] == 'L' || name[0] == 'M' || strcmp(name, "Nd") == 0 || strcmp(name, "Nl") == 0 ||
           strcmp(name, "Pc") == 0;
}

static uint32_t char_before(const char *text, size_t at, size_t *start) {
    uint32_t c;
    do at--;
    while (((uint8_t)text[at] & 0xC0) == 0x80);
    mf__utf8_decode(text + at, &c);
    *start = at;
    return c;
}

static bool stands_alone(const char *text, size_t size, size_t start, size_t end) {
    uint32_t c;
    size_t at;
    if (start > 0 && is_word(char_before(text, start, &at))) return false;
    if (end == size) return true;
    mf__utf8_decode(text + end, &c);
    return !is_word(c);
}

/* Cuts the tokens of one set out of text and hands what lies between to `rest`. */
static mf_status cut_added(encoder *e, const mf__added_set *set, const char *text, size_t size,
                           mf_status (*rest)(encoder *, const char *, size_t)) {
    size_t done = 0;
    for (size_t i = 0; set->n && i < size;) {
        const mf__added_token *t = set->first[(uint8_t)text[i]] ? longest(set, text + i, size - i) : NULL;
        if (!t) {
            i++;
            continue;
        }
        size_t start = i, end = i + t->size;
        i = end;
        if (t->single_word && !stands_alone(text, size, start, end)) continue;
        uint32_t c;
        size_t before;
        while (t->lstrip && start > done && is_space(char_before(text, start, &before))) start = before;
        while (t->rstrip && end < size) {
            size_t n = (size_t)mf__utf8_decode(text + end, &c);
            if (!is_space(c)) break;
            end += n;
        }
        if (start > done) MF__TRY(rest(e, text + done, start - done));
        MF__TRY(reserve_ids(e, 1));
        e->ids[e->n++] = t->id;
        done = i = end;
    }
    return done < size ? rest(e, text + done, size - done) : MF_OK;
}

static mf_status encode_normalized(encoder *e, const char *text, size_t size) {
    return cut_added(e, &e->tok->added[1], text, size, encode_plain);
}

static mf_status normalize_then(encoder *e, const char *text, size_t size,
                                mf_status (*rest)(encoder *, const char *, size_t)) {
    bool same = true;
    mf__strbuf_clear(&e->normalized);
    if (e->tok->nfc) MF__TRY(mf__nfc(text, size, &same, &e->normalized, e->err));
    return same ? rest(e, text, size) : rest(e, e->normalized.data, e->normalized.size);
}

static mf_status encode_raw(encoder *e, const char *text, size_t size) {
    return normalize_then(e, text, size, encode_normalized);
}

static mf_status encode_text(const mf__tokenizer *tok, const char *text, size_t size, bool special, const char *fence,
                             int32_t **ids, size_t *n_ids, mf_error *err) {
    size_t bad;
    *ids = NULL;
    *n_ids = 0;
    if (!mf__utf8_valid(text, size, &bad))
        return mf__fail(err, MF_E_INVALID, "the text is not valid UTF-8: byte 0x%02X at offset %zu",
                        (unsigned)(uint8_t)text[bad], bad);
    encoder e = {.tok = tok, .fence = fence, .err = err};
    mf_status status = reserve_ids(&e, size / 3 + 16);
    if (status == MF_OK && size >= CACHE_FROM_BYTES) e.cache = calloc(CACHE_SLOTS, sizeof *e.cache);
    if (status == MF_OK)
        status = special ? cut_added(&e, &tok->added[0], text, size, encode_raw)
                         : normalize_then(&e, text, size, encode_plain);
    mf__split_run_free(&e.split);
    mf__bpe_scratch_free(&e.bpe);
    mf__strbuf_free(&e.normalized);
    mf__strbuf_free(&e.unfenced);
    free(e.cache);
    if (status != MF_OK) return free(e.ids), status;
    *ids = e.ids;
    *n_ids = e.n;
    return MF_OK;
}

mf_status mf__tokenizer_encode(const mf__tokenizer *tok, const char *text, size_t size, bool special, int32_t **ids,
                               size_t *n_ids, mf_error *err) {
    return encode_text(tok, text, size, special, NULL, ids, n_ids, err);
}

mf_status mf__tokenizer_encode_fenced(const mf__tokenizer *tok, const char *text, size_t size, const char *fence,
                                      int32_t **ids, size_t *n_ids, mf_error *err) {
    return encode_text(tok, text, size, true, fence, ids, n_ids, err);
}

/* ---- looking up ------------------------------------------------------------------------------------------------ */

int32_t mf__tokenizer_n_vocab(const mf__tokenizer *tok) {
    return tok->n_vocab;
}

int32_t mf__tokenizer_id(const mf__tokenizer *tok, const char *text) {
    size_t n = strlen(text);
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < tok->added[k].n; i++) {
            const mf__added_token *t = &tok->added[k].tokens[i];
            if (t->size == n && memcmp(t->text, text, n) == 0) return t->id;
        }
    return -1;
}

const char *mf__tokenizer_bytes(const mf__tokenizer *tok, int32_t id, size_t *n) {
    *n = 0;
    if (id < 0 || id >= tok->n_vocab) return "";
    *n = tok->offsets[id + 1] - tok->offsets[id];
    return tok->bytes + tok->offsets[id];
}
