/* moeflux eval: how surprised a model is by a text.
 *
 * The file is cut into documents at lines that read <|endoftext|>; each is scored alone, from an empty context, over
 * its first tokens. Reported: the mean of -log p(token | those before it) over all tokens but the first of each. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/file.h"
#include "documents.h"
#include "models.h"
#include "options.h"
#include "progress.h"
#include "text/tokenizer.h"

#define LOGITS_FLOATS ((size_t)1 << 22) /* at most about this many logits at a time */
#define MAX_ROWS 512

typedef struct eval_options {
    app_model_options model;
    int64_t n_tokens, n_docs; /* n_docs 0: all */
    const char *scores;
    bool json;
    bool tokens_given;
} eval_options;

typedef struct eval_state {
    const eval_options *opt;
    mf_model *model;
    mf_session *session;
    mf__tokenizer *tok;
    float *logits;
    size_t rows;      /* logits has room for this many */
    int64_t n_tokens; /* scored per document */
    json_t *docs;
    int64_t n_docs, n_scored;
    double nll;
    progress bar;
} eval_state;

/* ---- scoring --------------------------------------------------------------------------------------------------- */

/* log(sum_i exp(logits[i])) - logits[target], in double */
static double surprise(const float *logits, size_t n, int32_t target) {
    double max = logits[0], sum = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > max) max = logits[i];
    for (size_t i = 0; i < n; i++) sum += exp((double)logits[i] - max);
    return max + log(sum) - (double)logits[target];
}

/* Logits are wanted for every token but the last: in slices, since a row of them may be a megabyte. */
static mf_status score(eval_state *s, const int32_t *ids, size_t n, double *nll, mf_error *err) {
    size_t n_vocab = (size_t)mf_model_info_get(s->model)->n_vocab;
    *nll = 0;
    mf_memory_clear(s->session);
    for (size_t done = 0; done + 1 < n;) {
        size_t rows = n - 1 - done < s->rows ? n - 1 - done : s->rows;
        MF__TRY(mf_eval_prompt(s->session, ids + done, rows, (int64_t)done, s->logits, rows * n_vocab, err));
        for (size_t i = 0; i < rows; i++) *nll += surprise(s->logits + i * n_vocab, n_vocab, ids[done + i + 1]);
        done += rows;
    }
    if (isnan(*nll))
        return mf__fail(err, MF_E_FORMAT,
                        "the model's output is not a number: its weights are damaged, or were not "
                        "made for this; moeflux verify looks for damage");
    return MF_OK;
}

static mf_status keep_result(eval_state *s, const int32_t *ids, size_t n, double nll, mf_error *err) {
    if (!s->docs) return MF_OK;
    json_t *tokens = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(tokens, json_integer(ids[i]));
    json_t *doc = json_pack("{s:I, s:f, s:o}", "n", (json_int_t)(n ? n - 1 : 0), "nll", nll, "tokens", tokens);
    if (!doc || json_array_append_new(s->docs, doc)) return mf__fail(err, MF_E_NOMEM, "no memory for the results");
    return MF_OK;
}

static mf_status one_document(eval_state *s, const char *text, size_t size, mf_error *err) {
    int32_t *ids;
    size_t n;
    double nll = 0;
    MF__TRY(mf__tokenizer_encode(s->tok, text, size, false, &ids, &n, err));
    if (n > (size_t)s->n_tokens) n = (size_t)s->n_tokens;
    mf_status st = score(s, ids, n, &nll, err);
    if (st == MF_OK) st = keep_result(s, ids, n, nll, err);
    free(ids);
    if (st != MF_OK) return st;
    s->n_docs++;
    s->nll += nll;
    s->n_scored += n ? (int64_t)n - 1 : 0;
    return MF_OK;
}

static mf_status all_documents(eval_state *s, const char *text, size_t size, mf_error *err) {
    const char *doc;
    size_t at = 0, doc_size;
    while ((!s->opt->n_docs || s->n_docs < s->opt->n_docs) && document_next(text, size, &at, &doc, &doc_size)) {
        mf_status st = one_document(s, doc, doc_size, err);
        if (st != MF_OK) return mf__fail_prefix(err, st, "document %lld", (long long)s->n_docs + 1);
        if (s->opt->n_docs)
            progress_show(&s->bar, s->n_docs, s->opt->n_docs);
        else
            progress_show(&s->bar, (int64_t)at, (int64_t)size);
    }
    if (!s->n_scored) return mf__fail(err, MF_E_INVALID, "the text has no document of two tokens or more");
    return MF_OK;
}

/* ---- the command ----------------------------------------------------------------------------------------------- */

static mf_status write_scores(const eval_state *s, const char *path, mf_error *err) {
    double mean = s->nll / (double)s->n_scored;
    json_t *root = json_pack("{s:f, s:f, s:I, s:O}", "perplexity", exp(mean), "mean_nll", mean, "tokens",
                             (json_int_t)s->n_scored, "docs", s->docs);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text) return mf__fail(err, MF_E_NOMEM, "no memory for %s", path);
    mf_status st = mf__file_replace(path, text, strlen(text), err);
    free(text);
    return st;
}

