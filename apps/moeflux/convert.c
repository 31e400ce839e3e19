/* moeflux convert: from a published checkpoint to a native model directory. */
#include <stdio.h>
#include <string.h>

#include "convert/outlook.h"
#include "convert_run.h"
#include "options.h"

/* Without a word about widths: what suits the source. */
static mf_status choose(const char *src, const char *preset, bool chosen, mf__convert_options *opt, char why[96],
                        mf_error *err) {
    *why = '\0';
    if (preset) snprintf(why, 96, "preset %s", preset);
    if (preset || chosen) return MF_OK;
    MF__TRY(mf__outlook_recommend(src, opt, &preset, err));
    snprintf(why, 96, "preset %s: the source has %s; --preset or --bits chooses otherwise", preset,
             opt->expert_bits ? "16 bits" : "fewer bits already");
    return MF_OK;
}

static int convert(const char *src, const char *dst, mf__convert_options *opt, const char *why) {
    mf_error err;
    mf_status st = convert_run(src, dst, opt, why, &err);
    if (st != MF_OK) return app_fail(&err);
    app_note("next: moeflux run %s \"...\", or moeflux chat %s", dst, dst);
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
    bool verbose = false, also_2bit = false, dry = false;
    mf__convert_options opt;
    mf__convert_options_init(&opt);
    opt_def defs[] = {
        {.name = "preset",
         .kind = OPT_STRING,
         .value = &preset,
         .arg = "NAME",
         .help = "small (all 4 bits), balanced (experts 4, the rest 8; default for 16 bits) or exact (keep)"},
        WIDTH_ROW("bits", bits, "experts, trunk, embedding and head: keep, 2, 3, 4, 5, 6 or 8"),
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
        {.name = "dry-run",
         .kind = OPT_FLAG,
         .value = &dry,
         .help = "show the plan, part by part, and write nothing; DIR may be left out"},
        {.name = "verbose", .letter = 'v', .kind = OPT_FLAG, .value = &verbose, .help = "say what is going on"},
    };
    opt_spec spec = {
        .usage = "convert CHECKPOINT DIR [options]",
        .about =
            "Reads a checkpoint (a directory with config.json and safetensors, as published, or a GGUF file, the\n"
            "first one of a split model) and writes the model directory DIR,\n"
            "which must not exist. It is complete afterwards, or absent. A conversion that was interrupted leaves\n"
            "DIR.partial, and the same command goes on from there. DIR/conversion.json tells the error of every\n"
            "tensor that was quantized. Where no option says otherwise, a source with 16 bits gets --preset\n"
            "balanced, and one that is quantized already is kept as it is.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 2,
        .examples = "  moeflux convert Qwen3.6-35B-A3B --dry-run\n"
                    "  moeflux convert Qwen3.6-35B-A3B qwen\n"
                    "  moeflux convert Qwen3.6-35B-A3B qwen --experts 4 --trunk 8 --embed 4\n"
                    "  moeflux convert Qwen3.6-35B-A3B-MLX-4bit qwen-mlx --bits keep\n"
                    "  moeflux convert Qwen3.6-35B-A3B-Q8_0.gguf qwen --experts 4 --trunk 8\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (!words[1] && !dry) {
        app_say("1 argument is missing: the new directory. --dry-run alone needs none");
        return APP_USAGE;
    }
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
    bool chosen = bits.given || experts.given || trunk.given || embed.given || head.given || router.given;
    char why[96];
    mf_error err;
    mf_status st = choose(words[0], preset, chosen, &opt, why, &err);
    if (st == MF_OK && dry) st = convert_show_plan(words[0], &opt, why, &err);
    return st != MF_OK ? app_fail(&err) : dry ? APP_OK : convert(words[0], words[1], &opt, why);
}
