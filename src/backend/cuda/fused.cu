/* Decoding, fused: what one token (or one of each of a few sequences) needs of a layer in as few launches as the
 * dependencies between its ops allow. The same arithmetic as the plain kernels; norms and the delta step add up in
 * another order. */
#include <float.h>

#include "backend/cuda/dots.cuh"
#include "backend/cuda/kv.cuh"
#include "backend/cuda/route.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define UP_RING 2 /* granules under way */

/* ---- route, gate and up ------------------------------------------------------------------------------------------ */

/* blockIdx: rows of W, slot, row. Every block chooses the row's experts for itself; the first of a row says which. */
template <int WIDTH>
static __global__ void __launch_bounds__(THREADS) route_up_kernel(const __grid_constant__ mf__cu_moe p) {
    __shared__ int chosen[MF_CU_MAX_TOPK];
    MF_SHARED(memory);
    const mf__cu_experts &e = p.e;
    ring_slot<WIDTH, 4> *ring = (ring_slot<WIDTH, 4> *)memory + threadIdx.x / 32 * UP_RING;
    shared_rows x;
    int64_t row = blockIdx.z, pair = row * e.top_k + blockIdx.y;
    char *at = memory + WARPS * UP_RING * sizeof *ring;
    size_t used = (lay_rows(at, 1, e.hidden, true, false, &x) + 15) / 16 * 16;
    mf__cu_input in = {};
    in.x = e.x;
    in.n_cols = e.hidden;
    depend();
    if (threadIdx.x < 32) {
        int id;
        float share = route_row(p.route, row, (float *)(at + used), &id);
        if (lane_id() < e.top_k) {
            chosen[lane_id()] = id;
            if (blockIdx.x == 0 && blockIdx.y == 0) {
                p.route.ids[row * e.top_k + lane_id()] = id;
                p.route.shares[row * e.top_k + lane_id()] = share;
            }
        }
    } else { /* meanwhile the others round the row */
        for (int b = threadIdx.x / 32 - 1; b < x.blocks; b += WARPS - 1) {
            float v[8];
            block_values(in, (int)row, b, 1, v);
            fill_block(in, (int)row, 0, b, 1, v, x, false);
        }
    }
    __syncthreads();
    const char *blob = e.bank.table[chosen[blockIdx.y]];
    mf__cu_matrix gate = part_of(e.bank.gate, blob), up = part_of(e.bank.up, blob);
    int warp = blockIdx.x * WARPS + threadIdx.x / 32, n_warps = gridDim.x * WARPS;
    int lanes = lanes_of_row(e.hidden), side = 32 / lanes, lane = lane_id() % lanes, beside = lane_id() / lanes;
    int granules = e.hidden / MF_CU_GRANULE, turns = (granules + lanes - 1) / lanes;
    int ask_row = warp * 2 * side, ask_turn = 0;
    auto ask_next = [&](int slot) {
        int g = lane + ask_turn * lanes;
        if (ask_row < e.inner && g < granules)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int64_t w = min(ask_row + beside + (r & 1) * side, e.inner - 1), off = w * gate.n_groups * 2;
                const mf__cu_matrix &m = r < 2 ? gate : up;
                ring_ask<WIDTH, 4>(m, m.data + w * m.row_bytes, m.scales + off, m.biases + off, g, r, &ring[slot]);
            }
        if (++ask_turn == turns) ask_turn = 0, ask_row += n_warps * 2 * side;
        copy_commit();
    };
    for (int i = 0; i < UP_RING; i++) ask_next(i);
    const float *b_gate = e.bank.b_gate < 0 ? 0 : (const float *)(blob + e.bank.b_gate);
    const float *b_up = e.bank.b_up < 0 ? 0 : (const float *)(blob + e.bank.b_up);
    int slot = 0;
    for (int row0 = warp * 2 * side; row0 < e.inner; row0 += n_warps * 2 * side) {
        float acc[4][1] = {{0}, {0}, {0}, {0}};
        for (int turn = 0; turn < turns; turn++) {
            int g = lane + turn * lanes;
            copy_wait<UP_RING - 1>();
            if (g < granules) ring_dots<WIDTH, 1, 4, false>(gate, &ring[slot], x, g, acc);
            ask_next(slot);
            slot = (slot + 1) % UP_RING;
        }
#pragma unroll
        for (int r = 0; r < 4; r++) acc[r][0] = lanes_sum(acc[r][0], lanes);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int w = row0 + beside + r * side;
            if (lane || w >= e.inner) continue;
            float g = acc[r][0], u = acc[2 + r][0];
            if (b_gate) g += b_gate[w];
            if (b_up) u += b_up[w];
            p.act[pair * e.inner + w] = glu_one(e.glu, g, u);
        }
    }
    copy_wait<0>();
}

