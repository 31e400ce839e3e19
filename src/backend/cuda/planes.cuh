/* Activations on their way into a product: what comes before it (a norm, a gate), and rounding into planes of bytes.
 *
 * A warp takes MF_CU_BLOCK columns of a row, eight in each lane: they share a scale. */
#ifndef MF_BACKEND_CUDA_PLANES_CUH
#define MF_BACKEND_CUDA_PLANES_CUH

#include "backend/cuda/device.cuh"

#define LOW_BITS 7
#define MOST (127 * 128 + 63) /* the largest q */

/* Rows of activations in shared memory. Any of the pointers may be NULL. */
struct shared_rows {
    uint4 *q;           /* [n][units], turned */
    float *scale, *sum; /* [n][blocks], [n][granules] */
    float *x;           /* [n][padded] */
    int units, blocks, granules, padded;
};

/* Threads read a granule's units one after the other, at a distance of 64 bytes from each other: turned so that eight
 * neighbours meet all banks. */
static __device__ __forceinline__ int turned(int unit) {
    return (unit & ~3) | ((unit + (unit >> 3)) & 3);
}

static __device__ __forceinline__ uint32_t four_bytes(int a, int b, int c, int d) {
    return (a & 255) | (b & 255) << 8 | (c & 255) << 16 | (uint32_t)d << 24;
}

/* Eight values in each lane of a whole warp -> the unit, the block's scale, and the sum of the lane's granule. */
static __device__ __forceinline__ uint4 quantize(const float *v, float *scale, float *sum) {
    float peak = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) peak = fmaxf(peak, fabsf(v[i]));
    peak = warp_max(peak);
    float inverse = peak > 1e-30f ? MOST / peak : 0; /* below, it is no number */
    int high[8], low[8], total = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int q = __float2int_rn(v[i] * inverse);
        high[i] = (q + (1 << (LOW_BITS - 1))) >> LOW_BITS;
        low[i] = q - (high[i] << LOW_BITS);
        total += q;
    }
    total += __shfl_xor_sync(FULL, total, 1);
    total += __shfl_xor_sync(FULL, total, 2);
    *scale = peak / MOST;
    *sum = (float)total;
    return make_uint4(four_bytes(high[0], high[2], high[4], high[6]), four_bytes(high[1], high[3], high[5], high[7]),
                      four_bytes(low[0], low[2], low[4], low[6]), four_bytes(low[1], low[3], low[5], low[7]));
}

/* Columns c ... of row t, before the product; zeros behind the row. scale: of the row's norm. */
static __device__ __forceinline__ void input_values(const mf__cu_input &in, int t, int c, float scale, float *v) {
    int64_t at = (int64_t)t * in.n_cols + c;
    bool whole = c + 8 <= in.n_cols && in.n_cols % 4 == 0;
    if (whole) {
        float4 a = *(const float4 *)(in.x + at), b = *(const float4 *)(in.x + at + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = c + i < in.n_cols ? in.x[at + i] : 0;
    }
    if (in.before == MF_CU_AS_IS) return;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        if (c + i >= in.n_cols) continue;
        switch (in.before) {
        case MF_CU_NORM: v[i] = v[i] * scale * in.w[c + i]; break;
        case MF_CU_SIGMOID: v[i] *= sigmoid(in.x2[at + i]); break;
        case MF_CU_GLU: v[i] = glu_one(in.glu, v[i], in.x2[at + i]); break;
        default: break;
        }
    }
}

/* GATED_NORM: parts of 8 * 2^k <= 256 columns lie within a block of columns. */
static __device__ __forceinline__ void gated_norm_values(const mf__cu_input &in, int t, int c, float *v) {
    float sum = 0;
    int64_t at = (int64_t)t * in.n_cols + c;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += v[i] * v[i];
    sum = lanes_sum(sum, in.part / 8);
    float scale = 1.0f / sqrtf(sum / (float)in.part + in.eps);
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (c + i < in.n_cols) v[i] = v[i] * scale * in.w[(c & (in.part - 1)) + i] * silu(in.x2[at + i]);
}

/* The columns of a row without what comes before the product: eight of them from c on. */
static __device__ __forceinline__ void raw_values(const mf__cu_input &in, int t, int c, float *v) {
    mf__cu_input raw = in;
    raw.before = MF_CU_AS_IS;
    input_values(raw, t, c, 1, v);
}

static __device__ __forceinline__ float sum_of_squares(const float *v) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(v[i], v[i], sum);
    return sum;
}

/* 1 / rms of row t, for all threads of the block: sums of MF_CU_BLOCK columns in 32 slots, which are added up in pairs.
 * The order does not depend on the number of threads (warps are a divisor of 32). */
