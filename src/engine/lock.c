/* The model's lock: a ticket lock. pthread mutexes are not fair: a thread that lets go and takes again, as one does
 * between the chunks of a long prompt, would keep the others out. */
#include "engine/internal.h"

mf_status mf__model_lock_init(mf_model *m, mf_error *err) {
    pthread_mutex_t *const mutexes[] = {&m->lock.mutex, &m->shape_lock, &m->store_lock};
    int n = 0, failed = pthread_cond_init(&m->lock.turn, NULL);
    if (failed) return mf__fail(err, MF_E_NOMEM, "no memory for a lock");
    while (n < 3 && !failed) failed = pthread_mutex_init(mutexes[n++], NULL);
    m->lock.made = !failed;
    if (!failed) return MF_OK;
    for (n--; n > 0; n--) pthread_mutex_destroy(mutexes[n - 1]);
    pthread_cond_destroy(&m->lock.turn);
    return mf__fail(err, MF_E_NOMEM, "no memory for a lock");
}

void mf__model_lock_deinit(mf_model *m) {
    if (!m->lock.made) return;
    pthread_mutex_destroy(&m->store_lock);
    pthread_mutex_destroy(&m->shape_lock);
    pthread_cond_destroy(&m->lock.turn);
    pthread_mutex_destroy(&m->lock.mutex);
}

void mf__model_lock(mf_model *m) {
    mf__ticket_lock *l = &m->lock;
    pthread_mutex_lock(&l->mutex);
    uint64_t mine = l->next++;
    while (l->serving != mine) pthread_cond_wait(&l->turn, &l->mutex);
    pthread_mutex_unlock(&l->mutex);
}

void mf__model_unlock(mf_model *m) {
    mf__ticket_lock *l = &m->lock;
    pthread_mutex_lock(&l->mutex);
    l->serving++;
    if (l->serving != l->next) pthread_cond_broadcast(&l->turn);
    pthread_mutex_unlock(&l->mutex);
}
