/* The mixture-of-experts half of a layer. */
#include "model/parts.h"

void mf__part_router(mf__graph *g, const mf__config *c, mf__normed x, mf__w bias, mf__op_params route) {
    mf__w w = mf__g_matrix(g, "mlp.gate.weight", c->moe.n_experts, c->n_hidden);
    mf__ids ids;
    mf__shares shares;
    mf__g_route(g, mf__g_project(g, x, w, MF_NO_WEIGHT, "router"), bias, route, &ids, &shares);
    mf__g_export(g, ids.id, MF_PORT_ROUTE_IDS);
    mf__g_export(g, shares.id, MF_PORT_ROUTE_SHARES);
}

mf_status mf__part_shared(const mf__config *c, mf__graph **out, mf_error *err) {
    int64_t inner = c->moe.n_shared_inner, hidden = c->n_hidden;
    MF__TRY(mf__graph_create("shared", out, err));
    mf__graph *g = *out;
    mf__normed x = mf__g_in_normed(g, MF_PORT_H_POST, c->n_hidden);
    bool plain = c->moe.shared_plain;
    const char *gate_name = plain ? "mlp.shared_experts.gate_proj.weight" : "mlp.shared_expert.gate_proj.weight";
    const char *up_name = plain ? "mlp.shared_experts.up_proj.weight" : "mlp.shared_expert.up_proj.weight";
    const char *down_name = plain ? "mlp.shared_experts.down_proj.weight" : "mlp.shared_expert.down_proj.weight";
    mf__w w_gate = mf__g_matrix(g, gate_name, inner, hidden);
    mf__w w_up = mf__g_matrix(g, up_name, inner, hidden);
    mf__w w_down = mf__g_matrix(g, down_name, hidden, inner);
    mf__act gate = mf__g_project(g, x, w_gate, MF_NO_WEIGHT, "shared_gate_proj");
    mf__act up = mf__g_project(g, x, w_up, MF_NO_WEIGHT, "shared_up_proj");
    mf__act down = mf__g_matmul(g, mf__g_glu(g, gate, up), w_down, MF_NO_WEIGHT, "shared_down_proj");
    mf__g_export(g, down.id, MF_PORT_SHARED);
    if (!plain) {
        mf__w w_score = mf__g_matrix(g, "mlp.shared_expert_gate.weight", 1, hidden);
        mf__act score = mf__g_project(g, x, w_score, MF_NO_WEIGHT, "shared_score");
        mf__g_export(g, score.id, MF_PORT_SHARED_SCORE);
    }
    return mf__graph_finish(g, err);
}

mf_status mf__part_experts(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("experts", out, err));
    mf__graph *g = *out;
    mf__normed x = mf__g_in_normed(g, MF_PORT_H_POST, c->n_hidden);
    mf__pairs pairs = mf__g_experts(g, x, mf__g_in_ids(g, c->moe.top_k), c->moe.top_k, c->moe.n_inner);
    mf__g_export(g, pairs.id, MF_PORT_PAIRS);
    return mf__graph_finish(g, err);
}

mf_status mf__part_combine(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("combine", out, err));
    mf__graph *g = *out;
    mf__residual h = mf__g_in_residual(g, MF_PORT_H_MID, c->n_hidden);
    mf__pairs pairs = mf__g_in_pairs(g, c->moe.top_k * c->n_hidden);
    mf__shares shares = mf__g_in_shares(g, c->moe.top_k);
    mf__act shared = {-1}, score = {-1};
    if (c->moe.n_shared_inner) {
        shared = mf__g_in_act(g, MF_PORT_SHARED, c->n_hidden);
        if (!c->moe.shared_plain) score = mf__g_in_act(g, MF_PORT_SHARED_SCORE, 1);
    }
    mf__residual y = mf__g_combine(g, h, pairs, shares, shared, score);
    mf__g_export(g, y.id, MF_PORT_HIDDEN);
    return mf__graph_finish(g, err);
}
