/* The store's private structures.
 *
 * Where a store stands on another the lock of the upper one is taken first.
 *
 *   slot     room for one expert. Streaming: in the arena or in a slab. Mapped: the expert's place in the mapped file.
 *   read     a part of one expert's bytes: the unit of reading, so that a demand never waits behind a large prefetch
 *   feed     what I/O engines pull reads from: demanded slots first, then predictions when nothing is demanded, then,
 *            where all experts fit, those that nobody has asked for yet
 *
 *   FREE --claim--> READING --last read--> READY --evict--> FREE
 *                      \--a read failed--> FAILED --last unpin--> FREE
 *
 * Invariants, whenever the lock is free (mf__store_check):
 *   1. where[key] is a slot s in READING or READY with slots[s].key == key, or -1; every such slot is found that way.
 *   2. A FREE slot has no key and no pins.
 *   3. A slot's pins are the wanted experts of running turns that are claimed and not done; so no turns, no pins.
 *   4. Slots at or above the limit are FREE unless they are pinned or being read, and n_over counts those.
 *   5. Tables and slots below the limit, in whole huge pages, fit in the budget less what is lent; n_over == 0 means
 *      that nothing else of the arena is in memory. Slabs: those that are taken fit in it when n_over == 0, and a slot
 *      that is not FREE lies in one of them. While somebody holds the whole the limit stays as it was.
 *   6. A READING slot has finished <= issued <= n_reads, and is in a queue exactly when it has reads to issue (after
 *      an error there are none).
 *   7. A queued slot is in the demand queue exactly when it is pinned.
 *   8. The counts of reads in flight are the sums over READING slots of issued - finished.
 *   9. n_ready counts the READY slots; it is n_real while somebody holds the whole, unless that reaches below.
 *  10. n_ready_unused counts the READY slots that were predicted and not yet wanted. */
#ifndef MF_STORE_INTERNAL_H
#define MF_STORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/pages.h"
#include "store/policy.h"
#include "store/store.h"
#include "store/trial.h"

#define MF_HUGE ((int64_t)MF_HUGE_PAGE)
#define MF_BLOCK 4096 /* alignment of direct reads */
#define MF_LANE_STORES 4

typedef enum mf__slot_state { MF_SLOT_FREE, MF_SLOT_READING, MF_SLOT_READY, MF_SLOT_FAILED } mf__slot_state;

typedef struct mf__slot {
    uint8_t state;  /* mf__slot_state */
    int8_t who;     /* predictor that had it read and whose guess nobody has wanted yet; -1: wanted */
    int8_t queue;   /* 0 demand, 1 prefetch, -1 none */
    int32_t pins;   /* turns that want it */
    int32_t issued; /* reads handed to the engine */
    int32_t finished;
    int32_t prev, next; /* in its queue; -1 at the ends */
    /* a failure */
    int error;          /* errno; -1: the file ended */
    int32_t error_file; /* which one */
    int64_t error_offset;
    mf_error *why; /* of a store on another, instead of these; NULL: no memory for it */
} mf__slot;

typedef struct mf__queue {
    int32_t head, tail; /* -1: empty */
} mf__queue;

/* One open expert file. */
typedef struct mf__expert_file {
    char *path; /* NULL: this directory has no such layer */
    int fd;     /* through the page cache */
    int direct; /* past it; -1: not open */
    mf__map map;
    int guard; /* of the map; -1: none */
    /* what it was like, to notice that somebody replaced it in place */
    struct timespec mtime; /* under the store's lock */
    uint64_t sample;
} mf__expert_file;

/* A read to be done: bytes at offset of the file into `to`; the first `need` must arrive. */
typedef struct mf__read {
    int32_t slot, file;
    mf__key key;
    int fd, fd_buffered; /* the second is for what direct reads cannot do */
    bool direct, mapped, demanded;
    uint8_t *to;
    int64_t offset, bytes, need;
    int64_t began_ns;
} mf__read;

typedef struct mf__guess {
    mf__key key; /* -1: withdrawn */
    int8_t who;
} mf__guess;