static mf_status prepare(eval_state *s, const char *dir, mf_error *err) {
    MF__TRY(app_open(dir, &s->opt->model, &s->model, err));
    MF__TRY(mf__tokenizer_open(dir, &s->tok, err));
    const mf_model_info *info = mf_model_info_get(s->model);
    int32_t n_ctx = s->opt->model.n_ctx ? (int32_t)s->opt->model.n_ctx : info->n_ctx;
    mf_session_options so;
    app_session_options(&s->opt->model, &so);
    if (s->n_tokens > n_ctx && s->opt->tokens_given)
        return mf__fail(err, MF_E_INVALID, "--tokens is %lld, %s %d", (long long)s->n_tokens,
                        s->opt->model.n_ctx ? "--ctx" : "the model was made for", n_ctx);
    if (s->n_tokens > n_ctx) s->n_tokens = n_ctx;
    if (!so.n_ctx) so.n_ctx = (int32_t)s->n_tokens;
    MF__TRY(mf_session_create(s->model, &so, &s->session, err));
    s->rows = LOGITS_FLOATS / (size_t)info->n_vocab;
    s->rows = s->rows < 1 ? 1 : s->rows > MAX_ROWS ? MAX_ROWS : s->rows;
    s->logits = malloc(s->rows * (size_t)info->n_vocab * sizeof *s->logits);
    if (s->opt->scores) s->docs = json_array();
    if (!s->logits || (s->opt->scores && !s->docs)) return mf__fail(err, MF_E_NOMEM, "no memory for logits");
    return MF_OK;
}

static int eval(const char *dir, const char *file, const eval_options *opt) {
    eval_state s = {.opt = opt, .n_tokens = opt->n_tokens};
    mf__map map = {0};
    mf_error err = {0};
    app_catch_interrupts();
    mf_status st = mf__map_open(file, &map, &err);
    if (st == MF_OK) st = prepare(&s, dir, &err);
    progress_start(&s.bar, "evaluating", opt->n_docs ? "documents" : NULL);
    if (st == MF_OK) st = all_documents(&s, (const char *)map.data, map.size, &err);
    progress_end(&s.bar);
    if (st == MF_OK && opt->scores) st = write_scores(&s, opt->scores, &err);
    if (st == MF_OK) {
        double mean = s.nll / (double)s.n_scored, seconds = app_seconds() - s.bar.start;
        printf(opt->json ? "{\"mean_nll\": %.7f, \"perplexity\": %.6f, \"tokens\": %lld, \"documents\": %lld}\n"
                         : "mean_nll %.5f perplexity %.4f tokens %lld documents %lld\n",
               mean, exp(mean), (long long)s.n_scored, (long long)s.n_docs);
        app_note("%.1f s, %.1f tokens/s", seconds, (double)s.n_scored / (seconds > 0 ? seconds : 1));
    }
    int code = st == MF_OK ? APP_OK : app_fail(&err);
    json_decref(s.docs);
    free(s.logits);
    mf__tokenizer_free(s.tok);
    mf_session_free(s.session);
    mf_model_close(s.model);
    mf__map_close(&map);
    return code;
}

int cmd_eval(int argc, char **argv) {
    eval_options opt = {.n_tokens = 1024, .model.no_prompts = true};
    opt_def defs[] = {
        {.name = "tokens",
         .kind = OPT_INT,
         .value = &opt.n_tokens,
         .arg = "N",
         .help = "score the first N tokens of each document (default 1024)",
         .min = 2,
         .max = 1 << 24,
         .given = &opt.tokens_given},
        {.name = "limit",
         .kind = OPT_INT,
         .value = &opt.n_docs,
         .arg = "N",
         .help = "stop after N documents",
         .min = 1,
         .max = 1 << 30},
        {.name = "scores",
         .kind = OPT_STRING,
         .value = &opt.scores,
         .arg = "FILE",
         .help = "also write token ids and the sum for every document, as JSON"},
        {.name = "json", .kind = OPT_FLAG, .value = &opt.json, .help = "print one JSON object"},
        OPT_FIND_ROWS(opt.model.find),
        OPT_MODEL_ROWS(opt.model),
    };
    opt_spec spec = {
        .usage = "eval MODEL FILE [options]",
        .about =
            "The mean negative log-likelihood (in nats) that the model gives to the tokens of FILE. Documents are\n"
            "separated by a line <|endoftext|>; each is scored alone.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 2,
        .max_words = 2,
        .examples = "  moeflux eval models/stories-moe held-out.txt\n"
                    "  moeflux eval models/stories-moe held-out.txt --limit 10 --scores scores.json\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    char *dir;
    mf_error err;
    if (models_ready(&opt.model.find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    int code = eval(dir, words[1], &opt);
    free(dir);
    return code;
}
