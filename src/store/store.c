/* Opening and closing a store, its budget and its counters. See store/internal.h for the parts and the invariants. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard.h"
#include "base/log.h"
#include "base/probe.h"
#include "store/internal.h"

#define DEFAULT_DEPTH 16
#define DEFAULT_COPIERS 4
#define MOST_LAST 256 /* experts of a layer that a pass is remembered by */
#define MOST_DEPTH 64
#define READ_BYTES ((int64_t)1 << 20)
/* Under way when guesses are sure: enough for a drive of 8 GB/s that answers after half a millisecond. More would only
 * share its speed between what is wanted now and what may be wanted later. */
#define SURE_BYTES ((int64_t)4 << 20)

static mf_status check_below(const mf__store_config *c, mf_error *err) {
    const mf__store *b = c->below;
    if (b->n_layers != c->n_layers || b->n_experts != c->n_experts || b->bytes != c->bytes || b->stride != c->stride)
        return mf__fail(
            err, MF_E_MISMATCH,
            "store: %d layers of %d experts of %lld of %lld bytes over one of %d layers of %d of %lld of %lld",
            c->n_layers, c->n_experts, (long long)c->bytes, (long long)c->stride, b->n_layers, b->n_experts,
            (long long)b->bytes, (long long)b->stride);
    if (c->files || c->n_dirs || c->io != MF_IO_AUTO || c->direct != MF_SWITCH_AUTO || c->speed_dir || c->fault)
        return mf__fail(err, MF_E_INVALID, "store: one that stands on another has no files and no drive of its own");
    if (c->memory.alloc && !c->copy)
        return mf__fail(err, MF_E_INVALID, "store: memory for slots over another store needs a way to copy");
    return MF_OK;
}

static mf_status check_config(const mf__store_config *c, mf_error *err) {
    if (c->n_layers < 1 || c->n_experts < 1 || (c->n_dirs < 1 && !c->below) || c->bytes < 1 || c->stride < c->bytes ||
        (int64_t)c->n_layers * c->n_experts > INT32_MAX / 4 || c->stride > INT64_MAX / 4 / c->n_experts)
        return mf__fail(err, MF_E_INVALID, "store: %d layers in %d directories, %d experts, %lld of %lld bytes",
                        c->n_layers, c->n_dirs, c->n_experts, (long long)c->bytes, (long long)c->stride);
    if (c->n_io_threads < 0 || c->n_io_threads > MOST_DEPTH)
        return mf__fail(err, MF_E_INVALID, "n_io_threads is %d, expected 0 to %d", c->n_io_threads, MOST_DEPTH);
    if (c->most_slots < 0)
        return mf__fail(err, MF_E_INVALID, "store: %d experts at most, expected 0 (no such limit) or more",
                        c->most_slots);
    if (!mf__policy_find(c->policy))
        return mf__fail(err, MF_E_INVALID, "cache policy \"%s\" is not known; known are horizons, lfu and lru",
                        c->policy);
    if (!c->memory.alloc != !c->memory.release || (c->memory.alloc && c->io == MF_IO_MMAP))
        return mf__fail(err, MF_E_INVALID, "store: memory for slots needs alloc and release, and files that are read");
    if (c->budget < 0) return mf__fail(err, MF_E_INVALID, "store: a budget of %lld bytes", (long long)c->budget);
    return c->below ? check_below(c, err) : MF_OK;
}

static mf_status make_lock(mf__store *s, mf_error *err) {
    pthread_condattr_t attr;
    if (pthread_condattr_init(&attr)) return mf__fail(err, MF_E_NOMEM, "no memory for a lock");
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    bool ok = !pthread_mutex_init(&s->lock, NULL) && !pthread_cond_init(&s->ready, &attr) &&
              !pthread_cond_init(&s->work, &attr) && !pthread_cond_init(&s->tick, &attr);
    pthread_condattr_destroy(&attr);
    return ok ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a lock");
}

