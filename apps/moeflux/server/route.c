/* Paths, and who may ask: the key, the Host field (a page of another name must not reach us through DNS), the Origin.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api.h"
#include "page.h"
#include "server_int.h"

static const api *const apis[] = {&api_chat,         &api_completions, &api_responses, &api_messages,
                                  &api_count_tokens, &api_tokenize,    &api_detokenize};

static const api *find_api(const char *path) {
    for (size_t i = 0; i < sizeof apis / sizeof *apis; i++)
        if (!strcmp(apis[i]->path, path)) return apis[i];
    return NULL;
}

/* By the place; where both have it, by the field that Anthropic's clients always send. */
static api_family family_of(const char *path, const http_parser *head) {
    bool is_theirs = path && !strncmp(path, "/v1/messages", 12);
    return is_theirs || (head && http_parser_field(head, "anthropic-version")) ? FAMILY_ANTHROPIC : FAMILY_OPENAI;
}

char *route_problem(void *user, const char *path, const http_parser *head, int status, const char *sentence) {
    problem p = {.status = status};
    (void)user;
    if (status == 401) strcpy(p.code, "invalid_api_key");
    if (status == 429) strcpy(p.code, "rate_limit_exceeded");
    snprintf(p.text, sizeof p.text, "%s", sentence);
    return problem_body(family_of(path, head), &p);
}

static void refuse(http_conn *conn, const http_request *r, int status, const char *fields, const char *sentence) {
    char *body = route_problem(NULL, r->path, r->head, status, sentence);
    http_respond(conn, status, "application/json", fields, body ? body : "", body ? strlen(body) : 0);
    free(body);
}

/* ---- who may ask ------------------------------------------------------------------------------------------------- */

/* The name in "name:port" or "[address]:port", in small letters; "" where it is neither. */
static void host_name(const char *value, char out[256]) {
    size_t n = 0;
    bool bracket = *value == '[';
    for (; *value && n < 255; value++) {
        if (*value == ':' && !bracket) break;
        if (*value == ']') bracket = false;
        out[n++] = (char)tolower((unsigned char)*value);
    }
    if (*value == ':' && strspn(value + 1, "0123456789") != strlen(value + 1)) n = 0;
    out[n] = 0;
}

static bool is_address(const char *name) {
    size_t n = strlen(name);
    if (name[0] == '[') return n > 2 && name[n - 1] == ']' && strspn(name + 1, "0123456789abcdef:.") == n - 2;
    return n && strspn(name, "0123456789.") == n;
}

/* Names can be made to point here by whoever owns them; addresses cannot. */
static bool host_allowed(const server *s, const char *value) {
    char name[256];
    if (!value) return true; /* HTTP/1.0 */
    host_name(value, name);
    size_t n = strlen(name);
    if (!strcmp(name, "localhost") || (n > 10 && !strcmp(name + n - 10, ".localhost"))) return true;
    if (is_address(name)) return true;
    for (int i = 0; i < s->opt.n_hosts; i++)
        if (!strcasecmp(s->opt.hosts[i], name)) return true;
    return false;
}

static bool origin_listed(const server *s, const char *origin) {
    for (int i = 0; i < s->opt.n_origins; i++)
        if (!strcmp(s->opt.origins[i], "*") || !strcasecmp(s->opt.origins[i], origin)) return true;
    return false;
}

/* A page's own requests come from where it was loaded: the same host and port. */
static bool origin_allowed(const server *s, const http_parser *head) {
    const char *origin = http_parser_field(head, "Origin"), *host = http_parser_field(head, "Host");
    if (!origin || origin_listed(s, origin)) return true;
    const char *scheme = strstr(origin, "://");
    return scheme && host && !strcasecmp(scheme + 3, host);
}

/* Takes the same time wherever the two differ. */
static bool same_key(const char *a, const char *b) {
    size_t n_a = strlen(a), n_b = strlen(b);
    unsigned char differ = (unsigned char)(n_a != n_b);
    for (size_t i = 0; i < n_a; i++) differ |= (unsigned char)(a[i] ^ (n_b ? b[i % n_b] : 0));
    return !differ;
}

