/* Least frequently used, with ageing: every use counts 1 and loses half its weight every HALF_LIFE ticks.
 *
 * With s the sum at the time t of the last use, the sum now is s * 2^-((now - t) / HALF_LIFE). All layers being within
 * one tick of each other, log2(s) + t / HALF_LIFE orders experts at any time without touching those not used. */
#include "store/policy.h"

#include <math.h>

#define HALF_LIFE 25.0

typedef struct lfu_entry {
    double sum, last;
} lfu_entry;

/* The state is [n_layers][n_experts + 1] entries; the last of a layer is its clock, in ticks. */
static lfu_entry *layer_of(void *state, int n_experts, int layer) {
    return (lfu_entry *)state + (size_t)layer * ((size_t)n_experts + 1);
}

static size_t lfu_bytes(int n_layers, int n_experts) {
    return (size_t)n_layers * ((size_t)n_experts + 1) * sizeof(lfu_entry);
}

static void lfu_use(void *state, int n_experts, int layer, const int32_t *ids, const int32_t *counts, int n,
                    int n_ticks) {
    lfu_entry *e = layer_of(state, n_experts, layer);
    double now = e[n_experts].last += n_ticks;
    for (int i = 0; i < n; i++) {
        lfu_entry *x = &e[ids[i]];
        x->sum = x->sum * exp2(-(now - x->last) / HALF_LIFE) + (counts ? counts[i] : n_ticks);
        x->last = now;
    }
}

static double lfu_worth(const void *state, int n_layers, int n_experts, mf__key key, int now) {
    const lfu_entry *x = layer_of((void *)state, n_experts, key / n_experts) + key % n_experts;
    (void)n_layers, (void)now;
    return x->sum > 0 ? log2(x->sum) + x->last / HALF_LIFE : -INFINITY;
}

const mf__policy mf__policy_lfu = {.name = "lfu", .bytes = lfu_bytes, .use = lfu_use, .worth = lfu_worth};
