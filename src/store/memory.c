/* The memory under the slots: an arena of our own in huge pages, or slabs of several slots each that whoever opened the
 * store provides. A slab is taken when one of its slots is first used and given back when all of them lie above the
 * limit and are free. Nothing here reads or writes a slab: it may be memory of a device. The lock is held throughout.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "store/internal.h"

#define SLAB_BYTES ((int64_t)64 << 20)
#define SLAB_SLOTS 16
#define LEAST_SLABS 8 /* as long as a slab has more than one slot: memory is given back slab by slab */

static int64_t round_up(int64_t x, int64_t to) {
    return (x + to - 1) / to * to;
}

/* ---- sizes ---- */

/* A direct read covers whole blocks, so an expert that begins inside one needs room around it. Slots of the arena are
 * whole huge pages when that wastes little; otherwise they are packed, and the arena alone is aligned: what reads and
 * compute gain from is the huge page under the slot, not where in it the slot begins. */
static int64_t slot_size(const mf__store *s) {
    int64_t room = s->bytes;
    if (s->direct && s->stride % MF_BLOCK) room += 2 * MF_BLOCK;
    room = round_up(room, MF_BLOCK);
    int64_t huge = round_up(room, MF_HUGE);
    return !s->slabbed && (huge - room) * 32 <= room ? huge : room;
}

/* Slabs start at a block, for direct reads, wherever the memory that was provided starts. */
static int64_t slab_size(const mf__store *s, int64_t n_slots) {
    return n_slots * s->slot_bytes + MF_BLOCK;
}

static void plan_slabs(mf__store *s) {
    int64_t n = s->budget ? s->budget / s->slot_bytes : s->n_real;
    int64_t per = SLAB_BYTES / s->slot_bytes < SLAB_SLOTS ? SLAB_BYTES / s->slot_bytes : SLAB_SLOTS;
    if (n > s->n_real) n = s->n_real;
    if (per > n / LEAST_SLABS) per = n / LEAST_SLABS;
    s->slab_slots = per > 1 ? (int)per : 1;
}

void mf__slot_memory_plan(mf__store *s) {
    s->slabbed = s->config.memory.alloc != NULL;
    s->slot_bytes = slot_size(s);
    if (s->slabbed) plan_slabs(s);
}

/* Tables are the host's memory and count only where the slots are too. */
static int64_t table_bytes(const mf__store *s) {
    return s->slabbed ? 0 : s->table_bytes;
}

static int64_t slab_slots_in(const mf__store *s, int64_t bytes) {
    int64_t whole = slab_size(s, s->slab_slots), rest = bytes % whole - slab_size(s, 0);
    return bytes > 0 ? bytes / whole * s->slab_slots + (rest > 0 ? rest / s->slot_bytes : 0) : 0;
}

int64_t mf__slot_memory_fit(const mf__store *s, int64_t bytes) {
    int64_t per_slot = (int64_t)(sizeof *s->slots + sizeof *s->keys);
    bytes -= table_bytes(s);
    if (s->slabbed) return slab_slots_in(s, bytes);
    int64_t n = bytes > 0 ? bytes / (s->slot_bytes + per_slot) : 0;
    while (n > 0 && round_up(n * s->slot_bytes, MF_HUGE) + n * per_slot > bytes) n--;
    return n;
}

int64_t mf__slot_memory_least(const mf__store *s) {
    return s->slabbed ? slab_size(s, s->slab_slots) : s->table_bytes + round_up(s->slot_bytes, MF_HUGE);
}

int64_t mf__slot_memory_limit(const mf__store *s, int64_t bytes) {
    int64_t room = bytes - table_bytes(s), n;
    if (!s->slabbed) {
        n = room > 0 ? room / MF_HUGE * MF_HUGE / s->slot_bytes : 0;
    } else {
        n = slab_slots_in(s, room);
        if (n > s->slab_cap) n = s->slab_cap;
        if (n < s->n_slots) n = n / s->slab_slots * s->slab_slots;
        if (n < s->slab_slots) n = s->slab_slots;
    }
    return n < 1 ? 1 : n < s->n_slots ? n : s->n_slots; /* lend and budget_set keep it from coming to less than one */
}

int64_t mf__slot_memory_bytes(const mf__store *s) {
    int64_t bytes = table_bytes(s);
    if (!s->slabbed) return bytes + round_up(s->limit * s->slot_bytes, MF_HUGE);
    for (int k = 0; k < s->n_slabs; k++)
        bytes += s->slabs[k] ? slab_size(s, mf__slab_end(s, k) - k * s->slab_slots) : 0;
    return bytes;
}

