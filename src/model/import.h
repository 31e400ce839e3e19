/* How published checkpoints spell what the graphs want: prefixes, expert layouts, norm conventions.
 *
 * The graphs know the canonical names ("model.layers.3.mlp.gate.weight"); an import finds the tensor behind such a name
 * in a checkpoint, whoever published it. */
#ifndef MF_MODEL_IMPORT_H
#define MF_MODEL_IMPORT_H

#include "model/family.h"
#include "model/source.h"
#include "weights/catalog.h"

typedef struct mf__import {
    const mf__catalog *cat;
    const mf__blueprint *bp;
    bool raw_norms; /* this checkpoint stores the family's zero-centred norms as w - 1 */
} mf__import;

mf_status mf__import_open(const mf__catalog *cat, const mf__blueprint *bp, mf__import *out, mf_error *err);

/* The trunk tensor with that canonical name and shape. *add_one: its values are to be used as 1 + w. */
mf_status mf__import_trunk(const mf__import *im, const mf__weight_info *w, const char *name, mf__source *out,
                           bool *add_one, mf_error *err);

/* One matrix of one expert; and its bias vector as a matrix of one column (MF_E_INVALID if the family has none). */
mf_status mf__import_expert(const mf__import *im, int layer, int expert, mf__expert_part part, mf__source *out,
                            mf_error *err);
mf_status mf__import_expert_bias(const mf__import *im, int layer, int expert, mf__expert_part part, mf__source *out,
                                 mf_error *err);

/* Calls fn for every trunk weight of the model with its canonical name, each name once; stops at the first error. */
typedef mf_status mf__weight_fn(void *ctx, const char *name, const mf__weight_info *w, mf_error *err);
mf_status mf__blueprint_each_weight(const mf__blueprint *bp, mf__weight_fn *fn, void *ctx, mf_error *err);

#endif
