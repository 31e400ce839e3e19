/* Pairs of rows and experts, by expert: the order of the pairs of one expert stays. And f32 products of many rows. */
#include "backend/cuda/weights.cuh"

#define THREADS 256

/* ---- sort -------------------------------------------------------------------------------------------------------- */

/* A block per expert counts its pairs. */
static __global__ void count_kernel(const __grid_constant__ mf__cu_sort p) {
    __shared__ int slots[THREADS / 32];
    int e = blockIdx.x, n = 0;
    if (p.table[e])
        for (int i = threadIdx.x; i < p.n_pairs; i += THREADS) n += p.ids[i] == e;
    for (int d = 16; d > 0; d >>= 1) n += __shfl_xor_sync(FULL, n, d);
    if (lane_id() == 0) slots[threadIdx.x / 32] = n;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < THREADS / 32; w++) n += slots[w];
    p.counts[e] = n;
}

/* A block per expert writes its pairs and its tiles behind those of the experts before it. */
static __global__ void order_kernel(const __grid_constant__ mf__cu_sort p) {
    __shared__ int slots[THREADS / 32], start[2];
    int e = blockIdx.x, warp = threadIdx.x / 32;
    if (warp == 0) {
        int pairs = 0, tiles = 0;
        for (int i = lane_id(); i < e; i += 32) {
            pairs += p.counts[i];
            tiles += (p.counts[i] + MF_CU_TILE_ROWS - 1) / MF_CU_TILE_ROWS;
        }
        for (int d = 16; d > 0; d >>= 1) {
            pairs += __shfl_xor_sync(FULL, pairs, d);
            tiles += __shfl_xor_sync(FULL, tiles, d);
        }
        if (lane_id() == 0) start[0] = pairs, start[1] = tiles;
    }
    __syncthreads();
    int at = start[0], n = p.counts[e], n_tiles = (n + MF_CU_TILE_ROWS - 1) / MF_CU_TILE_ROWS;
    for (int i = threadIdx.x; i < n_tiles; i += THREADS) {
        mf__cu_tile tile = {e, at + i * MF_CU_TILE_ROWS, min(MF_CU_TILE_ROWS, n - i * MF_CU_TILE_ROWS)};
        p.tiles[start[1] + i] = tile;
    }
    if (e == p.n_experts - 1 && threadIdx.x == 0) *p.n_tiles = start[1] + n_tiles;
    if (!n) return;
    for (int i0 = 0; i0 < p.n_pairs; i0 += THREADS) {
        int i = i0 + threadIdx.x;
        bool mine = i < p.n_pairs && p.ids[i] == e;
        unsigned bits = __ballot_sync(FULL, mine);
        if (lane_id() == 0) slots[warp] = __popc(bits);
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < THREADS / 32; w++) {
            before += w < warp ? slots[w] : 0;
            all += slots[w];
        }
        if (mine) p.order[at + before + __popc(bits & ((1u << lane_id()) - 1))] = i;
        at += all;
        __syncthreads();
    }
}

extern "C" void mf__cu_sort_pairs(cudaStream_t s, const mf__cu_sort *p) {
    MF_LAUNCH(count_kernel, p->n_experts, THREADS, 0, s, *p);
    MF_LAUNCH(order_kernel, p->n_experts, THREADS, 0, s, *p);
}

/* ---- f32 products of many rows ----------------------------------------------------------------------------------- */

/* 64 rows of W by 64 of x in a block, 4 by 4 in a thread; DEPTH columns at a time through shared memory. For experts as
 * in tiles.cu. */
#define SIDE 64
#define DEPTH 32

struct f32_params {
    mf__cu_tiles t;
    const float *x;
};

static __global__ void __launch_bounds__(THREADS) f32_kernel(const __grid_constant__ f32_params p) {
    __shared__ __align__(16) float ws[DEPTH][SIDE + 4], xs[DEPTH][SIDE + 4];
    __shared__ int rows[SIDE], out_rows[SIDE];
    const mf__cu_tiles &t = p.t;
    const mf__cu_job &job = t.jobs[blockIdx.z];
    mf__cu_matrix m = job.w;
    const float *bias = job.bias;
    int first = blockIdx.y * SIDE, n = min(SIDE, t.n - first);
    if (t.tiles) {
        if ((int)blockIdx.y >= *t.n_tiles) return;
        const mf__cu_tile tile = t.tiles[blockIdx.y];
        const char *blob = t.table[tile.expert];
        first = tile.first, n = tile.n;
        m = part_of(m, blob);
        bias = t.bias_off[blockIdx.z] < 0 ? 0 : (const float *)(blob + t.bias_off[blockIdx.z]);
    }
    if ((int)blockIdx.x * SIDE >= m.n_rows) return;
    for (int i = threadIdx.x; i < SIDE; i += THREADS) {
        int at = first + min(i, n - 1), row = t.order ? t.order[at] : at;
        rows[i] = t.x_sorted ? at : t.top_k ? row / t.top_k : row;
        out_rows[i] = t.y_sorted ? at : row;
    }
    int tw = threadIdx.x % 16 * 4, tx = threadIdx.x / 16 * 4;
    float acc[4][4] = {{0}};
    for (int c0 = 0; c0 < m.n_cols; c0 += DEPTH) {
        __syncthreads();
        for (int i = threadIdx.x; i < SIDE * DEPTH / 8; i += THREADS) { /* eight columns of a row of W */
            float v[8];
            int row = i / (DEPTH / 8), c = i % (DEPTH / 8) * 8;
            weights_at(m, min((int)blockIdx.x * SIDE + row, m.n_rows - 1), c0 + c, v);
#pragma unroll
            for (int k = 0; k < 8; k++) ws[c + k][row] = v[k];
        }
        for (int i = threadIdx.x; i < SIDE * DEPTH; i += THREADS) {
            int row = i / DEPTH, c = i % DEPTH;
            xs[c][row] = c0 + c < m.n_cols ? p.x[(int64_t)rows[row] * m.n_cols + c0 + c] : 0;
        }
        __syncthreads();
#pragma unroll 8
        for (int c = 0; c < DEPTH; c++) {
            float4 w = *(const float4 *)&ws[c][tw], x = *(const float4 *)&xs[c][tx];
            float wv[4] = {w.x, w.y, w.z, w.w}, xv[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[i][j] = fmaf(wv[i], xv[j], acc[i][j]);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = blockIdx.x * SIDE + tw + i;
            if (row >= m.n_rows || tx + j >= n) continue;
            int64_t at = (int64_t)out_rows[tx + j] * m.n_rows + row;
            float v = acc[i][j];
            if (bias) v += bias[row];
            job.y[at] = job.add ? job.add[at] + v : v;
        }
}

extern "C" void mf__cu_multiply_f32(cudaStream_t s, const mf__cu_tiles *t, const float *x) {
    f32_params p = {*t, x};
    int most = 0;
    for (int i = 0; i < t->n_jobs; i++) most = t->jobs[i].w.n_rows > most ? t->jobs[i].w.n_rows : most;
    unsigned n = t->tiles ? (unsigned)t->max_tiles : ceil_div(t->n, SIDE);
    MF_LAUNCH(f32_kernel, dim3(ceil_div(most, SIDE), n, t->n_jobs), THREADS, 0, s, p);
}