/* How a predictor does; see store/predict.c. */
typedef struct mf__track {
    int window_total, window_good; /* reads of the current window that are settled */
    int resting;                   /* hints to ignore before it may try again; 0: at work */
    int rest;                      /* length of its last rest */
    bool sure;                     /* nearly all reads of the window before were wanted */
} mf__track;

typedef struct mf__io mf__io;

/* What a store has seen of its drive since it was opened. */
typedef struct mf__drive_seen {
    int64_t bytes, ns;     /* read, and how long reads were under way */
    int64_t reads, depths; /* and under way at each one's end, in sum */
} mf__drive_seen;

/* A drive's queue, which stores beside each other share. Its counts are changed with the lock of a store held, not of
 * all: a read too many at a time does no harm. */
typedef struct mf__lane {
    pthread_mutex_t lock; /* of the list; taken before a store's lock, never with one held */
    mf__store *stores[MF_LANE_STORES];
    atomic_int n_stores;
    atomic_int in_flight[2];             /* reads: for demands, for guesses */
    atomic_int waiting;                  /* slots in demand queues */
    atomic_llong busy_ns, busy_since_ns; /* reads were in flight; and are since */
    atomic_bool off; /* reading ahead does not pay, say the passes of the store that has others beside it */
} mf__lane;

struct mf__store {
    mf__store_config config; /* after open its strings and files are not used; memory, copy, reach, fault, beside are */
    int n_layers, n_experts, n_keys, n_dirs, n_files;
    int64_t stride, bytes;
    bool mapped, direct, prefetch;
    mf_io io_kind;
    mf__store *below;   /* what stands for files; NULL: files */
    int32_t *pass_down; /* [n_experts] scratch for what is told below; under the lock */
    mf_log_sink log;
    mf__expert_file *files; /* [n_dirs][n_layers] */
    int32_t *drive_load;    /* [n_dirs] reads in flight */

    pthread_mutex_t lock; /* all that follows */
    pthread_cond_t ready; /* a slot became READY, FAILED or evictable */
    pthread_cond_t work;  /* there may be reads to take */
    bool stopping;

    /* slots */
    uint8_t *arena; /* NULL: mapped files or slabs */
    int64_t arena_bytes, slot_bytes;
    bool slabbed; /* memory comes from config.memory */
    int n_slabs, slab_slots;
    int slab_cap;    /* slots below the first slab that was refused */
    void **slabs;    /* [n_slabs] as they were given; NULL: not taken */
    int n_real;      /* experts that there are */
    int n_own;       /* ... that filling brings in */
    const bool *own; /* [n_keys] which; NULL: all. The caller's */
    int n_slots;     /* most that may ever be used */
    int limit;       /* slots that may be used now */
    int cap;         /* never more than this; 0: no such cap */
    int n_over;      /* slots at or above the limit that are still in use */
    int n_free;      /* FREE below the limit */
    int n_ready;     /* READY */
    bool evicted;    /* memory was full once */
    int scan;        /* where the search for a FREE slot goes on */
    mf__slot *slots;
    mf__key *keys;        /* [n_slots] -1: none */
    int32_t *where;       /* [n_keys] slot or -1 */
    int64_t budget;       /* in force; 0: no limit */
    int64_t budget_asked; /* what it may rise to; pressure lowers it for a while */
    int64_t budget_max;   /* what the slots were made for */
    int64_t lent, table_bytes;
    mf__ranking ranking;
    int now; /* layer of the latest turn */
    int n_ready_unused;
    int n_room_waiters;     /* turns that wait for any slot, not for experts of theirs */
    int turns_without_miss; /* in a row */

    /* logical.c */
    int32_t *logical;      /* [n_keys] place in logical_keys, -1: not in it; NULL: there is none */
    mf__key *logical_keys; /* [n_keys], the first n_logical are valid */
    int n_logical;
    uint8_t *logical_now; /* [n_experts] scratch: wanted by the turn that begins */
    float *chances;       /* [n_keys] scratch */

    /* whole: all experts in memory */
    const void **whole; /* [n_keys] where they are; NULL for layers without */
    bool whole_made;    /* and nothing was freed since */
    uint64_t whole_version;
    uint64_t below_version; /* of the table below that it was made with; 0: everything is here */
    int n_reaching;         /* holders of such a table; then all are */
    int64_t hits_rest;      /* of mf__turn_count_whole: what is left of a hit */
    bool fills_some;        /* as many as there is room for, since the store below has room for all */
    int n_holders;          /* nothing may be freed */
    int n_lenders;          /* wait for them */
    bool limit_waits;       /* too */

