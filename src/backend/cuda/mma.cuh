/* Tensor cores and asynchronous copies. */
#ifndef MF_BACKEND_CUDA_MMA_CUH
#define MF_BACKEND_CUDA_MMA_CUH

#include "backend/cuda/device.cuh"

#ifdef __CUDACC__

/* d [16][8] += a [16][32] b [32][8]: bytes, a unsigned or signed, b signed. Of a the thread has rows lane / 4 and
 * lane / 4 + 8, columns lane % 4 * 4 ... + 3 (a0, a1) and 16 more (a2, a3); of b the column lane / 4, the same rows; of
 * d rows lane / 4 and + 8, columns lane % 4 * 2 and + 1. */
template <bool SIGNED>
static __device__ __forceinline__ void mma_bytes(int *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                                 uint32_t b0, uint32_t b1) {
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* d [16][8] += a [16][16] b [16][8]: f16 into f32. Of a the thread has rows lane / 4 and + 8 (a[0], a[1]), columns
 * lane % 4 * 2 and + 1, and 8 columns on (a[2], a[3]); of b the column lane / 4, the same rows; d as above. */
static __device__ __forceinline__ void mma_f16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four matrices of 8 by 8 halves from shared memory: lane l brings the address of row l % 8 of matrix l / 8, and gets
 * of each row lane / 4, columns lane % 4 * 2 and + 1; turned: of the transposed ones. */
template <bool TURNED> static __device__ __forceinline__ void load_matrices(uint32_t *r, const void *row) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at)
                     : "memory");
}

/* 16 (or 4) bytes from global to shared memory; zeros unless `valid`. */
static __device__ __forceinline__ void copy_async16(void *to, const void *from, bool valid) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(valid ? 16 : 0));
}
static __device__ __forceinline__ void copy_async4(void *to, const void *from, bool valid) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at), "l"(from), "r"(valid ? 4 : 0));
}
static __device__ __forceinline__ void copy_commit(void) {
    asm volatile("cp.async.commit_group;");
}
template <int N> static __device__ __forceinline__ void copy_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

#else

template <bool SIGNED>
static inline void mma_bytes(int *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
    uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
    uint32_t as[32][4], bs[32][2];
    const char *all = emu_exchange(a, sizeof a);
    for (int l = 0; l < 32; l++) memcpy(as[l], all + 16 * l, 16);
    all = emu_exchange(b, sizeof b);
    for (int l = 0; l < 32; l++) memcpy(bs[l], all + 16 * l, 8);
    int lane = emu_lane();
    for (int k = 0; k < 4; k++) {
        int row = lane / 4 + 8 * (k / 2), col = lane % 4 * 2 + k % 2;
        for (int q = 0; q < 4; q++)
            for (int half = 0; half < 2; half++)
                d[k] = dot4(d[k], as[row % 8 * 4 + q][row / 8 + 2 * half], bs[col * 4 + q][half], SIGNED);
    }
}
static inline void mma_f16(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
    uint32_t b[2] = {b0, b1}, as[32][4], bs[32][2];
    const char *all = emu_exchange(a, 16);
    for (int l = 0; l < 32; l++) memcpy(as[l], all + 16 * l, 16);
    all = emu_exchange(b, sizeof b);
    for (int l = 0; l < 32; l++) memcpy(bs[l], all + 16 * l, 8);
    int lane = emu_lane();
    for (int k = 0; k < 4; k++) {
        int row = lane / 4 + 8 * (k / 2), col = lane % 4 * 2 + k % 2;
        for (int i = 0; i < 16; i++) {
            uint32_t x = as[row % 8 * 4 + i % 8 / 2][row / 8 + i / 8 * 2], y = bs[col * 4 + i % 8 / 2][i / 8];
            d[k] += mf__f16_to_f32((uint16_t)(x >> i % 2 * 16)) * mf__f16_to_f32((uint16_t)(y >> i % 2 * 16));
        }
    }
}
template <bool TURNED> static inline void load_matrices(uint32_t *r, const void *row) {
    const uint16_t *rows[32];
    emu_aligned(row, 16);
    const char *all = emu_exchange(&row, sizeof row);
    for (int l = 0; l < 32; l++) memcpy(&rows[l], all + 16 * l, sizeof row);
    int lane = emu_lane(), i = lane / 4, k = lane % 4 * 2;
    for (int m = 0; m < 4; m++) {
        uint16_t a = TURNED ? rows[8 * m + k][i] : rows[8 * m + i][k];
        uint16_t b = TURNED ? rows[8 * m + k + 1][i] : rows[8 * m + i][k + 1];
        r[m] = a | (uint32_t)b << 16;
    }
}
static inline void copy_async16(void *to, const void *from, bool valid) {
    emu_aligned(to, 16);
    emu_aligned(from, 16);
    valid ? memcpy(to, from, 16) : memset(to, 0, 16);
}
static inline void copy_async4(void *to, const void *from, bool valid) {
    emu_aligned(to, 4);
    emu_aligned(from, 4);
    valid ? memcpy(to, from, 4) : memset(to, 0, 4);
}
static inline void copy_commit(void) {
}
template <int N> static inline void copy_wait(void) {
}

#endif
#endif
