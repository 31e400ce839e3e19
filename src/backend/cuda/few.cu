/* Products of a few rows: all matrices that read the same input in one launch. Every block prepares the input for
 * itself (a norm, a gate, rounding: a few kilobytes), then its warps walk along rows of W. Codes of 4 and 8 bits are
 * under way before the input is there. */
#include "backend/cuda/dots.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define RING_THREADS 512 /* one block on a processor: the rest of it is for the next kernel's */
#define RING_WARPS (RING_THREADS / 32)

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

static __device__ __forceinline__ int job_of(const few_params &p, int step) {
    int j = 0;
    while (step >= p.first[j + 1]) j++;
    return j;
}

/* A step's sums to memory, by the first of the lanes that share a row. */
template <int NT, int R>
static __device__ __forceinline__ void put_rows(const mf__cu_job &j, int row0, int side, int lanes, int t0, int n,
                                                float (*acc)[NT]) {
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

/* Prefetches the first f32 row of this warp. */
static __device__ __forceinline__ void ask_f32(const few_params &p) {
    int warps = blockDim.x / 32;
    for (int step = blockIdx.x * warps + threadIdx.x / 32; step < p.first[p.n_jobs]; step += gridDim.x * warps) {
        int j = job_of(p, step);
        if (p.is_int8[j]) continue;
        const mf__cu_matrix &w = p.jobs[j].w;
        const char *row = w.data + (int64_t)(step - p.first[j]) * w.row_bytes;
        for (int64_t i = lane_id() * 128; i < w.row_bytes; i += 32 * 128) prefetch(row + i);
        return;
    }
}

/* ---- any codes --------------------------------------------------------------------------------------------------- */

template <int WIDTH, int NT, int R>
static __device__ __forceinline__ void int8_step(const mf__cu_job &j, int step, const shared_rows &x, int t0, int n) {
    int lanes = lanes_of_row(j.w.n_cols), side = 32 / lanes; /* rows beside each other in the warp */
    int row0 = step * R * side + lane_id() / lanes;          /* then row0 + side, ... */
    code_rows<R> rows;
    float acc[R][NT];
#pragma unroll
    for (int r = 0; r < R; r++) {
        set_row<WIDTH, R>(j.w, min(row0 + r * side, j.w.n_rows - 1), r, &rows);
#pragma unroll
        for (int t = 0; t < NT; t++) acc[r][t] = 0;
    }
    dots_int8<WIDTH, NT, R>(j.w, rows, x, lane_id() % lanes, lanes, acc);
    put_rows<NT, R>(j, row0, side, lanes, t0, n, acc);
}

template <int WIDTH, int NT, int R>
static __global__ void __launch_bounds__(THREADS) any_kernel(const __grid_constant__ few_params p) {
    __shared__ float slots[32];
    MF_SHARED(memory);
    shared_rows x;
    lay_rows(memory, NT, p.in.n_cols, p.planes, p.floats, &x);
    ask_f32(p);
    depend();
    int t0 = blockIdx.y * NT, n = min(NT, p.in.n - t0);
    fill_rows(p.in, t0, n, x, blockIdx.x == 0, slots);
    for (int step = blockIdx.x * WARPS + threadIdx.x / 32; step < p.first[p.n_jobs]; step += gridDim.x * WARPS) {
        int j = job_of(p, step);
        if (p.is_int8[j])
            int8_step<WIDTH, NT, R>(p.jobs[j], step - p.first[j], x, t0, n);
        else
            f32_step<NT>(p.jobs[j], step - p.first[j], x, t0, n);
    }
}

/* ---- codes of 4 and 8 bits --------------------------------------------------------------------------------------- */

/* Where a warp is: granule number `turn` of its row's lanes, of a step; steps of f32 products are passed over. */
struct cursor {
    int step, turn;
};

/* Granules that a warp has under way. */
static __host__ __device__ constexpr int ring_depth(int rows) {
    return rows == 1 ? 4 : 2;
}

template <int WIDTH, int NT, int R>
static __global__ void __launch_bounds__(RING_THREADS) ring_kernel(const __grid_constant__ few_params p) {
    const int RING = ring_depth(R);
    __shared__ float slots[32];
    MF_SHARED(memory);
    ring_slot<WIDTH, R> *ring = (ring_slot<WIDTH, R> *)memory + threadIdx.x / 32 * RING;
    shared_rows x;
    lay_rows(memory + RING_WARPS * RING * sizeof *ring, NT, p.in.n_cols, p.planes, p.floats, &x);
    int t0 = blockIdx.y * NT, n = min(NT, p.in.n - t0), total = p.first[p.n_jobs], stride = gridDim.x * RING_WARPS;
    int lanes = lanes_of_row(p.in.n_cols), side = 32 / lanes, lane = lane_id() % lanes, beside = lane_id() / lanes;
    int granules = p.in.n_cols / MF_CU_GRANULE, turns = (granules + lanes - 1) / lanes;
    cursor ask = {(int)(blockIdx.x * RING_WARPS + threadIdx.x / 32), 0};
    while (ask.step < total && !p.is_int8[job_of(p, ask.step)]) ask.step += stride;
    auto ask_next = [&](int slot) {
        if (ask.step < total) {
            int k = job_of(p, ask.step);
            const mf__cu_job &j = p.jobs[k];
            int g = lane + ask.turn * lanes, row0 = (ask.step - p.first[k]) * R * side + beside;
            if (g < granules)
#pragma unroll
                for (int r = 0; r < R; r++) {
                    int64_t row = min(row0 + r * side, j.w.n_rows - 1), at = row * j.w.n_groups * 2;
                    ring_ask<WIDTH, R>(j.w, j.w.data + row * j.w.row_bytes, j.w.scales + at, j.w.biases + at, g, r,
                                       &ring[slot]);
                }
            if (++ask.turn == turns) {
                ask.turn = 0;
                do ask.step += stride;
                while (ask.step < total && !p.is_int8[job_of(p, ask.step)]);
            }
        }
        copy_commit();
    };
    for (int i = 0; i < RING; i++) ask_next(i);
    ask_f32(p);
    depend();
    fill_rows(p.in, t0, n, x, blockIdx.x == 0, slots);
    int slot = 0;
    for (int step = blockIdx.x * RING_WARPS + threadIdx.x / 32; step < total; step += stride) {
        int k = job_of(p, step);
        const mf__cu_job &j = p.jobs[k];
        if (!p.is_int8[k]) {
            f32_step<NT>(j, step - p.first[k], x, t0, n);
            continue;
        }
        float acc[R][NT];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int t = 0; t < NT; t++) acc[r][t] = 0;
        for (int turn = 0; turn < turns; turn++) {
            int g = lane + turn * lanes;
            copy_wait<RING - 1>();
            if (g < granules) ring_dots<WIDTH, NT, R, false>(j.w, &ring[slot], x, g, acc);
            ask_next(slot);
            slot = (slot + 1) % RING;
        }
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int t = 0; t < NT; t++) acc[r][t] = lanes_sum(acc[r][t], lanes);
        put_rows<NT, R>(j, (step - p.first[k]) * R * side + beside, side, lanes, t0, n, acc);
    }
    copy_wait<0>();
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

