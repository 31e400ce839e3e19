/* Snapshots, forks, batches, checkpoints and truncation. "Same" means bit for bit. */
#include "any.h"
#include "engine/snapshot.h"

#define MAX_PROMPT 300 /* more than one KV page */

static int32_t prompt[MAX_PROMPT + 8];

static bool has_recurrent(const mf_model *m) {
    return mf_model_info_get(m)->state_bytes > 0;
}

/* Logits after the first n tokens of the prompt and then `extra`, in a session of its own. */
static void fresh(mf_model *m, size_t n, int32_t extra, float *logits) {
    mf_session *s = any_session(m);
    any_eval(m, s, prompt, n, logits);
    any_eval(m, s, &extra, 1, logits);
    mf_session_free(s);
}

static uint8_t *save(mf_session *s, size_t *size) {
    size_t written = 0;
    assert_int_equal(mf_state_size(s, size, NULL), MF_OK);
    uint8_t *buf = malloc(*size);
    assert_non_null(buf);
    assert_int_equal(mf_state_save(s, buf, *size, &written, NULL), MF_OK);
    assert_int_equal(written, *size);
    return buf;
}

static void test_save_load_save_is_identical(void **state) {
    mf_model *m = any_open(*state);
    static const size_t LENGTHS[] = {0, 17, 257}; /* the last in its second page */
    float *want = any_row(m, 1), *got = any_row(m, 1);
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        size_t size, size2, n = LENGTHS[i];
        mf_session *a = any_session(m), *b = any_session(m);
        any_eval(m, a, prompt, n, want);
        uint8_t *first = save(a, &size);
        any_eval(m, b, prompt + 3, 40, got); /* b holds something else: it must not matter */
        assert_int_equal(mf_state_load(b, first, size, NULL), MF_OK);
        assert_int_equal(mf_memory_length(b), n);
        assert_memory_equal(mf_memory_tokens(b), prompt, n * sizeof *prompt);
        uint8_t *second = save(b, &size2);
        assert_int_equal(size, size2);
        assert_memory_equal(first, second, size);
        fresh(m, n, 7, want);
        any_eval(m, b, &(int32_t){7}, 1, got);
        any_same(m, want, got);
        free(first);
        free(second);
        mf_session_free(a);
        mf_session_free(b);
    }
    free(want);
    free(got);
    mf_model_close(m);
}

/* Which rows' logits are asked for changes neither them nor the state. */
static void test_unwanted_rows_leave_the_same_state(void **state) {
    enum { N = 21 };
    mf_model *m = any_open(*state);
    size_t vocab = (size_t)mf_model_info_get(m)->n_vocab;
    float *all = any_row(m, N), *some = any_row(m, N), *want = any_row(m, 1);
    mf_session *a = any_session(m);
    assert_int_equal(mf_eval_prompt(a, prompt, N, 0, all, N * vocab, NULL), MF_OK);
    any_eval(m, a, &(int32_t){7}, 1, want);
    for (size_t rows = 0; rows < N; rows += 4) {
        mf_session *b = any_session(m);
        assert_int_equal(mf_eval_prompt(b, prompt, N, 0, rows ? some : NULL, rows * vocab, NULL), MF_OK);
        assert_memory_equal(some, all + (N - rows) * vocab, rows * vocab * sizeof *some);
        any_eval(m, b, &(int32_t){7}, 1, some);
        any_same(m, want, some);
        mf_session_free(b);
    }
    mf_session_free(a);
    free(all);
    free(some);
    free(want);
    mf_model_close(m);
}

static void test_damaged_snapshots_change_nothing(void **state) {
    mf_model *m = any_open(*state);
    float *want = any_row(m, 1), *got = any_row(m, 1);
    mf_session *a = any_session(m), *b = any_session(m);
    size_t size;
    any_eval(m, a, prompt, 9, want);
    uint8_t *bytes = save(a, &size), *bad = malloc(size + 1);
    any_eval(m, b, prompt, 5, got);
    mf_error err;
    for (size_t i = 0; i < size; i += i < 64 ? 1 : size / 97 + 1) { /* one bit anywhere */
        memcpy(bad, bytes, size);
        bad[i] ^= (uint8_t)(1u << (i % 8));
        err.text[0] = '\0';
        assert_int_not_equal(mf_state_load(b, bad, size, &err), MF_OK);
        assert_true(strlen(err.text) > 10);
    }
    for (size_t cut = 0; cut < size; cut += cut < 64 ? 1 : size / 61 + 1)
        assert_int_not_equal(mf_state_load(b, bytes, cut, &err), MF_OK);
    memcpy(bad, bytes, size);
    bad[size] = 0;
    assert_int_not_equal(mf_state_load(b, bad, size + 1, &err), MF_OK);
    assert_int_equal(mf_memory_length(b), 5);
    fresh(m, 5, 7, want);
    any_eval(m, b, &(int32_t){7}, 1, got);
    any_same(m, want, got);
    assert_int_equal(mf_state_save(a, bad, size - 1, NULL, &err), MF_E_INVALID);
    free(bytes);
    free(bad);
    mf_session_free(a);
    mf_session_free(b);
    free(want);
    free(got);
    mf_model_close(m);
}

