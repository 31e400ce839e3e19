/* Building the tree of tokens: sort them by their bytes, then lay down what each adds to the one before. */
#include "text/grammar/trie.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_int.h"
#include "text/unicode.h"

typedef struct entry {
    const char *bytes;
    uint32_t size;
    int32_t id;
} entry;

static int compare(const void *a, const void *b) {
    const entry *x = a, *y = b;
    int d = memcmp(x->bytes, y->bytes, x->size < y->size ? x->size : y->size);
    if (d) return d;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static uint32_t common(const entry *a, const entry *b) {
    uint32_t n = 0;
    while (n < a->size && n < b->size && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* Tokens that stand for text: those of the vocabulary that are not added tokens; and the markers. */
static uint32_t collect(const mf__tokenizer *tok, const int32_t *markers, size_t n_markers, bool *added, entry *out) {
    uint32_t n = 0;
    for (size_t i = 0; i < n_markers; i++) {
        size_t size;
        const char *bytes = mf__tokenizer_bytes(tok, markers[i], &size);
        if (size && size <= UINT16_MAX) out[n++] = (entry){bytes, (uint32_t)size, markers[i]};
    }
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < tok->added[k].n; i++) added[tok->added[k].tokens[i].id] = true;
    for (int32_t id = 0; id < tok->n_vocab; id++) {
        size_t size;
        const char *bytes = mf__tokenizer_bytes(tok, id, &size);
        if (tok->is_word[id] && !added[id] && size <= UINT16_MAX) out[n++] = (entry){bytes, (uint32_t)size, id};
    }
    return n;
}

static void close_nodes(token_tree *t, const uint32_t *path, uint32_t from, uint32_t to) {
    for (uint32_t d = from; d < to; d++) t->nodes[path[d]].after = t->n_nodes;
}

static void lay_down(token_tree *t, const entry *e, uint32_t n, uint32_t *path) {
    uint32_t open = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t keep = i ? common(&e[i - 1], &e[i]) : 0;
        close_nodes(t, path, keep, open);
        open = keep;
        for (; open < e[i].size; open++) {
            path[open] = t->n_nodes;
            t->nodes[t->n_nodes++] = (trie_node){.depth = (uint16_t)(open + 1), .byte = (uint8_t)e[i].bytes[open]};
        }
        trie_node *last = &t->nodes[path[e[i].size - 1]];
        if (last->n_tokens == 0) last->tokens = t->n_tokens;
        if (last->n_tokens == UINT8_MAX) continue;
        last->n_tokens++;
        t->tokens[t->n_tokens++] = e[i].id;
    }
    close_nodes(t, path, 0, open);
}

static mf_status build_tree(token_tree *t, const entry *e, uint32_t n, uint32_t *path, mf_error *err) {
    size_t n_nodes = 1;
    for (uint32_t i = 0; i < n; i++) n_nodes += e[i].size - (i ? common(&e[i - 1], &e[i]) : 0);
    t->nodes = malloc(n_nodes * sizeof *t->nodes);
    t->tokens = malloc(((size_t)n + 1) * sizeof *t->tokens);
    if (!t->nodes || !t->tokens) return mf__fail(err, MF_E_NOMEM, "no memory for the tree of %u tokens", (unsigned)n);
    lay_down(t, e, n, path);
    return MF_OK;
}

/* ---- plain tokens ---------------------------------------------------------------------------------------------- */

/* How many characters a token has if all may stand in a JSON string as they are; 0: it is not plain. */
static uint32_t plain_chars(const entry *e) {
    uint32_t n = 0;
    if (!mf__utf8_valid(e->bytes, e->size, NULL)) return 0;
    for (uint32_t i = 0; i < e->size; i++) {
        uint8_t b = (uint8_t)e->bytes[i];
        if (b < 0x20 || b == '"' || b == '\\') return 0;
        n += (b & 0xC0) != 0x80;
    }
    return n;
}

static mf_status fill_plain(mf__token_trie *t, const entry *e, uint32_t n, mf_error *err) {
    t->n_words = (size_t)t->tok->n_vocab / 32 + 1;
    for (size_t k = 0; k < MF__COUNT(t->plain); k++) {
        t->plain[k] = calloc(t->n_words, sizeof *t->plain[k]);
        if (!t->plain[k]) return mf__fail(err, MF_E_NOMEM, "no memory for the tree of tokens");
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t chars = plain_chars(&e[i]), bit = 1u << e[i].id % 32;
        if (chars == 0) continue;
        if (chars > t->max_chars) t->max_chars = chars;
        for (uint32_t k = chars; k <= TRIE_LENGTHS; k++) t->plain[k][e[i].id / 32] |= bit;
        t->plain[TRIE_LENGTHS + 1][e[i].id / 32] |= bit;
    }
    return MF_OK;
}

static mf_status build(mf__token_trie *t, entry *e, uint32_t n, uint32_t *path, mf_error *err) {
    uint32_t n_marked = 0, n_longer = 0;
    qsort(e, n, sizeof *e, compare);
    MF__TRY(build_tree(&t->all, e, n, path, err));
    MF__TRY(fill_plain(t, e, n, err));
    entry *longer = malloc(((size_t)n + 1) * sizeof *longer);
    if (!longer) return mf__fail(err, MF_E_NOMEM, "no memory for the tree of tokens");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t chars = plain_chars(&e[i]);
        if (e[i].size > t->max_depth) t->max_depth = e[i].size;
        if (chars > TRIE_LENGTHS) longer[n_longer++] = e[i];
        if (chars == 0) e[n_marked++] = e[i];
    }
    mf_status status = build_tree(&t->longer, longer, n_longer, path, err);
    free(longer);
    return status == MF_OK ? build_tree(&t->marked, e, n_marked, path, err) : status;
}