extern "C" bool mf__cu_is_int8(const mf__cu_matrix *w, bool exact) {
    return !exact && (w->type == MF_CU_AFFINE || w->type == MF_CU_MXFP4);
}

#define SMS 132 /* processors that work is shared out to, at most */

/* Steps of R rows each. */
static void count_steps(few_params *p, int rows) {
    int side = 32 / lanes_of_row(p->in.n_cols);
    for (int i = 0; i < p->n_jobs; i++)
        p->first[i + 1] =
            p->first[i] + (p->is_int8[i] ? (int)ceil_div(p->jobs[i].w.n_rows, rows * side) : p->jobs[i].w.n_rows);
}

template <int WIDTH, int NT, int R> static void launch_any(cudaStream_t s, few_params &p, size_t shared) {
    count_steps(&p, R);
    unsigned blocks = ceil_div(p.first[p.n_jobs], WARPS), most = 4 * SMS;
    MF_LAUNCH_EARLY((any_kernel<WIDTH, NT, R>), dim3(blocks < most ? blocks : most, ceil_div(p.in.n, NT)), THREADS,
                    shared, s, p);
}

template <int WIDTH, int NT, int R> static void launch_ring(cudaStream_t s, few_params &p, size_t shared) {
    count_steps(&p, R);
    unsigned blocks = ceil_div(p.first[p.n_jobs], RING_WARPS);
    shared += RING_WARPS * ring_depth(R) * sizeof(ring_slot<WIDTH, R>);
    MF_LAUNCH_EARLY((ring_kernel<WIDTH, NT, R>), dim3(blocks < SMS ? blocks : SMS, ceil_div(p.in.n, NT)), RING_THREADS,
                    shared, s, p);
}

