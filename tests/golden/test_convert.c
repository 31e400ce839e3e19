/* Conversion from inside: stopping it at any moment leaves no model, only what the next run goes on with; and the bits
 * asked for are the bits written. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "convert/calibrate.h"
#include "convert/convert.h"
#include "convert/encode.h"
#include "convert/sample.h"
#include "convert/shard.h"
#include "convert/spend.h"
#include "convert/verify.h"
#include "tiny.h"
#include "weights/native.h"

static char target[64], partial[80];

/* What is synced, by name, while somebody listens: the library's calls come here first. */
static char synced[4096];
static bool listening;

int fsync(int fd) {
    char link[64], path[256];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = listening ? readlink(link, path, sizeof path - 1) : -1;
    size_t used = strlen(synced);
    if (n > 0) snprintf(synced + used, sizeof synced - used, "%.*s\n", (int)n, path);
    return (int)syscall(SYS_fsync, fd);
}

/* What the progress callback saw, and when it is to stop. */
typedef struct watch {
    int calls, stop_at; /* -1: never */
    int64_t done, total;
} watch;

static bool on_progress(void *user, int64_t done, int64_t total) {
    watch *w = user;
    assert_true(done >= w->done && done <= total);
    assert_true(w->calls == 0 || total == w->total);
    w->done = done;
    w->total = total;
    return w->calls++ == w->stop_at;
}

static mf_status convert(mf__convert_options *opt, watch *w, mf_error *err) {
    opt->progress = on_progress;
    opt->progress_user = w;
    return mf__convert(tiny_checkpoint, target, opt, err);
}

static void test_stopping_leaves_no_model(void **state) {
    mf__convert_options opt;
    watch all = {.stop_at = -1};
    (void)state;
    mf__convert_options_init(&opt);
    assert_int_equal(convert(&opt, &all, NULL), MF_OK);
    assert_int_equal(all.done, all.total);
    assert_true(all.calls > 10);
    assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    const int when[] = {0, 1, all.calls / 2, all.calls - 1};
    for (size_t i = 0; i < sizeof when / sizeof *when; i++) {
        watch w = {.stop_at = when[i]}, rest = {.stop_at = -1};
        mf_error err = {0};
        opt.restart = i % 2;
        assert_int_equal(convert(&opt, &w, &err), MF_E_CANCELLED);
        assert_false(mf__path_exists(target));
        if (when[i] == 0) assert_false(mf__path_exists(partial)); /* nothing was finished */
        if (mf__path_exists(partial)) assert_non_null(strstr(err.text, "goes on from there"));
        opt.restart = false;
        assert_int_equal(convert(&opt, &rest, NULL), MF_OK);
        assert_int_equal(rest.done, rest.total);
        assert_true(when[i] < 2 || rest.calls < all.calls);
        assert_false(mf__path_exists(partial));
        assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    }
}

/* What was written opens, and says numbers. */
static void assert_runs(void) {
    float logits[TINY_VOCAB];
    mf_model *m = tiny_open(target, 1);
    mf_session *s = tiny_session(m, 8, 0);
    tiny_eval(s, 3, logits);
    for (int v = 0; v < TINY_VOCAB; v++) assert_true(isfinite(logits[v]));
    mf_session_free(s);
    mf_model_close(m);
}

static void assert_experts(int bits) {
    mf__native n;
    assert_int_equal(mf__native_open(target, &n, NULL), MF_OK);
    for (int p = 0; p < MF_PART_COUNT; p++) {
        assert_int_equal(n.layout.part[p].type, bits ? MF_TYPE_AFFINE : MF_TYPE_BF16);
        if (bits) assert_int_equal(n.layout.part[p].bits, bits);
    }
    mf__native_close(&n);
}

static void assert_trunk(const char *name, int64_t n_cols, int bits) {
    mf__native n;
    mf__tensor t;
    assert_int_equal(mf__native_open(target, &n, NULL), MF_OK);
    assert_int_equal(mf__catalog_tensor(n.catalog, name, n_cols, &t, NULL), MF_OK);
    assert_int_equal(t.type == MF_TYPE_AFFINE ? t.bits : 0, bits);
    mf__native_close(&n);
}

