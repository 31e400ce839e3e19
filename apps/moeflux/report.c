/* Collecting what a report shows. */
#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/probe.h"

#define TOKENS 4096                  /* of the session whose memory is shown */
#define LEAST_RAM ((int64_t)2 << 30) /* a budget that measuring stays far below */
#define MAX_ROWS 16384

/* ---- routes ------------------------------------------------------------------------------------------------------------- */

/* Tokens are evaluated one by one, so that layers come in order: just what a recording is. */
static void on_route(void *user, int layer, const int32_t *ids, int n_rows, int top_k) {
    report *r = user;
    routes *to = &r->routes;
    (void)layer;
    if (!to->n_tokens || n_rows != 1 || r->failed) return; /* n_tokens: those there is room for, while it runs */
    int64_t room = to->n_tokens * to->n_layers * to->top_k;
    if (top_k != to->top_k || r->n_ids + top_k > room) {
        r->failed = true;
        return;
    }
    memcpy(to->ids + r->n_ids, ids, (size_t)top_k * sizeof *ids);
    r->n_ids += top_k;
}

static mf_status make_room(report *r, const mf_model_info *info, int64_t n_tokens, mf_error *err) {
    routes *to = &r->routes;
    r->n_ids = 0;
    if (r->recorded) {
        if (to->n_layers == info->n_expert_layers && to->n_experts == info->n_experts) return MF_OK;
        return mf__fail(err, MF_E_MISMATCH,
                        "the routes are of a model with %d layers of %d experts; this one has %d layers of %d",
                        to->n_layers, to->n_experts, info->n_expert_layers, info->n_experts);
    }
    *to = (routes){.n_layers = info->n_expert_layers,
                   .top_k = info->n_experts_per_token,
                   .n_experts = info->n_experts,
                   .n_tokens = n_tokens};
    to->ids = calloc((size_t)(n_tokens * to->n_layers * to->top_k) + 1, sizeof *to->ids);
    return to->ids ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for the routes of %lld tokens", (long long)n_tokens);
}

/* ---- before ------------------------------------------------------------------------------------------------------------- */

static mf_status measure(report *r, int64_t ram, mf_error *err) {
    mf__memory memory;
    MF__TRY(mf__memory_probe("", &memory, err));
    if ((ram && ram < memory.usable ? ram : memory.usable) < LEAST_RAM || !r->survey.has_layout) return MF_OK;
    char name[48], *file = NULL;
    for (int32_t l = 0; !file && l < r->survey.bp.config.n_layers; l++) {
        snprintf(name, sizeof name, "packed_experts/layer_%02d.bin", (int)l);
        file = mf__path_join(r->dir, name);
        if (file && mf__path_exists(file)) break;
        free(file);
        file = NULL;
    }
    mf_status st = machine_measure(NULL, file, r->sizes.expert, &r->at, err);
    free(file);
    r->measured = st == MF_OK;
    return st;
}

mf_status report_begin(report *r, const char *dir, app_model_options *opt, const char *routes_file, mf_error *err) {
    *r = (report){.dir = dir, .ram = opt->ram};
    if (!routes_file && (opt->record_routes || opt->log_routing))
        return mf__fail(err, MF_E_INVALID,
                        "--record-routes and --log-routing exclude a report, which takes the routes");
    MF__TRY(mf__survey_make(dir, &r->survey, err));
    if (!r->survey.known || r->survey.n_problems) {
        if (err) *err = r->survey.problems[0];
        return r->survey.problems[0].status;
    }
    int64_t n = r->survey.bp.config.n_ctx < TOKENS ? r->survey.bp.config.n_ctx : TOKENS;
    MF__TRY(mf_model_memory(dir, NULL, n, 0, &r->needs, err));
    MF__TRY(verdict_sizes(dir, &r->survey, &r->sizes, err));
    if (routes_file) MF__TRY(routes_read(routes_file, &r->routes, err));
    r->recorded = routes_file != NULL;
    if (!r->recorded) opt->routes = (mf_route_sink){.fn = on_route, .user = r};
    return measure(r, opt->ram, err);
}

/* ---- the run ------------------------------------------------------------------------------------------------------------ */

