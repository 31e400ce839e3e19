/* Slots in memory that somebody else provides, stores that have everything in memory, and stores on stores. */
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

/* ---- a store on a store ---- */

static mf__store_config above(mf__store *below, slot_memory *m, int64_t budget) {
    return (mf__store_config){.n_layers = below->n_layers,
                              .n_experts = below->n_experts,
                              .stride = below->stride,
                              .bytes = below->bytes,
                              .budget = budget,
                              .prefetch = MF_SWITCH_OFF,
                              .memory = slot_memory_of(m),
                              .below = below,
                              .copy = slot_memory_copy,
                              .copy_user = m};
}

static void bad_stacks(void **state) {
    (void)state;
    expert_files f;
    slot_memory m;
    assert_true(expert_files_make(&f, "stacks", 2, 4, 8192, 8192));
    slot_memory_init(&m, true);
    mf__store_config c = config_of(&f);
    mf__store *low = open_store(&c);
    c = above(low, &m, 0);
    c.n_experts = 5;
    expect_failure(&c, MF_E_MISMATCH, "2 layers of 5 experts");
    c = above(low, &m, 0);
    c.files = f.files;
    expect_failure(&c, MF_E_INVALID, "no files");
    c = above(low, &m, 0);
    c.copy = NULL;
    expect_failure(&c, MF_E_INVALID, "copy");
    c = above(low, &m, 100);
    expect_failure(&c, MF_E_NOMEM, "too few");
    mf__store_close(low);
    assert_int_equal(m.live, 0);
    expert_files_remove(&f);
}

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Distinct ids, few or many. */
static int some_ids(uint64_t *seed, int n_experts, int32_t *out) {
    int n = 1 + (int)(next_random(seed) % (uint64_t)(next_random(seed) % 4 ? 6 : n_experts));
    memcpy(out, all_ids, sizeof all_ids);
    for (int i = 0; i < n; i++) {
        int k = i + (int)(next_random(seed) % (uint64_t)(n_experts - i));
        int32_t id = out[k];
        out[k] = out[i];
        out[i] = id;
    }
    return n;
}

static const struct {
    mf_io io;
    mf_switch direct;
} lower_ways[] = {{MF_IO_PREAD, MF_SWITCH_OFF},
                  {MF_IO_PREAD, MF_SWITCH_ON},
                  {MF_IO_URING, MF_SWITCH_OFF},
                  {MF_IO_URING, MF_SWITCH_ON},
                  {MF_IO_MMAP, MF_SWITCH_AUTO}};

/* What was copied is ready above a moment before it is done with below. */
static void wait_unpinned(mf__store *s) {
    for (int i = 0; pins_of_all(s); i++, usleep(1000))
        if (i > 120000) fail_msg("experts stay pinned");
}

/* Memory that cannot be touched, over a small store, over files, read in every way. */
static void random_turns_through_both(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "both", 4, 24, 100000, 99999));
    for (size_t way = 0; way < MF__COUNT(lower_ways); way++) {
        slot_memory m;
        uint64_t seed = way;
        mf_stats st;
        slot_memory_init(&m, true);
        mf__store_config c = config_of(&f);
        c.io = lower_ways[way].io;
        c.direct = lower_ways[way].direct;
        c.budget = 4 * MB;
        c.prefetch = MF_SWITCH_ON;
        mf__store *low = open_store(&c);
        c = above(low, &m, MB);
        c.prefetch = MF_SWITCH_ON;
        mf__store *high = open_store(&c);
        mf__turn *t = new_turn(high);
        for (int i = 0; i < 120; i++) {
            int32_t ids[256];
            int n = some_ids(&seed, 24, ids), layer = (int)(next_random(&seed) % 4);
            turn_all(t, &f, layer, ids, n);
            check(low);
            n = some_ids(&seed, 24, ids);
            mf__store_hint(high, MF_PREDICT_ROUTER, (layer + 1) % 4, ids, n);
        }
        mf__turn_free(t);
        mf__store_forget(high); /* guesses that found no room would wait for it */
        wait_idle(high);
        wait_idle(low);
        check(high);
        check(low);
        wait_unpinned(low);
        mf__store_stats_get(high, &st);
        assert_string_equal(st.io, "copy");
        assert_true(st.hits < st.wanted && st.bytes_read > 0 && st.cache_bytes <= MB);
        int64_t copied = st.bytes_read + st.bytes_prefetched;
        mf__store_stats_get(low, &st);
        assert_int_equal(st.bytes_wanted, copied); /* what one asks for is what the other wants */
        assert_true(m.peak <= MB);
        mf__store_close(high);
        mf__store_close(low);
        assert_int_equal(m.live, 0);
        assert_int_equal(atomic_load(&m.n_bad), 0);
    }
    expert_files_remove(&f);
}

