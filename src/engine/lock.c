/* The model's lock: a ticket lock. pthread mutexes are not fair: a thread that lets go and takes again, as one does
 * between the chunks of a long prompt, would keep the others out. */
#include "engine/internal.h"

mf_status mf__model_lock_init(mf_model *m, mf_error *err) {
    if (pthread_mutex_init(&m->lock.mutex, NULL)) return mf__fail(err, MF_E_NOMEM, "no memory for a lock");
    if (pthread_cond_init(&m->lock.turn, NULL)) {
        pthread_mutex_destroy(&m->lock.mutex);
        return mf__fail(err, MF_E_NOMEM, "no memory for a lock");
    }
    if (pthread_mutex_init(&m->shape_lock, NULL) || pthread_mutex_init(&m->store_lock, NULL)) {
        pthread_cond_destroy(&m->lock.turn);
        pthread_mutex_destroy(&m->lock.mutex);
        return mf__fail(err, MF_E_NOMEM, "no memory for a lock");
    }
    m->lock.made = true;
    return MF_OK;
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
