/* Slots in memory that somebody else provides, and stores that have everything in memory. */
#include <pthread.h>
#include <stdatomic.h>

#include "store_turns.h"

static int32_t all_ids[256];

static int fill_ids(void **state) {
    (void)state;
    for (int i = 0; i < 256; i++) all_ids[i] = i;
    return 0;
}

/* ---- slabs ---- */

/* Taken as they are used, never more than the budget, given back when it shrinks and at the end. */
static void slabs_come_and_go(void **state) {
    (void)state;
    static const struct {
        mf_io io;
        mf_switch direct;
    } ways[] = {{MF_IO_PREAD, MF_SWITCH_OFF}, {MF_IO_PREAD, MF_SWITCH_ON}, {MF_IO_URING, MF_SWITCH_ON}};
    expert_files f;
    assert_true(expert_files_make(&f, "slabs", 3, 40, 100000, 99999));
    for (size_t i = 0; i < MF__COUNT(ways); i++) {
        slot_memory m;
        slot_memory_init(&m, false);
        mf__store_config c = config_of(&f);
        c.io = ways[i].io;
        c.direct = ways[i].direct;
        c.budget = 9 * MB;
        c.memory = slot_memory_of(&m);
        mf__store *s = open_store(&c);
        mf__turn *t = new_turn(s);
        assert_null(s->arena);
        assert_int_equal((uintptr_t)mf__slot_memory_at(s, 0) % MF_BLOCK, 0);
        assert_int_equal(m.n_allocs, 1);
        assert_in_range(s->slab_slots, 2, 16);
        turn_all(t, &f, 0, all_ids, 1);
        assert_int_equal(m.n_allocs, 1); /* one slab has room for one expert */
        for (int l = 0; l < 3; l++) turn_all(t, &f, l, all_ids, 40);
        assert_in_range(m.live, 8 * MB, 9 * MB);
        assert_int_equal(mf__store_lend(s, 4 * MB, NULL), MF_OK);
        assert_in_range(m.live, 4 * MB, 5 * MB);
        for (int l = 0; l < 3; l++) turn_all(t, &f, l, all_ids, 40);
        assert_in_range(m.live, 4 * MB, 5 * MB);
        mf__store_budget_set(s, 1); /* one slab stays */
        assert_in_range(m.live, 1, 5 * MB);
        turn_all(t, &f, 2, all_ids, 40);
        mf__store_budget_set(s, INT64_MAX);
        assert_int_equal(mf__store_lend(s, -4 * MB, NULL), MF_OK);
        for (int l = 0; l < 3; l++) turn_all(t, &f, l, all_ids, 40);
        assert_in_range(m.live, 8 * MB, 9 * MB);
        mf__turn_free(t);
        mf__store_close(s);
        assert_int_equal(m.live, 0);
        assert_true(m.peak <= 9 * MB);
        assert_int_equal(atomic_load(&m.n_bad), 0);
    }
    expert_files_remove(&f);
}

