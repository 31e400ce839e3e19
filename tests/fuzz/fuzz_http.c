/* The HTTP boundary. The first byte is the size of the pieces: any cut of the same bytes gives the same requests and
 * the same refusal; then the bytes go through a whole connection, whose handler answers at once. */
#include <event2/event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const http_limits LIMITS = {.head_bytes = 512, .body_bytes = 2048};

/* All that was understood, in words that can be compared. */
typedef struct record {
    char text[65536];
    size_t n;
} record;

static void note(record *r, const char *bytes, size_t n) {
    if (n > sizeof r->text - r->n) n = sizeof r->text - r->n;
    if (n) memcpy(r->text + r->n, bytes, n);
    r->n += n;
}

static void run(const uint8_t *data, size_t size, size_t piece, record *out) {
    http_parser p;
    http_parser_init(&p, &LIMITS, NULL);
    http_result r = HTTP_MORE;
    for (size_t i = 0; i < size && r != HTTP_BAD;) {
        size_t used, n = size - i < piece ? size - i : piece;
        r = http_parser_feed(&p, data + i, n, &used);
        if (used > n || (r == HTTP_MORE && used != n)) abort();
        i += used;
        if (r == HTTP_BAD) note(out, p.problem, strlen(p.problem));
        if (r != HTTP_DONE) continue;
        note(out, p.target, strlen(p.target));
        for (int f = 0; f < p.n_fields; f++) note(out, p.fields[f].value, strlen(p.fields[f].value));
        note(out, p.body, p.n_body);
        http_parser_reset(&p);
    }
    http_parser_deinit(&p);
}

static void on_request(void *user, http_conn *conn, const http_request *r) {
    (void)user;
    if (r->n_body % 2) {
        http_stream_begin(conn, 200, "text/plain", NULL);
        if (http_stream_write(conn, r->body, r->n_body)) http_stream_end(conn);
    } else if (r->n_body % 4) { /* never answered */
        http_conn_set_state(conn, user);
    } else {
        http_respond(conn, 200, "text/plain", NULL, r->body, r->n_body);
    }
}

static void on_gone(void *user, http_conn *conn, void *state) {
    (void)user;
    (void)conn;
    (void)state;
}

static char *on_problem(void *user, const char *path, const http_parser *head, int status, const char *sentence) {
    (void)head;
    (void)user;
    (void)status;
    (void)path;
    return strdup(sentence);
}

static void through_a_connection(const uint8_t *data, size_t size, size_t piece) {
    static struct event_base *base;
    int pair[2];
    if (!base) base = event_base_new();
    http_options opt;
    http_options_init(&opt);
    opt.limits = LIMITS;
    opt.queue_bytes = 1024;
    http_handler h = {.request = on_request, .gone = on_gone, .problem = on_problem};
    http_server *server = http_server_create(base, &opt, &h);
    if (!base || !server || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair)) abort();
    struct sockaddr local = {.sa_family = AF_UNIX};
    http__conn_open(server, pair[0], &local);
    for (size_t i = 0; i < size && http_server_stats(server)->open; i += piece) {
        size_t n = size - i < piece ? size - i : piece;
        char drop[4096];
        if (send(pair[1], data + i, n, MSG_NOSIGNAL) < 0) break;
        event_base_loop(base, EVLOOP_NONBLOCK);
        while (recv(pair[1], drop, sizeof drop, 0) > 0) {
        }
    }
    close(pair[1]);
    event_base_loop(base, EVLOOP_NONBLOCK);
    event_base_loop(base, EVLOOP_NONBLOCK);
    http_server_free(server);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static record whole, cut;
    if (size < 2) return 0;
    whole.n = cut.n = 0;
    run(data + 1, size - 1, size, &whole);
    run(data + 1, size - 1, 1 + data[0] % 32, &cut);
    if (whole.n != cut.n || memcmp(whole.text, cut.text, whole.n)) abort();
    through_a_connection(data + 1, size - 1, 1 + data[0]);
    return 0;
}
