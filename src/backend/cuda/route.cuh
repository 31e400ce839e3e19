/* Choosing the experts of a row, by one warp. Of equal values the lower index is chosen, as in ref. */
#ifndef MF_BACKEND_CUDA_ROUTE_CUH
#define MF_BACKEND_CUDA_ROUTE_CUH

#include <float.h>

#include "backend/cuda/device.cuh"

enum { SOFTMAX, SIGMOID, TOPK_SOFTMAX }; /* mf__route_kind */

/* Larger floats are larger numbers. */
static __device__ __forceinline__ uint32_t ordered(float v) {
    uint32_t u = __float_as_uint(v);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The k largest of the warp's keys, lane l's number i being element l + 32 i; lane j keeps the j-th. Of equal keys the
 * lower index. Keys of 0 are not there. */
template <int N> static __device__ __noinline__ int top_k_one_by_one(uint32_t *keys, int k) {
    int mine = 0;
    for (int slot = 0; slot < k; slot++) {
        uint32_t most = 0;
        int at = 0;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (keys[i] > most) most = keys[i], at = i;
        uint32_t best = max_of_warp(most);
        int id = (int)min_of_warp(most == best ? (uint32_t)(lane_id() + 32 * at) : 0xffffffffu);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (id == lane_id() + 32 * i) keys[i] = 0;
        if (lane_id() == slot) mine = id;
    }
    return mine;
}

/* How many lanes have a larger key, or the same and a lower number. */
static __device__ __forceinline__ int rank_of(uint32_t key) {
    int rank = 0;
#pragma unroll 8
    for (int i = 0; i < 32; i++) {
        uint32_t other = __shfl_sync(FULL, key, i);
        rank += other > key || (other == key && i < lane_id());
    }
    return rank;
}

/* As top_k_one_by_one, in a few steps: what is not below the k-th largest of the lanes' largest keys is put into order.
 * There are seldom more than a warp of those. */
template <int N> static __device__ __forceinline__ int top_k(uint32_t *keys, int k) {
    __shared__ uint32_t found[32], order[32];
    __shared__ int ids[32];
    uint32_t most = 0, below = (1u << lane_id()) - 1;
    int n = 0;
#pragma unroll
    for (int i = 0; i < N; i++) most = keys[i] > most ? keys[i] : most;
    uint32_t kth = __ballot_sync(FULL, rank_of(most) == k - 1), least = __shfl_sync(FULL, most, __ffs((int)kth) - 1);
    if (!least) least = 1;
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t there = __ballot_sync(FULL, keys[i] >= least);
        int at = n + __popc(there & below);
        if (keys[i] >= least && at < 32) found[at] = keys[i], ids[at] = lane_id() + 32 * i;
        n += __popc(there);
    }
    if (n > 32 || n < k) {
        uint32_t copy[N];
#pragma unroll
        for (int i = 0; i < N; i++) copy[i] = keys[i];
        return top_k_one_by_one<N>(copy, k);
    }
    __syncwarp();
    int rank = rank_of(lane_id() < n ? found[lane_id()] : 0); /* equal keys lie in the order of their indices */
    order[rank] = (uint32_t)(lane_id() < n ? ids[lane_id()] : 0);
    __syncwarp();
    int mine = (int)order[lane_id()];
    __syncwarp();
    return lane_id() < k ? mine : 0;
}

/* Drops the worst groups, of equals the last: their choices become -inf. One lane per group. */
static __device__ __forceinline__ void drop_groups(const mf__cu_route &r, float *choice, float *groups) {
    int size = r.n_experts / r.n_groups;
    for (int g = lane_id(); g < r.n_groups; g += 32) {
        float first = -FLT_MAX, second = -FLT_MAX;
        for (int e = 0; e < size; e++) {
            float v = choice[g * size + e];
            if (v > first)
                second = first, first = v;
            else if (v > second)
                second = v;
        }
        groups[g] = size > 1 ? first + second : first;
    }
    __syncwarp();
    if (lane_id() == 0)
        for (int drop = r.n_groups - r.top_groups; drop > 0; drop--) {
            int worst = -1;
            for (int g = 0; g < r.n_groups; g++)
                if (!isinf(groups[g]) && (worst < 0 || groups[g] <= groups[worst])) worst = g;
            if (worst < 0) break;
            groups[worst] = INFINITY;
            for (int e = 0; e < size; e++) choice[worst * size + e] = -INFINITY;
        }
    __syncwarp();
}

/* Apart, so that kernels stay small. */
static __device__ __noinline__ float sigmoid_apart(float x) {
    return sigmoid(x);
}

/* As route_row, for up to 32 N experts: logits are asked for all at once. */
template <int N>
static __device__ __forceinline__ float route_with(const mf__cu_route &r, int64_t row, float *memory, int *out) {
    const float *logits = r.logits + row * r.n_experts;
    float own[N], choice[N], max = -FLT_MAX, total = 0;
    uint32_t keys[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        int e = lane_id() + 32 * i;
        own[i] = e < r.n_experts ? fresh(logits + e) : 0;
        choice[i] = r.kind == SIGMOID && r.bias && e < r.n_experts ? r.bias[e] : 0;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        int e = lane_id() + 32 * i;
        choice[i] = r.kind == SIGMOID ? sigmoid_apart(own[i]) + choice[i] : own[i];
        if (e < r.n_experts) max = fmaxf(max, own[i]);
    }
    max = warp_max(max);
    bool grouped = r.kind == SIGMOID && r.n_groups > r.top_groups;
    if (!grouped)
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane_id() + 32 * i < r.n_experts) memory[lane_id() + 32 * i] = own[i];
    if (grouped) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane_id() + 32 * i < r.n_experts) memory[lane_id() + 32 * i] = choice[i];
        __syncwarp();
        drop_groups(r, memory, memory + r.n_experts);
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane_id() + 32 * i < r.n_experts) choice[i] = memory[lane_id() + 32 * i];
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        uint32_t key = ordered(choice[i] + 0.0f);
        keys[i] = lane_id() + 32 * i >= r.n_experts ? 0 : key ? key : 1;
    }
    int id = top_k<N>(keys, r.top_k);
    bool mine = lane_id() < r.top_k;
    __syncwarp();
    float logit = grouped ? fresh(logits + id) : memory[id];
    float share = !mine ? 0 : r.kind == SIGMOID ? sigmoid_apart(logit) : expf(logit - max);
    if (r.kind == SOFTMAX) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane_id() + 32 * i < r.n_experts) total += expf(own[i] - max);
    } else {
        total = share;
    }
    total = warp_sum(total);
    if (r.kind != SIGMOID) share /= total;
    float sum = 1e-20f + warp_sum(share);
    *out = id;
    return (r.renorm ? share / sum : share) * r.scale;
}

/* Apart, so that kernels need not have its registers. */
static __device__ __noinline__ float route_many(const mf__cu_route &r, int64_t row, float *memory, int *out) {
    return route_with<MF_CU_MAX_EXPERTS / 32>(r, row, memory, out);
}

/* Lane k < top_k gets the k-th expert and its share. memory: n_experts + n_groups floats. */
static __device__ __forceinline__ float route_row(const mf__cu_route &r, int64_t row, float *memory, int *out) {
    if (r.n_experts <= 256) return route_with<8>(r, row, memory, out);
    return route_many(r, row, memory, out);
}

#endif
