/* Fork/join in three steps:
 *
 *   caller: write the job, bump the `go` number of every worker that has a piece, run piece 0, wait for pending == 0
 *   worker: see its `go` change, run its piece, pending--
 *
 * Invariants:
 *   - The job is written only while pending == 0, when no worker looks at it: a worker reads the job between the
 *     change of its own `go` and its own decrement of `pending`, and at no other time.
 *   - Both waits spin for SPIN_NS and then park. Who parks first says so in a flag and then looks again under the
 *     lock; who wakes first changes the value and then looks at the flag. Both orders are sequentially consistent, so
 *     one of the two always sees the other and no wake-up is lost. The flag is set by an exchange: qemu-user (7.2) on
 *     x86 lets a load-acquire overtake a store-release, which ARM does not, and loses wake-ups with a plain store.
 *   - mf__pool_run allocates nothing and makes no system call while the workers are awake. */
#include "base/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/probe.h"

#define MAX_THREADS 1024
#define SPIN_NS 30000  /* longer than the pause between two ops of a layer, short enough to cost nothing when idle */
#define SPIN_ROUNDS 64 /* looks between two looks at the clock */
#define LINE 128       /* cache lines are fetched in pairs of 64; 128 on some ARM */

/* One waiting place: the waiter parks here when spinning did not help. */
typedef struct bench {
    atomic_bool parked;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} bench;

typedef struct worker {
    alignas(LINE) atomic_uint go; /* number of the newest job that has a piece for this worker */
    mf__pool *pool;
    int thread;
    pthread_t id;
    bench seat;
} worker;

struct mf__pool {
    int n_threads, n_started; /* n_started counts the workers running, for free */
    atomic_bool quit;

    mf__pool_fn *fn; /* the job */
    void *ctx;
    int64_t n_items;
    int n_pieces;

    alignas(LINE) atomic_int pending; /* workers still at the job */
    bench caller_seat;
    worker workers[]; /* worker i is thread i + 1 */
};

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

static bool bench_init(bench *b) {
    atomic_init(&b->parked, false);
    if (pthread_mutex_init(&b->lock, NULL) != 0) return false;
    if (pthread_cond_init(&b->wake, NULL) == 0) return true;
    pthread_mutex_destroy(&b->lock);
    return false;
}

static void bench_deinit(bench *b) {
    pthread_cond_destroy(&b->wake);
    pthread_mutex_destroy(&b->lock);
}

/* To be called after the change the waiter waits for. */
static void bench_wake(bench *b) {
    if (!atomic_load(&b->parked)) return;
    pthread_mutex_lock(&b->lock);
    pthread_cond_signal(&b->wake);
    pthread_mutex_unlock(&b->lock);
}

/* True while a spinning wait may go on. *deadline is 0 at first, so that a short wait never reads the clock. */
static bool may_spin(int64_t *deadline) {
    int64_t now = mf__clock_ns();
    if (*deadline == 0) *deadline = now + SPIN_NS;
    return now < *deadline;
}

/* Waits until the number of the newest job is not `old`, and returns it. */
static unsigned wait_for_job(worker *w, unsigned old) {
    unsigned now;
    int64_t deadline = 0;
    do {
        for (int i = 0; i < SPIN_ROUNDS; i++) {
            if ((now = atomic_load_explicit(&w->go, memory_order_acquire)) != old) return now;
            relax();
        }
    } while (may_spin(&deadline));

    pthread_mutex_lock(&w->seat.lock);
    atomic_exchange(&w->seat.parked, true);
    while ((now = atomic_load(&w->go)) == old) pthread_cond_wait(&w->seat.wake, &w->seat.lock);
    atomic_store(&w->seat.parked, false);
    pthread_mutex_unlock(&w->seat.lock);
    return now;
}

static void wait_for_workers(mf__pool *pool) {
    int64_t deadline = 0;
    do {
        for (int i = 0; i < SPIN_ROUNDS; i++) {
            if (atomic_load_explicit(&pool->pending, memory_order_acquire) == 0) return;
            relax();
        }
    } while (may_spin(&deadline));

    bench *seat = &pool->caller_seat;
    pthread_mutex_lock(&seat->lock);
    atomic_exchange(&seat->parked, true);
    while (atomic_load(&pool->pending) != 0) pthread_cond_wait(&seat->wake, &seat->lock);
    atomic_store(&seat->parked, false);
    pthread_mutex_unlock(&seat->lock);
}

/* The pieces differ in length by one item at most, the longer ones first. */
static void run_piece(const mf__pool *pool, int piece) {
    int64_t each = pool->n_items / pool->n_pieces, rest = pool->n_items % pool->n_pieces;
    int64_t begin = piece * each + (piece < rest ? piece : rest);
    pool->fn(pool->ctx, begin, begin + each + (piece < rest), piece);
}

