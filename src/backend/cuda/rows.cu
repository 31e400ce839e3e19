/* Ops that treat every row alike: embedding, norms, splits, rotary positions, gates, sums. */
#include "backend/cuda/planes.cuh"
#include "backend/cuda/weights.cuh"

#define THREADS 256

/* ---- embed ------------------------------------------------------------------------------------------------------ */

struct embed_params {
    mf__cu_matrix table;
    const int32_t *tokens;
    float *y;
};

static __global__ void embed_kernel(const __grid_constant__ embed_params p) {
    int64_t row = p.tokens[blockIdx.x];
    for (int c = threadIdx.x; c < p.table.n_cols; c += blockDim.x)
        p.y[(int64_t)blockIdx.x * p.table.n_cols + c] = weight_at(p.table, row, c);
}

extern "C" void mf__cu_embed(cudaStream_t s, const mf__cu_matrix *table, const int32_t *tokens, int32_t n, float *y) {
    embed_params p = {*table, tokens, y};
    MF_LAUNCH(embed_kernel, n, THREADS, 0, s, p);
}

/* ---- norms ------------------------------------------------------------------------------------------------------ */

struct norm_params {
    const float *x, *z, *w; /* z: NULL, or what it is gated by */
    float *y;
    int64_t n_parts;
    int part;
    float eps;
};

/* A warp per part: long rows are rare, and there are many of them then. */
static __global__ void norm_kernel(const __grid_constant__ norm_params p) {
    int64_t i = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (i >= p.n_parts) return;
    const float *x = p.x + i * p.part;
    float sum = 0;
    for (int c = lane_id(); c < p.part; c += 32) sum += x[c] * x[c];
    float scale = 1.0f / sqrtf(warp_sum(sum) / (float)p.part + p.eps);
    for (int c = lane_id(); c < p.part; c += 32) {
        float v = x[c] * scale * p.w[c];
        p.y[i * p.part + c] = p.z ? v * silu(p.z[i * p.part + c]) : v;
    }
}

/* A block per part. */
static __global__ void long_norm_kernel(const __grid_constant__ norm_params p) {
    __shared__ float slots[32];
    int64_t i = blockIdx.x;
    const float *x = p.x + i * p.part;
    float sum = 0;
    for (int c = threadIdx.x; c < p.part; c += blockDim.x) sum += x[c] * x[c];
    float scale = 1.0f / sqrtf(block_sum(sum, slots) / (float)p.part + p.eps);
    for (int c = threadIdx.x; c < p.part; c += blockDim.x) {
        float v = x[c] * scale * p.w[c];
        p.y[i * p.part + c] = p.z ? v * silu(p.z[i * p.part + c]) : v;
    }
}

extern "C" void mf__cu_gated_norm(cudaStream_t s, const float *x, const float *z, const float *w, int64_t n_parts,
                                  int32_t part, float eps, float *y) {
    norm_params p = {x, z, w, y, n_parts, part, eps};
    if (part > 512)
        MF_LAUNCH(long_norm_kernel, (unsigned)n_parts, THREADS, 0, s, p);
    else
        MF_LAUNCH(norm_kernel, ceil_div(n_parts, THREADS / 32), THREADS, 0, s, p);
}

extern "C" void mf__cu_rms_norm(cudaStream_t s, const float *x, const float *w, int64_t n_parts, int32_t part,
                                float eps, float *y) {
    mf__cu_gated_norm(s, x, 0, w, n_parts, part, eps, y);
}

/* ---- one value at a time ---------------------------------------------------------------------------------------- */

struct each_params {
    const float *a, *b;
    float *y, *z;
    int64_t n;
    int cols, first;
    mf__cu_glu glu;
};