static void test_a_snapshot_must_fit_the_context(void **state) {
    mf_model *m = any_open(*state);
    float *logits = any_row(m, 1);
    mf_session *a = any_session(m), *b = tiny_session(m, 16, 0);
    size_t size;
    any_eval(m, a, prompt, 17, logits);
    uint8_t *bytes = save(a, &size);
    assert_int_equal(mf_state_load(b, bytes, size, NULL), MF_E_CONTEXT_FULL);
    assert_int_equal(mf_memory_length(b), 0);
    free(bytes);
    mf_session_free(a);
    mf_session_free(b);
    free(logits);
    mf_model_close(m);
}

static void test_a_snapshot_of_another_kv_type_is_refused(void **state) {
    static const char *const NAMES[] = {"", "f16", "f32", "int8"};
    mf_kv was = any_kv;
    mf_model *m = any_open(*state);
    const mf_model_info *info = mf_model_info_get(m);
    float *logits = any_row(m, 1);
    mf_session *a = any_session(m);
    size_t size;
    any_eval(m, a, prompt, 17, logits);
    uint8_t *bytes = save(a, &size);
    for (int kv = MF_KV_F16; kv <= MF_KV_INT8; kv++) {
        mf_error err = {0};
        any_kv = (mf_kv)kv;
        mf_model *other = any_open(*state);
        mf_session *b = any_session(other);
        assert_string_equal(mf_model_info_get(other)->kv, NAMES[kv]);
        mf_status st = mf_state_load(b, bytes, size, &err);
        if (strcmp(NAMES[kv], info->kv)) {
            assert_int_equal(st, MF_E_MISMATCH);
            assert_non_null(strstr(err.text, NAMES[kv]));
            assert_non_null(strstr(err.text, info->kv));
            assert_int_equal(mf_memory_length(b), 0);
        } else {
            assert_int_equal(st, MF_OK);
        }
        mf_session_free(b);
        mf_model_close(other);
    }
    any_kv = was;
    free(bytes);
    mf_session_free(a);
    free(logits);
    mf_model_close(m);
}

/* Whoever computes otherwise cannot go on from a state: other activations, other experts. */
static void test_a_snapshot_of_another_precision_is_refused(void **state) {
    mf_model *models[3];
    mf_session *s[3];
    size_t size;
    for (int i = 0; i < 3; i++) {
        mf_model_options opt;
        any_model_options(&opt, 1);
        opt.backend = "cpu";
        opt.kv = MF_KV_F32;
        opt.exact = i == 1;
        opt.experts_per_token = i == 2;
        assert_int_equal(mf_model_open(*state, &opt, &models[i], NULL), MF_OK);
        s[i] = any_session(models[i]);
    }
    float *logits = any_row(models[0], 1);
    any_eval(models[0], s[0], prompt, 5, logits);
    uint8_t *bytes = save(s[0], &size);
    for (int i = 1; i < 3; i++) {
        mf_error err = {0};
        mf_status st = mf_state_load(s[i], bytes, size, &err);
        if (i == 2 && mf_model_info_get(models[0])->n_experts_trained == 1) { /* one is what the model takes */
            assert_int_equal(st, MF_OK);
            continue;
        }
        assert_int_equal(st, MF_E_MISMATCH);
        assert_non_null(strstr(err.text, "precision"));
    }
    free(bytes);
    free(logits);
    for (int i = 0; i < 3; i++) {
        mf_session_free(s[i]);
        mf_model_close(models[i]);
    }
}

