/* A row's bits depend neither on the rows beside it nor on how its sequence is cut into submissions, on every backend:
 * sequences alone, against random submissions of several of them. The cases of the table, and wider ones that reach
 * the kernels for few and for many rows, keys in several parts, and experts with one row and with many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backends.h"
#include "build.h"

static const op_mode ALONE = {"alone", OP_ALONE, false, 1, 0};
static const op_mode RANDOM[] = {{"in company", OP_COMPANY, false, 1, 1},
                                 {"in company, in place", OP_COMPANY, true, 2, 2},
                                 {"mixed", OP_MIXED, false, 1, 3},
                                 {"mixed, in place", OP_MIXED, true, 2, 4},
                                 {"mixed again", OP_MIXED, false, 3, 5}};

static void run_case(const op_case *c, const op_backend *row, mf__backend *be) {
    op_rig rig;
    op_result alone, got;
    char what[160];
    op_rig_init(&rig, c);
    op_result_init(&alone, &rig);
    op_run(&rig, be, &ALONE, &alone);
    for (size_t m = 0; m < MF__COUNT(RANDOM); m++) {
        if (RANDOM[m].cut == OP_MIXED && c->cut_matters) continue;
        op_result_init(&got, &rig);
        op_run(&rig, be, &RANDOM[m], &got);
        snprintf(what, sizeof what, "%s on %s, %s", c->name, row->name, RANDOM[m].name);
        op_compare(&rig, what, &got, &alone, 0);
        op_result_free(&got);
    }
    op_result_free(&alone);
    op_rig_free(&rig);
}

static void run_cases(const op_case *cases, int n, const op_seq *seqs) {
    for (int b = 0; b < OP_N_BACKENDS; b++) {
        op_rack r = op_open(&OP_BACKENDS[b], 2);
        for (int i = 0; i < n; i++) {
            op_case c = cases[i];
            if (OP_INT8_ALONE && !op_is_int8(&c)) continue;
            if (seqs) memcpy(c.seqs, seqs, sizeof c.seqs);
            run_case(&c, &OP_BACKENDS[b], r.be);
        }
        op_close(&r);
    }
}

static void test_table(void **state) {
    static const op_seq SEQS[OP_MAX_SEQS] = {{1, 9}, {5, 2}, {1, 0}, {19, 3}, {1, 40}, {2, 7}};
    (void)state;
    run_cases(OP_CASES, OP_N_CASES, SEQS);
}

#define SEQS .seqs = {{1, 9}, {9, 2}, {1, 0}, {37, 3}, {1, 40}, {3, 7}}
#define FAR .seqs = {{1, 300}, {18, 250}, {1, 1030}, {2, 511}, {40, 0}, {1, 700}}
#define AFFINE(b, g) .w_type = MF_TYPE_AFFINE, .bits = b, .group = g
#define MATMUL(c, r) .build = build_matmul, SEQS, .cols = c, .rows = r
#define MOE(inner) .build = build_experts, SEQS, .cols = 256, .p = {.moe = {.top_k = 3, .n_inner = inner}}
#define ATTN(h, kv, d, w)                                                                                              \
    .build = build_attention, FAR, .k_cols = kv * d, .v_cols = kv * d,                                                 \
    .p = {.attn = {.n_heads = h, .n_kv_heads = kv, .head_dim = d, .scale = 0.3f, .window = w}}
#define DELTA(k, v)                                                                                                    \
    .build = build_delta_net, .fill = fill_gates, .seqs = {{1, 9}, {9, 2}, {1, 0}, {18, 3}, {2, 40}, {33, 7}},         \
    .p = {.delta = {.n_k_heads = 1, .k_dim = k, .n_v_heads = 2, .v_dim = v}}
#define MLA(h, n, f)                                                                                                   \
    .build = build_mla, FAR, .k_cols = n, .v_cols = 8,                                                                 \
    .p = {.mla = {.n_heads = h, .n_latent = n, .n_nope = 16, .n_rope = 8, .v_dim = 12, .scale = 0.2f, .form = f}}

/* Small keys and values, gates in [0, 1]: the state stays bounded. */
static void fill_gates(op_rig *rig) {
    float *x = rig->in[rig->op->in[0]];
    for (int64_t i = 0; i < (int64_t)rig->n_rows * op_in_cols(rig, 0); i++) x[i] /= 8;
    for (int k = 1; k <= 2; k++) {
        float *gate = rig->in[rig->op->in[k]];
        for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, k); i++)
            gate[i] = i % 37 == 3 ? 0 : (float)(op_random(rig) / 2 + 0.5);
    }
}

