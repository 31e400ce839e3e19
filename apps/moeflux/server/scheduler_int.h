/* What scheduler.c (the thread and its passes) and scheduler_sessions.c (who gets which session) share. */
#ifndef MOEFLUX_SCHEDULER_INT_H
#define MOEFLUX_SCHEDULER_INT_H

#include <pthread.h>

#include "disk.h"
#include "scheduler.h"
#include "steppers.h"

#define SCHED_MAX_PARTS 64
#define SCHED_MAX_SESSIONS 256
#define SCHED_CLIENTS 64     /* whose turns are remembered */
#define SCHED_WITHOUT_LONG 3 /* passes in a row that leave a long prompt out for short ones */
#define LOGPROB_ROWS 32      /* tokens of a piece whose logits are all wanted */

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
    bool has_loaded;          /* lock: disk_loaded has something */
    atomic_bool halt;         /* the pass under way is not worth finishing */
    sched_stats stats;        /* lock */
    /* the thread's own */
    seq *seqs, **tail; /* all that have not ended, by arrival */
    int n_running;     /* of them: with a session, or following */
    struct {
        uint64_t client;
        int64_t served; /* when last; 0: never */
    } clients[SCHED_CLIENTS];
    int64_t n_served; /* sequences that had their turn */
    int n_loading;    /* ... whose session the disk's thread has */
    disk *disk;       /* NULL: there is none */
    bool stopped;     /* the thread has been joined */
    idle_session idle[SCHED_MAX_SESSIONS];
    int n_idle, n_sessions;
    float *rows[SCHED_MAX_PARTS]; /* [n_vocab] each, made when first wanted */
    float *many;                  /* [LOGPROB_ROWS][n_vocab], likewise */
    double token_seconds;         /* of a prompt's token, lately */
    double token_bytes;           /* ... read from the drive for it; -1: not known yet */
    int64_t bytes_seen;           /* all that were read until the last pass */
    int n_without_long;           /* passes since the last piece of a long prompt that left one out for short ones */
    int64_t short_tokens;         /* ... and the tokens that those read */
    int64_t turn;                 /* counts pieces of long prompts: who waits longest is next */
    int n_left;                   /* sequences ended since the last pass */
    bool full;                    /* there was no memory for one more, and no sequence has ended since */
    steppers *steppers;
    seq *to_step[SCHED_MAX_PARTS]; /* those whose logits are there, in the order of their events */
    int n_to_step;
};

/* The next place where the prompt is cut, behind pos. */
int64_t sched__next_cut(const sched *s, const seq *q, int64_t pos);
bool sched__at_mark(const seq *q); /* a state worth keeping */
/* Brings a waiting sequence to loading, reading or following; MF_E_NOMEM: not now. */
mf_status sched__start(sched *s, seq *q, mf_error *err);
/* The disk has been asked: to reading or following, or it is asked again; MF_E_NOMEM: the sequence waits again. */
mf_status sched__loaded(sched *s, seq *q, mf_error *err);
void sched__keep(sched *s, seq *q); /* its state, in the prompt cache */
/* What is to be expected of n tokens of a prompt: see sched_event. */
void sched__foresee(sched *s, int64_t n, sched_event *e);
/* Forks all that follow and wait for where the leader now is; those that cannot be go back to waiting. */
void sched__fork_followers(sched *s, seq *leader);
void sched__leave_alone(sched *s, const seq *leader); /* it ends: all that follow it wait again */
void sched__release(sched *s, seq *q, bool keep);     /* its session, for others */
bool sched__drop_idle(sched *s);                      /* memory for others: the session that was not used for longest,
                                                       * or a state that is still to be written; false: none */
bool sched__yield(sched *s, seq *q); /* gives up its session, and waits to go on from what it had; false: it cannot */
void sched__emit(sched *s, seq *q, const sched_event *e);

#endif
