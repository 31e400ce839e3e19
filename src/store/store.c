/* The store over mapped files: every expert is always "there", and the kernel's page cache does the rest.
 *
 * Invariants, for the turn between begin and end:
 *   1. given <= n_wanted; the ids [0, given) have been handed out, the others not yet.
 *   2. An address handed out stays valid until the store is closed. */
#include "store/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"

struct mf__store {
    int n_layers, n_experts;
    int64_t stride, bytes;
    mf__map *maps; /* [n_layers]; data NULL where a layer has no experts */
    /* the turn */
    int layer; /* -1: no turn */
    const int32_t *wanted;
    int n_wanted, given;
    mf__store_stats stats;
};

static mf_status map_layer(mf__store *s, int layer, const char *path, mf_error *err) {
    if (!path) return MF_OK;
    MF__TRY(mf__map_open(path, &s->maps[layer], err));
    int64_t need = (s->n_experts - 1) * s->stride + s->bytes;
    if ((int64_t)s->maps[layer].size < need)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: %zu bytes, but %d experts of %lld bytes need %lld; convert the model again", path,
                        s->maps[layer].size, s->n_experts, (long long)s->stride, (long long)need);
    return MF_OK;
}

mf_status mf__store_open(const mf__store_config *config, mf__store **out, mf_error *err) {
    *out = NULL;
    if (config->n_layers < 1 || config->n_experts < 1 || config->bytes < 1 || config->stride < config->bytes)
        return mf__fail(err, MF_E_INVALID, "store: %d layers, %d experts, %lld of %lld bytes", config->n_layers,
                        config->n_experts, (long long)config->bytes, (long long)config->stride);
    mf__store *s = calloc(1, sizeof *s);
    if (s) s->maps = calloc((size_t)config->n_layers, sizeof *s->maps);
    if (!s || !s->maps) {
        free(s);
        return mf__fail(err, MF_E_NOMEM, "no memory for the expert store");
    }
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    s->stride = config->stride;
    s->bytes = config->bytes;
    s->layer = -1;
    for (int l = 0; l < s->n_layers; l++) {
        mf_status st = map_layer(s, l, config->files[l], err);
        if (st != MF_OK) {
            mf__store_close(s);
            return st;
        }
    }
    mf__log(&config->log, MF_LOG_DEBUG, "experts: %d layers mapped", s->n_layers);
    *out = s;
    return MF_OK;
}

void mf__store_close(mf__store *s) {
    if (!s) return;
    for (int l = 0; l < s->n_layers; l++) mf__map_close(&s->maps[l]);
    free(s->maps);
    free(s);
}

mf_status mf__store_begin(mf__store *s, int layer, const int32_t *ids, int n, mf_error *err) {
    if (s->layer >= 0) return mf__fail(err, MF_E_INTERNAL, "store: layer %d is still in its turn", s->layer);
    if (layer < 0 || layer >= s->n_layers || !s->maps[layer].data)
        return mf__fail(err, MF_E_NOT_FOUND, "store: layer %d has no experts", layer);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->n_experts)
            return mf__fail(err, MF_E_INVALID, "store: expert %d of layer %d, there are %d", ids[i], layer,
                            s->n_experts);
    s->layer = layer;
    s->wanted = ids;
    s->n_wanted = n;
    s->given = 0;
    s->stats.wanted += n;
    s->stats.hits += n;
    return MF_OK;
}

mf_status mf__store_next(mf__store *s, int32_t *ids, const void **blobs, int *n_out, mf_error *err) {
    *n_out = 0;
    if (s->layer < 0) return mf__fail(err, MF_E_INTERNAL, "store: no turn has begun");
    for (; s->given < s->n_wanted; s->given++, ++*n_out) {
        ids[*n_out] = s->wanted[s->given];
        blobs[*n_out] = s->maps[s->layer].data + s->wanted[s->given] * s->stride;
    }
    return MF_OK;
}

void mf__store_done(mf__store *s, const int32_t *ids, int n) {
    (void)s, (void)ids, (void)n;
}

void mf__store_end(mf__store *s) {
    s->layer = -1;
    s->wanted = NULL;
    s->n_wanted = s->given = 0;
}

void mf__store_hint(mf__store *s, int layer, const int32_t *ids, int n) {
    (void)s, (void)layer, (void)ids, (void)n;
}

void mf__store_stats_get(const mf__store *s, mf__store_stats *out) {
    *out = s->stats;
}
