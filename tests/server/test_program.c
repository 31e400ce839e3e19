/* `moeflux serve` as a process: a port that is taken, a socket handed over, signals, refusals at the start; a dashboard
 * that asks for numbers there are; and `moeflux chat --server` with servers that are none. Arguments: MODEL PROGRAM
 * GRAFANA_JSON STUCK_DISK. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/file.h"
#include "client.h"

static const char *program, *dashboard, *stuck_disk;
static const char *preload; /* into the next child; NULL: nothing */

typedef struct child {
    pid_t pid;
    int port, err; /* err: its standard error */
    char said[4096];
} child;

/* Starts `serve MODEL extra...`; inherited: a socket to hand over as systemd does, or -1. */
static child spawn(const char *const *extra, int inherited) {
    const char *argv[16] = {program, "serve", model_dir, "--threads", "1"};
    int n = 5, pipe_fds[2];
    while (*extra) argv[n++] = *extra++;
    assert_int_equal(pipe(pipe_fds), 0);
    child c = {.pid = fork(), .err = pipe_fds[0]};
    if (!c.pid) {
        char pid[16];
        dup2(pipe_fds[1], 2);
        if (preload) setenv("LD_PRELOAD", preload, 1);
        if (inherited >= 0) {
            dup2(inherited, 3);
            snprintf(pid, sizeof pid, "%d", (int)getpid());
            setenv("LISTEN_PID", pid, 1);
            setenv("LISTEN_FDS", "1", 1);
        }
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(pipe_fds[1]);
    return c;
}

/* Reads what it says until it listens or ends. */
static void listen_to(child *c) {
    size_t n = 0;
    ssize_t got;
    while (n + 1 < sizeof c->said && (got = read(c->err, c->said + n, sizeof c->said - 1 - n)) > 0) {
        n += (size_t)got;
        c->said[n] = 0;
        const char *at = strstr(c->said, " on http://127.0.0.1:");
        if (at && strchr(at, '(')) {
            c->port = atoi(at + strlen(" on http://127.0.0.1:"));
            return;
        }
    }
}

static int end_of(child *c) {
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    close(c->err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void test_taken_port(void **state) {
    (void)state;
    child first = spawn((const char *[]){"--port", "0", NULL}, -1);
    char port[16];
    listen_to(&first);
    assert_true(first.port > 0);
    snprintf(port, sizeof port, "%d", first.port);
    child second = spawn((const char *[]){"--port", port, NULL}, -1);
    listen_to(&second);
    assert_non_null(strstr(second.said, "is taken"));
    assert_non_null(strstr(second.said, "--port"));
    assert_int_equal(end_of(&second), 1);
    kill(first.pid, SIGTERM);
    assert_int_equal(end_of(&first), 0);
}

static void test_other_machines_need_a_key(void **state) {
    (void)state;
    child c = spawn((const char *[]){"--port", "0", "--host", "0.0.0.0", NULL}, -1);
    listen_to(&c);
    assert_non_null(strstr(c.said, "--api-key"));
    assert_int_equal(end_of(&c), 2);
    struct sockaddr_in at = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* handed over, for all to reach; it does not listen yet */
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    c = spawn((const char *[]){NULL}, fd);
    close(fd);
    listen_to(&c);
    assert_non_null(strstr(c.said, "--api-key"));
    assert_int_equal(end_of(&c), 2);
}

static void test_inherited_socket(void **state) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int status, fd = socket(AF_INET, SOCK_STREAM, 0);
    (void)state;
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    assert_int_equal(listen(fd, 16), 0);
    int early = dial(ntohs(at.sin_port)); /* before anybody serves: it waits */
    put_request(early, "/health", NULL);
    child c = spawn((const char *[]){NULL}, fd);
    close(fd);
    listen_to(&c);
    assert_int_equal(c.port, ntohs(at.sin_port));
    char *all = get_all(early);
    assert_non_null(strstr(all, "\"status\":\"ok\""));
    free(all);
    close(early);
    free(ask(c.port, "/v1/models", NULL, &status));
    assert_int_equal(status, 200);
    kill(c.pid, SIGTERM);
    assert_int_equal(end_of(&c), 0);
}

/* The same by systemd's own tool, where there is one: it starts the program when somebody comes. */
static void test_socket_activation(void **state) {
    static const char tool[] = "/usr/bin/systemd-socket-activate";
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    char place[32];
    int status = 0;
    (void)state;
    if (access(tool, X_OK)) skip();
    int fd = socket(AF_INET, SOCK_STREAM, 0); /* a port that is free */
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at) || getsockname(fd, (struct sockaddr *)&at, &n), 0);
    close(fd);
    snprintf(place, sizeof place, "127.0.0.1:%d", ntohs(at.sin_port));
    pid_t pid = fork();
    if (!pid) {
        dup2(open("/dev/null", O_WRONLY), 2);
        execl(tool, tool, "-l", place, program, "serve", model_dir, "--threads", "1", (char *)NULL);
        _exit(127);
    }
    fd = socket(AF_INET, SOCK_STREAM, 0);
    for (int i = 0; i < 1000 && connect(fd, (struct sockaddr *)&at, sizeof at); i++) usleep(10000);
    put_request(fd, "/health", NULL);
    char *all = get_all(fd);
    assert_non_null(strstr(all, "\"status\":\"ok\""));
    free(all);
    close(fd);
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* No states in memory, and none elsewhere: an option that means what it says. */
static void test_no_prompt_cache(void **state) {
    static const char body[] =
        "{\"messages\":[{\"role\":\"system\",\"content\":\"You are an old man by the sea who has "
        "seen many ships\"},{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":2}";
    (void)state;
    for (int i = 0; i < 2; i++) {
        child c = spawn((const char *[]){"--port", "0", "--prompt-cache", i ? "64M" : "0", NULL}, -1);
        char text[512];
        int status;
        listen_to(&c);
        assert_true(c.port > 0);
        snprintf(text, sizeof text, body, "One.");
        free(ask(c.port, "/v1/chat/completions", text, &status));
        snprintf(text, sizeof text, body, "Another.");
        char *answer = ask(c.port, "/v1/chat/completions", text, &status);
        assert_int_equal(status, 200);
        assert_true((strstr(answer, "\"cached_tokens\":0") == NULL) == (i == 1));
        free(answer);
        kill(c.pid, SIGTERM);
        assert_int_equal(end_of(&c), 0);
    }
    child c = spawn((const char *[]){"--prompt-cache", "-0", NULL}, -1);
    listen_to(&c);
    assert_non_null(strstr(c.said, "or 0"));
    assert_int_equal(end_of(&c), 2);
}

