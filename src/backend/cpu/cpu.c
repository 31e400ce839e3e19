/* The fast CPU backend: memory, and running the ops of a graph in order on the pool. */
#include "backend/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pages.h"

typedef struct cpu_backend {
    mf__backend base;
    mf__pool *pool;
    bool exact;
    mf__cpu_kernels kernels;
    char *scratch;
    int64_t scratch_bytes;
} cpu_backend;

typedef mf_status op_fn(mf__cpu_run *r, mf_error *err);

static op_fn *const OPS[MF_OP_COUNT] = {
    [MF_OP_EMBED] = mf__cpu_embed,
    [MF_OP_RMS_NORM] = mf__cpu_rms_norm,
    [MF_OP_LAYER_NORM] = mf__cpu_layer_norm,
    [MF_OP_MATMUL] = mf__cpu_matmul,
    [MF_OP_SPLIT_Q_GATE] = mf__cpu_split_q_gate,
    [MF_OP_ROPE] = mf__cpu_rope,
    [MF_OP_KV_APPEND] = mf__cpu_kv_append,
    [MF_OP_INDEX] = mf__cpu_index,
    [MF_OP_ATTENTION] = mf__cpu_attention,
    [MF_OP_SPLIT] = mf__cpu_split,
    [MF_OP_JOIN] = mf__cpu_join,
    [MF_OP_MLA_ATTENTION] = mf__cpu_mla_attention,
    [MF_OP_SIGMOID_GATE] = mf__cpu_sigmoid_gate,
    [MF_OP_CONV1D] = mf__cpu_conv1d,
    [MF_OP_QK_NORM] = mf__cpu_qk_norm,
    [MF_OP_DECAY_BETA] = mf__cpu_decay_beta,
    [MF_OP_DELTA_NET] = mf__cpu_delta_net,
    [MF_OP_SSM] = mf__cpu_ssm_run,
    [MF_OP_GATED_NORM] = mf__cpu_gated_norm,
    [MF_OP_COMPRESS] = mf__cpu_compress,
    [MF_OP_FAR_ATTENTION] = mf__cpu_far_attention,
    [MF_OP_STREAMS_READ] = mf__cpu_streams_read,
    [MF_OP_STREAMS_WRITE] = mf__cpu_streams_write,
    [MF_OP_ADD] = mf__cpu_add,
    [MF_OP_MAP] = mf__cpu_map,
    [MF_OP_ROUTE] = mf__cpu_route,
    [MF_OP_WEIGH] = mf__cpu_weigh,
    [MF_OP_IDENTITY] = mf__cpu_identity,
    [MF_OP_GLU] = mf__cpu_glu,
    [MF_OP_EXPERTS] = mf__cpu_experts,
    [MF_OP_COMBINE] = mf__cpu_combine,
};

static void cpu_free(mf__backend *be) {
    cpu_backend *cpu = (cpu_backend *)be;
    if (!cpu) return;
    free(cpu->scratch);
    free(cpu);
}

static mf_status cpu_alloc(mf__backend *be, int64_t bytes, void **out, mf_error *err) {
    (void)be;
    *out = bytes > 0 && bytes <= INT64_MAX - 64 ? mf__pages_alloc((size_t)bytes, 64) : NULL;
    if (!*out && bytes) return mf__fail(err, MF_E_NOMEM, "no memory for a buffer of %lld bytes", (long long)bytes);
    return MF_OK;
}

static void cpu_release(mf__backend *be, void *mem) {
    (void)be;
    free(mem);
}

static mf_status cpu_copy(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    (void)be, (void)err;
    if (bytes) memcpy(to, from, (size_t)bytes);
    return MF_OK;
}

static mf_status cpu_zero(mf__backend *be, void *mem, int64_t bytes, mf_error *err) {
    (void)be, (void)err;
    if (bytes) memset(mem, 0, (size_t)bytes);
    return MF_OK;
}

static bool cpu_supports(const mf__backend *be, const mf__op *op) {
    (void)be;
    return (unsigned)op->kind < MF_OP_COUNT && OPS[op->kind];
}

static int64_t op_scratch(const cpu_backend *cpu, const mf__graph *g, const mf__op *op, int32_t n) {
    int threads = mf__pool_threads(cpu->pool);
    switch (op->kind) {
    case MF_OP_MATMUL: return mf__cpu_matmul_scratch(&cpu->kernels, threads, g, op, n);
    case MF_OP_EXPERTS: return mf__cpu_experts_scratch(&cpu->kernels, threads, g, op, n);
    case MF_OP_INDEX: return mf__cpu_index_scratch(threads, op);
    case MF_OP_COMPRESS: return mf__cpu_compress_scratch(threads, op);
    case MF_OP_FAR_ATTENTION: return mf__cpu_far_scratch(&cpu->kernels, threads, op);
    case MF_OP_ATTENTION: return mf__cpu_attention_scratch(&cpu->kernels, threads, op, n);
    case MF_OP_MLA_ATTENTION: return mf__cpu_mla_scratch(&cpu->kernels, threads, op, n);
    default: return 0;
    }
}

