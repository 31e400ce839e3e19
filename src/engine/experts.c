/* Where experts come from: their files, the memory they may take, and the store over both. */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/probe.h"
#include "engine/cache.h"
#include "engine/experts.h"
#include "engine/internal.h"

/* Left for the program itself: code, tables, threads' stacks. */
#define PROGRAM_BYTES ((int64_t)48 << 20)
/* Left for others when nobody said how much memory to use. */
#define HEADROOM_LEAST ((int64_t)128 << 20)
#define HEADROOM_SHARE 16

/* ---- files ----------------------------------------------------------------------------------------------------- */

/* DIR/layer_NN.bin or DIR/packed_experts/layer_NN.bin, in the arena; *out is NULL when there is neither. */
static mf_status layer_path(mf_model *m, const char *dir, int layer, char **out, mf_error *err) {
    static const char *const below[] = {"", "packed_experts/"};
    for (size_t i = 0; i < MF__COUNT(below); i++) {
        *out = mf__arena_printf(&m->arena, "%s/%slayer_%02d.bin", dir, below[i], layer);
        if (!*out) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
        if (mf__path_exists(*out)) return MF_OK;
    }
    *out = NULL;
    return MF_OK;
}

/* files[d * n_layers + l]. The model's own directory comes last, for the layers that no named directory has. */
static mf_status find_files(mf_model *m, const mf_model_options *opt, const char ***out, mf_error *err) {
    int n_layers = m->bp.config.n_layers, n_dirs = opt->n_experts_dirs;
    const char **files = mf__arena_array(&m->arena, (size_t)(n_dirs + 1) * (size_t)n_layers, sizeof *files);
    if (!files) return mf__fail(err, MF_E_NOMEM, "no memory for %d expert files", n_layers);
    for (int d = 0; d < n_dirs; d++) {
        bool any = false;
        if (!opt->experts_dirs || !opt->experts_dirs[d])
            return mf__fail(err, MF_E_INVALID, "experts directory %d of %d is NULL", d, n_dirs);
        for (int l = 0; l < n_layers; l++) {
            char *path;
            MF__TRY(layer_path(m, opt->experts_dirs[d], l, &path, err));
            files[d * n_layers + l] = path;
            any = any || path;
        }
        if (!any)
            return mf__fail(err, MF_E_NOT_FOUND, "%s has no expert files (layer_00.bin ... or packed_experts/)",
                            opt->experts_dirs[d]);
    }
    for (int l = 0; l < n_layers; l++) {
        bool found = false;
        for (int d = 0; d < n_dirs; d++) found = found || files[d * n_layers + l];
        if (!found) files[n_dirs * n_layers + l] = m->native.expert_files[l];
        if (!found && !m->native.expert_files[l] && m->bp.kinds[m->bp.kind_of[l]].experts)
            return mf__fail(err, MF_E_NOT_FOUND, "%s/packed_experts/layer_%02d.bin is missing", m->native.dir, l);
    }
    *out = files;
    return MF_OK;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

/* What experts may take: all that is allowed, less the trunk. Sessions borrow from it as they grow. */
static mf_status expert_budget(const mf_model *m, const mf_model_options *opt, int64_t *out, mf_error *err) {
    int64_t trunk = 0, allowed = opt->ram_bytes - PROGRAM_BYTES;
    mf__memory mem;
    for (int64_t i = 0; i < mf__catalog_count(m->native.catalog); i++)
        trunk += mf__catalog_at(m->native.catalog, i)->size;
    *out = 0;
    if (opt->ram_bytes < 0) return mf__fail(err, MF_E_INVALID, "ram_bytes is %lld", (long long)opt->ram_bytes);
    if (!opt->ram_bytes) {
        if (mf__memory_probe("", &mem, NULL) != MF_OK) return MF_OK; /* a system that does not say: no limit */
        int64_t headroom = mem.usable / HEADROOM_SHARE;
        allowed = mem.usable - (headroom > HEADROOM_LEAST ? headroom : HEADROOM_LEAST);
    }
    if (allowed - trunk >= m->layout.bytes) {
        *out = allowed - trunk;
        return MF_OK;
    }
    if (opt->ram_bytes)
        return mf__fail(err, MF_E_NOMEM,
                        "%lld bytes of memory are too few for %s: the weights that stay resident take %lld and the "
                        "program about %lld",
                        (long long)opt->ram_bytes, m->native.dir, (long long)trunk, (long long)PROGRAM_BYTES);
    return mf__fail(err, MF_E_NOMEM,
                    "%lld bytes of memory are free, too few for %s: the weights that stay resident take %lld. Free "
                    "some, or say how much to use",
                    (long long)mem.usable, m->native.dir, (long long)trunk);
}

mf_status mf__model_open_store(mf_model *m, const mf_model_options *opt, mf_error *err) {
    const mf__config *c = &m->bp.config;
    const char **files = NULL;
    int64_t budget = 0;
    if (opt->n_experts_dirs < 0 || opt->n_experts_dirs > 16)
        return mf__fail(err, MF_E_INVALID, "%d experts directories, expected 0 to 16", opt->n_experts_dirs);
    MF__TRY(find_files(m, opt, &files, err));
    MF__TRY(expert_budget(m, opt, &budget, err));
    m->store_config = (mf__store_config){.n_layers = c->n_layers,
                                         .n_dirs = opt->n_experts_dirs + 1,
                                         .files = files,
                                         .n_experts = c->moe.n_experts,
                                         .stride = m->layout.stride,
                                         .bytes = m->layout.bytes,
                                         .budget = budget,
                                         .io = opt->io,
                                         .direct = opt->direct,
                                         .prefetch = opt->prefetch,
                                         .n_io_threads = opt->n_io_threads,
                                         .policy = opt->policy,
                                         .speed_dir = opt->cache_dir,
                                         .log = m->log};
    MF__TRY(mf__store_open(&m->store_config, &m->store, err));
    m->store_config.policy = m->store_config.speed_dir = NULL; /* the caller's */
    return mf__turn_create(m->store, &m->turn, err);
}

/* ---- memory of sessions: borrowed from the experts'
 * ------------------------------------------------------------------ */

mf_status mf__model_alloc(mf_model *m, int64_t bytes, void **out, mf_error *err) {
    *out = NULL;
    while (mf__store_lend(m->store, bytes, err) != MF_OK)
        if (!mf__cache_give_back(m)) return MF_E_NOMEM;
    mf_status st = m->be->alloc(m->be, bytes, out, err);
    if (st != MF_OK) mf__store_lend(m->store, -bytes, NULL);
    return st;
}

void mf__model_release(mf_model *m, int64_t bytes, void *mem) {
    if (!mem) return;
    m->be->release(m->be, mem);
    mf__store_lend(m->store, -bytes, NULL);
}

/* ---- for measuring ---------------------------------------------------------------------------------------------- */

mf__store *mf__model_store(mf_model *m) {
    return m->store;
}

mf__store_config mf__model_store_config(const mf_model *m) {
    return m->store_config;
}
