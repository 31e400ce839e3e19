/* Least recently used: the worth is the number of the turn that used the expert last. */
#include "store/policy.h"

typedef struct lru {
    double turns;
    double last[]; /* [n_keys] */
} lru;

static size_t lru_bytes(int n_layers, int n_experts) {
    return sizeof(lru) + (size_t)n_layers * (size_t)n_experts * sizeof(double);
}

static void lru_use(void *state, int n_experts, int layer, const int32_t *ids, const int32_t *counts, int n,
                    int n_ticks) {
    lru *p = state;
    (void)counts, (void)n_ticks;
    p->turns++;
    for (int i = 0; i < n; i++) p->last[layer * n_experts + ids[i]] = p->turns;
}

static double lru_worth(const void *state, int n_layers, int n_experts, mf__key key, int now) {
    const lru *p = state;
    (void)n_layers, (void)n_experts, (void)now;
    return p->last[key];
}

const mf__policy mf__policy_lru = {.name = "lru", .bytes = lru_bytes, .use = lru_use, .worth = lru_worth};
