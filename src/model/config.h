/* A model's hyper-parameters, read from config.json at run time. */
#ifndef MF_MODEL_CONFIG_H
#define MF_MODEL_CONFIG_H

#include <jansson.h>

#include "base/status.h"
#include "model/rope.h"

#define MF_MAX_LAYERS 256

typedef struct mf__family mf__family;

typedef enum mf__mixer {
    MF_MIX_FULL,  /* softmax attention over a KV cache */
    MF_MIX_LINEAR /* Gated DeltaNet */
} mf__mixer;

typedef struct mf__config {
    const mf__family *family;
    char model_type[64]; /* as the config spells it */

    int32_t n_layers, n_hidden, n_vocab, n_ctx;
    float eps;
    bool tied_head; /* the head is the embedding table */
    mf__mixer mixer[MF_MAX_LAYERS];

    struct {
        int32_t n_heads, n_kv_heads, head_dim;
        int32_t n_rot; /* channels of a head that rotate */
        double theta;
    } attn;
    mf__rope rope; /* families that may use YaRN */

    struct {
        int32_t n_k_heads, k_dim, n_v_heads, v_dim, n_kernel;
    } delta;

    struct {
        int32_t n_experts, top_k, n_inner;
        int32_t n_shared_inner; /* width of the shared expert; 0: none */
        bool renorm;
        int32_t n_groups, top_groups; /* sigmoid routers: experts lie in groups; 1, 1 for none */
        float route_scale;            /* of the shares */
        bool shared_plain;            /* "shared_experts", added as it is; else "shared_expert" behind a gate */
    } moe;

    struct {
        int32_t n_layers, n_inner; /* the first layers have a plain feed-forward of this width */
    } dense;

    struct {
        int32_t n_q_rank; /* queries come from a latent of this width; 0: straight from x */
        int32_t n_latent, n_nope, n_rope, v_dim;
        bool half_split; /* rope pairs (i, i + n_rope/2) */
        bool split_up;   /* kv_b is stored as embed_q and unembed_out: told by the tensors, see mf__config_look */
    } mla;

    int32_t n_eos, eos[MF_MAX_EOS];
} mf__config;

/* root: the parsed config.json (hyper-parameters at the top or under text_config). where begins error texts. */
mf_status mf__config_parse(const json_t *root, const char *where, mf__config *out, mf_error *err);

/* Adds the ids of generation_config.json's eos_token_id (a number or a list) to those the config named. */
mf_status mf__config_add_eos(mf__config *config, const json_t *generation, const char *where, mf_error *err);

/* From memory: what the fuzzer calls. */
mf_status mf__config_parse_text(const char *name, const char *json, size_t size, mf__config *out, mf_error *err);

#endif
