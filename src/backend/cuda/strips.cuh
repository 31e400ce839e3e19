/* Strips: 16 rows of W over all columns, which come through shared memory and meet a few rows of rounded activations in
 * the tensor cores.
 *
 * The columns of a strip are shared out to the 16 warps of a block, a span of neighbouring duos (two chunks of 64
 * columns) to each; what they found is added up in pairs. Spans depend on the number of columns alone, and integers
 * within a chunk are exact: a product has the same bits in every kernel that is made of strips, whatever is beside it.
 */
#ifndef MF_BACKEND_CUDA_STRIPS_CUH
#define MF_BACKEND_CUDA_STRIPS_CUH

#include "backend/cuda/mma.cuh"
#include "backend/cuda/planes.cuh"
#include "backend/cuda/weights.cuh"

#define STRIP_ROWS 16
#define STRIP_WARPS 16
#define STRIP_THREADS (STRIP_WARPS * 32)
#define CHUNK 64
#define DUO 128
#define CHUNK_BYTES 128          /* of both planes */
#define STRIP_BESIDE (140 << 10) /* with a block of the next kernel beside it */

/* How strips of a matrix lie in shared memory: codes [16][code_stride bytes], then scales and biases
 * [16][scale_stride words]. Strides are such that eight rows meet all banks. */
struct strip_shape {
    int duos, span;    /* of a row; of a warp */
    int pieces, pairs; /* of a row: 16 bytes of codes, two groups */
    int code_stride, scale_stride;
    int bytes;
    int pair_shift; /* pairs are 2^this; -1: they are not */
};

static inline strip_shape shape_of(const mf__cu_matrix *m) {
    strip_shape s;
    int bytes = m->n_cols * m->bits / 8, want = 8 * m->bits;
    s.duos = m->n_cols / DUO;
    s.span = (s.duos + STRIP_WARPS - 1) / STRIP_WARPS;
    s.pieces = bytes / 16;
    s.pairs = m->n_groups / 2;
    s.code_stride = bytes + (want - bytes % 128 + 128) % 128;
    s.scale_stride = s.pairs | 1;
    s.pair_shift = 0;
    while (1 << s.pair_shift < s.pairs) s.pair_shift++;
    if (1 << s.pair_shift != s.pairs) s.pair_shift = -1;
    s.bytes = (STRIP_ROWS * (s.code_stride + 8 * s.scale_stride) + 15) / 16 * 16;
    return s;
}

/* Whether a matrix comes in strips: 4 or 8 bits in groups of 64, two-byte scales and biases at even places. */
static inline bool strips_fit(const mf__cu_matrix *m) {
    return m->type == MF_CU_AFFINE && (m->bits == 4 || m->bits == 8) && m->group == CHUNK && m->n_cols % DUO == 0 &&
           m->wide && m->biases && m->scale_type != MF_CU_F32 && m->n_groups % 2 == 0 &&
           (uintptr_t)m->scales % 4 == 0 && (uintptr_t)m->biases % 4 == 0;
}

/* Where 16 rows of a matrix begin. n: rows that there are from there on. */
struct strip_source {
    const char *codes, *scales, *biases;
    int n;
};

static __device__ __forceinline__ strip_source source_of(const mf__cu_matrix &m, int64_t row) {
    int64_t at = row * m.n_groups * 2;
    strip_source s = {m.data + row * m.row_bytes, m.scales + at, m.biases + at, (int)(m.n_rows - row)};
    return s;
}

/* One warp asks for row `row` of a source as row `to` of a strip; the last one stands for those that are not there. */
static __device__ __forceinline__ void ask_row(const strip_shape &s, const strip_source &from, int row, int to,
                                               char *strip) {
    int lane = lane_id();
    row = min(row, from.n - 1);
    const char *codes = from.codes + row * (s.pieces * 16) + lane * 16;
    char *own = strip + to * s.code_stride + lane * 16;
#pragma unroll 1
    for (int i = lane; i < s.pieces; i += 32, own += 512, codes += 512) copy_async16(own, codes, true);
    char *pair = strip + STRIP_ROWS * s.code_stride + to * s.scale_stride * 4;
#pragma unroll 1
    for (int i = lane; i < 2 * s.pairs; i += 32) {
        bool second = i >= s.pairs;
        int k = second ? i - s.pairs : i;
        copy_async4(pair + (second ? STRIP_ROWS * s.scale_stride + k : k) * 4,
                    (second ? from.biases : from.scales) + (row * s.pairs + k) * 4, true);
    }
}

