/* Models of a real shape with random weights, so that anyone can measure without a download. */
#ifndef MF_CONVERT_SYNTH_H
#define MF_CONVERT_SYNTH_H

#include <jansson.h>

#include "base/status.h"

typedef struct mf__synth_options {
    const char *shape; /* one of mf__synth_shapes */
    int n_layers;      /* 0: as many as the real model has */
    int n_experts;     /* of a layer; 0: as many as the real model has. A token costs the same with fewer */
    uint64_t seed;     /* same seed, same bytes */
    double popularity; /* exponent of the Zipf law that the experts' popularity follows; 0: all alike */
    int expert_bits;   /* default 4 */
    int also_bits;     /* 2 or 3: small copies beside the experts, as convert makes them; 0: none */
    int trunk_bits;    /* default 8; routers are BF16 */
    int n_threads;     /* 0: one per processor */
    bool (*progress)(void *user, int64_t done, int64_t total); /* bytes written; true stops; may be NULL */
    void *progress_user;
} mf__synth_options;

void mf__synth_options_init(mf__synth_options *opt);

extern const char *const mf__synth_shapes[]; /* NULL ends */

/* The config.json of a shape; NULL (and an error) for an unknown name or a number of layers it cannot have. */
json_t *mf__synth_config(const char *shape, int n_layers, mf_error *err);
/* A tokenizer.json of single bytes. */
json_t *mf__synth_tokenizer(void);

/* How large a model of that shape is; nothing is written. */
typedef struct mf__synth_sizes {
    int64_t trunk;          /* bytes of all but the experts */
    int64_t token;          /* of which a token reads: of an embedding that is no head too, one row */
    int64_t body;           /* ... and of it without the head */
    int64_t expert;         /* one of them */
    int64_t expert_weights; /* ... in numbers */
    int64_t n_experts;      /* in all layers */
    int64_t n_wanted;       /* by a token */
    int n_expert_layers;
} mf__synth_sizes;
mf_status mf__synth_measure(const mf__synth_options *opt, mf__synth_sizes *out, mf_error *err);

/* dst must not exist; it is complete afterwards, or absent. */
mf_status mf__synth(const mf__synth_options *opt, const char *dst, mf_error *err);

#endif
