/* The io_uring engine: one thread keeps many reads under way, submitted and reaped in batches.
 *
 * Files are registered; buffers are not: the kernel would pin the whole arena for as long as the ring lives, so memory
 * could not be given back when the budget shrinks. With huge pages under the slots pinning per read is cheap. */
#include "store/internal.h"

#ifdef MF_HAVE_URING

#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct flight {
    mf__read read;
    int64_t got;
    int fate;      /* tests: what comes back instead of the read's own result; 1: nothing does */
    bool buffered; /* went on through the page cache */
    bool busy;
} flight;

typedef struct uring_io {
    mf__io base;
    mf__store *store;
    struct io_uring ring;
    bool has_ring, fixed, listening;
    int bell; /* eventfd: there is work */
    uint64_t rings;
    atomic_bool asleep; /* set before the last look for work, so that no wake is lost */
    bool has_thread;
    pthread_t thread;
    int depth, n_flying;
    flight flights[];
} uring_io;

static void uring_wake(mf__io *io) {
    uring_io *x = (uring_io *)io;
    uint64_t one = 1;
    if (!atomic_exchange(&x->asleep, false)) return;
    while (write(x->bell, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

/* A read of what is left of a flight. The queue has an entry per flight and one for the bell, so there is room. */
static void prepare(uring_io *x, flight *f) {
    const mf__read *p = &f->read;
    bool direct = p->direct && !f->buffered;
    int64_t n = mf__read_fate(x->store, p->bytes - f->got);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&x->ring);
    f->fate = n > 0 ? 1 : (int)n;
    if (n <= 0) {
        io_uring_prep_nop(sqe);
        io_uring_sqe_set_data(sqe, f);
        return;
    }
    int fd = x->fixed ? 2 * p->file + direct : direct ? p->fd : p->fd_buffered;
    io_uring_prep_read(sqe, fd, p->to + f->got, (unsigned)n, (uint64_t)(p->offset + f->got));
    if (x->fixed) sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data(sqe, f);
}

static void take_all(uring_io *x) {
    for (int i = 0; i < x->depth; i++) {
        flight *f = &x->flights[i];
        if (f->busy) continue;
        if (!mf__feed_take(x->store, false, &f->read)) return;
        f->busy = true;
        f->buffered = false;
        f->got = 0;
        x->n_flying++;
        prepare(x, f);
    }
}

/* One read came back: done, failed, or to be continued. */
static void land(uring_io *x, flight *f, int res) {
    const mf__read *p = &f->read;
    int error = 0;
    if (res > 0) {
        f->got += res;
        if (f->got % MF_BLOCK) f->buffered = true;
    } else if (res == 0) {
        error = -1;
    } else if ((res == -EINVAL || res == -EFAULT) && p->direct && !f->buffered) {
        f->buffered = true;
    } else if (res != -EINTR && res != -EAGAIN) {
        error = -res;
    }
    if (!error && f->got < p->need) {
        prepare(x, f);
        return;
    }
    f->busy = false;
    x->n_flying--;
    mf__feed_finish(x->store, p, error, p->offset + f->got);
}

static void listen_bell(uring_io *x) {
    if (x->listening) return;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&x->ring);
    io_uring_prep_read(sqe, x->bell, &x->rings, sizeof x->rings, 0);
    io_uring_sqe_set_data(sqe, NULL);
    x->listening = true;
}

static bool stopping(mf__store *s) {
    pthread_mutex_lock(&s->lock);
    bool stop = s->stopping;
    pthread_mutex_unlock(&s->lock);
    return stop;
}

static void *ring_thread(void *arg) {
    uring_io *x = arg;
    for (;;) {
        atomic_store(&x->asleep, true);
        take_all(x);
        if (stopping(x->store) && x->n_flying == 0) return NULL;
        listen_bell(x);
        io_uring_submit_and_wait(&x->ring, 1); /* an interrupted wait only goes round once more */
        atomic_store(&x->asleep, false);
        struct io_uring_cqe *cqe;
        while (io_uring_peek_cqe(&x->ring, &cqe) == 0) {
            flight *f = io_uring_cqe_get_data(cqe);
            int res = f && f->fate <= 0 ? f->fate : cqe->res;
            io_uring_cqe_seen(&x->ring, cqe);
            if (f)
                land(x, f, res);
            else
                x->listening = false;
        }
    }
}

static void uring_free(mf__io *io) {
    uring_io *x = (uring_io *)io;
    if (x->has_thread) pthread_join(x->thread, NULL);
    if (x->has_ring) io_uring_queue_exit(&x->ring);
    if (x->bell >= 0) close(x->bell);
    free(x);
}

static bool register_files(uring_io *x) {
    const mf__store *s = x->store;
    int *fds = calloc((size_t)s->n_files * 2, sizeof *fds);
    if (!fds) return false;
    for (int i = 0; i < s->n_files; i++) {
        fds[2 * i] = s->files[i].fd;
        fds[2 * i + 1] = s->files[i].direct;
    }
    int rc = io_uring_register_files(&x->ring, fds, (unsigned)s->n_files * 2);
    free(fds);
    return rc == 0;
}

mf_status mf__io_uring_create(mf__store *s, int depth, mf__io **out, mf_error *err) {
    uring_io *x = calloc(1, sizeof *x + (size_t)depth * sizeof *x->flights);
    *out = NULL;
    if (!x) return mf__fail(err, MF_E_NOMEM, "no memory for a ring of %d reads", depth);
    x->base = (mf__io){.name = "uring", .wake = uring_wake, .free = uring_free};
    x->store = s;
    x->depth = depth;
    x->bell = eventfd(0, EFD_CLOEXEC);
    int rc = x->bell < 0 ? -errno : io_uring_queue_init((unsigned)depth + 1, &x->ring, 0);
    if (rc < 0) {
        uring_free(&x->base);
        return mf__fail(err, MF_E_UNSUPPORTED, "the kernel refused a ring: %s", strerror(-rc));
    }
    x->has_ring = true;
    x->fixed = register_files(x);
    rc = pthread_create(&x->thread, NULL, ring_thread, x);
    if (rc) {
        uring_free(&x->base);
        return mf__fail_errno(err, rc, "starting the ring's thread");
    }
    x->has_thread = true;
    *out = &x->base;
    return MF_OK;
}

#else

mf_status mf__io_uring_create(mf__store *s, int depth, mf__io **out, mf_error *err) {
    (void)s, (void)depth;
    *out = NULL;
    return mf__fail(err, MF_E_UNSUPPORTED, "this build has no io_uring");
}

#endif