/* What is not a matrix is F32 whatever the bits: norms, convolutions, decays are few values, and every one counts. */
static void assert_vectors(void) {
    static const char *const names[] = {
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.linear_attn.conv1d.weight",
        "model.layers.0.linear_attn.A_log",
        "model.layers.0.linear_attn.dt_bias",
        "model.layers.0.linear_attn.norm.weight",
        "model.layers.3.self_attn.q_norm.weight",
        "model.layers.3.self_attn.k_norm.weight",
    };
    mf__native n;
    assert_int_equal(mf__native_open(target, &n, NULL), MF_OK);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const mf__entry *e = mf__catalog_find(n.catalog, names[i]);
        assert_non_null(e);
        assert_int_equal(e->type, MF_TYPE_F32);
    }
    mf__native_close(&n);
}

static void test_bits_are_those_asked_for(void **state) {
    static const int bits[][2] = {{0, 0}, {4, 8}, {2, 0}, {0, 6}, {5, 3}};
    (void)state;
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++) {
        mf__convert_options opt;
        watch w = {.stop_at = -1};
        mf__convert_options_init(&opt);
        opt.expert_bits = bits[i][0];
        opt.trunk_bits = bits[i][1];
        assert_int_equal(convert(&opt, &w, NULL), MF_OK);
        assert_experts(bits[i][0]);
        assert_trunk("model.layers.3.self_attn.o_proj.weight", 256, bits[i][1]);
        assert_trunk("model.layers.3.mlp.gate.weight", TINY_HIDDEN, 0); /* routers are kept */
        assert_vectors();
        assert_runs();
        assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    }
}

/* ---- calibration ---- */

/* Of the tiny model: tokens that go to the experts below `most` alone, so that the others are never seen. */
static mf__sample *make_sample(int most) {
    enum { TOKENS = 300, EXPERTS = 8, TOP = 2 };
    mf__sample_shape shape = {
        .n_layers = TINY_LAYERS, .n_experts = EXPERTS, .top_k = TOP, .n_hidden = TINY_HIDDEN, .max_tokens = TOKENS};
    mf__sample *s;
    mf_error err;
    uint32_t seed = 7;
    float row[TINY_HIDDEN];
    assert_int_equal(mf__sample_create(".", &shape, &s, &err), MF_OK);
    for (int t = 0; t < TOKENS; t++) {
        for (int l = 0; l < TINY_LAYERS; l++) {
            float ids[TOP] = {(float)(t % most), (float)((t + 1) % most)}, shares[TOP] = {0.7f, 0.3f};
            for (int i = 0; i < TINY_HIDDEN; i++) {
                seed = seed * 1664525u + 1013904223u;
                row[i] = (float)(seed >> 8) / 8388608.0f - 1.0f + (i ? row[i - 1] * 0.5f : 0);
            }
            assert_int_equal(mf__sample_rows(s, l, row, 1, NULL), MF_OK);
            assert_int_equal(mf__sample_ids(s, l, ids, 1, NULL), MF_OK);
            assert_int_equal(mf__sample_shares(s, l, shares, 1, NULL), MF_OK);
        }
        mf__sample_count(s, 1);
    }
    assert_int_equal(mf__sample_rows(s, 0, row, 1, &err), MF_E_INVALID); /* full */
    return s;
}

/* The experts' bytes of all layers, for comparison. */
static char *expert_bytes(size_t *size) {
    char *all = NULL;
    *size = 0;
    for (int l = 0; l < TINY_LAYERS; l++) {
        char path[128], *bytes;
        size_t n;
        snprintf(path, sizeof path, "%s/packed_experts/layer_%02d.bin", target, l);
        assert_int_equal(mf__file_read(path, 1 << 26, &bytes, &n, NULL), MF_OK);
        all = realloc(all, *size + n);
        memcpy(all + *size, bytes, n);
        *size += n;
        free(bytes);
    }
    return all;
}

