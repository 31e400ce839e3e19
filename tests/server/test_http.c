/* The connection layer over real sockets: a server in a thread, raw bytes from here. The handler echoes bodies, streams
 * on /stream, and keeps quiet on /hang until the client has left. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "http.h"

typedef struct fixture {
    struct event_base *base;
    http_server *server;
    pthread_t thread;
    uint16_t port;
    struct event *tick;
    atomic_bool stop;
    atomic_int n_gone, n_requests, n_open, n_slow, n_evicted;
    http_conn *stream; /* loop thread: grows until its reader is cut */
    atomic_bool drain;
} fixture;

static void on_request(void *user, http_conn *conn, const http_request *r) {
    fixture *f = user;
    f->n_requests++;
    if (!strcmp(r->path, "/hang")) return;
    if (!strcmp(r->path, "/flood")) {
        http_stream_begin(conn, 200, "text/plain", NULL);
        f->stream = conn;
        return;
    }
    if (!strcmp(r->path, "/stream")) {
        http_stream_begin(conn, 200, "text/event-stream", "Cache-Control: no-cache\r\n");
        http_stream_write(conn, "data: a\n\n", 9);
        http_stream_write(conn, "data: b\n\n", 9);
        http_stream_end(conn);
        return;
    }
    http_respond(conn, 200, "text/plain", NULL, r->body, r->n_body);
}

static void on_gone(void *user, http_conn *conn, void *state) {
    fixture *f = user;
    (void)state;
    if (f->stream == conn) f->stream = NULL;
    f->n_gone++;
}

static int on_head(void *user, const http_request *r, const char **problem) {
    (void)user;
    *problem = "No such place.";
    return strcmp(r->path, "/nowhere") ? 0 : 404;
}

static char *on_problem(void *user, const char *path, const http_parser *head, int status, const char *sentence) {
    (void)head;
    (void)user;
    char *text = malloc(256);
    snprintf(text, 256, "%s %d %s", path ? path : "-", status, sentence);
    return text;
}

static void on_tick(evutil_socket_t fd, short what, void *user) {
    fixture *f = user;
    static const char filler[4096];
    (void)fd;
    (void)what;
    for (int i = 0; i < 64 && f->stream; i++) http_stream_write(f->stream, filler, sizeof filler);
    const http_stats *s = http_server_stats(f->server);
    f->n_open = s->open;
    f->n_slow = (int)s->slow_readers;
    f->n_evicted = (int)s->evicted;
    if (f->drain) http_server_drain(f->server);
    f->drain = false;
    if (f->stop) event_base_loopbreak(f->base);
}

static void *loop(void *user) {
    fixture *f = user;
    event_base_dispatch(f->base);
    return NULL;
}

static void start(fixture *f, const http_options *opt) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    *f = (fixture){0};
    http_handler h = {.request = on_request, .gone = on_gone, .head = on_head, .problem = on_problem, .user = f};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    f->port = ntohs(at.sin_port);
    f->base = event_base_new();
    f->server = http_server_create(f->base, opt, &h);
    assert_true(http_server_listen(f->server, fd));
    f->tick = event_new(f->base, -1, EV_PERSIST, on_tick, f);
    event_add(f->tick, &(struct timeval){0, 5000});
    assert_int_equal(pthread_create(&f->thread, NULL, loop, f), 0);
}

static void finish(fixture *f) {
    f->stop = true;
    pthread_join(f->thread, NULL);
    http_server_free(f->server);
    event_free(f->tick);
    event_base_free(f->base);
}

static int dial(const fixture *f) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons(f->port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void put(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Reads until `end` has come or the connection is closed; ten seconds are a failure. Returns the bytes read. */
static size_t get(int fd, const char *end, char *out, size_t max) {
    size_t n = 0;
    out[0] = 0;
    while (n + 1 < max && !(end && strstr(out, end))) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 10000) != 1) fail_msg("nothing came for ten seconds; so far: %s", out);
        ssize_t got = recv(fd, out + n, max - 1 - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
        out[n] = 0;
    }
    return n;
}

