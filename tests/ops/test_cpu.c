/* Shapes that reach every branch and tail of the cpu backend's kernels, on every instruction set this machine has or on
 * those named on the command line (backends.h). Integer products are held to the f32 tolerance with inputs that the
 * planes hold exactly. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backends.h"
#include "build.h"
#include "expect.h"

static const op_mode TOGETHER = {"together", OP_TOGETHER, false, 1, 0},
                     ROW_BY_ROW = {"row by row", OP_ROW_BY_ROW, true, 2, 0};

/* The cpu backend on each instruction set that is chosen. */
typedef struct racks {
    op_rack of[MF_CPU_LEVELS];
    int n;
} racks;

static racks open_levels(bool exact, int n_threads) {
    racks all = {.n = 0};
    for (mf__cpu_level level = MF_CPU_SCALAR; level < MF_CPU_LEVELS; level++)
        if (op_level_chosen(level)) all.of[all.n++] = op_open_cpu(level, exact, n_threads);
    return all;
}

static void close_levels(racks *all) {
    for (int i = 0; i < all->n; i++) op_close(&all->of[i]);
}

/* Row by row gives the same within the tolerance. */
static void run_on(const op_rack *r, op_rig *rig, const op_result *want, double tolerance, bool cut) {
    if (!r->be->supports(r->be, rig->op)) return;
    for (int pass = 0; pass < (cut ? 2 : 1); pass++) {
        op_result got;
        char what[160];
        op_result_init(&got, rig);
        op_run(rig, r->be, pass ? &ROW_BY_ROW : &TOGETHER, &got);
        snprintf(what, sizeof what, "%s on %s%s", rig->c->name, r->name, pass ? ", row by row" : "");
        op_compare(rig, what, &got, want, tolerance);
        op_result_free(&got);
    }
}

/* Runs the case everywhere and compares it with the expectation, which takes most of the time and is made once. */
static void run_case(const op_case *c, const racks *all, double tolerance, bool cut) {
    op_rig rig;
    op_result want;
    op_rig_init(&rig, c);
    op_result_init(&want, &rig);
    c->expect(&rig, &want);
    for (int i = 0; i < all->n; i++) run_on(&all->of[i], &rig, &want, tolerance, cut);
    op_result_free(&want);
    op_rig_free(&rig);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Products of this size cancel: an error counts against the largest value. */
static void test_int8_products(void **state) {
    static const int32_t TOKENS[] = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 20, 21, 33, 64};
    static const int BITS[] = {0, 2, 3, 4, 5, 6, 8}, GROUPS[] = {32, 64, 128}; /* 0: MXFP4, in groups of 32 alone */
    (void)state;
    racks all = open_levels(false, 3);
    for (size_t b = 0; b < MF__COUNT(BITS); b++)
        for (size_t g = 0; g < (BITS[b] ? MF__COUNT(GROUPS) : 1); g++)
            for (size_t t = 0; t < MF__COUNT(TOKENS); t++) {
                char name[64];
                snprintf(name, sizeof name, "%d bits, groups of %d, %d tokens", BITS[b], GROUPS[g], TOKENS[t]);
                op_case c = {.name = name,
                             .build = build_matmul,
                             .expect = expect_matmul,
                             .fill = fill_planes,
                             .seqs = {{TOKENS[t], 0}},
                             .cols = GROUPS[g] * (t % 2 ? 3 : 1), /* odd numbers of groups */
                             .rows = t % 3 ? 21 : 8,
                             .option = t % 2,
                             .w_type = BITS[b] ? MF_TYPE_AFFINE : MF_TYPE_MXFP4,
                             .bits = BITS[b] ? BITS[b] : 4,
                             .group = GROUPS[g]};
                run_case(&c, &all, 3e-6, false);
                if (BITS[b] != 4) continue;
                c.cols = GROUPS[g] * 4; /* whole pairs of vectors: nibbles that stay packed */
                run_case(&c, &all, 3e-6, false);
            }
    close_levels(&all);
}

/* More tokens than a batch, more rows than tiles, and as many groups as are turned at a time. */
static void test_long_passes(void **state) {
    static const int BITS[] = {0, 4, 6, 8};
    (void)state;
    racks all = open_levels(false, 2);
    for (size_t b = 0; b < MF__COUNT(BITS); b++) {
        op_case c = {.name = "a long pass",
                     .build = build_matmul,
                     .expect = expect_matmul,
                     .fill = fill_planes,
                     .seqs = {{129, 0}},
                     .cols = 64 * 35,
                     .rows = 37,
                     .w_type = BITS[b] ? MF_TYPE_AFFINE : MF_TYPE_MXFP4,
                     .bits = BITS[b] ? BITS[b] : 4,
                     .group = BITS[b] ? 64 : 32};
        run_case(&c, &all, 3e-6, false);
        c.cols = 64 * 36;
        run_case(&c, &all, 3e-6, false);
    }
    close_levels(&all);
}

