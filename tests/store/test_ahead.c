/* Reading ahead: hints, what the pass before wanted, filling, and whether it pays. */
#include <errno.h>
#include <stdatomic.h>

#include "store_turns.h"

static void hints_become_hits(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "hint", 3, 16, MB, MB));
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_ON;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t said[4] = {9, 2, 5, 11}, wanted[4] = {2, 5, 7, 9};
    mf_stats st;
    mf__store_hint(s, MF_PREDICT_ROUTER, 1, said, 4);
    wait_idle(s);
    check(s);
    turn_all(t, &f, 1, wanted, 4);
    mf__store_stats_get(s, &st);
    mf_predictor_stats *p = &st.predictors[MF_PREDICTOR_NEXT_ROUTER];
    assert_int_equal(st.hits, 3); /* matched by set, not by place */
    assert_int_equal(p->wanted, 4);
    assert_int_equal(p->foretold, 4);
    assert_int_equal(p->right, 3);
    assert_int_equal(p->read, 4);
    assert_int_equal(p->useful, 3);
    assert_int_equal(p->late, 0);
    assert_int_equal(p->useless, 1); /* its turn has come and did not want it */
    assert_int_equal(st.bytes_prefetched, 4 * MB);
    assert_int_equal(st.bytes_read, 1 * MB);
    /* The token before: layer 1 wanted these, so after layer 0's turn they are foretold again. */
    turn_all(t, &f, 0, wanted, 4);
    turn_all(t, &f, 1, wanted, 4);
    mf__store_stats_get(s, &st);
    assert_int_equal(st.predictors[MF_PREDICTOR_LAST_TOKEN].right, 4);
    mf__store_forget(s);
    turn_all(t, &f, 1, wanted, 4);
    mf__store_stats_get(s, &st);
    assert_int_equal(st.predictors[MF_PREDICTOR_LAST_TOKEN].right, 4);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* The second of two reads at the store's beginning fails. */
static int64_t second_read_fails(void *user, int64_t n) {
    return atomic_fetch_add((atomic_int *)user, 1) == 1 ? -EIO : n;
}

/* Where everything fits the idle drive reads all there is: no turn misses then. */
static void all_experts_come_where_they_fit(void **state) {
    (void)state;
    expert_files f;
    int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    assert_true(expert_files_make(&f, "fill", 3, 8, MB, MB));
    unlink(f.paths[1]);
    f.files[1] = NULL;
    for (int io = MF_IO_MMAP; io <= MF_IO_URING; io++) {
        mf__store_config c = config_of(&f);
        mf_stats st;
        c.io = (mf_io)io;
        c.prefetch = MF_SWITCH_AUTO;
        c.budget = 17 * MB;
        mf__store *s = open_store(&c);
        mf__store_fill(s);
        mf__turn *t = new_turn(s);
        if (io != MF_IO_MMAP) turn_all(t, &f, 2, ids + 5, 1); /* makes it pause; where memory is watched it goes on */
        wait_idle(s);
        check(s);
        mf__store_stats_get(s, &st);
        assert_int_equal(st.bytes_read + st.bytes_prefetched, 16 * MB);
        mf__store_stats_reset(s);
        turn_all(t, &f, 2, ids, 8);
        turn_all(t, &f, 0, ids, 8);
        mf__store_stats_get(s, &st);
        assert_int_equal(st.hits, 16);
        assert_int_equal(st.bytes_read + st.bytes_prefetched, 0);
        assert_int_equal(st.cache_bytes, 16 * MB);
        assert_int_equal(st.evictions, 0);
        mf__turn_free(t);
        mf__store_close(s);
    }
    expert_files_remove(&f);
}

static void nothing_is_filled_without_room_or_leave(void **state) {
    (void)state;
    expert_files f;
    int32_t ids[2] = {6, 1};
    assert_true(expert_files_make(&f, "nofill", 2, 8, MB, MB));
    for (int i = 0; i < 2; i++) {
        mf__store_config c = config_of(&f);
        mf_stats st;
        c.prefetch = i ? MF_SWITCH_OFF : MF_SWITCH_AUTO;
        c.budget = i ? 17 * MB : 15 * MB; /* of 16 */
        mf__store *s = open_store(&c);
        mf__store_fill(s);
        mf__turn *t = new_turn(s);
        turn_all(t, &f, 1, ids, 2);
        usleep(20000);
        mf__store_stats_get(s, &st);
        assert_int_equal(st.bytes_prefetched, 0);
        assert_int_equal(st.cache_bytes, 2 * MB);
        mf__turn_free(t);
        mf__store_close(s);
    }
    expert_files_remove(&f);
}

