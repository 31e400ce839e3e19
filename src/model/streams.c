/* Hyper-connections: n streams in place of one residual. */
#include <stdio.h>

#include "model/parts.h"

/* NAME_fn, NAME_base and NAME_scale are the weights. */
mf__residual mf__part_streams_read(mf__graph *g, const mf__config *c, mf__residual x, const char *name, mf__act *mix) {
    int32_t n = c->hc.n, n_z = mix ? n * (n + 2) : n;
    mf__op_params p = {.streams = {.n = n, .n_steps = mix ? c->hc.n_steps : 0, .eps = c->eps, .hc_eps = c->hc.eps}};
    char weight[64];
    snprintf(weight, sizeof weight, "%s_fn", name);
    mf__w fn = mf__g_vector(g, weight, n_z, mf__config_wide(c)); /* small, and never quantized */
    snprintf(weight, sizeof weight, "%s_base", name);
    mf__w base = mf__g_vector(g, weight, 1, n_z);
    snprintf(weight, sizeof weight, "%s_scale", name);
    mf__w scale = mf__g_vector(g, weight, 1, mix ? 3 : 1);
    mf__act z = mf__g_matmul(g, (mf__act){x.id}, fn, MF_NO_WEIGHT, "streams_fn");
    return mf__g_streams_read(g, x, z, base, scale, p, mix);
}
