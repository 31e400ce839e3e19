/* Byte-pair merging: see bpe.h. */
#include "text/bpe.h"

#include <stdlib.h>
#include <string.h>

#define NO_RANK UINT32_MAX
#define NO_NODE UINT32_MAX

/* A symbol of the piece. Symbols form a list; a merged one stays at its left part's place. */
typedef struct mf__bpe_node {
    int32_t id;
    uint32_t prev, next;
    uint32_t rank; /* of the pair with next; NO_RANK: they do not merge, or this node is gone */
    int32_t merged;
} node;

mf_status mf__bpe_pairs_init(mf__bpe_pairs *pairs, size_t n_merges, mf_error *err) {
    size_t capacity = 16;
    while (capacity < n_merges + n_merges / 2) capacity *= 2;
    pairs->slots = malloc(capacity * sizeof *pairs->slots);
    if (!pairs->slots) return mf__fail(err, MF_E_NOMEM, "no memory for %zu merges", n_merges);
    for (size_t i = 0; i < capacity; i++) pairs->slots[i] = (mf__bpe_pair){-1, -1, 0, 0};
    pairs->mask = (uint32_t)(capacity - 1);
    return MF_OK;
}

void mf__bpe_pairs_set(mf__bpe_pairs *pairs, int32_t left, int32_t right, uint32_t rank, int32_t merged) {
    uint32_t i = mf__bpe_hash(left, right) & pairs->mask;
    while (pairs->slots[i].left >= 0 && (pairs->slots[i].left != left || pairs->slots[i].right != right))
        i = (i + 1) & pairs->mask;
    pairs->slots[i] = (mf__bpe_pair){left, right, rank, merged};
}

void mf__bpe_scratch_free(mf__bpe_scratch *s) {
    free(s->nodes);
    free(s->heap);
    *s = (mf__bpe_scratch){0};
}

static mf_status reserve(mf__bpe_scratch *s, size_t n, bool heap, mf_error *err) {
    if (n > s->nodes_capacity) {
        size_t capacity = n < 256 ? 256 : n + n / 2;
        void *nodes = realloc(s->nodes, capacity * sizeof *s->nodes);
        if (!nodes) return mf__fail(err, MF_E_NOMEM, "no memory to encode a piece of %zu bytes", n);
        s->nodes = nodes;
        s->nodes_capacity = capacity;
    }
    /* Every node starts with one pair and every merge makes at most two more. */
    if (heap && n * 3 > s->heap_capacity) {
        void *more = realloc(s->heap, n * 3 * sizeof *s->heap);
        if (!more) return mf__fail(err, MF_E_NOMEM, "no memory to encode a piece of %zu bytes", n);
        s->heap = more;
        s->heap_capacity = n * 3;
    }
    return MF_OK;
}

static void push(mf__bpe_scratch *s, uint64_t key) {
    size_t i = s->heap_size++;
    while (i > 0 && s->heap[(i - 1) / 2] > key) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = key;
}

static uint64_t pop(mf__bpe_scratch *s) {
    uint64_t top = s->heap[0], key = s->heap[--s->heap_size];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->heap_size) break;
        if (child + 1 < s->heap_size && s->heap[child + 1] < s->heap[child]) child++;
        if (s->heap[child] >= key) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = key;
    return top;
}

/* Looks up what node i and its successor merge to. */
static void pair_up(const mf__bpe_pairs *pairs, mf__bpe_scratch *s, uint32_t i, bool heap) {
    node *a = &s->nodes[i];
    a->rank = NO_RANK;
    if (a->next == NO_NODE) return;
    const mf__bpe_pair *p = mf__bpe_pairs_get(pairs, a->id, s->nodes[a->next].id);
    s->n_steps++;
    if (!p) return;
    a->rank = p->rank;
    a->merged = p->merged;
    if (heap) push(s, (uint64_t)p->rank << 32 | i);
}

static void merge_at(const mf__bpe_pairs *pairs, mf__bpe_scratch *s, uint32_t i, bool heap) {
    node *a = &s->nodes[i], *b = &s->nodes[a->next];
    a->id = a->merged;
    a->next = b->next;
    b->rank = NO_RANK;
    if (a->next != NO_NODE) s->nodes[a->next].prev = i;
    pair_up(pairs, s, i, heap);
    if (a->prev != NO_NODE) pair_up(pairs, s, a->prev, heap);
}

/* The best pair by walking the list; NO_NODE when nothing merges. */
static uint32_t scan(const mf__bpe_scratch *s) {
    uint32_t best = NO_NODE, rank = NO_RANK;
    for (uint32_t i = 0; i != NO_NODE; i = s->nodes[i].next)
        if (s->nodes[i].rank < rank) {
            rank = s->nodes[i].rank;
            best = i;
        }
    return best;
}

/* The best pair from the heap. An entry is stale when its node's pair has another rank by now: a pair's rank is its
 * own, and a node never returns to a pair it had. */
static uint32_t take(mf__bpe_scratch *s) {
    while (s->heap_size) {
        uint64_t key = pop(s);
        uint32_t i = (uint32_t)key;
        if (s->nodes[i].rank == (uint32_t)(key >> 32)) return i;
    }
    return NO_NODE;
}

mf_status mf__bpe_merge(const mf__bpe_pairs *pairs, mf__bpe_scratch *s, int32_t *ids, size_t *n, size_t scan_below,
                        mf_error *err) {
    size_t count = *n;
    if (count < 2) return MF_OK;
    bool heap = count >= scan_below;
    MF__TRY(reserve(s, count, heap, err));
    s->heap_size = 0;
    for (size_t i = 0; i < count; i++)
        s->nodes[i] =
            (node){ids[i], i ? (uint32_t)i - 1 : NO_NODE, i + 1 < count ? (uint32_t)i + 1 : NO_NODE, NO_RANK, 0};
    for (size_t i = 0; i + 1 < count; i++) pair_up(pairs, s, (uint32_t)i, heap);
    for (uint32_t i; (i = heap ? take(s) : scan(s)) != NO_NODE;) merge_at(pairs, s, i, heap);
    size_t left = 0;
    for (uint32_t i = 0; i != NO_NODE; i = s->nodes[i].next) ids[left++] = s->nodes[i].id;
    *n = left;
    return MF_OK;
}
