/* Constraints: one text under way, and the tokens that may follow. The machine (machine.h) knows where it is. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/mask.h"

#define MAX_WAY 16384      /* bytes of an end that are worth cutting into tokens */
#define MAX_END (64 << 20) /* bytes of an end at most */

struct mf__constraint {
    mf__machine m;
    mf__masks masks;
    mf__place here;
    const mf__token_trie *trie;
    uint32_t *mask; /* the last answer of mf__constraint_mask */
    bool fresh;     /* ... is about here */
    int32_t *eos;
    int n_eos;
    bool ended;
};

mf_status mf__constraint_create(const mf__grammar *g, const mf__token_trie *trie, int32_t n_vocab, const int32_t *eos,
                                int n_eos, mf__constraint **out, mf_error *err) {
    *out = NULL;
    for (int i = 0; i < n_eos; i++)
        if (eos[i] < 0 || eos[i] >= n_vocab)
            return mf__fail(err, MF_E_TOKEN, "end token %d; the vocabulary has %d", (int)eos[i], (int)n_vocab);
    mf__constraint *c = calloc(1, sizeof *c);
    if (!c) return mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
    c->trie = trie;
    c->n_eos = n_eos;
    c->eos = malloc(((size_t)n_eos + 1) * sizeof *c->eos);
    mf_status status = mf__masks_init(&c->masks, trie, n_vocab, err);
    if (status == MF_OK) status = mf__machine_init(&c->m, g, err);
    if (status == MF_OK) {
        c->mask = calloc(c->masks.n_words, sizeof *c->mask);
        if (!c->mask || !c->eos) status = mf__fail(err, MF_E_NOMEM, "no memory for constrained output");
    }
    if (status == MF_OK && n_eos) memcpy(c->eos, eos, (size_t)n_eos * sizeof *eos);
    if (status == MF_OK) status = mf__machine_start(&c->m, &c->here, err);
    if (status != MF_OK) return mf__constraint_free(c), status;
    *out = c;
    return MF_OK;
}

void mf__constraint_free(mf__constraint *c) {
    if (!c) return;
    mf__machine_deinit(&c->m);
    mf__masks_deinit(&c->masks);
    free(c->mask);
    free(c->eos);
    free(c);
}

void mf__constraint_order(mf__constraint *c) {
    c->m.sets.ordered = true;
    c->fresh = false;
    mf__masks_forget(&c->masks);
}

void mf__constraint_reset(mf__constraint *c) {
    c->ended = c->fresh = false;
    mf__machine_start(&c->m, &c->here, NULL); /* the memory was enough before: nothing to fail */
}

mf_status mf__constraint_mask(mf__constraint *c, const uint32_t **out, mf_error *err) {
    *out = NULL;
    if (!c->fresh) {
        memset(c->mask, 0, c->masks.n_words * sizeof *c->mask);
        MF__TRY(mf__masks_add(&c->masks, &c->m, &c->here, c->mask, err));
        for (int i = 0; c->here.complete && i < c->n_eos; i++) c->mask[c->eos[i] / 32] |= 1u << c->eos[i] % 32;
        c->fresh = true;
    }
    *out = c->mask;
    return MF_OK;
}

/* Where the bytes lead; the stacks stay as high as they have become. */
static mf_status follow(mf__constraint *c, const char *bytes, size_t n, mf__place *out, mf_error *err) {
    *out = c->here;
    for (size_t i = 0; i < n && mf__place_alive(out); i++) {
        mf__place next;
        MF__TRY(mf__machine_step(&c->m, out, (uint8_t)bytes[i], &next, err));
        *out = next;
    }
    return MF_OK;
}

mf_status mf__constraint_accept_within(mf__constraint *c, int32_t token, uint64_t left, mf_error *err) {
    for (int i = 0; i < c->n_eos; i++)
        if (token == c->eos[i] && c->here.complete) return c->ended = true, MF_OK;
    size_t n;
    const char *bytes = mf__tokenizer_bytes(c->trie->tok, token, &n);
    mf__place to;
    mf_status status = follow(c, bytes, n, &to, err);
    if (status == MF_OK && (n == 0 || !mf__place_alive(&to) || c->ended))
        status = mf__fail(err, MF_E_INVALID, "token %d is not allowed by the grammar here", (int)token);
    if (status == MF_OK && left != UINT64_MAX && mf__machine_distance(&c->m, &to) > left)
        status = mf__fail(err, MF_E_LIMIT, "after token %d the text cannot be ended with %llu more", (int)token,
                          (unsigned long long)left);
    if (status != MF_OK) return mf__machine_cut(&c->m, &c->here), status;
    MF__TRY(mf__machine_keep(&c->m, &to, err));
    c->here = to;
    c->fresh = false;
    return MF_OK;
}

