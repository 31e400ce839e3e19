/* Attention of a few rows over KV rows of f16, in tensor cores: the shares of a row, which merge_kernel adds up.
 *
 * A block has a share of the keys and up to eight heads of one row that have a kv head in common. Queries are the sum
 * of two halves each: rows 0 to 7 of a tile are the halves, rows 8 to 15 what rounding left of them, and so with the
 * weights, so that products are as good as in f32. A share's size depends on the row's position alone. Keys of earlier
 * passes are under way before the kernel ahead of this one, which appends to them, is done. */
#include <float.h>

#include "backend/cuda/kv.cuh"
#include "backend/cuda/mma.cuh"

#define THREADS 256
#define KEYS 64 /* of a tile */
#define HEADS 8

/* Sixteen bytes c of row r lie at c ^ r % 8: eight rows meet all banks. */
template <int DIM> struct narrow_tiles {
    uint4 k[KEYS][DIM / 8], v[KEYS][DIM / 8], q[2 * HEADS][DIM / 8];
    uint16_t weights[2 * HEADS][KEYS + 8];
    float scores[2][HEADS][KEYS]; /* of either half of the columns */
    float factor[HEADS];
    const char *k_at[KEYS], *v_at[KEYS];
};

/* Where this block is. */
struct narrow_place {
    int64_t pos, begin, first, end; /* of the row, of the share, of the keys that it has */
    int kv_head, head0, n_heads;
};

static __device__ __forceinline__ narrow_place place_of(const mf__cu_attention &p, const mf__cu_segment &seg) {
    narrow_place at;
    int shared_by = p.n_heads / p.n_kv_heads, chunks = (shared_by + HEADS - 1) / HEADS;
    at.pos = seg.pos + p.row0 + (int)blockIdx.z - seg.row0;
    int size = share_of(at.pos);
    at.begin = (int64_t)blockIdx.x * size;
    at.end = at.begin + size < at.pos + 1 ? at.begin + size : at.pos + 1;
    at.first = first_of(p, at.pos);
    if (at.first < at.begin) at.first = at.begin;
    at.kv_head = blockIdx.y / chunks;
    at.head0 = at.kv_head * shared_by + blockIdx.y % chunks * HEADS;
    at.n_heads = min(HEADS, at.kv_head * shared_by + shared_by - at.head0);
    return at;
}

/* Where the rows of the tile from key t0 on lie. */
template <int DIM>
static __device__ __forceinline__ void find_rows(const mf__cu_segment &seg, const narrow_place &at, int64_t t0,
                                                 narrow_tiles<DIM> *t) {
    if (threadIdx.x >= KEYS) return;
    int64_t key = t0 + threadIdx.x, off = (int64_t)at.kv_head * DIM * 2;
    bool there = key >= at.first && key < at.end;
    t->k_at[threadIdx.x] = there ? k_row(seg, key) + off : 0;
    t->v_at[threadIdx.x] = there ? v_row(seg, key) + off : 0;
}

/* Asks for rows from .. to of the tile; zeros where there is none. */
template <int DIM>
static __device__ __forceinline__ void ask(const char *const *at, int from, int to, const char *any,
                                           uint4 (*tile)[DIM / 8]) {
#pragma unroll 2
    for (int i = from * (DIM / 8) + threadIdx.x; i < to * (DIM / 8); i += THREADS) {
        int row = i / (DIM / 8), c = i % (DIM / 8);
        copy_async16(&tile[row][c ^ (row & 7)], at[row] ? at[row] + 16 * c : any, at[row] != 0);
    }
}

static __device__ __forceinline__ uint32_t two_halves(float a, float b) {
    return to_f16(a) | (uint32_t)to_f16(b) << 16;
}
static __device__ __forceinline__ uint32_t two_rests(float a, float b, uint32_t halves) {
    return two_halves(a - from_f16((uint16_t)halves), b - from_f16((uint16_t)(halves >> 16)));
}

