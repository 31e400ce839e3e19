/* A model's hyper-parameters, read from config.json at run time. */
#ifndef MF_MODEL_CONFIG_H
#define MF_MODEL_CONFIG_H

#include <jansson.h>

#include "base/status.h"
#include "graph/ops.h"
#include "model/rope.h"

#define MF_MAX_LAYERS 256
#define MF_MAX_PICKS 65536 /* numbers of an index: lists of picks have room for all that it may make */

typedef struct mf__family mf__family;

typedef enum mf__mixer {
    MF_MIX_FULL,    /* softmax attention over a KV cache */
    MF_MIX_LINEAR,  /* Gated DeltaNet */
    MF_MIX_SLIDING, /* softmax attention over the newest rows of the cache */
    MF_MIX_LATENT,  /* softmax attention over a cache of latents */
    MF_MIX_INDEXED, /* ... over those of its rows that an index picks */
    MF_MIX_REUSED,  /* ... over those that the nearest earlier INDEXED layer picked */
    MF_MIX_BLOCKS,  /* softmax attention over blocks of a KV cache that an index picks */
    MF_MIX_HEAVY,   /* softmax attention over the newest rows of the cache and all compressed ones */
    MF_MIX_SPARSE,  /* ... and those compressed ones that an index picks */
    MF_MIX_CONV,    /* a gated convolution over a few rows, and no cache */
    MF_MIX_CHUNKED, /* softmax attention over the rows of the cache that lie in the token's own chunk */
    MF_MIX_SSM,     /* a state space (Mamba-2), and no cache */
    MF_MIX_NONE,    /* nothing: the layer is its feed-forward */
    MF_MIX_COUNT
} mf__mixer;

typedef enum mf__qk_norm {
    MF_QK_NORM_NONE,
    MF_QK_NORM_HEAD,  /* every head for itself, with the same weights */
    MF_QK_NORM_JOINT, /* all heads as one row, each channel with its own weight */
    MF_QK_NORM_BARE   /* every head for itself, without weights */
} mf__qk_norm;

typedef enum mf__shared_kind {
    MF_SHARED_NONE,
    MF_SHARED_GATED, /* its output is multiplied by sigmoid(score) */
    MF_SHARED_PLAIN,
    MF_SHARED_DENSE /* a dense feed-forward of its own width that reads the residual through its own norm */
} mf__shared_kind;

/* Which parts the models of a family are put together from. What a config may switch off (a bias, a norm) is given as
 * it is when it is on. Reading a config starts from this and refuses what is not here, scaled ropes apart; inspect and
 * docs/models.md print it. */
typedef struct mf__features {
    unsigned mixers;     /* 1 << MF_MIX_FULL | ... */
    bool attn_gate;      /* a sigmoid gate per channel on attention's output; q_proj makes it, beside each query head */
    bool head_gate;      /* ... or one per head, which g_proj makes */
    bool bias_qkv;       /* q, k and v projections have a bias */
    bool bias_o;         /* the output projection has one */
    unsigned sinks;      /* in layers with these mixers a learned logit per head joins the softmax */
    mf__qk_norm qk_norm; /* of queries and keys, before they rotate */
    bool qk_norm_last;   /* ... or after */
    bool clip;           /* queries, keys and values may be clamped, before they rotate */
    bool value_scale;    /* values may be multiplied by a number */
    bool value_norm;     /* values are normalised, every head for itself, without weights */
    bool key_is_value;   /* full layers may have no v_proj: k_proj makes both */
    bool grow;           /* queries may be multiplied by a factor that grows with their position */
    bool nope_full;      /* full layers have no rope (mf__attn.n_rot) */
    bool channel_decay;  /* linear attention has a decay for every channel, and projections of its own (kda.c) */
    bool zero_centred;   /* raw checkpoints store most norm weights minus one */
    bool interleaved;    /* rope turns pairs (2i, 2i+1) instead of (i, i + n/2) */
    bool nope;           /* no layer has rope */
    bool yarn;           /* published models stretch rope by YaRN (any family may) */
    bool rope_slow;      /* of a model alone: rope is scaled as "linear" or "llama3" say */
    bool rope_part;      /* of the pairs (i, i + n/2) of a whole head, only the first may turn (mf__rope.part) */
    bool rope_alpha;     /* ... or by a larger base (mf__rope.alpha) */
    mf__route_kind route;
    bool route_bias;  /* a bias on the router's logits */
    bool choice_bias; /* a bias that takes part in choosing, not in weighing (SOFTMAX, SIGMOID) */
    bool groups;      /* experts lie in groups, of which the best take part (SOFTMAX, SIGMOID) */
    bool far;         /* attention over the newest rows and over compressed ones (far.c) */
    bool streams;     /* the residual is several streams */
    bool weigh_first; /* the score of a token's one expert multiplies what the expert reads, not what it gives */
    bool shortcut;    /* experts read what the dense layer before theirs read, beside a feed-forward of its own */
    bool hashed;      /* in some layers the token says which experts it goes to */
    bool sandwich;    /* norms behind attention and feed-forward too, and a scalar at the end of the layer */
    bool route_apart; /* the router reads the residual through a norm of its own, and has a factor for every expert */
    mf__shared_kind shared;
    mf__glu_kind glu;
    bool expert_bias; /* the experts' matrices have biases */
    bool dense;       /* some layers may have a dense feed-forward instead of experts */
} mf__features;

