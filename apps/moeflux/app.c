/* What the subcommands share. */
#include "app.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

#define SHIPPED "models/stories-moe"

/* ---- messages -------------------------------------------------------------------------------------------------- */

bool app_quiet;

/* Names and values in it may come from anybody's file: none of them says anything to the terminal. */
static void say(const char *fmt, va_list ap) {
    char text[4 * MF_ERROR_TEXT];
    vsnprintf(text, sizeof text, fmt, ap);
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        bool high = c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0; /* control characters of two bytes */
        if (high) *c++ = '?';
        if (high || (*c < 32 && *c != '\n' && *c != '\t') || *c == 127) *c = '?';
    }
    fprintf(stderr, "moeflux: %s\n", text);
}

void app_say(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

void app_note(const char *fmt, ...) {
    va_list ap;
    if (app_quiet) return;
    va_start(ap, fmt);
    say(fmt, ap);
    va_end(ap);
}

/* What the library calls an option, and what the command line does. */
static const struct {
    const char *field, *option, *way_out;
} FIELDS[] = {{"backend", "--backend", ""},
              {"experts_per_token", "--experts-per-token", ""},
              {"n_chunk", "--chunk", ""},
              {"n_ctx", "--ctx", "; --yarn stretches the context of a model"},
              {"n_io_threads", "--io-threads", ""},
              {"n_threads", "--threads", ""},
              {"penalty_window", "--penalty-window", ""},
              {"ram_bytes", "--ram", ""},
              {"vram_bytes", "--vram", ""},
              {"yarn", "--yarn", ""}};

int app_fail(const mf_error *err) {
    if (err->status == MF_E_CANCELLED) return app_interrupt_code();
    for (size_t i = 0; err->status == MF_E_INVALID && i < MF__COUNT(FIELDS); i++) {
        size_t n = strlen(FIELDS[i].field);
        if (strncmp(err->text, FIELDS[i].field, n) || err->text[n] != ' ') continue;
        app_say("%s%s%s", FIELDS[i].option, err->text + n, FIELDS[i].way_out);
        return APP_USAGE;
    }
    app_say("%s", err->text);
    return strncmp(err->text, "--", 2) ? APP_FAILED : APP_USAGE; /* a sentence about an option begins with it */
}

static void log_line(void *user, mf_log_level level, const char *text) {
    mf_log_level least = user ? MF_LOG_INFO : MF_LOG_WARN;
    if (level >= least) app_say("%s%s", level >= MF_LOG_WARN ? "warning: " : "", text);
}

mf_log_sink app_log(bool verbose) {
    static char yes;
    return (mf_log_sink){.write = log_line, .user = verbose ? &yes : NULL};
}

const char *app_bytes(double n, char text[APP_BYTES_TEXT]) {
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB"};
    size_t u = 0;
    while (n >= 999.5 && u + 1 < MF__COUNT(units)) {
        n /= 1000;
        u++;
    }
    snprintf(text, APP_BYTES_TEXT,
             u == 0      ? "%.0f %s"
             : n < 9.995 ? "%.2f %s"
             : n < 99.95 ? "%.1f %s"
                         : "%.0f %s",
             n, units[u]);
    return text;
}

double app_seconds(void) {
    return mf__clock_seconds();
}

/* ---- standard input and output ---------------------------------------------------------------------------------- */

mf_status app_read_stdin(size_t most, mf__strbuf *out, mf_error *err) {
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0) {
        if (out->size + n > most)
            return mf__fail(err, MF_E_LIMIT, "standard input has more than the %zu bytes that are taken", most);
        MF__TRY(mf__strbuf_append(out, block, n, err));
    }
    return ferror(stdin) ? mf__fail_errno(err, errno, "standard input") : MF_OK;
}

bool app_output_closed(void) {
    return ferror(stdout) != 0;
}

/* True for a pipe that nobody reads any more. */
static bool reader_gone(void) {
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR);
}

