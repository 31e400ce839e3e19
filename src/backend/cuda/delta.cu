/* Gated DeltaNet: convolution, normalised keys and queries, decay, the delta rule. */
#include "backend/cuda/mma.cuh"

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
            if (k < kernel) sum = fmaf(w[k], k < back ? window[k] : now, sum);
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
 * Eight threads hold a row of S, thread l the columns 4 l ... + 3, 4 (l + 8) ... + 3, and so on; a block has DELTA_ROWS
 * rows of one head and goes through all steps of a segment with them. Queries, keys, values and gates of STEPS steps
 * lie in shared memory while the next ones are under way. QUADS: fours of columns in a thread; k_dim is QUADS * 32 or
 * less. */
#define STEPS 16
#define DELTA_THREADS 128
#define DELTA_ROWS (DELTA_THREADS / 8)

template <int QUADS> struct delta_tile {
    float q[STEPS][QUADS * 32], k[STEPS][QUADS * 32], v[STEPS][DELTA_ROWS], decay[STEPS], beta[STEPS];
};

/* Asks for the steps from t0 on; columns behind k_dim are zeros. */
template <int QUADS>
static __device__ __forceinline__ void fetch_steps(const mf__cu_delta &p, const mf__cu_segment *seg, int t0,
                                                   delta_tile<QUADS> *to) {
    const int cols = QUADS * 32;
    int head = blockIdx.y, n = min(STEPS, seg->n_rows - t0), k_dim = p.k_dim;
    int64_t keys = (int64_t)p.n_k_heads * k_dim, q_at = (int64_t)(head / (p.n_v_heads / p.n_k_heads)) * k_dim;
    int64_t v_at = 2 * keys + (int64_t)head * p.v_dim + blockIdx.x * DELTA_ROWS;
    for (int i = threadIdx.x; i < n * cols; i += DELTA_THREADS) {
        int t = i / cols, c = i % cols;
        const float *x = p.qkv + (int64_t)(seg->row0 + t0 + t) * p.n_cols + q_at + min(c, k_dim - 1);
        copy_async4(&to->q[t][c], x, c < k_dim);
        copy_async4(&to->k[t][c], x + keys, c < k_dim);
    }
    for (int i = threadIdx.x; i < n * DELTA_ROWS; i += DELTA_THREADS) {
        int t = i / DELTA_ROWS, r = i % DELTA_ROWS;
        bool mine = blockIdx.x * DELTA_ROWS + r < (unsigned)p.v_dim;
        copy_async4(&to->v[t][r], p.qkv + (int64_t)(seg->row0 + t0 + t) * p.n_cols + v_at + (mine ? r : 0), mine);
    }
    for (int i = threadIdx.x; i < n; i += DELTA_THREADS) {
        int64_t at = (int64_t)(seg->row0 + t0 + i) * p.n_v_heads + head;
        copy_async4(&to->decay[i], p.decay + at, true);
        copy_async4(&to->beta[i], p.beta + at, true);
    }
    copy_commit();
}

static __device__ __forceinline__ float dot_quad(float4 a, float4 b, float acc) {
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, acc))));
}

template <int QUADS>
static __global__ void __launch_bounds__(DELTA_THREADS) delta_kernel(const __grid_constant__ mf__cu_delta p) {
    MF_SHARED(memory);
    delta_tile<QUADS> *tiles = (delta_tile<QUADS> *)memory; /* [2] */
    const mf__cu_segment *seg = &p.segs.at[blockIdx.z];
    int head = blockIdx.y, lane = threadIdx.x % 8, i = threadIdx.x / 8, row = blockIdx.x * DELTA_ROWS + i;
    bool mine = row < p.v_dim;
    int64_t at = ((int64_t)head * p.v_dim + (mine ? row : 0)) * p.k_dim;
    float4 S[QUADS];
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        float v[4];
        for (int e = 0; e < 4; e++) {
            int c = 4 * (lane + 8 * j) + e;
            v[e] = mine && c < p.k_dim ? seg->delta_in[at + c] : 0;
        }
        S[j] = make_float4(v[0], v[1], v[2], v[3]);
    }
    fetch_steps<QUADS>(p, seg, 0, &tiles[0]);
    for (int t0 = 0, now = 0; t0 < seg->n_rows; t0 += STEPS, now ^= 1) {
        int n = min(STEPS, seg->n_rows - t0);
        copy_wait<0>();
        __syncthreads();
        if (t0 + STEPS < seg->n_rows) fetch_steps<QUADS>(p, seg, t0 + STEPS, &tiles[now ^ 1]);
        const delta_tile<QUADS> *tile = &tiles[now];
        float o[STEPS / 8]; /* of steps lane, lane + 8 */
#pragma unroll
        for (int t = 0; t < STEPS; t++) {
            if (t >= n) break;
            const float4 *k = (const float4 *)tile->k[t], *q = (const float4 *)tile->q[t];
            float decay = tile->decay[t], predicted[2] = {0, 0}, read[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < QUADS; j++) predicted[j & 1] = dot_quad(S[j], k[lane + 8 * j], predicted[j & 1]);
            float sum = lanes_sum(predicted[0] + predicted[1], 8);
            float d = tile->beta[t] * (tile->v[t][i] - decay * sum);
#pragma unroll
            for (int j = 0; j < QUADS; j++) {
                float4 kj = k[lane + 8 * j];
                S[j].x = fmaf(d, kj.x, decay * S[j].x);
                S[j].y = fmaf(d, kj.y, decay * S[j].y);
                S[j].z = fmaf(d, kj.z, decay * S[j].z);
                S[j].w = fmaf(d, kj.w, decay * S[j].w);
                read[j & 1] = dot_quad(S[j], q[lane + 8 * j], read[j & 1]);
            }
            float all = lanes_sum(read[0] + read[1], 8);
            if (t % 8 == lane) o[t / 8] = all;
        }
#pragma unroll
        for (int k = 0; k < STEPS / 8; k++) {
            int t = lane + 8 * k;
            if (mine && t < n) p.o[((int64_t)(seg->row0 + t0 + t) * p.n_v_heads + head) * p.v_dim + row] = o[k];
        }
    }
#pragma unroll
    for (int j = 0; j < QUADS; j++) {
        float v[4] = {S[j].x, S[j].y, S[j].z, S[j].w};
        for (int e = 0; e < 4; e++) {
            int c = 4 * (lane + 8 * j) + e;
            if (mine && c < p.k_dim) seg->delta_out[at + c] = v[e];
        }
    }
}

template <int QUADS> static void launch_delta(cudaStream_t s, const mf__cu_delta &d) {
    dim3 grid(ceil_div(d.v_dim, DELTA_ROWS), d.n_v_heads, d.segs.n);
    MF_LAUNCH((delta_kernel<QUADS>), grid, DELTA_THREADS, 2 * sizeof(delta_tile<QUADS>), s, d);
}

extern "C" void mf__cu_delta_net(cudaStream_t s, const mf__cu_delta *d) {
    if (d->k_dim <= 32)
        launch_delta<1>(s, *d);
    else if (d->k_dim <= 128)
        launch_delta<4>(s, *d);
    else
        launch_delta<8>(s, *d);
}
