/* Multi-head latent attention.
 *
 *   x -> q_a_proj -> norm -> q_b_proj (or q_proj) -> [q_nope | q_pe] per head, q_pe rotated -.
 *   x -> kv_a_proj -> [latent | k_pe], latent -> norm -> cache                                attention -> o_proj
 *                                      k_pe -> rope, no norm -> cache                         |
 *   kv_b_proj: W_UK and W_UV per head, from the latent to keys and values --------------------'
 *
 * What is cached is what the two arrows say: the latent after its norm, and k_pe after its rotation. An INDEXED layer
 * keeps the key of its index behind k_pe, and leaves what it picked for REUSED layers after it. */
#include <math.h>

#include "model/parts.h"

/* *from: what they are made of, a latent or x itself */
static mf__act queries(mf__graph *g, const mf__config *c, mf__normed x, mf__act *from) {
    int64_t rows = (int64_t)c->attn.n_heads * (c->mla.n_nope + c->mla.n_rope), hidden = c->n_hidden;
    int32_t rank = c->mla.n_q_rank;
    *from = (mf__act){x.id};
    if (!rank)
        return mf__g_project(g, x, mf__g_matrix(g, "self_attn.q_proj.weight", rows, hidden), MF_NO_WEIGHT, "q_proj");
    mf__w wa = mf__g_matrix(g, "self_attn.q_a_proj.weight", rank, hidden);
    mf__w wb = mf__g_matrix(g, "self_attn.q_b_proj.weight", rows, rank);
    mf__w ba = c->has.bias_qkv ? mf__g_vector(g, "self_attn.q_a_proj.bias", 1, rank) : MF_NO_WEIGHT;
    mf__act a = mf__g_project(g, x, wa, ba, "q_a_proj");
    mf__g_part_norm(g, a, mf__g_vector(g, "self_attn.q_a_layernorm.weight", 1, rank), rank, c->mla.eps, "q_a_norm");
    *from = a;
    return mf__g_matmul(g, a, wb, MF_NO_WEIGHT, "q_b_proj");
}

static void scale(mf__graph *g, mf__act x, float a, const char *label) {
    if (a > 0) mf__g_map(g, x.id, MF_NO_WEIGHT, (mf__op_params){.map = {.kind = MF_MAP_SCALE, .a = a}}, label);
}

/* The two ways checkpoints store the expansion; both are kept as they are, because groups of codes cannot be turned
 * from one axis to the other. */
static mf__act attend(mf__graph *g, const mf__config *c, mf__act q, mf__op_params p) {
    int64_t heads = c->attn.n_heads, latent = c->mla.n_latent;
    if (c->mla.split_up) {
        mf__w uk = mf__g_matrix(g, "self_attn.embed_q.weight", heads * latent, c->mla.n_nope);
        mf__w uv = mf__g_matrix(g, "self_attn.unembed_out.weight", heads * c->mla.v_dim, latent);
        return mf__g_mla_attention(g, q, uk, uv, p);
    }
    mf__w kv_b = mf__g_matrix(g, "self_attn.kv_b_proj.weight", heads * (c->mla.n_nope + c->mla.v_dim), latent);
    return mf__g_mla_attention(g, q, kv_b, MF_NO_WEIGHT, p);
}

mf__act mf__part_mla(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x) {
    int32_t heads = c->attn.n_heads, latent = c->mla.n_latent, nope = c->mla.n_nope, rot = c->mla.n_rope;
    int64_t hidden = c->n_hidden;
    mf__w w_kv = mf__g_matrix(g, "self_attn.kv_a_proj_with_mqa.weight", latent + rot, hidden);
    mf__w b_kv = c->has.bias_qkv ? mf__g_vector(g, "self_attn.kv_a_proj_with_mqa.bias", 1, latent + rot) : MF_NO_WEIGHT;
    mf__w w_norm = mf__g_vector(g, "self_attn.kv_a_layernorm.weight", 1, latent);
    mf__w w_o = mf__g_matrix(g, "self_attn.o_proj.weight", hidden, (int64_t)heads * c->mla.v_dim);
    mf__w b_o = c->has.bias_o ? mf__g_vector(g, "self_attn.o_proj.bias", 1, hidden) : MF_NO_WEIGHT;
    mf__w freq = c->has.nope ? MF_NO_WEIGHT : mf__rope_table(g, &c->rope, rot);
    mf__op_params rope = {.rope = {.n_heads = heads,
                                   .head_dim = nope + rot,
                                   .offset = nope,
                                   .n_rot = rot,
                                   .interleaved = c->has.interleaved,
                                   .scale = (float)mf__rope_attention_factor(&c->rope)}};
    mf__op_params mla = {.mla = {.n_heads = heads,
                                 .n_latent = latent,
                                 .n_nope = nope,
                                 .n_rope = rot,
                                 .v_dim = c->mla.v_dim,
                                 .n_picks = mixer == MF_MIX_LATENT ? 0 : c->index.top_k,
                                 .scale = (float)(mf__rope_softmax_factor(&c->rope) / sqrt(nope + rot))}};

    mf__act q_latent, q = queries(g, c, x, &q_latent), kv_latent, k_pe;
    scale(g, q, c->mla.q_scale, "q_scale");
    if (!c->has.nope) mf__g_rope(g, q, freq, rope, "q_rope");
    mf__part_grow(g, &c->attn, q);
    mf__g_split(g, mf__g_project(g, x, w_kv, b_kv, "kv_a_proj"), latent, &kv_latent, &k_pe, "latent | k_pe");
    mf__g_part_norm(g, kv_latent, w_norm, latent, c->mla.eps, "kv_a_norm");
    scale(g, kv_latent, c->mla.kv_scale, "kv_scale");
    rope.rope.n_heads = 1, rope.rope.head_dim = rot, rope.rope.offset = 0;
    if (!c->has.nope) mf__g_rope(g, k_pe, freq, rope, "k_rope");
    if (mixer == MF_MIX_INDEXED) k_pe = mf__g_join(g, k_pe, mf__part_index_key(g, c, x), "k_pe | index_k");
    mf__g_kv_append(g, kv_latent, k_pe);
    mf__chosen picks = {-1};
    if (mixer == MF_MIX_INDEXED) picks = mf__part_index_tokens(g, c, x, q_latent, rot);
    if (mixer == MF_MIX_REUSED) picks = mf__g_in_picks(g, c->index.top_k);
    mf__act o = attend(g, c, q, mla);
    if (mixer != MF_MIX_LATENT) mf__g_mla_pick(g, o, picks);
    if (mixer == MF_MIX_INDEXED) mf__g_export(g, picks.id, MF_PORT_PICKS);
    return mf__g_matmul(g, o, w_o, b_o, "o_proj");
}