/* What is pinned keeps its slab until it is done. */
static void a_pinned_slab_stays(void **state) {
    (void)state;
    expert_files f;
    slot_memory m;
    int32_t got[40];
    const void *blobs[40], *kept[40];
    int n, total = 0;
    assert_true(expert_files_make(&f, "pinned", 1, 40, 65536, 65536));
    slot_memory_init(&m, false);
    mf__store_config c = config_of(&f);
    c.budget = 3 * MB;
    c.memory = slot_memory_of(&m);
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    assert_int_equal(mf__turn_begin(t, 0, all_ids, NULL, 40, 1, NULL), MF_OK);
    while (total < 40) {
        assert_int_equal(mf__turn_next(t, got, blobs, &n, NULL), MF_OK);
        for (int i = 0; i < n; i++) kept[got[i]] = blobs[i];
        total += n;
    }
    mf__store_budget_set(s, MB);
    check(s);
    assert_true(s->n_over > 0 && m.live > 2 * MB);
    for (int i = 0; i < 40; i++) assert_true(blob_is(&f, 0, i, kept[i]));
    for (int i = 0; i < 40; i += 2) mf__turn_done(t, &all_ids[i], 1);
    check(s);
    for (int i = 1; i < 40; i += 2) assert_true(blob_is(&f, 0, i, kept[i]));
    mf__turn_done(t, all_ids, 40);
    check(s);
    assert_true(s->n_over == 0 && m.live <= MB);
    mf__turn_end(t);
    turn_all(t, &f, 0, all_ids, 40);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* A device that has less than it was said to have: the store goes on with what it got, and asks again later. */
static void refused_slabs(void **state) {
    (void)state;
    expert_files f;
    slot_memory m;
    assert_true(expert_files_make(&f, "refused", 2, 40, 65536, 65536));
    slot_memory_init(&m, false);
    mf__store_config c = config_of(&f);
    c.memory = slot_memory_of(&m);
    m.refuse_from = 1;
    expect_failure(&c, MF_E_NOMEM, "the device is full");
    assert_int_equal(m.live, 0);

    m.n_allocs = 0;
    m.refuse_from = 4;
    c.budget = 6 * MB;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    for (int round = 0; round < 2; round++)
        for (int l = 0; l < 2; l++) turn_all(t, &f, l, all_ids, 40);
    assert_int_equal(s->limit, 3 * s->slab_slots);
    m.refuse_from = 0;
    mf__store_budget_set(s, INT64_MAX);
    for (int l = 0; l < 2; l++) turn_all(t, &f, l, all_ids, 40);
    assert_int_equal(s->limit, 80);
    assert_true(m.n_allocs > 4);
    mf__turn_free(t);
    mf__store_close(s);
    assert_int_equal(m.live, 0);

    c.memory.release = NULL;
    expect_failure(&c, MF_E_INVALID, "release");
    c.memory = slot_memory_of(&m);
    c.io = MF_IO_MMAP;
    expect_failure(&c, MF_E_INVALID, "memory for slots");
    c.io = MF_IO_PREAD;
    c.budget = 1000;
    expect_failure(&c, MF_E_NOMEM, "too few");
    expert_files_remove(&f);
}

/* ---- whole ---- */

static void expect_whole(mf__store *s, const expert_files *f, const void *const *table) {
    for (int l = 0; l < f->n_layers; l++)
        for (int e = 0; e < f->n_experts; e++) {
            const void *blob = table[l * f->n_experts + e];
            if (f->files[l])
                assert_true(blob_is(f, l, e, bytes_of(s, blob)));
            else
                assert_null(blob);
        }
}

static void a_whole_store(mf_io io, slot_memory *m) {
    expert_files f;
    uint64_t first = 0, version = 0;
    mf_stats st;
    int64_t mark;
    assert_true(expert_files_make(&f, "whole", 3, 20, 65536, 65536));
    unlink(f.paths[1]);
    f.files[1] = NULL;
    mf__store_config c = config_of(&f);
    c.io = io;
    c.budget = 6 * MB;
    if (m) c.memory = slot_memory_of(m);
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    assert_null(mf__store_whole(s, &version));
    turn_all(t, &f, 0, all_ids, 20);
    turn_all(t, &f, 2, all_ids, 19);
    assert_null(mf__store_whole(s, &version));
    assert_int_equal(version, 0);
    turn_all(t, &f, 2, all_ids, 20);
    const void *const *table = mf__store_whole(s, &first);
    assert_non_null(table);
    assert_true(first > 0);
    assert_int_equal(mf__store_whole_before(s, &mark, NULL), MF_OK);
    expect_whole(s, &f, table);
    assert_ptr_equal(mf__store_whole(s, &version), table); /* held twice */
    assert_int_equal(version, first);
    mf__store_whole_release(s);

    mf__store_stats_reset(s);
    mf__turn_stats_reset(t);
    mf__turn_count_whole(t, 7);
    mf__store_stats_get(s, &st);
    assert_int_equal(st.wanted + st.hits + st.bytes_wanted, 7 + 7 + 7 * 65536);
    mf__turn_stats_get(t, &st);
    assert_int_equal(st.wanted + st.hits + st.bytes_wanted, 7 + 7 + 7 * 65536);

    mf__store_budget_set(s, MB); /* waits for the release; mapped files have no such budget */
    check(s);
    expect_whole(s, &f, table);
    assert_int_equal(mf__store_whole_after(s, mark, NULL), MF_OK);
    mf__store_whole_release(s);
    check(s);
    table = mf__store_whole(s, &version);
    if (io == MF_IO_MMAP) {
        assert_int_equal(version, first);
        mf__store_whole_release(s);
    } else {
        assert_null(table);
        assert_true(s->limit < 40);
        mf__store_budget_set(s, INT64_MAX);
        for (int l = 2; l >= 0; l -= 2) turn_all(t, &f, l, all_ids, 20);
        table = mf__store_whole(s, &version);
        assert_non_null(table);
        assert_true(version > first);
        expect_whole(s, &f, table);
        mf__store_whole_release(s);
    }
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

static void whole_stores(void **state) {
    (void)state;
    slot_memory m;
    slot_memory_init(&m, false);
    a_whole_store(MF_IO_PREAD, NULL);
    a_whole_store(MF_IO_MMAP, NULL);
    a_whole_store(MF_IO_URING, &m);
}

typedef struct lender {
    mf__store *store;
    atomic_bool has;
} lender;

static void *lend(void *arg) {
    lender *x = arg;
    mf_status st = mf__store_lend(x->store, 2 * MB, NULL);
    atomic_store(&x->has, true);
    return st == MF_OK ? x : NULL;
}

/* A loan waits for who holds the whole, and nobody gets it before the loan is made; when it is given back everything
 * comes into memory again. */
static void lending_what_is_held(void **state) {
    (void)state;
    expert_files f;
    uint64_t version;
    pthread_t thread;
    void *ok = NULL;
    assert_true(expert_files_make(&f, "held", 2, 20, 65536, 65536));
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_AUTO;
    c.budget = 5 * MB;
    mf__store *s = open_store(&c);
    mf__store_fill(s);
    wait_idle(s);
    const void *const *table = mf__store_whole(s, &version);
    assert_non_null(table);
    lender x = {.store = s};
    assert_int_equal(pthread_create(&thread, NULL, lend, &x), 0);
    for (bool waits = false; !waits; usleep(1000)) {
        pthread_mutex_lock(&s->lock);
        waits = s->n_lenders == 1;
        pthread_mutex_unlock(&s->lock);
    }
    assert_null(mf__store_whole(s, &version));
    assert_false(atomic_load(&x.has));
    expect_whole(s, &f, table);
    mf__store_whole_release(s);
    pthread_join(thread, &ok);
    assert_ptr_equal(ok, &x);
    check(s);
    assert_true(s->limit < 40);
    assert_null(mf__store_whole(s, &version));
    assert_int_equal(mf__store_lend(s, -2 * MB, NULL), MF_OK);
    wait_idle(s);
    assert_non_null(mf__store_whole(s, &version));
    mf__store_whole_release(s);
    mf__store_close(s);
    expert_files_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slabs_come_and_go), cmocka_unit_test(a_pinned_slab_stays),  cmocka_unit_test(refused_slabs),
        cmocka_unit_test(whole_stores),      cmocka_unit_test(lending_what_is_held),
    };
    return cmocka_run_group_tests(tests, fill_ids, NULL);
}
