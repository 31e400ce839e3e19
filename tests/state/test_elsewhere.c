/* Experts that are computed elsewhere: a model whose experts two others compute, in the same process, gives the bits of
 * one that does all by itself; and a failure on either side leaves sessions as they were and both sides in step. */
#include <math.h>
#include <unistd.h>

#include "team.h"

#define N_TOKENS 24

/* A device chooses its kernels by how many rows there are together, so there others' rows are near, not the same. */
static void same(const float *a, const float *b, size_t n) {
    float most = 0, off = 0;
    if (strcmp(any_backend, "cuda")) {
        assert_memory_equal(a, b, n * sizeof *a);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        most = fabsf(a[i]) > most ? fabsf(a[i]) : most;
        off = fabsf(a[i] - b[i]) > off ? fabsf(a[i] - b[i]) : off;
    }
    assert_true(most > 0 && off <= most * 1e-4f);
}

static void tokens_of(int32_t *tokens, int n, int from) {
    for (int i = 0; i < n; i++) tokens[i] = (from + i) * 37 % 200 + 3;
}

/* The same calls on both: a prompt in passes, single tokens, three sequences at a time, a fork. */
static void compare(mf_model *a, mf_model *b) {
    mf_model *m[2] = {a, b};
    mf_session *s[2][3] = {{0}};
    float *row[2];
    int32_t tokens[N_TOKENS];
    tokens_of(tokens, N_TOKENS, 0);
    for (int i = 0; i < 2; i++) {
        row[i] = any_row(m[i], 3);
        s[i][0] = tiny_session(m[i], 0, any_chunk ? any_chunk : 7);
        any_eval(m[i], s[i][0], tokens, N_TOKENS, row[i]);
        assert_int_equal(mf_session_fork(s[i][0], &s[i][1], NULL), MF_OK);
    }
    same(row[0], row[1], any_vocab(a));
    for (int step = 0; step < 4; step++) {
        for (int i = 0; i < 2; i++) any_eval(m[i], s[i][0], tokens + step, 1, row[i]);
        same(row[0], row[1], any_vocab(a));
    }
    for (int i = 0; i < 2; i++) {
        s[i][2] = tiny_session(m[i], 0, 0);
        assert_int_equal(mf_eval_batch(s[i], tokens, 3, row[i], 3 * any_vocab(a), NULL), MF_OK);
    }
    same(row[0], row[1], 3 * any_vocab(a));
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 3; k++) mf_session_free(s[i][k]);
        free(row[i]);
    }
}

static void test_same_bits(void **state) {
    team t;
    mf_model *alone = open_with(*state, NULL, false), *m = open_team(*state, &t);
    uint64_t print[3];
    compare(alone, m);
    assert_true(t.n_pairs > 0);
    assert_true(t.n_begun > mf_model_info_get(m)->n_expert_layers);
    assert_int_equal(t.n_dropped, 0);
    if (mf_model_info_get(m)->n_expert_layers > 1) assert_true(t.n_hints > 0);
    assert_int_equal(mf_model_fingerprint(alone, &print[0], NULL), MF_OK);
    assert_int_equal(mf_model_fingerprint(m, &print[1], NULL), MF_OK);
    assert_int_equal(mf_model_fingerprint(t.worker[0], &print[2], NULL), MF_OK);
    assert_true(print[0] == print[1] && print[1] == print[2]);
    close_team(m, &t);
    mf_model_close(alone);
}

