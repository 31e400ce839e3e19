/* The reference backend: memory is malloc's, submit runs the ops in order and returns when they are done. */
#include "backend/ref/ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct ref_backend {
    mf__backend base;
    mf__pool *pool;
    float *scratch;
    int64_t scratch_bytes;
} ref_backend;

typedef void op_fn(const mf__ref_run *r);

static op_fn *const OPS[MF_OP_COUNT] = {
    [MF_OP_EMBED] = mf__ref_embed,
    [MF_OP_RMS_NORM] = mf__ref_rms_norm,
    [MF_OP_LAYER_NORM] = mf__ref_layer_norm,
    [MF_OP_MATMUL] = mf__ref_matmul,
    [MF_OP_SPLIT_Q_GATE] = mf__ref_split_q_gate,
    [MF_OP_ROPE] = mf__ref_rope,
    [MF_OP_KV_APPEND] = mf__ref_kv_append,
    [MF_OP_INDEX] = mf__ref_index,
    [MF_OP_ATTENTION] = mf__ref_attention,
    [MF_OP_SPLIT] = mf__ref_split,
    [MF_OP_JOIN] = mf__ref_join,
    [MF_OP_MLA_ATTENTION] = mf__ref_mla_attention,
    [MF_OP_SIGMOID_GATE] = mf__ref_sigmoid_gate,
    [MF_OP_CONV1D] = mf__ref_conv1d,
    [MF_OP_QK_NORM] = mf__ref_qk_norm,
    [MF_OP_DECAY_BETA] = mf__ref_decay_beta,
    [MF_OP_DELTA_NET] = mf__ref_delta_net,
    [MF_OP_SSM] = mf__ref_ssm,
    [MF_OP_GATED_NORM] = mf__ref_gated_norm,
    [MF_OP_COMPRESS] = mf__ref_compress,
    [MF_OP_FAR_ATTENTION] = mf__ref_far_attention,
    [MF_OP_STREAMS_READ] = mf__ref_streams_read,
    [MF_OP_STREAMS_WRITE] = mf__ref_streams_write,
    [MF_OP_ADD] = mf__ref_add,
    [MF_OP_MAP] = mf__ref_map,
    [MF_OP_ROUTE] = mf__ref_route,
    [MF_OP_WEIGH] = mf__ref_weigh,
    [MF_OP_IDENTITY] = mf__ref_identity,
    [MF_OP_GLU] = mf__ref_glu,
    [MF_OP_EXPERTS] = mf__ref_experts,
    [MF_OP_COMBINE] = mf__ref_combine,
};

float mf__ref_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

float mf__ref_silu(float x) {
    return x * mf__ref_sigmoid(x);
}

/* silu(gate) * up; or gelu(gate) * up, gelu(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); or, clamped: g *
 * sigmoid(alpha g) * (u + 1), g = min(gate, limit), u = clamp(up, -limit, limit) */
float mf__ref_glu_one(const mf__glu *glu, float gate, float up) {
    if (glu->kind == MF_GLU_SILU) return mf__ref_silu(gate) * up;
    if (glu->kind == MF_GLU_LIMITED)
        return mf__ref_silu(fminf(gate, glu->limit)) * fminf(fmaxf(up, -glu->limit), glu->limit);
    if (glu->kind == MF_GLU_CUT)
        return fminf(mf__ref_silu(gate), glu->limit) * fminf(fmaxf(up, -glu->limit), glu->limit);
    if (glu->kind == MF_GLU_GELU)
        return 0.5f * gate * (1.0f + tanhf(0.79788456f * (gate + 0.044715f * gate * gate * gate))) * up;
    if (glu->kind == MF_GLU_PRODUCT) return gate * up;
    float g = fminf(gate, glu->limit), u = fminf(fmaxf(up, -glu->limit), glu->limit);
    return g * mf__ref_sigmoid(glu->alpha * g) * (u + 1.0f);
}

static void ref_free(mf__backend *be) {
    ref_backend *ref = (ref_backend *)be;
    if (!ref) return;
    free(ref->scratch);
    free(ref);
}

static mf_status ref_alloc(mf__backend *be, int64_t bytes, void **out, mf_error *err) {
    (void)be;
    *out = bytes > 0 && bytes <= INT64_MAX - 64 ? aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64)) : NULL;
    if (!*out && bytes) return mf__fail(err, MF_E_NOMEM, "no memory for a buffer of %lld bytes", (long long)bytes);
    return MF_OK;
}

static void ref_release(mf__backend *be, void *mem) {
    (void)be;
    free(mem);
}

static mf_status ref_copy(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    (void)be, (void)err;
    if (bytes) memcpy(to, from, (size_t)bytes);
    return MF_OK;
}

static mf_status ref_zero(mf__backend *be, void *mem, int64_t bytes, mf_error *err) {
    (void)be, (void)err;
    if (bytes) memset(mem, 0, (size_t)bytes);
    return MF_OK;
}

