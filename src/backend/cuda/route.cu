/* Choosing experts: a warp per row. */
#include "backend/cuda/route.cuh"

static __global__ void route_kernel(const __grid_constant__ mf__cu_route r) {
    MF_SHARED(memory);
    int id;
    float share = route_row(r, blockIdx.x, (float *)memory, &id);
    if (lane_id() >= r.top_k) return;
    r.ids[(int64_t)blockIdx.x * r.top_k + lane_id()] = id;
    r.shares[(int64_t)blockIdx.x * r.top_k + lane_id()] = share;
}

extern "C" void mf__cu_route_rows(cudaStream_t s, const mf__cu_route *r) {
    MF_LAUNCH(route_kernel, r->n_rows, 32, (size_t)(r->n_experts + r->n_groups) * 4, s, *r);
}
