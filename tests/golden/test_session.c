/* Promises of a session: a refused or cancelled call changes nothing, clearing is forgetting, a layer can be asked
 * again, sessions do not see each other, threads do not change results. "Nothing" and "same" mean: bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tiny.h"

#define CTX 24
#define HELD 6 /* tokens in the session when a bad call comes */
#define MORE 5 /* tokens evaluated after it */

static void assert_same(const float *a, const float *b, size_t n) {
    assert_memory_equal(a, b, n * sizeof *a);
}

/* The logits after HELD + MORE tokens of a session that nobody disturbed. */
static void undisturbed(mf_model *m, float logits[TINY_VOCAB]) {
    mf_session *s = tiny_session(m, CTX, 0);
    tiny_eval(s, HELD, logits);
    tiny_eval(s, MORE, logits);
    mf_session_free(s);
}

/* ---- refused calls --------------------------------------------------------------------------------------------- */

typedef struct bad_call {
    const char *what;
    mf_status want;
    size_t n;         /* tokens */
    int64_t bad_at;   /* this one of them ... */
    int32_t bad;      /* ... is replaced by this; bad_at -1: none */
    int64_t pos;      /* start position */
    size_t n_logits;  /* floats */
    bool null_logits; /* instead of a buffer */
    bool null_tokens;
} bad_call;

static const bad_call BAD_CALLS[] = {
    {"token -1", MF_E_TOKEN, 3, 0, -1, HELD, TINY_VOCAB, false, false},
    {"token = vocabulary", MF_E_TOKEN, 3, 1, TINY_VOCAB, HELD, TINY_VOCAB, false, false},
    {"last token far outside", MF_E_TOKEN, 4, 3, INT32_MAX, HELD, TINY_VOCAB, false, false},
    {"bad token without logits", MF_E_TOKEN, 2, 1, INT32_MIN, HELD, 0, true, false},
    {"negative position", MF_E_POSITION, 2, -1, 0, -1, TINY_VOCAB, false, false},
    {"position 0 again", MF_E_POSITION, 2, -1, 0, 0, TINY_VOCAB, false, false},
    {"one position repeated", MF_E_POSITION, 2, -1, 0, HELD - 1, TINY_VOCAB, false, false},
    {"one position left out", MF_E_POSITION, 2, -1, 0, HELD + 1, TINY_VOCAB, false, false},
    {"position beyond 32 bits", MF_E_POSITION, 2, -1, 0, ((int64_t)1 << 32) + HELD, TINY_VOCAB, false, false},
    {"one token too many", MF_E_CONTEXT_FULL, CTX - HELD + 1, -1, 0, HELD, TINY_VOCAB, false, false},
    {"logits one short", MF_E_INVALID, 2, -1, 0, HELD, TINY_VOCAB - 1, false, false},
    {"logits one long", MF_E_INVALID, 2, -1, 0, HELD, TINY_VOCAB + 1, false, false},
    {"more rows than tokens", MF_E_INVALID, 2, -1, 0, HELD, 3 * TINY_VOCAB, false, false},
    {"no logits buffer", MF_E_INVALID, 2, -1, 0, HELD, TINY_VOCAB, true, false},
    {"no tokens", MF_E_INVALID, 2, -1, 0, HELD, TINY_VOCAB, false, true},
};

static mf_status make_call(mf_session *s, const bad_call *c, float *logits, mf_error *err) {
    int32_t tokens[CTX + 1];
    for (size_t i = 0; i < c->n; i++) tokens[i] = (int64_t)i == c->bad_at ? c->bad : 1;
    return mf_eval_prompt(s, c->null_tokens ? NULL : tokens, c->n, c->pos, c->null_logits ? NULL : logits, c->n_logits,
                          err);
}

static void test_refused_calls_change_nothing(void **state) {
    mf_model *m = tiny_open(*state, 1);
    float want[TINY_VOCAB], got[TINY_VOCAB], logits[3 * TINY_VOCAB], before[3 * TINY_VOCAB];
    undisturbed(m, want);
    for (size_t i = 0; i < sizeof BAD_CALLS / sizeof *BAD_CALLS; i++) {
        const bad_call *c = &BAD_CALLS[i];
        mf_error err = {0};
        mf_session *s = tiny_session(m, CTX, 0);
        tiny_eval(s, HELD, got);
        memset(logits, 0x5a, sizeof logits);
        memcpy(before, logits, sizeof logits);
        mf_status st = make_call(s, c, logits, &err);
        if (st != c->want || !*err.text) print_error("%s: %s \"%s\"\n", c->what, mf_status_name(st), err.text);
        assert_int_equal(st, c->want);
        assert_int_equal(err.status, c->want);
        assert_true(strlen(err.text) > 10);
        assert_memory_equal(logits, before, sizeof logits);
        assert_int_equal(mf_memory_length(s), HELD);
        tiny_eval(s, MORE, got);
        assert_same(got, want, TINY_VOCAB);
        mf_session_free(s);
    }
    mf_model_close(m);
}

