/* moeflux report: a page of pictures of a model, from a short run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "bench.h"
#include "models.h"
#include "options.h"
#include "report.h"

/* What the model goes on from, unless --text has a file. */
static const char TEXT[] = "Once upon a time there was a small town by the sea. Every morning the boats went out, and "
                           "every evening the people asked what they had found.";

typedef struct report_options {
    app_model_options model;
    const char *out, *routes, *text;
    int64_t tokens;
} report_options;

/* Tokens of the text; of a model without a tokenizer, as good as random ones. */
static mf_status read_ids(const char *dir, const report_options *o, const mf_model_info *info, int32_t *ids, int64_t *n,
                          mf_error *err) {
    mf_text *text;
    char *given = NULL;
    size_t size = strlen(TEXT), n_ids = 0;
    if (o->text) MF__TRY(mf__file_read(o->text, APP_MAX_TEXT, &given, &size, err));
    mf_status st = mf_text_open(dir, &text, err);
    if (st == MF_OK) {
        mf_status full = mf_text_encode(text, given ? given : TEXT, size, false, ids, (size_t)o->tokens, &n_ids, err);
        if (full != MF_OK && full != MF_E_LIMIT) st = full;
        mf_text_close(text);
    } else if (!o->text) {
        st = MF_OK;
    }
    free(given);
    *n = (int64_t)n_ids < o->tokens ? (int64_t)n_ids : o->tokens;
    for (int64_t i = 0; st == MF_OK && i < *n; i++)
        if (ids[i] >= info->n_vocab) *n = i;
    if (st == MF_OK && *n == 0) bench_random_ids(ids, *n = o->tokens, info->n_vocab);
    return st;
}

static mf_status run(report *r, const char *dir, report_options *o, mf_error *err) {
    mf_model *model = NULL;
    mf_session *session = NULL;
    mf_session_options so;
    int64_t n_ids = 0;
    MF__TRY(report_begin(r, dir, &o->model, o->routes, err));
    MF__TRY(app_open(dir, &o->model, &model, err));
    const mf_model_info *info = mf_model_info_get(model);
    app_session_options(&o->model, &so);
    if (!so.n_ctx && o->tokens < info->n_ctx) so.n_ctx = (int32_t)o->tokens;
    int32_t *ids = calloc((size_t)o->tokens + 1, sizeof *ids);
    mf_status st = ids ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for %lld tokens", (long long)o->tokens);
    if (st == MF_OK) st = mf_session_create(model, &so, &session, err);
    if (st == MF_OK) st = read_ids(dir, o, info, ids, &n_ids, err);
    if (st == MF_OK) st = report_run(r, model, session, ids, n_ids, o->tokens, err);
    if (st == MF_OK) st = report_write(r, o->out, err);
    mf_session_free(session);
    free(ids);
    mf_model_close(model);
    return st;
}

int cmd_report(int argc, char **argv) {
    report_options o = {.out = "report.html", .tokens = 96, .model.no_prompts = true};
    const opt_def defs[] = {
        {.name = "output",
         .letter = 'o',
         .kind = OPT_STRING,
         .value = &o.out,
         .arg = "FILE",
         .help = "the page (default report.html)"},
        {.name = "tokens",
         .letter = 'n',
         .kind = OPT_INT,
         .value = &o.tokens,
         .arg = "N",
         .help = "tokens that are evaluated, one by one (default 96)",
         .min = 4,
         .max = 4096},
        {.name = "text",
         .kind = OPT_STRING,
         .value = &o.text,
         .arg = "FILE",
         .help = "a text that the model goes on from (default: a few sentences)"},
        {.name = "routes",
         .kind = OPT_STRING,
         .value = &o.routes,
         .arg = "FILE",
         .help = "show these routes, recorded by run --record-routes, instead of the run's own"},
        OPT_FIND_ROWS(o.model.find),
        OPT_MODEL_ROWS(o.model),
    };
    opt_spec spec = {
        .usage = "report MODEL [options]",
        .about =
            "Writes a page of pictures of MODEL, from what its files say and from a short run: memory by part, which\n"
            "experts of which layer were used, hits against the size of the cache, time by op and layer, tokens per\n"
            "second against --ram. The page is one file, with nothing from elsewhere.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  moeflux report models/stories-moe\n"
                    "  moeflux report qwen -o qwen.html --routes qwen.routes --ram 8G\n",
    };
    const char *words[OPT_MAX_WORDS];
    report r = {0};
    char *dir;
    mf_error err;
    opt_result got = opt_parse(&spec, argc, argv, words);
    if (got != OPT_DONE) return opt_exit(got);
    if (models_ready(&o.model.find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    app_catch_interrupts();
    mf_status st = run(&r, dir, &o, &err);
    if (st == MF_OK) app_note("wrote %s", o.out);
    int code = st == MF_OK ? APP_OK : app_fail(&err);
    report_free(&r);
    free(dir);
    return code;
}
