/* The engine over the store: whatever way experts come, however little memory they have and whoever foretold them,
 * logits are the same bit for bit; a failed read changes nothing; sessions take their memory from the cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../golden/tiny.h"
#include "engine/internal.h"
#include "store/internal.h"

#define N_PROMPT 37
#define N_DECODE 9
#define RAM ((int64_t)256 << 20)

static mf_model *open_with(const char *dir, const mf_model_options *opt) {
    mf_error err = {0};
    mf_model *m = NULL;
    if (mf_model_open(dir, opt, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

static mf_model_options options(mf_io io, mf_switch direct, mf_switch prefetch) {
    mf_model_options opt;
    mf_model_options_init(&opt);
    opt.backend = "ref";
    opt.n_threads = 1;
    opt.ram_bytes = RAM;
    opt.io = io;
    opt.direct = direct;
    opt.prefetch = prefetch;
    return opt;
}

/* A prompt in chunks, then tokens one by one; the rows of all decoded tokens. */
static void evaluate(mf_model *m, float logits[N_DECODE + 1][TINY_VOCAB]) {
    mf_session *s = tiny_session(m, 64, 16);
    tiny_eval(s, N_PROMPT, logits[0]);
    for (int i = 0; i < N_DECODE; i++) tiny_eval(s, 1, logits[i + 1]);
    mf_session_free(s);
}

static void expect_same(mf_model *m, float want[N_DECODE + 1][TINY_VOCAB], const char *what) {
    static float got[N_DECODE + 1][TINY_VOCAB];
    mf_error err = {0};
    for (int again = 0; again < 2; again++) { /* cold, then with whatever is in memory */
        evaluate(m, got);
        if (memcmp(got, want, sizeof got)) fail_msg("%s: other logits (%s)", what, again ? "warm" : "cold");
    }
    if (mf__store_check(m->store, &err) != MF_OK) fail_msg("%s: %s", what, err.text);
}

static float reference[N_DECODE + 1][TINY_VOCAB];

static void make_reference(const char *dir) {
    mf_model_options opt = options(MF_IO_MMAP, MF_SWITCH_AUTO, MF_SWITCH_OFF);
    mf_model *m = open_with(dir, &opt);
    evaluate(m, reference);
    mf_model_close(m);
}

/* Room for n experts: a huge page, the least a budget can be, holds many of these small ones. */
static void shrink_to(mf_model *m, int n) {
    mf__store *s = m->store;
    pthread_mutex_lock(&s->lock);
    s->cap = n;
    mf__slots_apply_limit(s);
    pthread_mutex_unlock(&s->lock);
}

static void same_logits_by_every_way(void **state) {
    static const char *const policies[] = {"mix", "lfu", "lru"};
    make_reference(*state);
    for (int io = MF_IO_AUTO; io <= MF_IO_URING; io++)
        for (int direct = MF_SWITCH_ON; direct <= MF_SWITCH_OFF; direct++)
            for (int prefetch = MF_SWITCH_ON; prefetch <= MF_SWITCH_OFF; prefetch++) {
                char what[96];
                mf_model_options opt = options((mf_io)io, (mf_switch)direct, (mf_switch)prefetch);
                opt.policy = policies[(io + direct + prefetch) % 3];
                opt.n_io_threads = prefetch == MF_SWITCH_ON ? 8 : 1;
                mf_model *m = open_with(*state, &opt);
                snprintf(what, sizeof what, "io %d, direct %d, prefetch %d, policy %s", io, direct, prefetch,
                         opt.policy);
                expect_same(m, reference, what);
                mf_model_close(m);
            }
}

