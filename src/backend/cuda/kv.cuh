/* Rows of the KV cache: where they lie, and their values. */
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

#endif
