/* The reference backend: every op in plain f32 loops, written to be read beside its formula. It is the definition;
 * every faster version is compared with it.
 *
 * Sums run in order, one accumulator each. Threads share out rows, heads or channels, never a sum, so results do not
 * depend on their number. */
#ifndef MF_BACKEND_REF_REF_H
#define MF_BACKEND_REF_REF_H

#include "backend/backend.h"

typedef struct mf__ref_run {
    mf__pool *pool;
    const mf__binding *b;
    const mf__op *op;
    const mf__graph *g;
    float *scratch;         /* this thread's part is scratch + thread * scratch_floats */
    int64_t scratch_floats; /* per thread */
} mf__ref_run;

static inline float *mf__ref_in(const mf__ref_run *r, int k) {
    return r->op->in[k] < 0 ? 0 : (float *)r->b->bufs[r->op->in[k]];
}
static inline float *mf__ref_out(const mf__ref_run *r, int k) {
    return (float *)r->b->bufs[r->op->out[k]];
}
static inline int32_t mf__ref_in_cols(const mf__ref_run *r, int k) {
    return r->g->bufs[r->op->in[k]].cols;
}
static inline const mf__tensor *mf__ref_w(const mf__ref_run *r, int k) {
    return r->op->w[k] < 0 ? 0 : &r->b->weights[r->op->w[k]];
}
static inline const float *mf__ref_vec(const mf__ref_run *r, int k) {
    return r->op->w[k] < 0 ? 0 : (const float *)r->b->weights[r->op->w[k]].data;
}

float mf__ref_sigmoid(float x);
float mf__ref_silu(float x);
float mf__ref_glu_one(const mf__glu *glu, float gate, float up);

/* n values of row `pos` of K or V, from column `first` on; decoded into mem unless they lie there as f32. */
static inline const float *mf__ref_k_row(const mf__kv *kv, int64_t pos, int32_t first, int32_t n, float *mem) {
    const void *row = mf__kv_k(kv, pos);
    if (kv->type == MF_TYPE_F32) return (const float *)row + first;
    mf__kv_decode_row(kv->type, row, kv->k_cols, first, n, mem);
    return mem;
}
static inline const float *mf__ref_v_row(const mf__kv *kv, int64_t pos, int32_t first, int32_t n, float *mem) {
    const void *row = mf__kv_v(kv, pos);
    if (kv->type == MF_TYPE_F32) return (const float *)row + first;
    mf__kv_decode_row(kv->type, row, kv->v_cols, first, n, mem);
    return mem;
}

/* One function per op family file. */
void mf__ref_embed(const mf__ref_run *r);
void mf__ref_rms_norm(const mf__ref_run *r);
void mf__ref_layer_norm(const mf__ref_run *r);
void mf__ref_matmul(const mf__ref_run *r);
void mf__ref_split_q_gate(const mf__ref_run *r);
void mf__ref_rope(const mf__ref_run *r);
void mf__ref_kv_append(const mf__ref_run *r);
void mf__ref_index(const mf__ref_run *r);
void mf__ref_attention(const mf__ref_run *r);
void mf__ref_split(const mf__ref_run *r);
void mf__ref_join(const mf__ref_run *r);
void mf__ref_mla_attention(const mf__ref_run *r);
void mf__ref_sigmoid_gate(const mf__ref_run *r);
void mf__ref_conv1d(const mf__ref_run *r);
void mf__ref_qk_norm(const mf__ref_run *r);
void mf__ref_decay_beta(const mf__ref_run *r);
void mf__ref_delta_net(const mf__ref_run *r);
void mf__ref_ssm(const mf__ref_run *r);
void mf__ref_gated_norm(const mf__ref_run *r);
void mf__ref_compress(const mf__ref_run *r);
void mf__ref_far_attention(const mf__ref_run *r);
void mf__ref_streams_read(const mf__ref_run *r);
void mf__ref_streams_write(const mf__ref_run *r);
void mf__ref_add(const mf__ref_run *r);
void mf__ref_map(const mf__ref_run *r);
void mf__ref_route(const mf__ref_run *r);
void mf__ref_weigh(const mf__ref_run *r);
void mf__ref_identity(const mf__ref_run *r);
void mf__ref_glu(const mf__ref_run *r);
void mf__ref_experts(const mf__ref_run *r);
void mf__ref_combine(const mf__ref_run *r);

/* Floats of scratch that one thread of an op needs. */
int64_t mf__ref_matmul_scratch(const mf__graph *g, const mf__op *op);
int64_t mf__ref_route_scratch(const mf__op *op);
int64_t mf__ref_index_scratch(const mf__op *op);
int64_t mf__ref_mla_scratch(const mf__op *op, int32_t n_rows);
int64_t mf__ref_experts_scratch(const mf__graph *g, const mf__op *op);

#endif
