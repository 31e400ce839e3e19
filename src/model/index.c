/* Sparse attention by an index: small queries and keys of their own say which cached rows attention is to see.
 *
 *   tokens   c_q -> wq_b -> rope -.                          x -> weights_proj -.
 *            x -> wk -> layer norm -> rope -> cache          index --------------'-> picks -> latent attention
 *   blocks   x -> q_proj -> norm -> rope -.
 *            x -> k_proj -> norm -> rope -> cache            index -> picks, a list for each head -> attention
 *
 * The key is kept behind the values: in the same V rows of the cache, in its last columns. */
#include "model/parts.h"

static mf__act project(mf__graph *g, int16_t from, const char *weight, int64_t rows, const char *label) {
    int64_t cols = from < 0 ? 0 : g->bufs[from].cols;
    return mf__g_matmul(g, (mf__act){from}, mf__g_matrix(g, weight, rows, cols), MF_NO_WEIGHT, label);
}

static void turn(mf__graph *g, const mf__config *c, mf__act x, int32_t heads, const char *label) {
    mf__op_params p = {.rope = {.n_heads = heads,
                                .head_dim = c->index.dim,
                                .n_rot = c->attn.n_rot,
                                .interleaved = c->index.interleaved,
                                .scale = (float)mf__rope_attention_factor(&c->rope)}};
    mf__g_rope(g, x, mf__rope_table(g, &c->rope, c->attn.n_rot), p, label);
}

static mf__op_params pick(const mf__config *c, int32_t at) {
    return (mf__op_params){.index = {.n_heads = c->index.n_heads,
                                     .dim = c->index.dim,
                                     .at = at,
                                     .top_k = c->index.top_k,
                                     .block = c->index.block,
                                     .local = c->index.local}};
}

mf__act mf__part_index_key(mf__graph *g, const mf__config *c, mf__normed x) {
    int32_t dim = c->index.dim;
    mf__act k;
    if (c->index.block > 1) {
        k = project(g, x.id, "self_attn.indexer.k_proj.weight", dim, "index_k");
        mf__g_part_norm(g, k, mf__g_vector(g, "self_attn.indexer.k_norm.weight", 1, dim), dim, c->eps, "index_k_norm");
    } else {
        k = project(g, x.id, "self_attn.indexer.wk.weight", dim, "index_k");
        mf__w w = mf__g_vector(g, "self_attn.indexer.k_norm.weight", 1, dim);
        mf__g_layer_norm(g, k, w, mf__g_vector(g, "self_attn.indexer.k_norm.bias", 1, dim), 1e-6f, "index_k_norm");
    }
    turn(g, c, k, 1, "index_k_rope");
    return k;
}

mf__chosen mf__part_index_tokens(mf__graph *g, const mf__config *c, mf__normed x, mf__act q_latent, int32_t at) {
    int32_t heads = c->index.n_heads, dim = c->index.dim;
    mf__act q = project(g, q_latent.id, "self_attn.indexer.wq_b.weight", (int64_t)heads * dim, "index_q");
    turn(g, c, q, heads, "index_q_rope");
    mf__act a = project(g, x.id, "self_attn.indexer.weights_proj.weight", heads, "index_weights");
    return mf__g_index(g, q, a, pick(c, at));
}

mf__chosen mf__part_index_blocks(mf__graph *g, const mf__config *c, mf__normed x, int32_t at) {
    int32_t heads = c->index.n_heads, dim = c->index.dim;
    mf__act q = project(g, x.id, "self_attn.indexer.q_proj.weight", (int64_t)heads * dim, "index_q");
    mf__g_part_norm(g, q, mf__g_vector(g, "self_attn.indexer.q_norm.weight", 1, dim), dim, c->eps, "index_q_norm");
    turn(g, c, q, heads, "index_q_rope");
    return mf__g_index(g, q, (mf__act){-1}, pick(c, at));
}