/* States go from one to the other and on. */
static void test_states(void **state) {
    team t;
    mf_model *alone = open_with(*state, NULL, false), *m = open_team(*state, &t);
    mf_session *a = any_session(alone), *b = any_session(m);
    float *rows[2] = {any_row(m, 1), any_row(m, 1)};
    int32_t tokens[N_TOKENS];
    size_t size = 0;
    tokens_of(tokens, N_TOKENS, 5);
    any_eval(m, b, tokens, 9, rows[1]);
    assert_int_equal(mf_checkpoint_save(b, NULL), MF_OK);
    assert_int_equal(mf_state_size(b, &size, NULL), MF_OK);
    uint8_t *saved = malloc(size);
    assert_non_null(saved);
    assert_int_equal(mf_state_save(b, saved, size, NULL, NULL), MF_OK);
    assert_int_equal(mf_state_load(a, saved, size, NULL), MF_OK);
    any_eval(m, b, tokens + 9, 6, rows[1]);
    any_eval(alone, a, tokens + 9, 6, rows[0]);
    same(rows[0], rows[1], any_vocab(m));
    assert_int_equal(mf_checkpoint_restore(b, 9, NULL), MF_OK);
    any_eval(m, b, tokens + 9, 6, rows[1]);
    same(rows[0], rows[1], any_vocab(m));
    free(saved);
    for (int i = 0; i < 2; i++) free(rows[i]);
    mf_session_free(a);
    mf_session_free(b);
    close_team(m, &t);
    mf_model_close(alone);
}

typedef struct stop {
    int asked, at;
} stop;

static bool stop_at(void *user) {
    stop *s = user;
    return ++s->asked >= s->at;
}

