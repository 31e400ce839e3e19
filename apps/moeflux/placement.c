/* Placing experts on ranks: by a hash, or by how often a recorded text wanted them. */
#include "placement.h"

#include <stdlib.h>
#include <string.h>

#include "routes.h"

#define EXPERT_COST 8 /* of having an expert at all, in rows: reading its weights from memory */

/* ---- by a hash --------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Experts of a layer in an order of its own: the r-th of them for a number that no two share. */
static uint64_t order_of(int layer, int expert) {
    return (mix((uint64_t)layer << 32 | (uint32_t)expert) & ~(uint64_t)0xFFFF) | (uint64_t)expert;
}

static double weight_of(const placement *p, int rank) {
    return p->weights[rank] > 0 ? (double)p->weights[rank] : 1;
}

/* Cuts n places in pieces as long as the ranks are heavy. Where the first begins differs from layer to layer, so that
 * rounding is not always at the cost of the same rank. */
static int rank_of(const placement *p, int layer, double place, double all) {
    double n = p->n_experts, at = place + (double)(mix((uint64_t)layer + 1) >> 40) / (double)(1 << 24);
    double end = weight_of(p, 0) / all * n;
    int r = 0;
    if (at >= n) at -= n;
    while (r + 1 < p->n_ranks && at >= end) end += weight_of(p, ++r) / all * n;
    return r;
}

static void place_layer(const placement *p, int layer, double all, uint64_t *owners) {
    for (int e = 0; e < p->n_experts; e++) {
        int place = 0;
        for (int o = 0; o < p->n_experts; o++) place += order_of(layer, o) < order_of(layer, e);
        owners[e] = (uint64_t)1 << rank_of(p, layer, place, all);
    }
}

/* ---- by popularity ----------------------------------------------------------------------------------------------- */

typedef struct want {
    int64_t count;
    int layer, expert;
} want;

