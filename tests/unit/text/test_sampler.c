/* The sampler: distributions against exact probabilities, edge cases, determinism. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chi_square.h"
#include "text/detmath.h"
#include "base/status.h"

#define N 8
static const float logits8[N] = {1.0f, 3.0f, -2.0f, 2.5f, 0.0f, 2.0f, -INFINITY, 1.5f};

static mf_sampler *make(mf_sampler_options o, int32_t n) {
    mf_sampler *s;
    mf_error err = {0};
    if (mf_sampler_create(&o, n, &s, &err) != MF_OK) fail_msg("%s", err.text);
    return s;
}

static mf_sampler_options defaults(float temperature) {
    mf_sampler_options o;
    mf_sampler_options_init(&o);
    o.temperature = temperature;
    o.seed = 7;
    return o;
}

/* Draws many times and compares the counts with p. Tokens with p 0 must never come. */
static void expect_distribution(mf_sampler_options o, const float *logits, const uint32_t *mask, const double *p) {
    mf_sampler *s = make(o, N);
    int counts[N] = {0};
    for (int i = 0; i < 40000; i++) {
        int32_t id = mf_sampler_next_masked(s, logits, mask);
        assert_in_range(id, 0, N - 1);
        counts[id]++;
    }
    chi_square r = chi_square_test(counts, p, N);
    assert_int_equal(r.impossible, -1);
    if (r.value > r.limit) fail_msg("chi-square %g at %d degrees of freedom", r.value, r.freedom);
    mf_sampler_free(s);
}

static void softmax(const float *logits, double t, double *p) {
    double sum = 0;
    for (int i = 0; i < N; i++) sum += p[i] = exp(logits[i] / t);
    for (int i = 0; i < N; i++) p[i] /= sum;
}

static void test_temperature(void **state) {
    (void)state;
    for (int k = 0; k < 3; k++) {
        double t = k == 0 ? 0.5 : k == 1 ? 1.0 : 2.0, p[N];
        softmax(logits8, t, p);
        expect_distribution(defaults((float)t), logits8, NULL, p);
    }
}

static void test_cuts(void **state) {
    (void)state;
    double p[N];
    /* in order: 1 (3.0), 3 (2.5), 5 (2.0), 7 (1.5), 0 (1.0), 4 (0.0), 2 (-2.0) */
    softmax(logits8, 1, p);
    mf_sampler_options o = defaults(1);
    o.top_k = 3;
    expect_distribution(o, logits8, NULL, (double[N]){0, p[1], 0, p[3], 0, p[5], 0, 0});
    o.top_k = 100;
    expect_distribution(o, logits8, NULL, p);
    o = defaults(1);
    o.top_p = (float)(p[1] + p[3] + 0.001); /* the third token is needed to reach it */
    expect_distribution(o, logits8, NULL, (double[N]){0, p[1], 0, p[3], 0, p[5], 0, 0});
    o.top_p = (float)(p[1] + p[3] - 0.001);
    expect_distribution(o, logits8, NULL, (double[N]){0, p[1], 0, p[3], 0, 0, 0, 0});
    o.top_k = 3; /* top-p counts the mass that top-k left */
    o.top_p = (float)((p[1] + p[3]) / (p[1] + p[3] + p[5]) - 0.001);
    expect_distribution(o, logits8, NULL, (double[N]){0, p[1], 0, p[3], 0, 0, 0, 0});
    o = defaults(1);
    o.min_p = (float)(p[7] / p[1] - 0.001);
    expect_distribution(o, logits8, NULL, (double[N]){0, p[1], 0, p[3], 0, p[5], 0, p[7]});
    uint32_t mask = 1u << 0 | 1u << 2 | 1u << 7;
    expect_distribution(defaults(1), logits8, &mask, (double[N]){p[0], 0, p[2], 0, 0, 0, 0, p[7]});
}

