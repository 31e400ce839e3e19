/* The memory of a model, and the stores that hold its experts in it.
 *
 * A backend that computes in the host's memory has one store, over the files. One with memory of its own has two: slots
 * in that memory, over a store in the host's, over the files; each has its own budget. Where the backend can read the
 * host's memory, and all experts are there, passes need no turns: those that are not in slots of the device are read
 * where they are. What sessions need is borrowed from the store nearest to the compute: experts make way for it.
 *
 *   m->store        nearest to the compute: where turns are taken and memory is lent
 *   m->host_store   over the files; the same one for backends that use the host's memory */
#include <stdio.h>
#include <stdlib.h>

#include "base/probe.h"
#include "engine/cache.h"
#include "engine/experts.h"
#include "engine/internal.h"
#include "engine/lossy.h"

/* Left for others when nobody said how much memory to use. */
#define HEADROOM_LEAST ((int64_t)128 << 20)
#define HEADROOM_SHARE 16
#define MIB ((int64_t)1 << 20)

/* ---- budgets ---------------------------------------------------------------------------------------------------- */

int64_t mf__model_trunk_bytes(const mf_model *m) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < mf__catalog_count(m->native.catalog); i++)
        bytes += mf__catalog_at(m->native.catalog, i)->size;
    return bytes;
}

/* What experts may take of the host's memory: all that is allowed, less the trunk where the backend uses it there. */
static mf_status host_budget(const mf_model *m, const mf_model_options *opt, int64_t *out, mf_error *err) {
    int64_t trunk = m->be->host_memory && !m->experts_only ? mf__model_trunk_bytes(m) : 0,
            allowed = opt->ram_bytes - MF_PROGRAM_BYTES;
    mf__memory mem;
    *out = 0;
    if (opt->ram_bytes < 0) return mf__fail(err, MF_E_INVALID, "ram_bytes is %lld", (long long)opt->ram_bytes);
    if (!opt->ram_bytes) {
        if (mf__memory_probe("", &mem, NULL) != MF_OK) return MF_OK; /* a system that does not say: no limit */
        int64_t headroom = mem.usable / HEADROOM_SHARE;
        allowed = mem.usable - (headroom > HEADROOM_LEAST ? headroom : HEADROOM_LEAST);
    }
    mf_memory_needs needs;
    int64_t experts;
    MF__TRY(mf__experts_least(m, 0, &experts, err));
    if (allowed - trunk >= experts) {
        *out = allowed - trunk;
        return MF_OK;
    }
    MF__TRY(mf__memory_count(m, 0, 0, &needs, err));
    long long least = (needs.total + MIB - 1) / MIB, weights = (trunk + MIB - 1) / MIB;
    if (opt->ram_bytes)
        return mf__fail(err, MF_E_NOMEM,
                        "--ram %lldM is too little for %s: the weights that stay resident take %lld MB and the program "
                        "about %lld; it takes at least --ram %lldM",
                        (long long)(opt->ram_bytes / MIB), m->native.dir, weights, (long long)(MF_PROGRAM_BYTES / MIB),
                        least);
    return mf__fail(err, MF_E_NOMEM,
                    "%lld MB of memory are free, too little for %s: the weights that stay resident take %lld MB. Free "
                    "some, or say how much to use with --ram, at least %lldM",
                    (long long)(mem.usable / MIB), m->native.dir, weights, least);
}

/* The same for the backend's own memory. The trunk is there already, so it is not among what was free when the backend
 * was made, less what it took. */
static mf_status device_budget(const mf_model *m, const mf_model_options *opt, int64_t *out, mf_error *err) {
    int64_t trunk = m->experts_only ? 0 : mf__model_trunk_bytes(m), there = m->be->memory_bytes,
            allowed = opt->vram_bytes ? opt->vram_bytes : there / 16 * 15;
    if (opt->vram_bytes > there)
        return mf__fail(err, MF_E_NOMEM, "--vram is %lldM, and %lld MB of backend %s's memory are free",
                        (long long)(opt->vram_bytes / MIB), (long long)(there / MIB), m->be->name);
    *out = allowed - trunk;
    if (*out >= m->layout.bytes) return MF_OK;
    return mf__fail(err, MF_E_NOMEM,
                    "%lld MB of backend %s's memory are too few for %s: the weights that stay resident and one expert "
                    "take %lld MB; more may be allowed with --vram, or the model run with --backend cpu",
                    (long long)(allowed / MIB), m->be->name, m->native.dir,
                    (long long)((trunk + m->layout.bytes + MIB - 1) / MIB));
}

/* ---- stores ----------------------------------------------------------------------------------------------------- */

