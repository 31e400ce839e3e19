/* Graphs of one op, for cases of the table and of the tests beside it. */
#include "build.h"

#include <math.h>

void build_embed(mf__graph *g, const op_case *c) {
    mf__g_embed(g, mf__g_in_tokens(g), mf__g_matrix(g, "table", c->rows, c->cols));
}

void build_norm(mf__graph *g, const op_case *c) {
    mf__g_norm(g, mf__g_in_residual(g, MF_PORT_HIDDEN, c->cols), mf__g_vector(g, "w", 1, c->cols), c->p.norm.eps);
}

void build_part_norm(mf__graph *g, const op_case *c) {
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, c->cols);
    mf__g_part_norm(g, x, mf__g_vector(g, "w", 1, c->p.norm.part), c->p.norm.part, c->p.norm.eps, "norm");
}

void build_layer_norm(mf__graph *g, const op_case *c) {
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, c->cols);
    mf__g_layer_norm(g, x, mf__g_vector(g, "w", 1, c->cols), mf__g_vector(g, "bias", 1, c->cols), c->p.norm.eps,
                     "norm");
}

void build_matmul(mf__graph *g, const op_case *c) {
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, c->cols);
    mf__w bias = c->option ? mf__g_vector(g, "bias", 1, c->rows) : MF_NO_WEIGHT;
    mf__g_matmul(g, x, mf__g_matrix(g, "w", c->rows, c->cols), bias, "matmul");
}

void fill_planes(op_rig *rig) {
    float *x = rig->in[rig->op->in[0]];
    int most = 127 * 128 + 63;
    for (int32_t i = 0; i < rig->n_rows * op_in_cols(rig, 0); i++) {
        int k = (int)(op_random(rig) * 127 * 128);
        if (i % 8 == 1) k = k / 256 * 128 + (i & 8 ? 64 : 63) * (i & 16 ? 1 : -1);
        if (i % 32 == 5) k = i & 64 ? most : -most;
        x[i] = (float)k / 16384;
    }
}

void build_split(mf__graph *g, const op_case *c) {
    mf__act q, gate, u = mf__g_in_act(g, MF_PORT_SHARED, 2 * c->p.split.n_heads * c->p.split.head_dim);
    mf__g_split_q_gate(g, u, c->p.split.n_heads, c->p.split.head_dim, &q, &gate);
}

void build_rope(mf__graph *g, const op_case *c) {
    float inv_freq[32];
    int32_t half = c->p.rope.n_rot / 2;
    for (int32_t i = 0; i < half; i++) inv_freq[i] = (float)pow(1e4, -(double)i / half);
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, c->p.rope.n_heads * c->p.rope.head_dim);
    mf__g_rope(g, x, mf__g_const(g, "inv_freq", inv_freq, half), c->p, "rope");
}

void build_kv_append(mf__graph *g, const op_case *c) {
    mf__g_kv_append(g, mf__g_in_act(g, MF_PORT_SHARED, c->k_cols), mf__g_in_act(g, MF_PORT_PAIRS, c->v_cols));
}

/* option: a sink per head */
void build_attention(mf__graph *g, const op_case *c) {
    mf__w sinks = c->option ? mf__g_vector(g, "sinks", 1, c->p.attn.n_heads) : MF_NO_WEIGHT;
    mf__g_attention(g, mf__g_in_act(g, MF_PORT_SHARED, c->p.attn.n_heads * c->p.attn.head_dim), sinks, c->p);
}

void build_attention_picked(mf__graph *g, const op_case *c) {
    mf__chosen picks = mf__g_in_picks(g, c->p.attn.n_lists * c->p.attn.n_picks);
    mf__g_attention_picked(g, mf__g_in_act(g, MF_PORT_SHARED, c->p.attn.n_heads * c->p.attn.head_dim), picks, c->p);
}

