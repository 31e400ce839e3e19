/* Mamba-2: a state space with one decay for each head.
 *
 *   x -> in_proj -> [z | u B C | dt],  u B C -> conv + silu -.
 *                                      dt -------------------- ssm -> * silu(z) -> norm in groups -> out_proj */
#include "model/parts.h"

mf__act mf__part_mamba(mf__graph *g, const mf__config *c, mf__normed x) {
    int32_t heads = c->ssm.n_heads, inner = heads * c->ssm.dim, shared = 2 * c->ssm.n_groups * c->ssm.n_state;
    int32_t channels = inner + shared;
    mf__w w_in = mf__g_matrix(g, "mixer.in_proj.weight", (int64_t)inner + channels + heads, c->n_hidden);
    mf__w w_conv = mf__g_vector(g, "mixer.conv1d.weight", channels, c->ssm.n_kernel);
    mf__w b_conv = c->ssm.conv_bias ? mf__g_vector(g, "mixer.conv1d.bias", 1, channels) : MF_NO_WEIGHT;
    mf__w w[3] = {mf__g_vector(g, "mixer.A_log", 1, heads), mf__g_vector(g, "mixer.dt_bias", 1, heads),
                  mf__g_vector(g, "mixer.D", 1, heads)};
    mf__op_params conv = {.conv = {.n_kernel = c->ssm.n_kernel}};
    mf__op_params p = {.ssm = {heads, c->ssm.dim, c->ssm.n_groups, c->ssm.n_state}};
    mf__act z, rest, xbc, dt;
    mf__g_split(g, mf__g_project(g, x, w_in, MF_NO_WEIGHT, "in_proj"), inner, &z, &rest, "z | rest");
    mf__g_split(g, rest, channels, &xbc, &dt, "u B C | dt");
    mf__act y = mf__g_ssm(g, mf__g_conv1d(g, xbc, w_conv, b_conv, conv), dt, w, p);
    y = mf__g_glu(g, z, y, (mf__glu){.kind = MF_GLU_SILU});
    mf__g_parts_norm(g, y, mf__g_vector(g, "mixer.norm.weight", 1, inner), inner / c->ssm.n_groups, c->eps, "ssm_norm");
    mf__w w_out = mf__g_matrix(g, "mixer.out_proj.weight", c->n_hidden, inner);
    return mf__g_matmul(g, y, w_out, MF_NO_WEIGHT, "out_proj");
}
