/* Grouped-query attention, with what the family adds to it.
 *
 *   x -> q_proj (-> [q | gate] per head) -> q norm -> rope -.
 *   x -> k_proj -> k norm -> rope -> cache                  attention (sinks, window) (-> * sigmoid(gate)) -> o_proj
 *   x -> v_proj ------------------> cache
 *
 * The gate may be one number per head, of g_proj. The norms may come after rope instead. Values may have a norm, too,
 * and k_proj may make them. */
#include <math.h>

#include "model/parts.h"

/* x -> W x, with the bias of the same name if there is one */
static mf__act project(mf__graph *g, mf__normed x, const char *weight, const char *bias, bool has_bias, int64_t rows,
                       const char *label) {
    int64_t cols = x.id < 0 ? 0 : g->bufs[x.id].cols;
    mf__w w = mf__g_matrix(g, weight, rows, cols), b = has_bias ? mf__g_vector(g, bias, 1, rows) : MF_NO_WEIGHT;
    return mf__g_project(g, x, w, b, label);
}

static void norm(mf__graph *g, const mf__config *c, mf__act x, const char *weight, int32_t head_dim, int32_t n_heads,
                 const char *label) {
    int32_t part = head_dim * (c->has.qk_norm == MF_QK_NORM_JOINT ? n_heads : 1);
    bool bare = c->has.qk_norm == MF_QK_NORM_BARE;
    if (c->has.qk_norm == MF_QK_NORM_NONE) return;
    mf__g_part_norm(g, x, bare ? mf__part_ones(g, part) : mf__g_vector(g, weight, 1, part), part, c->eps, label);
}

static void norms(mf__graph *g, const mf__config *c, const mf__attn *a, mf__act q, mf__act k) {
    if (!a->n_rot) return;
    norm(g, c, q, "self_attn.q_norm.weight", a->head_dim, a->n_heads, "q_norm");
    norm(g, c, k, "self_attn.k_norm.weight", a->head_dim, a->n_kv_heads, "k_norm");
}

static void rotate(mf__graph *g, const mf__config *c, const mf__attn *a, const mf__rope *r, mf__act q, mf__act k) {
    mf__op_params p = {.rope = {.head_dim = a->head_dim,
                                .n_rot = a->n_rot,
                                .interleaved = c->has.interleaved,
                                .scale = (float)mf__rope_attention_factor(r)}};
    if (!a->n_rot) return;
    mf__w freq = mf__rope_table(g, r, a->n_rot);
    p.rope.n_heads = a->n_heads;
    mf__g_rope(g, q, freq, p, "q_rope");
    p.rope.n_heads = a->n_kv_heads;
    mf__g_rope(g, k, freq, p, "k_rope");
}

void mf__part_grow(mf__graph *g, const mf__attn *a, mf__act q) {
    mf__op_params p = {.map = {.kind = MF_MAP_POSITION, .a = a->grow, .b = a->grow_step, .c = a->grow_from}};
    if (a->grow > 0) mf__g_map(g, q.id, MF_NO_WEIGHT, p, "q_grow");
}

/* k as k_proj made it. */
static mf__act values(mf__graph *g, const mf__config *c, const mf__attn *a, mf__normed x, mf__act k) {
    int32_t v_dim = mf__attn_v_dim(a);
    mf__op_params scale = {.map = {.kind = MF_MAP_SCALE, .a = a->v_scale}};
    mf__act v = k;
    if (!a->k_is_v)
        v = project(g, x, "self_attn.v_proj.weight", "self_attn.v_proj.bias", c->has.bias_qkv,
                    (int64_t)a->n_kv_heads * v_dim, "v_proj");
    if (c->has.value_norm) v = mf__g_part_normed(g, v, mf__part_ones(g, v_dim), v_dim, c->eps, "v_norm");
    if (a->v_scale > 0) mf__g_map(g, v.id, MF_NO_WEIGHT, scale, "v_scale");
    return v;
}

