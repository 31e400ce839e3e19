/* moeflux run: text in, text out, token by token.
 *
 *   prompt -> ids -> mf_eval_prompt -> logits -> sampler -> id -> detokenizer -> standard output -> mf_eval_token ...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "app.h"
#include "base/file.h"
#include "base/json.h"
#include "options.h"
#include "text/chat.h"
#include "text/sampler.h"
#include "text/tokenizer.h"

#define OPENING "Once upon a time"

typedef struct run_options {
    app_model_options model;
    const char *prompt;
    int64_t n_tokens, top_k;
    double temperature, top_p, min_p;
    uint64_t seed;
    bool raw, temperature_given, top_k_given, top_p_given, seed_given;
} run_options;

/* Everything one run holds. */
typedef struct run_state {
    mf_model *model;
    mf_session *session;
    mf__tokenizer *tok;
    mf__sampler *sampler;
    mf__detok detok;
    mf__strbuf text; /* decided and not yet written */
    float *logits;
    int32_t *ids;
    size_t n_ids;
    int64_t n_made;
    double prompt_seconds, made_seconds;
    const char *stopped; /* why */
} run_state;

/* ---- the prompt ------------------------------------------------------------------------------------------------ */

static mf_status add_text(run_state *s, const char *text, size_t size, mf_error *err) {
    int32_t *ids;
    size_t n;
    MF__TRY(mf__tokenizer_encode(s->tok, text, size, true, &ids, &n, err));
    int32_t *all = n ? realloc(s->ids, (s->n_ids + n) * sizeof *all) : s->ids;
    if (n && !all) {
        free(ids);
        return mf__fail(err, MF_E_NOMEM, "no memory for %zu token ids", s->n_ids + n);
    }
    s->ids = all;
    if (n) memcpy(s->ids + s->n_ids, ids, n * sizeof *ids);
    s->n_ids += n;
    free(ids);
    return MF_OK;
}

/* The request as a conversation of one message, ready for the answer. */
static mf_status add_chat(run_state *s, const char *text, mf_error *err) {
    mf__strbuf rendered = {0};
    mf_status st = mf__chat_render(&(mf__chat_message){.role = "user", .content = text}, 1, true, &rendered, err);
    if (st == MF_OK) st = add_text(s, rendered.data, rendered.size, err);
    mf__strbuf_free(&rendered);
    return st;
}

/* Without --prompt the opening of a story is continued. With it, a model that knows the chat format is asked; --raw, or
 * a model that does not know it, continues the text. What is continued is printed first: it belongs to the text. */
static mf_status make_prompt(run_state *s, const run_options *opt, mf_error *err) {
    mf__strbuf from_stdin = {0};
    const char *text = opt->prompt ? opt->prompt : OPENING;
    size_t size = strlen(text);
    bool chat = opt->prompt && !opt->raw && mf__tokenizer_id(s->tok, "<|im_start|>") >= 0;
    mf_status st = MF_OK;
    if (!strcmp(text, "-")) {
        st = app_read_stdin(&from_stdin, err);
        text = from_stdin.data ? from_stdin.data : "";
        size = from_stdin.size;
    }
    if (st == MF_OK && !size) st = mf__fail(err, MF_E_INVALID, "the prompt is empty");
    if (st == MF_OK && strlen(text) != size) st = mf__fail(err, MF_E_INVALID, "the prompt has a zero byte in it");
    if (st == MF_OK) st = chat ? add_chat(s, text, err) : add_text(s, text, size, err);
    if (st == MF_OK && !s->n_ids) st = mf__fail(err, MF_E_INVALID, "the prompt has no tokens");
    if (st == MF_OK && !chat) fwrite(text, 1, size, stdout);
    mf__strbuf_free(&from_stdin);
    return st;
}

/* ---- sampling -------------------------------------------------------------------------------------------------- */