/* The codes of `row` of n_sources sources, as row `to` of strips behind each other: lanes that one row leaves idle have
 * the next one's. source(k): of strip k. */
template <typename SOURCE>
static __device__ __forceinline__ void ask_codes(const strip_shape &s, int n_sources, int row, int to, char *strips,
                                                 SOURCE source) {
    int lane = lane_id(), sides = s.pieces <= 16 && 32 % s.pieces == 0 ? 32 / s.pieces : 1;
    int side = sides == 1 ? 0 : lane / s.pieces, piece = lane - side * s.pieces;
#pragma unroll 1
    for (int k = side; k < n_sources; k += sides) {
        const strip_source from = source(k);
        if (!from.codes) continue;
        const char *codes = from.codes + min(row, from.n - 1) * (s.pieces * 16);
        char *own = strips + k * s.bytes + to * s.code_stride;
#pragma unroll 1
        for (int i = piece; i < s.pieces; i += 32) copy_async16(own + i * 16, codes + i * 16, true);
    }
}

/* Scales and biases of n_rows rows of a source, which lie behind each other in memory, as rows from `to` on of a strip.
 * Shared out to so many warps, of which this is number `part`: neighbouring lanes ask for neighbouring words, so that a
 * bus sees few and large requests. */
static __device__ __forceinline__ void ask_scales(const strip_shape &s, const strip_source &from, int n_rows, int to,
                                                  char *strip, int part, int parts) {
    int words = n_rows * s.pairs;
    char *at = strip + STRIP_ROWS * s.code_stride + to * s.scale_stride * 4;
#pragma unroll 1
    for (int i = part * 32 + lane_id(); i < 2 * words; i += parts * 32) {
        bool second = i >= words;
        int word = second ? i - words : i, r = s.pair_shift >= 0 ? word >> s.pair_shift : word / s.pairs;
        int k = word - r * s.pairs, row = min(r, from.n - 1);
        copy_async4(at + ((second ? STRIP_ROWS : 0) * s.scale_stride + r * s.scale_stride + k) * 4,
                    (second ? from.biases : from.scales) + (row * s.pairs + k) * 4, true);
    }
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Rows of activations: q [n][chunks][lane % 4][plane][16 columns' bytes], about [n][chunks]: scale, sum. The rest as in
 * shared_rows. */
struct strip_rows {
    char *q;
    float2 *about;
    float *x, *slots;
    int chunks, padded, at_once;
};

/* One warp: block b of row t, rounded. */
static __device__ __forceinline__ void store_block(const strip_rows &s, int t, int b, const float *v) {
    float scale, sum;
    int unit = b * (MF_CU_BLOCK / 8) + lane_id(), chunk = unit / 8;
    uint4 u = quantize(v, &scale, &sum);
    sum += __shfl_xor_sync(FULL, sum, 4);
    if (chunk >= s.chunks) return;
    char *at = s.q + (t * s.chunks + chunk) * CHUNK_BYTES + unit % 8 / 2 * 32 + unit % 2 * 8;
    *(uint2 *)at = make_uint2(u.x, u.y);
    *(uint2 *)(at + 16) = make_uint2(u.z, u.w);
    if (lane_id() % 8 == 0) s.about[t * s.chunks + chunk] = make_float2(scale, sum);
}

/* Lays n rows out; NULL-based pointers give the size. values: they are made here; floats: all values stay. */
static inline __host__ __device__ size_t lay_strip_rows(char *mem, int n, int n_cols, bool values, bool floats,
                                                        strip_rows *out) {
    size_t at = 0;
    out->chunks = n_cols / CHUNK;
    out->padded = n_cols;
    out->at_once = values ? rows_at_once(n, n_cols, floats) : 0;
    out->q = mem;
    at += (size_t)n * out->chunks * CHUNK_BYTES;
    out->x = (float *)(mem + at);
    at += (size_t)out->at_once * n_cols * 4;
    out->about = (float2 *)(mem + at);
    at += (size_t)n * out->chunks * 8;
    out->slots = (float *)(mem + at);
    at += (size_t)out->at_once * (segments_of(n_cols) + 1) * 4;
    return (at + 15) / 16 * 16;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Columns 16 (lane % 4) ... of a chunk: even and odd ones of the first and of the second eight. */
template <int WIDTH>
static __device__ __forceinline__ void chunk_codes(const char *row, int chunk, uint32_t *even, uint32_t *odd) {
    if (WIDTH == 4) {
        uint2 u = *(const uint2 *)(row + chunk * 32);
        even[0] = u.x & 0x0f0f0f0fu, odd[0] = u.x >> 4 & 0x0f0f0f0fu;
        even[1] = u.y & 0x0f0f0f0fu, odd[1] = u.y >> 4 & 0x0f0f0f0fu;
    } else {
        uint4 u = *(const uint4 *)(row + chunk * 64);
        even[0] = __byte_perm(u.x, u.y, 0x6420), odd[0] = __byte_perm(u.x, u.y, 0x7531);
        even[1] = __byte_perm(u.z, u.w, 0x6420), odd[1] = __byte_perm(u.z, u.w, 0x7531);
    }
}

template <mf__cu_type SCALES> static __device__ __forceinline__ float pair_half(uint32_t pair, int odd) {
    uint32_t up = odd ? pair & 0xffff0000u : pair << 16;
    return SCALES == MF_CU_BF16 ? __uint_as_float(up) : from_f16((uint16_t)(up >> 16));
}

/* What a thread needs of a duo of up to four rows of activations. */
struct duo_rows {
    uint4 q[2];
    float2 about[2]; /* of the row whose sums it has */
};

/* Rows t0 ... of the n there are. */
static __device__ __forceinline__ duo_rows duo_at(const strip_rows &x, int duo, int t0, int n) {
    int r = lane_id() / 4, c = lane_id() % 4, token = t0 + r / 2, mine = min(t0 + c, n - 1);
    duo_rows d;
    const char *from = x.q + (token * x.chunks + 2 * duo) * CHUNK_BYTES + c * 32 + (r & 1) * 16;
    d.q[0] = d.q[1] = make_uint4(0, 0, 0, 0);
    if (token < n) d.q[0] = *(const uint4 *)from, d.q[1] = *(const uint4 *)(from + CHUNK_BYTES);
    d.about[0] = x.about[mine * x.chunks + 2 * duo];
    d.about[1] = x.about[mine * x.chunks + 2 * duo + 1];
    return d;
}

/* acc[j][h] += one duo of a strip: row lane / 4 + 8 h, and row 4 j + lane % 4 of x. */
template <int WIDTH, mf__cu_type SCALES, int NB>
static __device__ __forceinline__ void add_duo(const strip_shape &s, const char *strip, int duo, const duo_rows *x,
                                               float (*acc)[2]) {
    int r = lane_id() / 4, c = lane_id() % 4;
    const char *row0 = strip + r * s.code_stride + c * (2 * WIDTH), *row1 = row0 + 8 * s.code_stride;
    const uint32_t *scales = (const uint32_t *)(strip + STRIP_ROWS * s.code_stride) + r * s.scale_stride;
    int next = 8 * s.scale_stride; /* eight rows on; biases are sixteen */
    uint32_t pairs[4] = {scales[duo], scales[duo + next], scales[duo + 2 * next], scales[duo + 3 * next]};
    float factor[4][2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        factor[i][0] = pair_half<SCALES>(pairs[i], 0), factor[i][1] = pair_half<SCALES>(pairs[i], 1);
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t even[2][2], odd[2][2];
        chunk_codes<WIDTH>(row0, 2 * duo + k, even[0], odd[0]);
        chunk_codes<WIDTH>(row1, 2 * duo + k, even[1], odd[1]);
#pragma unroll
        for (int j = 0; j < NB; j++) {
            int d[4] = {0, 0, 0, 0};
            const uint4 q = x[j].q[k];
            const float2 about = x[j].about[k];
            mma_bytes<false>(d, even[0][0], even[1][0], odd[0][0], odd[1][0], q.x, q.y);
            mma_bytes<false>(d, even[0][1], even[1][1], odd[0][1], odd[1][1], q.z, q.w);
            float v0 = fmaf(factor[0][k], __int2float_rn((d[0] << LOW_BITS) + d[1]), factor[2][k] * about.y);
            float v1 = fmaf(factor[1][k], __int2float_rn((d[2] << LOW_BITS) + d[3]), factor[3][k] * about.y);
            acc[j][0] = fmaf(about.x, v0, acc[j][0]);
            acc[j][1] = fmaf(about.x, v1, acc[j][1]);
        }
    }
}

/* Sums of one span of a strip, by one warp, of the n rows of x. */
template <int WIDTH, mf__cu_type SCALES, int NB>
static __device__ __forceinline__ void span_sums(const strip_shape &s, const char *strip, int span, const strip_rows &x,
                                                 int n, float (*acc)[2]) {
    int begin = span * s.span, end = min(begin + s.span, s.duos);
#pragma unroll
    for (int j = 0; j < NB; j++) acc[j][0] = acc[j][1] = 0;
#pragma unroll 1
    for (int duo = begin; duo < end; duo++) {
        duo_rows rows[NB];
#pragma unroll
        for (int j = 0; j < NB; j++) rows[j] = duo_at(x, duo, 4 * j, n);
        add_duo<WIDTH, SCALES, NB>(s, strip, duo, rows, acc);
    }
}

/* A warp's sums of n rows of x to [16][n]. */
template <int NB> static __device__ __forceinline__ void keep_sums(float *to, int n, float (*acc)[2]) {
    int r = lane_id() / 4, c = lane_id() % 4;
#pragma unroll
    for (int j = 0; j < NB; j++) {
        if (4 * j + c >= n) continue;
        to[r * n + 4 * j + c] = acc[j][0];
        to[(r + 8) * n + 4 * j + c] = acc[j][1];
    }
}

/* Spans added up in pairs; they lie `step` floats apart. */
static __device__ __forceinline__ float spans_total(const float *sums, int n_spans, int step) {
    float v[STRIP_WARPS];
#pragma unroll
    for (int i = 0; i < STRIP_WARPS; i++) v[i] = i < n_spans ? sums[i * step] : 0;
#pragma unroll
    for (int d = STRIP_WARPS / 2; d > 0; d /= 2)
#pragma unroll
        for (int i = 0; i < d; i++) v[i] += v[i + d];
    return v[0];
}

/* Spans that there are of a row. */
static __device__ __forceinline__ int spans_of(const strip_shape &s) {
    return (s.duos + s.span - 1) / s.span;
}

/* ---- a block's strips, one batch after the other ----------------------------------------------------------------- */

/* A ring of two batches of strips in shared memory, and what the warps found of one. */
struct strip_ring {
    char *strips;
    float *sums; /* [batch][16 warps][16 rows][n] */
    int batch, n_strips;
};

/* Strips k0 ... of a batch, into one half of the ring. ask(k, at): asks for strip k, all warps together. */
template <typename ASK>
static __device__ __forceinline__ void ask_batch(const strip_ring &ring, int bytes, int k0, char *half, ASK ask) {
#pragma unroll 1
    for (int i = 0; i < ring.batch && k0 + i < ring.n_strips; i++, half += bytes) ask(k0 + i, half);
    copy_commit();
}

/* The first two batches. */
template <typename ASK> static __device__ __forceinline__ void ask_first(const strip_ring &ring, int bytes, ASK ask) {
    ask_batch(ring, bytes, 0, ring.strips, ask);
    ask_batch(ring, bytes, ring.batch, ring.strips + ring.batch * bytes, ask);
}

/* All strips of this block, of which the first two batches are under way. finish(k0, count): batch k0 ... is in
 * ring.sums, all threads come. */
template <int WIDTH, mf__cu_type SCALES, int NB, typename ASK, typename FINISH>
static __device__ __forceinline__ void multiply_strips(const strip_ring &ring, const strip_shape &shape,
                                                       const strip_rows &x, int n, ASK ask, FINISH finish) {
    int warp = threadIdx.x / 32;
    duo_rows rows[NB]; /* where every warp has one duo they stay */
    bool one = shape.span == 1;
    bool none = warp * shape.span >= shape.duos;
    if (one && !none)
#pragma unroll
        for (int j = 0; j < NB; j++) rows[j] = duo_at(x, warp, 4 * j, n);
    char *half = ring.strips, *other = ring.strips + ring.batch * shape.bytes;
#pragma unroll 1
    for (int k0 = 0; k0 < ring.n_strips; k0 += ring.batch) {
        int count = min(ring.batch, ring.n_strips - k0);
        float *sums = ring.sums + warp * STRIP_ROWS * n;
        const char *strip = half;
        copy_wait<1>();
        __syncthreads();
#pragma unroll 1
        for (int i = 0; i < count && !none; i++, strip += shape.bytes, sums += STRIP_WARPS * STRIP_ROWS * n) {
            float acc[NB][2];
            if (one) {
#pragma unroll
                for (int j = 0; j < NB; j++) acc[j][0] = acc[j][1] = 0;
                add_duo<WIDTH, SCALES, NB>(shape, strip, warp, rows, acc);
            } else {
                span_sums<WIDTH, SCALES, NB>(shape, strip, warp, x, n, acc);
            }
            keep_sums<NB>(sums, n, acc);
        }
        __syncthreads();
        ask_batch(ring, shape.bytes, k0 + 2 * ring.batch, half, ask);
        finish(k0, count);
        char *swap = half;
        half = other, other = swap;
    }
    copy_wait<0>();
}

#endif
