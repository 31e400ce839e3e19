/* The engine's private structures: the one place where graphs, backend, weights and store meet. */
#ifndef MF_ENGINE_INTERNAL_H
#define MF_ENGINE_INTERNAL_H

#include <pthread.h>

#include "backend/backend.h"
#include "base/arena.h"
#include "base/log.h"
#include "model/family.h"
#include "moeflux.h"
#include "store/store.h"
#include "weights/native.h"

/* The tensors of one graph in one layer, in the order of graph->weights. */
typedef mf__tensor *mf__weight_set;

/* Positions of a KV page. */
#define MF_KV_BLOCK 256
/* Rows of logits computed at a time. */
#define MF_TAIL_ROWS 16
/* Left for the program itself: code, tables, threads' stacks. */
#define MF_PROGRAM_BYTES ((int64_t)48 << 20)
/* Sessions evaluated in one pass. */
#define MF_MAX_BATCH MF_MAX_PARTS

/* The model's lock: first come, first served, so that whoever evaluates a long prompt chunk by chunk lets the others in
 * between. */
typedef struct mf__ticket_lock {
    pthread_mutex_t mutex;
    pthread_cond_t turn;
    uint64_t next, serving;
    bool made;
} mf__ticket_lock;

/* KV pages by number. A page is one piece of backend memory with a block for every layer that keeps KV. */
typedef struct mf__kv_pool {
    int64_t page_bytes;
    int64_t *layer_off; /* [n_layers] bytes into a page; -1: the layer keeps none */
    int32_t capacity;   /* numbers that there are */
    int32_t n_free;
    int32_t *free_numbers; /* [capacity], the first n_free are valid */
    char **mem;            /* [capacity] on the host ... */
    char **table;          /* ... and in the backend's memory, as runs read it */
} mf__kv_pool;

/* Runs that were not submitted yet, with all that they point to. */
typedef struct mf__run_list {
    mf__run *runs; /* [max_runs] */
    void **bufs;   /* [max_runs][MF_MAX_BUFS] */
    int n_runs, max_runs;
    mf__segment *segs; /* [max_segs] */
    mf__layer_state *states;
    int n_segs, max_segs;
    mf__fence fence; /* of what was submitted last */
} mf__run_list;

/* Small copies of experts in a model's directory. */
#define MF_SMALL_SET "experts_2bit"
#define MF_SMALL_DIR "packed_experts_2bit"

typedef struct mf__lossy mf__lossy;

/* Where evaluation happens: one per model, used under its lock, as large as the largest pass. */
typedef struct mf__workspace {
    int32_t n_rows; /* capacity; 0: not made yet */
    void *ports[MF_PORT_COUNT];
    int32_t port_cols[MF_PORT_COUNT];
    int64_t port_bytes[MF_PORT_COUNT], scratch_bytes;
    int64_t reserved;  /* bytes of the backend's own scratch */
    int64_t staged;    /* ... for experts on their way */
    void *scratch;     /* coloured buffers of whichever graph runs */
    float *probe_rows; /* host copy for probes */
    mf__run_list list;
    /* host side of an expert turn */
    int32_t *route_ids; /* [n_rows][top_k] */
    int32_t *n_wanting; /* [n_experts] rows that want each expert */
    int32_t *wanted;    /* [n_experts] distinct ids of this pass */
    int32_t *counts;    /* [n_experts] rows that want wanted[i] */
    int32_t *ahead;     /* [n_experts] that a later layer may want */
    int32_t *ready;     /* [n_experts] */
    const void **ready_blobs;
    const void **bank; /* [n_experts] */
    mf__bank *banks;   /* [n_layers] of a pass without turns */
    /* what those see who compute experts elsewhere; NULL: there are none */
    float *away_rows;     /* [n_rows][n_hidden] */
    int32_t *away_row_of; /* [n_rows] where they lie in the ports */
    int32_t *away_ids;    /* [n_rows][top_k] */
    int32_t *away_wanted, *away_counts;
    bool *taken;          /* [n_experts] */
    bool *away_put;       /* [n_rows][top_k] pairs that came back */
    int64_t n_away_pairs; /* [n_rows][top_k] of the layer under way ... */
    int64_t n_away_due;   /* ... and those that must still come back */
    int64_t away_bytes;   /* of these and of messages; the host's */
} mf__workspace;

