/* Every operation a backend can be asked for. One row per op; the formulas are in backend/ref, beside the code.
 *
 * n is the number of rows (tokens) of the run. Buffers are [n][cols] f32 unless they hold ids (i32). An op that changes
 * a buffer in place lists it as input and output. States live in the session and are reached through segments. */
#ifndef MF_GRAPH_OPS_H
#define MF_GRAPH_OPS_H

#include <stdbool.h>
#include <stdint.h>

/* id, name, inputs -> outputs: meaning */
#define MF_OPS(X)                                                                                                      \
    X(EMBED, "embed", "tokens -> x: row of the table for each token")                                                  \
    X(RMS_NORM, "rms_norm", "x -> y: x * w / sqrt(mean(x^2) + eps), over the row or over each of its parts")           \
    X(LAYER_NORM, "layer_norm", "x -> x: (x - mean) * w / sqrt(variance + eps) + bias, over the row")                  \
    X(MATMUL, "matmul", "x -> y: y = W x (+ bias)")                                                                    \
    X(SPLIT_Q_GATE, "split_q_gate", "u [heads][2*dim] -> q, gate: per head, query block then gate block")              \
    X(ROPE, "rope", "x -> x: rotates pairs of channels by position * inv_freq")                                        \
    X(KV_APPEND, "kv_append", "k, v -> state: rows at the segment's positions")                                        \
    X(INDEX, "index",                                                                                                  \
      "q, a, state -> picks: the blocks of cached rows that attention is to see, by keys of their own")                \
    X(ATTENTION, "attention",                                                                                          \
      "q, picks, state -> o: causal softmax attention over cached rows: all, the last, picked")                        \
    X(SPLIT, "split", "x -> a, b: the first columns of each row, and the rest")                                        \
    X(JOIN, "join", "a, b -> y: the columns of a, then those of b, if there is one")                                   \
    X(MLA_ATTENTION, "mla_attention",                                                                                  \
      "q, picks, state -> o: attention over cached latents, expanded by W_UK and W_UV")                                \
    X(SIGMOID_GATE, "sigmoid_gate", "x, gate -> x: x * sigmoid(gate), a gate for each channel or for a head's")        \
    X(CONV1D, "conv1d", "x, state -> y, state: causal depthwise convolution (+ bias), then silu or not")               \
    X(QK_NORM, "qk_norm", "y -> y: l2-normalises the q and k heads at its front; q also / sqrt(dim)")                  \
    X(DECAY_BETA, "decay_beta", "a, b -> g, beta: g = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b)")      \
    X(DELTA_NET, "delta_net", "qkv, g, beta, state -> o, state: the gated delta rule")                                 \
    X(SSM, "ssm", "xbc, dt, state -> y, state: Mamba-2, a state space with one decay for each head")                   \
    X(COMPRESS, "compress", "x, state -> state: one V row for every window of rows, a mean that the rows weigh")       \
    X(FAR_ATTENTION, "far_attention",                                                                                  \
      "q, picks, state -> o: softmax attention over the newest K rows and over V rows")                                \
    X(STREAMS_READ, "streams_read", "x, z -> u, mix: what a block reads of the streams, and how it is written back")   \
    X(STREAMS_WRITE, "streams_write", "x, y, mix -> x: a block's result, to all streams, which are mixed")             \
    X(GATED_NORM, "gated_norm", "x, z -> y: per head rms_norm(x) * w * silu(z), or sigmoid(z)")                        \
    X(ADD, "add", "a, b -> y: a + b")                                                                                  \
    X(MAP, "map", "x -> x: every value scaled, clamped or capped, or scaled by what its position says")                \
    X(ROUTE, "route", "logits -> ids, weights: the experts of each token and their shares")                            \
    X(WEIGH, "weigh", "x, weights -> y, weights: x times the token's one share, which is 1 from then on")              \
    X(IDENTITY, "identity", "x, ids, weights -> y, ids, weights: x times the shares of ids that are no experts")       \
    X(GLU, "glu", "gate, up -> y: silu(gate) * up, or the clamped form")                                               \
    X(EXPERTS, "experts", "x, ids -> pairs: expert ids[t][k] applied to x[t], for the experts in the bank")            \
    X(COMBINE, "combine", "h, pairs, weights, shared, score -> y: (h +) sum_k w_k pair_k + sigmoid(score) shared")

typedef enum mf__op_kind {
#define ENUM(id, name, doc) MF_OP_##id,
    MF_OPS(ENUM)
#undef ENUM
        MF_OP_COUNT
} mf__op_kind;

