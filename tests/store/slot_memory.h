/* Memory for slots as a device would offer it: addresses that nobody can read or write (PROT_NONE), with the bytes at
 * another place that only copies and the test know. Or, not hidden, ordinary memory that files can be read into, which
 * begins at an odd multiple of 64. Counts what is taken, and refuses when told to. */
#ifndef MF_TESTS_SLOT_MEMORY_H
#define MF_TESTS_SLOT_MEMORY_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "store/store.h"

#define SLOT_MEMORY_SLABS 512

typedef struct slot_memory {
    pthread_mutex_t lock;
    bool hidden;
    int refuse_from;  /* allocations from this number on fail; 0: none */
    atomic_int n_bad; /* releases and copies of what was never given */
    atomic_int refuse_copies, n_copies;
    int n_allocs;
    int64_t live, peak; /* bytes */
    struct {
        char *given, *view;
        size_t size;
    } slabs[SLOT_MEMORY_SLABS];
} slot_memory;

#define SLOT_MEMORY_OFF 64

static inline mf_status slot_memory_alloc(void *user, int64_t bytes, void **out, mf_error *err) {
    slot_memory *m = user;
    size_t size = (size_t)bytes + SLOT_MEMORY_OFF;
    int i = 0;
    pthread_mutex_lock(&m->lock);
    m->n_allocs++;
    bool ok = !m->refuse_from || m->n_allocs < m->refuse_from;
    while (i < SLOT_MEMORY_SLABS && m->slabs[i].given) i++;
    if (ok && i < SLOT_MEMORY_SLABS) {
        m->slabs[i].view = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        m->slabs[i].given =
            m->hidden ? mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : m->slabs[i].view;
        m->slabs[i].size = size;
        m->live += bytes;
        if (m->live > m->peak) m->peak = m->live;
        *out = m->slabs[i].given + SLOT_MEMORY_OFF;
    }
    pthread_mutex_unlock(&m->lock);
    return ok ? MF_OK : mf__fail(err, MF_E_NOMEM, "the device is full");
}

static inline void slot_memory_release(void *user, void *mem) {
    slot_memory *m = user;
    int i = 0;
    pthread_mutex_lock(&m->lock);
    while (i < SLOT_MEMORY_SLABS && m->slabs[i].given != (char *)mem - SLOT_MEMORY_OFF) i++;
    if (i == SLOT_MEMORY_SLABS) {
        atomic_fetch_add(&m->n_bad, 1);
    } else {
        munmap(m->slabs[i].view, m->slabs[i].size);
        if (m->hidden) munmap(m->slabs[i].given, m->slabs[i].size);
        m->live -= (int64_t)m->slabs[i].size - SLOT_MEMORY_OFF;
        m->slabs[i].given = m->slabs[i].view = NULL;
    }
    pthread_mutex_unlock(&m->lock);
}

/* Where the bytes of an address are; NULL: it is in no slab. */
static inline void *slot_memory_view(slot_memory *m, const void *at) {
    char *view = NULL;
    pthread_mutex_lock(&m->lock);
    for (int i = 0; i < SLOT_MEMORY_SLABS && !view; i++)
        if (m->slabs[i].given && (const char *)at >= m->slabs[i].given &&
            (const char *)at < m->slabs[i].given + m->slabs[i].size)
            view = m->slabs[i].view + ((const char *)at - m->slabs[i].given);
    pthread_mutex_unlock(&m->lock);
    return view;
}

/* For config.copy. Every third one fails when told so. */
static inline mf_status slot_memory_copy(void *user, void *to, const void *from, int64_t bytes, mf_error *err) {
    slot_memory *m = user;
    void *view = slot_memory_view(m, to);
    int copy = atomic_fetch_add(&m->n_copies, 1);
    if (!view || !slot_memory_view(m, (char *)to + bytes - 1)) atomic_fetch_add(&m->n_bad, 1);
    if (!view || (atomic_load(&m->refuse_copies) && copy % 3 == 0))
        return mf__fail(err, MF_E_IO, "the device does not answer");
    memcpy(view, from, (size_t)bytes);
    return MF_OK;
}

static inline void slot_memory_init(slot_memory *m, bool hidden) {
    memset(m, 0, sizeof *m);
    pthread_mutex_init(&m->lock, NULL);
    m->hidden = hidden;
}

static inline int64_t slot_memory_live(slot_memory *m) {
    pthread_mutex_lock(&m->lock);
    int64_t live = m->live;
    pthread_mutex_unlock(&m->lock);
    return live;
}

static inline mf__slot_memory slot_memory_of(slot_memory *m) {
    return (mf__slot_memory){.alloc = slot_memory_alloc, .release = slot_memory_release, .user = m};
}

#endif
