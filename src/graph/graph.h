/* Graphs: ops as data.
 *
 * A graph is built once per kind of layer and run many times, for any number of rows and for every layer of its kind.
 * It therefore names its weights by slot (with their shape and their name in the manifest) and its states by kind;
 * addresses come with each run (backend/backend.h).
 *
 * Buffers have a role, and each role is its own C type: an op that wants the normalised input cannot be handed the
 * residual. A buffer is either scratch (coloured: see mf__graph_finish) or tied to a port, a buffer that outlives the
 * graph and that the engine allocates.
 *
 * Building does not fail op by op: the first shape error is kept, later ops become harmless, and mf__graph_finish
 * reports it. */
#ifndef MF_GRAPH_GRAPH_H
#define MF_GRAPH_GRAPH_H

#include "base/arena.h"
#include "base/status.h"
#include "graph/ops.h"

/* role: what flows in it */
#define MF_ROLES(X)                                                                                                    \
    X(tokens)   /* i32 token ids */                                                                                    \
    X(residual) /* the residual stream */                                                                              \
    X(normed)   /* the residual after a norm: what projections and experts read */                                     \
    X(act)      /* everything inside a block */                                                                        \
    X(ids)      /* i32 expert ids [top_k] */                                                                           \
    X(chosen)   /* i32 blocks of cached rows, ascending, -1 behind the last */                                         \
    X(shares)   /* expert weights [top_k] */                                                                           \
    X(pairs)    /* expert outputs [top_k][hidden] */

#define ROLE(r)                                                                                                        \
    typedef struct mf__##r {                                                                                           \
        int16_t id;                                                                                                    \
    } mf__##r;
MF_ROLES(ROLE)
#undef ROLE

/* Buffers that connect graphs: allocated by the engine, one of each per session. */
#define MF_PORTS(X)                                                                                                    \
    X(TOKENS, "tokens")                                                                                                \
    X(HIDDEN, "hidden")       /* between layers */                                                                     \
    X(H_MID, "h_mid")         /* after attention */                                                                    \
    X(H_POST, "h_post")       /* its norm: the experts' input */                                                       \
    X(SHARED_IN, "shared_in") /* what the shared expert reads, where it is not H_POST */                               \
    X(PICKS, "picks")         /* cached rows that a layer picked, for those after it */                                \
    X(ROUTE_IDS, "route_ids")                                                                                          \
    X(ROUTE_SHARES, "route_shares")                                                                                    \
    X(STREAMS, "streams")           /* how the streams take what the experts give */                                   \
    X(ROUTE_SCORES, "route_scores") /* logits of all experts, where somebody wants them */                             \
    X(AHEAD_IDS, "ahead_ids")       /* experts that a later layer may want */                                          \
    X(AHEAD_SHARES, "ahead_shares")                                                                                    \
    X(AHEAD_SCORES, "ahead_scores")                                                                                    \
    X(SHARED, "shared") /* the shared expert's output */                                                               \
    X(SHARED_SCORE, "shared_score")                                                                                    \
    X(PAIRS, "pairs")                                                                                                  \
    X(FINAL_NORM, "final_norm")                                                                                        \
    X(LOGITS, "logits")

typedef enum mf__port {
    MF_PORT_NONE = -1,
#define ENUM(id, name) MF_PORT_##id,
    MF_PORTS(ENUM)
#undef ENUM
        MF_PORT_COUNT
} mf__port;

const char *mf__port_name(mf__port port);

typedef struct mf__buf_info {
    int32_t cols;   /* elements per row, 4 bytes each (f32 or i32) */
    bool is_int;    /* i32 */
    mf__port port;  /* MF_PORT_NONE: scratch */
    int32_t colour; /* scratch: which physical buffer; set by finish */
    int32_t first;  /* op that writes it first; -1: an input */
    int32_t last;   /* op that reads it last (or writes it, if none reads) */
    const char *label;
} mf__buf_info;

typedef enum mf__weight_kind {
    MF_WEIGHT_MATRIX, /* used in the file's own type */
    MF_WEIGHT_VECTOR, /* small: bound as F32 */
    MF_WEIGHT_CONST   /* computed at build time: data here */
} mf__weight_kind;

/* A typed weight slot: id -1 means "this op has none". */
typedef struct mf__w {
    int16_t id;
} mf__w;
#define MF_NO_WEIGHT ((mf__w){-1})

typedef struct mf__weight_info {
    const char *name; /* in the manifest, after the layer's prefix */
    mf__weight_kind kind;
    int64_t n_rows, n_cols;
    const float *data; /* CONST */
} mf__weight_info;

#define MF_OP_IN 5
#define MF_OP_OUT 3
#define MF_OP_W 5

typedef struct mf__op {
    mf__op_kind kind;
    const char *label;
    int16_t in[MF_OP_IN];   /* buffer ids, -1 unused */
    int16_t out[MF_OP_OUT]; /* buffer ids; one that is also an input is changed in place */
    int16_t w[MF_OP_W];     /* weight slots, -1 unused */
    mf__op_params p;
} mf__op;