/* option: a weight for each head, and one list */
void build_index(mf__graph *g, const op_case *c) {
    mf__act a = {-1}, q = mf__g_in_act(g, MF_PORT_SHARED, c->p.index.n_heads * c->p.index.dim);
    if (c->option) a = mf__g_in_act(g, MF_PORT_PAIRS, c->p.index.n_heads);
    mf__g_index(g, q, a, c->p);
}

void build_join(mf__graph *g, const op_case *c) {
    mf__g_join(g, mf__g_in_act(g, MF_PORT_SHARED, c->cols), mf__g_in_act(g, MF_PORT_PAIRS, c->rows), "join");
}

void build_split_at(mf__graph *g, const op_case *c) {
    mf__act a, b;
    mf__g_split(g, mf__g_in_act(g, MF_PORT_SHARED, c->cols), c->p.cut.n_first, &a, &b, "split");
}

/* option: W_UK transposed and W_UV apart, instead of one kv_b */
void build_mla(mf__graph *g, const op_case *c) {
    int64_t heads = c->p.mla.n_heads, n = c->p.mla.n_latent, nope = c->p.mla.n_nope, v_dim = c->p.mla.v_dim;
    mf__act q = mf__g_in_act(g, MF_PORT_SHARED, (int32_t)(heads * (nope + c->p.mla.n_rope)));
    mf__w first =
        c->option ? mf__g_matrix(g, "uk", heads * n, nope) : mf__g_matrix(g, "kv_b", heads * (nope + v_dim), n);
    mf__g_mla_attention(g, q, first, c->option ? mf__g_matrix(g, "uv", heads * v_dim, n) : MF_NO_WEIGHT, c->p);
}

void build_mla_picked(mf__graph *g, const op_case *c) {
    int64_t heads = c->p.mla.n_heads, n = c->p.mla.n_latent, nope = c->p.mla.n_nope, v_dim = c->p.mla.v_dim;
    mf__act q = mf__g_in_act(g, MF_PORT_SHARED, (int32_t)(heads * (nope + c->p.mla.n_rope)));
    mf__chosen picks = mf__g_in_picks(g, c->p.mla.n_picks);
    mf__w kv_b = mf__g_matrix(g, "kv_b", heads * (nope + v_dim), n);
    mf__g_mla_pick(g, mf__g_mla_attention(g, q, kv_b, MF_NO_WEIGHT, c->p), picks);
}

void build_sigmoid_gate(mf__graph *g, const op_case *c) {
    int32_t gates = c->rows ? c->rows : c->cols; /* rows: gates, each for several columns */
    mf__g_sigmoid_gate(g, mf__g_in_act(g, MF_PORT_SHARED, c->cols), mf__g_in_act(g, MF_PORT_PAIRS, gates));
}

void build_conv1d(mf__graph *g, const op_case *c) {
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, c->cols);
    mf__g_conv1d(g, x, mf__g_vector(g, "w", c->cols, c->p.conv.n_kernel),
                 c->option ? mf__g_vector(g, "bias", 1, c->cols) : MF_NO_WEIGHT, c->p);
}

static int32_t qkv_cols(const op_case *c) {
    return 2 * c->p.delta.n_k_heads * c->p.delta.k_dim + c->p.delta.n_v_heads * c->p.delta.v_dim;
}

void build_qk_norm(mf__graph *g, const op_case *c) {
    mf__g_qk_norm(g, mf__g_in_act(g, MF_PORT_SHARED, qkv_cols(c)), c->p);
}

void build_decay_beta(mf__graph *g, const op_case *c) {
    int32_t heads = c->rows ? c->rows : c->cols;
    mf__act decay, beta, a = mf__g_in_act(g, MF_PORT_SHARED, c->cols), b = mf__g_in_act(g, MF_PORT_PAIRS, heads);
    mf__w a_log = mf__g_vector(g, "A_log", 1, heads), dt_bias = mf__g_vector(g, "dt_bias", 1, c->cols);
    mf__g_decay_beta(g, a, b, a_log, dt_bias, &decay, &beta);
}

