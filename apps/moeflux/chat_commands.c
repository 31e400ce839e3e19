/* The commands of `moeflux chat`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chat.h"
#include "hints.h"
#include "options.h"

typedef struct command {
    const char *name, *also, *arg, *help;  /* also: other names, separated by spaces */
    void (*run)(chat *c, const char *arg); /* arg: what follows the name, "" when nothing does */
} command;

static const command *all_commands(int *n);

static void cmd_help(chat *c, const char *arg) {
    int n;
    const command *all = all_commands(&n);
    (void)arg;
    for (int i = 0; i < n; i++) {
        char left[32];
        snprintf(left, sizeof left, "/%s %s", all[i].name, all[i].arg);
        chat_note(c, "%-16s %s%s%s", left, all[i].help, *all[i].also ? "; also /" : "", all[i].also);
    }
    chat_note(c, "//...            a message that begins with a slash");
    chat_note(c,
              "\"\"\"              begins and ends a message of several lines; so does a backslash at the end of one");
}

static void cmd_reset(chat *c, const char *arg) {
    (void)arg;
    conversation_reset(&c->talk);
    json_decref(c->pending);
    c->pending = NULL;
    chat_note(c, "a new conversation%s", conversation_system(&c->talk) ? ", with the same system prompt" : "");
}

static const char *file_of(chat *c, const char *arg, const char *name) {
    if (*arg) return arg;
    if (c->file) return c->file;
    mf_error err;
    mf__fail(&err, MF_E_INVALID, "which file? /%s FILE", name);
    chat_error(c, &err);
    return NULL;
}

static void cmd_save(chat *c, const char *arg) {
    mf_error err;
    const char *path = file_of(c, arg, "save");
    if (!path) return;
    if (chat_save(c, path, &err) == MF_OK)
        chat_note(c, "%zu messages are in %s", conversation_turns(&c->talk), path);
    else
        chat_error(c, &err);
}

static void cmd_load(chat *c, const char *arg) {
    mf_error err;
    const char *path = file_of(c, arg, "load");
    if (!path) return;
    if (chat_load(c, path, &err) == MF_OK)
        chat_note(c, "%zu messages from %s", conversation_turns(&c->talk), path);
    else
        chat_error(c, &err);
}

static void cmd_system(chat *c, const char *arg) {
    mf_error err;
    if (*arg && conversation_set_system(&c->talk, strcmp(arg, "-") ? arg : "", &err) != MF_OK) {
        chat_error(c, &err);
        return;
    }
    const char *now = conversation_system(&c->talk);
    chat_note(c, now ? "system prompt: %s" : "no system prompt%s", now ? now : "");
}

static void cmd_think(chat *c, const char *arg) {
    static const char *const names[] = {"auto", "on", "off"}; /* in the order of mf_switch */
    int choice = -1;
    for (int i = 0; i < 3; i++)
        if (!strcmp(arg, names[i])) choice = i;
    if (choice >= 0) c->talk.think = (mf_switch)choice;
    if (choice < 0 && *arg)
        chat_note(c, "/think is on, off or auto, not \"%.40s\"", arg);
    else
        chat_note(c, "thinking: %s%s", names[c->talk.think],
                  c->talk.think && !chat_can_reason(c) ? " (but this model's chat template has no switch for it)" : "");
}

/* The last request with its answer. */
static void cmd_undo(chat *c, const char *arg) {
    (void)arg;
    json_t *old = conversation_take(&c->talk, "assistant");
    json_t *request = conversation_take(&c->talk, "user");
    if (request)
        chat_note(c, "taken back: %.60s", json_string_value(json_object_get(request, "content")));
    else
        chat_note(c, "there is nothing to take back");
    if (old && !request) json_array_append(c->talk.messages, old); /* an answer to nothing: it stays */
    json_decref(old);
    json_decref(request);
}

/* Asks the last request again; with a temperature the answer will be another one. */
static void cmd_retry(chat *c, const char *arg) {
    (void)arg;
    mf_error err;
    if (c->pending) {
        json_t *again = c->pending;
        c->pending = NULL;
        if (json_array_append_new(c->talk.messages, again)) {
            mf__fail(&err, MF_E_NOMEM, "no memory for the conversation");
            chat_error(c, &err);
            return;
        }
        chat_answer(c);
        return;
    }
    json_t *old = conversation_take(&c->talk, "assistant");
    if (!old && !conversation_turns(&c->talk)) {
        chat_note(c, "there is nothing to ask again");
        return;
    }
    size_t before = json_array_size(c->talk.messages);
    chat_answer(c);
    if (json_array_size(c->talk.messages) < before && old && c->pending) { /* no new answer: the old one stays */
        json_array_append_new(c->talk.messages, c->pending);
        json_array_append(c->talk.messages, old);
        c->pending = NULL;
    }
    json_decref(old);
}

