/* Random models: they open and run, the same seed gives the same bytes, damage is found by verify, and the experts are
 * as popular as asked for, counted on the routes the model takes. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "convert/synth.h"
#include "convert/verify.h"
#include "weights/native.h"

enum { LAYERS = 4, EXPERTS = 64, TOP = 4, HIDDEN = 256, VOCAB = 512, TOKENS = 1024 };

static char dir[64];

static void make(double popularity, uint64_t seed, const char *where) {
    mf__synth_options opt;
    mf_error err = {0};
    mf__synth_options_init(&opt);
    opt.shape = "tiny";
    opt.popularity = popularity;
    opt.seed = seed;
    if (mf__synth(&opt, where, &err)) fail_msg("%s", err.text);
}

static mf_status verify(const char *where, mf__verify_result *r, mf_error *err) {
    mf__verify_options opt = {0};
    return mf__verify(where, &opt, r, err);
}

/* ---- routes, counted from outside: what the router sees, times its matrix, the largest TOP ---- */

typedef struct counter {
    mf__native native;
    float *router[LAYERS]; /* [EXPERTS][HIDDEN] */
    int64_t count[LAYERS][EXPERTS];
} counter;

static void on_probe(void *user, const char *name, int layer, const float *data, int n_rows, int n_cols) {
    counter *c = user;
    if (strcmp(name, "h_post")) return;
    assert_int_equal(n_cols, HIDDEN);
    for (int r = 0; r < n_rows; r++) {
        double logit[EXPERTS];
        for (int e = 0; e < EXPERTS; e++) {
            logit[e] = 0;
            for (int i = 0; i < HIDDEN; i++)
                logit[e] += (double)c->router[layer][e * HIDDEN + i] * data[r * HIDDEN + i];
            assert_true(isfinite(logit[e]) && fabs(logit[e]) < 100);
        }
        for (int k = 0; k < TOP; k++) {
            int best = 0;
            for (int e = 1; e < EXPERTS; e++)
                if (logit[e] > logit[best]) best = e;
            c->count[layer][best]++;
            logit[best] = -INFINITY;
        }
    }
}

static void read_routers(counter *c) {
    assert_int_equal(mf__native_open(dir, &c->native, NULL), MF_OK);
    for (int l = 0; l < LAYERS; l++) {
        char name[64];
        mf__tensor t;
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
        assert_int_equal(mf__catalog_tensor(c->native.catalog, name, HIDDEN, &t, NULL), MF_OK);
        assert_int_equal(t.n_rows, EXPERTS);
        c->router[l] = malloc(sizeof(float) * EXPERTS * HIDDEN);
        assert_non_null(c->router[l]);
        for (int e = 0; e < EXPERTS; e++) mf__tensor_row_f32(&t, e, c->router[l] + e * HIDDEN);
    }
}

static void count_routes(counter *c) {
    mf_model *m;
    mf_session *s;
    mf_error err;
    mf_session_options opt;
    int32_t tokens[TOKENS];
    uint32_t x = 7;
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((x = x * 1664525u + 1013904223u) >> 16) % VOCAB;
    read_routers(c);
    mf_session_options_init(&opt);
    opt.probe = (mf_probe){on_probe, c};
    opt.n_ctx = 4096;
    if (mf_model_open(dir, NULL, &m, &err)) fail_msg("%s", err.text);
    if (mf_session_create(m, &opt, &s, &err)) fail_msg("%s", err.text);
    if (mf_eval_prompt(s, tokens, TOKENS, 0, NULL, 0, &err)) fail_msg("%s", err.text);
    mf_session_free(s);
    mf_model_close(m);
    for (int l = 0; l < LAYERS; l++) free(c->router[l]);
    mf__native_close(&c->native);
}

