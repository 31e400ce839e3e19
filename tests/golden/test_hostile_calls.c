/* Every public call with what no caller should pass: NULL, zero, negative numbers, SIZE_MAX. Each says MF_E_INVALID (or
 * what is listed), changes nothing, and reads nothing that is not there (seen by AddressSanitizer). hostile.sh checks
 * that no function of moeflux.h is missing here. */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "moeflux.h"
#include "tiny.h"

static mf_model *model;
static mf_session *session;
static const char *text_dir; /* has a tokenizer */
static float logits[TINY_VOCAB];
static int32_t tokens[4] = {1, 2, 3, 4};

/* A call that fails: the status, a sentence, and a session that has not moved. */
#define REFUSED(want, call)                                                                                            \
    do {                                                                                                               \
        mf_error err = {0};                                                                                            \
        assert_int_equal((call), want);                                                                                \
        assert_int_equal(err.status, want);                                                                            \
        assert_true(err.text[0] != '\0');                                                                              \
        assert_int_equal(mf_memory_length(session), 4);                                                                \
    } while (0)
#define INVALID(call) REFUSED(MF_E_INVALID, call)

static void test_status(void **state) {
    (void)state;
    for (int i = -100; i < 100; i++) {
        assert_non_null(mf_status_name((mf_status)i));
        assert_non_null(mf_status_text((mf_status)i));
    }
    assert_string_equal(mf_status_name((mf_status)INT_MIN), "E_UNKNOWN");
}

static mf_status begin_nothing(void *user, const mf_experts_request *request, bool *taken, mf_error *e) {
    (void)user, (void)request, (void)taken, (void)e;
    return MF_OK;
}

static bool wants_nothing(void *user) {
    (void)user;
    return false;
}

/* One option that is wrong, the others as they should be. */
#define BAD_MODEL_OPTION(assignment)                                                                                   \
    do {                                                                                                               \
        mf_model_options o;                                                                                            \
        mf_model *none = (mf_model *)1;                                                                                \
        mf_model_options_init(&o);                                                                                     \
        o.assignment;                                                                                                  \
        INVALID(mf_model_open(dir, &o, &none, &err));                                                                  \
        assert_null(none);                                                                                             \
    } while (0)

static void test_model(void **state) {
    const char *dir = *state;
    const char *const no_dirs[] = {NULL};
    mf_model *m = (mf_model *)1;
    mf_model_options_init(NULL);
    INVALID(mf_model_open(dir, NULL, NULL, &err));
    INVALID(mf_model_open(NULL, NULL, &m, &err));
    assert_null(m);
    REFUSED(MF_E_NOT_FOUND, mf_model_open("", NULL, &m, &err));
    BAD_MODEL_OPTION(backend = "");
    BAD_MODEL_OPTION(backend = "gpu%s%n");
    BAD_MODEL_OPTION(kv = (mf_kv)-1);
    BAD_MODEL_OPTION(kv = (mf_kv)99);
    BAD_MODEL_OPTION(n_threads = -1);
    BAD_MODEL_OPTION(n_threads = INT_MAX);
    BAD_MODEL_OPTION(ram_bytes = -1);
    BAD_MODEL_OPTION(ram_bytes = INT64_MIN);
    BAD_MODEL_OPTION(vram_bytes = -1);
    BAD_MODEL_OPTION(io = (mf_io)-1);
    BAD_MODEL_OPTION(io = (mf_io)99);
    BAD_MODEL_OPTION(direct = (mf_switch)-1);
    BAD_MODEL_OPTION(direct = (mf_switch)99);
    BAD_MODEL_OPTION(prefetch = (mf_switch)-1);
    BAD_MODEL_OPTION(prefetch = (mf_switch)99);
    BAD_MODEL_OPTION(n_io_threads = -1);
    BAD_MODEL_OPTION(n_io_threads = INT_MAX);
    BAD_MODEL_OPTION(policy = "");
    BAD_MODEL_OPTION(n_experts_dirs = -1);
    BAD_MODEL_OPTION(n_experts_dirs = INT_MAX);
    BAD_MODEL_OPTION(n_experts_dirs = 1);
    BAD_MODEL_OPTION(experts_per_token = -1);
    BAD_MODEL_OPTION(experts_per_token = INT_MAX);
    BAD_MODEL_OPTION(yarn = -1);
    BAD_MODEL_OPTION(yarn = 1);
    BAD_MODEL_OPTION(yarn = 1e300);
    BAD_MODEL_OPTION(yarn = (double)NAN);
    BAD_MODEL_OPTION(prompt_cache_ram = -1);
    BAD_MODEL_OPTION(prompt_cache_disk = -1);
    BAD_MODEL_OPTION(prompt_cache_dir = "");
    BAD_MODEL_OPTION(elsewhere.begin = begin_nothing);
    BAD_MODEL_OPTION(elsewhere.wants_hints = wants_nothing);
    mf_model_options opt;
    mf_model_options_init(&opt);
    opt.experts_dirs = no_dirs;
    opt.n_experts_dirs = 1;
    INVALID(mf_model_open(dir, &opt, &m, &err));
    opt = (mf_model_options){.ram_bytes = INT64_MAX, .backend = "ref"}; /* more than there is: what there is */
    assert_int_equal(mf_model_open(dir, &opt, &m, NULL), MF_OK);
    mf_model_close(m);
    mf_model_close(NULL);
    assert_null(mf_model_info_get(NULL));
    assert_int_equal(mf_guard_install(NULL), MF_OK);
}

