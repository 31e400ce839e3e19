/* A store that has every expert in memory gives out one table of their addresses, and passes need no turns. While
 * somebody holds the table no slot is freed: what would lower the limit waits for the release. */
#include <sys/stat.h>

#include "base/guard.h"
#include "store/internal.h"

static void make_table(mf__store *s) {
    for (mf__key key = 0; key < s->n_keys; key++)
        s->whole[key] = s->where[key] < 0 ? NULL : mf__slot_blob(s, s->where[key]);
    s->whole_made = true;
    s->whole_version++;
}

const void *const *mf__store_whole(mf__store *s, uint64_t *version) {
    pthread_mutex_lock(&s->lock);
    bool whole = s->n_ready == s->n_real && s->n_over == 0 && s->n_lenders == 0;
    if (whole) {
        if (!s->whole_made) make_table(s);
        s->n_holders++;
        *version = s->whole_version;
    }
    pthread_mutex_unlock(&s->lock);
    return whole ? s->whole : NULL;
}

void mf__store_whole_release(mf__store *s) {
    pthread_mutex_lock(&s->lock);
    if (s->n_holders > 0 && --s->n_holders == 0) {
        if (s->limit_waits) mf__slots_apply_limit(s);
        pthread_cond_broadcast(&s->ready);
    }
    pthread_mutex_unlock(&s->lock);
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

void mf__turn_count_whole(mf__turn *t, int64_t wanted) {
    mf__store *s = t->store;
    pthread_mutex_lock(&s->lock);
    mf_stats *sums[2] = {&s->stats, &t->stats};
    for (int i = 0; i < 2; i++) {
        sums[i]->wanted += wanted;
        sums[i]->hits += wanted;
        sums[i]->bytes_wanted += wanted * s->bytes;
    }
    pthread_mutex_unlock(&s->lock);
}
