/* The cuda backend: the op table in every cut of rows into submissions, and shapes that reach every branch of its
 * kernels. Linked with the emulator where there is no device, with the real runtime where there is one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ops/build.h"
#include "ops/expect.h"

extern const mf__backend_kind mf__backend_kind_cuda;

static const op_mode MODES[] = {
    {"together", OP_TOGETHER, false, 1, 0},    {"together, in place", OP_TOGETHER, true, 1, 0},
    {"each alone", OP_ALONE, false, 1, 0},     {"halves, in place", OP_HALVES, true, 1, 0},
    {"row by row", OP_ROW_BY_ROW, true, 2, 0}, {"experts in three rounds", OP_TOGETHER, false, 3, 0},
    {"in company", OP_COMPANY, false, 1, 1},   {"in other company", OP_COMPANY, true, 1, 2},
};

static mf__backend *open_backend(bool exact) {
    mf__backend *be;
    mf_error err = {0};
    mf_status st = mf__backend_kind_cuda.create(&(mf__backend_config){.exact = exact}, &be, &err);
    if (st != MF_OK) print_error("%s\n", err.text);
    assert_int_equal(st, MF_OK);
    return be;
}

/* Every mode gives the expected numbers; those that hand over whole sequences, alone or in any company, the same bits.
 * False: the backend says that it cannot do this op. */
static bool run_case(const op_case *c, mf__backend *be, const char *name, double tolerance) {
    op_rig rig;
    op_result want, first, got;
    char what[160];
    op_rig_init(&rig, c);
    if (!be->supports(be, rig.op)) {
        op_rig_free(&rig);
        return false;
    }
    op_result_init(&want, &rig);
    c->expect(&rig, &want);
    op_result_init(&first, &rig);
    for (size_t m = 0; m < MF__COUNT(MODES); m++) {
        op_result *to = m ? &got : &first;
        bool whole = MODES[m].cut == OP_TOGETHER || MODES[m].cut == OP_ALONE || MODES[m].cut == OP_COMPANY;
        if (m) op_result_init(&got, &rig);
        op_run(&rig, be, &MODES[m], to);
        snprintf(what, sizeof what, "%s on cuda %s, %s", c->name, name, MODES[m].name);
        op_compare(&rig, what, to, &want, tolerance);
        if (m && whole) op_compare(&rig, what, &got, &first, 0);
        if (m) op_result_free(&got);
    }
    op_result_free(&first);
    op_result_free(&want);
    op_rig_free(&rig);
    return true;
}

/* Activations are rounded to 15 bits where weights are in groups. */
static double tolerance_of(const op_case *c, bool exact) {
    bool product = (c->w_type == MF_TYPE_AFFINE || c->w_type == MF_TYPE_MXFP4) &&
                   (c->expect == expect_matmul || c->expect == expect_experts);
    if (exact || !product) return c->tolerance * 2;
    return c->expect == expect_experts ? 4e-4 : 8e-5;
}

/* Ops that have other kernels with `exact` than without. */
static bool has_exact_kernels(const op_case *c) {
    return c->expect == expect_matmul || c->expect == expect_experts || c->expect == expect_attention ||
           c->expect == expect_mla_attention || c->expect == expect_far_attention;
}

