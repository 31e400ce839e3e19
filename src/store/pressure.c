/* Memory pressure: now and then the store looks at what is left for this process and at how long tasks waited for
 * memory (PSI, Linux), lends the cache's memory back when it is short, and takes it again when there is plenty. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cgroup.h"
#include "base/log.h"
#include "base/probe.h"
#include "store/internal.h"

#define POLL_NS 250000000
#define RESERVE_LEAST ((int64_t)48 << 20)
#define RESERVE_SHARE 64 /* of the memory there is */
#define PSI_HIGH 10.0    /* percent of the last ten seconds in which some task waited for memory */

/* "some avg10=1.23 avg60=..."; 0 when there is no such line. */
static double some_avg10(const char *text) {
    const char *p = strstr(text, "some avg10=");
    return p ? strtod(p + strlen("some avg10="), NULL) : 0;
}

static double psi(const char *root) {
    mf__cgroup group;
    char text[512], path[320], *whole = NULL;
    size_t size;
    if (mf__cgroup_find(root, "memory", &group) && mf__cgroup_read(&group, "memory.pressure", text, sizeof text))
        return some_avg10(text);
    snprintf(path, sizeof path, "%s/proc/pressure/memory", root);
    if (mf__file_read(path, 4096, &whole, &size, NULL) != MF_OK) return 0;
    double value = some_avg10(whole);
    free(whole);
    return value;
}

/* What the budget should become: cut by what is missing, or raised by half of what is spare. */
static int64_t adjusted(const mf__store *s, const mf__memory *m, double pressure) {
    int64_t all = m->cgroup_limit && m->cgroup_limit < m->total ? m->cgroup_limit : m->total;
    int64_t reserve = all / RESERVE_SHARE > RESERVE_LEAST ? all / RESERVE_SHARE : RESERVE_LEAST;
    if (m->usable < reserve) return s->budget - (reserve - m->usable);
    if (pressure > PSI_HIGH && m->usable < 4 * reserve) return s->budget - s->budget / 16;
    if (m->usable > 4 * reserve && pressure < PSI_HIGH / 4) return s->budget + (m->usable - 4 * reserve) / 2;
    return s->budget;
}

void mf__pressure_poll(mf__store *s) {
    mf__memory m;
    if (mf__memory_probe(s->root, &m, NULL) != MF_OK) return;
    double pressure = psi(s->root);
    pthread_mutex_lock(&s->lock);
    int64_t want = adjusted(s, &m, pressure), have = s->budget, least = mf__slot_memory_least(s) + s->lent;
    if (want > s->budget_asked) want = s->budget_asked;
    s->budget = want > least ? want : least;
    mf__slots_apply_limit(s);
    want = s->budget;
    pthread_mutex_unlock(&s->lock);
    if (want < have)
        mf__log(&s->log, MF_LOG_INFO, "experts: memory is short (%lld MB left), the cache gives back %lld MB",
                (long long)(m.usable >> 20), (long long)((have - want) >> 20));
}

static void *watch(void *arg) {
    mf__store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (!s->stopping) {
        struct timespec until = mf__clock_after(POLL_NS);
        pthread_cond_timedwait(&s->tick, &s->lock, &until);
        if (s->stopping) break;
        pthread_mutex_unlock(&s->lock);
        mf__pressure_poll(s);
        pthread_mutex_lock(&s->lock);
        if (mf__feed_may_fill(s)) mf__feed_wake(s); /* nobody may be asking for anything */
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* A thread of its own: memory can run short while nothing is evaluated, and the token loop allocates nothing. */
void mf__pressure_watch(mf__store *s) {
    if (s->mapped || !s->budget || s->below) return; /* the last: not the memory that is watched here */
    s->has_watcher = !pthread_create(&s->watcher, NULL, watch, s);
}

void mf__pressure_unwatch(mf__store *s) {
    if (!s->has_watcher) return;
    pthread_mutex_lock(&s->lock);
    pthread_cond_signal(&s->tick);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->watcher, NULL);
}