static mf_status add_ops(report *r, mf_model *model, int64_t n_tokens, mf_error *err) {
    mf_profile_row *rows = calloc(MAX_ROWS, sizeof *rows);
    int n_layers = mf_model_info_get(model)->n_layers;
    size_t n = 0;
    mf_status st = rows ? mf_profile_get(model, rows, MAX_ROWS, &n, err) : MF_E_NOMEM;
    r->n_columns = n_layers + 1;
    r->op_us = calloc((size_t)r->n_columns * REPORT_MAX_OPS, sizeof *r->op_us);
    if (!rows || !r->op_us) st = mf__fail(err, MF_E_NOMEM, "no memory for the profile");
    double *by_op = st == MF_OK ? r->op_us : NULL; /* [n_columns][REPORT_MAX_OPS] until the number of ops is known */
    for (size_t i = 0; by_op && i < n && i < MAX_ROWS; i++) {
        int k = 0, column = rows[i].layer < 0 || rows[i].layer >= n_layers ? n_layers : rows[i].layer;
        while (k < r->n_ops && strcmp(r->ops[k], rows[i].op)) k++;
        if (k == REPORT_MAX_OPS) continue;
        if (k == r->n_ops) r->ops[r->n_ops++] = rows[i].op;
        by_op[column * REPORT_MAX_OPS + k] += (double)rows[i].ns * 1e-3 / (double)n_tokens;
    }
    for (int c = 0; by_op && c < r->n_columns; c++)
        memmove(by_op + c * r->n_ops, by_op + c * REPORT_MAX_OPS, (size_t)r->n_ops * sizeof *by_op);
    free(rows);
    return st;
}

static int32_t largest(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* The first half fills caches; the second is measured. */
static mf_status evaluate(report *r, mf_model *model, mf_session *session, const int32_t *ids, int64_t n_ids,
                          int64_t n_tokens, float *logits, mf_error *err) {
    const mf_model_info *info = mf_model_info_get(model);
    int64_t half = n_tokens / 2;
    double began = 0;
    int32_t next = 0;
    for (int64_t i = 0; i < n_tokens; i++) {
        if (i == half) {
            MF__TRY(mf_profile_start(model, err));
            began = app_seconds();
        }
        MF__TRY(mf_eval_token(session, i < n_ids ? ids[i] : next, mf_memory_length(session), logits,
                              (size_t)info->n_vocab, err));
        next = largest(logits, info->n_vocab);
    }
    double seconds = app_seconds() - began;
    r->decode = seconds > 0 ? (double)(n_tokens - half) / seconds : 0;
    mf_profile_stop(model);
    return add_ops(r, model, n_tokens - half, err);
}

mf_status report_run(report *r, mf_model *model, mf_session *session, const int32_t *ids, int64_t n_ids,
                     int64_t n_tokens, mf_error *err) {
    const mf_model_info *info = mf_model_info_get(model);
    snprintf(r->name, sizeof r->name, "%s", info->name);
    snprintf(r->backend, sizeof r->backend, "%s", info->backend);
    MF__TRY(make_room(r, info, n_tokens, err));
    float *logits = calloc((size_t)info->n_vocab, sizeof *logits);
    mf_status st = logits ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for logits");
    if (st == MF_OK) mf_memory_clear(session);
    if (st == MF_OK) st = evaluate(r, model, session, ids, n_ids, n_tokens, logits, err);
    free(logits);
    if (st == MF_OK && !r->recorded && (r->failed || r->n_ids != n_tokens * r->routes.n_layers * r->routes.top_k))
        st = mf__fail(err, MF_E_INTERNAL, "%lld expert numbers came of %lld tokens", (long long)r->n_ids,
                      (long long)n_tokens);
    r->n_run = n_tokens;
    return st;
}

void report_speed_add(report *r, const char *name, double median, double least, double most) {
    if (r->n_speeds == REPORT_SPEEDS) return;
    report_speed *s = &r->speeds[r->n_speeds++];
    *s = (report_speed){.median = median, .least = least, .most = most};
    snprintf(s->name, sizeof s->name, "%s", name);
}

void report_free(report *r) {
    mf__survey_free(&r->survey);
    routes_free(&r->routes);
    free(r->op_us);
    *r = (report){0};
}
