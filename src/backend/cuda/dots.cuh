/* Rows of W times a few rows of activations in shared memory.
 *
 *   y = sum over granules of  x_scale * (scale * (sum of code * q) + bias * (sum of q))
 *
 * LANES neighbouring threads share a row: each takes every LANES-th granule, and their sums are added up in pairs. How
 * many there are depends on the columns alone, so that a product has the same bits whatever is beside it. */
#ifndef MF_BACKEND_CUDA_DOTS_CUH
#define MF_BACKEND_CUDA_DOTS_CUH

#include "backend/cuda/mma.cuh"
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

/* ---- codes ahead -------------------------------------------------------------------------------------------------
 *
 * A ring in shared memory through which each thread brings the codes, scales and biases that it will need itself: many
 * loads are under way while it computes, and nobody waits for anybody. */
template <int WIDTH, int R> struct ring_slot {
    uint4 codes[R][WIDTH / 4][32];
    uint32_t scales[R][32], biases[R][32];
};

/* Whether a matrix can come through a ring: 4 or 8 bits, two-byte scales that lie at even places. */
static inline bool ring_fits(const mf__cu_matrix *m) {
    return m->type == MF_CU_AFFINE && (m->bits == 4 || m->bits == 8) && m->wide && m->biases &&
           m->scale_type != MF_CU_F32 && m->n_groups % 2 == 0 && (uintptr_t)m->scales % 4 == 0 &&
           (uintptr_t)m->biases % 4 == 0;
}

/* Asks for granule g of a row. */
template <int WIDTH, int R>
static __device__ __forceinline__ void ring_ask(const mf__cu_matrix &m, const char *codes, const char *scales,
                                                const char *biases, int g, int r, ring_slot<WIDTH, R> *slot) {
    int lane = lane_id(), shift = m.group == 32 ? 0 : m.group == 64 ? 1 : 2, pair = (g >> shift) / 2;
#pragma unroll
    for (int i = 0; i < WIDTH / 4; i++)
        copy_async16(&slot->codes[r][i][lane], codes + ((int64_t)g * (WIDTH / 4) + i) * 16, true);
    copy_async4(&slot->scales[r][lane], scales + (int64_t)pair * 4, true);
    copy_async4(&slot->biases[r][lane], biases + (int64_t)pair * 4, true);
}

static __device__ __forceinline__ float half_of(uint32_t pair, int odd, mf__cu_type type) {
    uint32_t h = odd ? pair >> 16 : pair & 0xffffu;
    return type == MF_CU_BF16 ? __uint_as_float(h << 16) : from_f16((uint16_t)h);
}

/* acc[r][t] += granule g of row r, which is in the slot; x: row t, or with EACH row r. */
template <int WIDTH, int NT, int R, bool EACH>
static __device__ __forceinline__ void ring_dots(const mf__cu_matrix &m, const ring_slot<WIDTH, R> *slot,
                                                 const shared_rows &x, int g, float (*acc)[NT]) {
    int lane = lane_id(), shift = m.group == 32 ? 0 : m.group == 64 ? 1 : 2, odd = (g >> shift) & 1;
    uint32_t w[R][WIDTH];
    float s[R], b[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
#pragma unroll
        for (int i = 0; i < WIDTH / 4; i++) {
            uint4 u = slot->codes[r][i][lane];
            w[r][4 * i] = u.x, w[r][4 * i + 1] = u.y, w[r][4 * i + 2] = u.z, w[r][4 * i + 3] = u.w;
        }
        s[r] = half_of(slot->scales[r][lane], odd, m.scale_type);
        b[r] = half_of(slot->biases[r][lane], odd, m.scale_type);
    }
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
                uint32_t even, odd_codes;
                if (EACH) q = x.q[r * x.units + turned(4 * g + j)];
                unit_codes<WIDTH>(w[r], j, &even, &odd_codes);
                high[r] = dot4(dot4(high[r], even, q.x, false), odd_codes, q.y, false);
                low[r] = dot4(dot4(low[r], even, q.z, false), odd_codes, q.w, false);
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            int row = EACH ? r : t;
            float scale = x.scale[row * x.blocks + g / (MF_CU_BLOCK / MF_CU_GRANULE)];
            float sum = x.sum[row * x.granules + g], dot = __int2float_rn((high[r] << LOW_BITS) + low[r]);
            acc[r][t] = fmaf(scale, fmaf(s[r], dot, b[r] * sum), acc[r][t]);
        }
    }
}

/* One row with f32 activations, by a whole warp; any type. */
template <int NT>
static __device__ __forceinline__ void dots_f32(const mf__cu_matrix &m, int64_t row, const shared_rows &x, float *acc) {
    int c = lane_id() * 8;
    if (m.type == MF_CU_BF16 && m.wide && m.n_cols % 1024 == 0) /* four loads under way */
        for (; c < x.padded; c += 1024) {
            float w[4][8];
#pragma unroll
            for (int k = 0; k < 4; k++) bf16_values(m.data + row * m.row_bytes + 2 * (int64_t)(c + 256 * k), w[k]);
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int t = 0; t < NT; t++)
#pragma unroll
                    for (int i = 0; i < 8; i++) acc[t] = fmaf(w[k][i], x.x[t * x.padded + c + 256 * k + i], acc[t]);
        }
    for (; c < x.padded; c += 256) {
        float w[8];
        weights_at(m, row, c, w);
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 8; i++) acc[t] = fmaf(w[i], x.x[t * x.padded + c + i], acc[t]);
    }
#pragma unroll
    for (int t = 0; t < NT; t++) acc[t] = warp_sum(acc[t]);
}

#endif
