/* Activations on their way into a product: what comes before it (a norm, a gate), and rounding into planes of bytes.
 *
 * A warp takes MF_CU_BLOCK columns of a row, eight in each lane: they share a scale. */
#ifndef MF_BACKEND_CUDA_PLANES_CUH
#define MF_BACKEND_CUDA_PLANES_CUH

#include "backend/cuda/device.cuh"

#define LOW_BITS 7
#define MOST (127 * 128 + 63) /* the largest q */

/* Rows of activations in shared memory, and what they are made with. */
struct shared_rows {
    uint4 *q;           /* [n][units], turned; or NULL */
    float *scale, *sum; /* [n][blocks], [n][granules] */
    float *x;           /* [at_once][padded]: values of so many rows at a time, or of all of them */
    float *slots;       /* [at_once][segments + 1] */
    int units, blocks, granules, padded, at_once;
};

#define SEGMENT 128 /* columns whose squares a warp adds up */
#define VALUES 8192 /* of rows that are made at a time, about */

static inline __host__ __device__ int segments_of(int n_cols) {
    return (n_cols + SEGMENT - 1) / SEGMENT;
}

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
    peak = __uint_as_float(max_of_warp(__float_as_uint(peak))); /* of numbers without a sign */
    float inverse = peak > 1e-30f ? __fdividef(MOST, peak) : 0; /* below, it is no number */
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

/* One warp: block b of row t, rounded. */
static __device__ __forceinline__ void store_block(const shared_rows &s, int t, int b, const float *v) {
    float scale, sum;
    int unit = b * (MF_CU_BLOCK / 8) + lane_id();
    uint4 u = quantize(v, &scale, &sum);
    if (unit < s.units) s.q[t * s.units + turned(unit)] = u;
    if (lane_id() == 0) s.scale[t * s.blocks + b] = scale;
    if (lane_id() % 4 == 0 && unit / 4 < s.granules) s.sum[t * s.granules + unit / 4] = sum;
}

/* Four columns of a row of floats, zeros behind it. */
static __device__ __forceinline__ float4 four_at(const float *row, int c, int n_cols) {
    if (n_cols % 4 == 0) return c < n_cols ? fresh((const float4 *)(row + c)) : make_float4(0, 0, 0, 0);
    return make_float4(c < n_cols ? fresh(row + c) : 0, c + 1 < n_cols ? fresh(row + c + 1) : 0,
                       c + 2 < n_cols ? fresh(row + c + 2) : 0, c + 3 < n_cols ? fresh(row + c + 3) : 0);
}

static __device__ __forceinline__ void keep_four(const mf__cu_input &in, int64_t t, int c, float4 v) {
    float *to = in.keep + t * in.n_cols;
    if (c < in.n_cols) to[c] = v.x;
    if (c + 1 < in.n_cols) to[c + 1] = v.y;
    if (c + 2 < in.n_cols) to[c + 2] = v.z;
    if (c + 3 < in.n_cols) to[c + 3] = v.w;
}

static __device__ __forceinline__ float squares_of(float4 v) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, v.x * v.x)));
}

/* What a norm multiplies n columns with. */
static __device__ __forceinline__ float norm_scale(float squares, int n, float eps) {
    return rsqrtf(squares * __fdividef(1.0f, (float)n) + eps);
}

/* What comes before the product, of four columns; a warp has a segment. Parts of norms have 4 * 2^k <= 128 columns. */
static __device__ __forceinline__ float4 four_values(const mf__cu_input &in, int64_t t, int c, float4 v) {
    if (in.before == MF_CU_AS_IS || in.before == MF_CU_NORM) return v;
    float4 u = four_at(in.x2 + t * in.n_cols, c, in.n_cols);
    if (in.before == MF_CU_GLU)
        return make_float4(glu_one(in.glu, v.x, u.x), glu_one(in.glu, v.y, u.y), glu_one(in.glu, v.z, u.z),
                           glu_one(in.glu, v.w, u.w));
    float4 g = make_float4(quick_sigmoid(u.x), quick_sigmoid(u.y), quick_sigmoid(u.z), quick_sigmoid(u.w));
    if (in.before == MF_CU_SIGMOID) return make_float4(v.x * g.x, v.y * g.y, v.z * g.z, v.w * g.w);
    float scale = norm_scale(lanes_sum(squares_of(v), in.part / 4), in.part, in.eps);
    float4 w = c < in.n_cols ? *(const float4 *)(in.w + (c & (in.part - 1))) : make_float4(0, 0, 0, 0);
    return make_float4(v.x * scale * w.x * (u.x * g.x), v.y * scale * w.y * (u.y * g.y),
                       v.z * scale * w.z * (u.z * g.z), v.w * scale * w.w * (u.w * g.w));
}

