/* moeflux synth: a model of a real shape with random weights. */
#include "convert/synth.h"

#include "app.h"
#include "options.h"
#include "progress.h"

typedef struct job {
    progress bar;
    int64_t total;
} job;

static bool show(void *user, int64_t done, int64_t total) {
    job *j = user;
    j->total = total;
    progress_show(&j->bar, done, total);
    return app_interrupted(NULL);
}

static int synth(mf__synth_options *opt, const char *dst) {
    job j = {0};
    mf_error err;
    char size[APP_BYTES_TEXT], rate[APP_BYTES_TEXT];
    opt->progress = show;
    opt->progress_user = &j;
    app_catch_interrupts();
    progress_start(&j.bar, "writing", NULL);
    mf_status st = mf__synth(opt, dst, &err);
    progress_end(&j.bar);
    if (st == MF_E_CANCELLED) app_say("stopped; %s was not written", dst);
    if (st != MF_OK) return app_fail(&err);
    double seconds = app_seconds() - j.bar.start;
    app_note("wrote %s, a random model of the shape %s: %s in %.1f s (%s/s)", dst, opt->shape,
             app_bytes((double)j.total, size), seconds, app_bytes(seconds > 0 ? (double)j.total / seconds : 0, rate));
    return APP_OK;
}

int cmd_synth(int argc, char **argv) {
    mf__synth_options opt;
    mf__synth_options_init(&opt);
    int64_t layers = 0, count = 0, threads = 0, also = 0, experts = opt.expert_bits, trunk = opt.trunk_bits;
    opt_def defs[] = {
        {.name = "shape",
         .kind = OPT_STRING,
         .value = &opt.shape,
         .arg = "NAME",
         .help =
             "a3b (default), a17b, deepseek, glm-flash, glm5, deepseek32, mistral4, mimo, gemma4, hy3, ernie, olmoe, "
             "mixtral, qwen2, dots1, hunyuan, minimax3, deepseek4, lfm2, llama4, longcat, step35, kimi-linear, "
             "nemotron3 "
             "or tiny"},
        {.name = "layers",
         .kind = OPT_INT,
         .value = &layers,
         .arg = "N",
         .help = "fewer layers than the real model has",
         .min = 1,
         .max = 256},
        {.name = "n-experts",
         .kind = OPT_INT,
         .value = &count,
         .arg = "N",
         .help = "fewer experts in a layer than the real model has: a token costs the same",
         .min = 1,
         .max = 65536},
        {.name = "seed", .kind = OPT_SEED, .value = &opt.seed, .arg = "S", .help = "same seed, same bytes (default 1)"},
        {.name = "popularity",
         .kind = OPT_REAL,
         .value = &opt.popularity,
         .arg = "ZIPF",
         .help = "some experts are wanted more often: the exponent of a Zipf law (default 0: all alike)",
         .min = 0,
         .max = 4},
        {.name = "experts", .kind = OPT_BITS, .value = &experts, .arg = "N", .help = "bits of the experts (default 4)"},
        {.name = "also",
         .kind = OPT_INT,
         .value = &also,
         .arg = "N",
         .help = "small copies of the experts beside them, with 2 or 3 bits, for --lossy small=...",
         .min = 2,
         .max = 3},
        {.name = "trunk", .kind = OPT_BITS, .value = &trunk, .arg = "N", .help = "bits of the trunk (default 8)"},
        {.name = "threads",
         .kind = OPT_INT,
         .value = &threads,
         .arg = "N",
         .help = "threads (default: one per processor)",
         .min = 1,
         .max = 1024},
    };
    opt_spec spec = {
        .usage = "synth DIR [options]",
        .about = "Writes a model directory of a real model's shape with random weights: it says nothing sensible, and\n"
                 "costs as much time and memory as the real one. DIR must not exist.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  moeflux synth a3b\n"
                    "  moeflux synth big --shape a17b --layers 8 --popularity 0.8\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    opt.n_layers = (int)layers;
    opt.n_experts = (int)count;
    app_check_threads(threads);
    opt.n_threads = (int)threads;
    opt.expert_bits = (int)experts;
    opt.also_bits = (int)also;
    opt.trunk_bits = (int)trunk;
    return synth(&opt, words[0]);
}
