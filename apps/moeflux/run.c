/* moeflux run: a request or a text in, text out, token by token. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "answer.h"
#include "app.h"
#include "cluster/cluster.h"
#include "conversation.h"
#include "models.h"
#include "options.h"
#include "screen.h"
#include "verdict.h"

#define OPENING "Once upon a time"
#define MAX_LOGPROBS 20

typedef struct run_options {
    app_model_options model;
    sampling_options sampling;
    const char *prompt, *system;
    bool raw, json;
    int think;
    int64_t n_logprobs;
} run_options;

/* Everything one run holds. */
typedef struct run_state {
    const run_options *opt;
    talker talker;
    screen screen;
    said said; /* with --json */
    mf__strbuf from_stdin;
    const char *text; /* the prompt */
    size_t size;
    char *request; /* as a request in the model's chat format; NULL: the prompt is a text to continue */
} run_state;

/* ---- the prompt ------------------------------------------------------------------------------------------------ */

/* The prompt as a conversation of one message. */
static mf_status make_request(run_state *s, mf_error *err) {
    json_t *content = json_stringn(s->text, s->size);
    if (!content) return mf__fail(err, MF_E_INVALID, "the prompt is not valid UTF-8");
    json_t *messages = json_array();
    if (s->opt->system)
        json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", s->opt->system));
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user", "content", content));
    json_t *root = json_pack("{s:o}", "messages", messages);
    s->request = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return s->request ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for the request");
}

/* Options that would do nothing are refused. */
static mf_status check_options(const run_options *opt, bool prompt, mf_error *err) {
    if (opt->system && opt->raw)
        return mf__fail(err, MF_E_INVALID, "--system is for a request; with --raw there is none, only a text");
    if (opt->system && !prompt)
        return mf__fail(err, MF_E_INVALID, "--system goes before a request; give one with --prompt or standard input");
    if (opt->think && opt->raw)
        return mf__fail(err, MF_E_INVALID, "--think is for a request; with --raw there is none, only a text");
    if (opt->think && !prompt)
        return mf__fail(err, MF_E_INVALID, "--think is for a request; give one with --prompt or standard input");
    return MF_OK;
}

/* What the model's chat format does not know. */
static mf_status check_format(const run_state *s, bool chat, mf_error *err) {
    const run_options *opt = s->opt;
    if ((opt->system || opt->think) && !chat)
        return mf__fail(err, MF_E_INVALID, "%s is for a request, but the model has no chat format to put one in",
                        opt->system ? "--system" : "--think");
    if (opt->think && !s->talker.about.has_reasoning)
        return mf__fail(err, MF_E_INVALID, "--think does nothing: the model's chat template has no switch for it");
    return MF_OK;
}

/* Somebody piped a text in, or redirected a file; not a terminal, nor /dev/null. */
static bool stdin_is_piped(void) {
    struct stat s;
    return !fstat(STDIN_FILENO, &s) && (S_ISFIFO(s.st_mode) || S_ISREG(s.st_mode));
}

static mf_status read_stdin(run_state *s, mf_error *err) {
    MF__TRY(app_read_stdin(APP_MAX_TEXT, &s->from_stdin, err));
    s->text = s->from_stdin.data ? s->from_stdin.data : "";
    s->size = s->from_stdin.size;
    return MF_OK;
}

/* Without --prompt, what is piped in is the prompt; where nothing is, the opening of a story is continued. A prompt is
 * put to a model that has a chat format; --raw, or a model that has none, continues the text. */
