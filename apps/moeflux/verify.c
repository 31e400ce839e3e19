/* moeflux verify: is a model directory still what was written? */
#include "convert/verify.h"

#include <stdlib.h>

#include "app.h"
#include "models.h"
#include "options.h"
#include "progress.h"

static bool show(void *user, int64_t done, int64_t total) {
    progress_show(user, done, total);
    return app_interrupted(NULL);
}

static int verify(const char *dir, const char *source, mf__verify_options *opt) {
    progress bar;
    mf_error err;
    mf__verify_result r;
    char size[APP_BYTES_TEXT], rate[APP_BYTES_TEXT];
    opt->progress = show;
    opt->progress_user = &bar;
    app_catch_interrupts();
    progress_start(&bar, "reading", NULL);
    mf_status st = mf__verify(dir, opt, &r, &err);
    progress_end(&bar);
    if (st != MF_OK) return app_fail(&err);
    double seconds = app_seconds() - bar.start;
    app_note("%s is as it was written: %lld tensors, %lld experts and %lld files, %s in %.1f s (%s/s)", dir,
             (long long)r.n_tensors, (long long)r.n_experts, (long long)r.n_files, app_bytes((double)r.bytes, size),
             seconds, app_bytes(seconds > 0 ? (double)r.bytes / seconds : 0, rate));
    if (!source) return APP_OK;
    progress_start(&bar, "comparing", NULL);
    double cosine = 1;
    st = mf__verify_against(dir, source, opt, &cosine, &err);
    progress_end(&bar);
    if (st != MF_OK) return app_fail(&err);
    if (cosine < 1)
        app_note("%s is what %s gives, its experts as far as their calibration lets them be: all are like those of the "
                 "source (%.3f or more)",
                 dir, source, cosine);
    else
        app_note("%s is what %s gives", dir, source);
    return APP_OK;
}

int cmd_verify(int argc, char **argv) {
    const char *source = NULL;
    int64_t threads = 0;
    model_find find = {.lookup = true};
    opt_def defs[] = {
        {.name = "against",
         .kind = OPT_STRING,
         .value = &source,
         .arg = "CHECKPOINT",
         .help = "convert this again, in memory, and compare the results too"},
        {.name = "threads",
         .kind = OPT_INT,
         .value = &threads,
         .arg = "N",
         .help = "threads (default: as many as the disk and the processors like)",
         .min = 1,
         .max = 1024},
        OPT_FIND_ROWS(find),
    };
    opt_spec spec = {
        .usage = "verify MODEL [options]",
        .about =
            "Reads everything of MODEL (a name or a directory) and compares it with the checksums that convert wrote.\n"
            "Names the first tensor, expert or file that is not as it was.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  moeflux verify qwen\n"
                    "  moeflux verify qwen --against Qwen3.6-35B-A3B\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    app_check_threads(threads);
    mf__verify_options opt = {.n_threads = (int)threads};
    char *dir;
    mf_error err;
    if (models_find(&find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    int code = verify(dir, source, &opt);
    free(dir);
    return code;
}
