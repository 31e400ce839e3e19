/* moeflux serve: the model over HTTP, for OpenAI's and Anthropic's clients. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "app.h"
#include "base/file.h"
#include "cluster/cluster.h"
#include "models.h"
#include "options.h"
#include "server.h"

typedef struct serve_options {
    app_model_options model;
    const char *host, *name, *key_file;
    int64_t port, parallel, queue, sessions, piece, max_body, cache;
    double grace;
    bool insecure;
    opt_list keys, hosts, origins;
} serve_options;

static server *running; /* for the signal handler */

/* The first ends it in good order, the second does not wait for answers, and the third not even for a disk. */
static void on_signal(int number) {
    static volatile sig_atomic_t n_caught;
    int saved = errno;
    if (n_caught < 2) {
        n_caught = n_caught + 1;
    } else {
        signal(number, SIG_DFL);
        raise(number);
    }
    if (running) server_stop(running);
    errno = saved;
}

/* A rank is lost: answers that are under way fail, and the server ends. */
static void on_break(void) {
    if (running) server_stop(running);
}

/* ---- the socket -------------------------------------------------------------------------------------------------- */

/* Nobody elsewhere can reach it. */
static bool is_local(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
    return a->sa_family == AF_UNIX;
}

static mf_status check_reach(const serve_options *o, const struct sockaddr *a, const char *what, mf_error *err) {
    if (is_local(a) || o->keys.n || o->insecure) return MF_OK;
    return mf__fail(err, MF_E_INVALID, "%s can be reached from other machines: give an --api-key, or say --insecure",
                    what);
}

static mf_status bind_to(const serve_options *o, const struct addrinfo *a, int *out, mf_error *err) {
    int on = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return mf__fail_errno(err, errno, "no socket for %s", o->host);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, 1024)) {
        *out = fd;
        return MF_OK;
    }
    int why = errno;
    close(fd);
    if (why == EADDRINUSE)
        return mf__fail(err, MF_E_EXISTS,
                        "port %lld of %s is taken: another server listens there; stop it or choose another with --port",
                        (long long)o->port, o->host);
    return mf__fail_errno(err, why, "cannot listen on port %lld of %s", (long long)o->port, o->host);
}

static mf_status open_socket(const serve_options *o, int *fd, mf_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    char port[16];
    snprintf(port, sizeof port, "%lld", (long long)o->port);
    int bad = getaddrinfo(o->host, port, &hints, &list);
    if (bad) return mf__fail(err, MF_E_INVALID, "--host %s: %s", o->host, gai_strerror(bad));
    char what[300];
    snprintf(what, sizeof what, "--host %.256s", o->host);
    mf_status st = check_reach(o, list->ai_addr, what, err);
    if (st == MF_OK) st = bind_to(o, list, fd, err);
    freeaddrinfo(list);
    return st;
}

/* A service manager may have opened the socket (LISTEN_FDS of systemd): number 3 then. -1: it has not. */
static int inherited_socket(void) {
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    if (!pid || !n || strtol(pid, NULL, 10) != (long)getpid() || strtol(n, NULL, 10) < 1) return -1;
    return 3;
}

static mf_status check_inherited(const serve_options *o, int fd, mf_error *err) {
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &n))
        return mf__fail_errno(err, errno, "the socket that was handed over");
    return check_reach(o, (struct sockaddr *)&at, "--host: the socket that was handed over", err);
}

static int port_of(int fd) {
    struct sockaddr_storage at;
    socklen_t n = sizeof at;
    if (getsockname(fd, (struct sockaddr *)&at, &n)) return 0;
    if (at.ss_family == AF_INET) return ntohs(((struct sockaddr_in *)&at)->sin_port);
    return at.ss_family == AF_INET6 ? ntohs(((struct sockaddr_in6 *)&at)->sin6_port) : 0;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* Every connection is a descriptor. */
static void raise_descriptors(server_options *so) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur != RLIM_INFINITY && (rlim_t)so->http.max_conns + 128 > limit.rlim_cur) {
        so->http.max_conns = limit.rlim_cur > 256 ? (int)limit.rlim_cur - 128 : 128;
        app_say("only %d connections at a time, as the system gives %ld descriptors", so->http.max_conns,
                (long)limit.rlim_cur);
    }
}