static int descending(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The slope of log(count) over log(rank), ranks 1 ... 32, by least squares: minus the exponent. */
static double exponent(const int64_t *counts) {
    int64_t sorted[EXPERTS];
    memcpy(sorted, counts, sizeof sorted);
    qsort(sorted, EXPERTS, sizeof *sorted, descending);
    double sx = 0, sy = 0, sxx = 0, sxy = 0, n = 0;
    for (int i = 0; i < 32; i++) {
        double lx = log(i + 1), ly = log((double)sorted[i] + 0.5);
        sx += lx, sy += ly, sxx += lx * lx, sxy += lx * ly, n++;
    }
    return -(n * sxy - sx * sy) / (n * sxx - sx * sx);
}

static void popularity(void **state) {
    static const double wanted[] = {0, 0.5, 0.8, 1.1};
    (void)state;
    for (size_t i = 0; i < MF__COUNT(wanted); i++) {
        counter c = {0};
        make(wanted[i], 3, dir);
        count_routes(&c);
        assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
        double mean = 0;
        for (int l = 0; l < LAYERS; l++) {
            double got = exponent(c.count[l]);
            mean += got / LAYERS;
            if (wanted[i] > 0 && fabs(got - wanted[i]) > 0.2)
                fail_msg("layer %d follows a Zipf law with the exponent %.3f, %g was wanted", l, got, wanted[i]);
        }
        if (wanted[i] > 0 ? fabs(mean - wanted[i]) > 0.15 : mean > 0.25)
            fail_msg("the mean exponent is %.3f, %g was wanted", mean, wanted[i]);
        /* the favourites of one layer are not those of the next */
        int same = 0;
        for (int l = 1; l < LAYERS; l++) {
            int a = 0, b = 0;
            for (int e = 1; e < EXPERTS; e++) {
                if (c.count[l][e] > c.count[l][a]) a = e;
                if (c.count[l - 1][e] > c.count[l - 1][b]) b = e;
            }
            same += a == b;
        }
        assert_true(same < LAYERS - 1);
    }
}

static uint64_t bytes_of(const char *where, const char *name) {
    char path[160], *bytes;
    size_t size;
    uint64_t h = 1469598103934665603u;
    snprintf(path, sizeof path, "%s/%s", where, name);
    assert_int_equal(mf__file_read(path, 1 << 26, &bytes, &size, NULL), MF_OK);
    for (size_t i = 0; i < size; i++) h = (h ^ (uint8_t)bytes[i]) * 1099511628211u;
    free(bytes);
    return h;
}

static void seeds(void **state) {
    char other[80];
    (void)state;
    snprintf(other, sizeof other, "%s-other", dir);
    make(0, 5, dir);
    make(0, 5, other);
    static const char *const names[] = {"model_weights.bin", "packed_experts/layer_03.bin", "model_weights.json"};
    for (size_t i = 0; i < MF__COUNT(names); i++) assert_int_equal(bytes_of(dir, names[i]), bytes_of(other, names[i]));
    assert_int_equal(mf__dir_remove(other, NULL), MF_OK);
    make(0, 6, other);
    for (size_t i = 0; i < MF__COUNT(names); i++)
        assert_int_not_equal(bytes_of(dir, names[i]), bytes_of(other, names[i]));
    assert_int_equal(mf__dir_remove(other, NULL), MF_OK);
    assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
}

/* Flips one bit; again to flip it back. */
static void flip(const char *name, int64_t at) {
    char path[160];
    uint8_t byte;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void damage_is_found(void **state) {
    mf__verify_result r;
    mf_error err = {0};
    (void)state;
    make(0, 1, dir);
    if (verify(dir, &r, &err)) fail_msg("%s", err.text);
    assert_int_equal(r.n_experts, LAYERS * EXPERTS);
    assert_true(r.n_tensors > 100 && r.n_files == 2 && r.n_bad == 0);
    mf__native n;
    assert_int_equal(mf__native_open(dir, &n, NULL), MF_OK);
    const mf__entry *e = mf__catalog_find(n.catalog, "model.layers.2.mlp.shared_expert.up_proj.scales");
    int64_t at = e->offset + e->size - 1, stride = n.layout.stride, used = n.layout.bytes;
    mf__native_close(&n);
    static const struct {
        const char *file, *says;
        int64_t expert;
    } rows[] = {{"packed_experts/layer_00.bin", "layer 0, expert 0 ", 0},
                {"packed_experts/layer_03.bin", "layer 3, expert 63 ", 63},
                {"model_weights.bin", "tensor model.layers.2.mlp.shared_expert.up_proj.scales ", -1},
                {"config.json", "file config.json ", -2}};
    for (size_t i = 0; i < MF__COUNT(rows); i++) {
        int64_t where = rows[i].expert >= 0 ? rows[i].expert * stride + used - 1 : rows[i].expert == -1 ? at : 3;
        flip(rows[i].file, where);
        assert_int_equal(verify(dir, &r, &err), MF_E_FORMAT);
        if (rows[i].expert != -2 || strstr(err.text, "checksum")) assert_non_null(strstr(err.text, rows[i].says));
        flip(rows[i].file, where);
    }
    flip("packed_experts/layer_02.bin", 5 * stride);
    flip("packed_experts/layer_01.bin", 9 * stride);
    assert_int_equal(verify(dir, &r, &err), MF_E_FORMAT);
    assert_non_null(strstr(err.text, "layer 1, expert 9 "));
    assert_non_null(strstr(err.text, "first of 2"));
    assert_int_equal(r.n_bad, 2);
    assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
}

/* Small copies: the experts beside them stay as they are, verify reads both, and lossy reading uses them. */
static void small_copies(void **state) {
    char other[80];
    mf__synth_options opt;
    mf__verify_result r;
    mf_error err = {0};
    (void)state;
    snprintf(other, sizeof other, "%s-other", dir);
    mf__synth_options_init(&opt);
    opt.shape = "tiny";
    opt.also_bits = 2;
    if (mf__synth(&opt, dir, &err)) fail_msg("%s", err.text);
    make(0, opt.seed, other);
    assert_int_equal(bytes_of(dir, "packed_experts/layer_03.bin"), bytes_of(other, "packed_experts/layer_03.bin"));
    assert_int_equal(mf__dir_remove(other, NULL), MF_OK);
    if (verify(dir, &r, &err)) fail_msg("%s", err.text);
    assert_int_equal(r.n_experts, 2 * LAYERS * EXPERTS);
    flip("packed_experts_2bit/layer_02.bin", 7);
    assert_int_equal(verify(dir, &r, &err), MF_E_FORMAT);
    assert_non_null(strstr(err.text, "layer 2, expert 0 "));
    flip("packed_experts_2bit/layer_02.bin", 7);

    mf_model_options mo;
    mf_model *m;
    mf_session *s;
    mf_stats stats;
    float logits[VOCAB];
    mf_model_options_init(&mo);
    mo.n_threads = 1;
    mo.most_experts = LAYERS * EXPERTS / 4;
    mo.lossy.small = 2;
    if (mf_model_open(dir, &mo, &m, &err)) fail_msg("%s", err.text);
    if (mf_session_create(m, NULL, &s, &err)) fail_msg("%s", err.text);
    for (int32_t i = 0; i < 64; i++)
        if (mf_eval_token(s, i * 7 % VOCAB, i, logits, VOCAB, &err)) fail_msg("%s", err.text);
    mf_model_stats_get(m, &stats);
    assert_true(stats.lossy_small > 0);
    mf_session_free(s);
    mf_model_close(m);
    assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
}

static void refused(void **state) {
    mf__synth_options opt;
    mf_error err;
    (void)state;
    mf__synth_options_init(&opt);
    opt.shape = "huge";
    assert_int_equal(mf__synth(&opt, dir, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "a3b"));
    opt.shape = "deepseek";
    opt.n_layers = 2;
    assert_int_equal(mf__synth(&opt, dir, &err), MF_E_INVALID);
    opt.n_layers = 4;
    opt.popularity = 1;
    assert_int_equal(mf__synth(&opt, dir, &err), MF_E_UNSUPPORTED);
    opt.popularity = -1;
    assert_int_equal(mf__synth(&opt, dir, &err), MF_E_INVALID);
    opt.popularity = 0;
    opt.also_bits = 4;
    assert_int_equal(mf__synth(&opt, dir, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "2 and 3"));
    assert_false(mf__path_exists(dir));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(popularity),   cmocka_unit_test(seeds),   cmocka_unit_test(damage_is_found),
        cmocka_unit_test(small_copies), cmocka_unit_test(refused),
    };
    snprintf(dir, sizeof dir, "synth_%ld", (long)getpid());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
