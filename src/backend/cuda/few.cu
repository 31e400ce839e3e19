/* Products of a few rows: all matrices that read the same input in one launch. Every block prepares the input for
 * itself (a norm, a gate, rounding: a few kilobytes). Codes of 4 and 8 bits come in strips (strips.cuh) and are under
 * way before the input is there; of all others the warps walk along rows of W. */
#include "backend/cuda/dots.cuh"
#include "backend/cuda/strips.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define SOURCES 32                 /* strips of a block whose places are looked up by one thread each */
#define F32_ROWS (STRIP_WARPS / 4) /* of a block that multiplies strips: four warps share one */

struct few_params {
    mf__cu_input in;
    mf__cu_job jobs[MF_CU_MAX_JOBS]; /* integer ones first */
    int n_jobs, n_int8;
    int first[MF_CU_MAX_JOBS + 1]; /* numbers of steps: what a warp, or a block with strips, does at a time */
    bool planes, floats;
    strip_shape shape;
    int rows;         /* of activations, of a block */
    int batch, depth; /* strips */
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

/* ---- any codes --------------------------------------------------------------------------------------------------- */

template <int NT>
static __device__ __forceinline__ void f32_step(const mf__cu_job &j, int row, const shared_rows &x, int t0, int n) {
    float acc[NT];
    dots_f32<NT>(j.w, row, x, acc);
    if (lane_id()) return;
#pragma unroll
    for (int t = 0; t < NT; t++)
        if (t < n) put(j, t0 + t, row, acc[t]);
}

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
    if (lane_id() % lanes) return; /* the first of the lanes that share a row */
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int t = 0; t < NT; t++)
            if (t < n && row0 + r * side < j.w.n_rows) put(j, t0 + t, row0 + r * side, acc[r][t]);
}

template <int WIDTH, int NT, int R>
static __global__ void __launch_bounds__(THREADS) any_kernel(const __grid_constant__ few_params p) {
    MF_SHARED(memory);
    shared_rows x;
    lay_rows(memory, NT, p.in.n_cols, p.planes, p.floats, &x);
    depend();
    int t0 = blockIdx.y * NT, n = min(NT, p.in.n - t0);
    fill_rows(p.in, t0, n, x, blockIdx.x == 0);
    for (int step = blockIdx.x * WARPS + threadIdx.x / 32; step < p.first[p.n_jobs]; step += gridDim.x * WARPS) {
        int j = job_of(p, step);
        if (j < p.n_int8)
            int8_step<WIDTH, NT, R>(p.jobs[j], step - p.first[j], x, t0, n);
        else
            f32_step<NT>(p.jobs[j], step - p.first[j], x, t0, n);
    }
}

/* ---- strips ------------------------------------------------------------------------------------------------------ */

/* Strip `step` of all jobs'. */
static __device__ __forceinline__ strip_source find_strip(const few_params &p, int step) {
    int k = job_of(p, step);
    return source_of(p.jobs[k].w, (step - p.first[k]) * STRIP_ROWS);
}

/* The rows of a step with f32 products, towards the cache. */
static __device__ __forceinline__ void prefetch_f32(const few_params &p, int step) {
    int k = job_of(p, step), row0 = (step - p.first[k]) * F32_ROWS;
    const mf__cu_matrix &w = p.jobs[k].w;
    int64_t bytes = min(F32_ROWS, w.n_rows - row0) * w.row_bytes;
    for (int64_t i = threadIdx.x * 128; i < bytes; i += STRIP_THREADS * 128) prefetch(w.data + row0 * w.row_bytes + i);
}

/* Four rows of an f32 product. sums: [rows][4][n] */
template <int NT>
static __device__ __forceinline__ void multiply_f32(const few_params &p, int step, const strip_rows &x, int t0, int n,
                                                    float *sums) {
    int k = job_of(p, step), warp = threadIdx.x / 32, row = (step - p.first[k]) * F32_ROWS + warp / 4;
    const mf__cu_job &j = p.jobs[k];
    float acc[NT];
    if (row < j.w.n_rows) {
        quarter_f32<NT>(j.w, row, warp % 4, x.x, x.padded, n, acc);
#pragma unroll
        for (int t = 0; t < NT; t++)
            if (lane_id() == 0 && t < n) sums[warp * n + t] = acc[t];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < F32_ROWS * n; i += STRIP_THREADS) {
        int r = i / n, t = i % n;
        const float *from = sums + 4 * r * n + t;
        row = (step - p.first[k]) * F32_ROWS + r;
        if (row < j.w.n_rows) put(j, t0 + t, row, from[0] + from[n] + from[2 * n] + from[3 * n]);
    }
    __syncthreads();
}