/* The weights of a norm towards the cache. */
static __device__ __forceinline__ void prefetch_input(const mf__cu_input &in) {
    int n = in.before == MF_CU_NORM ? in.n_cols : in.before == MF_CU_GATED_NORM ? in.part : 0;
    for (int c = threadIdx.x * 32; c < n; c += blockDim.x * 32) prefetch(in.w + c);
}

/* The values of rows t0 ... t0 + n to x, segments shared out to all warps of a block: their order does not depend on
 * the number of threads. Loops are short and stay loops: kernels of decoding must be small, since their instructions
 * come from memory again and again. */
static __device__ __forceinline__ void make_values(const mf__cu_input &in, int64_t t0, int n, float *x, int padded,
                                                   float *slots, bool keep) {
    int warp = threadIdx.x / 32, n_warps = blockDim.x / 32, segments = segments_of(in.n_cols), all = n * segments;
    bool norm = in.before == MF_CU_NORM;
#pragma unroll 1
    for (int i = warp; i < all; i += n_warps) {
        int t = i / segments, c = (i - t * segments) * SEGMENT + lane_id() * 4;
        float4 v = four_values(in, t0 + t, c, four_at(in.x + (t0 + t) * in.n_cols, c, in.n_cols));
        if (norm) {
            float sum = warp_sum(squares_of(v));
            if (lane_id() == 0) slots[i] = sum;
        } else if (keep) {
            keep_four(in, t0 + t, c, v);
        }
        if (c < padded) *(float4 *)(x + t * padded + c) = v;
    }
    if (!norm) return;
    __syncthreads();
#pragma unroll 1
    for (int t = warp; t < n; t += n_warps) {
        float sum = 0;
        for (int k = lane_id(); k < segments; k += 32) sum += slots[t * segments + k];
        sum = warp_sum(sum);
        if (lane_id() == 0) slots[all + t] = norm_scale(sum, in.n_cols, in.eps);
    }
    __syncthreads();
#pragma unroll 1
    for (int i = warp; i < all; i += n_warps) {
        int t = i / segments, c = (i - t * segments) * SEGMENT + lane_id() * 4;
        if (c >= padded) continue;
        float4 v = *(float4 *)(x + t * padded + c), w = four_at(in.w, c, in.n_cols);
        float scale = slots[all + t];
        v = make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
        *(float4 *)(x + t * padded + c) = v;
        if (keep) keep_four(in, t0 + t, c, v);
    }
}

/* Rows of x, rounded, by all warps of a block. */
template <typename ROWS>
static __device__ __forceinline__ void store_rows(const ROWS &s, int t0, int n, const float *x, int padded,
                                                  int n_cols) {
    int n_warps = blockDim.x / 32, blocks = (n_cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < n * blocks; i += n_warps) {
        int t = i / blocks, b = i - t * blocks, c = b * MF_CU_BLOCK + lane_id() * 8;
        const float4 *from = (const float4 *)(x + t * padded + c);
        float4 f = c < padded ? from[0] : make_float4(0, 0, 0, 0), g = c < padded ? from[1] : make_float4(0, 0, 0, 0);
        float v[8] = {f.x, f.y, f.z, f.w, g.x, g.y, g.z, g.w};
        store_block(s, t0 + t, b, v);
    }
}

static __device__ __forceinline__ float4 scaled(float4 v, float scale, float4 w) {
    return make_float4(v.x * scale * w.x, v.y * scale * w.y, v.z * scale * w.z, v.w * scale * w.w);
}

/* As fill_rows, of the single row t0 of a multiple of eight columns: decoding waits for it in every kernel, so there is
 * one barrier less and nothing is fetched that could have been before. The same bits. rehearse: each loop once, for its
 * instructions' sake. */