static void filling_goes_on_after_an_error(void **state) {
    (void)state;
    expert_files f;
    int32_t ids[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    assert_true(expert_files_make(&f, "fillerr", 1, 8, MB, MB));
    atomic_int n_reads = 0;
    mf__store_config c = config_of(&f);
    mf_stats st;
    c.prefetch = MF_SWITCH_AUTO;
    c.fault = second_read_fails;
    c.fault_user = &n_reads;
    mf__store *s = open_store(&c);
    mf__store_fill(s);
    mf__turn *t = new_turn(s);
    wait_idle(s);
    check(s);
    mf__store_stats_get(s, &st);
    assert_int_equal(st.read_errors, 1);
    assert_int_equal(st.cache_bytes, 7 * MB);
    turn_all(t, &f, 0, ids, 8); /* wanted, it is read again */
    mf__store_stats_get(s, &st);
    assert_int_equal(st.hits, 7);
    assert_int_equal(st.bytes_read, MB);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

static void a_bad_predictor_is_sent_to_rest(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "rest", 2, 64, 8192, 8192));
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_ON;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    mf_stats st = {0};
    for (int i = 0; i < 4000 && !st.predictors[MF_PREDICTOR_NEXT_ROUTER].resting; i++) {
        int32_t said[4], wanted[2] = {i % 60, i % 60 + 1};
        for (int j = 0; j < 4; j++) said[j] = (i * 7 + 30 + j) % 64;
        mf__store_hint(s, MF_PREDICT_ROUTER, 1, said, 4);
        wait_idle(s);
        turn_all(t, &f, 1, wanted, 2);
        pthread_mutex_lock(&s->lock); /* the layer has had its turn: throw out what it did not want */
        for (int k = 0; k < s->n_slots; k++)
            if (s->slots[k].state == MF_SLOT_READY && !s->slots[k].pins) mf__slot_free(s, k);
        pthread_mutex_unlock(&s->lock);
        mf__store_stats_get(s, &st);
    }
    assert_true(st.predictors[MF_PREDICTOR_NEXT_ROUTER].resting);
    int64_t reads = st.predictors[MF_PREDICTOR_NEXT_ROUTER].read;
    int32_t said[2] = {1, 2};
    mf__store_hint(s, MF_PREDICT_ROUTER, 0, said, 2);
    wait_idle(s);
    mf__store_stats_get(s, &st);
    assert_int_equal(st.predictors[MF_PREDICTOR_NEXT_ROUTER].read, reads);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* ---- does it pay? ---- */

/* What passes are like, to a trial: milliseconds with and without, and what else happens to them. */
typedef struct load {
    const char *name;
    double with, without;
    double drift;      /* of the load: the first passes take so many times as long as the late ones */
    int drift_passes;  /* ... over so many passes */
    int wave, wave_of; /* every wave_of passes, so many are half as fast again */
    double idle;       /* share of the time without */
    bool sure;
    bool off; /* what is right */
} load;

static const load LOADS[] = {
    {.name = "faster", .with = 9, .without = 10},
    {.name = "slower", .with = 10, .without = 9, .off = true},
    {.name = "much faster", .with = 150, .without = 220, .idle = 0.3, .sure = true},
    {.name = "slower, though sure", .with = 11, .without = 10, .idle = 0.3, .sure = true, .off = true},
    {.name = "as fast, sure, an idle drive", .with = 10.1, .without = 10, .idle = 0.3, .sure = true},
    {.name = "as fast, sure, a busy drive", .with = 10.1, .without = 10, .idle = 0.02, .sure = true, .off = true},
    {.name = "as fast, not sure", .with = 10.1, .without = 10, .idle = 0.3, .off = true},
    /* the cache learns: what is timed first is slower, whichever it is */
    {.name = "faster, the load sinks", .with = 9, .without = 10, .drift = 1.6, .drift_passes = 60},
    {.name = "faster, the load rises", .with = 9, .without = 10, .drift = 0.6, .drift_passes = 60},
    {.name = "slower, the load sinks", .with = 10, .without = 9, .drift = 1.6, .drift_passes = 60, .off = true},
    {.name = "slower, the load rises", .with = 10, .without = 9, .drift = 0.6, .drift_passes = 60, .off = true},
    {.name = "faster, others compute now and then", .with = 9, .without = 10, .wave = 25, .wave_of = 60},
    {.name = "slower, others compute now and then", .with = 10, .without = 9, .wave = 25, .wave_of = 60, .off = true},
};

static int64_t pass_ns(const load *p, int i, bool off) {
    static const double noise[] = {1, 1.02, 0.99, 1.01, 0.98, 1.03, 1};
    double ms = (off ? p->without : p->with) * noise[i % 7];
    if (p->drift > 0 && i < p->drift_passes) ms *= p->drift + (1 - p->drift) * i / p->drift_passes;
    if (p->wave && i % p->wave_of < p->wave) ms *= 1.5;
    if (i % 9 == 5) ms = 2000; /* the user thinks */
    return (int64_t)(ms * 1e6);
}

/* Reading ahead is kept where it is faster, dropped where it is slower, and tried again; at most a tenth of the passes
 * go the wrong way, whatever else happens on the machine. */
static void reading_ahead_must_pay(void **state) {
    (void)state;
    for (size_t k = 0; k < MF__COUNT(LOADS); k++) {
        const load *p = &LOADS[k];
        mf__trial t = {0};
        int n_wrong = 0, n = 3000, n_other = 0;
        for (int i = 0; i < n; i++) {
            int64_t ns = pass_ns(p, i, t.off);
            n_wrong += t.off != p->off;
            n_other += i > n / 2 && t.off != p->off;
            mf__trial_pass(&t, (mf__trial_seen){ns, (int64_t)((double)ns * (t.off ? p->idle : 0)), p->sure});
        }
        if (n_wrong > n / 10 || !n_other) fail_msg("%s: %d of %d passes, %d late", p->name, n_wrong, n, n_other);
    }
}

/* Where it is much faster the question costs a few passes, and no trial begins before the cache has settled. */
static void asking_costs_little(void **state) {
    (void)state;
    mf__trial t = {0};
    const load *p = &LOADS[2];
    int n_off = 0;
    for (int i = 0; i < 200; i++) {
        if (i < MF_TRIAL_WARM) assert_false(t.off);
        n_off += t.off;
        mf__trial_pass(&t, (mf__trial_seen){pass_ns(p, i, t.off), 0, true});
    }
    assert_in_range(n_off, 1, 16);
}

/* ---- beside demands ---- */

/* Reads wait while somebody holds them up. */
static int64_t held_up(void *user, int64_t n) {
    while (atomic_load((atomic_int *)user)) usleep(200);
    return n;
}

/* All experts of the turn that has begun, as they come. */
static void take_the_rest(mf__turn *t) {
    int32_t got[64];
    const void *blobs[64];
    int n_got = 1;
    while (n_got) {
        assert_int_equal(mf__turn_next(t, got, blobs, &n_got, NULL), MF_OK);
        mf__turn_done(t, got, n_got);
    }
    mf__turn_end(t);
}

static int reads_under_way(mf__store *s, bool guesses) {
    pthread_mutex_lock(&s->lock);
    int n = s->in_flight[guesses];
    pthread_mutex_unlock(&s->lock);
    return n;
}

static int guesses_under_way(mf__store *s) {
    return reads_under_way(s, true);
}

/* What a predictor says that is nearly always right is read behind the last demand, before the drive runs dry; what
 * others say waits for the end of the demands. */
static void sure_guesses_follow_demands(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "sure", 3, 16, 8192, 8192));
    for (int sure = 0; sure < 2; sure++) {
        atomic_int hold = 1;
        mf__store_config c = config_of(&f);
        c.prefetch = MF_SWITCH_ON;
        c.n_io_threads = 8;
        c.fault = held_up;
        c.fault_user = &hold;
        mf__store *s = open_store(&c);
        mf__turn *t = new_turn(s);
        int32_t ids[3] = {1, 2, 3}, said[8] = {4, 5, 6, 7, 8, 9, 10, 11};
        s->tracks[MF_PREDICT_EARLY].sure = sure;
        assert_int_equal(mf__turn_begin(t, 0, ids, NULL, 3, 1, NULL), MF_OK);
        mf__store_hint(s, MF_PREDICT_EARLY, 1, said, 8);
        for (int i = 0; sure && guesses_under_way(s) < 5 && i < 60000; i++) usleep(1000);
        if (!sure) usleep(20000);
        assert_int_equal(guesses_under_way(s), sure ? 5 : 0); /* all of the depth that the demands leave */
        check(s);
        atomic_store(&hold, 0);
        take_the_rest(t);
        wait_idle(s);
        turn_all(t, &f, 1, said, 8);
        mf_stats st;
        mf__store_stats_get(s, &st);
        assert_int_equal(st.predictors[MF_PREDICTOR_EARLY_ROUTER].useful, 8);
        assert_int_equal(st.predictors[MF_PREDICTOR_EARLY_ROUTER].stall_ns, 0);
        mf__turn_free(t);
        mf__store_close(s);
    }
    expert_files_remove(&f);
}

