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

struct mf_model {
    mf_model_info info;
    mf_log_sink log;
    mf__arena arena; /* names, weight sets, vectors as F32 */
    mf__native native;
    mf__blueprint bp;
    mf__expert_layout layout;
    mf__pool *pool;
    mf__backend *be;
    mf__store *store;
    mf__weight_set embed, tail;
    mf__weight_set (*layers)[MF_LAYER_GRAPHS]; /* [n_layers] */
    pthread_mutex_t lock;                      /* held while a session evaluates: backend, pool and store are one */
    bool lock_made;
};

/* engine/bind.c: finds every tensor the blueprint wants, checks shapes, widens vectors. */
mf_status mf__model_bind(mf_model *m, mf_error *err);

/* Rows of a KV block. A block belongs to one layer. */
#define MF_KV_BLOCK 256

/* Rows of logits computed at a time. */
#define MF_TAIL_ROWS 8

/* The state of one layer of one session. Recurrent state is kept twice: `now` is what the sequence has, the other half
 * receives what a call computes, and they trade places when the whole call has succeeded. */
typedef struct mf__layer_memory {
    void **blocks; /* [n_blocks of session capacity] */
    float *conv[2], *delta[2];
} mf__layer_memory;

struct mf_session {
    mf_model *model;
    mf_session_options opt;
    int64_t length;   /* tokens held */
    int32_t n_blocks; /* KV blocks that exist in every layer that keeps KV */
    int now;          /* which half of the recurrent state is current */
    mf__layer_memory *layers;
    mf__layer_state state; /* of the layer being evaluated */

    void *ports[MF_PORT_COUNT];
    int32_t port_cols[MF_PORT_COUNT];
    void *scratch;     /* coloured buffers of whichever graph runs */
    float *probe_rows; /* host copy for probes; NULL without one */

    /* expert turn: host copies */
    int32_t *route_ids; /* [n_chunk][top_k] */
    int32_t *wanted;    /* [n_experts] distinct ids of this chunk */
    bool *is_wanted;    /* [n_experts] */
    int32_t *ready;     /* [n_experts] */
    const void **ready_blobs;
    const void **bank; /* [n_experts] */
};

/* engine/memory.c. start: a sequence that holds nothing begins with zeroed state. */
mf_status mf__session_start(mf_session *s, mf_error *err);
mf_status mf__session_grow(mf_session *s, int64_t n_tokens, mf_error *err); /* KV blocks for that many positions */
void mf__session_bind_state(mf_session *s, int layer, bool fresh); /* fresh: reads the current half, writes the other */

/* engine/forward.c: one chunk through the model. logits: the rows of the last n_logits tokens, or none. */
mf_status mf__forward_chunk(mf_session *s, const int32_t *tokens, int32_t n, int64_t pos, bool fresh, float *logits,
                            int32_t n_logits, mf_error *err);
mf_status mf__forward_layer(mf_session *s, int layer, int32_t n, int64_t pos, bool fresh, mf_error *err);

#endif
