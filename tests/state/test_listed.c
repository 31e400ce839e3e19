/* What a user of the older engine relied on, one test for each of its own: evaluating in every way gives the same,
 * clearing forgets everything, a state comes back as it was. Its prompts, on any model. */
#include <math.h>

#include "any.h"

static const int32_t A[] = {1, 200, 600, 1100}, B[] = {2, 300, 700, 1200, 3};
static const int32_t SIXTEEN[] = {1, 200, 600, 1100, 2, 300, 700, 1200, 3, 400, 800, 1300, 4, 500, 900, 1400};

/* The prompts, in the model's vocabulary. */
static int32_t a[4], b[5], sixteen[16], many[256];

static void fit(const int32_t *from, int n, int32_t vocab, int32_t *to) {
    for (int i = 0; i < n; i++) to[i] = from[i] % vocab;
}

static mf_model *open_model(const char *dir) {
    mf_model *m = any_open(dir);
    int32_t vocab = mf_model_info_get(m)->n_vocab;
    fit(A, 4, vocab, a);
    fit(B, 5, vocab, b);
    fit(SIXTEEN, 16, vocab, sixteen);
    for (int i = 0; i < 256; i++) many[i] = ((37 * i + 5) % 50000 + 1) % vocab;
    return m;
}

static int best_of(const float *x, size_t n) {
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return (int)best;
}

/* The same best token, and rows that point the same way. */
static void alike(const mf_model *m, const float *x, const float *y, double least) {
    double xx = 0, yy = 0, xy = 0;
    size_t n = any_vocab(m);
    for (size_t i = 0; i < n; i++) {
        assert_true(isfinite(x[i]) && isfinite(y[i]));
        xx += (double)x[i] * x[i], yy += (double)y[i] * y[i], xy += (double)x[i] * y[i];
    }
    double cosine = xy / sqrt(xx * yy);
    if (!(cosine >= least)) fail_msg("the cosine is %.6f, expected %.6f", cosine, least);
    if (least >= 0.9999) assert_int_equal(best_of(x, n), best_of(y, n));
}

static void one(mf_model *m, mf_session *s, int32_t token, float *logits) {
    any_eval(m, s, &token, 1, logits);
}

static void one_by_one(mf_model *m, mf_session *s, const int32_t *tokens, int n, float *logits) {
    for (int i = 0; i < n; i++) one(m, s, tokens[i], logits);
}

typedef struct fixture {
    mf_model *m;
    mf_session *s, *t;
    float *x, *y;
} fixture;

static fixture begin(const char *dir) {
    fixture f = {.m = open_model(dir)};
    f.s = any_session(f.m);
    f.t = any_session(f.m);
    f.x = any_row(f.m, 1);
    f.y = any_row(f.m, 1);
    return f;
}

static void end(fixture *f) {
    mf_session_free(f->s);
    mf_session_free(f->t);
    free(f->x);
    free(f->y);
    mf_model_close(f->m);
}

/* ---- evaluating ---- */

typedef struct seen {
    float row[8192];
    int n;
} seen;

static void keep_first_layer(void *user, const char *name, int layer, const float *data, int n_rows, int n_cols) {
    seen *to = user;
    if (layer != 0 || strcmp(name, "hidden") != 0) return;
    assert_true(n_rows == 1 && n_cols <= 8192);
    memcpy(to->row, data, (size_t)n_cols * sizeof *data);
    to->n = n_cols;
}

static void test_a_layer_back_to_back(void **state) {
    static seen first, again;
    fixture f = begin(*state);
    mf_session_options opt;
    mf_session *s;
    mf_session_options_init(&opt);
    opt.probe.fn = keep_first_layer;
    opt.probe.user = &first;
    assert_int_equal(mf_session_create(f.m, &opt, &s, NULL), MF_OK);
    one(f.m, s, 1, f.x);
    float most = 0;
    for (int i = 0; i < first.n; i++) {
        assert_true(isfinite(first.row[i]));
        most = fmaxf(most, fabsf(first.row[i]));
    }
    assert_true(first.n > 0 && most > 1e-6f);
    mf_session_free(s);
    opt.probe.user = &again;
    assert_int_equal(mf_session_create(f.m, &opt, &s, NULL), MF_OK);
    for (int run = 0; run < 4; run++) {
        mf_memory_clear(s);
        one(f.m, s, 1, f.x);
        assert_int_equal(again.n, first.n);
        assert_memory_equal(again.row, first.row, (size_t)first.n * sizeof first.row[0]);
    }
    mf_session_free(s);
    end(&f);
}