/* With an answer under way: it ends within the grace, in good order, and the exit code is 0. A second signal hurries.
 */
static void test_signals(void **state) {
    static const char body[] = "{\"prompt\":\"Once\",\"max_tokens\":1900,\"ignore_eos\":true,\"stream\":true}";
    (void)state;
    for (int i = 0; i < 2; i++) {
        child c = spawn((const char *[]){"--port", "0", "--grace", i ? "3600" : "0.1", NULL}, -1);
        listen_to(&c);
        int fd = dial(c.port);
        put_request(fd, "/v1/completions", body);
        wait_running(c.port, 1);
        kill(c.pid, i ? SIGINT : SIGTERM);
        if (i) {
            usleep(100000);
            kill(c.pid, SIGTERM);
        }
        char *all = get_all(fd);
        assert_non_null(strstr(all, "data: [DONE]"));
        free(all);
        close(fd);
        assert_int_equal(end_of(&c), 0);
    }
}

/* A state is being written to a disk that does not answer: the end waits for it, until the third signal. */
static void test_stuck_disk(void **state) {
    char dir[64], body[] =
                      "{\"prompt\":\"Once upon a time there was a dog who lived by the sea with a cat and a king who "
                      "had seen many ships\",\"max_tokens\":1}";
    int status;
    (void)state;
    snprintf(dir, sizeof dir, "stuck_%ld", (long)getpid());
    preload = stuck_disk;
    child c = spawn((const char *[]){"--port", "0", "--cache-dir", dir, NULL}, -1);
    preload = NULL;
    listen_to(&c);
    free(ask(c.port, "/v1/completions", body, &status));
    assert_int_equal(status, 200);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(waitpid(c.pid, &status, WNOHANG), 0);
        kill(c.pid, SIGTERM);
        usleep(300000);
    }
    for (int i = 0; i < 100 && waitpid(c.pid, &status, WNOHANG) == 0; i++) usleep(100000);
    if (kill(c.pid, SIGKILL) == 0 && waitpid(c.pid, &status, 0) == c.pid) fail_msg("it still waits for its disk");
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    close(c.err);
    mf__dir_remove(dir, NULL);
}

