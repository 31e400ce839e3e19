/* The server's life: its threads start, its loop runs, and it ends in good order. */
#include "server.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server_int.h"

#define TICK_SECONDS 5  /* comments in streams that are quiet */
#define FLUSH_SECONDS 2 /* for last words to go out */
#define HISTORY_TOKENS (2 << 20)

void server_options_init(server_options *opt) {
    *opt = (server_options){.piece = 256,
                            .max_running = 32,
                            .max_sessions = 64,
                            .max_waiting = 128,
                            .grace_seconds = 10,
                            .max_logprobs = 400000};
    http_options_init(&opt->http);
}

static mf_status fail(mf_error *err, mf_status status, const char *text) {
    if (err) {
        err->status = status;
        snprintf(err->text, sizeof err->text, "%s", text);
    }
    return status;
}

/* ---- from the other threads -------------------------------------------------------------------------------------- */

/* Letters are small; where there is no memory even for one, the scheduler waits for some. */
static void on_sched_event(void *user, seq *q, const sched_event *e) {
    server *s = user;
    letter *l;
    while (!(l = letter_create(q->owner, q->index, e))) usleep(10000);
    if (!q->stepping) {
        mailbox_put(&s->mail, l, &l->next);
        return;
    }
    if (!q->held) q->held_tail = &q->held;
    *q->held_tail = l;
    q->held_tail = &l->next;
}

static void on_sched_deliver(void *user, seq *q) {
    server *s = user;
    if (q->held) mailbox_put(&s->mail, q->held, q->held_tail);
    q->held = NULL;
}

static void on_sched_said(void *user, const int32_t *ids, size_t n_prompt, size_t n) {
    server *s = user;
    history_add(s->history, ids, n_prompt, n);
}

static void on_sched_flush(void *user) {
    server *s = user;
    mailbox_ring(&s->mail);
}

static void leave_when_done(server *s) {
    if (s->stopping && !s->n_jobs) event_base_loopexit(s->base, &(struct timeval){0, 0});
}

static void read_mail(server *s) {
    for (letter *l = mailbox_take(&s->mail), *next; l; l = next) {
        next = l->next;
        job_letter(l);
        free(l);
    }
}