/* Where reads are large a few of them keep the drive busy: guesses that are sure go no further, or what is wanted now
 * would share the drive with them. Demands do. */
static void sure_guesses_leave_the_drive_to_demands(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "large", 2, 24, MB, MB));
    atomic_int hold = 1;
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_ON;
    c.n_io_threads = 16;
    c.fault = held_up;
    c.fault_user = &hold;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t ids[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    s->tracks[MF_PREDICT_EARLY].sure = true;
    mf__store_hint(s, MF_PREDICT_EARLY, 1, ids, 12);
    for (int i = 0; guesses_under_way(s) < 4 && i < 60000; i++) usleep(1000);
    usleep(20000);
    assert_int_equal(guesses_under_way(s), 4); /* MB each */
    assert_int_equal(mf__turn_begin(t, 0, ids, NULL, 12, 1, NULL), MF_OK);
    for (int i = 0; reads_under_way(s, false) < 12 && i < 60000; i++) usleep(1000);
    assert_int_equal(reads_under_way(s, false), 12);
    assert_int_equal(guesses_under_way(s), 4);
    check(s);
    atomic_store(&hold, 0);
    take_the_rest(t);
    wait_idle(s);
    turn_all(t, &f, 1, ids, 12);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* What is foretold two layers ahead is read where the drive has nothing else to do; voices that speak later replace it.
 */
static void the_second_router_keeps_the_drive_busy(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "second", 4, 16, 8192, 8192));
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_ON;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t now[2] = {1, 2}, second[4] = {3, 4, 5, 6}, early[2] = {6, 7};
    mf_stats st;
    turn_all(t, &f, 0, now, 2);
    mf__store_hint(s, MF_PREDICT_SECOND, 2, second, 4);
    wait_idle(s);
    turn_all(t, &f, 1, now, 2);
    turn_all(t, &f, 2, second, 4);
    mf__store_stats_get(s, &st);
    assert_int_equal(st.predictors[MF_PREDICTOR_SECOND_ROUTER].read, 4);
    assert_int_equal(st.predictors[MF_PREDICTOR_SECOND_ROUTER].right, 4);
    assert_int_equal(st.predictors[MF_PREDICTOR_SECOND_ROUTER].useful, 4);
    pthread_mutex_lock(&s->lock); /* nothing begins meanwhile */
    int32_t none = s->limit;
    s->limit = 0;
    mf__predict_hint(s, MF_PREDICT_SECOND, 3, second, 4);
    mf__predict_hint(s, MF_PREDICT_EARLY, 3, early, 2);
    int n[MF_PREDICT_COUNT] = {0};
    for (int i = 0; i < s->n_guesses; i++) {
        const mf__guess *g = &s->guesses[(s->guess_head + i) % s->guess_cap];
        if (g->key >= 0) n[g->who]++;
    }
    s->limit = none;
    pthread_mutex_unlock(&s->lock);
    assert_int_equal(n[MF_PREDICT_SECOND], 0);
    assert_int_equal(n[MF_PREDICT_EARLY], 2);
    wait_idle(s);
    check(s);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* The later router knows better: what the early one said and nobody has begun to read is dropped. Being late is told
 * apart from not having been foretold. */
