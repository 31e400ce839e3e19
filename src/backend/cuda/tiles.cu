/* Products of many rows: tiles of W meet tiles of rounded activations in the tensor cores, as integers.
 *
 *   y = sum over groups of  x_scale * (scale * (sum of code * q) + bias * (sum of q))
 *
 * A block has BLOCK_W rows of W and BLOCK_X rows of activations, a warp 32 by 32 of them. Along the columns it takes a
 * group after the other: activations come through shared memory, some groups ahead, codes straight from memory into the
 * registers of the threads that need them, as stored: the instruction does not care about the order of the columns as
 * long as both sides have the same, and planes are made in the order in which nibbles unpack.
 *
 * For experts rows are grouped (sort_kernel): a tile has rows of one expert. */
#include "backend/cuda/mma.cuh"
#include "backend/cuda/planes.cuh"
#include "backend/cuda/weights.cuh"

#define THREADS 256
#define BLOCK_W 128
#define BLOCK_X MF_CU_TILE_ROWS
#define STAGES 4
#define WARP_W 32 /* four warps along W, two along x */
#define WARP_X (BLOCK_X / 2)
#define TILES_W (WARP_W / 16)
#define TILES_X (WARP_X / 8)

struct tile_params {
    mf__cu_tiles t;
    int first[MF_CU_MAX_JOBS + 1]; /* blocks along the rows of each matrix */
};

/* A group's activations. PER: granules of a group. */
template <int PER> struct stage {
    uint4 q[BLOCK_X][PER * 4]; /* each granule turned */
    float sum[PER][BLOCK_X], scale[BLOCK_X];
};

static __device__ __forceinline__ int turned_unit(int row, int j) {
    return (j & ~3) | ((j + (row >> 1)) & 3);
}

/* What a thread brings of every group: units of a few rows, a sum, a scale. Addresses are of group 0. */
template <int PER> struct share {
    static const int units = BLOCK_X * PER * 4 / THREADS, sums = BLOCK_X * PER;
    const uint4 *q[units];
    const float *sum, *scale;
    bool valid[units], sum_valid, scale_valid;
};

template <int PER>
static __device__ __forceinline__ share<PER> share_of(const mf__cu_tiles &p, const int *rows, int n) {
    share<PER> s;
    int granules = p.n_cols / MF_CU_GRANULE, blocks = (p.n_cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
#pragma unroll
    for (int i = 0; i < share<PER>::units; i++) {
        int at = threadIdx.x + i * THREADS, row = at / (PER * 4), j = at % (PER * 4);
        s.q[i] = (const uint4 *)p.x.q + (int64_t)rows[row] * granules * 4 + j;
        s.valid[i] = row < n;
    }
    int row = threadIdx.x % share<PER>::sums / PER, k = threadIdx.x % PER;
    s.sum = p.x.sum + (int64_t)rows[row] * granules + k;
    s.sum_valid = row < n;
    row = threadIdx.x % BLOCK_X;
    s.scale = p.x.scale + (int64_t)rows[row] * blocks;
    s.scale_valid = row < n;
    return s;
}

/* Asks for group g of this block's rows of activations. */
template <int PER> static __device__ __forceinline__ void fetch(const share<PER> &from, int g, stage<PER> *s) {
#pragma unroll
    for (int i = 0; i < share<PER>::units; i++) {
        int at = threadIdx.x + i * THREADS, row = at / (PER * 4), j = at % (PER * 4);
        copy_async16(&s->q[row][turned_unit(row, j)], from.q[i] + g * (PER * 4), from.valid[i]);
    }
    if (threadIdx.x < share<PER>::sums)
        copy_async4(&s->sum[threadIdx.x % PER][threadIdx.x / PER], from.sum + g * PER, from.sum_valid);
    if (threadIdx.x < BLOCK_X)
        copy_async4(&s->scale[threadIdx.x], from.scale + g * PER / (MF_CU_BLOCK / MF_CU_GRANULE), from.scale_valid);
}

/* Unit `unit` of granule g of a row. */
template <int WIDTH>
static __device__ __forceinline__ void load_unit(const char *row, int g, int unit, bool wide, uint32_t *raw) {
    const char *p = row + (int64_t)g * granule<WIDTH>::words * 4;
    if (WIDTH == 4 && wide) {
        raw[0] = __ldg((const uint32_t *)p + unit);
    } else if (WIDTH == 8 && wide) {
        uint2 w = __ldg((const uint2 *)p + unit);
        raw[0] = w.x, raw[1] = w.y;
    } else {
        uint32_t w[granule<WIDTH>::words];
        load_granule<WIDTH>(p, wide, w);
        raw[0] = raw[1] = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t e, o;
            unit_codes<WIDTH>(w, j, &e, &o);
            if (j == unit) raw[0] = e, raw[1] = o;
        }
        if (WIDTH == 4) raw[0] |= raw[1] << 4;
        if (WIDTH == 8) {
            uint32_t e = raw[0], o = raw[1];
            raw[0] = __byte_perm(e, o, 0x5140), raw[1] = __byte_perm(e, o, 0x7362);
        }
    }
}

