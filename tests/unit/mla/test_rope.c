/* YaRN by the reference formulas, and how configs spell it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "model/rope.h"

static mf_status parse(const char *json, mf__rope *out, mf_error *err) {
    json_t *root;
    assert_int_equal(mf__json_parse("test", json, strlen(json), &root, NULL), MF_OK);
    mf_status st = mf__rope_parse(root, "test", 1e4, out, err);
    json_decref(root);
    return st;
}

static mf__rope parsed(const char *json) {
    mf__rope rope;
    mf_error err = {0};
    if (parse(json, &rope, &err) != MF_OK) fail_msg("%s", err.text);
    return rope;
}

static void near(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance * fabs(expected))) fail_msg("found %.9g, expected %.9g", found, expected);
}

#define DEEPSEEK                                                                                                       \
    "\"factor\": 40, \"original_max_position_embeddings\": 4096, \"beta_fast\": 32, \"beta_slow\": 1, "                \
    "\"mscale\": 1.0, \"mscale_all_dim\": 1.0"

/* Interpolated channels are base^(-2i/dim) / factor, not (factor base)^(-2i/dim). */
static void deepseek_frequencies(void **state) {
    static const struct {
        int i;
        double value;
    } reference[] = {{0, 1},           {10, 0.0562341},  {11, 0.0390069}, {15, 0.00833451},
                     {20, 7.90569e-4}, {23, 3.33380e-5}, {31, 3.33380e-6}};
    mf__rope rope = parsed("{\"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", " DEEPSEEK "}}");
    float f[32];
    (void)state;
    mf__rope_frequencies(&rope, 64, f);
    for (size_t k = 0; k < MF__COUNT(reference); k++) near(f[reference[k].i], reference[k].value, 2e-6);
}

/* The softmax scale takes m(mscale_all_dim)^2, not the ratio of the two mscales. */
static void deepseek_scales(void **state) {
    mf__rope rope = parsed("{\"rope_scaling\": {\"type\": \"yarn\", " DEEPSEEK "}}");
    (void)state;
    near(mf__rope_softmax_factor(&rope) / sqrt(192), 0.135234, 2e-6);
    near(mf__rope_attention_factor(&rope), 1, 1e-12);
    rope.mscale = 0.5;
    near(mf__rope_attention_factor(&rope), (0.05 * log(40) + 1) / (0.1 * log(40) + 1), 1e-12);
    rope.mscale_all_dim = 0;
    near(mf__rope_softmax_factor(&rope), 1, 0);
    near(mf__rope_attention_factor(&rope), 0.1 * log(40) + 1, 1e-12);
}

static void both_spellings_agree(void **state) {
    mf__rope a = parsed("{\"rope_theta\": 50000, \"max_position_embeddings\": 163840, "
                        "\"rope_scaling\": {\"type\": \"yarn\", " DEEPSEEK "}}");
    mf__rope b = parsed(
        "{\"rope_scaling\": null, \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 5e4, " DEEPSEEK "}}");
    float fa[32], fb[32];
    (void)state;
    mf__rope_frequencies(&a, 64, fa);
    mf__rope_frequencies(&b, 64, fb);
    assert_memory_equal(fa, fb, sizeof fa);
    assert_true(a.yarn && b.yarn);
}

/* beta_fast == beta_slow: the ramp is one step between the floor and the ceiling of one channel. */
static void kimi_ramp_is_a_step(void **state) {
    mf__rope rope = parsed("{\"rope_theta\": 50000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 32, "
                           "\"original_max_position_embeddings\": 4096, \"beta_fast\": 1.0, \"beta_slow\": 1.0}}");
    double at = 64 * log(4096 / (2 * 3.14159265358979)) / (2 * log(5e4)); /* 19.16 */
    float f[32];
    (void)state;
    mf__rope_frequencies(&rope, 64, f);
    for (int i = 0; i < 32; i++) {
        double plain = pow(5e4, -2.0 * i / 64);
        near(f[i], i <= (int)at ? plain : plain / 32, 1e-6);
    }
    /* and where floor and ceiling are one channel, nothing is divided by zero */
    rope.original_ctx = 2 * 3.14159265358979323846 * rope.theta; /* channel n_rot / 2 exactly */
    mf__rope_frequencies(&rope, 64, f);
    for (int i = 0; i < 32; i++) near(f[i], pow(5e4, -2.0 * i / 64), 1e-6);
}

/* gpt-oss: ramp bounds stay fractions, cos and sin are scaled, the softmax is not. */
static void untruncated_ramp(void **state) {
    mf__rope rope = parsed("{\"rope_theta\": 150000, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 32.0, "
                           "\"original_max_position_embeddings\": 4096, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
                           "\"truncate\": false}}");
    double low = 64 * log(4096 / (32 * 2 * 3.14159265358979)) / (2 * log(150000));
    double high = 64 * log(4096 / (2 * 3.14159265358979)) / (2 * log(150000));
    float f[32];
    (void)state;
    mf__rope_frequencies(&rope, 64, f);
    double plain = pow(150000, -2.0 * 12 / 64), ramp = (12 - low) / (high - low);
    assert_true(ramp > 0 && ramp < 1);
    near(f[12], plain * (1 - ramp) + plain / 32 * ramp, 1e-6);
    near(mf__rope_attention_factor(&rope), 1.34657, 1e-5);
    near(mf__rope_softmax_factor(&rope), 1, 0);
    rope.attention_factor = 1.25;
    near(mf__rope_attention_factor(&rope), 1.25, 0);
}

static void plain_when_nothing_is_said(void **state) {
    static const char *const configs[] = {"{}", "{\"rope_scaling\": null}",
                                          "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000}}"};
    (void)state;
    for (size_t k = 0; k < MF__COUNT(configs); k++) {
        mf__rope rope = parsed(configs[k]);
        float f[4];
        assert_false(rope.yarn);
        mf__rope_frequencies(&rope, 8, f);
        for (int i = 0; i < 4; i++) near(f[i], pow(1e4, -2.0 * i / 8), 1e-6);
        near(mf__rope_attention_factor(&rope), 1, 0);
        near(mf__rope_softmax_factor(&rope), 1, 0);
    }
}

static void others_are_refused(void **state) {
    mf__rope rope;
    mf_error err;
    (void)state;
    assert_int_equal(parse("{\"rope_scaling\": {\"type\": \"longrope\"}}", &rope, &err), MF_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "longrope"));
    assert_int_equal(parse("{\"rope_scaling\": 3}", &rope, &err), MF_E_FORMAT);
    assert_int_equal(parse("{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": -1}}", &rope, &err), MF_E_FORMAT);
    assert_int_equal(parse("{\"rope_theta\": 1, \"rope_scaling\": {\"type\": \"yarn\"}}", &rope, &err),
                     MF_E_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deepseek_frequencies), cmocka_unit_test(deepseek_scales),
        cmocka_unit_test(both_spellings_agree), cmocka_unit_test(kimi_ramp_is_a_step),
        cmocka_unit_test(untruncated_ramp),     cmocka_unit_test(plain_when_nothing_is_said),
        cmocka_unit_test(others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