static void the_later_router_knows_better(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "later", 3, 16, 8192, 8192));
    atomic_int hold = 1;
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_ON;
    c.n_io_threads = 4;
    c.fault = held_up;
    c.fault_user = &hold;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t early[4] = {0, 1, 2, 3}, later[2] = {3, 8};
    mf_stats st;
    mf__store_hint(s, MF_PREDICT_EARLY, 1, early, 4);
    for (int i = 0; guesses_under_way(s) < 1 && i < 60000; i++) usleep(1000); /* one at a time: it is not sure */
    mf__store_hint(s, MF_PREDICT_ROUTER, 1, later, 2);
    assert_int_equal(mf__turn_begin(t, 1, later, NULL, 2, 1, NULL), MF_OK);
    usleep(5000);
    atomic_store(&hold, 0);
    take_the_rest(t);
    wait_idle(s);
    mf__store_stats_get(s, &st);
    assert_int_equal(st.predictors[MF_PREDICTOR_EARLY_ROUTER].read, 1); /* expert 0; 1, 2 and 3 were dropped */
    assert_int_equal(st.predictors[MF_PREDICTOR_EARLY_ROUTER].right, 1);
    assert_int_equal(st.predictors[MF_PREDICTOR_NEXT_ROUTER].right, 2);
    check(s);
    /* A guess that is under way when it is wanted: what is waited is its predictor's. */
    atomic_store(&hold, 1);
    mf__store_hint(s, MF_PREDICT_EARLY, 2, early, 1);
    for (int i = 0; guesses_under_way(s) < 1 && i < 60000; i++) usleep(1000);
    assert_int_equal(mf__turn_begin(t, 2, early, NULL, 1, 1, NULL), MF_OK);
    atomic_store(&hold, 0);
    take_the_rest(t);
    int64_t before = st.stall_ns;
    mf__store_stats_get(s, &st);
    assert_int_equal(st.predictors[MF_PREDICTOR_EARLY_ROUTER].late, 1);
    assert_int_equal(st.predictors[MF_PREDICTOR_EARLY_ROUTER].stall_ns, st.stall_ns - before);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

