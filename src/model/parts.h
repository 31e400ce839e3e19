/* Parts that models are put together from, as config->has says. Each adds ops to a graph, or makes one; names of
 * weights are relative to "model.layers.N.". */
#ifndef MF_MODEL_PARTS_H
#define MF_MODEL_PARTS_H

#include "graph/graph.h"
#include "model/family.h"

/* ends.c: embedding, and final norm with head */
mf_status mf__part_embed(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_tail(const mf__config *c, mf__graph **out, mf_error *err);

/* attention.c: x -> grouped-query attention, over all rows or (SLIDING) the newest */
mf__act mf__part_attention(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x);

/* deltanet.c: x -> Gated DeltaNet */
mf__act mf__part_delta_net(mf__graph *g, const mf__config *c, mf__normed x);

/* mla.c: x -> multi-head latent attention */
mf__act mf__part_mla(mf__graph *g, const mf__config *c, mf__normed x);

/* moe.c: router at the end of a mix graph, and the graphs of a layer's second half */
void mf__part_router(mf__graph *g, const mf__config *c, mf__normed x);
mf_status mf__part_ahead(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_shared(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_experts(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_combine(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_dense(const mf__config *c, mf__graph **out, mf_error *err);

#endif