static void calibrated(mf__convert_options *opt, const mf__sample *sample, int threads, bool scales_only) {
    mf__convert_options_init(opt);
    opt->expert_bits = 3;
    opt->group = 32;
    opt->n_threads = threads;
    opt->sample = sample;
    opt->calibration = "a text";
    opt->scales_only = scales_only;
}

/* The number of threads, and being stopped on the way, change nothing; a calibration does; experts that it never saw
 * are there all the same. */
static void test_calibrated_bytes(void **state) {
    (void)state;
    mf__sample *sample = make_sample(3);
    for (int scales_only = 0; scales_only < 2; scales_only++) {
        char *first = NULL, *bytes;
        size_t size;
        for (int run = 0; run < 5; run++) { /* 1, 2, 3 threads; stopped and gone on with; without a calibration */
            mf__convert_options opt;
            watch w = {.stop_at = -1}, half = {.stop_at = 6};
            calibrated(&opt, run == 4 ? NULL : sample, run % 3 + 1, scales_only);
            if (run == 4) opt.calibration = NULL;
            if (run == 3) assert_int_equal(convert(&opt, &half, NULL), MF_E_CANCELLED);
            assert_false(mf__path_exists(target));
            assert_int_equal(convert(&opt, &w, NULL), MF_OK);
            bytes = expert_bytes(&size);
            if (run == 0) {
                first = bytes;
                assert_runs();
                double cosine = 0;
                mf__verify_options how = {0};
                assert_int_equal(mf__verify(target, &how, NULL, NULL), MF_OK);
                assert_int_equal(mf__verify_against(target, tiny_checkpoint, &how, &cosine, NULL), MF_OK);
                assert_true(cosine > 0.7 && cosine < 1);
            } else {
                assert_int_equal(memcmp(first, bytes, size) == 0, run < 4);
                free(bytes);
            }
            assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
        }
        free(first);
    }
    mf__sample_free(sample);
}

/* A row with a NaN, where that may pass, changes nothing of the rows beside it: which those are depends on the number
 * of threads. */
