/* The part of the prompt cache that survives: increments in files. See cache.h for the layout and the rules. */
#ifndef MF_ENGINE_CACHE_DISK_H
#define MF_ENGINE_CACHE_DISK_H

#include "engine/internal.h"

typedef struct mf__cache_disk mf__cache_disk;

mf_status mf__cache_disk_open(const mf_model *m, const char *dir, int64_t max_bytes, mf__cache_disk **out,
                              mf_error *err);
void mf__cache_disk_close(mf__cache_disk *d); /* NULL is fine */
/* *out NULL: there is none, or none that can be read; then the log says why. */
void mf__cache_disk_find(mf_model *m, mf__cache_disk *d, const int32_t *tokens, int64_t n, int64_t longer_than,
                         mf__frozen **out);
mf_status mf__cache_disk_put(mf_model *m, mf__cache_disk *d, const mf__frozen *f, mf_error *err);

#endif