static void test_empty_prompt_is_nothing(void **state) {
    mf_model *m = tiny_open(*state, 1);
    mf_session *s = tiny_session(m, CTX, 0);
    float logits[TINY_VOCAB], before[TINY_VOCAB], want[TINY_VOCAB];
    memset(logits, 0x5a, sizeof logits);
    memcpy(before, logits, sizeof logits);
    assert_int_equal(mf_eval_prompt(s, NULL, 0, 0, logits, TINY_VOCAB, NULL), MF_OK);
    assert_memory_equal(logits, before, sizeof logits);
    assert_int_equal(mf_memory_length(s), 0);
    assert_int_equal(mf_eval_prompt(s, NULL, 0, 0, logits, TINY_VOCAB - 1, NULL), MF_E_INVALID);
    tiny_eval(s, HELD, logits);
    assert_int_equal(mf_eval_prompt(s, NULL, 0, HELD, NULL, 0, NULL), MF_OK);
    tiny_eval(s, MORE, logits);
    undisturbed(m, want);
    assert_same(logits, want, TINY_VOCAB);
    mf_session_free(s);
    mf_model_close(m);
}

static void test_context_can_be_filled_exactly(void **state) {
    mf_model *m = tiny_open(*state, 1);
    mf_session *s = tiny_session(m, CTX, 0);
    float logits[TINY_VOCAB];
    tiny_eval(s, CTX - 1, logits);
    tiny_eval(s, 1, logits);
    assert_int_equal(mf_eval_token(s, 1, CTX, logits, TINY_VOCAB, NULL), MF_E_CONTEXT_FULL);
    assert_int_equal(mf_memory_length(s), CTX);
    mf_session_free(s);
    mf_model_close(m);
}

static void test_token_wants_one_row(void **state) {
    mf_model *m = tiny_open(*state, 1);
    mf_session *s = tiny_session(m, CTX, 0);
    float logits[2 * TINY_VOCAB];
    assert_int_equal(mf_eval_token(s, 1, 0, logits, 2 * TINY_VOCAB, NULL), MF_E_INVALID);
    assert_int_equal(mf_eval_token(s, 1, 0, NULL, 0, NULL), MF_E_INVALID);
    assert_int_equal(mf_eval_token(s, -7, 0, logits, TINY_VOCAB, NULL), MF_E_TOKEN);
    assert_int_equal(mf_eval_token(s, 1, 1, logits, TINY_VOCAB, NULL), MF_E_POSITION);
    assert_int_equal(mf_eval_token(NULL, 1, 0, logits, TINY_VOCAB, NULL), MF_E_INVALID);
    assert_int_equal(mf_memory_length(s), 0);
    mf_session_free(s);
    mf_model_close(m);
}

static void test_bad_options_are_refused(void **state) {
    mf_model *m = tiny_open(*state, 1);
    const int32_t bad[][2] = {{-1, 0}, {mf_model_info_get(m)->n_ctx + 1, 0}, {0, -1}, {0, 8193}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mf_session_options opt;
        mf_session *s = (mf_session *)1;
        mf_error err = {0};
        mf_session_options_init(&opt);
        opt.n_ctx = bad[i][0];
        opt.n_chunk = bad[i][1];
        assert_int_equal(mf_session_create(m, &opt, &s, &err), MF_E_INVALID);
        assert_null(s);
        assert_true(strlen(err.text) > 10);
    }
    mf_model_close(m);
}

/* ---- logits ---------------------------------------------------------------------------------------------------- */

