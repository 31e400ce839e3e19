/* The preparing thread: JSON, templates, tokens and grammars take their time, and neither the loop nor the passes wait
 * for them. */
#include <stdlib.h>

#include "server_int.h"

static job *next_job(preparer *p) {
    pthread_mutex_lock(&p->lock);
    while (!p->first && !p->stop) pthread_cond_wait(&p->wake, &p->lock);
    job *j = p->stop ? NULL : p->first;
    if (j) {
        p->first = j->next;
        if (!p->first) p->tail = &p->first;
    }
    pthread_mutex_unlock(&p->lock);
    return j;
}

static void *run(void *user) {
    server *s = user;
    job *j;
    while ((j = next_job(&s->prep))) job_prepare(j);
    return NULL;
}

bool preparer_start(server *s) {
    preparer *p = &s->prep;
    p->tail = &p->first;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->started = !pthread_create(&p->thread, NULL, run, s);
    return p->started;
}

void preparer_put(server *s, job *j) {
    preparer *p = &s->prep;
    pthread_mutex_lock(&p->lock);
    j->next = NULL;
    *p->tail = j;
    p->tail = &j->next;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void preparer_stop(server *s) {
    preparer *p = &s->prep;
    if (!p->started) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    p->started = false;
    for (job *j = p->first, *next; j; j = next) { /* nobody prepares them any more */
        next = j->next;
        job_fail(j, 503, NULL, NULL, "The server is going down.");
        mailbox_put(&s->mail, j->prepared);
    }
    p->first = NULL;
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->wake);
}