/* What the options leave open comes from the model's generation_config.json, then from the defaults in opt. */
static mf_status read_defaults(const char *dir, run_options *opt, mf_error *err) {
    char *path = mf__path_join(dir, "generation_config.json");
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    json_t *root = NULL;
    bool sample = true;
    mf_status st = mf__path_exists(path) ? mf__json_read(path, 1 << 20, &root, err) : MF_OK;
    if (root) {
        if (!opt->temperature_given) {
            st = mf__json_opt_double(root, path, "temperature", 0, 100, opt->temperature, &opt->temperature, err);
            if (st == MF_OK) st = mf__json_opt_bool(root, path, "do_sample", true, &sample, err);
            if (!sample) opt->temperature = 0;
        }
        if (st == MF_OK && !opt->top_p_given)
            st = mf__json_opt_double(root, path, "top_p", 0, 1, opt->top_p, &opt->top_p, err);
        if (st == MF_OK && !opt->top_k_given)
            st = mf__json_opt_int(root, path, "top_k", 0, 1 << 24, opt->top_k, &opt->top_k, err);
    }
    json_decref(root);
    free(path);
    return st;
}

static uint64_t seed_from_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t x = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + ((uint64_t)getpid() << 40);
    x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15u;
    return (x ^ (x >> 29)) % 1000000000u; /* short enough to be typed again */
}

static mf_status make_sampler(run_state *s, const run_options *opt, mf_error *err) {
    mf__sampler_options so;
    mf__sampler_options_init(&so);
    so.temperature = (float)opt->temperature;
    so.top_k = (int)opt->top_k;
    so.top_p = (float)opt->top_p;
    so.min_p = (float)opt->min_p;
    so.seed = opt->seed;
    return mf__sampler_create(&so, mf_model_info_get(s->model)->n_vocab, &s->sampler, err);
}

/* ---- generating ------------------------------------------------------------------------------------------------ */

static bool is_end(const run_state *s, int32_t id) {
    const mf_model_info *info = mf_model_info_get(s->model);
    for (int32_t i = 0; i < info->n_eos; i++)
        if (info->eos[i] == id) return true;
    return false;
}

static void write_text(run_state *s) {
    if (s->text.size) fwrite(s->text.data, 1, s->text.size, stdout);
    fflush(stdout);
    mf__strbuf_clear(&s->text);
}

static mf_status generate(run_state *s, int64_t n_tokens, int32_t n_ctx, mf_error *err) {
    size_t n_vocab = (size_t)mf_model_info_get(s->model)->n_vocab;
    double start = app_seconds();
    mf_status st = mf_eval_prompt(s->session, s->ids, s->n_ids, 0, s->logits, n_vocab, err);
    s->prompt_seconds = app_seconds() - start;
    start = app_seconds();
    s->stopped = "token limit";
    while (st == MF_OK && s->n_made < n_tokens) {
        int32_t id = mf__sampler_next(s->sampler, s->logits);
        if (is_end(s, id)) {
            s->stopped = "the model ended";
            break;
        }
        s->n_made++;
        st = mf__detok_push(&s->detok, id, &s->text, err);
        write_text(s);
        if (st != MF_OK || s->n_made == n_tokens) break;
        if (app_output_closed()) {
            s->stopped = "output closed";
            break;
        }
        if (mf_memory_length(s->session) == n_ctx) {
            s->stopped = "context full";
            break;
        }
        st = mf_eval_token(s->session, id, mf_memory_length(s->session), s->logits, n_vocab, err);
    }
    if (st == MF_OK) st = mf__detok_flush(&s->detok, &s->text, err);
    write_text(s);
    s->made_seconds = app_seconds() - start;
    if (st == MF_E_CANCELLED) s->stopped = "interrupted";
    return st;
}

static double rate(double n, double seconds) {
    return seconds > 0 ? n / seconds : 0;
}

static void closing_line(const run_state *s, const run_options *opt) {
    char seed[48] = "";
    if (opt->temperature > 0) snprintf(seed, sizeof seed, ", seed %llu", (unsigned long long)opt->seed);
    app_say("prompt %zu tokens at %.1f tokens/s, generated %lld at %.1f tokens/s (%s%s)", s->n_ids,
            rate((double)s->n_ids, s->prompt_seconds), (long long)s->n_made, rate((double)s->n_made, s->made_seconds),
            s->stopped, seed);
    app_say_experts(s->model);
}

static mf_status prepare(run_state *s, const char *dir, run_options *opt, mf_error *err) {
    mf_session_options so;
    app_session_options(&opt->model, &so);
    MF__TRY(app_open(dir, &opt->model, &s->model, err));
    MF__TRY(read_defaults(dir, opt, err));
    MF__TRY(mf__tokenizer_open(dir, &s->tok, err));
    MF__TRY(mf_session_create(s->model, &so, &s->session, err));
    MF__TRY(make_sampler(s, opt, err));
    mf__detok_init(&s->detok, s->tok);
    s->logits = malloc((size_t)mf_model_info_get(s->model)->n_vocab * sizeof *s->logits);
    if (!s->logits) return mf__fail(err, MF_E_NOMEM, "no memory for logits");
    return make_prompt(s, opt, err);
}

