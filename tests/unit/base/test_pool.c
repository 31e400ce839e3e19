/* Every item exactly once, by the promised thread; results visible to the caller; no work while idle. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/pool.h"
#include "base/probe.h"

#define MAX_ITEMS 1000

/* Plain memory on purpose: under ThreadSanitizer an item done twice, or a join that does not join, is a race. */
typedef struct tally {
    int count[MAX_ITEMS];
    int thread[MAX_ITEMS];
    atomic_int n_calls;
} tally;

static void count_items(void *ctx, int64_t begin, int64_t end, int thread) {
    tally *t = ctx;
    atomic_fetch_add(&t->n_calls, 1);
    for (int64_t i = begin; i < end; i++) {
        t->count[i]++;
        t->thread[i] = thread;
    }
}

static void check_region(mf__pool *pool, int64_t n_items) {
    static tally t;
    memset(&t, 0, sizeof t);
    int n_threads = mf__pool_threads(pool);
    mf__pool_run(pool, count_items, &t, n_items);
    int64_t n_pieces = n_items < n_threads ? n_items : n_threads;
    assert_int_equal(atomic_load(&t.n_calls), n_pieces);
    int64_t longest = 0, shortest = MAX_ITEMS, length = 0;
    for (int64_t i = 0; i < n_items; i++) {
        assert_int_equal(t.count[i], 1);
        assert_int_equal(t.thread[i], i == 0 ? 0 : t.thread[i - 1] + (t.thread[i] != t.thread[i - 1])); /* in order */
        length++;
        if (i + 1 == n_items || t.thread[i + 1] != t.thread[i]) {
            if (length > longest) longest = length;
            if (length < shortest) shortest = length;
            length = 0;
        }
    }
    for (int64_t i = n_items; i < MAX_ITEMS; i++) assert_int_equal(t.count[i], 0);
    if (n_items > 0) {
        assert_int_equal(t.thread[n_items - 1], n_pieces - 1);
        assert_true(longest - shortest <= 1);
    }
}

static void every_item_once(void **state) {
    (void)state;
    static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 255, 256, 999, 1000};
    static const int threads[] = {1, 2, 3, 4, 8, 17};
    for (size_t k = 0; k < MF__COUNT(threads); k++) {
        mf__pool *pool;
        assert_int_equal(mf__pool_create(threads[k], &pool, NULL), MF_OK);
        assert_int_equal(mf__pool_threads(pool), threads[k]);
        for (int round = 0; round < 5; round++)
            for (size_t i = 0; i < MF__COUNT(sizes); i++) check_region(pool, sizes[i]);
        mf__pool_free(pool);
    }
    assert_int_equal(mf__pool_threads(NULL), 1);
    for (size_t i = 0; i < MF__COUNT(sizes); i++) check_region(NULL, sizes[i]);
}

typedef struct bounds {
    int64_t begin[4], end[4];
} bounds;

static void keep_bounds(void *ctx, int64_t begin, int64_t end, int thread) {
    ((bounds *)ctx)->begin[thread] = begin;
    ((bounds *)ctx)->end[thread] = end;
}

static void huge_ranges_do_not_overflow(void **state) {
    (void)state;
    mf__pool *pool;
    assert_int_equal(mf__pool_create(4, &pool, NULL), MF_OK);
    bounds b;
    mf__pool_run(pool, keep_bounds, &b, INT64_MAX);
    assert_true(b.begin[0] == 0 && b.end[3] == INT64_MAX);
    for (int i = 1; i < 4; i++) assert_true(b.begin[i] == b.end[i - 1]);
    mf__pool_free(pool);
}

typedef struct chain {
    int64_t partial[8];
    int64_t value;
} chain;

static void add_range(void *ctx, int64_t begin, int64_t end, int thread) {
    chain *c = ctx;
    int64_t sum = 0;
    for (int64_t i = begin; i < end; i++) sum += i + c->value;
    c->partial[thread] = sum;
}

/* Thousands of regions in a row, each reading what the caller wrote from the one before; now and then a pause that is
 * long enough for the workers to park, so that both ways to wake are used. */