/* ---- stores beside each other ---- */

/* Two stores on one drive have as many reads under way as one; guesses of either wait for demands of both; and the time
 * in which the drive was busy is counted once. */
static void stores_beside_each_other_share_the_drive(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "beside", 2, 16, 8192, 8192));
    for (int io = MF_IO_PREAD; io <= MF_IO_URING; io++) {
        atomic_int hold = io == MF_IO_PREAD; /* a ring's reads cannot be held up: there it only has to work */
        mf__store_config c = config_of(&f);
        c.io = (mf_io)io;
        c.prefetch = MF_SWITCH_ON;
        c.n_io_threads = 4;
        c.fault = held_up;
        c.fault_user = &hold;
        mf__store *a = open_store(&c);
        c.beside = a;
        mf__store *b = open_store(&c);
        mf__turn *ta = new_turn(a), *tb = new_turn(b);
        int32_t ids[4] = {1, 2, 3, 4}, said[2] = {5, 6};
        mf_stats sa, sb;
        int64_t began = mf__clock_ns();
        b->tracks[MF_PREDICT_ROUTER].sure = true;
        assert_int_equal(mf__turn_begin(ta, 0, ids, NULL, 3, 1, NULL), MF_OK);
        assert_int_equal(mf__turn_begin(tb, 0, ids, NULL, 4, 1, NULL), MF_OK);
        mf__store_hint(b, MF_PREDICT_ROUTER, 1, said, 2);
        mf__lane *lane = a->lane;
        for (int i = 0; hold && atomic_load(&lane->in_flight[0]) < 4 && i < 60000; i++) usleep(1000);
        usleep(5000);
        if (hold) {
            assert_int_equal(atomic_load(&lane->in_flight[0]), 4);
            assert_int_equal(atomic_load(&lane->in_flight[1]), 0);
            assert_int_equal(atomic_load(&lane->waiting), 3);
        }
        atomic_store(&hold, 0);
        take_the_rest(ta);
        take_the_rest(tb);
        wait_idle(b);
        turn_all(tb, &f, 1, said, 2);
        int64_t took = mf__clock_ns() - began;
        mf__store_stats_get(a, &sa);
        mf__store_stats_get(b, &sb);
        assert_int_equal(sb.predictors[MF_PREDICTOR_NEXT_ROUTER].useful, 2);
        assert_true(sa.busy_ns + sb.busy_ns > 0 && sa.busy_ns + sb.busy_ns <= took);
        assert_int_equal(atomic_load(&lane->waiting), 0);
        check(a);
        check(b);
        mf__turn_free(tb);
        mf__store_close(b);
        turn_all(ta, &f, 1, ids, 4); /* alone again */
        mf__turn_free(ta);
        mf__store_close(a);
    }
    expert_files_remove(&f);
}

