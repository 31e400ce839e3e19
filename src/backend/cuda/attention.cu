/* The KV cache: rows are appended, and attended to.
 *
 * One block computes the share of MF_CU_SPLIT cached rows in the attention of a row's heads that have one kv head in
 * common; a second kernel adds the shares up in order. Shares begin at multiples of MF_CU_SPLIT, so a row's sums depend
 * on its position alone. */
#include <float.h>

#include "backend/cuda/kv.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define AT_ONCE 4 /* cached rows that a warp has under way */

/* ---- append ------------------------------------------------------------------------------------------------------ */

static __device__ __forceinline__ void encode_f16(const float *x, int cols, uint16_t *row) {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = x[c] > 65504.0f ? 65504.0f : x[c] < -65504.0f ? -65504.0f : x[c];
        row[c] = to_f16(v);
    }
}

/* A warp per group. A group with a NaN or an infinity is all NaN: 0 times a scale that is not finite. */
static __device__ __forceinline__ void encode_i8(const float *x, int cols, char *row) {
    int groups = (cols + KV_GROUP - 1) / KV_GROUP, pad = kv_scales_at(cols);
    if ((int)threadIdx.x < pad - cols) row[cols + threadIdx.x] = 0;
    for (int g = threadIdx.x / 32; g < groups; g += blockDim.x / 32) {
        int c = g * KV_GROUP + lane_id(), d = c + 32, end = min(cols, (g + 1) * KV_GROUP);
        float a = c < end ? x[c] : 0, b = d < end ? x[d] : 0;
        bool nan = __ballot_sync(FULL, isnan(a) || isnan(b)) != 0;
        float most = warp_max(fmaxf(fabsf(a), fabsf(b)));
        if (nan) most = NAN;
        bool some = most > 1e-30f && most <= FLT_MAX;
        float inverse = some ? 127 / most : 0;
        if (c < end) row[c] = some ? (char)(int8_t)__float2int_rn(__fmul_rn(a, inverse)) : 0;
        if (d < end) row[d] = some ? (char)(int8_t)__float2int_rn(__fmul_rn(b, inverse)) : 0;
        if (lane_id() == 0) ((float *)(row + pad))[g] = most / 127;
    }
}

static __device__ __forceinline__ void encode(mf__cu_type type, const float *x, int cols, char *row) {
    if (type == MF_CU_F16)
        encode_f16(x, cols, (uint16_t *)row);
    else if (type == MF_CU_I8)
        encode_i8(x, cols, row);
    else
        for (int c = threadIdx.x; c < cols; c += blockDim.x) ((float *)row)[c] = x[c];
}

static __global__ void append_kernel(const __grid_constant__ mf__cu_append p) {
    const mf__cu_segment &seg = p.segs.at[p.segs.of_row[blockIdx.x]];
    int64_t pos = seg.pos + (int)blockIdx.x - seg.row0;
    encode(seg.kv_type, p.k + (int64_t)blockIdx.x * p.k_cols, p.k_cols, k_row(seg, pos));
    encode(seg.kv_type, p.v + (int64_t)blockIdx.x * p.v_cols, p.v_cols, v_row(seg, pos));
}

extern "C" void mf__cu_kv_append(cudaStream_t s, const mf__cu_append *a) {
    MF_LAUNCH(append_kernel, a->n_rows, 128, 0, s, *a);
}

/* ---- attend ------------------------------------------------------------------------------------------------------ */

/* Sums of v[0 .. N) over a warp, N a power of two up to 8: lane gets that of number lane * N / 32. */
template <int N> static __device__ __forceinline__ float sums_of(float *v) {
    int d = 16;
#pragma unroll
    for (int n = N / 2; n > 0; n /= 2, d /= 2)
#pragma unroll
        for (int i = 0; i < n; i++) {
            bool upper = lane_id() & d;
            float send = upper ? v[i] : v[i + n], keep = upper ? v[i + n] : v[i];
            v[i] = keep + __shfl_xor_sync(FULL, send, d);
        }
    for (; d > 0; d /= 2) v[0] += __shfl_xor_sync(FULL, v[0], d);
    return v[0];
}

/* blockIdx: split, kv head and group of its query heads, row. DIMS: columns of a head in each lane; HEADS: query heads
 * at a time. */
