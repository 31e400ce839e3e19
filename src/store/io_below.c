/* The engine of a store that stands on another: a few threads, each with a turn object of the store below. Experts of a
 * layer that are queued together are one turn there, so that its drive has them all to read; each is copied up as soon
 * as it is ready. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "store/internal.h"

#define BATCH 16 /* experts of one turn */

typedef struct copier {
    mf__store *store;
    mf__turn *turn; /* of the store below */
    pthread_t thread;
    mf__read reads[BATCH];
    int32_t ids[BATCH], got[BATCH];
    const void *blobs[BATCH];
    bool copied[BATCH];
} copier;

typedef struct below_io {
    mf__io base;
    int n_made, n_threads; /* turns, and threads that run */
    copier copiers[];
} below_io;

static mf_status copy_one(const mf__store *s, const mf__read *r, const void *from, mf_error *err) {
    if (s->config.copy) return s->config.copy(s->config.copy_user, r->to, from, r->bytes, err);
    memcpy(r->to, from, (size_t)r->bytes);
    return MF_OK;
}

/* What next gave out. Mapped files may turn out to have been cut: then only the end of the turn says that it was good.
 */
static void copy_some(copier *x, int n, int n_got) {
    mf__store *s = x->store;
    for (int g = 0; g < n_got; g++) {
        mf_error why = {0};
        int i = 0;
        while (i < n - 1 && x->ids[i] != x->got[g]) i++;
        if (copy_one(s, &x->reads[i], x->blobs[g], &why) != MF_OK) {
            mf__feed_fail(s, &x->reads[i], &why);
            x->ids[i] = -1;
        } else if (s->below->mapped) {
            x->copied[i] = true;
        } else {
            mf__feed_finish(s, &x->reads[i], 0, 0);
            x->ids[i] = -1;
        }
    }
}

static void serve(copier *x, int n) {
    mf__store *s = x->store;
    mf_error why = {0};
    int n_got = 1;
    int layer = x->reads[0].key / s->n_experts;
    int32_t wanted[BATCH];
    for (int i = 0; i < n; i++) wanted[i] = x->ids[i] = x->reads[i].key % s->n_experts;
    memset(x->copied, 0, sizeof x->copied);
    x->turn->guess = !x->reads[0].demanded;
    mf_status st = mf__turn_begin(x->turn, layer, wanted, NULL, n, 1, &why);
    while (st == MF_OK && n_got) {
        st = mf__turn_next(x->turn, x->got, x->blobs, &n_got, &why);
        if (st != MF_OK || !n_got) break;
        copy_some(x, n, n_got);
        mf__turn_done(x->turn, x->got, n_got);
    }
    mf__turn_end(x->turn);
    for (int i = 0; i < n; i++) {
        if (x->ids[i] < 0) continue;
        if (st == MF_OK && x->copied[i])
            mf__feed_finish(s, &x->reads[i], 0, 0);
        else
            mf__feed_fail(s, &x->reads[i], &why);
    }
}

static void *copier_thread(void *arg) {
    copier *x = arg;
    int n;
    while ((n = mf__feed_take_layer(x->store, x->reads, BATCH)) > 0) serve(x, n);
    return NULL;
}

/* The store above is closing: what it still waits for is not waited for. */
static bool is_stopping(void *user) {
    mf__store *s = user;
    pthread_mutex_lock(&s->lock);
    bool stop = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return stop;
}

static void below_free(mf__io *io) {
    below_io *x = (below_io *)io;
    for (int i = 0; i < x->n_threads; i++) pthread_join(x->copiers[i].thread, NULL);
    for (int i = 0; i < x->n_made; i++) mf__turn_free(x->copiers[i].turn);
    free(x);
}

mf_status mf__io_below_create(mf__store *s, int n_threads, mf__io **out, mf_error *err) {
    below_io *x = calloc(1, sizeof *x + (size_t)n_threads * sizeof *x->copiers);
    *out = NULL;
    if (!x) return mf__fail(err, MF_E_NOMEM, "no memory for %d I/O threads", n_threads);
    x->base = (mf__io){.name = "copy", .free = below_free};
    *out = &x->base; /* from here on mf__store_close frees what was made */
    s->depth = n_threads * BATCH;
    s->guess_depth = BATCH / 4;
    s->n_takers = n_threads;
    for (; x->n_made < n_threads; x->n_made++) {
        copier *c = &x->copiers[x->n_made];
        c->store = s;
        MF__TRY(mf__turn_create(s->below, &c->turn, err));
        c->turn->partial = true;
        mf__turn_cancel_set(c->turn, is_stopping, s);
    }
    for (; x->n_threads < n_threads; x->n_threads++) {
        copier *c = &x->copiers[x->n_threads];
        int error = pthread_create(&c->thread, NULL, copier_thread, c);
        if (error && x->n_threads == 0) return mf__fail_errno(err, error, "starting an I/O thread");
        if (error) break; /* fewer will do */
    }
    return MF_OK;
}