static const op_case WIDE[] = {
    {"4 bits", MATMUL(1024, 40), AFFINE(4, 64)},
    {"4 bits, groups of 32", MATMUL(768, 40), AFFINE(4, 32)},
    {"4 bits, groups of 128", MATMUL(2048, 19), AFFINE(4, 128)},
    {"4 bits, an odd number of groups", MATMUL(64 * 21, 19), AFFINE(4, 64)},
    {"2 bits", MATMUL(512, 40), AFFINE(2, 64)},
    {"3 bits", MATMUL(512, 40), AFFINE(3, 64)},
    {"5 bits", MATMUL(512, 40), AFFINE(5, 32)},
    {"6 bits", MATMUL(640, 40), AFFINE(6, 128)},
    {"8 bits", MATMUL(2048, 40), AFFINE(8, 64), .option = true},
    {"8 bits, centred", MATMUL(96, 40), AFFINE(8, 32), .centred = true},
    {"mxfp4", MATMUL(1056, 40), .w_type = MF_TYPE_MXFP4, .bits = 4, .group = MF_MXFP4_GROUP},
    {"fp8", MATMUL(300, 40), .w_type = MF_TYPE_F8_BLOCK, .bits = 8, .group = 128, .block_rows = 128},
    {"bf16", MATMUL(333, 40), .w_type = MF_TYPE_BF16},
    {"f16", MATMUL(333, 40), .w_type = MF_TYPE_F16},
    {"f32", MATMUL(333, 40)},
    {"experts", MOE(128), AFFINE(4, 64), .n_experts = 7},
    {"experts 8 bits", MOE(96), AFFINE(8, 32), .n_experts = 23},
    {"experts bf16", MOE(50), .w_type = MF_TYPE_BF16, .n_experts = 7},
    {"attention", ATTN(16, 2, 64, 0)},
    {"attention f16", ATTN(16, 2, 75, 0), .kv_type = MF_TYPE_F16},
    {"attention int8", ATTN(6, 3, 64, 0), .kv_type = MF_TYPE_I8},
    {"attention alone", ATTN(3, 3, 40, 0), .kv_type = MF_TYPE_F16},
    {"attention of many heads", ATTN(40, 1, 33, 0), .kv_type = MF_TYPE_F16},
    {"attention window", ATTN(8, 2, 32, 270), .kv_type = MF_TYPE_F16, .option = true},
    {"attention narrow window", ATTN(8, 1, 32, 20), .option = true},
    {"mla absorbed", MLA(20, 48, MF_MLA_ABSORBED), .kv_type = MF_TYPE_F16},
    {"mla absorbed, few heads", MLA(3, 48, MF_MLA_ABSORBED), .option = true},
    {"mla unabsorbed", MLA(3, 40, MF_MLA_UNABSORBED), .kv_type = MF_TYPE_F16, .w_type = MF_TYPE_BF16},
    {"mla by cost", MLA(3, 40, MF_MLA_BY_COST), .cut_matters = true},
    {"delta rule", DELTA(128, 128)},
    {"delta rule, small heads", DELTA(64, 33)},
    {"delta rule, large heads", DELTA(256, 100)},
    {"delta rule, any width", DELTA(20, 7)},
    {"delta rule by channels", DELTA(128, 70), .p.delta.by_channel = true},
    {"delta rule by channels, any width", DELTA(20, 7), .p.delta.by_channel = true},
    {"conv1d", .build = build_conv1d, SEQS, .cols = 1100, .p = {.conv = {1100, 4, false, 0}}},
};

static void test_wide(void **state) {
    (void)state;
    run_cases(WIDE, (int)MF__COUNT(WIDE), NULL);
}

int main(int argc, char **argv) {
    if (op_choose_backends(argc - 1, argv + 1)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_wide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