template <int DIMS, int HEADS>
static __global__ void __launch_bounds__(THREADS) attend_kernel(const __grid_constant__ mf__cu_attention p) {
    __shared__ float scores[HEADS][MF_CU_SPLIT];
    __shared__ float total[HEADS], top[HEADS];
    MF_SHARED(memory); /* [HEADS][v_dim] */
    depend();
    const mf__cu_segment &seg = p.segs.at[p.segs.of_row[p.row0 + blockIdx.z]];
    int64_t pos = seg.pos + p.row0 + (int)blockIdx.z - seg.row0, first = (int64_t)blockIdx.x * MF_CU_SPLIT;
    int64_t end = first + MF_CU_SPLIT < pos + 1 ? first + MF_CU_SPLIT : pos + 1;
    if (first < first_of(p, pos)) first = first_of(p, pos);
    if (first >= end) return;
    int shared_by = p.n_heads / p.n_kv_heads, chunks = (shared_by + HEADS - 1) / HEADS;
    int kv_head = blockIdx.y / chunks, head0 = kv_head * shared_by + blockIdx.y % chunks * HEADS;
    int n_heads = min(HEADS, kv_head * shared_by + shared_by - head0), n = (int)(end - first);
    int warp = threadIdx.x / 32, lane = lane_id();
    int k_at = lane * DIMS, k_n = min(DIMS, p.k_dim - k_at), v_n = min(DIMS, p.v_dim - k_at);
    float q[HEADS][DIMS], rope[HEADS][2];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        const float *from = p.q + ((int64_t)blockIdx.z * p.n_heads + min(head0 + h, p.n_heads - 1)) * p.q_stride;
#pragma unroll
        for (int i = 0; i < DIMS; i++) q[h][i] = i < k_n ? from[k_at + i] * p.scale : 0;
#pragma unroll
        for (int i = 0; i < 2; i++) rope[h][i] = 2 * lane + i < p.n_rope ? from[p.k_dim + 2 * lane + i] * p.scale : 0;
    }
    const char *k_page = k_row(seg, first), *v_page = v_row(seg, first);
    bool one_page = first / seg.block_rows == (end - 1) / seg.block_rows; /* then rows lie behind each other */
    for (int i0 = warp * AT_ONCE; i0 < n; i0 += WARPS * AT_ONCE) {
        float k[AT_ONCE][DIMS], pe[AT_ONCE][2];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int i = min(i0 + u, n - 1);
            kv_values<DIMS>(one_page ? k_page + i * seg.k_bytes : k_row(seg, first + i), seg.kv_type, seg.k_cols,
                            kv_head * p.k_dim + k_at, k_n, k[u]);
            if (p.n_rope)
                kv_values<2>(one_page ? v_page + i * seg.v_bytes : v_row(seg, first + i), seg.kv_type, seg.v_cols,
                             2 * lane, min(2, p.n_rope - 2 * lane), pe[u]);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            float s[HEADS];
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                s[h] = 0;
#pragma unroll
                for (int c = 0; c < DIMS; c++) s[h] = fmaf(q[h][c], k[u][c], s[h]);
                if (p.n_rope) s[h] = fmaf(rope[h][0], pe[u][0], fmaf(rope[h][1], pe[u][1], s[h]));
            }
            float sum = sums_of<HEADS>(s);
            if (lane % (32 / HEADS) == 0 && i0 + u < n) scores[lane / (32 / HEADS)][i0 + u] = sum;
        }
    }
    __syncthreads();
    for (int h = warp; h < HEADS; h += WARPS) {
        float max = -FLT_MAX, sum = 0;
        for (int i = lane; i < n; i += 32) max = fmaxf(max, scores[h][i]);
        max = warp_max(max);
        for (int i = lane; i < n; i += 32) sum += scores[h][i] = expf(scores[h][i] - max);
        sum = warp_sum(sum);
        if (lane == 0) total[h] = sum, top[h] = max;
    }
    __syncthreads();
    float o[HEADS][DIMS];
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int c = 0; c < DIMS; c++) o[h][c] = 0;
    for (int i0 = warp * AT_ONCE; i0 < n; i0 += WARPS * AT_ONCE) {
        float v[AT_ONCE][DIMS];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            int i = min(i0 + u, n - 1);
            if (p.n_rope)
                kv_values<DIMS>(one_page ? k_page + i * seg.k_bytes : k_row(seg, first + i), seg.kv_type, seg.k_cols,
                                k_at, v_n, v[u]);
            else
                kv_values<DIMS>(one_page ? v_page + i * seg.v_bytes : v_row(seg, first + i), seg.kv_type, seg.v_cols,
                                kv_head * p.v_dim + k_at, v_n, v[u]);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (i0 + u >= n) continue;
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float e = scores[h][i0 + u];
#pragma unroll
                for (int c = 0; c < DIMS; c++) o[h][c] = fmaf(e, v[u][c], o[h][c]);
            }
        }
    }
    float *mix = (float *)memory;
    for (int w = 0; w < WARPS; w++) { /* warp by warp, in order */
        if (warp == w)
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int c = 0; c < DIMS; c++)
                    if (c < v_n) mix[h * p.v_dim + k_at + c] = w ? mix[h * p.v_dim + k_at + c] + o[h][c] : o[h][c];
        __syncthreads();
    }
    for (int i = threadIdx.x; i < n_heads * (p.v_dim + 2); i += THREADS) {
        int h = i / (p.v_dim + 2), c = i % (p.v_dim + 2);
        float *part =
            p.parts + (((int64_t)blockIdx.z * p.n_heads + head0 + h) * p.n_splits + blockIdx.x) * (p.v_dim + 2);
        part[c] = c < p.v_dim ? mix[h * p.v_dim + c] : c == p.v_dim ? top[h] : total[h];
    }
}