static void expect_answer(const fixture *f, const char *request, const char *status, const char *part) {
    char out[8192];
    int fd = dial(f);
    put(fd, request);
    get(fd, part, out, sizeof out);
    if (strncmp(out, status, strlen(status)) || !strstr(out, part)) fail_msg("for %s\ncame %s", request, out);
    close(fd);
}

/* Waits until *value is at least `want`; ten seconds are a failure. */
static void wait_for(const atomic_int *value, int want) {
    for (int i = 0; i < 2000 && *value < want; i++) usleep(5000);
    assert_true(*value >= want);
}

static void test_answers(void **state) {
    (void)state;
    fixture f;
    http_options opt;
    http_options_init(&opt);
    opt.limits.body_bytes = 1000;
    start(&f, &opt);
    expect_answer(&f, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello", "HTTP/1.1 200 OK\r\n",
                  "\r\n\r\nhello");
    expect_answer(&f, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\n",
                  "9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n");
    expect_answer(&f, "GET /stream HTTP/1.0\r\n\r\n", "HTTP/1.1 200 OK\r\n", "\r\n\r\ndata: a\n\ndata: b\n\n");
    expect_answer(&f, "GET / HTTP/1.1\nHost: a\n\n", "HTTP/1.1 400 ", "- 400 A line of the head ends in LF alone");
    expect_answer(&f, "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", "HTTP/1.1 413 ", "/p 413 ");
    expect_answer(&f, "POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", "HTTP/1.1 404 ",
                  "/nowhere 404 No such");
    finish(&f);
}

