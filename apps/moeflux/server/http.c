/* Connections: bytes to requests, answers to bytes, and one deadline at a time. */
#include "http.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "http_int.h"

#define INPUT_BYTES 65536 /* read ahead of what is asked for; also while a request is worked on */
#define LINGER_SECONDS 2.0

static void feed(http_conn *c);

/* ---- deadlines --------------------------------------------------------------------------------------------------- */

static void set_deadline(http_conn *c, double seconds) {
    struct timeval tv = {(time_t)seconds, (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    event_add(c->deadline, &tv);
}

/* The state's deadline begins now, and the connection is the newest of those that wait. */
static void enter(http_conn *c, conn_state state) {
    const http_options *o = &c->server->opt;
    bool was_busy = c->state == CONN_BUSY || c->state == CONN_STREAM;
    bool is_busy = state == CONN_BUSY || state == CONN_STREAM;
    c->server->stats.busy += is_busy - was_busy;
    c->state = state;
    http__unlink(c);
    http__link(c);
    if (c->writing) return; /* the deadline for the output holds */
    if (is_busy) event_del(c->deadline);
    if (state == CONN_IDLE) set_deadline(c, o->idle_seconds);
    if (state == CONN_HEAD) set_deadline(c, o->head_seconds);
    if (state == CONN_BODY) set_deadline(c, o->body_seconds);
    if (state == CONN_FLUSH) set_deadline(c, o->write_seconds);
    if (state == CONN_LINGER) set_deadline(c, LINGER_SECONDS);
}

/* Output is there from now on: it must be gone by its deadline, whatever trickles. */
static void begin_writing(http_conn *c) {
    if (c->writing || !evbuffer_get_length(bufferevent_get_output(c->bev))) return;
    c->writing = true;
    set_deadline(c, c->server->opt.write_seconds);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void tell_gone(http_conn *c) {
    if (c->state != CONN_BUSY && c->state != CONN_STREAM) return;
    enter(c, CONN_FLUSH);
    c->server->handler.gone(c->server->handler.user, c, c->user);
}

void http__conn_free(http_conn *c) {
    tell_gone(c);
    http__unlink(c);
    c->server->stats.open--;
    event_free(c->deadline);
    bufferevent_free(c->bev);
    http_parser_deinit(&c->parser);
    free(c->path);
    free(c);
}

/* Freed by the loop in its next round: the caller may still hold it. */
static void doom(http_conn *c) {
    tell_gone(c);
    enter(c, CONN_DOOMED);
    event_active(c->deadline, EV_TIMEOUT, 0);
}

/* All is written: the client is told that nothing more comes, and gets a moment to read it. */
static void linger(http_conn *c) {
    c->writing = false;
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    enter(c, CONN_LINGER);
}

static void answer_ended(http_conn *c) {
    bool close = c->close_after || c->server->draining;
    http_parser_reset(&c->parser);
    free(c->path);
    c->path = NULL;
    c->user = NULL;
    c->fields = NULL;
    if (!close) {
        enter(c, CONN_IDLE);
        begin_writing(c);
        if (!c->feeding) feed(c);
        return;
    }
    enter(c, CONN_FLUSH);
    begin_writing(c);
    if (!c->writing) linger(c);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

const char *http_status_text(int status) {
    static const struct {
        int status;
        const char *text;
    } known[] = {
        {100, "Continue"},
        {200, "OK"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
        {529, "Overloaded"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].status == status) return known[i].text;
    return "Status";
}

static void put_head(http_conn *c, int status, const char *type, const char *fields) {
    struct evbuffer *out = bufferevent_get_output(c->bev);
    char date[40];
    evutil_date_rfc1123(date, sizeof date, NULL);
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, http_status_text(status), date);
    if (type) evbuffer_add_printf(out, "Content-Type: %s\r\nX-Content-Type-Options: nosniff\r\n", type);
    if (fields) evbuffer_add(out, fields, strlen(fields));
    if (c->fields) evbuffer_add(out, c->fields, strlen(c->fields));
    if (c->close_after || c->server->draining) evbuffer_add_printf(out, "Connection: close\r\n");
}

void http_respond(http_conn *c, int status, const char *type, const char *fields, const void *body, size_t n) {
    struct evbuffer *out = bufferevent_get_output(c->bev);
    put_head(c, status, type, fields);
    evbuffer_add_printf(out, "Content-Length: %zu\r\n\r\n", n);
    if (!c->head_only && n) evbuffer_add(out, body, n);
    answer_ended(c);
}

void http_stream_begin(http_conn *c, int status, const char *type, const char *fields) {
    c->chunked = c->parser.minor > 0;
    if (!c->chunked) c->close_after = true;
    put_head(c, status, type, fields);
    evbuffer_add_printf(bufferevent_get_output(c->bev), "%s\r\n", c->chunked ? "Transfer-Encoding: chunked\r\n" : "");
    enter(c, CONN_STREAM);
    begin_writing(c);
}

bool http_stream_write(http_conn *c, const void *data, size_t n) {
    struct evbuffer *out = bufferevent_get_output(c->bev);
    if (!n || c->head_only) return true;
    if (evbuffer_get_length(out) + n > c->server->opt.queue_bytes) {
        c->server->stats.slow_readers++;
        doom(c);
        return false;
    }
    if (c->chunked) evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add(out, data, n);
    if (c->chunked) evbuffer_add(out, "\r\n", 2);
    begin_writing(c);
    return true;
}

void http_stream_end(http_conn *c) {
    if (c->chunked && !c->head_only) evbuffer_add(bufferevent_get_output(c->bev), "0\r\n\r\n", 5);
    answer_ended(c);
}

void http_stream_cut(http_conn *c) {
    c->close_after = true;
    answer_ended(c);
}

void http_conn_set_state(http_conn *c, void *state) {
    c->user = state;
}

char *http_take_body(http_conn *c, size_t *counted) {
    http_parser *p = &c->parser;
    char *body = p->body;
    *counted = p->body_capacity;
    p->body = NULL;
    p->n_body = p->body_capacity = 0;
    c->request.body = "";
    c->request.n_body = 0;
    return body ? body : calloc(1, 1);
}

void http_release_body(http_server *s, size_t counted) {
    s->bodies.used -= counted;
}

void http_conn_set_fields(http_conn *c, const char *fields) {
    c->fields = fields;
}

const char *http_conn_address(const http_conn *c) {
    return c->addr;
}

bool http_conn_is_loopback(const http_conn *c) {
    return c->loopback;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

/* An answer that HTTP itself makes necessary. The connection closes: its framing is lost, or its body unread. */
static void refuse(http_conn *c, int status, const char *sentence) {
    const http_handler *h = &c->server->handler;
    char *body = h->problem(h->user, c->path, c->path ? &c->parser : NULL, status, sentence);
    c->close_after = true;
    http_respond(c, status, "application/json", status == 503 ? "Retry-After: 1\r\n" : NULL, body ? body : "",
                 body ? strlen(body) : 0);
    free(body);
}

static bool fill_request(http_conn *c) {
    c->path = strdup(c->parser.target);
    if (!c->path) return false;
    char *query = strchr(c->path, '?');
    if (query) *query++ = 0;
    c->head_only = !strcmp(c->parser.method, "HEAD");
    c->close_after = !c->parser.keep_alive;
    c->request = (http_request){.method = c->parser.method, .path = c->path, .query = query ? query : ""};
    c->request.head = &c->parser;
    return true;
}

/* The head is there; false: it was refused. */
static bool take_head(http_conn *c) {
    const http_handler *h = &c->server->handler;
    const char *problem = "There is no memory for the request.";
    int status = fill_request(c) ? 0 : 503;
    if (!status && h->head) status = h->head(h->user, &c->request, &problem);
    if (status) refuse(c, status, problem);
    return !status;
}

static void take_request(http_conn *c) {
    c->request.body = c->parser.body ? c->parser.body : "";
    c->request.n_body = c->parser.n_body;
    enter(c, CONN_BUSY);
    c->server->handler.request(c->server->handler.user, c, &c->request);
}

/* A body follows: it has a deadline, and a client that waits for leave gets it. */
static void begin_body(http_conn *c) {
    if (!take_head(c)) return;
    enter(c, CONN_BODY);
    if (!c->parser.expects_continue) return;
    bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    begin_writing(c);
}

static void feed_part(http_conn *c, struct evbuffer *in) {
    struct evbuffer_iovec part;
    size_t used = 0;
    if (evbuffer_peek(in, -1, NULL, &part, 1) < 1) return;
    http_result r = http_parser_feed(&c->parser, part.iov_base, part.iov_len, &used);
    evbuffer_drain(in, used);
    if (r == HTTP_HEAD) {
        begin_body(c);
    } else if (r == HTTP_DONE) {
        if (c->state == CONN_BODY || take_head(c)) take_request(c);
    } else if (r == HTTP_BAD) {
        c->server->stats.bad++;
        if (c->parser.method && !c->path) fill_request(c);
        refuse(c, c->parser.status, c->parser.problem);
    } else if (c->state == CONN_IDLE && http_parser_begun(&c->parser)) {
        enter(c, CONN_HEAD);
    }
}

/* Takes requests from what has come, until one is being worked on. */
static void feed(http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    c->feeding = true;
    while (c->state <= CONN_BODY && evbuffer_get_length(in)) feed_part(c, in);
    c->feeding = false;
    if (c->state >= CONN_FLUSH) evbuffer_drain(in, evbuffer_get_length(in));
}

/* ---- what the loop says ------------------------------------------------------------------------------------------ */

static void on_read(struct bufferevent *bev, void *user) {
    http_conn *c = user;
    feed(c);
    /* Requests sent ahead wait; one who sends so many of them that we would stop listening could not be seen to leave.
     */
    if (evbuffer_get_length(bufferevent_get_input(bev)) >= INPUT_BYTES) http__conn_free(c);
}

static void on_written(struct bufferevent *bev, void *user) {
    http_conn *c = user;
    (void)bev;
    if (!c->writing) return;
    c->writing = false;
    if (c->state == CONN_FLUSH)
        linger(c);
    else if (c->state == CONN_BUSY || c->state == CONN_STREAM)
        event_del(c->deadline);
    else
        enter(c, c->state);
}

/* End of file and errors alike: a client that closes its side is taken to have left, as nginx does. Only an answer that
 * is complete still goes out to one that closed its side for sending. */
static void on_event(struct bufferevent *bev, short what, void *user) {
    http_conn *c = user;
    (void)bev;
    bool complete = c->writing && (c->state == CONN_IDLE || c->state == CONN_FLUSH);
    if ((what & BEV_EVENT_EOF) && complete)
        enter(c, CONN_FLUSH);
    else
        http__conn_free(c);
}

static void on_deadline(evutil_socket_t fd, short what, void *user) {
    http_conn *c = user;
    (void)fd;
    (void)what;
    bool polite = !c->writing && (c->state == CONN_HEAD || c->state == CONN_BODY);
    if (c->state < CONN_LINGER && c->state != CONN_IDLE) {
        c->server->stats.timed_out++;
        if (c->writing) c->server->stats.slow_readers++;
    }
    if (polite)
        refuse(c, 408, "The request did not come in time.");
    else
        http__conn_free(c);
}

static void name_address(http_conn *c, const struct sockaddr *sa) {
    snprintf(c->addr, sizeof c->addr, "unix");
    c->loopback = true;
    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;
        inet_ntop(AF_INET, &in->sin_addr, c->addr, sizeof c->addr);
        memcpy(c->key, &in->sin_addr, 4);
        c->loopback = (ntohl(in->sin_addr.s_addr) >> 24) == 127;
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)sa;
        inet_ntop(AF_INET6, &in6->sin6_addr, c->addr, sizeof c->addr);
        bool mapped = IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr);
        if (mapped)
            memcpy(c->key, &in6->sin6_addr.s6_addr[12], 4);
        else
            memcpy(c->key + 8, &in6->sin6_addr, 8); /* a household has a /64 */
        c->loopback = mapped ? in6->sin6_addr.s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
    }
}

void http__conn_open(http_server *s, evutil_socket_t fd, const struct sockaddr *addr) {
    http_conn *c = calloc(1, sizeof *c);
    struct bufferevent *bev = c ? bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE) : NULL;
    struct event *deadline = bev ? evtimer_new(s->base, on_deadline, c) : NULL;
    if (!deadline) {
        if (bev)
            bufferevent_free(bev);
        else
            evutil_closesocket(fd);
        free(c);
        s->stats.refused++;
        return;
    }
    int on = 1; /* a token must not wait for the acknowledgement of the one before; no TCP, no harm */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    c->server = s;
    c->bev = bev;
    c->deadline = deadline;
    name_address(c, addr);
    http_parser_init(&c->parser, &s->opt.limits, &s->bodies);
    bufferevent_setcb(bev, on_read, on_written, on_event, c);
    bufferevent_setwatermark(bev, EV_READ, 0, INPUT_BYTES);
    s->stats.open++;
    s->stats.accepted++;
    http__link(c);
    enter(c, CONN_HEAD); /* a new connection is expected to have something to say */
    bufferevent_enable(bev, EV_READ | EV_WRITE);
}