static bool key_given(const server *s, const http_parser *head) {
    const char *bearer = http_parser_field(head, "Authorization"), *key = http_parser_field(head, "x-api-key");
    bool good = !s->opt.n_api_keys;
    if (bearer && !strncasecmp(bearer, "Bearer ", 7)) bearer += 7;
    for (int i = 0; i < s->opt.n_api_keys; i++) {
        if (bearer && same_key(bearer, s->opt.api_keys[i])) good = true;
        if (key && same_key(key, s->opt.api_keys[i])) good = true;
    }
    return good;
}

static bool is_open(const http_request *r) {
    return !strcmp(r->path, "/health") || !strcmp(r->method, "OPTIONS") || page_find(r->path);
}

int route_head(void *user, const http_request *r, const char **sentence) {
    const server *s = user;
    if (!host_allowed(s, http_parser_field(r->head, "Host"))) {
        *sentence = "This server does not answer to that Host; name it with --allow-host.";
        return 403;
    }
    if (!origin_allowed(s, r->head)) {
        *sentence = "Pages of that Origin may not ask here; name it with --cors.";
        return 403;
    }
    if (!is_open(r) && !key_given(s, r->head)) {
        *sentence = "Incorrect API key provided. Give it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.";
        return 401;
    }
    return 0;
}

static const char CORS_ANY[] = "Access-Control-Allow-Origin: *\r\n"
                               "Access-Control-Expose-Headers: x-request-id, request-id, Retry-After\r\n";

/* ---- small answers ----------------------------------------------------------------------------------------------- */

static void respond_json(http_conn *conn, json_t *answer) {
    buf b = {0};
    buf_json(&b, answer);
    http_respond(conn, b.failed ? 500 : 200, "application/json", NULL, b.failed ? "{}" : b.data, b.failed ? 2 : b.size);
    buf_free(&b);
}

static json_t *model_json(const server *s) {
    mf_text_info about;
    mf_text_info_get(s->opt.text, &about);
    return json_pack("{s:s,s:s,s:I,s:s,s:s,s:s,s:s,s:i,s:{s:b,s:b}}", "id", s->opt.model_id, "object", "model",
                     "created", (json_int_t)1700000000, "owned_by", "moeflux", "type", "model", "display_name",
                     s->opt.model_id, "created_at", "2023-11-14T22:13:20Z", "max_model_len", s->opt.n_ctx, "moeflux",
                     "reasoning", about.has_reasoning, "tools", about.has_tools);
}

static void models(server *s, http_conn *conn) {
    respond_json(conn, json_pack("{s:s,s:[o],s:b,s:s,s:s}", "object", "list", "data", model_json(s), "has_more", 0,
                                 "first_id", s->opt.model_id, "last_id", s->opt.model_id));
}

static void model(server *s, http_conn *conn, const http_request *r) {
    char text[256];
    if (!strcmp(r->path + strlen("/v1/models/"), s->opt.model_id)) {
        respond_json(conn, model_json(s));
        return;
    }
    snprintf(text, sizeof text, "The model '%.128s' does not exist; this server has '%.64s'.",
             r->path + strlen("/v1/models/"), s->opt.model_id);
    problem p = {.status = 404, .param = "model", .code = "model_not_found"};
    snprintf(p.text, sizeof p.text, "%s", text);
    char *body = problem_body(family_of(r->path, r->head), &p);
    http_respond(conn, 404, "application/json", NULL, body ? body : "", body ? strlen(body) : 0);
    free(body);
}

static void health(server *s, http_conn *conn) {
    sched_stats st;
    sched_stats_get(s->sched, &st);
    respond_json(conn, json_pack("{s:s,s:i,s:i}", "status", s->stopping ? "stopping" : "ok", "running", st.running,
                                 "waiting", st.waiting));
}

static void write_metrics(server *s, http_conn *conn) {
    buf b = {0};
    sched_stats st;
    sched_stats_get(s->sched, &st);
    metrics_write(&s->metrics, http_server_stats(s->http), &st, s->opt.model, s->opt.ram_bytes, &b);
    char *more = s->opt.more_metrics ? s->opt.more_metrics() : NULL;
    if (more) buf_printf(&b, "%s", more);
    free(more);
    http_respond(conn, b.failed ? 500 : 200, "text/plain; version=0.0.4; charset=utf-8", NULL, b.data, b.size);
    buf_free(&b);
}

