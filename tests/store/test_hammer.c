/* Several threads take turns, hint, lend, change the budget and forget, over a drive that fails, stalls, and answers
 * out of order; another thread checks the invariants all the while. Every byte handed out must be right, and in the end
 * nothing is pinned. Run with a number of seconds; the default is short. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#include "expert_files.h"
#include "slot_memory.h"
#include "store/internal.h"

#define N_TURNERS 3
#define N_LAYERS 5
#define N_EXPERTS 24

static double seconds = 0.6;

typedef struct hammer {
    expert_files files;
    mf__store *store, *below; /* the second may be NULL */
    atomic_bool stop, faults;
    atomic_int n_turns, n_errors, n_wrong, n_whole;
    _Atomic uint64_t seed;
} hammer;

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Errors, interruptions, halves and delays. What is interrupted or delayed is overtaken by others. */
static int64_t bad_drive(void *user, int64_t n) {
    hammer *h = user;
    uint64_t seed = atomic_fetch_add(&h->seed, 0x9e3779b97f4a7c15u), r = next_random(&seed) % 1000;
    if (!atomic_load(&h->faults)) return n;
    if (r < 5) return -EIO;
    if (r < 30) return r % 2 ? -EINTR : -EAGAIN;
    if (r < 60) return n > 100 ? n / 3 : n;
    if (r < 120) usleep((useconds_t)(next_random(&seed) % 3000));
    return n;
}

/* Where the test finds the bytes. */
static const void *bytes_of(const hammer *h, const void *blob) {
    return h->store->config.memory.alloc ? slot_memory_view(h->store->config.memory.user, blob) : blob;
}

static int choose_ids(uint64_t *seed, int32_t *ids) {
    int n = next_random(seed) % 8 ? 1 + (int)(next_random(seed) % 6) : 1 + (int)(next_random(seed) % N_EXPERTS);
    bool taken[N_EXPERTS] = {false};
    for (int i = 0; i < n;) {
        int32_t id = (int32_t)(next_random(seed) % N_EXPERTS);
        if (taken[id]) continue;
        taken[id] = true;
        ids[i++] = id;
    }
    return n;
}

static void one_turn(hammer *h, mf__turn *t, uint64_t *seed) {
    int32_t ids[N_EXPERTS], got[N_EXPERTS];
    const void *blobs[N_EXPERTS];
    int n = choose_ids(seed, ids), layer = (int)(next_random(seed) % N_LAYERS), n_got, total = 0;
    mf_error err = {0};
    bool leave = next_random(seed) % 10 == 0;
    if (mf__turn_begin(t, layer, ids, NULL, n, n > 6 ? 64 : 1, &err) != MF_OK) {
        atomic_fetch_add(&h->n_wrong, 1);
        return;
    }
    for (;;) {
        mf_status st = mf__turn_next(t, got, blobs, &n_got, &err);
        if (st != MF_OK) {
            if (st != MF_E_IO || !(strstr(err.text, "layer_") || strstr(err.text, "the device")))
                atomic_fetch_add(&h->n_wrong, 1);
            atomic_fetch_add(&h->n_errors, 1);
            break;
        }
        if (!n_got) {
            if (total != n) atomic_fetch_add(&h->n_wrong, 1);
            break;
        }
        for (int i = 0; i < n_got; i++)
            if (!blob_is(&h->files, layer, got[i], bytes_of(h, blobs[i]))) atomic_fetch_add(&h->n_wrong, 1);
        total += n_got;
        if (leave) break; /* without done: end gives everything back */
        mf__turn_done(t, got, n_got);
    }
    mf__turn_end(t);
    atomic_fetch_add(&h->n_turns, 1);
}

static void *turner(void *arg) {
    hammer *h = arg;
    uint64_t seed = atomic_fetch_add(&h->seed, 77);
    mf__turn *t = NULL;
    if (mf__turn_create(h->store, &t, NULL) != MF_OK) return NULL;
    while (!atomic_load(&h->stop)) one_turn(h, t, &seed);
    mf__turn_free(t);
    return NULL;
}

/* Rarely there is one, but where everything fits. */
static void look_at_whole(hammer *h) {
    uint64_t version = 0;
    const void *const *table = mf__store_whole(h->store, &version);
    if (!table) return;
    for (int e = 0; e < N_EXPERTS; e += 5)
        if (!version || !blob_is(&h->files, 1, e, bytes_of(h, table[N_EXPERTS + e]))) atomic_fetch_add(&h->n_wrong, 1);
    mf__store_whole_release(h->store);
    atomic_fetch_add(&h->n_whole, 1);
}