static void *worker_main(void *arg) {
    worker *w = arg;
    mf__pool *pool = w->pool;
    for (unsigned seen = 0;;) {
        seen = wait_for_job(w, seen);
        if (atomic_load(&pool->quit)) return NULL;
        run_piece(pool, w->thread);
        if (atomic_fetch_sub(&pool->pending, 1) == 1) bench_wake(&pool->caller_seat);
    }
}

static void worker_call(worker *w) {
    atomic_fetch_add(&w->go, 1);
    bench_wake(&w->seat);
}

void mf__pool_run(mf__pool *pool, mf__pool_fn *fn, void *ctx, int64_t n_items) {
    if (n_items <= 0) return;
    if (!pool || pool->n_threads == 1 || n_items == 1) {
        fn(ctx, 0, n_items, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    pool->n_items = n_items;
    pool->n_pieces = n_items < pool->n_threads ? (int)n_items : pool->n_threads;
    atomic_store_explicit(&pool->pending, pool->n_pieces - 1, memory_order_relaxed);
    for (int i = 0; i < pool->n_pieces - 1; i++) worker_call(&pool->workers[i]);
    run_piece(pool, 0);
    wait_for_workers(pool);
}

/* Signals are the application's business: workers are born with all of them blocked. */
static mf_status worker_start(mf__pool *pool, int i, mf_error *err) {
    worker *w = &pool->workers[i];
    atomic_init(&w->go, 0);
    w->pool = pool;
    w->thread = i + 1;
    if (!bench_init(&w->seat)) return mf__fail(err, MF_E_NOMEM, "no memory for compute thread %d", i + 1);
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int errnum = pthread_create(&w->id, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (errnum) {
        bench_deinit(&w->seat);
        return mf__fail_errno(err, errnum, "cannot start compute thread %d of %d; ask for fewer threads", i + 1,
                              pool->n_threads);
    }
#if defined(__linux__)
    pthread_setname_np(w->id, "mf-compute");
#endif
    pool->n_started++;
    return MF_OK;
}

mf_status mf__pool_create(int n_threads, mf__pool **out, mf_error *err) {
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return mf__fail(err, MF_E_INVALID, "%d compute threads asked for, expected 1 to %d", n_threads, MAX_THREADS);
    size_t size = sizeof(mf__pool) + (size_t)(n_threads - 1) * sizeof(worker); /* a multiple of LINE, as both are */
    mf__pool *pool = aligned_alloc(LINE, size);
    if (!pool) return mf__fail(err, MF_E_NOMEM, "no memory for %d compute threads", n_threads);
    memset(pool, 0, size);
    pool->n_threads = n_threads;
    atomic_init(&pool->quit, false);
    atomic_init(&pool->pending, 0);
    if (!bench_init(&pool->caller_seat)) {
        free(pool);
        return mf__fail(err, MF_E_NOMEM, "no memory for %d compute threads", n_threads);
    }
    for (int i = 0; i < n_threads - 1; i++) {
        mf_status status = worker_start(pool, i, err);
        if (status != MF_OK) {
            mf__pool_free(pool);
            return status;
        }
    }
    *out = pool;
    return MF_OK;
}

mf_status mf__pool_pin(mf__pool *pool, mf_error *err) {
    int cores[MAX_THREADS], n = mf__cpu_cores(cores, MAX_THREADS);
    if (n < pool->n_threads)
        return mf__fail(
            err, MF_E_UNSUPPORTED,
            "%d compute threads cannot be pinned to %d cores, one each; ask for fewer threads, or leave them "
            "to the system",
            pool->n_threads, n);
#if defined(__linux__)
    for (int i = 0; i < pool->n_started; i++) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET((size_t)cores[i + 1], &one);
        int errnum = pthread_setaffinity_np(pool->workers[i].id, sizeof one, &one);
        if (errnum) return mf__fail_errno(err, errnum, "cannot pin compute thread %d to core %d", i + 1, cores[i + 1]);
    }
#endif
    return MF_OK;
}

void mf__pool_free(mf__pool *pool) {
    if (!pool) return;
    atomic_store(&pool->quit, true);
    for (int i = 0; i < pool->n_started; i++) worker_call(&pool->workers[i]);
    for (int i = 0; i < pool->n_started; i++) {
        pthread_join(pool->workers[i].id, NULL);
        bench_deinit(&pool->workers[i].seat);
    }
    bench_deinit(&pool->caller_seat);
    free(pool);
}

int mf__pool_threads(const mf__pool *pool) {
    return pool ? pool->n_threads : 1;
}