struct mf_model {
    mf_model_info info;
    mf_log_sink log;
    mf_route_sink routes;
    mf_elsewhere elsewhere;                   /* engine/elsewhere.c */
    bool away;                                /* a begin was not finished yet */
    bool experts_only;                        /* no resident weights, no sessions */
    int64_t message_bytes, message_row_bytes; /* of messages: once, and per row of a pass */
    bool *own;                                /* [n_layers][n_experts] that are computed here; NULL: nobody said */
    int32_t *n_asking;                        /* [n_experts] rows of others that want each; NULL: nobody asked yet */
    mf__arena arena;                          /* names, weight sets, vectors as F32 */
    mf__native native;
    mf__blueprint bp;
    mf__type kv_type; /* of KV rows */
    mf__expert_layout layout;
    mf__pool *pool;
    mf__backend *be;
    const mf__backend_kind *be_kind;
    mf__store_config store_config; /* of host_store, as it was opened; its files live in the arena */
    mf__store_config small_config; /* ... of that of small copies (engine/lossy.h); bytes 0: there are none */
    double small_part;             /* of experts_budget, for them */
    int64_t experts_budget;        /* what experts and sessions may take of the host's memory; 0: no limit */
    mf__store *store, *host_store; /* engine/tiers.c */
    bool reaches_host;             /* the device reads experts in host_store where they are, if it must */
    pthread_mutex_t store_lock;    /* of the two pointers, for those who do not hold the model's lock */
    _Atomic int64_t lent;          /* bytes taken out of the store's budget; changes under lock */
    mf__turn *turn;                /* the one whose turn it is; under lock */
    mf__lossy *lossy;              /* NULL: results are the model's (engine/lossy.h) */
    mf__weight_set embed, tail;
    mf__weight_set (*layers)[MF_LAYER_GRAPHS]; /* [n_layers] */
    mf__weight_set *ahead;                     /* [n_layers] of both lookahead graphs, taken from mix; NULL: none */
    int64_t *conv_off, *delta_off;             /* [n_layers] floats into a session's recurrent state */
    int64_t recurrent_floats;                  /* of one session */
    mf__workspace ws;
    struct mf__cache *cache;          /* NULL: none */
    struct mf__snapshot_shape *shape; /* what snapshots of this model must fit; made when first needed ... */
    pthread_mutex_t shape_lock;       /* ... under this */
    struct mf__profile *profile;      /* since the last start (profile.c); NULL: there was none */
    mf__ticket_lock lock;             /* held during a pass, and while pages change hands; never over file I/O */
    mf__kv_pool kv;
};

/* engine/lock.c */
mf_status mf__model_lock_init(mf_model *m, mf_error *err);
void mf__model_lock_deinit(mf_model *m);
void mf__model_lock(mf_model *m);
void mf__model_unlock(mf_model *m);

/* engine/expert_files.c: files[d * n_layers + l], in the arena. The model's own directory comes last, for the layers
 * that no named directory has. */
mf_status mf__expert_files_find(mf_model *m, const mf_model_options *opt, const char ***out, mf_error *err);

/* engine/tiers.c */
mf_status mf__model_open_stores(mf_model *m, const mf_model_options *opt, mf_error *err);
void mf__model_close_stores(mf_model *m);
void mf__model_fill_stores(mf_model *m); /* there is somebody to want the experts: the idle drive may read them */
/* Takes bytes out of the budget of the memory that the backend computes in; cached prompts give way. Under lock, not in
 * a pass. */
mf_status mf__model_lend(mf_model *m, int64_t bytes, mf_error *err);
void mf__model_return(mf_model *m, int64_t bytes);
/* The same of the host's memory, where the backend has its own. */
mf_status mf__model_lend_host(mf_model *m, int64_t bytes, mf_error *err);
void mf__model_return_host(mf_model *m, int64_t bytes);
mf_status mf__model_store_plan(mf_model *m, const mf_model_options *opt,
                               mf_error *err); /* store_config, all but the budget */
int64_t mf__model_trunk_bytes(const mf_model *m);