void build_delta_net(mf__graph *g, const op_case *c) {
    mf__act qkv = mf__g_in_act(g, MF_PORT_SHARED, qkv_cols(c));
    int32_t decays = c->p.delta.by_channel ? c->p.delta.k_dim : 1;
    mf__act decay = mf__g_in_act(g, MF_PORT_PAIRS, c->p.delta.n_v_heads * decays);
    mf__g_delta_net(g, qkv, decay, mf__g_in_act(g, MF_PORT_H_POST, c->p.delta.n_v_heads), c->p);
}

void build_ssm(mf__graph *g, const op_case *c) {
    int32_t heads = c->p.ssm.n_heads, cols = heads * c->p.ssm.dim + 2 * c->p.ssm.n_groups * c->p.ssm.n_state;
    mf__act xbc = mf__g_in_act(g, MF_PORT_SHARED, cols), dt = mf__g_in_act(g, MF_PORT_PAIRS, heads);
    mf__w w[3] = {mf__g_vector(g, "A_log", 1, heads), mf__g_vector(g, "dt_bias", 1, heads),
                  mf__g_vector(g, "D", 1, heads)};
    mf__g_ssm(g, xbc, dt, w, c->p);
}

void build_parts_norm(mf__graph *g, const op_case *c) {
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, c->cols);
    mf__g_parts_norm(g, x, mf__g_vector(g, "w", 1, c->cols), c->p.norm.part, c->p.norm.eps, "parts_norm");
}

void build_copy(mf__graph *g, const op_case *c) {
    mf__g_copy(g, mf__g_in_residual(g, MF_PORT_HIDDEN, c->cols));
}

void build_gated_norm(mf__graph *g, const op_case *c) {
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, c->cols), z = mf__g_in_act(g, MF_PORT_PAIRS, c->cols);
    mf__g_gated_norm(g, x, z, mf__g_vector(g, "w", 1, c->p.norm.part), c->p);
}

void build_add(mf__graph *g, const op_case *c) {
    mf__g_add(g, mf__g_in_residual(g, MF_PORT_HIDDEN, c->cols), mf__g_in_act(g, MF_PORT_SHARED, c->cols));
}

void build_compress(mf__graph *g, const op_case *c) {
    int32_t halves = c->p.compress.overlap ? 2 : 1, cols = 0;
    float inv_freq[8];
    for (int i = 0; i < 8; i++) inv_freq[i] = (float)pow(1e4, -i / 8.0);
    mf__w w[5] = {mf__g_const(g, "inv_freq", inv_freq, c->p.compress.n_rot / 2)};
    for (int i = 0; i < c->p.compress.n_parts; i++) {
        int32_t width = c->p.compress.width[i];
        w[1 + 2 * i] = mf__g_vector(g, i ? "ape2" : "ape", c->p.compress.step, halves * width);
        w[2 + 2 * i] = mf__g_vector(g, i ? "norm2" : "norm", 1, width);
        cols += 2 * halves * width;
    }
    mf__g_compress(g, mf__g_in_act(g, MF_PORT_SHARED, cols), w, c->p);
}

/* option: picks */
void build_far_attention(mf__graph *g, const op_case *c) {
    mf__chosen picks = {-1};
    mf__act q = mf__g_in_act(g, MF_PORT_SHARED, c->p.far.n_heads * c->p.far.dim);
    if (c->option) picks = mf__g_in_picks(g, c->p.far.n_picks);
    mf__g_far_attention(g, q, picks, mf__g_vector(g, "sinks", 1, c->p.far.n_heads), c->p);
}

void build_streams_read(mf__graph *g, const op_case *c) {
    int32_t n = c->p.streams.n, n_z = c->p.streams.n_steps ? n * (n + 2) : n;
    mf__act mix, z = mf__g_in_act(g, MF_PORT_SHARED, n_z);
    mf__w base = mf__g_vector(g, "base", 1, n_z), scale = mf__g_vector(g, "scale", 1, c->p.streams.n_steps ? 3 : 1);
    mf__g_streams_read(g, mf__g_in_residual(g, MF_PORT_HIDDEN, n * c->cols), z, base, scale, c->p, &mix);
}