    /* feed */
    int read_bytes, n_reads;
    mf__queue queues[2];
    mf__lane *lane; /* its own, or that of the store beside it */
    mf__lane own_lane;
    bool follows;       /* somebody was opened beside it, whose passes are timed */
    int in_flight[2];   /* reads: for demands, for guesses */
    int depth;          /* reads in flight at most */
    int guess_depth;    /* ... of guesses */
    int sure_depth;     /* ... of anything, for a guess that is sure to begin behind them */
    int n_takers;       /* threads that take reads of a layer together */
    mf__guess *guesses; /* ring */
    int guess_cap, guess_head, n_guesses;
    bool fill_asked;
    bool filling; /* there may be experts that were never read, and there is room for all of them, if nothing is lent */
    bool pausing; /* a thread waits for the end of the demands to go on with it */
    mf__key fill_next;
    int64_t demand_ns; /* when a demand last began or was met */
    mf__io *io;

    /* predictors */
    uint8_t *foretold; /* [n_keys] bit per predictor, since the layer's last turn */
    uint8_t *spoke;    /* [n_layers] bit per predictor: it said something */
    int32_t *last_ids; /* [n_layers][last_cap] what the latest decoding turn of each layer wanted, most rows first */
    int32_t *n_last;
    int last_cap;
    mf__track tracks[MF_PREDICT_COUNT];
    int turns_since_router; /* since the better predictor spoke */
    bool always;            /* read ahead without asking whether it pays */
    uint8_t listens;        /* bit per predictor: what it says may be read */
    mf__trial trials[MF_TRIAL_SIZES];
    int pass_size;         /* which trial the latest decoding pass belongs to */
    int first_layer;       /* with experts */
    int64_t pass_began_ns; /* when it last had a decoding turn; 0: not lately */
    int64_t pass_busy_ns;  /* how long the drive had been busy until then */

    /* turns and counters */
    mf__turn *turns; /* all turn objects, for the checker */
    mf_stats stats;
    int64_t busy_from_ns; /* when the counters began */
    int64_t ceiling;      /* bytes/s the drive was measured at; 0: unknown */
    mf__drive_seen drive_seen;
    char *drive_path;    /* where that is remembered; NULL: nowhere */
    char drive_key[256]; /* ... as what */
    pthread_t watcher;   /* looks at memory pressure */
    pthread_cond_t tick; /* wakes it to stop */
    bool has_watcher;
    char root[256];
};

/* of one wanted expert */
typedef enum mf__want { MF_WANT_NONE, MF_WANT_UNCLAIMED, MF_WANT_CLAIMED, MF_WANT_GIVEN, MF_WANT_DONE } mf__want;

struct mf__turn {
    mf__store *store;
    mf__turn *prev, *next_turn;
    bool (*cancel)(void *user);
    void *cancel_user;
    int layer; /* -1: no turn */
    /* Of a store above: its wants come bit by bit, and what it foretold of a layer is judged when it says so. */
    bool partial;
    bool guess; /* ... and nobody wants them yet */
    const int32_t *wanted, *counts;
    const int32_t *used_ids, *used_counts; /* what the next turn uses, for the policy; NULL: what it begins with */
    int n_used;
    int n, n_tokens;
    int n_single;                                /* of them, single tokens of sequences that go on: decoding */
    int single;                                  /* as set for turns to come; -1: the one token of a turn of one */
    int n_unclaimed, n_claimed, n_given, n_done; /* sum up to n */
    int64_t mark;                                /* of mf__files_before */
    int n_window;                                /* claimed because they were not there, and not done */
    uint8_t *want;                               /* [n_experts] mf__want of wanted[i] */
    bool *missed;                                /* [n_experts] wanted[i] counts in n_window */
    int8_t *by;        /* [n_experts] who had foretold wanted[i], which was late; -1: nobody */
    int64_t waited;    /* ns since experts were last given out */
    int32_t *slot_of;  /* [n_experts] of wanted[i], while claimed or given */
    int32_t *index_of; /* [n_experts] i of an id; valid for wanted ids only */
    mf_stats stats;
};

