/* A family: how its config reads, which parts it is made of, and how its checkpoints spell their tensors.
 * Adding one is a file with these and a row in families.c: docs/models.md. */
#ifndef MF_MODEL_FAMILY_H
#define MF_MODEL_FAMILY_H

#include "graph/graph.h"
#include "model/config.h"
#include "quant/expert.h"
#include "quant/kv.h"
#include "weights/catalog.h"

/* One kind of layer: what all layers with the same mixer and the same feed-forward share.
 *
 *   mix      HIDDEN -> H_MID, H_POST, ROUTE_IDS, ROUTE_SHARES     attention, residual, norm, router
 *   shared   H_POST -> SHARED, SHARED_SCORE                       runs while experts are fetched; NULL: none
 *   experts  H_POST, ROUTE_IDS -> PAIRS                           may run several times, as experts arrive
 *   combine  H_MID, PAIRS, ROUTE_SHARES, SHARED... -> HIDDEN
 *   ahead    HIDDEN -> AHEAD_IDS                                  the layer's router, run before its turn; NULL: none
 *   early    H_MID -> AHEAD_IDS                                   the same, before the experts of the layer before it
 *   cache    HIDDEN -> keys and values                            what mix leaves behind, for rows that end there
 *
 * ahead, early and cache have no weights of their own: they are mix's.
 *
 * A dense layer has no experts and no shared graph; its combine is the whole feed-forward: H_MID, H_POST -> HIDDEN.
 * One that is alone has not even that: H_MID -> HIDDEN. */
typedef struct mf__layer_kind {
    const char *name; /* "linear", "full", "sliding"; "full, dense" */
    mf__mixer mixer;
    bool dense, hashed, alone;
    mf__glu glu, dense_glu; /* of its experts; of its shared expert or dense feed-forward */
    mf__graph *mix, *shared, *experts, *combine;
    mf__graph *ahead, *early;          /* not among MF_LAYER_GRAPHS; NULL for dense layers */
    mf__graph *cache;                  /* neither; NULL for layers with a recurrent state */
    int32_t k_cols, v_cols;            /* KV row widths; 0: keeps no KV */
    int32_t v_step;                    /* positions that share a V row */
    int64_t conv_floats, delta_floats; /* recurrent state; 0: none */
} mf__layer_kind;

#define MF_MAX_KINDS (3 * MF_MIX_COUNT)

/* The graphs of a layer, in order. */
typedef enum mf__layer_graph {
    MF_GRAPH_MIX,
    MF_GRAPH_SHARED,
    MF_GRAPH_EXPERTS,
    MF_GRAPH_COMBINE,
    MF_LAYER_GRAPHS
} mf__layer_graph;

typedef struct mf__blueprint {
    mf__config config;
    mf__graph *embed; /* TOKENS -> HIDDEN */
    mf__graph *tail;  /* HIDDEN -> FINAL_NORM, LOGITS */
    int n_kinds;
    mf__layer_kind kinds[MF_MAX_KINDS];
    uint8_t kind_of[MF_MAX_LAYERS];
} mf__blueprint;

/* Another spelling of a piece of a tensor's name: where the graphs say `ours`, a checkpoint may say `theirs`. */
typedef struct mf__alias {
    const char *ours, *theirs;
} mf__alias;

/* A matrix of ours whose rows are rows of another (often larger) one in the checkpoint: row r is row row_of(r) of
 * `theirs`. block_of: instead, the columns are in another order, in blocks of a value head's width. */
typedef struct mf__regroup {
    const char *ours, *theirs; /* after "model.layers.N." */
    int64_t (*row_of)(const mf__config *c, int64_t row);
    int64_t (*block_of)(const mf__config *c, int64_t block);
} mf__regroup;

typedef enum mf__fuse {
    MF_FUSE_NONE,       /* gate and up have a tensor each */
    MF_FUSE_HALVES,     /* one tensor: all rows of gate, then all of up */
    MF_FUSE_INTERLEAVED /* one tensor: a row of gate, a row of up, and so on */
} mf__fuse;

/* One way to name and lay out the experts. Names come after "model.layers.N."; # stands for the expert's number, and
 * a name without it is a tensor of all experts. A name that ends in _blocks is MXFP4, with _scales beside it; one that
 * ends in _packed is 4-bit integers, with _scale beside it. */
typedef struct mf__expert_spelling {
    const char *weight[MF_PART_COUNT];
    const char *bias[MF_PART_COUNT]; /* NULL unless the family's experts have biases */
    mf__fuse fuse;
    bool transposed; /* stored [in][out] instead of [out][in] */
} mf__expert_spelling;