static __device__ __forceinline__ int64_t item(void) {
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __global__ void split_kernel(const __grid_constant__ each_params p) {
    int64_t i = item(), row = i / p.cols;
    int c = (int)(i % p.cols);
    if (i >= p.n) return;
    if (c < p.first)
        p.y[row * p.first + c] = p.a[i];
    else
        p.z[row * (p.cols - p.first) + c - p.first] = p.a[i];
}
static __global__ void add_kernel(const __grid_constant__ each_params p) {
    int64_t i = item();
    if (i < p.n) p.y[i] = p.a[i] + p.b[i];
}
static __global__ void glu_kernel(const __grid_constant__ each_params p) {
    int64_t i = item();
    if (i < p.n) p.y[i] = glu_one(p.glu, p.a[i], p.b[i]);
}
static __global__ void sigmoid_gate_kernel(const __grid_constant__ each_params p) {
    int64_t i = item();
    if (i < p.n) p.y[i] *= sigmoid(p.b[i]);
}

extern "C" void mf__cu_split(cudaStream_t s, const float *x, int32_t n, int32_t cols, int32_t n_first, float *a,
                             float *b) {
    each_params p = {x, 0, a, b, (int64_t)n * cols, cols, n_first, {}};
    MF_LAUNCH(split_kernel, ceil_div(p.n, THREADS), THREADS, 0, s, p);
}
/* u[t] = [heads][query | gate]: a split of every head */
extern "C" void mf__cu_split_q_gate(cudaStream_t s, const float *u, int64_t n_heads, int32_t dim, float *q,
                                    float *gate) {
    each_params p = {u, 0, q, gate, n_heads * 2 * dim, 2 * dim, dim, {}};
    MF_LAUNCH(split_kernel, ceil_div(p.n, THREADS), THREADS, 0, s, p);
}
extern "C" void mf__cu_add(cudaStream_t s, const float *a, const float *b, int64_t n, float *y) {
    each_params p = {a, b, y, 0, n, 0, 0, {}};
    MF_LAUNCH(add_kernel, ceil_div(n, THREADS), THREADS, 0, s, p);
}
extern "C" void mf__cu_glu_rows(cudaStream_t s, const mf__cu_glu *glu, const float *gate, const float *up, int64_t n,
                                float *y) {
    each_params p = {gate, up, y, 0, n, 0, 0, *glu};
    MF_LAUNCH(glu_kernel, ceil_div(n, THREADS), THREADS, 0, s, p);
}
extern "C" void mf__cu_sigmoid_gate(cudaStream_t s, float *x, const float *gate, int64_t n) {
    each_params p = {0, gate, x, 0, n, 0, 0, {}};
    MF_LAUNCH(sigmoid_gate_kernel, ceil_div(n, THREADS), THREADS, 0, s, p);
}

/* ---- rope ------------------------------------------------------------------------------------------------------- */

/* A block per row; pairs of all heads. */
static __global__ void rope_kernel(const __grid_constant__ mf__cu_rope p) {
    const mf__cu_segment *seg = &p.segs.at[p.segs.of_row[blockIdx.x]];
    int64_t pos = seg->pos + (int)blockIdx.x - seg->row0;
    int half = p.n_rot / 2;
    float *row = p.x + (int64_t)blockIdx.x * p.n_heads * p.head_dim;
    for (int k = threadIdx.x; k < p.n_heads * half; k += blockDim.x) {
        int i = k % half;
        float *head = row + (int64_t)(k / half) * p.head_dim + p.offset, sine, cosine;
        sincosf((float)pos * p.inv_freq[i], &sine, &cosine);
        sine *= p.scale, cosine *= p.scale;
        float *a = head + (p.interleaved ? 2 * i : i), *b = head + (p.interleaved ? 2 * i + 1 : i + half);
        float x = *a, y = *b;
        *a = x * cosine - y * sine;
        *b = x * sine + y * cosine;
    }
}

extern "C" void mf__cu_rope_rows(cudaStream_t s, const mf__cu_rope *r) {
    MF_LAUNCH(rope_kernel, r->n_rows, 128, 0, s, *r);
}

/* ---- combine ---------------------------------------------------------------------------------------------------- */

/* y = h + (sum_k share_k pair_k + sigmoid(score) shared), slots in order */
static __global__ void combine_kernel(const __grid_constant__ mf__cu_combine p) {
    int64_t t = blockIdx.y;
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= p.hidden) return;
    float sum = 0;
    for (int k = 0; k < p.top_k; k++) {
        float pair = p.pairs[(t * p.top_k + k) * p.hidden + c];
        sum = fmaf(p.shares[t * p.top_k + k], pair, sum);
    }
    if (p.shared) sum = fmaf(p.score ? sigmoid(p.score[t]) : 1.0f, p.shared[t * p.hidden + c], sum);
    p.y[t * p.hidden + c] = p.h[t * p.hidden + c] + sum;
}

