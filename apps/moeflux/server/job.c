/* Jobs: prepared on their own thread, then told by letters what their replies say. */
#include "job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "api.h"
#include "server_int.h"

#define MAX_VALUES 1000000 /* in a body */

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void random_id(char id[40]) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_";
    unsigned char bytes[24];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) memset(bytes, 0, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) id[i] = digits[bytes[i] % 62];
    id[sizeof bytes] = 0;
}

/* By address: whoever asks more often than others waits longer than they. */
static uint64_t client_of(const http_conn *conn) {
    uint64_t h = 1469598103934665603u;
    for (const char *c = http_conn_address(conn); *c; c++) h = (h ^ (unsigned char)*c) * 1099511628211u;
    return h;
}

job *job_create(server *s, const api *a, http_conn *conn, const http_request *r) {
    size_t n_body = r->n_body;
    job *j = calloc(1, sizeof *j);
    letter *prepared = j ? letter_create(j, -1, &(sched_event){0}) : NULL; /* now, as it must not fail later */
    if (!prepared || !(j->body = http_take_body(conn, &j->counted))) {
        free(prepared);
        free(j);
        return NULL;
    }
    j->server = s;
    j->api = a;
    j->conn = conn;
    j->prepared = prepared;
    j->n_body = n_body;
    j->client = client_of(conn);
    j->n_per_prompt = 1;
    j->created = (int64_t)time(NULL);
    j->t_created = mf__clock_seconds();
    random_id(j->id);
    http_conn_set_state(conn, j);
    s->n_jobs++;
    return j;
}

static void free_choice(out_choice *c) {
    buf_free(&c->text);
    buf_free(&c->reasoning);
    for (int i = 0; i < c->n_calls; i++) {
        free(c->calls[i].name);
        buf_free(&c->calls[i].arguments);
    }
    free(c->calls);
    json_decref(c->logprobs);
}

void job_free(job *j) {
    j->server->n_jobs--;
    j->server->n_seqs -= j->n_choices;
    j->server->n_logprobs -= j->n_logprobs;
    for (int i = 0; i < JOB_MAX_CHOICES; i++) {
        free_choice(&j->out[i]);
        free(j->echo_text[i]);
    }
    for (int i = 0; i < j->n_stops; i++) free(j->stops[i]);
    free(j->stops);
    free(j->body);
    free(j->model);
    json_decref(j->whole);
    json_decref(j->about);
    buf_free(&j->line);
    free(j);
}

