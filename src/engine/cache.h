/* The prompt cache: states of prefixes, in memory and on disk, found again by their tokens.
 *
 * A state is named by the XXH64 of its tokens, seeded with the model's fingerprint, and its length. In memory the
 * states share KV pages, so that keeping every 2,048th position of a long prompt costs one copy of its KV. On disk each
 * is an increment over the longest prefix that is there already (see snapshot.h):
 *
 *   DIR/FINGERPRINT/LENGTH-NAME.state
 *
 * Files appear by rename and never change, so that several processes can share a directory without locks: a reader sees
 * a whole file or none. A file that fails its checks is removed; one whose parent is gone is removed. Using an entry
 * touches it and its ancestors; over the cap the longest untouched go first. The lock of the
 * model is taken for moments, never over a file: others evaluate meanwhile. */
#ifndef MF_ENGINE_CACHE_H
#define MF_ENGINE_CACHE_H

#include "engine/internal.h"

typedef struct mf__cache mf__cache;
typedef enum mf__cache_where { MF__CACHE_MEMORY, MF__CACHE_ALL } mf__cache_where;

/* ram_bytes 0: nothing is kept in memory; dir NULL: nothing on disk; with neither, *out is NULL, which all calls take.
 */
mf_status mf__cache_open(const mf_model *m, int64_t ram_bytes, const char *dir, int64_t disk_bytes, mf__cache **out,
                         mf_error *err);
void mf__cache_close(mf_model *m, mf__cache *cache);

/* The longest state that is a prefix of tokens[0..n): *out is the caller's to free, or NULL when there is none longer
 * than `longer_than`. Damage on disk is a miss, not an error, and so is a disk that cannot be read. */
void mf__cache_find(mf_model *m, const int32_t *tokens, int64_t n, int64_t longer_than, mf__cache_where where,
                    mf__frozen **out);

/* Drops the state in memory that was not used for longest, because its memory is wanted; false: there is none. Under
 * lock; the other calls are not. */
bool mf__cache_give_back(mf_model *m);

/* Bytes in memory now, and at most; without a lock. */
void mf__cache_bytes(const mf__cache *cache, int64_t *used, int64_t *max);

/* Keeps a state. A disk that is full or not writable is logged and otherwise ignored. */
mf_status mf__cache_put(mf_model *m, mf__frozen *f, mf__cache_where where, mf_error *err);

#endif
