/* Attention of a few rows over KV rows of f16, in tensor cores: the shares of a row, which merge_kernel adds up.
 *
 * A block has a share of the keys and up to eight heads of one row that have a kv head in common. Queries are the sum
 * of two halves each: rows 0 to 7 of a product are the halves, rows 8 to 15 what rounding left of them, and so with the
 * weights, so that products are as good as in f32. A share's size depends on the row's position alone.
 *
 * Keys and queries go from memory to the registers that the products want them in; values, which have to be transposed,
 * scores and weights pass through shared memory. Which columns a product of keys calls 0, 1, 2 ... does not matter, so
 * a thread's are eight consecutive ones. Rows of earlier passes are under way before this pass has appended to them. */
#include <float.h>

#include "backend/cuda/kv.cuh"
#include "backend/cuda/mma.cuh"

#define THREADS 256
#define KEYS 64 /* of a tile */
#define HEADS 8

#define GROUP 32 /* columns of keys that a warp multiplies */

/* Sixteen bytes c of values r lie at c ^ r % 8: eight rows meet all banks. */
template <int DIM> struct narrow_tiles {
    uint4 v[KEYS][DIM / 8];
    float scores[DIM / GROUP][HEADS][KEYS + 8]; /* of each group of columns */
    uint16_t weights[2 * HEADS][KEYS + 8];
    float factor[HEADS];
    const char *rows[2][KEYS]; /* of keys, of this tile and the next */
};

/* What a thread has of a tile's keys: key 8 i + lane / 4 of the warp's, eight columns from 8 (lane % 4) on. Warps with
 * the same columns share the keys: 8 for each of these. */
template <int DIM> struct narrow_keys { uint4 k[DIM / GROUP]; };

/* The share, the kv head with some of its query heads, and the row that a block has. */
struct narrow_number {
    int share, heads, row;
};
static inline __host__ __device__ int narrow_chunks(const mf__cu_attention &a) {
    return (a.n_heads / a.n_kv_heads + HEADS - 1) / HEADS;
}
static inline __host__ __device__ int narrow_shares(const mf__cu_attention &a) {
    return a.n_splits < MF_CU_SPLITS ? a.n_splits : MF_CU_SPLITS;
}

/* Where that is. */
struct narrow_place {
    int begin, first, end; /* of the share, of the keys that it has */
    int kv_head, head0, n_heads;
};

static __device__ __forceinline__ narrow_place place_of(const mf__cu_attention &p, const mf__cu_segment &seg,
                                                        const narrow_number &number) {
    narrow_place at;
    int shared_by = p.n_heads / p.n_kv_heads, chunks = (shared_by + HEADS - 1) / HEADS, chunk = 0;
    int64_t pos = seg.pos + p.row0 + number.row - seg.row0;
    int size = share_of(pos);
    at.begin = number.share * size;
    at.end = min(at.begin + size, (int)pos + 1);
    at.first = max((int)first_of(p, pos), at.begin);
    at.kv_head = number.heads;
    if (chunks > 1) at.kv_head /= chunks, chunk = number.heads - at.kv_head * chunks;
    at.head0 = at.kv_head * shared_by + chunk * HEADS;
    at.n_heads = min(HEADS, shared_by - chunk * HEADS);
    return at;
}

/* Where the rows of keys lie, n from t0 on. */
template <int DIM>
static __device__ __forceinline__ void find_rows(int thread, const mf__cu_segment &seg, const narrow_place &at, int t0,
                                                 int n, const char **rows) {
    int key = t0 + thread;
    if (thread < n && key >= at.first && key < at.end)
        rows[thread] = find_kv(seg, key).k + (int64_t)at.kv_head * DIM * 2;
}

/* Keys from .. to of the tile; the others stay as they are. */
template <int DIM>
static __device__ __forceinline__ void ask_keys(int thread, const char *const *rows, int from, int to,
                                                narrow_keys<DIM> *t) {
    int warp = thread / 32, lane = thread % 32, groups = DIM / GROUP;
    int key0 = warp / groups * 8 * groups + lane / 4, off = warp % groups * 2 * GROUP + lane % 4 * 16;
#pragma unroll
    for (int i = 0; i < DIM / GROUP; i++) {
        int key = key0 + 8 * i;
        load_if(key >= from && key < to, &t->k[i], (const uint4 *)(rows[key] + off));
    }
}
/* Values from .. to of the tile, v_off bytes behind the keys. */
template <int DIM>
static __device__ __forceinline__ void ask_values(int thread, const char *const *rows, int from, int to, int64_t v_off,
                                                  narrow_tiles<DIM> *t) {
    int c = thread % (DIM / 8);
#pragma unroll 4
    for (int row = from + thread / (DIM / 8); row < to; row += THREADS / (DIM / 8))
        copy_async16(&t->v[row][c ^ (row & 7)], rows[row] + v_off + 16 * c, true);
}
template <int DIM>
static __device__ __forceinline__ void clear_values(int thread, int from, int to, narrow_tiles<DIM> *t) {
#pragma unroll 1
    for (int i = from * (DIM / 8) + thread; i < to * (DIM / 8); i += THREADS) (&t->v[0][0])[i] = make_uint4(0, 0, 0, 0);
}
template <int DIM> static __device__ __forceinline__ void clear_keys(narrow_keys<DIM> *t) {
#pragma unroll
    for (int i = 0; i < DIM / GROUP; i++) t->k[i] = make_uint4(0, 0, 0, 0);
}

