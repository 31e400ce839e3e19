/* moeflux bench --trace: recorded routes through the model's store, token by token and layer by layer: what is read,
 * what is found in memory, and how long it takes when nothing is computed. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "engine/experts.h"
#include "routes.h"

typedef struct trace {
    routes routes;
    mf__store *store;
    mf__turn *turn;
    int32_t *layers; /* [n_layers] of the model */
    int32_t *got;
    const void **blobs;
} trace;

static mf_status one_layer(trace *t, int layer, const int32_t *ids, mf_error *err) {
    mf_status st = mf__turn_begin(t->turn, layer, ids, NULL, t->routes.top_k, 1, err);
    for (int n = 1; st == MF_OK && n;) {
        st = mf__turn_next(t->turn, t->got, t->blobs, &n, err);
        if (st == MF_OK) mf__turn_done(t->turn, t->got, n);
    }
    mf__turn_end(t->turn);
    return st;
}

static mf_status replay(trace *t, mf_error *err) {
    const routes *r = &t->routes;
    for (int64_t i = 0; i < r->n_tokens; i++) {
        for (int l = 0; l < r->n_layers; l++)
            MF__TRY(one_layer(t, t->layers[l], r->ids + (i * r->n_layers + l) * r->top_k, err));
        if (app_interrupted(NULL)) return mf__fail(err, MF_E_CANCELLED, "interrupted");
    }
    return MF_OK;
}

/* The file must be of a model of this shape. */
static mf_status open_trace(trace *t, mf_model *model, const char *path, mf_error *err) {
    const mf_model_info *info = mf_model_info_get(model);
    mf__store_config c = mf__model_store_config(model);
    routes *r = &t->routes;
    int n = 0;
    MF__TRY(routes_read(path, r, err));
    if (r->n_layers != info->n_expert_layers || r->n_experts != info->n_experts)
        return mf__fail(err, MF_E_MISMATCH,
                        "%s is of a model with %d layers of %d experts; this one has %d layers of %d", path,
                        r->n_layers, r->n_experts, info->n_expert_layers, info->n_experts);
    t->store = mf__model_store(model);
    t->layers = calloc((size_t)r->n_layers, sizeof *t->layers);
    t->got = calloc((size_t)r->n_experts, sizeof *t->got);
    t->blobs = calloc((size_t)r->n_experts, sizeof *t->blobs);
    if (!t->layers || !t->got || !t->blobs) return mf__fail(err, MF_E_NOMEM, "no memory to replay routes");
    for (int l = 0; l < c.n_layers && n < r->n_layers; l++) {
        bool has = false;
        for (int d = 0; d < c.n_dirs; d++) has = has || c.files[d * c.n_layers + l];
        if (has) t->layers[n++] = l;
    }
    return mf__turn_create(t->store, &t->turn, err);
}

static void close_trace(trace *t) {
    mf__turn_free(t->turn);
    routes_free(&t->routes);
    free(t->layers);
    free(t->got);
    free(t->blobs);
}

static mf_status show(const bench_options *opt, const mf_model_info *info, const trace *t, series *speed,
                      const mf_stats *s, mf_error *err) {
    double tokens = (double)(t->routes.n_tokens * speed->n), read = (double)(s->bytes_read + s->bytes_prefetched);
    double hit_rate = s->wanted ? (double)s->hits / (double)s->wanted : 0, stall = (double)s->stall_ns * 1e-9;
    double gb_s = s->busy_ns ? read / (double)s->busy_ns : 0;
    char per_token[APP_BYTES_TEXT], budget[APP_BYTES_TEXT];
    if (opt->json) {
        json_t *o = json_pack("{s:s, s:s, s:s, s:b, s:s, s:I, s:I, s:i, s:f, s:f, s:f, s:f, s:f}", "mode", "trace",
                              "model", info->name, "io", s->io, "direct", s->direct, "policy", s->policy,
                              "cache_budget", (json_int_t)s->budget, "tokens", (json_int_t)t->routes.n_tokens, "runs",
                              speed->n, "hit_rate", hit_rate, "bytes_read_per_token", read / tokens, "stall_s",
                              stall / speed->n, "gb_s", gb_s, "disk_ceiling_gb_s", (double)s->ceiling * 1e-9);
        series_json(o, "tok_s", speed);
        return bench_print_json(o, err);
    }
    printf("%s: %lld recorded tokens, policy %s, %s%s, %s for experts\n", info->name, (long long)t->routes.n_tokens,
           s->policy, s->io, s->direct ? ", direct" : "",
           s->budget ? app_bytes((double)s->budget, budget) : "no limit");
    series_print("replay", speed, "tokens/s");
    printf("%.2f %% of %lld experts were in memory; a token read %s at %.2f GB/s; waited %.2f s a run\n",
           100 * hit_rate, (long long)s->wanted, app_bytes(read / tokens, per_token), gb_s, stall / speed->n);
    return MF_OK;
}

static mf_status run(const bench_options *opt, mf_model *model, trace *t, mf_error *err) {
    series speed = {0};
    mf_stats stats;
    mf__store_stats_reset(t->store);
    for (int64_t i = 0; i < (opt->repeat_given ? opt->repeat : 1); i++) {
        double began = app_seconds();
        MF__TRY(replay(t, err));
        series_add(&speed, (double)t->routes.n_tokens / (app_seconds() - began));
    }
    mf__store_stats_get(t->store, &stats);
    return show(opt, mf_model_info_get(model), t, &speed, &stats, err);
}

mf_status bench_trace(const char *dir, const bench_options *opt, mf_error *err) {
    mf_model *model;
    trace t = {0};
    MF__TRY(app_open(dir, &opt->model, &model, err));
    mf_status st = open_trace(&t, model, opt->trace, err);
    if (st == MF_OK) st = run(opt, model, &t, err);
    close_trace(&t);
    mf_model_close(model);
    return st;
}
