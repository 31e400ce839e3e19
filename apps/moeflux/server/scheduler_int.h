/* What scheduler.c (the thread and its passes) and scheduler_sessions.c (who gets which session) share. */
#ifndef MOEFLUX_SCHEDULER_INT_H
#define MOEFLUX_SCHEDULER_INT_H

#include <pthread.h>

#include "scheduler.h"
#include "steppers.h"

#define SCHED_MAX_PARTS 64
#define SCHED_MAX_SESSIONS 256
#define LOGPROB_ROWS 32 /* tokens of a piece whose logits are all wanted */

typedef struct idle_session {
    mf_session *session;
    int64_t used; /* when, in passes */
} idle_session;

struct sched {
    sched_options opt;
    const mf_model_info *info;
    int32_t n_ctx;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    seq *inbox, **inbox_tail; /* lock: submitted, not yet seen */
    bool stop;                /* lock */
    atomic_bool halt;         /* the pass under way is not worth finishing */
    sched_stats stats;        /* lock */
    /* the thread's own */
    seq *seqs, **tail; /* all that have not ended, by arrival */
    int n_running;     /* of them: with a session, or following */
    idle_session idle[SCHED_MAX_SESSIONS];
    int n_idle, n_sessions;
    float *rows[SCHED_MAX_PARTS]; /* [n_vocab] each, made when first wanted */
    float *many;                  /* [LOGPROB_ROWS][n_vocab], likewise */
    double token_seconds;         /* of a prompt's token, lately */
    bool long_piece;              /* the last pass had a piece of a long prompt */
    int64_t turn;                 /* counts pieces of long prompts: who waits longest is next */
    int n_left;                   /* sequences ended since the last pass */
    steppers *steppers;
    seq *to_step[SCHED_MAX_PARTS]; /* those whose logits are there, in the order of their events */
    int n_to_step;
};

/* The next place where the prompt is cut, behind pos. */
int64_t sched__next_cut(const sched *s, const seq *q, int64_t pos);
bool sched__at_mark(const seq *q); /* a state worth keeping */
/* Brings a waiting sequence to reading or following; MF_E_NOMEM: not now. */
mf_status sched__start(sched *s, seq *q, mf_error *err);
/* Forks all that follow and wait for where the leader now is; those that cannot be go back to waiting. */
void sched__fork_followers(sched *s, seq *leader);
void sched__leave_alone(sched *s, const seq *leader); /* it ends: all that follow it wait again */
void sched__release(sched *s, seq *q, bool keep);     /* its session, for others */
bool sched__drop_idle(sched *s);                      /* the least recently used; false: there is none */
void sched__emit(sched *s, seq *q, const sched_event *e);

#endif
