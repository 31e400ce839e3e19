/* Attention of many rows of a sequence, in tensor cores, for KV rows of f16.
 *
 *   o = softmax(q k^T) v,  key tile after key tile, with the maximum and the sum so far
 *
 * A block has ROWS rows of one head, a warp 16 of them. Tiles of KEYS keys begin at multiples of KEYS from the start of
 * the sequence and are taken in order, so a row's sums depend on its position alone; keys that it does not see add
 * nothing. Queries and weights are each the sum of two halves (22 bits), keys and values are as stored: products are
 * as good as in f32. The next tile's keys are under way while values are multiplied, and the other way round. */
#include <float.h>

#include "backend/cuda/kv.cuh"
#include "backend/cuda/mma.cuh"

#define THREADS 256
#define ROWS 128
#define KEYS 64

/* Sixteen bytes c of row r lie at c ^ r % 8: eight rows meet all banks. */
template <int DIM> struct flash_tiles { uint4 q[2][ROWS][DIM / 8], k[KEYS][DIM / 8], v[KEYS][DIM / 8]; };

static __device__ __forceinline__ uint32_t two_halves(float a, float b) {
    return to_f16(a) | (uint32_t)to_f16(b) << 16;
}
/* What rounding to halves leaves of them. */
static __device__ __forceinline__ uint32_t two_rests(float a, float b, uint32_t halves) {
    return two_halves(a - from_f16((uint16_t)halves), b - from_f16((uint16_t)(halves >> 16)));
}