static void say_predictor(chat *c, const char *name, const mf_predictor_stats *p) {
    if (!p->wanted) return;
    chat_note(c,
              "  predicted from %s: %.1f %% of those wanted; %lld reads, %lld in time, %lld late, %lld for nothing%s",
              name, 100.0 * (double)p->right / (double)p->wanted, (long long)p->read, (long long)p->useful,
              (long long)p->late, (long long)p->useless, p->resting ? "; resting" : "");
}

static void cmd_stats(chat *c, const char *arg) {
    (void)arg;
    char a[APP_BYTES_TEXT], b[APP_BYTES_TEXT], d[APP_BYTES_TEXT];
    if (c->remote) {
        chat_note(c, "model: %s at %s; its /metrics tell how the experts come", chat_model(c),
                  remote_address(c->remote));
        chat_note(c, "context: %lld of %lld tokens", (long long)c->n_held, (long long)remote_n_ctx(c->remote));
        return;
    }
    const mf_model_info *info = c->talker.info;
    mf_stats s;
    mf_model_stats_get(c->talker.model, &s);
    chat_note(c, "model: %s, %s, backend %s, %d of %d experts per token", info->name, info->family, info->backend,
              info->n_experts_per_token, info->n_experts);
    chat_note(
        c, "context: %lld of %d tokens, %s of state", (long long)mf_memory_length(c->talker.session), c->talker.n_ctx,
        app_bytes((double)(mf_memory_length(c->talker.session) * info->kv_bytes_per_token + info->state_bytes), a));
    if (!s.wanted) return;
    chat_note(c, "experts: %.1f %% of %lld were in memory, %s there now (%s%s, policy %s)",
              100.0 * (double)s.hits / (double)s.wanted, (long long)s.wanted, app_bytes((double)s.cache_bytes, a), s.io,
              s.direct ? ", direct" : "", s.policy ? s.policy : "none");
    chat_note(c, "  read %s, ahead of time %s, waited %.2f s, budget %s", app_bytes((double)s.bytes_read, a),
              app_bytes((double)s.bytes_prefetched, b), (double)s.stall_ns * 1e-9,
              s.budget ? app_bytes((double)s.budget, d) : "unlimited");
    say_predictor(c, "the token before", &s.predictors[MF_PREDICTOR_LAST_TOKEN]);
    say_predictor(c, "the next router", &s.predictors[MF_PREDICTOR_NEXT_ROUTER]);
    say_predictor(c, "the next router, early", &s.predictors[MF_PREDICTOR_EARLY_ROUTER]);
    say_predictor(c, "the router after it", &s.predictors[MF_PREDICTOR_SECOND_ROUTER]);
}

/* The oldest turns: room in a context that is full. */
static void cmd_forget(chat *c, const char *arg) {
    char *end;
    long wanted = *arg ? strtol(arg, &end, 10) : 1, n = 0;
    if (*arg && (*end || wanted < 1)) {
        chat_note(c, "forget how many of the oldest turns? \"%s\" is no number from 1 on", arg);
        return;
    }
    while (n < wanted && conversation_forget(&c->talk)) n++;
    chat_note(c,
              n == 1 ? "the oldest turn is forgotten"
              : n    ? "the %ld oldest turns are forgotten"
                     : "there are no turns%.0ld",
              n);
}

static const char *const SETTINGS[] = {
    "temperature",      "top-k",          "top-p",  "min-p", "typical", "repetition-penalty", "frequency-penalty",
    "presence-penalty", "penalty-window", "tokens", "seed"};

static void show_settings(const chat *c) {
    const sampling_options *s = &c->sampling;
    chat_note(c, "temperature %g, top-k %lld, top-p %g, min-p %g, typical %g, seed %llu", s->temperature,
              (long long)s->top_k, s->top_p, s->min_p, s->typical, (unsigned long long)s->seed);
    chat_note(c, "repetition-penalty %g, frequency-penalty %g, presence-penalty %g, penalty-window %lld, tokens %lld",
              s->repetition, s->frequency, s->presence, (long long)s->window, (long long)s->n_tokens);
}