/* Two requests in one piece, one of them cut in the middle: both are answered, in order, on one connection. */
static void test_keep_alive(void **state) {
    (void)state;
    fixture f;
    http_options opt;
    char out[8192];
    http_options_init(&opt);
    start(&f, &opt);
    int fd = dial(&f);
    put(fd, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\noneGET /stream HTTP/1.1\r\nHo");
    get(fd, "one", out, sizeof out);
    put(fd, "st: a\r\n\r\n");
    get(fd, "0\r\n\r\n", out, sizeof out);
    assert_non_null(strstr(out, "data: b"));
    put(fd, "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab");
    get(fd, NULL, out, sizeof out);
    assert_non_null(strstr(out, "Content-Length: 2\r\n"));
    assert_non_null(strstr(out, "Connection: close\r\n"));
    assert_null(strstr(out, "\r\n\r\nab"));
    close(fd);
    assert_int_equal(f.n_requests, 3);
    assert_int_equal(f.n_gone, 0);
    finish(&f);
}

static void test_continue(void **state) {
    (void)state;
    fixture f;
    http_options opt;
    char out[8192];
    http_options_init(&opt);
    start(&f, &opt);
    int fd = dial(&f);
    put(fd, "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
    get(fd, "100 Continue\r\n\r\n", out, sizeof out);
    put(fd, "abc");
    get(fd, "abc", out, sizeof out);
    assert_non_null(strstr(out, "200 OK"));
    close(fd);
    finish(&f);
}

/* A client that leaves while nothing is being written is noticed at once. */
static void test_leaving(void **state) {
    (void)state;
    fixture f;
    http_options opt;
    http_options_init(&opt);
    start(&f, &opt);
    int fd[3];
    for (int i = 0; i < 3; i++) {
        fd[i] = dial(&f);
        put(fd[i], "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    wait_for(&f.n_requests, 3);
    assert_int_equal(f.n_gone, 0);
    close(fd[0]);
    struct linger hard = {1, 0};
    setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &hard, sizeof hard); /* a reset */
    close(fd[1]);
    wait_for(&f.n_gone, 2);
    /* One who fills our ears while we work could not be seen to leave: it is cut. */
    char *much = malloc(1 << 20);
    memset(much, 'x', 1 << 20);
    for (size_t sent = 0; sent < 1 << 20;) {
        ssize_t n = send(fd[2], much + sent, (1 << 20) - sent, MSG_NOSIGNAL);
        if (n < 0) break;
        sent += (size_t)n;
    }
    free(much);
    wait_for(&f.n_gone, 3);
    close(fd[2]);
    finish(&f);
}

/* A byte now and then, until something comes back. */
static void drip(int fd) {
    for (int i = 0; i < 1000; i++) {
        if (send(fd, "G", 1, MSG_NOSIGNAL) < 0) break;
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 20)) break;
    }
}

/* Deadlines are absolute: who sends a byte now and then is cut all the same. */
static void test_drip(void **state) {
    (void)state;
    fixture f;
    http_options opt;
    char out[4096];
    http_options_init(&opt);
    opt.head_seconds = opt.body_seconds = opt.idle_seconds = 0.2;
    start(&f, &opt);
    int fd = dial(&f);
    drip(fd);
    get(fd, NULL, out, sizeof out);
    assert_non_null(strstr(out, "408 "));
    close(fd);
    fd = dial(&f);
    put(fd, "POST /p HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    drip(fd);
    get(fd, NULL, out, sizeof out);
    assert_non_null(strstr(out, "/p 408 "));
    close(fd);
    fd = dial(&f); /* between requests */
    put(fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    get(fd, NULL, out, sizeof out);
    assert_non_null(strstr(out, "200 OK"));
    close(fd);
    finish(&f);
}

/* A reader that does not read is cut: by the queue's limit, or by the deadline where little is written. */
static void test_slow_reader(void **state) {
    (void)state;
    fixture f;
    http_options opt;
    http_options_init(&opt);
    opt.queue_bytes = 1 << 20;
    start(&f, &opt);
    int fd = dial(&f);
    put(fd, "GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&f.n_gone, 1);
    wait_for(&f.n_slow, 1);
    close(fd);
    finish(&f);

    opt.queue_bytes = (size_t)1 << 30;
    opt.write_seconds = 0.3;
    start(&f, &opt);
    fd = dial(&f);
    put(fd, "GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&f.n_gone, 1);
    close(fd);
    finish(&f);
}

/* Places: the one that waits longest gives up its own, those that work stay, and a new one is always heard. */
static void test_places(void **state) {
    (void)state;
    fixture f;
    http_options opt;
    int idle[20];
    http_options_init(&opt);
    opt.max_conns_per_addr = 8;
    start(&f, &opt);
    int busy = dial(&f);
    put(busy, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&f.n_requests, 1);
    for (int i = 0; i < 20; i++) {
        idle[i] = dial(&f);
        send(idle[i], "G", 1, MSG_NOSIGNAL);
    }
    wait_for(&f.n_evicted, 13);
    expect_answer(&f, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200", "\r\n\r\nok");
    assert_true(f.n_open <= 8);
    assert_int_equal(f.n_gone, 0);
    for (int i = 0; i < 20; i++) close(idle[i]);
    close(busy);
    wait_for(&f.n_gone, 1);
    finish(&f);
}

/* Draining: no new connections, the waiting ones closed, the working ones finish. */
static void test_drain(void **state) {
    (void)state;
    fixture f;
    http_options opt;
    char out[4096];
    http_options_init(&opt);
    start(&f, &opt);
    int idle = dial(&f), busy = dial(&f);
    put(busy, "GET /hang HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_for(&f.n_requests, 1);
    f.drain = true;
    assert_int_equal(get(idle, NULL, out, sizeof out), 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons(f.port);
    int late = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(late, (struct sockaddr *)&at, sizeof at), -1);
    assert_int_equal(f.n_gone, 0);
    close(late);
    close(idle);
    close(busy);
    wait_for(&f.n_gone, 1);
    finish(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers), cmocka_unit_test(test_keep_alive), cmocka_unit_test(test_continue),
        cmocka_unit_test(test_leaving), cmocka_unit_test(test_drip),       cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_places),  cmocka_unit_test(test_drain),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