/* More groups than are prepared at a time. */
static void test_long_rows(void **state) {
    (void)state;
    racks all = open_levels(false, 2);
    for (int tokens = 1; tokens <= 6; tokens += 5) {
        op_case c = {.name = "long rows",
                     .build = build_matmul,
                     .expect = expect_matmul,
                     .fill = fill_planes,
                     .seqs = {{tokens, 0}},
                     .cols = 32 * 131,
                     .rows = 5,
                     .w_type = MF_TYPE_AFFINE,
                     .bits = 4,
                     .group = 32};
        run_case(&c, &all, 3e-6, false);
        c.cols = 64 * 67, c.group = 64;
        run_case(&c, &all, 3e-6, false);
        c.bits = 8; /* rows that are not read side by side */
        run_case(&c, &all, 3e-6, false);
    }
    close_levels(&all);
}

static void test_float_products(void **state) {
    static const int32_t TOKENS[] = {1, 2, 3, 4, 5, 8, 9, 17, 33};
    static const mf__type TYPES[] = {MF_TYPE_F32, MF_TYPE_F16, MF_TYPE_BF16, MF_TYPE_AFFINE};
    static const int32_t COLS[] = {7, 16, 31, 64, 100};
    (void)state;
    racks all = open_levels(true, 2);
    for (size_t k = 0; k < MF__COUNT(TYPES); k++)
        for (size_t t = 0; t < MF__COUNT(TOKENS); t++)
            for (size_t i = 0; i < MF__COUNT(COLS); i++) {
                bool affine = TYPES[k] == MF_TYPE_AFFINE;
                op_case c = {.name = "float product",
                             .build = build_matmul,
                             .expect = expect_matmul,
                             .seqs = {{TOKENS[t], 0}},
                             .cols = affine ? 96 : COLS[i],
                             .rows = 1 + (int32_t)i * 5,
                             .w_type = TYPES[k],
                             .bits = 4,
                             .group = 32};
                run_case(&c, &all, 3e-6, false);
            }
    close_levels(&all);
}

static void test_experts(void **state) {
    static const int32_t TOKENS[] = {1, 2, 5, 9, 40, 70};
    static const int BITS[] = {2, 4, 5, 8};
    (void)state;
    for (int exact = 0; exact < (OP_INT8_ALONE ? 1 : 2); exact++) {
        racks all = open_levels(exact, 3);
        for (size_t t = 0; t < MF__COUNT(TOKENS); t++)
            for (size_t b = 0; b < MF__COUNT(BITS); b++) {
                bool cut = TOKENS[t] <= 9; /* a row of many is a row of few */
                op_case c = {.name = "experts",
                             .build = build_experts,
                             .expect = expect_experts,
                             .fill = NULL,
                             .seqs = {{TOKENS[t], 0}},
                             .cols = 128,
                             .p = {.moe = {.top_k = 3, .n_inner = 96}},
                             .n_experts = t % 2 ? 4 : 11,
                             .w_type = MF_TYPE_AFFINE,
                             .bits = BITS[b],
                             .group = 32};
                run_case(&c, &all, exact ? 4e-6 : 4e-4, cut);
                c.group = 64, c.p.moe.n_inner = 128;
                run_case(&c, &all, exact ? 4e-6 : 4e-4, cut);
            }
        close_levels(&all);
    }
}

/* Down has fewer columns than gate and up, and so more tokens in a batch: they have to fit where gate's had room. */
static void test_wide_experts(void **state) {
    (void)state;
#if defined OP_EMULATED || defined MF_SANITIZED
    return; /* minutes there, and neither about an instruction set nor for a sanitizer: all of it is in one arena */
#endif
    if (!op_level_chosen(mf__cpu_level_best())) return; /* it takes a while: once is enough */
    racks all = {.of = {op_open_cpu(MF_CPU_BEST, false, 2)}, .n = 1};
    op_case c = {.name = "wide experts",
                 .build = build_experts,
                 .expect = expect_experts,
                 .seqs = {{121, 0}},
                 .cols = 2048,
                 .p = {.moe = {.top_k = 1, .n_inner = 1920}},
                 .n_experts = 1,
                 .w_type = MF_TYPE_AFFINE,
                 .bits = 4,
                 .group = 32};
    run_case(&c, &all, 4e-4, false);
    close_levels(&all);
}

