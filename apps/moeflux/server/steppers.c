#include "steppers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#define MAX_HELPERS 15

struct steppers {
    pthread_t threads[MAX_HELPERS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
    int n_wanted;  /* lock: helpers that may still join the run under way */
    int n_working; /* lock: helpers that have joined and not left */
    bool stop;     /* lock */
    /* the run under way: written under lock before helpers join */
    void (*fn)(void *user, int i);
    void *user;
    int n;
    atomic_int next;
};

static void work(steppers *s) {
    for (int i; (i = atomic_fetch_add(&s->next, 1)) < s->n;) s->fn(s->user, i);
}

static void *help(void *user) {
    steppers *s = user;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->n_wanted && !s->stop) pthread_cond_wait(&s->wake, &s->lock);
        if (s->stop) break;
        s->n_wanted--;
        s->n_working++;
        pthread_mutex_unlock(&s->lock);
        work(s);
        pthread_mutex_lock(&s->lock);
        if (!--s->n_working) pthread_cond_signal(&s->done);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

steppers *steppers_create(int n_threads) {
    steppers *s = n_threads > 0 ? calloc(1, sizeof *s) : NULL;
    if (!s) return NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->wake, NULL);
    pthread_cond_init(&s->done, NULL);
    while (s->n_threads < n_threads && s->n_threads < MAX_HELPERS &&
           !pthread_create(&s->threads[s->n_threads], NULL, help, s))
        s->n_threads++;
    return s;
}

void steppers_free(steppers *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
    pthread_cond_destroy(&s->wake);
    pthread_cond_destroy(&s->done);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

void steppers_run(steppers *s, void (*fn)(void *user, int i), void *user, int n) {
    if (!s || n < 2) {
        for (int i = 0; i < n; i++) fn(user, i);
        return;
    }
    pthread_mutex_lock(&s->lock);
    s->fn = fn;
    s->user = user;
    s->n = n;
    atomic_store(&s->next, 0);
    s->n_wanted = n - 1 < s->n_threads ? n - 1 : s->n_threads;
    pthread_cond_broadcast(&s->wake);
    pthread_mutex_unlock(&s->lock);
    work(s);
    pthread_mutex_lock(&s->lock);
    s->n_wanted = 0; /* who has not come yet need not */
    while (s->n_working) pthread_cond_wait(&s->done, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