/* ---- slabs ---- */

int mf__slab_end(const mf__store *s, int slab) {
    int end = (slab + 1) * s->slab_slots;
    return end < s->n_slots ? end : s->n_slots;
}

static mf_status take_slab(mf__store *s, int slab, mf_error *err) {
    const mf__slot_memory *m = &s->config.memory;
    void *mem = NULL;
    MF__TRY(m->alloc(m->user, slab_size(s, mf__slab_end(s, slab) - slab * s->slab_slots), &mem, err));
    if (!mem) return mf__fail(err, MF_E_NOMEM, "no memory for slots of experts");
    s->slabs[slab] = mem;
    return MF_OK;
}

static void drop_slab(mf__store *s, int slab) {
    if (s->slabs[slab]) s->config.memory.release(s->config.memory.user, s->slabs[slab]);
    s->slabs[slab] = NULL;
}

bool mf__slot_memory_back(mf__store *s, int32_t slot) {
    mf_error why = {0};
    int slab = s->slabbed ? slot / s->slab_slots : 0;
    if (!s->slabbed || s->slabs[slab]) return true;
    if (take_slab(s, slab, &why) == MF_OK) return true;
    s->slab_cap = slab * s->slab_slots; /* the first slab was taken at open */
    mf__log(&s->log, MF_LOG_WARN, "experts: only %d of %d slots can be had (%s)", s->slab_cap, s->n_slots, why.text);
    mf__slots_apply_limit(s);
    return false;
}

void mf__slot_memory_retry(mf__store *s) {
    s->slab_cap = s->n_slots;
}

void mf__slot_memory_return(mf__store *s, int32_t slot) {
    if (s->arena) madvise(s->arena + slot * s->slot_bytes, (size_t)s->slot_bytes, MADV_DONTNEED);
    if (!s->slabbed) return;
    int slab = slot / s->slab_slots;
    if (slab * s->slab_slots < s->limit) return;
    for (int i = slab * s->slab_slots; i < mf__slab_end(s, slab); i++)
        if (s->slots[i].state != MF_SLOT_FREE) return;
    drop_slab(s, slab);
}

/* ---- creation ---- */

static mf_status create_arena(mf__store *s, mf_error *err) {
    s->arena_bytes = round_up(s->n_slots * s->slot_bytes, MF_HUGE);
    size_t reserve = (size_t)(s->arena_bytes + MF_HUGE);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#ifdef MAP_NORESERVE
    flags |= MAP_NORESERVE;
#endif
    uint8_t *mem = mmap(NULL, reserve, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (mem == MAP_FAILED)
        return mf__fail(err, MF_E_NOMEM, "no room for %lld bytes of cached experts", (long long)s->arena_bytes);
    uint8_t *aligned = (uint8_t *)round_up((int64_t)(uintptr_t)mem, MF_HUGE);
    size_t before = (size_t)(aligned - mem);
    if (before) munmap(mem, before);
    if ((int64_t)before < MF_HUGE) munmap(aligned + s->arena_bytes, (size_t)MF_HUGE - before);
    s->arena = aligned;
    mf__pages_wish(s->arena, (size_t)s->arena_bytes);
#ifdef MADV_DONTDUMP
    madvise(s->arena, (size_t)s->arena_bytes, MADV_DONTDUMP);
#endif
    return MF_OK;
}

mf_status mf__slot_memory_create(mf__store *s, mf_error *err) {
    if (s->mapped) return MF_OK;
    if (!s->slabbed) return create_arena(s, err);
    s->slab_cap = s->n_slots;
    s->n_slabs = (s->n_slots + s->slab_slots - 1) / s->slab_slots;
    s->slabs = mf__table(s, (size_t)s->n_slabs, sizeof *s->slabs);
    if (!s->slabs) return mf__fail(err, MF_E_NOMEM, "no memory for a table of %d slabs", s->n_slabs);
    return take_slab(s, 0, err);
}

void mf__slot_memory_free(mf__store *s) {
    if (s->arena) munmap(s->arena, (size_t)s->arena_bytes);
    for (int k = 0; s->slabs && k < s->n_slabs; k++) drop_slab(s, k);
    free(s->slabs);
}

uint8_t *mf__slot_memory_at(const mf__store *s, int32_t slot) {
    if (!s->slabbed) return s->arena + slot * s->slot_bytes;
    int slab = slot / s->slab_slots;
    uintptr_t begin = (uintptr_t)round_up((int64_t)(uintptr_t)s->slabs[slab], MF_BLOCK);
    return (uint8_t *)begin + (slot - slab * s->slab_slots) * s->slot_bytes;
}
