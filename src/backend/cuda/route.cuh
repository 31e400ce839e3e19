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

/* The k largest of p[0..n), n <= 1024; lane k keeps the k-th. Of equal values the lower index. */
static __device__ __forceinline__ int top_k(const float *p, int n, int k) {
    uint32_t taken = 0; /* element lane + 32 i */
    int mine = 0, at = -1;
    uint32_t most = 0;
    bool stale = true;
    for (int slot = 0; slot < k; slot++) {
        if (stale) {
            at = -1;
            for (int i = 0, e = lane_id(); e < n; i++, e += 32) {
                uint32_t v = ordered(p[e] + 0.0f);
                if (!(taken >> i & 1) && (at < 0 || v > most)) most = v, at = e;
            }
        }
        uint32_t best = max_of_warp(at < 0 ? 0 : most);
        int id = (int)min_of_warp(at >= 0 && most == best ? (uint32_t)at : 0xffffffffu);
        stale = id == at;
        if (stale) taken |= 1u << (id / 32);
        if (lane_id() == slot) mine = id;
    }
    return mine;
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

/* Lane k < top_k gets the k-th expert and its share. memory: n_experts + n_groups floats. */
static __device__ __forceinline__ float route_row(const mf__cu_route &r, int64_t row, float *memory, int *out) {
    float *choice = memory, *groups = choice + r.n_experts;
    const float *logits = r.logits + row * r.n_experts;
    float max = -FLT_MAX, total = 0;
    for (int e = lane_id(); e < r.n_experts; e += 32) {
        choice[e] = r.kind == SIGMOID ? sigmoid(logits[e]) + (r.bias ? r.bias[e] : 0) : logits[e];
        max = fmaxf(max, logits[e]);
    }
    max = warp_max(max);
    __syncwarp();
    if (r.kind == SIGMOID && r.n_groups > r.top_groups) drop_groups(r, choice, groups);
    int id = top_k(choice, r.n_experts, r.top_k);
    bool mine = lane_id() < r.top_k;
    float share = !mine ? 0 : r.kind == SIGMOID ? sigmoid(logits[id]) : expf(logits[id] - max);
    if (r.kind == SOFTMAX)
        for (int e = lane_id(); e < r.n_experts; e += 32) total += expf(logits[e] - max);
    else
        total = share;
    total = warp_sum(total);
    if (r.kind != SIGMOID) share /= total;
    float sum = 1e-20f + warp_sum(share);
    *out = id;
    return (r.renorm ? share / sum : share) * r.scale;
}

#endif