template <int DIM>
static __device__ __forceinline__ void load_queries(const mf__cu_attention &p, const narrow_place &at,
                                                    narrow_tiles<DIM> *t) {
    const float *q = p.q + ((int64_t)blockIdx.z * p.n_heads + at.head0) * p.q_stride;
#pragma unroll 1
    for (int i = threadIdx.x; i < HEADS * (DIM / 8); i += THREADS) {
        int row = i / (DIM / 8), c = i % (DIM / 8);
        uint32_t high[4], low[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *x = q + (int64_t)min(row, at.n_heads - 1) * p.q_stride + 8 * c + 2 * k;
            float a = fminf(fmaxf(x[0] * p.scale, -65504.0f), 65504.0f);
            float b = fminf(fmaxf(x[1] * p.scale, -65504.0f), 65504.0f);
            high[k] = two_halves(a, b);
            low[k] = two_rests(a, b, high[k]);
        }
        t->q[row][c ^ row] = make_uint4(high[0], high[1], high[2], high[3]);
        t->q[row + HEADS][c ^ row] = make_uint4(low[0], low[1], low[2], low[3]);
    }
}

/* Sixteen keys to a warp, half of the columns. */
template <int DIM> static __device__ __forceinline__ void score(narrow_tiles<DIM> *t) {
    int warp = threadIdx.x / 32, lane = lane_id(), key0 = warp % 4 * 16, half = warp / 4, row = lane % 16;
    int key = key0 + lane / 16 * 8 + lane % 8;
    float s[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
#pragma unroll 2
    for (int c = half * (DIM / 16); c < (half + 1) * (DIM / 16); c += 2) {
        uint32_t a[4], b[4];
        load_matrices<false>(a, &t->q[row][(c + lane / 16) ^ (row & 7)]);
        load_matrices<false>(b, &t->k[key][(c + lane / 8 % 2) ^ (key & 7)]);
        mma_f16(s[0], a, b[0], b[1]);
        mma_f16(s[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *to = &t->scores[half][lane / 4][key0 + 8 * i + lane % 4 * 2];
        to[0] = s[i][0] + s[i][2];
        to[1] = s[i][1] + s[i][3];
    }
}

/* A head to a warp: weights of a tile, with the maximum and the sum so far. */
template <int DIM>
static __device__ __forceinline__ void weigh(const narrow_place &at, int64_t t0, narrow_tiles<DIM> *t, float *top,
                                             float *total) {
    int head = threadIdx.x / 32, lane = lane_id();
    float s[2], most = -FLT_MAX;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int key = lane + 32 * i;
        bool there = t0 + key >= at.first && t0 + key < at.end;
        s[i] = there ? t->scores[0][head][key] + t->scores[1][head][key] : -FLT_MAX;
        most = fmaxf(most, s[i]);
    }
    most = fmaxf(*top, warp_max(most));
    float factor = expf(*top - most), sum = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float e = s[i] == -FLT_MAX ? 0 : expf(s[i] - most);
        uint16_t half = to_f16(e);
        t->weights[head][lane + 32 * i] = half;
        t->weights[head + HEADS][lane + 32 * i] = to_f16(e - from_f16(half));
        sum += e;
    }
    *total = fmaf(*total, factor, warp_sum(sum));
    *top = most;
    if (lane == 0) t->factor[head] = factor;
}

/* blockIdx: share, kv head and eight of its heads, row. */
template <int DIM>
static __global__ void __launch_bounds__(THREADS) narrow_kernel(const __grid_constant__ mf__cu_attention p) {
    MF_SHARED(memory);
    narrow_tiles<DIM> *t = (narrow_tiles<DIM> *)memory;
    const int DIMS = DIM / 8 > 16 ? DIM / 8 : 16; /* columns of values to a warp */
    const mf__cu_segment &seg = p.segs.at[p.segs.of_row[p.row0 + blockIdx.z]];
    const narrow_place at = place_of(p, seg);
    int warp = threadIdx.x / 32, lane = lane_id(), d0 = warp * DIMS;
    if (at.first >= at.end) return;
    int64_t t0 = at.begin + (at.first - at.begin) / KEYS * KEYS;
    int old = (int)(seg.pos - t0 < 0 ? 0 : seg.pos - t0 < KEYS ? seg.pos - t0 : KEYS); /* keys of earlier passes */
    const char *any = (const char *)p.q;
    find_rows<DIM>(seg, at, t0, t);
    __syncthreads();
    ask<DIM>(t->k_at, 0, old, any, t->k);
    ask<DIM>(t->v_at, 0, old, any, t->v);
    depend();
    ask<DIM>(t->k_at, old, KEYS, any, t->k);
    copy_commit();
    ask<DIM>(t->v_at, old, KEYS, any, t->v);
    copy_commit();
    load_queries<DIM>(p, at, t);
    float top = -FLT_MAX, total = 0, o[DIMS / 8][4];
#pragma unroll
    for (int i = 0; i < DIMS / 8; i++) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
#pragma unroll 1
    for (; t0 < at.end; t0 += KEYS) {
        copy_wait<1>();
        __syncthreads();
        score<DIM>(t);
        find_rows<DIM>(seg, at, t0 + KEYS, t); /* values of this tile are under way */
        __syncthreads();
        if (t0 + KEYS < at.end) ask<DIM>(t->k_at, 0, KEYS, any, t->k);
        copy_commit();
        weigh<DIM>(at, t0, t, &top, &total);
        copy_wait<1>();
        __syncthreads();
        if (d0 < DIM) {
            float factor = t->factor[lane / 4];
#pragma unroll
            for (int i = 0; i < DIMS / 8; i++)
#pragma unroll
                for (int k = 0; k < 4; k++) o[i][k] *= factor;
#pragma unroll 1
            for (int key0 = 0; key0 < KEYS; key0 += 16) {
                uint32_t a[4], b[4];
                int key = key0 + lane / 8 % 2 * 8 + lane % 8;
                load_matrices<false>(a, &t->weights[lane % 16][key0 + lane / 16 * 8]);
#pragma unroll
                for (int i = 0; i < DIMS / 16; i++) {
                    load_matrices<true>(b, &t->v[key][((d0 / 8 + 2 * i) + lane / 16) ^ (key & 7)]);
                    mma_f16(o[2 * i], a, b[0], b[1]);
                    mma_f16(o[2 * i + 1], a, b[2], b[3]);
                }
            }
        }
        __syncthreads();
        if (t0 + KEYS < at.end) ask<DIM>(t->v_at, 0, KEYS, any, t->v);
        copy_commit();
    }
    copy_wait<0>();
    float *part = p.parts + (((int64_t)blockIdx.z * p.n_heads + at.head0) * p.n_splits + blockIdx.x) * (DIM + 2);
    int64_t next = (int64_t)p.n_splits * (DIM + 2); /* head */
    if (lane == 0 && warp < at.n_heads) part[warp * next + DIM] = top, part[warp * next + DIM + 1] = total;
    if (d0 < DIM && lane / 4 < at.n_heads)
#pragma unroll
        for (int i = 0; i < DIMS / 8; i++) {
            float *to = part + lane / 4 * next + d0 + 8 * i + lane % 4 * 2;
            to[0] = o[i][0] + o[i][2];
            to[1] = o[i][1] + o[i][3];
        }
}

template <int DIM> static void launch(cudaStream_t s, const mf__cu_attention &a) {
    unsigned chunks = ceil_div(a.n_heads / a.n_kv_heads, HEADS);
    unsigned n = a.n_splits < MF_CU_SPLITS ? a.n_splits : MF_CU_SPLITS;
    MF_LAUNCH_EARLY((narrow_kernel<DIM>), dim3(n, a.n_kv_heads * chunks, a.n_rows), THREADS, sizeof(narrow_tiles<DIM>),
                    s, a);
}

extern "C" bool mf__cu_narrow_fits(const mf__cu_attention *a) {
    return !a->n_rope && a->k_dim == a->v_dim && (a->k_dim == 64 || a->k_dim == 128 || a->k_dim == 256);
}

extern "C" void mf__cu_narrow(cudaStream_t s, const mf__cu_attention *a) {
    if (a->k_dim == 64)
        launch<64>(s, *a);
    else if (a->k_dim == 128)
        launch<128>(s, *a);
    else
        launch<256>(s, *a);
}