static void prompt_in_chunks(fixture *f, int chunk) {
    mf_session *s = tiny_session(f->m, 0, chunk);
    any_eval(f->m, s, sixteen, 16, f->x);
    alike(f->m, f->x, f->y, 0.9999);
    one(f->m, s, 7, f->x);
    mf_memory_clear(f->t);
    one_by_one(f->m, f->t, sixteen, 16, f->y);
    float *next = any_row(f->m, 1);
    one(f->m, f->t, 7, next);
    alike(f->m, f->x, next, 0.9999);
    free(next);
    mf_session_free(s);
}

static void test_a_prompt_equals_its_tokens_in_every_chunking(void **state) {
    static const int CHUNKS[] = {16, 4, 1};
    fixture f = begin(*state);
    one_by_one(f.m, f.t, sixteen, 16, f.y);
    for (int i = 0; i < 3; i++) prompt_in_chunks(&f, CHUNKS[i]);
    end(&f);
}

static void test_long_prompts_and_greedy_tokens(void **state) {
    fixture f = begin(*state);
    any_eval(f.m, f.s, many, 40, f.x);
    one_by_one(f.m, f.t, many, 40, f.y);
    alike(f.m, f.x, f.y, 0.9999);
    one(f.m, f.s, 7, f.x); /* decoding after a batched prompt */
    one(f.m, f.t, 7, f.y);
    alike(f.m, f.x, f.y, 0.9999);
    any_eval(f.m, f.s, many + 40, 216, f.x);
    one_by_one(f.m, f.t, many + 40, 216, f.y);
    alike(f.m, f.x, f.y, 0.99);
    for (int i = 0; i < 16; i++) {
        int32_t next = best_of(f.x, any_vocab(f.m));
        one(f.m, f.s, next, f.x);
        assert_int_equal(mf_eval_token(f.t, next, mf_memory_length(f.t), f.y, any_vocab(f.m), NULL), MF_OK);
        alike(f.m, f.x, f.y, 0.99);
    }
    end(&f);
}

/* ---- predictions ---- */

static void test_predictions_change_nothing(void **state) {
    mf_model_options opt;
    fixture f = begin(*state);
    mf_model *reading;
    any_model_options(&opt, 2);
    opt.io = MF_IO_PREAD;
    opt.prefetch = MF_SWITCH_ON;
    assert_int_equal(mf_model_open(*state, &opt, &reading, NULL), MF_OK);
    mf_session *s = any_session(reading), *t = any_session(reading);
    any_eval(reading, s, a, 4, f.x);
    mf_prefetch_forget(reading);
    any_eval(reading, t, a, 4, f.y);
    any_same(f.m, f.x, f.y);
    for (int i = 0; i < 2; i++) {
        int32_t token = i ? 42 : 7;
        one(reading, s, token, f.x);
        mf_prefetch_forget(reading);
        one(reading, t, token, f.y);
        any_same(f.m, f.x, f.y);
    }
    mf_memory_clear(s); /* in the middle of reading ahead */
    any_eval(reading, s, b, 4, f.x);
    one(reading, s, 7, f.x);
    any_eval(f.m, f.t, b, 4, f.y);
    one(f.m, f.t, 7, f.y);
    any_same(f.m, f.x, f.y);
    mf_session_free(s);
    mf_session_free(t);
    mf_model_close(reading);
    end(&f);
}

/* ---- clearing and going on ---- */

static void test_clear_forgets_everything(void **state) {
    fixture f = begin(*state);
    any_eval(f.m, f.t, b, 4, f.y);
    any_eval(f.m, f.s, a, 4, f.x);
    for (int i = 0; i < 3; i++) one(f.m, f.s, best_of(f.x, any_vocab(f.m)), f.x);
    mf_memory_clear(f.s);
    assert_int_equal(mf_memory_length(f.s), 0);
    any_eval(f.m, f.s, b, 4, f.x);
    any_same(f.m, f.x, f.y);
    mf_memory_clear(f.s); /* the same prompt again */
    any_eval(f.m, f.s, b, 4, f.x);
    any_same(f.m, f.x, f.y);
    mf_session_free(f.s); /* a session that is gone leaves nothing to the next */
    f.s = any_session(f.m);
    any_eval(f.m, f.s, b, 4, f.x);
    any_same(f.m, f.x, f.y);
    end(&f);
}