static __device__ __forceinline__ float row_scale(const mf__cu_input &in, int t, float *slots) {
    int warp = threadIdx.x / 32, n_warps = blockDim.x / 32, blocks = (in.n_cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
    __syncthreads();
    if (threadIdx.x < 32) slots[threadIdx.x] = 0;
    __syncthreads();
    for (int b = warp; b < blocks; b += n_warps) {
        float v[8];
        raw_values(in, t, b * MF_CU_BLOCK + lane_id() * 8, v);
        float sum = warp_sum(sum_of_squares(v));
        if (lane_id() == 0) slots[b % 32] += sum;
    }
    __syncthreads();
    return 1.0f / sqrtf(warp_sum(slots[lane_id()]) / (float)in.n_cols + in.eps);
}

/* One warp: the values of block b of row t. */
static __device__ __forceinline__ void block_values(const mf__cu_input &in, int t, int b, float scale, float *v) {
    int c = b * MF_CU_BLOCK + lane_id() * 8;
    input_values(in, t, c, scale, v);
    if (in.before == MF_CU_GATED_NORM) gated_norm_values(in, t, c, v);
}

/* One warp: block b of row t of the input, as values and rounded. first: the values are also kept. */
static __device__ __forceinline__ void fill_block(const mf__cu_input &in, int t0, int t, int b, float scale, float *v,
                                                  const shared_rows &s, bool first) {
    float block_scale, sum;
    int c = b * MF_CU_BLOCK + lane_id() * 8, unit = c / 8;
    if (s.x && c < s.padded)
        for (int i = 0; i < 8; i++) s.x[t * s.padded + c + i] = v[i];
    if (first && in.keep)
        for (int i = 0; i < 8; i++)
            if (c + i < in.n_cols) in.keep[(int64_t)(t0 + t) * in.n_cols + c + i] = v[i];
    if (!s.q) return;
    uint4 u = quantize(v, &block_scale, &sum);
    if (unit < s.units) s.q[t * s.units + turned(unit)] = u;
    if (lane_id() == 0) s.scale[t * s.blocks + b] = block_scale;
    if (lane_id() % 4 == 0 && unit / 4 < s.granules) s.sum[t * s.granules + unit / 4] = sum;
}

/* Rows t0 ... t0 + n of the input into shared memory, by all threads of a block. first: this block also keeps them. */
static __device__ __forceinline__ void fill_rows(const mf__cu_input &in, int t0, int n, const shared_rows &s,
                                                 bool first, float *slots) {
    int warp = threadIdx.x / 32, n_warps = blockDim.x / 32, blocks = (in.n_cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
    float v[8];
    if (in.before != MF_CU_NORM) {
        for (int i = warp; i < n * blocks; i += 2 * n_warps) { /* two are asked for before the first is used */
            int k = i + n_warps;
            float u[8];
            block_values(in, t0 + i / blocks, i % blocks, 1, v);
            if (k < n * blocks) block_values(in, t0 + k / blocks, k % blocks, 1, u);
            fill_block(in, t0, i / blocks, i % blocks, 1, v, s, first);
            if (k < n * blocks) fill_block(in, t0, k / blocks, k % blocks, 1, u, s, first);
        }
    } else {
        for (int t = 0; t < n; t++) {
            if (blocks <= n_warps) { /* as row_scale, but values and weights are asked for together */
                int c = warp * MF_CU_BLOCK + lane_id() * 8;
                float w[8];
                raw_values(in, t0 + t, c, v);
#pragma unroll
                for (int i = 0; i < 8; i++) w[i] = c + i < in.n_cols ? in.w[c + i] : 0;
                float scale = 1.0f / sqrtf(block_sum(sum_of_squares(v), slots) / (float)in.n_cols + in.eps);
#pragma unroll
                for (int i = 0; i < 8; i++) v[i] = v[i] * scale * w[i];
                if (warp < blocks) fill_block(in, t0, t, warp, scale, v, s, first);
                continue;
            }
            float scale = row_scale(in, t0 + t, slots);
            for (int b = warp; b < blocks; b += n_warps) {
                block_values(in, t0 + t, b, scale, v);
                fill_block(in, t0, t, b, scale, v, s, first);
            }
        }
    }
    __syncthreads();
}

/* Lays n rows out; NULL-based pointers give the size. */
static inline __host__ __device__ size_t lay_rows(char *mem, int n, int n_cols, bool planes, bool floats,
                                                  shared_rows *out) {
    size_t at = 0;
    out->units = (n_cols + 31) / 32 * 4;
    out->blocks = (n_cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
    out->granules = out->units / 4;
    out->padded = (n_cols + 7) / 8 * 8;
    out->q = planes ? (uint4 *)(mem + at) : 0;
    at += planes ? (size_t)n * out->units * 16 : 0;
    out->x = floats ? (float *)(mem + at) : 0;
    at += floats ? (size_t)n * out->padded * 4 : 0;
    out->scale = (float *)(mem + at);
    at += planes ? (size_t)n * out->blocks * 4 : 0;
    out->sum = (float *)(mem + at);
    at += planes ? (size_t)n * out->granules * 4 : 0;
    return at;
}

#endif
