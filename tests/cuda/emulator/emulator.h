/* CUDA's words for a host compiler: a block's threads are fibers that run one after the other up to the next barrier.
 * Shows wrong indices, wrong arithmetic, and addresses that are not multiples of what is loaded there (kernels are
 * compiled with -fsanitize=alignment; copies check themselves); not races between barriers. */
#ifndef TESTS_CUDA_EMULATOR_H
#define TESTS_CUDA_EMULATOR_H

#include <math.h>
#include <string.h>

#include <functional>

#include "cuda_runtime_api.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __grid_constant__
#define __restrict__

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {
    }
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
static inline float2 make_float2(float x, float y) {
    return {x, y};
}

struct emu_place {
    dim3 thread, block, block_dim, grid_dim;
};
extern emu_place *emu_here;
extern char *emu_shared;
#define threadIdx (emu_here->thread)
#define blockIdx (emu_here->block)
#define blockDim (emu_here->block_dim)
#define gridDim (emu_here->grid_dim)

void emu_block_barrier(void);
void emu_aligned(const void *p, size_t to); /* else it ends the program */
void emu_warp_barrier(void);
/* Every lane brings 16 bytes, and after it all see all: [32][16]. */
const char *emu_exchange(const void *value, size_t bytes);
void emu_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t s, const std::function<void()> &body);

static inline void __syncthreads(void) {
    emu_block_barrier();
}
static inline void __syncwarp(unsigned = 0xffffffffu) {
    emu_warp_barrier();
}
template <typename T> T emu_shuffle(T v, int lane) {
    T out;
    memcpy(&out, emu_exchange(&v, sizeof v) + 16 * (lane & 31), sizeof v);
    return out;
}
static inline int emu_lane(void) {
    return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32;
}
template <typename T> T __shfl_xor_sync(unsigned, T v, int mask) {
    return emu_shuffle(v, emu_lane() ^ mask);
}
template <typename T> T __shfl_sync(unsigned, T v, int lane) {
    return emu_shuffle(v, lane);
}
template <typename T> T __shfl_up_sync(unsigned, T v, int delta) {
    int lane = emu_lane();
    return emu_shuffle(v, lane >= delta ? lane - delta : lane);
}
static inline unsigned __ballot_sync(unsigned, int p) {
    int v = p != 0;
    const char *all = emu_exchange(&v, sizeof v);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (unsigned)(all[16 * i] != 0) << i;
    return bits;
}

static inline float __fmul_rn(float a, float b) {
    return a * b;
}
static inline float __fadd_rn(float a, float b) {
    return a + b;
}
static inline float __fdividef(float a, float b) {
    return a / b;
}
static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
static inline float __int2float_rn(int x) {
    return (float)x;
}
static inline int __float2int_rn(float x) {
    return (int)rintf(x);
}
static inline float __uint_as_float(unsigned u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline unsigned __float_as_uint(float f) {
    unsigned u;
    memcpy(&u, &f, 4);
    return u;
}
static inline int __ffs(int x) {
    return __builtin_ffs(x);
}
static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    unsigned char in[8];
    unsigned out = 0;
    memcpy(in, &a, 4);
    memcpy(in + 4, &b, 4);
    for (int i = 0; i < 4; i++) {
        unsigned sel = s >> (4 * i) & 15, v = in[sel & 7];
        out |= (sel & 8 ? (v & 128 ? 255u : 0u) : v) << (8 * i);
    }
    return out;
}
template <typename T> T __ldg(const T *p) {
    return *p;
}
template <typename T> static inline T emu_min(T a, T b) {
    return a < b ? a : b;
}
template <typename T> static inline T emu_max(T a, T b) {
    return a > b ? a : b;
}
static inline int min(int a, int b) {
    return emu_min(a, b);
}
static inline int max(int a, int b) {
    return emu_max(a, b);
}

#define MF_LAUNCH(kernel, grid, block, shared, stream, params)                                                         \
    do {                                                                                                               \
        auto emu_params = params;                                                                                      \
        emu_launch(grid, block, shared, stream, [=] { kernel(emu_params); });                                          \
    } while (0)
#define MF_SHARED(name) char *name = emu_shared

#endif
