/* What comes out of a job: on the loop's thread, letter by letter. */
#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "server_int.h"

/* ---- writing ----------------------------------------------------------------------------------------------------- */

bool job_send(job *j, const void *bytes, size_t n) {
    j->t_last = mf__clock_seconds();
    return j->conn && http_stream_write(j->conn, bytes, n);
}

/* No memory for what comes next: the client sees that the stream is not whole. */
static void cut(job *j) {
    http_conn *conn = j->conn;
    j->conn = NULL;
    j->cancelled = true;
    if (conn) http_stream_cut(conn);
}

void job_sse(job *j, const char *event, json_t *data) {
    buf_clear(&j->line);
    if (event) buf_printf(&j->line, "event: %s\n", event);
    buf_adds(&j->line, "data: ");
    buf_json(&j->line, data);
    buf_adds(&j->line, "\n\n");
    if (!j->line.failed)
        job_send(j, j->line.data, j->line.size);
    else
        cut(j);
}

static void id_field(const job *j, char fields[64]) {
    snprintf(fields, 64, "%s: req_%s\r\n", j->api->family == FAMILY_ANTHROPIC ? "request-id" : "x-request-id", j->id);
}

/* The answer is out: the connection is the client's again. */
static void respond_bytes(job *j, int status, const char *fields, char *body) {
    http_conn *conn = j->conn;
    if (conn) {
        j->conn = NULL;
        http_conn_set_state(conn, NULL);
        http_respond(conn, body ? status : 500, "application/json", fields, body ? body : "{}",
                     body ? strlen(body) : 2);
    }
    free(body);
}

void job_respond(job *j, json_t *answer) {
    buf b = {0};
    char fields[64];
    id_field(j, fields);
    buf_json(&b, answer);
    respond_bytes(j, 200, fields, buf_take(&b));
}

void job_keep_alive(void *job_state) {
    job *j = job_state;
    if (j->conn && j->begun && mf__clock_seconds() - j->t_last > 4) job_send(j, ": waiting\n\n", 11);
}

/* ---- problems ---------------------------------------------------------------------------------------------------- */

static const char *openai_type(int status) {
    if (status == 403) return "permission_error";
    if (status == 429) return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error"; /* 401 and 404 as well */
}

static const char *anthropic_type(int status) {
    if (status == 401) return "authentication_error";
    if (status == 403) return "permission_error";
    if (status == 404) return "not_found_error";
    if (status == 413) return "request_too_large";
    if (status == 429) return "rate_limit_error";
    if (status == 503 || status == 529) return "overloaded_error";
    return status >= 500 ? "api_error" : "invalid_request_error";
}

static json_t *problem_json(api_family family, const problem *p) {
    json_t *text = json_text(p->text, strlen(p->text)), *param = json_text(p->param, strlen(p->param));
    if (family == FAMILY_ANTHROPIC) {
        json_decref(param);
        json_t *error = json_pack("{s:s,s:o}", "type", anthropic_type(p->status), "message", text);
        if (!strcmp(p->code, NO_THREADS)) /* its clients go on without, but only where they are told so */
            json_object_set_new(error, "details",
                                json_pack("{s:s,s:[s]}", "error_code", NO_THREADS, "unsupported", "thread"));
        json_t *whole = json_pack("{s:s,s:o}", "type", "error", "error", error);
        if (p->id) json_object_set_new(whole, "request_id", json_sprintf("req_%s", p->id));
        return whole;
    }
    if (!p->param[0]) {
        json_decref(param);
        param = json_null();
    }
    return json_pack("{s:{s:o,s:s,s:o,s:o}}", "error", "message", text, "type", openai_type(p->status), "param", param,
                     "code", p->code[0] ? json_string(p->code) : json_null());
}

char *problem_body(api_family family, const problem *p) {
    buf b = {0};
    buf_json(&b, problem_json(family, p));
    return buf_take(&b);
}

