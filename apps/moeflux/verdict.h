/* Will it run here, and how fast: a model's sizes against what this machine's memory and drive do, measured in a
 * moment. Estimates, and called so: decoding is bound by bytes, which are known; prompts by arithmetic, which is
 * guessed. */
#ifndef MOEFLUX_VERDICT_H
#define MOEFLUX_VERDICT_H

#include "app.h"

typedef struct machine {
    int64_t total, usable; /* bytes of memory */
    int threads;
    double memory_bytes_s;  /* reading with all threads */
    double drive_bytes_s;   /* reads of random experts past the page cache; 0: not known */
    double product_bytes_s; /* bytes of weights, times rows, multiplied per second by a thread: about */
} machine;

/* What of a model counts. */
typedef struct model_sizes {
    int64_t needs;         /* bytes of memory with the fewest experts that can be held */
    int64_t fewest;        /* ... of which experts */
    int64_t experts;       /* bytes of all of them */
    int64_t expert;        /* of one */
    int64_t token_experts; /* bytes of experts that a token wants */
    int64_t token_bytes;   /* bytes that a token reads, experts included */
} model_sizes;

typedef struct verdict {
    int64_t ram;            /* the budget this is for */
    int64_t least, best;    /* of --ram: below it does not run, above it is not faster */
    bool runs, fits;        /* fits: all experts are in memory */
    double held;            /* share of the experts that is */
    double hits;            /* share of wanted experts that will be found there: about */
    double decode, prefill; /* tokens per second */
    const char *bound;      /* what bounds decoding: "memory" or "the drive" */
} verdict;

/* file: one that lies where experts are read from, for the drive; NULL: not measured. */
mf_status machine_measure(const char *file, int64_t read_bytes, machine *out, mf_error *err);
void verdict_make(const model_sizes *m, const machine *at, int64_t ram, verdict *out);
void verdict_print(const model_sizes *m, const machine *at, const verdict *v);
/* For a model directory: a line on standard error where a long wait is ahead. */
void verdict_warn(const char *dir, const app_model_options *opt);

#endif
