/* Sockets, and the framing of answers. */
#include "wire.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define CONNECT_SECONDS 10.0
#define QUIET_SECONDS 120.0 /* without a byte; a server of ours says something every few seconds */
#define HEAD_BYTES 32768
#define LINE_BYTES 1024 /* of a chunk's size, with what may follow it */
#define SLICE_MS 100    /* between two looks for an interrupt */

typedef enum framing { BY_LENGTH, BY_CHUNKS, BY_END } framing;

struct wire {
    int fd;
    const wire_url *url;
    char in[16384];
    size_t at, n_in; /* bytes of `in` that are not used yet: [at, n_in) */
    framing framing;
    uint64_t left; /* of the body, or of the chunk */
    bool begun;    /* BY_CHUNKS: a chunk has come, whose end is still to be read */
    bool ended;
};

/* ---- addresses --------------------------------------------------------------------------------------------------- */

static mf_status bad_url(const char *text, mf_error *err) {
    return mf__fail(err, MF_E_INVALID, "--server is \"%.200s\"; expected http://HOST:PORT, as http://localhost:8080",
                    text);
}

static bool is_plain(const char *text, size_t n, const char *also) {
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (!letter && !(c && strchr(also, c))) return false;
    }
    return true;
}

mf_status wire_url_parse(const char *text, wire_url *out, mf_error *err) {
    const char *at = text;
    *out = (wire_url){.port = "80"};
    if (!strncasecmp(at, "https://", 8))
        return mf__fail(
            err, MF_E_UNSUPPORTED,
            "--server %.200s: TLS is not spoken here; give the http:// address behind the proxy, or a tunnel "
            "(ssh -L 8080:localhost:8080 HOST)",
            text);
    if (!strncasecmp(at, "http://", 7)) at += 7;
    bool bracket = *at == '[';
    size_t n = bracket ? strcspn(++at, "]") : strcspn(at, ":/");
    if (!n || n >= sizeof out->host || !is_plain(at, n, bracket ? ":.%" : "-._")) return bad_url(text, err);
    memcpy(out->host, at, n);
    at += n;
    if (bracket && *at++ != ']') return bad_url(text, err);
    if (*at == ':') {
        n = strspn(++at, "0123456789");
        if (!n || n > 5 || atoi(at) < 1 || atoi(at) > 65535) return bad_url(text, err);
        memcpy(out->port, at, n);
        out->port[n] = '\0';
        at += n;
    }
    n = strlen(at);
    if (n && *at != '/') return bad_url(text, err);
    while (n && at[n - 1] == '/') n--;
    if (n >= 3 && !strncmp(at + n - 3, "/v1", 3)) n -= 3; /* as other clients want it */
    if (n >= sizeof out->prefix || !is_plain(at, n, "-._~/%")) return bad_url(text, err);
    memcpy(out->prefix, at, n);
    return MF_OK;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Waits until the socket can be read or written. */
static mf_status wait_for(const wire *f, short what, double seconds, mf_error *err) {
    double until = mf__clock_seconds() + seconds;
    for (;;) {
        struct pollfd p = {f->fd, what, 0};
        if (app_interrupted(NULL)) return mf__fail(err, MF_E_CANCELLED, "interrupted");
        int n = poll(&p, 1, SLICE_MS);
        if (n > 0) return MF_OK;
        if (n < 0 && errno != EINTR) return mf__fail_errno(err, errno, "waiting for %s", f->url->host);
        if (mf__clock_seconds() > until)
            return mf__fail(err, MF_E_IO, "%s:%s said nothing for %.0f s", f->url->host, f->url->port, seconds);
    }
}

static mf_status send_all(wire *f, const char *bytes, size_t n, mf_error *err) {
    while (n) {
        MF__TRY(wait_for(f, POLLOUT, QUIET_SECONDS, err));
        ssize_t sent = send(f->fd, bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            if (errno == EPIPE || errno == ECONNRESET) return MF_OK; /* refused early: its answer says why */
            return mf__fail_errno(err, errno, "sending to %s:%s", f->url->host, f->url->port);
        }
        if (sent > 0) {
            bytes += sent;
            n -= (size_t)sent;
        }
    }
    return MF_OK;
}

/* More bytes in `in`, which is used up; *end: there are none. */
static mf_status fill(wire *f, bool *end, mf_error *err) {
    *end = false;
    for (;;) {
        MF__TRY(wait_for(f, POLLIN, QUIET_SECONDS, err));
        ssize_t n = recv(f->fd, f->in, sizeof f->in, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (n < 0) return mf__fail_errno(err, errno, "reading from %s:%s", f->url->host, f->url->port);
        f->at = 0;
        f->n_in = (size_t)n;
        *end = !n;
        return MF_OK;
    }
}

static mf_status cut(const wire *f, mf_error *err) {
    return mf__fail(err, MF_E_IO, "%s:%s closed the connection before the answer was whole", f->url->host,
                    f->url->port);
}

/* A line without its CRLF, at most max - 1 bytes. */
static mf_status read_line(wire *f, char *out, size_t max, mf_error *err) {
    size_t n = 0;
    for (;;) {
        bool end;
        if (f->at == f->n_in) {
            MF__TRY(fill(f, &end, err));
            if (end) return cut(f, err);
        }
        char c = f->in[f->at++];
        if (c == '\n') break;
        if (n + 1 >= max || !c)
            return mf__fail(err, MF_E_FORMAT,
                            "%s:%s does not speak HTTP: a line of its answer is too long, or has zeros", f->url->host,
                            f->url->port);
        out[n++] = c;
    }
    if (!n || out[n - 1] != '\r')
        return mf__fail(err, MF_E_FORMAT, "%s:%s does not speak HTTP: a line of its answer ends in LF alone",
                        f->url->host, f->url->port);
    out[n - 1] = '\0';
    return MF_OK;
}

/* ---- the answer's head ------------------------------------------------------------------------------------------- */

static mf_status not_http(const wire *f, const char *line, mf_error *err) {
    return mf__fail(err, MF_E_FORMAT, "%s:%s does not answer as HTTP does: \"%.60s\"", f->url->host, f->url->port,
                    line);
}

static bool read_number(const char *text, int base, uint64_t *out) {
    char *end;
    size_t digits = strspn(text, base == 16 ? "0123456789abcdefABCDEF" : "0123456789");
    if (!digits || digits > 15) return false;
    *out = strtoull(text, &end, base);
    return !*end || *end == ';' || *end == ' ';
}

/* One field; how: 0 nothing is known of the framing yet, 1 a length was given, 2 chunks were. */
static bool read_field(wire *f, char *line, int *how) {
    char *colon = strchr(line, ':');
    if (!colon || colon == line) return false;
    *colon = '\0';
    const char *value = colon + 1 + strspn(colon + 1, " \t");
    bool length = !strcasecmp(line, "Content-Length"), coding = !strcasecmp(line, "Transfer-Encoding");
    if ((length || coding) && *how) return false;
    if (length) *how = 1;
    if (coding) *how = 2;
    if (length) return read_number(value, 10, &f->left);
    return !coding || !strcasecmp(value, "chunked");
}

static mf_status read_head(wire *f, int *status, mf_error *err) {
    char line[HEAD_BYTES];
    size_t total = 0;
    int how = 0;
    do { /* "100 Continue" and its like come before the answer */
        MF__TRY(read_line(f, line, sizeof line, err));
        bool good =
            !strncmp(line, "HTTP/1.", 7) && strlen(line) >= 12 && line[8] == ' ' && strspn(line + 9, "0123456789") == 3;
        if (!good) return not_http(f, line, err);
        *status = atoi(line + 9);
        for (;;) {
            MF__TRY(read_line(f, line, sizeof line, err));
            if (!*line) break;
            if ((total += strlen(line)) > HEAD_BYTES || !read_field(f, line, &how)) return not_http(f, line, err);
        }
    } while (*status < 200);
    f->framing = how == 1 ? BY_LENGTH : how == 2 ? BY_CHUNKS : BY_END;
    f->ended = f->framing == BY_LENGTH && !f->left;
    return MF_OK;
}

/* ---- the body ---------------------------------------------------------------------------------------------------- */

static mf_status next_chunk(wire *f, mf_error *err) {
    char line[LINE_BYTES];
    if (f->begun) {
        MF__TRY(read_line(f, line, sizeof line, err));
        if (*line) return not_http(f, line, err);
    }
    f->begun = true;
    MF__TRY(read_line(f, line, sizeof line, err));
    if (!read_number(line, 16, &f->left)) return not_http(f, line, err);
    f->ended = !f->left; /* trailers are not waited for: the connection closes */
    return MF_OK;
}

mf_status wire_read(wire *f, char *out, size_t max, size_t *n, mf_error *err) {
    bool end = false;
    *n = 0;
    if (!f->ended && f->framing == BY_CHUNKS && !f->left) MF__TRY(next_chunk(f, err));
    if (f->ended) return MF_OK;
    if (f->at == f->n_in) MF__TRY(fill(f, &end, err));
    f->ended = end;
    if (end) return f->framing == BY_END ? MF_OK : cut(f, err);
    size_t here = f->n_in - f->at;
    if (here > max) here = max;
    if (f->framing != BY_END) {
        if (here > f->left) here = (size_t)f->left;
        f->left -= here;
        f->ended = f->framing == BY_LENGTH && !f->left;
    }
    memcpy(out, f->in + f->at, here);
    f->at += here;
    *n = here;
    return MF_OK;
}

mf_status wire_all(wire *f, size_t most, mf__strbuf *out, mf_error *err) {
    char block[4096];
    for (size_t n;;) {
        MF__TRY(wire_read(f, block, sizeof block, &n, err));
        if (!n) return MF_OK;
        if (out->size + n > most)
            return mf__fail(err, MF_E_LIMIT, "the answer of %s:%s is larger than %zu bytes", f->url->host, f->url->port,
                            most);
        MF__TRY(mf__strbuf_append(out, block, n, err));
    }
}

/* ---- the way there ----------------------------------------------------------------------------------------------- */

static mf_status connect_to(wire *f, const struct addrinfo *a, mf_error *err) {
    int why = 0;
    socklen_t n = sizeof why;
    f->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (f->fd < 0) return mf__fail_errno(err, errno, "no socket");
    if (connect(f->fd, a->ai_addr, a->ai_addrlen) && errno != EINPROGRESS) why = errno;
    if (!why) {
        MF__TRY(wait_for(f, POLLOUT, CONNECT_SECONDS, err));
        if (getsockopt(f->fd, SOL_SOCKET, SO_ERROR, &why, &n)) why = errno;
    }
    if (why == ECONNREFUSED)
        return mf__fail(err, MF_E_NOT_FOUND, "nobody listens on %s:%s: is `moeflux serve` running there?", f->url->host,
                        f->url->port);
    return why ? mf__fail_errno(err, why, "cannot reach %s:%s", f->url->host, f->url->port) : MF_OK;
}

static mf_status dial(wire *f, mf_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int bad = getaddrinfo(f->url->host, f->url->port, &hints, &list);
    if (bad) return mf__fail(err, MF_E_NOT_FOUND, "--server %s: %s", f->url->host, gai_strerror(bad));
    mf_status st = MF_E_IO;
    for (const struct addrinfo *a = list; a && st != MF_OK && st != MF_E_CANCELLED; a = a->ai_next) {
        if (f->fd >= 0) close(f->fd);
        st = connect_to(f, a, err);
    }
    freeaddrinfo(list);
    return st;
}

static mf_status put_request(wire *f, const char *path, const char *key, const char *body, mf_error *err) {
    mf__strbuf head = {0};
    bool six = strchr(f->url->host, ':');
    mf_status st = mf__strbuf_printf(&head, err,
                                     "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nConnection: close\r\nAccept: "
                                     "application/json, text/event-stream\r\n",
                                     body ? "POST" : "GET", f->url->prefix, path, six ? "[" : "", f->url->host,
                                     six ? "]" : "", f->url->port);
    if (st == MF_OK && key) st = mf__strbuf_printf(&head, err, "Authorization: Bearer %s\r\n", key);
    if (st == MF_OK && body)
        st = mf__strbuf_printf(&head, err, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    if (st == MF_OK) st = mf__strbuf_append(&head, "\r\n", 2, err);
    if (st == MF_OK) st = send_all(f, head.data, head.size, err);
    mf__strbuf_free(&head);
    return st == MF_OK && body ? send_all(f, body, strlen(body), err) : st;
}

mf_status wire_open(const wire_url *url, const char *path, const char *key, const char *body, wire **out, int *status,
                    mf_error *err) {
    wire *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f) return mf__fail(err, MF_E_NOMEM, "no memory for a request");
    f->fd = -1;
    f->url = url;
    mf_status st = dial(f, err);
    if (st == MF_OK) st = put_request(f, path, key, body, err);
    if (st == MF_OK) st = read_head(f, status, err);
    if (st == MF_OK)
        *out = f;
    else
        wire_close(f);
    return st;
}

void wire_close(wire *f) {
    if (!f) return;
    if (f->fd >= 0) close(f->fd);
    free(f);
}
