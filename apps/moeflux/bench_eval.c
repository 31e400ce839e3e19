/* moeflux bench: prefill and decode, next to what memory and drive would allow.
 *
 * Prompts and tokens are pseudo-random ids. Memory is measured before every run and the drive before and after it, with
 * as many threads and through the same I/O engines, so that a noisy machine disturbs both sides. A token needs at least
 * its weights from memory, and what is not there from the drive: the floors. A run's share of the drive's is taken of
 * the two measurements around it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cluster/cluster.h"
#include "engine/experts.h"
#include "report.h"

#define DISK_SECONDS 0.5
#define HTML_TOKENS 96  /* evaluated besides, for the pictures */
#define COLD_SHARE 0.02 /* of the files that may still be in the page cache of a cold run */

/* One half of a run: all prompts, or all decoded tokens. Sums over the runs that count. */
typedef struct phase {
    int64_t n_tokens;          /* of one run */
    series speed, drive_share; /* the latter of what the drive around each run allowed */
    double seconds, cold_speed;
    int64_t wanted, hits, bytes_read, stall_ns, busy_ns;
    int64_t late_ns[MF_PREDICTORS]; /* of stall_ns: for experts that each had foretold */
    /* Of other ranks, and between them and this one. */
    int64_t rank_bytes_read, messages, wire_bytes, rank_wait_ns, wire_ns;
    /* Where a device has experts of its own over those in the host's memory: the latter's. */
    bool tiers;
    int64_t host_wanted, host_hits, drive_bytes;
} phase;

typedef struct bench {
    const bench_options *opt;
    const mf_model_info *info;
    mf_model *model;
    mf_session *session;
    memory_reader *memory;
    expert_reader *disk;
    int64_t borrowed; /* from the experts' memory, for the one above */
    int32_t *ids;
    int64_t n_ids;
    float *logits;
    int threads;
    double still_cached, open_s, last_disk_gb_s;
    series memory_gb_s, disk_gb_s;
    phase prefill, decode;
    mf_stats stats; /* of the last decode */
    report report;  /* with --html */
} bench;

/* ---- running ---------------------------------------------------------------------------------------------------- */

/* Adds what all other ranks have done since the start, or takes it away. */
static void add_ranks(phase *p, int sign) {
    cluster_rank_stats s;
    for (int k = 1; cluster_stats_get(k, &s); k++) {
        p->rank_bytes_read += sign * (s.bytes_read + s.bytes_prefetched);
        p->messages += sign * s.messages;
        p->wire_bytes += sign * (s.bytes_out + s.bytes_in);
        p->rank_wait_ns += sign * s.wait_ns;
        p->wire_ns += sign * s.wire_ns;
    }
}

/* The same for the host's memory below a device's. */
static void add_host(const bench *b, phase *p, int sign) {
    mf_stats s;
    p->tiers = mf__model_host_stats(b->model, &s);
    if (!p->tiers) return;
    p->host_wanted += sign * s.wanted;
    p->host_hits += sign * s.hits;
    p->drive_bytes += sign * (s.bytes_read + s.bytes_prefetched);
}

static void add_others(const bench *b, phase *p, int sign, int run) {
    if (run < 1) return;
    add_ranks(p, sign);
    add_host(b, p, sign);
}

static void count(bench *b, phase *p, double seconds, int run) {
    mf_stats *s = &b->stats;
    mf_model_stats_get(b->model, s);
    add_others(b, p, 1, run);
    if (run == 0) {
        p->cold_speed = (double)p->n_tokens / seconds;
        return;
    }
    series_add(&p->speed, (double)p->n_tokens / seconds);
    p->seconds += seconds;
    p->wanted += s->wanted;
    p->hits += s->hits;
    p->bytes_read += s->bytes_read + s->bytes_prefetched;
    p->stall_ns += s->stall_ns;
    p->busy_ns += s->busy_ns;
    for (int i = 0; i < MF_PREDICTORS; i++) p->late_ns[i] += s->predictors[i].stall_ns;
}

static mf_status run_prefill(bench *b, int run, mf_error *err) {
    if (!b->prefill.n_tokens) return MF_OK;
    mf_model_stats_reset(b->model);
    add_others(b, &b->prefill, -1, run);
    double began = app_seconds();
    MF__TRY(
        mf_eval_prompt(b->session, b->ids, (size_t)b->prefill.n_tokens, 0, b->logits, (size_t)b->info->n_vocab, err));
    count(b, &b->prefill, app_seconds() - began, run);
    return MF_OK;
}

