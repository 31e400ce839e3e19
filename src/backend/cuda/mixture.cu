/* The routed experts of a few rows in strips (strips.cuh): gate and up of all chosen experts in one launch, down of all
 * of them in another. Fused with what is around them (route, the shared expert's down, combine), or alone: both have
 * the same bits. Which experts those are nobody on the host needs to know. */
#include "backend/cuda/route.cuh"
#include "backend/cuda/strips.cuh"

#define HALF (STRIP_ROWS / 2) /* rows of gate in a strip; as many of up follow */
#define SMS 132

struct moe_params {
    mf__cu_moe m;
    bool fused;  /* experts are chosen here, and combined; else ids are read, and pairs written */
    bool chosen; /* down_kernel reads what up_kernel chose, instead of choosing while that still runs */
    strip_shape up, down, own;
    int batch, depth; /* of strips of gate and up */
};

/* One warp: the experts of a row, and their shares where they are chosen here. table: in shared memory. chosen: before,
 * and kept. */
static __device__ __forceinline__ void choose(const moe_params &p, int64_t row, const char *const *table, float *memory,
                                              const char **blobs, float *shares, bool chosen, bool first) {
    const mf__cu_experts &e = p.m.e;
    int id = 0, lane = lane_id();
    float share = 0;
    if (p.fused && !chosen) {
        share = route_row(p.m.route, row, memory, &id);
    } else if (lane < e.top_k) {
        id = fresh((p.fused ? p.m.route.ids : e.ids) + row * e.top_k + lane);
        if (p.fused) share = fresh(p.m.route.shares + row * e.top_k + lane);
    }
    if (lane >= e.top_k) return;
    blobs[lane] = table[id];
    if (shares) shares[lane] = share;
    if (p.fused && first) {
        p.m.route.ids[row * e.top_k + lane] = id;
        p.m.route.shares[row * e.top_k + lane] = share;
    }
}

/* What choose() needs in shared memory. */
static inline __host__ __device__ size_t lay_choice(const moe_params &p, char *mem, const char ***table,
                                                    float **memory) {
    *table = (const char **)mem;
    *memory = (float *)(mem + (size_t)p.m.e.bank.n_experts * 8);
    return ((size_t)p.m.e.bank.n_experts * 12 + (p.fused ? (size_t)p.m.route.n_groups * 4 : 0) + 15) / 16 * 16;
}

static __device__ __forceinline__ void copy_table(const moe_params &p, const char **table) {
    for (int i = threadIdx.x; i < p.m.e.bank.n_experts; i += STRIP_THREADS) table[i] = p.m.e.bank.table[i];
}

/* n rows of n_cols floats (a multiple of 64) in memory, rounded, by the n_warps warps from `warp` on. */
static __device__ __forceinline__ void store_raw(const strip_rows &s, int t0, const float *x, int n, int n_cols,
                                                 int warp, int n_warps) {
    int blocks = (n_cols + MF_CU_BLOCK - 1) / MF_CU_BLOCK;
#pragma unroll 1
    for (int i = warp; i < n * blocks; i += n_warps) {
        int t = i / blocks, b = i - t * blocks, c = b * MF_CU_BLOCK + lane_id() * 8;
        const float4 *from = (const float4 *)(x + (int64_t)t * n_cols + c);
        float4 f = c < n_cols ? fresh(from) : make_float4(0, 0, 0, 0);
        float4 g = c < n_cols ? fresh(from + 1) : make_float4(0, 0, 0, 0);
        float v[8] = {f.x, f.y, f.z, f.w, g.x, g.y, g.z, g.w};
        store_block(s, t0 + t, b, v);
    }
}

/* ---- gate and up ------------------------------------------------------------------------------------------------- */

