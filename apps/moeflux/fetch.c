/* Requests: their options, what the headers say, small answers. */
#include "fetch.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/file.h"
#include "fetch_int.h"

#define STALL_SECONDS 60L /* without a byte: the connection is given up and made again */
#define MAX_PAUSE 120.0

/* ---- headers ----------------------------------------------------------------------------------------------------- */

void fetch_headers_free(fetch_headers *h) {
    free(h->next);
    *h = (fetch_headers){.range_start = -1, .range_total = -1, .length = -1};
}

static bool is(const char *line, size_t n, const char *name) {
    return n > strlen(name) && !strncasecmp(line, name, strlen(name));
}

/* <https://...>; rel="next" */
static void read_link(const char *line, size_t n, fetch_headers *h) {
    const char *open = memchr(line, '<', n), *close = open ? memchr(open, '>', n - (size_t)(open - line)) : NULL;
    if (!close || !memmem(close, n - (size_t)(close - line), "rel=\"next\"", 10)) return;
    free(h->next);
    h->next = strndup(open + 1, (size_t)(close - open - 1));
}

static size_t on_header(char *line, size_t unit, size_t n, void *user) {
    fetch_headers *h = user;
    char text[256];
    size_t size = unit * n;
    snprintf(text, sizeof text, "%.*s", (int)(size < 255 ? size : 255), line);
    if (is(line, size, "HTTP/")) {
        fetch_headers_free(h); /* of the answer that sent us here */
        const char *space = strchr(text, ' ');
        h->status = space ? strtol(space, NULL, 10) : 0;
    } else if (is(line, size, "content-range:")) {
        long long from, to, total;
        if (sscanf(text + 14, " bytes %lld-%lld/%lld", &from, &to, &total) == 3)
            h->range_start = from, h->range_total = total;
    } else if (is(line, size, "content-length:")) {
        h->length = strtoll(text + 15, NULL, 10);
    } else if (is(line, size, "retry-after:")) {
        h->retry_after = strtod(text + 12, NULL); /* a date reads as 0 or as a day: either is bounded */
    } else if (is(line, size, "link:")) {
        read_link(line, size, h);
    }
    return size;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void fetch_prepare(const fetch *f, CURL *easy, const char *url, fetch_headers *headers) {
    char agent[48];
    snprintf(agent, sizeof agent, "moeflux/%d.%d.%d", MF_VERSION_MAJOR, MF_VERSION_MINOR, MF_VERSION_PATCH);
    curl_easy_reset(easy);
    fetch_headers_free(headers);
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, agent);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(easy, CURLOPT_MAXREDIRS, 8L);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, f->opt.allow_http ? "http,https" : "https");
    curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, f->opt.allow_http ? "http,https" : "https");
#else
    long allowed = f->opt.allow_http ? CURLPROTO_HTTP | CURLPROTO_HTTPS : CURLPROTO_HTTPS;
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS, allowed);
    curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS, allowed);
#endif
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, 30L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, STALL_SECONDS);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, headers);
    if (f->opt.token) { /* libcurl keeps it from other hosts that a redirect leads to */
        curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
        curl_easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, f->opt.token);
    }
}

double fetch_pause(const fetch_headers *h, int n) {
    double pause = 0.25 * (double)(1u << (n < 10 ? n : 10));
    if (h->retry_after > pause) pause = h->retry_after;
    return pause < MAX_PAUSE ? pause : MAX_PAUSE;
}

mf_status fetch_refused(const fetch *f, const char *url, const fetch_headers *h, bool *final, mf_error *err) {
    long s = h->status;
    *final = !(s == 408 || s == 425 || s == 429 || s >= 500);
    if (s == 401 || s == 403)
        return mf__fail(err, MF_E_NOT_FOUND, "%s: the server refuses (%ld)%s", url, s,
                        f->opt.token ? ": the token does not give access, or the model's conditions are not accepted"
                                     : ": there is no such model, or it needs a token (--token-file, or HF_TOKEN)");
    if (s == 404) return mf__fail(err, MF_E_NOT_FOUND, "%s: the server has no such thing (404)", url);
    if (s == 429) return mf__fail(err, MF_E_IO, "%s: the server wants fewer requests (429)", url);
    return mf__fail(err, MF_E_IO, "%s: the server answers with status %ld", url, s);
}

/* ---- small answers ------------------------------------------------------------------------------------------------ */

typedef struct small {
    mf__strbuf *out;
    size_t most, size; /* size: stop there; 0: do not */
    bool too_much, enough;
} small;

static size_t on_small(char *data, size_t unit, size_t n, void *user) {
    small *s = user;
    n *= unit;
    size_t take = n;
    if (s->size && s->out->size + take > s->size) take = s->size - s->out->size;
    s->too_much = s->out->size + take > s->most;
    if (s->too_much || mf__strbuf_append(s->out, data, take, NULL) != MF_OK) return 0;
    s->enough = s->size && s->out->size == s->size; /* a server may not know ranges */
    return s->enough && take < n ? 0 : n;
}

