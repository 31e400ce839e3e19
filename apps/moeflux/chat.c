/* moeflux chat: a conversation in the terminal, or through a pipe with one request per line.
 *
 * Every turn is the whole conversation, written out by the model's template; what the session or the prompt cache has
 * of its beginning is not evaluated again. An answer that was stopped stays as far as it came. */
#include "chat.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "cluster/cluster.h"
#include "models.h"
#include "options.h"
#include "verdict.h"

#define LONG_PROMPT 256                /* tokens */
#define CACHE_RAM ((int64_t)512 << 20) /* for states of the latest turns, or an eighth of --ram if that is less */

/* ---- messages --------------------------------------------------------------------------------------------------- */

void chat_note(const chat *c, const char *fmt, ...) {
    va_list ap;
    bool dim = c->screen.styled && isatty(STDERR_FILENO);
    fflush(stdout);
    va_start(ap, fmt);
    fputs(dim ? "\033[2m" : c->terminal ? "" : "moeflux: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputs(dim ? "\033[0m\n" : "\n", stderr);
    va_end(ap);
}

void chat_error(chat *c, const mf_error *err) {
    fflush(stdout);
    app_say("%s", err->text);
    c->failed = true;
}

/* ---- the model, here or elsewhere ------------------------------------------------------------------------------- */

const char *chat_model(const chat *c) {
    return c->remote ? remote_model(c->remote) : c->talker.info->name;
}

bool chat_can_reason(const chat *c) {
    return c->remote ? remote_can_reason(c->remote) : c->talker.about.has_reasoning;
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static char *state_path(const char *path) {
    mf__strbuf name = {0};
    return mf__strbuf_printf(&name, NULL, "%s.state", path) == MF_OK ? name.data : NULL;
}

/* The messages are what counts: a state that cannot be written is said, and costs time when they are loaded. */
mf_status chat_save(chat *c, const char *path, mf_error *err) {
    mf_error why;
    MF__TRY(conversation_save(&c->talk, chat_model(c), path, err));
    if (c->remote || !mf_memory_length(c->talker.session)) return MF_OK;
    char *beside = state_path(path);
    if (!beside) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    if (talker_save(&c->talker, beside, &why) != MF_OK)
        chat_note(c, "%s is saved, but not its state (%s): it will be evaluated again when it is loaded", path,
                  why.text);
    free(beside);
    return MF_OK;
}

mf_status chat_load(chat *c, const char *path, mf_error *err) {
    mf_error why;
    MF__TRY(conversation_load(&c->talk, path, err));
    c->n_held = 0;
    char *beside = c->remote ? NULL : state_path(path);
    mf_status st = beside && app_path_exists(beside) ? talker_load(&c->talker, beside, &why) : MF_OK;
    if (st != MF_OK) chat_note(c, "the conversation will be evaluated again, its state does not fit: %s", why.text);
    free(beside);
    json_decref(c->pending);
    c->pending = NULL;
    return MF_OK;
}

/* After every turn: the messages. The state follows when the program ends. */
static void keep(chat *c) {
    mf_error err;
    if (c->file && conversation_save(&c->talk, chat_model(c), c->file, &err) != MF_OK) chat_error(c, &err);
}

/* ---- a turn ----------------------------------------------------------------------------------------------------- */

/* A long prompt takes its time; on a terminal a line says so until the answer begins. */
static void show_reading(void *user, const mf_reply_prompt *p) {
    chat *c = user;
    const int32_t *held = mf_memory_tokens(c->talker.session);
    size_t n_held = (size_t)mf_memory_length(c->talker.session), same = 0;
    while (same < n_held && same < p->n_ids && held[same] == p->ids[same]) same++;
    if (!c->terminal || !c->screen.styled || p->n_ids - same < LONG_PROMPT) return;
    c->reading = true;
    fprintf(stderr, "\033[2mreading %zu tokens, Ctrl-C stops\033[0m", p->n_ids - same);
}

/* A server tells how far it is. */
static void show_progress(void *user, const char *progress) {
    chat *c = user;
    if (!c->terminal || !c->screen.styled) return;
    c->reading = true;
    fprintf(stderr, "\r\033[K\033[2mreading %.60s, Ctrl-C stops\033[0m", progress);
}

static void hide_reading(chat *c) {
    if (c->reading) fputs("\r\033[K", stderr);
    c->reading = false;
}

static mf_status on_event(void *user, const mf_event *event) {
    chat *c = user;
    mf_error err;
    hide_reading(c);
    MF__TRY(said_event(&c->said, event, &err));
    return screen_event(&c->screen, event);
}

static void status_line(const chat *c, const answer *a) {
    char text[ANSWER_TEXT];
    if (app_quiet) return;
    answer_describe(a, text);
    if (c->remote && a->interrupted)
        chat_note(c, "[interrupted]");
    else if (c->remote)
        chat_note(c, "[%s; %s; context %lld of %lld]", text, a->stopped, (long long)c->n_held,
                  (long long)remote_n_ctx(c->remote));
    else
        chat_note(c, "[%s; %s; context %lld of %d]", text, a->stopped, (long long)mf_memory_length(c->talker.session),
                  c->talker.n_ctx);
}

static mf_status remote_turn(chat *c, answer *a, mf_error *err) {
    remote_request q = {.messages = c->talk.messages,
                        .think = c->talk.think,
                        .sampling = &c->sampling,
                        .seed = c->sampling.seed + c->n_answers++,
                        .fn = on_event,
                        .reading = show_progress,
                        .user = c};
    mf_status st = remote_answer(c->remote, &q, a, err);
    hide_reading(c);
    if (a->n_prompt) c->n_held = a->n_prompt + a->n_made;
    return st;
}

static mf_status make_answer(chat *c, answer *a, mf_error *err) {
    answer_request r = {.sampling = &c->sampling, .seed = c->sampling.seed + c->n_answers++, .before = show_reading};
    char *request = conversation_request(&c->talk);
    if (!request) return mf__fail(err, MF_E_NOMEM, "no memory for the request");
    mf_reply_options_init(&r.options);
    r.options.request = request;
    r.options.request_size = strlen(request);
    r.options.reasoning = c->talk.think;
    r.options.known = mf_memory_tokens(c->talker.session);
    r.options.n_known = (size_t)mf_memory_length(c->talker.session);
    r.options.fn = on_event;
    r.options.user = c;
    mf_status st = answer_make(&c->talker, &r, a, err);
    hide_reading(c);
    free(request);
    return st;
}

/* A request that got no answer leaves the conversation, where it would stand in the way of the next one. */
static void take_back(chat *c) {
    json_decref(c->pending);
    c->pending = conversation_take(&c->talk, "user");
}

/* Nothing more can be said in this context; what can be done about it. */
static void offer_ways_out(const chat *c) {
    if (c->remote)
        chat_note(c, "the server's context is full: /forget drops the oldest turn, /undo takes the last one back, "
                     "/reset begins anew");
    else
        chat_note(c,
                  "the context of %d tokens is full: /forget drops the oldest turn, /undo takes the last one back, "
                  "/reset begins anew%s",
                  c->talker.n_ctx, c->talker.n_ctx < c->talker.info->n_ctx ? ", and a larger --ctx has more room" : "");
}

/* What is typed while an answer comes is kept for the next line, and not shown in the middle of the answer. */
static void hide_typing(struct termios *before, bool *hidden) {
    *hidden = isatty(STDIN_FILENO) && tcgetattr(STDIN_FILENO, before) == 0;
    if (!*hidden) return;
    struct termios silent = *before;
    silent.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    tcsetattr(STDIN_FILENO, TCSANOW, &silent);
}

void chat_answer(chat *c) {
    answer a = {0};
    mf_error err, why;
    struct termios before;
    bool hidden;
    said_clear(&c->said);
    hide_typing(&before, &hidden);
    mf_status st = c->remote ? remote_turn(c, &a, &err) : make_answer(c, &a, &err);
    if (hidden) tcsetattr(STDIN_FILENO, TCSANOW, &before);
    if (!said_nothing(&c->said) || st == MF_OK) screen_finish(&c->screen);
    bool nothing = said_nothing(&c->said) && (st != MF_OK || a.interrupted);
    if (nothing)
        take_back(c);
    else if (conversation_answer(&c->talk, &c->said, &why) != MF_OK)
        chat_error(c, &why);
    if (st != MF_OK)
        chat_error(c, &err);
    else if (nothing)
        chat_note(c, "stopped before an answer began; /retry asks again");
    else
        status_line(c, &a);
    if (st == MF_E_CONTEXT_FULL || a.full) offer_ways_out(c);
    if (!nothing) keep(c);
}

static void ask(chat *c, const char *text, size_t size) {
    mf_error err;
    mf_status st = memchr(text, '\0', size) ? mf__fail(&err, MF_E_INVALID, "the line has a zero byte in it")
                                            : conversation_ask(&c->talk, text, size, &err);
    if (st == MF_OK)
        chat_answer(c);
    else
        chat_error(c, &err);
}

/* Where the model is: in a directory, or behind a server. */
typedef struct place {
    const char *dir, *server, *key_file;
} place;

/* ---- the loop --------------------------------------------------------------------------------------------------- */

/* What a signal means here. At a terminal Ctrl-C has done its work; anything else ends the program. */
static int after_interrupt(chat *c) {
    int number = app_take_interrupt();
    if (!number || (number == SIGINT && c->terminal)) return APP_OK;
    c->leave = true;
    return 128 + number;
}

static int converse(chat *c) {
    mf__strbuf text = {0};
    int code = APP_OK;
    while (!c->leave && !app_output_closed()) {
        lines_result r = lines_read(c->in, "> ", &text);
        if (r == LINES_END && c->terminal) fputc('\n', stdout); /* what follows is not behind the prompt */
        if (r == LINES_END) break;
        if (r == LINES_FAILED) c->failed = true;
        if (r == LINES_FAILED && !c->terminal) break;
        size_t blank = text.size ? strspn(text.data, " \t\r\n") : 0;
        if (r == LINES_TEXT && text.size && text.data[0] == '/' && strncmp(text.data, "//", 2))
            chat_command(c, text.data);
        else if (r == LINES_TEXT && blank < text.size)
            ask(c, text.data + (text.data[0] == '/'), text.size - (text.data[0] == '/'));
        else if (r == LINES_INTERRUPTED && c->terminal)
            chat_note(c, "Ctrl-D or /quit leaves");
        code = after_interrupt(c);
    }
    mf__strbuf_free(&text);
    return code;
}

static mf_status open_model(chat *c, const char *dir, mf_error *err) {
    c->model.prompt_cache_ram = c->model.ram && c->model.ram / 8 < CACHE_RAM ? c->model.ram / 8 : CACHE_RAM;
    verdict_warn(dir, &c->model);
    MF__TRY(talker_open(dir, &c->model, &c->sampling, &c->talker, err));
    if (c->talker.about.has_chat) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED,
                    "%s has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
                    "moeflux run --raw continues texts",
                    dir);
}

static mf_status open_server(chat *c, const char *url, const char *key_file, mf_error *err) {
    mf_form *form;
    char *key;
    MF__TRY(remote_check(&c->sampling, err));
    MF__TRY(sampling_form(&c->sampling, &form, err)); /* the server makes its own; here it is only tried */
    mf_form_free(form);
    MF__TRY(remote_key(key_file, &key, err));
    mf_status st = remote_open(url, key, &c->remote, err);
    free(key);
    return st;
}

static mf_status prepare(chat *c, const place *at, const char *system, mf_error *err) {
    MF__TRY(at->server ? open_server(c, at->server, at->key_file, err) : open_model(c, at->dir, err));
    if (c->talk.think && !chat_can_reason(c))
        return mf__fail(err, MF_E_INVALID, "--think does nothing: the model's chat template has no switch for it");
    if (c->file && app_path_exists(c->file)) MF__TRY(chat_load(c, c->file, err));
    if (system) MF__TRY(conversation_set_system(&c->talk, system, err));
    char *history = c->terminal ? app_state_path("chat_history") : NULL;
    c->in = lines_open(c->terminal, history, chat_completion);
    free(history);
    return c->in ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for lines");
}

static void greet(const chat *c) {
    static const char hint[] = "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves.";
    if (c->remote)
        chat_note(c, "%s at %s. %s", chat_model(c), remote_address(c->remote), hint);
    else
        chat_note(c, "%s (%s), context %d. %s", c->talker.info->name, c->talker.info->family, c->talker.n_ctx, hint);
}

static int run(chat *c, const place *at, const char *system, mf_switch think) {
    mf_error err;
    c->terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    screen_init(&c->screen, screen_has_styles());
    app_watch_interrupts();
    mf_status st = conversation_init(&c->talk, &err);
    c->talk.think = think;
    if (st == MF_OK) st = prepare(c, at, system, &err);
    int code = APP_OK;
    if (st == MF_OK) {
        if (c->terminal && !app_quiet) greet(c);
        if (conversation_turns(&c->talk)) chat_note(c, "%zu messages so far", conversation_turns(&c->talk));
        code = converse(c);
        app_take_interrupt();
        if (c->file && conversation_turns(&c->talk)) st = chat_save(c, c->file, &err);
    }
    if (st != MF_OK) code = app_fail(&err);
    lines_close(c->in);
    said_free(&c->said);
    json_decref(c->pending);
    conversation_free(&c->talk);
    talker_close(&c->talker);
    remote_close(c->remote);
    return code ? code : c->failed ? APP_FAILED : APP_OK;
}

/* With --server the options of models here mean nothing, and are unknown then. */
static bool names_server(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--server") || !strncmp(argv[i], "--server=", 9)) return true;
    return false;
}

int cmd_chat(int argc, char **argv) {
    static const char *const switches[] = {"auto", "on", "off", NULL}; /* in the order of mf_switch */
    chat c = {0};
    const char *system = NULL;
    place at = {0};
    int think = 0;
    bool elsewhere = names_server(argc, argv);
    sampling_init(&c.sampling, 1 << 30);
    opt_def defs[] = {
        {.name = "conversation",
         .kind = OPT_STRING,
         .value = &c.file,
         .arg = "FILE",
         .help = "go on with the conversation in FILE, if it is there, and keep it there"},
        {.name = "system", .kind = OPT_STRING, .value = &system, .arg = "TEXT", .help = "a system prompt"},
        {.name = "think",
         .kind = OPT_CHOICE,
         .value = &think,
         .arg = "on|off",
         .help = "let a reasoning model think first (default: as the model does)",
         .choices = switches},
        {.name = "server",
         .kind = OPT_STRING,
         .value = &at.server,
         .arg = "URL",
         .help = "talk to the model of a `moeflux serve` there, or of another server with OpenAI's API"},
        {.name = "api-key-file",
         .kind = OPT_STRING,
         .value = &at.key_file,
         .arg = "FILE",
         .help = "with --server: the API key is its first line (or MOEFLUX_API_KEY in the environment)"},
        SAMPLING_ROWS(c.sampling),
        OPT_FIND_ROWS(c.model.find), /* these two are the last: --server does without */
        OPT_MODEL_ROWS(c.model),
    };
    opt_spec spec = {
        .usage = "chat [MODEL] [options]",
        .about =
            "A conversation with MODEL, a name or a path (default: the small story model that comes with moeflux).\n"
            "Ctrl-C stops an answer and keeps what was said, Ctrl-D leaves. A message of several lines is pasted,\n"
            "or put between \"\"\" and \"\"\", or its lines end in a backslash. /help lists the commands; a message\n"
            "that begins with a slash is written with two. Without a terminal every line of standard input is a\n"
            "message, and only answers go to standard output.",
        .defs = defs,
        .n_defs = MF__COUNT(defs) - (elsewhere ? 2 : 0),
        .max_words = elsewhere ? 0 : 1,
        .examples = "  moeflux chat\n"
                    "  moeflux chat qwen --system \"Answer briefly.\" --think off\n"
                    "  moeflux chat qwen --conversation sky.json\n"
                    "  moeflux chat --server http://localhost:8080\n"
                    "  printf 'Tell me a story.\\nAnd another one.\\n' | moeflux chat --temperature 0\n",
    };
    const char *words[OPT_MAX_WORDS] = {NULL};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    char *dir = NULL;
    mf_error err;
    mf_status st = MF_OK;
    if (at.key_file && !at.server)
        st = mf__fail(&err, MF_E_INVALID, "--api-key-file is for --server: a model here needs no key");
    if (st == MF_OK && !at.server) st = models_ready(&c.model.find, words[0], &dir, &err);
    if (st != MF_OK) return app_fail(&err);
    if (cluster_worker()) return cluster_work(dir, &c.model);
    at.dir = dir;
    int code = run(&c, &at, system, (mf_switch)think);
    free(dir);
    return code;
}