static void test_lengths(void **state) {
    fixture f = begin(*state);
    int64_t again = 0;
    size_t size, written;
    assert_int_equal(mf_memory_length(f.s), 0);
    assert_int_equal(mf_memory_seq_rm(f.s, 3, -1, &again, NULL), MF_OK); /* nothing there, nothing done */
    any_eval(f.m, f.s, a, 4, f.x);
    assert_int_equal(mf_memory_length(f.s), 4);
    assert_int_equal(mf_memory_seq_rm(f.s, 4, -1, &again, NULL), MF_OK);
    assert_int_equal(mf_memory_length(f.s), 4);
    assert_int_equal(mf_state_size(f.s, &size, NULL), MF_OK);
    uint8_t *bytes = malloc(size);
    assert_int_equal(mf_state_save(f.s, bytes, size, &written, NULL), MF_OK);
    assert_int_equal(written, size);
    one(f.m, f.s, 7, f.x);
    memcpy(f.y, f.x, any_vocab(f.m) * sizeof *f.x);
    one(f.m, f.s, 42, f.x);
    assert_int_equal(mf_memory_length(f.s), 6);
    assert_memory_not_equal(f.x, f.y, any_vocab(f.m) * sizeof *f.x);
    assert_int_equal(mf_state_load(f.s, bytes, size, NULL), MF_OK);
    assert_int_equal(mf_memory_length(f.s), 4);
    one(f.m, f.s, 7, f.x); /* as before */
    any_same(f.m, f.x, f.y);
    if (!mf_model_info_get(f.m)->state_bytes) { /* without recurrent state a sequence can be cut anywhere */
        assert_int_equal(mf_memory_seq_rm(f.s, 3, -1, &again, NULL), MF_OK);
        assert_int_equal(mf_memory_length(f.s), 3);
        assert_int_equal(mf_memory_seq_rm(f.s, 10, -1, &again, NULL), MF_OK);
        assert_int_equal(mf_memory_length(f.s), 3);
        any_eval(f.m, f.s, a + 3, 1, f.x); /* and goes on */
        one(f.m, f.s, 7, f.x);
        alike(f.m, f.x, f.y, 0.9999);
    }
    mf_memory_clear(f.s);
    assert_int_equal(mf_memory_length(f.s), 0);
    free(bytes);
    end(&f);
}

/* ---- states ---- */

static void test_a_saved_prefix_goes_on(void **state) {
    fixture f = begin(*state);
    int32_t whole[9];
    size_t size;
    memcpy(whole, a, sizeof a);
    memcpy(whole + 4, b, sizeof b);
    any_eval(f.m, f.t, whole, 9, f.y);
    any_eval(f.m, f.s, a, 4, f.x);
    assert_int_equal(mf_state_size(f.s, &size, NULL), MF_OK);
    uint8_t *bytes = malloc(size);
    assert_int_equal(mf_state_save(f.s, bytes, size, NULL, NULL), MF_OK);
    mf_memory_clear(f.s);
    assert_int_equal(mf_state_load(f.s, bytes, size, NULL), MF_OK);
    any_eval(f.m, f.s, b, 5, f.x);
    alike(f.m, f.x, f.y, 0.9999);
    one(f.m, f.s, 7, f.x);
    one(f.m, f.t, 7, f.y);
    alike(f.m, f.x, f.y, 0.9999);
    free(bytes);
    end(&f);
}

static void test_checkpoints_after_long_decoding(void **state) {
    fixture f = begin(*state);
    mf_session *s = tiny_session(f.m, 0, 16); /* the prompt ends where a chunk does */
    any_eval(f.m, s, many, 32, f.x);
    assert_int_equal(mf_checkpoint_save(s, NULL), MF_OK);
    one(f.m, s, 7, f.y);
    for (int i = 0; i < 48; i++) one(f.m, s, best_of(f.y, any_vocab(f.m)) ^ (i & 1), f.x);
    assert_int_equal(mf_checkpoint_restore(s, 9999, NULL), MF_E_NOT_FOUND);
    assert_int_equal(mf_memory_length(s), 81);
    assert_int_equal(mf_checkpoint_restore(s, 32, NULL), MF_OK);
    assert_int_equal(mf_memory_length(s), 32);
    one(f.m, s, 7, f.x);
    any_same(f.m, f.x, f.y);
    mf_memory_clear(s);
    assert_int_equal(mf_checkpoint_restore(s, 32, NULL), MF_E_NOT_FOUND);
    mf_session_free(s);
    end(&f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_layer_back_to_back),
        cmocka_unit_test(test_a_prompt_equals_its_tokens_in_every_chunking),
        cmocka_unit_test(test_long_prompts_and_greedy_tokens),
        cmocka_unit_test(test_predictions_change_nothing),
        cmocka_unit_test(test_clear_forgets_everything),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_a_saved_prefix_goes_on),
        cmocka_unit_test(test_checkpoints_after_long_decoding),
    };
    if (argc < 2 || !any_options(argc, argv, 2)) return 2;
    tiny_checkpoint = argv[1];
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
