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

/* Rank `from` has the table in owners, the others get it. */
static mf_status broadcast(int from, uint64_t *owners, size_t n, mf_error *err) {
    MPI_Request request;
    MPI_Status status;
    if (MPI_Ibcast(owners, (int)n, MPI_UINT64_T, from, MPI_COMM_WORLD, &request) == MPI_SUCCESS &&
        cluster_wait(&request, &status, 0))
        return MF_OK;
    return mf__fail(err, MF_E_IO, "the ranks of the job could not be reached");
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

static mf_status make_owners(const mf_model *model, size_t n, uint64_t **out, mf_error *err) {
    int from = source_rank();
    mf_status st = MF_OK;
    if (from < 0) return by_weight(NULL, NULL, out, err);
    uint64_t *owners = *out = calloc(n, sizeof *owners);
    if (!owners) return mf__fail(err, MF_E_NOMEM, "no memory for the share of each rank");
    if (from == cluster.rank && cluster.hello[from].shard_ranks)
        memcpy(owners, mf__model_shard(model)->owners, n * sizeof *owners);
    else if (from == cluster.rank)
        st = by_routes(model, n, owners, err);
    mf_status sent = broadcast(from, owners, n, st == MF_OK ? err : NULL); /* also after a failure: the others wait */
    return st == MF_OK ? sent : st;
}

mf_status cluster_share(mf_model *model, uint64_t **owners, mf_error *err) {
    const wire_hello *h = cluster.hello;
    size_t n = (size_t)h->n_layers * (size_t)h->n_experts;
    bool *own = malloc(n);
    *owners = NULL;
    mf_status st = own ? make_owners(model, n, owners, err) : mf__fail(err, MF_E_NOMEM, "no memory for %zu experts", n);
    for (size_t i = 0; st == MF_OK && i < n; i++) own[i] = (*owners)[i] >> cluster.rank & 1;
    if (st == MF_OK) st = mf_experts_own(model, own, n, err);
    free(own);
    st = cluster_agree(st, err);
    if (st == MF_OK) return MF_OK;
    free(*owners);
    *owners = NULL;
    return st;
}