/* As few rows of W at a time as give every warp one step. */
template <int WIDTH> static void launch_few(cudaStream_t s, few_params &p, size_t one) {
    int64_t rows = 0, warps = SMS * RING_WARPS * (32 / lanes_of_row(p.in.n_cols));
    for (int i = 0; i < p.n_jobs; i++) rows += p.jobs[i].w.n_rows;
    if (p.in.n >= 5 && 8 * one <= 96 << 10)
        launch_ring<WIDTH, 8, 2>(s, p, 8 * one);
    else if (p.in.n >= 2 && 4 * one <= 96 << 10)
        launch_ring<WIDTH, 4, 2>(s, p, 4 * one);
    else if (rows <= warps)
        launch_ring<WIDTH, 1, 1>(s, p, one);
    else if (rows <= 2 * warps || WIDTH == 8)
        launch_ring<WIDTH, 1, 2>(s, p, one);
    else
        launch_ring<WIDTH, 1, WIDTH == 8 ? 2 : 4>(s, p, one);
}

template <int WIDTH> static void launch_width(cudaStream_t s, few_params &p, size_t one) {
    size_t most = 160 << 10;
    if (p.in.n >= 5 && 8 * one <= most)
        launch_any<WIDTH, 8, 2>(s, p, 8 * one);
    else if (p.in.n >= 2 && 4 * one <= most)
        launch_any<WIDTH, 4, 2>(s, p, 4 * one);
    else
        launch_any<WIDTH, 1, 2>(s, p, one);
}

extern "C" void mf__cu_few(cudaStream_t s, const mf__cu_input *in, const mf__cu_job *jobs, int n_jobs, bool exact) {
    few_params p = {};
    shared_rows x;
    int width = 4;
    bool ring = true;
    p.in = *in;
    p.n_jobs = n_jobs;
    for (int i = 0; i < n_jobs; i++) {
        p.jobs[i] = jobs[i];
        p.is_int8[i] = mf__cu_is_int8(&jobs[i].w, exact);
        if (p.is_int8[i]) width = jobs[i].w.type == MF_CU_MXFP4 ? 0 : jobs[i].w.bits;
        if (p.is_int8[i]) ring = ring && ring_fits(&jobs[i].w);
        p.planes |= p.is_int8[i];
        p.floats |= !p.is_int8[i];
    }
    size_t one = (lay_rows(0, 1, in->n_cols, p.planes, p.floats, &x) + 15) / 16 * 16;
    ring = ring && p.planes && one <= 96 << 10;
    switch (width) {
    case 0: launch_width<0>(s, p, one); break;
    case 2: launch_width<2>(s, p, one); break;
    case 3: launch_width<3>(s, p, one); break;
    case 5: launch_width<5>(s, p, one); break;
    case 6: launch_width<6>(s, p, one); break;
    case 8: ring ? launch_few<8>(s, p, one) : launch_width<8>(s, p, one); break;
    default: ring ? launch_few<4>(s, p, one) : launch_width<4>(s, p, one);
    }
}
