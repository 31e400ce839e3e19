/* The preparing threads: JSON, templates, tokens and grammars take their time, and neither the loop nor the passes wait
 * for them. */
#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "server_int.h"

#define LARGE_BYTES 65536 /* of a body */
#define TRIM_BYTES (4 << 20)

static job *take(preparer *p, int which) {
    job *j = p->queues[which].first;
    if (!j) return NULL;
    p->queues[which].first = j->next;
    if (!j->next) p->queues[which].tail = &p->queues[which].first;
    return j;
}

/* Who takes large ones takes small ones too where there is nothing else to do. */
static job *next_job(preparer *p, int which) {
    job *j = NULL;
    pthread_mutex_lock(&p->lock);
    while (!p->stop && !(j = take(p, which)) && !(which == PREPARE_LARGE && (j = take(p, PREPARE_SMALL))))
        pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return j;
}

static void *run_small(void *user) {
    server *s = user;
    job *j;
    while ((j = next_job(&s->prep, PREPARE_SMALL))) job_prepare(j);
    return NULL;
}

static void *run_large(void *user) {
    server *s = user;
    job *j;
    while ((j = next_job(&s->prep, PREPARE_LARGE))) {
        bool large = j->n_body > TRIM_BYTES;
        job_prepare(j);
#ifdef __GLIBC__
        if (large) malloc_trim(0); /* many times the body's size was in use for a moment: it goes back to the system */
#endif
    }
    return NULL;
}

bool preparer_start(server *s) {
    static void *(*const runs[PREPARERS])(void *) = {run_small, run_large};
    preparer *p = &s->prep;
    for (int i = 0; i < PREPARERS; i++) p->queues[i].tail = &p->queues[i].first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    while (p->n_started < PREPARERS && !pthread_create(&p->threads[p->n_started], NULL, runs[p->n_started], s))
        p->n_started++;
    return p->n_started == PREPARERS;
}

void preparer_put(server *s, job *j) {
    preparer *p = &s->prep;
    int which = j->n_body > LARGE_BYTES ? PREPARE_LARGE : PREPARE_SMALL;
    pthread_mutex_lock(&p->lock);
    j->next = NULL;
    *p->queues[which].tail = j;
    p->queues[which].tail = &j->next;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void preparer_stop(server *s) {
    preparer *p = &s->prep;
    if (!p->n_started) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    while (p->n_started) pthread_join(p->threads[--p->n_started], NULL);
    for (int i = 0; i < PREPARERS; i++)
        for (job *j; (j = take(p, i));) { /* nobody prepares it any more */
            job_fail(j, 503, NULL, NULL, "The server is going down.");
            mailbox_put(&s->mail, j->prepared, &j->prepared->next);
        }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
}
