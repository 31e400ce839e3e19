/* The routed experts of a few rows, pair by pair: pair (t, k) = W_down glu(W_gate x[t], W_up x[t]) of expert ids[t][k].
 * Which experts those are nobody on the host needs to know. Pairs whose expert is not in the bank stay as they are.
 * Codes of 4 and 8 bits go another way (mixture.cu). */
#include "backend/cuda/dots.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)

struct gate_up_params {
    mf__cu_experts e;
    float *act;
};

static __device__ __forceinline__ void put_act(const gate_up_params &p, const char *blob, int64_t pair, int row,
                                               float gate, float up) {
    if (p.e.bank.b_gate >= 0) gate += ((const float *)(blob + p.e.bank.b_gate))[row];
    if (p.e.bank.b_up >= 0) up += ((const float *)(blob + p.e.bank.b_up))[row];
    p.act[pair * p.e.inner + row] = glu_one(p.e.glu, gate, up);
}

/* The pair's expert, and row `row` of `from` in shared memory; NULL: the bank does not have it. WIDTH < 0: f32
 * activations. */
template <int WIDTH>
static __device__ __forceinline__ const char *begin_pair(const mf__cu_experts &e, const float *from, int64_t row,
                                                         int n_cols, shared_rows *x) {
    const char *blob = e.bank.table[e.ids[blockIdx.y]];
    MF_SHARED(memory);
    if (!blob) return 0;
    lay_rows(memory, 1, n_cols, WIDTH >= 0, WIDTH < 0, x);
    mf__cu_input in = {};
    in.x = from;
    in.n_cols = n_cols;
    fill_rows(in, (int)row, 1, *x, false);
    return blob;
}

/* blockIdx: rows of W, pair. */
template <int WIDTH>
static __global__ void __launch_bounds__(THREADS) gate_up_kernel(const __grid_constant__ gate_up_params p) {
    const mf__cu_experts &e = p.e;
    int64_t pair = blockIdx.y;
    shared_rows x;
    const char *blob = begin_pair<WIDTH>(e, e.x, pair / e.top_k, e.hidden, &x);
    if (!blob) return;
    mf__cu_matrix gate = part_of(e.bank.gate, blob), up = part_of(e.bank.up, blob);
    int warp = blockIdx.x * WARPS + threadIdx.x / 32, n_warps = gridDim.x * WARPS;
    if (WIDTH < 0) {
        for (int row = warp; row < e.inner; row += n_warps) {
            float a[1] = {0}, b[1] = {0};
            dots_f32<1>(gate, row, x, a);
            dots_f32<1>(up, row, x, b);
            if (lane_id() == 0) put_act(p, blob, pair, row, a[0], b[0]);
        }
        return;
    }
    const int W = WIDTH < 0 ? 4 : WIDTH;
    int lanes = lanes_of_row(e.hidden), side = 32 / lanes;
    for (int row0 = warp * 2 * side + lane_id() / lanes; row0 - lane_id() / lanes < e.inner;
         row0 += n_warps * 2 * side) {
        code_rows<4> rows;
        float acc[4][1] = {{0}, {0}, {0}, {0}};
        for (int r = 0; r < 2; r++) {
            int row = min(row0 + r * side, e.inner - 1);
            set_row<W, 4>(gate, row, r, &rows);
            set_row<W, 4>(up, row, 2 + r, &rows);
        }
        dots_int8<W, 1, 4>(gate, rows, x, lane_id() % lanes, lanes, acc);
        for (int r = 0; r < 2; r++)
            if (lane_id() % lanes == 0 && row0 + r * side < e.inner)
                put_act(p, blob, pair, row0 + r * side, acc[r][0], acc[2 + r][0]);
    }
}