extern "C" void mf__cu_combine_rows(cudaStream_t s, const mf__cu_combine *c) {
    for (int32_t t = 0; t < c->n_rows; t += 32768) { /* more rows than a grid has */
        mf__cu_combine p = *c;
        int64_t at = (int64_t)t * c->hidden;
        p.n_rows = c->n_rows - t < 32768 ? c->n_rows - t : 32768;
        p.h += at, p.pairs += at * c->top_k, p.shares += (int64_t)t * c->top_k, p.y += at;
        if (p.shared) p.shared += at;
        if (p.score) p.score += t;
        MF_LAUNCH(combine_kernel, dim3(ceil_div(p.hidden, THREADS), p.n_rows), THREADS, 0, s, p);
    }
}

/* ---- planes ----------------------------------------------------------------------------------------------------- */

struct quantize_params {
    mf__cu_input in;
    mf__cu_planes out;
};

/* A block per row, as it is or through a glu. */
static __global__ void quantize_kernel(const __grid_constant__ quantize_params p) {
    int t = blockIdx.x, units = (p.in.n_cols + 31) / 32 * 4, blocks = (p.in.n_cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
    for (int b = threadIdx.x / 32; b < blocks; b += blockDim.x / 32) {
        int unit = b * (MF_CU_BLOCK / 8) + lane_id();
        float scale, sum, v[8];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float4 f = four_at(p.in.x + (int64_t)t * p.in.n_cols, 8 * unit + 4 * k, p.in.n_cols);
            if (p.in.before == MF_CU_GLU) f = four_values(p.in, t, 8 * unit + 4 * k, f);
            v[4 * k] = f.x, v[4 * k + 1] = f.y, v[4 * k + 2] = f.z, v[4 * k + 3] = f.w;
        }
        uint4 u = quantize(v, &scale, &sum);
        if (unit < units) ((uint4 *)p.out.q)[(int64_t)t * units + unit] = u;
        if (lane_id() == 0) p.out.scale[(int64_t)t * blocks + b] = scale;
        if (lane_id() % 4 == 0 && unit < units) p.out.sum[(int64_t)t * (units / 4) + unit / 4] = sum;
    }
}

extern "C" void mf__cu_quantize(cudaStream_t s, const mf__cu_input *in, const mf__cu_planes *out) {
    quantize_params p = {*in, *out};
    MF_LAUNCH(quantize_kernel, in->n, 128, 0, s, p);
}

static int64_t round_up(int64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

extern "C" int64_t mf__cu_planes_bytes(int64_t n, int32_t cols) {
    int64_t units = (cols + 31) / 32 * 4;
    return round_up(n * units * 16) + round_up(n * mf__cu_blocks(cols) * 4) + round_up(n * (units / 4) * 4);
}

extern "C" mf__cu_planes mf__cu_planes_at(void *mem, int64_t n, int32_t cols) {
    int64_t units = (cols + 31) / 32 * 4;
    mf__cu_planes p;
    p.q = mem;
    p.scale = (float *)((char *)mem + round_up(n * units * 16));
    p.sum = (float *)((char *)p.scale + round_up(n * mf__cu_blocks(cols) * 4));
    return p;
}
