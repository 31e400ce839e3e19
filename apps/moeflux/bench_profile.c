/* moeflux bench --profile: where the time goes, by kind of op, next to what this machine can do: bytes a second of a
 * plain loop over memory, and operations a second of the backend's own product where all of it is in cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/pool.h"
#include "bench.h"
#include "quant/affine.h"

/* ---- what the machine can do ------------------------------------------------------------------------------------- */

typedef struct ceilings {
    double memory_gb_s, gflop_s, region_us;
} ceilings;

static void nothing(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)ctx, (void)begin, (void)end, (void)thread;
}

/* Starting a region on all threads and waiting for its end: the median of many. */
static double region_us(mf__pool *pool) {
    enum { ROUNDS = BENCH_MAX_RUNS, EACH = 100 };
    series times = {0};
    for (int i = 0; i < ROUNDS; i++) {
        double began = app_seconds();
        for (int k = 0; k < EACH; k++) mf__pool_run(pool, nothing, NULL, mf__pool_threads(pool));
        series_add(&times, (app_seconds() - began) / EACH * 1e6);
    }
    return series_median(&times);
}

/* y = W x of 4-bit weights, in groups of 64 as experts usually have them, and tokens that all fit in cache. */
enum { COLS = 512, ROWS = 512, TOKENS = 64 };

static mf_status time_product(mf__backend *be, const mf__graph *g, const mf__binding *b, double *gflop_s,
                              mf_error *err) {
    series speeds = {0};
    if (be->reserve) MF__TRY(be->reserve(be, be->scratch ? be->scratch(be, g, TOKENS) : 0, err));
    for (int i = 0; i < 21; i++) {
        mf__fence fence;
        double began = app_seconds();
        for (int k = 0; k < 20; k++) {
            MF__TRY(be->submit(be, &(mf__run){g, *b}, 1, &fence, err));
            MF__TRY(be->wait(be, fence, err));
        }
        series_add(&speeds, 20 * 2.0 * COLS * ROWS * TOKENS / (app_seconds() - began) / 1e9);
    }
    *gflop_s = series_median(&speeds);
    return MF_OK;
}

static mf_status product_gflop_s(mf__backend *be, double *gflop_s, mf_error *err) {
    mf__graph *g = NULL;
    int64_t codes = ROWS * COLS / 2, scales = ROWS * COLS / 64 * 2, floats = TOKENS * (COLS + ROWS);
    uint8_t *w = calloc(1, (size_t)(codes + 2 * scales));
    float *x = calloc((size_t)floats, sizeof *x), row[COLS];
    mf_status st = w && x ? mf__graph_create("product", &g, err) : mf__fail(err, MF_E_NOMEM, "no memory for a product");
    if (st == MF_OK) {
        for (int i = 0; i < COLS; i++) row[i] = x[i] = (float)(i % 17 - 8);
        for (int t = 1; t < TOKENS; t++) memcpy(x + t * COLS, x, sizeof row);
        for (int r = 0; r < ROWS; r++)
            mf__affine_encode_row(row, COLS, 4, 64, MF_TYPE_BF16, w + r * COLS / 2, w + codes + r * COLS / 64 * 2,
                                  w + codes + scales + r * COLS / 64 * 2);
        mf__act in = mf__g_in_act(g, MF_PORT_SHARED, COLS);
        mf__act out = mf__g_matmul(g, in, mf__g_matrix(g, "w", ROWS, COLS), MF_NO_WEIGHT, "product");
        void *bufs[MF_MAX_BUFS] = {NULL};
        bufs[in.id] = x, bufs[out.id] = x + TOKENS * COLS;
        mf__tensor t = {.type = MF_TYPE_AFFINE,
                        .n_planes = 1,
                        .n_rows = ROWS,
                        .n_cols = COLS,
                        .data = w,
                        .bits = 4,
                        .group = 64,
                        .scale_type = MF_TYPE_BF16,
                        .scales = w + codes,
                        .biases = w + codes + scales};
        st = mf__graph_finish(g, err);
        if (st == MF_OK)
            st = time_product(be, g, &(mf__binding){.n_rows = TOKENS, .bufs = bufs, .weights = &t}, gflop_s, err);
    }
    mf__graph_free(g);
    free(w);
    free(x);
    return st;
}

