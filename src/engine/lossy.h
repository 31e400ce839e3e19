/* Reading less at a loss: choices that know what is in memory. The one place that decides; off unless asked for.
 *
 * For every expert that a decoded row chose and that the logical cache (store/store.h) has not, in this order:
 *
 *   small     served from its small copy, if its share is small and that is there   mf_lossy.small, promote
 *   replace   by an expert that it has, if that one's score is close enough         mf_lossy.bonus, sure, tail
 *   skip      if its share is small; the others' shares grow                        mf_lossy.skip
 *   small     ... and if it is not
 *   full      read, as always
 *
 * The first choices of a row are left alone, and those that the policy expects to be wanted again soon: reading them
 * pays (mf_lossy.promote), if there is room for them to stay until then. So are rows of prompts, and all rows until the
 * cache is full: what is read then stays. Decisions depend on scores and on the logical cache, never on the time that
 * reads take: the same tokens from the same state of the cache give the same text. In a batch, a row sees what the rows
 * before it have read.
 *
 * The same decisions are made for routers that look ahead, so that what is read ahead is what will be wanted.
 *
 * Small copies are a second set of experts with a store and a logical cache of their own, which takes its share of the
 * experts' memory. */
#ifndef MF_ENGINE_LOSSY_H
#define MF_ENGINE_LOSSY_H

#include "engine/internal.h"

typedef enum mf__served { MF_SERVED_NOT, MF_SERVED_FULL, MF_SERVED_SMALL } mf__served;

struct mf__lossy {
    mf_lossy opt;
    mf__store *store; /* of small copies; NULL: none */
    mf__turn *turn;
    mf__expert_layout layout;
    const float **bias; /* [n_layers] what is added to scores in the choice; NULL: nothing */
    /* one layer's decisions */
    uint8_t *served;          /* [n_experts] mf__served */
    uint8_t *resident;        /* [n_experts] */
    uint8_t *small_resident;  /* [n_experts] small copies */
    float *chance;            /* [n_experts] */
    float *scores;            /* [n_experts] the router's logits of one row */
    float *shares;            /* [top_k] of one row */
    float least;              /* the chance that an expert needs to stay once it is read */
    double *last;             /* [n_layers] the mean share of a row's last choice, a part of 1 ... */
    int32_t *n_last;          /* [n_layers] ... over so many rows, LAST_ROWS at most */
    int32_t *wanted, *counts; /* [n_experts] small copies that this layer wants ... */
    int32_t *ahead;           /* [n_experts] ... and that the next one may */
    int n_wanted;
    int32_t *used, *used_counts; /* [n_experts] what the router chose: the policy is to know, whoever serves it */
    int n_used;
    int32_t changed[MF_MAX_BATCH]; /* experts of each part's token that were replaced or skipped in this pass */
    _Atomic int64_t n_pairs, n_replaced, n_skipped, n_small; /* of decoded rows; read by whoever wants counters */
};

/* Whether anything is asked for; MF_E_INVALID for what makes no sense. */
mf_status mf__lossy_check(const mf_lossy *opt, mf_error *err);
bool mf__lossy_asked(const mf_lossy *opt);

/* After the weights are bound and before stores are opened: what the model can do of it. m->lossy stays NULL where
 * nothing is asked for. */
mf_status mf__lossy_open(mf_model *m, const mf_lossy *opt, mf_error *err);
void mf__lossy_close(mf_model *m);
/* small_config and small_part, and what store_config has to know of them; io and so on as the host's store. */
mf_status mf__lossy_store_plan(mf_model *m, const mf_lossy *opt, mf_error *err);
/* Opens the store of small copies with its part of experts_budget, and leaves the rest to store_config. */
mf_status mf__lossy_open_store(mf_model *m, mf_error *err);

void mf__lossy_begin_pass(mf__pass *pass);
/* Decides about ids and shares of the layer's rows: ws->route_ids, and where they differ from what the router said the
 * ports too. Afterwards wanted and counts have those that small copies serve. */
mf_status mf__lossy_choose(const mf__pass *pass, int layer, const mf__rows *rows, mf_error *err);
/* The same for a layer that follows, from the ports of the lookahead graph; changes nothing but says to both stores
 * what to read. */
mf_status mf__lossy_look_ahead(mf_model *m, mf__predictor who, int layer, int32_t n_rows, mf_error *err);

#endif
