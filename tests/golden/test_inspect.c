/* What a model shows of itself: probes, tensors, an embedding, an expert's bytes, time by op and layer. Where one says
 * something that another implies, they must agree. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "moeflux.h"
#include "tiny.h"

#define ROWS 5
#define MAX_TOP_K 8

/* What the probe saw of one layer. */
typedef struct seen {
    float h_post[ROWS][TINY_HIDDEN], ids[ROWS][MAX_TOP_K], shares[ROWS][MAX_TOP_K], score[ROWS];
    int n_ids, n_shares, n_score;
} seen;

static seen layers[TINY_LAYERS];
static float embedded[ROWS][TINY_HIDDEN];

static void note(void *user, const char *name, int layer, const float *data, int n_rows, int n_cols) {
    (void)user;
    size_t bytes = (size_t)n_rows * (size_t)n_cols * sizeof *data;
    if (strcmp(name, "final_norm")) assert_int_equal(n_rows, ROWS);
    if (!strcmp(name, "embed")) memcpy(embedded, data, bytes);
    if (layer < 0) return;
    seen *s = &layers[layer];
    if (!strcmp(name, "h_post")) memcpy(s->h_post, data, bytes);
    for (int r = 0; r < n_rows && !strcmp(name, "route_ids"); r++)
        memcpy(s->ids[r], data + r * n_cols, (size_t)(s->n_ids = n_cols) * sizeof *data);
    for (int r = 0; r < n_rows && !strcmp(name, "route_shares"); r++)
        memcpy(s->shares[r], data + r * n_cols, (size_t)(s->n_shares = n_cols) * sizeof *data);
    if (!strcmp(name, "shared_score")) {
        memcpy(s->score, data, bytes);
        s->n_score = n_cols;
    }
}

static void evaluate(mf_model *m, void (*probe)(void *, const char *, int, const float *, int, int)) {
    mf_session_options opt;
    mf_session *s;
    float logits[TINY_VOCAB];
    mf_session_options_init(&opt);
    opt.probe.fn = probe;
    assert_int_equal(mf_session_create(m, &opt, &s, NULL), MF_OK);
    tiny_eval(s, ROWS, logits);
    mf_session_free(s);
}

static double dot(const float *a, const float *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

static void near(double found, double want, const char *what, int layer, int row) {
    if (!(fabs(found - want) <= 1e-4 * (1 + fabs(want))))
        fail_msg("%s of layer %d, row %d: %g, expected %g", what, layer, row, found, want);
}

/* The router's weights on what it saw give the experts and shares that the probe names. */
static void check_router(const mf_model *m, int layer) {
    const seen *s = &layers[layer];
    int32_t n_experts = mf_model_info_get(m)->n_experts;
    char name[64];
    float *w = malloc((size_t)n_experts * TINY_HIDDEN * sizeof *w);
    snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", layer);
    assert_int_equal(mf_tensor_rows(m, name, 0, n_experts, w, (size_t)n_experts * TINY_HIDDEN, NULL), MF_OK);
    for (int r = 0; r < ROWS; r++) {
        double logit[64], sum = 0;
        assert_true(n_experts <= 64);
        for (int e = 0; e < n_experts; e++) logit[e] = dot(w + e * TINY_HIDDEN, s->h_post[r], TINY_HIDDEN);
        for (int k = 0; k < s->n_ids; k++) sum += exp(logit[(int)s->ids[r][k]]);
        for (int k = 0; k < s->n_ids; k++) {
            int id = (int)s->ids[r][k];
            near(s->shares[r][k], exp(logit[id]) / sum, "route_shares", layer, r);
            if (k) assert_true(logit[(int)s->ids[r][k - 1]] >= logit[id]);
        }
    }
    free(w);
}

static void test_probes(void **state) {
    mf_model *m = tiny_open(*state, 1);
    evaluate(m, note);
    for (int l = 0; l < TINY_LAYERS; l++) {
        float gate[TINY_HIDDEN];
        char name[80];
        assert_int_equal(layers[l].n_ids, mf_model_info_get(m)->n_experts_per_token);
        assert_int_equal(layers[l].n_shares, layers[l].n_ids);
        assert_int_equal(layers[l].n_score, 1);
        check_router(m, l);
        snprintf(name, sizeof name, "model.layers.%d.mlp.shared_expert_gate.weight", l);
        assert_int_equal(mf_tensor_rows(m, name, 0, 1, gate, TINY_HIDDEN, NULL), MF_OK);
        for (int r = 0; r < ROWS; r++)
            near(layers[l].score[r], dot(gate, layers[l].h_post[r], TINY_HIDDEN), "shared_score", l, r);
    }
    mf_model_close(m);
}

static void test_embedding(void **state) {
    mf_model *m = tiny_open(*state, 1);
    float row[TINY_HIDDEN], same[TINY_HIDDEN];
    evaluate(m, note);
    for (int r = 0; r < ROWS; r++) {
        assert_int_equal(mf_embedding(m, tiny_token(r), row, TINY_HIDDEN, NULL), MF_OK);
        assert_memory_equal(row, embedded[r], sizeof row);
        assert_int_equal(mf_tensor_rows(m, "model.embed_tokens.weight", tiny_token(r), 1, same, TINY_HIDDEN, NULL),
                         MF_OK);
        assert_memory_equal(row, same, sizeof row);
    }
    mf_model_close(m);
}

static void test_tensors(void **state) {
    mf_model *m = tiny_open(*state, 1);
    mf_tensor_info info;
    int64_t n = 0, bytes = 0;
    const char *last = "";
    for (const char *name; (name = mf_tensor_name(m, n)); n++) {
        assert_true(strcmp(last, name) < 0);
        last = name;
        assert_int_equal(mf_tensor_describe(m, name, &info, NULL), MF_OK);
        assert_string_equal(info.name, name);
        assert_true(info.n_rows > 0 && info.n_cols > 0 && info.bytes > 0);
        bytes += info.bytes;
    }
    assert_true(n > 50);
    assert_int_equal(bytes, mf_model_info_get(m)->trunk_bytes); /* nothing here has scales beside it */
    assert_int_equal(mf_tensor_describe(m, "model.embed_tokens.weight", &info, NULL), MF_OK);
    assert_int_equal(info.n_rows, TINY_VOCAB);
    assert_int_equal(info.n_cols, TINY_HIDDEN);
    assert_int_equal(info.bits, 0);
    mf_model_close(m);
}

/* A model whose matrices have scales: rows decode to what a product with them uses. */
static const char *quantized;

static void test_tensors_with_scales(void **state) {
    mf_model *m;
    mf_model_options opt;
    mf_tensor_info info;
    (void)state;
    mf_model_options_init(&opt);
    opt.backend = "ref";
    assert_int_equal(mf_model_open(quantized, &opt, &m, NULL), MF_OK);
    int32_t n = mf_model_info_get(m)->n_hidden;
    assert_int_equal(mf_tensor_describe(m, "model.embed_tokens.weight", &info, NULL), MF_OK);
    assert_int_equal(info.n_cols, n);
    assert_int_equal(info.bits, 8);
    assert_int_equal(info.group, 64);
    assert_true(info.bytes > info.n_rows * info.n_cols);
    float *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    assert_int_equal(mf_embedding(m, 17, a, (size_t)n, NULL), MF_OK);
    assert_int_equal(mf_tensor_rows(m, "model.embed_tokens.weight", 17, 1, b, (size_t)n, NULL), MF_OK);
    assert_memory_equal(a, b, (size_t)n * sizeof *a);
    free(a);
    free(b);
    mf_model_close(m);
}

static void test_expert(void **state) {
    mf_model *m = tiny_open(*state, 1);
    int64_t size = mf_expert_bytes(m);
    int32_t n_experts = mf_model_info_get(m)->n_experts;
    char path[128];
    struct stat st;
    assert_true(size > 0 &&
                size * n_experts * mf_model_info_get(m)->n_expert_layers == mf_model_info_get(m)->expert_bytes);
    uint8_t *a = malloc((size_t)size), *b = malloc((size_t)size);
    snprintf(path, sizeof path, "%s/packed_experts/layer_03.bin", (const char *)*state);
    assert_int_equal(stat(path, &st), 0);
    for (int e = 0; e < n_experts; e += n_experts - 1) {
        int fd = open(path, O_RDONLY);
        assert_int_equal(pread(fd, b, (size_t)size, e * (st.st_size / n_experts)), size);
        close(fd);
        assert_int_equal(mf_expert_read(m, 3, e, a, (size_t)size, NULL), MF_OK);
        assert_memory_equal(a, b, (size_t)size);
    }
    free(a);
    free(b);
    mf_model_close(m);
}

static const mf_profile_row *row_of(const mf_profile_row *rows, size_t n, const char *op, int layer) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].layer == layer && !strcmp(rows[i].op, op)) return &rows[i];
    return NULL;
}

