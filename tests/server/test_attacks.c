/* Bad manners against the whole server: idle and dripping connections in hundreds, garbage, cut and smuggled requests,
 * bodies that never end. Meanwhile and afterwards ordinary requests are answered. */
#include "client.h"

enum { IDLE = 400, DRIP = 300 };

static void ordinary(const fixture *f) {
    int status;
    char *text = ask(f->port, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2,\"temperature\":0}", &status);
    if (status != 200) fail_msg("an ordinary request got %d: %s", status, text);
    free(text);
}

static void shout(const fixture *f, const char *bytes, size_t n) {
    int fd = dial(f->port);
    send(fd, bytes, n, MSG_NOSIGNAL);
    close(fd);
}

/* Two requests in one, by bytes that another program might read differently: the second must never be answered. */
static void smuggle(const fixture *f, const char *head) {
    char bytes[1024];
    int n = snprintf(bytes, sizeof bytes, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\n%s", head);
    int fd = dial(f->port);
    send(fd, bytes, (size_t)n, MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    char *all = get_all(fd);
    if (strstr(all, "\"status\":\"ok\"")) fail_msg("smuggled through %s: %s", head, all);
    if (strncmp(all, "HTTP/1.1 4", 10) && strncmp(all, "HTTP/1.1 5", 10)) fail_msg("taken: %s\nanswer: %s", head, all);
    free(all);
    close(fd);
}

static void test_smuggling(void **state) {
    static const char *const heads[] = {
        "Content-Length: 5\r\nContent-Length: 0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: "
        "localhost\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: "
        "localhost\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\n\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n100000000000000000\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "X: y\n\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "Content-Length: 0\r\n X: y\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    };
    fixture f;
    (void)state;
    start(&f, NULL);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) smuggle(&f, heads[i]);
    ordinary(&f);
    finish(&f);
}

/* Whose name a request may carry: addresses and localhost; what only looks like one is somebody's name. */
static void test_hosts(void **state) {
    static const struct {
        const char *host;
        int status;
    } cases[] = {
        {"localhost", 200},
        {"LocalHost:8080", 200},
        {"my.localhost", 200},
        {"127.0.0.1:1", 200},
        {"192.168.1.7", 200},
        {"[::1]:8080", 200},
        {"[fe80::1]", 200},
        {"evil.example", 403},
        {"127.0.0.1.evil.example", 403},
        {"localhost.evil.example", 403},
        {"localhost@evil.example", 403},
        {"localhost:80@evil.example", 403},
        {"[::1].evil.example", 403},
        {"[::1]evil.example:80", 403},
        {"[evil.example]", 403},
        {"[]", 403},
        {"[::1", 403},
        {"", 403},
        {":80", 403},
        {"localhost/", 403},
        {"http://localhost", 403},
    };
    fixture f;
    (void)state;
    start(&f, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char bytes[256];
        int n = snprintf(bytes, sizeof bytes, "GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n",
                         cases[i].host);
        int fd = dial(f.port);
        send(fd, bytes, (size_t)n, MSG_NOSIGNAL);
        char *all = get_all(fd);
        if (atoi(all + strcspn(all, " ")) != cases[i].status) fail_msg("Host: %s got %s", cases[i].host, all);
        free(all);
        close(fd);
    }
    finish(&f);
}

static void patient(server_options *o) {
    o->http.head_seconds = o->http.body_seconds = o->http.idle_seconds = 600;
}

/* Far more connections than one address may have: they cost each other their places, never an ordinary request. */
static void test_crowd(void **state) {
    static int fds[IDLE + DRIP];
    fixture f;
    (void)state;
    start(&f, patient);
    ordinary(&f);
    for (int i = 0; i < IDLE + DRIP; i++) {
        fds[i] = dial(f.port);
        if (i % 2 && i < 2 * DRIP) send(fds[i], "POST /v1/completions HTTP/1.1\r\nHo", 33, MSG_NOSIGNAL);
        if (i % 100 == 99) ordinary(&f);
    }
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < IDLE + DRIP; i++) send(fds[i], "x", 1, MSG_NOSIGNAL);
        ordinary(&f);
    }
    for (int i = 0; i < IDLE + DRIP; i++) close(fds[i]);
    ordinary(&f);
    finish(&f);
}

static void test_garbage(void **state) {
    fixture f;
    char bytes[4096];
    (void)state;
    start(&f, NULL);
    srand(1);
    for (int i = 0; i < 300; i++) {
        size_t n = (size_t)(rand() % (int)sizeof bytes);
        for (size_t k = 0; k < n; k++) bytes[k] = (char)rand();
        shout(&f, bytes, n);
    }
    static const char whole[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 70\r\n\r\n"
                                "{\"messages\":[{\"role\":\"user\",\"content\":\"Go on and on\"}],\"max_tokens\":900}";
    for (size_t n = 0; n <= sizeof whole - 1; n += 3) shout(&f, whole, n); /* cut anywhere */
    static const char endless[] = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n\r\n";
    for (int i = 0; i < 30; i++) { /* bodies that are begun and left */
        int fd = dial(f.port);
        send(fd, endless, sizeof endless - 1, MSG_NOSIGNAL);
        for (int k = 0; k < 64; k++) send(fd, bytes, sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
    ordinary(&f);
    wait_running(f.port, 0);
    assert_int_equal((int)metric(f.port, "moeflux_connections_busy"), 1); /* the one that asks */
    finish(&f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smuggling),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_garbage),
    };
    if (argc < 2) return 2;
    model_dir = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