static void test_experts(void **state) {
    uint64_t print = 0;
    const mf_experts_request nothing = {0};
    mf_model_options opt = {.experts_only = true, .prompt_cache_ram = 1};
    mf_model *m = NULL;
    INVALID(mf_model_open(*state, &opt, &m, &err));
    INVALID(mf_model_fingerprint(NULL, &print, &err));
    INVALID(mf_model_fingerprint(model, NULL, &err));
    INVALID(mf_experts_compute(model, NULL, NULL, 0, &err));
    INVALID(mf_experts_compute(NULL, &nothing, NULL, 0, &err));
    INVALID(mf_experts_compute(model, &nothing, NULL, 0, &err));
    INVALID(mf_experts_own(NULL, NULL, 0, &err));
    INVALID(mf_experts_own(model, &(bool){true}, 1, &err));
    mf_experts_hint(model, INT_MAX, NULL, INT_MAX);
    mf_experts_hint(NULL, 0, NULL, 0);
}

static void test_memory_needs(void **state) {
    mf_memory_needs needs = {.total = 7};
    INVALID(mf_model_memory(NULL, NULL, 0, 0, &needs, &err));
    assert_int_equal(needs.total, 0);
    INVALID(mf_model_memory(*state, NULL, 0, 0, NULL, &err));
    INVALID(mf_model_memory(*state, NULL, -1, 0, &needs, &err));
    INVALID(mf_model_memory(*state, NULL, 0, -1, &needs, &err));
    assert_int_equal(mf_model_memory(*state, NULL, INT64_MAX, INT32_MAX, &needs, NULL),
                     MF_OK); /* as much as it takes */
    assert_true(needs.total > needs.kv);
}

static void test_session(void **state) {
    mf_session *s = (mf_session *)1;
    static const int32_t wrong[] = {-1, INT32_MIN, INT32_MAX};
    (void)state;
    mf_session_options_init(NULL);
    INVALID(mf_session_create(model, NULL, NULL, &err));
    INVALID(mf_session_create(NULL, NULL, &s, &err));
    assert_null(s);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        mf_session_options opt = {.n_ctx = wrong[i]};
        INVALID(mf_session_create(model, &opt, &s, &err));
        opt = (mf_session_options){.n_chunk = wrong[i]};
        INVALID(mf_session_create(model, &opt, &s, &err));
        assert_null(s);
    }
    mf_session_free(NULL);
    s = (mf_session *)1;
    INVALID(mf_session_fork(NULL, &s, &err));
    assert_null(s);
    INVALID(mf_session_fork(session, NULL, &err));
}