template <int WIDTH>
static __global__ void __launch_bounds__(THREADS) down_kernel(const __grid_constant__ gate_up_params p) {
    const mf__cu_experts &e = p.e;
    int64_t pair = blockIdx.y;
    shared_rows x;
    const char *blob = begin_pair<WIDTH>(e, p.act, pair, e.inner, &x);
    if (!blob) return;
    mf__cu_matrix down = part_of(e.bank.down, blob);
    const float *bias = e.bank.b_down < 0 ? 0 : (const float *)(blob + e.bank.b_down);
    float *y = e.pairs + pair * e.hidden;
    int warp = blockIdx.x * WARPS + threadIdx.x / 32, n_warps = gridDim.x * WARPS;
    if (WIDTH < 0) {
        for (int row = warp; row < e.hidden; row += n_warps) {
            float a[1] = {0};
            dots_f32<1>(down, row, x, a);
            if (lane_id() == 0) y[row] = bias ? a[0] + bias[row] : a[0];
        }
        return;
    }
    const int W = WIDTH < 0 ? 4 : WIDTH;
    int lanes = lanes_of_row(e.inner), side = 32 / lanes;
    for (int row0 = warp * 4 * side + lane_id() / lanes; row0 - lane_id() / lanes < e.hidden;
         row0 += n_warps * 4 * side) {
        code_rows<4> rows;
        float acc[4][1] = {{0}, {0}, {0}, {0}};
        for (int r = 0; r < 4; r++) set_row<W, 4>(down, min(row0 + r * side, e.hidden - 1), r, &rows);
        dots_int8<W, 1, 4>(down, rows, x, lane_id() % lanes, lanes, acc);
        for (int r = 0; r < 4; r++) {
            int row = row0 + r * side;
            if (lane_id() % lanes == 0 && row < e.hidden) y[row] = bias ? acc[r][0] + bias[row] : acc[r][0];
        }
    }
}

/* How a part's codes are multiplied: their bits, 0 for MXFP4, -1 for f32. */
static int width_of(const mf__cu_matrix *w, bool exact) {
    if (!mf__cu_is_int8(w, exact)) return -1;
    return w->type == MF_CU_MXFP4 ? 0 : w->bits;
}

#define EACH_WIDTH(width, X)                                                                                           \
    switch (width) {                                                                                                   \
    case -1: X(-1); break;                                                                                             \
    case 0: X(0); break;                                                                                               \
    case 2: X(2); break;                                                                                               \
    case 3: X(3); break;                                                                                               \
    case 5: X(5); break;                                                                                               \
    case 6: X(6); break;                                                                                               \
    case 8: X(8); break;                                                                                               \
    default: X(4);                                                                                                     \
    }

extern "C" void mf__cu_experts_few(cudaStream_t s, const mf__cu_experts *e, float *act) {
    if (mf__cu_experts_strips(s, e, act)) return;
    gate_up_params p = {*e, act};
    shared_rows x;
    int n_pairs = e->n_rows * e->top_k, width = width_of(&e->bank.gate, e->exact), rows = WARPS * 2;
    if (width_of(&e->bank.up, e->exact) != width || e->bank.up.group != e->bank.gate.group) width = -1;
    size_t shared = lay_rows(0, 1, e->hidden, width >= 0, width < 0, &x);
    if (width >= 0) rows *= 32 / lanes_of_row(e->hidden);
    int step = 32768 / e->top_k * e->top_k; /* a grid has no more */
    for (int at = 0; at < n_pairs; at += step) {
        gate_up_params q = p;
        int n = n_pairs - at < step ? n_pairs - at : step;
        q.e.x += (int64_t)(at / e->top_k) * e->hidden, q.e.ids += at, q.act += (int64_t)at * e->inner;
        q.e.pairs += (int64_t)at * e->hidden;
#define GATE_UP(w) MF_LAUNCH((gate_up_kernel<w>), dim3(ceil_div(e->inner, rows), n), THREADS, shared, s, q)
        EACH_WIDTH(width, GATE_UP)
        int down = width_of(&e->bank.down, e->exact), most = WARPS * 4;
        if (down >= 0) most *= 32 / lanes_of_row(e->inner);
        size_t down_shared = lay_rows(0, 1, e->inner, down >= 0, down < 0, &x);
#define DOWN(w) MF_LAUNCH((down_kernel<w>), dim3(ceil_div(e->hidden, most), n), THREADS, down_shared, s, q)
        EACH_WIDTH(down, DOWN)
    }
}