static void check_now(hammer *h, mf__store *s) {
    mf_error err = {0};
    if (mf__store_check(s, &err) == MF_OK) return;
    print_message("%s\n", err.text);
    atomic_fetch_add(&h->n_wrong, 1);
}

static void *meddler(void *arg) {
    hammer *h = arg;
    uint64_t seed = 12345;
    int64_t lent[2] = {0, 0};
    while (!atomic_load(&h->stop)) {
        int32_t ids[N_EXPERTS];
        int n = choose_ids(&seed, ids), which = h->below && next_random(&seed) % 2;
        mf__store *s = which ? h->below : h->store; /* budgets and counters are each one's own */
        mf_stats stats;
        switch (next_random(&seed) % 7) {
        case 0: mf__store_budget_set(s, (int64_t)(next_random(&seed) % (24 << 20))); break;
        case 1: mf__store_budget_set(s, INT64_MAX); break;
        case 2:
            if (lent[which]) mf__store_lend(s, -lent[which], NULL);
            lent[which] = 0;
            if (mf__store_lend(s, 3 << 20, NULL) == MF_OK) lent[which] = 3 << 20;
            break;
        case 3: mf__store_forget(h->store); break;
        case 4: mf__store_stats_get(s, &stats); break;
        case 5: look_at_whole(h); break;
        default: mf__store_hint(h->store, MF_PREDICT_ROUTER, (int)(next_random(&seed) % N_LAYERS), ids, n);
        }
        check_now(h, s);
        usleep(300);
    }
    if (lent[0]) mf__store_lend(h->store, -lent[0], NULL);
    if (lent[1]) mf__store_lend(h->below, -lent[1], NULL);
    return NULL;
}

/* Everything at once for a while; then a drive that has recovered gives everything. */
static void hammer_store(hammer *h) {
    pthread_t threads[N_TURNERS + 1];
    mf__store *s = h->store;
    mf__store_fill(s); /* mapped, everything fits */
    for (int i = 0; i < N_TURNERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, turner, h), 0);
    assert_int_equal(pthread_create(&threads[N_TURNERS], NULL, meddler, h), 0);
    usleep((useconds_t)(seconds * 1e6));
    for (int i = 0; i < 1200 && atomic_load(&h->n_turns) <= 10; i++) usleep(100000); /* a machine may be busy */
    atomic_store(&h->stop, true);
    for (int i = 0; i <= N_TURNERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&h->n_wrong), 0);
    assert_true(atomic_load(&h->n_turns) > 10);
    if (!s->mapped && atomic_load(&h->n_turns) > 500) assert_true(atomic_load(&h->n_errors) > 0);
    int pins = 0;
    pthread_mutex_lock(&s->lock); /* guesses may still be read */
    for (int i = 0; i < s->n_slots; i++) pins += s->slots[i].pins;
    pthread_mutex_unlock(&s->lock);
    assert_int_equal(pins, 0);

    atomic_store(&h->faults, false);
    mf__turn *t = NULL;
    assert_int_equal(mf__turn_create(s, &t, NULL), MF_OK);
    int before = atomic_load(&h->n_errors);
    uint64_t seed = 9;
    for (int i = 0; i < 20; i++) one_turn(h, t, &seed);
    assert_int_equal(atomic_load(&h->n_errors), before);
    assert_int_equal(atomic_load(&h->n_wrong), 0);
    mf__turn_free(t);
    print_message("%s%s%s%s, %s, %d reads at a time: %d turns, %d failed, %d times whole\n", s->io->name,
                  s->direct ? " direct" : "", h->below ? " over " : "", h->below ? h->below->io->name : "",
                  s->ranking.policy->name, s->depth, atomic_load(&h->n_turns), before, atomic_load(&h->n_whole));
}

static mf__store *open_store(const mf__store_config *c) {
    mf_error err = {0};
    mf__store *s = NULL;
    if (mf__store_open(c, &s, &err) != MF_OK) fail_msg("%s", err.text);
    return s;
}

static mf__store_config begin_hammer(hammer *h, mf_io io, mf_switch direct, const char *policy, int n_io_threads) {
    memset(h, 0, sizeof *h);
    atomic_store(&h->faults, true);
    assert_true(expert_files_make(&h->files, "hammer", N_LAYERS, N_EXPERTS, 260000, 250001));
    return (mf__store_config){.n_layers = N_LAYERS,
                              .n_dirs = 1,
                              .files = h->files.files,
                              .n_experts = N_EXPERTS,
                              .stride = h->files.stride,
                              .bytes = h->files.bytes,
                              .budget = 16 << 20,
                              .io = io,
                              .direct = direct,
                              .prefetch = MF_SWITCH_ON,
                              .n_io_threads = n_io_threads,
                              .policy = policy,
                              .fault = bad_drive,
                              .fault_user = h};
}