const char *mf__op_name(mf__op_kind kind);

typedef enum mf__route_kind {
    MF_ROUTE_SOFTMAX,       /* softmax over all experts, then the k largest; bias and groups as with SIGMOID */
    MF_ROUTE_SIGMOID,       /* sigmoid; chosen by score + bias among the best groups, weighed by score alone */
    MF_ROUTE_TOPK_SOFTMAX,  /* the k largest logits, softmax over those */
    MF_ROUTE_SQRT_SOFTPLUS, /* as SIGMOID, the score being sqrt(ln(1 + e^logit)) */
    MF_ROUTE_TOPK_SIGMOID   /* the k largest logits, sigmoid of each */
} mf__route_kind;

/* Two ways to the same MLA_ATTENTION; see mf__mla_choose. */
typedef enum mf__mla_form {
    MF_MLA_BY_COST,   /* whichever is cheaper for the segment at hand */
    MF_MLA_ABSORBED,  /* queries go down to the latent: nothing is expanded, each cached row costs more */
    MF_MLA_UNABSORBED /* cached latents are expanded to keys and values, which all rows of the segment then share */
} mf__mla_form;

typedef enum mf__glu_kind {
    MF_GLU_SILU,    /* silu(gate) * up */
    MF_GLU_GELU,    /* gelu(gate) * up, gelu by its approximation with tanh */
    MF_GLU_LIMITED, /* silu(g) * u, g = min(gate, limit), u = clamp(up, -limit, limit) */
    MF_GLU_CUT,     /* min(silu(gate), limit) * clamp(up, -limit, limit) */
    MF_GLU_PRODUCT, /* gate * up */
    MF_GLU_RELU2,   /* EXPERTS alone, no gate: relu(gate)^2, then relu(up)^2; what they are is one matrix in halves */
    MF_GLU_CLAMPED, /* g * sigmoid(alpha g) * (u + 1), g = min(gate, limit), u = clamp(up, -limit, limit) */
} mf__glu_kind;

/* The activation of a feed-forward. All zero: silu. */
typedef struct mf__glu {
    mf__glu_kind kind;
    float alpha, limit;
} mf__glu;

/* Columns of what down reads, where gate and up have n rows. */
static inline int64_t mf__glu_cols(const mf__glu *glu, int64_t n) {
    return glu->kind == MF_GLU_RELU2 ? 2 * n : n;
}

typedef enum mf__map_kind {
    MF_MAP_SCALE,   /* a x; with a weight: a w x, w one value */
    MF_MAP_CLAMP,   /* clamp(x, -a, a) */
    MF_MAP_CAP,     /* a tanh(x / a) */
    MF_MAP_RELU2,   /* relu(x)^2 */
    MF_MAP_POSITION /* (1 + a ln(1 + floor((position + c) / b))) x */
} mf__map_kind;

#define MF_MAX_TOPK 16

