/* Building the tree of tokens: sort them by their bytes, then lay down what each adds to the one before. */
#include "text/grammar/trie.h"

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer_int.h"

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

/* Tokens that stand for text: those of the vocabulary that are not added tokens. */
static uint32_t collect(const mf__tokenizer *tok, bool *added, entry *out) {
    uint32_t n = 0;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < tok->added[k].n; i++) added[tok->added[k].tokens[i].id] = true;
    for (int32_t id = 0; id < tok->n_vocab; id++) {
        size_t size;
        const char *bytes = mf__tokenizer_bytes(tok, id, &size);
        if (tok->is_word[id] && !added[id] && size <= UINT16_MAX) out[n++] = (entry){bytes, (uint32_t)size, id};
    }
    return n;
}

static void close_nodes(mf__token_trie *t, const uint32_t *path, uint32_t from, uint32_t to) {
    for (uint32_t d = from; d < to; d++) t->nodes[path[d]].after = t->n_nodes;
}

static void lay_down(mf__token_trie *t, const entry *e, uint32_t n, uint32_t *path) {
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
        if (e[i].size > t->max_depth) t->max_depth = e[i].size;
    }
    close_nodes(t, path, 0, open);
}

mf_status mf__token_trie_create(const mf__tokenizer *tok, mf__token_trie **out, mf_error *err) {
    *out = NULL;
    mf__token_trie *t = calloc(1, sizeof *t);
    entry *e = malloc(((size_t)tok->n_vocab + 1) * sizeof *e);
    uint32_t *path = malloc((UINT16_MAX + 1) * sizeof *path);
    bool *added = calloc((size_t)tok->n_vocab + 1, 1);
    mf_status status = MF_OK;
    if (t && e && path && added) {
        uint32_t kept = collect(tok, added, e);
        size_t n_nodes = 1;
        qsort(e, kept, sizeof *e, compare);
        for (uint32_t i = 0; i < kept; i++) n_nodes += e[i].size - (i ? common(&e[i - 1], &e[i]) : 0);
        t->tok = tok;
        t->nodes = malloc(n_nodes * sizeof *t->nodes);
        t->tokens = malloc(((size_t)kept + 1) * sizeof *t->tokens);
        if (t->nodes && t->tokens)
            lay_down(t, e, kept, path);
        else
            status = mf__fail(err, MF_E_NOMEM, "no memory for the tree of %u tokens", (unsigned)kept);
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
    free(t->nodes);
    free(t->tokens);
    free(t);
}
