/* Decoding, fused: the delta step of one row of each sequence with all that comes before it, and what queries and keys
 * need before attention. The same arithmetic as the plain kernels; norms and the delta step add up in another order. */
#include "backend/cuda/kv.cuh"

/* ---- delta net, one step ----------------------------------------------------------------------------------------- */

#define DELTA_THREADS 512
#define DELTA_LANES 16 /* that share a row of the state, four columns at a time */
#define DELTA_ROWS (DELTA_THREADS / DELTA_LANES)

/* The convolution of one channel but for the row that is new, and that row's weight. */
struct conv_channel {
    float sum, w;
};

static __device__ __forceinline__ conv_channel old_part(const mf__cu_delta_step &p, const float *state, int64_t c) {
    conv_channel to = {0, p.w_conv[c * p.n_kernel + p.n_kernel - 1]};
#pragma unroll 4
    for (int k = 0; k < p.n_kernel - 1; k++)
        to.sum = fmaf(p.w_conv[c * p.n_kernel + k], state[k * p.d.n_cols + c], to.sum);
    return to;
}

/* The rest of it; the first block that has the channel moves the state on. */
static __device__ __forceinline__ float conv_one(const mf__cu_delta_step &p, const float *state, float *to, int64_t row,
                                                 int64_t c, const conv_channel &old, bool first) {
    int back = p.n_kernel - 1;
    float now = fresh(p.x + row * p.d.n_cols + c);
    if (first && back) {
#pragma unroll 4
        for (int k = 1; k < back; k++) to[(k - 1) * p.d.n_cols + c] = state[k * p.d.n_cols + c];
        to[(back - 1) * p.d.n_cols + c] = now;
    }
    return silu(fmaf(old.w, now, old.sum));
}

static __device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* blockIdx: rows of the state, value head, segment (of one row). As delta_kernel, with what comes before it. COLS:
 * columns of the state in each thread, in fours. */
template <int COLS>
static __global__ void __launch_bounds__(DELTA_THREADS) delta_step_kernel(const __grid_constant__ mf__cu_delta_step p) {
    int part = blockIdx.x, head = blockIdx.y, at_seg = blockIdx.z;
    __shared__ __align__(16) float q[256], k[256];
    __shared__ float vs[DELTA_ROWS], gates[2];
    const mf__cu_delta &d = p.d;
    const mf__cu_segment *seg = &d.segs.at[at_seg];
    int k_dim = d.k_dim, lane = threadIdx.x % DELTA_LANES, i = threadIdx.x / DELTA_LANES,
        at_row = part * DELTA_ROWS + i;
    int ratio = d.n_v_heads / d.n_k_heads, warp = threadIdx.x / 32;
    int64_t row = seg->row0, keys = (int64_t)d.n_k_heads * k_dim;
    int64_t q_at = (int64_t)(head / ratio) * k_dim, v_at = 2 * keys + (int64_t)head * d.v_dim;
    bool mine = at_row < d.v_dim, first = part == 0 && head % ratio == 0;
    int64_t at = ((int64_t)head * d.v_dim + (mine ? at_row : 0)) * k_dim;
    float4 S[COLS / 4];
#pragma unroll
    for (int j = 0; j < COLS / 4; j++) {
        int c = 4 * (lane + DELTA_LANES * j);
        S[j] = mine && c < k_dim ? *(const float4 *)(seg->delta_in + at + c) : make_float4(0, 0, 0, 0);
    }
    /* queries, keys and the values of this block's rows: the channels of a thread */
    const int SLOTS = (2 * COLS * DELTA_LANES + DELTA_ROWS + DELTA_THREADS - 1) / DELTA_THREADS;
    conv_channel channels[SLOTS];
    const float *state = seg->conv_in;
    if (p.shadow) {
        state = p.shadow + (int64_t)at_seg * (p.n_kernel - 1) * d.n_cols;
        depend(); /* the kernel before this one copied it */
    }
    auto channel = [&](int c) { /* -1: there is none */
                                int r = part * DELTA_ROWS + c - 2 * k_dim;
                                if (c < k_dim) return q_at + c;
                                if (c < 2 * k_dim) return keys + q_at + c - k_dim;
                                return c < 2 * k_dim + DELTA_ROWS && r < d.v_dim ? v_at + r : (int64_t)-1;
    };
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        int64_t at = channel(threadIdx.x + i * DELTA_THREADS);
        if (at >= 0) channels[i] = old_part(p, state, at);
    }
    if (!p.shadow) depend();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        int c = threadIdx.x + i * DELTA_THREADS;
        int64_t at = channel(c);
        if (at < 0) continue;
        float v = conv_one(p, state, seg->conv_out, row, at, channels[i], first || c >= 2 * k_dim);
        *(c < k_dim ? &q[c] : c < 2 * k_dim ? &k[c - k_dim] : &vs[c - 2 * k_dim]) = v;
    }
    if (threadIdx.x == DELTA_THREADS - 1) {
        gates[0] = expf(-expf(p.a_log[head]) * softplus(fresh(p.a + row * d.n_v_heads + head) + p.dt_bias[head]));
        gates[1] = sigmoid(fresh(p.b + row * d.n_v_heads + head));
    }
    __syncthreads();
    if (warp < 2) { /* q and k to unit length */
        float *x = warp ? k : q, sum = 0;
        for (int c = lane_id(); c < k_dim; c += 32) sum += x[c] * x[c];
        float scale = 1.0f / sqrtf(warp_sum(sum) + 1e-6f) * (warp ? 1.0f : 1.0f / sqrtf((float)k_dim));
        for (int c = lane_id(); c < k_dim; c += 32) x[c] *= scale;
    }
    __syncthreads();
    float decay = gates[0], predicted = 0, read = 0;