/* The block's queries, scaled, as two halves each; zeros behind them. */
template <int DIM>
static __device__ __forceinline__ void load_queries(const mf__cu_attention &p, const float *q, int n,
                                                    flash_tiles<DIM> *t) {
    float scale = p.scale * 1.44269504f; /* powers of two are cheaper */
    for (int i = threadIdx.x; i < ROWS * (DIM / 8); i += THREADS) {
        int row = i / (DIM / 8), c = i % (DIM / 8);
        uint32_t high[4], low[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float a = 0, b = 0;
            if (row < n) {
                const float *x = q + (int64_t)row * p.n_heads * p.q_stride + 8 * c + 2 * k;
                a = fminf(fmaxf(x[0] * scale, -65504.0f), 65504.0f);
                b = fminf(fmaxf(x[1] * scale, -65504.0f), 65504.0f);
            }
            high[k] = two_halves(a, b);
            low[k] = two_rests(a, b, high[k]);
        }
        t->q[0][row][c ^ (row & 7)] = make_uint4(high[0], high[1], high[2], high[3]);
        t->q[1][row][c ^ (row & 7)] = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

/* Asks for a tile of keys or values; at: of its rows. */
template <int DIM>
static __device__ __forceinline__ void fetch(const char *const *at, int64_t off, int n, uint4 (*to)[DIM / 8]) {
    for (int i = threadIdx.x; i < KEYS * (DIM / 8); i += THREADS) {
        int row = i / (DIM / 8), c = i % (DIM / 8);
        copy_async16(&to[row][c ^ (row & 7)], at[row] + off + 16 * c, row < n);
    }
}

/* Where the keys of a tile are; behind the last of them it is the last. */
static __device__ __forceinline__ void look_up(const mf__cu_segment &seg, int64_t first, int64_t end, const char **at) {
    if (threadIdx.x >= KEYS) return;
    int64_t pos = first + threadIdx.x < end ? first + threadIdx.x : end - 1;
    at[threadIdx.x] = k_row(seg, pos);
}

/* Scores of a warp's rows and a tile's keys. */
template <int DIM> static __device__ __forceinline__ void score(const flash_tiles<DIM> *t, int warp, float (*s)[4]) {
    int lane = lane_id(), row = warp * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) s[i][k] = 0;
#pragma unroll 4
    for (int c = 0; c < DIM / 8; c += 2) {
        uint32_t high[4], low[4];
        load_matrices<false>(high, &t->q[0][row][(c + lane / 16) ^ (row & 7)]);
        load_matrices<false>(low, &t->q[1][row][(c + lane / 16) ^ (row & 7)]);
#pragma unroll
        for (int i = 0; i < KEYS / 8; i += 2) {
            uint32_t b[4];
            int key = 8 * i + lane / 16 * 8 + lane % 8;
            load_matrices<false>(b, &t->k[key][(c + lane / 8 % 2) ^ (key & 7)]);
            mma_f16(s[i], high, b[0], b[1]);
            mma_f16(s[i], low, b[0], b[1]);
            mma_f16(s[i + 1], high, b[2], b[3]);
            mma_f16(s[i + 1], low, b[2], b[3]);
        }
    }
}

/* Scores become weights; keys [from, to] of the tile are seen. Returns what the sums so far are to be multiplied with.
 * The thread has columns of two rows: h = 0, 1. */
static __device__ __forceinline__ float weigh(float (*s)[4], int h, int64_t from, int64_t to, float *top, float *sum) {
    float most = -FLT_MAX, add = 0;
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
        for (int k = 2 * h; k < 2 * h + 2; k++) {
            int key = 8 * i + lane_id() % 4 * 2 + k % 2;
            if (key < from || key > to) s[i][k] = -INFINITY;
            most = fmaxf(most, s[i][k]);
        }
    most = fmaxf(most, __shfl_xor_sync(FULL, most, 1));
    most = fmaxf(most, __shfl_xor_sync(FULL, most, 2));
    most = fmaxf(most, *top);
    float keep = exp2f(*top - most);
#pragma unroll
    for (int i = 0; i < KEYS / 8; i++)
#pragma unroll
        for (int k = 2 * h; k < 2 * h + 2; k++) add += s[i][k] = exp2f(s[i][k] - most);
    *top = most;
    *sum = fmaf(*sum, keep, add);
    return keep;
}

/* o += weights v */
template <int DIM>
static __device__ __forceinline__ void add_values(const flash_tiles<DIM> *t, float (*s)[4], float (*o)[4]) {
    int lane = lane_id();
#pragma unroll
    for (int i = 0; i < KEYS / 16; i++) {
        uint32_t high[4], low[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float a = s[2 * i + k / 2][k % 2 * 2], b = s[2 * i + k / 2][k % 2 * 2 + 1];
            high[k] = two_halves(a, b);
            low[k] = two_rests(a, b, high[k]);
        }
        int key = 16 * i + lane % 16;
#pragma unroll
        for (int d = 0; d < DIM / 8; d += 2) {
            uint32_t b[4];
            load_matrices<true>(b, &t->v[key][(d + lane / 16) ^ (key & 7)]);
            mma_f16(o[d], high, b[0], b[1]);
            mma_f16(o[d], low, b[0], b[1]);
            mma_f16(o[d + 1], high, b[2], b[3]);
            mma_f16(o[d + 1], low, b[2], b[3]);
        }
    }
}

/* blockIdx: rows of the segment, the last ones first (they have most keys); head; segment. */
template <int DIM>
static __global__ void __launch_bounds__(THREADS, 1) flash_kernel(const __grid_constant__ mf__cu_attention p) {
    __shared__ const char *at[2][KEYS];
    MF_SHARED(memory);
    flash_tiles<DIM> *t = (flash_tiles<DIM> *)memory;
    const mf__cu_segment &seg = p.segs.at[blockIdx.z];
    int q0 = (gridDim.x - 1 - blockIdx.x) * ROWS, n = min(ROWS, seg.n_rows - q0), head = blockIdx.y;
    if (n <= 0) return;
    int warp = threadIdx.x / 32, lane = lane_id();
    int64_t pos = seg.pos + q0, end = pos + n, first = first_of(p, pos) / KEYS * KEYS;
    int64_t off = (int64_t)(head / (p.n_heads / p.n_kv_heads)) * DIM * 2, v_off = off + seg.block_rows * seg.k_bytes;
    look_up(seg, first, end, at[0]);
    __syncthreads();
    fetch<DIM>(at[0], off, (int)min(KEYS, (int)(end - first)), t->k);
    copy_commit();
    fetch<DIM>(at[0], v_off, (int)min(KEYS, (int)(end - first)), t->v);
    copy_commit();
    load_queries<DIM>(p, p.q + ((int64_t)(seg.row0 + q0) * p.n_heads + head) * p.q_stride, n, t);
    float o[DIM / 8][4], top[2] = {-FLT_MAX, -FLT_MAX}, sum[2] = {0, 0};
#pragma unroll
    for (int d = 0; d < DIM / 8; d++)
#pragma unroll
        for (int k = 0; k < 4; k++) o[d][k] = 0;
    for (int now = 0; first < end; first += KEYS, now ^= 1) {
        float s[KEYS / 8][4];
        bool more = first + KEYS < end;
        int left = (int)min(KEYS, (int)(end - first - KEYS));
        if (more) look_up(seg, first + KEYS, end, at[now ^ 1]);
        copy_wait<1>();
        __syncthreads();
        score<DIM>(t, warp, s);
        __syncthreads();
        if (more) fetch<DIM>(at[now ^ 1], off, left, t->k);
        copy_commit();
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int64_t row = pos + warp * 16 + lane / 4 + 8 * h;
            float keep = weigh(s, h, first_of(p, row) - first, row - first, &top[h], &sum[h]);
            if (__ballot_sync(FULL, keep != 1.0f))
#pragma unroll
                for (int d = 0; d < DIM / 8; d++) o[d][2 * h] *= keep, o[d][2 * h + 1] *= keep;
        }
        copy_wait<1>();
        __syncthreads();
        add_values<DIM>(t, s, o);
        __syncthreads();
        if (more) fetch<DIM>(at[now ^ 1], v_off, left, t->v);
        copy_commit();
    }
    copy_wait<0>();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = warp * 16 + lane / 4 + 8 * h;
        float all = sum[h] + __shfl_xor_sync(FULL, sum[h], 1), sink = 1;
        all += __shfl_xor_sync(FULL, all, 2);
        if (p.sinks) { /* one more key without a value */
            float own = p.sinks[head] * 1.44269504f, most = fmaxf(top[h], own);
            sink = exp2f(top[h] - most);
            all = fmaf(all, sink, exp2f(own - most));
        }
        if (row >= n) continue;
        float *to = p.o + ((int64_t)(seg.row0 + q0 + row) * p.n_heads + head) * DIM + lane % 4 * 2;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
            *(float2 *)(to + 8 * d) = make_float2(o[d][2 * h] * sink / all, o[d][2 * h + 1] * sink / all);
    }
}

template <int DIM> static void launch(cudaStream_t s, const mf__cu_attention &a) {
    MF_LAUNCH((flash_kernel<DIM>), dim3(ceil_div(a.segs.most_rows, ROWS), a.n_heads, a.segs.n), THREADS,
              sizeof(flash_tiles<DIM>), s, a);
}

extern "C" bool mf__cu_flash_fits(const mf__cu_attention *a) {
    size_t shared = a->k_dim == 64    ? sizeof(flash_tiles<64>)
                    : a->k_dim == 128 ? sizeof(flash_tiles<128>)
                                      : sizeof(flash_tiles<256>);
    return shared <= most_shared() && !a->n_rope && !a->gate && a->k_dim == a->v_dim &&
           (a->k_dim == 64 || a->k_dim == 128 || a->k_dim == 256) && a->q_stride % 2 == 0 && a->segs.n <= 65535;
}

extern "C" void mf__cu_flash(cudaStream_t s, const mf__cu_attention *a) {
    if (a->k_dim == 64)
        launch<64>(s, *a);
    else if (a->k_dim == 128)
        launch<128>(s, *a);
    else
        launch<256>(s, *a);
}