static bool ref_supports(const mf__backend *be, const mf__op *op) {
    (void)be;
    return (unsigned)op->kind < MF_OP_COUNT && OPS[op->kind];
}

static int64_t op_scratch_floats(const mf__graph *g, const mf__op *op, int32_t n_rows) {
    switch (op->kind) {
    case MF_OP_MATMUL: return mf__ref_matmul_scratch(g, op);
    case MF_OP_ATTENTION: {
        int32_t dim = op->p.attn.head_dim, v_dim = mf__op_v_dim(&op->p);
        return dim > v_dim ? dim : v_dim;
    }
    case MF_OP_MLA_ATTENTION: return mf__ref_mla_scratch(op, n_rows);
    case MF_OP_ROUTE: return mf__ref_route_scratch(op);
    case MF_OP_COMPRESS: return op->p.compress.width[0] + op->p.compress.width[1];
    case MF_OP_FAR_ATTENTION: return op->p.far.dim;
    case MF_OP_INDEX: return mf__ref_index_scratch(op);
    case MF_OP_EXPERTS: return mf__ref_experts_scratch(g, op);
    default: return 0;
    }
}

static int64_t ref_scratch(const mf__backend *be, const mf__graph *g, int32_t n_rows) {
    int64_t most = 0;
    for (int i = 0; i < g->n_ops; i++) {
        int64_t floats = op_scratch_floats(g, &g->ops[i], n_rows);
        if (floats > most) most = floats;
    }
    return most * (int64_t)sizeof(float) * mf__pool_threads(((const ref_backend *)be)->pool);
}

static mf_status ref_reserve(mf__backend *be, int64_t bytes, mf_error *err) {
    ref_backend *ref = (ref_backend *)be;
    if (bytes <= ref->scratch_bytes) return MF_OK;
    void *mem;
    MF__TRY(ref_alloc(be, bytes, &mem, err));
    free(ref->scratch);
    ref->scratch = mem;
    ref->scratch_bytes = bytes;
    return MF_OK;
}

static mf_status run_graph(ref_backend *ref, const mf__graph *g, const mf__binding *b, mf_error *err) {
    int64_t per_thread = ref->scratch_bytes / (int64_t)sizeof(float) / mf__pool_threads(ref->pool);
    for (int i = 0; i < g->n_ops; i++) {
        if (op_scratch_floats(g, &g->ops[i], b->n_rows) > per_thread)
            return mf__fail(err, MF_E_INTERNAL, "op %s of graph %s needs scratch that was not reserved",
                            g->ops[i].label, g->name);
        mf__ref_run run = {
            .pool = ref->pool, .b = b, .op = &g->ops[i], .g = g, .scratch = ref->scratch, .scratch_floats = per_thread};
        int64_t began = mf__watch_begin(&ref->base);
        OPS[g->ops[i].kind](&run);
        mf__watch_end(&ref->base, began, &(mf__op_done){.g = g, .b = b, .op = &g->ops[i], .n_ops = 1});
    }
    return MF_OK;
}

static mf_status ref_submit(mf__backend *be, const mf__run *runs, int n_runs, mf__fence *out, mf_error *err) {
    *out = 0;
    for (int i = 0; i < n_runs; i++) MF__TRY(run_graph((ref_backend *)be, runs[i].g, &runs[i].b, err));
    return MF_OK;
}

static mf_status ref_wait(mf__backend *be, mf__fence fence, mf_error *err) {
    (void)be, (void)fence, (void)err;
    return MF_OK;
}

mf_status mf__backend_ref_create(mf__pool *pool, mf__backend **out, mf_error *err) {
    ref_backend *ref = calloc(1, sizeof *ref);
    if (!ref) return mf__fail(err, MF_E_NOMEM, "no memory for the ref backend");
    ref->pool = pool;
    ref->base = (mf__backend){.name = "ref",
                              .numerics = "f32",
                              .free = ref_free,
                              .alloc = ref_alloc,
                              .release = ref_release,
                              .host_memory = true,
                              .upload = ref_copy,
                              .download = ref_copy,
                              .copy = ref_copy,
                              .zero = ref_zero,
                              .supports = ref_supports,
                              .scratch = ref_scratch,
                              .reserve = ref_reserve,
                              .submit = ref_submit,
                              .wait = ref_wait};
    *out = &ref->base;
    return MF_OK;
}

static bool ref_available(char *why, size_t size) {
    snprintf(why, size, "plain C, on any processor");
    return true;
}

static mf_status ref_open(const mf__backend_config *config, mf__backend **out, mf_error *err) {
    return mf__backend_ref_create(config->pool, out, err);
}

const mf__backend_kind mf__backend_kind_ref = {.name = "ref",
                                               .summary = "plain scalar C that defines what is right; slow",
                                               .automatic = true,
                                               .reference = true,
                                               .available = ref_available,
                                               .create = ref_open};
