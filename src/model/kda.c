/* Kimi Delta Attention: the delta rule with a decay for every channel.
 *
 *   x -> q_proj, k_proj, v_proj -> conv + silu of each -> [q | k | v], q and k normalised -.
 *   x -> f_a_proj -> f_b_proj -> decay                                                      delta rule -.
 *   x -> b_proj -> beta                                                                                 |
 *   x -> g_a_proj -> g_b_proj ------------------------------------------- norm * sigmoid(g) -> o_proj <-' */
#include <stdio.h>

#include "model/parts.h"

static mf__w weight(mf__graph *g, char letter, const char *rest, int64_t rows, int64_t cols, bool matrix) {
    char name[64];
    snprintf(name, sizeof name, "self_attn.%c_%s", letter, rest);
    return matrix ? mf__g_matrix(g, name, rows, cols) : mf__g_vector(g, name, rows, cols);
}

/* Three convolutions, whose inputs lie one behind the other in the state. */
static mf__act queries_keys_values(mf__graph *g, const mf__config *c, mf__normed x, int64_t width) {
    mf__act part[3];
    for (int i = 0; i < 3; i++)
        part[i] = mf__g_project(g, x, weight(g, "qkv"[i], "proj.weight", width, c->n_hidden, true), MF_NO_WEIGHT,
                                i == 0   ? "q_proj"
                                : i == 1 ? "k_proj"
                                         : "v_proj");
    for (int i = 0; i < 3; i++) {
        mf__op_params conv = {
            .conv = {.n_kernel = c->delta.n_kernel, .at = (int32_t)(i * (c->delta.n_kernel - 1) * width)}};
        mf__w w = weight(g, "qkv"[i], "conv1d.weight", width, c->delta.n_kernel, false);
        part[i] = mf__g_conv1d(g, part[i], w, MF_NO_WEIGHT, conv);
    }
    return mf__g_join(g, mf__g_join(g, part[0], part[1], "q | k"), part[2], "q | k | v");
}

/* x -> A -> B: a wide matrix of low rank. */
static mf__act through(mf__graph *g, const mf__config *c, mf__normed x, char letter, int64_t width, const char *label) {
    mf__w a = weight(g, letter, "a_proj.weight", c->delta.k_dim, c->n_hidden, true);
    mf__w b = weight(g, letter, "b_proj.weight", width, c->delta.k_dim, true);
    return mf__g_matmul(g, mf__g_project(g, x, a, MF_NO_WEIGHT, label), b, MF_NO_WEIGHT, label);
}

mf__act mf__part_kda(mf__graph *g, const mf__config *c, mf__normed x) {
    int64_t heads = c->delta.n_v_heads, width = heads * c->delta.v_dim, hidden = c->n_hidden;
    mf__op_params p = {.delta = {.n_k_heads = c->delta.n_k_heads,
                                 .k_dim = c->delta.k_dim,
                                 .n_v_heads = c->delta.n_v_heads,
                                 .v_dim = c->delta.v_dim,
                                 .by_channel = true}};
    mf__op_params norm = {.norm = {.eps = c->eps, .part = c->delta.v_dim, .sigmoid = true}};
    mf__act decay, beta, qkv = queries_keys_values(g, c, x, width);
    mf__act b = mf__g_project(g, x, mf__g_matrix(g, "self_attn.b_proj.weight", heads, hidden), MF_NO_WEIGHT, "b_proj");
    mf__act f = through(g, c, x, 'f', width, "f_proj"), z = through(g, c, x, 'g', width, "g_proj");
    mf__g_qk_norm(g, qkv, p);
    mf__g_decay_beta(g, f, b, mf__g_vector(g, "self_attn.A_log", 1, heads),
                     mf__g_vector(g, "self_attn.dt_bias", 1, width), &decay, &beta);
    mf__act o = mf__g_delta_net(g, qkv, decay, beta, p);
    mf__act y = mf__g_gated_norm(g, o, z, mf__g_vector(g, "self_attn.o_norm.weight", 1, c->delta.v_dim), norm);
    return mf__g_matmul(g, y, mf__g_matrix(g, "self_attn.o_proj.weight", hidden, width), MF_NO_WEIGHT, "o_proj");
}