/* The wire format of moeflux's version 2, written here from its description: f32 rows, a length per layer. */
static void test_version_2_snapshots_are_read(void **state) {
    mf_model *m = any_open(*state);
    assert_string_equal(mf_model_info_get(m)->family, "qwen3_5_moe"); /* the shape below is that family's */
    enum { N = 11, LAYERS = 8, CONV = 3 * 256, DELTA = 4 * 32 * 32, ROW = 2 * 64 };
    float *want = any_row(m, 1), *got = any_row(m, 1);
    mf_session *a = any_session(m), *b = any_session(m);
    any_eval(m, a, prompt, N, want);
    size_t size, at = 56 + 48, used = 40; /* ours: header, 11 tokens padded to 8 bytes */
    uint8_t *ours = save(a, &size), *theirs = calloc(1, size + 4096);
    const uint32_t words[10] = {0x4D464C58, 2, LAYERS, 4, 2, 64, CONV * 4, DELTA * 4, 0, 0};
    size_t recurrent = at + 2 * (size_t)N * ROW * 4 * 2;
    memcpy(theirs, words, sizeof words);
    for (int l = 0; l < LAYERS; l++) {
        if (l % 4 == 3) {
            size_t rows = 2 * (size_t)N * ROW * 4;
            memcpy(theirs + used, &(int32_t){N}, 4);
            memcpy(theirs + used + 4, ours + at, rows);
            used += 4 + rows;
            at += rows;
        } else {
            memcpy(theirs + used, ours + recurrent, (CONV + DELTA) * 4);
            used += (CONV + DELTA) * 4;
            recurrent += (CONV + DELTA) * 4;
        }
    }
    assert_int_equal(mf_state_load(b, theirs, used, NULL), MF_OK);
    assert_int_equal(mf_memory_length(b), N);
    assert_int_equal(mf_memory_tokens(b)[0], -1);
    any_eval(m, a, &(int32_t){7}, 1, want);
    any_eval(m, b, &(int32_t){7}, 1, got);
    any_same(m, want, got);
    assert_int_equal(mf_state_load(b, theirs, used - 1, NULL), MF_E_FORMAT);
    ((uint32_t *)theirs)[5] = 32; /* another head size */
    assert_int_equal(mf_state_load(b, theirs, used, NULL), MF_E_MISMATCH);
    assert_int_equal(mf_memory_length(b), N + 1);
    free(ours);
    free(theirs);
    mf_session_free(a);
    mf_session_free(b);
    free(want);
    free(got);
    mf_model_close(m);
}

static void test_forks_go_their_own_ways(void **state) {
    mf_model *m = any_open(*state);
    float *want = any_row(m, 1), *got = any_row(m, 1);
    static const size_t LENGTHS[] = {0, 5, 256}; /* in the middle of a page, at its end */
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        size_t n = LENGTHS[i];
        mf_session *a = any_session(m), *b;
        any_eval(m, a, prompt, n, got);
        assert_int_equal(mf_session_fork(a, &b, NULL), MF_OK);
        assert_int_equal(mf_memory_length(b), n);
        any_eval(m, a, &(int32_t){7}, 1, got);
        fresh(m, n, 7, want);
        any_same(m, want, got);
        any_eval(m, b, &(int32_t){9}, 1, got); /* after a has written: b must not see it */
        fresh(m, n, 9, want);
        any_same(m, want, got);
        mf_session_free(a); /* the parent goes first */
        any_eval(m, b, &(int32_t){7}, 1, got);
        mf_session *c = any_session(m);
        any_eval(m, c, prompt, n, want);
        any_eval(m, c, (int32_t[]){9, 7}, 2, want);
        any_same(m, want, got);
        mf_session_free(b);
        mf_session_free(c);
    }
    free(want);
    free(got);
    mf_model_close(m);
}

#define BATCH 8

static void test_a_batch_equals_separate_runs(void **state) {
    mf_model *m = any_open(*state);
    mf_session *together[BATCH], *alone[BATCH];
    size_t vocab = any_vocab(m);
    float *rows = any_row(m, BATCH), *want = any_row(m, 1);
    for (int i = 0; i < BATCH; i++) { /* different lengths, one across a page border */
        size_t n = i == 3 ? 254 : (size_t)(3 * i + 1);
        together[i] = any_session(m);
        alone[i] = any_session(m);
        any_eval(m, together[i], prompt + i, n, want);
        any_eval(m, alone[i], prompt + i, n, want);
    }
    for (int step = 0; step < 6; step++) {
        int32_t tokens[BATCH];
        for (int i = 0; i < BATCH; i++) tokens[i] = (step * 31 + i * 7) % 200;
        mf_error err = {0};
        if (mf_eval_batch(together, tokens, BATCH, rows, vocab * BATCH, &err) != MF_OK) fail_msg("%s", err.text);
        for (int i = 0; i < BATCH; i++) {
            any_eval(m, alone[i], &tokens[i], 1, want);
            any_same(m, want, rows + (size_t)i * vocab);
        }
    }
    /* refused as a whole: a bad token, the same session twice, too little room for logits */
    int64_t before = mf_memory_length(together[0]);
    int32_t tokens[BATCH] = {0};
    tokens[BATCH - 1] = (int32_t)vocab;
    assert_int_equal(mf_eval_batch(together, tokens, BATCH, rows, vocab * BATCH, NULL), MF_E_TOKEN);
    tokens[BATCH - 1] = 0;
    assert_int_equal(mf_eval_batch(together, tokens, BATCH, rows, vocab * BATCH - 1, NULL), MF_E_INVALID);
    mf_session *twice[2] = {together[0], together[0]};
    assert_int_equal(mf_eval_batch(twice, tokens, 2, rows, vocab * 2, NULL), MF_E_INVALID);
    assert_int_equal(mf_memory_length(together[0]), before);
    for (int i = 0; i < BATCH; i++) {
        mf_session_free(together[i]);
        mf_session_free(alone[i]);
    }
    free(rows);
    free(want);
    mf_model_close(m);
}

