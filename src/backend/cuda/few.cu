/* Products of a few rows: all matrices that read the same input in one launch. Every block prepares the input for
 * itself (a norm, a gate, rounding: a few kilobytes), then its warps walk along rows of W. */
#include "backend/cuda/dots.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define R 4 /* rows that a thread reads at once */

struct few_params {
    mf__cu_input in;
    mf__cu_job jobs[MF_CU_MAX_JOBS];
    int n_jobs;
    int first[MF_CU_MAX_JOBS + 1]; /* numbers of steps: what a warp does at a time */
    bool is_int8[MF_CU_MAX_JOBS];
    bool planes, floats;
};

static __device__ __forceinline__ void put(const mf__cu_job &j, int64_t t, int row, float v) {
    int64_t at = t * j.w.n_rows + row;
    if (j.bias) v += j.bias[row];
    if (j.add) v = j.add[at] + v;
    j.y[at] = v;
}

template <int WIDTH, int NT>
static __device__ __forceinline__ void int8_step(const mf__cu_job &j, int step, const shared_rows &x, int t0, int n) {
    int lanes = lanes_of_row(j.w.n_cols), side = 32 / lanes; /* rows beside each other in the warp */
    int row0 = step * R * side + lane_id() / lanes;          /* then row0 + side, ... */
    code_rows<R> rows;
    float acc[R][NT];
#pragma unroll
    for (int r = 0; r < R; r++) {
        int64_t row = min(row0 + r * side, j.w.n_rows - 1), scale_bytes = j.w.scale_type == MF_CU_F32 ? 4 : 2;
        if (WIDTH == 0) scale_bytes = 1;
        rows.codes[r] = j.w.data + row * j.w.row_bytes;
        rows.scales[r] = j.w.scales + row * j.w.n_groups * scale_bytes;
        rows.biases[r] = j.w.biases ? j.w.biases + row * j.w.n_groups * scale_bytes : 0;
#pragma unroll
        for (int t = 0; t < NT; t++) acc[r][t] = 0;
    }
    dots_int8<WIDTH, NT, R>(j.w, rows, x, lane_id() % lanes, lanes, acc);
    if (lane_id() % lanes) return;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int t = 0; t < NT; t++)
            if (t < n && row0 + r * side < j.w.n_rows) put(j, t0 + t, row0 + r * side, acc[r][t]);
}

template <int NT>
static __device__ __forceinline__ void f32_step(const mf__cu_job &j, int row, const shared_rows &x, int t0, int n) {
    float acc[NT];
#pragma unroll
    for (int t = 0; t < NT; t++) acc[t] = 0;
    dots_f32<NT>(j.w, row, x, acc);
    if (lane_id()) return;
#pragma unroll
    for (int t = 0; t < NT; t++)
        if (t < n) put(j, t0 + t, row, acc[t]);
}

template <int WIDTH, int NT>
static __global__ void __launch_bounds__(THREADS) few_kernel(const __grid_constant__ few_params p) {
    __shared__ float slots[32];
    MF_SHARED(memory);
    shared_rows x;
    lay_rows(memory, NT, p.in.n_cols, p.planes, p.floats, &x);
    int t0 = blockIdx.y * NT, n = min(NT, p.in.n - t0);
    fill_rows(p.in, t0, n, x, blockIdx.x == 0, slots);
    for (int step = blockIdx.x * WARPS + threadIdx.x / 32; step < p.first[p.n_jobs]; step += gridDim.x * WARPS) {
        int j = 0;
        while (step >= p.first[j + 1]) j++;
        if (p.is_int8[j])
            int8_step<WIDTH, NT>(p.jobs[j], step - p.first[j], x, t0, n);
        else
            f32_step<NT>(p.jobs[j], step - p.first[j], x, t0, n);
    }
}

extern "C" bool mf__cu_is_int8(const mf__cu_matrix *w, bool exact) {
    return !exact && (w->type == MF_CU_AFFINE || w->type == MF_CU_MXFP4);
}

template <int WIDTH, int NT> static void launch(cudaStream_t s, const few_params &p, size_t shared) {
    unsigned blocks = ceil_div(p.first[p.n_jobs], WARPS), most = 132 * 4;
    MF_LAUNCH((few_kernel<WIDTH, NT>), dim3(blocks < most ? blocks : most, ceil_div(p.in.n, NT)), THREADS, shared, s,
              p);
}

template <int WIDTH> static void launch_width(cudaStream_t s, const few_params &p) {
    shared_rows x;
    size_t one = lay_rows(0, 1, p.in.n_cols, p.planes, p.floats, &x), most = 160 << 10;
    if (p.in.n >= 5 && 8 * one <= most)
        launch<WIDTH, 8>(s, p, 8 * one);
    else if (p.in.n >= 2 && 4 * one <= most)
        launch<WIDTH, 4>(s, p, 4 * one);
    else
        launch<WIDTH, 1>(s, p, one);
}

extern "C" void mf__cu_few(cudaStream_t s, const mf__cu_input *in, const mf__cu_job *jobs, int n_jobs, bool exact) {
    few_params p = {};
    int width = 4, side = 32 / lanes_of_row(in->n_cols);
    p.in = *in;
    p.n_jobs = n_jobs;
    for (int i = 0; i < n_jobs; i++) {
        p.jobs[i] = jobs[i];
        p.is_int8[i] = mf__cu_is_int8(&jobs[i].w, exact);
        if (p.is_int8[i]) width = jobs[i].w.type == MF_CU_MXFP4 ? 0 : jobs[i].w.bits;
        p.planes |= p.is_int8[i];
        p.floats |= !p.is_int8[i];
        p.first[i + 1] = p.first[i] + (p.is_int8[i] ? (int)ceil_div(jobs[i].w.n_rows, R * side) : jobs[i].w.n_rows);
    }
    switch (width) {
    case 0: launch_width<0>(s, p); break;
    case 2: launch_width<2>(s, p); break;
    case 3: launch_width<3>(s, p); break;
    case 5: launch_width<5>(s, p); break;
    case 6: launch_width<6>(s, p); break;
    case 8: launch_width<8>(s, p); break;
    default: launch_width<4>(s, p);
    }
}