mf_status mf__constraint_accept(mf__constraint *c, int32_t token, mf_error *err) {
    return mf__constraint_accept_within(c, token, UINT64_MAX, err);
}

bool mf__constraint_complete(const mf__constraint *c) {
    return c->here.complete;
}

bool mf__constraint_ended(const mf__constraint *c) {
    return c->ended || c->here.n == 0;
}

/* ---- the shortest end -------------------------------------------------------------------------------------------- */

/* The byte that leads nearest to the end. Every edge's first byte is tried: its others lead to the same state. */
static mf_status nearest(mf__constraint *c, const mf__place *at, uint8_t *byte, uint64_t *distance, mf_error *err) {
    bool tried[256] = {false};
    *distance = UINT64_MAX;
    for (uint32_t i = 0; i < at->n; i++) {
        const mf__state *s = &c->m.g->states[c->m.items[at->first + i].state];
        for (uint32_t e = 0; e < s->n_edges; e++) {
            uint8_t b = c->m.g->edges[s->edges + e].lo;
            mf__place to;
            if (tried[b]) continue;
            tried[b] = true;
            MF__TRY(mf__machine_step(&c->m, at, b, &to, err));
            uint64_t d = mf__place_alive(&to) ? mf__machine_distance(&c->m, &to) : UINT64_MAX;
            mf__machine_cut(&c->m, at);
            if (d < *distance) *distance = d, *byte = b;
        }
    }
    return MF_OK;
}

/* The shortest text from a place to the end of the text. */
static mf_status shortest_from(mf__constraint *c, mf__place at, mf__strbuf *out, mf_error *err) {
    uint64_t limit = mf__machine_distance(&c->m, &at);
    if (limit > MAX_END && !at.complete)
        return mf__fail(err, MF_E_LIMIT, "the shortest end of the text has %llu bytes", (unsigned long long)limit);
    for (uint64_t n = 0; !at.complete; n++) {
        uint8_t byte = 0;
        uint64_t d;
        mf__place next;
        MF__TRY(nearest(c, &at, &byte, &d, err));
        if (d == UINT64_MAX || n > limit * 4 + 64)
            return mf__fail(err, MF_E_INTERNAL, "the grammar came to a dead end");
        MF__TRY(mf__strbuf_append(out, &byte, 1, err));
        MF__TRY(mf__machine_step(&c->m, &at, byte, &next, err));
        at = next;
    }
    return MF_OK;
}

mf_status mf__constraint_shortest(mf__constraint *c, mf__strbuf *out, mf_error *err) {
    mf_status status = shortest_from(c, c->here, out, err);
    mf__machine_cut(&c->m, &c->here);
    return status;
}

/* Appends the shortest text behind a token, unless it is certain to be more than `limit` tokens. */
static mf_status shortest_behind(mf__constraint *c, int32_t token, uint64_t limit, mf__strbuf *out, bool *too_long,
                                 mf_error *err) {
    size_t n = 0;
    const char *bytes = token < 0 ? "" : mf__tokenizer_bytes(c->trie->tok, token, &n);
    mf__place at;
    MF__TRY(follow(c, bytes, n, &at, err));
    uint64_t distance = mf__machine_distance(&c->m, &at);
    *too_long = !mf__place_alive(&at) || distance > MAX_WAY || distance / (c->trie->max_depth + 1) > limit;
    return *too_long ? MF_OK : shortest_from(c, at, out, err);
}

mf_status mf__constraint_way(mf__constraint *c, int32_t token, uint64_t limit, uint64_t *n, int32_t *first,
                             mf_error *err) {
    mf__strbuf text = {0};
    bool too_long = false;
    *n = 0;
    *first = -1;
    mf_status status = shortest_behind(c, token, limit, &text, &too_long, err);
    mf__machine_cut(&c->m, &c->here);
    for (size_t at = 0, used; status == MF_OK && !too_long && at < text.size; at += used) {
        int32_t id = mf__token_trie_longest(c->trie, text.data + at, text.size - at, c->masks.n_vocab, &used);
        too_long = id < 0 || ++*n > limit;
        if (at == 0) *first = id;
        if (id < 0) break;
    }
    mf__strbuf_free(&text);
    if (too_long) *n = limit + 1;
    return status;
}
