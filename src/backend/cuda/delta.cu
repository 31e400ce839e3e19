/* Gated DeltaNet: convolution, normalised keys and queries, decay, the delta rule. */
#include "backend/cuda/device.cuh"

#define THREADS 256
#define MAX_KERNEL 8

/* ---- conv1d ----------------------------------------------------------------------------------------------------- */

/* blockIdx: channels, part of the segment, segment. Part 0 has the rows that reach back into the state, and changes it;
 * part i > 0 has CONV_ROWS rows behind them. */
#define CONV_ROWS 16

static __global__ void conv_kernel(const __grid_constant__ mf__cu_conv p) {
    const mf__cu_segment *seg = &p.segs.at[blockIdx.z];
    int c = blockIdx.x * blockDim.x + threadIdx.x, kernel = p.n_kernel, back = kernel - 1;
    if (c >= p.n_channels) return;
    int t = blockIdx.y == 0 ? 0 : back + (blockIdx.y - 1) * CONV_ROWS;
    int end = min(blockIdx.y == 0 ? back : t + CONV_ROWS, seg->n_rows);
    if (t >= end) return;
    const float *x = p.x + (int64_t)seg->row0 * p.n_channels + c;
    float *y = p.y + (int64_t)seg->row0 * p.n_channels + c;
    float window[MAX_KERNEL], w[MAX_KERNEL]; /* the rows before, oldest first */
#pragma unroll
    for (int k = 0; k < MAX_KERNEL; k++) {
        w[k] = k < kernel ? p.w[(int64_t)c * kernel + k] : 0;
        window[k] = 0;
        if (k < back)
            window[k] =
                t == 0 ? seg->conv_in[(int64_t)k * p.n_channels + c] : x[(int64_t)(t - back + k) * p.n_channels];
    }
    if (blockIdx.y == 0) { /* the state after the segment: its last rows, or what is left of the earlier ones */
#pragma unroll
        for (int k = 0; k < MAX_KERNEL; k++) {
            int row = seg->n_rows - back + k; /* < 0: row + back of the old ones */
            float v = 0;
#pragma unroll
            for (int i = 0; i < MAX_KERNEL; i++)
                if (i == row + back) v = window[i];
            if (k < back) seg->conv_out[(int64_t)k * p.n_channels + c] = row < 0 ? v : x[(int64_t)row * p.n_channels];
        }
    }
    for (; t < end; t++) {
        float now = x[(int64_t)t * p.n_channels], sum = 0;
#pragma unroll
        for (int k = 0; k < MAX_KERNEL; k++)
            if (k < kernel) sum += w[k] * (k < back ? window[k] : now);
        y[(int64_t)t * p.n_channels] = silu(sum);
#pragma unroll
        for (int k = 0; k + 1 < MAX_KERNEL; k++) window[k] = k + 1 < back ? window[k + 1] : now;
    }
}

extern "C" void mf__cu_conv1d(cudaStream_t s, const mf__cu_conv *c) {
    int back = c->n_kernel - 1, rest = c->segs.most_rows > back ? c->segs.most_rows - back : 0;
    MF_LAUNCH(conv_kernel, dim3(ceil_div(c->n_channels, THREADS), 1 + ceil_div(rest, CONV_ROWS), c->segs.n), THREADS, 0,
              s, *c);
}

/* ---- qk_norm, decay_beta ----------------------------------------------------------------------------------------- */

struct unit_params {
    float *x;
    int64_t n_parts;
    int cols, n_heads, dim;
};

/* A warp per head: q / sqrt(sum q^2 + 1e-6) / sqrt(dim), k / sqrt(sum k^2 + 1e-6) */
static __global__ void qk_norm_kernel(const __grid_constant__ unit_params p) {
    int64_t i = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (i >= p.n_parts) return;
    int h = (int)(i % (2 * p.n_heads));
    float *head = p.x + i / (2 * p.n_heads) * p.cols + (int64_t)h * p.dim, sum = 0;
    for (int c = lane_id(); c < p.dim; c += 32) sum += head[c] * head[c];
    float scale = 1.0f / sqrtf(warp_sum(sum) + 1e-6f) * (h < p.n_heads ? 1.0f / sqrtf((float)p.dim) : 1.0f);
    for (int c = lane_id(); c < p.dim; c += 32) head[c] *= scale;
}

extern "C" void mf__cu_qk_norm(cudaStream_t s, float *x, int32_t n_rows, int32_t cols, int32_t n_heads, int32_t dim) {
    unit_params p = {x, (int64_t)n_rows * 2 * n_heads, cols, n_heads, dim};
    MF_LAUNCH(qk_norm_kernel, ceil_div(p.n_parts, THREADS / 32), THREADS, 0, s, p);
}

struct decay_params {
    const float *a, *b, *a_log, *dt_bias;
    float *decay, *beta;
    int64_t n;
    int heads;
};

static __device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

static __global__ void decay_kernel(const __grid_constant__ decay_params p) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.n) return;
    int h = (int)(i % p.heads);
    p.decay[i] = expf(-expf(p.a_log[h]) * softplus(p.a[i] + p.dt_bias[h]));
    p.beta[i] = sigmoid(p.b[i]);
}

