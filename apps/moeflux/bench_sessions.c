/* moeflux bench --sessions: several sessions that decode together, beside one alone.
 *
 * Every run decodes the same number of tokens per session: first one session, then all of them in one pass per token,
 * in which an expert that several want is read once. Tokens are pseudo-random and differ from session to session.
 *
 * The floor by bytes: a pass touches the trunk once, each distinct expert once, and every session's state and keys. One
 * session alone says how fast this machine goes through such bytes. */
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "engine/experts.h"

typedef struct crowd {
    int n; /* sessions that decode together */
    series speed, bytes_read, hit_rate, stall_share;
    series touched, experts; /* bytes of a pass; distinct experts of a layer in it */
} crowd;

typedef struct bench {
    const bench_options *opt;
    const mf_model_info *info;
    mf_model *model;
    int n;
    mf_session **sessions;
    float *logits;
    uint32_t random;
    const char *io;
} bench;

static int32_t draw(bench *b) {
    b->random = b->random * 1664525u + 1013904223u;
    return (int32_t)((b->random >> 8) % (uint32_t)b->info->n_vocab);
}

static mf_status decode(bench *b, int n, mf_error *err) {
    int32_t tokens[BENCH_MAX_SESSIONS];
    for (int64_t i = 0; i < b->opt->decode; i++) {
        for (int s = 0; s < n; s++) tokens[s] = draw(b);
        MF__TRY(mf_eval_batch(b->sessions, tokens, n, b->logits, (size_t)n * (size_t)b->info->n_vocab, err));
    }
    return MF_OK;
}

/* What a pass of n sessions touches, in the middle of the run. */
static double pass_bytes(const bench *b, int n, double expert_bytes) {
    const mf_model_info *info = b->info;
    double own = info->n_experts ? (double)info->expert_bytes / info->n_experts * info->n_experts_per_token : 0;
    double state = (double)mf__model_touched_bytes(b->model, b->opt->prefill + b->opt->decode / 2);
    return (double)info->token_bytes - own + expert_bytes + n * state;
}

/* counts: the run is one of those that are shown. */
static mf_status run_crowd(bench *b, crowd *c, bool counts, mf_error *err) {
    mf_stats s;
    double tokens = (double)(b->opt->decode * c->n);
    for (int i = 0; i < b->n; i++) mf_memory_clear(b->sessions[i]);
    for (int i = 0; i < c->n && b->opt->prefill; i++) {
        int32_t *prompt = calloc((size_t)b->opt->prefill, sizeof *prompt);
        if (!prompt) return mf__fail(err, MF_E_NOMEM, "no memory for the benchmark");
        for (int64_t t = 0; t < b->opt->prefill; t++) prompt[t] = draw(b);
        mf_status st = mf_eval_prompt(b->sessions[i], prompt, (size_t)b->opt->prefill, 0, NULL, 0, err);
        free(prompt);
        MF__TRY(st);
    }
    mf_model_stats_reset(b->model);
    double began = app_seconds();
    MF__TRY(decode(b, c->n, err));
    double seconds = app_seconds() - began;
    mf_model_stats_get(b->model, &s);
    b->io = s.io;
    if (!counts) return MF_OK;
    series_add(&c->speed, tokens / seconds);
    series_add(&c->bytes_read, (double)(s.bytes_read + s.bytes_prefetched) / tokens);
    series_add(&c->hit_rate, s.wanted ? (double)s.hits / (double)s.wanted : 0);
    series_add(&c->stall_share, (double)s.stall_ns * 1e-9 / seconds);
    double passes = (double)b->opt->decode, layers = b->info->n_expert_layers ? b->info->n_expert_layers : 1;
    series_add(&c->touched, pass_bytes(b, c->n, (double)s.bytes_wanted / passes));
    series_add(&c->experts, (double)s.wanted / passes / layers);
    return MF_OK;
}

static void show_crowd(crowd *c) {
    char read[APP_BYTES_TEXT];
    double speed = series_median(&c->speed);
    printf("%2d session%s %8.2f tokens/s in all (%.2f to %.2f), %.2f each; a token read %s; %.1f %% of experts were in "
           "memory; waited %.0f %% of the time\n",
           c->n, c->n > 1 ? "s" : " ", speed, c->speed.values[0], c->speed.values[c->speed.n - 1], speed / c->n,
           app_bytes(series_median(&c->bytes_read), read), 100 * series_median(&c->hit_rate),
           100 * series_median(&c->stall_share));
}

