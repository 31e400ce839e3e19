/* The pread engine: a few threads, one read each at a time. Also brings in the pages of mapped files. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/internal.h"

typedef struct pread_io {
    mf__io base;
    mf__store *store;
    int n_threads;
    pthread_t threads[];
} pread_io;

static ssize_t read_some(const mf__store *s, int fd, void *buf, int64_t n, int64_t offset) {
    n = mf__read_fate(s, n);
    if (n > 0) return pread(fd, buf, (size_t)n, (off_t)offset);
    errno = (int)-n;
    return n < 0 ? -1 : 0;
}

/* Returns 0, an errno, or -1 when the file ended; *at: where. A direct read that is refused (also for memory of a
 * driver's that no drive may write to), or that stopped inside a block, goes on through the page cache. */
static int do_read(const mf__store *s, const mf__read *p, int64_t *at) {
    int fd = p->fd;
    for (int64_t got = 0; got < p->need;) {
        *at = p->offset + got;
        ssize_t n = read_some(s, fd, p->to + got, p->bytes - got, *at);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0 && (errno == EINVAL || errno == EFAULT) && fd != p->fd_buffered) {
            fd = p->fd_buffered;
            continue;
        }
        if (n < 0) return errno;
        if (n == 0) return -1;
        got += n;
        if (got % MF_BLOCK) fd = p->fd_buffered;
    }
    return 0;
}

/* Has the pages of a mapped file brought in. Kernels that cannot are left to fault them in. */
static int touch_pages(const mf__store *s, const mf__read *p, int64_t *at) {
    int64_t fate;
    *at = p->offset;
    while ((fate = mf__read_fate(s, p->need)) == -EINTR || fate == -EAGAIN) {
    }
    if (fate <= 0) return fate < 0 ? (int)-fate : -1;
#ifdef MADV_POPULATE_READ
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)p->to / page * page;
    size_t n = (size_t)((uintptr_t)p->to + (uintptr_t)p->need - from);
    madvise((void *)from, n, MADV_WILLNEED);
    while (madvise((void *)from, n, MADV_POPULATE_READ)) {
        if (errno == EINTR || errno == EAGAIN) continue;
        if (errno == EINVAL) break;
        return errno == EFAULT ? -1 : errno;
    }
#endif
    return 0;
}

static void *worker(void *arg) {
    mf__store *s = arg;
    mf__read p;
    while (mf__feed_take(s, true, &p)) {
        int64_t at = p.offset;
        int error = p.mapped ? touch_pages(s, &p, &at) : do_read(s, &p, &at);
        mf__feed_finish(s, &p, error, at);
    }
    return NULL;
}

static void pread_free(mf__io *io) {
    pread_io *x = (pread_io *)io;
    for (int i = 0; i < x->n_threads; i++) pthread_join(x->threads[i], NULL);
    free(x);
}

mf_status mf__io_pread_create(mf__store *s, int n_threads, mf__io **out, mf_error *err) {
    pread_io *x = calloc(1, sizeof *x + (size_t)n_threads * sizeof *x->threads);
    *out = NULL;
    if (!x) return mf__fail(err, MF_E_NOMEM, "no memory for %d I/O threads", n_threads);
    x->base = (mf__io){.name = s->mapped ? "mmap" : "pread", .free = pread_free};
    x->store = s;
    *out = &x->base; /* from here on mf__store_close joins what was started */
    for (; x->n_threads < n_threads; x->n_threads++) {
        int error = pthread_create(&x->threads[x->n_threads], NULL, worker, s);
        if (error && x->n_threads == 0) return mf__fail_errno(err, error, "starting an I/O thread");
        if (error) break; /* fewer will do */
    }
    return MF_OK;
}