/* An engine around another; once it is freed, a read of the store beside ends. */
typedef struct freed_io {
    mf__io base, *real;
    mf__store *beside;
    bool freed;
    int n_late; /* wakes after that */
} freed_io;

static void freed_wake(mf__io *io) {
    freed_io *x = (freed_io *)io;
    x->n_late += x->freed;
    if (!x->freed && x->real->wake) x->real->wake(x->real);
}

static void freed_free(mf__io *io) {
    freed_io *x = (freed_io *)io;
    x->real->free(x->real);
    x->freed = true;
    mf__lane_wake_others(x->beside);
}

static void a_store_that_closes_is_not_woken(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "closes", 2, 4, 8192, 8192));
    mf__store_config c = config_of(&f);
    mf__store *a = open_store(&c);
    c.beside = a;
    mf__store *b = open_store(&c);
    freed_io x = {.base = {"freed", freed_wake, freed_free}, .real = b->io, .beside = a};
    pthread_mutex_lock(&b->lock);
    b->io = &x.base;
    pthread_mutex_unlock(&b->lock);
    mf__store_close(b);
    assert_true(x.freed);
    assert_int_equal(x.n_late, 0);
    mf__lane_wake_others(a);
    assert_int_equal(x.n_late, 0);
    mf__store_close(a);
    expert_files_remove(&f);
}

/* Passes are timed once: what the second store finds out about reading ahead is what the first does. */
static void stores_beside_each_other_ask_once(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "once", 2, 4, 8192, 8192));
    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_AUTO;
    mf__store *a = open_store(&c);
    c.beside = a;
    mf__store *b = open_store(&c);
    mf__turn *ta = new_turn(a), *tb = new_turn(b);
    int32_t ids[1] = {1};
    for (int off = 1; off >= 0; off--) {
        a->evicted = b->evicted = true;
        b->trials[0] = (mf__trial){.off = off, .decided = off, .n_warm = MF_TRIAL_WARM, .keep = 100};
        for (int l = 0; l < 2; l++) {
            turn_all(tb, &f, l, ids, 1);
            turn_all(ta, &f, l, ids, 1);
        }
        a->turns_without_miss = b->turns_without_miss = 0;
        assert_int_equal(mf__store_wants_hints(b, MF_PREDICT_ROUTER), !off);
        assert_int_equal(mf__store_wants_hints(a, MF_PREDICT_ROUTER), !off);
        assert_int_equal(a->trials[0].n_warm, 0);
    }
    mf__turn_free(ta);
    mf__turn_free(tb);
    mf__store_close(b);
    mf__store_close(a);
    expert_files_remove(&f);
}

/* ---- the logical cache ---- */

static int64_t takes_its_time(void *user, int64_t n) {
    usleep((atomic_fetch_add((atomic_uint *)user, 1) * 1664525u + 1013904223u) >> 24 & 0xff);
    return n;
}

/* What choices may know of the cache: the same after the same turns, whatever was guessed and however long reads took;
 * and what it has is in memory. */