static void regions_follow_each_other(void **state) {
    (void)state;
    mf__pool *pool;
    assert_int_equal(mf__pool_create(4, &pool, NULL), MF_OK);
    chain c = {0};
    for (int round = 0; round < 3000; round++) {
        int n = round % 37;
        memset(c.partial, 0, sizeof c.partial);
        mf__pool_run(pool, add_range, &c, n);
        int64_t sum = 0;
        for (int i = 0; i < 8; i++) sum += c.partial[i];
        assert_int_equal(sum, n * (n - 1) / 2 + n * c.value);
        c.value = sum % 1009;
        if (round % 100 == 99) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    mf__pool_free(pool);
}

static void sleep_in_worker(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)begin;
    (void)end;
    if (thread == 1) nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    ((int *)ctx)[thread] = 1;
}

static void caller_waits_for_slow_workers(void **state) {
    (void)state;
    mf__pool *pool;
    assert_int_equal(mf__pool_create(3, &pool, NULL), MF_OK);
    for (int round = 0; round < 10; round++) {
        int done[3] = {0};
        mf__pool_run(pool, sleep_in_worker, done, 3);
        assert_int_equal(done[0] + done[1] + done[2], 3);
    }
    mf__pool_free(pool);
}

static double process_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void idle_workers_use_no_processor(void **state) {
    (void)state;
    mf__pool *pool;
    assert_int_equal(mf__pool_create(4, &pool, NULL), MF_OK);
    check_region(pool, 100);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    double before = process_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    double used = process_seconds() - before;
    mf__pool_free(pool);
    if (used > 0.03) fail_msg("four idle threads used %.3f s of processor time in 0.2 s", used); /* spinning: 0.2 up */
}

static void bad_thread_counts(void **state) {
    (void)state;
    mf_error err;
    mf__pool *pool = (mf__pool *)&err;
    assert_int_equal(mf__pool_create(0, &pool, &err), MF_E_INVALID);
    assert_null(pool);
    assert_int_equal(mf__pool_create(-3, &pool, &err), MF_E_INVALID);
    assert_int_equal(mf__pool_create(1025, &pool, &err), MF_E_INVALID);
    assert_string_equal(err.text, "1025 compute threads asked for, expected 1 to 1024");
    mf__pool_free(NULL);
    for (int i = 0; i < 50; i++) { /* made and freed without work */
        assert_int_equal(mf__pool_create(1 + i % 5, &pool, &err), MF_OK);
        mf__pool_free(pool);
    }
}

#if defined(__linux__)
static void note_cores(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)begin, (void)end;
    assert_int_equal(sched_getaffinity(0, sizeof(cpu_set_t), (cpu_set_t *)ctx + thread), 0);
}

/* Each worker may run on one core, and no two on the same; the caller is as before. */
static void pinned_workers_have_cores(void **state) {
    cpu_set_t of[64], before;
    int cores[64], n = mf__cpu_cores(cores, 64);
    mf__pool *pool;
    mf_error err;
    (void)state;
    assert_true(n >= 1);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(mf__pool_create(n, &pool, NULL), MF_OK);
    assert_int_equal(mf__pool_pin(pool, &err), MF_OK);
    mf__pool_run(pool, note_cores, of, n);
    assert_true(CPU_EQUAL(&of[0], &before));
    for (int i = 1; i < n; i++) {
        assert_int_equal(CPU_COUNT(&of[i]), 1);
        assert_true(CPU_ISSET((size_t)cores[i], &of[i]));
    }
    mf__pool_free(pool);
    if (n == 64) return;
    assert_int_equal(mf__pool_create(n + 1, &pool, NULL), MF_OK);
    assert_int_equal(mf__pool_pin(pool, &err), MF_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "fewer threads"));
    mf__pool_free(pool);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_once),
        cmocka_unit_test(huge_ranges_do_not_overflow),
        cmocka_unit_test(regions_follow_each_other),
        cmocka_unit_test(caller_waits_for_slow_workers),
        cmocka_unit_test(idle_workers_use_no_processor),
        cmocka_unit_test(bad_thread_counts),
#if defined(__linux__)
        cmocka_unit_test(pinned_workers_have_cores),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