static mf_status run_decode(bench *b, int run, mf_error *err) {
    if (!b->decode.n_tokens) return MF_OK;
    mf_model_stats_reset(b->model);
    add_others(b, &b->decode, -1, run);
    double began = app_seconds();
    for (int64_t i = 0; i < b->decode.n_tokens; i++)
        MF__TRY(mf_eval_token(b->session, b->ids[(i + 7919 * run) % b->n_ids], mf_memory_length(b->session), b->logits,
                              (size_t)b->info->n_vocab, err));
    count(b, &b->decode, app_seconds() - began, run);
    return MF_OK;
}

static mf_status measure_disk(bench *b, mf_error *err) {
    if (!b->disk) return MF_OK;
    MF__TRY(expert_reader_run(b->disk, DISK_SECONDS, &b->last_disk_gb_s, NULL, err));
    series_add(&b->disk_gb_s, b->last_disk_gb_s);
    return MF_OK;
}

/* Bytes of the runs until now. From the drive: a device's own experts come from the host's memory. */
static int64_t drive_bytes(const phase *p) {
    return p->tiers ? p->drive_bytes : p->bytes_read;
}

/* The share of a run that ended now: the time in which the drive reads `bytes`, of the time that it took. */
static void add_drive_share(phase *p, int64_t bytes, double seconds, double gb_s) {
    if (bytes > 0 && seconds > 0 && gb_s > 0) series_add(&p->drive_share, (double)bytes / (gb_s * 1e9) / seconds);
}

/* Run 0 is the cold one: it does not count. */
static mf_status one_run(bench *b, int run, mf_error *err) {
    phase prefill = b->prefill, decode = b->decode; /* as they were before it */
    double gb_s;
    if (run > 0 && b->memory) {
        MF__TRY(memory_reader_run(b->memory, &gb_s, err));
        series_add(&b->memory_gb_s, gb_s);
    }
    if (run == 1) MF__TRY(measure_disk(b, err));
    double before = b->last_disk_gb_s;
    mf_memory_clear(b->session);
    MF__TRY(run_prefill(b, run, err));
    MF__TRY(run_decode(b, run, err));
    if (run == 0) return MF_OK;
    MF__TRY(measure_disk(b, err));
    gb_s = (before + b->last_disk_gb_s) / 2;
    add_drive_share(&b->prefill, drive_bytes(&b->prefill) - drive_bytes(&prefill), b->prefill.seconds - prefill.seconds,
                    gb_s);
    add_drive_share(&b->decode, drive_bytes(&b->decode) - drive_bytes(&decode), b->decode.seconds - decode.seconds,
                    gb_s);
    return MF_OK;
}