static void the_logical_cache_knows_turns_alone(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "logical", 4, 32, 8192, 8192));
    mf__store *stores[2];
    mf__turn *turns[2];
    atomic_uint pace = 7;
    unsigned x = 1;
    for (int k = 0; k < 2; k++) {
        mf__store_config c = config_of(&f);
        c.logical = true;
        c.most_slots = 40;
        c.prefetch = k ? MF_SWITCH_ON : MF_SWITCH_OFF;
        c.n_io_threads = 4;
        c.fault = k ? takes_its_time : NULL;
        c.fault_user = &pace;
        stores[k] = open_store(&c);
        turns[k] = new_turn(stores[k]);
    }
    int n_full = 0, n_missing = 0;
    for (int i = 0; i < 300; i++) {
        int32_t ids[4], said[4];
        uint8_t has[2][32];
        float chance[2][32];
        int layer = i % 4;
        for (int j = 0; j < 4; j++) {
            x = x * 1664525u + 1013904223u;
            ids[j] = (int32_t)(8 * j + (x >> 20) % (x & 1u << 30 ? 3 : 8));
            said[j] = (int32_t)(8 * j + (x >> 10) % 8);
        }
        mf__store_hint(stores[1], MF_PREDICT_ROUTER, (layer + 1) % 4, said, 4);
        for (int k = 0; k < 2; k++) turn_all(turns[k], &f, layer, ids, 4);
        bool full[2];
        for (int k = 0; k < 2; k++) full[k] = mf__store_logical(stores[k], layer, has[k], chance[k]);
        assert_int_equal(full[0], full[1]);
        assert_memory_equal(has[0], has[1], sizeof has[0]);
        assert_memory_equal(chance[0], chance[1], sizeof chance[0]);
        for (int j = 0; j < 4; j++) assert_int_equal(has[0][ids[j]], 1);
        n_full += full[0];
        for (int e = 0; e < 32; e++) n_missing += has[0][e] && stores[0]->where[layer * 32 + e] < 0;
    }
    assert_true(n_full > 200);
    assert_int_equal(n_missing, 0);
    for (int k = 0; k < 2; k++) {
        assert_true(stores[k]->n_logical <= stores[k]->limit - 4);
        mf__turn_free(turns[k]);
        mf__store_close(stores[k]);
    }
    expert_files_remove(&f);
}

/* ---- batches ---- */

/* One turn of rows that decode beside rows of prompts. */
static void turn_of_rows(mf__turn *t, int layer, const int32_t *ids, const int32_t *counts, int n, int n_tokens) {
    assert_int_equal(mf__turn_begin(t, layer, ids, counts, n, n_tokens, NULL), MF_OK);
    take_the_rest(t);
}

/* The pass before foretells the next one for batches too, as far as its rows decode. */
static void batches_foretell_the_next_pass(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "batch", 2, 16, 8192, 8192));
    static const struct {
        int set, n_tokens, n, foretold; /* of the turns; -2: not set */
    } cases[] = {{-2, 4, 6, 0},         /* rows of a prompt, for all that is known */
                 {-2, 1, 2, 2}, {4, 4, 6, 6},
                 {0, 1, 2, 0},  {4, 64, 16, 8}, /* of all these the four rows can have wanted eight */
                 {99, 4, 6, 6}};
    for (size_t k = 0; k < MF__COUNT(cases); k++) {
        int32_t ids[16], counts[16];
        mf_stats st;
        mf__store_config c = config_of(&f);
        c.prefetch = MF_SWITCH_ON;
        mf__store *s = open_store(&c);
        mf__turn *t = new_turn(s);
        if (cases[k].set >= -1) mf__turn_decode_set(t, cases[k].set);
        int n = cases[k].n, rest = 2 * cases[k].n_tokens - n; /* two for each row, the later the more */
        for (int i = 0; i < n; i++) ids[i] = i, counts[i] = 1;
        for (int i = n; rest > 0; rest--) counts[i = i > n - 8 && i > 0 ? i - 1 : n - 1]++; /* the last eight */
        turn_of_rows(t, 1, ids, counts, n, cases[k].n_tokens);
        turn_of_rows(t, 0, ids, counts, n, cases[k].n_tokens); /* now layer 1 is foretold */
        int expected = cases[k].foretold;
        for (int i = 0; i < 16; i++) {
            bool said = s->foretold[16 + i] & 1 << MF_PREDICT_LAST;
            if (said != (i < n && i >= n - expected)) fail_msg("case %d: expert %d", (int)k, i);
        }
        if (expected) assert_int_equal(s->last_ids[s->last_cap], expected == 6 ? 4 : n - expected);
        turn_of_rows(t, 1, ids, counts, n, cases[k].n_tokens);
        mf__store_stats_get(s, &st);
        assert_int_equal(st.predictors[MF_PREDICTOR_LAST_TOKEN].foretold, expected);
        assert_int_equal(st.predictors[MF_PREDICTOR_LAST_TOKEN].right, expected);
        check(s);
        mf__turn_free(t);
        mf__store_close(s);
    }
    expert_files_remove(&f);
}

