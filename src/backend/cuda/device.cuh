/* What kernels have in common: how they are launched, warps, small functions, and the few instructions that have no
 * name in CUDA C++. */
#ifndef MF_BACKEND_CUDA_DEVICE_CUH
#define MF_BACKEND_CUDA_DEVICE_CUH

#include "backend/cuda/cuda.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>

#define SHARED_ALWAYS                                                                                                  \
    (32 << 10) /* of what a kernel may ask for without being allowed to; it has some of its own too                    \
                */

/* One struct of parameters per kernel. */
template <typename P>
static inline void mf_launch(void (*kernel)(P), dim3 grid, dim3 block, size_t shared, cudaStream_t s, const P &p) {
    if (shared > SHARED_ALWAYS) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    kernel<<<grid, block, shared, s>>>(p);
}
#define MF_LAUNCH(kernel, grid, block, shared, stream, params) mf_launch(kernel, grid, block, shared, stream, params)

/* What a block may have of shared memory, with a kilobyte for what kernels have of their own: 99 KB on some devices,
 * 227 on others. */
static inline size_t most_shared(void) {
    int bytes = 0;
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0) != cudaSuccess) return 0;
    return bytes > 1024 ? (size_t)bytes - 1024 : 0;
}

/* Programmatic dependent launch, for kernels that call depend(): their blocks may start while the kernel before them
 * still runs, and do until then what needs none of its results. */
template <typename P>
static inline void mf_launch_early(void (*kernel)(P), dim3 grid, dim3 block, size_t shared, cudaStream_t s,
                                   const P &p) {
    int major = 0;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (shared > SHARED_ALWAYS) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = shared, config.stream = s;
    config.attrs = &early, config.numAttrs = major >= 9 ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, p); /* errors stay for cudaGetLastError */
}
#define MF_LAUNCH_EARLY(kernel, grid, block, shared, stream, params)                                                   \
    mf_launch_early(kernel, grid, block, shared, stream, params)

/* Waits for the kernel before this one, and lets the one behind it start. So what runs before depend() may read all
 * that the last kernel but one has written, and weights; it writes nothing but shared memory. */
static __device__ __forceinline__ void depend(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/* Where a loop of two turns begins, of which the first is for nothing: while the kernel before still runs it brings
 * instructions into the cache. Without dependent launch there is no such time. */
static __device__ __forceinline__ int first_turn(bool rehearse) {
#if __CUDA_ARCH__ >= 900
    return rehearse ? 0 : 1;
#else
    return 1;
#endif
}
/* The line of memory at p towards the cache. */
static __device__ __forceinline__ void prefetch(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
/* What was read before depend() may have changed: not from the processor's own cache. */
template <typename T> static __device__ __forceinline__ T fresh(const T *p) {
    return __ldcg(p);
}
#define MF_SHARED(name) extern __shared__ __align__(128) char name[]

/* acc + sum of four products: unsigned or signed bytes of a, signed ones of b */
static __device__ __forceinline__ int dot4(int acc, uint32_t a, uint32_t b, bool is_signed) {
    int r;
    if (is_signed)
        asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(acc));
    else
        asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(acc));
    return r;
}
static __device__ __forceinline__ uint32_t max_of_warp(uint32_t v) {
    return __reduce_max_sync(0xffffffffu, v);
}
static __device__ __forceinline__ uint32_t min_of_warp(uint32_t v) {
    return __reduce_min_sync(0xffffffffu, v);
}
static __device__ __forceinline__ float from_f16(uint16_t h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
static __device__ __forceinline__ uint16_t to_f16(float f) {
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
static __device__ __forceinline__ float quick_exp(float x) {
    return __expf(x);
}
#else
#include "emulator.h"

extern "C" {
#include "quant/half.h"
}

static inline int dot4(int acc, uint32_t a, uint32_t b, bool is_signed) {
    for (int i = 0; i < 4; i++) {
        int x = is_signed ? (int)(int8_t)(a >> 8 * i) : (int)(uint8_t)(a >> 8 * i);
        acc += x * (int8_t)(b >> 8 * i);
    }
    return acc;
}
static inline uint32_t max_of_warp(uint32_t v) {
    for (int d = 16; d > 0; d /= 2) {
        uint32_t o = __shfl_xor_sync(0xffffffffu, v, d);
        v = o > v ? o : v;
    }
    return v;
}
static inline uint32_t min_of_warp(uint32_t v) {
    return ~max_of_warp(~v);
}
static inline float quick_exp(float x) {
    return expf(x);
}
static inline void depend(void) {
}
static inline int first_turn(bool rehearse) {
    return rehearse ? 0 : 1;
}
static inline void prefetch(const void *) {
}
template <typename T> static inline T fresh(const T *p) {
    return *p;
}
#define MF_LAUNCH_EARLY MF_LAUNCH
static inline size_t most_shared(void) {
    return 226 << 10;
}
static inline float from_f16(uint16_t h) {
    return mf__f16_to_f32(h);
}
static inline uint16_t to_f16(float f) {
    return mf__f32_to_f16(f);
}
#endif

#define FULL 0xffffffffu

static __device__ __forceinline__ int lane_id(void) {
    return threadIdx.x % 32;
}
static __device__ __forceinline__ float warp_sum(float v) {
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(FULL, v, d);
    return v;
}
/* Sums of 2^k consecutive lanes. */
static __device__ __forceinline__ float lanes_sum(float v, int lanes) {
    for (int d = lanes >> 1; d > 0; d >>= 1) v += __shfl_xor_sync(FULL, v, d);
    return v;
}
static __device__ __forceinline__ float warp_max(float v) {
    for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL, v, d));
    return v;
}
/* The sum over a block, for all of its threads; slots: [32] in shared memory. */
static __device__ __forceinline__ float block_sum(float v, float *slots) {
    int warp = threadIdx.x / 32, n = (blockDim.x + 31) / 32;
    v = warp_sum(v);
    __syncthreads();
    if (lane_id() == 0) slots[warp] = v;
    __syncthreads();
    v = lane_id() < n ? slots[lane_id()] : 0;
    return warp_sum(v);
}

static __device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}
/* To a few units in the last place, in a fifth of the instructions. */
static __device__ __forceinline__ float quick_sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + quick_exp(-x));
}
static __device__ __forceinline__ float silu(float x) {
    return x * sigmoid(x);
}
static __device__ __forceinline__ float glu_one(const mf__cu_glu &glu, float gate, float up) {
    if (!glu.clamped) return silu(gate) * up;
    float g = fminf(gate, glu.limit), u = fminf(fmaxf(up, -glu.limit), glu.limit);
    return g * sigmoid(glu.alpha * g) * (u + 1.0f);
}

static inline unsigned ceil_div(int64_t a, int64_t b) {
    return (unsigned)((a + b - 1) / b);
}

#endif
