/* moeflux: one program, one file per subcommand. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "app.h"
#include "cluster/cluster.h"
#include "docs.h"
#include "hints.h"
#include "options.h"
#include "routes.h"

static const app_command COMMANDS[] = {
    {"run", cmd_run, "continue a text or answer a request"},
    {"chat", cmd_chat, "a conversation in the terminal"},
    {"serve", cmd_serve, "the model over HTTP, for clients of OpenAI and Anthropic"},
    {"pull", cmd_pull, "get a model from the Hugging Face hub, converted while it comes"},
    {"list", cmd_list, "the models that have a name"},
    {"rm", cmd_rm, "remove one of them"},
    {"where", cmd_where, "where they are"},
    {"convert", cmd_convert, "turn a published checkpoint into a model directory"},
    {"verify", cmd_verify, "read a whole model again and compare it with its checksums"},
    {"shard", cmd_shard, "the share of a model that one of several machines needs"},
    {"synth", cmd_synth, "write a model of a real shape with random weights, to measure with"},
    {"inspect", cmd_inspect, "say what a model directory holds and what it needs"},
    {"check", cmd_check, "compare a model with recorded logits and hidden states"},
    {"eval", cmd_eval, "mean negative log-likelihood of a text"},
    {"tune", cmd_tune, "how much less can be read for a loss that you choose"},
    {"bench", cmd_bench, "measure prefill, decode and the memory they wait for"},
    {"report", cmd_report, "pictures of a model and of a short run, as a page"},
    {"tokenize", cmd_tokenize, "text to token ids and back"},
    {"schema", cmd_schema, "try a JSON Schema, a pattern or a grammar on texts"},
    {"template", cmd_template, "a request written out by a model's chat template"},
};

static void print_help(FILE *to) {
    fprintf(to, "usage: moeflux COMMAND [arguments]\n\n"
                "Runs Mixture-of-Experts language models larger than memory.\n\ncommands:\n");
    for (size_t i = 0; i < MF__COUNT(COMMANDS); i++) fprintf(to, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    fprintf(to, "  %-10s %s\n\n", "help", "this page, or a command's: moeflux help run");
    fprintf(to, "moeflux run                        tells a story with the model that comes along\n"
                "moeflux chat                       talks about it\n"
                "moeflux pull ORG/NAME              gets a model; then: moeflux run NAME \"...\"\n"
                "moeflux convert CHECKPOINT DIR     then: moeflux run DIR \"...\"\n"
                "moeflux COMMAND --help             options and examples\n"
                "moeflux help --man DIR             writes manual pages; --completions DIR: for bash, zsh and fish\n"
                "moeflux --version\n");
}

static const app_command *find(const char *name) {
    for (size_t i = 0; i < MF__COUNT(COMMANDS); i++)
        if (!strcmp(COMMANDS[i].name, name)) return &COMMANDS[i];
    return NULL;
}

static int unknown_command(const char *name) {
    const char *names[MF__COUNT(COMMANDS) + 1];
    int n = 0;
    for (size_t i = 0; i < MF__COUNT(COMMANDS); i++) names[n++] = COMMANDS[i].name;
    names[n++] = "help";
    const char *near = opt_nearest(name, names, n), *hint = hint_command(name);
    if (hint)
        app_say("unknown command \"%s\"; %s", name, hint);
    else if (near)
        app_say("unknown command \"%s\"; did you mean %s?", name, near);
    else
        app_say("unknown command \"%s\"; see: moeflux help", name);
    return APP_USAGE;
}

static int help(int argc, char **argv) {
    if (argc < 2) {
        print_help(stdout);
        return APP_OK;
    }
    if (argc == 3 && !strcmp(argv[1], "--man")) return docs_man(COMMANDS, (int)MF__COUNT(COMMANDS), argv[2]);
    if (argc == 3 && !strcmp(argv[1], "--completions"))
        return docs_completions(COMMANDS, (int)MF__COUNT(COMMANDS), argv[2]);
    const app_command *c = find(argv[1]);
    if (!c) return unknown_command(argv[1]);
    char *help_argv[] = {argv[1], (char[]){"--help"}, NULL};
    return c->run(2, help_argv);
}

static int dispatch(int argc, char **argv) {
    if (argc < 2) {
        print_help(stderr);
        return APP_USAGE;
    }
    const char *name = argv[1];
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h")) return help(argc - 1, argv + 1);
    if (!strcmp(name, "--version") || !strcmp(name, "-V") || !strcmp(name, "version")) {
        app_print_version();
        return APP_OK;
    }
    const app_command *c = find(name);
    return c ? c->run(argc - 1, argv + 1) : unknown_command(name);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away must not stop a command half-way: writes fail instead */
    signal(SIGXFSZ, SIG_IGN); /* and so does a file that may not grow further */
    mf_guard_install(NULL);   /* and a model's file that is cut fails what was using it */
    int code;
    if (!cluster_enter(argc > 1 ? argv[1] : NULL, &code)) return code;
    return cluster_leave(app_finish_output(routing_finish(dispatch(argc, argv))));
}
