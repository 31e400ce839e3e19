/* A checkpoint as published (BF16 safetensors in shards, an index, config.json, a tokenizer) of one of synth's shapes,
 * with random weights: for tests and measurements of conversion. */
#ifndef TESTS_FAULT_CHECKPOINT_H
#define TESTS_FAULT_CHECKPOINT_H

#include "base/status.h"

/* One shard per layer and one for the rest. dir must not exist. */
mf_status checkpoint_make(const char *dir, const char *shape, int n_layers, uint64_t seed, mf_error *err);

#endif