/* What becomes of a read of n bytes; n, but for tests. */
static inline int64_t mf__read_fate(const mf__store *s, int64_t n) {
    return s->config.fault ? s->config.fault(s->config.fault_user, n) : n;
}

/* files.c */
mf_status mf__files_open(mf__store *s, const mf__store_config *config, mf_error *err);
mf_status mf__files_direct(mf__store *s); /* opens for direct reads; MF_E_UNSUPPORTED where the file system refuses */
mf_status mf__files_map(mf__store *s, mf_error *err);
void mf__files_close(mf__store *s);
int64_t mf__files_total(const mf__store *s); /* bytes of all layers, each once */
bool mf__files_has(const mf__store *s, int layer);
/* before: the layer's files are still those that were opened. Mapped ones, where a read beyond the end would be a
 * signal, are as long as they must be, and mapped anew if some of them was lost; the mark is for after: nothing was
 * lost since. */
mf_status mf__files_before(mf__store *s, int layer, int64_t *mark, mf_error *err);
mf_status mf__files_after(const mf__store *s, int layer, int64_t mark, mf_error *err);

/* slots.c; the lock is held */
mf_status mf__slots_create(mf__store *s, mf_error *err);
void mf__slots_free(mf__store *s);
void *mf__table(mf__store *s, size_t count, size_t size); /* calloc that counts in table_bytes */
uint8_t *mf__slot_blob(const mf__store *s, int32_t slot); /* where the expert's first byte is */
int mf__slots_limit(const mf__store *s);                  /* slots that budget and loans allow */
void mf__slots_apply_limit(mf__store *s);
/* Up to n slots that may be overwritten, best first, FREE on return. guess: for a prediction. */
int mf__slots_make_room(mf__store *s, int n, bool guess, int32_t *out);
int mf__slots_find_free(mf__store *s, int n, int32_t *out); /* the part of it that throws nothing out */
/* READING, queued; demand: pinned by the turn that wants it, otherwise who foretold it (-1: nobody). */
void mf__slot_start(mf__store *s, int32_t slot, mf__key key, bool demand, int who);
void mf__slot_unpin(mf__store *s, int32_t slot);
void mf__slot_free(mf__store *s, int32_t slot);    /* from any state; not pinned, not in flight */
void mf__slot_promote(mf__store *s, int32_t slot); /* a guess that is wanted now */
void mf__slot_settle(mf__store *s, int32_t slot, bool good);

/* logical.c; the lock is held */
mf_status mf__logical_create(mf__store *s, mf_error *err);
void mf__logical_free(mf__store *s);
void mf__logical_use(mf__store *s, int layer, const int32_t *ids, int n); /* a turn of s->now wants them */
bool mf__logical_has(const mf__store *s, mf__key key);

/* memory.c; the lock is held */
void mf__slot_memory_plan(mf__store *s); /* slot_bytes and what belongs to it */
mf_status mf__slot_memory_create(mf__store *s, mf_error *err);
void mf__slot_memory_free(mf__store *s);
int64_t mf__slot_memory_fit(const mf__store *s, int64_t bytes);   /* slots with which tables fit in bytes */
int64_t mf__slot_memory_limit(const mf__store *s, int64_t bytes); /* ... of those that there are */
int64_t mf__slot_memory_least(const mf__store *s);                /* bytes that still have a slot, or a slab of them */
int64_t mf__slot_memory_bytes(const mf__store *s);                /* what is taken now, tables included */
uint8_t *mf__slot_memory_at(const mf__store *s, int32_t slot);    /* where a slot begins */
bool mf__slot_memory_back(mf__store *s, int32_t slot); /* before it is used; false: no memory, and the limit is lower */
void mf__slot_memory_return(mf__store *s, int32_t slot); /* FREE and above the limit */
void mf__slot_memory_retry(mf__store *s);                /* what was refused may be had now */
int mf__slab_end(const mf__store *s, int slab);          /* first slot after it */

/* feed.c: what I/O engines call */
bool mf__feed_take(mf__store *s, bool wait, mf__read *out); /* false: nothing (or, with wait, the store is closing) */
void mf__feed_finish(mf__store *s, const mf__read *read, int error, int64_t error_offset);
/* Waits for reads of one layer that are queued together, a share of them where several take; 0: the store is closing.
 */
