/* The second half of a layer: a mixture of experts, or one dense feed-forward. */
#include <math.h>
#include <stdio.h>

#include "model/parts.h"

/* The choice, as c->has says; its logits too, where they are wanted. */
static void route(mf__graph *g, const mf__config *c, mf__residual h, mf__normed x, bool hashed, mf__ids *ids,
                  mf__shares *shares, mf__port scores) {
    int64_t n = c->moe.n_experts + c->moe.n_identity;
    mf__op_params params = {.route = {.kind = c->has.route,
                                      .n_experts = (int32_t)n,
                                      .top_k = c->moe.top_k,
                                      .n_groups = c->moe.n_groups,
                                      .top_groups = c->moe.top_groups,
                                      .renorm = c->moe.renorm,
                                      .eps = c->moe.eps,
                                      .scale = (float)c->moe.scale}};
    mf__op_params scale = {.map = {.kind = MF_MAP_SCALE, .a = (float)(1 / sqrt(c->n_hidden))}};
    if (c->has.route_apart) x = mf__g_norm(g, h, mf__g_vector(g, "router.scale", 1, c->n_hidden), c->eps);
    mf__w w = mf__g_matrix(g, "mlp.gate.weight", n, c->n_hidden), factors = MF_NO_WEIGHT;
    mf__w bias = c->has.route_bias ? mf__g_vector(g, "mlp.gate.bias", 1, n) : MF_NO_WEIGHT;
    mf__w choice =
        c->has.choice_bias && !hashed ? mf__g_vector(g, "mlp.gate.e_score_correction_bias", 1, n) : MF_NO_WEIGHT;
    mf__act logits = mf__g_project(g, x, w, bias, "router");
    if (c->has.route_apart) {
        mf__g_map(g, logits.id, MF_NO_WEIGHT, scale, "router_scale");
        factors = mf__g_vector(g, "router.per_expert_scale", 1, n);
    }
    if (c->moe.scores) mf__g_export(g, logits.id, scores);
    if (hashed) { /* a table has the experts of every token */
        mf__w table = mf__g_vector(g, "mlp.gate.tid2eid", c->n_vocab, c->moe.table_k);
        mf__act given = {mf__g_embed(g, mf__g_in_tokens(g), table).id}, rest;
        if (c->moe.top_k < c->moe.table_k) mf__g_split(g, given, c->moe.top_k, &given, &rest, "first experts");
        mf__g_route_given(g, logits, given, params, ids, shares);
        return;
    }
    mf__g_route(g, logits, choice, factors, params, ids, shares);
}

/* What the experts read of the residual. */
mf__normed mf__part_post_norm(mf__graph *g, const mf__config *c, mf__residual h) {
    const char *name = c->has.sandwich  ? "pre_feedforward_layernorm_2.weight"
                       : c->has.streams ? "ffn_norm.weight"
                                        : "post_attention_layernorm.weight";
    return mf__g_norm(g, h, mf__g_vector(g, name, 1, c->n_hidden), c->eps);
}

void mf__part_router(mf__graph *g, const mf__config *c, mf__residual h, mf__normed *x, bool hashed) {
    mf__ids ids;
    mf__shares shares;
    route(g, c, h, *x, hashed, &ids, &shares, MF_PORT_ROUTE_SCORES);
    if (c->has.weigh_first) {
        if (c->moe.n_shared_inner) mf__g_export(g, x->id, MF_PORT_SHARED_IN);
        *x = mf__g_weigh(g, *x, shares);
    }
    mf__g_export(g, ids.id, MF_PORT_ROUTE_IDS);
    mf__g_export(g, shares.id, MF_PORT_ROUTE_SHARES);
}

/* A router that reads what the experts read, which is what the layer before left in H_POST. What it gives at once is
 * added to the residual. */
mf__residual mf__part_shortcut(mf__graph *g, const mf__config *c, mf__residual h) {
    mf__ids ids;
    mf__shares shares;
    mf__normed x = mf__g_in_normed(g, MF_PORT_H_POST, c->n_hidden);
    route(g, c, h, x, false, &ids, &shares, MF_PORT_ROUTE_SCORES);
    if (c->moe.n_identity) h = mf__g_add(g, h, mf__g_identity(g, x, ids, shares, c->moe.n_experts));
    mf__g_export(g, ids.id, MF_PORT_ROUTE_IDS);
    mf__g_export(g, shares.id, MF_PORT_ROUTE_SHARES);
    return h;
}