static void test_eval(void **state) {
    int32_t bad[] = {-1, TINY_VOCAB, INT32_MIN, INT32_MAX};
    (void)state;
    INVALID(mf_eval_prompt(NULL, tokens, 1, 4, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_prompt(session, NULL, 1, 4, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_prompt(session, tokens, 1, 4, NULL, TINY_VOCAB, &err));
    INVALID(mf_eval_prompt(session, tokens, 1, 4, logits, 1, &err));
    INVALID(mf_eval_prompt(session, tokens, 1, 4, logits, SIZE_MAX, &err));
    INVALID(mf_eval_prompt(session, tokens, 1, 4, logits, 2 * TINY_VOCAB, &err));
    INVALID(mf_eval_prompt(session, tokens, 1, 4, logits, SIZE_MAX / TINY_VOCAB * TINY_VOCAB, &err));
    REFUSED(MF_E_CONTEXT_FULL, mf_eval_prompt(session, tokens, SIZE_MAX, 4, NULL, 0, &err));
    REFUSED(MF_E_CONTEXT_FULL, mf_eval_prompt(session, tokens, SIZE_MAX, 4, logits, TINY_VOCAB, &err));
    REFUSED(MF_E_POSITION, mf_eval_prompt(session, tokens, 1, -1, logits, TINY_VOCAB, &err));
    REFUSED(MF_E_POSITION, mf_eval_prompt(session, tokens, 1, INT64_MIN, logits, TINY_VOCAB, &err));
    REFUSED(MF_E_POSITION, mf_eval_prompt(session, tokens, 1, INT64_MAX, logits, TINY_VOCAB, &err));
    assert_int_equal(mf_eval_prompt(session, NULL, 0, 4, NULL, 0, NULL), MF_OK);
    INVALID(mf_eval_token(NULL, 1, 4, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_token(session, 1, 4, NULL, TINY_VOCAB, &err));
    INVALID(mf_eval_token(session, 1, 4, logits, 0, &err));
    INVALID(mf_eval_token(session, 1, 4, logits, SIZE_MAX, &err));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        REFUSED(MF_E_TOKEN, mf_eval_token(session, bad[i], 4, logits, TINY_VOCAB, &err));
        REFUSED(MF_E_TOKEN, mf_eval_prompt(session, bad + i, 1, 4, logits, TINY_VOCAB, &err));
        REFUSED(MF_E_TOKEN, mf_eval_batch(&session, bad + i, 1, logits, TINY_VOCAB, &err));
        REFUSED(MF_E_TOKEN, mf_prompt(session, bad + i, 1, NULL, 0, logits, TINY_VOCAB, NULL, &err));
    }
}

static void test_batch_and_layer(void **state) {
    float hidden[TINY_HIDDEN] = {0}, out[TINY_HIDDEN];
    mf_session *twice[] = {session, session}, *none[] = {NULL}, *half[] = {session, NULL};
    (void)state;
    INVALID(mf_eval_batch(NULL, tokens, 1, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(&session, NULL, 1, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(&session, tokens, 1, NULL, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(&session, tokens, -1, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(&session, tokens, INT_MAX, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(&session, tokens, INT_MIN, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(none, tokens, 1, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(half, tokens, 2, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(twice, tokens, 2, logits, TINY_VOCAB, &err));
    INVALID(mf_eval_batch(&session, tokens, 1, logits, SIZE_MAX, &err));
    assert_int_equal(mf_eval_batch(NULL, NULL, 0, NULL, 0, NULL), MF_OK);
    INVALID(mf_layer_forward(NULL, 0, hidden, 1, out, &err));
    INVALID(mf_layer_forward(session, 0, NULL, 1, out, &err));
    INVALID(mf_layer_forward(session, 0, hidden, 1, NULL, &err));
    INVALID(mf_layer_forward(session, -1, hidden, 1, out, &err));
    INVALID(mf_layer_forward(session, INT_MAX, hidden, 1, out, &err));
    INVALID(mf_layer_forward(session, 0, hidden, 0, out, &err));
    INVALID(mf_layer_forward(session, 0, hidden, -1, out, &err));
    INVALID(mf_layer_forward(session, 0, hidden, INT_MAX, out, &err));
}

/* Every part is judged by itself: the one that is in order is evaluated. */
static void test_parts(void **state) {
    mf_part many[MF_MAX_PARTS + 1] = {{0}};
    mf_error why = {0};
    mf_session *other = tiny_session(model, 16, 0);
    int64_t length = mf_memory_length(session);
    (void)state;
    INVALID(mf_eval(NULL, many, 1, &err));
    INVALID(mf_eval(model, NULL, 1, &err));
    INVALID(mf_eval(model, many, MF_MAX_PARTS + 1, &err));
    INVALID(mf_eval(model, many, SIZE_MAX, &err));
    INVALID(mf_eval(model, many, 1, &err)); /* no session */
    assert_int_equal(mf_eval(model, NULL, 0, NULL), MF_OK);
    const mf_part wrong[] = {
        {.session = session, .n_tokens = 1},
        {.session = session, .tokens = tokens, .n_tokens = 1, .n_logits = 1},
        {.session = session, .tokens = tokens, .n_tokens = 1, .n_logits = SIZE_MAX, .logits = logits},
        {.session = session, .tokens = tokens, .n_tokens = SIZE_MAX}};
    const mf_status expected[] = {MF_E_INVALID, MF_E_INVALID, MF_E_INVALID, MF_E_CONTEXT_FULL};
    for (size_t i = 0; i < 4; i++) {
        mf_part parts[] = {wrong[i], {.session = other, .tokens = tokens, .n_tokens = 1}};
        parts[0].error = &why;
        REFUSED(expected[i], mf_eval(model, parts, 2, &err));
        assert_int_equal(parts[0].status, expected[i]);
        assert_int_equal(parts[1].status, MF_OK);
        assert_int_equal(why.status, expected[i]);
        assert_int_equal(mf_memory_length(other), (int64_t)i + 1);
    }
    mf_part twice[] = {{.session = other, .tokens = tokens, .n_tokens = 1},
                       {.session = other, .tokens = tokens, .n_tokens = 1}};
    INVALID(mf_eval(model, twice, 2, &err));
    assert_int_equal(mf_memory_length(other), 5);
    assert_int_equal(mf_memory_length(session), length);
    mf_session_free(other);
}

static void test_prompt_in_steps(void **state) {
    int64_t reused = 7;
    (void)state;
    INVALID(mf_prompt_begin(NULL, tokens, 4, &reused, &err));
    assert_int_equal(reused, 0);
    INVALID(mf_prompt_begin(session, NULL, 4, &reused, &err));
    INVALID(mf_prompt_begin(session, tokens, 0, NULL, &err));
    REFUSED(MF_E_CONTEXT_FULL, mf_prompt_begin(session, tokens, SIZE_MAX, NULL, &err));
    INVALID(mf_prompt_begin_memory(NULL, tokens, 4, &reused, &err));
    INVALID(mf_prompt_begin_memory(session, NULL, 4, &reused, &err));
    INVALID(mf_prompt_begin_memory(session, tokens, 0, NULL, &err));
    REFUSED(MF_E_CONTEXT_FULL, mf_prompt_begin_memory(session, tokens, SIZE_MAX, NULL, &err));
    INVALID(mf_prompt_keep_memory(NULL, &err));
    assert_int_equal(mf_prompt_keep_memory(session, NULL), MF_OK);
    INVALID(mf_prompt_keep(NULL, &err));
    assert_int_equal(mf_prompt_keep(session, NULL), MF_OK);
}

static void test_prompt(void **state) {
    static const int64_t wrong[][2] = {{0, 2}, {-1, 2}, {2, 1}, {1, 1}, {1, 5}, {INT64_MIN, INT64_MAX}};
    int64_t marks[] = {1, 2}, reused = 7;
    (void)state;
    INVALID(mf_prompt(NULL, tokens, 4, NULL, 0, logits, TINY_VOCAB, &reused, &err));
    assert_int_equal(reused, 0);
    INVALID(mf_prompt(session, NULL, 4, NULL, 0, logits, TINY_VOCAB, NULL, &err));
    INVALID(mf_prompt(session, tokens, 0, NULL, 0, logits, TINY_VOCAB, NULL, &err));
    INVALID(mf_prompt(session, tokens, 4, NULL, 1, logits, TINY_VOCAB, NULL, &err));
    INVALID(mf_prompt(session, tokens, 4, marks, SIZE_MAX, logits, TINY_VOCAB, NULL, &err));
    INVALID(mf_prompt(session, tokens, 4, NULL, 0, NULL, TINY_VOCAB, NULL, &err));
    INVALID(mf_prompt(session, tokens, 4, NULL, 0, logits, 0, NULL, &err));
    INVALID(mf_prompt(session, tokens, 4, NULL, 0, logits, SIZE_MAX, NULL, &err));
    REFUSED(MF_E_CONTEXT_FULL, mf_prompt(session, tokens, SIZE_MAX, NULL, 0, logits, TINY_VOCAB, NULL, &err));
    REFUSED(MF_E_CONTEXT_FULL, mf_prompt(session, tokens, SIZE_MAX, marks, 2, logits, TINY_VOCAB, NULL, &err));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        INVALID(mf_prompt(session, tokens, 4, wrong[i], 2, logits, TINY_VOCAB, NULL, &err));
}

static void test_memory_and_checkpoints(void **state) {
    int64_t again = 7;
    (void)state;
    mf_memory_clear(NULL);
    assert_null(mf_session_model(NULL));
    assert_ptr_equal(mf_session_model(session), model);
    assert_int_equal(mf_memory_length(NULL), 0);
    assert_null(mf_memory_tokens(NULL));
    INVALID(mf_memory_seq_rm(NULL, 0, -1, &again, &err));
    INVALID(mf_memory_seq_rm(session, 0, -1, NULL, &err));
    INVALID(mf_memory_seq_rm(session, INT64_MIN, 2, &again, &err));
    assert_int_equal(mf_memory_seq_rm(session, INT64_MAX, INT64_MAX, &again, NULL), MF_OK); /* nothing there */
    assert_int_equal(mf_memory_seq_rm(session, INT64_MAX, INT64_MIN, &again, NULL), MF_OK);
    INVALID(mf_checkpoint_save(NULL, &err));
    INVALID(mf_checkpoint_restore(NULL, 0, &err));
    REFUSED(MF_E_NOT_FOUND, mf_checkpoint_restore(session, -1, &err));
    REFUSED(MF_E_NOT_FOUND, mf_checkpoint_restore(session, INT64_MAX, &err));
    mf_checkpoint_forget(NULL, 0);
    mf_checkpoint_forget(session, INT64_MIN);
    mf_checkpoint_set_max(NULL, 4);
    mf_checkpoint_set_max(session, INT_MIN);
    mf_checkpoint_set_max(session, INT_MAX);
    assert_int_equal(mf_checkpoint_save(session, NULL), MF_OK);
    mf_checkpoint_set_max(session, 4);
    assert_int_equal(mf_checkpoint_count(NULL), 0);
    assert_int_equal(mf_checkpoint_count(session), 1);
}

static void test_state(void **state) {
    size_t size = 7, written = 7;
    (void)state;
    INVALID(mf_state_size(NULL, &size, &err));
    INVALID(mf_state_size(session, NULL, &err));
    assert_int_equal(mf_state_size(session, &size, NULL), MF_OK);
    uint8_t *buf = malloc(size);
    assert_non_null(buf);
    INVALID(mf_state_save(NULL, buf, size, &written, &err));
    assert_int_equal(written, 0);
    INVALID(mf_state_save(session, NULL, size, NULL, &err));
    INVALID(mf_state_save(session, buf, 0, NULL, &err));
    INVALID(mf_state_save(session, buf, size - 1, NULL, &err));
    assert_int_equal(mf_state_save(session, buf, size, NULL, NULL), MF_OK);
    INVALID(mf_state_save_file(NULL, "x", &err));
    INVALID(mf_state_save_file(session, NULL, &err));
    REFUSED(MF_E_NOT_FOUND, mf_state_save_file(session, "/nowhere/at/all", &err));
    INVALID(mf_state_load_file(NULL, "x", &err));
    INVALID(mf_state_load_file(session, NULL, &err));
    REFUSED(MF_E_NOT_FOUND, mf_state_load_file(session, "/nowhere/at/all", &err));
    INVALID(mf_state_load(NULL, buf, size, &err));
    INVALID(mf_state_load(session, NULL, size, &err));
    INVALID(mf_state_load(session, buf, SIZE_MAX, &err));
    REFUSED(MF_E_FORMAT, mf_state_load(session, buf, 0, &err));
    REFUSED(MF_E_FORMAT, mf_state_load(session, buf, 1, &err));
    REFUSED(MF_E_FORMAT, mf_state_load(session, buf, size - 1, &err));
    assert_int_equal(mf_state_load(session, buf, size, NULL), MF_OK);
    free(buf);
}

static void test_text(void **state) {
    mf_text *t = (mf_text *)1;
    mf_text_stream wild = {.n_held = 99}, negative = {.n_held = INT_MIN};
    static const char request[] = "{\"messages\": []}";
    int32_t ids[8];
    char out[64];
    size_t n = 7;
    (void)state;
    INVALID(mf_text_open(NULL, &t, &err));
    assert_null(t);
    INVALID(mf_text_open(text_dir, NULL, &err));
    assert_int_equal(mf_text_open(text_dir, &t, NULL), MF_OK);
    INVALID(mf_text_encode(NULL, "a", 1, false, ids, 8, &n, &err));
    INVALID(mf_text_encode(t, NULL, 1, false, ids, 8, &n, &err));
    INVALID(mf_text_encode(t, "a", 1, false, NULL, 8, &n, &err));
    INVALID(mf_text_encode(t, "a", 1, false, ids, 8, NULL, &err));
    INVALID(mf_text_encode(t, "a", SIZE_MAX, false, ids, 8, &n, &err));
    assert_int_equal(mf_text_encode(t, NULL, 0, true, NULL, 0, &n, NULL), MF_OK);
    assert_int_equal(mf_text_encode(t, "a", 1, true, ids, SIZE_MAX, &n, NULL), MF_OK);
    INVALID(mf_text_decode(NULL, NULL, ids, 1, out, sizeof out, &n, &err));
    INVALID(mf_text_decode(t, NULL, NULL, 1, out, sizeof out, &n, &err));
    INVALID(mf_text_decode(t, NULL, ids, 1, NULL, sizeof out, &n, &err));
    INVALID(mf_text_decode(t, NULL, ids, 1, out, sizeof out, NULL, &err));
    INVALID(mf_text_decode(t, NULL, ids, SIZE_MAX, out, sizeof out, &n, &err));
    INVALID(mf_text_decode(t, &wild, ids, 1, out, sizeof out, &n, &err));
    INVALID(mf_text_decode(t, &negative, ids, 1, out, sizeof out, &n, &err));
    assert_int_equal(mf_text_decode(t, NULL, &(int32_t){-1}, 1, out, sizeof out, &n, NULL), MF_OK);
    assert_int_equal(mf_text_decode(t, NULL, &(int32_t){INT32_MAX}, 1, out, SIZE_MAX, &n, NULL), MF_OK);
    INVALID(mf_text_chat(NULL, request, sizeof request - 1, ids, 8, &n, &err));
    INVALID(mf_text_chat(t, NULL, 1, ids, 8, &n, &err));
    INVALID(mf_text_chat(t, request, sizeof request - 1, NULL, 8, &n, &err));
    INVALID(mf_text_chat(t, request, sizeof request - 1, ids, 8, NULL, &err));
    INVALID(mf_text_chat(t, request, SIZE_MAX, ids, 8, &n, &err));
    mf_text_info info = {.has_chat = true};
    mf_text_info_get(NULL, &info);
    assert_false(info.has_chat);
    mf_text_info_get(t, NULL);
    assert_int_equal((mf_text_token(NULL, 1, &n), n), 0);
    assert_int_equal((mf_text_token(t, -1, &n), n), 0);
    assert_int_equal((mf_text_token(t, INT32_MAX, &n), n), 0);
    mf_text_token(t, 1, NULL);
    mf_text_close(t);
    mf_text_close(NULL);
}

#define BAD_SAMPLER_OPTION(status, assignment)                                                                         \
    do {                                                                                                               \
        mf_sampler_options o;                                                                                          \
        mf_sampler *none = (mf_sampler *)1;                                                                            \
        mf_sampler_options_init(&o);                                                                                   \
        o.assignment;                                                                                                  \
        REFUSED(status, mf_sampler_create(&o, TINY_VOCAB, &none, &err));                                               \
        assert_null(none);                                                                                             \
    } while (0)

static void test_sampler(void **state) {
    mf_sampler_options good, bias;
    mf_sampler *s = (mf_sampler *)1;
    (void)state;
    mf_sampler_options_init(NULL);
    mf_sampler_options_init(&good);
    INVALID(mf_sampler_create(NULL, TINY_VOCAB, &s, &err));
    assert_null(s);
    INVALID(mf_sampler_create(&good, TINY_VOCAB, NULL, &err));
    INVALID(mf_sampler_create(&good, 0, &s, &err));
    INVALID(mf_sampler_create(&good, INT32_MIN, &s, &err));
    BAD_SAMPLER_OPTION(MF_E_INVALID, temperature = NAN);
    BAD_SAMPLER_OPTION(MF_E_INVALID, temperature = -1);
    BAD_SAMPLER_OPTION(MF_E_INVALID, temperature = INFINITY);
    BAD_SAMPLER_OPTION(MF_E_INVALID, top_k = -1);
    BAD_SAMPLER_OPTION(MF_E_INVALID, top_p = 2);
    BAD_SAMPLER_OPTION(MF_E_INVALID, min_p = -1);
    BAD_SAMPLER_OPTION(MF_E_INVALID, typical_p = NAN);
    BAD_SAMPLER_OPTION(MF_E_INVALID, repetition_penalty = 0);
    BAD_SAMPLER_OPTION(MF_E_INVALID, frequency_penalty = INFINITY);
    BAD_SAMPLER_OPTION(MF_E_INVALID, presence_penalty = -INFINITY);
    BAD_SAMPLER_OPTION(MF_E_INVALID, penalty_window = -1);
    BAD_SAMPLER_OPTION(MF_E_INVALID, penalty_window = INT_MAX);
    BAD_SAMPLER_OPTION(MF_E_INVALID, n_bias = 1); /* and bias is NULL */
    BAD_SAMPLER_OPTION(MF_E_INVALID, n_bias = -1);
    BAD_SAMPLER_OPTION(MF_E_INVALID, n_bias = INT_MIN);
    bias = good;
    bias.bias = &(mf_logit_bias){.id = TINY_VOCAB};
    bias.n_bias = 1;
    REFUSED(MF_E_TOKEN, mf_sampler_create(&bias, TINY_VOCAB, &s, &err));
    good.top_k = INT_MAX;
    good.repetition_penalty = 2;
    assert_int_equal(mf_sampler_create(&good, TINY_VOCAB, &s, NULL), MF_OK);
    assert_int_equal(mf_sampler_next(NULL, logits), -1);
    assert_int_equal(mf_sampler_next(s, NULL), -1);
    assert_int_equal(mf_sampler_next_masked(NULL, logits, NULL), -1);
    assert_int_equal(mf_sampler_next_masked(s, NULL, NULL), -1);
    INVALID(mf_sampler_options_load(NULL, text_dir, &err));
    INVALID(mf_sampler_options_load(&good, NULL, &err));
    int none = 3;
    assert_true(mf_logprobs(NULL, TINY_VOCAB, 0, NULL, NULL) == -INFINITY);
    assert_true(mf_logprobs(logits, 0, 0, NULL, NULL) == -INFINITY);
    assert_true(mf_logprobs(logits, TINY_VOCAB, -1, NULL, &none) == -INFINITY); /* no room for them: none */
    assert_int_equal(none, 0);
    mf_logprob top[2] = {{.id = 7}, {.id = 7}};
    none = -5;
    mf_logprobs(logits, TINY_VOCAB, INT32_MAX, top + 1, &none);
    assert_int_equal(none, 0);
    assert_true(top[0].id == 7 && top[1].id == 7);
    mf_sampler_accept(NULL, 1);
    mf_sampler_accept(s, -1);
    mf_sampler_accept(s, INT32_MAX);
    mf_sampler_reset(NULL);
    mf_sampler_free(s);
    mf_sampler_free(NULL);
}

static void test_forms(void **state) {
    mf_form *f = (mf_form *)1;
    mf_constraint *k = (mf_constraint *)1;
    mf_text *t;
    const uint32_t *mask;
    const int32_t eos = 1;
    size_t n;
    (void)state;
    assert_int_equal(mf_text_open(text_dir, &t, NULL), MF_OK);
    INVALID(mf_form_create((mf_form_kind)99, "", 0, &f, &err));
    assert_null(f);
    INVALID(mf_form_create(MF_FORM_SCHEMA, NULL, 1, &f, &err));
    INVALID(mf_form_create(MF_FORM_SCHEMA, "{}", SIZE_MAX, &f, &err));
    INVALID(mf_form_create(MF_FORM_JSON, NULL, 0, NULL, &err));
    REFUSED(MF_E_FORMAT, mf_form_create(MF_FORM_SCHEMA, "{", 1, &f, &err));
    REFUSED(MF_E_FORMAT, mf_form_create(MF_FORM_SCHEMA, NULL, 0, &f, &err));
    assert_int_equal(mf_form_create(MF_FORM_REGEX, "ab", 2, &f, NULL), MF_OK);
    INVALID(mf_constraint_create(NULL, t, TINY_VOCAB, &eos, 1, &k, &err));
    assert_null(k);
    INVALID(mf_constraint_create(f, NULL, TINY_VOCAB, &eos, 1, &k, &err));
    INVALID(mf_constraint_create(f, t, 0, &eos, 1, &k, &err));
    INVALID(mf_constraint_create(f, t, TINY_VOCAB, NULL, 1, &k, &err));
    INVALID(mf_constraint_create(f, t, TINY_VOCAB, &eos, -1, &k, &err));
    INVALID(mf_constraint_create(f, t, TINY_VOCAB, &eos, 1, NULL, &err));
    assert_int_equal(mf_constraint_create(f, t, TINY_VOCAB, &eos, 1, &k, NULL), MF_OK);
    mf_form_free(f); /* the constraint has its own */
    mf_form_free(NULL);
    INVALID(mf_constraint_mask(NULL, &mask, &err));
    INVALID(mf_constraint_mask(k, NULL, &err));
    assert_int_equal(mf_constraint_mask(k, &mask, NULL), MF_OK);
    INVALID(mf_constraint_accept(NULL, 1, &err));
    INVALID(mf_constraint_accept(k, -1, &err));
    INVALID(mf_constraint_accept(k, INT32_MAX, &err));
    assert_false(mf_constraint_complete(NULL) || mf_constraint_ended(NULL));
    INVALID(mf_constraint_shortest(NULL, NULL, 0, &n, &err));
    INVALID(mf_constraint_shortest(k, NULL, 1, &n, &err));
    INVALID(mf_constraint_shortest(k, NULL, 0, NULL, &err));
    mf_constraint_reset(NULL);
    mf_constraint_reset(k);
    mf_constraint_free(k);
    mf_constraint_free(NULL);
    mf_text_close(t);
}

static mf_status ignore(void *user, const mf_event *event) {
    (void)user;
    (void)event;
    return MF_OK;
}

static void test_answers(void **state) {
    mf_answer *a = (mf_answer *)1;
    mf_answer_options good = {.fn = ignore}, bad = good;
    mf_text *t;
    (void)state;
    assert_int_equal(mf_text_open(text_dir, &t, NULL), MF_OK);
    INVALID(mf_answer_create(NULL, &good, &a, &err));
    assert_null(a);
    INVALID(mf_answer_create(t, NULL, &a, &err));
    INVALID(mf_answer_create(t, &good, NULL, &err));
    bad.fn = NULL;
    INVALID(mf_answer_create(t, &bad, &a, &err));
    bad = good;
    bad.n_tools = 1;
    INVALID(mf_answer_create(t, &bad, &a, &err));
    bad.tools = "[";
    REFUSED(MF_E_FORMAT, mf_answer_create(t, &bad, &a, &err));
    assert_int_equal(mf_answer_create(t, &good, &a, NULL), MF_OK);
    INVALID(mf_answer_push(NULL, "a", 1, &err));
    INVALID(mf_answer_push(a, NULL, 1, &err));
    INVALID(mf_answer_push(a, "a", SIZE_MAX, &err));
    assert_int_equal(mf_answer_push(a, NULL, 0, NULL), MF_OK);
    INVALID(mf_answer_finish(NULL, &err));
    assert_int_equal(mf_answer_finish(a, NULL), MF_OK);
    mf_answer_free(a);
    mf_answer_free(NULL);
    mf_text_close(t);
}

#define BAD_REPLY_OPTION(...)                                                                                          \
    do {                                                                                                               \
        mf_reply_options o;                                                                                            \
        mf_reply *none = (mf_reply *)1;                                                                                \
        mf_reply_options_init(&o);                                                                                     \
        o.text = "a";                                                                                                  \
        o.text_size = 1;                                                                                               \
        __VA_ARGS__;                                                                                                   \
        INVALID(mf_reply_create(t, &info, &o, &none, &err));                                                           \
        assert_null(none);                                                                                             \
    } while (0)

static void test_replies(void **state) {
    mf_model_info info = *mf_model_info_get(model);
    mf_reply_options good;
    mf_reply *r = (mf_reply *)1;
    mf_reply_prompt prompt = {0};
    mf_reply_result result = {0};
    mf_text *t;
    const int32_t *ids;
    const char *empty = "";
    size_t n;
    (void)state;
    info.n_vocab = 1 << 16; /* of the text's tokenizer */
    assert_int_equal(mf_text_open(text_dir, &t, NULL), MF_OK);
    mf_reply_options_init(NULL);
    mf_reply_options_init(&good);
    INVALID(mf_reply_create(t, &info, &good, &r, &err)); /* nothing is asked */
    assert_null(r);
    good.text = "a";
    good.text_size = 1;
    INVALID(mf_reply_create(NULL, &info, &good, &r, &err));
    INVALID(mf_reply_create(t, NULL, &good, &r, &err));
    INVALID(mf_reply_create(t, &info, NULL, &r, &err));
    INVALID(mf_reply_create(t, &info, &good, NULL, &err));
    BAD_REPLY_OPTION(o.request = "{}", o.request_size = 2); /* two questions */
    BAD_REPLY_OPTION(o.text = NULL, o.request = "{}", o.request_size = SIZE_MAX);
    BAD_REPLY_OPTION(o.text_size = SIZE_MAX);
    BAD_REPLY_OPTION(o.text = NULL, o.ids = &(int32_t){1}, o.n_ids = SIZE_MAX);
    BAD_REPLY_OPTION(o.text = NULL, o.ids = &(int32_t){1}, o.n_ids = 0);
    BAD_REPLY_OPTION(o.max_tokens = -2);
    BAD_REPLY_OPTION(o.max_reasoning = -1);
    BAD_REPLY_OPTION(o.n_ctx = -1);
    BAD_REPLY_OPTION(o.n_logprobs = INT_MAX);
    BAD_REPLY_OPTION(o.n_logprobs = INT_MIN);
    BAD_REPLY_OPTION(o.n_stops = 1);
    BAD_REPLY_OPTION(o.n_stops = -1);
    BAD_REPLY_OPTION(o.n_stops = 1, o.stops = &empty);
    BAD_REPLY_OPTION(o.n_marks = INT_MAX);
    BAD_REPLY_OPTION(o.n_marks = 1);
    BAD_REPLY_OPTION(o.n_known = 1);
    BAD_REPLY_OPTION(o.n_known = SIZE_MAX, o.known = &(int32_t){1});
    BAD_REPLY_OPTION(o.sampling.temperature = NAN);
    BAD_REPLY_OPTION(o.tool_choice = (mf_tool_choice)99);
    BAD_REPLY_OPTION(o.tool_choice = MF_TOOLS_NAMED);
    BAD_REPLY_OPTION(o.reasoning = (mf_switch)99);
    good.text = NULL;
    good.ids = &(int32_t){-1};
    good.n_ids = 1;
    REFUSED(MF_E_TOKEN, mf_reply_create(t, &info, &good, &r, &err));
    good.ids = &(int32_t){1};
    good.n_ctx = 1;
    assert_int_equal(mf_reply_create(t, &info, &good, &r, NULL), MF_OK);
    mf_reply_prompt_get(NULL, &prompt);
    mf_reply_prompt_get(r, NULL);
    mf_reply_prompt_get(r, &prompt);
    assert_int_equal(prompt.n_ids, 1);
    INVALID(mf_reply_step(NULL, logits, &ids, &n, &err));
    INVALID(mf_reply_step(r, NULL, &ids, &n, &err));
    INVALID(mf_reply_step(r, logits, NULL, &n, &err));
    INVALID(mf_reply_step(r, logits, &ids, NULL, &err));
    INVALID(mf_reply_finish(NULL, &err));
    assert_int_equal(mf_reply_finish(r, NULL), MF_OK);
    assert_int_equal(mf_reply_finish(r, NULL), MF_OK);
    mf_reply_result_get(NULL, &result);
    mf_reply_result_get(r, NULL);
    mf_reply_result_get(r, &result);
    assert_int_equal(result.end, MF_END_CANCELLED);
    assert_int_equal(mf_reply_step(r, logits, &ids, &n, NULL), MF_OK);
    assert_int_equal(n, 0);
    mf_reply_free(r);
    mf_reply_free(NULL);
    mf_text_close(t);
}

static void test_looking_inside(void **state) {
    static const char weight[] = "model.embed_tokens.weight";
    mf_tensor_info info;
    mf_profile_row rows[2];
    float row[TINY_HIDDEN];
    size_t n = 7;
    int64_t expert = mf_expert_bytes(model);
    uint8_t *bytes = malloc((size_t)expert);
    (void)state;
    INVALID(mf_profile_start(NULL, &err));
    mf_profile_stop(NULL);
    mf_profile_stop(model);
    INVALID(mf_profile_get(NULL, rows, 2, &n, &err));
    INVALID(mf_profile_get(model, NULL, 2, &n, &err));
    INVALID(mf_profile_get(model, rows, 2, NULL, &err));
    assert_int_equal(mf_profile_get(model, NULL, 0, &n, NULL), MF_OK);
    assert_null(mf_tensor_name(NULL, 0));
    assert_null(mf_tensor_name(model, -1));
    assert_null(mf_tensor_name(model, INT64_MAX));
    INVALID(mf_tensor_describe(NULL, weight, &info, &err));
    INVALID(mf_tensor_describe(model, NULL, &info, &err));
    INVALID(mf_tensor_describe(model, weight, NULL, &err));
    REFUSED(MF_E_NOT_FOUND, mf_tensor_describe(model, "", &info, &err));
    INVALID(mf_tensor_rows(NULL, weight, 0, 1, row, TINY_HIDDEN, &err));
    INVALID(mf_tensor_rows(model, NULL, 0, 1, row, TINY_HIDDEN, &err));
    INVALID(mf_tensor_rows(model, weight, 0, 1, NULL, TINY_HIDDEN, &err));
    INVALID(mf_tensor_rows(model, weight, -1, 1, row, TINY_HIDDEN, &err));
    INVALID(mf_tensor_rows(model, weight, 0, -1, row, TINY_HIDDEN, &err));
    INVALID(mf_tensor_rows(model, weight, INT64_MAX, INT64_MAX, row, TINY_HIDDEN, &err));
    INVALID(mf_tensor_rows(model, weight, TINY_VOCAB, 1, row, TINY_HIDDEN, &err));
    INVALID(mf_tensor_rows(model, weight, 0, 1, row, 0, &err));
    INVALID(mf_tensor_rows(model, weight, 0, 1, row, SIZE_MAX, &err));
    assert_int_equal(mf_tensor_rows(model, weight, TINY_VOCAB, 0, NULL, 0, NULL), MF_OK);
    INVALID(mf_embedding(NULL, 0, row, TINY_HIDDEN, &err));
    INVALID(mf_embedding(model, 0, NULL, TINY_HIDDEN, &err));
    INVALID(mf_embedding(model, 0, row, SIZE_MAX, &err));
    REFUSED(MF_E_TOKEN, mf_embedding(model, -1, row, TINY_HIDDEN, &err));
    REFUSED(MF_E_TOKEN, mf_embedding(model, INT32_MAX, row, TINY_HIDDEN, &err));
    assert_int_equal(mf_expert_bytes(NULL), 0);
    INVALID(mf_expert_read(NULL, 0, 0, bytes, (size_t)expert, &err));
    INVALID(mf_expert_read(model, 0, 0, NULL, (size_t)expert, &err));
    INVALID(mf_expert_read(model, -1, 0, bytes, (size_t)expert, &err));
    INVALID(mf_expert_read(model, INT_MAX, 0, bytes, (size_t)expert, &err));
    INVALID(mf_expert_read(model, 0, INT_MIN, bytes, (size_t)expert, &err));
    INVALID(mf_expert_read(model, 0, INT_MAX, bytes, (size_t)expert, &err));
    INVALID(mf_expert_read(model, 0, 0, bytes, 0, &err));
    INVALID(mf_expert_read(model, 0, 0, bytes, SIZE_MAX, &err));
    free(bytes);
}

static void test_counters(void **state) {
    mf_stats stats;
    (void)state;
    memset(&stats, 0xff, sizeof stats);
    mf_model_stats_get(NULL, &stats);
    assert_int_equal(stats.wanted, 0);
    mf_model_stats_get(model, NULL);
    mf_model_stats_reset(NULL);
    memset(&stats, 0xff, sizeof stats);
    mf_session_stats_get(NULL, &stats);
    assert_int_equal(stats.wanted, 0);
    mf_session_stats_get(session, NULL);
    mf_session_stats_reset(NULL);
    mf_prefetch_forget(NULL);
}

static int setup(void **state) {
    if (tiny_setup(state)) return -1;
    model = tiny_open(*state, 1);
    session = tiny_session(model, 16, 0);
    tiny_eval(session, 4, logits);
    return 0;
}

static int teardown(void **state) {
    mf_session_free(session);
    mf_model_close(model);
    return tiny_teardown(state);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_model),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_memory_needs),
        cmocka_unit_test(test_session),
        cmocka_unit_test(test_eval),
        cmocka_unit_test(test_batch_and_layer),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_prompt_in_steps),
        cmocka_unit_test(test_prompt),
        cmocka_unit_test(test_state),
        cmocka_unit_test(test_memory_and_checkpoints),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_sampler),
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_looking_inside),
        cmocka_unit_test(test_counters),
    };
    if (argc < 3) return 2;
    tiny_checkpoint = argv[1];
    text_dir = argv[2];
    return cmocka_run_group_tests(tests, setup, teardown);
}