/* ---- down, shared, combine --------------------------------------------------------------------------------------- */

#define AT_ONCE 8 /* experts whose rows are under way at once */

/* blockIdx: rows of W, row. SHARED: bits of the shared expert, 0 where there is none. Lanes share a row of W as in
 * few.cu. The router's logits are those of the last kernel but one: experts are chosen again, and their first granules
 * asked for, while gate and up are still on their way. */
template <int WIDTH, int SHARED>
static __global__ void __launch_bounds__(THREADS) down_kernel(const __grid_constant__ mf__cu_moe p) {
    __shared__ const char *blobs[MF_CU_MAX_TOPK];
    __shared__ float shares[MF_CU_MAX_TOPK];
    MF_SHARED(memory);
    const int OWN = SHARED ? SHARED : 4;
    const mf__cu_experts &e = p.e;
    ring_slot<WIDTH, AT_ONCE> *ring = (ring_slot<WIDTH, AT_ONCE> *)memory + threadIdx.x / 32;
    ring_slot<OWN, 1> *own_ring = (ring_slot<OWN, 1> *)(memory + WARPS * sizeof *ring) + threadIdx.x / 32;
    char *at = memory + WARPS * (sizeof *ring + sizeof *own_ring);
    shared_rows x, own;
    int64_t row = blockIdx.y;
    size_t used = (lay_rows(at, e.top_k, e.inner, true, false, &x) + 15) / 16 * 16;
    if (threadIdx.x < 32) {
        int id;
        float share = route_row(p.route, row, (float *)at, &id);
        if (lane_id() < e.top_k) blobs[lane_id()] = e.bank.table[id], shares[lane_id()] = share;
    }
    __syncthreads();
    int lanes = lanes_of_row(e.inner), side = 32 / lanes, lane = lane_id() % lanes;
    int out = (blockIdx.x * WARPS + threadIdx.x / 32) * side + lane_id() / lanes, w = min(out, e.hidden - 1);
    int granules = e.inner / MF_CU_GRANULE, turns = (granules + lanes - 1) / lanes;
    auto ask = [&](int k0, int turn) { /* the experts of slots k0 ... */
                                       int g = lane + turn * lanes;
                                       if (g < granules)
#pragma unroll
                                           for (int r = 0; r < AT_ONCE; r++) {
                                               if (k0 + r >= e.top_k) continue;
                                               const mf__cu_matrix m = part_of(e.bank.down, blobs[k0 + r]);
                                               int64_t off = (int64_t)w * m.n_groups * 2;
                                               ring_ask<WIDTH, AT_ONCE>(m, m.data + w * m.row_bytes, m.scales + off,
                                                                        m.biases + off, g, r, ring);
                                           }
                                       copy_commit();
    };
    if (SHARED && lane < p.shared.n_cols / MF_CU_GRANULE) {
        int64_t off = (int64_t)w * p.shared.n_groups * 2;
        ring_ask<OWN, 1>(p.shared, p.shared.data + w * p.shared.row_bytes, p.shared.scales + off, p.shared.biases + off,
                         lane, 0, own_ring);
    }
    ask(0, 0);
    depend();
    mf__cu_input in = {};
    in.x = p.act;
    in.n_cols = e.inner;
    fill_rows(in, (int)row * e.top_k, e.top_k, x, false, 0);
    float score = 1, sum = 0;
    if (SHARED) {
        lay_rows(at + used, 1, p.shared.n_cols, true, false, &own);
        in.before = MF_CU_GLU;
        in.x = p.shared_gate;
        in.x2 = p.shared_up;
        in.n_cols = p.shared.n_cols;
        in.glu = e.glu;
        fill_rows(in, (int)row, 1, own, false, 0);
        if (p.score) score = sigmoid(p.score[row]);
    }
    for (int k0 = 0; k0 < e.top_k; k0 += AT_ONCE) {
        float acc[AT_ONCE][1];
        shared_rows some = x;
        some.q += k0 * x.units, some.scale += k0 * x.blocks, some.sum += k0 * x.granules;
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) acc[r][0] = 0;
        for (int turn = 0; turn < turns; turn++) {
            int g = lane + turn * lanes;
            copy_wait<0>();
            if (g < granules) ring_dots<WIDTH, 1, AT_ONCE, true>(e.bank.down, ring, some, g, acc);
            if (turn + 1 < turns || k0 + AT_ONCE < e.top_k)
                ask(turn + 1 < turns ? k0 : k0 + AT_ONCE, turn + 1 < turns ? turn + 1 : 0);
        }
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            float y = lanes_sum(acc[r][0], lanes);
            if (k0 + r >= e.top_k) continue;
            if (e.bank.b_down >= 0) y += ((const float *)(blobs[k0 + r] + e.bank.b_down))[w];
            sum = fmaf(shares[k0 + r], y, sum);
        }
    }
    if (SHARED) {
        float acc[1][1] = {{0}};
        copy_wait<0>();
        if (lane < p.shared.n_cols / MF_CU_GRANULE) ring_dots<OWN, 1, 1, false>(p.shared, own_ring, own, lane, acc);
        sum = fmaf(score, lanes_sum(acc[0][0], lanes), sum);
    }
    if (lane == 0 && out < e.hidden) p.y[row * e.hidden + out] = p.h[row * e.hidden + out] + sum;
}