/* A layer's router on the residual as an earlier layer left it: the layer's own attention changes it little, so most
 * of the experts it will choose are known before its turn. */
mf_status mf__part_ahead(const mf__config *c, mf__port of, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create(of == MF_PORT_HIDDEN ? "ahead" : "early", out, err));
    mf__graph *g = *out;
    mf__residual h = {-1};
    mf__ids ids;
    mf__shares shares;
    mf__normed x = {-1};
    mf__act unused;
    if (c->has.shortcut)
        x = mf__g_in_normed(g, MF_PORT_H_POST, c->n_hidden); /* then it is no guess */
    else
        h = mf__g_in_residual(g, of, mf__config_wide(c));
    if (c->has.streams) h = mf__part_streams_read(g, c, h, "hc_ffn", &unused);
    if (!c->has.route_apart && !c->has.shortcut) x = mf__part_post_norm(g, c, h);
    route(g, c, h, x, false, &ids, &shares, MF_PORT_AHEAD_SCORES);
    if (c->moe.n_identity) mf__g_identity(g, x, ids, shares, c->moe.n_experts);
    mf__g_export(g, ids.id, MF_PORT_AHEAD_IDS);
    if (c->moe.scores) mf__g_export(g, shares.id, MF_PORT_AHEAD_SHARES);
    return mf__graph_finish(g, err);
}

/* x -> down(glu(gate x, up x)), or down(relu(up x)^2), with the weights PREFIX.gate_proj.weight and so on */
static mf__act feed_forward(mf__graph *g, const mf__config *c, mf__normed x, const char *prefix, int64_t inner) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char name[96];
    mf__w w[3];
    for (int p = 0; p < 3; p++) {
        snprintf(name, sizeof name, "%s.%s.weight", prefix, parts[p]);
        if (p == 0 && c->moe.glu.kind == MF_GLU_RELU2) continue;
        w[p] = mf__g_matrix(g, name, p == 2 ? c->n_hidden : inner, p == 2 ? inner : c->n_hidden);
    }
    if (c->moe.glu.kind == MF_GLU_RELU2) {
        mf__op_params square = {.map = {.kind = MF_MAP_RELU2}};
        mf__act y = mf__g_project(g, x, w[1], MF_NO_WEIGHT, parts[1]);
        mf__g_map(g, y.id, MF_NO_WEIGHT, square, "square");
        return mf__g_matmul(g, y, w[2], MF_NO_WEIGHT, parts[2]);
    }
    mf__act gate = mf__g_project(g, x, w[0], MF_NO_WEIGHT, parts[0]);
    mf__act up = mf__g_project(g, x, w[1], MF_NO_WEIGHT, parts[1]);
    return mf__g_matmul(g, mf__g_glu(g, gate, up, c->moe.dense_glu), w[2], MF_NO_WEIGHT, parts[2]);
}

/* x in place -> its norm */
static void norm_act(mf__graph *g, const mf__config *c, mf__act x, const char *weight, const char *label) {
    mf__g_part_norm(g, x, mf__g_vector(g, weight, 1, c->n_hidden), c->n_hidden, c->eps, label);
}

static mf_status dense_beside(mf__graph *g, const mf__config *c, mf_error *err) {
    mf__residual h = mf__g_in_residual(g, MF_PORT_H_MID, c->n_hidden);
    mf__w w = mf__g_vector(g, "pre_feedforward_layernorm.weight", 1, c->n_hidden);
    mf__act y = feed_forward(g, c, mf__g_norm(g, h, w, c->eps), "mlp", c->moe.n_shared_inner);
    norm_act(g, c, y, "post_feedforward_layernorm_1.weight", "dense_norm");
    mf__g_export(g, y.id, MF_PORT_SHARED);
    return mf__graph_finish(g, err);
}