/* Ceilings are those of the host's memory and processors: nothing to compare a device with. */
static bool computes_here(const char *backend) {
    return !strcmp(backend, "cpu") || !strcmp(backend, "ref");
}

static mf_status measure_ceilings(mf_model *model, const bench_options *opt, ceilings *out, mf_error *err) {
    bool ref = !strcmp(mf_model_info_get(model)->backend, "ref");
    memory_reader *reader = NULL;
    mf__backend *be = NULL;
    mf__pool *pool = NULL;
    mf_status st = memory_reader_open(model, bench_threads(opt), &reader, err);
    series memory = {0};
    for (int i = 0; i < 5 && st == MF_OK && reader; i++) {
        double gb_s = 0;
        st = memory_reader_run(reader, &gb_s, err);
        series_add(&memory, gb_s);
    }
    out->memory_gb_s = series_median(&memory);
    memory_reader_close(reader);
    if (st == MF_OK) st = mf__pool_create(bench_threads(opt), &pool, err);
    if (st == MF_OK) out->region_us = region_us(pool);
    if (st == MF_OK)
        st = ref ? mf__backend_ref_create(pool, &be, err)
                 : mf__backend_cpu_create(pool, &(mf__cpu_options){.exact = opt->model.exact}, &be, err);
    if (st == MF_OK) st = product_gflop_s(be, &out->gflop_s, err);
    if (be) be->free(be);
    mf__pool_free(pool);
    return st;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

#define MAX_OPS 64         /* kinds of op */
#define MAX_ROWS (1 << 14) /* layers times kinds */

typedef struct phase {
    const char *name;
    int64_t n_tokens;            /* of each session */
    mf_profile_row ops[MAX_OPS]; /* of all layers and all runs that count */
    int n_ops;
    double seconds;
} phase;

typedef struct job {
    const bench_options *opt;
    mf_model *model;
    int n; /* sessions: prompts one after the other, then decoding all of them in each pass */
    mf_session **sessions;
    int32_t *ids; /* [n][prefill or decode] */
    float *logits;
    ceilings top;
    phase phases[2]; /* prefill, decode */
} job;

/* Adds what was measured, all layers together. */
static mf_status add_ops(mf_model *m, phase *p, mf_error *err) {
    mf_profile_row *rows = calloc(MAX_ROWS, sizeof *rows);
    size_t n;
    if (!rows) return mf__fail(err, MF_E_NOMEM, "no memory for the profile");
    mf_status st = mf_profile_get(m, rows, MAX_ROWS, &n, err);
    for (size_t i = 0; st == MF_OK && i < n && i < MAX_ROWS; i++) {
        int k = 0;
        while (k < p->n_ops && strcmp(p->ops[k].op, rows[i].op)) k++;
        if (k == MAX_OPS) continue;
        if (k == p->n_ops) p->ops[p->n_ops++] = (mf_profile_row){.op = rows[i].op};
        p->ops[k].n_runs += rows[i].n_runs;
        p->ops[k].ns += rows[i].ns;
        p->ops[k].bytes += rows[i].bytes;
        p->ops[k].flops += rows[i].flops;
    }
    free(rows);
    return st;
}

static mf_status read_prompts(job *j, const phase *p, mf_error *err) {
    size_t n_vocab = (size_t)mf_model_info_get(j->model)->n_vocab;
    for (int s = 0; s < j->n; s++)
        MF__TRY(mf_eval_prompt(j->sessions[s], j->ids + s * p->n_tokens, (size_t)p->n_tokens, 0, j->logits, n_vocab,
                               err));
    return MF_OK;
}

static mf_status decode(job *j, const phase *p, mf_error *err) {
    size_t n_logits = (size_t)j->n * (size_t)mf_model_info_get(j->model)->n_vocab;
    for (int64_t i = 0; i < p->n_tokens; i++)
        MF__TRY(mf_eval_batch(j->sessions, j->ids + i * j->n, j->n, j->logits, n_logits, err));
    return MF_OK;
}

static mf_status run_phase(job *j, phase *p, bool decoding, mf_error *err) {
    MF__TRY(mf_profile_start(j->model, err));
    double began = app_seconds();
    MF__TRY((decoding ? decode : read_prompts)(j, p, err));
    p->seconds += app_seconds() - began;
    mf_profile_stop(j->model);
    return add_ops(j->model, p, err);
}

/* Run 0 brings everything into memory and does not count. */
static mf_status run_all(job *j, mf_error *err) {
    for (int64_t run = 0; run <= j->opt->repeat; run++) {
        for (int s = 0; s < j->n; s++) mf_memory_clear(j->sessions[s]);
        for (int i = 0; i < 2; i++)
            if (j->phases[i].n_tokens) MF__TRY(run_phase(j, &j->phases[i], i == 1, err));
        for (int i = 0; i < 2 && run == 0; i++)
            j->phases[i] = (phase){.name = j->phases[i].name, .n_tokens = j->phases[i].n_tokens};
    }
    return MF_OK;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static double rate(double amount, int64_t ns) {
    return ns > 0 ? amount / (double)ns : 0; /* per ns: in units of 10^9 per second */
}

static int64_t ops_ns(const phase *p) {
    int64_t sum = 0;
    for (int i = 0; i < p->n_ops; i++) sum += p->ops[i].ns;
    return sum;
}

static void show_phase(const job *j, const phase *p) {
    double runs = (double)j->opt->repeat, tokens = runs * (double)p->n_tokens * j->n;
    printf("\n%s of %lld tokens", p->name, (long long)p->n_tokens);
    if (j->n > 1) printf(" in %d sessions", j->n);
    printf(": %.3f ms a token\n", p->seconds * 1e3 / tokens);
    printf("  %-14s %9s %8s %7s %8s %9s %9s %9s\n", "op", "us/token", "of time", "runs", "GB/s", "of memory", "GFLOP/s",
           "of kernel");
    for (int i = 0; i < p->n_ops; i++) {
        const mf_profile_row *r = &p->ops[i];
        double gb_s = rate(r->bytes, r->ns), gflop_s = rate(r->flops, r->ns);
        printf("  %-14s %9.1f %6.1f %% %7.0f %8.2f ", r->op, (double)r->ns * 1e-3 / tokens,
               (double)r->ns * 1e-7 / p->seconds, (double)r->n_runs / runs, gb_s);
        if (j->top.memory_gb_s > 0)
            printf("%7.0f %%", 100 * gb_s / j->top.memory_gb_s);
        else
            printf("%9s", "-");
        if (r->flops > 0) printf(" %9.2f", gflop_s);
        if (r->flops > 0 && j->top.gflop_s > 0) printf(" %7.0f %%", 100 * gflop_s / j->top.gflop_s);
        printf("\n");
    }
    double rest = p->seconds - (double)ops_ns(p) * 1e-9;
    printf("  %-14s %9.1f %6.1f %%\n", "outside of ops", rest * 1e6 / tokens, 100 * rest / p->seconds);
}

static void show_text(const job *j) {
    const mf_model_info *info = mf_model_info_get(j->model);
    printf("%s (%s), backend %s%s, %d threads; %lld runs\n", info->name, info->family, info->backend,
           j->opt->model.exact ? " exact" : "", bench_threads(j->opt), (long long)j->opt->repeat);
    if (!computes_here(info->backend))
        printf("ops one by one, without replay: small ones take longer than in a pass that is not measured\n");
    else
        printf("this machine: memory %.2f GB/s (a plain loop), products in cache %.1f GFLOP/s (4 bits, %d tokens), a "
               "parallel region %.2f us\n",
               j->top.memory_gb_s, j->top.gflop_s, TOKENS, j->top.region_us);
    for (int i = 0; i < 2; i++)
        if (j->phases[i].n_tokens) show_phase(j, &j->phases[i]);
}

static json_t *phase_json(const job *j, const phase *p) {
    double tokens = (double)(j->opt->repeat * p->n_tokens * j->n);
    json_t *ops = json_object();
    for (int i = 0; i < p->n_ops; i++) {
        const mf_profile_row *r = &p->ops[i];
        json_object_set_new(ops, r->op,
                            json_pack("{s:f, s:f, s:f, s:f, s:f}", "us_per_token", (double)r->ns * 1e-3 / tokens,
                                      "share", (double)r->ns * 1e-9 / p->seconds, "runs",
                                      (double)r->n_runs / (double)j->opt->repeat, "gb_s", rate(r->bytes, r->ns),
                                      "gflop_s", rate(r->flops, r->ns)));
    }
    return json_pack("{s:I, s:f, s:f, s:o}", "tokens", (json_int_t)p->n_tokens, "us_per_token",
                     p->seconds * 1e6 / tokens, "outside_us_per_token",
                     (p->seconds * 1e6 - (double)ops_ns(p) * 1e-3) / tokens, "ops", ops);
}

static mf_status show_json(const job *j, mf_error *err) {
    const mf_model_info *info = mf_model_info_get(j->model);
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:b, s:i, s:i, s:I, s:f, s:f, s:f}", "mode", "profile", "model",
                          info->name, "family", info->family, "backend", info->backend, "exact", j->opt->model.exact,
                          "threads", bench_threads(j->opt), "sessions", j->n, "runs", (json_int_t)j->opt->repeat, "memory_ceiling_gb_s",
                          j->top.memory_gb_s, "product_ceiling_gflop_s", j->top.gflop_s, "region_us", j->top.region_us);
    for (int i = 0; i < 2; i++)
        if (j->phases[i].n_tokens) json_object_set_new(o, j->phases[i].name, phase_json(j, &j->phases[i]));
    return bench_print_json(o, err);
}

