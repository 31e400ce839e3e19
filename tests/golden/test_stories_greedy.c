/* The shipped model told to go on with the most likely token, ref's choice: where would a faster backend go another
 * way? Nowhere, except where ref itself is in two minds; and logits hardly move.
 *
 *   test_stories_greedy MODEL [BACKEND, cpu unless named] */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "moeflux.h"
#include "text/tokenizer.h"

#define N_TOKENS 40      /* of each continuation */
#define CLOSE 0.05f      /* between the two best logits of ref: either may win */
#define EXACT_MOVED 1e-3 /* root of the mean square of what f32 activations do to a logit */
#define MOST_MOVED 5e-2  /* ... of what rounded ones do, mostly by a tie between two experts */

static const char *model_dir, *other = "cpu";

typedef struct side {
    mf_model *model;
    mf_session *session;
    float *logits;
} side;

static side open_side(const char *backend, bool exact) {
    mf_model_options opt;
    side s;
    mf_model_options_init(&opt);
    opt.backend = backend;
    opt.exact = exact;
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

typedef struct tally {
    int n_tokens, n_others;
    double squares; /* of what happened to logits; their common shift does not matter */
} tally;

static void compare(const float *want, const float *got, int32_t n, tally *t) {
    float lead, ignored;
    double shift = 0;
    bool same = best_of(got, n, &ignored) == best_of(want, n, &lead);
    assert_true(same || lead < CLOSE);
    t->n_tokens++;
    t->n_others += !same;
    for (int32_t i = 0; i < n; i++) shift += (got[i] - want[i]) / n;
    for (int32_t i = 0; i < n; i++) t->squares += (got[i] - want[i] - shift) * (got[i] - want[i] - shift) / n;
}

static void follow(side *ref, side *cpu, const int32_t *prompt, size_t n, tally *t) {
    int32_t n_vocab = mf_model_info_get(ref->model)->n_vocab;
    side *both[2] = {ref, cpu};
    for (int i = 0; i < 2; i++) {
        mf_memory_clear(both[i]->session);
        assert_int_equal(mf_eval_prompt(both[i]->session, prompt, n, 0, both[i]->logits, (size_t)n_vocab, NULL), MF_OK);
    }
    for (int step = 0; step < N_TOKENS; step++) {
        float ignored;
        int32_t token = best_of(ref->logits, n_vocab, &ignored);
        compare(ref->logits, cpu->logits, n_vocab, t);
        for (int i = 0; i < 2; i++)
            assert_int_equal(mf_eval_token(both[i]->session, token, mf_memory_length(both[i]->session), both[i]->logits,
                                           (size_t)n_vocab, NULL),
                             MF_OK);
    }
}

static tally follow_all(bool exact) {
    static const char *const prompts[] = {
        "Once upon a time, there was a little girl named Lily.",
        "Tom and his dog went to the park to play with a big red ball", "The little bird was sad because",
        "One day, a boy found a small box. He",
        "Once upon a time, there was a little boat that lived by a big river. Every morning the sun came up and the "
        "boat "
        "saw many fish jump out of the water. The boat wanted to see the sea, but it was tied to a tree with a long "
        "rope. "
        "One day, a girl named Mia came to the river with her father. She saw the boat and said, \"Can we go for a "
        "ride?\" "
        "Her father smiled and said, \"Yes, but first we must ask the old man who made it.\" They walked to a small "
        "house "
        "with a green door and knocked. The old man was very kind. He gave them some bread and a map and told them to "
        "be "
        "back before dark. Mia was so happy that she jumped up and down. They sat in the boat, and"};
    side ref = open_side("ref", false), fast = open_side(other, exact);
    tally t = {0};
    mf__tokenizer *tok;
    assert_int_equal(mf__tokenizer_open(model_dir, &tok, NULL), MF_OK);
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++) {
        int32_t *ids;
        size_t n;
        assert_int_equal(mf__tokenizer_encode(tok, prompts[i], strlen(prompts[i]), false, &ids, &n, NULL), MF_OK);
        follow(&ref, &fast, ids, n, &t);
        free(ids);
    }
    print_message("%s: another choice for %d of %d tokens, logits moved by %.5f\n", exact ? "exact" : "rounded",
                  t.n_others, t.n_tokens, sqrt(t.squares / t.n_tokens));
    mf__tokenizer_free(tok);
    close_side(&ref);
    close_side(&fast);
    return t;
}

static void test_exact(void **state) {
    (void)state;
    tally t = follow_all(true);
    assert_true(sqrt(t.squares / t.n_tokens) < EXACT_MOVED);
}

static void test_rounded(void **state) {
    (void)state;
    tally t = follow_all(false);
    assert_true(sqrt(t.squares / t.n_tokens) < MOST_MOVED);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_exact), cmocka_unit_test(test_rounded)};
    if (argc < 2 || argc > 3) return 2;
    model_dir = argv[1];
    if (argc == 3) other = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
