/* A device that has room for some of the experts and reads the others in the host's memory: the same bits as with all
 * of them on the device, and no turns of the store.
 *
 *   test_reach MODEL BACKEND */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/internal.h"
#include "store/internal.h"
#include "tiny.h"
#ifdef COUNT_CUDA
#include <cuda_runtime_api.h>
#endif

#define PROMPT 40
#define SINGLE 6
#define VOCAB 512

static const char *backend;
#ifdef COUNT_CUDA
static int64_t stage_less; /* bytes for experts on their way than there are */
#endif

static mf_model *open_with(const char *dir, int64_t vram) {
    mf_model_options opt;
    mf_error err = {0};
    mf_model *m = NULL;
    mf_model_options_init(&opt);
    opt.backend = backend;
    opt.n_threads = 1;
    opt.vram_bytes = vram;
    if (mf_model_open(dir, &opt, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

static mf_session *new_session(mf_model *m) {
    mf_session_options so;
    mf_session *s = NULL;
    mf_error err = {0};
    mf_session_options_init(&so);
    so.n_ctx = 96;
    so.n_chunk = PROMPT;
    if (mf_session_create(m, &so, &s, &err) != MF_OK) fail_msg("%s", err.text);
    return s;
}

static void eval(mf_session *s, int first, int n, float *logits) {
    int32_t ids[PROMPT];
    mf_error err = {0};
    for (int i = 0; i < n; i++) ids[i] = (int32_t)tiny_token(first + i);
    if (mf_eval_prompt(s, ids, (size_t)n, first, logits, VOCAB, &err) != MF_OK) fail_msg("%s", err.text);
}

/* Passes need no turns any more, and the device has filled its slots. */
static void wait_whole(mf_model *m) {
    for (int i = 0; i < 2000; i++, usleep(5000)) {
        uint64_t version;
        bool whole = mf__store_whole(m->store, &version) != NULL;
        if (whole) mf__store_whole_release(m->store);
        pthread_mutex_lock(&m->store->lock);
        bool full = m->store->n_ready == m->store->n_real || m->store->n_ready == m->store->limit;
        pthread_mutex_unlock(&m->store->lock);
        if (whole && full) return;
    }
    fail_msg("not all experts came into memory");
}

/* Of the model with so much of the device's memory. */
static void run(const char *dir, int64_t vram, bool reaches, float *logits) {
    mf_model *m = open_with(dir, vram);
    mf_session *s = new_session(m);
    assert_int_equal(m->reaches_host, reaches);
    wait_whole(m);
    assert_int_equal(m->store->n_ready < m->store->n_real, reaches);
    assert_true(m->store->n_ready > 0);
    mf_model_stats_reset(m);
#ifdef COUNT_CUDA
    if (stage_less) assert_int_equal(m->be->stage(m->be, m->ws.staged - stage_less, NULL), MF_OK);
    emu_counters before = emu_count();
    eval(s, 0, PROMPT, logits);
    emu_counters after = emu_count();
    int64_t far = 0; /* of the last layer one row is wanted */
    for (int key = 0; key < (m->info.n_layers - 1) * m->store->n_experts; key++)
        far += m->store->where[key] < 0 ? m->layout.bytes : 0;
    if (reaches) assert_true(m->ws.staged > 0);
    assert_true(after.copied - before.copied >= far); /* each of them once, and little else */
    assert_true(after.copied - before.copied < far + (1 << 20));
    if (after.waits - before.waits >= m->info.n_layers) /* tables grow in the first pass */
        fail_msg("the host waited %d times", (int)(after.waits - before.waits));
#else
    eval(s, 0, PROMPT, logits);
#endif
    for (int i = 0; i < SINGLE; i++) {
#ifdef COUNT_CUDA
        before = emu_count();
        eval(s, PROMPT + i, 1, logits + (1 + i) * VOCAB);
        after = emu_count();
        assert_true(after.waits - before.waits <= 3);
        assert_true(after.copied - before.copied < 64 << 10); /* no experts */
        if (i > 2) assert_true(after.replays > before.replays);
#else
        eval(s, PROMPT + i, 1, logits + (1 + i) * VOCAB);
#endif
    }
    mf_stats st;
    mf_model_stats_get(m, &st);
    assert_true(reaches ? st.hits < st.wanted : st.hits == st.wanted);
    assert_int_equal(mf__store_check(m->store, NULL), MF_OK);
    assert_int_equal(mf__store_check(m->host_store, NULL), MF_OK);
    mf_session_free(s);
    mf_model_close(m);
}

static void the_same_bits(void **state) {
    const char *dir = *state;
    static float all[(1 + SINGLE) * VOCAB], some[(1 + SINGLE) * VOCAB];
    mf_model_options opt;
    mf_memory_needs needs;
    mf_error err = {0};
    mf_model_options_init(&opt);
    opt.backend = backend;
    assert_int_equal(mf_model_memory(dir, &opt, 96, PROMPT, &needs, &err), MF_OK);
    run(dir, 0, false, all);
    mf_model *m = open_with(dir, 0);
    int64_t experts = m->store->n_real * m->layout.stride;
    mf_model_close(m);
    int64_t vram = needs.trunk + needs.state + needs.kv + needs.workspace + experts / 2;
    run(dir, vram, true, some);
    assert_memory_equal(all, some, sizeof all);
#ifdef COUNT_CUDA
    stage_less = 1001; /* as where there is not room for all that helps */
    run(dir, vram, true, some);
    stage_less = 0;
    assert_memory_equal(all, some, sizeof all);
#endif
}

#ifdef COUNT_CUDA
typedef struct giver {
    mf__backend *be;
    atomic_bool stop;
} giver;

static void *take_and_give_back(void *arg) {
    giver *g = arg;
    mf_error err = {0};
    while (!g->stop) {
        void *mem = NULL;
        if (g->be->alloc(g->be, 4096, &mem, &err) != MF_OK) return err.text[0] ? "no memory" : "";
        g->be->release(g->be, mem);
    }
    return NULL;
}

/* As a store's threads do while a pass is recorded; a device has no recording then if they wait for its stream. */
static void memory_is_given_back_while_a_pass_is_recorded(void **state) {
    static float logits[VOCAB];
    mf_model *m = open_with(*state, 0);
    mf_session *s = new_session(m);
    giver g = {.be = m->be};
    pthread_t thread;
    void *failed;
    wait_whole(m);
    assert_int_equal(pthread_create(&thread, NULL, take_and_give_back, &g), 0);
    emu_counters before = emu_count();
    for (int i = 0; i < 4; i++) eval(s, i, 1, logits);
    mf_session_free(s);
    emu_counters after = emu_count();
    g.stop = true;
    pthread_join(thread, &failed);
    assert_null(failed);
    assert_true(after.replays > before.replays);
    mf_model_close(m);
}
#endif

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits),
#ifdef COUNT_CUDA
                                       cmocka_unit_test(memory_is_given_back_while_a_pass_is_recorded)
#endif
    };
    if (argc < 3) return 2;
    tiny_checkpoint = argv[1];
    backend = argv[2];
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