void build_streams_write(mf__graph *g, const op_case *c) {
    int32_t n = c->p.streams.n;
    mf__residual x = mf__g_in_residual(g, MF_PORT_HIDDEN, n * c->cols);
    mf__act y = mf__g_in_act(g, MF_PORT_SHARED, c->cols), mix = mf__g_in_act(g, MF_PORT_STREAMS, n + n * n);
    mf__g_streams_write(g, x, y, mix, n);
}

void build_route_given(mf__graph *g, const op_case *c) {
    mf__ids ids;
    mf__shares shares;
    mf__act logits = mf__g_in_act(g, MF_PORT_SHARED, c->p.route.n_experts);
    mf__g_route_given(g, logits, mf__g_in_act(g, MF_PORT_PAIRS, c->p.route.top_k), c->p, &ids, &shares);
}

/* option: the scale is also a weight */
void build_map(mf__graph *g, const op_case *c) {
    mf__act x = mf__g_in_act(g, MF_PORT_SHARED, c->cols);
    mf__g_map(g, x.id, c->option ? mf__g_vector(g, "w", 1, 1) : MF_NO_WEIGHT, c->p, "map");
}

/* option: a bias; rows 1: a factor for each expert */
void build_route(mf__graph *g, const op_case *c) {
    mf__ids ids;
    mf__shares shares;
    mf__act logits = mf__g_in_act(g, MF_PORT_SHARED, c->p.route.n_experts);
    mf__w bias = c->option ? mf__g_vector(g, "bias", 1, c->p.route.n_experts) : MF_NO_WEIGHT;
    mf__w factors = c->rows ? mf__g_vector(g, "factors", 1, c->p.route.n_experts) : MF_NO_WEIGHT;
    mf__g_route(g, logits, bias, factors, c->p, &ids, &shares);
}

/* rows: choices, p: how many of them are experts */
void build_identity(mf__graph *g, const op_case *c) {
    int32_t top = c->p.identity.top_k;
    mf__normed x = mf__g_in_normed(g, MF_PORT_H_POST, c->cols);
    mf__ids ids = mf__g_in_ids(g, top);
    mf__g_identity(g, x, ids, mf__g_in_shares(g, top), c->p.identity.n_experts);
}

void build_weigh(mf__graph *g, const op_case *c) {
    mf__g_weigh(g, mf__g_in_normed(g, MF_PORT_H_POST, c->cols), mf__g_in_shares(g, 1));
}

void build_glu(mf__graph *g, const op_case *c) {
    mf__g_glu(g, mf__g_in_act(g, MF_PORT_SHARED, c->cols), mf__g_in_act(g, MF_PORT_PAIRS, c->cols), c->p.glu);
}

/* option: the experts have biases */
void build_experts(mf__graph *g, const op_case *c) {
    mf__normed x = mf__g_in_normed(g, MF_PORT_H_POST, c->cols);
    mf__g_experts(g, x, mf__g_in_ids(g, c->p.moe.top_k), c->p);
}

/* rows: 0 no shared expert, 1 one without a gate, 2 one with a gate; option: the experts alone */
void build_combine(mf__graph *g, const op_case *c) {
    mf__act shared = {-1}, score = {-1};
    mf__pairs pairs = mf__g_in_pairs(g, c->p.moe.top_k * c->cols);
    mf__shares shares = mf__g_in_shares(g, c->p.moe.top_k);
    if (c->option) {
        mf__g_combine_alone(g, pairs, shares, (mf__act){-1});
        return;
    }
    mf__residual h = mf__g_in_residual(g, MF_PORT_H_MID, c->cols);
    if (c->rows >= 1) shared = mf__g_in_act(g, MF_PORT_SHARED, c->cols);
    if (c->rows >= 2) score = mf__g_in_act(g, MF_PORT_SHARED_SCORE, 1);
    mf__g_combine(g, h, pairs, shares, shared, score);
}
