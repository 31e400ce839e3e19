/* A family: how its config reads, which graphs it is made of, and how its checkpoints spell their tensors.
 * Adding one is a file with these functions and a row in families.c. */
#ifndef MF_MODEL_FAMILY_H
#define MF_MODEL_FAMILY_H

#include "graph/graph.h"
#include "model/config.h"
#include "weights/catalog.h"

/* One kind of layer: what all layers with the same mixer and the same feed-forward share.
 *
 *   mix      HIDDEN -> H_MID, H_POST, ROUTE_IDS, ROUTE_SHARES     attention, residual, norm, router
 *   shared   H_POST -> SHARED, SHARED_SCORE                       runs while experts are fetched; NULL: none
 *   experts  H_POST, ROUTE_IDS -> PAIRS                           may run several times, as experts arrive
 *   combine  H_MID, PAIRS, ROUTE_SHARES, SHARED... -> HIDDEN
 *
 * A dense layer has no experts and no shared graph; its combine is the whole feed-forward: H_MID, H_POST -> HIDDEN. */
typedef struct mf__layer_kind {
    const char *name; /* "linear", "full" */
    mf__graph *mix, *shared, *experts, *combine;
    int32_t k_cols, v_cols;            /* KV row widths; 0: keeps no KV */
    int64_t conv_floats, delta_floats; /* recurrent state; 0: none */
} mf__layer_kind;

#define MF_MAX_KINDS 4
#define MF_LAYER_GRAPHS 4

typedef struct mf__blueprint {
    mf__config config;
    mf__graph *embed; /* TOKENS -> HIDDEN */
    mf__graph *tail;  /* HIDDEN -> FINAL_NORM, LOGITS */
    int n_kinds;
    mf__layer_kind kinds[MF_MAX_KINDS];
    uint8_t kind_of[MF_MAX_LAYERS];
} mf__blueprint;

struct mf__family {
    const char *name;
    const char *const *model_types; /* spellings in config.json; NULL ends */
    /* text: the object that holds the hyper-parameters */
    mf_status (*configure)(const json_t *text, const char *where, mf__config *config, mf_error *err);
    mf_status (*build)(mf__blueprint *bp, mf_error *err);
    /* Norm weights that raw checkpoints store as w - 1 (name endings; NULL ends), and a tensor of each layer of kind
     * `raw_mixer` whose last dimension tells raw from converted (1 when converted). NULL: plain weights. */
    const char *const *zero_centred_norms;
    const char *raw_witness;
    mf__mixer raw_mixer;
    /* What the config leaves open and only the tensors tell. NULL: nothing. */
    void (*look)(mf__config *config, const mf__catalog *cat);
};

extern const mf__family *const mf__families[];             /* NULL ends */
const mf__family *mf__family_find(const char *model_type); /* NULL when unknown */

/* Graphs for config (which mf__config_parse filled). */
mf_status mf__blueprint_build(const mf__config *config, mf__blueprint *out, mf_error *err);
void mf__blueprint_free(mf__blueprint *bp);
void mf__layer_graphs(const mf__layer_kind *kind, const mf__graph *out[MF_LAYER_GRAPHS]); /* NULL where absent */

/* Between the two: lets the family see the tensors, of a checkpoint or of a native directory. */
void mf__config_look(mf__config *config, const mf__catalog *cat);

extern const mf__family mf__qwen3_5_moe, mf__deepseek_v3;

#endif