static int n_ticks_seen;

static void note_ticks(void *state, int n_experts, int layer, const int32_t *ids, const int32_t *counts, int n,
                       int n_ticks) {
    (void)state, (void)n_experts, (void)layer, (void)ids, (void)counts, (void)n;
    n_ticks_seen = n_ticks;
}

/* Only passes of about as many rows are compared, and the cache's clock ticks once for all that decode. */
static void passes_by_their_rows(void **state) {
    (void)state;
    expert_files f;
    assert_true(expert_files_make(&f, "sizes", 2, 4, 8192, 8192));
    static const int rows[][2] = {{1, 0}, {2, 1}, {3, 1}, {4, 2}, {16, 4}, {31, 4}, {64, 6}, {2048, 11}, {1 << 30, 11}};
    for (size_t i = 0; i < MF__COUNT(rows); i++) assert_int_equal(mf__trial_size(rows[i][0]), rows[i][1]);

    mf__store_config c = config_of(&f);
    c.prefetch = MF_SWITCH_AUTO;
    mf__store *s = open_store(&c);
    mf__turn *t = new_turn(s);
    int32_t one[1] = {1};
    for (int l = 0; l < 4; l++) turn_of_rows(t, l % 2, one, NULL, 1, 1);
    assert_int_equal(s->trials[0].n_warm, 0); /* there is room yet */
    s->evicted = true;
    s->pass_began_ns = 0;
    mf__policy spy = *s->ranking.policy;
    spy.use = note_ticks;
    s->ranking.policy = &spy;
    static const struct {
        int decode, n_tokens, n_ticks;
    } passes[] = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {5, 5, 1}, {4, 4, 1}, {0, 7, 7}, {2, 12, 11}, {1, 1, 1}};
    for (size_t i = 0; i < MF__COUNT(passes); i++) {
        int32_t ids[1] = {2};
        mf__turn_decode_set(t, passes[i].decode);
        for (int l = 0; l < 2; l++) {
            turn_of_rows(t, l, ids, NULL, 1, passes[i].n_tokens);
            assert_int_equal(n_ticks_seen, passes[i].n_ticks);
        }
    }
    assert_int_equal(s->trials[0].n_warm, 3); /* a pass counts for its own size when the next one begins ... */
    assert_int_equal(s->trials[2].n_warm, 1); /* ... unless it is one that does not decode */
    assert_int_equal(s->trials[3].n_warm, 1);
    mf__turn_free(t);
    mf__store_close(s);
    expert_files_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hints_become_hits),
        cmocka_unit_test(all_experts_come_where_they_fit),
        cmocka_unit_test(nothing_is_filled_without_room_or_leave),
        cmocka_unit_test(filling_goes_on_after_an_error),
        cmocka_unit_test(a_bad_predictor_is_sent_to_rest),
        cmocka_unit_test(reading_ahead_must_pay),
        cmocka_unit_test(asking_costs_little),
        cmocka_unit_test(sure_guesses_follow_demands),
        cmocka_unit_test(the_later_router_knows_better),
        cmocka_unit_test(sure_guesses_leave_the_drive_to_demands),
        cmocka_unit_test(the_second_router_keeps_the_drive_busy),
        cmocka_unit_test(stores_beside_each_other_share_the_drive),
        cmocka_unit_test(stores_beside_each_other_ask_once),
        cmocka_unit_test(a_store_that_closes_is_not_woken),
        cmocka_unit_test(the_logical_cache_knows_turns_alone),
        cmocka_unit_test(batches_foretell_the_next_pass),
        cmocka_unit_test(passes_by_their_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
