/* Threads: their number changes no bit, and several of them may evaluate sessions of one model at once. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/internal.h"
#include "tiny.h"

#define PROMPT 9
#define STEPS 4
#define LONG_PROMPT 400
#define CHUNK 8

/* A prompt in chunks of 4 and a few single tokens; every row of logits is kept. */
typedef struct trace {
    mf_model *model;
    int shift; /* makes the tokens of this trace its own */
    mf_status status;
    float logits[1 + STEPS][TINY_VOCAB];
} trace;

/* No assertions here: it runs in threads. */
static void *follow(void *arg) {
    trace *t = arg;
    mf_session_options opt;
    mf_session *s = NULL;
    int32_t tokens[PROMPT + STEPS];
    mf_session_options_init(&opt);
    opt.n_ctx = PROMPT + STEPS;
    opt.n_chunk = 4;
    for (int i = 0; i < PROMPT + STEPS; i++) tokens[i] = (tiny_token(i) + 41 * t->shift) % TINY_VOCAB;
    t->status = mf_session_create(t->model, &opt, &s, NULL);
    if (t->status == MF_OK) t->status = mf_eval_prompt(s, tokens, PROMPT, 0, t->logits[0], TINY_VOCAB, NULL);
    for (int i = 0; i < STEPS && t->status == MF_OK; i++)
        t->status = mf_eval_token(s, tokens[PROMPT + i], PROMPT + i, t->logits[1 + i], TINY_VOCAB, NULL);
    mf_session_free(s);
    return NULL;
}

static void test_thread_count_changes_no_bit(void **state) {
    static trace traces[3];
    for (int n = 1; n <= 3; n++) {
        trace *t = &traces[n - 1];
        *t = (trace){.model = tiny_open(*state, n)};
        follow(t);
        assert_int_equal(t->status, MF_OK);
        assert_memory_equal(t->logits, traces[0].logits, sizeof t->logits);
        mf_model_close(t->model);
    }
}

static void test_sessions_in_threads(void **state) {
    enum { N = 4 };
    static trace alone[N], together[N];
    pthread_t threads[N];
    mf_model *m = tiny_open(*state, 2);
    for (int i = 0; i < N; i++) {
        alone[i] = together[i] = (trace){.model = m, .shift = i};
        follow(&alone[i]);
        assert_int_equal(alone[i].status, MF_OK);
    }
    for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&threads[i], NULL, follow, &together[i]), 0);
    for (int i = 0; i < N; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < N; i++) {
        assert_int_equal(together[i].status, MF_OK);
        assert_memory_equal(alone[i].logits, together[i].logits, sizeof alone[i].logits);
    }
    assert_memory_not_equal(alone[0].logits, alone[1].logits, sizeof alone[0].logits);
    mf_model_close(m);
}

/* A long prompt in small chunks, in a thread of its own. In each chunk it waits until somebody else stands in line. */
typedef struct reader {
    mf_session *s;
    int32_t tokens[LONG_PROMPT];
    bool met; /* somebody stands in line in this chunk; read and written under the model's lock */
    atomic_bool done;
    mf_status status;
} reader;

static bool somebody_waits(mf__ticket_lock *lock) {
    pthread_mutex_lock(&lock->mutex);
    bool yes = lock->next - lock->serving > 1;
    pthread_mutex_unlock(&lock->mutex);
    return yes;
}

static bool meet(void *user) {
    reader *r = user;
    while (!r->met && !somebody_waits(&r->s->model->lock)) sched_yield();
    r->met = true;
    return false;
}

static bool come_between(void *user) {
    ((reader *)user)->met = false;
    return false;
}

static void *read_long(void *user) {
    reader *r = user;
    mf_part part = {.session = r->s, .tokens = r->tokens, .n_tokens = LONG_PROMPT, .cancel = meet, .cancel_user = r};
    r->status = mf_eval(mf_session_model(r->s), &part, 1, NULL);
    atomic_store(&r->done, true);
    return NULL;
}

/* Whoever decodes meanwhile waits for the chunk that is under way and no longer: there is a token behind each chunk. */
static void test_a_long_prompt_lets_others_in(void **state) {
    static reader r;
    mf_model *m = tiny_open(*state, 1);
    mf_session *s = tiny_session(m, 2000, 0);
    float logits[TINY_VOCAB];
    pthread_t thread;
    int n_tokens = 0;
    r = (reader){.s = tiny_session(m, LONG_PROMPT, CHUNK)};
    for (int i = 0; i < LONG_PROMPT; i++) r.tokens[i] = tiny_token(i);
    assert_int_equal(pthread_create(&thread, NULL, read_long, &r), 0);
    for (; !atomic_load(&r.done) && n_tokens < 2000; n_tokens++) {
        int32_t token = tiny_token(n_tokens);
        mf_part part = {.session = s,
                        .tokens = &token,
                        .n_tokens = 1,
                        .logits = logits,
                        .n_logits = 1,
                        .cancel = come_between,
                        .cancel_user = &r};
        assert_int_equal(mf_eval(m, &part, 1, NULL), MF_OK);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.status, MF_OK);
    assert_true(n_tokens >= LONG_PROMPT / CHUNK);
    mf_session_free(s);
    mf_session_free(r.s);
    mf_model_close(m);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_count_changes_no_bit),
        cmocka_unit_test(test_sessions_in_threads),
        cmocka_unit_test(test_a_long_prompt_lets_others_in),
    };
    if (argc != 2) return 2;
    tiny_checkpoint = argv[1];
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