static int by_count(const void *a, const void *b) {
    const want *x = a, *y = b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

/* How often each expert was wanted, [n_layers][n_experts]; malloc'd. */
static mf_status count_wants(const placement *p, const routes *r, int64_t **out, mf_error *err) {
    int n = 0, *layer_of = calloc((size_t)p->n_layers, sizeof *layer_of);
    int64_t *counts = calloc((size_t)p->n_layers * (size_t)p->n_experts, sizeof *counts);
    mf_status st = layer_of && counts ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory to count experts");
    for (int l = 0; st == MF_OK && l < p->n_layers; l++)
        if (!p->has || p->has[l]) layer_of[n++] = l;
    if (st == MF_OK && (r->n_layers != n || r->n_experts != p->n_experts))
        st = mf__fail(err, MF_E_MISMATCH, "%s is of a model with %d layers of %d experts, this one has %d of %d",
                      p->routes, r->n_layers, r->n_experts, n, p->n_experts);
    for (int64_t t = 0; st == MF_OK && t < r->n_tokens; t++)
        for (int l = 0; l < n; l++)
            for (int k = 0; k < r->top_k; k++)
                counts[layer_of[l] * p->n_experts + r->ids[(t * n + l) * r->top_k + k]]++;
    free(layer_of);
    *out = st == MF_OK ? counts : NULL;
    if (st != MF_OK) free(counts);
    return st;
}

/* The most wanted experts first, each to the rank with the least work that has room left in this layer. */
static void place_popular(const placement *p, int layer, double all, const int64_t *counts, want *order,
                          uint64_t *owners) {
    int room[PLACEMENT_RANKS] = {0};
    int64_t work[PLACEMENT_RANKS] = {0};
    for (int e = 0; e < p->n_experts; e++) {
        room[rank_of(p, layer, e, all)]++;
        order[e] = (want){counts[e], layer, e};
    }
    qsort(order, (size_t)p->n_experts, sizeof *order, by_count);
    for (int i = 0; i < p->n_experts; i++) {
        int to = -1;
        for (int r = 0; r < p->n_ranks; r++)
            if (room[r] && (to < 0 || work[r] < work[to])) to = r;
        owners[order[i].expert] = (uint64_t)1 << to;
        room[to]--;
        work[to] += order[i].count;
    }
}

/* The work of each rank in a layer, where owners of the same expert share it. */
static void work_of(const placement *p, const uint64_t *owners, const int64_t *counts, double *work) {
    for (int r = 0; r < p->n_ranks; r++) work[r] = 0;
    for (int e = 0; e < p->n_experts; e++) {
        int n = 0;
        for (int r = 0; r < p->n_ranks; r++) n += (int)(owners[e] >> r & 1);
        for (int r = 0; r < p->n_ranks; r++)
            if (owners[e] >> r & 1) work[r] += (double)counts[e] / n;
    }
}

/* Copies of the most wanted experts of all layers, each where its layer has least work, while there is room. */
static void replicate(const placement *p, double all, const int64_t *counts, const want *order, uint64_t *owners) {
    int64_t room[PLACEMENT_RANKS], left = 0, n = (int64_t)p->n_layers * p->n_experts;
    double work[PLACEMENT_RANKS];
    for (int r = 0; r < p->n_ranks; r++) left += room[r] = (int64_t)(p->extra * (double)n * weight_of(p, r) / all);
    for (int64_t i = 0; i < n && left > 0 && order[i].count; i++) {
        int64_t first = (int64_t)order[i].layer * p->n_experts;
        uint64_t *mine = owners + first + order[i].expert;
        int to = -1;
        work_of(p, owners + first, counts + first, work);
        for (int r = 0; r < p->n_ranks; r++)
            if (room[r] && !(*mine >> r & 1) && (to < 0 || work[r] < work[to])) to = r;
        if (to < 0) continue;
        *mine |= (uint64_t)1 << to;
        room[to]--;
        left--;
    }
}

static mf_status make_popular(const placement *p, double all, uint64_t *owners, mf_error *err) {
    routes r;
    int64_t *counts = NULL, n = (int64_t)p->n_layers * p->n_experts;
    MF__TRY(routes_read(p->routes, &r, err));
    mf_status st = count_wants(p, &r, &counts, err);
    routes_free(&r);
    MF__TRY(st);
    want *order = calloc((size_t)n, sizeof *order);
    if (order) {
        for (int l = 0; l < p->n_layers; l++)
            if (!p->has || p->has[l])
                place_popular(p, l, all, counts + (int64_t)l * p->n_experts, order + (int64_t)l * p->n_experts,
                              owners + (int64_t)l * p->n_experts);
        qsort(order, (size_t)n, sizeof *order, by_count);
        replicate(p, all, counts, order, owners);
    }
    free(counts);
    free(order);
    return order ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory to place %lld experts", (long long)n);
}

mf_status placement_make(const placement *p, uint64_t **out, mf_error *err) {
    double all = 0;
    size_t n = (size_t)p->n_layers * (size_t)p->n_experts;
    uint64_t *owners = calloc(n, sizeof *owners);
    *out = NULL;
    if (!owners) return mf__fail(err, MF_E_NOMEM, "no memory to place %zu experts", n);
    for (int r = 0; r < p->n_ranks; r++) all += weight_of(p, r);
    mf_status st = p->routes ? make_popular(p, all, owners, err) : MF_OK;
    for (int l = 0; !p->routes && l < p->n_layers; l++)
        if (!p->has || p->has[l]) place_layer(p, l, all, owners + (int64_t)l * p->n_experts);
    if (st == MF_OK)
        *out = owners;
    else
        free(owners);
    return st;
}

/* ---- in a pass --------------------------------------------------------------------------------------------------- */

void placement_choose(const uint64_t *owners, const int32_t *ids, const int32_t *rows, int n, int n_ranks,
                      int64_t *total, uint8_t *chosen) {
    int64_t work[PLACEMENT_RANKS] = {0};
    for (int several = 0; several < 2; several++) /* those that can be in one place only come first */
        for (int i = 0; i < n; i++) {
            uint64_t who = owners[ids[i]];
            if (((who & (who - 1)) != 0) != several) continue;
            int to = -1;
            for (int r = 0; r < n_ranks; r++) {
                if (!(who >> r & 1)) continue;
                if (to < 0 || work[r] < work[to] || (work[r] == work[to] && total[r] < total[to])) to = r;
            }
            chosen[i] = (uint8_t)(to < 0 ? 0 : to);
            work[chosen[i]] += EXPERT_COST + (rows ? rows[i] : 1);
            total[chosen[i]] += EXPERT_COST + (rows ? rows[i] : 1);
        }
}

/* The busiest against the mean. */
static double unevenness(const int64_t *work, int n_ranks) {
    int64_t most = 0, all = 0;
    for (int r = 0; r < n_ranks; r++) {
        all += work[r];
        if (work[r] > most) most = work[r];
    }
    return all ? (double)most * n_ranks / (double)all : 1;
}

static void measure_layer(const placement *p, const routes *r, int place, const uint64_t *owners,
                          placement_balance *out) {
    int64_t total[PLACEMENT_RANKS] = {0};
    uint8_t chosen[256];
    for (int64_t t = 0; t < r->n_tokens; t++) {
        int64_t work[PLACEMENT_RANKS] = {0};
        placement_choose(owners, r->ids + (t * r->n_layers + place) * r->top_k, NULL, r->top_k, p->n_ranks, total,
                         chosen);
        for (int k = 0; k < r->top_k; k++) work[chosen[k]]++;
        out->token += unevenness(work, p->n_ranks);
    }
    double whole = unevenness(total, p->n_ranks);
    out->text += whole;
    if (whole > out->worst) out->worst = whole;
}

mf_status placement_measure(const placement *p, const uint64_t *owners, placement_balance *out, mf_error *err) {
    routes r;
    int n = 0;
    *out = (placement_balance){0};
    MF__TRY(routes_read(p->routes, &r, err));
    for (int l = 0; l < p->n_layers && n < r.n_layers && r.top_k <= 256; l++)
        if (!p->has || p->has[l]) measure_layer(p, &r, n++, owners + (int64_t)l * p->n_experts, out);
    if (n) {
        out->text /= n;
        out->token /= (double)(n * r.n_tokens);
    }
    routes_free(&r);
    return MF_OK;
}
