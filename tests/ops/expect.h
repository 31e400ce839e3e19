/* Every op again, in double precision and from the model's equations rather than from the ref backend's loops. */
#ifndef TESTS_OPS_EXPECT_H
#define TESTS_OPS_EXPECT_H

#include "harness.h"

double expect_act(const mf__glu *glu, double gate, double up); /* a gated activation */

void expect_embed(const op_rig *rig, op_result *want);
void expect_rms_norm(const op_rig *rig, op_result *want);
void expect_layer_norm(const op_rig *rig, op_result *want);
void expect_matmul(const op_rig *rig, op_result *want);
void expect_split_q_gate(const op_rig *rig, op_result *want);
void expect_rope(const op_rig *rig, op_result *want);
void expect_kv_append(const op_rig *rig, op_result *want);
void expect_index(const op_rig *rig, op_result *want);
void expect_join(const op_rig *rig, op_result *want);
void expect_attention(const op_rig *rig, op_result *want);
void expect_split(const op_rig *rig, op_result *want);
void expect_mla_attention(const op_rig *rig, op_result *want);
void expect_sigmoid_gate(const op_rig *rig, op_result *want);
void expect_conv1d(const op_rig *rig, op_result *want);
void expect_qk_norm(const op_rig *rig, op_result *want);
void expect_decay_beta(const op_rig *rig, op_result *want);
void expect_delta_net(const op_rig *rig, op_result *want);
void expect_ssm(const op_rig *rig, op_result *want);
void expect_gated_norm(const op_rig *rig, op_result *want);
void expect_compress(const op_rig *rig, op_result *want);
void expect_far_attention(const op_rig *rig, op_result *want);
void expect_streams_read(const op_rig *rig, op_result *want);
void expect_streams_write(const op_rig *rig, op_result *want);
int op_sequence_of(const op_rig *rig, int32_t row, int64_t *pos);
void expect_add(const op_rig *rig, op_result *want);
void expect_map(const op_rig *rig, op_result *want);
void expect_route(const op_rig *rig, op_result *want);
void expect_identity(const op_rig *rig, op_result *want);
void expect_weigh(const op_rig *rig, op_result *want);
void expect_glu(const op_rig *rig, op_result *want);
void expect_experts(const op_rig *rig, op_result *want);
void expect_combine(const op_rig *rig, op_result *want);

#endif
