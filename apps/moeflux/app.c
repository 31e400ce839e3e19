/* What the subcommands share. */
#include "app.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"

#define SHIPPED "models/stories-moe"

/* ---- messages -------------------------------------------------------------------------------------------------- */

void app_say(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("moeflux: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

int app_fail(const mf_error *err) {
    if (err->status == MF_E_CANCELLED) return app_interrupt_code();
    app_say("%s", err->text);
    return APP_FAILED;
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
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- standard input and output
 * ------------------------------------------------------------------------------------------- */

mf_status app_read_stdin(mf__strbuf *out, mf_error *err) {
    static const size_t most = (size_t)1 << 30;
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof block, stdin)) > 0) {
        if (out->size + n > most) return mf__fail(err, MF_E_LIMIT, "standard input: more than %zu bytes", most);
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

/* ---- interrupts ------------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t caught;

static void on_signal(int number) {
    caught = number;
}

void app_catch_interrupts(void) {
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&act.sa_mask);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

bool app_interrupted(void *unused) {
    (void)unused;
    return caught != 0;
}

int app_interrupt_code(void) {
    return 128 + (caught ? caught : SIGINT);
}

/* ---- models ---------------------------------------------------------------------------------------------------- */

static bool has_file(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    bool found = path && mf__path_exists(path);
    free(path);
    return found;
}

/* A published checkpoint given where a native directory is wanted deserves a better answer than "file missing". */
static mf_status refuse_checkpoint(const char *dir, mf_error *err) {
    if (has_file(dir, "model_weights.json")) return MF_OK;
    if (!has_file(dir, "model.safetensors") && !has_file(dir, "model.safetensors.index.json")) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED,
                    "%s is a checkpoint that has not been converted (no model_weights.json); "
                    "first run: moeflux convert %s NEW_DIR",
                    dir, dir);
}

const char *const APP_IO_NAMES[] = {"auto", "mmap", "pread", "uring", NULL};
const char *const APP_SWITCH_NAMES[] = {"auto", "on", "off", NULL};

/* Where speeds of drives are remembered; NULL when the environment does not say. malloc'd. */
static char *cache_dir(void) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && *base == '/') return mf__path_join(base, "moeflux");
    return home && *home == '/' ? mf__path_join(home, ".cache/moeflux") : NULL;
}

void app_say_experts(mf_model *model) {
    mf_stats s;
    char read[APP_BYTES_TEXT], ahead[APP_BYTES_TEXT];
    mf_model_stats_get(model, &s);
    if (!s.wanted || !strcmp(s.io, "mmap")) return;
    double speed = s.busy_ns ? (double)(s.bytes_read + s.bytes_prefetched) / (double)s.busy_ns : 0; /* GB/s */
    app_say("experts: %.1f %% of %lld were in memory; read %s and %s ahead at %.2f GB/s (%s%s), waited %.2f s",
            100.0 * (double)s.hits / (double)s.wanted, (long long)s.wanted, app_bytes((double)s.bytes_read, read),
            app_bytes((double)s.bytes_prefetched, ahead), speed, s.io, s.direct ? ", direct" : "",
            (double)s.stall_ns * 1e-9);
}

mf_status app_open(const char *dir, const app_model_options *opt, mf_model **out, mf_error *err) {
    mf_model_options mo;
    mf_model_options_init(&mo);
    mo.backend = opt->backend;
    mo.n_threads = (int)opt->threads;
    mo.experts_per_token = (int)opt->experts_per_token;
    mo.ram_bytes = opt->ram;
    mo.io = (mf_io)opt->io;
    mo.direct = (mf_switch)opt->direct;
    mo.prefetch = (mf_switch)opt->prefetch;
    mo.experts_dirs = opt->experts_dirs.items;
    mo.n_experts_dirs = opt->experts_dirs.n;
    mo.log = app_log(opt->verbose);
    *out = NULL;
    MF__TRY(refuse_checkpoint(dir, err));
    char *cache = cache_dir();
    mo.cache_dir = cache;
    mf_status st = mf_model_open(dir, &mo, out, err);
    free(cache);
    return st;
}

static char *shipped_below(const char *dir) {
    char *path = mf__path_join(dir, SHIPPED);
    if (path && has_file(path, "model_weights.json")) return path;
    free(path);
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