static mf_status make_tables(mf__store *s, mf_error *err) {
    const mf__policy *policy = mf__policy_find(s->config.policy);
    size_t keys = (size_t)s->n_keys, layers = (size_t)s->n_layers;
    s->last_cap = s->n_experts < MOST_LAST ? s->n_experts : MOST_LAST;
    s->guess_cap = 3 * s->n_experts + 16;
    s->where = mf__table(s, keys, sizeof *s->where);
    s->whole = mf__table(s, keys, sizeof *s->whole);
    s->foretold = mf__table(s, keys, sizeof *s->foretold);
    s->spoke = mf__table(s, layers, sizeof *s->spoke);
    s->n_last = mf__table(s, layers, sizeof *s->n_last);
    s->last_ids = mf__table(s, layers * (size_t)s->last_cap, sizeof *s->last_ids);
    s->guesses = mf__table(s, (size_t)s->guess_cap, sizeof *s->guesses);
    s->drive_load = mf__table(s, (size_t)s->n_dirs, sizeof *s->drive_load);
    s->pass_down = mf__table(s, s->below ? (size_t)s->n_experts : 0, sizeof *s->pass_down);
    s->ranking = (mf__ranking){.policy = policy, .n_layers = s->n_layers, .n_experts = s->n_experts};
    s->ranking.state = mf__table(s, 1, policy->bytes(s->n_layers, s->n_experts));
    MF__TRY(mf__logical_create(s, err));
    s->queues[0] = s->queues[1] = (mf__queue){-1, -1};
    s->turns_since_router = INT_MAX;
    if (!s->where || !s->whole || !s->foretold || !s->spoke || !s->n_last || !s->last_ids || !s->guesses ||
        !s->drive_load || !s->pass_down || !s->ranking.state)
        return mf__fail(err, MF_E_NOMEM, "no memory for the tables of %d experts", s->n_keys);
    return MF_OK;
}

/* "Everything fits" leaves a quarter for what else the machine does. */
static bool fits(const mf__store *s) {
    return !s->config.budget || mf__files_total(s) <= s->config.budget / 4 * 3;
}

/* Memory that is left beside the budget, in our group or on the machine: what a page cache could have. */
static int64_t beside_budget(const mf__store *s) {
    mf__memory mem;
    if (mf__memory_probe(s->root, &mem, NULL) != MF_OK) return 0;
    return mem.usable > s->config.budget ? mem.usable - s->config.budget : 0;
}

/* Mapped, or which reads; s->direct and s->io_kind follow. */
static mf_status choose_io(mf__store *s, mf_error *err) {
    const mf__store_config *c = &s->config;
    mf_io kind = c->io;
    bool may_map = !c->no_map && c->direct != MF_SWITCH_ON && !c->memory.alloc && mf__guard_installed();
    if (kind == MF_IO_AUTO && fits(s) && may_map) kind = MF_IO_MMAP;
    s->mapped = kind == MF_IO_MMAP;
    if (s->mapped) {
        s->io_kind = kind;
        return mf__files_map(s, err);
    }
    bool can_direct = c->direct != MF_SWITCH_OFF && mf__files_direct(s) == MF_OK;
    if (c->direct == MF_SWITCH_ON && !can_direct)
        mf__log(&s->log, MF_LOG_WARN, "experts: the file system does not offer direct reads; using the page cache");
    s->direct = can_direct;
    mf__drive drive = {0};
    if ((kind == MF_IO_AUTO || c->direct == MF_SWITCH_AUTO) && !c->fault) {
        MF__TRY(mf__drive_measure(s, &drive, err));
        if (c->direct == MF_SWITCH_AUTO)
            s->direct = can_direct && mf__drive_direct_pays(&drive, beside_budget(s), mf__files_total(s));
    }
    int64_t pread = s->direct ? drive.direct : drive.buffered;
    if (kind == MF_IO_AUTO) kind = s->direct && drive.uring >= pread ? MF_IO_URING : MF_IO_PREAD;
    s->ceiling = kind == MF_IO_URING && drive.uring ? drive.uring : pread;
    s->io_kind = kind;
    return MF_OK;
}

/* Reads of about READ_BYTES, equal and in whole blocks. */
static void cut_reads(mf__store *s) {
    int64_t span = s->bytes + (s->direct && s->stride % MF_BLOCK ? 2 * MF_BLOCK : 0);
    int64_t n = s->mapped || s->below ? 1 : (span + READ_BYTES / 2) / READ_BYTES;
    if (n < 1) n = 1;
    int64_t each = ((span + n - 1) / n + MF_BLOCK - 1) / MF_BLOCK * MF_BLOCK;
    if (each > INT32_MAX / 2) each = INT32_MAX / 2 / MF_BLOCK * MF_BLOCK;
    s->read_bytes = (int)each;
    /* The last read must not be empty wherever in its block an expert begins, so count by the bytes alone. */
    s->n_reads = s->below ? 1 : (int)((s->bytes + each - 1) / each);
}

