/* How many of the wanted experts a cache of a given size would hold, by replaying routes through the store's own
 * policy, with nothing read and nothing predicted. */
#ifndef MOEFLUX_CACHE_HITS_H
#define MOEFLUX_CACHE_HITS_H

#include "routes.h"

/* n_slots experts of all layers together. The first half of the tokens fills the cache, the second half counts: *share
 * is of 1. */
mf_status cache_hits(const routes *r, int64_t n_slots, double *share, mf_error *err);

#endif
