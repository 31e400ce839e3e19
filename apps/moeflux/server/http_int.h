/* What http.c (connections) and http_listen.c (the server, places, addresses) share. */
#ifndef MOEFLUX_HTTP_INT_H
#define MOEFLUX_HTTP_INT_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <netinet/in.h>

#include "http.h"

typedef enum conn_state {
    CONN_IDLE,   /* between requests */
    CONN_HEAD,   /* bytes of a head have come */
    CONN_BODY,   /* the head is whole */
    CONN_BUSY,   /* the handler has the request */
    CONN_STREAM, /* ... and has begun to answer */
    CONN_FLUSH,  /* the answer is written; the connection closes when it is out */
    CONN_LINGER, /* nothing more is written; what still comes is dropped, lest a reset overtakes our last words */
    CONN_DOOMED, /* freed in the loop's next round */
} conn_state;

#define ADDR_TEXT 48

struct http_conn {
    http_server *server;
    struct bufferevent *bev;
    struct event *deadline;
    http_conn *older, *newer; /* by when the current wait began */
    conn_state state;
    http_parser parser;
    http_request request;
    char *path;         /* the target, cut at "?" */
    void *user;         /* http_conn_set_state */
    const char *fields; /* http_conn_set_fields */
    bool chunked;       /* the stream's framing */
    bool head_only;     /* HEAD */
    bool close_after;
    bool writing;    /* output waits, and the deadline is for it */
    bool feeding;    /* in feed(): an answer given now returns there */
    uint8_t key[16]; /* the address, as counted */
    char addr[ADDR_TEXT];
    bool loopback;
};

struct http_server {
    struct event_base *base;
    http_options opt;
    http_handler handler;
    http_budget bodies;
    struct evconnlistener *listeners[4];
    int n_listeners;
    http_conn *oldest, *newest;
    http_stats stats;
    struct event *resume; /* accepting, after the system had no descriptors left */
    bool draining;
};

/* http.c */
void http__conn_open(http_server *server, evutil_socket_t fd, const struct sockaddr *addr);
void http__conn_free(http_conn *conn); /* tells the handler where it has the request */

/* http_listen.c */
void http__link(http_conn *conn); /* as the newest */
void http__unlink(http_conn *conn);

#endif
