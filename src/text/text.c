/* mf_text: the public face of tokenizer and chat template. */
#include <stdlib.h>
#include <string.h>

#include "text/text.h"

static mf_status open_text(mf_text *t, const char *dir, mf_error *err) {
    MF__TRY(mf__tokenizer_open(dir, &t->tok, err));
    return mf__chat_open(dir, t->tok, &t->chat, err);
}

mf_status mf_text_open(const char *dir, mf_text **out, mf_error *err) {
    if (!out) return mf__fail(err, MF_E_INVALID, "mf_text_open: out is NULL");
    *out = NULL;
    if (!dir) return mf__fail(err, MF_E_INVALID, "mf_text_open: dir is NULL");
    mf_text *t = calloc(1, sizeof *t);
    if (!t) return mf__fail(err, MF_E_NOMEM, "no memory for the tokenizer");
    pthread_mutex_init(&t->lock, NULL);
    mf_status st = open_text(t, dir, err);
    if (st == MF_OK)
        *out = t;
    else
        mf_text_close(t);
    return st;
}

void mf_text_close(mf_text *t) {
    if (!t) return;
    mf__token_trie_free(t->trie);
    mf__token_trie_free(t->marker_trie);
    mf__fencer_free(t->fencer);
    if (t->free_reply_cache) t->free_reply_cache(t->reply_cache);
    mf__chat_close(&t->chat);
    pthread_mutex_destroy(&t->lock);
    mf__tokenizer_free(t->tok);
    free(t);
}

mf_status mf_text_encode(const mf_text *t, const char *utf8, size_t size, bool special, int32_t *ids, size_t max,
                         size_t *n, mf_error *err) {
    int32_t *all;
    if (!t || !n || (size && !utf8) || (max && !ids))
        return mf__fail(err, MF_E_INVALID, "mf_text_encode: an argument is NULL");
    if (size > MF__MAX_BYTES) return mf__fail(err, MF_E_INVALID, "mf_text_encode: a text of %zu bytes", size);
    MF__TRY(mf__tokenizer_encode(t->tok, utf8 ? utf8 : "", size, special, &all, n, err));
    size_t fits = *n < max ? *n : max;
    if (fits) memcpy(ids, all, fits * sizeof *ids);
    free(all);
    return MF_OK;
}

/* Copies what fits; frees from. */
static size_t hand_over(mf__strbuf *from, char *utf8, size_t max) {
    size_t n = from->size, fits = n < max ? n : max;
    if (fits) memcpy(utf8, from->data, fits);
    mf__strbuf_free(from);
    return n;
}

static mf_status decode(mf__detok *d, const int32_t *ids, size_t n_ids, bool ends, mf__strbuf *out, mf_error *err) {
    for (size_t i = 0; i < n_ids; i++) MF__TRY(mf__detok_push(d, ids[i], out, err));
    return ends ? mf__detok_flush(d, out, err) : MF_OK;
}

mf_status mf_text_decode(const mf_text *t, mf_text_stream *stream, const int32_t *ids, size_t n_ids, char *utf8,
                         size_t max, size_t *n, mf_error *err) {
    mf__strbuf out = {0};
    mf__detok d;
    if (!t || !n || (n_ids && !ids) || (max && !utf8))
        return mf__fail(err, MF_E_INVALID, "mf_text_decode: an argument is NULL");
    if (n_ids > MF__MAX_IDS) return mf__fail(err, MF_E_INVALID, "mf_text_decode: %zu ids", n_ids);
    mf__detok_init(&d, t->tok);
    _Static_assert(sizeof d.held == sizeof stream->held, "a stream holds what a detokenizer does");
    if (stream) {
        if (stream->n_held < 0 || stream->n_held > (int)sizeof d.held)
            return mf__fail(err, MF_E_INVALID, "mf_text_decode: the stream holds %d bytes; begin it as {0}",
                            stream->n_held);
        memcpy(d.held, stream->held, sizeof d.held);
        d.n_held = stream->n_held;
    }
    mf_status st = decode(&d, ids, n_ids, !stream || !n_ids, &out, err);
    if (st != MF_OK) {
        mf__strbuf_free(&out);
        return st;
    }
    *n = hand_over(&out, utf8, max);
    if (stream && *n <= max) {
        memcpy(stream->held, d.held, sizeof d.held);
        stream->n_held = d.n_held;
    }
    return MF_OK;
}

/* What is made when it is first needed. The text is shared between threads: these are the only members that change. */
mf_status mf__text_trie(const mf_text *text, const mf__token_trie **out, mf_error *err) {
    mf_text *t = (mf_text *)text;
    pthread_mutex_lock(&t->lock);
    mf_status st = t->trie ? MF_OK : mf__token_trie_create(t->tok, &t->trie, err);
    *out = t->trie;
    pthread_mutex_unlock(&t->lock);
    return st;
}

static mf_status create_marker_trie(mf_text *t, const char *const *markers, int n, mf_error *err) {
    int32_t ids[64];
    size_t n_ids = 0;
    for (int i = 0; i < n && n_ids < MF__COUNT(ids); i++) {
        int32_t id = mf__tokenizer_id(t->tok, markers[i]);
        if (id >= 0) ids[n_ids++] = id;
    }
    return mf__token_trie_create_with(t->tok, ids, n_ids, &t->marker_trie, err);
}

mf_status mf__text_marker_trie(const mf_text *text, const char *const *markers, int n, const mf__token_trie **out,
                               mf_error *err) {
    mf_text *t = (mf_text *)text;
    pthread_mutex_lock(&t->lock);
    mf_status st = t->marker_trie ? MF_OK : create_marker_trie(t, markers, n, err);
    *out = t->marker_trie;
    pthread_mutex_unlock(&t->lock);
    return st;
}

mf_status mf__text_fencer(const mf_text *text, const mf__fencer **out, mf_error *err) {
    mf_text *t = (mf_text *)text;
    pthread_mutex_lock(&t->lock);
    mf_status st = t->fencer ? MF_OK : mf__fencer_create(t->tok, &t->fencer, err);
    *out = t->fencer;
    pthread_mutex_unlock(&t->lock);
    return st;
}

void mf_text_info_get(const mf_text *t, mf_text_info *out) {
    if (!out) return;
    *out = (mf_text_info){0};
    if (!t) return;
    *out = (mf_text_info){.has_chat = t->chat.jinja != NULL,
                          .has_tools = t->chat.has_tools,
                          .has_reasoning = t->chat.has_reasoning,
                          .n_tokens = mf__tokenizer_n_vocab(t->tok)};
}

const char *mf_text_token(const mf_text *t, int32_t id, size_t *n) {
    size_t size = 0;
    const char *bytes = t ? mf__tokenizer_bytes(t->tok, id, &size) : "";
    if (n) *n = size;
    return bytes;
}