/* engine/model.c. open_parts: files, config, graphs and backend; nothing is read yet. measure: how large experts,
 * states and pages are. */
mf_status mf__model_open_parts(mf_model *m, const char *dir, const mf_model_options *opt, mf_error *err);
mf_status mf__model_measure(mf_model *m, mf_error *err);
mf_status mf__model_options_check(const mf_model_options *opt, mf_error *err);

/* engine/needs.c. What n_tokens in chunks of n_chunk need; store_config has been planned. */
mf_status mf__memory_count(const mf_model *m, int64_t n_tokens, int32_t n_chunk, mf_memory_needs *out, mf_error *err);
/* The smallest experts_budget that leaves `beside` bytes for others than experts. */
mf_status mf__experts_least(const mf_model *m, int64_t beside, int64_t *out, mf_error *err);
/* MF_E_NOMEM, with what this session would need to hold n_tokens, and the ways out. */
mf_status mf__memory_error(const mf_session *s, int64_t n_tokens, mf_error *err);
/* Backend memory that comes out of the model's memory budget; cached prompts give way. Under lock, not in a pass. */
mf_status mf__model_alloc(mf_model *m, int64_t bytes, void **out, mf_error *err);
void mf__model_release(mf_model *m, int64_t bytes, void *mem); /* NULL is fine */

/* engine/bind.c: finds every tensor the blueprint wants, checks shapes, widens vectors. */
mf_status mf__model_bind(mf_model *m, mf_error *err);

/* ---- state ---------------------------------------------------------------------------------------------------------
 *
 * KV lives in pages of MF_KV_BLOCK positions, each with a block per layer that keeps KV. Pages are shared between
 * sessions and frozen states and counted; a session writes only into pages that it alone holds (mf__session_make_room
 * copies the others first).
 *
 * Recurrent state is one run of floats, kept twice: half `now` is what the sequence has; the other receives what a call
 * computes, and they trade places when the whole call has succeeded. */

typedef struct mf__page {
    int refs;
    int32_t number; /* in the pool */
    bool mark;      /* scratch of whoever counts pages */
} mf__page;

/* A state that nobody changes: what checkpoints, forks and the prompt cache hold. */
typedef struct mf__frozen {
    int refs;
    int64_t length;
    int32_t *tokens; /* [length] */
    int32_t n_pages;
    mf__page **pages;
    float *recurrent; /* backend memory; NULL when the model has none */
} mf__frozen;

struct mf_session {
    mf_model *model;
    mf_session_options opt;
    int64_t length;  /* tokens held */
    int32_t *tokens; /* [n_ctx], the first `length` are valid */
    int32_t n_pages;
    mf__page **pages;    /* [capacity for n_ctx] */
    int32_t *numbers;    /* [capacity] of the pages, on the host ... */
    int32_t *page_table; /* ... and in the backend's memory, all but [stale_from, stale_to) */
    int64_t page_table_bytes;
    int32_t stale_from, stale_to;
    float *recurrent[2];
    int now;                  /* which half is current */
    mf__frozen **checkpoints; /* in order of saving */
    int n_checkpoints, max_checkpoints;
    mf_stats stats;
};

/* engine/kv_pool.c; under lock */
mf_status mf__kv_pool_init(mf_model *m, mf_error *err);
void mf__kv_pool_deinit(mf_model *m);
mf_status mf__kv_pool_plan(mf_model *m, mf_error *err);                   /* how pages are laid out */
int64_t mf__kv_pool_first_bytes(const mf_model *m);                       /* that init takes */
char *mf__page_block(const mf_model *m, const mf__page *page, int layer); /* the layer's K rows, in backend memory */
mf_status mf__page_create(mf_model *m, mf__page **out, mf_error *err);
mf_status mf__page_copy(mf_model *m, const mf__page *from, mf__page **out, mf_error *err);
void mf__page_release(mf_model *m, mf__page *page); /* one reference less */
mf__kv mf__kv_bind(const mf_model *m, const int32_t *page_table, int layer);

/* engine/memory.c */
/* Room for positions up to n_tokens, with the pages from `length` on owned by this session alone; zeroed recurrent
 * state when the sequence is empty. Under lock. */
