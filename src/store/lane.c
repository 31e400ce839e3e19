/* A drive's queue, and the stores that read through it. Alone on a drive, a store has one to itself. */
#include "base/log.h"
#include "store/internal.h"

mf_status mf__lane_join(mf__store *s, mf_error *err) {
    mf__store *beside = s->config.beside;
    if (pthread_mutex_init(&s->own_lane.lock, NULL)) return mf__fail(err, MF_E_NOMEM, "no memory for a lock");
    mf__lane *lane = beside ? beside->lane : &s->own_lane;
    int at = 0;
    pthread_mutex_lock(&lane->lock);
    while (at < MF_LANE_STORES && lane->stores[at]) at++;
    if (at < MF_LANE_STORES) {
        lane->stores[at] = s;
        atomic_fetch_add(&lane->n_stores, 1);
        s->lane = lane;
    }
    pthread_mutex_unlock(&lane->lock);
    if (!s->lane) return mf__fail(err, MF_E_INVALID, "more than %d stores on one drive", MF_LANE_STORES);
    if (!beside) return MF_OK;
    pthread_mutex_lock(&beside->lock);
    beside->follows = true;
    pthread_mutex_unlock(&beside->lock);
    return MF_OK;
}

void mf__lane_leave(mf__store *s) {
    mf__lane *lane = s->lane;
    if (!lane) return;
    pthread_mutex_lock(&lane->lock);
    for (int i = 0; i < MF_LANE_STORES; i++)
        if (lane->stores[i] == s) lane->stores[i] = NULL;
    pthread_mutex_unlock(&lane->lock);
}

void mf__lane_free(mf__store *s) {
    if (!s->lane) return;
    atomic_fetch_sub(&s->lane->n_stores, 1);
    pthread_mutex_destroy(&s->own_lane.lock);
}

void mf__lane_begin(mf__store *s, const mf__read *read) {
    mf__lane *lane = s->lane;
    if (atomic_load(&lane->in_flight[0]) + atomic_load(&lane->in_flight[1]) == 0)
        atomic_store(&lane->busy_since_ns, read->began_ns);
    atomic_fetch_add(&lane->in_flight[!read->demanded], 1);
    s->in_flight[!read->demanded]++;
}

/* Who ends the last read counts the time: of stores beside each other the sum is that of the drive. */
void mf__lane_end(mf__store *s, const mf__read *read, int64_t now) {
    mf__lane *lane = s->lane;
    atomic_fetch_sub(&lane->in_flight[!read->demanded], 1);
    s->in_flight[!read->demanded]--;
    if (atomic_load(&lane->in_flight[0]) + atomic_load(&lane->in_flight[1])) return;
    int64_t ns = now - atomic_load(&lane->busy_since_ns);
    atomic_fetch_add(&lane->busy_ns, ns);
    s->stats.busy_ns += now - (s->busy_from_ns > now - ns ? s->busy_from_ns : now - ns);
    s->drive_seen.ns += ns;
}

int64_t mf__lane_busy_since_ns(const mf__store *s) {
    mf__lane *lane = s->lane;
    bool busy = atomic_load(&lane->in_flight[0]) + atomic_load(&lane->in_flight[1]) > 0;
    return busy ? atomic_load(&lane->busy_since_ns) : 0;
}

int64_t mf__lane_busy_ns(const mf__store *s, int64_t now) {
    int64_t since = mf__lane_busy_since_ns(s);
    return atomic_load(&s->lane->busy_ns) + (since && now > since ? now - since : 0);
}

void mf__lane_wake_others(mf__store *s) {
    mf__lane *lane = s->lane;
    if (atomic_load(&lane->n_stores) < 2) return;
    pthread_mutex_lock(&lane->lock);
    for (int i = 0; i < MF_LANE_STORES; i++) {
        mf__store *other = lane->stores[i];
        if (!other || other == s) continue;
        pthread_mutex_lock(&other->lock);
        mf__feed_wake(other);
        pthread_mutex_unlock(&other->lock);
    }
    pthread_mutex_unlock(&lane->lock);
}