static void on_mail(evutil_socket_t fd, short what, void *user) {
    server *s = user;
    (void)fd;
    (void)what;
    read_mail(s);
    leave_when_done(s);
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* What still runs is ended with what it has said so far. */
static void on_grace(evutil_socket_t fd, short what, void *user) {
    server *s = user;
    (void)fd;
    (void)what;
    preparer_stop(s);
    sched_stop(s->sched);
    read_mail(s);
    event_base_loopexit(s->base, &(struct timeval){0, 0});
}

static void on_stop(evutil_socket_t fd, short what, void *user) {
    server *s = user;
    char drop[16];
    (void)what;
    while (read(fd, drop, sizeof drop) > 0) {
    }
    bool again = s->stopping;
    s->stopping = true;
    http_server_drain(s->http);
    double grace = again ? 0 : s->opt.grace_seconds;
    struct timeval tv = {(time_t)grace, (suseconds_t)((grace - (double)(time_t)grace) * 1e6)};
    event_add(s->on_grace, &tv);
    leave_when_done(s);
}

void server_stop(server *s) {
    if (write(s->stop_bell[1], "", 1) < 0) { /* full: it has been told */
    }
}

static void on_tick(evutil_socket_t fd, short what, void *user) {
    server *s = user;
    (void)fd;
    (void)what;
    http_each_state(s->http, job_keep_alive);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static bool make_events(server *s) {
    s->stop_bell[0] = s->stop_bell[1] = -1;
    if (!mailbox_init(&s->mail) || evutil_socketpair(AF_UNIX, SOCK_STREAM, 0, s->stop_bell)) return false;
    evutil_make_socket_nonblocking(s->stop_bell[0]);
    evutil_make_socket_nonblocking(s->stop_bell[1]);
    s->base = event_base_new();
    if (!s->base) return false;
    s->on_mail = event_new(s->base, s->mail.bell[0], EV_READ | EV_PERSIST, on_mail, s);
    s->on_stop = event_new(s->base, s->stop_bell[0], EV_READ | EV_PERSIST, on_stop, s);
    s->on_grace = evtimer_new(s->base, on_grace, s);
    s->on_tick = event_new(s->base, -1, EV_PERSIST, on_tick, s);
    if (!s->on_mail || !s->on_stop || !s->on_grace || !s->on_tick) return false;
    event_add(s->on_mail, NULL);
    event_add(s->on_stop, NULL);
    event_add(s->on_tick, &(struct timeval){TICK_SECONDS, 0});
    http_handler h = {
        .request = route_request, .gone = job_gone, .head = route_head, .problem = route_problem, .user = s};
    s->http = http_server_create(s->base, &s->opt.http, &h);
    return s->http;
}

/* Processors this process may use. */
static int n_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

static mf_status start(server *s, mf_error *err) {
    sched_options so = {.model = s->opt.model, .n_ctx = s->opt.n_ctx, .piece = s->opt.piece, .user = s};
    so.max_running = s->opt.max_running;
    so.max_sessions = s->opt.max_sessions;
    so.event = on_sched_event;
    so.deliver = on_sched_deliver;
    so.said = on_sched_said;
    so.flush = on_sched_flush;
    so.disk = s->opt.disk_cache;
    so.n_steppers = (s->opt.n_threads ? s->opt.n_threads : n_processors()) - 1;
    mf_sampler_options_init(&s->sampling);
    s->sampling.temperature = 1;
    mf_status st = mf_sampler_options_load(&s->sampling, s->opt.model_dir, err);
    if (st != MF_OK) return st;
    s->history = history_create(HISTORY_TOKENS);
    if (!s->history) return fail(err, MF_E_NOMEM, "no memory for the tokens of the latest answers");
    if (!make_events(s)) return fail(err, MF_E_NOMEM, "no memory or descriptors for the event loop");
    st = sched_create(&so, &s->sched, err);
    if (st != MF_OK) return st;
    return preparer_start(s) ? MF_OK : fail(err, MF_E_NOMEM, "the preparing threads cannot be started");
}

mf_status server_create(const server_options *opt, server **out, mf_error *err) {
    server *s = calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return fail(err, MF_E_NOMEM, "no memory for the server");
    s->opt = *opt;
    s->info = mf_model_info_get(opt->model);
    if (!s->opt.n_ctx) s->opt.n_ctx = s->info->n_ctx;
    json_object_seed(0); /* before there are threads */
    mf_status st = start(s, err);
    if (st == MF_OK)
        *out = s;
    else
        server_free(s);
    return st;
}

bool server_listen(server *s, int fd) {
    return http_server_listen(s->http, fd);
}

void server_run(server *s) {
    event_base_dispatch(s->base);
    http_server_drain(s->http);
    /* Last words go out; a moment is enough for whoever listens. */
    double until = mf__clock_seconds() + FLUSH_SECONDS;
    while (http_server_stats(s->http)->open && mf__clock_seconds() < until) {
        event_base_loopexit(s->base, &(struct timeval){0, 50000});
        event_base_dispatch(s->base);
    }
}

void server_free(server *s) {
    if (!s) return;
    preparer_stop(s);
    sched_free(s->sched);
    if (s->mail.tail) {
        if (s->base) read_mail(s);
        mailbox_deinit(&s->mail);
    }
    http_server_free(s->http);
    history_free(s->history);
    struct event *events[] = {s->on_mail, s->on_stop, s->on_grace, s->on_tick};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i]) event_free(events[i]);
    for (int i = 0; i < 2; i++)
        if (s->stop_bell[i] > 0) evutil_closesocket(s->stop_bell[i]);
    if (s->base) event_base_free(s->base);
    free(s);
}
