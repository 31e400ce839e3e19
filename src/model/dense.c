/* The feed-forward of layers without experts. */
#include "model/parts.h"

mf_status mf__part_dense(const mf__config *c, mf__graph **out, mf_error *err) {
    int64_t inner = c->dense.n_inner, hidden = c->n_hidden;
    MF__TRY(mf__graph_create("dense", out, err));
    mf__graph *g = *out;
    mf__residual h = mf__g_in_residual(g, MF_PORT_H_MID, c->n_hidden);
    mf__normed x = mf__g_in_normed(g, MF_PORT_H_POST, c->n_hidden);
    mf__w w_gate = mf__g_matrix(g, "mlp.gate_proj.weight", inner, hidden);
    mf__w w_up = mf__g_matrix(g, "mlp.up_proj.weight", inner, hidden);
    mf__w w_down = mf__g_matrix(g, "mlp.down_proj.weight", hidden, inner);
    mf__act gate = mf__g_project(g, x, w_gate, MF_NO_WEIGHT, "gate_proj");
    mf__act up = mf__g_project(g, x, w_up, MF_NO_WEIGHT, "up_proj");
    mf__act down = mf__g_matmul(g, mf__g_glu(g, gate, up), w_down, MF_NO_WEIGHT, "down_proj");
    mf__g_export(g, mf__g_add(g, h, down).id, MF_PORT_HIDDEN);
    return mf__graph_finish(g, err);
}