mf_status mf__model_store_plan(mf_model *m, const mf_model_options *opt, mf_error *err) {
    const mf__config *c = &m->bp.config;
    const char **files = NULL;
    if (opt->n_experts_dirs < 0 || opt->n_experts_dirs > 16)
        return mf__fail(err, MF_E_INVALID, "%d experts directories, expected 0 to 16", opt->n_experts_dirs);
    MF__TRY(mf__expert_files_find(m, opt, &files, err));
    m->store_config = (mf__store_config){.n_layers = c->n_layers,
                                         .n_dirs = opt->n_experts_dirs + 1,
                                         .files = files,
                                         .n_experts = c->moe.n_experts,
                                         .stride = m->layout.stride,
                                         .bytes = m->layout.bytes,
                                         .io = opt->io,
                                         .direct = opt->direct,
                                         .prefetch = opt->prefetch,
                                         .n_io_threads = opt->n_io_threads,
                                         .most_slots = opt->most_experts,
                                         .no_map = opt->most_experts > 0,
                                         .log = m->log};
    if (opt->policy) m->store_config.policy = mf__arena_strdup(&m->arena, opt->policy);
    if (opt->cache_dir) m->store_config.speed_dir = mf__arena_strdup(&m->arena, opt->cache_dir);
    return mf__lossy_store_plan(m, &opt->lossy, err);
}

static mf_status host_alloc(void *user, int64_t bytes, void **out, mf_error *err) {
    mf__backend *be = user;
    return be->host_alloc(be, bytes, out, err);
}

static void host_release(void *user, void *mem) {
    mf__backend *be = user;
    be->host_release(be, mem);
}

static bool reads_host(void *user) {
    mf__backend *be = user;
    return be->reads_host(be);
}

/* Whether experts are to be read by the device where the host has them: not where it has room for all of them (then
 * they need not stay in the host's memory at all). */
static bool reaches_host(const mf_model *m, const mf_model_options *opt) {
    int64_t all = 0, budget;
    mf_memory_needs needs;
    if (!m->be->host_alloc || opt->io == MF_IO_MMAP) return false;
    for (int32_t l = 0; l < m->bp.config.n_layers; l++)
        if (m->bp.kinds[m->bp.kind_of[l]].experts) all += m->bp.config.moe.n_experts * m->layout.stride;
    if (device_budget(m, opt, &budget, NULL) != MF_OK || mf__memory_count(m, 0, 0, &needs, NULL) != MF_OK) return false;
    budget -= needs.workspace + needs.state + needs.kv; /* of one session at least */
    return budget < all + all / 16;
}

static mf_status open_host(mf_model *m, const mf_model_options *opt, mf_error *err) {
    MF__TRY(mf__model_store_plan(m, opt, err));
    MF__TRY(host_budget(m, opt, &m->experts_budget, err));
    m->store_config.budget = m->experts_budget;
    MF__TRY(mf__lossy_open_store(m, err));
    mf__store_config c = m->store_config;
    m->reaches_host = reaches_host(m, opt);
    if (m->reaches_host) c.memory = (mf__slot_memory){host_alloc, host_release, m->be};
    return mf__store_open(&c, &m->host_store, err);
}

static mf_status slot_alloc(void *user, int64_t bytes, void **out, mf_error *err) {
    mf__backend *be = user;
    return be->alloc(be, bytes, out, err);
}

static void slot_release(void *user, void *mem) {
    mf__backend *be = user;
    be->release(be, mem);
}

static mf_status slot_fill(void *user, void *to, const void *from, int64_t bytes, mf_error *err) {
    mf__backend *be = user;
    return be->fill(be, to, from, bytes, err);
}

static mf_status open_device(mf_model *m, const mf_model_options *opt, mf_error *err) {
    const mf__store_config *host = &m->store_config;
    mf__store_config c = {.n_layers = host->n_layers,
                          .n_experts = host->n_experts,
                          .stride = host->stride,
                          .bytes = host->bytes,
                          .memory = {slot_alloc, slot_release, m->be},
                          .below = m->host_store,
                          .copy = slot_fill,
                          .copy_user = m->be,
                          .reach = m->reaches_host ? reads_host : NULL,
                          .prefetch = opt->prefetch,
                          .policy = opt->policy,
                          .log = m->log};
    MF__TRY(device_budget(m, opt, &c.budget, err));
    return mf__store_open(&c, &m->store, err);
}

