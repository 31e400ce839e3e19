/* Gated DeltaNet: linear attention with a recurrent state.
 *
 *   x -> in_proj_qkv -> conv + silu -> [q | k | v], q and k normalised -.
 *   x -> in_proj_a -> decay                                              delta rule -> norm * silu(z) -> out_proj
 *   x -> in_proj_b -> beta                                               |
 *   x -> in_proj_z ------------------------------------------------------'                                       */
#include "model/parts.h"

mf__act mf__part_delta_net(mf__graph *g, const mf__config *c, mf__normed x) {
    int64_t keys = (int64_t)c->delta.n_k_heads * c->delta.k_dim, values = (int64_t)c->delta.n_v_heads * c->delta.v_dim;
    int64_t channels = 2 * keys + values, hidden = c->n_hidden;
    mf__w w_qkv = mf__g_matrix(g, "linear_attn.in_proj_qkv.weight", channels, hidden);
    mf__w w_z = mf__g_matrix(g, "linear_attn.in_proj_z.weight", values, hidden);
    mf__w w_b = mf__g_matrix(g, "linear_attn.in_proj_b.weight", c->delta.n_v_heads, hidden);
    mf__w w_a = mf__g_matrix(g, "linear_attn.in_proj_a.weight", c->delta.n_v_heads, hidden);
    mf__w w_conv = mf__g_vector(g, "linear_attn.conv1d.weight", channels, c->delta.n_kernel);
    mf__w a_log = mf__g_vector(g, "linear_attn.A_log", 1, c->delta.n_v_heads);
    mf__w dt_bias = mf__g_vector(g, "linear_attn.dt_bias", 1, c->delta.n_v_heads);
    mf__w w_norm = mf__g_vector(g, "linear_attn.norm.weight", 1, c->delta.v_dim);
    mf__w w_out = mf__g_matrix(g, "linear_attn.out_proj.weight", hidden, values);
    mf__op_params p = {.delta = {.n_k_heads = c->delta.n_k_heads,
                                 .k_dim = c->delta.k_dim,
                                 .n_v_heads = c->delta.n_v_heads,
                                 .v_dim = c->delta.v_dim}};
    mf__op_params conv = {.conv = {.n_kernel = c->delta.n_kernel}};
    mf__op_params norm = {.norm = {.eps = c->eps, .part = c->delta.v_dim}};

    mf__act qkv = mf__g_project(g, x, w_qkv, MF_NO_WEIGHT, "in_proj_qkv");
    mf__act z = mf__g_project(g, x, w_z, MF_NO_WEIGHT, "in_proj_z");
    mf__act b = mf__g_project(g, x, w_b, MF_NO_WEIGHT, "in_proj_b");
    mf__act a = mf__g_project(g, x, w_a, MF_NO_WEIGHT, "in_proj_a");
    mf__act y = mf__g_conv1d(g, qkv, w_conv, MF_NO_WEIGHT, conv);
    mf__g_qk_norm(g, y, p);
    mf__act decay, beta;
    mf__g_decay_beta(g, a, b, a_log, dt_bias, &decay, &beta);
    mf__act o = mf__g_delta_net(g, y, decay, beta, p);
    mf__act gated = mf__g_gated_norm(g, o, z, w_norm, norm);
    return mf__g_matmul(g, gated, w_out, MF_NO_WEIGHT, "out_proj");
}
