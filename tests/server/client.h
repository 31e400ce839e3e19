/* For tests of the whole server: it runs in this process with the story model, and a small client asks it. */
#ifndef TESTS_SERVER_CLIENT_H
#define TESTS_SERVER_CLIENT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "server.h"

static const char *model_dir;
static const char *cache_dir;                     /* of the next server; NULL: none */
static void (*adjust_model)(mf_model_options *o); /* likewise */

typedef struct fixture {
    mf_model *model;
    mf_text *text;
    server *server;
    pthread_t thread;
    int port;
} fixture;

static inline void *loop(void *user) {
    server_run(user);
    return NULL;
}

static inline void start(fixture *f, void (*adjust)(server_options *o)) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    mf_model_options mo;
    server_options so;
    mf_error err;
    *f = (fixture){0};
    mf_model_options_init(&mo);
    mo.n_threads = 1; /* tests run side by side */
    mo.prompt_cache_ram = 64 << 20;
    mo.prompt_cache_dir = cache_dir;
    if (adjust_model) adjust_model(&mo);
    server_options_init(&so);
    if (mf_model_open(model_dir, &mo, &f->model, &err) || mf_text_open(model_dir, &f->text, &err))
        fail_msg("%s", err.text);
    so.model = f->model;
    so.text = f->text;
    so.model_dir = model_dir;
    so.model_id = "stories";
    so.disk_cache = cache_dir;
    so.max_running = 64;
    so.max_sessions = 128;
    if (adjust) adjust(&so);
    if (server_create(&so, &f->server, &err)) fail_msg("%s", err.text);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    assert_int_equal(listen(fd, 256), 0);
    f->port = ntohs(at.sin_port);
    assert_true(server_listen(f->server, fd));
    assert_int_equal(pthread_create(&f->thread, NULL, loop, f->server), 0);
}

static inline void finish(fixture *f) {
    server_stop(f->server);
    pthread_join(f->thread, NULL);
    server_free(f->server);
    mf_text_close(f->text);
    mf_model_close(f->model);
}

/* ---- a small client ---------------------------------------------------------------------------------------------- */

static inline int dial(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static inline void put_request(int fd, const char *path, const char *body) {
    char head[256];
    snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
             body ? "POST" : "GET", path, body ? strlen(body) : 0);
    send(fd, head, strlen(head), MSG_NOSIGNAL);
    for (size_t n = body ? strlen(body) : 0, at = 0; at < n;) {
        ssize_t sent = send(fd, body + at, n - at, MSG_NOSIGNAL);
        if (sent <= 0) break;
        at += (size_t)sent;
    }
}

/* All that comes until the connection ends; malloc'd. */
static inline char *get_all(int fd) {
    size_t n = 0, capacity = 1 << 16;
    char *out = malloc(capacity);
    for (;;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 120000) != 1) fail_msg("nothing came for two minutes");
        ssize_t got = recv(fd, out + n, capacity - n - 1, 0);
        if (got <= 0) break;
        n += (size_t)got;
        if (capacity - n < 4096) out = realloc(out, capacity *= 2);
    }
    out[n] = 0;
    return out;
}

static inline char *ask(int port, const char *path, const char *body, int *status) {
    int fd = dial(port);
    put_request(fd, path, body);
    char *all = get_all(fd);
    close(fd);
    *status = atoi(all + strcspn(all, " "));
    char *rest = strstr(all, "\r\n\r\n");
    char *out = strdup(rest ? rest + 4 : "");
    free(all);
    return out;
}

static inline double metric(int port, const char *name) {
    int status;
    char *text = ask(port, "/metrics", NULL, &status);
    char line[128];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(text, line);
    if (!at) fail_msg("no metric %s", name);
    double value = atof(at + strlen(line));
    free(text);
    return value;
}

static inline void wait_running(int port, int want) {
    for (int i = 0; i < 2000; i++) {
        int status;
        char *text = ask(port, "/health", NULL, &status), part[32];
        snprintf(part, sizeof part, "\"running\":%d,", want);
        bool there = strstr(text, part);
        free(text);
        if (there) return;
        usleep(10000);
    }
    fail_msg("there are never %d running", want);
}

#endif
