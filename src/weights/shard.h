/* A shard: a model directory that has only the experts of one rank of a job (docs/CLUSTER.md).
 *
 * Its files are as long as the model's, with holes where the rest would be, so everything lies where it does in the
 * model. shard.json says whose shard it is, and which ranks have which experts; the trunk is there for rank 0 alone.
 * What the fingerprint of a model is made of is always there: the shard has the model's own. */
#ifndef MF_WEIGHTS_SHARD_H
#define MF_WEIGHTS_SHARD_H

#include "base/status.h"

#define MF_SHARD_NAME "shard.json"
#define MF_SHARD_RANKS 64       /* at most */
#define MF_SHARD_SAMPLE 4096    /* first bytes of an expert file that every shard has */
#define MF_SHARD_TENSOR_HEAD 64 /* ... of every tensor of the trunk */

typedef struct mf__shard {
    int n_ranks, rank;
    int n_layers, n_experts;
    bool trunk;       /* all of it is there, not its samples alone */
    uint64_t *owners; /* [n_layers][n_experts] a bit for every rank that has the expert; 0: the layer has none */
} mf__shard;

/* *out stays NULL where the directory has no such record: then it is a whole model. */
mf_status mf__shard_read(const char *dir, mf__shard **out, mf_error *err);
/* From the bytes of a record: what the fuzzer calls. name begins errors. */
mf_status mf__shard_parse(const char *name, const char *json, size_t size, mf__shard **out, mf_error *err);
char *mf__shard_text(const mf__shard *shard); /* the record, malloc'd; NULL: no memory */
void mf__shard_free(mf__shard *shard);

static inline bool mf__shard_has(const mf__shard *s, int layer, int expert) {
    return s->owners[(int64_t)layer * s->n_experts + expert] >> s->rank & 1;
}
/* Names a placement: shards with the same number belong together. */
uint64_t mf__shard_placement(const mf__shard *shard);

#endif
