/* moeflux convert: from a published checkpoint to a native model directory. */
#include <stdio.h>
#include <string.h>

#include "calibrate.h"
#include "convert/outlook.h"
#include "convert/spend.h"
#include "convert_run.h"
#include "options.h"
#include "quant/expert.h"

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

static mf_status spend(const char *src, double target, mf__convert_options *opt, mf_error *err) {
    mf__spending s;
    MF__TRY(mf__spend_bits(src, target, opt, &s, err));
    app_note("%.3f bits per weight of the experts, scales included (--target-bits %g):", s.bits_per_weight, target);
    for (int i = 0; i < MF_PART_COUNT; i++)
        app_note("  %-4s %d bits in groups of %-3d  %5.2f %% of the %s lost", mf__expert_part_name((mf__expert_part)i),
                 s.bits[i], s.group[i], 100 * s.error[i], s.of_output ? "output" : "values");
    return MF_OK;
}

/* target: bits per weight of the experts; 0: as opt says. */
static int convert(const char *src, const char *dst, mf__convert_options *opt, const calibrate_options *by,
                   double target, const char *why) {
    mf_error err;
    mf__sample *sample = NULL;
    char name[CALIBRATE_NAME];
    mf_status st = MF_OK;
    if (by->text) {
        mf__outlook look; /* what is wrong with the plan is said before the long way */
        if (target > 0)
            opt->expert_bits = 4; /* any: which ones, the calibration says */
        else
            opt->calibration = by->text;
        st = mf__outlook_make(src, opt, &look, &err);
        if (st == MF_OK) st = calibrate(src, dst, by, &sample, name, &err);
        opt->sample = sample;
        opt->calibration = name;
    }
    if (st == MF_OK && target > 0) st = spend(src, target, opt, &err);
    if (st == MF_OK) st = convert_run(src, dst, opt, why, &err);
    mf__sample_free(sample);
    if (st != MF_OK) return app_fail(&err);
    app_note("next: moeflux run %s \"...\", or moeflux chat %s", dst, dst);
    return APP_OK;
}

/* "down=5,gate=3" from `at` on, in the value of an option: widths of the experts' matrices. False: said what is wrong.
 */
static bool parse_parts(const char *option, const char *text, const char *at, int out[MF_PART_COUNT]) {
    for (;;) {
        size_t n = strcspn(at, "=,");
        int part = 0, bits = 0, used = 0;
        while (part < MF_PART_COUNT && (strlen(mf__expert_part_name((mf__expert_part)part)) != n ||
                                        strncmp(at, mf__expert_part_name((mf__expert_part)part), n) != 0))
            part++;
        if (part == MF_PART_COUNT || at[n] != '=') {
            app_say("--%s is \"%s\": \"%.*s\" is not gate=N, up=N or down=N", option, text, (int)strcspn(at, ","), at);
            return false;
        }
        const char *value = at + n + 1;
        if (sscanf(value, "%d%n", &bits, &used) != 1 || (value[used] && value[used] != ',') || bits == 7 || bits < 2 ||
            bits > 8) {
            app_say("--%s is \"%s\": %.*s has the width \"%.*s\"; expected 2, 3, 4, 5, 6 or 8", option, text, (int)n,
                    at, (int)strcspn(value, ","), value);
            return false;
        }
        if (out[part]) {
            app_say("--%s is \"%s\": %.*s is there twice", option, text, (int)n, at);
            return false;
        }
        out[part] = bits;
        if (!value[used]) return true;
        at = value + used + 1;
    }
}

/* "3", or "3,down=4": the width of small copies, and those of single matrices. */
static bool parse_also(const char *text, mf__convert_options *opt) {
    if ((*text != '2' && *text != '3') || (text[1] && text[1] != ',')) {
        app_say("--also is \"%s\"; expected 2 or 3, and behind it widths of single matrices, as 3,down=4", text);
        return false;
    }
    opt->also_bits = *text - '0';
    return !text[1] || parse_parts("also", text, text + 2, opt->also_part_bits);
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
    const char *preset = NULL, *parts = NULL, *also = NULL;
    double target = 0;
    bool verbose = false, dry = false, tokens_given = false;
    calibrate_options by = {.n_tokens = 32768};
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
        {.name = "also",
         .kind = OPT_STRING,
         .value = &also,
         .arg = "N[,LIST]",
         .help = "small copies beside the experts, of 2 or 3 bits or as 3,down=4, for --lossy small=... and --tuned"},
        {.name = "bits-for",
         .kind = OPT_STRING,
         .value = &parts,
         .arg = "LIST",
         .help = "widths of the experts' matrices, down=5,gate=3,up=3; those not named as --experts says"},
        {.name = "target-bits",
         .kind = OPT_REAL,
         .value = &target,
         .arg = "X",
         .help =
             "widths and groups of gate, up and down that make X bits per weight, scales included, by what errors cost",
         .min = 2,
         .max = 10},
        {.name = "calibrate",
         .kind = OPT_STRING,
         .value = &by.text,
         .arg = "TEXT",
         .help = "the source reads a file of text first; what its experts see there says which errors count"},
        {.name = "calibrate-tokens",
         .kind = OPT_COUNT,
         .value = &by.n_tokens,
         .arg = "N",
         .help = "read at most N tokens of it (default 32K)",
         .min = 256,
         .max = 1 << 24,
         .given = &tokens_given},
        {.name = "calibrate-with",
         .kind = OPT_STRING,
         .value = &by.model,
         .arg = "MODEL",
         .help = "a directory of the same model that reads it (default: one of 8 bits, made and removed)"},
        {.name = "scales-only",
         .kind = OPT_FLAG,
         .value = &opt.scales_only,
         .help = "with --calibrate: choose scales by it, and do not let columns make good for others; faster"},
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
                    "  moeflux convert Qwen3.6-35B-A3B qwen3 --experts 3 --calibrate text.txt\n"
                    "  moeflux convert Qwen3.6-35B-A3B qwen3 --target-bits 3.2\n"
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
    if (also && !parse_also(also, &opt)) return APP_USAGE;
    if (!by.text && (by.model || tokens_given || opt.scales_only)) {
        app_say("--%s is for --calibrate, which is not given", by.model       ? "calibrate-with"
                                                               : tokens_given ? "calibrate-tokens"
                                                                              : "scales-only");
        return APP_USAGE;
    }
    if (parts && !parse_parts("bits-for", parts, parts, opt.part_bits)) return APP_USAGE;
    if (target > 0 && (parts || experts.given)) {
        app_say("--target-bits chooses the experts' widths, and --%s gives them: one of both",
                parts ? "bits-for" : "experts");
        return APP_USAGE;
    }
    if (dry && by.text) {
        app_say("--dry-run reads no text: leave --calibrate out");
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
    by.threads = threads;
    app_check_threads(threads);
    opt.log = app_log(verbose);
    bool chosen = bits.given || experts.given || trunk.given || embed.given || head.given || router.given;
    char why[96];
    mf_error err;
    mf_status st = choose(words[0], preset, chosen, &opt, why, &err);
    if (st == MF_OK && dry && target > 0) st = spend(words[0], target, &opt, &err);
    if (st == MF_OK && dry) st = convert_show_plan(words[0], &opt, why, &err);
    return st != MF_OK ? app_fail(&err) : dry ? APP_OK : convert(words[0], words[1], &opt, &by, target, why);
}
