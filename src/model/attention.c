/* Grouped-query attention, with what the family adds to it.
 *
 *   x -> q_proj (-> [q | gate] per head) -> q norm -> rope -.
 *   x -> k_proj -> k norm -> rope -> cache                  attention (sinks, window) (-> * sigmoid(gate)) -> o_proj
 *   x -> v_proj ------------------> cache                                                                         */
#include <math.h>

#include "model/parts.h"

/* x -> W x, with the bias of the same name if there is one */
static mf__act project(mf__graph *g, mf__normed x, const char *weight, const char *bias, bool has_bias, int64_t rows,
                       const char *label) {
    int64_t cols = x.id < 0 ? 0 : g->bufs[x.id].cols;
    mf__w w = mf__g_matrix(g, weight, rows, cols), b = has_bias ? mf__g_vector(g, bias, 1, rows) : MF_NO_WEIGHT;
    return mf__g_project(g, x, w, b, label);
}

static void norm(mf__graph *g, const mf__config *c, mf__act x, const char *weight, int32_t n_heads, const char *label) {
    int32_t part = c->attn.head_dim * (c->has.qk_norm == MF_QK_NORM_JOINT ? n_heads : 1);
    if (c->has.qk_norm == MF_QK_NORM_NONE) return;
    mf__g_part_norm(g, x, mf__g_vector(g, weight, 1, part), part, c->eps, label);
}

mf__act mf__part_attention(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x) {
    int32_t heads = c->attn.n_heads, kv_heads = c->attn.n_kv_heads, dim = c->attn.head_dim;
    int64_t q_rows = (int64_t)heads * dim, kv_rows = (int64_t)kv_heads * dim;
    bool biased = c->has.bias_qkv;
    mf__op_params rope = {.rope = {.head_dim = dim,
                                   .n_rot = c->attn.n_rot,
                                   .interleaved = c->has.interleaved,
                                   .scale = (float)mf__rope_attention_factor(&c->rope)}};
    mf__op_params attn = {.attn = {.n_heads = heads,
                                   .n_kv_heads = kv_heads,
                                   .head_dim = dim,
                                   .scale = (float)(1.0 / sqrt(dim)),
                                   .window = mixer == MF_MIX_SLIDING ? c->attn.window : 0}};
    mf__act gate = {-1};
    mf__act q = project(g, x, "self_attn.q_proj.weight", "self_attn.q_proj.bias", biased,
                        c->has.attn_gate ? 2 * q_rows : q_rows, "q_proj");
    mf__act k = project(g, x, "self_attn.k_proj.weight", "self_attn.k_proj.bias", biased, kv_rows, "k_proj");
    mf__act v = project(g, x, "self_attn.v_proj.weight", "self_attn.v_proj.bias", biased, kv_rows, "v_proj");
    if (c->has.attn_gate) mf__g_split_q_gate(g, q, heads, dim, &q, &gate);
    norm(g, c, q, "self_attn.q_norm.weight", heads, "q_norm");
    norm(g, c, k, "self_attn.k_norm.weight", kv_heads, "k_norm");
    mf__w freq = mf__rope_table(g, &c->rope, c->attn.n_rot);
    rope.rope.n_heads = heads;
    mf__g_rope(g, q, freq, rope, "q_rope");
    rope.rope.n_heads = kv_heads;
    mf__g_rope(g, k, freq, rope, "k_rope");
    mf__g_kv_append(g, k, v);
    mf__w sinks = c->has.sinks ? mf__g_vector(g, "self_attn.sinks", 1, heads) : MF_NO_WEIGHT;
    mf__act o = mf__g_attention(g, q, sinks, attn);
    if (c->has.attn_gate) mf__g_sigmoid_gate(g, o, gate);
    mf__w wo = mf__g_matrix(g, "self_attn.o_proj.weight", c->n_hidden, q_rows);
    mf__w bo = c->has.bias_o ? mf__g_vector(g, "self_attn.o_proj.bias", 1, c->n_hidden) : MF_NO_WEIGHT;
    return mf__g_matmul(g, o, wo, bo, "o_proj");
}
