/* Recency and frequency together: the chance that a tick wants the expert is estimated from how often those
 * before did, over three horizons (exponential means with half-lives of 1, 10 and 100 ticks), and the expert whose
 * next use is expected furthest away goes first. With chance p per tick, the next use comes after the rest of this
 * cycle over the layers and (1/p - 1) more cycles.
 *
 * Horizons and weights were chosen by replaying real routes (tests/store/replay.c); results change little around
 * them. */
#include "store/policy.h"

#include <math.h>

#define N_HORIZONS 3

static const double HALF_LIFE[N_HORIZONS] = {1, 10, 100};
static const double WEIGHT[N_HORIZONS] = {0.2, 0.4, 0.4};

typedef struct horizons_entry {
    float mean[N_HORIZONS];
    float wait; /* expected cycles after the current one: 1/p - 1 */
} horizons_entry;

#define LEAST_CHANCE 1e-9

static size_t horizons_bytes(int n_layers, int n_experts) {
    return (size_t)n_layers * (size_t)n_experts * sizeof(horizons_entry);
}

/* Every expert of the layer ages by n_ticks; those used gain. */
static void horizons_use(void *state, int n_experts, int layer, const int32_t *ids, const int32_t *counts, int n,
                         int n_ticks) {
    horizons_entry *e = (horizons_entry *)state + (size_t)layer * (size_t)n_experts;
    float keep[N_HORIZONS];
    for (int h = 0; h < N_HORIZONS; h++) keep[h] = (float)exp2(-n_ticks / HALF_LIFE[h]);
    for (int i = 0; i < n_experts; i++)
        for (int h = 0; h < N_HORIZONS; h++) e[i].mean[h] *= keep[h];
    for (int i = 0; i < n; i++) {
        float rate = counts ? (float)counts[i] / (float)n_ticks : 1.0f;
        for (int h = 0; h < N_HORIZONS; h++) e[ids[i]].mean[h] += (1 - keep[h]) * rate;
    }
    for (int i = 0; i < n_experts; i++) {
        double p = LEAST_CHANCE;
        for (int h = 0; h < N_HORIZONS; h++) p += WEIGHT[h] * e[i].mean[h];
        e[i].wait = (float)(1 / p - 1);
    }
}

/* The layer whose turn it is comes again after a whole cycle, the next one after one layer. */
static double horizons_worth(const void *state, int n_layers, int n_experts, mf__key key, int now) {
    int ahead = key / n_experts - now;
    if (ahead <= 0) ahead += n_layers;
    return -((double)((const horizons_entry *)state)[key].wait + (double)ahead / n_layers);
}

static float horizons_chance(const void *state, mf__key key) {
    const horizons_entry *e = (const horizons_entry *)state + key;
    double p = 0;
    for (int h = 0; h < N_HORIZONS; h++) p += WEIGHT[h] * e->mean[h];
    return (float)p;
}

const mf__policy mf__policy_horizons = {.name = "horizons",
                                        .bytes = horizons_bytes,
                                        .use = horizons_use,
                                        .worth = horizons_worth,
                                        .chance = horizons_chance};
