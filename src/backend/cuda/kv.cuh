/* Rows of the KV cache: where they lie, and their values; and what decoding looks up before it may read its input. */
#ifndef MF_BACKEND_CUDA_KV_CUH
#define MF_BACKEND_CUDA_KV_CUH

#include "backend/cuda/device.cuh"

#define KV_GROUP 64 /* columns of int8 rows that share a scale */

static __device__ __forceinline__ char *kv_block(const mf__cu_segment &s, int64_t pos) {
    return s.pool[s.pages[pos / s.block_rows]] + s.off;
}
static __device__ __forceinline__ char *k_row(const mf__cu_segment &s, int64_t pos) {
    return kv_block(s, pos) + pos % s.block_rows * s.k_bytes;
}
static __device__ __forceinline__ char *v_row(const mf__cu_segment &s, int64_t pos) {
    return kv_block(s, pos) + s.block_rows * s.k_bytes + pos % s.block_rows * s.v_bytes;
}
/* The first cached row that row pos sees. */
static __device__ __forceinline__ int64_t first_of(const mf__cu_attention &p, int64_t pos) {
    return p.window && pos >= p.window ? pos - p.window + 1 : 0;
}
/* Keys of a share of narrow.cu's: no more than MF_CU_SPLITS shares of a row. */
static __device__ __forceinline__ int share_of(int64_t pos) {
    int size = MF_CU_SPLIT;
    while (pos >= (int64_t)size * MF_CU_SPLITS) size *= 2;
    return size;
}
static __device__ __forceinline__ int kv_scales_at(int cols) {
    return (cols + 3) / 4 * 4;
}

/* n <= N values from column `first` on; zeros behind. cols: of the row. */
template <int N>
static __device__ __forceinline__ void kv_values(const char *row, mf__cu_type type, int cols, int first, int n,
                                                 float *v) {
    if (type == MF_CU_F16) {
        const uint16_t *p = (const uint16_t *)row + first;
        if (N == 8 && n == 8 && ((uintptr_t)p & 15) == 0) {
            uint4 u = *(const uint4 *)p;
            uint32_t w[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int i = 0; i < 4 && 2 * i + 1 < N; i++)
                v[2 * i] = from_f16((uint16_t)w[i]), v[2 * i + 1] = from_f16((uint16_t)(w[i] >> 16));
            return;
        }
        if (N == 4 && n == 4 && ((uintptr_t)p & 7) == 0) {
            uint2 u = *(const uint2 *)p;
            v[0] = from_f16((uint16_t)u.x), v[1 % N] = from_f16((uint16_t)(u.x >> 16));
            v[2 % N] = from_f16((uint16_t)u.y), v[3 % N] = from_f16((uint16_t)(u.y >> 16));
            return;
        }
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = i < n ? from_f16(p[i]) : 0;
    } else if (type == MF_CU_I8) {
        const float *scales = (const float *)(row + kv_scales_at(cols));
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = i < n ? (float)((const int8_t *)row)[first + i] * scales[(first + i) / KV_GROUP] : 0;
    } else {
        const float *p = (const float *)row + first;
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = i < n ? p[i] : 0;
    }
}

/* ---- for decoding: short chains, loads in flight together -------------------------------------------------------- */

/* The segment of a row. Where there is only one, of_row need not be waited for. */
static __device__ __forceinline__ const mf__cu_segment &segment_of(const mf__cu_segments &segs, int64_t row) {
    return segs.at[segs.n == 1 ? 0 : segs.of_row[row]];
}

/* As k_row and v_row with one 32-bit division instead of four of 64 bits. */
struct kv_rows {
    char *k, *v;
};
static __device__ __forceinline__ kv_rows find_kv(const mf__cu_segment &seg, int64_t pos) {
    uint32_t rows = (uint32_t)seg.block_rows, page = (uint32_t)pos / rows, row = (uint32_t)pos - page * rows;
    char *block = seg.pool[seg.pages[page]] + seg.off;
    return {block + row * seg.k_bytes, block + rows * seg.k_bytes + row * seg.v_bytes};
}

/* *to = *from if it is there; else *to stays. Past the processor's own cache, as fresh(), and without a branch. */
#ifdef __CUDACC__
static __device__ __forceinline__ void load_if(bool there, float *to, const float *from) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0; @p ld.global.cg.f32 %0, [%1]; }"
                 : "+f"(*to)
                 : "l"(from), "r"((int)there));
}
static __device__ __forceinline__ void load_if(bool there, float2 *to, const float2 *from) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %3, 0; @p ld.global.cg.v2.f32 {%0, %1}, [%2]; }"
                 : "+f"(to->x), "+f"(to->y)
                 : "l"(from), "r"((int)there));
}
static __device__ __forceinline__ void load_if(bool there, uint4 *to, const uint4 *from) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                 : "+r"(to->x), "+r"(to->y), "+r"(to->z), "+r"(to->w)
                 : "l"(from), "r"((int)there));
}
#else
template <typename T> static inline void load_if(bool there, T *to, const T *from) {
    if (there) *to = *from;
}
#endif

#endif
