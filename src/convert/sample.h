/* What the experts of a model saw while it read a text: for every token and layer the experts' input, where it was
 * routed and with which share. In a file without a name, which goes with the process; one layer at a time is in memory.
 */
#ifndef MF_CONVERT_SAMPLE_H
#define MF_CONVERT_SAMPLE_H

#include "base/status.h"

typedef struct mf__sample mf__sample;

typedef struct mf__sample_shape {
    int n_layers, n_experts, top_k;
    int64_t n_hidden, max_tokens;
} mf__sample_shape;

/* folder: where the file lies. */
mf_status mf__sample_create(const char *folder, const mf__sample_shape *shape, mf__sample **out, mf_error *err);
void mf__sample_free(mf__sample *s); /* NULL is fine */
const mf__sample_shape *mf__sample_shape_of(const mf__sample *s);
int64_t mf__sample_tokens(const mf__sample *s); /* those that all of mf__sample_count said */

/* The next n tokens at one layer: rows [n][n_hidden], and ids and shares [n][top_k]. Tokens are the next until
 * mf__sample_count says that all layers have them. MF_E_INVALID where there is no room for them, or a number is not
 * possible. */
mf_status mf__sample_rows(mf__sample *s, int layer, const float *rows, int64_t n, mf_error *err);
mf_status mf__sample_ids(mf__sample *s, int layer, const float *ids, int64_t n, mf_error *err);
mf_status mf__sample_shares(mf__sample *s, int layer, const float *shares, int64_t n, mf_error *err);
void mf__sample_count(mf__sample *s, int64_t n);

/* Everything of a layer: rows as BF16 [tokens][n_hidden], ids and shares [tokens][top_k]. */
mf_status mf__sample_layer(const mf__sample *s, int layer, uint16_t *rows, int32_t *ids, float *shares, mf_error *err);

#endif