/* What measures the drive takes its memory from the experts', too. */
static mf_status open_readers(bench *b, mf_error *err) {
    double gb_s;
    MF__TRY(expert_reader_open(b->model, MF_IO_AUTO, MF_SWITCH_ON, &b->disk, err));
    int64_t bytes = expert_reader_bytes(b->disk);
    if (mf__model_borrow(b->model, bytes)) {
        b->borrowed = bytes;
        MF__TRY(expert_reader_run(b->disk, DISK_SECONDS / 5, &gb_s, NULL, err)); /* first touch of its memory */
    } else {
        app_say("the drive is not measured: --ram leaves less than %lld MB for that", (long long)((bytes >> 20) + 1));
        expert_reader_close(b->disk);
        b->disk = NULL;
    }
    return memory_reader_open(b->model, b->threads, &b->memory, err);
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

static double ratio(double a, double b) {
    return b > 0 ? a / b : 0;
}

/* State that a decoded token touches, in the middle of the run. */
static double state_bytes(const bench *b) {
    return (double)mf__model_touched_bytes(b->model, b->opt->prefill + b->opt->decode / 2);
}

/* Seconds that a decoded token takes at least: its weights and the state that it sees. */
static double memory_floor(bench *b) {
    return ratio((double)b->info->token_bytes + state_bytes(b), series_median(&b->memory_gb_s) * 1e9);
}

static double read_per_token(const phase *p) {
    return ratio((double)p->bytes_read, (double)(p->n_tokens * p->speed.n));
}

static double drive_per_token(const phase *p) {
    return ratio((double)drive_bytes(p), (double)(p->n_tokens * p->speed.n));
}

static double disk_floor(bench *b, const phase *p) {
    return ratio(drive_per_token(p), series_median(&b->disk_gb_s) * 1e9);
}

/* The share of the time with reads under way in which compute did not wait. */
static double overlap(const phase *p) {
    return p->busy_ns > p->stall_ns ? 1 - (double)p->stall_ns / (double)p->busy_ns : 0;
}

/* The share of the time in which the drive had nothing to read. */
static double idle(const phase *p) {
    double busy = (double)p->busy_ns * 1e-9;
    return p->seconds > busy ? 1 - busy / p->seconds : 0;
}

/* Waiting by what was waited for: experts that each predictor had foretold too late, and those that nobody had. */
static double waited_for(const phase *p, int who) {
    int64_t rest = p->stall_ns;
    for (int i = 0; i < MF_PREDICTORS; i++) rest -= p->late_ns[i];
    return ratio((double)(who < 0 ? rest : p->late_ns[who]), (double)p->stall_ns);
}

static void phase_json(json_t *o, const char *prefix, const phase *p) {
    static const char *const names[] = {"bytes_read_per_token",
                                        "hit_rate",
                                        "stall_s",
                                        "io_busy_s",
                                        "overlap",
                                        "drive_idle",
                                        "stall_last_token",
                                        "stall_next_router",
                                        "stall_early_router",
                                        "stall_second_router",
                                        "stall_unforetold",
                                        "time_s"};
    double runs = p->speed.n ? p->speed.n : 1;
    double values[] = {read_per_token(p),
                       ratio((double)p->hits, (double)p->wanted),
                       (double)p->stall_ns * 1e-9 / runs,
                       (double)p->busy_ns * 1e-9 / runs,
                       overlap(p),
                       idle(p),
                       waited_for(p, MF_PREDICTOR_LAST_TOKEN),
                       waited_for(p, MF_PREDICTOR_NEXT_ROUTER),
                       waited_for(p, MF_PREDICTOR_EARLY_ROUTER),
                       waited_for(p, MF_PREDICTOR_SECOND_ROUTER),
                       waited_for(p, -1),
                       p->seconds / runs};
    for (size_t i = 0; i < MF__COUNT(names); i++) {
        char key[64];
        snprintf(key, sizeof key, "%s%s", prefix, names[i]);
        json_object_set_new(o, key, p->speed.n ? json_real(values[i]) : json_null());
    }
}

static json_t *predictors_json(const mf_stats *s) {
    static const char *const names[MF_PREDICTORS] = {"last_token", "next_router", "early_router", "second_router"};
    json_t *list = json_object();
    for (int i = 0; i < MF_PREDICTORS; i++) {
        const mf_predictor_stats *p = &s->predictors[i];
        json_object_set_new(list, names[i],
                            json_pack("{s:f, s:I, s:I, s:I, s:I}", "recall", ratio((double)p->right, (double)p->wanted),
                                      "read", (json_int_t)p->read, "useful", (json_int_t)p->useful, "late",
                                      (json_int_t)p->late, "useless", (json_int_t)p->useless));
    }
    return list;
}

/* What the other ranks did for a decoded token. */
static json_t *ranks_json(const phase *p) {
    double n = (double)(p->n_tokens * p->speed.n);
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f}", "n", cluster_size(), "bytes_read_per_token",
                     ratio((double)p->rank_bytes_read, n), "messages_per_token", ratio((double)p->messages, n),
                     "wire_bytes_per_token", ratio((double)p->wire_bytes, n), "wait_s_per_token",
                     ratio((double)p->rank_wait_ns * 1e-9, n), "wire_s_per_token", ratio((double)p->wire_ns * 1e-9, n));
}