/* Rows of the last tokens only, across chunk borders, are the rows that asking for all gives. */
static void test_rows_of_the_last_tokens(void **state) {
    enum { N = 11 };
    mf_model *m = tiny_open(*state, 1);
    static float all[N * TINY_VOCAB], some[N * TINY_VOCAB];
    int32_t tokens[N];
    for (int i = 0; i < N; i++) tokens[i] = tiny_token(i);
    mf_session *s = tiny_session(m, CTX, 4);
    assert_int_equal(mf_eval_prompt(s, tokens, N, 0, all, N * TINY_VOCAB, NULL), MF_OK);
    for (size_t rows = 1; rows <= N; rows += 3) {
        mf_memory_clear(s);
        memset(some, 0, sizeof some);
        assert_int_equal(mf_eval_prompt(s, tokens, N, 0, some, rows * TINY_VOCAB, NULL), MF_OK);
        assert_same(some, all + (N - rows) * TINY_VOCAB, rows * TINY_VOCAB);
    }
    mf_memory_clear(s); /* and without any row, the state is the same */
    assert_int_equal(mf_eval_prompt(s, tokens, N - 1, 0, NULL, 0, NULL), MF_OK);
    assert_int_equal(mf_eval_token(s, tokens[N - 1], N - 1, some, TINY_VOCAB, NULL), MF_OK);
    assert_same(some, all + (N - 1) * TINY_VOCAB, TINY_VOCAB);
    mf_session_free(s);
    mf_model_close(m);
}

/* ---- cancelling ------------------------------------------------------------------------------------------------ */

static bool countdown(void *user) {
    int *left = user;
    return (*left)-- == 0;
}

static void test_cancel_changes_nothing(void **state) {
    mf_model *m = tiny_open(*state, 1);
    /* Chunks of 4: 10 tokens take 3 walks of 8 layers. Stopped in the first, the middle and the last, and before any
     * layer of each. */
    static const int when[] = {0, 3, 8, 13, 16, 23};
    float want[TINY_VOCAB], got[TINY_VOCAB];
    undisturbed(m, want);
    for (size_t i = 0; i < sizeof when / sizeof *when; i++) {
        int32_t other[10] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
        int left = -1;
        mf_session_options opt;
        mf_session *s;
        mf_error err = {0};
        mf_session_options_init(&opt);
        opt.n_ctx = CTX;
        opt.n_chunk = 4;
        opt.cancel = countdown;
        opt.cancel_user = &left;
        assert_int_equal(mf_session_create(m, &opt, &s, NULL), MF_OK);
        tiny_eval(s, HELD, got);
        left = when[i];
        assert_int_equal(mf_eval_prompt(s, other, 10, HELD, got, TINY_VOCAB, &err), MF_E_CANCELLED);
        assert_int_equal(mf_memory_length(s), HELD);
        left = -1;
        tiny_eval(s, MORE, got);
        assert_same(got, want, TINY_VOCAB);
        mf_session_free(s);
    }
    mf_model_close(m);
}

/* ---- clearing and interleaving --------------------------------------------------------------------------------- */

static void test_clear_is_fresh(void **state) {
    mf_model *m = tiny_open(*state, 1);
    float want[TINY_VOCAB], got[TINY_VOCAB];
    undisturbed(m, want);
    mf_session *s = tiny_session(m, CTX, 0);
    for (int dirt = 0; dirt < 3; dirt++) {
        int32_t other[7] = {500, 400, 300, 200, 100, 50, 25};
        assert_int_equal(mf_eval_prompt(s, other, 5 + (size_t)dirt, 0, got, TINY_VOCAB, NULL), MF_OK);
        assert_int_equal(mf_eval_token(s, 3, 5 + dirt, got, TINY_VOCAB, NULL), MF_OK);
        mf_memory_clear(s);
        assert_int_equal(mf_memory_length(s), 0);
        tiny_eval(s, HELD, got);
        tiny_eval(s, MORE, got);
        assert_same(got, want, TINY_VOCAB);
        mf_memory_clear(s);
    }
    mf_session_free(s);
    mf_model_close(m);
}

static void test_interleaved_sessions(void **state) {
    enum { N = 8 };
    mf_model *m = tiny_open(*state, 1);
    float alone[2][N][TINY_VOCAB], mixed[2][N][TINY_VOCAB];
    mf_session *s[2];
    for (int k = 0; k < 2; k++) {
        s[k] = tiny_session(m, CTX, 0);
        for (int i = 0; i < N; i++)
            assert_int_equal(
                mf_eval_token(s[k], (tiny_token(i) + 77 * k) % TINY_VOCAB, i, alone[k][i], TINY_VOCAB, NULL), MF_OK);
        mf_memory_clear(s[k]);
    }
    for (int i = 0; i < N; i++)
        for (int k = 0; k < 2; k++)
            assert_int_equal(
                mf_eval_token(s[k], (tiny_token(i) + 77 * k) % TINY_VOCAB, i, mixed[k][i], TINY_VOCAB, NULL), MF_OK);
    assert_memory_equal(alone, mixed, sizeof alone);
    assert_memory_not_equal(alone[0], alone[1], sizeof alone[0]);
    for (int k = 0; k < 2; k++) mf_session_free(s[k]);
    mf_model_close(m);
}