#define MF_MAX_BUFS 96
#define MF_MAX_OPS 96
#define MF_MAX_WEIGHTS 48

typedef struct mf__graph {
    const char *name;
    mf__arena arena; /* labels, constants */
    int n_ops, n_bufs, n_weights, n_colours;
    mf__op ops[MF_MAX_OPS];
    mf__buf_info bufs[MF_MAX_BUFS];
    mf__weight_info weights[MF_MAX_WEIGHTS];
    int32_t colour_cols[MF_MAX_BUFS]; /* widest member of each colour */
    mf_error error;                   /* first error while building */
    mf__op dropped;                   /* where ops go after an error */
    bool finished;
} mf__graph;

mf_status mf__graph_create(const char *name, mf__graph **out, mf_error *err);
void mf__graph_free(mf__graph *g); /* NULL is fine */

/* Checks, computes lifetimes and colours the scratch. Nothing can be added afterwards. */
mf_status mf__graph_finish(mf__graph *g, mf_error *err);

/* What of a finished graph its state depends on: the same buffers and weights, fewer ops. It uses g's names and must
 * not outlive it. */
mf_status mf__graph_state_part(const mf__graph *g, mf__graph **out, mf_error *err);

/* Bytes of scratch for n_rows rows, and where each scratch buffer lies in it. addr has n_bufs entries; ports are left
 * alone. Colours start at multiples of 64 bytes. */
int64_t mf__graph_scratch_bytes(const mf__graph *g, int32_t n_rows);
void mf__graph_place(const mf__graph *g, int32_t n_rows, void *scratch, void **addr);

/* The cheaper form of MLA_ATTENTION, counted in multiply-adds, for n_rows rows that follow pos cached ones. Per head:
 *
 *   absorbed     n_rows (n_nope + v_dim) n_latent  +  pairs (2 n_latent + n_rope)
 *   unabsorbed   (pos + n_rows) (n_nope + v_dim) n_latent  +  pairs (n_nope + n_rope + v_dim)
 *
 * where pairs counts (row, cached row it sees). A token at a time is absorbed; long prompts are not. It stands here,
 * not in the graph, because a graph is built once for all lengths, and not in a backend, because the counts are the
 * op's; a backend whose multiply-adds do not all cost the same may choose otherwise. Never returns MF_MLA_BY_COST. */
mf__mla_form mf__mla_choose(const mf__op_params *p, int64_t pos, int32_t n_rows);

/* One line per op: number, name, label, inputs -> outputs. malloc'd; NULL when out of memory. */
char *mf__graph_dump(const mf__graph *g);

/* ---- building (graph/build.c) ------------------------------------------------------------------------------------ */

/* Weights. name is copied. */
mf__w mf__g_matrix(mf__graph *g, const char *name, int64_t n_rows, int64_t n_cols);
mf__w mf__g_vector(mf__graph *g, const char *name, int64_t n_rows, int64_t n_cols); /* n_rows * n_cols values */
mf__w mf__g_const(mf__graph *g, const char *name, const float *data, int64_t n);

/* Ports: inputs of this graph, and outputs (which rename the scratch buffer that an op made). */
mf__tokens mf__g_in_tokens(mf__graph *g);
mf__residual mf__g_in_residual(mf__graph *g, mf__port port, int32_t cols);
mf__normed mf__g_in_normed(mf__graph *g, mf__port port, int32_t cols);
mf__act mf__g_in_act(mf__graph *g, mf__port port, int32_t cols);
mf__ids mf__g_in_ids(mf__graph *g, int32_t cols);
mf__shares mf__g_in_shares(mf__graph *g, int32_t cols);
mf__pairs mf__g_in_pairs(mf__graph *g, int32_t cols);
mf__chosen mf__g_in_picks(mf__graph *g, int32_t cols);
void mf__g_export(mf__graph *g, int16_t id, mf__port port); /* g_export(g, x.id, MF_PORT_H_MID) */

/* Ops. Each returns the buffer it makes. */
mf__residual mf__g_embed(mf__graph *g, mf__tokens t, mf__w table);
mf__normed mf__g_norm(mf__graph *g, mf__residual x, mf__w w, float eps);
mf__act mf__g_project(mf__graph *g, mf__normed x, mf__w w, mf__w bias, const char *label);
mf__act mf__g_matmul(mf__graph *g, mf__act x, mf__w w, mf__w bias, const char *label);
void mf__g_part_norm(mf__graph *g, mf__act x, mf__w w, int32_t part, float eps, const char *label); /* in place */
/* ... and into a buffer of its own */
mf__act mf__g_part_normed(mf__graph *g, mf__act x, mf__w w, int32_t part, float eps, const char *label);
/* parts of a row with weights of their own: w has as many as the row; in place */
void mf__g_parts_norm(mf__graph *g, mf__act x, mf__w w, int32_t part, float eps, const char *label);
void mf__g_split_q_gate(mf__graph *g, mf__act u, int32_t n_heads, int32_t head_dim, mf__act *q, mf__act *gate);
void mf__g_rope(mf__graph *g, mf__act x, mf__w inv_freq, mf__op_params p, const char *label); /* in place */
void mf__g_kv_append(mf__graph *g, mf__act k, mf__act v); /* v.id -1: K rows alone */
/* a: a weight per head, and one list; id -1: a list per head. */
mf__chosen mf__g_index(mf__graph *g, mf__act q, mf__act a, mf__op_params p);
/* sinks: one logit per head, or MF_NO_WEIGHT */
mf__act mf__g_attention(mf__graph *g, mf__act q, mf__w sinks, mf__op_params p);
mf__act mf__g_attention_picked(mf__graph *g, mf__act q, mf__chosen picks, mf__op_params p);
/* weights: frequencies, then for each part positions and norm */
void mf__g_compress(mf__graph *g, mf__act x, const mf__w w[5], mf__op_params p);
mf__act mf__g_far_attention(mf__graph *g, mf__act q, mf__chosen picks, mf__w sinks, mf__op_params p); /* picks: -1 */
/* z: a product of all streams. mix.id is -1 where p has no steps. */
mf__residual mf__g_streams_read(mf__graph *g, mf__residual x, mf__act z, mf__w base, mf__w scale, mf__op_params p,
                                mf__act *mix);