static mf_status make_prompt(run_state *s, mf_error *err) {
    const run_options *opt = s->opt;
    bool given = opt->prompt != NULL;
    s->text = given ? opt->prompt : OPENING;
    s->size = strlen(s->text);
    if (given ? !strcmp(opt->prompt, "-") : stdin_is_piped()) {
        MF__TRY(read_stdin(s, err));
        if (!given && !s->size) s->text = OPENING, s->size = strlen(OPENING);
        given = s->from_stdin.size > 0;
    }
    MF__TRY(check_options(opt, given, err));
    bool chat = given && !opt->raw && s->talker.about.has_chat;
    MF__TRY(check_format(s, chat, err));
    screen_init(&s->screen, chat && screen_has_styles());
    if (!s->size) return mf__fail(err, MF_E_INVALID, "the prompt is empty");
    if (strlen(s->text) != s->size) return mf__fail(err, MF_E_INVALID, "the prompt has a zero byte in it");
    return chat ? make_request(s, err) : MF_OK;
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------ */

static json_t *token_text(const run_state *s, int32_t id) {
    size_t n;
    const char *bytes = mf_text_token(s->talker.text, id, &n);
    json_t *text = json_stringn(bytes, n);
    return text ? text : json_null(); /* a piece of a character */
}

/* One JSON object per token on standard error. */
static void print_logprobs(const run_state *s, const mf_event *e) {
    json_t *list = json_array();
    for (int i = 0; i < e->n_top; i++)
        json_array_append_new(list, json_pack("{s:i, s:o, s:f}", "id", e->top[i].id, "text",
                                              token_text(s, e->top[i].id), "logprob", (double)e->top[i].logprob));
    json_t *line = json_pack("{s:i, s:o, s:f, s:o}", "id", e->token, "text", token_text(s, e->token), "logprob",
                             (double)e->logprob, "top", list);
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(7)) : NULL;
    if (text) fprintf(stderr, "%s\n", text);
    free(text);
    json_decref(line);
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

static mf_status show(void *user, const mf_event *event) {
    run_state *s = user;
    mf_error err;
    if (event->kind != MF_EVENT_TOKEN)
        return s->opt->json ? said_event(&s->said, event, &err) : screen_event(&s->screen, event);
    print_logprobs(s, event);
    return MF_OK;
}

/* A text that is continued is printed first: it belongs to the text. */
static void show_prompt(void *user, const mf_reply_prompt *p) {
    run_state *s = user;
    (void)p;
    if (!s->request && !s->opt->json)
        screen_event(&s->screen, &(mf_event){.kind = MF_EVENT_TEXT, .text = s->text, .n_text = s->size});
}

/* The answer and how it was made, as one JSON object. */
static mf_status print_json(const run_state *s, const answer *a, mf_error *err) {
    const mf__strbuf *text = &s->said.text, *reasoning = &s->said.reasoning;
    json_t *root = json_pack("{s:o, s:o, s:O*, s:I, s:I, s:I, s:s, s:f, s:f}", "text",
                             json_stringn(text->data ? text->data : "", text->size), "reasoning",
                             reasoning->size ? json_stringn(reasoning->data, reasoning->size) : json_null(),
                             "tool_calls", s->said.calls, "prompt_tokens", (json_int_t)a->n_prompt, "reused_tokens",
                             (json_int_t)a->n_reused, "tokens", (json_int_t)a->n_made, "stopped", a->stopped,
                             "prompt_seconds", a->prompt_seconds, "seconds", a->made_seconds);
    if (root && s->opt->sampling.temperature > 0)
        json_object_set_new(root, "seed", json_integer((json_int_t)s->opt->sampling.seed));
    mf_stats st;
    mf_model_stats_get(s->talker.model, &st);
    if (root && st.lossy_experts)
        json_object_set_new(root, "lossy",
                            json_pack("{s:I, s:I, s:I, s:I}", "experts", (json_int_t)st.lossy_experts, "replaced",
                                      (json_int_t)st.lossy_replaced, "skipped", (json_int_t)st.lossy_skipped, "small",
                                      (json_int_t)st.lossy_small));
    char *line = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    json_decref(root);
    if (!line) return mf__fail(err, MF_E_NOMEM, "no memory for the answer as JSON");
    puts(line);
    free(line);
    return MF_OK;
}

static void closing_line(const run_state *s, const answer *a) {
    char text[ANSWER_TEXT], seed[48] = "";
    const sampling_options *so = &s->opt->sampling;
    if (so->temperature > 0) snprintf(seed, sizeof seed, ", seed %llu", (unsigned long long)so->seed);
    answer_describe(a, text);
    app_note("%s (%s%s)", text, a->stopped, seed);
    app_say_experts(s->talker.model);
}

static mf_status prepare(run_state *s, const char *dir, run_options *opt, mf_error *err) {
    MF__TRY(talker_open(dir, &opt->model, &opt->sampling, &s->talker, err));
    return make_prompt(s, err);
}

static mf_status make_answer(run_state *s, answer *a, mf_error *err) {
    const run_options *opt = s->opt;
    answer_request r = {.sampling = &opt->sampling, .seed = opt->sampling.seed, .before = show_prompt};
    mf_reply_options *o = &r.options;
    mf_reply_options_init(o);
    if (s->request) {
        o->request = s->request;
        o->request_size = strlen(s->request);
        o->reasoning = (mf_switch)opt->think;
    } else {
        o->text = s->text;
        o->text_size = s->size;
        o->text_special = true;
    }
    o->tokens = opt->n_logprobs > 0;
    o->n_logprobs = (int)opt->n_logprobs;
    o->fn = show;
    o->user = s;
    return answer_make(&s->talker, &r, a, err);
}

static int run(const char *dir, run_options *opt) {
    run_state s = {.opt = opt};
    answer a = {0};
    mf_error err = {0};
    app_catch_interrupts();
    verdict_warn(dir, &opt->model);
    mf_status st = prepare(&s, dir, opt, &err);
    if (st == MF_OK) {
        st = make_answer(&s, &a, &err);
        if (st == MF_OK && opt->json)
            st = print_json(&s, &a, &err);
        else if (st == MF_OK || s.screen.shown >= 0)
            screen_finish(&s.screen);
        if (st == MF_OK) closing_line(&s, &a);
    }
    int code = st != MF_OK ? app_fail(&err) : a.interrupted ? app_interrupt_code() : APP_OK;
    free(s.request);
    said_free(&s.said);
    mf__strbuf_free(&s.from_stdin);
    talker_close(&s.talker);
    return code;
}

int cmd_run(int argc, char **argv) {
    static const char *const switches[] = {"auto", "on", "off", NULL}; /* in the order of mf_switch */
    run_options opt = {0};
    sampling_init(&opt.sampling, 256);
    opt_def defs[] = {
        {.name = "prompt",
         .letter = 'p',
         .kind = OPT_STRING,
         .value = &opt.prompt,
         .arg = "TEXT",
         .help = "a request, or with --raw a text to continue; - reads standard input"},
        {.name = "raw",
         .kind = OPT_FLAG,
         .value = &opt.raw,
         .help = "no chat format: the prompt is continued as it stands"},
        {.name = "system",
         .kind = OPT_STRING,
         .value = &opt.system,
         .arg = "TEXT",
         .help = "a system prompt before the request"},
        {.name = "think",
         .kind = OPT_CHOICE,
         .value = &opt.think,
         .arg = "on|off",
         .help = "let a reasoning model think first (default: as the model does)",
         .choices = switches},
        {.name = "logprobs",
         .kind = OPT_INT,
         .value = &opt.n_logprobs,
         .arg = "N",
         .help = "log-probabilities of the N likeliest tokens, as JSON on standard error",
         .min = 1,
         .max = MAX_LOGPROBS},
        {.name = "json",
         .kind = OPT_FLAG,
         .value = &opt.json,
         .help = "print one JSON object: the answer, its reasoning, tokens, why it ended"},
        {.name = "record-routes",
         .kind = OPT_STRING,
         .value = &opt.model.record_routes,
         .arg = "FILE",
         .help = "write there which experts every token went to (bench --trace FILE replays it)"},
        SAMPLING_ROWS(opt.sampling),
        OPT_FIND_ROWS(opt.model.find),
        OPT_MODEL_ROWS(opt.model),
    };
    opt_spec spec = {
        .usage = "run [MODEL] [PROMPT] [options]",
        .about =
            "Generates text with MODEL (default: the small story model that comes with moeflux): a name that\n"
            "moeflux list shows, a model directory, a checkpoint or a GGUF file; the last two are converted once.\n"
            "Without a prompt, a text that is piped in is the prompt; else \"" OPENING "\" is continued.\n"
            "A prompt is put to the model in its own chat format; with --raw, or when the model has none, it is\n"
            "continued instead.\n"
            "The text goes to standard output, everything else to standard error.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .max_words = 2,
        .examples = "  moeflux run\n"
                    "  moeflux run --prompt \"Tell me a story about a dragon and a cake.\"\n"
                    "  moeflux run qwen \"Why is the sky blue?\"\n"
                    "  moeflux run --raw --prompt \"The king had three sons\" --tokens 100 --seed 7\n"
                    "  moeflux run qwen --temperature 0 < question.txt\n"
                    "  moeflux run qwen --prompt \"A person, as JSON.\" --json-schema person.json --think off\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    if (words[1] && opt.prompt) {
        app_say("--prompt is given, and behind the model there is another one: \"%s\"", words[1]);
        return APP_USAGE;
    }
    if (words[1]) opt.prompt = words[1];
    char *dir;
    mf_error err;
    if (models_ready(&opt.model.find, words[0], &dir, &err) != MF_OK) return app_fail(&err);
    if (cluster_worker()) return cluster_work(dir, &opt.model);
    int code = run(dir, &opt);
    free(dir);
    return code;
}
