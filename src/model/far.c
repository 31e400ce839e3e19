/* Attention over the newest rows of the cache and over compressed ones (DeepSeek-V4).
 *
 *   x -> wq_a -> norm -> wq_b -> norm per head -> rope -.
 *   x -> wkv -> norm -> rope -> cache (key and value)    far attention (sinks) -> rope back -> wo_a by groups -> wo_b
 *   x -> compressor.wkv, wgate -> compress -> cache
 *   q latent -> indexer.wq_b -> rope -> index, over keys that are compressed likewise -> picks
 *
 * SLIDING layers have the newest rows alone, HEAVY ones also all compressed rows, SPARSE ones those that the index
 * picks. Compressed rows are the V rows of the cache, with the index's key behind each. */
#include <math.h>
#include <stdio.h>

#include "model/parts.h"

static mf__act project(mf__graph *g, int16_t from, const char *weight, int64_t rows, const char *label) {
    int64_t cols = from < 0 ? 0 : g->bufs[from].cols;
    return mf__g_matmul(g, (mf__act){from}, mf__g_matrix(g, weight, rows, cols), MF_NO_WEIGHT, label);
}

/* The last channels of each head turn, in pairs. */
static void turn(mf__graph *g, const mf__config *c, mf__act x, mf__w freq, int32_t heads, int32_t dim, bool back,
                 const char *label) {
    mf__op_params p = {.rope = {.n_heads = heads,
                                .head_dim = dim,
                                .offset = dim - c->attn.n_rot,
                                .n_rot = c->attn.n_rot,
                                .interleaved = true,
                                .back = back,
                                .scale = 1}};
    mf__g_rope(g, x, freq, p, label);
}

/* What a window is made of: [a | g] of the rows, and behind them those of the index's keys. */
static void compress(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x, mf__w freq) {
    int32_t dim = c->attn.head_dim, halves = mixer == MF_MIX_SPARSE ? 2 : 1;
    mf__op_params p = {.compress = {.step = mixer == MF_MIX_SPARSE ? c->far.step : c->far.heavy_step,
                                    .overlap = mixer == MF_MIX_SPARSE,
                                    .n_parts = halves,
                                    .width = {dim, mixer == MF_MIX_SPARSE ? c->index.dim : 0},
                                    .n_rot = c->attn.n_rot,
                                    .eps = c->eps}};
    mf__w w[5] = {freq, MF_NO_WEIGHT, MF_NO_WEIGHT, MF_NO_WEIGHT, MF_NO_WEIGHT};
    mf__act rows = {-1};
    for (int part = 0; part < p.compress.n_parts; part++) {
        const char *prefix = part ? "attn.indexer.compressor" : "attn.compressor";
        int64_t cols = (int64_t)halves * p.compress.width[part];
        char name[64];
        snprintf(name, sizeof name, "%s.wkv.weight", prefix);
        mf__act a = project(g, x.id, name, cols, part ? "index_kv" : "compress_kv");
        snprintf(name, sizeof name, "%s.wgate.weight", prefix);
        mf__act both = mf__g_join(g, a, project(g, x.id, name, cols, part ? "index_gate" : "compress_gate"), "a | g");
        rows = part ? mf__g_join(g, rows, both, "rows | index") : both;
        snprintf(name, sizeof name, "%s.ape", prefix);
        w[1 + 2 * part] = mf__g_vector(g, name, p.compress.step, cols);
        snprintf(name, sizeof name, "%s.norm.weight", prefix);
        w[2 + 2 * part] = mf__g_vector(g, name, 1, p.compress.width[part]);
    }
    mf__g_compress(g, rows, w, p);
}

static mf__chosen pick(mf__graph *g, const mf__config *c, mf__normed x, mf__act q_latent, mf__w freq) {
    int32_t heads = c->index.n_heads, dim = c->index.dim;
    mf__op_params p = {.index = {.n_heads = heads,
                                 .dim = dim,
                                 .at = c->attn.head_dim,
                                 .top_k = c->index.top_k,
                                 .block = 1,
                                 .step = c->far.step}};
    mf__act q = project(g, q_latent.id, "attn.indexer.wq_b.weight", (int64_t)heads * dim, "index_q");
    turn(g, c, q, freq, heads, dim, false, "index_q_rope");
    mf__act a = project(g, x.id, "attn.indexer.weights_proj.weight", heads, "index_weights");
    return mf__g_index(g, q, a, p);
}

/* Each group of heads goes through a matrix of its own, and all of them together through another. */
static mf__act output(mf__graph *g, const mf__config *c, mf__act o) {
    int32_t groups = c->far.o_groups, rank = c->far.o_rank, cols = c->attn.n_heads * c->attn.head_dim / groups;
    mf__act all = {-1};
    for (int32_t i = 0; i < groups; i++) {
        mf__act part = o;
        char name[48];
        snprintf(name, sizeof name, "attn.wo_a.%d.weight", i);
        if (i + 1 < groups) mf__g_split(g, o, cols, &part, &o, "heads | rest");
        part = project(g, part.id, name, rank, "wo_a");
        all = i ? mf__g_join(g, all, part, "groups") : part;
    }
    return project(g, all.id, "attn.wo_b.weight", c->n_hidden, "wo_b");
}

mf__act mf__part_far(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x) {
    int32_t heads = c->attn.n_heads, dim = c->attn.head_dim, rank = c->mla.n_q_rank;
    mf__w freq = mf__rope_table(g, mixer == MF_MIX_SLIDING ? &c->rope : &c->far.rope, c->attn.n_rot);
    mf__op_params far = {.far = {.n_heads = heads,
                                 .dim = dim,
                                 .window = c->attn.window,
                                 .step = mixer == MF_MIX_HEAVY    ? c->far.heavy_step
                                         : mixer == MF_MIX_SPARSE ? c->far.step
                                                                  : 0,
                                 .n_picks = mixer == MF_MIX_SPARSE ? c->index.top_k : 0,
                                 .scale = (float)(1 / sqrt(dim))}};
    mf__act q_latent = project(g, x.id, "attn.wq_a.weight", rank, "wq_a");
    mf__g_part_norm(g, q_latent, mf__g_vector(g, "attn.q_norm.weight", 1, rank), rank, c->eps, "q_latent_norm");
    mf__act q = project(g, q_latent.id, "attn.wq_b.weight", (int64_t)heads * dim, "wq_b");
    mf__g_part_norm(g, q, mf__part_ones(g, dim), dim, c->eps, "q_norm");
    turn(g, c, q, freq, heads, dim, false, "q_rope");
    mf__act kv = project(g, x.id, "attn.wkv.weight", dim, "wkv");
    mf__g_part_norm(g, kv, mf__g_vector(g, "attn.kv_norm.weight", 1, dim), dim, c->eps, "kv_norm");
    turn(g, c, kv, freq, 1, dim, false, "kv_rope");
    mf__g_kv_append(g, kv, (mf__act){-1});
    if (mixer != MF_MIX_SLIDING) compress(g, c, mixer, x, freq);
    mf__chosen picks = {-1};
    if (mixer == MF_MIX_SPARSE) picks = pick(g, c, x, q_latent, freq);
    mf__act o = mf__g_far_attention(g, q, picks, mf__g_vector(g, "attn.attn_sink", 1, heads), far);
    turn(g, c, o, freq, heads, dim, true, "o_rope");
    return output(g, c, o);
}
