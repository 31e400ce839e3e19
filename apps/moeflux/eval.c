/* moeflux eval: how surprised a model is by a text.
 *
 * The file is cut into documents at lines that read <|endoftext|>; each is scored alone, from an empty context, over
 * its first tokens. Reported: the mean of -log p(token | those before it) over all tokens but the first of each, and
 * its standard error. With --against another model, or the same one with other settings, scores the same tokens: the
 * difference, token by token, the divergence of what both expect, and how often both expect the same token most. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "base/file.h"
#include "cluster/cluster.h"
#include "documents.h"
#include "losses.h"
#include "models.h"
#include "options.h"
#include "progress.h"
#include "text/tokenizer.h"

#define LOGITS_FLOATS ((size_t)1 << 22) /* at most about this many logits at a time */
#define MAX_ROWS 512

typedef struct eval_options {
    app_model_options model;
    int64_t n_tokens, n_docs; /* n_docs 0: all */
    const char *scores, *against;
    bool json, decode;
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
    /* --against: the reference, its own settings as the command line has them, without --lossy and --tuned */
    mf_model *other;
    mf_session *other_session;
    float *other_logits;
    losses scored, other_scored;
    double divergence;
    int64_t n_same;
    json_t *docs;
    int64_t n_docs, n_scored;
    double nll;
    progress bar;
} eval_state;

/* ---- scoring --------------------------------------------------------------------------------------------------- */

/* Rows of logits for the tokens from `done` on, of both models. */
static mf_status evaluate(eval_state *s, const int32_t *ids, size_t done, size_t rows, size_t n_vocab, mf_error *err) {
    mf_session *sessions[2] = {s->session, s->other_session};
    float *logits[2] = {s->logits, s->other_logits};
    for (int k = 0; k < 2 && sessions[k]; k++) {
        if (!s->opt->decode) {
            MF__TRY(mf_eval_prompt(sessions[k], ids + done, rows, (int64_t)done, logits[k], rows * n_vocab, err));
            continue;
        }
        for (size_t i = 0; i < rows; i++)
            MF__TRY(
                mf_eval_token(sessions[k], ids[done + i], (int64_t)(done + i), logits[k] + i * n_vocab, n_vocab, err));
    }
    return MF_OK;
}

static mf_status score_row(eval_state *s, size_t row, size_t n_vocab, int32_t target, bool new_block, double *nll,
                           mf_error *err) {
    const float *mine = s->logits + row * n_vocab;
    bool same;
    *nll = loss_of(mine, n_vocab, target);
    MF__TRY(losses_add(&s->scored, *nll, new_block, err));
    if (!s->other) return MF_OK;
    const float *theirs = s->other_logits + row * n_vocab;
    s->divergence += loss_divergence(theirs, mine, n_vocab, &same);
    s->n_same += same;
    return losses_add(&s->other_scored, loss_of(theirs, n_vocab, target), new_block, err);
}

