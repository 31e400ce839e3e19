/* The whole server in this process, with the story model, through real sockets: the same bits in any company, shared
 * prompts read once, full queues, clients that leave, an end in good order. */
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

typedef struct fixture {
    mf_model *model;
    mf_text *text;
    server *server;
    pthread_t thread;
    int port;
} fixture;

static void *loop(void *user) {
    server_run(user);
    return NULL;
}

static void start(fixture *f, void (*adjust)(server_options *o)) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    mf_model_options mo;
    server_options so;
    mf_error err;
    *f = (fixture){0};
    mf_model_options_init(&mo);
    mo.n_threads = 2;
    mo.prompt_cache_ram = 64 << 20;
    server_options_init(&so);
    if (mf_model_open(model_dir, &mo, &f->model, &err) || mf_text_open(model_dir, &f->text, &err))
        fail_msg("%s", err.text);
    so.model = f->model;
    so.text = f->text;
    so.model_dir = model_dir;
    so.model_id = "stories";
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

static void finish(fixture *f) {
    server_stop(f->server);
    pthread_join(f->thread, NULL);
    server_free(f->server);
    mf_text_close(f->text);
    mf_model_close(f->model);
}

/* ---- a small client ---------------------------------------------------------------------------------------------- */

static int dial(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    at.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    return fd;
}

static void put_request(int fd, const char *path, const char *body) {
    char head[256];
    snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
             body ? "POST" : "GET", path, body ? strlen(body) : 0);
    send(fd, head, strlen(head), MSG_NOSIGNAL);
    if (body) send(fd, body, strlen(body), MSG_NOSIGNAL);
}