static void test_typical(void **state) {
    (void)state;
    /* Probabilities 0.5, 0.2, 0.2, 0.1: entropy 1.2206; surprises 0.693, 1.609, 1.609, 2.303: the middle two are the
     * most typical (distance 0.389), then the first (0.527), then the last. */
    float l[N] = {logf(0.5f), logf(0.2f), logf(0.2f), logf(0.1f), -INFINITY, -INFINITY, -INFINITY, NAN};
    mf_sampler_options o = defaults(1);
    o.typical_p = 0.39f;
    expect_distribution(o, l, NULL, (double[N]){0, 0.2, 0.2});
    o.typical_p = 0.41f;
    expect_distribution(o, l, NULL, (double[N]){0.5, 0.2, 0.2});
    o.typical_p = 0.05f;
    expect_distribution(o, l, NULL, (double[N]){0, 0.2, 0});
}

static void test_edges(void **state) {
    (void)state;
    mf_sampler *greedy = make(defaults(0), N), *warm = make(defaults(1), N);
    float tie[N] = {1, 5, 5, 0, 5, 0, 0, 0}, none[N], nans[N],
          inf[N] = {0, 1, INFINITY, 2, INFINITY, NAN, 3, -INFINITY};
    for (int i = 0; i < N; i++) {
        none[i] = -INFINITY;
        nans[i] = NAN;
    }
    assert_int_equal(mf_sampler_next(greedy, logits8), 1);
    assert_int_equal(mf_sampler_next(greedy, tie), 1);
    for (int k = 0; k < 2; k++) {
        mf_sampler *s = k ? warm : greedy;
        assert_int_equal(mf_sampler_next(s, none), -1);
        assert_int_equal(mf_sampler_next(s, nans), -1);
        assert_int_equal(mf_sampler_next(s, inf), 2);
        uint32_t mask = 1u << 6;
        assert_int_equal(mf_sampler_next_masked(s, inf, &mask), 6);
        mask = 1u << 5;
        assert_int_equal(mf_sampler_next_masked(s, inf, &mask), -1);
        nans[3] = -1e30f;
        assert_int_equal(mf_sampler_next(s, nans), 3);
        nans[3] = NAN;
    }
    mf_sampler_free(greedy);
    mf_sampler_free(warm);
    /* Cuts of nothing left still leave the best token. */
    mf_sampler_options o = defaults(1);
    o.top_p = 0;
    warm = make(o, N);
    for (int i = 0; i < 100; i++) assert_int_equal(mf_sampler_next(warm, logits8), 1);
    mf_sampler_free(warm);
    o = defaults(1);
    o.min_p = 1;
    o.typical_p = 0;
    warm = make(o, N);
    for (int i = 0; i < 100; i++) assert_int_equal(mf_sampler_next(warm, logits8), 1);
    mf_sampler_free(warm);
    o = defaults(1e-6f); /* nearly greedy: no overflow */
    warm = make(o, N);
    for (int i = 0; i < 100; i++) assert_int_equal(mf_sampler_next(warm, logits8), 1);
    mf_sampler_free(warm);
}

static void test_bad_options(void **state) {
    (void)state;
    mf_sampler *s;
    mf_error err;
    mf_logit_bias bias = {N, 1};
    mf_sampler_options o[9];
    for (int i = 0; i < 9; i++) o[i] = defaults(1);
    o[0].temperature = -1;
    o[1].temperature = NAN;
    o[2].top_p = 1.5f;
    o[3].min_p = -0.1f;
    o[4].top_k = -1;
    o[5].repetition_penalty = 0;
    o[6].penalty_window = -1;
    o[7].typical_p = 2;
    o[8].bias = &bias;
    o[8].n_bias = 1;
    for (int i = 0; i < 9; i++) {
        assert_int_equal(mf_sampler_create(&o[i], N, &s, &err), i == 8 ? MF_E_TOKEN : MF_E_INVALID);
        assert_null(s);
    }
    assert_int_equal(mf_sampler_create(&(mf_sampler_options){.repetition_penalty = 1}, 0, &s, &err), MF_E_INVALID);
}

