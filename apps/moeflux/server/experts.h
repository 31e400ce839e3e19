/* How often each expert was asked for: a count per layer and expert, for the page's heat map. Counts fade, so that the
 * map shows what is used now. */
#ifndef MOEFLUX_EXPERTS_H
#define MOEFLUX_EXPERTS_H

#include "buf.h"
#include "moeflux.h"

typedef struct experts experts;

experts *experts_create(void);
void experts_free(experts *e); /* NULL is fine; after the model is closed */
/* A model's options take it before the model, and its shape, are known; until then nothing is counted. */
mf_route_sink experts_sink(experts *e);
bool experts_shape(experts *e, const mf_model_info *info);

void experts_write(experts *e, buf *out); /* {"layers": [[n, ...], ...]} */

#endif