/* Host slots over host slots over files, and a device on top. */
static void three_tiers(void **state) {
    (void)state;
    expert_files f;
    slot_memory m;
    uint64_t seed = 3;
    assert_true(expert_files_make(&f, "three", 4, 24, 65536, 65536));
    slot_memory_init(&m, true);
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_ON;
    c.budget = 4 * MB + 100000;
    mf__store *low = open_store(&c);
    c = above(low, &m, 2 * MB + 100000);
    c.memory = (mf__slot_memory){0};
    c.copy = NULL;
    c.prefetch = MF_SWITCH_ON;
    mf__store *middle = open_store(&c);
    c = above(middle, &m, MB);
    c.prefetch = MF_SWITCH_ON;
    mf__store *top = open_store(&c);
    mf__turn *t = new_turn(top);
    for (int i = 0; i < 200; i++) {
        int32_t ids[256];
        int n = some_ids(&seed, 24, ids);
        turn_all(t, &f, i % 4, ids, n);
        mf__store_hint(top, MF_PREDICT_ROUTER, (i + 1) % 4, ids, n);
    }
    mf__turn_free(t);
    mf__store *tiers[3] = {top, middle, low};
    mf__store_forget(top);
    for (int i = 0; i < 3; i++) wait_idle(tiers[i]);
    for (int i = 0; i < 3; i++) check(tiers[i]);
    for (int i = 0; i < 3; i++) mf__store_close(tiers[i]);
    assert_int_equal(m.live, 0);
    expert_files_remove(&f);
}

/* ---- what goes wrong below ---- */

typedef struct faults {
    atomic_int mode; /* 0 none, 1 EIO, 2 hold */
} faults;

static int64_t faulty(void *user, int64_t n) {
    faults *x = user;
    int mode = atomic_load(&x->mode);
    while (mode == 2 && atomic_load(&x->mode) == 2) usleep(1000);
    return mode == 1 ? -5 : n;
}

static mf_status run_turn(mf__turn *t, int layer, const int32_t *ids, int n, mf_error *err) {
    int32_t got[256];
    const void *blobs[256];
    int n_got = 1;
    mf_status st = mf__turn_begin(t, layer, ids, NULL, n, 1, err);
    while (st == MF_OK && n_got) {
        st = mf__turn_next(t, got, blobs, &n_got, err);
        if (st == MF_OK) mf__turn_done(t, got, n_got);
    }
    mf__turn_end(t);
    return st;
}

static bool always(void *user) {
    (void)user;
    return true;
}

static void errors_come_up(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "below", 2, 8, MB, MB));
    for (size_t way = 0; way < 4; way++) {
        slot_memory m;
        faults x = {0};
        mf_error err = {0};
        mf_stats st;
        slot_memory_init(&m, true);
        mf__store_config c = config_of(&f);
        c.io = lower_ways[way].io;
        c.direct = lower_ways[way].direct;
        c.fault = faulty;
        c.fault_user = &x;
        mf__store *low = open_store(&c);
        c = above(low, &m, 5 * MB);
        mf__store *high = open_store(&c);
        mf__turn *t = new_turn(high);
        turn_all(t, &f, 0, all_ids, 1);
        atomic_store(&x.mode, 1);
        assert_int_equal(run_turn(t, 0, all_ids, 4, &err), MF_E_IO);
        assert_non_null(strstr(err.text, "layer_00.bin: reading expert"));
        atomic_store(&x.mode, 0);
        wait_idle(high);
        check(high);
        assert_int_equal(pins_of_all(high), 0);
        wait_unpinned(low);
        turn_all(t, &f, 0, all_ids, 4);
        mf__store_stats_get(high, &st);
        assert_true(st.read_errors > 0);

        atomic_store(&m.refuse_copies, 1);
        assert_int_equal(run_turn(t, 1, all_ids, 8, &err), MF_E_IO);
        assert_string_equal(err.text, "the device does not answer");
        atomic_store(&m.refuse_copies, 0);
        wait_idle(high); /* a copy that was refused a moment ago would fail whoever asks for it now */
        turn_all(t, &f, 1, all_ids, 8);

        atomic_store(&x.mode, 2); /* a drive that does not answer can be left, also for good */
        mf__turn_cancel_set(t, always, NULL);
        int32_t far_ids[2] = {4, 6};
        assert_int_equal(run_turn(t, 0, far_ids, 2, &err), MF_E_CANCELLED);
        assert_int_equal(pins_of_all(high), 0);
        check(high);
        mf__turn_free(t);
        mf__store_close(high);
        check(low);
        assert_int_equal(pins_of_all(low), 0);
        atomic_store(&x.mode, 0);
        mf__store_close(low);
        assert_int_equal(m.live + atomic_load(&m.n_bad), 0);
    }
    expert_files_remove(&f);
}