mf__residual mf__g_streams_write(mf__graph *g, mf__residual x, mf__act y, mf__act mix, int32_t n);
mf__residual mf__g_copy(mf__graph *g, mf__residual x);
mf__act mf__g_join(mf__graph *g, mf__act a, mf__act b, const char *label);
void mf__g_layer_norm(mf__graph *g, mf__act x, mf__w w, mf__w bias, float eps, const char *label); /* in place */
void mf__g_split(mf__graph *g, mf__act x, int32_t n_first, mf__act *a, mf__act *b, const char *label);
/* Weights: either kv_b [heads][n_nope rows of W_UK | v_dim rows of W_UV][n_latent] alone, or both: w_uk transposed,
 * [heads][n_latent][n_nope], and w_uv [heads][v_dim][n_latent]. */
mf__act mf__g_mla_attention(mf__graph *g, mf__act q, mf__w kv_b_or_uk, mf__w w_uv, mf__op_params p);
void mf__g_mla_pick(mf__graph *g, mf__act o, mf__chosen picks); /* makes the op that made o see these rows only */
/* In place; a gate for every channel, or for as many channels as there are for each. */
void mf__g_sigmoid_gate(mf__graph *g, mf__act x, mf__act gate);
mf__act mf__g_conv1d(mf__graph *g, mf__act x, mf__w w, mf__w bias, mf__op_params p); /* bias: or MF_NO_WEIGHT */
void mf__g_qk_norm(mf__graph *g, mf__act qkv, mf__op_params p);                      /* in place */
/* a and dt_bias: one for each head, as b and a_log have, or one for each channel of each head */
void mf__g_decay_beta(mf__graph *g, mf__act a, mf__act b, mf__w a_log, mf__w dt_bias, mf__act *decay, mf__act *beta);
mf__act mf__g_delta_net(mf__graph *g, mf__act qkv, mf__act decay, mf__act beta, mf__op_params p);
mf__act mf__g_gated_norm(mf__graph *g, mf__act x, mf__act z, mf__w w, mf__op_params p);
/* w: A_log, dt_bias, D */
mf__act mf__g_ssm(mf__graph *g, mf__act xbc, mf__act dt, const mf__w w[3], mf__op_params p);
mf__residual mf__g_add(mf__graph *g, mf__residual h, mf__act a);
mf__act mf__g_sum(mf__graph *g, mf__act a, mf__act b);
void mf__g_map(mf__graph *g, int16_t id, mf__w w, mf__op_params p, const char *label); /* in place; w: SCALE's */
/* bias: added to the scores when choosing (not TOPK_SOFTMAX); factors: one per expert, of its shares; or MF_NO_WEIGHT
 */
void mf__g_route_given(mf__graph *g, mf__act logits, mf__act ids_as_values, mf__op_params p, mf__ids *ids,
                       mf__shares *shares); /* the experts are known, and only weighed */
void mf__g_route(mf__graph *g, mf__act logits, mf__w bias, mf__w factors, mf__op_params p, mf__ids *ids,
                 mf__shares *shares);
/* What ids from n_experts on give, together; they are other experts' from then on, with shares of 0. */
mf__act mf__g_identity(mf__graph *g, mf__normed x, mf__ids ids, mf__shares shares, int32_t n_experts);
mf__normed mf__g_weigh(mf__graph *g, mf__normed x, mf__shares shares); /* top 1 */
mf__act mf__g_glu(mf__graph *g, mf__act gate, mf__act up, mf__glu glu);
mf__pairs mf__g_experts(mf__graph *g, mf__normed x, mf__ids ids, mf__op_params p);
/* shared.id and score.id may be -1: no shared expert, no gate on it. */
mf__residual mf__g_combine(mf__graph *g, mf__residual h, mf__pairs pairs, mf__shares shares, mf__act shared,
                           mf__act score);
mf__act mf__g_combine_alone(mf__graph *g, mf__pairs pairs, mf__shares shares, mf__act shared); /* without h */

#endif