extern "C" void mf__cu_decay_beta(cudaStream_t s, const float *a, const float *b, const float *a_log,
                                  const float *dt_bias, int32_t n_rows, int32_t heads, float *decay, float *beta) {
    decay_params p = {a, b, a_log, dt_bias, decay, beta, (int64_t)n_rows * heads, heads};
    MF_LAUNCH(decay_kernel, ceil_div(p.n, THREADS), THREADS, 0, s, p);
}

/* ---- delta rule -------------------------------------------------------------------------------------------------- */

/* S [v_dim][k_dim] of a head:  S <- decay S;  d = beta (v - S k);  S <- S + d k^T;  o = S q.
 *
 * Eight threads hold a row of S, thread l the columns l, l + 8, ...; a block has 32 rows of one head and goes through
 * all steps of a segment with them. Keys and queries of STEPS steps come through shared memory; the next ones are under
 * way meanwhile. */
#define STEPS 8
#define DELTA_ROWS 32

template <int COLS>
static __global__ void __launch_bounds__(THREADS) delta_kernel(const __grid_constant__ mf__cu_delta p) {
    MF_SHARED(memory); /* [STEPS][2][k_dim], then [STEPS][DELTA_ROWS], then [STEPS][2] */
    const mf__cu_segment *seg = &p.segs.at[blockIdx.z];
    int head = blockIdx.y, k_dim = p.k_dim, lane = threadIdx.x % 8, row = blockIdx.x * DELTA_ROWS + threadIdx.x / 8;
    float *qk = (float *)memory, *vs = qk + STEPS * 2 * k_dim, *gates = vs + STEPS * DELTA_ROWS;
    bool mine = row < p.v_dim;
    int64_t keys = (int64_t)p.n_k_heads * k_dim, at = ((int64_t)head * p.v_dim + (mine ? row : 0)) * k_dim;
    int64_t q_at = (int64_t)(head / (p.n_v_heads / p.n_k_heads)) * k_dim, v_at = 2 * keys + (int64_t)head * p.v_dim;
    float S[COLS];
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        int c = lane + 8 * j;
        S[j] = mine && c < k_dim ? seg->delta_in[at + c] : 0;
    }
    for (int t0 = 0; t0 < seg->n_rows; t0 += STEPS) {
        int n = min(STEPS, seg->n_rows - t0);
        __syncthreads();
        for (int i = threadIdx.x; i < n * 2 * k_dim; i += THREADS) {
            int t = i / (2 * k_dim), c = i % (2 * k_dim);
            const float *x = p.qkv + (int64_t)(seg->row0 + t0 + t) * p.n_cols;
            qk[i] = c < k_dim ? x[q_at + c] : x[keys + q_at + c - k_dim];
        }
        for (int i = threadIdx.x; i < n * DELTA_ROWS; i += THREADS) {
            int t = i / DELTA_ROWS, r = blockIdx.x * DELTA_ROWS + i % DELTA_ROWS;
            vs[i] = r < p.v_dim ? p.qkv[(int64_t)(seg->row0 + t0 + t) * p.n_cols + v_at + r] : 0;
        }
        for (int i = threadIdx.x; i < 2 * n; i += THREADS)
            gates[i] = (i % 2 ? p.beta : p.decay)[(int64_t)(seg->row0 + t0 + i / 2) * p.n_v_heads + head];
        __syncthreads();
        for (int t = 0; t < n; t++) {
            const float *q = qk + t * 2 * k_dim, *k = q + k_dim;
            float decay = gates[2 * t], predicted[2] = {0, 0}, read[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                int c = lane + 8 * j;
                S[j] *= decay;
                if (c < k_dim) predicted[j & 1] += S[j] * k[c];
            }
            float sum = lanes_sum(predicted[0] + predicted[1], 8);
            float d = gates[2 * t + 1] * (vs[t * DELTA_ROWS + threadIdx.x / 8] - sum);
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                int c = lane + 8 * j;
                if (c >= k_dim) continue;
                S[j] += d * k[c];
                read[j & 1] += S[j] * q[c];
            }
            float o = lanes_sum(read[0] + read[1], 8);
            if (mine && lane == 0) p.o[((int64_t)(seg->row0 + t0 + t) * p.n_v_heads + head) * p.v_dim + row] = o;
        }
    }
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        int c = lane + 8 * j;
        if (mine && c < k_dim) seg->delta_out[at + c] = S[j];
    }
}

extern "C" void mf__cu_delta_net(cudaStream_t s, const mf__cu_delta *d) {
    dim3 grid(ceil_div(d->v_dim, DELTA_ROWS), d->n_v_heads, d->segs.n);
    size_t shared = (size_t)STEPS * (2 * d->k_dim + DELTA_ROWS + 2) * 4;
    if (d->k_dim <= 32)
        MF_LAUNCH((delta_kernel<4>), grid, THREADS, shared, s, *d);
    else if (d->k_dim <= 128)
        MF_LAUNCH((delta_kernel<16>), grid, THREADS, shared, s, *d);
    else
        MF_LAUNCH((delta_kernel<32>), grid, THREADS, shared, s, *d);
}