/* blockIdx: strips of all slots, row. */
template <int WIDTH, mf__cu_type SCALES>
static __global__ void __launch_bounds__(STRIP_THREADS, 2) up_kernel(const __grid_constant__ moe_params p) {
    __shared__ const char *blobs[MF_CU_MAX_TOPK];
    MF_SHARED(memory);
    const mf__cu_experts &e = p.m.e;
    const char **table;
    float *choice;
    strip_rows x;
    int64_t row = blockIdx.y;
    int warp = threadIdx.x / 32, block = blockIdx.x, stride = gridDim.x;
    int of_slot = (e.inner + HALF - 1) / HALF, total = e.top_k * of_slot;
    char *at = memory + p.depth * p.up.bytes;
    strip_ring ring = {memory, (float *)at, p.batch, (total - 1 - block) / stride + 1};
    at += p.batch * STRIP_WARPS * STRIP_ROWS * 4;
    at += lay_strip_rows(at, 1, e.hidden, false, false, &x);
    lay_choice(p, at, &table, &choice);
    copy_table(p, table);
    __syncthreads();
    /* first for nothing, with what was there before: instructions come from memory while the last kernel still runs */
#pragma unroll 1
    for (int turn = first_turn(p.fused && e.n_rows == 1); turn < 2; turn++) {
        if (turn) depend();
        if (warp == 0)
            choose(p, row, table, choice, blobs, 0, false, turn && block == 0);
        else /* meanwhile the others round the row */
            store_raw(x, 0, e.x + row * e.hidden, 1, e.hidden, warp - 1, STRIP_WARPS - 1);
        __syncthreads();
    }
    auto ask = [&](int k, char *to) {
        int number = block + k * stride, slot = number / of_slot;
        if (!blobs[slot]) return;
        int64_t w = (number - slot * of_slot) * HALF;
        bool up = warp >= HALF;
        strip_source from = source_of(part_of(up ? e.bank.up : e.bank.gate, blobs[slot]), w);
        ask_codes(p.up, 1, warp % HALF, warp, to, [&](int) { return from; });
        ask_scales(p.up, from, HALF, up ? HALF : 0, to, warp % HALF, HALF);
    };
    ask_first(ring, p.up.bytes, ask);
    multiply_strips<WIDTH, SCALES, 1>(ring, p.up, x, 1, ask, [&](int k0, int count) {
        int n_spans = spans_of(p.up);
        for (int i = threadIdx.x; i < count * HALF; i += STRIP_THREADS) {
            int strip = i / HALF, r = i % HALF, number = block + (k0 + strip) * stride, slot = number / of_slot;
            int w = (number - slot * of_slot) * HALF + r;
            const char *blob = blobs[slot];
            if (!blob || w >= e.inner) continue;
            const float *sums = ring.sums + strip * STRIP_WARPS * STRIP_ROWS + r;
            float gate = spans_total(sums, n_spans, STRIP_ROWS), up = spans_total(sums + HALF, n_spans, STRIP_ROWS);
            if (e.bank.b_gate >= 0) gate += ((const float *)(blob + e.bank.b_gate))[w];
            if (e.bank.b_up >= 0) up += ((const float *)(blob + e.bank.b_up))[w];
            p.m.act[(row * e.top_k + slot) * e.inner + w] = glu_one(e.glu, gate, up);
        }
    });
}

/* ---- down -------------------------------------------------------------------------------------------------------- */

/* Where a block has what. */
struct down_memory {
    char *strips, *own_strip;
    float *sums, *found; /* [units][16], [slots + 1][16]; before them in the same memory: own.x */
    strip_rows x, own;
    const char **table;
    float *choice;
};

