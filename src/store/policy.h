/* Cache policies: which expert should make room for another. A policy sees uses, and gives every expert a worth; the
 * store evicts the unpinned slots of least worth. Adding one is a file with these functions and a row in policy.c.
 *
 * Time is counted in ticks, layer by layer: one for each token of a prompt, and one for all the rows of a pass that
 * decode, however many. The order of turns is cyclic over layers, which is why recency alone fails on small caches. */
#ifndef MF_STORE_POLICY_H
#define MF_STORE_POLICY_H

#include "base/status.h"

/* An expert's number over all layers: layer * n_experts + expert. */
typedef int32_t mf__key;

typedef struct mf__policy mf__policy;

struct mf__policy {
    const char *name;
    size_t (*bytes)(int n_layers, int n_experts); /* of state; 8-byte aligned and zeroed before the first use */
    /* One turn of a layer, of n_ticks: counts[i] of its tokens want expert ids[i] (counts NULL: one in every tick).
     * Called once per turn, before worth() is asked about victims for it. */
    void (*use)(void *state, int n_experts, int layer, const int32_t *ids, const int32_t *counts, int n, int n_ticks);
    /* Larger stays longer; `now` is the layer whose turn it is. */
    double (*worth)(const void *state, int n_layers, int n_experts, mf__key key, int now);
    float (*chance)(const void *state, mf__key key); /* that a tick wants the expert; NULL: it has no estimate */
};

extern const mf__policy mf__policy_lru; /* least recently used */
extern const mf__policy mf__policy_lfu; /* least frequently used, with ageing */
extern const mf__policy
    mf__policy_horizons; /* recency and frequency over several horizons, and the place in the cycle */

extern const mf__policy *const mf__policies[];       /* NULL ends; the first is the default */
const mf__policy *mf__policy_find(const char *name); /* NULL or "auto": the default; NULL when unknown */

/* A policy with its state, as the store and the replay use it. */
typedef struct mf__ranking {
    const mf__policy *policy;
    void *state;
    int n_layers, n_experts;
} mf__ranking;

/* The n keys of least worth among keys[0..n_keys) that are evictable, worst first, as indices into keys. Returns how
 * many there are. evictable(ctx, i) says whether index i may go. worths is scratch of n values. */
int mf__ranking_worst(const mf__ranking *r, const mf__key *keys, int n_keys, int now,
                      bool (*evictable)(const void *ctx, int index), const void *ctx, int n, int32_t *out,
                      double *worths);

#endif
