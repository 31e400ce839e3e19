/* A short convolution between two gates.
 *
 *   x -> in_proj -> [b | c | z],  b * z -> conv -> * c -> out_proj
 *
 * What is remembered are the last rows of b * z. */
#include "model/parts.h"

mf__act mf__part_short_conv(mf__graph *g, const mf__config *c, mf__normed x) {
    int32_t hidden = c->n_hidden, kernel = c->delta.n_kernel;
    mf__w w_in = mf__g_matrix(g, "conv.in_proj.weight", 3 * (int64_t)hidden, hidden);
    mf__w w_conv = mf__g_vector(g, "conv.conv.weight", hidden, kernel);
    mf__w w_out = mf__g_matrix(g, "conv.out_proj.weight", hidden, hidden);
    mf__glu product = {.kind = MF_GLU_PRODUCT};
    mf__op_params conv = {.conv = {.n_kernel = kernel, .plain = true}};
    mf__act before, after, z;
    mf__g_split(g, mf__g_project(g, x, w_in, MF_NO_WEIGHT, "in_proj"), hidden, &before, &after, "b | rest");
    mf__g_split(g, after, hidden, &after, &z, "c | z");
    mf__act y = mf__g_conv1d(g, mf__g_glu(g, before, z, product), w_conv, MF_NO_WEIGHT, conv);
    return mf__g_matmul(g, mf__g_glu(g, after, y, product), w_out, MF_NO_WEIGHT, "out_proj");
}