template <int WIDTH, int SHARED> static void launch_down(cudaStream_t s, const mf__cu_moe &m) {
    shared_rows x;
    size_t shared = (lay_rows(0, m.e.top_k + AT_ONCE, m.e.inner, true, false, &x) + 15) / 16 * 16;
    if (SHARED) shared += lay_rows(0, 1, m.shared.n_cols, true, false, &x);
    size_t routing = (size_t)(m.route.n_experts + m.route.n_groups) * 4; /* before the rows are there */
    if (shared < routing) shared = routing;
    shared += WARPS * (sizeof(ring_slot<WIDTH, AT_ONCE>) + sizeof(ring_slot < SHARED ? SHARED : 4, 1 >));
    int rows = WARPS * (32 / lanes_of_row(m.e.inner));
    MF_LAUNCH_EARLY((down_kernel<WIDTH, SHARED>), dim3(ceil_div(m.e.hidden, rows), m.e.n_rows), THREADS, shared, s, m);
}

template <int WIDTH> static void launch_moe(cudaStream_t s, const mf__cu_moe &m) {
    shared_rows x;
    size_t shared = (lay_rows(0, 1, m.e.hidden, true, false, &x) + 15) / 16 * 16;
    shared += (size_t)(m.route.n_experts + m.route.n_groups) * 4 + WARPS * UP_RING * sizeof(ring_slot<WIDTH, 4>);
    int rows = WARPS * 2 * (32 / lanes_of_row(m.e.hidden));
    MF_LAUNCH_EARLY((route_up_kernel<WIDTH>), dim3(ceil_div(m.e.inner, rows), m.e.top_k, m.e.n_rows), THREADS, shared,
                    s, m);
    if (!m.shared.n_cols)
        launch_down<WIDTH, 0>(s, m);
    else if (m.shared.bits == 8)
        launch_down<WIDTH, 8>(s, m);
    else
        launch_down<WIDTH, 4>(s, m);
}