/* What does not change from run to run. */
typedef union mf__op_params {
    struct {
        float eps;
        int32_t part; /* channels per normalised part: the row's length, or a head's */
        bool apart;   /* RMS_NORM: every part of a row has weights of its own */
        bool sigmoid; /* GATED_NORM: sigmoid(z) in place of silu(z) */
    } norm;           /* RMS_NORM, GATED_NORM */
    struct {
        int32_t n_heads, head_dim;
    } split;
    struct {
        int32_t n_heads, head_dim; /* the row is [n_heads][head_dim] */
        int32_t offset, n_rot;     /* channels [offset, offset + n_rot) of each head turn */
        bool interleaved;          /* pairs (2i, 2i+1) instead of (i, i + n_rot/2) */
        bool back;                 /* by the angle's opposite */
        float scale;               /* of cos and sin */
    } rope;
    struct {
        int32_t n_heads, n_kv_heads, head_dim;
        int32_t v_dim; /* of a value head; 0: head_dim */
        float scale;
        int32_t window;                  /* the newest rows that take part, the query's own among them; 0: all */
        bool chunked;                    /* ... those of them alone that lie in the query's own chunk of so many */
        int32_t n_lists, n_picks, block; /* with picks: [n_lists][n_picks] blocks of rows; a list serves as many heads
                                            as the others, of one kv head or of several */
    } attn; /* weight slot 0, if any: a sink per head, a logit that takes its share and brings no value */
    struct {
        int32_t part; /* channels that share a gate */
    } gate;           /* SIGMOID_GATE */
    struct {
        int32_t n_first;
    } cut; /* SPLIT */
    struct {
        int32_t n_heads, n_latent, n_nope, n_rope, v_dim; /* a query head is [n_nope | n_rope] */
        float scale;
        mf__mla_form form;
        int32_t n_picks; /* with picks: as many rows */
    } mla; /* the state's K rows are latents [n_latent], its V rows begin with the rotated [n_rope] that heads share */
    struct {
        int32_t n_heads, dim; /* queries [n_heads][dim]; with weights a [n_heads] one list for all, else one for each */
        int32_t at;           /* the column of the V rows where the keys begin */
        int32_t top_k, block; /* blocks that are picked, and their rows */
        int32_t local;        /* newest blocks that are always picked */
        int32_t step;         /* positions that a V row stands for, once all of them are there; 0: 1 */
    } index;
    struct {
        int32_t step;     /* rows of a window */
        bool overlap;     /* a window takes part of the rows of the one before it */
        int32_t n_parts;  /* of a V row, */
        int32_t width[2]; /* their widths; a row brings [a | g] for each, twice as wide with overlap */
        int32_t n_rot;    /* last channels of each part that turn, in pairs (2i, 2i+1) */
        float eps;
    } compress; /* weights: frequencies; of each part positions [step][a's width], norm [width] */
    struct {
        int32_t n_heads, dim;
        int32_t window;  /* newest K rows that take part */
        int32_t step;    /* positions that a V row stands for; 0: no V rows take part */
        int32_t n_picks; /* with picks: V rows, at most */
        float scale;
    } far; /* weight: a sink per head */
    struct {
        int32_t n, n_steps; /* streams; steps that make the mix doubly stochastic, 0: there is none */
        float eps, hc_eps;  /* of the norm; of everything else */
    } streams;
    struct {
        int32_t n_channels, n_kernel;
        bool plain; /* no silu */
        int32_t at; /* in the sequence's state, where this convolution's inputs begin */
    } conv;
    struct {
        int32_t n_k_heads, k_dim, n_v_heads, v_dim; /* QK_NORM uses the first two */
        bool by_channel;                            /* a decay for every channel of a head's keys, not one for all */
    } delta;                                        /* QK_NORM, DECAY_BETA, DELTA_NET */
    struct {
        int32_t n_heads, dim, n_groups, n_state; /* a row is [n_heads][dim] | B [n_groups][n_state] | C the same */
    } ssm;                                       /* weights: A_log, dt_bias, D, one of each per head */
    struct {
        mf__route_kind kind;
        int32_t n_experts, top_k;
        int32_t n_groups, top_groups; /* not TOPK_SOFTMAX: experts lie in groups of equal size; 1, 1 for none */
        bool renorm;                  /* shares are divided by their sum */
        float scale;                  /* ... and multiplied by this */
        float eps;                    /* added to the sum; 0: 1e-20 */
    } route;                          /* weight slot 1, if any: a factor for the shares of each expert */
    struct {
        int32_t n_experts, top_k; /* ids from n_experts on give x as it is */
    } identity;
    struct {
        int32_t top_k, n_inner; /* n_inner: rows of gate and of up */
        mf__glu glu;
    } moe;
    mf__glu glu; /* GLU */
    struct {
        mf__map_kind kind;
        float a, b, c;
    } map;
} mf__op_params;

/* Rows of its input that COMPRESS remembers. */
static inline int32_t mf__compress_kept(const mf__op_params *p) {
    return (p->compress.overlap ? 2 : 1) * p->compress.step - 1;
}

/* FAR_ATTENTION: the K rows that a row at pos sees; and all rows that it sees, where picks has n_picks V rows with -1
 * behind the last, or is NULL. */
static inline int64_t mf__far_near(const mf__op_params *p, int64_t pos) {
    return pos + 1 < p->far.window ? pos + 1 : p->far.window;
}
static inline int64_t mf__far_seen(const mf__op_params *p, const int32_t *picks, int64_t pos) {
    int64_t n = p->far.step ? (pos + 1) / p->far.step : 0;
    if (picks)
        for (n = 0; n < p->far.n_picks && picks[n] >= 0;) n++;
    return mf__far_near(p, pos) + n;
}

/* ATTENTION: the first row that a row at pos sees. */
static inline int64_t mf__window_first(int32_t window, bool chunked, int64_t pos) {
    if (!window || pos < window) return 0;
    return chunked ? pos - pos % window : pos - window + 1;
}

static inline int32_t mf__op_v_dim(const mf__op_params *p) {
    return p->attn.v_dim ? p->attn.v_dim : p->attn.head_dim;
}

#endif