/* ---- one layer ------------------------------------------------------------------------------------------------- */

typedef struct seen {
    int layer; /* the output of this layer is kept, and the output of the one before */
    float in[HELD * TINY_HIDDEN], out[HELD * TINY_HIDDEN];
    int n_rows;
} seen;

static void watch(void *user, const char *name, int layer, const float *data, int n_rows, int n_cols) {
    seen *s = user;
    size_t bytes = (size_t)n_rows * (size_t)n_cols * sizeof *data;
    bool hidden = !strcmp(name, "hidden");
    if (n_rows > HELD) return;
    if (s->layer == 0 ? !strcmp(name, "embed") : hidden && layer == s->layer - 1) memcpy(s->in, data, bytes);
    if (hidden && layer == s->layer) {
        memcpy(s->out, data, bytes);
        s->n_rows = n_rows;
    }
}

/* mf_layer_forward gives what the layer gives inside an evaluation, twice the same, and leaves the session alone. */
static void test_layer_forward(void **state) {
    mf_model *m = tiny_open(*state, 1);
    float want[TINY_VOCAB], logits[TINY_VOCAB], out[2][HELD * TINY_HIDDEN];
    undisturbed(m, want);
    for (int layer = 0; layer < TINY_LAYERS; layer++) {
        seen watched = {.layer = layer};
        mf_session_options opt;
        mf_session *s, *plain = tiny_session(m, CTX, 0);
        mf_session_options_init(&opt);
        opt.n_ctx = CTX;
        opt.probe = (mf_probe){.fn = watch, .user = &watched};
        assert_int_equal(mf_session_create(m, &opt, &s, NULL), MF_OK);
        tiny_eval(s, HELD, logits);
        tiny_eval(s, MORE, logits); /* the probe keeps the rows of this call */
        assert_int_equal(watched.n_rows, MORE);
        tiny_eval(plain, HELD, logits);
        for (int twice = 0; twice < 2; twice++)
            assert_int_equal(mf_layer_forward(plain, layer, watched.in, MORE, out[twice], NULL), MF_OK);
        assert_same(out[0], watched.out, MORE * TINY_HIDDEN);
        assert_same(out[1], watched.out, MORE * TINY_HIDDEN);
        assert_int_equal(mf_memory_length(plain), HELD);
        tiny_eval(plain, MORE, logits);
        assert_same(logits, want, TINY_VOCAB);
        mf_session_free(plain);
        mf_session_free(s);
    }
    mf_model_close(m);
}

static void test_layer_forward_refuses(void **state) {
    mf_model *m = tiny_open(*state, 1);
    mf_session *s = tiny_session(m, CTX, 4);
    static float x[CTX * TINY_HIDDEN], y[CTX * TINY_HIDDEN];
    const struct {
        int layer, n_rows;
        mf_status want;
    } bad[] = {{-1, 1, MF_E_INVALID},
               {TINY_LAYERS, 1, MF_E_INVALID},
               {0, 0, MF_E_INVALID},
               {0, -1, MF_E_INVALID},
               {0, 5, MF_E_INVALID}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(mf_layer_forward(s, bad[i].layer, x, bad[i].n_rows, y, NULL), bad[i].want);
    assert_int_equal(mf_layer_forward(s, 0, NULL, 1, y, NULL), MF_E_INVALID);
    float logits[TINY_VOCAB];
    tiny_eval(s, CTX - 2, logits);
    assert_int_equal(mf_layer_forward(s, 0, x, 2, y, NULL), MF_OK);
    assert_int_equal(mf_layer_forward(s, 0, x, 3, y, NULL), MF_E_CONTEXT_FULL);
    mf_session_free(s);
    mf_model_close(m);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_calls_change_nothing),  cmocka_unit_test(test_empty_prompt_is_nothing),
        cmocka_unit_test(test_context_can_be_filled_exactly), cmocka_unit_test(test_token_wants_one_row),
        cmocka_unit_test(test_bad_options_are_refused),       cmocka_unit_test(test_rows_of_the_last_tokens),
        cmocka_unit_test(test_cancel_changes_nothing),        cmocka_unit_test(test_clear_is_fresh),
        cmocka_unit_test(test_interleaved_sessions),          cmocka_unit_test(test_layer_forward),
        cmocka_unit_test(test_layer_forward_refuses),
    };
    if (argc != 2 && argc != 3) return 2;
    tiny_checkpoint = argv[1];
    if (argc == 3) tiny_backend = argv[2];
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