mf_status mf__token_trie_create(const mf__tokenizer *tok, mf__token_trie **out, mf_error *err) {
    return mf__token_trie_create_with(tok, NULL, 0, out, err);
}

mf_status mf__token_trie_create_with(const mf__tokenizer *tok, const int32_t *markers, size_t n, mf__token_trie **out,
                                     mf_error *err) {
    *out = NULL;
    mf__token_trie *t = calloc(1, sizeof *t);
    entry *e = malloc(((size_t)tok->n_vocab + n + 1) * sizeof *e);
    uint32_t *path = malloc((UINT16_MAX + 1) * sizeof *path);
    bool *added = calloc((size_t)tok->n_vocab + 1, 1);
    mf_status status;
    if (t && e && path && added) {
        t->tok = tok;
        status = build(t, e, collect(tok, markers, n, added, e), path, err);
    } else {
        status = mf__fail(err, MF_E_NOMEM, "no memory for the tree of tokens");
    }
    free(e);
    free(path);
    free(added);
    if (status != MF_OK) return mf__token_trie_free(t), status;
    *out = t;
    return MF_OK;
}

void mf__token_trie_free(mf__token_trie *t) {
    if (!t) return;
    free(t->all.nodes);
    free(t->all.tokens);
    free(t->marked.nodes);
    free(t->marked.tokens);
    free(t->longer.nodes);
    free(t->longer.tokens);
    for (size_t k = 0; k < MF__COUNT(t->plain); k++) free(t->plain[k]);
    free(t);
}

int32_t mf__token_trie_longest(const mf__token_trie *t, const char *s, size_t n, int32_t n_vocab, size_t *used) {
    int32_t best = -1;
    *used = 0;
    for (uint32_t i = 0, end = t->all.n_nodes; i < end;) {
        const trie_node *node = &t->all.nodes[i];
        if (node->depth > n || node->byte != (uint8_t)s[node->depth - 1]) {
            i = node->after;
            continue;
        }
        int32_t id = node->n_tokens ? t->all.tokens[node->tokens] : -1;
        if (id >= 0 && id < n_vocab) best = id, *used = node->depth;
        end = node->after;
        i++;
    }
    return best;
}