static mf_status run(job *j, const char *dir, mf_error *err) {
    const bench_options *opt = j->opt;
    mf_session_options so;
    MF__TRY(app_open(dir, &opt->model, &j->model, err));
    const mf_model_info *info = mf_model_info_get(j->model);
    app_session_options(&opt->model, &so);
    if (!so.n_ctx && opt->prefill + opt->decode < info->n_ctx) so.n_ctx = (int32_t)(opt->prefill + opt->decode);
    int64_t n = j->n * (opt->prefill > opt->decode ? opt->prefill : opt->decode);
    j->sessions = calloc((size_t)j->n, sizeof *j->sessions);
    j->ids = calloc((size_t)n, sizeof *j->ids);
    j->logits = calloc((size_t)j->n * (size_t)info->n_vocab, sizeof *j->logits);
    if (!j->sessions || !j->ids || !j->logits) return mf__fail(err, MF_E_NOMEM, "no memory for the benchmark");
    for (int s = 0; s < j->n; s++) MF__TRY(mf_session_create(j->model, &so, &j->sessions[s], err));
    bench_random_ids(j->ids, n, info->n_vocab);
    if (computes_here(info->backend)) MF__TRY(measure_ceilings(j->model, opt, &j->top, err));
    MF__TRY(run_all(j, err));
    if (opt->json) return show_json(j, err);
    show_text(j);
    return MF_OK;
}

mf_status bench_profile(const char *dir, const bench_options *opt, mf_error *err) {
    job j = {.opt = opt,
             .n = opt->sessions ? (int)opt->sessions : 1,
             .phases = {{.name = "prefill", .n_tokens = opt->prefill}, {.name = "decode", .n_tokens = opt->decode}}};
    mf_status st = run(&j, dir, err);
    for (int s = 0; j.sessions && s < j.n; s++) mf_session_free(j.sessions[s]);
    free(j.sessions);
    free(j.ids);
    free(j.logits);
    mf_model_close(j.model);
    return st;
}