/* ---- prediction and filling in both ---- */

/* A hint for more experts than the upper store may guess: the lower one has read them all when the turn comes. */
static void hints_go_down(void **state) {
    (void)state;
    expert_files f;
    slot_memory m;
    mf_stats st;
    assert_true(expert_files_make(&f, "down", 3, 16, 65536, 65536));
    slot_memory_init(&m, true);
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_AUTO;
    mf__store *low = open_store(&c);
    c = above(low, &m, 9 * 65536);
    c.prefetch = MF_SWITCH_AUTO;
    mf__store *high = open_store(&c);
    mf__turn *t = new_turn(high);
    assert_in_range(high->limit, 4, 8); /* a quarter of them for guesses */
    mf__store_hint(high, MF_PREDICT_ROUTER, 1, all_ids, 12);
    wait_idle(low);
    for (int64_t held = 0; held < 12 * 65536; usleep(1000)) {
        mf__store_stats_get(low, &st);
        held = st.cache_bytes;
    }
    mf__store_stats_reset(low);
    turn_all(t, &f, 1, all_ids + 4, 12); /* 4 to 15: foretold were 0 to 11 */
    mf__store_stats_get(high, &st);
    assert_int_equal(st.predictors[MF_PREDICTOR_NEXT_ROUTER].right, 8);
    int64_t missed = st.wanted - st.hits;
    mf__store_stats_get(low, &st);
    assert_in_range(missed, 4, 12);
    assert_int_equal(st.bytes_read, 4 * 65536);
    assert_true(st.predictors[MF_PREDICTOR_NEXT_ROUTER].wanted > 0);
    assert_in_range(st.predictors[MF_PREDICTOR_NEXT_ROUTER].useless, 0, 4); /* of 0 to 3 */
    assert_in_range(st.predictors[MF_PREDICTOR_NEXT_ROUTER].useful, 4, 8);  /* of 4 to 11, if not taken up before */
    pthread_mutex_lock(&low->lock); /* judged: those that came true and those that did not */
    for (int i = 0; i < low->n_slots; i++) assert_int_equal(low->slots[i].who, -1);
    pthread_mutex_unlock(&low->lock);
    check(low);
    mf__turn_free(t);
    mf__store_close(high);
    mf__store_close(low);
    expert_files_remove(&f);
}

static void filling_up(void **state) {
    (void)state;
    expert_files f;
    slot_memory m;
    mf_stats st;
    uint64_t version;
    assert_true(expert_files_make(&f, "up", 3, 16, 65536, 65536));
    unlink(f.paths[1]);
    f.files[1] = NULL;
    slot_memory_init(&m, true);
    for (int fits = 0; fits < 2; fits++) {
        mf__store_config c = config_of(&f);
        c.prefetch = MF_SWITCH_AUTO;
        c.budget = fits ? 2 * MB + 100000 : 0; /* 32 experts of 64 kB and tables, or no end of them */
        mf__store *low = open_store(&c);
        c = above(low, &m, fits ? 3 * MB : MB);
        c.prefetch = MF_SWITCH_AUTO;
        mf__store *high = open_store(&c);
        mf__turn *t = new_turn(high);
        mf__store_fill(high);
        turn_all(t, &f, 0, all_ids, 2);
        wait_idle(high);
        wait_idle(low);
        mf__store_stats_get(fits ? high : low, &st);
        assert_int_equal(st.cache_bytes, 2 * MB);
        const void *const *table = mf__store_whole(high, &version);
        assert_int_equal(table != NULL, fits);
        if (table) {
            expect_whole(high, &f, table);
            mf__store_whole_release(high);
        }
        mf__turn_free(t);
        mf__store_close(high);
        mf__store_close(low);
    }
    expert_files_remove(&f);
}

/* ---- tables that reach below ---- */

static bool may_reach(void *user) {
    slot_memory *m = user;
    return !atomic_load(&m->refuse_copies);
}

/* Every address is right, wherever it lies; returns how many lie above. */
static int expect_both(mf__store *high, slot_memory *m, const expert_files *f, const void *const *table) {
    int n = 0;
    for (int l = 0; l < f->n_layers; l++)
        for (int e = 0; e < f->n_experts; e++) {
            const void *blob = table[l * f->n_experts + e], *view = blob ? slot_memory_view(m, blob) : NULL;
            n += view != NULL;
            if (f->files[l])
                assert_true(blob_is(f, l, e, view ? view : blob));
            else
                assert_null(blob);
        }
    check(high);
    return n;
}

