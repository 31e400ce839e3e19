/* A store that has every expert in memory gives out one table of their addresses, and passes need no turns. While
 * somebody holds the table no slot is freed: what would lower the limit waits for the release. Of a store on another
 * the table may have addresses of both. */
#include <sys/stat.h>

#include "base/guard.h"
#include "store/internal.h"

#define MF_REACH_ALIGN 64 /* of experts that are used where they are */

static void make_table(mf__store *s, const void *const *below, uint64_t below_version) {
    for (mf__key key = 0; key < s->n_keys; key++) {
        int32_t slot = s->where[key];
        bool here = slot >= 0 && s->slots[slot].state == MF_SLOT_READY;
        s->whole[key] = here ? mf__slot_blob(s, slot) : below ? below[key] : NULL;
    }
    s->whole_made = true;
    s->below_version = below_version;
    s->whole_version++;
}

/* Whether experts of the store below can be used where they are. Those that were read past the page cache begin
 * somewhere in a block. */
static bool can_reach(const mf__store *s) {
    const mf__store *below = s->below;
    if (!below || !s->config.reach || below->mapped || (below->direct && below->stride % MF_REACH_ALIGN)) return false;
    return s->config.reach(s->config.copy_user);
}

const void *const *mf__store_whole(mf__store *s, uint64_t *version) {
    const void *const *below = NULL;
    uint64_t below_version = 0;
    pthread_mutex_lock(&s->lock);
    bool settled = s->n_over == 0 && s->n_lenders == 0, whole = settled && s->n_ready == s->n_real && !s->n_reaching;
    if (settled && !whole && can_reach(s)) below = mf__store_whole(s->below, &below_version);
    if (whole || below) {
        /* one that is held stays as it is: what came since is where it was, too */
        if (!s->n_holders && (!s->whole_made || s->below_version != below_version)) make_table(s, below, below_version);
        s->n_reaching += below != NULL;
        s->n_holders++;
        *version = s->whole_version;
    }
    pthread_mutex_unlock(&s->lock);
    return whole || below ? s->whole : NULL;
}

void mf__store_whole_release(mf__store *s) {
    mf__store *below = NULL;
    pthread_mutex_lock(&s->lock);
    if (s->n_reaching > 0) s->n_reaching--, below = s->below;
    if (s->n_holders > 0 && --s->n_holders == 0) {
        if (s->limit_waits) mf__slots_apply_limit(s);
        pthread_cond_broadcast(&s->ready);
    }
    pthread_mutex_unlock(&s->lock);
    if (below) mf__store_whole_release(below);
}

mf_status mf__store_whole_before(mf__store *s, int64_t *mark, mf_error *err) {
    *mark = 0;
    for (int l = 0; s->mapped && l < s->n_layers; l++) {
        int64_t of_layer = 0;
        if (mf__files_has(s, l)) MF__TRY(mf__files_before(s, l, &of_layer, err));
        *mark += of_layer;
    }
    return MF_OK;
}

mf_status mf__store_whole_after(mf__store *s, int64_t mark, mf_error *err) {
    int64_t faults = 0;
    int last = 0;
    for (int i = 0; s->mapped && i < s->n_files; i++) {
        int64_t n = mf__guard_faults(s->files[i].guard);
        faults += n;
        if (n) last = i;
    }
    if (faults == mark) return MF_OK;
    for (int i = 0; i < s->n_files; i++) { /* the one that is short now, if it still is */
        struct stat st;
        if (s->files[i].map.data && !fstat(s->files[i].fd, &st) && st.st_size < (off_t)s->files[i].map.size) last = i;
    }
    return mf__fail(err, MF_E_IO, "%s was cut while its experts were in use; convert the model again",
                    s->files[last].path);
}

static void count(mf_stats *stats, const mf__store *s, int64_t wanted, int64_t hits) {
    stats->wanted += wanted;
    stats->hits += hits;
    stats->bytes_wanted += wanted * s->bytes;
    stats->bytes_read += (wanted - hits) * s->bytes;
}

void mf__turn_count_whole(mf__turn *t, int64_t wanted) {
    mf__store *s = t->store, *below = s->below;
    pthread_mutex_lock(&s->lock);
    int64_t hits = wanted;
    if (s->n_reaching) { /* nobody here knows which are wanted: the share that is here, of few in the mean */
        int64_t parts = wanted * s->n_ready + s->hits_rest;
        hits = parts / s->n_real;
        s->hits_rest = parts % s->n_real;
    }
    count(&s->stats, s, wanted, hits);
    count(&t->stats, s, wanted, hits);
    if (hits < wanted) {
        pthread_mutex_lock(&below->lock);
        count(&below->stats, below, wanted - hits, wanted - hits);
        pthread_mutex_unlock(&below->lock);
    }
    pthread_mutex_unlock(&s->lock);
}
