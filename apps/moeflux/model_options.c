/* The options that every evaluating command has, and opening a model with them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/file.h"
#include "base/probe.h"
#include "cluster/cluster.h"
#include "lossy.h"
#include "options.h"
#include "progress.h"
#include "routes.h"

const char *const app_io_names[] = {"auto", "mmap", "pread", "uring", NULL};
static const char *const policies[] = {"horizons", "lfu", "lru", NULL};

#define PROMPT_ROWS 2 /* the last ones */

int app_model_rows(void *model_options, opt_def *rows) {
    static const char *const switches[] = {"auto", "on", "off", NULL};    /* in the order of mf_switch */
    static const char *const wires[] = {"f32", "f16", NULL};              /* of wire_format */
    static const char *const kv[] = {"auto", "f16", "f32", "int8", NULL}; /* of mf_kv */
    app_model_options *m = model_options;
    const opt_def all[] = {
        {.name = "backend",
         .kind = OPT_STRING,
         .value = &m->backend,
         .arg = "NAME",
         .help = "auto (default), cuda, cpu, ref"},
        {.name = "exact", .kind = OPT_FLAG, .value = &m->exact, .help = "f32 activations in every product (slower)"},
        {.name = "kv",
         .kind = OPT_CHOICE,
         .value = &m->kv,
         .arg = "TYPE",
         .choices = kv,
         .help = "how keys and values are kept: f16 (default; f32 with --exact), f32, int8"},
        {.name = "threads",
         .letter = 't',
         .kind = OPT_INT,
         .value = &m->threads,
         .arg = "N",
         .help = "compute threads (default: one per core)",
         .min = 1,
         .max = 1024},
        {.name = "pin", .kind = OPT_FLAG, .value = &m->pin, .help = "tie each compute thread to a core of its own"},
        {.name = "ctx",
         .letter = 'c',
         .kind = OPT_COUNT,
         .value = &m->n_ctx,
         .arg = "N",
         .help = "positions to hold, as 4096 or 64K (default: as many as the model was made for)",
         .min = 1,
         .max = 1 << 30},
        {.name = "yarn",
         .kind = OPT_REAL,
         .value = &m->yarn,
         .arg = "X",
         .help = "contexts X times longer than the model was made for, by YaRN; quality not measured",
         .min = 1,
         .max = 64},
        {.name = "chunk",
         .kind = OPT_INT,
         .value = &m->n_chunk,
         .arg = "N",
         .help = "tokens of a prompt evaluated in one pass (default 512)",
         .min = 1,
         .max = 8192},
        {.name = "ram",
         .kind = OPT_SIZE,
         .value = &m->ram,
         .arg = "SIZE",
         .help = "most memory to use, as 6G or 800M (default: what is free)"},
        {.name = "vram",
         .kind = OPT_SIZE,
         .value = &m->vram,
         .arg = "SIZE",
         .help = "most memory of a GPU to use (default: what is free); experts that do not fit stay in --ram"},
        {.name = "io",
         .kind = OPT_CHOICE,
         .value = &m->io,
         .arg = "HOW",
         .choices = app_io_names,
         .help = "how experts are read: auto (default), mmap, pread or uring"},
        {.name = "io-threads",
         .kind = OPT_INT,
         .value = &m->io_threads,
         .arg = "N",
         .help = "reads under way at a time (default 16)",
         .min = 1,
         .max = 64},
        {.name = "direct",
         .kind = OPT_CHOICE,
         .value = &m->direct,
         .arg = "on|off",
         .choices = switches,
         .help = "read past the page cache (default: what the drive is faster with)"},
        {.name = "prefetch",
         .kind = OPT_CHOICE,
         .value = &m->prefetch,
         .arg = "on|off",
         .choices = switches,
         .help = "read likely experts ahead (default: where it is faster), and all of them where they fit"},
        {.name = "policy",
         .kind = OPT_CHOICE,
         .value = &m->policy,
         .arg = "NAME",
         .choices = policies,
         .given = &m->policy_given,
         .help = "which experts stay in memory: horizons (default), lfu or lru"},
        {.name = "most-experts",
         .kind = OPT_INT,
         .value = &m->most_experts,
         .arg = "N",
         .help = "hold N experts at most, however much memory there is: to measure",
         .min = 1,
         .max = 1 << 24},
        {.name = "experts-dir",
         .kind = OPT_LIST,
         .value = &m->experts_dirs,
         .arg = "DIR",
         .help = "where layer_NN.bin are; given twice, both drives are read at once"},
        {.name = "experts-per-token",
         .kind = OPT_INT,
         .value = &m->experts_per_token,
         .arg = "N",
         .help = "fewer experts per token than the model has: faster, and lossy",
         .min = 1,
         .max = 1024},
        {.name = "lossy",
         .kind = OPT_STRING,
         .value = &m->lossy,
         .arg = "SETTINGS",
         .help = "read less at a loss, as bonus=0.5,protect=2 (bonus, sure, tail, skip, small, promote, small-ram, "
                 "protect, most)"},
        {.name = "tuned",
         .kind = OPT_FLAG,
         .value = &m->tuned,
         .help = "the same, as moeflux tune measured and left it"},
        {.name = "log-routing",
         .kind = OPT_STRING,
         .value = &m->log_routing,
         .arg = "FILE",
         .help = "write there how many tokens went to which expert, layer by layer, as JSON lines"},
        {.name = "stall-limit",
         .kind = OPT_REAL,
         .value = &m->stall_limit,
         .arg = "SECONDS",
         .help = "of several ranks (mpirun): give up one that has not answered for so long (default 60)",
         .min = 0.1,
         .max = 86400},
        {.name = "placement",
         .kind = OPT_STRING,
         .value = &m->placement,
         .arg = "FILE",
         .help = "of several ranks: share the work of a text evenly, by its routes (run --record-routes)"},
        {.name = "wire",
         .kind = OPT_CHOICE,
         .value = &m->wire,
         .arg = "f32|f16",
         .choices = wires,
         .help = "of several ranks: how values travel; f16 halves the bytes, and is lossy (default f32)"},
        {.name = "mixed",
         .kind = OPT_FLAG,
         .value = &m->mixed,
         .help = "of several ranks: accept other backends and instruction sets, whose results differ in the last bits"},
        {.name = "verbose", .letter = 'v', .kind = OPT_FLAG, .value = &m->verbose, .help = "say what is going on"},
        /* PROMPT_ROWS */
        {.name = "cache-dir",
         .kind = OPT_STRING,
         .value = &m->prompt_cache_dir,
         .arg = "DIR",
         .help = "keep the states of prompts there, for later runs with the same beginning"},
        {.name = "cache-size",
         .kind = OPT_SIZE,
         .value = &m->prompt_cache_disk,
         .arg = "SIZE",
         .help = "most bytes in --cache-dir for this model (default 8G)"},
    };
    int n = (int)MF__COUNT(all) - (m->no_prompts ? PROMPT_ROWS : 0);
    memcpy(rows, all, (size_t)n * sizeof *all);
    return n;
}