static mf_status show_json(bench *b, mf_error *err) {
    const mf_model_info *info = b->info;
    const mf_stats *s = &b->stats;
    double memory_s = memory_floor(b), disk_s = disk_floor(b, &b->decode),
           floor_s = memory_s > disk_s ? memory_s : disk_s;
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:i, s:s, s:b, s:s, s:I, s:I, s:I, s:i}", "mode", "eval", "model",
                          info->name, "family", info->family, "backend", info->backend, "threads", b->threads, "io",
                          s->io ? s->io : "", "direct", s->direct, "policy", s->policy ? s->policy : "", "cache_budget",
                          (json_int_t)s->budget, "prefill_tokens", (json_int_t)b->prefill.n_tokens, "decode_tokens",
                          (json_int_t)b->decode.n_tokens, "runs", (int)b->opt->repeat);
    if (!o) return mf__fail(err, MF_E_NOMEM, "no memory for the results");
    series_json(o, "prefill_tok_s", &b->prefill.speed);
    series_json(o, "decode_tok_s", &b->decode.speed);
    json_object_set_new(o, "bytes_per_token", json_integer((json_int_t)info->token_bytes));
    json_object_set_new(o, "state_bytes_per_token", json_real(state_bytes(b)));
    phase_json(o, "", &b->decode);
    phase_json(o, "prefill_", &b->prefill);
    series_json(o, "memory_ceiling_gb_s", &b->memory_gb_s);
    series_json(o, "disk_ceiling_gb_s", &b->disk_gb_s);
    json_object_set_new(o, "memory_floor_s_per_token", b->memory_gb_s.n ? json_real(memory_s) : json_null());
    json_object_set_new(o, "disk_floor_s_per_token", b->disk_gb_s.n ? json_real(disk_s) : json_null());
    series_json(o, "drive_share", &b->decode.drive_share);
    series_json(o, "prefill_drive_share", &b->prefill.drive_share);
    json_object_set_new(o, "floor_tok_s", json_real(ratio(1, floor_s)));
    json_object_set_new(o, "cold",
                        json_pack("{s:b, s:f, s:f, s:f, s:f}", "page_cache_dropped", b->still_cached <= COLD_SHARE,
                                  "still_cached", b->still_cached, "open_s", b->open_s, "prefill_tok_s",
                                  b->prefill.cold_speed, "decode_tok_s", b->decode.cold_speed));
    json_object_set_new(o, "predictors", predictors_json(s));
    if (cluster_size() > 1) json_object_set_new(o, "ranks", ranks_json(&b->decode));
    return bench_print_json(o, err);
}

static void show_phase(bench *b, const char *name, phase *p) {
    char read[APP_BYTES_TEXT];
    if (!p->speed.n || !p->wanted) return;
    printf("%s: a token read %s; %.1f %% of experts were in memory; waited %.3f of %.3f s", name,
           app_bytes(read_per_token(p), read), 100 * ratio((double)p->hits, (double)p->wanted),
           (double)p->stall_ns * 1e-9 / p->speed.n, p->seconds / p->speed.n);
    if (p->busy_ns) printf("; %.0f %% of reading was hidden, the drive idled %.0f %%", 100 * overlap(p), 100 * idle(p));
    if (p->tiers)
        printf("; of the others %.1f %% were in the host's, and %s came from the drive",
               100 * ratio((double)p->host_hits, (double)p->host_wanted), app_bytes(drive_per_token(p), read));
    if (drive_per_token(p) > 0 && b->disk_gb_s.n)
        printf("; the drive allows %.2f tokens/s", ratio(1, disk_floor(b, p)));
    if (p->drive_share.n) {
        double middle = series_median(&p->drive_share); /* puts them in order */
        printf(", reached %.0f %% (%.0f to %.0f)", 100 * middle, 100 * p->drive_share.values[0],
               100 * p->drive_share.values[p->drive_share.n - 1]);
    }
    printf("\n");
    if (p->stall_ns)
        printf(
            "%s: waited for experts that were foretold too late, by the token before %.0f %%, the next router %.0f %%, "
            "the same early %.0f %%, the one after it %.0f %%; that nobody foretold %.0f %%\n",
            name, 100 * waited_for(p, MF_PREDICTOR_LAST_TOKEN), 100 * waited_for(p, MF_PREDICTOR_NEXT_ROUTER),
            100 * waited_for(p, MF_PREDICTOR_EARLY_ROUTER), 100 * waited_for(p, MF_PREDICTOR_SECOND_ROUTER),
            100 * waited_for(p, -1));
}

static void show_ranks(const phase *p) {
    char read[APP_BYTES_TEXT], wire[APP_BYTES_TEXT];
    double n = (double)(p->n_tokens * p->speed.n);
    if (cluster_size() == 1 || n <= 0) return;
    printf("decode: for a token the other ranks read %s, and %.0f messages of %s together went to and fro; waited %.2f "
           "ms, "
           "%.2f ms of that for the wire\n",
           app_bytes((double)p->rank_bytes_read / n, read), (double)p->messages / n,
           app_bytes((double)p->wire_bytes / n, wire), (double)p->rank_wait_ns * 1e-6 / n,
           (double)p->wire_ns * 1e-6 / n);
}