/* Offsets of an expert whose address is a multiple of 16 at least. */
static bool expert_fits(const mf__cu_matrix *m) {
    mf__cu_matrix at = *m;
    if (!at.biases) at.biases = (const char *)4; /* an offset of 0 cannot be: codes come first */
    return ring_fits(&at);
}

extern "C" bool mf__cu_moe_fits(const mf__cu_moe *m) {
    const mf__cu_matrix *d = &m->e.bank.down, *g = &m->e.bank.gate, *u = &m->e.bank.up, *s = &m->shared;
    if (m->e.exact || m->e.n_rows > 65535) return false;
    if (!expert_fits(g) || !expert_fits(u) || !expert_fits(d)) return false;
    if (u->bits != g->bits || d->bits != g->bits || u->group != g->group) return false;
    if (!s->n_cols) return true;
    return ring_fits(s) && lanes_of_row(s->n_cols) == lanes_of_row(m->e.inner) &&
           s->n_cols / MF_CU_GRANULE <= lanes_of_row(s->n_cols);
}

extern "C" void mf__cu_moe_rows(cudaStream_t s, const mf__cu_moe *m) {
    if (m->e.bank.gate.bits == 8)
        launch_moe<8>(s, *m);
    else
        launch_moe<4>(s, *m);
}

/* ---- delta net, one step ----------------------------------------------------------------------------------------- */

#define MAX_KERNEL 8
#define DELTA_ROWS 32

/* The rows before and the weights of one channel. */
struct conv_channel {
    float before[MAX_KERNEL], w[MAX_KERNEL];
};

static __device__ __forceinline__ void ask_channel(const mf__cu_delta_step &p, const mf__cu_segment *seg, int64_t c,
                                                   conv_channel *to) {
#pragma unroll
    for (int k = 0; k < MAX_KERNEL; k++) {
        to->before[k] = k < p.n_kernel - 1 ? seg->conv_in[k * p.d.n_cols + c] : 0;
        to->w[k] = k < p.n_kernel ? p.w_conv[c * p.n_kernel + k] : 0;
    }
}

/* conv + silu of one channel; the first block that has it moves the state on. */
static __device__ __forceinline__ float conv_one(const mf__cu_delta_step &p, const mf__cu_segment *seg, int64_t row,
                                                 int64_t c, const conv_channel &from, bool first) {
    int back = p.n_kernel - 1;
    float now = p.x[row * p.d.n_cols + c], sum = 0;
#pragma unroll
    for (int k = 0; k < MAX_KERNEL; k++) {
        if (k < back) sum = fmaf(from.w[k], from.before[k], sum);
        if (k == back) sum = fmaf(from.w[k], now, sum);
        if (first && k > 0 && k < back) seg->conv_out[(k - 1) * p.d.n_cols + c] = from.before[k];
    }
    if (first && back) seg->conv_out[(back - 1) * p.d.n_cols + c] = now;
    return silu(sum);
}

