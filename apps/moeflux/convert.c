/* moeflux convert: from a published checkpoint to a native model directory. */
#include "convert/convert.h"

#include <string.h>

#include "app.h"
#include "options.h"
#include "progress.h"

typedef struct job {
    progress bar;
    bool started;
    int64_t total;
} job;

static bool show(void *user, int64_t done, int64_t total) {
    job *j = user;
    char have[APP_BYTES_TEXT], all[APP_BYTES_TEXT];
    if (!j->started && done > 0)
        app_say("going on where an earlier run stopped: %s of %s are done", app_bytes((double)done, have),
                app_bytes((double)total, all));
    if (!j->started) j->bar.base = done;
    j->started = true;
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
    if (st == MF_E_CANCELLED) app_say("stopped; %s was not written: %s", dst, err.text);
    if (st != MF_OK) return app_fail(&err);
    app_say("converted %s to %s (%s read) in %.1f s", src, dst, app_bytes((double)(j.total - j.bar.base), size),
            app_seconds() - j.bar.start);
    return APP_OK;
}

/* One width: its option, and where it goes. */
typedef struct width {
    int64_t bits;
    bool given;
} width;

#define WIDTH_ROW(option, w, text)                                                                                     \
    { .name = option, .kind = OPT_BITS, .value = &(w).bits, .arg = "keep|N", .help = text, .given = &(w).given }

int cmd_convert(int argc, char **argv) {
    width bits = {0}, experts = {0}, trunk = {0}, embed = {0}, head = {0}, router = {0};
    int64_t group = 64, threads = 0;
    const char *preset = NULL;
    bool verbose = false, also_2bit = false;
    mf__convert_options opt;
    mf__convert_options_init(&opt);
    opt_def defs[] = {
        {.name = "preset",
         .kind = OPT_STRING,
         .value = &preset,
         .arg = "NAME",
         .help = "small (all 4 bits), balanced (experts 4, the rest 8) or exact (keep)"},
        WIDTH_ROW("bits", bits, "experts, trunk, embedding and head: keep (default), 2, 3, 4, 5, 6 or 8"),
        WIDTH_ROW("experts", experts, "the routed experts"),
        WIDTH_ROW("trunk", trunk, "everything else but routers, norms and small tensors"),
        WIDTH_ROW("embed", embed, "the embedding table (default: as the trunk)"),
        WIDTH_ROW("head", head, "the output head (default: as the trunk)"),
        WIDTH_ROW("router", router, "routers and the gates of shared experts (default: keep)"),
        {.name = "group",
         .kind = OPT_INT,
         .value = &group,
         .arg = "G",
         .help = "values that share a scale: 32, 64 (default) or 128",
         .min = 32,
         .max = 128},
        {.name = "also-2bit",
         .kind = OPT_FLAG,
         .value = &also_2bit,
         .help = "not possible now: no command reads a second set of experts"},
        {.name = "allow-nonfinite",
         .kind = OPT_FLAG,
         .value = &opt.allow_nonfinite,
         .help = "let NaN and infinite weights pass"},
        {.name = "restart",
         .kind = OPT_FLAG,
         .value = &opt.restart,
         .help = "start over instead of going on with an interrupted conversion"},
        {.name = "threads",
         .kind = OPT_INT,
         .value = &threads,
         .arg = "N",
         .help = "threads that quantize (default: one per processor)",
         .min = 1,
         .max = 1024},
        {.name = "verbose", .kind = OPT_FLAG, .value = &verbose, .help = "say what is going on (also -v)"},
    };
    opt_spec spec = {
        .usage = "convert CHECKPOINT DIR [options]",
        .about =
            "Reads a checkpoint (a directory with config.json and safetensors, as published, or a GGUF file, the\n"
            "first one of a split model) and writes the model directory DIR,\n"
            "which must not exist. It is complete afterwards, or absent. A conversion that was interrupted leaves\n"
            "DIR.partial, and the same command goes on from there. DIR/conversion.json tells the error of every\n"
            "tensor that was quantized.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 2,
        .max_words = 2,
        .examples = "  moeflux convert Qwen3.6-35B-A3B qwen --preset balanced\n"
                    "  moeflux convert Qwen3.6-35B-A3B qwen --experts 4 --trunk 8 --embed 4\n"
                    "  moeflux convert Qwen3.6-35B-A3B-MLX-4bit qwen-mlx --bits keep\n"
                    "  moeflux convert Qwen3.6-35B-A3B-Q8_0.gguf qwen --experts 4 --trunk 8\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (also_2bit) {
        app_say("--also-2bit would write a second set of experts, and nothing reads one yet; leave it out, or convert "
                "into another directory with --experts 2");
        return APP_USAGE;
    }
    if (group != 32 && group != 64 && group != 128) {
        app_say("--group is %d; expected 32, 64 or 128", (int)group);
        return APP_USAGE;
    }
    if (preset && !mf__convert_preset(&opt, preset)) {
        app_say("--preset is \"%s\"; expected small, balanced or exact", preset);
        return APP_USAGE;
    }
    if (bits.given) opt.expert_bits = opt.trunk_bits = opt.embed_bits = opt.head_bits = (int)bits.bits;
    if (experts.given) opt.expert_bits = (int)experts.bits;
    if (trunk.given) opt.trunk_bits = opt.embed_bits = opt.head_bits = (int)trunk.bits;
    if (embed.given) opt.embed_bits = (int)embed.bits;
    if (head.given) opt.head_bits = (int)head.bits;
    if (router.given) opt.router_bits = (int)router.bits;
    opt.group = (int)group;
    opt.n_threads = (int)threads;
    app_check_threads(threads);
    opt.log = app_log(verbose);
    return convert(words[0], words[1], &opt);
}