/* Before the answer began it has a status of its own; within a stream it is the last event. */
static void respond_problem(job *j) {
    char fields[64 + RETRY_FIELD];
    id_field(j, fields);
    j->problem.id = j->id;
    if (j->problem.status == 503 || j->problem.status == 429) server_retry_field(j->server, fields + strlen(fields));
    if (!j->begun) {
        respond_bytes(j, j->problem.status, fields, problem_body(j->api->family, &j->problem));
        return;
    }
    if (j->api->problem)
        j->api->problem(j);
    else
        job_sse(j, j->api->family == FAMILY_ANTHROPIC ? "error" : NULL, problem_json(j->api->family, &j->problem));
}

/* ---- what replies say -------------------------------------------------------------------------------------------- */

static json_t *one_logprob(const char *text, size_t n, float logprob) {
    json_t *bytes = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(bytes, json_integer((unsigned char)text[i]));
    /* JSON has no infinity; this is what OpenAI writes for it */
    return json_pack("{s:o,s:f,s:o}", "token", json_text(text, n), "logprob",
                     logprob < -9999 ? -9999.0 : (double)logprob, "bytes", bytes);
}

json_t *token_logprob(const job *j, const mf_event *e) {
    const mf_text *text = j->server->opt.text;
    size_t n;
    const char *bytes = mf_text_token(text, e->token, &n);
    json_t *entry = one_logprob(bytes, n, e->logprob), *top = json_array();
    for (int i = 0; i < e->n_top; i++) {
        bytes = mf_text_token(text, e->top[i].id, &n);
        json_array_append_new(top, one_logprob(bytes, n, e->top[i].logprob));
    }
    json_object_set_new(entry, "top_logprobs", top);
    return entry;
}

/* JSON of a token's alternatives takes some hundred bytes each: all jobs together have so many at most. */
static bool take_logprobs(job *j, int n) {
    server *s = j->server;
    if (s->n_logprobs + n > s->opt.max_logprobs) {
        j->cancelled = true;
        return job_fail(j, 503, "logprobs", NULL,
                        "The server holds too many logprobs now. A stream needs no room for them; fewer 'top_logprobs' "
                        "need less.");
    }
    s->n_logprobs += n;
    j->n_logprobs += n;
    return true;
}

void job_logprobs_sent(job *j, out_choice *c) {
    if (!j->stream) return;
    j->server->n_logprobs -= j->n_logprobs;
    j->n_logprobs = 0;
    json_array_clear(c->logprobs);
    c->n_sent = 0;
}

static void add_logprob(job *j, out_choice *c, const mf_event *e, bool known) {
    if (!j->wants_logprobs || e->part != MF_EVENT_TEXT || j->problem.status || !take_logprobs(j, 1 + e->n_top)) return;
    if (!c->logprobs) c->logprobs = json_array();
    json_t *entry = token_logprob(j, e);
    if (j->api == &api_completions) json_object_set_new(entry, "offset", json_integer((json_int_t)c->offset));
    c->offset += json_string_length(json_object_get(entry, "token"));
    if (!known) json_object_set_new(entry, "logprob", json_null()); /* of a first token nothing is known */
    json_array_append_new(c->logprobs, entry);
}

static bool add_call(job *j, out_choice *c, const mf_event *e) {
    out_call *more = realloc(c->calls, (size_t)(c->n_calls + 1) * sizeof *more);
    if (!more) return false;
    c->calls = more;
    out_call *call = &more[c->n_calls];
    char *name = strdup(e->name ? e->name : "");
    if (!name) return false;
    *call = (out_call){.name = name};
    bool anthropic = j->api->family == FAMILY_ANTHROPIC;
    snprintf(call->id, sizeof call->id, "%s%.20s%d%02d", anthropic ? "toolu_" : "call_", j->id, (int)(c - j->out),
             e->call);
    c->n_calls++;
    return true;
}

static void take_reply(job *j, out_choice *c, const mf_event *e) {
    if (e->kind == MF_EVENT_TEXT) buf_add(&c->text, e->text, e->n_text);
    if (e->kind == MF_EVENT_REASONING) buf_add(&c->reasoning, e->text, e->n_text);
    if (e->kind == MF_EVENT_TOKEN) add_logprob(j, c, e, true);
    bool fine = e->kind != MF_EVENT_CALL || add_call(j, c, e);
    if (e->kind == MF_EVENT_ARGUMENTS && e->call < c->n_calls) {
        buf_add(&c->calls[e->call].arguments, e->text, e->n_text);
        fine = !c->calls[e->call].arguments.failed;
    }
    if (fine && !c->text.failed && !c->reasoning.failed) return;
    job_fail(j, 503, NULL, NULL, "There is no memory for the answer.");
    j->cancelled = true;
}

