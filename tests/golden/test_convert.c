/* Conversion from inside: stopping it at any moment leaves no model, only what the next run goes on with; and the bits
 * asked for are the bits written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "convert/convert.h"
#include "tiny.h"
#include "weights/native.h"

static char target[64], partial[80];

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
        float logits[TINY_VOCAB];
        mf__convert_options_init(&opt);
        opt.expert_bits = bits[i][0];
        opt.trunk_bits = bits[i][1];
        assert_int_equal(convert(&opt, &w, NULL), MF_OK);
        assert_experts(bits[i][0]);
        assert_trunk("model.layers.3.self_attn.o_proj.weight", 256, bits[i][1]);
        assert_trunk("model.layers.3.mlp.gate.weight", TINY_HIDDEN, 0); /* routers are kept */
        assert_vectors();
        mf_model *m = tiny_open(target, 1);
        mf_session *s = tiny_session(m, 8, 0);
        tiny_eval(s, 3, logits);
        for (int v = 0; v < TINY_VOCAB; v++) assert_true(logits[v] == logits[v]);
        mf_session_free(s);
        mf_model_close(m);
        assert_int_equal(mf__dir_remove(target, NULL), MF_OK);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopping_leaves_no_model),
        cmocka_unit_test(test_bits_are_those_asked_for),
    };
    if (argc != 2) return 2;
    tiny_checkpoint = argv[1];
    snprintf(target, sizeof target, "convert_%ld", (long)getpid());
    snprintf(partial, sizeof partial, "%s.partial", target);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
