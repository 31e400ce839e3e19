/* The tiny random model for tests of sessions. */
#include "tiny.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "convert/convert.h"

int tiny_also_bits;
const char *tiny_checkpoint;

int tiny_setup(void **state) {
    static char dir[64];
    char manifest[512];
    mf__convert_options opt;
    mf_error err;
    snprintf(manifest, sizeof manifest, "%s/model_weights.json", tiny_checkpoint);
    if (mf__path_exists(manifest)) { /* a model already */
        *state = (void *)tiny_checkpoint;
        return 0;
    }
    snprintf(dir, sizeof dir, "tiny_%ld", (long)getpid());
    mf__convert_options_init(&opt);
    opt.also_bits = tiny_also_bits;
    if (mf__convert(tiny_checkpoint, dir, &opt, &err) != MF_OK) {
        print_error("%s\n", err.text);
        return -1;
    }
    *state = dir;
    return 0;
}

int tiny_teardown(void **state) {
    return *state == tiny_checkpoint || mf__dir_remove(*state, NULL) == MF_OK ? 0 : -1;
}

const char *tiny_backend = "ref";

mf_model *tiny_open(const char *dir, int n_threads) {
    mf_model_options opt;
    mf_model *m;
    mf_error err = {0};
    mf_model_options_init(&opt);
    opt.backend = tiny_backend;
    opt.n_threads = n_threads;
    mf_status st = mf_model_open(dir, &opt, &m, &err);
    assert_string_equal(err.text, "");
    assert_int_equal(st, MF_OK);
    assert_int_equal(mf_model_info_get(m)->n_vocab, TINY_VOCAB);
    assert_int_equal(mf_model_info_get(m)->n_hidden, TINY_HIDDEN);
    assert_int_equal(mf_model_info_get(m)->n_layers, TINY_LAYERS);
    return m;
}

mf_session *tiny_session(mf_model *m, int n_ctx, int n_chunk) {
    mf_session_options opt;
    mf_session *s;
    mf_session_options_init(&opt);
    opt.n_ctx = n_ctx;
    opt.n_chunk = n_chunk;
    assert_int_equal(mf_session_create(m, &opt, &s, NULL), MF_OK);
    return s;
}

int32_t tiny_token(int64_t i) {
    return (int32_t)((i * 37 + 5 + i * i % 11) % TINY_VOCAB);
}

void tiny_eval(mf_session *s, int64_t n, float logits[TINY_VOCAB]) {
    int64_t pos = mf_memory_length(s);
    int32_t *tokens = malloc((size_t)n * sizeof *tokens);
    assert_non_null(tokens);
    for (int64_t i = 0; i < n; i++) tokens[i] = tiny_token(pos + i);
    assert_int_equal(mf_eval_prompt(s, tokens, (size_t)n, pos, logits, TINY_VOCAB, NULL), MF_OK);
    assert_int_equal(mf_memory_length(s), pos + n);
    free(tokens);
}
