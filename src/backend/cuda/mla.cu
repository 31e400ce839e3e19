/* Multi-head latent attention, absorbed: queries go down to the latent before, and what was mixed of latents becomes
 * values after the walk over cached rows (attention.cu).
 *
 *   q' = W_UK^T q_nope,   o = W_UV z */
#include "backend/cuda/weights.cuh"

#define THREADS 128

struct mla_params {
    mf__cu_mla m;
    float *q;
    const float *z;
};

/* blockIdx: head, row. w_uk: [heads][n_nope (| v_dim)][n_latent], or transposed: [heads][n_latent][n_nope]. */
static __global__ void absorb_kernel(const __grid_constant__ mla_params p) {
    const mf__cu_mla &m = p.m;
    int64_t head = blockIdx.x, row = blockIdx.y;
    const float *q = m.q + (row * m.n_heads + head) * (m.n_nope + m.n_rope);
    float *to = p.q + (row * m.n_heads + head) * (m.n_latent + m.n_rope);
    for (int c = threadIdx.x; c < m.n_latent; c += blockDim.x) {
        float sum = 0;
        for (int i = 0; i < m.n_nope; i++)
            sum += q[i] * (m.joint ? weight_at(m.w_uk, head * (m.n_nope + m.v_dim) + i, c)
                                   : weight_at(m.w_uk, head * m.n_latent + c, i));
        to[c] = sum;
    }
    for (int c = threadIdx.x; c < m.n_rope; c += blockDim.x) to[m.n_latent + c] = q[m.n_nope + c];
}

/* A warp per value. */
static __global__ void expand_kernel(const __grid_constant__ mla_params p) {
    const mf__cu_mla &m = p.m;
    int64_t head = blockIdx.x, row = blockIdx.y;
    const float *z = p.z + (row * m.n_heads + head) * m.n_latent;
    for (int i = threadIdx.x / 32; i < m.v_dim; i += blockDim.x / 32) {
        float sum = 0;
        for (int c = lane_id(); c < m.n_latent; c += 32)
            sum += z[c] * (m.joint ? weight_at(m.w_uk, head * (m.n_nope + m.v_dim) + m.n_nope + i, c)
                                   : weight_at(m.w_uv, head * m.v_dim + i, c));
        sum = warp_sum(sum);
        if (lane_id() == 0) m.o[(row * m.n_heads + head) * m.v_dim + i] = sum;
    }
}

extern "C" void mf__cu_mla_absorb(cudaStream_t s, const mf__cu_mla *m, float *q) {
    mla_params p = {*m, q, 0};
    MF_LAUNCH(absorb_kernel, dim3(m->n_heads, m->n_rows), THREADS, 0, s, p);
}

extern "C" void mf__cu_mla_expand(cudaStream_t s, const mf__cu_mla *m, const float *z) {
    mla_params p = {*m, 0, z};
    MF_LAUNCH(expand_kernel, dim3(m->n_heads, m->n_rows), THREADS, 0, s, p);
}