static inline __host__ __device__ size_t lay_down(const moe_params &p, char *mem, down_memory *to) {
    const mf__cu_experts &e = p.m.e;
    bool shared = p.fused && p.m.shared.n_cols;
    size_t at = (size_t)e.top_k * p.down.bytes;
    to->strips = mem;
    to->own_strip = mem + at;
    at += shared ? p.own.bytes : 0;
    size_t sums = (size_t)(e.top_k + 1) * STRIP_WARPS * STRIP_ROWS * 4, values = (size_t)p.m.shared.n_cols * 4;
    to->sums = (float *)(mem + at);
    at += shared && values > sums ? values : sums;
    to->found = (float *)(mem + at);
    at += (size_t)(e.top_k + 1) * STRIP_ROWS * 4;
    at += lay_strip_rows(mem + at, e.top_k, e.inner, false, false, &to->x);
    if (shared) at += lay_strip_rows(mem + at, 1, p.m.shared.n_cols, false, false, &to->own);
    to->own.x = to->sums;
    return at + lay_choice(p, mem + at, &to->table, &to->choice);
}

/* Spans of all slots' strips, and of the shared expert's: unit by unit to the warps. */
template <int WIDTH, int OWN, mf__cu_type SCALES>
static __device__ __forceinline__ void multiply_units(const moe_params &p, const down_memory &mem, bool shared) {
    int n_spans = spans_of(p.down), of_slots = p.m.e.top_k * n_spans;
    int units = of_slots + (shared ? spans_of(p.own) : 0);
    for (int u = threadIdx.x / 32; u < units; u += STRIP_WARPS) {
        float acc[1][2];
        if (u < of_slots) {
            int slot = u / n_spans;
            strip_rows x = mem.x;
            x.q += slot * x.chunks * CHUNK_BYTES, x.about += slot * x.chunks;
            span_sums<WIDTH, SCALES, 1>(p.down, mem.strips + slot * p.down.bytes, u - slot * n_spans, x, 1, acc);
        } else {
            span_sums<OWN, SCALES, 1>(p.own, mem.own_strip, u - of_slots, mem.own, 1, acc);
        }
        keep_sums<1>(mem.sums + u * STRIP_ROWS, 1, acc);
    }
}

/* blockIdx: first strip of down's rows (then every gridDim.x-th), row. The router's logits (or the ids) are older than
 * the kernel before this one: experts are chosen again, and their rows asked for, while gate and up are still on their
 * way. Where most blocks begin after that anyway, they read what was chosen. */
