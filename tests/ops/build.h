/* Graphs of one op: what op_case.build may be. */
#ifndef TESTS_OPS_BUILD_H
#define TESTS_OPS_BUILD_H

#include "harness.h"

void build_embed(mf__graph *g, const op_case *c);
void build_norm(mf__graph *g, const op_case *c);
void build_part_norm(mf__graph *g, const op_case *c);
void build_layer_norm(mf__graph *g, const op_case *c);
void build_matmul(mf__graph *g, const op_case *c);
void build_split(mf__graph *g, const op_case *c);
void build_rope(mf__graph *g, const op_case *c);
void build_kv_append(mf__graph *g, const op_case *c);
void build_attention(mf__graph *g, const op_case *c);
void build_attention_picked(mf__graph *g, const op_case *c);
void build_index(mf__graph *g, const op_case *c);
void build_join(mf__graph *g, const op_case *c);
void build_split_at(mf__graph *g, const op_case *c);
void build_mla(mf__graph *g, const op_case *c);
void build_mla_picked(mf__graph *g, const op_case *c);
void build_sigmoid_gate(mf__graph *g, const op_case *c);
void build_conv1d(mf__graph *g, const op_case *c);
void build_qk_norm(mf__graph *g, const op_case *c);
void build_decay_beta(mf__graph *g, const op_case *c);
void build_delta_net(mf__graph *g, const op_case *c);
void build_ssm(mf__graph *g, const op_case *c);
void build_parts_norm(mf__graph *g, const op_case *c);
void build_copy(mf__graph *g, const op_case *c);
void build_gated_norm(mf__graph *g, const op_case *c);
void build_compress(mf__graph *g, const op_case *c);
void build_far_attention(mf__graph *g, const op_case *c);
void build_streams_read(mf__graph *g, const op_case *c);
void build_streams_write(mf__graph *g, const op_case *c);
void build_route_given(mf__graph *g, const op_case *c);
void build_add(mf__graph *g, const op_case *c);
void build_map(mf__graph *g, const op_case *c);
void build_route(mf__graph *g, const op_case *c);
void build_identity(mf__graph *g, const op_case *c);
void build_weigh(mf__graph *g, const op_case *c);
void build_glu(mf__graph *g, const op_case *c);
void build_experts(mf__graph *g, const op_case *c);
void build_combine(mf__graph *g, const op_case *c);

/* op_case.fill for products of rounded activations: what rounding leaves as it is. Multiples of a step up to the
 * largest number that the planes hold, which is among every 32; both signs of it, and values at which the other plane
 * changes.
 */
void fill_planes(op_rig *rig);

#endif