static void eval_fails(mf_session *s, size_t vocab, mf_status want, const char *text) {
    static const int32_t token = 7;
    mf_error err = {0};
    int64_t pos = mf_memory_length(s);
    float *row = malloc(vocab * sizeof *row);
    assert_non_null(row);
    assert_int_equal(mf_eval_token(s, token, pos, row, vocab, &err), want);
    if (text && !strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
    assert_int_equal(mf_memory_length(s), pos);
    free(row);
}

/* begin, finish, and cancelling in the middle: the session is as it was, and goes on as if nothing had been. */
static void test_failures(void **state) {
    team t;
    mf_model *alone = open_with(*state, NULL, false), *m = open_team(*state, &t);
    mf_session *a = any_session(alone);
    size_t vocab = any_vocab(m);
    float *rows[2] = {any_row(m, 1), any_row(m, 1)};
    stop never = {0, 1 << 30};
    mf_session_options opt = {.n_chunk = any_chunk, .cancel = stop_at, .cancel_user = &never};
    mf_session *s = NULL;
    int32_t tokens[8], layers = mf_model_info_get(m)->n_expert_layers;
    tokens_of(tokens, 8, 1);
    assert_int_equal(mf_session_create(m, &opt, &s, NULL), MF_OK);
    any_eval(m, s, tokens, 5, rows[1]);
    for (int at = 1; at <= layers; at++) {
        t.fail_begin = at;
        eval_fails(s, vocab, MF_E_IO, "begin was told to fail");
        assert_false(t.begun);
        t.fail_finish = at;
        eval_fails(s, vocab, MF_E_IO, "finish was told to fail");
        never = (stop){0, at};
        eval_fails(s, vocab, MF_E_CANCELLED, NULL);
        never = (stop){0, 1 << 30};
    }
    any_eval(m, s, tokens + 5, 3, rows[1]);
    any_eval(alone, a, tokens, 5, rows[0]);
    any_eval(alone, a, tokens + 5, 3, rows[0]);
    same(rows[0], rows[1], any_vocab(m));
    for (int i = 0; i < 2; i++) free(rows[i]);
    mf_session_free(s);
    mf_session_free(a);
    close_team(m, &t);
    mf_model_close(alone);
}

/* A request that is refused has cost no memory, however large. */
static void many_rows_are_refused_first(mf_model *w, const mf_experts_request *good, float *pairs) {
    mf_experts_request r = *good;
    mf_stats before, after;
    r.n_rows = 2048;
    float *rows = calloc((size_t)r.n_rows * (size_t)r.n_hidden, sizeof *rows);
    int32_t *ids = calloc((size_t)r.n_rows * (size_t)r.top_k, sizeof *ids);
    assert_true(rows && ids);
    ids[0] = -1;
    r.rows = rows;
    r.ids = ids;
    mf_model_stats_get(w, &before);
    assert_int_equal(mf_experts_compute(w, &r, pairs, (size_t)r.n_hidden, NULL), MF_E_INVALID);
    mf_model_stats_get(w, &after);
    assert_true(after.lent_bytes == before.lent_bytes);
    free(rows);
    free(ids);
}

/* Pairs that do not exist, that nobody took, that come twice, or not at all fail the pass. */
static void test_wrong_pairs(void **state) {
    static const char *const says[] = {[PUT_BELOW] = "pair -1 ",
                                       [PUT_ABOVE] = "expected 0 to",
                                       [PUT_NOT_TAKEN] = "begin did not take",
                                       [PUT_TWICE] = "twice",
                                       [PUT_NOT] = "left out 1 pairs"};
    team t;
    mf_model *m = open_team(*state, &t);
    mf_session *s = any_session(m);
    float *row = any_row(m, 1);
    int32_t tokens[N_TOKENS];
    tokens_of(tokens, N_TOKENS, 0);
    any_eval(m, s, tokens, 5, row);
    int64_t pos = mf_memory_length(s);
    for (int wrong = PUT_BELOW; wrong <= PUT_NOT; wrong++) {
        mf_error err = {0};
        t.wrong = (wrong_pair)wrong;
        assert_int_equal(mf_eval_prompt(s, tokens, N_TOKENS, pos, NULL, 0, &err), MF_E_INVALID);
        assert_int_equal(t.wrong, PUT_RIGHT); /* it came to that */
        if (!strstr(err.text, says[wrong])) fail_msg("\"%s\" does not say \"%s\"", err.text, says[wrong]);
        assert_int_equal(mf_memory_length(s), pos);
    }
    free(row);
    mf_session_free(s);
    close_team(m, &t);
}

/* What mf_experts_compute refuses; and a model with experts only has no sessions. */
static void test_refused(void **state) {
    mf_model *w = open_with(*state, NULL, true);
    const mf_model_info *info = mf_model_info_get(w);
    size_t cols = (size_t)info->n_hidden, top_k = (size_t)info->n_experts_per_token;
    float *rows = calloc(cols, sizeof *rows), *pairs = calloc(cols * top_k, sizeof *pairs);
    int32_t *ids = calloc(top_k, sizeof *ids), wanted[2] = {0, 1};
    mf_session *s = (mf_session *)1;
    mf_error err;
    assert_true(rows && pairs && ids);
    for (size_t k = 0; k < top_k; k++) ids[k] = (int32_t)k;
    const mf_experts_request good = {.layer = info->n_layers - 1,
                                     .n_rows = 1,
                                     .n_hidden = info->n_hidden,
                                     .top_k = info->n_experts_per_token,
                                     .rows = rows,
                                     .ids = ids,
                                     .wanted = wanted,
                                     .n_wanted = 1};
    assert_int_equal(mf_experts_compute(w, &good, pairs, cols, &err), MF_OK);
    assert_int_equal(mf_experts_compute(w, &good, pairs, cols + 1, &err), MF_E_INVALID);
    assert_int_equal(mf_experts_compute(w, &good, NULL, cols, &err), MF_E_INVALID);
    assert_int_equal(mf_experts_compute(NULL, &good, pairs, cols, &err), MF_E_INVALID);
#define REFUSE(assignment)                                                                                             \
    do {                                                                                                               \
        mf_experts_request r = good;                                                                                   \
        r.assignment;                                                                                                  \
        assert_int_equal(mf_experts_compute(w, &r, pairs, cols, &err), MF_E_INVALID);                                  \
    } while (0)
    REFUSE(layer = -1);
    REFUSE(layer = info->n_layers);
    REFUSE(n_rows = 0);
    REFUSE(n_rows = INT32_MAX);
    REFUSE(n_decode = 2);
    REFUSE(n_hidden = 1);
    REFUSE(top_k = 1000);
    REFUSE(n_wanted = -1);
    REFUSE(n_wanted = INT32_MAX);
    REFUSE(rows = NULL);
    REFUSE(ids = NULL);
    REFUSE(wanted = NULL);
    int32_t id = ids[0];
    ids[0] = info->n_experts;
    REFUSE(n_rows = 1);
    ids[0] = -1;
    REFUSE(n_rows = 1);
    ids[0] = id;
    wanted[0] = info->n_experts;
    REFUSE(n_rows = 1);
    wanted[0] = info->n_experts - 1; /* nobody goes there */
    REFUSE(n_rows = 1);
    many_rows_are_refused_first(w, &good, pairs);
    assert_int_equal(mf_session_create(w, NULL, &s, &err), MF_E_INVALID);
    assert_null(s);
    mf_experts_hint(w, -1, ids, 1);
    mf_experts_hint(w, 0, ids, INT32_MAX);
    mf_experts_hint(NULL, 0, ids, 1);
    free(rows);
    free(pairs);
    free(ids);
    mf_model_close(w);
}

/* A model that has room for its own experts and not for all: the idle drive reads its own, and no others. */
static void test_own_are_read(void **state) {
    mf_model_options opt;
    mf_model *w = NULL;
    mf_stats s = {0};
    any_model_options(&opt, 1);
    opt.experts_only = true;
    opt.io = MF_IO_PREAD;
    opt.prefetch = MF_SWITCH_ON;
    assert_int_equal(mf_model_open(*state, &opt, &w, NULL), MF_OK);
    const mf_model_info *info = mf_model_info_get(w);
    size_t n = (size_t)info->n_layers * (size_t)info->n_experts;
    bool small = info->expert_bytes < (int64_t)8 << 20; /* budgets are whole huge pages: some is as much as all */
    opt.ram_bytes = ((int64_t)48 << 20) + info->expert_bytes * 3 / 4;
    mf_model_close(w);
    if (small || strcmp(any_backend, "cpu")) skip();
    assert_int_equal(mf_model_open(*state, &opt, &w, NULL), MF_OK);
    info = mf_model_info_get(w);
    bool *own = calloc(n, sizeof *own);
    assert_non_null(own);
    for (size_t i = 0; i < n; i += 2) own[i] = true;
    assert_int_equal(mf_experts_own(w, own, n, NULL), MF_OK);
    assert_int_equal(mf_experts_own(w, own, n, NULL), MF_E_INVALID); /* once */
    int64_t want = info->expert_bytes / 2;
    for (int i = 0; i < 30000 && s.cache_bytes < want; i++) { /* as long as it takes */
        usleep(1000);
        mf_model_stats_get(w, &s);
    }
    assert_true(s.budget < info->expert_bytes);
    assert_int_equal(s.cache_bytes, want);
    usleep(50000);
    mf_model_stats_get(w, &s);
    assert_int_equal(s.cache_bytes, want);
    assert_int_equal(s.wanted, 0);
    free(own);
    mf_model_close(w);
}

/* Our own part fails: what is under way elsewhere is received and dropped. Last: it spoils the model. */
static void test_own_failure(void **state) {
    team t;
    if (*state == tiny_checkpoint) skip(); /* not ours to spoil */
    mf_model *m = open_team(*state, &t);
    mf_session *s = any_session(m);
    int32_t tokens[N_TOKENS];
    char path[256];
    for (int l = 0; l < mf_model_info_get(m)->n_layers; l++) {
        snprintf(path, sizeof path, "%s/packed_experts/layer_%02d.bin", (const char *)*state, l);
        if (!access(path, W_OK)) assert_int_equal(truncate(path, 0), 0);
    }
    tokens_of(tokens, N_TOKENS, 0); /* so many that some of their experts are ours */
    assert_int_equal(mf_eval_prompt(s, tokens, N_TOKENS, 0, NULL, 0, NULL), MF_E_IO);
    assert_int_equal(mf_memory_length(s), 0);
    assert_int_equal(t.n_dropped, 1);
    assert_int_equal(t.n_pairs, 0);
    mf_session_free(s);
    close_team(m, &t);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),   cmocka_unit_test(test_states),
                                       cmocka_unit_test(test_failures),    cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_wrong_pairs), cmocka_unit_test(test_own_are_read),
                                       cmocka_unit_test(test_own_failure)};
    if (argc < 3 || !any_options(argc, argv, 3)) return 2;
    tiny_checkpoint = argv[1];
    any_chunk = atoi(argv[2]);
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