static void clip(mf__graph *g, const mf__attn *a, mf__act q, mf__act k, mf__act v) {
    mf__op_params p = {.map = {.kind = MF_MAP_CLAMP, .a = a->clip}};
    if (!(a->clip > 0)) return;
    mf__g_map(g, q.id, MF_NO_WEIGHT, p, "q_clip");
    mf__g_map(g, k.id, MF_NO_WEIGHT, p, "k_clip");
    mf__g_map(g, v.id, MF_NO_WEIGHT, p, "v_clip");
}

static mf__act attend(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__act q, mf__act k, mf__act v,
                      mf__op_params p) {
    mf__g_kv_append(g, k, v);
    mf__w sinks = c->has.sinks & 1u << mixer ? mf__g_vector(g, "self_attn.sinks", 1, p.attn.n_heads) : MF_NO_WEIGHT;
    return mf__g_attention(g, q, sinks, p);
}

/* Over the blocks that the index picks, whose keys are kept behind the values. */
static mf__act attend_blocks(mf__graph *g, const mf__config *c, mf__normed x, mf__act q, mf__act k, mf__act v,
                             mf__op_params p) {
    int32_t v_cols = p.attn.n_kv_heads * mf__op_v_dim(&p);
    p.attn.n_lists = c->index.n_heads;
    p.attn.n_picks = c->index.top_k;
    p.attn.block = c->index.block;
    mf__g_kv_append(g, k, mf__g_join(g, v, mf__part_index_key(g, c, x), "v | index_k"));
    return mf__g_attention_picked(g, q, mf__part_index_blocks(g, c, x, v_cols), p);
}

mf__act mf__part_attention(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x) {
    const mf__attn *a = mf__config_attn(c, mixer);
    const mf__rope *r = mf__config_rope(c, mixer);
    int32_t heads = a->n_heads, kv_heads = a->n_kv_heads, dim = a->head_dim, v_dim = mf__attn_v_dim(a);
    int64_t q_rows = (int64_t)heads * dim, o_cols = (int64_t)heads * v_dim;
    bool biased = c->has.bias_qkv;
    mf__op_params attn = {.attn = {.n_heads = heads,
                                   .n_kv_heads = kv_heads,
                                   .head_dim = dim,
                                   .v_dim = v_dim,
                                   .scale = a->scale > 0 ? a->scale : (float)(1.0 / sqrt(dim)),
                                   .window = mf__mixer_is_near(mixer) ? a->window : 0,
                                   .chunked = mixer == MF_MIX_CHUNKED}};
    mf__act gate = {-1};
    mf__act q = project(g, x, "self_attn.q_proj.weight", "self_attn.q_proj.bias", biased,
                        c->has.attn_gate ? 2 * q_rows : q_rows, "q_proj");
    mf__act k =
        project(g, x, "self_attn.k_proj.weight", "self_attn.k_proj.bias", biased, (int64_t)kv_heads * dim, "k_proj");
    mf__act v = values(g, c, a, x, k);
    if (c->has.attn_gate) mf__g_split_q_gate(g, q, heads, dim, &q, &gate);
    if (!c->has.qk_norm_last) norms(g, c, a, q, k);
    clip(g, a, q, k, v);
    rotate(g, c, a, r, q, k);
    if (c->has.qk_norm_last) norms(g, c, a, q, k);
    mf__part_grow(g, a, q);
    mf__act o = mixer == MF_MIX_BLOCKS ? attend_blocks(g, c, x, q, k, v, attn) : attend(g, c, mixer, q, k, v, attn);
    if (c->has.head_gate)
        gate =
            mf__g_project(g, x, mf__g_matrix(g, "self_attn.g_proj.weight", heads, c->n_hidden), MF_NO_WEIGHT, "g_proj");
    if (c->has.attn_gate || c->has.head_gate) mf__g_sigmoid_gate(g, o, gate);
    mf__w wo = mf__g_matrix(g, "self_attn.o_proj.weight", c->n_hidden, o_cols);
    mf__w bo = c->has.bias_o ? mf__g_vector(g, "self_attn.o_proj.bias", 1, c->n_hidden) : MF_NO_WEIGHT;
    return mf__g_matmul(g, o, wo, bo, "o_proj");
}
