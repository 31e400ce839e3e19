/* A model of any family, opened for tests of state: tokens are small numbers, logits the whole row. */
#ifndef TESTS_STATE_ANY_H
#define TESTS_STATE_ANY_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "moeflux.h"
#include "tiny.h"

/* Tokens per pass; 0: the default. Latent attention has two forms and takes the cheaper one for the length of the pass:
 * there only passes of the same length give the same bits, so its tests use passes of one token. */
static int any_chunk;

/* Options behind a test's own arguments: kv=f16|f32|int8, backend=cpu|ref, exact, threads=N,
 * seed=N, run=N (test_state_random: tokens that each of its own stands for). */
static mf_kv any_kv;
static const char *any_backend = "ref";
static bool any_exact;
static int any_threads; /* 0: as the test wants */
static uint64_t any_seed = 12345;
static int any_run = 1;

static inline bool any_options(int argc, char **argv, int at) {
    static const char *const KV[] = {"kv=auto", "kv=f16", "kv=f32", "kv=int8"};
    for (; at < argc; at++) {
        bool known = false;
        for (int k = 0; k < 4; k++)
            if (!strcmp(argv[at], KV[k])) any_kv = (mf_kv)k, known = true;
        if (!strncmp(argv[at], "backend=", 8)) any_backend = argv[at] + 8, known = true;
        if (!strcmp(argv[at], "exact")) any_exact = known = true;
        if (!strncmp(argv[at], "threads=", 8)) any_threads = atoi(argv[at] + 8), known = true;
        if (!strncmp(argv[at], "seed=", 5)) any_seed = strtoull(argv[at] + 5, NULL, 10), known = true;
        if (!strncmp(argv[at], "run=", 4)) any_run = atoi(argv[at] + 4), known = any_run > 0 && any_run <= 64;
        if (!known) return false;
    }
    return true;
}

static inline void any_model_options(mf_model_options *opt, int n_threads) {
    mf_model_options_init(opt);
    opt->backend = any_backend;
    opt->exact = any_exact;
    opt->kv = any_kv;
    opt->n_threads = any_threads ? any_threads : n_threads;
}

static inline mf_session *any_session(mf_model *m) {
    return tiny_session(m, 0, any_chunk);
}

static inline mf_model *any_open(const char *dir) {
    mf_model_options opt;
    mf_model *m = NULL;
    mf_error err = {0};
    any_model_options(&opt, 1); /* two tests run at a time: more threads than processors would wait for each other */
    if (mf_model_open(dir, &opt, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

static inline size_t any_vocab(const mf_model *m) {
    return (size_t)mf_model_info_get(m)->n_vocab;
}

static inline float *any_row(const mf_model *m, int rows) {
    float *row = calloc(any_vocab(m) * (size_t)rows, sizeof *row);
    assert_non_null(row);
    return row;
}

/* Evaluates tokens at the session's end; asserts success. */
static inline void any_eval(mf_model *m, mf_session *s, const int32_t *tokens, size_t n, float *logits) {
    mf_error err = {0};
    if (mf_eval_prompt(s, tokens, n, mf_memory_length(s), logits, n ? any_vocab(m) : 0, &err) != MF_OK)
        fail_msg("%s", err.text);
}

static inline void any_same(const mf_model *m, const float *a, const float *b) {
    assert_memory_equal(a, b, any_vocab(m) * sizeof *a);
}

#endif