static void test_nonfinite_rows_stay_apart(void **state) {
    enum { ROWS = 70, COLS = 64, GROUP = 32, BITS = 3, ROW = COLS * BITS / 8, SCALES = COLS / GROUP * 2 };
    static float from[ROWS][COLS], factor[COLS][COLS];
    static uint8_t first[ROWS][ROW + 2 * SCALES], bytes[ROWS][ROW + 2 * SCALES];
    uint8_t data[ROWS * ROW], scales[ROWS * SCALES], biases[ROWS * SCALES];
    uint32_t seed = 5;
    (void)state;
    for (int i = 0; i < ROWS * COLS; i++) {
        seed = seed * 1664525u + 1013904223u;
        from[i / COLS][i % COLS] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
    for (int i = 0; i < COLS; i++)
        for (int k = i; k < COLS; k++) factor[i][k] = i == k ? 1 : 0.3f;
    float *strips = malloc((size_t)(3 * mf__encode_strip(COLS)) * sizeof *strips);
    float *scratch = malloc((size_t)(3 * mf__encode_scratch(COLS)) * sizeof *scratch);
    mf__tensor stored = {.type = MF_TYPE_F32, .n_planes = 1, .n_rows = ROWS, .n_cols = COLS, .data = from};
    for (int run = 0; run < 4; run++) { /* all are finite; then one is not, with 1, 2 and 3 threads */
        mf__source src = mf__source_plain(&stored);
        mf__feedback feedback = {.n_cols = COLS, .factor = factor[0]};
        mf__encode e = {.name = "rows", .src = &src, .allow_nonfinite = true, .data = data, .scales = scales};
        mf__pool *pool;
        if (run == 1) from[40][7] = NAN;
        e.dst = (mf__tensor){.type = MF_TYPE_AFFINE,
                             .n_planes = 1,
                             .n_rows = ROWS,
                             .n_cols = COLS,
                             .bits = BITS,
                             .group = GROUP,
                             .scale_type = MF_TYPE_BF16,
                             .block_rows = 1};
        e.biases = biases;
        e.scratch = scratch;
        e.feedback = &feedback;
        e.strips = strips;
        assert_int_equal(mf__pool_create(run ? run : 1, &pool, NULL), MF_OK);
        assert_int_equal(mf__encode_run(&e, pool, NULL, NULL), MF_OK);
        mf__pool_free(pool);
        for (int r = 0; r < ROWS; r++) {
            memcpy(bytes[r], data + r * ROW, ROW);
            memcpy(bytes[r] + ROW, scales + r * SCALES, SCALES);
            memcpy(bytes[r] + ROW + SCALES, biases + r * SCALES, SCALES);
            if (run && r != 40 && memcmp(first[r], bytes[r], sizeof bytes[r]))
                fail_msg("row %d with %d threads, beside one that has a NaN", r, run);
        }
        if (run == 0) memcpy(first, bytes, sizeof first);
    }
    free(strips);
    free(scratch);
}

/* A sample of the same sizes is of no use to experts that have no gate. */
static void gateless_experts_are_refused(const mf__convert_options *opt, const mf__sample_shape *shape) {
    static mf__plan plan;
    mf__calibrator *none;
    mf_error err;
    plan = (mf__plan){.opt = opt};
    plan.bp.config.family = &mf__nemotron_h;
    plan.bp.config.n_layers = shape->n_layers;
    plan.bp.config.n_hidden = (int32_t)shape->n_hidden;
    plan.bp.config.moe.n_experts = shape->n_experts;
    plan.bp.config.moe.n_inner = 32;
    plan.bp.config.moe.glu.kind = MF_GLU_RELU2;
    assert_int_equal(mf__calibrator_open(&plan, NULL, 0, &none, &err), MF_E_UNSUPPORTED);
    assert_non_null(strstr(err.text, "without a gate, as those of the family nemotron_h"));
    assert_null(none);
}

/* What a calibration cannot be for is said before anything is written; work of another calibration is not gone on
 * with. */
static void test_calibrations_that_cannot_be(void **state) {
    (void)state;
    mf__sample *sample = make_sample(3), *other;
    mf__sample_shape shape = {.n_layers = 3, .n_experts = 4, .top_k = 1, .n_hidden = 64, .max_tokens = 8};
    mf__convert_options opt;
    mf_error err;
    watch w = {.stop_at = -1}, half = {.stop_at = 6}, again = {.stop_at = -1};
    calibrated(&opt, sample, 1, false);
    opt.expert_bits = MF_BITS_KEEP;
    assert_int_equal(convert(&opt, &w, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "stays as it is"));
    assert_int_equal(mf__sample_create(".", &shape, &other, NULL), MF_OK);
    calibrated(&opt, other, 1, false);
    assert_int_equal(convert(&opt, &w, &err), MF_E_MISMATCH);
    assert_non_null(strstr(err.text, "the calibration is of a model with 3 layers, 4 experts"));
    gateless_experts_are_refused(&opt, &shape);
    assert_false(mf__path_exists(target) || mf__path_exists(partial));
    calibrated(&opt, sample, 1, false);
    assert_int_equal(convert(&opt, &half, &err), MF_E_CANCELLED);
    opt.calibration = "another text";
    assert_int_equal(convert(&opt, &again, &err), MF_E_EXISTS);
    assert_int_equal(mf__dir_remove(partial, NULL), MF_OK);
    mf__sample_free(other);
    mf__sample_free(sample);
}

/* The manifest, changed by `change` in its description of a set of experts. */
static void edit_manifest(const char *set, void (*change)(json_t *set)) {
    char path[128];
    json_t *root;
    snprintf(path, sizeof path, "%s/model_weights.json", target);
    assert_int_equal(mf__json_read(path, 1 << 26, &root, NULL), MF_OK);
    change(json_object_get(json_object_get(root, "moeflux"), set));
    assert_int_equal(json_dump_file(root, path, 0), 0);
    json_decref(root);
}

static void double_stride(json_t *set) {
    json_object_set_new(set, "stride", json_integer(2 * json_integer_value(json_object_get(set, "stride"))));
}

static void swap_gate_and_up(json_t *set) {
    static const char *const keys[] = {"data", "scales", "biases"};
    json_t *parts = json_object_get(set, "parts"), *gate = json_array_get(parts, 0), *up = json_array_get(parts, 1);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        json_t *of_gate = json_incref(json_object_get(gate, keys[i]));
        assert_non_null(of_gate);
        json_object_set(gate, keys[i], json_object_get(up, keys[i]));
        json_object_set_new(up, keys[i], of_gate);
    }
}

