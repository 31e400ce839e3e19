/* Slots in memory that somebody else provides. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slabs_come_and_go),
        cmocka_unit_test(a_pinned_slab_stays),
        cmocka_unit_test(refused_slabs),
    };
    return cmocka_run_group_tests(tests, fill_ids, NULL);
}
