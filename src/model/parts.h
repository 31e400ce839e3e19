/* Parts that models are put together from, as config->has says. Each adds ops to a graph, or makes one; names of
 * weights are relative to "model.layers.N.". */
#ifndef MF_MODEL_PARTS_H
#define MF_MODEL_PARTS_H

#include "graph/graph.h"
#include "model/family.h"

/* ends.c: embedding, and final norm with head */
mf_status mf__part_embed(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_tail(const mf__config *c, mf__graph **out, mf_error *err);

/* ends.c: n ones, the weights of a norm without weights; n at most MF_ROPE_MAX */
mf__w mf__part_ones(mf__graph *g, int32_t n);

/* attention.c: x -> grouped-query attention, over all rows, the newest (SLIDING) or those of a chunk (CHUNKED) */
mf__act mf__part_attention(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x);

/* attention.c: queries times what their position says, where the config wants it */
void mf__part_grow(mf__graph *g, const mf__attn *a, mf__act q);

/* index.c: the key that a row is found by, and the rows that are picked; at: the column of the V rows where keys begin.
 * tokens: q_latent is what queries are made of. blocks: a list for each of the index's heads. */
mf__act mf__part_index_key(mf__graph *g, const mf__config *c, mf__normed x);
mf__chosen mf__part_index_tokens(mf__graph *g, const mf__config *c, mf__normed x, mf__act q_latent, int32_t at);
mf__chosen mf__part_index_blocks(mf__graph *g, const mf__config *c, mf__normed x, int32_t at);

/* far.c: x -> attention over the newest rows and over compressed ones */
mf__act mf__part_far(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x);

/* streams.c: what a block reads of the streams, and (mix, unless it is NULL) how they take what it gives; by the
 * weights NAME_fn, NAME_base and NAME_scale */
mf__residual mf__part_streams_read(mf__graph *g, const mf__config *c, mf__residual x, const char *name, mf__act *mix);

/* deltanet.c: x -> Gated DeltaNet */
mf__act mf__part_delta_net(mf__graph *g, const mf__config *c, mf__normed x);

/* kda.c: x -> the delta rule with a decay for every channel */
mf__act mf__part_kda(mf__graph *g, const mf__config *c, mf__normed x);

/* mamba.c: x -> Mamba-2 */
mf__act mf__part_mamba(mf__graph *g, const mf__config *c, mf__normed x);

/* short_conv.c: x -> a gated convolution */
mf__act mf__part_short_conv(mf__graph *g, const mf__config *c, mf__normed x);

/* mla.c: x -> multi-head latent attention, over all rows or picked ones */
mf__act mf__part_mla(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x);

/* moe.c: router at the end of a mix graph (h the residual, x what the experts read of it, which it may change), and the
 * graphs of a layer's second half */
void mf__part_router(mf__graph *g, const mf__config *c, mf__residual h, mf__normed *x, bool hashed);
mf__residual mf__part_shortcut(mf__graph *g, const mf__config *c, mf__residual h);
mf__normed mf__part_post_norm(mf__graph *g, const mf__config *c, mf__residual h);
/* of: the residual that the router is applied to, HIDDEN or H_MID of the layer before */
mf_status mf__part_ahead(const mf__config *c, mf__port of, mf__graph **out, mf_error *err);
mf_status mf__part_shared(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_experts(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_combine(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_nothing(const mf__config *c, mf__graph **out, mf_error *err); /* no second half */
mf_status mf__part_dense(const mf__config *c, mf__graph **out, mf_error *err);

#endif