mf_status mf__session_make_room(mf_session *s, int64_t n_tokens, mf_error *err);
void mf__session_set_page(mf_session *s, int32_t i, mf__page *page); /* does not count */
mf_status mf__session_sync_pages(mf_session *s, mf_error *err);      /* the page table, as runs are to see it */
/* fresh: reads the current half of the recurrent state; else goes on in the other. Always writes the other. */
void mf__session_bind_state(mf_session *s, int layer, bool fresh, mf__layer_state *out);
void mf__session_commit(mf_session *s, const int32_t *tokens, int64_t n);

/* engine/freeze.c */
mf_status mf__freeze(mf_session *s, mf__frozen **out, mf_error *err);             /* under lock */
mf_status mf__thaw(mf_session *s, const mf__frozen *f, int64_t n, mf_error *err); /* the first n tokens; under lock */
void mf__frozen_free(mf_model *m, mf__frozen *f); /* one reference less; under lock; NULL is fine */
void mf__frozen_drop(mf_model *m, mf__frozen *f); /* the same, taking the lock */

/* engine/state.c */
void mf__checkpoints_drop_all(mf_session *s); /* under lock */

/* engine/workspace.c */
mf_status mf__workspace_reserve(mf_model *m, int32_t n_rows, mf_error *err); /* under lock */
void mf__workspace_free(mf_model *m);
int64_t mf__workspace_bytes(const mf_model *m, int32_t n_rows); /* of the backend's memory */

/* ---- evaluation ---- */

/* What one session has in a pass. */
typedef struct mf__pass_part {
    mf_session *session;
    const int32_t *tokens; /* [n_rows] */
    int32_t n_rows;
    int64_t pos;      /* of the first row */
    float *logits;    /* [n_logits][n_vocab] */
    int32_t n_logits; /* of the last rows */
    bool fresh;       /* begins at the committed state; else goes on from the pass before */
    bool (*cancel)(void *user);
    void *cancel_user;
    bool cancelled; /* out */
    int32_t row0;   /* set by the pass */
} mf__pass_part;

/* Rows of several sequences, evaluated together. */
typedef struct mf__pass {
    mf_model *model;
    mf__pass_part *parts; /* [n] */
    int n;
    int32_t n_rows;           /* in all */
    const void *const *whole; /* [n_layers][n_experts] where all experts are at hand for the whole pass; else NULL */
    uint64_t whole_version;
    bool experts_alone; /* rows of somebody else's, of one layer: no choices at a loss, nothing to look ahead from */
} mf__pass;

/* Consecutive rows of the pass. */
typedef struct mf__range {
    int32_t first, n;
} mf__range;

/* Rows in order; those of one kind that follow one another are one range. */
typedef struct mf__rows {
    mf__range r[MF_MAX_BATCH];
    int n;
    int32_t n_rows; /* in all */
} mf__rows;

/* engine/lossy_open.c: what small copies cost, and what was decided, into the model's counters; NULL is fine. */
void mf__lossy_stats_add(mf__lossy *lossy, mf_stats *out);
void mf__lossy_stats_reset(mf__lossy *lossy);

/* engine/stats.c. turns: what the model's turns took so far, those of small copies included. pass: what those of a pass
 * took, into every session of it. */
void mf__stats_turns(const mf_model *m, mf_stats *out);
void mf__stats_pass(const mf__pass *pass, const mf_stats *before);

/* engine/forward.c; under lock. A part that is cancelled is computed to the end with the others, and marked; the pass
 * fails with MF_E_CANCELLED once all of them are. */
mf_status mf__forward(mf__pass *pass, mf_error *err);
/* The experts in ws->wanted (their ws->counts too) over the rows that are in the ports. */
mf_status mf__forward_experts(mf_model *m, int layer, int32_t n_rows, int n_wanted, mf_error *err);
/* ws->n_wanting: how many of the first n_rows of ws->route_ids want each expert. */
void mf__count_routes(mf_model *m, int32_t n_rows);
/* One layer over the rows that are in the HIDDEN port; all of them go through. */
mf_status mf__forward_layer(mf__pass *pass, int layer, mf_error *err);

/* engine/eval.c */
mf_status mf__check_tokens(const mf_session *s, const int32_t *tokens, size_t n, mf_error *err);

#endif
