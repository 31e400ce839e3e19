/* Making the shard of one rank of a model (weights/shard.h). */
#ifndef MF_CONVERT_SHARD_H
#define MF_CONVERT_SHARD_H

#include "weights/shard.h"

typedef struct mf__shard_options {
    bool restart;                                              /* start over whatever DST.partial holds */
    bool (*progress)(void *user, int64_t done, int64_t total); /* bytes; true stops; may be NULL */
    void *progress_user;
} mf__shard_options;

typedef struct mf__shard_size {
    int64_t n_experts, bytes;       /* of the shard */
    int64_t all_experts, all_bytes; /* of the model */
} mf__shard_size;

/* The layers of a model that have experts, and how many: what a placement needs to know. has is [n_layers], malloc'd.
 */
mf_status mf__shard_shape(const char *src, int *n_layers, int *n_experts, bool **has, mf_error *err);

/* What the shard in `what` (its owners cover all experts of src) will take; writes nothing. */
mf_status mf__shard_measure(const char *src, const mf__shard *what, mf__shard_size *out, mf_error *err);

/* Writes DST.partial and renames it to DST, which must not exist. A DST.partial of the same shard of the same model is
 * gone on with, another one is MF_E_EXISTS with the way out. Experts are compared with the model's checksums on the
 * way, where it has any. */
mf_status mf__shard_make(const char *src, const char *dst, const mf__shard *what, const mf__shard_options *opt,
                         mf_error *err);

#endif
