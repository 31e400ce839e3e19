/* Requests to a server, and its events taken apart. */
#include "remote.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "wire.h"

#define ANSWER_BYTES ((size_t)1 << 20) /* of an answer that is no stream */
#define EVENT_BYTES ((size_t)1 << 20)  /* of one line of a stream */

struct remote {
    wire_url url;
    char address[300];
    char *key, *model;
    int64_t n_ctx;
    bool can_reason;
};

/* ---- what the server says about itself --------------------------------------------------------------------------- */

mf_status remote_key(const char *file, char **out, mf_error *err) {
    const char *given = getenv("MOEFLUX_API_KEY");
    char *bytes = NULL;
    size_t n = 0;
    *out = NULL;
    if (!file && (!given || !*given)) return MF_OK;
    if (file) MF__TRY(mf__file_read(file, 65536, &bytes, &n, err));
    *out = file ? strndup(bytes, strcspn(bytes, "\r\n")) : strdup(given);
    free(bytes);
    if (!*out) return mf__fail(err, MF_E_NOMEM, "no memory for the key");
    for (const char *c = *out; *c; c++)
        if (*c <= ' ' || *c >= 0x7f || c - *out > 4096) {
            free(*out);
            *out = NULL;
            return mf__fail(err, MF_E_INVALID,
                            "%s has no API key: a key is letters, digits and signs, and not longer than 4096",
                            file ? file : "MOEFLUX_API_KEY");
        }
    if (**out) return MF_OK;
    free(*out);
    *out = NULL;
    return mf__fail(err, MF_E_INVALID, "the first line of %s is empty; it should be the API key", file);
}