mf_status mf__model_open_stores(mf_model *m, const mf_model_options *opt, mf_error *err) {
    if (opt->vram_bytes < 0) return mf__fail(err, MF_E_INVALID, "vram_bytes is %lld", (long long)opt->vram_bytes);
    if (opt->vram_bytes && m->be->host_memory)
        return mf__fail(err, MF_E_INVALID,
                        "--vram is for a device with memory of its own, and backend %s has none; `moeflux inspect "
                        "--cuda` says whether there is one",
                        m->be->name);
    MF__TRY(open_host(m, opt, err));
    if (m->be->host_memory)
        m->store = m->host_store;
    else
        MF__TRY(open_device(m, opt, err));
    return mf__turn_create(m->store, &m->turn, err);
}

void mf__model_close_stores(mf_model *m) {
    mf__turn_free(m->turn);
    if (m->store != m->host_store) mf__store_close(m->store);
    mf__store_close(m->host_store);
    m->turn = NULL;
    m->store = m->host_store = NULL;
}

void mf__model_fill_stores(mf_model *m) {
    if (m->elsewhere.begin && !m->own) return; /* it would read what others have */
    mf__store_fill(m->store);                  /* and what is below it */
}

/* ---- memory of sessions: borrowed from the experts' ------------------------------------------------------------- */

/* Mapped experts count in full, whether they are needed or not. Where a session needs the room, they are read into
 * slots from now on, of which few will do. */
static bool stop_mapping(mf_model *m) {
    mf__store *store = NULL;
    mf__turn *turn = NULL;
    mf_error why;
    if (m->store != m->host_store || m->store_config.io != MF_IO_AUTO || !mf__store_mapped(m->store)) return false;
    mf__store_config config = m->store_config;
    config.no_map = true;
    mf_status st = mf__store_open(&config, &store, &why);
    if (st == MF_OK) st = mf__store_lend(store, m->lent, &why);
    if (st == MF_OK) st = mf__turn_create(store, &turn, &why);
    if (st != MF_OK) {
        mf__store_close(store);
        return false;
    }
    mf__log(&m->log, MF_LOG_INFO, "experts are no longer mapped but read: a session needs the room");
    if (m->own) mf__store_own(store, m->own);
    pthread_mutex_lock(&m->store_lock);
    mf__model_close_stores(m);
    m->store = m->host_store = store;
    m->turn = turn;
    m->store_config.no_map = true;
    pthread_mutex_unlock(&m->store_lock);
    return true;
}

mf_status mf__model_lend(mf_model *m, int64_t bytes, mf_error *err) {
    while (mf__store_lend(m->store, bytes, err) != MF_OK)
        if (!mf__cache_give_back(m) && !stop_mapping(m)) return MF_E_NOMEM;
    m->lent += bytes;
    return MF_OK;
}

void mf__model_return(mf_model *m, int64_t bytes) {
    mf__store_lend(m->store, -bytes, NULL);
    m->lent -= bytes;
}

mf_status mf__model_lend_host(mf_model *m, int64_t bytes, mf_error *err) {
    if (m->store == m->host_store) return mf__model_lend(m, bytes, err);
    return mf__store_lend(m->host_store, bytes, err);
}

void mf__model_return_host(mf_model *m, int64_t bytes) {
    if (m->store == m->host_store)
        mf__model_return(m, bytes);
    else
        mf__store_lend(m->host_store, -bytes, NULL);
}

mf_status mf__model_alloc(mf_model *m, int64_t bytes, void **out, mf_error *err) {
    *out = NULL;
    MF__TRY(mf__model_lend(m, bytes, err));
    mf_status st = m->be->alloc(m->be, bytes, out, err);
    if (st != MF_OK) mf__model_return(m, bytes);
    return st;
}

void mf__model_release(mf_model *m, int64_t bytes, void *mem) {
    if (!mem) return;
    m->be->release(m->be, mem);
    mf__model_return(m, bytes);
}

/* ---- for measuring ---------------------------------------------------------------------------------------------- */

int64_t mf__model_touched_bytes(const mf_model *m, int64_t n) {
    return mf__blueprint_touched_bytes(&m->bp, m->kv_type, n);
}

bool mf__model_borrow(mf_model *m, int64_t bytes) {
    mf__model_lock(m);
    bool lent = mf__store_lend(m->host_store, bytes, NULL) == MF_OK;
    if (lent && m->store == m->host_store) m->lent += bytes;
    mf__model_unlock(m);
    return lent;
}

bool mf__model_host_stats(mf_model *m, mf_stats *out) {
    if (m->store == m->host_store) return false;
    mf__store_stats_get(m->host_store, out);
    return true;
}

mf__store *mf__model_store(mf_model *m) {
    return m->store;
}

mf__store_config mf__model_store_config(const mf_model *m) {
    return m->store_config;
}
