/* The server: listeners, places for connections, and who gives up theirs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "http_int.h"

void http_options_init(http_options *opt) {
    *opt = (http_options){
        .limits = {.head_bytes = 32 << 10, .body_bytes = 32 << 20},
        .all_body_bytes = (size_t)256 << 20,
        .queue_bytes = 4 << 20,
        .max_conns = 1024,
        .max_conns_per_addr = 256,
        .head_seconds = 10,
        .body_seconds = 60,
        .write_seconds = 30,
        .idle_seconds = 75,
    };
}

/* ---- the list, oldest wait first --------------------------------------------------------------------------------- */

void http__link(http_conn *c) {
    http_server *s = c->server;
    c->older = s->newest;
    c->newer = NULL;
    if (s->newest)
        s->newest->newer = c;
    else
        s->oldest = c;
    s->newest = c;
}

void http__unlink(http_conn *c) {
    http_server *s = c->server;
    if (c->older)
        c->older->newer = c->newer;
    else if (s->oldest == c)
        s->oldest = c->newer;
    if (c->newer)
        c->newer->older = c->older;
    else if (s->newest == c)
        s->newest = c->older;
    c->older = c->newer = NULL;
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

/* The one that waits longest without a whole request; key: among those of the address. A connection that is just being
 * accepted is one, so there always is one then. */
static http_conn *waiting_longest(const http_server *s, const uint8_t *key) {
    for (http_conn *c = s->oldest; c; c = c->newer) {
        bool waits = c->state <= CONN_BODY || c->state >= CONN_LINGER;
        if (waits && (!key || !memcmp(c->key, key, sizeof c->key))) return c;
    }
    return NULL;
}

static int count_address(const http_server *s, const uint8_t *key) {
    int n = 0;
    for (const http_conn *c = s->oldest; c; c = c->newer) n += !memcmp(c->key, key, sizeof c->key);
    return n;
}

/* Makes room for the newest connection, or, where all others work, closes it. */
static void keep_within_limits(http_server *s) {
    http_conn *fresh = s->newest;
    const uint8_t *key = NULL;
    if (count_address(s, fresh->key) > s->opt.max_conns_per_addr)
        key = fresh->key;
    else if (s->stats.open <= s->opt.max_conns)
        return;
    http_conn *victim = waiting_longest(s, key);
    if (victim == fresh)
        s->stats.refused++;
    else
        s->stats.evicted++;
    http__conn_free(victim);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *addr, int n_addr, void *user) {
    http_server *s = user;
    (void)l;
    (void)n_addr;
    int64_t before = s->stats.accepted;
    http__conn_open(s, fd, addr);
    if (s->stats.accepted > before) keep_within_limits(s);
}

static void on_resume(evutil_socket_t fd, short what, void *user) {
    http_server *s = user;
    (void)fd;
    (void)what;
    for (int i = 0; i < s->n_listeners; i++) evconnlistener_enable(s->listeners[i]);
}

/* No descriptors left: the one that waits longest gives up its own, and we go on in a moment instead of spinning. */
static void on_accept_error(struct evconnlistener *l, void *user) {
    http_server *s = user;
    http_conn *victim = waiting_longest(s, NULL);
    s->stats.refused++;
    if (victim) http__conn_free(victim);
    evconnlistener_disable(l);
    event_add(s->resume, &(struct timeval){0, 50000});
}

/* ---- the server -------------------------------------------------------------------------------------------------- */

http_server *http_server_create(struct event_base *base, const http_options *opt, const http_handler *handler) {
    http_server *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->base = base;
    s->opt = *opt;
    s->handler = *handler;
    s->bodies.max = opt->all_body_bytes;
    s->resume = evtimer_new(base, on_resume, s);
    if (s->resume) return s;
    free(s);
    return NULL;
}

bool http_server_listen(http_server *s, evutil_socket_t fd) {
    if (s->n_listeners == (int)(sizeof s->listeners / sizeof *s->listeners)) return false;
    if (evutil_make_socket_nonblocking(fd) || evutil_make_socket_closeonexec(fd)) return false;
    struct evconnlistener *l =
        evconnlistener_new(s->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 1024, fd);
    if (!l) return false;
    evconnlistener_set_error_cb(l, on_accept_error);
    s->listeners[s->n_listeners++] = l;
    return true;
}

static void stop_listening(http_server *s) {
    for (int i = 0; i < s->n_listeners; i++) evconnlistener_free(s->listeners[i]);
    s->n_listeners = 0;
    event_del(s->resume);
}

void http_server_drain(http_server *s) {
    s->draining = true;
    stop_listening(s);
    for (http_conn *c = s->oldest, *next; c; c = next) {
        next = c->newer;
        if (c->state == CONN_IDLE || c->state == CONN_HEAD) http__conn_free(c);
    }
}

void http_server_free(http_server *s) {
    if (!s) return;
    stop_listening(s);
    while (s->oldest) http__conn_free(s->oldest);
    event_free(s->resume);
    free(s);
}

void http_each_state(http_server *s, void (*fn)(void *state)) {
    for (http_conn *c = s->oldest, *next; c; c = next) {
        next = c->newer;
        if ((c->state == CONN_BUSY || c->state == CONN_STREAM) && c->user) fn(c->user);
    }
}

const http_stats *http_server_stats(const http_server *s) {
    return &s->stats;
}
