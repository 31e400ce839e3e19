/* Rows of W times a few rows of activations in shared memory.
 *
 *   y = sum over granules of  x_scale * (scale * (sum of code * q) + bias * (sum of q))
 *
 * LANES neighbouring threads share a row: each takes every LANES-th granule, and their sums are added up in pairs. How
 * many there are depends on the columns alone, so that a product has the same bits whatever is beside it. */
#ifndef MF_BACKEND_CUDA_DOTS_CUH
#define MF_BACKEND_CUDA_DOTS_CUH

#include "backend/cuda/planes.cuh"
#include "backend/cuda/weights.cuh"

/* R rows of codes, of a matrix or of experts. */
template <int R> struct code_rows { const char *codes[R], *scales[R], *biases[R]; };

template <int WIDTH, int R>
static __device__ __forceinline__ void set_row(const mf__cu_matrix &w, int64_t row, int r, code_rows<R> *rows) {
    int64_t scale_bytes = WIDTH == 0 ? 1 : w.scale_type == MF_CU_F32 ? 4 : 2;
    rows->codes[r] = w.data + row * w.row_bytes;
    rows->scales[r] = w.scales + row * w.n_groups * scale_bytes;
    rows->biases[r] = w.biases ? w.biases + row * w.n_groups * scale_bytes : 0;
}

static inline __host__ __device__ int lanes_of_row(int n_cols) {
    int granules = n_cols / MF_CU_GRANULE, lanes = 1;
    while (lanes < granules && lanes < 32) lanes *= 2;
    return lanes;
}

/* acc[r][t] += this thread's share. */
template <int WIDTH, int NT, int R>
static __device__ __forceinline__ void dots_int8(const mf__cu_matrix &m, const code_rows<R> &rows, const shared_rows &x,
                                                 int lane, int lanes, float (*acc)[NT]) {
    const int words = granule<WIDTH>::words;
    int shift = m.group == 32 ? 0 : m.group == 64 ? 1 : 2;
    for (int g = lane; g < x.granules; g += lanes) {
        uint32_t w[R][words];
        float s[R], b[R];
#pragma unroll
        for (int r = 0; r < R; r++) load_granule<WIDTH>(rows.codes[r] + (int64_t)g * words * 4, m.wide, w[r]);
#pragma unroll
        for (int r = 0; r < R; r++) granule_scale<WIDTH>(m, rows.scales[r], rows.biases[r], g >> shift, &s[r], &b[r]);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            int high[R], low[R];
#pragma unroll
            for (int r = 0; r < R; r++) high[r] = low[r] = 0;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint4 q = x.q[t * x.units + turned(4 * g + j)];
#pragma unroll
                for (int r = 0; r < R; r++) {
                    uint32_t even, odd;
                    unit_codes<WIDTH>(w[r], j, &even, &odd);
                    high[r] = dot4(dot4(high[r], even, q.x, WIDTH == 0), odd, q.y, WIDTH == 0);
                    low[r] = dot4(dot4(low[r], even, q.z, WIDTH == 0), odd, q.w, WIDTH == 0);
                }
            }
            float scale = x.scale[t * x.blocks + g / (MF_CU_BLOCK / MF_CU_GRANULE)];
            float sum = x.sum[t * x.granules + g];
#pragma unroll
            for (int r = 0; r < R; r++) {
                float dot = __int2float_rn((high[r] << LOW_BITS) + low[r]);
                acc[r][t] = fmaf(scale, fmaf(s[r], dot, b[r] * sum), acc[r][t]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int t = 0; t < NT; t++) acc[r][t] = lanes_sum(acc[r][t], lanes);
}

/* A quarter of one row with f32 activations (x [n][padded] floats, n <= NT), by a whole warp; any type. Each lane gets
 * the sums. */
template <int NT>
static __device__ __forceinline__ void quarter_f32(const mf__cu_matrix &m, int64_t row, int quarter, const float *x,
                                                   int padded, int n, float *acc) {
    int size = (padded + 1023) / 1024 * 256, c = quarter * size + lane_id() * 8,
        end = min((quarter + 1) * size, padded);
    auto add = [&](const float *w, int at) {
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const float4 *from = (const float4 *)(x + min(t, n - 1) * padded + at);
            float4 a = from[0], b = from[1];
            float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int i = 0; i < 8; i++) acc[t] = fmaf(w[i], v[i], acc[t]);
        }
    };
#pragma unroll
    for (int t = 0; t < NT; t++) acc[t] = 0;
    if (m.type == MF_CU_BF16 && m.wide && m.n_cols % 8 == 0)
        for (; c + 256 < end; c += 512) { /* two loads under way */
            float w[2][8];
#pragma unroll
            for (int k = 0; k < 2; k++) bf16_values(m.data + row * m.row_bytes + 2 * (int64_t)(c + 256 * k), w[k]);
#pragma unroll
            for (int k = 0; k < 2; k++) add(w[k], c + 256 * k);
        }
    for (; c < end; c += 256) {
        float w[8];
        weights_at(m, row, c, w);
        add(w, c);
    }
#pragma unroll
    for (int t = 0; t < NT; t++) acc[t] = warp_sum(acc[t]);
}

/* The quarters of one row, by a whole warp. */
template <int NT>
static __device__ __forceinline__ void dots_f32(const mf__cu_matrix &m, int64_t row, const shared_rows &x, float *acc) {
    for (int k = 0; k < 4; k++) {
        float part[NT];
        quarter_f32<NT>(m, row, k, x.x, x.padded, NT, part);
#pragma unroll
        for (int t = 0; t < NT; t++) acc[t] = k ? acc[t] + part[t] : part[t];
    }
}

#endif