/* Softmax attention. */
typedef struct mf__attn {
    int32_t n_heads, n_kv_heads;
    int32_t head_dim, v_dim; /* of a query or a key; of a value (0: the same) */
    int32_t n_rot;           /* channels of a head that rotate; 0: none, and queries and keys have no norm either */
    int32_t window;          /* of SLIDING layers; the chunk of CHUNKED ones */
    float scale;             /* of the scores; 0: 1 / sqrt(head_dim) */
    float v_scale;           /* of the values; 0: they stay */
    bool k_is_v;             /* values are the keys before norm and rope: there is no v_proj */
    float clip;              /* q, k and v are clamped to +-clip; 0: they are not */
    float grow, grow_step;   /* queries are multiplied by 1 + grow ln(1 + floor(position / grow_step)); 0: not */
    float grow_from;         /* added to the position */
} mf__attn;

typedef struct mf__config {
    const mf__family *family;
    char model_type[64]; /* as the config spells it */
    mf__features has;    /* the family's, less what this config switches off */

    int32_t n_layers, n_hidden, n_vocab, n_ctx;
    float eps;
    bool tied_head;   /* the head is the embedding table */
    bool plain_norms; /* the checkpoint has norms as they are, though the family's are zero-centred (GGUF) */
    mf__mixer mixer[MF_MAX_LAYERS];
    bool dense[MF_MAX_LAYERS]; /* a plain feed-forward of width n_dense_inner instead of experts */
    bool alone[MF_MAX_LAYERS]; /* dense, and not even that: the layer is its mixer */
    int32_t n_dense_inner;
    /* CUT: the limits of the layer's experts, and of its shared expert or dense feed-forward; 0: none */
    float limit[MF_MAX_LAYERS], dense_limit[MF_MAX_LAYERS];

    mf__attn attn, sliding; /* sliding: of SLIDING and CHUNKED layers; n_heads 0: as in the others */
    mf__rope rope, sliding_rope;
    float embed_scale; /* of what the embedding table gives; 0: as it is */
    float logit_cap;   /* logits become cap tanh(logit / cap); 0: they stay */

    struct {
        int32_t n_k_heads, k_dim, n_v_heads, v_dim, n_kernel;
    } delta;

    struct {
        int32_t n_experts, top_k, n_inner; /* n_inner: rows of gate and of up; SQUARES: half of an expert's width */
        int32_t n_identity;                /* further choices of the router, which give what they get */
        float eps;                         /* added to the sum that shares are divided by; 0: as good as nothing */
        int32_t table_k;                   /* experts of a token in the table of HASHED layers */
        int32_t n_shared_inner;            /* width of the shared expert; 0: none */
        int32_t n_groups, top_groups;      /* 1, 1: no groups */
        bool renorm;                       /* shares are divided by their sum */
        double scale;                      /* ... and multiplied by this */
        mf__glu glu;
        mf__glu dense_glu; /* of the shared expert and of dense layers; as glu, where the layers do not differ */
        bool scores;       /* routers hand out the logits of all experts: somebody asked, it is not the model's */
    } moe;

    struct {
        int32_t n_q_rank; /* queries come from a latent of this width; 0: straight from x */
        int32_t n_latent, n_nope, n_rope, v_dim;
        float eps;               /* of the norms of both latents, whatever the others have */
        float q_scale, kv_scale; /* of queries and of the normed latent; 0: they stay */
        bool split_up; /* kv_b is stored as embed_q and unembed_out: told by the tensors, see mf__config_look */
    } mla;

    struct {
        int32_t n_heads, dim, n_groups, n_state, n_kernel;
        bool conv_bias;
    } ssm;

    /* What INDEXED and BLOCKS layers pick their rows by. */
    struct {
        int32_t n_heads, dim;
        int32_t top_k, block, local; /* blocks that are picked, their rows, and those of them that are the newest */
        bool interleaved;            /* how its keys turn */
    } index;

    /* Hyper-connections: the residual is n streams. 0, 1: there is one, and it is added to. */
    struct {
        int32_t n, n_steps;
        float eps;
    } hc;

    /* Attention over the newest rows and over compressed ones; q_rank is mla.n_q_rank. */
    struct {
        int32_t o_groups, o_rank; /* the output projection is one for each group of heads, then one for all */
        int32_t heavy_step, step; /* positions of a compressed row, in HEAVY and in SPARSE layers */
        mf__rope rope;            /* of those layers */
    } far;
    bool hashed[MF_MAX_LAYERS]; /* the token says which experts it goes to */

    int32_t n_eos, eos[MF_MAX_EOS];
} mf__config;

