/* Every sampler, alone and with others, against the probabilities of its definition in sampler.h: computed here the
 * slow way, from nothing but the options, and compared with many draws by a chi-square test. The draws of a seed never
 * change, so neither does the outcome of this test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chi_square.h"
#include "base/status.h"

#define N 40
#define DRAWS 20000

static float logits[N];
static const int32_t history[] = {3, 3, 3, 7, 20, 20, 31, 5, 7, 39}; /* accepted before the draws */
static const mf_logit_bias biases[] = {{3, 4.0f}, {11, -INFINITY}, {25, -2.5f}};
#define N_HISTORY (int)(sizeof history / sizeof *history)

static int make_logits(void **state) {
    (void)state;
    uint32_t x = 2024;
    for (int i = 0; i < N; i++) {
        x = x * 1664525u + 1013904223u;
        logits[i] = (float)(x >> 8) / 16777216.0f * 9 - 4; /* -4 to 5, no two alike */
    }
    return 0;
}

/* ---- the definition ---------------------------------------------------------------------------------------------- */

static const double *sort_key;

static int by_key(const void *a, const void *b) { /* the largest key first */
    double x = sort_key[*(const int *)a], y = sort_key[*(const int *)b];
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Keeps the first tokens by key: `most` of them at the most, and no more than it takes to reach the share of the mass.
 */
static void keep_first(double *p, const double *key, int most, double share) {
    int order[N], kept = 0;
    double total = 0, sum = 0;
    for (int i = 0; i < N; i++) order[i] = i, total += p[i];
    sort_key = key;
    qsort(order, N, sizeof *order, by_key);
    for (int i = 0; i < N; i++) {
        double mass = p[order[i]];
        if (kept > 0 && (kept >= most || sum >= share * total)) p[order[i]] = 0;
        kept += mass > 0;
        sum += mass;
    }
}

static double penalized(const mf_sampler_options *o, double l, int id) {
    int seen = 0;
    int first = o->penalty_window && o->penalty_window < N_HISTORY ? N_HISTORY - o->penalty_window : 0;
    for (int i = first; i < N_HISTORY; i++) seen += history[i] == id;
    if (!seen) return l;
    l = l > 0 ? l / (double)o->repetition_penalty : l * (double)o->repetition_penalty;
    return l - seen * (double)o->frequency_penalty - (double)o->presence_penalty;
}

static void typical(double *p, double share) {
    double total = 0, entropy = 0, near[N];
    for (int i = 0; i < N; i++) total += p[i];
    for (int i = 0; i < N; i++)
        if (p[i] > 0) entropy -= p[i] / total * log(p[i] / total);
    for (int i = 0; i < N; i++) near[i] = p[i] > 0 ? -fabs(-log(p[i] / total) - entropy) : -INFINITY;
    keep_first(p, near, N, share);
}

static void exact(const mf_sampler_options *o, const uint32_t *mask, double *p) {
    double l[N], best = 0;
    for (int i = 0; i < N; i++) {
        l[i] = (double)logits[i];
        for (int k = 0; k < o->n_bias; k++)
            if (o->bias[k].id == i) l[i] += (double)o->bias[k].bias;
        l[i] = penalized(o, l[i], i);
        p[i] = mask && !(mask[i / 32] >> i % 32 & 1) ? 0 : exp(l[i] / (double)o->temperature);
        if (p[i] == 0) l[i] = -INFINITY;
    }
    if (o->top_k) keep_first(p, l, o->top_k, 2);
    if (o->top_p < 1) keep_first(p, l, N, (double)o->top_p);
    for (int i = 0; i < N; i++) best = p[i] > best ? p[i] : best;
    for (int i = 0; i < N; i++)
        if (p[i] < (double)o->min_p * best) p[i] = 0;
    if (o->typical_p < 1) typical(p, (double)o->typical_p);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

static const struct {
    float temperature, top_p, min_p, typical_p, repetition, frequency, presence;
    int top_k, window;
    bool bias, mask;
} cases[] = {
    {.temperature = 0.3f},
    {.temperature = 1},
    {.temperature = 3},
    {.top_k = 1},
    {.top_k = 7},
    {.top_k = 39},
    {.top_p = 0.1f},
    {.top_p = 0.5f},
    {.top_p = 0.97f},
    {.min_p = 0.01f},
    {.min_p = 0.175f}, /* one token has 0.177, the next 0.153 */
    {.min_p = 0.18f},
    {.typical_p = 0.2f},
    {.typical_p = 0.6f},
    {.typical_p = 0.95f},
    {.repetition = 1.6f},
    {.repetition = 0.7f},
    {.temperature = 4, .repetition = 3}, /* negative logits count here */
    {.frequency = 0.8f},
    {.frequency = -0.5f},
    {.presence = 1.5f},
    {.repetition = 1.3f, .frequency = 0.4f, .presence = -0.6f},
    {.repetition = 2, .frequency = 1, .presence = 1, .window = 4},
    {.bias = true},
    {.bias = true, .repetition = 1.5f, .window = 9},
    {.mask = true},
    {.mask = true, .top_k = 5},
    {.mask = true, .bias = true, .top_p = 0.8f},
    {.temperature = 0.7f, .top_k = 20, .top_p = 0.9f},
    {.temperature = 1.5f, .top_p = 0.9f, .min_p = 0.1f},
    {.temperature = 2, .top_k = 25, .top_p = 0.95f, .min_p = 0.02f, .typical_p = 0.7f},
    {.temperature = 2,
     .top_k = 30,
     .top_p = 0.9f,
     .typical_p = 0.8f,
     .repetition = 1.2f,
     .presence = 0.5f,
     .bias = true,
     .mask = true},
};

static mf_sampler_options options_of(size_t i, uint64_t seed) {
    mf_sampler_options o;
    mf_sampler_options_init(&o);
    o.temperature = cases[i].temperature > 0 ? cases[i].temperature : 1;
    o.top_k = cases[i].top_k;
    o.top_p = cases[i].top_p > 0 ? cases[i].top_p : 1;
    o.min_p = cases[i].min_p;
    o.typical_p = cases[i].typical_p > 0 ? cases[i].typical_p : 1;
    o.repetition_penalty = cases[i].repetition > 0 ? cases[i].repetition : 1;
    o.frequency_penalty = cases[i].frequency;
    o.presence_penalty = cases[i].presence;
    o.penalty_window = cases[i].window;
    o.bias = biases;
    o.n_bias = cases[i].bias ? (int)(sizeof biases / sizeof *biases) : 0;
    o.seed = seed;
    return o;
}

static const uint32_t *mask_of(size_t i) {
    static const uint32_t mask[2] = {0x5A5AF0F7u, 0x000000A9u};
    return cases[i].mask ? mask : NULL;
}

static mf_sampler *start(const mf_sampler_options *o) {
    mf_sampler *s;
    mf_error err = {0};
    if (mf_sampler_create(o, N, &s, &err) != MF_OK) fail_msg("%s", err.text);
    for (int i = 0; i < N_HISTORY; i++) mf_sampler_accept(s, history[i]);
    return s;
}

static void test_odds(void **state) {
    (void)state;
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        mf_sampler_options o = options_of(i, 100 + i);
        mf_sampler *s = start(&o);
        double p[N];
        int counts[N] = {0};
        for (int k = 0; k < DRAWS; k++) counts[mf_sampler_next_masked(s, logits, mask_of(i))]++;
        mf_sampler_free(s);
        exact(&o, mask_of(i), p);
        chi_square r = chi_square_test(counts, p, N);
        if (r.impossible >= 0) fail_msg("case %zu: token %d is not possible and came", i, r.impossible);
        if (r.value > r.limit)
            fail_msg("case %zu: chi-square %g at %d degrees of freedom; expected %g at most", i, r.value, r.freedom,
                     r.limit);
    }
}

/* The same seed gives the same tokens, in a new sampler and after a reset; another seed gives others. */
static void test_seeds(void **state) {
    (void)state;
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        mf_sampler_options one = options_of(i, 5), two = options_of(i, 6);
        mf_sampler *a = start(&one), *b = start(&one), *other = start(&two);
        int32_t first[200];
        int differ = 0;
        for (int k = 0; k < 200; k++) {
            first[k] = mf_sampler_next_masked(a, logits, mask_of(i));
            assert_int_equal(first[k], mf_sampler_next_masked(b, logits, mask_of(i)));
            differ += first[k] != mf_sampler_next_masked(other, logits, mask_of(i));
        }
        assert_true(differ > 0 || cases[i].top_k == 1 || cases[i].top_p == 0.1f);
        mf_sampler_reset(a);
        for (int k = 0; k < N_HISTORY; k++) mf_sampler_accept(a, history[k]);
        for (int k = 0; k < 200; k++) assert_int_equal(mf_sampler_next_masked(a, logits, mask_of(i)), first[k]);
        mf_sampler_free(a);
        mf_sampler_free(b);
        mf_sampler_free(other);
    }
}

/* The test itself can say no: a small shift of probability is seen. */
static void test_chi_square(void **state) {
    (void)state;
    const double p[4] = {0.4, 0.3, 0.2, 0.1};
    assert_true(chi_square_test((int[]){4010, 2985, 2020, 985}, p, 4).value < 3);
    chi_square off = chi_square_test((int[]){4300, 2800, 1950, 950}, p, 4);
    assert_true(off.value > off.limit && off.freedom == 3);
    assert_int_equal(chi_square_test((int[]){5, 1}, (double[]){1, 0}, 2).impossible, 1);
    /* At one in a million it is 30.66 for 3 degrees of freedom; the formula errs on the generous side. */
    assert_true(off.limit > 30.66 && off.limit < 34);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chi_square), cmocka_unit_test(test_odds),
                                       cmocka_unit_test(test_seeds)};
    return cmocka_run_group_tests(tests, make_logits, NULL);
}
