/* A model's hyper-parameters, read from config.json at run time. */
#ifndef MF_MODEL_CONFIG_H
#define MF_MODEL_CONFIG_H

#include <jansson.h>

#include "base/status.h"
#include "graph/ops.h"
#include "model/rope.h"

#define MF_MAX_LAYERS 256

typedef struct mf__family mf__family;

typedef enum mf__mixer {
    MF_MIX_FULL,    /* softmax attention over a KV cache */
    MF_MIX_LINEAR,  /* Gated DeltaNet */
    MF_MIX_SLIDING, /* softmax attention over the newest rows of the cache */
    MF_MIX_LATENT,  /* softmax attention over a cache of latents */
    MF_MIX_COUNT
} mf__mixer;

typedef enum mf__qk_norm {
    MF_QK_NORM_NONE,
    MF_QK_NORM_HEAD, /* every head for itself, with the same weights */
    MF_QK_NORM_JOINT /* all heads as one row, each channel with its own weight */
} mf__qk_norm;

typedef enum mf__shared_kind {
    MF_SHARED_NONE,
    MF_SHARED_GATED, /* its output is multiplied by sigmoid(score) */
    MF_SHARED_PLAIN
} mf__shared_kind;

/* Which parts the models of a family are put together from. What a config may switch off (a bias, a norm) is given as
 * it is when it is on. Reading a config starts from this and refuses what is not here; inspect and docs/models.md print
 * it. */
typedef struct mf__features {
    unsigned mixers;     /* 1 << MF_MIX_FULL | ... */
    bool attn_gate;      /* a sigmoid gate per channel on attention's output; q_proj makes it, beside each query head */
    bool bias_qkv;       /* q, k and v projections have a bias */
    bool bias_o;         /* the output projection has one */
    bool sinks;          /* a learned logit per head joins the softmax */
    mf__qk_norm qk_norm; /* of queries and keys, before they rotate */
    bool zero_centred;   /* raw checkpoints store most norm weights minus one */
    bool interleaved;    /* rope turns pairs (2i, 2i+1) instead of (i, i + n/2) */
    bool yarn;           /* rope may be stretched by YaRN */
    mf__route_kind route;
    bool route_bias;  /* a bias on the router's logits */
    bool choice_bias; /* a bias that takes part in choosing, not in weighing (SIGMOID) */
    bool groups;      /* experts lie in groups, of which the best take part (SIGMOID) */
    mf__shared_kind shared;
    mf__glu_kind glu;
    bool expert_bias; /* the experts' matrices have biases */
    bool dense;       /* some layers may have a dense feed-forward instead of experts */
} mf__features;

typedef struct mf__config {
    const mf__family *family;
    char model_type[64]; /* as the config spells it */
    mf__features has;    /* the family's, less what this config switches off */

    int32_t n_layers, n_hidden, n_vocab, n_ctx;
    float eps;
    bool tied_head; /* the head is the embedding table */
    mf__mixer mixer[MF_MAX_LAYERS];
    bool dense[MF_MAX_LAYERS]; /* a plain feed-forward of width n_dense_inner instead of experts */
    int32_t n_dense_inner;

    struct {
        int32_t n_heads, n_kv_heads, head_dim;
        int32_t n_rot;  /* channels of a head that rotate */
        int32_t window; /* of SLIDING layers */
    } attn;
    mf__rope rope;

    struct {
        int32_t n_k_heads, k_dim, n_v_heads, v_dim, n_kernel;
    } delta;

    struct {
        int32_t n_experts, top_k, n_inner;
        int32_t n_shared_inner;       /* width of the shared expert; 0: none */
        int32_t n_groups, top_groups; /* 1, 1: no groups */
        bool renorm;                  /* shares are divided by their sum */
        double scale;                 /* ... and multiplied by this */
        mf__glu glu;
    } moe;

    struct {
        int32_t n_q_rank; /* queries come from a latent of this width; 0: straight from x */
        int32_t n_latent, n_nope, n_rope, v_dim;
        bool split_up; /* kv_b is stored as embed_q and unembed_out: told by the tensors, see mf__config_look */
    } mla;

    int32_t n_eos, eos[MF_MAX_EOS];
} mf__config;

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