int mf__feed_take_layer(mf__store *s, mf__read *out, int most);
void mf__feed_fail(mf__store *s, const mf__read *read, const mf_error *why); /* finish, where it has a sentence */
void mf__feed_wake(mf__store *s);           /* the lock is held: there may be reads to take */
bool mf__feed_may_fill(const mf__store *s); /* ... also when nobody wants any */
void mf__feed_refill(mf__store *s);         /* there is room again: what was thrown out comes back, if that was asked */
void mf__queue_push(mf__store *s, int which, int32_t slot, bool front);
void mf__queue_remove(mf__store *s, int32_t slot);

/* lane.c */
mf_status mf__lane_join(mf__store *s, mf_error *err);    /* s->config.beside's, or its own */
void mf__lane_leave(mf__store *s);                       /* nobody beside it wakes it any more */
void mf__lane_free(mf__store *s);                        /* and nothing of it is in flight any more */
void mf__lane_begin(mf__store *s, const mf__read *read); /* the store's lock is held, here and below */
void mf__lane_end(mf__store *s, const mf__read *read, int64_t now);
int64_t mf__lane_busy_ns(const mf__store *s, int64_t now); /* of all time until now */
int64_t mf__lane_busy_since_ns(const mf__store *s);        /* 0: nothing is in flight */
void mf__lane_wake_others(mf__store *s); /* no lock is held: there is room, or no demand waits any more */

/* predict.c; the lock is held */
void mf__predict_begin(mf__store *s, const mf__turn *t); /* what was foretold against what is wanted */
void mf__predict_tell_below(mf__store *s, int layer, const int32_t *ids, int n); /* and what the store below will see */
void mf__predict_used(mf__store *s, int32_t slot);                               /* a guess, if it is one, came true */
void mf__predict_unwanted(mf__store *s, int layer);        /* guesses about a layer that its turn did not want */
void mf__predict_next_layer(mf__store *s, int layer);      /* what the pass before wanted of the following layer */
void mf__predict_settle(mf__store *s, int who, bool good); /* one read of a predictor turned out so */
void mf__predict_hint(mf__store *s, int who, int layer, const int32_t *ids, int n);
void mf__predict_forget(mf__store *s);
bool mf__predict_active(const mf__store *s, int who);

/* I/O engines: threads that take reads, do them, and finish them. */
struct mf__io {
    const char *name;
    void (*wake)(mf__io *io); /* the store's lock is held */
    void (*free)(mf__io *io); /* joins the threads; the store is stopping, and wake was called */
};

mf_status mf__io_pread_create(mf__store *s, int n_threads, mf__io **out, mf_error *err);
/* MF_E_UNSUPPORTED where the build, the kernel or a sandbox does not have it. */
mf_status mf__io_uring_create(mf__store *s, int depth, mf__io **out, mf_error *err);

/* With turns of the store below. */
mf_status mf__io_below_create(mf__store *s, int n_threads, mf__io **out, mf_error *err);

/* pressure.c: gives memory back when the machine or our group runs short. No lock held. */
void mf__pressure_poll(mf__store *s);
void mf__pressure_watch(mf__store *s); /* starts a thread that polls; where it cannot, nobody does */
void mf__pressure_unwatch(mf__store *s);

/* drive.c: how fast the drive is, measured or remembered. */
typedef struct mf__drive {
    int64_t direct, buffered, uring; /* bytes/s with pread past and through the page cache, with io_uring; 0: cannot */
} mf__drive;

mf_status mf__drive_measure(mf__store *s, mf__drive *out, mf_error *err);
/* Whether to read past the page cache, which could have `beside` bytes for the `total` bytes of all files. */
bool mf__drive_direct_pays(const mf__drive *drive, int64_t beside, int64_t total);
/* Whether a run, past the page cache or through it, says clearly that the drive has another speed than was measured. */
bool mf__drive_contradicted(int64_t ceiling, bool direct, const mf__drive_seen *seen);
void mf__drive_review(mf__store *s); /* then what is remembered is forgotten; at close */

#endif