template <int WIDTH, int OWN, mf__cu_type SCALES>
static __global__ void __launch_bounds__(STRIP_THREADS, 2) down_kernel(const __grid_constant__ moe_params p) {
    __shared__ const char *blobs[MF_CU_MAX_TOPK];
    __shared__ float shares[MF_CU_MAX_TOPK];
    MF_SHARED(memory);
    const mf__cu_experts &e = p.m.e;
    down_memory mem;
    int64_t row = blockIdx.y;
    int warp = threadIdx.x / 32, w0 = blockIdx.x * STRIP_ROWS;
    bool shared = p.fused && p.m.shared.n_cols;
    lay_down(p, memory, &mem);
    auto ask_own = [&] {
        if (shared) ask_row(p.own, source_of(p.m.shared, w0), warp, warp, mem.own_strip);
    };
    auto source = [&](int k) {
        strip_source none = {0, 0, 0, 0};
        return blobs[k] ? source_of(part_of(e.bank.down, blobs[k]), w0) : none;
    };
    auto ask_experts = [&] {
        ask_codes(p.down, e.top_k, warp, warp, mem.strips, source);
#pragma unroll 1
        for (int k = warp % (STRIP_WARPS / 2); k < e.top_k; k += STRIP_WARPS / 2) /* two warps for each */
            if (blobs[k])
                ask_scales(p.down, source(k), STRIP_ROWS, 0, mem.strips + k * p.down.bytes, warp / (STRIP_WARPS / 2),
                           2);
        copy_commit();
    };
    ask_own();
    copy_table(p, mem.table);
    if (p.chosen) depend();
    __syncthreads();
    if (warp == 0) choose(p, row, mem.table, mem.choice, blobs, shares, p.chosen, false);
    __syncthreads();
    ask_experts();
#pragma unroll 1
    for (int turn = first_turn(p.fused && e.n_rows == 1 && !p.chosen); turn < 2; turn++) { /* as in up_kernel */
        if (turn) depend();
        if (shared) {
            const float *gate = p.m.shared_gate + row * p.m.shared.n_cols,
                        *up = p.m.shared_up + row * p.m.shared.n_cols;
#pragma unroll 1
            for (int c = threadIdx.x; c < p.m.shared.n_cols; c += STRIP_THREADS)
                mem.own.x[c] = glu_one(e.glu, fresh(gate + c), fresh(up + c));
            __syncthreads();
            store_rows(mem.own, 0, 1, mem.own.x, mem.own.padded, p.m.shared.n_cols);
        }
        store_raw(mem.x, 0, p.m.act + row * e.top_k * e.inner, e.top_k, e.inner, warp, STRIP_WARPS);
        __syncthreads();
    }
    int n_spans = spans_of(p.down);
#pragma unroll 1
    for (bool more = true; more;) {
        bool ends = p.fused && (int)threadIdx.x < STRIP_ROWS && w0 + (int)threadIdx.x < e.hidden;
        int64_t end_at = row * e.hidden + w0 + threadIdx.x;
        float h = 0, score = 0; /* on their way while strips are multiplied */
        if (ends) {
            h = fresh(p.m.h + end_at);
            if (shared && p.m.score) score = fresh(p.m.score + row);
        }
        copy_wait<0>();
        __syncthreads();
        multiply_units<WIDTH, OWN, SCALES>(p, mem, shared);
        __syncthreads();
        int now = w0;
        w0 += gridDim.x * STRIP_ROWS;
        more = w0 < e.hidden;
        if (more) ask_own(), ask_experts();
        for (int i = threadIdx.x; i < (e.top_k + (shared ? 1 : 0)) * STRIP_ROWS; i += STRIP_THREADS) {
            int k = i / STRIP_ROWS, r = i % STRIP_ROWS, at = now + r;
            const float *sums = mem.sums + k * n_spans * STRIP_ROWS + r;
            float y = spans_total(sums, k < e.top_k ? n_spans : spans_of(p.own), STRIP_ROWS);
            if (at >= e.hidden) continue;
            if (k < e.top_k && e.bank.b_down >= 0 && blobs[k]) y += ((const float *)(blobs[k] + e.bank.b_down))[at];
            if (p.fused)
                mem.found[i] = y;
            else if (blobs[k])
                e.pairs[(row * e.top_k + k) * e.hidden + at] = y;
        }
        if (!p.fused) continue;
        __syncthreads();
        if (!ends) continue;
        float sum = 0;
        for (int k = 0; k < e.top_k; k++) sum = fmaf(shares[k], mem.found[k * STRIP_ROWS + threadIdx.x], sum);
        if (shared) sum = fmaf(p.m.score ? sigmoid(score) : 1, mem.found[e.top_k * STRIP_ROWS + threadIdx.x], sum);
        p.m.y[end_at] = h + sum;
    }
}

/* ---- launching --------------------------------------------------------------------------------------------------- */

/* Offsets of an expert whose address is a multiple of 16 at least. */
static bool part_fits(const mf__cu_matrix *m) {
    mf__cu_matrix at = *m;
    if (!at.biases) at.biases = (const char *)4; /* an offset of 0 cannot be: codes come first */
    return strips_fit(&at);
}

static bool same_kind(const mf__cu_matrix *a, const mf__cu_matrix *b) {
    return a->bits == b->bits && a->group == b->group && a->scale_type == b->scale_type;
}

