/* Rotary positions: what a config says about them, and the tables that follow from it. Plain rope, perhaps with a base
 * made larger; linear, which slows all channels down by `factor`; YaRN and llama3, which keep the fast channels as they
 * were trained, slow the slow ones down, and ramp in between, by channel or by wavelength. */
#ifndef MF_MODEL_ROPE_H
#define MF_MODEL_ROPE_H

#include <jansson.h>

#include "base/status.h"
#include "graph/graph.h"

#define MF_ROPE_MAX 512 /* channels of a head that rotate, at most */

typedef struct mf__rope {
    double theta;
    double alpha; /* the base is theta * alpha^(n/(n-2)), n the channels that turn; 0: theta */
    double part;  /* of a whole head only this part of the pairs turns; 0: all */
    bool linear, llama3, yarn;
    double factor;              /* of all three, and of part; 0: 1 */
    double low_freq, high_freq; /* llama3: turns within the original context below and above which channels are slow
                                   and fast */
    /* the rest is for YaRN only, but for original_ctx */
    double original_ctx; /* positions the model was trained with */
    double beta_fast, beta_slow;
    double mscale, mscale_all_dim; /* 0: not given */
    double attention_factor;       /* 0: not given, follows from mscale, mscale_all_dim and factor */
    bool truncate;                 /* the ramp's ends are whole channels */
} mf__rope;

/* From the object that holds the hyper-parameters: its rope_parameters or rope_scaling (null or absent: plain rope),
 * whose type is spelt rope_type or type; rope_theta in there or beside it, else `theta`. The context before the
 * extension is original_max_position_embeddings, wherever of the two it stands. */
mf_status mf__rope_parse(const json_t *text, const char *where, double theta, mf__rope *out, mf_error *err);

/* Makes contexts of n_ctx positions `factor` times as long, by YaRN with its usual numbers; a rope that has YaRN
 * already is slowed down further. */
void mf__rope_stretch(mf__rope *rope, double n_ctx, double factor);

/* inv_freq[i] for the n_rot / 2 pairs of channels; n_rot even and at most MF_ROPE_MAX. */
void mf__rope_frequencies(const mf__rope *rope, int32_t n_rot, float *inv_freq);
/* The same as a weight of a graph; an impossible n_rot makes the graph fail. */
mf__w mf__rope_table(mf__graph *g, const mf__rope *rope, int32_t n_rot);

/* What cos and sin are multiplied with; 1 for plain rope. */
double mf__rope_attention_factor(const mf__rope *rope);
/* What DeepSeek's softmax scale 1/sqrt(dim) is multiplied with: m(mscale_all_dim)^2; 1 for plain rope. */
double mf__rope_softmax_factor(const mf__rope *rope);

#endif