static void show_text(bench *b) {
    const mf_model_info *info = b->info;
    char touched[APP_BYTES_TEXT], seen[APP_BYTES_TEXT], budget[APP_BYTES_TEXT];
    printf("%s (%s), backend %s, %d threads, experts by %s%s, %s for them; %lld + %lld tokens, %lld runs\n", info->name,
           info->family, info->backend, b->threads, b->stats.io ? b->stats.io : "?", b->stats.direct ? " direct" : "",
           b->stats.budget ? app_bytes((double)b->stats.budget, budget) : "no limit", (long long)b->prefill.n_tokens,
           (long long)b->decode.n_tokens, (long long)b->opt->repeat);
    series_print("prefill", &b->prefill.speed, "tokens/s");
    series_print("decode", &b->decode.speed, "tokens/s");
    series_print("memory", &b->memory_gb_s, "GB/s");
    series_print("drive", &b->disk_gb_s, "GB/s");
    if (b->still_cached <= COLD_SHARE)
        printf("cold: opened in %.2f s; prefill %.2f, decode %.2f tokens/s\n", b->open_s, b->prefill.cold_speed,
               b->decode.cold_speed);
    else
        printf("first run: opened in %.2f s; prefill %.2f, decode %.2f tokens/s (%.0f %% of the files stayed in the "
               "page cache)\n",
               b->open_s, b->prefill.cold_speed, b->decode.cold_speed, 100 * b->still_cached);
    printf("a token touches %s of weights and %s of state", app_bytes((double)info->token_bytes, touched),
           app_bytes(state_bytes(b), seen));
    if (b->memory_gb_s.n) printf(": memory allows %.2f tokens/s", ratio(1, memory_floor(b)));
    if (b->memory_gb_s.n && b->decode.speed.n)
        printf(", reached %.0f %%", 100 * series_median(&b->decode.speed) * memory_floor(b));
    printf("\n");
    show_phase(b, "prefill", &b->prefill);
    show_phase(b, "decode", &b->decode);
    show_ranks(&b->decode);
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static mf_status set_up(bench *b, const char *dir, mf_error *err) {
    const bench_options *opt = b->opt;
    app_model_options model = opt->model;
    mf_session_options so;
    if (opt->html) MF__TRY(report_begin(&b->report, dir, &model, NULL, err));
    b->still_cached = page_cache_drop(dir, &opt->model.experts_dirs);
    double began = app_seconds();
    MF__TRY(app_open(dir, &model, &b->model, err));
    b->open_s = app_seconds() - began;
    b->info = mf_model_info_get(b->model);
    app_session_options(&opt->model, &so);
    int64_t n_ctx = opt->prefill + opt->decode;
    if (opt->html && n_ctx < HTML_TOKENS) n_ctx = HTML_TOKENS;
    if (!so.n_ctx && n_ctx < b->info->n_ctx) so.n_ctx = (int32_t)n_ctx;
    MF__TRY(mf_session_create(b->model, &so, &b->session, err));
    b->n_ids = opt->prefill > 4096 ? opt->prefill : 4096;
    b->ids = calloc((size_t)b->n_ids, sizeof *b->ids);
    b->logits = calloc((size_t)b->info->n_vocab, sizeof *b->logits);
    if (!b->ids || !b->logits) return mf__fail(err, MF_E_NOMEM, "no memory for the benchmark");
    bench_random_ids(b->ids, b->n_ids, b->info->n_vocab);
    return MF_OK;
}

static void add_speed(bench *b, const char *name, phase *p) {
    double median = series_median(&p->speed);
    if (p->speed.n) report_speed_add(&b->report, name, median, p->speed.values[0], p->speed.values[p->speed.n - 1]);
}

static mf_status write_page(bench *b, mf_error *err) {
    add_speed(b, "prefill", &b->prefill);
    add_speed(b, "decode", &b->decode);
    MF__TRY(report_run(&b->report, b->model, b->session, b->ids, HTML_TOKENS, HTML_TOKENS, err));
    return report_write(&b->report, b->opt->html, err);
}

static mf_status run(bench *b, const char *dir, mf_error *err) {
    MF__TRY(set_up(b, dir, err));
    MF__TRY(one_run(b, 0, err));
    MF__TRY(open_readers(b, err));
    for (int i = 1; i <= (int)b->opt->repeat; i++) MF__TRY(one_run(b, i, err));
    if (b->opt->html) MF__TRY(write_page(b, err));
    if (b->opt->json) return show_json(b, err);
    show_text(b);
    return MF_OK;
}

mf_status bench_eval(const char *dir, const bench_options *opt, mf_error *err) {
    bench b = {.opt = opt,
               .threads = bench_threads(opt),
               .prefill = {.n_tokens = opt->prefill},
               .decode = {.n_tokens = opt->decode}};
    mf_status st = run(&b, dir, err);
    expert_reader_close(b.disk);
    memory_reader_close(b.memory);
    if (b.borrowed) mf__model_borrow(b.model, -b.borrowed);
    mf_session_free(b.session);
    free(b.ids);
    free(b.logits);
    mf_model_close(b.model);
    report_free(&b.report);
    return st;
}