#pragma unroll
    for (int j = 0; j < COLS / 4; j++) {
        int c = 4 * (lane + DELTA_LANES * j);
        if (c >= k_dim) continue;
        float4 y = *(const float4 *)(k + c);
        S[j] = make_float4(S[j].x * decay, S[j].y * decay, S[j].z * decay, S[j].w * decay);
        predicted += fmaf(S[j].w, y.w, fmaf(S[j].z, y.z, fmaf(S[j].y, y.y, S[j].x * y.x)));
    }
    float change = gates[1] * (vs[i] - lanes_sum(predicted, DELTA_LANES));
#pragma unroll
    for (int j = 0; j < COLS / 4; j++) {
        int c = 4 * (lane + DELTA_LANES * j);
        if (c >= k_dim) continue;
        float4 y = *(const float4 *)(k + c), x = *(const float4 *)(q + c);
        S[j] = make_float4(fmaf(change, y.x, S[j].x), fmaf(change, y.y, S[j].y), fmaf(change, y.z, S[j].z),
                           fmaf(change, y.w, S[j].w));
        read += fmaf(S[j].w, x.w, fmaf(S[j].z, x.z, fmaf(S[j].y, x.y, S[j].x * x.x)));
        if (mine) *(float4 *)(seg->delta_out + at + c) = S[j];
    }
    float o = lanes_sum(read, DELTA_LANES);
    if (mine && lane == 0) d.o[(row * d.n_v_heads + head) * d.v_dim + at_row] = o;
}

#define THREADS 256

/* blockIdx: channels, segment. */
static __global__ void shadow_kernel(const __grid_constant__ mf__cu_delta_step p) {
    int n = (p.n_kernel - 1) * p.d.n_cols, i = blockIdx.x * THREADS + threadIdx.x;
    if (i < n) p.shadow[(int64_t)blockIdx.y * n + i] = p.d.segs.at[blockIdx.y].conv_in[i];
}