static void test_penalties(void **state) {
    (void)state;
    mf_sampler_options o = defaults(0);
    o.repetition_penalty = 2;
    o.penalty_window = 2;
    mf_sampler *s = make(o, N);
    assert_int_equal(mf_sampler_next(s, logits8), 1);
    mf_sampler_accept(s, 1); /* 3.0 becomes 1.5 */
    assert_int_equal(mf_sampler_next(s, logits8), 3);
    mf_sampler_accept(s, 3);
    assert_int_equal(mf_sampler_next(s, logits8), 5);
    mf_sampler_accept(s, 3); /* token 1 leaves the window */
    assert_int_equal(mf_sampler_next(s, logits8), 1);
    mf_sampler_reset(s);
    assert_int_equal(mf_sampler_next(s, logits8), 1);
    mf_sampler_free(s);

    o = defaults(0);
    o.frequency_penalty = 0.2f;
    o.presence_penalty = 0.2f;
    s = make(o, N);
    mf_sampler_accept(s, 1); /* 3.0 - 0.4 = 2.6 */
    assert_int_equal(mf_sampler_next(s, logits8), 1);
    mf_sampler_accept(s, 1); /* 2.4 */
    assert_int_equal(mf_sampler_next(s, logits8), 3);
    mf_sampler_accept(s, -1); /* ids outside the vocabulary are ignored */
    mf_sampler_accept(s, N);
    mf_sampler_free(s);

    o = defaults(0);
    o.repetition_penalty = 2;
    s = make(o, 2);
    mf_sampler_accept(s, 1);
    assert_int_equal(mf_sampler_next(s, (const float[]){-1.5f, -1.0f}), 0); /* -1 becomes -2 */
    mf_sampler_free(s);

    mf_logit_bias bias[] = {{1, -INFINITY}, {4, 2.6f}};
    o = defaults(0);
    o.bias = bias;
    o.n_bias = 2;
    s = make(o, N);
    assert_int_equal(mf_sampler_next(s, logits8), 4);
    mf_sampler_free(s);
}

/* The first draws for a seed are part of the promise: they may not change. */
static void test_deterministic(void **state) {
    (void)state;
    static const int32_t want[2][12] = {{3, 5, 1, 1, 5, 7, 1, 3, 5, 7, 1, 0}, {3, 1, 3, 1, 3, 1, 5, 1, 1, 3, 5, 0}};
    for (int k = 0; k < 2; k++) {
        mf_sampler_options o = defaults(1.3f);
        o.seed = k ? 0xFFFFFFFFFFFFFFFFu : 0;
        o.top_p = k ? 0.95f : 1;
        mf_sampler *a = make(o, N), *b = make(o, N);
        for (int i = 0; i < 200; i++) {
            int32_t id = mf_sampler_next(a, logits8);
            assert_int_equal(id, mf_sampler_next(b, logits8));
            if (i < 12 && id != want[k][i]) fail_msg("draw %d of seed %d is %d", i, k, (int)id);
        }
        mf_sampler_free(a);
        mf_sampler_free(b);
    }
}

static void test_logprobs(void **state) {
    (void)state;
    double p[N];
    softmax(logits8, 1, p);
    mf_logprob top[3];
    int n = 3;
    float chosen = mf_logprobs(logits8, N, 7, top, &n);
    assert_int_equal(n, 3);
    assert_true(fabs(chosen - log(p[7])) < 1e-6);
    static const int order[] = {1, 3, 5};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(top[i].id, order[i]);
        assert_true(fabs(top[i].logprob - log(p[order[i]])) < 1e-6);
    }
    assert_true(mf_logprobs(logits8, N, 6, NULL, NULL) == -INFINITY);
    mf_logprob all[20];
    n = 20;
    mf_logprobs((const float[]){2, NAN, 2, 1}, 4, 0, all, &n);
    assert_int_equal(n, 3);
    assert_int_equal(all[0].id, 0);
    assert_int_equal(all[1].id, 2);
    assert_int_equal(all[2].id, 3);
}

static void test_detmath(void **state) {
    (void)state;
    for (double x = -690; x < 690; x += 0.37) assert_true(fabs(mf__det_exp(x) - exp(x)) <= 2e-15 * exp(x));
    for (double x = 1e-300; x < 1e300; x *= 1.7)
        assert_true(fabs(mf__det_log(x) - log(x)) <= 1e-15 * (1 + fabs(log(x))));
    assert_true(mf__det_exp(0) == 1);
    assert_true(mf__det_log(1) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperature), cmocka_unit_test(test_cuts),          cmocka_unit_test(test_typical),
        cmocka_unit_test(test_edges),       cmocka_unit_test(test_bad_options),   cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_logprobs),    cmocka_unit_test(test_deterministic), cmocka_unit_test(test_detmath),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