static mf_status create_io(mf__store *s, mf__io **out, mf_error *err) {
    int asked = s->config.n_io_threads;
    if (s->below) return mf__io_below_create(s, asked ? asked : DEFAULT_COPIERS, out, err);
    s->depth = asked ? asked : DEFAULT_DEPTH;
    s->guess_depth = s->sure_depth = (s->depth + 3) / 4;
    int64_t enough = (SURE_BYTES + s->read_bytes - 1) / s->read_bytes;
    if (enough > s->sure_depth) s->sure_depth = enough < s->depth ? (int)enough : s->depth;
    if (s->io_kind == MF_IO_URING) {
        mf_error why = {0};
        mf_status st = mf__io_uring_create(s, s->depth, out, &why);
        if (st == MF_OK) return MF_OK;
        mf__log(&s->log, s->config.io == MF_IO_URING ? MF_LOG_WARN : MF_LOG_DEBUG,
                "experts: io_uring cannot be used (%s); reading with threads", why.text);
        s->io_kind = MF_IO_PREAD;
    }
    return mf__io_pread_create(s, s->depth, out, err);
}

/* What was made is known under the lock: stores beside this one may wake it already. Also after a failure. */
static mf_status start_io(mf__store *s, mf_error *err) {
    mf__io *io = NULL;
    mf_status st = create_io(s, &io, err);
    pthread_mutex_lock(&s->lock);
    s->io = io;
    pthread_mutex_unlock(&s->lock);
    return st;
}

static mf_status open_store(mf__store *s, mf_error *err) {
    MF__TRY(mf__lane_join(s, err));
    MF__TRY(make_tables(s, err));
    if (!s->below) {
        MF__TRY(mf__files_open(s, &s->config, err));
        MF__TRY(choose_io(s, err));
    }
    s->budget = s->budget_asked = s->budget_max = s->mapped ? 0 : s->config.budget;
    MF__TRY(mf__slots_create(s, err));
    s->cap = s->config.most_slots;
    mf__slots_apply_limit(s);
    cut_reads(s);
    s->prefetch = s->config.prefetch != MF_SWITCH_OFF;
    s->always = s->config.prefetch == MF_SWITCH_ON;
    s->listens = 0xff;
    while (s->first_layer < s->n_layers - 1 && !mf__files_has(s, s->first_layer)) s->first_layer++;
    return start_io(s, err);
}

mf_status mf__store_open(const mf__store_config *config, mf__store **out, mf_error *err) {
    *out = NULL;
    MF__TRY(check_config(config, err));
    mf__store *s = calloc(1, sizeof *s);
    if (!s) return mf__fail(err, MF_E_NOMEM, "no memory for the expert store");
    mf_status st = make_lock(s, err);
    if (st != MF_OK) {
        free(s);
        return st;
    }
    s->config = *config;
    s->log = config->log;
    s->n_layers = config->n_layers;
    s->n_experts = config->n_experts;
    s->n_keys = config->n_layers * config->n_experts;
    s->below = config->below;
    s->n_dirs = s->below ? 1 : config->n_dirs;
    s->n_files = config->n_dirs * config->n_layers;
    s->stride = config->stride;
    s->bytes = config->bytes;
    if (config->root) strncpy(s->root, config->root, sizeof s->root - 1);
    st = open_store(s, err);
    if (st != MF_OK) {
        mf__store_close(s);
        return st;
    }
    mf__log(&s->log, MF_LOG_INFO, "experts: %lld MB in %d files, %s%s, room for %d of %d in %lld MB, policy %s",
            (long long)(mf__files_total(s) >> 20), s->n_files, s->io->name, s->direct ? " direct" : "", s->limit,
            s->n_keys, (long long)(s->budget >> 20), s->ranking.policy->name);
    if (!config->quiet) mf__pressure_watch(s);
    *out = s;
    return MF_OK;
}

bool mf__store_mapped(const mf__store *s) {
    return s->mapped;
}

mf_status mf__store_least(const mf__store_config *config, int64_t *out, mf_error *err) {
    mf__store_config c = *config;
    mf__store *s;
    c.budget = 0;
    c.quiet = c.no_map = true;
    c.beside = NULL;
    if (c.io == MF_IO_AUTO || c.io == MF_IO_MMAP) c.io = MF_IO_PREAD;
    if (c.direct == MF_SWITCH_AUTO) c.direct = MF_SWITCH_OFF; /* a choice that is not measured */
    c.prefetch = MF_SWITCH_OFF;
    c.n_io_threads = 1;
    c.log = (mf_log_sink){0};
    MF__TRY(mf__store_open(&c, &s, err));
    *out = mf__slot_memory_least(s) + 2 * MF_BLOCK;
    mf__store_close(s);
    return MF_OK;
}