static void test_profile(void **state) {
    enum { MAX = 512 };
    mf_model *m = tiny_open(*state, 1);
    mf_profile_row rows[MAX];
    size_t n = 7, again;
    assert_int_equal(mf_profile_get(m, rows, MAX, &n, NULL), MF_OK);
    assert_int_equal(n, 0);
    assert_int_equal(mf_profile_start(m, NULL), MF_OK);
    evaluate(m, NULL);
    mf_profile_stop(m);
    assert_int_equal(mf_profile_get(m, rows, MAX, &n, NULL), MF_OK);
    assert_true(n > TINY_LAYERS && n <= MAX);
    for (size_t i = 0; i < n; i++) {
        assert_true(rows[i].n_runs > 0 && rows[i].ns >= 0 && rows[i].bytes > 0);
        assert_true(rows[i].layer >= -1 && rows[i].layer < TINY_LAYERS && (!i || rows[i].layer >= rows[i - 1].layer));
    }
    assert_non_null(row_of(rows, n, "head", -1));
    assert_null(row_of(rows, n, "head", 0));
    for (int l = 0; l < TINY_LAYERS; l++) {
        bool full = l % 4 == 3; /* attention there, the delta rule elsewhere */
        assert_true((row_of(rows, n, "attention", l) != NULL) == full);
        assert_true((row_of(rows, n, "delta_net", l) != NULL) == !full);
        assert_non_null(row_of(rows, n, "experts", l));
        assert_true(row_of(rows, n, "route", l)->n_runs >= 1); /* once more where it was asked ahead of its turn */
    }
    evaluate(m, NULL); /* nobody measures */
    mf_profile_row first = rows[0];
    assert_int_equal(mf_profile_get(m, rows, 1, &again, NULL), MF_OK);
    assert_int_equal(again, n);
    assert_int_equal(rows[0].n_runs, first.n_runs);
    mf_model_close(m);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probes),  cmocka_unit_test(test_embedding),
        cmocka_unit_test(test_tensors), cmocka_unit_test(test_tensors_with_scales),
        cmocka_unit_test(test_expert),  cmocka_unit_test(test_profile),
    };
    if (argc < 3) return 2;
    tiny_checkpoint = argv[1];
    quantized = argv[2];
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
