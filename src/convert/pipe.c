/* The three stages. Slots go round: free -> loaded -> worked -> free, each stage taking them in the same order, so a
 * stage needs to look at one slot only: the next of its own. */
#include "convert/pipe.h"

#include <pthread.h>
#include <stdlib.h>

enum { FREE, LOADED, WORKED };

typedef struct run {
    const mf__pipe *pipe;
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int *state; /* [n_slots] */
    bool loaded_all, worked_all;
    mf_status status; /* the first failure */
    mf_error err;
} run;

static void fail(run *r, mf_status status, const mf_error *err) {
    pthread_mutex_lock(&r->lock);
    if (r->status == MF_OK) {
        r->status = status;
        r->err = *err;
    }
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

/* Waits until slot i is in `state`. False: there will be no more (the stage before ended, or the run failed). */
static bool take(run *r, int i, int state, const bool *before_ended) {
    pthread_mutex_lock(&r->lock);
    while (r->status == MF_OK && r->state[i] != state && !(before_ended && *before_ended))
        pthread_cond_wait(&r->moved, &r->lock);
    bool ok = r->status == MF_OK && r->state[i] == state;
    pthread_mutex_unlock(&r->lock);
    return ok;
}

static void pass(run *r, int i, int state) {
    pthread_mutex_lock(&r->lock);
    r->state[i] = state;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

static void ended(run *r, bool *flag) {
    pthread_mutex_lock(&r->lock);
    *flag = true;
    pthread_cond_broadcast(&r->moved);
    pthread_mutex_unlock(&r->lock);
}

static void *load_thread(void *arg) {
    run *r = arg;
    const mf__pipe *p = r->pipe;
    for (int i = 0; take(r, i, FREE, NULL); i = (i + 1) % p->n_slots) {
        mf_error err = {0};
        bool end = false;
        mf_status status = p->load(p->ctx, p->slots[i], &end, &err);
        if (status != MF_OK) {
            fail(r, status, &err);
            break;
        }
        if (end) break;
        pass(r, i, LOADED);
    }
    ended(r, &r->loaded_all);
    return NULL;
}

static void *put_thread(void *arg) {
    run *r = arg;
    const mf__pipe *p = r->pipe;
    for (int i = 0; take(r, i, WORKED, &r->worked_all); i = (i + 1) % p->n_slots) {
        mf_error err = {0};
        mf_status status = p->put(p->ctx, p->slots[i], &err);
        if (status != MF_OK) {
            fail(r, status, &err);
            break;
        }
        pass(r, i, FREE);
    }
    return NULL;
}

static void work_here(run *r) {
    const mf__pipe *p = r->pipe;
    for (int i = 0; take(r, i, LOADED, &r->loaded_all); i = (i + 1) % p->n_slots) {
        mf_error err = {0};
        mf_status status = p->work(p->ctx, p->slots[i], &err);
        if (status != MF_OK) {
            fail(r, status, &err);
            break;
        }
        pass(r, i, WORKED);
    }
    ended(r, &r->worked_all);
}

static mf_status run_threads(run *r) {
    static const mf_error no_thread = {MF_E_NOMEM, "cannot start a thread"};
    pthread_t loader, putter;
    if (pthread_create(&loader, NULL, load_thread, r) != 0) {
        r->err = no_thread;
        return MF_E_NOMEM;
    }
    bool put_ok = pthread_create(&putter, NULL, put_thread, r) == 0;
    if (!put_ok) fail(r, MF_E_NOMEM, &no_thread);
    work_here(r);
    pthread_join(loader, NULL);
    if (put_ok) pthread_join(putter, NULL);
    return r->status;
}

mf_status mf__pipe_run(const mf__pipe *pipe, mf_error *err) {
    run r = {.pipe = pipe, .state = calloc((size_t)pipe->n_slots, sizeof *r.state)};
    if (!r.state) return mf__fail(err, MF_E_NOMEM, "no memory for the stages of a conversion");
    pthread_mutex_init(&r.lock, NULL);
    pthread_cond_init(&r.moved, NULL);
    mf_status status = run_threads(&r);
    pthread_cond_destroy(&r.moved);
    pthread_mutex_destroy(&r.lock);
    free(r.state);
    if (status != MF_OK && err) *err = r.err;
    return status;
}