/* ---- attention and the delta rule in the widths of real models --------------------------------------------------- */

static const mf__type KV_TYPES[] = {MF_TYPE_F32, MF_TYPE_F16, MF_TYPE_I8};

typedef struct attention_shape {
    int32_t heads, kv_heads, dim, tokens, window;
    int64_t pos;
} attention_shape;

static op_case attention_case(const char *name, const attention_shape *s, float scale, bool sinks) {
    return (op_case){.name = name,
                     .build = build_attention,
                     .expect = expect_attention,
                     .seqs = {{s->tokens, s->pos}, {1, 3}},
                     .p = {.attn = {.n_heads = s->heads,
                                    .n_kv_heads = s->kv_heads,
                                    .head_dim = s->dim,
                                    .scale = scale,
                                    .window = s->window}},
                     .option = sinks,
                     .k_cols = s->kv_heads * s->dim,
                     .v_cols = s->kv_heads * s->dim};
}

static void test_attention(void **state) {
    static const attention_shape SHAPES[] = {{16, 2, 64, 1, 20, 77}, {16, 2, 64, 9, 0, 30},  {20, 1, 40, 3, 0, 64},
                                             {8, 8, 32, 21, 20, 0},  {6, 2, 30, 33, 0, 5},   {48, 2, 16, 2, 0, 100},
                                             {4, 4, 19, 70, 20, 1},  {12, 4, 16, 130, 0, 0}, {16, 2, 75, 1, 0, 82},
                                             {10, 2, 50, 1, 20, 46}, {2, 1, 70, 3, 0, 90}};
    (void)state;
    racks all = open_levels(false, 3);
    for (size_t i = 0; i < MF__COUNT(SHAPES); i++) {
        op_case c = attention_case("attention", &SHAPES[i], 0.3f, i % 3 < 2);
        for (size_t t = 0; t < MF__COUNT(KV_TYPES); t++) {
            c.kv_type = KV_TYPES[t];
            run_case(&c, &all, 4e-6, i % 2);
        }
    }
    close_levels(&all);
}

/* The number of threads changes no bit, and the result is right. */
static void run_on_one_and_five(const op_case *c, const racks *one, const racks *five, double tolerance) {
    op_rig rig;
    op_result want;
    op_rig_init(&rig, c);
    op_result_init(&want, &rig);
    c->expect(&rig, &want);
    for (int i = 0; i < one->n; i++) {
        op_result r1, r5;
        op_result_init(&r1, &rig);
        op_result_init(&r5, &rig);
        op_run(&rig, one->of[i].be, &TOGETHER, &r1);
        op_run(&rig, five->of[i].be, &TOGETHER, &r5);
        op_compare(&rig, c->name, &r5, &r1, 0);
        op_compare(&rig, c->name, &r1, &want, tolerance);
        op_result_free(&r1);
        op_result_free(&r5);
    }
    op_result_free(&want);
    op_rig_free(&rig);
}

/* Few queries over many keys, which are then cut into parts: sinks counted once, windows that begin inside a part. */
static void test_long_attention(void **state) {
    static const attention_shape SHAPES[] = {{16, 2, 64, 1, 0, 1299},  {8, 8, 20, 3, 0, 700}, {4, 1, 16, 20, 520, 900},
                                             {6, 2, 8, 1, 530, 1100},  {2, 1, 8, 1, 0, 511},  {16, 2, 70, 1, 0, 600},
                                             {24, 3, 64, 1, 700, 1000}};
    (void)state;
    racks one = open_levels(true, 1), five = open_levels(true, 5);
    for (size_t i = 0; i < MF__COUNT(SHAPES); i++) {
        op_case c = attention_case("long attention", &SHAPES[i], 0.4f, i % 2);
        c.kv_type = KV_TYPES[(i + 1) % 3];
        run_on_one_and_five(&c, &one, &five, 1e-5);
    }
    close_levels(&one);
    close_levels(&five);
}

/* Both forms in every spelling and KV type: one row and several, waves that end inside a segment, segments that share a
 * wave, keys in parts, heads that do not fill a vector and that need several. */
