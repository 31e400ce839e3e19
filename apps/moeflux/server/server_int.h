/* What the server's files share: server.c (life), mailbox.c (between threads), prepare.c (the preparing thread),
 * route.c (paths and manners), job.c (jobs), metrics.c. */
#ifndef MOEFLUX_SERVER_INT_H
#define MOEFLUX_SERVER_INT_H

#include <pthread.h>

#include "base/clock.h"
#include "history.h"
#include "job.h"
#include "metrics.h"

/* A word from another thread to the loop: a job was prepared (choice -1), or its reply has something to say. */
typedef struct letter {
    struct letter *next;
    job *job;
    int choice;
    sched_event event;
    mf_event reply; /* event.reply points here; its texts lie behind the letter */
} letter;

typedef struct mailbox {
    pthread_mutex_t lock;
    letter *first, **tail; /* lock */
    bool rung;             /* lock: the bell has been rung since the loop looked */
    evutil_socket_t bell[2];
} mailbox;

bool mailbox_init(mailbox *m);
void mailbox_deinit(mailbox *m);
letter *letter_create(job *j, int choice, const sched_event *e); /* copies; NULL: no memory */
void mailbox_put(mailbox *m, letter *first, letter **tail);      /* one, or a list with its last `next` */
void mailbox_ring(mailbox *m);
letter *mailbox_take(mailbox *m); /* all of them, in order */

/* Two threads: large bodies have one of them to themselves, so that small ones never wait for them. */
enum { PREPARE_SMALL, PREPARE_LARGE, PREPARERS };
typedef struct preparer {
    pthread_t threads[PREPARERS];
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct {
        job *first, **tail;
    } queues[PREPARERS]; /* lock */
    bool stop;           /* lock */
    int n_started;
} preparer;

bool preparer_start(server *s);
void preparer_stop(server *s); /* what waits there comes back refused */
void preparer_put(server *s, job *j);

struct server {
    server_options opt;
    const mf_model_info *info;
    mf_sampler_options sampling; /* what the model recommends */
    struct event_base *base;
    http_server *http;
    sched *sched;
    history *history;
    mailbox mail;
    preparer prep;
    struct event *on_mail, *on_stop, *on_grace, *on_tick;
    evutil_socket_t stop_bell[2];
    int n_jobs;
    atomic_int n_seqs;  /* replies of all jobs */
    int64_t n_logprobs; /* loop: entries that jobs hold */
    bool stopping;
    metrics metrics;
};

/* route.c */
void route_request(void *server_user, http_conn *conn, const http_request *r);
int route_head(void *server_user, const http_request *r, const char **sentence);
char *route_problem(void *server_user, const char *path, const http_parser *head, int status, const char *sentence);

/* "Retry-After: N\r\n", from how much waits. */
#define RETRY_FIELD 32
void server_retry_field(const server *s, char out[RETRY_FIELD]);

/* job.c */
job *job_create(server *s, const api *a, http_conn *conn, const http_request *r);
void job_free(job *j); /* out of the server's list */
void job_gone(void *server_user, http_conn *conn, void *state);
void job_letter(letter *l);           /* what a letter says; frees nothing */
void job_read(job *j);                /* ...: its body becomes replies, an answer, or a problem */
void job_prepare(job *j);             /* preparing thread */
void job_keep_alive(void *job_state); /* a comment in a stream that is quiet */

#endif
