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

#define MERGE_NARROW 512 /* threads for up to 256 columns */
#define MERGE_WIDE 1024
#define WEIGHTS 128     /* shares whose weights are computed at a time: all of narrow.cu's */
#define MERGE_AT_ONCE 8 /* shares whose values a thread has under way */

/* Two columns of a share; even: their place is a multiple of eight bytes. */
static __device__ __forceinline__ void load_two(bool there, float2 *to, const float *from, bool even) {
    load_if(there && even, to, (const float2 *)(even ? from : 0));
    load_if(there && !even, &to->x, from);
    load_if(there && !even, &to->y, from + 1);
}

/* blockIdx: head, row. The first warp turns the shares' maxima into weights while the values, which all threads have
 * asked for, are under way. MERGERS: threads, as many as pairs of columns at least; those that share a pair take every
 * n-th share, in order; n depends on the columns alone. */
template <int MERGERS>
static __global__ void __launch_bounds__(MERGERS) merge_kernel(const __grid_constant__ mf__cu_attention p) {
    int head = blockIdx.x, row = blockIdx.y;
    __shared__ float weights[WEIGHTS], inverse;
    __shared__ float2 sums[MERGERS];
    const mf__cu_segment &seg = segment_of(p.segs, p.row0 + row);
    int64_t at = (int64_t)row * p.n_heads + head;
    int v_dim = p.v_dim, step = v_dim + 2, thread = (int)threadIdx.x, lane = thread % 32, log_pairs = 5, reach = 16;
    while (2 << log_pairs < v_dim) log_pairs++;
    int c = 2 * (thread & ((1 << log_pairs) - 1)), side = thread >> log_pairs, sides = MERGERS >> log_pairs;
    bool first = thread < 32, mine = c < v_dim, even = v_dim % 2 == 0;
    float sink = p.sinks ? p.sinks[head] : -FLT_MAX;
    float2 gate = make_float2(1, 1), own[WEIGHTS / 32], v[MERGE_AT_ONCE] = {}, sum = make_float2(0, 0);
    if (p.gate && !side && mine) {
        const float *from = p.gate + at * p.gate_step + c;
        float a = fresh(from), b = fresh(c + 1 < v_dim ? from + 1 : from);
        gate = make_float2(sigmoid(a), sigmoid(b));
    }
    bool sunk = p.sinks != 0;
    float *o = p.o + at * v_dim + c;
    const float *parts = p.parts + at * p.n_splits * step;
    int64_t pos = seg.pos + p.row0 + row - seg.row0;
    int shift = __ffs(p.narrow ? share_of(pos) : MF_CU_SPLIT) - 1; /* they are powers of two */
    int begin = (int)(first_of(p, pos) >> shift), n = (int)(pos >> shift) + 1 - begin;
    while (reach && reach >= n) reach /= 2; /* how far apart lanes are that have something to tell each other */
    parts += (int64_t)begin * step;
    auto ask = [&](int from) {
#pragma unroll
        for (int k = 0; k < MERGE_AT_ONCE; k++) {
            int i = from + side + k * sides;
            load_two(mine && i < n, &v[k], parts + (int64_t)i * step + c, even);
        }
    };
    auto ask_maxima = [&](int from) {
#pragma unroll
        for (int k = 0; k < WEIGHTS / 32; k++) {
            int i = from + lane + 32 * k;
            own[k] = make_float2(-FLT_MAX, 0);
            load_two(i < n, &own[k], parts + (int64_t)i * step + v_dim, even);
        }
    };
    float top = sink, total = 0;
    depend();
    if (first) ask_maxima(0);
    ask(0);
    if (first) {
#pragma unroll
        for (int k = 0; k < WEIGHTS / 32; k++) top = fmaxf(top, own[k].x);
#pragma unroll 4
        for (int i = WEIGHTS + lane; i < n; i += 32) top = fmaxf(top, fresh(parts + (int64_t)i * step + v_dim));
        for (int d = reach; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(FULL, top, d));
    }
#pragma unroll 1
    for (int i0 = 0; i0 < n; i0 += WEIGHTS) {
        int end = min(n, i0 + WEIGHTS);
        if (i0) __syncthreads(); /* the last weights have been used */
        if (first) {
            if (i0) ask_maxima(i0);
#pragma unroll
            for (int k = 0; k < WEIGHTS / 32; k++) {
                float weight = expf(own[k].x - top);
                weights[lane + 32 * k] = weight;
                total = fmaf(own[k].y, weight, total);
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int j = i0; j < end; j += MERGE_AT_ONCE * sides) {
            if (j) ask(j);
#pragma unroll
            for (int k = 0; k < MERGE_AT_ONCE; k++) {
                int i = j + side + k * sides;
                float weight = i < end ? weights[i - i0] : 0;
                if (i >= end) continue;
                sum = make_float2(fmaf(v[k].x, weight, sum.x), fmaf(v[k].y, weight, sum.y));
            }
        }
    }
    if (first) {
        for (int d = reach; d > 0; d /= 2) total += __shfl_xor_sync(FULL, total, d);
        if (lane == 0) inverse = __fdividef(1.0f, total + (sunk ? expf(sink - top) : 0));
    }
    if (side) sums[thread] = sum;
    __syncthreads();
    if (side || !mine) return;
#pragma unroll 4
    for (int i = 1; i < sides; i++) {
        float2 more = sums[thread + (i << log_pairs)];
        sum = make_float2(sum.x + more.x, sum.y + more.y);
    }
    o[0] = sum.x * inverse * gate.x;
    if (c + 1 < v_dim) o[1] = sum.y * inverse * gate.y;
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
    if (a->v_dim <= 256)
        MF_LAUNCH_EARLY((merge_kernel<MERGE_NARROW>), dim3(a->n_heads, a->n_rows), MERGE_NARROW, 0, s, *a);
    else
        MF_LAUNCH_EARLY((merge_kernel<MERGE_WIDE>), dim3(a->n_heads, a->n_rows), MERGE_WIDE, 0, s, *a);
}