/* Every number that the dashboard asks for is one that the server has. */
static void test_dashboard(void **state) {
    int status;
    (void)state;
    child c = spawn((const char *[]){"--port", "0", NULL}, -1);
    listen_to(&c);
    char *metrics = ask(c.port, "/metrics", NULL, &status);
    FILE *f = fopen(dashboard, "r");
    assert_non_null(f);
    static char text[65536];
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    int n = 0;
    for (const char *at = text; (at = strstr(at, "moeflux_")); at += 8, n++) {
        char name[96];
        size_t size = strspn(at, "abcdefghijklmnopqrstuvwxyz_");
        snprintf(name, sizeof name, "\n%.*s", (int)size, at);
        if (!strstr(metrics, name)) fail_msg("the dashboard asks for %s, which is not in /metrics", name + 1);
    }
    assert_true(n > 20);
    free(metrics);
    kill(c.pid, SIGTERM);
    assert_int_equal(end_of(&c), 0);
}

static double experts_in_memory(int port) {
    int status;
    char *metrics = ask(port, "/metrics", NULL, &status);
    const char *name = "\nmoeflux_memory_bytes{part=\"experts\"} ", *at = strstr(metrics, name);
    assert_non_null(at);
    double bytes = atof(at + strlen(name));
    free(metrics);
    return bytes;
}

/* Experts that fit are read before anybody asks, for the sake of who asks first. */
static void test_reads_at_once(void **state) {
    (void)state;
    child c = spawn((const char *[]){"--port", "0", "--prefetch", "on", NULL}, -1);
    listen_to(&c);
    bool read = false;
    for (int i = 0; i < 200 && !read; i++) {
        read = experts_in_memory(c.port) > 0;
        if (!read) nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
    assert_true(read);
    kill(c.pid, SIGTERM);
    assert_int_equal(end_of(&c), 0);
}

/* ---- chat --server with servers that are none -------------------------------------------------------------------- */

#define OK "HTTP/1.1 200 OK\r\n"
#define STREAM OK "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
static const char MODELS[] = OK "Content-Length: 26\r\n\r\n{\"data\": [{\"id\": \"fake\"}]}";

typedef struct impostor {
    int fd;             /* listens */
    const char *answer; /* to the second request */
    size_t filler;      /* bytes of 'x' behind it */
} impostor;

static void answer_once(int listener, const char *answer, size_t filler) {
    char drop[65536], block[4096];
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) return; /* nobody came */
    if (recv(fd, drop, sizeof drop, 0) > 0) send(fd, answer, strlen(answer), MSG_NOSIGNAL);
    memset(block, 'x', sizeof block);
    for (; filler >= sizeof block; filler -= sizeof block)
        if (send(fd, block, sizeof block, MSG_NOSIGNAL) < 0) break;
    shutdown(fd, SHUT_WR);
    while (recv(fd, drop, sizeof drop, 0) > 0) {
    }
    close(fd);
}

static void *impersonate(void *user) {
    impostor *i = user;
    answer_once(i->fd, MODELS, 0);
    answer_once(i->fd, i->answer, i->filler);
    return NULL;
}

