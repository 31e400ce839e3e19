/* Decoding, fused: a model whose experts come in strips (models of other tests are too small for them). Each token has
 * the same bits alone and in company, where experts are chosen in one place and read in others, and nearly ref's
 * values.
 *
 *   test_fused BACKEND */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "convert/synth.h"
#include "engine/internal.h"
#include "store/internal.h"
#include "tiny.h"
#ifdef COUNT_CUDA
#include <cuda_runtime_api.h>
#endif

#define SESSIONS 4
#define STEPS 3
#define CTX 16

static const char *backend;

static mf_model *open_with(const char *dir, const char *name) {
    mf_model_options opt;
    mf_error err = {0};
    mf_model *m = NULL;
    mf_model_options_init(&opt);
    opt.backend = name;
    opt.n_threads = 1;
    if (mf_model_open(dir, &opt, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

/* Until all experts are on the device: only then one launch follows another without the host. */
static void wait_whole(mf_model *m) {
    for (int i = 0; i < 2000; i++, usleep(5000)) {
        uint64_t version;
        if (!mf__store_whole(m->store, &version)) continue;
        mf__store_whole_release(m->store);
        return;
    }
    fail_msg("not all experts came into memory");
}

static void eval(mf_model *m, mf_session **s, int n, int32_t *tokens, float *logits) {
    mf_part parts[SESSIONS];
    mf_error err = {0};
    for (int i = 0; i < n; i++)
        parts[i] = (mf_part){.session = s[i],
                             .tokens = &tokens[i],
                             .n_tokens = 1,
                             .logits = logits + (size_t)i * TINY_VOCAB,
                             .n_logits = 1};
    if (mf_eval(m, parts, (size_t)n, &err) != MF_OK) fail_msg("%s", err.text);
}

/* How far apart two rows are, in parts of the largest value. */
static double distance(const float *a, const float *b) {
    double most = 0, apart = 0;
    for (int i = 0; i < TINY_VOCAB; i++) {
        if (!isfinite(a[i])) return INFINITY;
        most = fmax(most, fabs((double)b[i]));
        apart = fmax(apart, fabs((double)a[i] - (double)b[i]));
    }
    return apart / most;
}

static void compare(const char *dir) {
    static float together[SESSIONS * TINY_VOCAB], alone[TINY_VOCAB], want[TINY_VOCAB];
    mf_model *m = open_with(dir, backend), *ref = open_with(dir, "ref");
    mf_session *s[SESSIONS], *twin[SESSIONS], *refs[SESSIONS];
    for (int i = 0; i < SESSIONS; i++)
        s[i] = tiny_session(m, CTX, CTX), twin[i] = tiny_session(m, CTX, CTX), refs[i] = tiny_session(ref, CTX, CTX);
    wait_whole(m);
    for (int step = 0; step < STEPS; step++) {
        int32_t tokens[SESSIONS];
        for (int i = 0; i < SESSIONS; i++) tokens[i] = tiny_token(step * SESSIONS + i);
        eval(m, s, SESSIONS, tokens, together);
        for (int i = 0; i < SESSIONS; i++) {
#ifdef COUNT_CUDA
            int64_t before = emu_count().launches;
#endif
            eval(m, &twin[i], 1, &tokens[i], alone);
#ifdef COUNT_CUDA
            if (emu_count().launches - before > 32) /* 6 a layer, 8 with attention; 12 and more where it is not fused */
                fail_msg("a token took %d launches", (int)(emu_count().launches - before));
#endif
            assert_memory_equal(alone, together + i * TINY_VOCAB, sizeof alone);
            eval(ref, &refs[i], 1, &tokens[i], want);
            double d = distance(alone, want);
            if (!(d < 5e-3)) fail_msg("step %d of session %d is %g from ref's", step, i, d);
        }
    }
    for (int i = 0; i < SESSIONS; i++) mf_session_free(s[i]), mf_session_free(twin[i]), mf_session_free(refs[i]);
    mf_model_close(m);
    mf_model_close(ref);
}

static void with_trunk(int bits) {
    char dir[64];
    mf_error err = {0};
    mf__synth_options opt;
    mf__synth_options_init(&opt);
    opt.shape = "tiny";
    opt.trunk_bits = bits;
    opt.n_threads = 1;
    snprintf(dir, sizeof dir, "tiny_fused_%d_%d", bits, (int)getpid());
    if (mf__synth(&opt, dir, &err) != MF_OK) fail_msg("%s", err.text);
    compare(dir);
    assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
}

static void trunk_of_4_bits(void **state) {
    (void)state;
    with_trunk(4);
}

static void trunk_of_8_bits(void **state) {
    (void)state;
    with_trunk(8);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(trunk_of_4_bits), cmocka_unit_test(trunk_of_8_bits)};
    if (argc != 2) return 2;
    backend = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