static json_t *crowd_json(crowd *c) {
    json_t *o = json_pack("{s:i}", "sessions", c->n);
    if (!o) return NULL;
    series_json(o, "tok_s", &c->speed);
    series_json(o, "bytes_read_per_token", &c->bytes_read);
    series_json(o, "hit_rate", &c->hit_rate);
    series_json(o, "stall_share", &c->stall_share);
    series_json(o, "bytes_per_pass", &c->touched);
    series_json(o, "experts_per_layer", &c->experts);
    return o;
}

/* Tokens/s in all if the bytes of all sessions passed by as fast as those of one alone. */
static double floor_speed(crowd *one, crowd *all) {
    return all->n * series_median(&one->speed) * series_median(&one->touched) / series_median(&all->touched);
}

static mf_status show(const bench *b, crowd *one, crowd *all, mf_error *err) {
    double gain = series_median(&all->speed) / series_median(&one->speed);
    if (b->opt->json)
        return bench_print_json(json_pack("{s:s, s:s, s:s, s:I, s:i, s:o, s:o, s:f, s:f}", "mode", "sessions", "model",
                                          b->info->name, "io", b->io ? b->io : "", "decode_tokens",
                                          (json_int_t)b->opt->decode, "runs", (int)b->opt->repeat, "alone",
                                          crowd_json(one), "together", crowd_json(all), "gain", gain, "floor_tok_s",
                                          floor_speed(one, all)),
                                err);
    printf("%s (%s), backend %s, KV in %s, experts by %s; %lld + %lld tokens a session, %lld runs\n", b->info->name,
           b->info->family, b->info->backend, b->info->kv, b->io ? b->io : "?", (long long)b->opt->prefill,
           (long long)b->opt->decode, (long long)b->opt->repeat);
    show_crowd(one);
    show_crowd(all);
    printf("together %.2f times as many tokens as one alone\n", gain);
    char touched[APP_BYTES_TEXT], alone[APP_BYTES_TEXT];
    printf("a pass of %d touches %s (%.1f experts a layer), of one %s: at one's %.1f GB/s %.2f tokens/s, reached %.0f "
           "%%\n",
           all->n, app_bytes(series_median(&all->touched), touched), series_median(&all->experts),
           app_bytes(series_median(&one->touched), alone),
           series_median(&one->speed) * series_median(&one->touched) * 1e-9, floor_speed(one, all),
           100 * series_median(&all->speed) / floor_speed(one, all));
    return MF_OK;
}

static mf_status run(bench *b, const char *dir, mf_error *err) {
    mf_session_options so;
    crowd one = {.n = 1}, all = {.n = b->n};
    MF__TRY(app_open(dir, &b->opt->model, &b->model, err));
    b->info = mf_model_info_get(b->model);
    app_session_options(&b->opt->model, &so);
    if (!so.n_ctx && b->opt->prefill + b->opt->decode < b->info->n_ctx)
        so.n_ctx = (int32_t)(b->opt->prefill + b->opt->decode);
    b->sessions = calloc((size_t)b->n, sizeof *b->sessions);
    b->logits = calloc((size_t)b->n * (size_t)b->info->n_vocab, sizeof *b->logits);
    if (!b->sessions || !b->logits) return mf__fail(err, MF_E_NOMEM, "no memory for the benchmark");
    for (int i = 0; i < b->n; i++) MF__TRY(mf_session_create(b->model, &so, &b->sessions[i], err));
    for (int64_t i = 0; i <= b->opt->repeat; i++) { /* the first run fills the cache and does not count */
        MF__TRY(run_crowd(b, &one, i > 0, err));
        MF__TRY(run_crowd(b, &all, i > 0, err));
    }
    return show(b, &one, &all, err);
}

mf_status bench_sessions(const char *dir, const bench_options *opt, mf_error *err) {
    bench b = {.opt = opt, .n = (int)opt->sessions, .random = 1};
    mf_status st = run(&b, dir, err);
    for (int i = 0; b.sessions && i < b.n; i++) mf_session_free(b.sessions[i]);
    free(b.sessions);
    free(b.logits);
    mf_model_close(b.model);
    return st;
}
