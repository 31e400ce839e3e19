/* Which ranks have which experts: the same table on all of them. */
#include <stdlib.h>
#include <string.h>

#include "engine/experts.h"
#include "wire.h"

/* The rank whose table all take over: the first with a shard, or rank 0 if it was given routes; -1: none, and everybody
 * computes the same. */
static int source_rank(void) {
    for (int r = 0; r < cluster.size; r++)
        if (cluster.hello[r].shard_ranks) return r;
    return cluster.hello[0].has_placement ? 0 : -1;
}

static mf_status by_weight(const bool *has, const char *routes, uint64_t **owners, mf_error *err) {
    const wire_hello *h = cluster.hello;
    int64_t weights[WIRE_MAX_RANKS];
    for (int k = 0; k < cluster.size; k++) weights[k] = h[k].budget > 0 ? h[k].budget : 1;
    placement p = {.n_ranks = cluster.size,
                   .n_layers = h->n_layers,
                   .n_experts = h->n_experts,
                   .has = has,
                   .weights = weights,
                   .routes = routes};
    int64_t all = 0;
    for (int k = 0; k < cluster.size; k++) all += weights[k];
    if (routes && h->expert_bytes > 0) /* memory that is left over has copies; a little stays free */
        p.extra = 0.95 * (double)all / (double)h->expert_bytes - 1;
    if (p.extra < 0) p.extra = 0;
    return placement_make(&p, owners, err);
}

/* Rank `from` has the table in owners; rank 0 gets it, and then the others. */
static mf_status broadcast(int from, uint64_t *owners, size_t n, mf_error *err) {
    size_t size = n * sizeof *owners;
    if (cluster.rank && cluster.rank == from) return cluster_exchange(0, WIRE_TAG_SHARE, true, owners, size, err);
    if (cluster.rank) return cluster_exchange(0, WIRE_TAG_SHARE, false, owners, size, err);
    if (from) MF__TRY(cluster_exchange(from, WIRE_TAG_SHARE, false, owners, size, err));
    for (int r = 1; r < cluster.size; r++)
        if (r != from) MF__TRY(cluster_exchange(r, WIRE_TAG_SHARE, true, owners, size, err));
    return MF_OK;
}

/* By the routes that rank 0 was given: copied to owners. */
static mf_status by_routes(const mf_model *model, size_t n, uint64_t *owners, mf_error *err) {
    const wire_hello *h = cluster.hello;
    uint64_t *made = NULL;
    bool *has = calloc((size_t)h->n_layers, sizeof *has);
    if (!has) return mf__fail(err, MF_E_NOMEM, "no memory for the share of each rank");
    for (int l = 0; l < h->n_layers; l++) has[l] = mf__model_has_experts(model, l);
    mf_status st = by_weight(has, cluster.placement, &made, err);
    if (st == MF_OK) memcpy(owners, made, n * sizeof *owners);
    free(made);
    free(has);
    return st;
}

/* Owners as far as this rank makes them: those of the job, or a place for them. */
static mf_status make_owners(const mf_model *model, int from, size_t n, uint64_t **out, mf_error *err) {
    if (from < 0) return by_weight(NULL, NULL, out, err);
    uint64_t *owners = *out = calloc(n, sizeof *owners);
    if (!owners) return mf__fail(err, MF_E_NOMEM, "no memory for the share of each rank");
    if (from == cluster.rank && cluster.hello[from].shard_ranks)
        memcpy(owners, mf__model_shard(model)->owners, n * sizeof *owners);
    else if (from == cluster.rank)
        return by_routes(model, n, owners, err);
    return MF_OK;
}

/* All ranks take the same steps, whatever fails on one of them. */
static mf_status share(mf_model *model, mf_status st, bool *own, size_t n, uint64_t **owners, mf_error *err) {
    int from = source_rank();
    if (st == MF_OK && !own) st = mf__fail(err, MF_E_NOMEM, "no memory for %zu experts", n);
    if (st == MF_OK) st = make_owners(model, from, n, owners, err);
    MF__TRY(cluster_agree(st, err));
    if (from >= 0) st = broadcast(from, *owners, n, err);
    for (size_t i = 0; st == MF_OK && i < n; i++) own[i] = (*owners)[i] >> cluster.rank & 1;
    if (st == MF_OK) st = mf_experts_own(model, own, n, err);
    return cluster_agree(st, err);
}

mf_status cluster_share(mf_model *model, mf_status st, uint64_t **owners, mf_error *err) {
    size_t n = (size_t)cluster.hello->n_layers * (size_t)cluster.hello->n_experts;
    bool *own = malloc(n);
    *owners = NULL;
    st = share(model, st, own, n, owners, err);
    free(own);
    if (st == MF_OK) return MF_OK;
    if (!cluster.lost) free(*owners); /* otherwise MPI may still use it */
    *owners = NULL;
    return st;
}