#ifdef __CUDACC__
static __device__ __forceinline__ uint32_t two_halves(float a, float b) {
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    return both;
}
#else
static inline uint32_t two_halves(float a, float b) {
    return to_f16(a) | (uint32_t)to_f16(b) << 16;
}
#endif
static __device__ __forceinline__ uint32_t two_rests(float a, float b, uint32_t halves) {
    return two_halves(a - from_f16((uint16_t)halves), b - from_f16((uint16_t)(halves >> 16)));
}

/* Eight columns of a query as two products want them: halves, rests, halves and rests of two columns each. */
static __device__ __forceinline__ void split_queries(const float4 *x, float scale, uint32_t (*a)[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float v[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = fminf(fmaxf(v[k] * scale, -65504.0f), 65504.0f);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            a[i][2 * k] = two_halves(v[2 * k], v[2 * k + 1]);
            a[i][2 * k + 1] = two_rests(v[2 * k], v[2 * k + 1], a[i][2 * k]);
        }
    }
}

/* The warp's keys with its columns. */
template <int DIM>
static __device__ __forceinline__ void score(int thread, const narrow_keys<DIM> &keys, const uint32_t (*a)[4],
                                             narrow_tiles<DIM> *t) {
    const int GROUPS = DIM / GROUP, AT_ONCE = GROUPS < 4 ? GROUPS : 4;
    int warp = thread / 32, lane = thread % 32, key0 = warp / GROUPS * 8 * GROUPS + lane % 4 * 2;
    float *to = &t->scores[warp % GROUPS][lane / 4][key0];
#pragma unroll
    for (int i0 = 0; i0 < GROUPS; i0 += AT_ONCE) {
        float s[AT_ONCE][4];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0;
            mma_f16(s[i], a[0], keys.k[i0 + i].x, keys.k[i0 + i].y);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            mma_f16(s[i], a[1], keys.k[i0 + i].z, keys.k[i0 + i].w);
            *(float2 *)(to + 8 * (i0 + i)) = make_float2(s[i][0] + s[i][2], s[i][1] + s[i][3]);
        }
    }
}

/* A head to a warp: weights of a tile, with the maximum so far; returns what this lane's add to the sum. */
template <int DIM>
static __device__ __forceinline__ float weigh(int thread, const narrow_place &at, int t0, narrow_tiles<DIM> *t,
                                              float *top, float *factor) {
    int head = thread / 32, lane = thread % 32, key = 2 * lane;
    float2 s = make_float2(0, 0);
#pragma unroll
    for (int i = 0; i < DIM / GROUP; i++) {
        float2 more = *(const float2 *)&t->scores[i][head][key];
        s = make_float2(s.x + more.x, s.y + more.y);
    }
    bool x = t0 + key >= at.first && t0 + key < at.end, y = t0 + key + 1 >= at.first && t0 + key + 1 < at.end;
    float most = fmaxf(*top, warp_max(fmaxf(x ? s.x : -FLT_MAX, y ? s.y : -FLT_MAX)));
    float a = x ? expf(s.x - most) : 0, b = y ? expf(s.y - most) : 0;
    uint32_t halves = two_halves(a, b);
    *(uint32_t *)&t->weights[head][key] = halves;
    *(uint32_t *)&t->weights[head + HEADS][key] = two_rests(a, b, halves);
    *factor = expf(*top - most);
    *top = most;
    if (lane == 0) t->factor[head] = *factor;
    return a + b;
}

/* Adds the tile's weighted values to o, the warp's columns from d0 on. */
template <int DIM, int DIMS>
static __device__ __forceinline__ void add_values(int thread, const narrow_tiles<DIM> *t, int d0, float (*o)[4]) {
    int lane = thread % 32;
    float factor = t->factor[lane / 4];
#pragma unroll
    for (int i = 0; i < DIMS / 8; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) o[i][k] *= factor;
#pragma unroll 2
    for (int k = 0; k < KEYS / 16; k++) {
        int key = 16 * k + lane % 16;
        uint32_t a[4];
        load_matrices<false>(a, &t->weights[lane % 16][16 * k + lane / 16 * 8]);
#pragma unroll
        for (int i = 0; i < DIMS / 16; i++) {
            uint32_t b[4];
            load_matrices<true>(b, &t->v[key][(d0 / 8 + 2 * i + lane / 16) ^ (key & 7)]);
            mma_f16(o[2 * i], a, b[0], b[1]);
            mma_f16(o[2 * i + 1], a, b[2], b[3]);
        }
    }
}