/* What a server says goes to a terminal: without control characters, and not too long. */
#define SAID_BYTES 301
static const char *plain(const char *text, char out[SAID_BYTES]) {
    snprintf(out, SAID_BYTES, "%s", text ? text : "it does not say why");
    for (char *c = out; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = ' ';
    return out;
}

/* What a refusal says, in a sentence; closes the answer. */
static mf_status refused(const remote *r, wire *f, int status, mf_error *err) {
    mf__strbuf body = {0};
    mf_error why;
    json_t *root =
        wire_all(f, ANSWER_BYTES, &body, &why) == MF_OK && body.size ? json_loadb(body.data, body.size, 0, NULL) : NULL;
    const json_t *e = json_object_get(root, "error");
    const char *text = json_string_value(json_is_object(e) ? json_object_get(e, "message") : e);
    const char *code = json_string_value(json_object_get(e, "code"));
    bool full = code && !strcmp(code, "context_length_exceeded");
    const char *way = status == 401   ? " (set MOEFLUX_API_KEY, or give --api-key-file)"
                      : status == 404 ? " (is this the address of a server with OpenAI's API?)"
                                      : "";
    mf_status st = full ? MF_E_CONTEXT_FULL : status == 429 || status == 503 ? MF_E_LIMIT : MF_E_INVALID;
    char said[SAID_BYTES];
    if (text)
        st = mf__fail(err, st, "%s refused: %s%s", r->address, plain(text, said), way);
    else
        st = mf__fail(err, st, "%s answered with HTTP status %d%s", r->address, status, way);
    json_decref(root);
    mf__strbuf_free(&body);
    wire_close(f);
    return st;
}

static mf_status read_models(remote *r, const mf__strbuf *body, mf_error *err) {
    json_error_t why;
    json_t *root = json_loadb(body->data ? body->data : "", body->size, 0, &why);
    const json_t *first = json_array_get(json_object_get(root, "data"), 0);
    const char *id = json_string_value(json_object_get(first, "id"));
    const json_t *about = json_object_get(first, "moeflux");
    char said[SAID_BYTES];
    if (id) r->model = strdup(plain(id, said));
    r->n_ctx = json_integer_value(json_object_get(first, "max_model_len"));
    r->can_reason = !json_is_false(json_object_get(about, "reasoning"));
    json_decref(root);
    if (!id) return mf__fail(err, MF_E_FORMAT, "%s has no list of models at /v1/models", r->address);
    return r->model ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a name");
}

static mf_status ask_models(remote *r, mf_error *err) {
    wire *f;
    int status;
    mf__strbuf body = {0};
    MF__TRY(wire_open(&r->url, "/v1/models", r->key, NULL, &f, &status, err));
    if (status != 200) return refused(r, f, status, err);
    mf_status st = wire_all(f, ANSWER_BYTES, &body, err);
    wire_close(f);
    if (st == MF_OK) st = read_models(r, &body, err);
    mf__strbuf_free(&body);
    return st;
}

mf_status remote_open(const char *url, const char *key, remote **out, mf_error *err) {
    remote *r = calloc(1, sizeof *r);
    *out = NULL;
    if (!r) return mf__fail(err, MF_E_NOMEM, "no memory for a server's address");
    mf_status st = wire_url_parse(url, &r->url, err);
    if (st == MF_OK && key && !(r->key = strdup(key))) st = mf__fail(err, MF_E_NOMEM, "no memory for the key");
    snprintf(r->address, sizeof r->address, "%s:%s", r->url.host, r->url.port);
    if (st == MF_OK) st = ask_models(r, err);
    if (st == MF_OK)
        *out = r;
    else
        remote_close(r);
    return st;
}

void remote_close(remote *r) {
    if (!r) return;
    free(r->key);
    free(r->model);
    free(r);
}

const char *remote_model(const remote *r) {
    return r->model;
}

const char *remote_address(const remote *r) {
    return r->address;
}

int64_t remote_n_ctx(const remote *r) {
    return r->n_ctx;
}

bool remote_can_reason(const remote *r) {
    return r->can_reason;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

mf_status remote_check(const sampling_options *s, mf_error *err) {
    const char *name = s->grammar ? "--grammar" : s->regex ? "--regex" : s->window ? "--penalty-window" : NULL;
    if (!name) return MF_OK;
    return mf__fail(err, MF_E_INVALID, "%s is not for --server: OpenAI's API has no such thing", name);
}

/* Adds {"ID": X} for each bias; the server checks the numbers. */
static mf_status put_bias(json_t *body, const opt_list *bias, mf_error *err) {
    json_t *map = json_object();
    for (int i = 0; i < bias->n; i++) {
        char id[32], *end;
        size_t n = strcspn(bias->items[i], ":");
        const char *number = bias->items[i][n] ? bias->items[i] + n + 1 : "";
        double x = strtod(number, &end);
        if (!n || n >= sizeof id || !*number || *end || isnan(x)) {
            json_decref(map);
            return mf__fail(err, MF_E_INVALID, "--logit-bias is \"%s\"; expected ID:NUMBER", bias->items[i]);
        }
        snprintf(id, sizeof id, "%.*s", (int)n, bias->items[i]);
        json_object_set_new(map, id, json_real(x < -100 ? -100 : x > 100 ? 100 : x));
    }
    json_object_set_new(body, "logit_bias", map);
    return MF_OK;
}

static mf_status put_form(json_t *body, const sampling_options *s, mf_error *err) {
    char *text;
    size_t size;
    json_error_t why;
    if (s->any_json) json_object_set_new(body, "response_format", json_pack("{s:s}", "type", "json_object"));
    if (!s->schema) return MF_OK;
    MF__TRY(mf__file_read(s->schema, (size_t)16 << 20, &text, &size, err));
    json_t *schema = json_loadb(text, size, 0, &why);
    free(text);
    if (!schema) return mf__fail(err, MF_E_FORMAT, "%s: %s (line %d)", s->schema, why.text, why.line);
    json_object_set_new(
        body, "response_format",
        json_pack("{s:s,s:{s:s,s:o}}", "type", "json_schema", "json_schema", "name", "answer", "schema", schema));
    return MF_OK;
}

/* What was given is sent; the rest is the server's to choose. */
static mf_status put_sampling(json_t *body, const remote_request *q, mf_error *err) {
    const sampling_options *s = q->sampling;
    const struct {
        const char *name;
        bool given;
        double value;
    } numbers[] = {{"temperature", s->temperature_given, s->temperature},
                   {"top_p", s->top_p_given, s->top_p},
                   {"min_p", s->min_p_given, s->min_p},
                   {"typical_p", s->typical_given, s->typical},
                   {"repetition_penalty", s->repetition_given, s->repetition},
                   {"frequency_penalty", s->frequency != 0, s->frequency},
                   {"presence_penalty", s->presence != 0, s->presence}};
    for (size_t i = 0; i < MF__COUNT(numbers); i++)
        if (numbers[i].given) json_object_set_new(body, numbers[i].name, json_real(numbers[i].value));
    if (s->top_k_given) json_object_set_new(body, "top_k", json_integer(s->top_k));
    if (s->seed_given) json_object_set_new(body, "seed", json_integer((json_int_t)(q->seed & INT64_MAX)));
    if (s->n_tokens < 1 << 30) json_object_set_new(body, "max_tokens", json_integer(s->n_tokens));
    if (q->think) json_object_set_new(body, "enable_thinking", json_boolean(q->think == MF_SWITCH_ON));
    if (s->stop.n) {
        json_t *stops = json_array();
        for (int i = 0; i < s->stop.n; i++) json_array_append_new(stops, json_string(s->stop.items[i]));
        json_object_set_new(body, "stop", stops);
    }
    if (s->bias.n) MF__TRY(put_bias(body, &s->bias, err));
    return put_form(body, s, err);
}

static mf_status write_body(const remote *r, const remote_request *q, char **out, mf_error *err) {
    json_t *body = json_pack("{s:s,s:O,s:b,s:{s:b}}", "model", r->model, "messages", q->messages, "stream", 1,
                             "stream_options", "include_usage", 1);
    mf_status st = body ? put_sampling(body, q, err) : MF_OK;
    *out = body && st == MF_OK ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return *out || st != MF_OK ? st : mf__fail(err, MF_E_NOMEM, "no memory for the request");
}

/* ---- the stream -------------------------------------------------------------------------------------------------- */

typedef struct stream {
    const remote *r;
    const remote_request *q;
    answer *a;
    mf__strbuf line;
    double began;
    bool done; /* [DONE] has come */
    mf_error *err;
} stream;

static mf_status say(stream *s, mf_event_kind kind, const json_t *text) {
    if (!json_string_length(text)) return MF_OK;
    if (!s->a->n_made++) s->a->prompt_seconds = app_seconds() - s->began;
    return s->q->fn(s->q->user,
                    &(mf_event){.kind = kind, .text = json_string_value(text), .n_text = json_string_length(text)});
}

static void read_usage(answer *a, const json_t *usage) {
    if (!json_is_object(usage)) return;
    a->n_prompt = json_integer_value(json_object_get(usage, "prompt_tokens"));
    a->n_made = json_integer_value(json_object_get(usage, "completion_tokens"));
    a->n_reused = json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static mf_status read_data(stream *s, const json_t *root) {
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0),
                 *delta = json_object_get(choice, "delta");
    const json_t *error = json_object_get(root, "error");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    char said[SAID_BYTES];
    if (error)
        return mf__fail(s->err, MF_E_IO, "%s failed: %s", s->r->address,
                        plain(json_string_value(json_object_get(error, "message")), said));
    MF__TRY(say(s, MF_EVENT_REASONING, json_object_get(delta, "reasoning_content")));
    MF__TRY(say(s, MF_EVENT_TEXT, json_object_get(delta, "content")));
    if (finish) s->a->stopped = !strcmp(finish, "length") ? "length" : "the model ended";
    read_usage(s->a, json_object_get(root, "usage"));
    return MF_OK;
}

/* ": prompt 512/4096 tokens, ..." is for people, "data: ..." for programs; the rest says nothing to us. */
static mf_status read_line(stream *s) {
    json_error_t why;
    char *line = s->line.data;
    size_t n = s->line.size;
    while (n && line[n - 1] == '\r') n--;
    line[n] = '\0';
    char progress[SAID_BYTES];
    if (!strncmp(line, ": prompt ", 9) && s->q->reading) s->q->reading(s->q->user, plain(line + 9, progress));
    if (strncmp(line, "data:", 5)) return MF_OK;
    line += 5 + (line[5] == ' ');
    s->done = s->done || !strcmp(line, "[DONE]");
    if (s->done) return MF_OK;
    json_t *root = json_loadb(line, n - (size_t)(line - s->line.data), 0, &why);
    if (!root) return mf__fail(s->err, MF_E_FORMAT, "%s sent an event that is not JSON: %s", s->r->address, why.text);
    mf_status st = read_data(s, root);
    json_decref(root);
    return st;
}

static mf_status read_stream(stream *s, wire *f) {
    char block[4096];
    for (size_t n;;) {
        MF__TRY(wire_read(f, block, sizeof block, &n, s->err));
        for (size_t at = 0, end; at < n; at = end) {
            const char *feed = memchr(block + at, '\n', n - at);
            end = feed ? (size_t)(feed - block) + 1 : n;
            if (s->line.size + end - at > EVENT_BYTES)
                return mf__fail(s->err, MF_E_LIMIT, "%s sent an event of more than %zu bytes", s->r->address,
                                EVENT_BYTES);
            MF__TRY(mf__strbuf_append(&s->line, block + at, end - at - (feed != NULL), s->err));
            if (!feed) continue;
            if (s->line.size) MF__TRY(read_line(s));
            mf__strbuf_clear(&s->line);
        }
        if (app_output_closed()) {
            s->a->stopped = "output closed";
            return MF_OK;
        }
        if (s->done) return MF_OK;
        if (!n) return mf__fail(s->err, MF_E_IO, "%s ended the stream before the answer was whole", s->r->address);
    }
}

mf_status remote_answer(remote *r, const remote_request *q, answer *out, mf_error *err) {
    stream s = {.r = r, .q = q, .a = out, .began = app_seconds(), .err = err};
    char *body;
    wire *f = NULL;
    int status = 0;
    *out = (answer){.stopped = "the model ended"};
    MF__TRY(write_body(r, q, &body, err));
    mf_status st = wire_open(&r->url, "/v1/chat/completions", r->key, body, &f, &status, err);
    free(body);
    if (st == MF_OK && status != 200) return refused(r, f, status, err);
    if (st == MF_OK) st = read_stream(&s, f);
    wire_close(f); /* which also tells the server to stop */
    mf__strbuf_free(&s.line);
    out->made_seconds = app_seconds() - s.began - out->prompt_seconds;
    if (out->stopped && !strcmp(out->stopped, "length"))
        out->stopped = r->n_ctx && out->n_prompt + out->n_made >= r->n_ctx ? "context full" : "token limit";
    out->full = !strcmp(out->stopped, "context full");
    out->interrupted = st == MF_E_CANCELLED;
    if (out->interrupted) out->stopped = "interrupted";
    return out->interrupted ? MF_OK : st;
}