static int n_ready(mf__store *s) {
    pthread_mutex_lock(&s->lock);
    int n = s->n_ready;
    pthread_mutex_unlock(&s->lock);
    return n;
}

/* Slots for some above, everything below: one table of both, while which nothing above is thrown out, and whatever
 * changes makes a new one. */
static void reaching_below(void **state) {
    (void)state;
    expert_files f;
    slot_memory m;
    mf_stats st;
    uint64_t first, version;
    int32_t many[16];
    assert_true(expert_files_make(&f, "reach", 3, 40, 65536, 65536));
    unlink(f.paths[1]);
    f.files[1] = NULL;
    for (int i = 0; i < 16; i++) many[i] = 15 - i;
    slot_memory_init(&m, true);
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_AUTO;
    c.budget = 7 * MB;
    mf__store *low = open_store(&c);
    c = above(low, &m, MB);
    c.prefetch = MF_SWITCH_AUTO;
    c.reach = may_reach;
    mf__store *high = open_store(&c);
    mf__turn *t = new_turn(high);
    turn_all(t, &f, 0, all_ids, 2);
    assert_null(mf__store_whole(high, &version)); /* the one below has not everything */
    mf__store_fill(high);
    for (int i = 0; n_ready(low) < 80 || n_ready(high) < high->limit; i++, usleep(1000))
        if (i > 20000) fail_msg("%d below, %d of %d above", n_ready(low), n_ready(high), high->limit);
    wait_idle(high);
    wait_idle(low);
    const void *const *table = mf__store_whole(high, &first);
    assert_non_null(table);
    int n = expect_both(high, &m, &f, table);
    assert_int_equal(n, high->limit);
    assert_in_range(n, 8, 16);
    assert_ptr_equal(mf__store_whole(high, &version), table); /* held twice */
    assert_int_equal(version, first);
    assert_int_equal(low->n_holders, 2);

    mf__store_stats_reset(high);
    mf__store_stats_reset(low);
    mf__turn_count_whole(t, 80);
    mf__store_stats_get(high, &st);
    assert_int_equal(st.wanted, 80);
    assert_int_equal(st.hits, n);
    mf__store_stats_get(low, &st);
    assert_int_equal(st.hits, 80 - n);
    for (int i = 0; i < 20; i++) mf__turn_count_whole(t, 4); /* a token's few: none is lost to rounding */
    mf__store_stats_get(high, &st);
    assert_int_equal(st.wanted, 160);
    assert_int_equal(st.hits, 2 * n);

    mf__store_hint(high, MF_PREDICT_ROUTER, 2, many, 16); /* no room is made for guesses now */
    usleep(20000);
    assert_int_equal(expect_both(high, &m, &f, table), n);
    mf__store_budget_set(high, MB / 2);
    assert_int_equal(expect_both(high, &m, &f, table), n);
    mf__store_whole_release(high);
    assert_int_equal(expect_both(high, &m, &f, table), n);
    mf__store_whole_release(high);
    assert_int_equal(low->n_holders, 0);
    mf__store_forget(high);
    wait_idle(high);
    assert_true(high->limit < n);

    table = mf__store_whole(high, &version);
    assert_non_null(table);
    assert_true(version > first);
    assert_int_equal(expect_both(high, &m, &f, table), high->limit);
    mf__store_whole_release(high);
    atomic_store(&m.refuse_copies, 1);
    assert_null(mf__store_whole(high, &version)); /* asked every time */
    assert_int_equal(low->n_holders, 0);
    atomic_store(&m.refuse_copies, 0);
    turn_all(t, &f, 2, all_ids, 16); /* turns go on as before */
    assert_int_equal(mf__store_lend(low, 3 * MB, NULL), MF_OK);
    assert_null(mf__store_whole(high, &version));
    turn_all(t, &f, 2, all_ids, 16);
    assert_int_equal(mf__store_lend(low, -3 * MB, NULL), MF_OK);
    mf__turn_free(t);
    mf__store_close(high);
    mf__store_close(low);
    assert_int_equal(m.live + atomic_load(&m.n_bad), 0);
    expert_files_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slabs_come_and_go),
        cmocka_unit_test(a_pinned_slab_stays),
        cmocka_unit_test(refused_slabs),
        cmocka_unit_test(whole_stores),
        cmocka_unit_test(lending_what_is_held),
        cmocka_unit_test(bad_stacks),
        cmocka_unit_test(random_turns_through_both),
        cmocka_unit_test(three_tiers),
        cmocka_unit_test(errors_come_up),
        cmocka_unit_test(hints_go_down),
        cmocka_unit_test(filling_up),
        cmocka_unit_test(reaching_below),
    };
    return cmocka_run_group_tests(tests, fill_ids, NULL);
}