/* Every expert of a layer's file at twice its distance from the first. */
static void spread_experts(const char *dir, int layer, int n_experts) {
    char path[128], *bytes;
    size_t size;
    snprintf(path, sizeof path, "%s/%s/layer_%02d.bin", target, dir, layer);
    assert_int_equal(mf__file_read(path, 1 << 26, &bytes, &size, NULL), MF_OK);
    size_t stride = size / (size_t)n_experts;
    char *apart = calloc(2, size);
    assert_non_null(apart);
    for (int e = 0; e < n_experts; e++) memcpy(apart + 2 * (size_t)e * stride, bytes + (size_t)e * stride, stride);
    assert_int_equal(mf__file_replace(path, apart, 2 * size, NULL), MF_OK);
    free(apart);
    free(bytes);
}

/* A calibrated model is compared part by part, wherever its parts are, and so are its small copies. */
static void test_calibrated_against_its_source(void **state) {
    (void)state;
    mf__sample *sample = make_sample(8);
    mf__convert_options opt;
    mf__verify_options how = {.n_threads = 1};
    watch w = {.stop_at = -1};
    double cosine[2];
    mf_error err = {0};
    char path[128], *bytes;
    size_t size;
    calibrated(&opt, sample, 1, true);
    opt.also_bits = 2;
    assert_int_equal(convert(&opt, &w, NULL), MF_OK);
    if (mf__verify_against(target, tiny_checkpoint, &how, &cosine[0], &err)) fail_msg("%s", err.text);
    for (int l = 0; l < TINY_LAYERS; l++) spread_experts("packed_experts", l, 8);
    edit_manifest("experts", double_stride);
    if (mf__verify_against(target, tiny_checkpoint, &how, &cosine[1], &err)) fail_msg("%s", err.text);
    assert_true(cosine[0] == cosine[1]);
    edit_manifest("experts", swap_gate_and_up);
    assert_int_equal(mf__verify_against(target, tiny_checkpoint, &how, NULL, &err), MF_E_MISMATCH);
    assert_non_null(strstr(err.text, "laid out unlike"));
    edit_manifest("experts", swap_gate_and_up);
    snprintf(path, sizeof path, "%s/packed_experts_2bit/layer_05.bin", target);
    assert_int_equal(mf__file_read(path, 1 << 26, &bytes, &size, NULL), MF_OK);
    memcpy(bytes + size / 8 * 3, bytes, size / 8); /* expert 0 in the place of 3 */
    assert_int_equal(mf__file_replace(path, bytes, size, NULL), MF_OK);
    assert_int_equal(mf__verify_against(target, tiny_checkpoint, &how, NULL, &err), MF_E_MISMATCH);
    assert_non_null(strstr(err.text, "layer 5, expert 3 (small copy)"));
    free(bytes);
    assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    mf__sample_free(sample);
}

/* Experts that have 4 bits already, in groups of 64: widths that are spent may leave a part as it is, not all. */
static void test_calibrated_experts_of_few_bits(void **state) {
    (void)state;
    mf__sample *sample = make_sample(8);
    char source[256];
    mf_error err = {0};
    watch w = {.stop_at = -1};
    mf__spending spent;
    mf__convert_options opt;
    snprintf(source, sizeof source, "%s-mlx4", tiny_checkpoint);
    calibrated(&opt, sample, 1, true);
    opt.progress = on_progress;
    opt.progress_user = &w;
    opt.expert_bits = 4;
    opt.group = 64;
    assert_int_equal(mf__convert(source, target, &opt, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "stays as it is"));
    opt.part_bits[MF_PART_DOWN] = 3;
    if (mf__convert(source, target, &opt, &err)) fail_msg("%s", err.text);
    assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    if (mf__spend_bits(source, 4.2, &opt, &spent, &err)) fail_msg("%s", err.text);
    w = (watch){.stop_at = -1};
    if (mf__convert(source, target, &opt, &err)) fail_msg("%s", err.text);
    assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    mf__sample_free(sample);
}

