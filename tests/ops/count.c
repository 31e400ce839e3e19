/* Runs one op once, on one thread: for counting its instructions. usage: count_ops LEVEL CASE, or without arguments a
 * list of the cases. tools/count_kernels.sh runs it under callgrind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "build.h"

#define AFFINE(b, gr) .w_type = MF_TYPE_AFFINE, .bits = b, .group = gr
#define MXFP4 .w_type = MF_TYPE_MXFP4, .bits = 4, .group = MF_MXFP4_GROUP
#define F8 .w_type = MF_TYPE_F8_BLOCK, .bits = 8, .group = 128, .block_rows = 128
#define MATMUL(n) .build = build_matmul, .seqs = {{n, 0}}, .cols = 1024, .rows = 64
#define MOE(n)                                                                                                         \
    .build = build_experts, .seqs = {{n, 0}}, .cols = 512, .p = {.moe = {.top_k = 4, .n_inner = 128}}, .n_experts = 8
#define ATTENTION(n, at)                                                                                               \
    .build = build_attention, .seqs = {{n, at}},                                                                       \
    .p = {.attn = {.n_heads = 8, .n_kv_heads = 2, .head_dim = 128, .scale = 0.1f}}, .k_cols = 256, .v_cols = 256
#define DELTA(n)                                                                                                       \
    .build = build_delta_net, .seqs = {{n, 0}},                                                                        \
    .p = {.delta = {.n_k_heads = 2, .k_dim = 128, .n_v_heads = 4, .v_dim = 128}}

static const op_case CASES[] = {
    {"matmul_4bit_1", MATMUL(1), AFFINE(4, 64)},
    {"matmul_4bit_64", MATMUL(64), AFFINE(4, 64)},
    {"matmul_2bit_1", MATMUL(1), AFFINE(2, 64)},
    {"matmul_3bit_1", MATMUL(1), AFFINE(3, 64)},
    {"matmul_8bit_1", MATMUL(1), AFFINE(8, 64)},
    {"matmul_8bit_64", MATMUL(64), AFFINE(8, 64)},
    {"matmul_mxfp4_1", MATMUL(1), MXFP4},
    {"matmul_mxfp4_64", MATMUL(64), MXFP4},
    {"matmul_fp8_1", MATMUL(1), F8},
    {"matmul_fp8_64", MATMUL(64), F8},
    {"matmul_bf16_1", MATMUL(1), .w_type = MF_TYPE_BF16},
    {"experts_4bit_1", MOE(1), AFFINE(4, 64)},
    {"experts_4bit_32", MOE(32), AFFINE(4, 64)},
    {"attention_1", ATTENTION(1, 200)},
    {"attention_f16_1", ATTENTION(1, 200), .kv_type = MF_TYPE_F16},
    {"attention_32", ATTENTION(32, 100)},
    {"delta_net_1", DELTA(1)},
    {"delta_net_32", DELTA(32)},
};

int main(int argc, char **argv) {
    static const op_mode once = {"once", OP_TOGETHER, true, 1, 0};
    mf__cpu_level level = MF_CPU_SCALAR;
    const op_case *c = NULL;
    if (argc == 1)
        for (size_t i = 0; i < MF__COUNT(CASES); i++) puts(CASES[i].name);
    if (argc != 3) return argc == 1 ? 0 : 2;
    while (level < MF_CPU_LEVELS && strcmp(argv[1], mf__cpu_level_name(level))) level++;
    for (size_t i = 0; i < MF__COUNT(CASES); i++)
        if (!strcmp(argv[2], CASES[i].name)) c = &CASES[i];
    mf__backend *be;
    mf_error err;
    if (!c || level == MF_CPU_LEVELS || mf__backend_cpu_create(NULL, &(mf__cpu_options){.level = level}, &be, &err)) {
        fprintf(stderr, "no such case, or not this instruction set here: %s %s\n", argv[1], argv[2]);
        return 2;
    }
    op_rig rig;
    op_result got;
    op_rig_init(&rig, c);
    op_result_init(&got, &rig);
    op_run(&rig, be, &once, &got);
    op_result_free(&got);
    op_rig_free(&rig);
    be->free(be);
    return 0;
}
