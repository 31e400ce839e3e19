/* moeflux convert: from a published checkpoint to a native model directory. */
#include "convert/convert.h"

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

static int convert(const char *src, const char *dst, mf__convert_options *opt) {
    job j = {0};
    mf_error err;
    char size[APP_BYTES_TEXT];
    progress_start(&j.bar, "converting", NULL);
    opt->progress = show;
    opt->progress_user = &j;
    app_catch_interrupts();
    mf_status st = mf__convert(src, dst, opt, &err);
    progress_end(&j.bar);
    if (st == MF_E_CANCELLED) app_say("stopped; %s was not written", dst);
    if (st != MF_OK) return app_fail(&err);
    app_say("converted %s to %s (%s read) in %.1f s", src, dst, app_bytes((double)j.total, size),
            app_seconds() - j.bar.start);
    return APP_OK;
}

int cmd_convert(int argc, char **argv) {
    int64_t bits = MF_BITS_KEEP, experts = MF_BITS_KEEP, trunk = MF_BITS_KEEP, group = 64;
    bool experts_given = false, trunk_given = false, verbose = false;
    opt_def defs[] = {
        {.name = "bits",
         .kind = OPT_BITS,
         .value = &bits,
         .arg = "keep|N",
         .help = "experts and trunk: keep (default), 2, 3, 4, 5, 6 or 8"},
        {.name = "experts",
         .kind = OPT_BITS,
         .value = &experts,
         .arg = "keep|N",
         .help = "the routed experts only",
         .given = &experts_given},
        {.name = "trunk",
         .kind = OPT_BITS,
         .value = &trunk,
         .arg = "keep|N",
         .help = "everything else but routers, norms and small tensors",
         .given = &trunk_given},
        {.name = "group",
         .kind = OPT_INT,
         .value = &group,
         .arg = "G",
         .help = "values that share a scale: 32, 64 (default) or 128",
         .min = 32,
         .max = 128},
        {.name = "verbose", .kind = OPT_FLAG, .value = &verbose, .help = "say what is going on (also -v)"},
    };
    opt_spec spec = {
        .usage = "convert CHECKPOINT DIR [options]",
        .about = "Reads a checkpoint (config.json and safetensors, as published) and writes the model directory DIR,\n"
                 "which must not exist. It is complete afterwards, or absent.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 2,
        .max_words = 2,
        .examples = "  moeflux convert Qwen3.6-35B-A3B qwen --experts 4 --trunk 8\n"
                    "  moeflux convert Qwen3.6-35B-A3B-MLX-4bit qwen-mlx --bits keep\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (group != 32 && group != 64 && group != 128) {
        app_say("--group is %d; expected 32, 64 or 128", (int)group);
        return APP_USAGE;
    }
    mf__convert_options opt;
    mf__convert_options_init(&opt);
    opt.expert_bits = (int)(experts_given ? experts : bits);
    opt.trunk_bits = (int)(trunk_given ? trunk : bits);
    opt.group = (int)group;
    opt.log = app_log(verbose);
    return convert(words[0], words[1], &opt);
}