/* Small copies that would be as large as the experts are refused. */
static void test_small_copies_are_small(void **state) {
    (void)state;
    for (int bits = 2; bits <= 3; bits++) {
        mf__convert_options opt;
        watch w = {.stop_at = -1};
        mf_error err = {0};
        mf__convert_options_init(&opt);
        opt.group = 128; /* down has rows of 64 */
        opt.also_bits = bits;
        assert_int_equal(convert(&opt, &w, &err), MF_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "down with rows of 64 does not split into groups of 128"));
    }
}

/* Single matrices of small copies can have other widths, as long as a copy is smaller than its expert. */
static void test_small_copies_have_their_own_widths(void **state) {
    (void)state;
    mf__convert_options opt;
    mf__verify_options how = {0};
    watch w = {.stop_at = -1};
    mf__native n;
    mf__expert_layout small;
    mf_error err = {0};
    int n_experts = 0;
    mf__convert_options_init(&opt);
    opt.expert_bits = 4;
    opt.also_bits = 3;
    opt.also_part_bits[MF_PART_DOWN] = 4;
    assert_int_equal(convert(&opt, &w, NULL), MF_OK);
    assert_int_equal(mf__native_open(target, &n, NULL), MF_OK);
    const json_t *set = json_object_get(json_object_get(n.manifest, "moeflux"), "experts_2bit");
    assert_int_equal(mf__native_experts_parse(set, &small, &n_experts, NULL), MF_OK);
    static const int bits[] = {3, 3, 4};
    for (int p = 0; p < MF_PART_COUNT; p++) assert_int_equal(small.part[p].bits, bits[p]);
    mf__native_close(&n);
    assert_int_equal(mf__verify(target, &how, NULL, NULL), MF_OK);
    if (mf__verify_against(target, tiny_checkpoint, &how, NULL, &err))
        fail_msg("%s", err.text); /* by what it says of itself */
    assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    opt.expert_bits = 3;
    assert_int_equal(convert(&opt, &w, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "would be of no use"));
    opt.also_part_bits[MF_PART_DOWN] = 7;
    assert_int_equal(convert(&opt, &w, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "small copies' down: 7 bits"));
}

/* ---- mixed widths ---- */

static void test_parts_have_their_own_widths(void **state) {
    (void)state;
    mf__convert_options opt;
    mf__verify_options how = {0};
    watch w = {.stop_at = -1};
    mf__native n;
    mf__convert_options_init(&opt);
    opt.expert_bits = 4;
    opt.part_bits[MF_PART_GATE] = 3;
    opt.part_bits[MF_PART_DOWN] = 5;
    opt.part_group[MF_PART_DOWN] = 32;
    assert_int_equal(convert(&opt, &w, NULL), MF_OK);
    assert_int_equal(mf__native_open(target, &n, NULL), MF_OK);
    static const int bits[] = {3, 4, 5}, groups[] = {64, 64, 32};
    for (int p = 0; p < MF_PART_COUNT; p++) {
        assert_int_equal(n.layout.part[p].bits, bits[p]);
        assert_int_equal(n.layout.part[p].group, groups[p]);
    }
    mf__native_close(&n);
    assert_int_equal(mf__verify(target, &how, NULL, NULL), MF_OK);
    assert_int_equal(mf__verify_against(target, tiny_checkpoint, &how, NULL, NULL), MF_OK);
    assert_runs();
    assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    mf_error err;
    opt.part_bits[MF_PART_UP] = 7;
    assert_int_equal(convert(&opt, &w, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "up: 7 bits"));
}