/* What chat says to it on standard error; its exit code. */
static int chat_with(impostor *i, char *said, size_t max) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    pthread_t thread;
    char url[64];
    int in[2], err[2], status;
    i->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(i->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(i->fd, (struct sockaddr *)&at, &n), 0);
    assert_int_equal(listen(i->fd, 4), 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", ntohs(at.sin_port));
    assert_int_equal(pipe(in) || pipe(err), 0);
    assert_int_equal(pthread_create(&thread, NULL, impersonate, i), 0);
    pid_t pid = fork();
    if (!pid) {
        dup2(in[0], 0);
        dup2(err[1], 2);
        dup2(open("/dev/null", O_WRONLY), 1);
        close(in[1]);
        execl(program, program, "chat", "--server", url, (char *)NULL);
        _exit(127);
    }
    close(err[1]);
    close(in[0]);
    assert_int_equal(write(in[1], "Hi\n", 3), 3);
    close(in[1]);
    size_t size = 0;
    for (ssize_t got; size + 1 < max && (got = read(err[0], said + size, max - 1 - size)) > 0;) size += (size_t)got;
    said[size] = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    shutdown(i->fd, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(err[0]);
    close(i->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Each ends with a sentence, soon, and within bounds. */
static void test_impostors(void **state) {
    static const struct {
        const char *answer, *sentence;
        size_t filler;
    } cases[] = {
        {"", "closed the connection", 0},
        {"220 mail.example ESMTP\r\n", "does not answer as HTTP", 0},
        {"HTTP/1.1 200 OK\nContent-Length: 0\n\n", "LF alone", 0},
        {OK "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", "does not answer as HTTP", 0},
        {OK "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", "does not answer as HTTP", 0},
        {OK "Transfer-Encoding: gzip\r\n\r\n", "does not answer as HTTP", 0},
        {OK "Content-Length: -1\r\n\r\n", "does not answer as HTTP", 0},
        {OK "X: ", "too long", 100000},
        {STREAM "zz\r\n", "does not answer as HTTP", 0},
        {STREAM "ffffffffffffffffff\r\n", "does not answer as HTTP", 0},
        {STREAM "5\r\nabcdeXX\r\n", "does not answer as HTTP", 0},
        {STREAM "9\r\ndata: {}\n\r\n", "closed the connection", 0},
        {STREAM "9\r\ndata: {}\n\r\n0\r\n\r\n", "before the answer was whole", 0},
        {STREAM "8\r\ndata: {\n\r\n", "not JSON", 0},
        {OK "\r\ndata: ", "more than 1048576 bytes", 1 << 21},
        {OK "\r\ndata: {\"error\": {\"message\": \"on \\u001b[31mfire\"}}\n\r\n", "failed: on  [31mfire", 0},
        {"HTTP/1.1 500 Oops\r\nContent-Length: 6\r\n\r\n<html>", "HTTP status 500", 0},
        {"HTTP/1.1 503 Busy\r\n\r\n{\"error\": {\"message\": \"later\"}}", "refused: later", 0},
        {"HTTP/1.1 500 Oops\r\n\r\n", "HTTP status 500", 1 << 22},
    };
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char said[4096];
        impostor i = {.answer = cases[k].answer, .filler = cases[k].filler};
        int code = chat_with(&i, said, sizeof said);
        if (code != 1 || !strstr(said, cases[k].sentence))
            fail_msg("for %s\nexit code %d, and: %s", cases[k].answer, code, said);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken_port),       cmocka_unit_test(test_other_machines_need_a_key),
        cmocka_unit_test(test_inherited_socket), cmocka_unit_test(test_socket_activation),
        cmocka_unit_test(test_no_prompt_cache),  cmocka_unit_test(test_signals),
        cmocka_unit_test(test_stuck_disk),       cmocka_unit_test(test_dashboard),
        cmocka_unit_test(test_reads_at_once),    cmocka_unit_test(test_impostors),
    };
    if (argc < 5) return 2;
    model_dir = argv[1];
    program = argv[2];
    dashboard = argv[3];
    stuck_disk = argv[4];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
