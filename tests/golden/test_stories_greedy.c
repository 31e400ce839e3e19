/* The shipped model told to go on with the most likely token: the cpu backend with its 8-bit activations picks the
 * tokens that ref picks, for as long as ref itself is not in two minds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "moeflux.h"
#include "text/tokenizer.h"

#define N_TOKENS 48   /* of a continuation, at most */
#define CLOSE 0.05f   /* the two best logits of ref: from here on either may win */
#define MIN_TOKENS 60 /* compared in all: otherwise the test says nothing */

static const char *model_dir;

typedef struct side {
    mf_model *model;
    mf_session *session;
    float *logits;
} side;

static side open_side(const char *backend) {
    mf_model_options opt;
    side s;
    mf_model_options_init(&opt);
    opt.backend = backend;
    assert_int_equal(mf_model_open(model_dir, &opt, &s.model, NULL), MF_OK);
    assert_int_equal(mf_session_create(s.model, NULL, &s.session, NULL), MF_OK);
    s.logits = malloc((size_t)mf_model_info_get(s.model)->n_vocab * sizeof *s.logits);
    assert_non_null(s.logits);
    return s;
}

static void close_side(side *s) {
    free(s->logits);
    mf_session_free(s->session);
    mf_model_close(s->model);
}

static int32_t best_of(const float *logits, int32_t n, float *lead) {
    int32_t best = 0;
    float second = -1e30f;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) {
            second = logits[best];
            best = i;
        } else if (logits[i] > second) {
            second = logits[i];
        }
    *lead = logits[best] - second;
    return best;
}

/* Returns how many tokens were compared. */
static int follow(side *ref, side *cpu, const int32_t *prompt, size_t n) {
    size_t n_vocab = (size_t)mf_model_info_get(ref->model)->n_vocab;
    side *both[2] = {ref, cpu};
    for (int i = 0; i < 2; i++) {
        mf_memory_clear(both[i]->session);
        assert_int_equal(mf_eval_prompt(both[i]->session, prompt, n, 0, both[i]->logits, n_vocab, NULL), MF_OK);
    }
    for (int step = 0; step < N_TOKENS; step++) {
        float lead, ignored;
        int32_t token = best_of(ref->logits, (int32_t)n_vocab, &lead);
        if (lead < CLOSE) return step;
        assert_int_equal(best_of(cpu->logits, (int32_t)n_vocab, &ignored), token);
        for (int i = 0; i < 2; i++)
            assert_int_equal(mf_eval_token(both[i]->session, token, mf_memory_length(both[i]->session), both[i]->logits,
                                           n_vocab, NULL),
                             MF_OK);
    }
    return N_TOKENS;
}

static void test_greedy(void **state) {
    static const char *const prompts[] = {"Once upon a time, there was a little girl named Lily.",
                                          "Tom and his dog went to the park to play with a big red ball",
                                          "The little bird was sad because", "One day, a boy found a small box. He"};
    (void)state;
    side ref = open_side("ref"), cpu = open_side("cpu");
    mf__tokenizer *tok;
    int total = 0;
    assert_int_equal(mf__tokenizer_open(model_dir, &tok, NULL), MF_OK);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        int32_t *ids;
        size_t n;
        assert_int_equal(mf__tokenizer_encode(tok, prompts[i], strlen(prompts[i]), false, &ids, &n, NULL), MF_OK);
        int compared = follow(&ref, &cpu, ids, n);
        print_message("%d tokens: %s\n", compared, prompts[i]);
        total += compared;
        free(ids);
    }
    assert_true(total >= MIN_TOKENS);
    mf__tokenizer_free(tok);
    close_side(&ref);
    close_side(&cpu);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy)};
    if (argc != 2) return 2;
    model_dir = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
