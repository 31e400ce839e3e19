/* The scheduler: continuous batching. One thread of its own runs passes of mf_eval, one after the other; every pass
 * holds the next tokens of all sequences that speak and pieces of prompts that are being read.
 *
 *   sched_submit -> waiting -> loading -> reading (its prompt, in pieces) -> speaking (token by token) -> ended
 *                      |                     ^
 *                      |                     +- following: another sequence reads the same beginning; forked from it
 *                      |                                   when it gets there
 *                      +- loading: with a prompt cache on disk, what is known of the prompt is read from there (disk.h)
 *
 * Invariants:
 *   - a prompt is cut at its own marks and at multiples of the piece, whatever else runs, so that a sequence gets the
 *     same bits in any company (results depend on where a prompt is cut, in the last digits);
 *   - a sequence whose client has left is in at most the pass that is under way;
 *   - a pass holds at most one piece of a long prompt (more than a piece is left of it). While short ones are being
 *     read some passes hold none, until those have read as much as a piece or are three: a long prompt delays nobody by
 *     more than a piece, not even one that is cut at marks and takes several passes;
 *   - sessions that are not in use are given up, least recently used first, before anything fails for want of memory;
 *     then the sequence that came last gives its own up and goes on when another has ended, from what it had.
 */
#ifndef MOEFLUX_SCHEDULER_H
#define MOEFLUX_SCHEDULER_H

#include <stdatomic.h>

#include "moeflux.h"

typedef struct sched sched;

typedef enum seq_state { SEQ_WAITING, SEQ_LOADING, SEQ_FOLLOWING, SEQ_READING, SEQ_SPEAKING, SEQ_ENDED } seq_state;

/* One reply on its way. Made by whoever makes the reply, then the scheduler's. */
typedef struct seq {
    /* of the maker */
    void *owner;
    int index;                        /* which of the owner's */
    struct letter *held, **held_tail; /* events that were made while it was stepped; the owner's */
    const atomic_bool *cancelled;     /* the client has left */
    uint64_t client;                  /* whom it belongs to, for fairness */
    mf_reply *reply;                  /* made with fn = sched_on_event, user = the seq */
    bool prompt_logprobs;             /* report the prompt's tokens too; fresh then */
    bool fresh;                       /* nothing of the prompt is taken from elsewhere, and nothing is kept of it */
    int n_top;                        /* likeliest tokens of each */
    /* of the scheduler */
    sched *sched;
    struct seq *next;
    seq_state state;
    mf_reply_prompt prompt;
    mf_session *session;
    int64_t pos, n_reused; /* tokens of the prompt that the session holds; that nobody had to evaluate */
    int64_t n_held;        /* ... of which the session had these by itself */
    int64_t n_memory;      /* ... and the cache's memory these, before the disk was asked */
    struct seq *next_load; /* disk.c */
    mf_status loaded;      /* what came of that */
    mf_error load_error;
    const int32_t *tokens; /* speaking: to be evaluated next; the reply's */
    size_t n_tokens;
    struct seq *leader; /* following */
    int64_t fork_at;
    double submitted;
    const float *logits; /* speaking: of what was evaluated last, until the reply has been stepped */
    mf_status stepped;   /* what came of that */
    mf_error step_error;
    bool stepping;    /* its events come from the thread that steps it, and wait for `deliver` */
    bool paused;      /* no memory: until another one ends */
    int64_t n_prompt; /* tokens that were asked: prompt, until... */
    int32_t *again;   /* ... it gave up its session: all that it held, which is its prompt now; NULL: it did not */
    bool yielded;     /* not before another one has ended */
    int64_t turn;     /* when a piece of a long prompt was read last, or it began to be */
    int64_t arrived;  /* when it came, counted in sequences that had their turn */
} seq;

typedef enum sched_event_kind {
    SCHED_STARTED,      /* the prompt is being read: n_prompt, n_reused */
    SCHED_PROGRESS,     /* n_read of n_prompt, and about how long it still takes */
    SCHED_PROMPT_TOKEN, /* with prompt_logprobs: token, which was given; logprob and top but for the first */
    SCHED_REPLY,        /* reply: what the model said */
    SCHED_ENDED         /* result; or status and error. The last of a sequence */
} sched_event_kind;

typedef struct sched_event {
    sched_event_kind kind;
    int64_t n_prompt, n_reused, n_read;
    double seconds;        /* STARTED, PROGRESS: to go, 0 where nothing is known yet */
    int64_t bytes;         /* ... of experts to be read from the drive meanwhile, about */
    const mf_event *reply; /* PROMPT_TOKEN, REPLY; valid during the call */
    mf_reply_result result;
    mf_status status;
    const char *error;
} sched_event;

typedef struct sched_options {
    mf_model *model;
    int32_t n_ctx;    /* of a session; 0: the model's */
    int32_t piece;    /* tokens of prompts in one pass */
    int max_running;  /* sequences that read or speak, 1..64 */
    int max_sessions; /* those that are kept for later included */
    int n_steppers;   /* threads that step replies, besides the scheduler's */
    bool disk;        /* the model's prompt cache is on disk, too */
    /* On the scheduler's thread; while the sequence is stepping, on any: events then wait for deliver, so that those of
     * several sequences come in the same order every time. */
    void (*event)(void *user, seq *s, const sched_event *e);
    void (*deliver)(void *user, seq *s);                                     /* on the scheduler's thread */
    void (*said)(void *user, const int32_t *ids, size_t n_prompt, size_t n); /* what a session holds at the end */
    void (*flush)(void *user);                                               /* a pass is over: its events can go out */
    void *user;
} sched_options;

mf_status sched_create(const sched_options *opt, sched **out, mf_error *err); /* starts the thread */
/* Ends what runs (each with its event, MF_END_CANCELLED), then the thread. NULL is fine. */
void sched_stop(sched *s);
void sched_free(sched *s); /* ... and waits for states that are still being written. NULL is fine */

seq *seq_create(void *owner, int index, const atomic_bool *cancelled, uint64_t client);
void seq_free(seq *s); /* with its reply; only before it was submitted. NULL is fine */
mf_status sched_on_event(void *seq_user, const mf_event *event);

void sched_submit(sched *s, seq *const *seqs, int n); /* together, in order */

#define SCHED_BATCH_BUCKETS 7 /* 1, 2, 4, 8, 16, 32, 64 sequences */

typedef struct sched_stats {
    int waiting, running, idle_sessions;
    int64_t passes, prompt_tokens, reused_tokens, made_tokens;
    /* prompts by where their beginning was known from */
    int64_t reused_session, reused_memory, reused_disk, reused_fork;
    int64_t sessions_dropped, yielded;
    int64_t batch[SCHED_BATCH_BUCKETS]; /* passes by sequences in them */
    int64_t batch_sum;                  /* sequences of all passes */
    double pass_seconds, step_seconds;  /* all of them; and what replies took between them */
} sched_stats;
void sched_stats_get(sched *s, sched_stats *out); /* any thread; zeros for NULL */

#endif