mf_status mf__part_shared(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("shared", out, err));
    mf__graph *g = *out;
    if (c->has.shared == MF_SHARED_DENSE) return dense_beside(g, c, err);
    bool apart = c->has.weigh_first || c->has.shortcut;
    mf__normed x = mf__g_in_normed(g, apart ? MF_PORT_SHARED_IN : MF_PORT_H_POST, c->n_hidden);
    mf__act down = feed_forward(g, c, x, c->has.shortcut ? "mlp" : "mlp.shared_expert", c->moe.n_shared_inner);
    mf__g_export(g, down.id, MF_PORT_SHARED);
    if (c->has.shared == MF_SHARED_GATED) {
        mf__w w_score = mf__g_matrix(g, "mlp.shared_expert_gate.weight", 1, c->n_hidden);
        mf__g_export(g, mf__g_project(g, x, w_score, MF_NO_WEIGHT, "shared_score").id, MF_PORT_SHARED_SCORE);
    }
    return mf__graph_finish(g, err);
}

mf_status mf__part_experts(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("experts", out, err));
    mf__graph *g = *out;
    mf__op_params p = {.moe = {.top_k = c->moe.top_k, .n_inner = c->moe.n_inner, .glu = c->moe.glu}};
    mf__normed x = mf__g_in_normed(g, MF_PORT_H_POST, c->n_hidden);
    mf__pairs pairs = mf__g_experts(g, x, mf__g_in_ids(g, c->moe.top_k), p);
    mf__g_export(g, pairs.id, MF_PORT_PAIRS);
    return mf__graph_finish(g, err);
}

/* (h + norm(norm(experts) + shared)) * the layer's scalar */
static mf__residual combine_normed(mf__graph *g, const mf__config *c, mf__residual h, mf__act experts, mf__act shared) {
    mf__op_params as_it_is = {.map = {.kind = MF_MAP_SCALE, .a = 1}};
    norm_act(g, c, experts, "post_feedforward_layernorm_2.weight", "experts_norm");
    mf__act both = mf__g_sum(g, experts, shared);
    norm_act(g, c, both, "post_feedforward_layernorm.weight", "ffn_norm");
    mf__residual y = mf__g_add(g, h, both);
    mf__g_map(g, y.id, mf__g_vector(g, "layer_scalar", 1, 1), as_it_is, "layer_scalar");
    return y;
}

mf_status mf__part_combine(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("combine", out, err));
    mf__graph *g = *out;
    mf__residual h = mf__g_in_residual(g, MF_PORT_H_MID, mf__config_wide(c));
    mf__pairs pairs = mf__g_in_pairs(g, c->moe.top_k * c->n_hidden);
    mf__shares shares = mf__g_in_shares(g, c->moe.top_k);
    mf__act shared = {-1}, score = {-1};
    if (c->moe.n_shared_inner) shared = mf__g_in_act(g, MF_PORT_SHARED, c->n_hidden);
    if (c->moe.n_shared_inner && c->has.shared == MF_SHARED_GATED) score = mf__g_in_act(g, MF_PORT_SHARED_SCORE, 1);
    if (c->has.streams) {
        mf__act mix = mf__g_in_act(g, MF_PORT_STREAMS, c->hc.n * (c->hc.n + 1));
        mf__act experts = mf__g_combine_alone(g, pairs, shares, shared);
        mf__g_export(g, mf__g_streams_write(g, h, experts, mix, c->hc.n).id, MF_PORT_HIDDEN);
        return mf__graph_finish(g, err);
    }
    mf__residual y = c->has.sandwich
                         ? combine_normed(g, c, h, mf__g_combine_alone(g, pairs, shares, (mf__act){-1}), shared)
                         : mf__g_combine(g, h, pairs, shares, shared, score);
    mf__g_export(g, y.id, MF_PORT_HIDDEN);
    return mf__graph_finish(g, err);
}

mf_status mf__part_nothing(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("nothing", out, err));
    mf__graph *g = *out;
    mf__g_export(g, mf__g_copy(g, mf__g_in_residual(g, MF_PORT_H_MID, c->n_hidden)).id, MF_PORT_HIDDEN);
    return mf__graph_finish(g, err);
}

mf_status mf__part_dense(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("dense", out, err));
    mf__graph *g = *out;
    mf__residual h = mf__g_in_residual(g, MF_PORT_H_MID, c->n_hidden);
    mf__normed x = mf__g_in_normed(g, MF_PORT_H_POST, c->n_hidden);
    mf__residual y = mf__g_add(g, h, feed_forward(g, c, x, "mlp", c->n_dense_inner));
    mf__g_export(g, y.id, MF_PORT_HIDDEN);
    return mf__graph_finish(g, err);
}
