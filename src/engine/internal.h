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

/* Rows of a KV block: what a page holds of one layer. */
#define MF_KV_BLOCK 256
/* Rows of logits computed at a time. */
#define MF_TAIL_ROWS 8
/* Sessions evaluated in one pass. */
#define MF_MAX_BATCH 64

/* Where evaluation happens: one per model, used under its lock, as large as the largest chunk of its sessions. */
typedef struct mf__workspace {
    int32_t n_rows; /* capacity; 0: not made yet */
    void *ports[MF_PORT_COUNT];
    int32_t port_cols[MF_PORT_COUNT];
    int64_t port_bytes[MF_PORT_COUNT], scratch_bytes;
    int64_t reserved;  /* bytes of the backend's own scratch */
    void *scratch;     /* coloured buffers of whichever graph runs */
    float *probe_rows; /* host copy for probes */
    /* host side of an expert turn */
    int32_t *route_ids; /* [n_rows][top_k] */
    int32_t *n_wanting; /* [n_experts] rows that want each expert */
    int32_t *wanted;    /* [n_experts] distinct ids of this chunk */
    int32_t *counts;    /* [n_experts] rows that want wanted[i] */
    int32_t *ready;     /* [n_experts] */
    const void **ready_blobs;
    const void **bank; /* [n_experts] */
    bool apart;        /* the pass has one row of each sequence */
    /* one per sequence in the pass */
    mf__segment segs[MF_MAX_BATCH];
    mf__layer_state states[MF_MAX_BATCH];
} mf__workspace;

struct mf_model {
    mf_model_info info;
    mf_log_sink log;
    mf_route_sink routes;
    mf__arena arena; /* names, weight sets, vectors as F32 */
    mf__native native;
    mf__blueprint bp;
    mf__type kv_type; /* of KV rows */
    mf__expert_layout layout;
    mf__pool *pool;
    mf__backend *be;
    mf__store_config store_config; /* as the store was opened; its files live in the arena */
    mf__store *store;
    mf__turn *turn; /* the one whose turn it is; under lock */
    mf__weight_set embed, tail;
    mf__weight_set (*layers)[MF_LAYER_GRAPHS]; /* [n_layers] */
    mf__weight_set *ahead;                     /* [n_layers] of the lookahead graph, taken from mix; NULL: none */
    int64_t *conv_off, *delta_off;             /* [n_layers] floats into a session's recurrent state */
    int64_t recurrent_floats;                  /* of one session */
    mf__workspace ws;
    struct mf__cache *cache;          /* NULL: none */
    struct mf__snapshot_shape *shape; /* what snapshots of this model must fit; made when first needed, under lock */
    struct mf__profile *profile;      /* who watches the backend adds to it; NULL: nobody */
    pthread_mutex_t lock;             /* held while anything evaluates, and while pages change hands */
    bool lock_made;
};

/* engine/experts.c */
mf_status mf__model_open_store(mf_model *m, const mf_model_options *opt, mf_error *err);
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
    bool mark;   /* scratch of whoever counts pages */
    void *mem[]; /* [n_layers]: MF_KV_BLOCK rows of K, then of V (quant/kv.h); NULL where a layer keeps no KV */
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
    mf__page **pages; /* [capacity for n_ctx] */
    void ***blocks;   /* [n_layers][capacity]: the pages' memory, as backends want it */
    float *recurrent[2];
    int now;                  /* which half is current */
    mf__frozen **checkpoints; /* in order of saving */
    int n_checkpoints, max_checkpoints;
    mf_stats stats;
};

/* engine/memory.c */
int64_t mf__page_bytes(const mf_model *m, int layer); /* of one block of that layer; 0: none */
void mf__page_release(mf_model *m, mf__page *page);   /* under lock */
mf_status mf__page_create(mf_model *m, mf__page **out, mf_error *err);
mf_status mf__page_copy(mf_model *m, const mf__page *from, mf__page **out, mf_error *err);
mf_status mf__backend_copy(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err);
/* Room for positions up to n_tokens, with the pages from `length` on owned by this session alone; zeroed recurrent
 * state when the sequence is empty. Under lock. */
mf_status mf__session_make_room(mf_session *s, int64_t n_tokens, mf_error *err);
void mf__session_set_page(mf_session *s, int32_t i, mf__page *page); /* keeps blocks in step; does not count */
/* fresh: reads the current half of the recurrent state; else goes on in the other. Always writes the other. */
void mf__session_bind_state(mf_session *s, int layer, bool fresh, mf__layer_state *out);
void mf__session_commit(mf_session *s, const int32_t *tokens, int64_t n);

/* engine/freeze.c */
mf_status mf__freeze(mf_session *s, mf__frozen **out, mf_error *err);             /* under lock */
mf_status mf__thaw(mf_session *s, const mf__frozen *f, int64_t n, mf_error *err); /* the first n tokens; under lock */
void mf__frozen_free(mf_model *m, mf__frozen *f); /* one reference less; under lock; NULL is fine */

/* engine/state.c */
void mf__checkpoints_drop_all(mf_session *s); /* under lock */

/* engine/workspace.c */
mf_status mf__workspace_reserve(mf_model *m, int32_t n_rows, mf_error *err); /* under lock */
void mf__workspace_free(mf_model *m);

/* engine/forward.c: one pass over the rows of one or several sequences. */
typedef struct mf__pass {
    mf_session *const *sessions; /* [n]; the first one's probe and cancel are asked */
    const int32_t *n_tokens;     /* [n] rows of each */
    const int64_t *pos;          /* [n] position of each first row */
    int n;
    int32_t n_rows;   /* in all */
    int32_t n_logits; /* rows at the end whose logits are wanted */
    bool fresh;
} mf__pass;

/* engine/stats.c: what the turns of a pass took, into every session of it. */
void mf__stats_pass(const mf__pass *pass, const mf_stats *before);

mf_status mf__forward(const mf__pass *pass, const int32_t *tokens, float *logits, mf_error *err);
mf_status mf__forward_layer(const mf__pass *pass, int layer, mf_error *err);

/* engine/eval.c. walk: evaluates without committing; logits: of the last n_logits tokens. Under lock. */
mf_status mf__check_tokens(const mf_session *s, const int32_t *tokens, size_t n, mf_error *err);
mf_status mf__session_walk(mf_session *s, const int32_t *tokens, size_t n, float *logits, size_t n_logits,
                           mf_error *err);

#endif