int app_finish_output(int code) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    if (reader_gone()) return code;
    app_say("writing to standard output failed%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
    return APP_FAILED;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

bool app_can_ask(void) {
    return isatty(STDIN_FILENO) && isatty(STDERR_FILENO);
}

bool app_ask(bool otherwise, const char *fmt, ...) {
    char *line = NULL;
    size_t capacity = 0;
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputs(otherwise ? " [Y/n] " : " [y/N] ", stderr);
    fflush(stderr);
    ssize_t n = getline(&line, &capacity, stdin);
    char first = n > 0 ? line[strspn(line, " \t")] : '\0';
    bool yes = n > 0 && (first == 'y' || first == 'Y' || (first == '\n' && otherwise));
    if (n <= 0) fputc('\n', stderr);
    free(line);
    return yes;
}

/* ---- interrupts ------------------------------------------------------------------------------------------------ */

#define KILLS 3 /* interrupts in a row that end a program which does not answer to one */

static volatile sig_atomic_t caught, n_caught;

static void on_signal(int number) {
    caught = number;
}

void app_catch_interrupts(void) {
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&act.sa_mask);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

static void on_repeatable_signal(int number) {
    caught = number;
    if (++n_caught < KILLS) return;
    signal(number, SIG_DFL);
    raise(number);
}

void app_watch_interrupts(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction act = {.sa_handler = on_repeatable_signal};
    sigemptyset(&act.sa_mask);
    for (size_t i = 0; i < MF__COUNT(numbers); i++) sigaction(numbers[i], &act, NULL);
}

int app_take_interrupt(void) {
    int number = caught;
    caught = n_caught = 0;
    return number;
}

bool app_interrupted(void *unused) {
    (void)unused;
    return caught != 0;
}

int app_interrupt_code(void) {
    return 128 + (caught ? caught : SIGINT);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int64_t bytes_in(const char *dir, int depth) {
    int64_t n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        struct stat s;
        char *path = strcmp(e->d_name, ".") && strcmp(e->d_name, "..") ? mf__path_join(dir, e->d_name) : NULL;
        if (path && !stat(path, &s)) {
            if (S_ISREG(s.st_mode)) n += s.st_size;
            if (S_ISDIR(s.st_mode) && depth > 0) n += bytes_in(path, depth - 1);
        }
        free(path);
    }
    if (d) closedir(d);
    return n;
}

int64_t app_dir_bytes(const char *dir) {
    return bytes_in(dir, 1);
}

/* ---- models ---------------------------------------------------------------------------------------------------- */

bool app_path_exists(const char *path) {
    return mf__path_exists(path);
}

bool app_make_folders(const char *path) {
    char *dir = *path ? strdup(path) : NULL;
    for (char *slash = dir ? strchr(dir + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mf__dir_make(dir, NULL);
        *slash = '/';
    }
    bool there = dir && mf__dir_make(dir, NULL) == MF_OK;
    free(dir);
    return there;
}

char *app_state_path(const char *name) {
    char *dir = app_user_path("XDG_STATE_HOME", ".local/state", "");
    bool there = dir && app_make_folders(dir);
    free(dir);
    return there ? app_user_path("XDG_STATE_HOME", ".local/state", name) : NULL;
}

bool app_has_file(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    bool found = path && mf__path_exists(path);
    free(path);
    return found;
}

/* In a repository, or where it is installed: PREFIX/share/moeflux. */
static char *shipped_below(const char *dir) {
    static const char *const places[] = {SHIPPED, "share/moeflux/" SHIPPED};
    for (size_t i = 0; i < MF__COUNT(places); i++) {
        char *path = mf__path_join(dir, places[i]);
        if (path && app_has_file(path, "model_weights.json")) return path;
        free(path);
    }
    return NULL;
}

mf_status app_shipped_model(char **out, mf_error *err) {
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = '\0';
    for (char *slash; (slash = strrchr(exe, '/'));) {
        *slash = '\0';
        if ((*out = shipped_below(*exe ? exe : "/"))) return MF_OK;
    }
    if ((*out = shipped_below("."))) return MF_OK;
    return mf__fail(err, MF_E_NOT_FOUND,
                    "no model given, and the shipped one (%s) is neither above the program's folder nor below the "
                    "current one; name a model directory: moeflux run DIR",
                    SHIPPED);
}