/* Lines of a file are keys, too. */
static mf_status read_keys(serve_options *o, mf__strbuf *text, mf_error *err) {
    if (!o->key_file) return MF_OK;
    char *bytes;
    size_t n;
    MF__TRY(mf__file_read(o->key_file, 65536, &bytes, &n, err));
    mf_status st = mf__strbuf_append(text, bytes, n, err);
    free(bytes);
    MF__TRY(st);
    for (char *line = strtok(text->data, "\r\n"); line; line = strtok(NULL, "\r\n")) {
        if (o->keys.n == APP_MAX_LIST)
            return mf__fail(err, MF_E_LIMIT, "%s: more than %d keys", o->key_file, APP_MAX_LIST);
        o->keys.items[o->keys.n++] = line;
    }
    return o->keys.n ? MF_OK : mf__fail(err, MF_E_INVALID, "%s has no key", o->key_file);
}

static mf_status run(const serve_options *o, server_options *so, int fd, mf_error *err) {
    struct sigaction act = {.sa_handler = on_signal};
    MF__TRY(server_create(so, &running, err));
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    cluster_on_break(on_break);
    int port = port_of(fd);
    if (!server_listen(running, fd)) {
        server_free(running);
        running = NULL;
        return mf__fail(err, MF_E_IO, "the socket cannot be listened on");
    }
    app_note("%s on http://%s:%d (OpenAI: /v1, Anthropic: /, metrics: /metrics)", so->model_id, o->host, port);
    server_run(running);
    server *s = running;
    running = NULL;
    server_free(s);
    return MF_OK;
}

static void fill_options(const serve_options *o, const char *dir, server_options *so) {
    server_options_init(so);
    so->model_dir = dir;
    so->api_keys = o->keys.items;
    so->n_api_keys = o->keys.n;
    so->hosts = o->hosts.items;
    so->n_hosts = o->hosts.n;
    so->origins = o->origins.items;
    so->n_origins = o->origins.n;
    so->ram_bytes = o->model.ram;
    so->disk_cache = o->model.prompt_cache_dir;
    so->n_ctx = (int32_t)o->model.n_ctx;
    so->piece = (int32_t)o->piece;
    so->n_threads = (int)o->model.threads;
    so->max_running = (int)o->parallel;
    so->max_waiting = (int)o->queue;
    so->max_sessions = (int)o->sessions;
    so->grace_seconds = o->grace;
    so->http.limits.body_bytes = (size_t)o->max_body;
    raise_descriptors(so);
}

/* Where all experts fit they are read as soon as there is a session, so that the first request does not wait for them. */
static void read_ahead(mf_model *model) {
    mf_session *session = NULL;
    if (mf_session_create(model, NULL, &session, NULL) == MF_OK) mf_session_free(session);
}

static mf_status serve(serve_options *o, const char *dir, mf_error *err) {
    mf_model *model = NULL;
    mf_text *text = NULL;
    mf__strbuf keys = {0};
    server_options so;
    int fd = inherited_socket();
    mf_status st = read_keys(o, &keys, err);
    if (st == MF_OK) /* before the model: what can fail at once does */
        st = fd < 0 ? open_socket(o, &fd, err) : check_inherited(o, fd, err);
    fill_options(o, dir, &so);
    so.more_metrics = cluster_metrics;
    so.experts = experts_create();
    o->model.routes = experts_sink(so.experts);
    if (st == MF_OK) st = app_open(dir, &o->model, &model, err);
    if (st == MF_OK) st = mf_text_open(dir, &text, err);
    if (st == MF_OK) {
        so.model = model;
        if (so.experts) experts_shape(so.experts, mf_model_info_get(model));
        so.text = text;
        so.model_id = o->name ? o->name : mf_model_info_get(model)->name;
        read_ahead(model);
        st = run(o, &so, fd, err);
    } else if (fd >= 0) {
        close(fd);
    }
    mf_text_close(text);
    mf_model_close(model);
    experts_free(so.experts);
    mf__strbuf_free(&keys);
    return st;
}