static size_t up_bytes(moe_params *p) {
    strip_rows x;
    const char **table;
    float *choice;
    int total = p->m.e.top_k * (int)ceil_div(p->m.e.inner, HALF);
    int most = (int)ceil_div(total, SMS);
    p->batch = most > 2 ? 2 : 1;
    if (2 * p->batch * p->up.bytes > STRIP_BESIDE - (24 << 10)) p->batch = 1;
    if (p->m.e.n_rows == 1 && most <= 4 && most * p->up.bytes <= STRIP_BESIDE - (24 << 10)) p->batch = most;
    p->depth = p->m.e.n_rows == 1 && p->batch == most ? most : 2 * p->batch;
    return (size_t)p->depth * p->up.bytes + (size_t)p->batch * STRIP_WARPS * STRIP_ROWS * 4 +
           lay_strip_rows(0, 1, p->m.e.hidden, false, false, &x) + lay_choice(*p, 0, &table, &choice);
}

/* Whether experts can be multiplied so; fills in how. */
static bool plan(moe_params *p) {
    const mf__cu_matrix *g = &p->m.e.bank.gate, *u = &p->m.e.bank.up, *d = &p->m.e.bank.down, *s = &p->m.shared;
    down_memory mem;
    if (p->m.e.exact || p->m.e.n_rows > 65535) return false;
    if (!part_fits(g) || !part_fits(u) || !part_fits(d) || !same_kind(g, u) || d->bits != g->bits ||
        d->scale_type != g->scale_type)
        return false;
    p->up = shape_of(g);
    p->down = shape_of(d);
    if (p->fused && s->n_cols) {
        if (!strips_fit(s) || s->scale_type != d->scale_type) return false;
        p->own = shape_of(s);
    }
    return up_bytes(p) <= most_shared() && lay_down(*p, 0, &mem) <= most_shared();
}

template <int WIDTH, mf__cu_type SCALES> static void launch(cudaStream_t s, moe_params &p) {
    down_memory mem;
    int n = p.m.e.n_rows, total = p.m.e.top_k * (int)ceil_div(p.m.e.inner, HALF);
    unsigned blocks = n == 1 ? SMS : ceil_div(2 * SMS, n);
    size_t up = up_bytes(&p), down = lay_down(p, 0, &mem);
    dim3 grid(ceil_div(p.m.e.hidden, STRIP_ROWS), n);
    /* a block of several strips rounds its row once for all of them */
    if (grid.x > ceil_div(4 * SMS, n)) grid.x = ceil_div(4 * SMS, n);
    if (blocks > (unsigned)total) blocks = total;
    p.chosen = p.fused && (n > 2 || grid.x > 2 * SMS);
    MF_LAUNCH_EARLY((up_kernel<WIDTH, SCALES>), dim3(blocks, n), STRIP_THREADS, up, s, p);
    if (p.fused && p.m.shared.n_cols && p.m.shared.bits == 8)
        MF_LAUNCH_EARLY((down_kernel<WIDTH, 8, SCALES>), grid, STRIP_THREADS, down, s, p);
    else
        MF_LAUNCH_EARLY((down_kernel<WIDTH, 4, SCALES>), grid, STRIP_THREADS, down, s, p);
}

static void launch_any(cudaStream_t s, moe_params &p) {
    if (p.m.e.bank.gate.scale_type == MF_CU_BF16)
        p.m.e.bank.gate.bits == 8 ? launch<8, MF_CU_BF16>(s, p) : launch<4, MF_CU_BF16>(s, p);
    else
        p.m.e.bank.gate.bits == 8 ? launch<8, MF_CU_F16>(s, p) : launch<4, MF_CU_F16>(s, p);
}

extern "C" bool mf__cu_moe_fits(const mf__cu_moe *m) {
    moe_params p = {};
    p.m = *m;
    p.fused = true;
    return plan(&p);
}

extern "C" void mf__cu_moe_rows(cudaStream_t s, const mf__cu_moe *m) {
    moe_params p = {};
    p.m = *m;
    p.fused = true;
    if (plan(&p)) launch_any(s, p);
}

extern "C" bool mf__cu_experts_strips(cudaStream_t s, const mf__cu_experts *e, float *act) {
    moe_params p = {};
    p.m.e = *e;
    p.m.act = act;
    if (!plan(&p)) return false;
    launch_any(s, p);
    return true;
}