/* Whether layers with this mixer see a window or a chunk alone. */
static inline bool mf__mixer_is_near(mf__mixer mixer) {
    return mixer == MF_MIX_SLIDING || mixer == MF_MIX_CHUNKED;
}
/* Of a layer with this mixer. */
static inline const mf__attn *mf__config_attn(const mf__config *c, mf__mixer mixer) {
    return mf__mixer_is_near(mixer) && c->sliding.n_heads ? &c->sliding : &c->attn;
}
static inline const mf__rope *mf__config_rope(const mf__config *c, mf__mixer mixer) {
    return mf__mixer_is_near(mixer) && c->sliding.n_heads ? &c->sliding_rope : &c->rope;
}
static inline int32_t mf__attn_v_dim(const mf__attn *a) {
    return a->v_dim ? a->v_dim : a->head_dim;
}

/* Columns of an expert's last matrix. */
static inline int64_t mf__config_expert_wide(const mf__config *c) {
    return mf__glu_cols(&c->moe.glu, c->moe.n_inner);
}

/* The activation of a layer's experts, and of what is dense in it. */
static inline mf__glu mf__config_glu_of(mf__glu glu, float limit) {
    if (glu.kind != MF_GLU_CUT) return glu;
    return limit > 0 ? (mf__glu){.kind = MF_GLU_CUT, .limit = limit} : (mf__glu){.kind = MF_GLU_SILU};
}
static inline mf__glu mf__config_glu(const mf__config *c, int layer) {
    return mf__config_glu_of(c->moe.glu, c->limit[layer]);
}
static inline mf__glu mf__config_dense_glu(const mf__config *c, int layer) {
    return mf__config_glu_of(c->moe.glu, c->dense_limit[layer]);
}

/* Columns of the residual. */
static inline int32_t mf__config_wide(const mf__config *c) {
    return c->n_hidden * (c->hc.n > 1 ? c->hc.n : 1);
}

/* root: the parsed config.json (hyper-parameters at the top or under text_config). where begins error texts. */
mf_status mf__config_parse(const json_t *root, const char *where, mf__config *out, mf_error *err);

/* The same for a config that does not say its model_type: family is known from elsewhere. What such a config leaves
 * out besides (the context, the end tokens) is as usual in the family. */
mf_status mf__config_parse_as(const mf__family *family, const json_t *root, const char *where, mf__config *out,
                              mf_error *err);

/* Adds the ids of generation_config.json's eos_token_id (a number or a list) to those the config named. */
mf_status mf__config_add_eos(mf__config *config, const json_t *generation, const char *where, mf_error *err);

/* Contexts `factor` times as long as the config's, by YaRN; for any family, whether or not its configs have it. */
#define MF_STRETCH_MAX 64
mf_status mf__config_stretch(mf__config *config, double factor, mf_error *err);

/* From memory: what the fuzzer calls. */
mf_status mf__config_parse_text(const char *name, const char *json, size_t size, mf__config *out, mf_error *err);

#endif