void mf__store_close(mf__store *s) {
    if (!s) return;
    mf__lane_leave(s); /* first: those beside it would wake what is freed here */
    if (s->io) {
        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        pthread_cond_broadcast(&s->work);
        if (s->io->wake) s->io->wake(s->io);
        pthread_mutex_unlock(&s->lock);
        mf__pressure_unwatch(s);
        s->io->free(s->io);
        s->io = NULL;
    }
    mf__lane_free(s);
    mf__drive_review(s);
    mf__slots_free(s);
    mf__files_close(s);
    free(s->drive_path);
    free(s->where);
    free(s->whole);
    free(s->foretold);
    free(s->spoke);
    free(s->n_last);
    free(s->last_ids);
    free(s->guesses);
    free(s->drive_load);
    free(s->pass_down);
    free(s->ranking.state);
    mf__logical_free(s);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->ready);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->tick);
    free(s);
}

/* ---- budget ---- */

void mf__store_budget_set(mf__store *s, int64_t bytes) {
    pthread_mutex_lock(&s->lock);
    if (s->budget_max) {
        int64_t least = mf__slot_memory_least(s) + s->lent;
        if (bytes > s->budget_max) bytes = s->budget_max;
        s->budget = s->budget_asked = bytes > least ? bytes : least;
        mf__slot_memory_retry(s);
        mf__slots_apply_limit(s);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Mapped files are memory too, as far as they fit; the rest of a model that was mapped by force comes and goes. */
static int64_t expert_share(const mf__store *s) {
    int64_t total = mf__files_total(s), most = s->config.budget / 4 * 3;
    return total < most ? total : most;
}

mf_status mf__store_lend(mf__store *s, int64_t bytes, mf_error *err) {
    mf_status st = MF_OK;
    pthread_mutex_lock(&s->lock);
    if (s->budget_max && bytes > 0) { /* who holds the whole is let finish, and no one else gets it meanwhile */
        s->n_lenders++;
        while (s->n_holders > 0) pthread_cond_wait(&s->ready, &s->lock);
        s->n_lenders--;
    }
    int64_t most = s->mapped ? s->config.budget : s->budget_asked;
    int64_t least = s->mapped ? expert_share(s) : mf__slot_memory_least(s); /* what experts take of it */
    if (most && bytes > 0 && s->lent + bytes + least > most) {
        st = mf__fail(
            err, MF_E_NOMEM,
            "%lld bytes more do not fit in the memory budget: %lld of %lld are in use and experts take %lld at "
            "least; allow more memory or a shorter context",
            (long long)bytes, (long long)s->lent, (long long)most, (long long)least);
    } else if (!s->budget_max) {
        s->lent += bytes;
    } else {
        s->lent += bytes;
        if (bytes < 0) mf__slot_memory_retry(s);
        if (s->budget < s->lent + mf__slot_memory_least(s)) s->budget = s->lent + mf__slot_memory_least(s);
        mf__slots_apply_limit(s);
        while (s->n_over > 0) pthread_cond_wait(&s->ready, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* ---- counters ---- */

/* What is in flight has been so since; of stores beside each other one counts it. */
static int64_t busy_now(const mf__store *s) {
    int64_t now = mf__clock_ns(), since = mf__lane_busy_since_ns(s);
    if (!since || s->follows) return 0;
    return now - (since > s->busy_from_ns ? since : s->busy_from_ns);
}

void mf__store_stats_get(mf__store *s, mf_stats *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    out->io = s->io->name;
    out->policy = s->ranking.policy->name;
    out->direct = s->direct;
    out->ceiling = s->ceiling;
    out->read_bytes = s->read_bytes;
    out->read_depth = s->depth;
    out->budget = s->budget ? s->budget - s->lent : 0;
    for (int i = 0; i < s->n_slots; i++) out->cache_bytes += s->slots[i].state == MF_SLOT_READY ? s->bytes : 0;
    out->busy_ns += busy_now(s);
    for (int who = 0; who < MF_PREDICT_COUNT; who++) out->predictors[who].resting = !mf__predict_active(s, who);
    pthread_mutex_unlock(&s->lock);
}

void mf__store_stats_reset(mf__store *s) {
    pthread_mutex_lock(&s->lock);
    s->stats = (mf_stats){0};
    s->busy_from_ns = mf__clock_ns();
    pthread_mutex_unlock(&s->lock);
}