/* The client left: whoever has the job finds out, and it comes back. */
void job_gone(void *server_user, http_conn *conn, void *state) {
    job *j = state;
    (void)conn;
    (void)server_user;
    if (!j) return;
    j->conn = NULL;
    j->cancelled = true;
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */

bool job_fail(job *j, int status, const char *param, const char *code, const char *fmt, ...) {
    problem *p = &j->problem;
    va_list ap;
    if (p->status) return false;
    p->status = status;
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    snprintf(p->code, sizeof p->code, "%s", code ? code : "");
    va_start(ap, fmt);
    vsnprintf(p->text, sizeof p->text, fmt, ap);
    va_end(ap);
    return false;
}

bool job_fail_from(job *j, const char *param, const mf_error *err) {
    bool theirs = err->status == MF_E_INVALID || err->status == MF_E_CONTEXT_FULL || err->status == MF_E_FORMAT ||
                  err->status == MF_E_UNSUPPORTED || err->status == MF_E_TOKEN || err->status == MF_E_LIMIT ||
                  err->status == MF_E_NOT_FOUND;
    int status = theirs ? 400 : err->status == MF_E_NOMEM ? 503 : 500;
    const char *code = err->status == MF_E_CONTEXT_FULL ? "context_length_exceeded" : NULL;
    return job_fail(j, status, param, code, "%s", err->text);
}

void job_whole(job *j, json_t *answer) {
    j->whole = answer;
    if (!answer) job_fail(j, 500, NULL, NULL, "no memory");
}

const server_options *job_options(const job *j) {
    return &j->server->opt;
}

const mf_sampler_options *job_sampling(const job *j) {
    return &j->server->sampling;
}

/* Where the prompt goes on with an answer of ours that it spells otherwise, once more with the tokens that were said.
 */
static mf_status make_reply(server *s, mf_reply_options *opt, seq *q, mf_error *err) {
    mf_reply_prompt p;
    mf_status st = mf_reply_create(s->opt.text, s->info, opt, &q->reply, err);
    if (st != MF_OK || !opt->request || opt->like) return st;
    mf_reply_prompt_get(q->reply, &p);
    int32_t *known = history_find(s->history, p.ids, p.n_ids, &opt->n_known);
    if (!known) return MF_OK;
    mf_reply_free(q->reply);
    q->reply = NULL;
    opt->known = known;
    st = mf_reply_create(s->opt.text, s->info, opt, &q->reply, err);
    free(known);
    opt->known = NULL;
    opt->n_known = 0;
    return st;
}

seq *job_add_reply(job *j, mf_reply_options *opt) {
    mf_error err;
    if (j->n_choices == JOB_MAX_CHOICES) {
        job_fail(j, 400, "n", "invalid_value", "More than %d answers in one request.", JOB_MAX_CHOICES);
        return NULL;
    }
    server *s = j->server;
    int limit = s->opt.max_running + s->opt.max_waiting;
    if (j->n_choices == limit) {
        job_fail(j, 400, "n", "invalid_value", "More answers in one request than this server has places for, %d.",
                 limit);
        return NULL;
    }
    if (atomic_fetch_add(&s->n_seqs, 1) >= limit) {
        s->n_seqs--;
        job_fail(j, 429, NULL, "rate_limit_exceeded", "The queue is full; try again in a moment.");
        return NULL;
    }
    seq *q = seq_create(j, j->n_choices, &j->cancelled, j->client);
    if (!q) {
        s->n_seqs--;
        job_fail(j, 500, NULL, NULL, "no memory");
        return NULL;
    }
    opt->fn = sched_on_event;
    opt->user = q;
    if (make_reply(s, opt, q, &err) != MF_OK) {
        seq_free(q);
        s->n_seqs--;
        job_fail_from(j, opt->request ? "messages" : "prompt", &err);
        return NULL;
    }
    j->seqs[j->n_choices++] = q;
    return q;
}

/* model: any name is answered by the model there is. */
static bool read_model(job *j, const json_t *body) {
    const char *name = j->server->opt.model_id;
    if (!field_text(j, body, "", "model", &name)) return false;
    if (strlen(name) > 256) /* every event repeats it */
        return job_fail(j, 400, "model", "string_above_max_length",
                        "Invalid 'model': a name of %zu bytes; at most 256.", strlen(name));
    j->model = strdup(name);
    return j->model || job_fail(j, 500, NULL, NULL, "no memory");
}

/* A value takes a hundred bytes and more in memory, and three in the body: there is a limit to them, too. */
static bool count_values(job *j) {
    size_t n = 0;
    bool in_string = false;
    for (const char *at = j->body, *end = at + j->n_body; at < end; at++) {
        if (in_string && *at == '\\')
            at++;
        else if (*at == '"')
            in_string = !in_string;
        else if (!in_string && (*at == ',' || *at == '[' || *at == '{'))
            n++;
    }
    return n <= MAX_VALUES ||
           job_fail(j, 400, NULL, NULL, "The body of the request has more than %d values in it.", MAX_VALUES);
}

void job_read(job *j) {
    json_error_t why;
    if (j->cancelled) { /* nobody waits for it: large bodies of clients that left must not pile up */
        job_fail(j, 400, NULL, NULL, "the client has left");
        return;
    }
    if (!count_values(j)) return;
    json_t *body = json_loadb(j->body, j->n_body, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!body)
        job_fail(j, 400, NULL, NULL, "We could not parse the JSON body of your request: %s (byte %d).", why.text,
                 why.position);
    else if (!json_is_object(body))
        job_fail(j, 400, NULL, NULL, "The body of the request is %s; a JSON object is expected.", json_kind(body));
    else if (read_model(j, body))
        j->api->prepare(j, body);
    json_decref(body);
}

/* The loop hears of it before the first event can come. */
void job_prepare(job *j) {
    server *s = j->server;
    seq *seqs[JOB_MAX_CHOICES];
    job_read(j);
    free(j->body);
    j->body = NULL;
    bool runs = !j->problem.status && !j->whole;
    int n = j->n_choices;
    for (int i = 0; i < n; i++) {
        if (runs)
            seqs[i] = j->seqs[i];
        else
            seq_free(j->seqs[i]);
        j->seqs[i] = NULL;
    }
    mailbox_put(&s->mail, j->prepared, &j->prepared->next);
    if (runs) sched_submit(s->sched, seqs, n);
    mailbox_ring(&s->mail);
}
