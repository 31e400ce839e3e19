#include "disk.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define MAX_READERS 64
#define MAX_STATES 8 /* that wait to be written */

struct disk {
    void (*wake)(void *user);
    void *user;
    pthread_t writer, readers[MAX_READERS];
    int max_readers, n_readers; /* n_readers: started, when they were first wanted */
    pthread_mutex_t lock;
    pthread_cond_t wanted; /* there is work, or the end */
    pthread_cond_t idle;   /* a load is over */
    /* lock: */
    seq *to_load, *loaded;     /* first come first */
    seq *loading[MAX_READERS]; /* being read; NULL: none */
    int n_loading;
    mf_session *states[MAX_STATES];
    int n_states;
    bool stop;
};

static void append(seq **list, seq *q) {
    while (*list) list = &(*list)->next_load;
    q->next_load = NULL;
    *list = q;
}

static int count(const seq *list) {
    int n = 0;
    for (; list; list = list->next_load) n++;
    return n;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static bool mostly_same(const mf_reply_prompt *a, const mf_reply_prompt *b) {
    size_t n = a->n_ids < b->n_ids ? a->n_ids : b->n_ids, most = a->n_ids > b->n_ids ? a->n_ids : b->n_ids, same = 0;
    while (same < n && a->ids[same] == b->ids[same]) same++;
    return 2 * same >= most;
}

static bool is_being_read(const disk *d, const seq *q) {
    for (int i = 0; i < MAX_READERS; i++)
        if (d->loading[i] && mostly_same(&d->loading[i]->prompt, &q->prompt)) return true;
    return false;
}

static seq *take_load(disk *d) {
    seq **at = &d->to_load;
    while (*at && is_being_read(d, *at)) at = &(*at)->next_load;
    seq *q = *at;
    if (q) *at = q->next_load;
    return q;
}

static int begin_load(disk *d, seq *q) {
    int i = 0;
    while (d->loading[i]) i++;
    d->loading[i] = q;
    d->n_loading++;
    return i;
}

static void end_load(disk *d, int i) {
    append(&d->loaded, d->loading[i]);
    d->loading[i] = NULL;
    d->n_loading--;
    pthread_cond_broadcast(&d->idle);
    pthread_cond_broadcast(&d->wanted); /* what is mostly the same can be read now */
}

static void *read_all(void *user) {
    disk *d = user;
    seq *q;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!(q = take_load(d)) && !d->stop) pthread_cond_wait(&d->wanted, &d->lock);
        if (!q) break;
        int i = begin_load(d, q);
        pthread_mutex_unlock(&d->lock);
        q->load_error = (mf_error){0};
        q->loaded = MF_OK;
        if (!*q->cancelled)
            q->loaded = mf_prompt_begin(q->session, q->prompt.ids, q->prompt.n_ids, &q->n_reused, &q->load_error);
        pthread_mutex_lock(&d->lock);
        end_load(d, i);
        pthread_mutex_unlock(&d->lock);
        d->wake(d->user);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* One more reader where all have something to read. There is one at least: without a thread for it, a load waits. */
static void more_readers(disk *d) {
    if (d->n_readers <= d->n_loading + count(d->to_load) && d->n_readers < d->max_readers &&
        !pthread_create(&d->readers[d->n_readers], NULL, read_all, d))
        d->n_readers++;
}

void disk_load(disk *d, seq *q) {
    pthread_mutex_lock(&d->lock);
    more_readers(d);
    append(&d->to_load, q);
    pthread_cond_broadcast(&d->wanted);
    pthread_mutex_unlock(&d->lock);
}

seq *disk_loaded(disk *d) {
    if (!d) return NULL;
    pthread_mutex_lock(&d->lock);
    seq *q = d->loaded;
    if (q) d->loaded = q->next_load;
    pthread_mutex_unlock(&d->lock);
    return q;
}

void disk_stop_loading(disk *d) {
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    while (d->to_load) {
        seq *q = d->to_load;
        d->to_load = q->next_load;
        q->loaded = MF_E_CANCELLED;
        append(&d->loaded, q);
    }
    while (d->n_loading) pthread_cond_wait(&d->idle, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static mf_session *take_state(disk *d) {
    if (!d->n_states) return NULL;
    mf_session *first = d->states[0];
    memmove(d->states, d->states + 1, (size_t)--d->n_states * sizeof *d->states);
    return first;
}

static void *write_all(void *user) {
    disk *d = user;
    mf_session *state;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (!(state = take_state(d)) && !d->stop) pthread_cond_wait(&d->wanted, &d->lock);
        if (!state) break;
        pthread_mutex_unlock(&d->lock);
        mf_prompt_keep(state, NULL); /* a disk that is full is logged, and no failure */
        mf_session_free(state);
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

void disk_keep(disk *d, mf_session *fork) {
    mf_session *given_up = NULL;
    pthread_mutex_lock(&d->lock);
    if (d->n_states == MAX_STATES) given_up = take_state(d);
    d->states[d->n_states++] = fork;
    pthread_cond_broadcast(&d->wanted);
    pthread_mutex_unlock(&d->lock);
    mf_session_free(given_up);
}

bool disk_give_up(disk *d) {
    if (!d) return false;
    pthread_mutex_lock(&d->lock);
    mf_session *state = take_state(d);
    pthread_mutex_unlock(&d->lock);
    mf_session_free(state);
    return state != NULL;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void stop(disk *d) {
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->wanted);
    pthread_mutex_unlock(&d->lock);
    while (d->n_readers) pthread_join(d->readers[--d->n_readers], NULL);
    pthread_join(d->writer, NULL);
}

static void deinit(disk *d) {
    pthread_cond_destroy(&d->wanted);
    pthread_cond_destroy(&d->idle);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

disk *disk_create(int n_loads, void (*wake)(void *user), void *user) {
    disk *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->wake = wake;
    d->user = user;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->wanted, NULL);
    pthread_cond_init(&d->idle, NULL);
    d->max_readers = n_loads < 1 ? 1 : n_loads < MAX_READERS ? n_loads : MAX_READERS;
    if (!pthread_create(&d->writer, NULL, write_all, d)) {
        if (!pthread_create(&d->readers[0], NULL, read_all, d)) d->n_readers = 1;
        if (d->n_readers) return d;
        stop(d);
    }
    deinit(d);
    return NULL;
}

void disk_free(disk *d) {
    if (!d) return;
    stop(d);
    deinit(d);
}