static void test_latent_attention(void **state) {
    static const struct {
        int32_t heads, n, nope, rope, v_dim;
        op_seq seqs[OP_MAX_SEQS];
    } SHAPES[] = {{20, 64, 32, 16, 24, {{1, 30}, {1, 5}, {3, 0}}},
                  {3, 40, 7, 6, 5, {{37, 3}, {1, 0}}},
                  {5, 32, 12, 4, 9, {{20, 600}, {1, 520}}},
                  {16, 48, 16, 8, 16, {{1, 1100}}}};
    (void)state;
    racks one = open_levels(true, 1), five = open_levels(true, 5);
    for (size_t i = 0; i < MF__COUNT(SHAPES); i++)
        for (int form = MF_MLA_ABSORBED; form <= MF_MLA_UNABSORBED; form++) {
            op_case c = {.name = form == MF_MLA_ABSORBED ? "absorbed" : "unabsorbed",
                         .build = build_mla,
                         .expect = expect_mla_attention,
                         .p = {.mla = {.n_heads = SHAPES[i].heads,
                                       .n_latent = SHAPES[i].n,
                                       .n_nope = SHAPES[i].nope,
                                       .n_rope = SHAPES[i].rope,
                                       .v_dim = SHAPES[i].v_dim,
                                       .scale = 0.2f,
                                       .form = (mf__mla_form)form}},
                         .option = (i + (size_t)form) % 2,
                         .w_type = i % 2 ? MF_TYPE_F32 : MF_TYPE_BF16,
                         .k_cols = SHAPES[i].n,
                         .v_cols = SHAPES[i].rope,
                         .kv_type = KV_TYPES[(i + (size_t)form) % 3]};
            memcpy(c.seqs, SHAPES[i].seqs, sizeof c.seqs);
            run_on_one_and_five(&c, &one, &five, 2e-5);
        }
    close_levels(&one);
    close_levels(&five);
}

/* Channels that fill runs and parts of them; segments shorter and longer than the kernel. */
static void test_conv(void **state) {
    static const int32_t CHANNELS[] = {40, 256, 1100}, KERNELS[] = {2, 4, 5};
    (void)state;
    racks all = open_levels(true, 3);
    for (size_t i = 0; i < MF__COUNT(CHANNELS); i++)
        for (size_t k = 0; k < MF__COUNT(KERNELS); k++) {
            op_case c = {.name = "conv1d",
                         .build = build_conv1d,
                         .expect = expect_conv1d,
                         .seqs = {{1, 2}, {9, 0}, {3, 4}},
                         .cols = CHANNELS[i],
                         .p = {.conv = {CHANNELS[i], KERNELS[k], k % 2 == 1, 0}}};
            run_case(&c, &all, 4e-6, true);
        }
    close_levels(&all);
}

/* Keys of about unit length, gates in [0, 1], some of them 0: the state stays bounded. */
static void fill_delta(op_rig *rig) {
    float *x = rig->in[rig->op->in[0]];
    float length = sqrtf((float)rig->c->p.delta.k_dim / 3);
    for (int64_t i = 0; i < (int64_t)rig->n_rows * op_in_cols(rig, 0); i++) x[i] /= length;
    for (int k = 1; k <= 2; k++) {
        float *gate = rig->in[rig->op->in[k]];
        for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, k); i++)
            gate[i] = i % 37 == 3 ? 0 : (float)(op_random(rig) / 2 + 0.5);
    }
}

static void test_delta(void **state) {
    /* from eight steps on by lanes, where there are rows for them */
    static const int32_t SHAPES[][3] = {{128, 128, 3}, {64, 17, 20}, {32, 5, 70},   {16, 16, 9},    {8, 3, 8},
                                        {20, 7, 5},    {256, 4, 3},  {128, 64, 40}, {256, 100, 12}, {32, 33, 8}};
    (void)state;
    racks all = open_levels(false, 3);
    for (size_t i = 0; i < MF__COUNT(SHAPES); i++) {
        op_case c = {.name = "delta_net",
                     .build = build_delta_net,
                     .expect = expect_delta_net,
                     .fill = fill_delta,
                     .seqs = {{SHAPES[i][2], 0}, {2, 4}},
                     .p = {.delta = {.n_k_heads = 1, .k_dim = SHAPES[i][0], .n_v_heads = 2, .v_dim = SHAPES[i][1]}}};
        run_case(&c, &all, 1e-5, i % 2);
        c.name = "delta_net channels", c.p.delta.by_channel = true;
        run_case(&c, &all, 1e-5, i % 2);
    }
    close_levels(&all);
}