static void test_bits_are_spent_near_the_target(void **state) {
    (void)state;
    static const double targets[] = {2.6, 3.2, 4.1};
    mf__sample *sample = make_sample(8);
    double last = INFINITY;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        mf__convert_options opt;
        mf__spending with, without;
        mf_error err;
        mf__convert_options_init(&opt);
        assert_int_equal(mf__spend_bits(tiny_checkpoint, targets[i], &opt, &without, &err), MF_OK);
        assert_true(fabs(without.bits_per_weight - targets[i]) <= 0.0501);
        double error = 0;
        for (int p = 0; p < MF_PART_COUNT; p++) error += without.error[p] * without.error[p];
        assert_true(error < last);
        last = error;
        if (i) continue;
        assert_int_equal(mf__spend_bits(tiny_checkpoint, 1.5, &opt, &with, &err), MF_E_INVALID);
        assert_non_null(strstr(err.text, "the nearest are"));
        opt.sample = sample;
        opt.calibration = "a text";
        assert_int_equal(mf__spend_bits(tiny_checkpoint, targets[i], &opt, &with, &err), MF_OK);
        assert_true(with.of_output && !without.of_output);
        assert_true(fabs(with.bits_per_weight - targets[i]) <= 0.0501);
        assert_memory_equal(opt.part_bits, with.bits, sizeof with.bits);
    }
    mf__sample_free(sample);
}

/* ---- shards ---- */

/* A directory of the working directory's, in synced; "" is that itself. */
static const char *find_synced(const char *name) {
    char line[512];
    assert_non_null(getcwd(line, sizeof line - 128));
    snprintf(line + strlen(line), 128, "%s%s\n", *name ? "/" : "", name);
    return strstr(synced, line);
}

/* A shard that has its name is on the disk, name and all. */
static void test_shards_are_synced(void **state) {
    (void)state;
    uint64_t owners[TINY_LAYERS * 8];
    mf__shard what = {.n_ranks = 2, .rank = 1, .n_layers = TINY_LAYERS, .n_experts = 8, .owners = owners};
    mf__convert_options opt;
    mf__shard_options how = {0};
    watch w = {.stop_at = -1};
    mf_error err = {0};
    char dst[80], experts[128], top[96];
    for (int i = 0; i < TINY_LAYERS * 8; i++) owners[i] = 1 + (uint64_t)i % 2;
    mf__convert_options_init(&opt);
    assert_int_equal(convert(&opt, &w, NULL), MF_OK);
    snprintf(dst, sizeof dst, "%s-shard", target);
    snprintf(top, sizeof top, "%s.partial", dst);
    snprintf(experts, sizeof experts, "%s/packed_experts", top);
    *synced = '\0';
    listening = true;
    mf_status st = mf__shard_make(target, dst, &what, &how, &err);
    listening = false;
    if (st != MF_OK) fail_msg("%s", err.text);
    assert_non_null(find_synced(experts));
    assert_non_null(find_synced(top));
    assert_true(find_synced("") > find_synced(top)); /* and last the folder, in which the name is */
    assert_int_equal(mf__dir_remove(dst, NULL), MF_OK);
    assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopping_leaves_no_model),
        cmocka_unit_test(test_bits_are_those_asked_for),
        cmocka_unit_test(test_calibrated_bytes),
        cmocka_unit_test(test_nonfinite_rows_stay_apart),
        cmocka_unit_test(test_calibrations_that_cannot_be),
        cmocka_unit_test(test_calibrated_against_its_source),
        cmocka_unit_test(test_calibrated_experts_of_few_bits),
        cmocka_unit_test(test_small_copies_are_small),
        cmocka_unit_test(test_small_copies_have_their_own_widths),
        cmocka_unit_test(test_parts_have_their_own_widths),
        cmocka_unit_test(test_bits_are_spent_near_the_target),
        cmocka_unit_test(test_shards_are_synced),
    };
    if (argc != 2) return 2;
    tiny_checkpoint = argv[1];
    snprintf(target, sizeof target, "convert_%ld", (long)getpid());
    snprintf(partial, sizeof partial, "%s.partial", target);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
