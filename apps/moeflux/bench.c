/* moeflux bench: the command, and how results are shown. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cluster/cluster.h"
#include "models.h"
#include "options.h"

void series_add(series *s, double value) {
    if (s->n < (int)MF__COUNT(s->values)) s->values[s->n++] = value;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double series_median(series *s) {
    if (!s->n) return 0;
    qsort(s->values, (size_t)s->n, sizeof *s->values, by_value);
    return s->n % 2 ? s->values[s->n / 2] : (s->values[s->n / 2 - 1] + s->values[s->n / 2]) / 2;
}

void series_print(const char *name, series *s, const char *unit) {
    if (!s->n) return;
    double middle = series_median(s);
    printf("%-14s %10.2f %-8s", name, middle, unit);
    if (s->n > 1) printf(" (%.2f to %.2f)", s->values[0], s->values[s->n - 1]);
    printf("\n");
}

void series_json(json_t *to, const char *key, series *s) {
    char name[64];
    json_object_set_new(to, key, s->n ? json_real(series_median(s)) : json_null());
    snprintf(name, sizeof name, "%s_min", key);
    json_object_set_new(to, name, s->n ? json_real(s->values[0]) : json_null());
    snprintf(name, sizeof name, "%s_max", key);
    json_object_set_new(to, name, s->n ? json_real(s->values[s->n - 1]) : json_null());
}

void bench_random_ids(int32_t *ids, int64_t n, int32_t n_vocab) {
    uint32_t random = 1;
    for (int64_t i = 0; i < n; i++) {
        random = random * 1664525u + 1013904223u;
        ids[i] = (int32_t)((random >> 8) % (uint32_t)n_vocab);
    }
}

mf_status bench_print_json(json_t *object, mf_error *err) {
    char *text = object ? json_dumps(object, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(object);
    if (!text) return mf__fail(err, MF_E_NOMEM, "no memory for the results");
    puts(text);
    free(text);
    return MF_OK;
}

static mf_status measure(const char *dir, const bench_options *opt, mf_error *err) {
    static const char *const alone[] = {"--io alone", "--trace"};
    if ((opt->io || opt->trace) && (opt->prefill_given || opt->decode_given))
        return mf__fail(err, MF_E_INVALID, "--%s does nothing with %s, which evaluates no tokens",
                        opt->prefill_given ? "prefill" : "decode", alone[!opt->io]);
    if (opt->io + opt->profile + !!opt->trace > 1)
        return mf__fail(err, MF_E_INVALID, "--io alone, --trace and --profile exclude each other");
    if (opt->prefill + opt->decode == 0) return mf__fail(err, MF_E_INVALID, "--prefill 0 --decode 0 leaves nothing");
    if (opt->html && (opt->io || opt->trace || opt->profile || opt->sessions))
        return mf__fail(err, MF_E_INVALID,
                        "--html is of prefill and decode: it excludes --io alone, --trace, --profile "
                        "and --sessions");
    if (opt->sessions) {
        if (opt->io || opt->trace)
            return mf__fail(err, MF_E_INVALID, "--sessions excludes --io alone and --trace");
        if (!opt->decode) return mf__fail(err, MF_E_INVALID, "--sessions measures decoding: --decode 0 leaves nothing");
        if (!opt->profile) return bench_sessions(dir, opt, err);
    }
    if (opt->profile) return bench_profile(dir, opt, err);
    return opt->io ? bench_reads(dir, opt, err) : opt->trace ? bench_trace(dir, opt, err) : bench_eval(dir, opt, err);
}

int cmd_bench(int argc, char **argv) {
    bench_options opt = {.prefill = 512, .decode = 32, .repeat = 5, .model.no_prompts = true};
    const opt_def defs[] = {
        {.name = "prefill",
         .kind = OPT_INT,
         .value = &opt.prefill,
         .arg = "N",
         .help = "tokens of the prompt (default 512; 0: none)",
         .min = 0,
         .max = 1 << 20,
         .given = &opt.prefill_given},
        {.name = "decode",
         .kind = OPT_INT,
         .value = &opt.decode,
         .arg = "N",
         .help = "tokens decoded after it (default 32; 0: none)",
         .min = 0,
         .max = 1 << 20,
         .given = &opt.decode_given},
        {.name = "repeat",
         .kind = OPT_INT,
         .value = &opt.repeat,
         .arg = "N",
         .help = "runs that count (default 5; with --trace 1)",
         .min = 1,
         .max = BENCH_MAX_RUNS,
         .given = &opt.repeat_given},
        {.name = "sessions",
         .kind = OPT_INT,
         .value = &opt.sessions,
         .arg = "N",
         .help = "decode N sessions together, and one alone beside them; with --profile the N alone",
         .min = 1,
         .max = BENCH_MAX_SESSIONS},
        {.name = "json", .kind = OPT_FLAG, .value = &opt.json, .help = "print one JSON object"},
        {.name = "html",
         .kind = OPT_STRING,
         .value = &opt.html,
         .arg = "FILE",
         .help = "also write a page of pictures, as moeflux report does"},
        {.name = "io",
         .kind = OPT_CHOICE,
         .value = &opt.model.io,
         .choices = app_io_names,
         .alone = &opt.io,
         .arg = "[HOW]",
         .help = "alone: measure reading experts and nothing else; HOW (auto, mmap, pread, uring): read so"},
        {.name = "trace",
         .kind = OPT_STRING,
         .value = &opt.trace,
         .arg = "FILE",
         .help = "replay routes recorded by run --record-routes: reading and caching alone"},
        {.name = "profile",
         .kind = OPT_FLAG,
         .value = &opt.profile,
         .help = "time, GB/s and GFLOP/s of each kind of op, beside what this machine can do"},
        OPT_FIND_ROWS(opt.model.find),
        OPT_MODEL_ROWS(opt.model),
    };
    opt_spec spec = {
        .usage = "bench MODEL [options]",
        .about =
            "Measures prefill and decode speed of the model in DIR, and in the same run how fast this machine reads\n"
            "memory and the drive with the experts: medians and spread, and the share of what these floors allow.\n"
            "The first run, with the page cache dropped where that is permitted, is told apart as cold.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  moeflux bench models/stories-moe --prefill 128 --decode 32\n"
                    "  moeflux bench qwen --ram 6G --prefill 0 --json\n"
                    "  moeflux bench qwen --html bench.html\n"
                    "  moeflux bench qwen --io\n"
                    "  moeflux bench qwen --io --io uring --direct on --repeat 3\n"
                    "  moeflux bench qwen --sessions 8 --prefill 0 --ram 6G\n"
                    "  moeflux bench qwen --trace qwen.routes --ram 8G --policy lru\n"
                    "  moeflux bench models/stories-moe --profile\n"
                    "  moeflux bench models/stories-moe --profile --sessions 16\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    char *dir;
    mf_error err;
    if (models_ready(&opt.model.find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    if (cluster_worker()) return cluster_work(dir, &opt.model);
    app_catch_interrupts();
    int code = measure(dir, &opt, &err) == MF_OK ? APP_OK : app_fail(&err);
    free(dir);
    return code;
}