extern "C" void mf__cu_delta_one(cudaStream_t s, const mf__cu_delta_step *p) {
    dim3 grid(ceil_div(p->d.v_dim, DELTA_ROWS), p->d.n_v_heads, p->d.segs.n);
    if (p->shadow)
        MF_LAUNCH(shadow_kernel, dim3(ceil_div((int64_t)(p->n_kernel - 1) * p->d.n_cols, THREADS), p->d.segs.n),
                  THREADS, 0, s, *p);
    if (p->d.k_dim <= 64)
        MF_LAUNCH_EARLY((delta_step_kernel<4>), grid, DELTA_THREADS, 0, s, *p);
    else if (p->d.k_dim <= 128)
        MF_LAUNCH_EARLY((delta_step_kernel<8>), grid, DELTA_THREADS, 0, s, *p);
    else
        MF_LAUNCH_EARLY((delta_step_kernel<16>), grid, DELTA_THREADS, 0, s, *p);
}

/* ---- queries, keys and values before attention ------------------------------------------------------------------- */

/* A head in a warp: norm and rope in registers, DIM / 32 values in each lane, column lane + 32 i. */
#define MAX_DIM 256

static __device__ __forceinline__ void norm_rope(const mf__cu_heads &p, const float *x, const float *w, int64_t pos,
                                                 float *mem) {
    float sum = 0;
    int dim = p.head_dim, half = p.n_rot / 2;
    for (int c = lane_id(); c < dim; c += 32) {
        mem[c] = x[c];
        sum += x[c] * x[c];
    }
    if (w) {
        float scale = 1.0f / sqrtf(warp_sum(sum) / (float)dim + p.eps);
        for (int c = lane_id(); c < dim; c += 32) mem[c] = x[c] * scale * w[c];
    }
    __syncwarp();
    for (int i = lane_id(); i < half; i += 32) {
        float sine, cosine;
        sincosf((float)pos * p.inv_freq[i], &sine, &cosine);
        sine *= p.rope_scale, cosine *= p.rope_scale;
        int a = p.interleaved ? 2 * i : i, b = p.interleaved ? 2 * i + 1 : i + half;
        float u = mem[a], v = mem[b];
        mem[a] = u * cosine - v * sine;
        mem[b] = u * sine + v * cosine;
    }
    __syncwarp();
}

static __device__ __forceinline__ void keep_head(const mf__cu_heads &p, mf__cu_type type, const float *x, char *row,
                                                 int head) {
    for (int c = lane_id(); c < p.head_dim; c += 32) {
        float v = x[c];
        if (type == MF_CU_F16) {
            v = v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v;
            ((uint16_t *)row)[head * p.head_dim + c] = to_f16(v);
        } else {
            ((float *)row)[head * p.head_dim + c] = v;
        }
    }
}

/* blockIdx: heads of q, then k, then v; row. */
static __global__ void heads_kernel(const __grid_constant__ mf__cu_heads p) {
    __shared__ float mem[MAX_DIM];
    const mf__cu_segment &seg = p.segs.at[p.segs.of_row[blockIdx.y]];
    int64_t row = blockIdx.y, pos = seg.pos + row - seg.row0;
    int head = blockIdx.x, dim = p.head_dim;
    depend();
    const float *x = p.q + (row * p.n_heads + head) * p.q_step;
    char *to = 0;
    bool value = false;
    if (head >= p.n_heads) { /* a key or a value */
        head -= p.n_heads;
        value = head >= p.n_kv_heads;
        if (value) head -= p.n_kv_heads;
        x = (value ? p.v : p.k) + (row * p.n_kv_heads + head) * dim;
        to = value ? v_row(seg, pos) : k_row(seg, pos);
    }
    if (!value) norm_rope(p, x, to ? p.k_norm : p.q_norm, pos, mem);
    if (to)
        keep_head(p, seg.kv_type, value ? x : mem, to, head);
    else
        for (int c = lane_id(); c < dim; c += 32) p.q_out[(row * p.n_heads + head) * dim + c] = mem[c];
}

extern "C" void mf__cu_heads_rows(cudaStream_t s, const mf__cu_heads *p) {
    MF_LAUNCH_EARLY(heads_kernel, dim3(p->n_heads + 2 * p->n_kv_heads, p->n_rows), 32, 0, s, *p);
}
