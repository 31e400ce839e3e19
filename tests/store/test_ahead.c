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

/* Reading ahead is kept where it is faster, dropped where it is slower, and tried again. */
static void reading_ahead_must_pay(void **state) {
    (void)state;
    for (int pays = 0; pays < 2; pays++) {
        mf__trial t = {0};
        int n_off = 0, n = 3000;
        for (int i = 0; i < n; i++) {
            int64_t ns = t.off == (pays == 1) ? 10000000 : 9000000; /* the wrong way is slower */
            if (i % 9 == 5) ns = 2000000000;                        /* the user thinks */
            n_off += t.off;
            mf__trial_pass(&t, ns);
        }
        if (pays)
            assert_in_range(n_off, 1, n / 20);
        else
            assert_in_range(n_off, n - n / 20, n - 1);
    }
}

/* ---- batches ---- */

/* One turn of rows that decode beside rows of prompts. */
static void turn_of_rows(mf__turn *t, int layer, const int32_t *ids, const int32_t *counts, int n, int n_tokens) {
    int32_t got[64];
    const void *blobs[64];
    int n_got = 1;
    assert_int_equal(mf__turn_begin(t, layer, ids, counts, n, n_tokens, NULL), MF_OK);
    while (n_got) {
        assert_int_equal(mf__turn_next(t, got, blobs, &n_got, NULL), MF_OK);
        mf__turn_done(t, got, n_got);
    }
    mf__turn_end(t);
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
    assert_int_equal(s->trials[0].n, 3); /* a pass counts for its own size when the next one begins ... */
    assert_int_equal(s->trials[2].n, 1); /* ... unless it is one that does not decode */
    assert_int_equal(s->trials[3].n, 1);
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
        cmocka_unit_test(batches_foretell_the_next_pass),
        cmocka_unit_test(passes_by_their_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