static mf_status one_try(fetch *f, const char *url, fetch_range range, mf__strbuf *out, fetch_headers *h, bool *final,
                         mf_error *err) {
    char why[CURL_ERROR_SIZE] = "", bytes[48];
    small s = {.out = out, .most = range.most, .size = range.size};
    if (!(range.size && h->status == 206)) mf__strbuf_clear(out); /* else it goes on where the last try broke off */
    size_t had = out->size;
    fetch_prepare(f, f->easy, url, h);
    curl_easy_setopt(f->easy, CURLOPT_WRITEFUNCTION, on_small);
    curl_easy_setopt(f->easy, CURLOPT_WRITEDATA, &s);
    curl_easy_setopt(f->easy, CURLOPT_ERRORBUFFER, why);
    if (range.size) {
        snprintf(bytes, sizeof bytes, "%zu-%zu", had, range.size - 1);
        curl_easy_setopt(f->easy, CURLOPT_RANGE, bytes);
    }
    CURLcode code = curl_easy_perform(f->easy);
    *final = false;
    if (had && (h->status != 206 || h->range_start != (int64_t)had)) {
        h->status = 0; /* all of it again, next time */
        return mf__fail(err, MF_E_IO, "%s: the server does not go on where it was", url);
    }
    if (h->status && h->status != 200 && h->status != 206 && h->status / 100 != 3)
        return fetch_refused(f, url, h, final, err);
    if (s.enough) return MF_OK;
    *final = s.too_much || code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_TOO_MANY_REDIRECTS ||
             code == CURLE_URL_MALFORMAT || code == CURLE_PEER_FAILED_VERIFICATION ||
             (f->opt.at_once && (code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_CONNECT));
    if (s.too_much) return mf__fail(err, MF_E_LIMIT, "%s: the answer has more than %zu bytes", url, range.most);
    if (code == CURLE_UNSUPPORTED_PROTOCOL)
        return mf__fail(err, MF_E_INVALID,
                        "%s leads to an address without TLS, or of another kind; --allow-http lets it", url);
    if (code != CURLE_OK) return mf__fail(err, MF_E_IO, "%s: %s", url, *why ? why : curl_easy_strerror(code));
    return MF_OK;
}

mf_status fetch_get(fetch *f, const char *url, fetch_range range, mf__strbuf *out, char **next, mf_error *err) {
    fetch_headers h = {0};
    bool final = false;
    mf_status st = MF_E_IO;
    for (int i = 1; i <= FETCH_TRIES; i++) {
        size_t had = out->size;
        st = one_try(f, url, range, out, &h, &final, err);
        if (st == MF_OK || final) break;
        if (out->size > had) i = 1; /* something came */
        for (double end = app_seconds() + fetch_pause(&h, i); app_seconds() < end && !app_interrupted(NULL);)
            nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        if (app_interrupted(NULL)) st = mf__fail(err, MF_E_CANCELLED, "stopped by the user");
        if (st == MF_E_CANCELLED) break;
    }
    if (next) {
        *next = st == MF_OK ? h.next : NULL;
        if (st == MF_OK) h.next = NULL;
    }
    fetch_headers_free(&h);
    return st;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------- */

mf_status fetch_create(const fetch_options *opt, fetch **out, mf_error *err) {
    fetch *f = calloc(1, sizeof *f);
    *out = NULL;
    if (!f || curl_global_init(CURL_GLOBAL_DEFAULT)) {
        free(f);
        return mf__fail(err, MF_E_NOMEM, "no memory for downloads");
    }
    f->opt = *opt;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->changed, NULL);
    f->easy = curl_easy_init();
    f->multi = curl_multi_init();
    *out = f;
    if (f->easy && f->multi) return MF_OK;
    fetch_free(f);
    *out = NULL;
    return mf__fail(err, MF_E_NOMEM, "no memory for downloads");
}

void fetch_free(fetch *f) {
    if (!f) return;
    if (f->started) {
        pthread_mutex_lock(&f->lock);
        f->stop = true;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(&f->lock);
        curl_multi_wakeup(f->multi);
        pthread_join(f->thread, NULL);
    }
    for (int i = 0; i < f->n_files; i++) {
        free(f->files[i].file.url);
        free(f->files[i].file.path);
        free(f->files[i].file.note);
        fetch_headers_free(&f->files[i].headers);
    }
    free(f->files);
    if (f->easy) curl_easy_cleanup(f->easy);
    if (f->multi) curl_multi_cleanup(f->multi);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(&f->lock);
    free(f);
    curl_global_cleanup();
}
