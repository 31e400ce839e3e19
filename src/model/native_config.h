/* What a native directory says about its model: the config, and how its experts lie in their files. Our own directories
 * say both; those of the flash-moe tools leave some of it to be found out. */
#ifndef MF_MODEL_NATIVE_CONFIG_H
#define MF_MODEL_NATIVE_CONFIG_H

#include "model/family.h"
#include "weights/native.h"

/* From config.json and generation_config.json; without the former, from the manifest's "config" object and the names of
 * the tensors. The number of layers must be that of the tensors. The family has had its look at the tensors. */
mf_status mf__native_config(const mf__native *native, mf__config *out, mf_error *err);

/* The layout of the experts, checked against the config; and every layer that wants experts has a file that is long
 * enough. Manifests without a layout get the one the flash-moe tools use: gate, up and down with scales and biases in
 * BF16 and groups of 64, 4 bits wide (2 in packed_experts_2bit), or as wide as the files' size says. */
mf_status mf__native_layout(const mf__native *native, const mf__blueprint *bp, mf__expert_layout *out, mf_error *err);

#endif