/* Evaluates a token of another session whenever bytes come: a lock held over the writing would never let it. */
typedef struct busy_sink {
    mf_session *other;
    float *logits;
    size_t bytes;
} busy_sink;

static mf_status evaluate_meanwhile(void *sink, const void *data, size_t size, mf_error *err) {
    busy_sink *b = sink;
    (void)data;
    b->bytes += size;
    return mf_eval_token(b->other, 5, mf_memory_length(b->other), b->logits, any_vocab(b->other->model), err);
}

static void test_others_evaluate_while_a_state_is_written(void **state) {
    mf_model *m = any_open(*state);
    mf_session *s = any_session(m), *other = any_session(m);
    float *row = any_row(m, 1);
    mf_error err = {0};
    mf__frozen *f;
    size_t size;
    any_eval(m, s, prompt, 40, row);
    assert_int_equal(mf_state_size(s, &size, &err), MF_OK);
    mf__model_lock(m);
    assert_int_equal(mf__freeze(s, &f, &err), MF_OK);
    mf__model_unlock(m);
    busy_sink sink = {.other = other, .logits = row};
    if (mf__snapshot_write(m, f, 0, 0, evaluate_meanwhile, &sink, &err) != MF_OK) fail_msg("%s", err.text);
    assert_int_equal(sink.bytes, size);
    assert_true(mf_memory_length(other) >= 2);
    mf__frozen_drop(m, f);
    mf_session_free(s);
    mf_session_free(other);
    free(row);
    mf_model_close(m);
}

static void test_checkpoints(void **state) {
    mf_model *m = any_open(*state);
    float *want = any_row(m, 1), *got = any_row(m, 1);
    mf_session *s = any_session(m);
    for (size_t pos = 0; pos < 25; pos += 5) {
        any_eval(m, s, prompt + pos, 5, got);
        assert_int_equal(mf_checkpoint_save(s, NULL), MF_OK);
    }
    assert_int_equal(mf_checkpoint_count(s), 4); /* 5 gone; 10, 15, 20, 25 */
    assert_int_equal(mf_checkpoint_restore(s, 5, NULL), MF_E_NOT_FOUND);
    assert_int_equal(mf_checkpoint_restore(s, 9999, NULL), MF_E_NOT_FOUND);
    assert_int_equal(mf_memory_length(s), 25);
    assert_int_equal(mf_checkpoint_restore(s, 15, NULL), MF_OK);
    assert_int_equal(mf_memory_length(s), 15);
    assert_int_equal(mf_checkpoint_count(s), 2); /* 20 and 25 are the future */
    any_eval(m, s, &(int32_t){7}, 1, got);
    fresh(m, 15, 7, want);
    any_same(m, want, got);
    mf_checkpoint_forget(s, 10);
    mf_checkpoint_forget(s, 10);
    assert_int_equal(mf_checkpoint_count(s), 1);
    assert_int_equal(mf_memory_length(s), 16);
    mf_memory_clear(s);
    assert_int_equal(mf_checkpoint_count(s), 0);

    for (size_t pos = 0; pos <= 20; pos += 5) { /* position 0 is never evicted */
        if (pos) any_eval(m, s, prompt + pos - 5, 5, got);
        assert_int_equal(mf_checkpoint_save(s, NULL), MF_OK);
    }
    assert_int_equal(mf_checkpoint_count(s), 4);
    assert_int_equal(mf_checkpoint_restore(s, 0, NULL), MF_OK);
    assert_int_equal(mf_memory_length(s), 0);
    any_eval(m, s, prompt, 5, got);
    any_eval(m, s, &(int32_t){7}, 1, got);
    fresh(m, 5, 7, want);
    any_same(m, want, got);
    mf_session_free(s);
    free(want);
    free(got);
    mf_model_close(m);
}