struct mf__family {
    const char *name;
    const char *models;             /* what it is known for, for the documentation */
    const char *const *model_types; /* spellings in config.json; NULL ends */
    /* Where no config says: a tensor that tells the family (of those that fit, the first family in the table), the
     * context its models were made for, and the tokens that end an answer. */
    const char *witness; /* after "model.layers.N.", in some layer; NULL: a config is needed */
    int32_t usual_ctx;
    int32_t n_usual_eos, usual_eos[2];
    mf__features has;
    const char *act;       /* what hidden_act may be, if there is one; NULL: silu */
    const char *other_act; /* ... or this */
    /* text: the object that holds the hyper-parameters; what all families share is read already */
    mf_status (*configure)(const json_t *text, const char *where, mf__config *config, mf_error *err);

    /* Checkpoints. NULL for each: nothing of the kind. */
    const mf__alias *aliases; /* a NULL name ends */
    /* A layer of the checkpoint is two of the graphs': N is N / 2 there, and aliases, which begin after
     * "model.layers.N.", have @ where it says which of the two. num_layers counts the checkpoint's. */
    bool paired;
    const mf__regroup *regroups;               /* a NULL name ends */
    const mf__expert_spelling *const *experts; /* tried in order, NULL ends; NULL: mf__expert_spellings */
    /* Norm weights that raw checkpoints store as w - 1 (name endings; NULL ends), and a tensor of each layer of kind
     * `raw_mixer` whose last dimension tells raw from converted (1 when converted); NULL: all are raw. */
    const char *const *zero_centred_norms;
    const char *raw_witness;
    mf__mixer raw_mixer;
    /* What the config leaves open and only the tensors tell. */
    void (*look)(mf__config *config, const mf__catalog *cat);
};

extern const mf__family *const mf__families[];              /* NULL ends */
const mf__family *mf__family_find(const char *model_type);  /* NULL when unknown */
const mf__family *mf__family_guess(const mf__catalog *cat); /* by its tensors; NULL when none fits */

/* mlp.experts.#.gate_proj.weight; mlp.switch_mlp.gate_proj.weight; mlp.experts.gate_up_proj;
 * mlp.experts.#.gate_proj.weight_packed */
extern const mf__expert_spelling *const mf__expert_spellings[];
/* mlp.shared_experts, as DeepSeek-V3 and many after it have it */
extern const mf__alias mf__aliases_of_deepseek[];
/* block_sparse_moe.experts.#.w1.weight; block_sparse_moe.switch_mlp.gate_proj.weight */
extern const mf__expert_spelling *const mf__expert_spellings_w123[];
/* The norms that Qwen's hybrid models store as w - 1. */
extern const char *const mf__zero_centred_norms[];

/* A `look` for latent attention: whether kv_b_proj is stored in two. */
void mf__look_latent(mf__config *config, const mf__catalog *cat);

/* features.c: the table of MF_FEATURES columns. */
#define MF_FEATURES 13
const char *mf__feature_name(int column); /* "attention", "rope", "router", ... */
/* What a family (or, with its own features, a model) has in that column; text has room for size bytes. */
void mf__feature_text(const mf__features *has, int column, char *text, size_t size);
const char *mf__mixer_key(mf__mixer mixer);  /* in layer_types: "full_attention" */
const char *mf__mixer_name(mf__mixer mixer); /* "full" */

/* Graphs for config (which mf__config_parse filled). */
mf_status mf__blueprint_build(const mf__config *config, mf__blueprint *out, mf_error *err);
void mf__blueprint_free(mf__blueprint *bp);
int64_t mf__blueprint_kv_bytes(const mf__blueprint *bp, mf__type kv_type); /* of one token, in all layers */
/* State that evaluating the n-th token touches: the rows it sees, the keys of an index, recurrent state twice. */
int64_t mf__blueprint_touched_bytes(const mf__blueprint *bp, mf__type kv_type, int64_t n);
void mf__layer_graphs(const mf__layer_kind *kind, const mf__graph *out[MF_LAYER_GRAPHS]); /* NULL where absent */

/* Between reading a config and building: lets the family see the tensors, of a checkpoint or of a native directory. */
void mf__config_look(mf__config *config, const mf__catalog *cat);

extern const mf__family mf__qwen3_5_moe, mf__qwen3_next, mf__qwen3_moe, mf__deepseek_v3, mf__glm4_moe, mf__gpt_oss,
    mf__minimax_m2, mf__glm4_moe_lite, mf__mixtral, mf__olmoe, mf__qwen2_moe, mf__dots1, mf__hy_v3, mf__hunyuan_v1_moe,
    mf__ernie4_5_moe, mf__mistral4, mf__mimo_v2_flash, mf__gemma4, mf__minimax_m3_vl, mf__deepseek_v32, mf__glm_moe_dsa,
    mf__deepseek_v4, mf__lfm2_moe, mf__llama4_text, mf__step3p7, mf__longcat_flash, mf__kimi_linear, mf__nemotron_h;

#endif