template <int WIDTH>
static __device__ __forceinline__ void unpack_unit(const uint32_t *raw, uint32_t *even, uint32_t *odd) {
    if (WIDTH == 4) {
        *even = raw[0] & 0x0f0f0f0fu;
        *odd = raw[0] >> 4 & 0x0f0f0f0fu;
    } else if (WIDTH == 8) {
        *even = __byte_perm(raw[0], raw[1], 0x6420);
        *odd = __byte_perm(raw[0], raw[1], 0x7531);
    } else {
        *even = raw[0], *odd = raw[1];
    }
}

/* The tile's matrix, and its rows: first .. + n. False: there is no such tile. */
static __device__ __forceinline__ bool find_tile(const mf__cu_tiles &t, int job, mf__cu_matrix *m, const float **bias,
                                                 int *first, int *n) {
    *m = t.jobs[job].w;
    *bias = t.jobs[job].bias;
    *first = blockIdx.y * BLOCK_X;
    *n = min(BLOCK_X, t.n - *first);
    if (!t.tiles) return true;
    if ((int)blockIdx.y >= *t.n_tiles) return false;
    const mf__cu_tile tile = t.tiles[blockIdx.y];
    const char *blob = t.table[tile.expert];
    *first = tile.first;
    *n = tile.n;
    *m = part_of(*m, blob);
    *bias = t.bias_off[job] < 0 ? 0 : (const float *)(blob + t.bias_off[job]);
    return true;
}

/* An expert's rows are read by few blocks: all of this one's are asked for at once. */
static __device__ __forceinline__ void prefetch_rows(const mf__cu_matrix &m, int first) {
    int n = min(BLOCK_W, m.n_rows - first), scale_bytes = m.type == MF_CU_MXFP4 ? 1 : m.scale_type == MF_CU_F32 ? 4 : 2;
    const char *parts[3] = {m.data, m.scales, m.biases};
    int64_t row_bytes[3] = {m.row_bytes, m.n_groups * scale_bytes, m.n_groups * scale_bytes};
#pragma unroll
    for (int k = 0; k < 3; k++)
        for (int64_t i = threadIdx.x * 128; parts[k] && i < n * row_bytes[k]; i += THREADS * 128)
            prefetch(parts[k] + first * row_bytes[k] + i);
}