static hammer the_hammer; /* too large for a stack */

static void hammer_in(slot_memory *m, mf_io io, mf_switch direct, const char *policy, int n_io_threads) {
    hammer *h = &the_hammer;
    mf__store_config c = begin_hammer(h, io, direct, policy, n_io_threads);
    if (m) c.memory = slot_memory_of(m);
    h->store = open_store(&c);
    hammer_store(h);
    mf__store_close(h->store);
    expert_files_remove(&h->files);
}

static mf_status bad_copy(void *user, void *to, const void *from, int64_t bytes, mf_error *err) {
    hammer *h = user;
    uint64_t seed = atomic_fetch_add(&h->seed, 0x9e3779b97f4a7c15u), r = next_random(&seed) % 1000;
    if (atomic_load(&h->faults) && r < 5) return mf__fail(err, MF_E_IO, "the device is busy");
    if (atomic_load(&h->faults) && r < 50) usleep((useconds_t)(next_random(&seed) % 3000));
    return slot_memory_copy(h->store->config.memory.user, to, from, bytes, err);
}

/* A store in memory that cannot be touched, over another; with room for all, or for some. */
static void hammer_tiers(mf_io io, mf_switch direct, int n_io_threads, int64_t budget) {
    hammer *h = &the_hammer;
    static slot_memory m;
    slot_memory_init(&m, true);
    mf__store_config c = begin_hammer(h, io, direct, "horizons", n_io_threads);
    h->below = open_store(&c);
    c = (mf__store_config){.n_layers = N_LAYERS,
                           .n_experts = N_EXPERTS,
                           .stride = h->files.stride,
                           .bytes = h->files.bytes,
                           .budget = budget,
                           .prefetch = MF_SWITCH_ON,
                           .n_io_threads = n_io_threads > 4 ? 3 : 1,
                           .memory = slot_memory_of(&m),
                           .below = h->below,
                           .copy = bad_copy,
                           .copy_user = h};
    h->store = open_store(&c);
    hammer_store(h);
    mf__store_close(h->store);
    mf__store_close(h->below);
    assert_int_equal(m.live + atomic_load(&m.n_bad), 0);
    assert_true(m.peak <= budget);
    expert_files_remove(&h->files);
}

static void hammer_one(mf_io io, mf_switch direct, const char *policy, int n_io_threads) {
    hammer_in(NULL, io, direct, policy, n_io_threads);
}

static void pread_buffered(void **state) {
    (void)state;
    hammer_one(MF_IO_PREAD, MF_SWITCH_OFF, "horizons", 8);
}

static void pread_direct_one_thread(void **state) {
    (void)state;
    hammer_one(MF_IO_PREAD, MF_SWITCH_ON, "lru", 1);
}

static void pread_direct(void **state) {
    (void)state;
    hammer_one(MF_IO_PREAD, MF_SWITCH_ON, "lfu", 8);
}

static void uring(void **state) {
    (void)state;
    hammer_one(MF_IO_URING, MF_SWITCH_ON, "horizons", 8);
}

static void mapped(void **state) {
    (void)state;
    hammer_one(MF_IO_MMAP, MF_SWITCH_AUTO, "horizons", 4);
}

static void slabs(void **state) {
    (void)state;
    static slot_memory m;
    slot_memory_init(&m, false);
    hammer_in(&m, MF_IO_PREAD, MF_SWITCH_ON, "horizons", 4);
    assert_int_equal(m.live + atomic_load(&m.n_bad), 0);
    assert_true(m.peak <= 16 << 20);
}

static void tiers(void **state) {
    (void)state;
    hammer_tiers(MF_IO_PREAD, MF_SWITCH_OFF, 8, 7 << 20);
    hammer_tiers(MF_IO_PREAD, MF_SWITCH_ON, 1, 4 << 20);
    hammer_tiers(MF_IO_URING, MF_SWITCH_ON, 8, 5 << 20);
    hammer_tiers(MF_IO_MMAP, MF_SWITCH_AUTO, 8, 6 << 20);
}

static void tiers_with_room_for_all(void **state) {
    (void)state;
    hammer_tiers(MF_IO_URING, MF_SWITCH_ON, 8, 40 << 20);
}

int main(int argc, char **argv) {
    if (argc > 1) seconds = atof(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(pread_buffered), cmocka_unit_test(pread_direct_one_thread),
                                       cmocka_unit_test(pread_direct),   cmocka_unit_test(uring),
                                       cmocka_unit_test(mapped),         cmocka_unit_test(slabs),
                                       cmocka_unit_test(tiers),          cmocka_unit_test(tiers_with_room_for_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