#define WEIGHTS 512 /* shares whose weights are computed at a time */
#define MERGERS 1024

/* blockIdx: head, row. Threads that share a column take every n-th share, in order; n depends on the columns alone. */
static __global__ void __launch_bounds__(MERGERS) merge_kernel(const __grid_constant__ mf__cu_attention p) {
    __shared__ float slots[32], weights[WEIGHTS], sums[MERGERS];
    depend();
    const mf__cu_segment &seg = p.segs.at[p.segs.of_row[p.row0 + blockIdx.y]];
    int64_t pos = seg.pos + p.row0 + (int)blockIdx.y - seg.row0, at = (int64_t)blockIdx.y * p.n_heads + blockIdx.x;
    int size = p.narrow ? share_of(pos) : MF_CU_SPLIT, cols = 32;
    int begin = (int)(first_of(p, pos) / size), end = (int)(pos / size) + 1, step = p.v_dim + 2;
    while (cols < p.v_dim) cols *= 2;
    int c = threadIdx.x & (cols - 1), side = threadIdx.x / cols, sides = MERGERS / cols;
    const float *parts = p.parts + at * p.n_splits * step;
    float top = p.sinks ? p.sinks[blockIdx.x] : -FLT_MAX, total = 0, sum = 0;
    for (int i = begin + threadIdx.x; i < end; i += MERGERS) top = fmaxf(top, parts[(int64_t)i * step + p.v_dim]);
    top = warp_max(top);
    if (lane_id() == 0) slots[threadIdx.x / 32] = top;
    __syncthreads();
    top = warp_max(slots[lane_id()]);
#pragma unroll 1
    for (int i0 = begin; i0 < end; i0 += WEIGHTS) {
        int n = min(WEIGHTS, end - i0);
        __syncthreads();
        if ((int)threadIdx.x < n) {
            const float *part = parts + (int64_t)(i0 + threadIdx.x) * step + p.v_dim;
            weights[threadIdx.x] = expf(part[0] - top);
            total += part[1] * weights[threadIdx.x];
        }
        __syncthreads();
        if (c < p.v_dim)
#pragma unroll 4
            for (int i = side; i < n; i += sides) sum = fmaf(parts[(int64_t)(i0 + i) * step + c], weights[i], sum);
    }
    total = block_sum(total, slots) + (p.sinks ? expf(p.sinks[blockIdx.x] - top) : 0);
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (side || c >= p.v_dim) return;
    for (int i = 1; i < sides; i++) sum += sums[i * cols + c];
    float o = sum / total;
    if (p.gate) o *= sigmoid(p.gate[at * p.gate_step + c]);
    p.o[at * p.v_dim + c] = o;
}

extern "C" int64_t mf__cu_attention_bytes(int32_t n_rows, int32_t n_heads, int32_t v_dim, int32_t n_splits) {
    return (int64_t)n_rows * n_heads * n_splits * (v_dim + 2) * 4;
}

template <int DIMS, int HEADS> static void launch(cudaStream_t s, const mf__cu_attention &a) {
    unsigned chunks = ceil_div(a.n_heads / a.n_kv_heads, HEADS);
    MF_LAUNCH_EARLY((attend_kernel<DIMS, HEADS>), dim3(a.n_splits, a.n_kv_heads * chunks, a.n_rows), THREADS,
                    (size_t)HEADS * a.v_dim * 4, s, a);
}

extern "C" void mf__cu_attend(cudaStream_t s, const mf__cu_attention *a) {
    int dim = a->k_dim > a->v_dim ? a->k_dim : a->v_dim, shared_by = a->n_heads / a->n_kv_heads;
    if (a->narrow)
        mf__cu_narrow(s, a);
    else if (dim <= 64)
        shared_by > 2 ? launch<2, 8>(s, *a) : launch<2, 2>(s, *a);
    else if (dim <= 128)
        shared_by > 2 ? launch<4, 8>(s, *a) : launch<4, 2>(s, *a);
    else if (dim <= 256)
        shared_by > 2 ? launch<8, 8>(s, *a) : launch<8, 2>(s, *a);
    else
        launch<16, 4>(s, *a);
    MF_LAUNCH_EARLY(merge_kernel, dim3(a->n_heads, a->n_rows), MERGERS, 0, s, *a);
}