/* blockIdx: share, kv head and eight of its heads, row. */
template <int DIM>
static __global__ void __launch_bounds__(THREADS, 2) narrow_kernel(const __grid_constant__ mf__cu_attention p) {
    MF_SHARED(memory);
    const narrow_number number = {(int)blockIdx.x, (int)blockIdx.y, (int)blockIdx.z};
    narrow_tiles<DIM> *t = (narrow_tiles<DIM> *)memory;
    const int DIMS = DIM / 8 > 16 ? DIM / 8 : 16; /* columns of values to a warp */
    const mf__cu_segment &seg = segment_of(p.segs, p.row0 + number.row);
    const narrow_place at = place_of(p, seg, number);
    int thread = (int)threadIdx.x, warp = thread / 32, lane = thread % 32, d0 = warp * DIMS;
    if (at.first >= at.end) {
        depend();
        return;
    }
    int t0 = at.begin + (at.first - at.begin) / KEYS * KEYS, from = at.first - t0, there = min(KEYS, at.end - t0);
    int old = max(from, min(there, (int)seg.pos - t0)); /* keys of earlier passes end there */
    int64_t v_off = seg.block_rows * seg.k_bytes;
    narrow_keys<DIM> keys;
    find_rows<DIM>(thread, seg, at, t0, 2 * KEYS, t->rows[0]);
    const float *q = p.q + ((int64_t)number.row * p.n_heads + at.head0 + min(lane / 4, at.n_heads - 1)) * p.q_stride +
                     warp % (DIM / GROUP) * GROUP + lane % 4 * 8;
    float scale = p.scale, top = -FLT_MAX, total = 0, o[DIMS / 8][4] = {};
    float *part = p.parts + (((int64_t)number.row * p.n_heads + at.head0) * p.n_splits + number.share) * (DIM + 2);
    int next = p.n_splits * (DIM + 2), n_heads = at.n_heads; /* next: head */
    uint32_t a[2][4];
    clear_keys<DIM>(&keys);
    clear_values<DIM>(thread, 0, from, t);
    clear_values<DIM>(thread, there, KEYS, t);
    __syncthreads();
    ask_keys<DIM>(thread, t->rows[0], from, old, &keys);
    ask_values<DIM>(thread, t->rows[0], from, old, v_off, t);
    depend();
    float4 x[2] = {fresh((const float4 *)q), fresh((const float4 *)(q + 4))};
    if (old < there) {
        ask_keys<DIM>(thread, t->rows[0], old, there, &keys);
        ask_values<DIM>(thread, t->rows[0], old, there, v_off, t);
    }
    split_queries(x, scale, a);
#pragma unroll 1
    for (int tile = 0;; tile ^= 1) {
        const char *const *rows = t->rows[tile ^ 1]; /* of the next tile */
        int more = min(KEYS, at.end - t0 - KEYS);
        float factor;
        score<DIM>(thread, keys, a, t);
        __syncthreads();
        float sum = weigh<DIM>(thread, at, t0, t, &top, &factor);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        if (d0 < DIM) add_values<DIM, DIMS>(thread, t, d0, o);
        total = fmaf(total, factor, warp_sum(sum));
        if (more <= 0) break;
        clear_keys<DIM>(&keys);
        ask_keys<DIM>(thread, rows, 0, more, &keys);
        __syncthreads();
        ask_values<DIM>(thread, rows, 0, more, v_off, t);
        clear_values<DIM>(thread, more, KEYS, t);
        if (more == KEYS) find_rows<DIM>(thread, seg, at, t0 + 2 * KEYS, KEYS, t->rows[tile]);
        t0 += KEYS;
    }
    if (lane == 0 && warp < n_heads) *(float2 *)(part + (int64_t)warp * next + DIM) = make_float2(top, total);
    if (d0 < DIM && lane / 4 < n_heads)
#pragma unroll
        for (int i = 0; i < DIMS / 8; i++)
            *(float2 *)(part + (int64_t)(lane / 4) * next + d0 + 8 * i + lane % 4 * 2) =
                make_float2(o[i][0] + o[i][2], o[i][1] + o[i][3]);
}

template <int DIM> static void launch(cudaStream_t s, const mf__cu_attention &a) {
    MF_LAUNCH_EARLY((narrow_kernel<DIM>), dim3(narrow_shares(a), a.n_kv_heads * narrow_chunks(a), a.n_rows), THREADS,
                    sizeof(narrow_tiles<DIM>), s, a);
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
