/* Will it run here, and how fast: a model's sizes against what this machine's memory and drive do, measured in a
 * moment. Estimates, and called so: decoding is bound by bytes, which are known; prompts by arithmetic, which is
 * guessed. */
#ifndef MOEFLUX_VERDICT_H
#define MOEFLUX_VERDICT_H

#include "convert/survey.h"
#include "machine.h"

/* What of a model counts. */
typedef struct model_sizes {
    int64_t needs;         /* bytes of memory with the fewest experts that can be held */
    int64_t fewest;        /* ... of which experts */
    int64_t experts;       /* bytes of all of them */
    int64_t expert;        /* of one */
    int64_t token_experts; /* bytes of experts that a token wants */
    int64_t token_bytes;   /* bytes that a token reads, experts included */
    double prompt_weights; /* weights that a prompt's token is multiplied with: not the head, nor the last experts */
} model_sizes;

/* prompt_weights: of a trunk whose bytes these are, about one weight each, and of experts of that size. */
double verdict_weights(int64_t trunk_bytes, int n_expert_layers, int top_k, int64_t expert_weights);

typedef struct verdict {
    int64_t ram;            /* the budget this is for */
    int64_t least, best;    /* of --ram: below it does not run, above it is not faster */
    bool runs, fits;        /* fits: all experts are in memory */
    double held;            /* share of the experts that is */
    double hits;            /* share of wanted experts that will be found there: about */
    double decode, prefill; /* tokens per second; 0: not known */
    const char *bound;      /* what bounds decoding: "memory" or "the drive" */
    double on_gpu;          /* share of the experts that a GPU's memory takes beside the trunk */
} verdict;

/* Of a model directory. */
mf_status verdict_sizes(const char *dir, const mf__survey *s, model_sizes *out, mf_error *err);
void verdict_make(const model_sizes *m, const machine *at, int64_t ram, verdict *out);
void verdict_print(const machine *at, const verdict *v);
json_t *verdict_json(const model_sizes *m, const verdict *v);
/* For a model directory: a line on standard error where a long wait is ahead. */
void verdict_warn(const char *dir, const app_model_options *opt);

#endif
