/* The shipped model on held-out text, through `moeflux eval`: what quantization costs must stay within bounds, and the
 * numbers recorded when the model was made must come back. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/json.h"

#define N_DOCS 6
#define MAX_LOSS 0.15 /* nats per token above the bf16 model */
/* Mean of the first N_DOCS documents with the shipped weights and the ref backend. */
#define RECORDED 3.03155
#define RECORDED_WITHIN 2e-4
#define EXACT_WITHIN 1e-4 /* the cpu backend with f32 activations */
#define INT8_WITHIN 0.005 /* ... and with rounded ones */

static const char *moeflux, *model_dir, *data_dir;

static json_t *read_json(const char *dir, const char *name) {
    char path[1024];
    json_t *root = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(mf__json_read(path, 1 << 24, &root, NULL), MF_OK);
    return root;
}

/* Mean loss of the first N_DOCS documents, evaluated with the options given; each document against the bf16 model. */
static double mean_loss(const char *options) {
    char command[4096];
    double sum = 0, bf16_sum = 0, n_tokens = 0;
    snprintf(command, sizeof command, "'%s' eval '%s' '%s/val.txt' --limit %d --scores stories_loss.json %s", moeflux,
             model_dir, data_dir, N_DOCS, options);
    assert_int_equal(system(command), 0);
    json_t *got = read_json(".", "stories_loss.json"), *want = read_json(data_dir, "golden.json");
    const json_t *docs = json_object_get(got, "docs"), *bf16 = json_object_get(want, "docs");
    assert_int_equal(json_array_size(docs), N_DOCS);
    for (size_t i = 0; i < N_DOCS; i++) {
        const json_t *a = json_array_get(docs, i), *b = json_array_get(bf16, i);
        double n = (double)json_integer_value(json_object_get(b, "n"));
        double nll = json_real_value(json_object_get(a, "nll")), nll16 = json_real_value(json_object_get(b, "nll"));
        assert_int_equal(json_integer_value(json_object_get(a, "n")), n);
        assert_true(json_equal(json_object_get(a, "tokens"), json_object_get(b, "tokens")));
        assert_true(isfinite(nll) && fabs(nll - nll16) / n <= 2 * MAX_LOSS);
        sum += nll;
        bf16_sum += nll16;
        n_tokens += n;
    }
    print_message("mean loss %.5f, bf16 %.5f\n", sum / n_tokens, bf16_sum / n_tokens);
    assert_true(sum / n_tokens <= bf16_sum / n_tokens + MAX_LOSS);
    json_decref(got);
    json_decref(want);
    remove("stories_loss.json");
    return sum / n_tokens;
}

static void test_loss(void **state) {
    (void)state;
    assert_true(fabs(mean_loss("--backend ref") - RECORDED) <= RECORDED_WITHIN);
    assert_true(fabs(mean_loss("--backend cpu --exact") - RECORDED) <= EXACT_WITHIN);
    assert_true(fabs(mean_loss("--backend cpu") - RECORDED) <= INT8_WITHIN);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loss)};
    if (argc != 4) return 2;
    moeflux = argv[1];
    model_dir = argv[2];
    data_dir = argv[3];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