/* What is known of the reply, in the job; then the API writes it. */
static void take_event(job *j, out_choice *c, const sched_event *e) {
    c->n_prompt = e->n_prompt;
    if (e->kind == SCHED_STARTED) c->n_reused = e->n_reused;
    if (e->kind == SCHED_PROMPT_TOKEN) add_logprob(j, c, e->reply, e->n_read > 0);
    if (e->kind == SCHED_REPLY) {
        if (!j->t_first) {
            j->t_first = mf__clock_seconds();
            metrics_first_token(&j->server->metrics, j->t_first - j->t_created);
        }
        take_reply(j, c, e->reply);
    }
    if (e->kind == SCHED_ENDED) {
        c->result = e->result;
        c->ended = true;
        j->n_ended++;
        if (e->status != MF_OK && e->status != MF_E_CANCELLED) {
            mf_error err = {.status = e->status};
            snprintf(err.text, sizeof err.text, "%s", e->error ? e->error : "");
            job_fail_from(j, NULL, &err);
            j->cancelled = true; /* its other answers are of no use */
        }
    }
}

/* ": prompt 512/4096 tokens, 812.0 MB to fetch, about 3.1 s to go": comments, which event streams have and clients pass
 * over. Nothing is said of the time while nothing is known of it. */
static void progress(job *j, const sched_event *e) {
    char line[160], time[48] = "";
    if (e->n_prompt - j->out[0].n_reused <= j->server->opt.piece) return; /* short: it is read in a moment */
    if (e->seconds > 0) snprintf(time, sizeof time, ", about %.1f s to go", e->seconds);
    int n = snprintf(line, sizeof line, ": prompt %lld/%lld tokens, %.1f MB to fetch%s\n\n",
                     (long long)(e->kind == SCHED_STARTED ? e->n_reused : e->n_read), (long long)e->n_prompt,
                     (double)e->bytes * 1e-6, time);
    job_send(j, line, (size_t)n);
}

/* ---- letters ----------------------------------------------------------------------------------------------------- */

static void finish(job *j) {
    server *s = j->server;
    bool left = j->cancelled && !j->problem.status;
    if (j->problem.status)
        respond_problem(j);
    else if (j->conn && j->api->end)
        j->api->end(j);
    if (j->begun && j->conn) {
        http_conn *conn = j->conn;
        j->conn = NULL;
        http_conn_set_state(conn, NULL);
        http_stream_end(conn);
    }
    metrics_job(&s->metrics, j, left);
    job_free(j);
}

static void prepared(job *j) {
    if (j->problem.status || !j->conn) return;
    if (j->whole) {
        job_respond(j, json_incref(j->whole));
        return;
    }
    if (!j->stream) return;
    char fields[128];
    id_field(j, fields);
    strcat(fields, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    http_stream_begin(j->conn, 200, "text/event-stream; charset=utf-8", fields);
    j->begun = true;
    j->t_last = mf__clock_seconds();
    if (j->api->begin) j->api->begin(j);
}

void job_letter(letter *l) {
    job *j = l->job;
    if (l->choice < 0) {
        bool runs = !j->problem.status && !j->whole && j->n_choices;
        j->prepared = NULL;
        http_release_body(j->server->http, j->counted);
        prepared(j);
        if (!runs) finish(j);
        return;
    }
    out_choice *c = &j->out[l->choice];
    take_event(j, c, &l->event);
    if (j->begun && j->conn && !j->problem.status) {
        if (l->event.kind == SCHED_PROGRESS || l->event.kind == SCHED_STARTED)
            progress(j, &l->event);
        else
            j->api->event(j, c, &l->event);
    }
    if (j->n_ended == j->n_choices) finish(j);
}