static void test_common_table(void **state) {
    (void)state;
    for (int exact = 1; exact >= 0; exact--) {
        mf__backend *be = open_backend(exact);
        int n_run = 0;
        for (int i = 0; i < OP_N_CASES; i++) {
            if (exact && !has_exact_kernels(&OP_CASES[i])) continue;
            n_run += run_case(&OP_CASES[i], be, exact ? "exact" : "int8", tolerance_of(&OP_CASES[i], exact));
        }
        assert_true(n_run >= (exact ? 40 : 110)); /* what models need that have run on it */
        be->free(be);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void test_int8_products(void **state) {
    static const int32_t TOKENS[] = {1, 2, 4, 5, 8, 9, 17, 33, 70};
    static const int BITS[] = {0, 2, 3, 4, 5, 6, 8}, GROUPS[] = {32, 64, 128}; /* 0: MXFP4, in groups of 32 alone */
    (void)state;
    mf__backend *be = open_backend(false);
    for (size_t b = 0; b < MF__COUNT(BITS); b++)
        for (size_t g = 0; g < (BITS[b] ? MF__COUNT(GROUPS) : 1); g++)
            for (size_t t = 0; t < MF__COUNT(TOKENS); t++) {
#ifdef CUDA_EMULATED
                if (BITS[b] != 4 && (b + g + t) % 3) continue; /* takes its time there: evenly, a third */
#endif
                char name[64];
                snprintf(name, sizeof name, "%d bits, groups of %d, %d tokens", BITS[b], GROUPS[g], TOKENS[t]);
                op_case c = {.name = name,
                             .build = build_matmul,
                             .expect = expect_matmul,
                             .fill = fill_planes,
                             .seqs = {{TOKENS[t], 0}},
                             .cols = GROUPS[g] * (t % 2 ? 3 : 1 + (int)t), /* odd numbers of groups */
                             .rows = t % 3 ? 37 : 150,
                             .option = t % 2,
                             .w_type = BITS[b] ? MF_TYPE_AFFINE : MF_TYPE_MXFP4,
                             .bits = BITS[b] ? BITS[b] : 4,
                             .group = GROUPS[g]};
                run_case(&c, be, "int8", 3e-6);
            }
    be->free(be);
}

/* What comes in strips: products of some rows in fours, spans of no, one and several duos, a last strip that is not
 * whole. */
static void test_strips(void **state) {
    static const int32_t TOKENS[] = {1, 6}, COLS[] = {128, 2304};
    (void)state;
    mf__backend *be = open_backend(false);
    for (int bits = 4; bits <= 8; bits += 4)
        for (size_t t = 0; t < MF__COUNT(TOKENS); t++)
            for (size_t k = 0; k < MF__COUNT(COLS); k++) {
                char name[64];
                snprintf(name, sizeof name, "%d bits, %d tokens, %d columns", bits, TOKENS[t], COLS[k]);
                op_case c = {.name = name,
                             .build = build_matmul,
                             .expect = expect_matmul,
                             .fill = fill_planes,
                             .seqs = {{TOKENS[t], 0}, {2, 0}},
                             .cols = COLS[k],
                             .rows = k ? 37 : 150,
                             .option = t == 1,
                             .w_type = MF_TYPE_AFFINE,
                             .bits = bits,
                             .group = 64};
                run_case(&c, be, "int8", 3e-6);
            }
    be->free(be);
}

static void test_expert_strips(void **state) {
    static const op_case CASES[] = {
        {"4 bits", .seqs = {{1, 0}, {3, 0}, {1, 0}}, .cols = 256, .p = {.moe = {.top_k = 4, .n_inner = 128}},
         .n_experts = 6, .bits = 4},
        {"8 bits, some absent", .seqs = {{8, 0}, {1, 0}}, .cols = 128, .p = {.moe = {.top_k = 3, .n_inner = 256}},
         .n_experts = 8, .bits = 8, .every_other = true},
        {"so many rows that a block of down has several strips", /* alone it has one */
         .seqs = {{8, 0}, {8, 0}, {8, 0}, {8, 0}, {8, 0}, {8, 0}}, .cols = 512,
         .p = {.moe = {.top_k = 2, .n_inner = 128}}, .n_experts = 4, .bits = 4},
    };
    (void)state;
    mf__backend *be = open_backend(false);
    for (size_t i = 0; i < MF__COUNT(CASES); i++) {
        op_case c = CASES[i];
        c.build = build_experts, c.expect = expect_experts, c.w_type = MF_TYPE_AFFINE, c.group = 64;
        run_case(&c, be, "int8", 4e-4);
    }
    be->free(be);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

#define ATTN(h, kv, d, w)                                                                                              \
    .build = build_attention, .expect = expect_attention, .k_cols = kv * d, .v_cols = kv * d, .kv_type = MF_TYPE_F16,  \
    .p = {.attn = {.n_heads = h, .n_kv_heads = kv, .head_dim = d, .scale = 0.3f, .window = w}}

/* Many rows over f16 keys, as tensor cores take them: rows behind others, more than a block of them, windows that begin
 * within a tile and behind the first one, sinks. */
static void test_flash(void **state) {
    static const op_case CASES[] = {
        {"64 wide", ATTN(2, 1, 64, 0), .seqs = {{9, 0}, {20, 61}, {130, 5}}},
        {"128 wide", ATTN(1, 1, 128, 0), .seqs = {{12, 60}}},
        {"256 wide", ATTN(1, 1, 256, 0), .seqs = {{9, 60}}},
        {"window", ATTN(2, 2, 64, 70), .seqs = {{70, 30}, {9, 300}}, .option = true},
        {"narrow window", ATTN(1, 1, 64, 3), .seqs = {{12, 128}}},
        {"sinks", ATTN(2, 1, 64, 0), .seqs = {{12, 3}, {20, 64}}, .option = true},
    };
    (void)state;
    mf__backend *be = open_backend(false);
    for (size_t i = 0; i < MF__COUNT(CASES); i++) run_case(&CASES[i], be, "int8", 4e-6);
    be->free(be);
}

/* A few rows over f16 keys: shares of one and of several, more heads than a tile has, windows, sinks. */
static void test_narrow(void **state) {
    static const op_case CASES[] = {
        {"one share", ATTN(2, 1, 64, 0), .seqs = {{1, 0}, {1, 63}, {8, 5}}},
        {"several shares", ATTN(8, 1, 128, 0), .seqs = {{1, 200}, {3, 126}}},
        {"twelve heads", ATTN(12, 1, 256, 0), .seqs = {{1, 70}}},
        {"window", ATTN(4, 2, 64, 70), .seqs = {{1, 300}, {5, 64}}, .option = true},
    };
    (void)state;
    mf__backend *be = open_backend(false);
    for (size_t i = 0; i < MF__COUNT(CASES); i++) run_case(&CASES[i], be, "int8", 4e-6);
    be->free(be);
}

int main(void) {
    char why[256];
    if (!mf__backend_kind_cuda.available(why, sizeof why)) {
        printf("no cuda device: %s\n", why);
        return 77;
    }
    printf("cuda: %s\n", why);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_common_table),  cmocka_unit_test(test_int8_products), cmocka_unit_test(test_strips),
        cmocka_unit_test(test_expert_strips), cmocka_unit_test(test_narrow),        cmocka_unit_test(test_flash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