template <typename ROWS>
static __device__ __forceinline__ void fill_row(const mf__cu_input &in, int t0, const ROWS &s, bool keep,
                                                bool rehearse) {
    int warp = threadIdx.x / 32, n_warps = blockDim.x / 32, n_cols = in.n_cols, segments = segments_of(n_cols);
    const float *from = in.x + (int64_t)t0 * n_cols;
    bool norm = in.before == MF_CU_NORM;
#pragma unroll 1
    for (int i = warp; i < segments; i += n_warps) {
        int c = i * SEGMENT + lane_id() * 4;
        float4 v = four_values(in, t0, c, four_at(from, c, n_cols));
        if (norm) {
            float sum = warp_sum(squares_of(v));
            if (lane_id() == 0) s.slots[i] = sum;
        }
        if (c < n_cols) *(float4 *)(s.x + c) = v;
        if (rehearse) break;
    }
    __syncthreads();
    float scale = 1;
    if (norm) {
        float sum = 0;
        for (int k = lane_id(); k < segments; k += 32) sum += s.slots[k];
        scale = norm_scale(warp_sum(sum), n_cols, in.eps);
    }
#pragma unroll 1
    for (int b = warp; b * MF_CU_BLOCK < n_cols; b += n_warps) {
        int c = b * MF_CU_BLOCK + lane_id() * 8;
        float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (c < n_cols) {
            float4 f = *(float4 *)(s.x + c), g = *(float4 *)(s.x + c + 4);
            if (norm) {
                f = scaled(f, scale, __ldg((const float4 *)(in.w + c)));
                g = scaled(g, scale, __ldg((const float4 *)(in.w + c + 4)));
                *(float4 *)(s.x + c) = f, *(float4 *)(s.x + c + 4) = g; /* for products in f32 */
            }
            if (keep) keep_four(in, t0, c, f), keep_four(in, t0, c + 4, g);
            v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w, v[4] = g.x, v[5] = g.y, v[6] = g.z, v[7] = g.w;
        }
        if (s.q) store_block(s, 0, b, v);
        if (rehearse) break;
    }
    __syncthreads();
}

/* Rows t0 ... t0 + n of the input into shared memory, by all threads of a block. first: this block also keeps them. */
template <typename ROWS>
static __device__ __forceinline__ void fill_rows(const mf__cu_input &in, int t0, int n, const ROWS &s, bool first,
                                                 bool rehearse = false) {
    if (n == 1 && in.n_cols % 8 == 0) {
        fill_row(in, t0, s, first && in.keep, rehearse);
        return;
    }
#pragma unroll 1
    for (int at = 0; at < n; at += s.at_once) {
        int m = min(s.at_once, n - at);
        make_values(in, t0 + at, m, s.x, s.padded, s.slots, first && in.keep);
        __syncthreads();
        if (s.q) store_rows(s, at, m, s.x, s.padded, in.n_cols);
        __syncthreads();
    }
}

/* Rows whose values are made at a time; all of them where somebody wants the values. */
static inline __host__ __device__ int rows_at_once(int n, int padded, bool floats) {
    int some = VALUES / padded > 1 ? VALUES / padded : 1;
    return floats || n < some ? n : some;
}

/* Lays n rows out; NULL-based pointers give the size. */
static inline __host__ __device__ size_t lay_rows(char *mem, int n, int n_cols, bool planes, bool floats,
                                                  shared_rows *out) {
    size_t at = 0;
    out->units = (n_cols + 31) / 32 * 4;
    out->blocks = (n_cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
    out->granules = out->units / 4;
    out->padded = (n_cols + 7) / 8 * 8;
    out->at_once = rows_at_once(n, out->padded, floats);
    out->q = planes ? (uint4 *)(mem + at) : 0;
    at += planes ? (size_t)n * out->units * 16 : 0;
    out->x = (float *)(mem + at);
    at += (size_t)out->at_once * out->padded * 4;
    out->slots = (float *)(mem + at);
    at += (size_t)out->at_once * (segments_of(n_cols) + 1) * 4;
    out->scale = (float *)(mem + at);
    at += planes ? (size_t)n * out->blocks * 4 : 0;
    out->sum = (float *)(mem + at);
    at += planes ? (size_t)n * out->granules * 4 : 0;
    return at;
}

#endif
