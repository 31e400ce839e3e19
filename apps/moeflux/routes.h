/* Routes: which experts tokens went to.
 *
 * A file of routes begins with the line "moeflux-routes 1 LAYERS TOP_K EXPERTS" (LAYERS: those that have experts); then
 * come, for every token, TOP_K expert numbers for each layer: a byte each, or two, the low one first, where there are
 * more than 256 experts.
 *
 * A routing log has a line of JSON for every layer of every pass: how many tokens went to which expert. */
#ifndef MOEFLUX_ROUTES_H
#define MOEFLUX_ROUTES_H

#include "app.h"

typedef struct routes {
    int n_layers, top_k, n_experts;
    int64_t n_tokens;
    int32_t *ids; /* [n_tokens][n_layers][top_k] */
} routes;

mf_status routes_read(const char *path, routes *out, mf_error *err);
void routes_free(routes *r);

/* What the options want written, begun before a model is opened: sink is for its options. One model at a time. */
mf_status routing_start(const app_model_options *opt, mf_route_sink *sink, mf_error *err);
void routing_model(const mf_model_info *info); /* the one that was opened with the sink */
int routing_finish(int code);                  /* at the end of the program: its exit code, or that of a failed write */

#endif
