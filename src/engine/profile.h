/* Where the time of evaluations goes, by kind of op: for programs that measure. */
#ifndef MF_ENGINE_PROFILE_H
#define MF_ENGINE_PROFILE_H

#include "graph/ops.h"
#include "moeflux.h"

/* What one kind of op has done. bytes: what it has to touch at least, weights, states and buffers once per run; flops:
 * two per product of matrices, and about as many as are needed elsewhere; 0 where there are hardly any. */
typedef struct mf__profile_row {
    const char *name;
    int64_t n_runs, ns;
    double bytes, flops;
} mf__profile_row;

#define MF_PROFILE_HEAD MF_OP_COUNT /* the product with the vocabulary, apart from the other products */
#define MF_PROFILE_ROWS (MF_OP_COUNT + 1)

typedef struct mf__profile {
    mf__profile_row rows[MF_PROFILE_ROWS];
} mf__profile;

/* From here on evaluations add to *p, which starts at zero and is the caller's; NULL: no more. Not while anything
 * evaluates. */
void mf__model_profile(mf_model *model, mf__profile *p);

#endif
