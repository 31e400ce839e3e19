/* What the subcommands share: exit codes, the table's shape, opening models, interrupts.
 *
 * Results go to standard output; everything else (progress, log, errors, closing lines) to standard error. */
#ifndef MOEFLUX_APP_H
#define MOEFLUX_APP_H

#include "base/strbuf.h"

#define APP_OK 0
#define APP_FAILED 1 /* a bad file, a bad model, a result out of tolerance */
#define APP_USAGE 2  /* the command line makes no sense */

typedef struct app_command {
    const char *name;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
    const char *summary;
} app_command;

int cmd_run(int argc, char **argv);
int cmd_convert(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_shard(int argc, char **argv);
int cmd_synth(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_schema(int argc, char **argv);
int cmd_template(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_pull(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_rm(int argc, char **argv);
int cmd_where(int argc, char **argv);

/* "moeflux: ..." on standard error. */
void app_say(const char *fmt, ...) MF__PRINTF(1, 2);
/* The same for what is good to know and no more: not with --quiet, which every command has. */
void app_note(const char *fmt, ...) MF__PRINTF(1, 2);
extern bool app_quiet;
void app_print_version(void);
/* The same for an error of the library; returns the exit code that fits it: APP_USAGE where an option is not valid,
 * which is then called by its name on the command line. */
int app_fail(const mf_error *err);

/* The values of an option that may be given several times. */
#define APP_MAX_LIST 16
typedef struct opt_list {
    const char *items[APP_MAX_LIST];
    int n;
} opt_list;

/* How a command finds its model; see models.h. */
typedef struct model_find {
    const char *model;  /* --model: the first word of the command line, where opt_parse puts it */
    const char *models; /* --models: the folder of models; NULL: the usual one */
    bool convert;       /* convert without a question what needs it */
    bool lookup;        /* nothing is run: a checkpoint will do as it is */
} model_find;

/* Options of every command that evaluates; 0 leaves the choice to the library. */
typedef struct app_model_options {
    model_find find;
    const char *backend;
    int64_t threads;
    int64_t n_ctx, n_chunk, io_threads;
    double yarn; /* 0: not */
    int64_t experts_per_token;
    const char *lossy; /* see lossy.h; NULL: none */
    bool tuned;        /* as tune left it beside the model */
    int64_t most_experts;
    bool calm; /* warnings are not said: who asks knows */
    int64_t ram, vram;
    int io, direct, prefetch, policy;
    opt_list experts_dirs;
    int64_t prompt_cache_ram, prompt_cache_disk;
    const char *prompt_cache_dir;
    bool no_prompts;                         /* the command has none, so nothing to cache: without those options */
    bool policy_given;                       /* the default has a name too */
    const char *log_routing, *record_routes; /* files; see routes.h */
    mf_route_sink routes;                    /* where neither of them is given */
    bool exact, pin;
    int kv; /* mf_kv */
    /* Of several ranks; see cluster/cluster.h. */
    double stall_limit;    /* seconds */
    const char *placement; /* a file of routes */
    int wire;              /* wire_format of cluster/wire.h */
    bool mixed;
    bool verbose;
} app_model_options;

extern const char *const app_io_names[]; /* in the order of mf_io */
mf_log_sink app_log(bool verbose);       /* warnings and errors, and information when verbose */
mf_status app_open(const char *dir, const app_model_options *opt, mf_model **out, mf_error *err);
void app_check_threads(int64_t threads); /* warns about more than there are processors */
void app_session_options(const app_model_options *opt, mf_session_options *out); /* interrupts stop it */
/* A file of the user's in $XDG_<KIND>_HOME/moeflux or, below $HOME, in fallback/moeflux; malloc'd. NULL when the
 * environment names neither. The folder is not made. */
char *app_user_path(const char *xdg, const char *fallback, const char *name);
/* How the experts came, on standard error; nothing when they are all mapped. */
void app_say_experts(mf_model *model);

/* The model that comes with moeflux, searched upward from the program's own folder, then below the current one.
 * malloc'd; MF_E_NOT_FOUND says where it was looked for. */
mf_status app_shipped_model(char **out, mf_error *err);

/* SIGINT and SIGTERM ask the work at hand to stop; a second one kills. Callbacks for sessions and converters: */
void app_catch_interrupts(void);
bool app_interrupted(void *unused);
/* For a program that goes on after an interrupt: the signals, and SIGHUP, are caught again and again. */
void app_watch_interrupts(void);
int app_take_interrupt(void); /* the signal's number, which is then forgotten; 0: none came */
int app_interrupt_code(void); /* 128 + the signal's number */

bool app_make_folders(const char *path); /* the directory and those above it, where they are missing */
/* A question on a terminal, answered by y or n; `otherwise` where the line is empty. False where nobody can answer. */
bool app_can_ask(void);
bool app_ask(bool otherwise, const char *fmt, ...) MF__PRINTF(2, 3);

/* A file in one's own folder $XDG_STATE_HOME/moeflux, which is made when it is missing; malloc'd; NULL: none. */
char *app_state_path(const char *name);

int64_t app_dir_bytes(const char *dir); /* of the files in it and in its folders, one level deep */
bool app_path_exists(const char *path);
bool app_has_file(const char *dir, const char *name);

double app_seconds(void); /* monotonic */

#define APP_MAX_TEXT ((size_t)64 << 20) /* bytes of a prompt or a message: more than any context takes */
mf_status app_read_stdin(size_t most, mf__strbuf *out, mf_error *err); /* all of it, up to `most` bytes */

#define APP_BYTES_TEXT 32
const char *app_bytes(double n, char text[APP_BYTES_TEXT]); /* "1.77 MB"; powers of ten */

/* Flushes standard output. APP_OK also when the reader went away (a closed pipe is no failure of ours). */
int app_finish_output(int code);
bool app_output_closed(void); /* standard output does not take bytes any more */

#endif
