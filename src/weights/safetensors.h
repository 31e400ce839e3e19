/* safetensors: a JSON header and raw bytes. Reading untrusted files; writing for tests and tools. */
#ifndef MF_WEIGHTS_SAFETENSORS_H
#define MF_WEIGHTS_SAFETENSORS_H

#include "weights/catalog.h"

/* path: a .safetensors file, or a directory with model.safetensors (taken when both are there) or
 * model.safetensors.index.json. With an index the catalogue has the tensors the index lists, no others; each must be in
 * the shard the index says and in no other listed one. */
mf_status mf__safetensors_open(const char *path, mf__catalog **out, mf_error *err);

/* The header alone, from memory: what the fuzzer calls. data holds the whole file. name is for errors. */
mf_status mf__safetensors_parse(const char *name, const uint8_t *data, size_t size, mf__catalog **out, mf_error *err);

/* Writes entries (name, type, dims, data, size used) as one file, by atomic replace. */
mf_status mf__safetensors_write(const char *path, const mf__entry *entries, int64_t n, mf_error *err);

#endif
