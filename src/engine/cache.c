/* The prompt cache: what is in memory, and which of memory and disk to ask. The disk is cache_disk.c. */
#include "engine/cache.h"

#include <stdlib.h>
#include <string.h>

#include "engine/cache_disk.h"

#define MAX_ENTRIES 256

struct mf__cache {
    int64_t ram_bytes;
    _Atomic int64_t used_bytes; /* for those who ask without the lock */
    int n;
    mf__frozen *entries[MAX_ENTRIES]; /* least recently used first */
    mf__cache_disk *disk;             /* NULL: none */
};

mf_status mf__cache_open(const mf_model *m, int64_t ram_bytes, const char *dir, int64_t disk_bytes, mf__cache **out,
                         mf_error *err) {
    *out = NULL;
    if (ram_bytes <= 0 && !dir) return MF_OK;
    mf__cache *c = calloc(1, sizeof *c);
    if (!c) return mf__fail(err, MF_E_NOMEM, "no memory for the prompt cache");
    c->ram_bytes = ram_bytes;
    mf_status st = dir ? mf__cache_disk_open(m, dir, disk_bytes, &c->disk, err) : MF_OK;
    if (st != MF_OK) {
        free(c);
        return st;
    }
    *out = c;
    return MF_OK;
}

void mf__cache_close(mf_model *m, mf__cache *c) {
    if (!c) return;
    for (int i = 0; i < c->n; i++) mf__frozen_free(m, c->entries[i]);
    mf__cache_disk_close(c->disk);
    free(c);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static bool is_prefix(const mf__frozen *f, const int32_t *tokens, int64_t n) {
    return f->length <= n && !memcmp(f->tokens, tokens, (size_t)f->length * sizeof *tokens);
}

/* Bytes of all entries; a page that several hold counts once. */
static int64_t used_bytes(const mf_model *m, const mf__cache *c) {
    int64_t bytes = 0, page = m->kv.page_bytes;
    for (int i = 0; i < c->n; i++)
        for (int32_t p = 0; p < c->entries[i]->n_pages; p++) c->entries[i]->pages[p]->mark = false;
    for (int i = 0; i < c->n; i++) {
        const mf__frozen *f = c->entries[i];
        if (f->recurrent) bytes += m->recurrent_floats * (int64_t)sizeof(float);
        for (int32_t p = 0; p < f->n_pages; p++) {
            if (!f->pages[p]->mark) bytes += page;
            f->pages[p]->mark = true;
        }
    }
    return bytes;
}

static void remove_entry(mf__cache *c, int i) {
    c->n--;
    memmove(&c->entries[i], &c->entries[i + 1], (size_t)(c->n - i) * sizeof c->entries[0]);
}

static void put_in_memory(mf_model *m, mf__cache *c, mf__frozen *f) {
    if (c->ram_bytes <= 0) return;
    for (int i = 0; i < c->n; i++)
        if (c->entries[i]->length == f->length && is_prefix(c->entries[i], f->tokens, f->length)) {
            mf__frozen_free(m, c->entries[i]);
            remove_entry(c, i);
            break;
        }
    if (c->n == MAX_ENTRIES) {
        mf__frozen_free(m, c->entries[0]);
        remove_entry(c, 0);
    }
    f->refs++;
    c->entries[c->n++] = f;
    int64_t used;
    while ((used = used_bytes(m, c)) > c->ram_bytes && c->n) {
        mf__frozen_free(m, c->entries[0]);
        remove_entry(c, 0);
    }
    c->used_bytes = used;
}

bool mf__cache_give_back(mf_model *m) {
    mf__cache *c = m->cache;
    if (!c || !c->n) return false;
    mf__frozen_free(m, c->entries[0]);
    remove_entry(c, 0);
    c->used_bytes = used_bytes(m, c);
    return true;
}

void mf__cache_bytes(const mf__cache *c, int64_t *used, int64_t *max) {
    *used = c ? c->used_bytes : 0;
    *max = c ? c->ram_bytes : 0;
}

/* The longest in memory, which becomes the most recently used. */
static mf__frozen *find_in_memory(mf__cache *c, const int32_t *tokens, int64_t n, int64_t longer_than) {
    int best = -1;
    for (int i = 0; i < c->n; i++)
        if (is_prefix(c->entries[i], tokens, n) && c->entries[i]->length > longer_than) {
            best = i;
            longer_than = c->entries[i]->length;
        }
    if (best < 0) return NULL;
    mf__frozen *f = c->entries[best];
    remove_entry(c, best);
    c->entries[c->n++] = f;
    f->refs++;
    return f;
}

/* ---- both ------------------------------------------------------------------------------------------------------ */

void mf__cache_find(mf_model *m, const int32_t *tokens, int64_t n, int64_t longer_than, mf__cache_where where,
                    mf__frozen **out) {
    mf__cache *c = m->cache;
    *out = NULL;
    if (!c) return;
    mf__model_lock(m);
    *out = find_in_memory(c, tokens, n, longer_than);
    mf__model_unlock(m);
    if (!c->disk || where == MF__CACHE_MEMORY) return;
    mf__frozen *stored = NULL;
    mf__cache_disk_find(m, c->disk, tokens, n, *out ? (*out)->length : longer_than, &stored);
    if (!stored) return;
    mf__frozen_drop(m, *out);
    *out = stored;
    mf__model_lock(m);
    put_in_memory(m, c, stored);
    mf__model_unlock(m);
}

mf_status mf__cache_put(mf_model *m, mf__frozen *f, mf__cache_where where, mf_error *err) {
    if (!m->cache) return MF_OK;
    mf__model_lock(m);
    put_in_memory(m, m->cache, f);
    mf__model_unlock(m);
    bool disk = m->cache->disk && where == MF__CACHE_ALL;
    return disk ? mf__cache_disk_put(m, m->cache->disk, f, err) : MF_OK;
}
