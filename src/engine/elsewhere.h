/* Experts that others compute: what forward.c tells them and gets from them. See mf_elsewhere in moeflux.h. */
#ifndef MF_ENGINE_ELSEWHERE_H
#define MF_ENGINE_ELSEWHERE_H

#include "engine/internal.h"

/* Copies n rows of H_POST from row `first` of the port on to the host, as rows `at` and following of the request. */
mf_status mf__elsewhere_fetch(mf_model *m, int32_t first, int32_t n, int32_t at, mf_error *err);
/* Asks who takes what of ws->wanted; those that nobody takes stay there, *n_wanted of them. */
mf_status mf__elsewhere_begin(const mf__pass *pass, int layer, int32_t n_rows, int *n_wanted, mf_error *err);
/* Brings the pairs of those that were taken into their port. st is how our own part went: after a failure they are
 * dropped, and it is what comes back. Nothing was begun: nothing happens. */
mf_status mf__elsewhere_finish(mf_model *m, mf_status st, mf_error *err);

bool mf__elsewhere_wants_hints(const mf_model *m);
/* Passes on that ids may be wanted in a layer; those that are left for our own store move together, and are counted. */
int mf__elsewhere_hint(mf_model *m, int layer, int32_t *ids, int n);

/* Where a model is a shard of one: MF_E_NOT_FOUND for an expert that is not in it. */
mf_status mf__shard_check(const mf_model *m, int layer, int32_t expert, mf_error *err);

#endif
