/* Which ranks of a job have which experts: a bit for each, [n_layers][n_experts]. Equal arguments give equal tables. */
#ifndef MOEFLUX_PLACEMENT_H
#define MOEFLUX_PLACEMENT_H

#include "app.h"

#define PLACEMENT_RANKS 64 /* at most: bits of an owner */

typedef struct placement {
    int n_ranks, n_layers, n_experts;
    const bool *has;        /* [n_layers] the layer has experts; NULL: all have */
    const int64_t *weights; /* [n_ranks] shares of the experts, in any unit */
    double extra;           /* room for so many experts more, as a part of all, on all ranks together: copies of those
                             * that are wanted most; needs routes */
    const char *routes;     /* a file of run --record-routes; NULL: by a hash */
} placement;

/* The owners, malloc'd. With routes every layer's work is shared evenly, in memory that is shared by weight. */
mf_status placement_make(const placement *p, uint64_t **owners, mf_error *err);

/* How uneven the work of a text is: of all its layers, the mean and the worst of (the busiest rank's work / the mean),
 * where an expert with several owners goes to the one that has least, token by token. */
typedef struct placement_balance {
    double text;  /* over the whole text, as prompts see it: mean of the layers' */
    double worst; /* ... and the worst layer's */
    double token; /* of single tokens: the mean */
} placement_balance;
mf_status placement_measure(const placement *p, const uint64_t *owners, placement_balance *out, mf_error *err);

/* Gives each expert that is wanted in a layer to one of its owners, so that the busiest has least; where two are alike,
 * to the one that had less so far: total [n_ranks], which is kept. rows [n]: how many go to each of ids, NULL: one;
 * chosen [n]. */
void placement_choose(const uint64_t *owners, const int32_t *ids, const int32_t *rows, int n, int n_ranks,
                      int64_t *total, uint8_t *chosen);

#endif