/* Logits are wanted for every token but the last: in slices, since a row of them may be a megabyte. */
static mf_status score(eval_state *s, const int32_t *ids, size_t n, double *nll, mf_error *err) {
    size_t n_vocab = (size_t)mf_model_info_get(s->model)->n_vocab;
    *nll = 0;
    mf_memory_clear(s->session);
    if (s->other) mf_memory_clear(s->other_session);
    for (size_t done = 0; done + 1 < n;) {
        size_t rows = n - 1 - done < s->rows ? n - 1 - done : s->rows;
        MF__TRY(evaluate(s, ids, done, rows, n_vocab, err));
        for (size_t i = 0; i < rows; i++) {
            double one;
            MF__TRY(score_row(s, i, n_vocab, ids[done + i + 1], (done + i) % LOSSES_BLOCK == 0, &one, err));
            *nll += one;
        }
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

/* The reference is exact, whatever the model that is judged has to do without. */
static mf_status open_other(eval_state *s, const mf_session_options *so, mf_error *err) {
    app_model_options opt = s->opt->model;
    opt.lossy = NULL;
    opt.tuned = false;
    opt.log_routing = NULL;
    MF__TRY(app_open(s->opt->against, &opt, &s->other, err));
    size_t n_vocab = (size_t)mf_model_info_get(s->model)->n_vocab;
    if (mf_model_info_get(s->other)->n_vocab != (int32_t)n_vocab)
        return mf__fail(err, MF_E_MISMATCH,
                        "%s has %d tokens in its vocabulary, the model %zu: they cannot be compared", s->opt->against,
                        mf_model_info_get(s->other)->n_vocab, n_vocab);
    s->other_logits = malloc(s->rows * n_vocab * sizeof *s->other_logits);
    if (!s->other_logits) return mf__fail(err, MF_E_NOMEM, "no memory for logits");
    return mf_session_create(s->other, so, &s->other_session, err);
}

static void print_result(const eval_state *s) {
    double mean = s->nll / (double)s->n_scored, n = (double)s->n_scored;
    estimate e = losses_mean(&s->scored, 0), d = s->other ? losses_paired(&s->scored, &s->other_scored, 0) : e;
    bool json = s->opt->json;
    printf(json ? "{\"mean_nll\": %.7f, \"standard_error\": %.7f, \"perplexity\": %.6f, \"tokens\": %lld, "
                  "\"documents\": %lld"
                : "mean_nll %.5f standard_error %.5f perplexity %.4f tokens %lld documents %lld",
           mean, e.error, exp(mean), (long long)s->n_scored, (long long)s->n_docs);
    if (s->other)
        printf(json ? ", \"reference_nll\": %.7f, \"difference\": %.7f, \"difference_error\": %.7f, \"kl_divergence\": "
                      "%.7f, \"same_top\": %.6f"
                    : "\nreference_nll %.5f difference %+.5f standard_error %.5f kl_divergence %.5f same_top %.4f",
               losses_mean(&s->other_scored, 0).mean, d.mean, d.error, s->divergence / n, (double)s->n_same / n);
    printf(json ? "}\n" : "\n");
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
    return s->opt->against ? open_other(s, &so, err) : MF_OK;
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
        double seconds = app_seconds() - s.bar.start;
        print_result(&s);
        if (opt->decode) app_say_experts(s.model);
        app_note("%.1f s, %.1f tokens/s", seconds, (double)s.n_scored / (seconds > 0 ? seconds : 1));
    }
    int code = st == MF_OK ? APP_OK : app_fail(&err);
    json_decref(s.docs);
    free(s.logits);
    mf__tokenizer_free(s.tok);
    mf_session_free(s.session);
    mf_session_free(s.other_session);
    mf_model_close(s.model);
    mf_model_close(s.other);
    free(s.other_logits);
    losses_free(&s.scored);
    losses_free(&s.other_scored);
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
        {.name = "against",
         .kind = OPT_STRING,
         .value = &opt.against,
         .arg = "DIR",
         .help = "the difference to the model in DIR, exact: loss token by token, divergence, agreement"},
        {.name = "decode",
         .kind = OPT_FLAG,
         .value = &opt.decode,
         .help = "token by token, as answers are made: where --lossy and --tuned act"},
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
                    "  moeflux eval qwen-3bit held-out.txt --against qwen\n"
                    "  moeflux eval qwen held-out.txt --decode --tuned --against qwen --ram 6G\n"
                    "  moeflux eval models/stories-moe held-out.txt --limit 10 --scores scores.json\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    char *dir;
    mf_error err;
    if (models_ready(&opt.model.find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    if (cluster_worker()) return cluster_work(dir, &opt.model);
    if ((opt.model.lossy || opt.model.tuned) && !opt.decode) {
        app_say("--%s acts on decoding, and eval takes a text as a prompt; --decode scores it token by token",
                opt.model.lossy ? "lossy" : "tuned");
        free(dir);
        return APP_USAGE;
    }
    int code = eval(dir, words[1], &opt);
    free(dir);
    return code;
}