void app_session_options(const app_model_options *opt, mf_session_options *out) {
    mf_session_options_init(out);
    out->n_ctx = (int32_t)opt->n_ctx;
    out->n_chunk = (int32_t)opt->n_chunk;
    out->cancel = app_interrupted;
}

char *app_user_path(const char *xdg, const char *fallback, const char *name) {
    const char *base = getenv(xdg), *home = getenv("HOME");
    mf__strbuf path = {0};
    mf_status st = MF_E_NOT_FOUND;
    if (base && *base == '/')
        st = mf__strbuf_printf(&path, NULL, "%s/moeflux%s%s", base, *name ? "/" : "", name);
    else if (home && *home == '/')
        st = mf__strbuf_printf(&path, NULL, "%s/%s/moeflux%s%s", home, fallback, *name ? "/" : "", name);
    return st == MF_OK ? path.data : NULL;
}

void app_check_threads(int64_t threads) {
    mf__cpu cpu;
    mf__cpu_probe(&cpu);
    if (cpu.n_logical > 0 && threads > cpu.n_logical)
        app_say("warning: --threads is %lld, and this process may use %d processor%s: more threads than that only wait "
                "for each other",
                (long long)threads, cpu.n_logical, cpu.n_logical > 1 ? "s" : "");
}

/* Options that contradict each other are refused, those that do nothing beside another are said. */
static mf_status check_options(const app_model_options *o, mf_error *err) {
    if (o->prompt_cache_disk && !o->prompt_cache_dir)
        return mf__fail(err, MF_E_INVALID, "--cache-size limits what --cache-dir keeps, and there is no --cache-dir");
    if (o->prompt_cache_dir && !*o->prompt_cache_dir)
        return mf__fail(err, MF_E_INVALID, "--cache-dir is \"\"; expected the name of a directory");
    app_check_threads(o->threads);
    if (o->io != MF_IO_MMAP) return MF_OK;
    const struct {
        const char *name;
        bool given;
    } inert[] = {{"direct on", o->direct == MF_SWITCH_ON},
                 {"prefetch on", o->prefetch == MF_SWITCH_ON},
                 {"io-threads", o->io_threads != 0},
                 {"policy", o->policy_given},
                 {"most-experts", o->most_experts != 0}};
    for (size_t i = 0; i < MF__COUNT(inert); i++)
        if (inert[i].given)
            app_say("warning: --%s does nothing with --io mmap: the system reads mapped experts", inert[i].name);
    return MF_OK;
}

static void show_opening(void *bar, int64_t done, int64_t total) {
    progress_show(bar, done, total);
}

/* What was measured says nothing of another model. */
static mf_status check_tuned(const char *dir, const tuned *t, const mf_model *model, mf_error *err) {
    char own[TUNED_MODEL];
    if (!t->model[0] || !strcmp(t->model, tuned_model(mf_model_info_get(model), own))) return MF_OK;
    return mf__fail(err, MF_E_MISMATCH,
                    "%s/" TUNED_NAME " was measured with another model (%s; this one has %s): run moeflux tune again",
                    dir, t->model, own);
}