static int64_t cpu_scratch(const mf__backend *be, const mf__graph *g, int32_t n_rows) {
    int64_t most = 0;
    for (int i = 0; i < g->n_ops; i++) {
        int64_t bytes = op_scratch((const cpu_backend *)be, g, &g->ops[i], n_rows);
        if (bytes > most) most = bytes;
    }
    return most;
}

static mf_status cpu_reserve(mf__backend *be, int64_t bytes, mf_error *err) {
    cpu_backend *cpu = (cpu_backend *)be;
    if (bytes <= cpu->scratch_bytes) return MF_OK;
    void *mem;
    MF__TRY(cpu_alloc(be, bytes, &mem, err));
    free(cpu->scratch);
    cpu->scratch = mem;
    cpu->scratch_bytes = mf__cpu_round(bytes);
    return MF_OK;
}

/* Products of one input that follow one another run together. */
static int run_length(const mf__graph *g, int i) {
    int n = 1;
    if (g->ops[i].kind != MF_OP_MATMUL) return 1;
    while (i + n < g->n_ops && g->ops[i + n].kind == MF_OP_MATMUL && g->ops[i + n].in[0] == g->ops[i].in[0]) n++;
    return n;
}

static mf_status run_graph(cpu_backend *cpu, const mf__graph *g, const mf__binding *b, mf_error *err) {
    for (int i = 0; i < g->n_ops;) {
        mf__cpu_run run = {.k = &cpu->kernels,
                           .pool = cpu->pool,
                           .exact = cpu->exact,
                           .g = g,
                           .b = b,
                           .op = &g->ops[i],
                           .n_ops = run_length(g, i),
                           .scratch = {cpu->scratch, cpu->scratch_bytes}};
        int64_t began = mf__watch_begin(&cpu->base);
        MF__TRY(OPS[run.op->kind](&run, err));
        mf__watch_end(&cpu->base, began, &(mf__op_done){.g = g, .b = b, .op = run.op, .n_ops = run.n_ops});
        i += run.n_ops;
    }
    return MF_OK;
}

static mf_status cpu_submit(mf__backend *be, const mf__run *runs, int n_runs, mf__fence *out, mf_error *err) {
    *out = 0;
    for (int i = 0; i < n_runs; i++) MF__TRY(run_graph((cpu_backend *)be, runs[i].g, &runs[i].b, err));
    return MF_OK;
}

static mf_status cpu_wait(mf__backend *be, mf__fence fence, mf_error *err) {
    (void)be, (void)fence, (void)err;
    return MF_OK;
}

mf_status mf__backend_cpu_create(mf__pool *pool, const mf__cpu_options *opt, mf__backend **out, mf_error *err) {
    static const mf__cpu_options defaults;
    if (!opt) opt = &defaults;
    *out = NULL;
    if (!mf__cpu_level_available(opt->level))
        return mf__fail(err, MF_E_UNSUPPORTED, "this build or this machine does not have the instruction set %s",
                        mf__cpu_level_name(opt->level));
    cpu_backend *cpu = calloc(1, sizeof *cpu);
    if (!cpu) return mf__fail(err, MF_E_NOMEM, "no memory for the cpu backend");
    cpu->pool = pool;
    cpu->exact = opt->exact;
    mf__cpu_kernels_fill(opt->level, &cpu->kernels);
    /* numerics: 2 since there is one order of additions, however a prompt is cut */
    cpu->base = (mf__backend){.name = "cpu",
                              .numerics = opt->exact ? "f32/2" : "int8x4/2",
                              .free = cpu_free,
                              .alloc = cpu_alloc,
                              .release = cpu_release,
                              .host_memory = true,
                              .upload = cpu_copy,
                              .download = cpu_copy,
                              .copy = cpu_copy,
                              .zero = cpu_zero,
                              .supports = cpu_supports,
                              .scratch = cpu_scratch,
                              .reserve = cpu_reserve,
                              .submit = cpu_submit,
                              .wait = cpu_wait};
    *out = &cpu->base;
    return MF_OK;
}

static bool cpu_available(char *why, size_t size) {
    snprintf(why, size, "instruction set %s", mf__cpu_level_name(mf__cpu_level_best()));
    return true;
}

static mf_status cpu_open(const mf__backend_config *config, mf__backend **out, mf_error *err) {
    return mf__backend_cpu_create(config->pool, &(mf__cpu_options){.exact = config->exact}, out, err);
}

const mf__backend_kind mf__backend_kind_cpu = {.name = "cpu",
                                               .summary = "kernels for the processor's own instruction set",
                                               .automatic = true,
                                               .available = cpu_available,
                                               .create = cpu_open};