static int run(const char *dir, run_options *opt) {
    run_state s = {0};
    mf_error err = {0};
    app_catch_interrupts();
    mf_status st = prepare(&s, dir, opt, &err);
    if (st == MF_OK) {
        int32_t n_ctx = opt->model.n_ctx ? (int32_t)opt->model.n_ctx : mf_model_info_get(s.model)->n_ctx;
        st = generate(&s, opt->n_tokens, n_ctx, &err);
        if (st == MF_OK || st == MF_E_CANCELLED) {
            fputc('\n', stdout);
            fflush(stdout);
            closing_line(&s, opt);
        }
    }
    int code = st == MF_OK ? APP_OK : app_fail(&err);
    free(s.logits);
    free(s.ids);
    mf__strbuf_free(&s.text);
    mf__sampler_free(s.sampler);
    mf__tokenizer_free(s.tok);
    mf_session_free(s.session);
    mf_model_close(s.model);
    return code;
}

int cmd_run(int argc, char **argv) {
    run_options opt = {.n_tokens = 256, .temperature = 0.8, .top_p = 0.95};
    opt_def defs[] = {
        {.name = "prompt",
         .kind = OPT_STRING,
         .value = &opt.prompt,
         .arg = "TEXT",
         .help = "a request, or with --raw a text to continue; - reads standard input"},
        {.name = "raw",
         .kind = OPT_FLAG,
         .value = &opt.raw,
         .help = "no chat format: the prompt is continued as it stands"},
        {.name = "tokens",
         .kind = OPT_INT,
         .value = &opt.n_tokens,
         .arg = "N",
         .help = "most tokens to generate (default 256)",
         .min = 0,
         .max = 1 << 30},
        {.name = "temperature",
         .kind = OPT_REAL,
         .value = &opt.temperature,
         .arg = "T",
         .help = "0 takes the likeliest token (default: the model's, else 0.8)",
         .max = 100,
         .given = &opt.temperature_given},
        {.name = "top-k",
         .kind = OPT_INT,
         .value = &opt.top_k,
         .arg = "K",
         .help = "only the K likeliest tokens; 0 is off (default: the model's)",
         .max = 1 << 24,
         .given = &opt.top_k_given},
        {.name = "top-p",
         .kind = OPT_REAL,
         .value = &opt.top_p,
         .arg = "P",
         .help = "only the likeliest tokens that make up P (default: the model's, else 0.95)",
         .max = 1,
         .given = &opt.top_p_given},
        {.name = "min-p",
         .kind = OPT_REAL,
         .value = &opt.min_p,
         .arg = "P",
         .help = "only tokens at least P times as likely as the likeliest; 0 is off",
         .max = 1},
        {.name = "seed",
         .kind = OPT_SEED,
         .value = &opt.seed,
         .arg = "S",
         .help = "same seed, same text (default: from the clock; the last line says which)",
         .given = &opt.seed_given},
        OPT_MODEL_ROWS(opt.model),
    };
    opt_spec spec = {
        .usage = "run [DIR] [--prompt TEXT] [options]",
        .about = "Generates text with the model in DIR (default: the small story model that comes with moeflux).\n"
                 "Without --prompt it continues \"" OPENING "\". A prompt is put to the model in the chat format when\n"
                 "its tokenizer has <|im_start|>; with --raw, or without that token, it is continued instead.\n"
                 "The text goes to standard output, everything else to standard error.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .max_words = 1,
        .examples = "  moeflux run\n"
                    "  moeflux run --prompt \"Tell me a story about a dragon and a cake.\"\n"
                    "  moeflux run --raw --prompt \"The king had three sons\" --tokens 100 --seed 7\n"
                    "  moeflux run qwen --prompt - --temperature 0 < question.txt\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (!opt.seed_given) opt.seed = seed_from_clock();
    if (words[0]) return run(words[0], &opt);
    char *dir;
    mf_error err;
    if (app_shipped_model(&dir, &err) != MF_OK) return app_fail(&err);
    int code = run(dir, &opt);
    free(dir);
    return code;
}
