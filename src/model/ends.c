/* Both ends of every model: the embedding table, and the final norm with the head. */
#include "model/parts.h"

mf_status mf__part_embed(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("embed", out, err));
    mf__graph *g = *out;
    mf__op_params scale = {.map = {.kind = MF_MAP_SCALE, .a = c->embed_scale}};
    mf__w table = mf__g_matrix(g, "model.embed_tokens.weight", c->n_vocab, c->n_hidden);
    mf__residual h = mf__g_embed(g, mf__g_in_tokens(g), table);
    if (c->embed_scale > 0) mf__g_map(g, h.id, MF_NO_WEIGHT, scale, "embed_scale");
    mf__act all = {h.id}; /* every stream begins as the embedding */
    for (int32_t i = 1; i < c->hc.n; i++) all = mf__g_join(g, all, (mf__act){h.id}, "streams");
    mf__g_export(g, all.id, MF_PORT_HIDDEN);
    return mf__graph_finish(g, err);
}

mf_status mf__part_tail(const mf__config *c, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create("tail", out, err));
    mf__graph *g = *out;
    mf__op_params cap = {.map = {.kind = MF_MAP_CAP, .a = c->logit_cap}};
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, mf__config_wide(c));
    if (c->has.streams) h = mf__part_streams_read(g, c, h, "model.hc_head", NULL);
    mf__normed x = mf__g_norm(g, h, mf__g_vector(g, "model.norm.weight", 1, c->n_hidden), c->eps);
    const char *name = c->tied_head ? "model.embed_tokens.weight" : "lm_head.weight";
    mf__act logits = mf__g_project(g, x, mf__g_matrix(g, name, c->n_vocab, c->n_hidden), MF_NO_WEIGHT, "head");
    if (c->logit_cap > 0) mf__g_map(g, logits.id, MF_NO_WEIGHT, cap, "logit_cap");
    mf__g_export(g, x.id, MF_PORT_FINAL_NORM);
    mf__g_export(g, logits.id, MF_PORT_LOGITS);
    return mf__graph_finish(g, err);
}

/* The weights of a norm that has none. */
mf__w mf__part_ones(mf__graph *g, int32_t n) {
    float ones[MF_ROPE_MAX];
    for (int32_t i = 0; i < n && i < MF_ROPE_MAX; i++) ones[i] = 1;
    return mf__g_const(g, "ones", ones, n <= MF_ROPE_MAX ? n : 0);
}