int cmd_serve(int argc, char **argv) {
    serve_options o = {.host = "127.0.0.1",
                       .port = 8080,
                       .parallel = 32,
                       .queue = 128,
                       .sessions = 64,
                       .piece = 256,
                       .max_body = 32 << 20,
                       .cache = 256 << 20,
                       .grace = 10};
    opt_def defs[] = {
        {.name = "host",
         .kind = OPT_STRING,
         .value = &o.host,
         .arg = "ADDRESS",
         .help = "where to listen (default 127.0.0.1)"},
        {.name = "port",
         .kind = OPT_INT,
         .value = &o.port,
         .arg = "N",
         .help = "default 8080; 0: any that is free",
         .max = 65535},
        {.name = "api-key",
         .kind = OPT_LIST,
         .value = &o.keys,
         .arg = "KEY",
         .help = "needed in every request; may be given several times"},
        {.name = "api-key-file",
         .kind = OPT_STRING,
         .value = &o.key_file,
         .arg = "FILE",
         .help = "a key in every line"},
        {.name = "insecure",
         .kind = OPT_FLAG,
         .value = &o.insecure,
         .help = "no key is needed, although other machines can reach the address"},
        {.name = "allow-host",
         .kind = OPT_LIST,
         .value = &o.hosts,
         .arg = "NAME",
         .help = "a name of this machine that Host may have (addresses always may)"},
        {.name = "cors",
         .kind = OPT_LIST,
         .value = &o.origins,
         .arg = "ORIGIN",
         .help = "web pages from there may ask, as https://chat.example; * for all"},
        {.name = "name",
         .kind = OPT_STRING,
         .value = &o.name,
         .arg = "NAME",
         .help = "what /v1/models calls the model (default: its directory)"},
        {.name = "parallel",
         .kind = OPT_INT,
         .value = &o.parallel,
         .arg = "N",
         .help = "answers at a time (default 32)",
         .min = 1,
         .max = 64},
        {.name = "queue",
         .kind = OPT_INT,
         .value = &o.queue,
         .arg = "N",
         .help = "requests that may wait (default 128); more are refused with 429",
         .max = 100000},
        {.name = "sessions",
         .kind = OPT_INT,
         .value = &o.sessions,
         .arg = "N",
         .help = "sessions in memory, those kept for later included (default 64)",
         .min = 1,
         .max = 256},
        {.name = "piece",
         .kind = OPT_INT,
         .value = &o.piece,
         .arg = "N",
         .help = "tokens of a prompt in one pass (default 256)",
         .min = 16,
         .max = 8192},
        {.name = "prompt-cache",
         .kind = OPT_SIZE,
         .value = &o.cache,
         .arg = "SIZE",
         .help = "memory for the states of prompts (default 256M); 0: none are kept",
         .or_zero = true},
        {.name = "max-body",
         .kind = OPT_SIZE,
         .value = &o.max_body,
         .arg = "SIZE",
         .help = "largest request (default 32M)"},
        {.name = "grace",
         .kind = OPT_REAL,
         .value = &o.grace,
         .arg = "SECONDS",
         .help = "for answers to end after SIGTERM (default 10)",
         .max = 3600},
        {.name = "chunk",
         .kind = OPT_INT,
         .value = &o.piece,
         .arg = "N",
         .help = "the same as --piece",
         .min = 16,
         .max = 8192},
        OPT_FIND_ROWS(o.model.find),
        OPT_MODEL_ROWS(o.model),
    };
    opt_spec spec = {
        .usage = "serve [MODEL] [options]",
        .about =
            "Serves the model over HTTP, for clients of OpenAI and Anthropic, with a page to talk to at /.\n"
            "Answers are made side by side; prompts that begin alike are read once. SIGTERM ends it in good order.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .max_words = 1,
        .examples = "  moeflux serve qwen\n"
                    "  curl localhost:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": "
                    "\"Hi\"}]}'\n"
                    "  moeflux serve qwen --host 0.0.0.0 --api-key-file keys --cache-dir states\n",
    };
    const char *words[OPT_MAX_WORDS] = {0};
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    char *dir = NULL;
    mf_error err;
    o.model.prompt_cache_ram = o.cache;
    mf_status st = models_ready(&o.model.find, words[0], &dir, &err);
    if (st == MF_OK && cluster_worker()) return cluster_work(dir, &o.model);
    if (st == MF_OK) st = serve(&o, dir, &err);
    free(dir);
    return st == MF_OK ? APP_OK : app_fail(&err);
}