static __device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* blockIdx: rows of the state, value head, segment (of one row). As delta_kernel, with what comes before it. */
template <int COLS>
static __global__ void __launch_bounds__(THREADS) delta_step_kernel(const __grid_constant__ mf__cu_delta_step p) {
    __shared__ float q[256], k[256], vs[DELTA_ROWS], gates[2];
    const mf__cu_delta &d = p.d;
    const mf__cu_segment *seg = &d.segs.at[blockIdx.z];
    int head = blockIdx.y, k_dim = d.k_dim, lane = threadIdx.x % 8, i = threadIdx.x / 8,
        at_row = blockIdx.x * DELTA_ROWS + i;
    int ratio = d.n_v_heads / d.n_k_heads, warp = threadIdx.x / 32;
    int64_t row = seg->row0, keys = (int64_t)d.n_k_heads * k_dim;
    int64_t q_at = (int64_t)(head / ratio) * k_dim, v_at = 2 * keys + (int64_t)head * d.v_dim;
    bool mine = at_row < d.v_dim, first = blockIdx.x == 0 && head % ratio == 0;
    int64_t at = ((int64_t)head * d.v_dim + (mine ? at_row : 0)) * k_dim;
    float S[COLS];
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        int c = lane + 8 * j;
        S[j] = mine && c < k_dim ? seg->delta_in[at + c] : 0;
    }
    /* queries, keys and the values of this block's rows: the channels of a thread */
    const int SLOTS = (2 * COLS * 8 + DELTA_ROWS + THREADS - 1) / THREADS;
    conv_channel channels[SLOTS];
    auto channel = [&](int c) { /* -1: there is none */
                                int r = blockIdx.x * DELTA_ROWS + c - 2 * k_dim;
                                if (c < k_dim) return q_at + c;
                                if (c < 2 * k_dim) return keys + q_at + c - k_dim;
                                return c < 2 * k_dim + DELTA_ROWS && r < d.v_dim ? v_at + r : (int64_t)-1;
    };
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        int64_t at = channel(threadIdx.x + i * THREADS);
        if (at >= 0) ask_channel(p, seg, at, &channels[i]);
    }
    depend();
#pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        int c = threadIdx.x + i * THREADS;
        int64_t at = channel(c);
        if (at < 0) continue;
        float v = conv_one(p, seg, row, at, channels[i], first || c >= 2 * k_dim);
        *(c < k_dim ? &q[c] : c < 2 * k_dim ? &k[c - k_dim] : &vs[c - 2 * k_dim]) = v;
    }
    if (threadIdx.x == THREADS - 1) {
        gates[0] = expf(-expf(p.a_log[head]) * softplus(p.a[row * d.n_v_heads + head] + p.dt_bias[head]));
        gates[1] = sigmoid(p.b[row * d.n_v_heads + head]);
    }
    __syncthreads();
    if (warp < 2) { /* q and k to unit length */
        float *x = warp ? k : q, sum = 0;
        for (int c = lane_id(); c < k_dim; c += 32) sum += x[c] * x[c];
        float scale = 1.0f / sqrtf(warp_sum(sum) + 1e-6f) * (warp ? 1.0f : 1.0f / sqrtf((float)k_dim));
        for (int c = lane_id(); c < k_dim; c += 32) x[c] *= scale;
    }
    __syncthreads();
    float decay = gates[0], predicted[2] = {0, 0}, read[2] = {0, 0};
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        int c = lane + 8 * j;
        S[j] *= decay;
        if (c < k_dim) predicted[j & 1] = fmaf(S[j], k[c], predicted[j & 1]);
    }
    float sum = lanes_sum(predicted[0] + predicted[1], 8), change = gates[1] * (vs[i] - sum);
#pragma unroll
    for (int j = 0; j < COLS; j++) {
        int c = lane + 8 * j;
        if (c >= k_dim) continue;
        S[j] = fmaf(change, k[c], S[j]);
        read[j & 1] = fmaf(S[j], q[c], read[j & 1]);
        if (mine) seg->delta_out[at + c] = S[j];
    }
    float o = lanes_sum(read[0] + read[1], 8);
    if (mine && lane == 0) d.o[(row * d.n_v_heads + head) * d.v_dim + at_row] = o;
}