/* Settings of the command line, or those that were measured, which are said; of which tuned then has what is known. */
static mf_status choose_lossy(const char *dir, const app_model_options *opt, mf_lossy *out, tuned *t, mf_error *err) {
    char text[LOSSY_TEXT];
    if (opt->lossy && opt->tuned) return mf__fail(err, MF_E_INVALID, "--lossy and --tuned exclude each other");
    if (opt->lossy) return lossy_parse(opt->lossy, out, err);
    if (!opt->tuned) return MF_OK;
    MF__TRY(tuned_read(dir, t, err));
    *out = t->lossy;
    app_note(
        "tuned: %s, which cost %.4f nats a token (standard error %.4f) on %lld tokens of %s, and read %.2f times less",
        lossy_text(&t->lossy, text), t->loss, t->error, (long long)t->n_tokens, t->text,
        t->bytes > 0 ? t->exact / t->bytes : 1);
    if (t->ram && opt->ram && opt->ram != t->ram)
        app_note("tuned: measured with --ram %lldM, not %lldM: loss and reads will be others",
                 (long long)(t->ram >> 20), (long long)(opt->ram >> 20));
    return MF_OK;
}

mf_status app_open(const char *dir, const app_model_options *opt, mf_model **out, mf_error *err) {
    mf_model_options mo;
    progress bar;
    tuned from = {0};
    mf_model_options_init(&mo);
    mo.backend = opt->backend;
    mo.exact = opt->exact;
    mo.kv = (mf_kv)opt->kv;
    mo.n_threads = (int)opt->threads;
    mo.pin_threads = opt->pin;
    mo.experts_per_token = (int)opt->experts_per_token;
    mo.yarn = opt->yarn;
    mo.ram_bytes = opt->ram;
    mo.vram_bytes = opt->vram;
    mo.io = (mf_io)opt->io;
    mo.n_io_threads = (int)opt->io_threads;
    mo.direct = (mf_switch)opt->direct;
    mo.prefetch = (mf_switch)opt->prefetch;
    mo.policy = policies[opt->policy];
    mo.experts_dirs = opt->experts_dirs.items;
    mo.n_experts_dirs = opt->experts_dirs.n;
    mo.prompt_cache_ram = opt->prompt_cache_ram;
    mo.prompt_cache_dir = opt->prompt_cache_dir;
    mo.prompt_cache_disk = opt->prompt_cache_disk;
    if (!opt->calm) mo.log = app_log(opt->verbose);
    mo.most_experts = (int)opt->most_experts;
    *out = NULL;
    MF__TRY(check_options(opt, err));
    MF__TRY(cluster_prepare(opt, &mo, err));
    MF__TRY(choose_lossy(dir, opt, &mo.lossy, &from, err));
    MF__TRY(routing_start(opt, &mo.routes, err));
    if (!mo.routes.fn) mo.routes = opt->routes;
    char *cache = app_user_path("XDG_CACHE_HOME", ".cache", ""); /* speeds of drives */
    mo.cache_dir = cache;
    progress_start(&bar, "opening", NULL);
    mo.progress = (mf_open_sink){show_opening, &bar};
    mf_status st = mf_model_open(dir, &mo, out, err);
    progress_end(&bar);
    free(cache);
    if (st == MF_OK) st = check_tuned(dir, &from, *out, err);
    mf_error same;
    if (st == MF_OK)
        st = cluster_join(dir, *out, NULL, err);
    else
        cluster_join(dir, NULL, err, &same); /* the others are told */
    if (st == MF_OK) routing_model(mf_model_info_get(*out));
    if (st == MF_OK) return MF_OK;
    mf_model_close(*out);
    *out = NULL;
    return st;
}

void app_say_experts(mf_model *model) {
    mf_stats s;
    char read[APP_BYTES_TEXT], ahead[APP_BYTES_TEXT];
    mf_model_stats_get(model, &s);
    cluster_say_stats();
    if (!s.wanted || !strcmp(s.io, "mmap")) return;
    double speed = s.busy_ns ? (double)(s.bytes_read + s.bytes_prefetched) / (double)s.busy_ns : 0; /* GB/s */
    app_note("experts: %.1f %% of %lld were in memory; read %s and %s ahead at %.2f GB/s (%s%s), waited %.2f s",
             100.0 * (double)s.hits / (double)s.wanted, (long long)s.wanted, app_bytes((double)s.bytes_read, read),
             app_bytes((double)s.bytes_prefetched, ahead), speed, s.io, s.direct ? ", direct" : "",
             (double)s.stall_ns * 1e-9);
    if (s.lossy_experts)
        app_note("lossy: of %lld experts %.1f %% were replaced, %.1f %% left out, %.1f %% served small",
                 (long long)s.lossy_experts, 100.0 * (double)s.lossy_replaced / (double)s.lossy_experts,
                 100.0 * (double)s.lossy_skipped / (double)s.lossy_experts,
                 100.0 * (double)s.lossy_small / (double)s.lossy_experts);
}