/* ---- promises ---------------------------------------------------------------------------------------------------- */

/* Products that follow one another and read the same buffer run as one: each keeps its own weights, bias and output. */
static void test_products_together(void **state) {
    enum { COLS = 64, ROWS_A = 9, ROWS_B = 3, TOKENS = 6 };
    (void)state;
    float w[(ROWS_A + ROWS_B) * COLS], x[TOKENS * COLS], a[TOKENS * ROWS_A], b[TOKENS * ROWS_B], bias[ROWS_B];
    for (int i = 0; i < (ROWS_A + ROWS_B) * COLS; i++) w[i] = (float)(i % 7 - 3);
    for (int i = 0; i < TOKENS * COLS; i++) x[i] = (float)(i % 5 - 2);
    for (int i = 0; i < ROWS_B; i++) bias[i] = (float)(100 * i);
    mf__graph *g;
    assert_int_equal(mf__graph_create("two", &g, NULL), MF_OK);
    mf__act in = mf__g_in_act(g, MF_PORT_SHARED, COLS);
    mf__w wa = mf__g_matrix(g, "a", ROWS_A, COLS), wb = mf__g_matrix(g, "b", ROWS_B, COLS);
    mf__act first = mf__g_matmul(g, in, wa, MF_NO_WEIGHT, "a");
    mf__act second = mf__g_matmul(g, in, wb, mf__g_vector(g, "bias", 1, ROWS_B), "b");
    assert_int_equal(mf__graph_finish(g, NULL), MF_OK);
    op_rack r = op_open_cpu(MF_CPU_BEST, false, 2);
    assert_int_equal(r.be->reserve(r.be, r.be->scratch(r.be, g, TOKENS), NULL), MF_OK);
    void *bufs[MF_MAX_BUFS] = {NULL};
    bufs[in.id] = x, bufs[first.id] = a, bufs[second.id] = b;
    mf__tensor weights[3] = {{.n_planes = 1, .n_rows = ROWS_A, .n_cols = COLS, .data = w},
                             {.n_planes = 1, .n_rows = ROWS_B, .n_cols = COLS, .data = w + ROWS_A * COLS},
                             {.n_planes = 1, .n_rows = 1, .n_cols = ROWS_B, .data = bias}};
    mf__binding binding = {.n_rows = TOKENS, .bufs = bufs, .weights = weights};
    mf__fence fence;
    assert_int_equal(r.be->submit(r.be, &(mf__run){g, binding}, 1, &fence, NULL), MF_OK);
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < ROWS_A + ROWS_B; i++) {
            float sum = i < ROWS_A ? 0 : bias[i - ROWS_A];
            for (int c = 0; c < COLS; c++) sum += w[i * COLS + c] * x[t * COLS + c];
            assert_true(sum == (i < ROWS_A ? a[t * ROWS_A + i] : b[t * ROWS_B + i - ROWS_A]));
        }
    op_close(&r);
    mf__graph_free(g);
}

static void test_create(void **state) {
    mf__backend *be;
    mf_error err;
    (void)state;
    for (mf__cpu_level level = MF_CPU_SCALAR; level < MF_CPU_LEVELS; level++)
        if (!mf__cpu_level_available(level)) {
            print_message("not on this machine: %s\n", mf__cpu_level_name(level));
            assert_int_equal(mf__backend_cpu_create(NULL, &(mf__cpu_options){.level = level}, &be, &err),
                             MF_E_UNSUPPORTED);
            assert_non_null(strstr(err.text, mf__cpu_level_name(level)));
        }
    assert_true(mf__cpu_level_available(MF_CPU_BEST));
}

int main(int argc, char **argv) {
    if (op_choose_backends(argc - 1, argv + 1)) return 2;
    const struct CMUnitTest int8[] = {
        cmocka_unit_test(test_create),    cmocka_unit_test(test_int8_products), cmocka_unit_test(test_long_passes),
        cmocka_unit_test(test_long_rows), cmocka_unit_test(test_experts),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_int8_products),
        cmocka_unit_test(test_long_passes),
        cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_float_products),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_wide_experts),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_long_attention),
        cmocka_unit_test(test_latent_attention),
        cmocka_unit_test(test_conv),
        cmocka_unit_test(test_delta),
        cmocka_unit_test(test_products_together),
    };
    if (OP_INT8_ALONE) return cmocka_run_group_tests(int8, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
