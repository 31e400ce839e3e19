/* Grouped-query attention with a gate on its output.
 *
 *   x -> q_proj -> [q | gate] per head -> q norm -> rope -.
 *   x -> k_proj -> k norm -> rope -> cache                 attention -> * sigmoid(gate) -> o_proj
 *   x -> v_proj ------------------> cache                                                            */
#include <math.h>

#include "model/parts.h"

#define MAX_ROT 512

static mf__w rope_table(mf__graph *g, int32_t n_rot, double theta) {
    float inv_freq[MAX_ROT / 2] = {0};
    int32_t half = n_rot <= MAX_ROT ? n_rot / 2 : 0; /* 0 makes the graph fail, not the memory */
    for (int32_t i = 0; i < half; i++) inv_freq[i] = (float)(1.0 / pow(theta, 2.0 * i / n_rot));
    return mf__g_const(g, "rope.inv_freq", inv_freq, half);
}

mf__act mf__part_gated_attention(mf__graph *g, const mf__config *c, mf__normed x) {
    int32_t heads = c->attn.n_heads, kv_heads = c->attn.n_kv_heads, dim = c->attn.head_dim;
    int64_t hidden = c->n_hidden;
    mf__w wq = mf__g_matrix(g, "self_attn.q_proj.weight", 2 * (int64_t)heads * dim, hidden);
    mf__w wk = mf__g_matrix(g, "self_attn.k_proj.weight", (int64_t)kv_heads * dim, hidden);
    mf__w wv = mf__g_matrix(g, "self_attn.v_proj.weight", (int64_t)kv_heads * dim, hidden);
    mf__w wo = mf__g_matrix(g, "self_attn.o_proj.weight", hidden, (int64_t)heads * dim);
    mf__w freq = rope_table(g, c->attn.n_rot, c->attn.theta);
    mf__op_params rope = {.rope = {.n_heads = heads, .head_dim = dim, .n_rot = c->attn.n_rot, .scale = 1.0f}};
    mf__op_params attn = {
        .attn = {.n_heads = heads, .n_kv_heads = kv_heads, .head_dim = dim, .scale = (float)(1.0 / sqrt(dim))}};

    mf__act q, gate;
    mf__g_split_q_gate(g, mf__g_project(g, x, wq, MF_NO_WEIGHT, "q_proj"), heads, dim, &q, &gate);
    mf__act k = mf__g_project(g, x, wk, MF_NO_WEIGHT, "k_proj");
    mf__act v = mf__g_project(g, x, wv, MF_NO_WEIGHT, "v_proj");
    mf__g_part_norm(g, q, mf__g_vector(g, "self_attn.q_norm.weight", 1, dim), dim, c->eps, "q_norm");
    mf__g_part_norm(g, k, mf__g_vector(g, "self_attn.k_norm.weight", 1, dim), dim, c->eps, "k_norm");
    mf__g_rope(g, q, freq, rope, "q_rope");
    rope.rope.n_heads = kv_heads;
    mf__g_rope(g, k, freq, rope, "k_rope");
    mf__g_kv_append(g, k, v);
    mf__act o = mf__g_attention(g, q, attn);
    mf__g_sigmoid_gate(g, o, gate);
    return mf__g_matmul(g, o, wo, MF_NO_WEIGHT, "o_proj");
}
