/* Parts that families are put together from. Each adds ops to a graph; names are relative to "model.layers.N.". */
#ifndef MF_MODEL_PARTS_H
#define MF_MODEL_PARTS_H

#include "graph/graph.h"
#include "model/family.h"

/* ends.c: embedding, and final norm with head */
mf_status mf__part_embed(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_tail(const mf__config *c, mf__graph **out, mf_error *err);

/* attention.c: x -> softmax attention with per-head q/k norm and a sigmoid gate per channel */
mf__act mf__part_gated_attention(mf__graph *g, const mf__config *c, mf__normed x);

/* deltanet.c: x -> Gated DeltaNet */
mf__act mf__part_delta_net(mf__graph *g, const mf__config *c, mf__normed x);

/* mla.c: x -> multi-head latent attention */
mf__act mf__part_mla(mf__graph *g, const mf__config *c, mf__normed x);

/* dense.c: a plain feed-forward of width c->dense.n_inner, as the combine graph of a dense layer */
mf_status mf__part_dense(const mf__config *c, mf__graph **out, mf_error *err);

/* moe.c: router at the end of a mix graph, and the three MoE graphs of a layer kind */
void mf__part_router(mf__graph *g, const mf__config *c, mf__normed x, mf__w bias, mf__op_params route);
mf_status mf__part_shared(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_experts(const mf__config *c, mf__graph **out, mf_error *err);
mf_status mf__part_combine(const mf__config *c, mf__graph **out, mf_error *err);

#endif