/* /set temperature 0.5; "parameter" before it, and underscores, as others have it. */
static void cmd_set(chat *c, const char *arg) {
    char name[32] = "", value[64] = "";
    const opt_def group = SAMPLING_ROWS(c->sampling);
    if (!strncmp(arg, "parameter ", 10)) arg += 10;
    if (!*arg) {
        show_settings(c);
        return;
    }
    int n = sscanf(arg, "%31[^ =] %*[=] %63s", name, value);
    if (n < 2) n = sscanf(arg, "%31[^ =] %63s", name, value);
    for (char *p = name; *p; p++)
        if (*p == '_') *p = '-';
    for (size_t i = 0; i < MF__COUNT(SETTINGS); i++) {
        if (strcmp(SETTINGS[i], name)) continue;
        if (n == 2 && opt_set(&group, name, value) == OPT_DONE) chat_note(c, "%s is %s now", name, value);
        if (n < 2) chat_note(c, "set %s to what? /set %s NUMBER", name, name);
        return;
    }
    const char *near = opt_nearest(name, SETTINGS, (int)MF__COUNT(SETTINGS)), *hint = hint_option(name);
    const char *text = near ? near : hint ? hint : "";
    chat_note(c, "%s cannot be set%s%s%s; /set alone shows what can be", name,
              near    ? " (did you mean "
              : *text ? " ("
                      : "",
              text,
              near    ? "?)"
              : *text ? ")"
                      : "");
}

static void cmd_quit(chat *c, const char *arg) {
    (void)arg;
    c->leave = true;
}

static const command commands[] = {
    {"help", "?", "", "this list", cmd_help},
    {"reset", "clear new", "", "begin a new conversation", cmd_reset},
    {"save", "", "FILE", "keep the conversation and its state", cmd_save},
    {"load", "", "FILE", "go on with a conversation that was saved", cmd_load},
    {"system", "", "TEXT", "set the system prompt; - removes it; nothing shows it", cmd_system},
    {"set", "", "NAME NUMBER", "temperature, top-p and others; nothing shows them", cmd_set},
    {"think", "", "on|off", "let a reasoning model think first; auto: as it does by itself", cmd_think},
    {"retry", "regenerate", "", "ask the last request again", cmd_retry},
    {"undo", "", "", "take back the last request and its answer", cmd_undo},
    {"forget", "", "N", "forget the N oldest turns (one, if no number is given): room in a full context", cmd_forget},
    {"stats", "info show", "", "how the experts came, and how full the context is", cmd_stats},
    {"quit", "exit bye q", "", "leave", cmd_quit},
};

static const command *all_commands(int *n) {
    *n = (int)MF__COUNT(commands);
    return commands;
}

static bool is_called(const command *k, const char *name, size_t n) {
    if (strlen(k->name) == n && !strncmp(k->name, name, n)) return true;
    for (const char *at = k->also; *at;) {
        size_t length = strcspn(at, " ");
        if (length == n && !strncmp(at, name, n)) return true;
        at += length + (at[length] == ' ');
    }
    return false;
}

const char *chat_completion(int i) {
    static char text[48];
    int n = (int)MF__COUNT(commands), n_settings = (int)MF__COUNT(SETTINGS);
    if (i >= n + n_settings) return NULL;
    snprintf(text, sizeof text, i < n ? "/%s" : "/set %s", i < n ? commands[i].name : SETTINGS[i - n]);
    return text;
}

void chat_command(chat *c, const char *line) {
    const char *names[MF__COUNT(commands)];
    size_t n = strcspn(line + 1, " \t\n");
    const char *arg = line + 1 + n;
    arg += strspn(arg, " \t\n");
    for (size_t i = 0; i < MF__COUNT(commands); i++) {
        names[i] = commands[i].name;
        if (is_called(&commands[i], line + 1, n)) {
            commands[i].run(c, arg);
            return;
        }
    }
    char given[32];
    snprintf(given, sizeof given, "%.*s", (int)n, line + 1);
    const char *near = opt_nearest(given, names, (int)MF__COUNT(commands));
    chat_note(c, "unknown command /%s%s%s; /help lists them, // begins a message with a slash", given,
              near ? "; did you mean /" : "", near ? near : ""); /* a typo is no failure */
}