extern "C" void mf__cu_delta_one(cudaStream_t s, const mf__cu_delta_step *p) {
    dim3 grid(ceil_div(p->d.v_dim, DELTA_ROWS), p->d.n_v_heads, p->d.segs.n);
    if (p->d.k_dim <= 32)
        MF_LAUNCH_EARLY((delta_step_kernel<4>), grid, THREADS, 0, s, *p);
    else if (p->d.k_dim <= 128)
        MF_LAUNCH_EARLY((delta_step_kernel<16>), grid, THREADS, 0, s, *p);
    else
        MF_LAUNCH_EARLY((delta_step_kernel<32>), grid, THREADS, 0, s, *p);
}

/* ---- queries, keys and values before attention ------------------------------------------------------------------- */

/* A head in a warp: norm and rope in registers, DIM / 32 values in each lane, column lane + 32 i. */
#define MAX_DIM 256

static __device__ __forceinline__ void norm_rope(const mf__cu_heads &p, const float *x, const float *w, int64_t pos,
                                                 float *mem) {
    float sum = 0;
    int dim = p.head_dim, half = p.n_rot / 2;
    for (int c = lane_id(); c < dim; c += 32) {
        mem[c] = x[c];
        sum += x[c] * x[c];
    }
    if (w) {
        float scale = 1.0f / sqrtf(warp_sum(sum) / (float)dim + p.eps);
        for (int c = lane_id(); c < dim; c += 32) mem[c] = x[c] * scale * w[c];
    }
    __syncwarp();
    for (int i = lane_id(); i < half; i += 32) {
        float sine, cosine;
        sincosf((float)pos * p.inv_freq[i], &sine, &cosine);
        sine *= p.rope_scale, cosine *= p.rope_scale;
        int a = p.interleaved ? 2 * i : i, b = p.interleaved ? 2 * i + 1 : i + half;
        float u = mem[a], v = mem[b];
        mem[a] = u * cosine - v * sine;
        mem[b] = u * sine + v * cosine;
    }
    __syncwarp();
}

static __device__ __forceinline__ void keep_head(const mf__cu_heads &p, mf__cu_type type, const float *x, char *row,
                                                 int head) {
    for (int c = lane_id(); c < p.head_dim; c += 32) {
        float v = x[c];
        if (type == MF_CU_F16) {
            v = v > 65504.0f ? 65504.0f : v < -65504.0f ? -65504.0f : v;
            ((uint16_t *)row)[head * p.head_dim + c] = to_f16(v);
        } else {
            ((float *)row)[head * p.head_dim + c] = v;
        }
    }
}

/* blockIdx: heads of q, then k, then v; row. */
static __global__ void heads_kernel(const __grid_constant__ mf__cu_heads p) {
    __shared__ float mem[MAX_DIM];
    const mf__cu_segment &seg = p.segs.at[p.segs.of_row[blockIdx.y]];
    int64_t row = blockIdx.y, pos = seg.pos + row - seg.row0;
    int head = blockIdx.x, dim = p.head_dim;
    depend();
    if (head < p.n_heads) {
        norm_rope(p, p.q + (row * p.n_heads + head) * p.q_step, p.q_norm, pos, mem);
        for (int c = lane_id(); c < dim; c += 32) p.q_out[(row * p.n_heads + head) * dim + c] = mem[c];
    } else if ((head -= p.n_heads) < p.n_kv_heads) {
        norm_rope(p, p.k + (row * p.n_kv_heads + head) * dim, p.k_norm, pos, mem);
        keep_head(p, seg.kv_type, mem, k_row(seg, pos), head);
    } else {
        head -= p.n_kv_heads;
        keep_head(p, seg.kv_type, p.v + (row * p.n_kv_heads + head) * dim, v_row(seg, pos), head);
    }
}

extern "C" void mf__cu_heads_rows(cudaStream_t s, const mf__cu_heads *p) {
    MF_LAUNCH_EARLY(heads_kernel, dim3(p->n_heads + 2 * p->n_kv_heads, p->n_rows), 32, 0, s, *p);
}
