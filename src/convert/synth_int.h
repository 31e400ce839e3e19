/* What the two halves of synth share: the plan and its stages (synth.c), the random bytes (synth_fill.c). */
#ifndef MF_CONVERT_SYNTH_INT_H
#define MF_CONVERT_SYNTH_INT_H

#include <stdatomic.h>

#include "base/pool.h"
#include "convert/synth.h"
#include "model/import.h"
#include "weights/native.h"

#define MF_SYNTH_SLOTS 3
#define MF_SYNTH_EXPERTS 64 /* at most so many in an item */

typedef struct mf__synth_weight {
    char *name;
    bool vector, router;
    int64_t n_rows, n_cols, chunk_rows;
    int layer; /* -1: outside */
    mf__tensor form;
} mf__synth_weight;

typedef struct mf__synth_item {
    const mf__synth_weight *w; /* NULL: experts */
    int64_t begin, end;        /* rows of w */
    int layer, first, count;   /* experts */
    int64_t bytes;
    uint8_t *out; /* codes, scales, biases of the rows; or experts, a stride apart, and then their small copies */
    uint64_t hashes[MF_SYNTH_EXPERTS], small_hashes[MF_SYNTH_EXPERTS];
} mf__synth_item;

typedef struct mf__synth_state {
    const mf__synth_options *opt;
    mf__blueprint bp;
    mf__synth_weight *weights;
    int64_t n_weights, max_out, max_side, total;
    mf__expert_layout layout, small; /* small: with also_bits */
    int at_once;
    mf__native_writer *writer;
    mf__pool *pool;
    mf__synth_item items[MF_SYNTH_SLOTS];
    uint8_t *scales, *biases; /* of the matrix being written */
    int64_t next_weight, next_row;
    int next_layer, next_expert;
    _Atomic int64_t done;
} mf__synth_state;

/* Fills the item's bytes, on all threads of the pool. */
mf_status mf__synth_fill(mf__synth_state *s, mf__synth_item *it, mf_error *err);

#endif