static void write_experts(server *s, http_conn *conn) {
    buf b = {0};
    experts_write(s->opt.experts, &b);
    http_respond(conn, b.failed ? 500 : 200, "application/json", "Cache-Control: no-store\r\n", b.data, b.size);
    buf_free(&b);
}

static void preflight(http_conn *conn) {
    http_respond(
        conn, 204, NULL,
        "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\nAccess-Control-Allow-Headers: *, Authorization\r\n"
        "Access-Control-Max-Age: 600\r\n",
        NULL, 0);
}

/* Returns whether there is such a place; it has answered then. */
static bool get(server *s, http_conn *conn, const http_request *r) {
    const page_file *file = page_find(r->path);
    if (file)
        http_respond(conn, 200, file->type, PAGE_FIELDS, file->data, file->size);
    else if (!strcmp(r->path, "/health"))
        health(s, conn);
    else if (!strcmp(r->path, "/metrics"))
        write_metrics(s, conn);
    else if (!strcmp(r->path, "/experts"))
        write_experts(s, conn);
    else if (!strcmp(r->path, "/v1/models"))
        models(s, conn);
    else if (!strncmp(r->path, "/v1/models/", 11))
        model(s, conn, r);
    else
        return false;
    return true;
}

static bool known_get(const char *path) {
    static const char *const paths[] = {"/health", "/metrics", "/experts", "/v1/models"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (!strcmp(paths[i], path)) return true;
    return page_find(path) || !strncmp(path, "/v1/models/", 11);
}

/* ---- the way in -------------------------------------------------------------------------------------------------- */

void server_retry_field(const server *s, char out[RETRY_FIELD]) {
    int n_seqs = s->n_seqs, n_all = n_seqs > s->n_jobs ? n_seqs : s->n_jobs, n_waiting = n_all - s->opt.max_running;
    snprintf(out, RETRY_FIELD, "Retry-After: %d\r\n",
             metrics_retry_after(&s->metrics, n_waiting > 0 ? n_waiting : 0, s->opt.max_running));
}

static void post(server *s, const api *a, http_conn *conn, const http_request *r) {
    char retry[RETRY_FIELD];
    server_retry_field(s, retry);
    if (s->stopping) {
        refuse(conn, r, 503, "Retry-After: 5\r\n", "The server is going down.");
        return;
    }
    if (s->n_jobs >= s->opt.max_running + s->opt.max_waiting) {
        metrics_refused(&s->metrics);
        refuse(conn, r, 429, retry, "The queue is full; try again in a moment.");
        return;
    }
    job *j = job_create(s, a, conn, r);
    if (j)
        preparer_put(s, j);
    else
        refuse(conn, r, 503, retry, "There is no memory for the request.");
}

void route_request(void *user, http_conn *conn, const http_request *r) {
    server *s = user;
    const api *a = find_api(r->path);
    bool is_get = !strcmp(r->method, "GET") || !strcmp(r->method, "HEAD");
    const char *origin = http_parser_field(r->head, "Origin");
    if (origin && s->opt.n_origins && origin_listed(s, origin)) http_conn_set_fields(conn, CORS_ANY);
    if (!strcmp(r->method, "OPTIONS") && s->opt.n_origins) {
        preflight(conn);
    } else if (a && !strcmp(r->method, "POST")) {
        post(s, a, conn, r);
    } else if (is_get && get(s, conn, r)) {
    } else if (a || known_get(r->path)) {
        refuse(conn, r, 405, a ? "Allow: POST, OPTIONS\r\n" : "Allow: GET, HEAD\r\n",
               a ? "Not allowed: this place takes POST only." : "Not allowed: this place takes GET only.");
    } else if (!strcmp(r->path, "/v1/embeddings")) {
        refuse(conn, r, 501,
               "x-should-retry: false\r\n", /* clients try 5xx again where this does not tell them not to */
               "This model writes text; it has no embeddings to give.");
    } else {
        char text[256];
        if (!strncmp(r->path, "/v1/responses/", 14))
            snprintf(text, sizeof text, "There is nothing at %.128s: responses are not stored here.", r->path);
        else
            snprintf(text, sizeof text, "Invalid URL (%.16s %.160s)", r->method, r->path);
        refuse(conn, r, 404, NULL, text);
    }
}