/* All that comes until the connection ends; malloc'd. */
static char *get_all(int fd) {
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

static char *ask(int port, const char *path, const char *body, int *status) {
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

/* The content of a chat answer, and tokens of its prompt that were cached; malloc'd. */
static char *content_of(const char *answer, int *n_cached) {
    json_t *root = json_loads(answer, 0, NULL);
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const char *text = json_string_value(json_object_get(json_object_get(choice, "message"), "content"));
    const json_t *details = json_object_get(json_object_get(root, "usage"), "prompt_tokens_details");
    if (!text) fail_msg("not an answer: %s", answer);
    if (n_cached) *n_cached = (int)json_integer_value(json_object_get(details, "cached_tokens"));
    char *out = strdup(text);
    json_decref(root);
    return out;
}

static double metric(int port, const char *name) {
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

/* ---- many at once ------------------------------------------------------------------------------------------------ */

typedef struct asker {
    pthread_t thread;
    int port, status, n_cached;
    char body[1024];
    char *answer;
} asker;

static void *run_asker(void *user) {
    asker *a = user;
    a->answer = ask(a->port, "/v1/chat/completions", a->body, &a->status);
    return NULL;
}

static void ask_all(asker *list, int n) {
    for (int i = 0; i < n; i++) assert_int_equal(pthread_create(&list[i].thread, NULL, run_asker, &list[i]), 0);
    for (int i = 0; i < n; i++) pthread_join(list[i].thread, NULL);
}

static const char *const WORDS[] = {"dog", "cat", "king", "ship", "tree", "girl", "bear", "moon"};

/* Prompts of different lengths, from one to many pieces. */
static void write_body(asker *a, int i, const char *system, int max_tokens) {
    size_t n =
        (size_t)snprintf(a->body, sizeof a->body, "{\"temperature\":0,\"max_tokens\":%d,\"messages\":[", max_tokens);
    if (system)
        n += (size_t)snprintf(a->body + n, sizeof a->body - n, "{\"role\":\"system\",\"content\":\"%s\"},", system);
    n += (size_t)snprintf(a->body + n, sizeof a->body - n, "{\"role\":\"user\",\"content\":\"A story about a %s",
                          WORDS[i % 8]);
    for (int k = 0; k < i % 13 * (i % 5); k++)
        n += (size_t)snprintf(a->body + n, sizeof a->body - n, " and a %s", WORDS[(i + k) % 8]);
    snprintf(a->body + n, sizeof a->body - n, ", number %d.\"}]}", i);
}

static void small_pieces(server_options *o) {
    o->piece = 32;
}

/* At temperature 0 each of 64 concurrent requests gets exactly the text it gets alone. */
static void test_same_bits(void **state) {
    enum { N = 64, TOKENS = 10 };
    static asker list[N];
    char *alone[N];
    fixture f;
    (void)state;
    start(&f, small_pieces);
    for (int i = 0; i < N; i++) {
        list[i] = (asker){.port = f.port};
        write_body(&list[i], i, NULL, TOKENS);
        run_asker(&list[i]);
        assert_int_equal(list[i].status, 200);
        alone[i] = content_of(list[i].answer, NULL);
        free(list[i].answer);
    }
    finish(&f);
    start(&f, small_pieces); /* and nothing is known from before */
    for (int i = 0; i < N; i++) list[i].port = f.port;
    double passes = metric(f.port, "moeflux_passes_total");
    ask_all(list, N);
    passes = metric(f.port, "moeflux_passes_total") - passes;
    for (int i = 0; i < N; i++) {
        char *text = content_of(list[i].answer, NULL);
        if (strcmp(text, alone[i])) fail_msg("request %d alone: %s\nin company: %s", i, alone[i], text);
        free(text);
        free(alone[i]);
        free(list[i].answer);
    }
    assert_true(passes < N * TOKENS / 4); /* they did share passes */
    finish(&f);
}

/* Sixteen at once with one long system prompt: it is read once. */
static void test_shared_prompt(void **state) {
    enum { N = 16 };
    static asker list[N];
    static const char system[] =
        "You are an old man by the sea who has seen many ships come and go and who knows every "
        "bird and every wind by its name and who loves to tell long stories to small children "
        "when the evening comes and the lamps are lit and the bread is on the table again";
    fixture f;
    (void)state;
    start(&f, small_pieces);
    for (int i = 0; i < N; i++) {
        list[i] = (asker){.port = f.port};
        write_body(&list[i], i % 8, system, 4);
    }
    double before = metric(f.port, "moeflux_evaluated_prompt_tokens_total");
    ask_all(list, N);
    double read = metric(f.port, "moeflux_evaluated_prompt_tokens_total") - before;
    double all = metric(f.port, "moeflux_prompt_tokens_total");
    int n_cached = 0, n_shared = 0;
    for (int i = 0; i < N; i++) {
        assert_int_equal(list[i].status, 200);
        free(content_of(list[i].answer, &n_cached));
        n_shared += n_cached >= 60;
        free(list[i].answer);
    }
    assert_true(n_shared >= N - 1);
    if (read > all / 2) fail_msg("%g of %g tokens were read", read, all);
    finish(&f);
}

/* ---- the queue, leaving, the end --------------------------------------------------------------------------------- */

static void tiny_queue(server_options *o) {
    o->max_running = 1;
    o->max_waiting = 1;
}

static const char LONG[] = "{\"prompt\":\"Once\",\"max_tokens\":1900,\"ignore_eos\":true,\"stream\":true}";

static void wait_running(int port, int want) {
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

static void test_full_queue(void **state) {
    fixture f;
    int status;
    (void)state;
    start(&f, tiny_queue);
    int first = dial(f.port), second = dial(f.port);
    put_request(first, "/v1/completions", LONG);
    wait_running(f.port, 1);
    put_request(second, "/v1/completions", LONG);
    char *text = NULL;
    for (int i = 0; i < 500; i++) { /* until the second has its place in the queue */
        free(text);
        text = ask(f.port, "/v1/messages",
                   "{\"model\":\"x\",\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", &status);
        if (status == 429) break;
        usleep(10000);
    }
    assert_int_equal(status, 429);
    assert_non_null(strstr(text, "rate_limit_error"));
    free(text);
    close(first); /* leaves, and the second takes its place */
    char part[4096];
    assert_true(recv(second, part, sizeof part, 0) > 0);
    close(second);
    wait_running(f.port, 0);
    finish(&f);
}

/* Told to stop, with an answer under way: it gets an end that clients understand. */
static void short_grace(server_options *o) {
    o->grace_seconds = 0.2;
}

static void test_stop_in_the_middle(void **state) {
    fixture f;
    (void)state;
    start(&f, short_grace);
    int fd = dial(f.port);
    put_request(fd, "/v1/completions", LONG);
    wait_running(f.port, 1);
    server_stop(f.server);
    char *all = get_all(fd);
    assert_non_null(strstr(all, "\"finish_reason\":\"stop\""));
    assert_non_null(strstr(all, "data: [DONE]"));
    assert_non_null(strstr(all, "0\r\n\r\n"));
    free(all);
    close(fd);
    finish(&f);
}

/* A client that leaves while it waits, while its prompt is read, and while it is spoken to. */
static void test_leaving(void **state) {
    fixture f;
    (void)state;
    start(&f, tiny_queue);
    for (int i = 0; i < 20; i++) {
        int fd = dial(f.port);
        put_request(fd, i % 2 ? "/v1/completions" : "/v1/chat/completions",
                    i % 2 ? LONG
                          : "{\"messages\":[{\"role\":\"user\",\"content\":\"Go\"}],\"max_tokens\":500,\"n\":3}");
        usleep((useconds_t)(i * 3000));
        close(fd);
    }
    wait_running(f.port, 0);
    int status;
    char *text = ask(f.port, "/v1/completions", "{\"prompt\":\"Once\",\"max_tokens\":2}", &status);
    assert_int_equal(status, 200);
    free(text);
    finish(&f);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),  cmocka_unit_test(test_shared_prompt),
        cmocka_unit_test(test_full_queue), cmocka_unit_test(test_stop_in_the_middle),
        cmocka_unit_test(test_leaving),
    };
    if (argc < 2) return 2;
    model_dir = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