static void test_truncation(void **state) {
    mf_model *m = any_open(*state);
    float *want = any_row(m, 1), *got = any_row(m, 1);
    mf_session *s = any_session(m);
    int64_t again = -1;
    any_eval(m, s, prompt, 20, got);
    assert_int_equal(mf_memory_seq_rm(s, 20, -1, &again, NULL), MF_OK); /* nothing to remove */
    assert_int_equal(mf_memory_seq_rm(s, 5, 10, &again, NULL), MF_E_INVALID);
    assert_int_equal(mf_memory_length(s), 20);
    if (has_recurrent(m)) {
        assert_int_equal(mf_memory_seq_rm(s, 12, -1, &again, NULL), MF_E_RECURRENT);
        assert_int_equal(mf_memory_length(s), 20);
        any_eval(m, s, &(int32_t){7}, 1, got); /* untouched */
        fresh(m, 20, 7, want);
        any_same(m, want, got);
        mf_memory_clear(s);
        any_eval(m, s, prompt, 10, got);
        assert_int_equal(mf_checkpoint_save(s, NULL), MF_OK);
        any_eval(m, s, prompt + 10, 10, got);
    }
    assert_int_equal(mf_memory_seq_rm(s, 12, -1, &again, NULL), MF_OK);
    assert_int_equal(again, has_recurrent(m) ? 2 : 0);
    any_eval(m, s, prompt + 12 - again, (size_t)again, got);
    assert_int_equal(mf_memory_length(s), 12);
    any_eval(m, s, &(int32_t){7}, 1, got);
    fresh(m, 12, 7, want);
    any_same(m, want, got);
    assert_int_equal(mf_memory_seq_rm(s, 0, -1, &again, NULL), MF_OK);
    assert_int_equal(again, 0);
    assert_int_equal(mf_memory_length(s), 0);
    any_eval(m, s, prompt, 3, got);
    any_eval(m, s, &(int32_t){7}, 1, got);
    fresh(m, 3, 7, want);
    any_same(m, want, got);
    mf_session_free(s);
    free(want);
    free(got);
    mf_model_close(m);
}

/* A prompt that goes on from a restored state gives the bits of one evaluated from its beginning: chunks are cut at the
 * same positions. */
static void test_prefix_reuse_is_exact(void **state) {
    mf_model *m = any_open(*state);
    float *want = any_row(m, 1), *got = any_row(m, 1);
    mf_session *whole = tiny_session(m, 0, 16), *prefix = tiny_session(m, 0, 16), *other = tiny_session(m, 0, 16);
    size_t size;
    any_eval(m, whole, prompt, 75, want);
    any_eval(m, prefix, prompt, 48, got);
    uint8_t *bytes = save(prefix, &size);
    assert_int_equal(mf_state_load(other, bytes, size, NULL), MF_OK);
    any_eval(m, other, prompt + 48, 27, got);
    any_same(m, want, got);
    free(bytes);
    mf_session_free(whole);
    mf_session_free(prefix);
    mf_session_free(other);
    free(want);
    free(got);
    mf_model_close(m);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_load_save_is_identical),
        cmocka_unit_test(test_unwanted_rows_leave_the_same_state),
        cmocka_unit_test(test_damaged_snapshots_change_nothing),
        cmocka_unit_test(test_a_snapshot_must_fit_the_context),
        cmocka_unit_test(test_a_snapshot_of_another_kv_type_is_refused),
        cmocka_unit_test(test_a_snapshot_of_another_precision_is_refused),
        cmocka_unit_test(test_forks_go_their_own_ways),
        cmocka_unit_test(test_a_batch_equals_separate_runs),
        cmocka_unit_test(test_others_evaluate_while_a_state_is_written),
        cmocka_unit_test(test_checkpoints),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_prefix_reuse_is_exact),
    };
    const struct CMUnitTest old_format[] = {cmocka_unit_test(test_version_2_snapshots_are_read)};
    if (argc < 3 || !any_options(argc, argv, 3)) return 2;
    tiny_checkpoint = argv[1];
    any_chunk = atoi(argv[2]);
    for (int i = 0; i < MAX_PROMPT + 8; i++) prompt[i] = (i * 37 + 5 + i * i % 11) % 256;
    if (!strcmp(argv[2], "old-format")) return cmocka_run_group_tests(old_format, tiny_setup, tiny_teardown);
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