/* From room for one expert to room for most. */
static void same_logits_with_little_memory(void **state) {
    static const int rooms[] = {1, 2, 5, 9, 20, 60};
    make_reference(*state);
    for (size_t i = 0; i < MF__COUNT(rooms); i++) {
        char what[64];
        mf_stats st;
        mf_model_options opt = options(i % 2 ? MF_IO_URING : MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
        mf_model *m = open_with(*state, &opt);
        snprintf(what, sizeof what, "room for %d experts", rooms[i]);
        mf_session *s = tiny_session(m, 64, 16); /* takes its memory first */
        shrink_to(m, rooms[i]);
        static float got[N_DECODE + 1][TINY_VOCAB];
        tiny_eval(s, N_PROMPT, got[0]);
        for (int t = 0; t < N_DECODE; t++) tiny_eval(s, 1, got[t + 1]);
        if (memcmp(got, reference, sizeof got)) fail_msg("%s: other logits", what);
        mf_model_stats_get(m, &st);
        assert_true(st.evictions > 0);
        assert_true(st.cache_bytes <= rooms[i] * m->layout.bytes);
        mf_session_stats_get(s, &st);
        assert_true(st.wanted > 0 && st.hits < st.wanted);
        mf_session_free(s);
        mf_model_close(m);
    }
}

static void forgetting_changes_no_logits(void **state) {
    make_reference(*state);
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    mf_model *m = open_with(*state, &opt);
    mf_session *s = tiny_session(m, 64, 16);
    float got[TINY_VOCAB];
    mf_stats st;
    shrink_to(m, 12);
    tiny_eval(s, N_PROMPT, got);
    for (int i = 0; i < N_DECODE; i++) {
        mf_prefetch_forget(m);
        tiny_eval(s, 1, got);
        assert_memory_equal(got, reference[i + 1], sizeof got);
    }
    mf_model_stats_get(m, &st);
    const mf_predictor_stats *p = &st.predictors[MF_PREDICTOR_NEXT_ROUTER];
    assert_true(p->foretold > 0 && p->right > 0 && p->right <= p->foretold && p->right <= p->wanted);
    mf_session_free(s);
    mf_model_close(m);
}

/* A layer's file is cut while the session holds tokens, and comes back. */
static void a_failed_read_changes_nothing(void **state) {
    make_reference(*state);
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_OFF, MF_SWITCH_ON);
    mf_model *m = open_with(*state, &opt);
    mf_session *s = tiny_session(m, 64, 16);
    float got[TINY_VOCAB];
    mf_error err = {0};
    char path[300];
    char *bytes;
    size_t size;
    snprintf(path, sizeof path, "%s/packed_experts/layer_05.bin", (const char *)*state);
    assert_int_equal(mf__file_read(path, 1 << 30, &bytes, &size, &err), MF_OK);
    shrink_to(m, 9);
    tiny_eval(s, N_PROMPT, got);
    for (int i = 0; i < N_DECODE; i++) {
        int32_t token = tiny_token(N_PROMPT + i);
        assert_int_equal(truncate(path, 100), 0);
        int64_t before = mf_memory_length(s);
        mf_status st = mf_eval_token(s, token, before, got, TINY_VOCAB, &err);
        FILE *f = fopen(path, "r+b");
        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, size, f), size);
        fclose(f);
        if (st != MF_OK) {
            assert_int_equal(st, MF_E_IO);
            assert_non_null(strstr(err.text, "layer_05.bin"));
            assert_int_equal(mf_memory_length(s), before);
            tiny_eval(s, 1, got);
        }
        assert_memory_equal(got, reference[i + 1], sizeof got);
    }
    mf_stats st;
    mf_model_stats_get(m, &st);
    assert_true(st.read_errors > 0);
    free(bytes);
    mf_session_free(s);
    mf_model_close(m);
}

static void sessions_borrow_from_the_cache(void **state) {
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    mf_model *m = open_with(*state, &opt);
    mf_stats before, with_session, grown, after;
    mf_error err = {0};
    float logits[TINY_VOCAB];
    mf_model_stats_get(m, &before);
    mf_session *s = tiny_session(m, 1024, 16);
    mf_model_stats_get(m, &with_session);
    assert_true(with_session.budget < before.budget);
    tiny_eval(s, 300, logits); /* two pages */
    mf_model_stats_get(m, &grown);
    assert_int_equal(with_session.budget - grown.budget, 2 * 256 * m->info.kv_bytes_per_token);
    /* A context that does not fit is refused, and the session stays usable. */
    mf__store_lend(m->store, grown.budget - mf__slots_least(m->store) - 1000, &err);
    int32_t more[300];
    for (int i = 0; i < 300; i++) more[i] = tiny_token(300 + i);
    assert_int_equal(mf_eval_prompt(s, more, 300, 300, logits, TINY_VOCAB, &err), MF_E_NOMEM);
    assert_non_null(strstr(err.text, "budget"));
    assert_int_equal(mf_memory_length(s), 300);
    tiny_eval(s, 50, logits);
    mf__store_lend(m->store, -(grown.budget - mf__slots_least(m->store) - 1000), &err);
    mf_session_free(s);
    mf_model_stats_get(m, &after);
    assert_true(after.budget > grown.budget);
    mf_model_close(m);

    opt.ram_bytes = 1 << 20;
    m = NULL;
    assert_int_equal(mf_model_open(*state, &opt, &m, &err), MF_E_NOMEM);
    assert_non_null(strstr(err.text, "1048576"));
}

static void experts_in_other_directories(void **state) {
    char other[64], from[300], to[300];
    mf_error err = {0};
    make_reference(*state);
    snprintf(other, sizeof other, "other_%ld", (long)getpid());
    assert_int_equal(mf__dir_make(other, &err), MF_OK);
    for (int l = 0; l < TINY_LAYERS; l += 2) {
        snprintf(from, sizeof from, "%s/packed_experts/layer_%02d.bin", (const char *)*state, l);
        snprintf(to, sizeof to, "%s/layer_%02d.bin", other, l);
        assert_int_equal(mf__file_copy(from, to, &err), MF_OK);
    }
    const char *dirs[2] = {other, *state};
    for (int n = 1; n <= 2; n++) {
        mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
        opt.experts_dirs = dirs;
        opt.n_experts_dirs = n;
        mf_model *m = open_with(*state, &opt);
        expect_same(m, reference, "two directories");
        mf_model_close(m);
    }
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    const char *nowhere[1] = {"no_such_directory"};
    mf_model *m = NULL;
    opt.experts_dirs = nowhere;
    opt.n_experts_dirs = 1;
    assert_int_equal(mf_model_open(*state, &opt, &m, &err), MF_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "no_such_directory"));
    assert_int_equal(mf__dir_remove(other, &err), MF_OK);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    tiny_checkpoint = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits_by_every_way),       cmocka_unit_test(same_logits_with_little_memory),
        cmocka_unit_test(forgetting_changes_no_logits),   cmocka_unit_test(a_failed_read_changes_nothing),
        cmocka_unit_test(sessions_borrow_from_the_cache), cmocka_unit_test(experts_in_other_directories),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
