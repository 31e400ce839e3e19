/* A cache without contents: which experts it would hold. */
#include "cache_hits.h"

#include <stdlib.h>
#include <string.h>

#include "store/policy.h"

typedef struct cache {
    mf__ranking ranking;
    mf__key *keys;    /* [n_slots] */
    int32_t *slot_of; /* [layers * experts]: -1, not here */
    bool *pinned;     /* [n_slots]: wanted by the turn at hand */
    int n_slots, n_used;
    /* [top_k] each, of the turn at hand */
    mf__key *missing;
    int32_t *victims;
    double *worths;
} cache;

static bool may_go(const void *ctx, int slot) {
    return !((const cache *)ctx)->pinned[slot];
}

/* Returns how many of the n experts were there; afterwards all are, as far as there is room. */
static int turn(cache *c, int layer, const int32_t *ids, int n) {
    const mf__ranking *r = &c->ranking;
    int hits = 0, n_missing = 0, n_victims = 0;
    r->policy->use(r->state, r->n_experts, layer, ids, NULL, n, 1);
    for (int i = 0; i < n; i++) {
        mf__key key = layer * r->n_experts + ids[i];
        if (c->slot_of[key] >= 0)
            hits++, c->pinned[c->slot_of[key]] = true;
        else
            c->missing[n_missing++] = key;
    }
    int n_free = c->n_slots - c->n_used, n_evict = n_missing - n_free;
    if (n_evict > 0)
        n_victims = mf__ranking_worst(r, c->keys, c->n_slots, layer, may_go, c, n_evict, c->victims, c->worths);
    for (int i = 0, v = 0; i < n_missing; i++) {
        int slot = c->n_used < c->n_slots ? c->n_used++ : v < n_victims ? c->victims[v++] : -1;
        if (slot < 0) break;
        if (c->keys[slot] >= 0) c->slot_of[c->keys[slot]] = -1;
        c->keys[slot] = c->missing[i];
        c->slot_of[c->missing[i]] = slot;
    }
    for (int i = 0; i < n; i++) {
        int32_t slot = c->slot_of[layer * r->n_experts + ids[i]];
        if (slot >= 0) c->pinned[slot] = false;
    }
    return hits;
}

static bool make(cache *c, const routes *r, int64_t n_slots) {
    size_t n = (size_t)n_slots, k = (size_t)r->top_k, all = (size_t)r->n_layers * (size_t)r->n_experts;
    const mf__policy *policy = mf__policies[0];
    *c = (cache){.ranking = {.policy = policy, .n_layers = r->n_layers, .n_experts = r->n_experts},
                 .n_slots = (int)n_slots};
    c->ranking.state = calloc(1, policy->bytes(r->n_layers, r->n_experts) + 1);
    c->keys = calloc(n, sizeof *c->keys);
    c->slot_of = calloc(all, sizeof *c->slot_of);
    c->pinned = calloc(n, sizeof *c->pinned);
    c->missing = calloc(k, sizeof *c->missing);
    c->victims = calloc(k, sizeof *c->victims);
    c->worths = calloc(k, sizeof *c->worths);
    if (!c->ranking.state || !c->keys || !c->slot_of || !c->pinned || !c->missing || !c->victims || !c->worths)
        return false;
    memset(c->keys, 0xff, n * sizeof *c->keys);
    memset(c->slot_of, 0xff, all * sizeof *c->slot_of);
    return true;
}

mf_status cache_hits(const routes *r, int64_t n_slots, double *share, mf_error *err) {
    cache c;
    int64_t hits = 0, wanted = 0;
    if (n_slots < 1) n_slots = 1;
    mf_status st = make(&c, r, n_slots) ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory to replay routes");
    for (int64_t t = 0; st == MF_OK && t < r->n_tokens; t++)
        for (int l = 0; l < r->n_layers; l++) {
            int found = turn(&c, l, r->ids + (t * r->n_layers + l) * r->top_k, r->top_k);
            if (t < r->n_tokens / 2) continue;
            hits += found;
            wanted += r->top_k;
        }
    *share = wanted ? (double)hits / (double)wanted : 0;
    free(c.ranking.state);
    free(c.keys);
    free(c.slot_of);
    free(c.pinned);
    free(c.missing);
    free(c.victims);
    free(c.worths);
    return st;
}