/* NB: fours of rows of activations. */
template <int WIDTH, mf__cu_type SCALES, int NB>
static __global__ void __launch_bounds__(STRIP_THREADS, NB == 1 ? 2 : 1)
    strip_kernel(const __grid_constant__ few_params p) {
    __shared__ strip_source sources[SOURCES];
    MF_SHARED(memory);
    strip_rows x;
    int t0 = blockIdx.y * p.rows, n = min(p.rows, p.in.n - t0);
    int n_strips = p.first[p.n_int8], total = p.first[p.n_jobs], block = blockIdx.x, stride = gridDim.x;
    char *at = memory + p.depth * p.shape.bytes;
    strip_ring ring = {memory, (float *)at, p.batch, block < n_strips ? (n_strips - 1 - block) / stride + 1 : 0};
    lay_strip_rows(at + p.batch * STRIP_WARPS * STRIP_ROWS * p.rows * 4, n, p.in.n_cols, true, p.floats, &x);
    auto ask = [&](int k, char *to) {
        strip_source from = k < SOURCES ? sources[k] : find_strip(p, block + k * stride);
        ask_row(p.shape, from, threadIdx.x / 32, threadIdx.x / 32, to);
    };
    if ((int)threadIdx.x < min(SOURCES, ring.n_strips))
        sources[threadIdx.x] = find_strip(p, block + threadIdx.x * stride);
    __syncthreads();
    ask_first(ring, p.shape.bytes, ask);
    int step = block + ring.n_strips * stride; /* with f32 products */
    if (step < total) prefetch_f32(p, step);
    prefetch_input(p.in);
    /* first for nothing, with what was there before: instructions come from memory while the last kernel still runs */
#pragma unroll 1
    for (int turn = first_turn(p.in.n == 1); turn < 2; turn++) {
        if (turn) depend();
        fill_rows(p.in, t0, n, x, turn && block == 0, !turn);
    }
    multiply_strips<WIDTH, SCALES, NB>(ring, p.shape, x, n, ask, [&](int k0, int count) {
        int n_spans = spans_of(p.shape);
        if (n == 1) { /* nothing to divide by */
            for (int i = threadIdx.x; i < count * STRIP_ROWS; i += STRIP_THREADS) {
                int number = block + (k0 + i / STRIP_ROWS) * stride, k = job_of(p, number);
                int row = (number - p.first[k]) * STRIP_ROWS + i % STRIP_ROWS;
                const float *sums = ring.sums + i / STRIP_ROWS * (STRIP_WARPS * STRIP_ROWS) + i % STRIP_ROWS;
                float v = spans_total(sums, n_spans, STRIP_ROWS);
                if (row < p.jobs[k].w.n_rows) put(p.jobs[k], t0, row, v);
            }
            return;
        }
        for (int i = threadIdx.x; i < count * STRIP_ROWS * n; i += STRIP_THREADS) {
            int strip = i / (STRIP_ROWS * n), rest = i - strip * (STRIP_ROWS * n), r = rest / n, t = rest - r * n;
            int number = block + (k0 + strip) * stride, k = job_of(p, number);
            int row = (number - p.first[k]) * STRIP_ROWS + r;
            float v = spans_total(ring.sums + strip * STRIP_WARPS * STRIP_ROWS * n + rest, n_spans, STRIP_ROWS * n);
            if (row < p.jobs[k].w.n_rows) put(p.jobs[k], t0 + t, row, v);
        }
    });
    if (step < total) __syncthreads();
    for (; step < total; step += stride)
        if (n == 1)
            multiply_f32<1>(p, step, x, t0, n, ring.sums);
        else
            multiply_f32<4 * NB>(p, step, x, t0, n, ring.sums);
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

extern "C" bool mf__cu_is_int8(const mf__cu_matrix *w, bool exact) {
    return !exact && (w->type == MF_CU_AFFINE || w->type == MF_CU_MXFP4);
}

#define SMS 132 /* processors that work is shared out to, at most */

/* Steps of so many rows each. */
static void count_steps(few_params *p, int int8_rows, int f32_rows) {
    for (int i = 0; i < p->n_jobs; i++)
        p->first[i + 1] = p->first[i] + (int)ceil_div(p->jobs[i].w.n_rows, i < p->n_int8 ? int8_rows : f32_rows);
}

template <int WIDTH, int NT, int R> static void launch_any(cudaStream_t s, few_params &p, size_t shared) {
    count_steps(&p, R * (32 / lanes_of_row(p.in.n_cols)), 1);
    unsigned blocks = ceil_div(p.first[p.n_jobs], WARPS), most = 4 * SMS;
    MF_LAUNCH_EARLY((any_kernel<WIDTH, NT, R>), dim3(blocks < most ? blocks : most, ceil_div(p.in.n, NT)), THREADS,
                    shared, s, p);
}

/* Whether strips fit with so many rows of activations; sets batch and depth: as many strips as leave room for a block
 * of the next kernel, if any do. */
static bool plan_strips(few_params *p, int rows, size_t *shared) {
    strip_rows x;
    int steps = p->first[p->n_jobs], most = (int)ceil_div(p->first[p->n_int8], steps < SMS ? steps : SMS);
    size_t own = lay_strip_rows(0, rows, p->in.n_cols, true, p->floats, &x),
           sums = (size_t)STRIP_WARPS * STRIP_ROWS * rows * 4;
    size_t allowed = most_shared(), limit = STRIP_BESIDE < allowed ? STRIP_BESIDE : allowed;
    if (own + sums + 2 * p->shape.bytes > limit) limit = allowed;
    p->rows = rows;
    p->batch = 1;
    while (2 * p->batch < most && own + (p->batch + 1) * (sums + 2 * p->shape.bytes) <= limit) p->batch++;
    if (own + most * (sums + p->shape.bytes) <= limit) p->batch = most; /* all at once */
    p->depth = 2 * p->batch < most ? 2 * p->batch : most;
    *shared = own + p->batch * sums + (size_t)p->depth * p->shape.bytes;
    return *shared <= allowed;
}

template <int WIDTH, mf__cu_type SCALES, int NB>
static void launch_strips(cudaStream_t s, few_params &p, size_t shared) {
    unsigned steps = (unsigned)p.first[p.n_jobs];
    MF_LAUNCH_EARLY((strip_kernel<WIDTH, SCALES, NB>), dim3(steps < SMS ? steps : SMS, ceil_div(p.in.n, p.rows)),
                    STRIP_THREADS, shared, s, p);
}

/* False: not even one row of activations fits. */
template <int WIDTH, mf__cu_type SCALES> static bool try_strips(cudaStream_t s, few_params &p) {
    size_t shared;
    int n = p.in.n;
    count_steps(&p, STRIP_ROWS, F32_ROWS);
    if (n > 8 && plan_strips(&p, n < 16 ? n : 16, &shared))
        launch_strips<WIDTH, SCALES, 4>(s, p, shared);
    else if (n > 4 && plan_strips(&p, n < 8 ? n : 8, &shared))
        launch_strips<WIDTH, SCALES, 2>(s, p, shared);
    else if (n > 1 && plan_strips(&p, n < 4 ? n : 4, &shared))
        launch_strips<WIDTH, SCALES, 1>(s, p, shared);
    else if (plan_strips(&p, 1, &shared))
        launch_strips<WIDTH, SCALES, 1>(s, p, shared);
    else
        return false;
    return true;
}

template <int WIDTH> static void launch_width(cudaStream_t s, few_params &p, size_t one) {
    size_t most = 160 << 10, allowed = most_shared();
    if (allowed && allowed < most) most = allowed;
    if (p.in.n >= 5 && 8 * one <= most)
        launch_any<WIDTH, 8, 2>(s, p, 8 * one);
    else if (p.in.n >= 2 && 4 * one <= most)
        launch_any<WIDTH, 4, 2>(s, p, 4 * one);
    else
        launch_any<WIDTH, 1, 2>(s, p, one);
}

/* Jobs in strips of one shape. */
static bool in_strips(cudaStream_t s, few_params &p) {
    const mf__cu_matrix *w = &p.jobs[0].w;
    if (!p.n_int8) return false;
    for (int i = 0; i < p.n_int8; i++) {
        const mf__cu_matrix *v = &p.jobs[i].w;
        if (!strips_fit(v) || v->bits != w->bits || v->group != w->group || v->scale_type != w->scale_type)
            return false;
    }
    p.shape = shape_of(w);
    if (w->scale_type == MF_CU_BF16)
        return w->bits == 8 ? try_strips<8, MF_CU_BF16>(s, p) : try_strips<4, MF_CU_BF16>(s, p);
    return w->bits == 8 ? try_strips<8, MF_CU_F16>(s, p) : try_strips<4, MF_CU_F16>(s, p);
}

extern "C" bool mf__cu_few_fits(int32_t n_cols, bool planes, bool floats) {
    shared_rows x;
    return lay_rows(0, 1, n_cols, planes, floats, &x) + 16 <= most_shared();
}

extern "C" void mf__cu_few(cudaStream_t s, const mf__cu_input *in, const mf__cu_job *jobs, int n_jobs, bool exact) {
    few_params p = {};
    shared_rows x;
    p.in = *in;
    for (int int8 = 1; int8 >= 0; int8--)
        for (int i = 0; i < n_jobs; i++)
            if (mf__cu_is_int8(&jobs[i].w, exact) == (int8 == 1)) p.jobs[p.n_jobs++] = jobs[i], p.n_int8 += int8;
    p.planes = p.n_int8 > 0;
    p.floats = p.n_int8 < n_jobs;
    if (in_strips(s, p)) return;
    int width = !p.n_int8 ? 4 : p.jobs[0].w.type == MF_CU_MXFP4 ? 0 : p.jobs[0].w.bits;
    size_t one = (lay_rows(0, 1, in->n_cols, p.planes, p.floats, &x) + 15) / 16 * 16;
    switch (width) {
    case 0: launch_width<0>(s, p, one); break;
    case 2: launch_width<2>(s, p, one); break;
    case 3: launch_width<3>(s, p, one); break;
    case 5: launch_width<5>(s, p, one); break;
    case 6: launch_width<6>(s, p, one); break;
    case 8: launch_width<8>(s, p, one); break;
    default: launch_width<4>(s, p, one);
    }
}