template <int WIDTH, int PER>
static __global__ void __launch_bounds__(THREADS, 2) tile_kernel(const __grid_constant__ tile_params p) {
    const mf__cu_tiles &t = p.t;
    MF_SHARED(memory);
    stage<PER> *stages = (stage<PER> *)memory;
    int *rows = (int *)(stages + STAGES), *out_rows = rows + BLOCK_X; /* of x and of y */
    int lane = lane_id(), warp = threadIdx.x / 32, job = 0, first, n;
    mf__cu_matrix m;
    const float *bias;
    while ((int)blockIdx.x >= p.first[job + 1]) job++;
    if (!find_tile(t, job, &m, &bias, &first, &n)) return;
    if (t.tiles) prefetch_rows(m, (blockIdx.x - p.first[job]) * BLOCK_W);
    for (int i = threadIdx.x; i < BLOCK_X; i += THREADS) {
        int at = first + min(i, n - 1), row = t.order ? t.order[at] : at;
        rows[i] = t.x_sorted ? at : t.top_k ? row / t.top_k : row;
        out_rows[i] = t.y_sorted ? at : row;
    }
    __syncthreads();
    int w0 = (blockIdx.x - p.first[job]) * BLOCK_W + warp % 4 * WARP_W + lane / 4, x0 = warp / 4 * WARP_X;
    int groups = m.n_groups;
    int scale_bytes = WIDTH == 0 ? 1 : m.scale_type == MF_CU_F32 ? 4 : 2;
    /* the thread's first row, and how far behind it the others are: registers are scarce */
    int64_t row0 = min(w0, m.n_rows - 1);
    const char *codes = m.data + row0 * m.row_bytes, *own_scales = m.scales + row0 * m.n_groups * scale_bytes;
    const char *own_biases = m.biases ? m.biases + row0 * m.n_groups * scale_bytes : 0;
    int code_at[TILES_W][2], scale_at[TILES_W][2];
#pragma unroll
    for (int i = 0; i < TILES_W; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int behind = min(w0 + 16 * i + 8 * h, m.n_rows - 1) - (int)row0;
            code_at[i][h] = behind * (int)m.row_bytes;
            scale_at[i][h] = behind * m.n_groups * scale_bytes;
        }
    float acc[TILES_W][TILES_X][4];
#pragma unroll
    for (int i = 0; i < TILES_W; i++)
#pragma unroll
        for (int j = 0; j < TILES_X; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) acc[i][j][k] = 0;
    const share<PER> mine = share_of<PER>(t, rows, n);
    for (int g = 0; g < STAGES - 1; g++) {
        if (g < groups) fetch<PER>(mine, g, &stages[g]);
        copy_commit();
    }
    uint32_t raw[TILES_W][2][PER][2];
    float sc[TILES_W][2], bi[TILES_W][2], next_sc[TILES_W][2], next_bi[TILES_W][2];
    auto scales = [&](int g) {
#pragma unroll
        for (int i = 0; i < TILES_W; i++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                granule_scale<WIDTH>(m, own_scales + scale_at[i][h], own_biases ? own_biases + scale_at[i][h] : 0, g,
                                     &next_sc[i][h], &next_bi[i][h]);
    };
    scales(0);
#pragma unroll
    for (int i = 0; i < TILES_W; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int k = 0; k < PER; k++) load_unit<WIDTH>(codes + code_at[i][h], k, lane % 4, m.wide, raw[i][h][k]);
    for (int g = 0; g < groups; g++) {
        uint32_t even[TILES_W][2][PER], odd[TILES_W][2][PER];
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (g + STAGES - 1 < groups) fetch<PER>(mine, g + STAGES - 1, &stages[(g + STAGES - 1) % STAGES]);
        copy_commit();
        const stage<PER> *s = &stages[g % STAGES];
#pragma unroll
        for (int i = 0; i < TILES_W; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                sc[i][h] = next_sc[i][h], bi[i][h] = next_bi[i][h];
#pragma unroll
                for (int k = 0; k < PER; k++) {
                    unpack_unit<WIDTH>(raw[i][h][k], &even[i][h][k], &odd[i][h][k]);
                    if (g + 1 < groups)
                        load_unit<WIDTH>(codes + code_at[i][h], (g + 1) * PER + k, lane % 4, m.wide, raw[i][h][k]);
                }
            }
        if (g + 1 < groups) scales(g + 1);
#pragma unroll
        for (int j = 0; j < TILES_X; j++) {
            if (x0 + 8 * j >= n) break; /* the last rows of an expert */
            int row = x0 + 8 * j + lane / 4, col = x0 + 8 * j + lane % 4 * 2;
            uint4 q[PER];
            float2 scale = *(const float2 *)&s->scale[col];
            float sum0 = 0, sum1 = 0, s0 = scale.x, s1 = scale.y;
#pragma unroll
            for (int k = 0; k < PER; k++) {
                float2 sum = *(const float2 *)&s->sum[k][col];
                q[k] = s->q[row][turned_unit(row, 4 * k + lane % 4)];
                sum0 += sum.x, sum1 += sum.y;
            }
#pragma unroll
            for (int i = 0; i < TILES_W; i++) {
                int d[4] = {0, 0, 0, 0};
#pragma unroll
                for (int k = 0; k < PER; k++)
                    mma_bytes<WIDTH == 0>(d, even[i][0][k], even[i][1][k], odd[i][0][k], odd[i][1][k], q[k].x, q[k].y);
#pragma unroll
                for (int k = 0; k < 4; k++) d[k] <<= LOW_BITS;
#pragma unroll
                for (int k = 0; k < PER; k++)
                    mma_bytes<WIDTH == 0>(d, even[i][0][k], even[i][1][k], odd[i][0][k], odd[i][1][k], q[k].z, q[k].w);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    float v = fmaf(sc[i][k / 2], __int2float_rn(d[k]), bi[i][k / 2] * (k % 2 ? sum1 : sum0));
                    acc[i][j][k] = fmaf(k % 2 ? s1 : s0, v, acc[i][j][k]);
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILES_W; i++)
#pragma unroll
        for (int j = 0; j < TILES_X; j++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                int row = w0 + 16 * i + 8 * (k / 2), col = x0 + 8 * j + lane % 4 * 2 + k % 2;
                if (row >= m.n_rows || col >= n) continue;
                int64_t at = (int64_t)out_rows[col] * m.n_rows + row;
                float v = acc[i][j][k];
                if (bias) v += bias[row];
                if (t.jobs[job].add) v = t.jobs[job].add[at] + v;
                t.jobs[job].y[at] = v;
            }
}

template <int WIDTH, int PER> static void launch(cudaStream_t s, const tile_params &p, unsigned n_tiles) {
    size_t shared = STAGES * sizeof(stage<PER>) + 2 * BLOCK_X * 4;
    MF_LAUNCH((tile_kernel<WIDTH, PER>), dim3(p.first[p.t.n_jobs], n_tiles), THREADS, shared, s, p);
}

template <int WIDTH> static void launch_width(cudaStream_t s, const tile_params &p, unsigned n_tiles) {
    switch (p.t.jobs[0].w.group) {
    case 32: launch<WIDTH, 1>(s, p, n_tiles); break;
    case 64: launch<WIDTH, 2>(s, p, n_tiles); break;
    default: launch<WIDTH, 4>(s, p, n_tiles);
    }
}

extern "C" void mf__cu_multiply_tiles(cudaStream_t s, const mf__cu_tiles *t) {
    tile_params p = {*t, {0}};
    unsigned n = t->tiles ? (unsigned)t->max_tiles : ceil_div(t->n, BLOCK_X);
    for (int i = 0; i < t->n_jobs; i++) p.first[i + 1] = p.first[i] + (int)ceil_div(t->jobs[i].w.n_rows, BLOCK_W);
    switch (t->jobs[0].w.type == MF_CU_MXFP4 ? 0 : t->jobs[0].w.bits) {
    case 0: launch<0, 1>(s, p, n); break;
    case 2: launch_width<2>(s, p, n); break;
    case 3: launch_width<3>(s, p, n); break;
    case 5: launch_width<5>(s, p, n); break;
    case 6: launch_width<6>(s, p, n); break;
    case 8: launch_width<8>(s, p, n); break;
    default: launch_width<4>(s, p, n);
    }
}
