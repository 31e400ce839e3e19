/* Slots: where experts are in memory, who uses them, and which one makes room. The lock is held throughout. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "store/internal.h"

/* Victims looked for in one pass. */
#define MAX_VICTIMS 64

/* Unused guesses may hold this share of the slots. */
#define GUESS_SHARE 4

static int64_t round_up(int64_t x, int64_t to) {
    return (x + to - 1) / to * to;
}

void *mf__table(mf__store *s, size_t count, size_t size) {
    s->table_bytes += (int64_t)(count * size);
    return calloc(count ? count : 1, size);
}

/* ---- creation ---- */

/* A direct read covers whole blocks, so an expert that begins inside one needs room around it. Slots are whole huge
 * pages when that wastes little; otherwise they are packed, and the arena alone is aligned: what reads and compute
 * gain from is the huge page under the slot, not where in it the slot begins. */
static int64_t slot_size(const mf__store *s) {
    int64_t room = s->bytes;
    if (s->direct && s->stride % MF_BLOCK) room += 2 * MF_BLOCK;
    room = round_up(room, MF_BLOCK);
    int64_t huge = round_up(room, MF_HUGE);
    return (huge - room) * 32 <= room ? huge : room;
}

/* The most slots whose huge pages and table entries fit in `bytes`. */
static int64_t slots_in(const mf__store *s, int64_t bytes) {
    int64_t per_slot = (int64_t)(sizeof *s->slots + sizeof *s->keys);
    int64_t n = bytes > 0 ? bytes / (s->slot_bytes + per_slot) : 0;
    while (n > 0 && round_up(n * s->slot_bytes, MF_HUGE) + n * per_slot > bytes) n--;
    return n;
}

static int n_real_keys(const mf__store *s) {
    int n = 0;
    for (int l = 0; l < s->n_layers; l++) n += mf__files_has(s, l) ? s->n_experts : 0;
    return n;
}

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

mf_status mf__slots_create(mf__store *s, mf_error *err) {
    s->n_real = n_real_keys(s);
    s->slot_bytes = slot_size(s);
    int64_t n = s->n_real;
    if (s->mapped) {
        n = s->n_keys; /* slot i is the place of key i */
    } else if (s->budget) {
        int64_t fit = slots_in(s, s->budget - s->table_bytes);
        if (fit < 1)
            return mf__fail(
                err, MF_E_NOMEM, "%lld bytes for experts are too few: one expert takes %lld and the tables %lld",
                (long long)s->budget, (long long)round_up(s->slot_bytes, MF_HUGE), (long long)s->table_bytes);
        n = n < fit ? n : fit;
    }
    s->n_slots = (int)n;
    s->slots = mf__table(s, (size_t)n, sizeof *s->slots);
    s->keys = mf__table(s, (size_t)n, sizeof *s->keys);
    if (!s->slots || !s->keys) return mf__fail(err, MF_E_NOMEM, "no memory for a table of %d experts", s->n_slots);
    for (int i = 0; i < s->n_slots; i++) {
        s->slots[i] = (mf__slot){.who = -1, .queue = -1, .prev = -1, .next = -1};
        s->keys[i] = -1;
    }
    for (int i = 0; i < s->n_keys; i++) s->where[i] = -1;
    s->limit = s->n_free = s->n_slots;
    return s->mapped ? MF_OK : create_arena(s, err);
}

void mf__slots_free(mf__store *s) {
    if (s->arena) munmap(s->arena, (size_t)s->arena_bytes);
    free(s->slots);
    free(s->keys);
}

uint8_t *mf__slot_blob(const mf__store *s, int32_t slot) {
    mf__key key = s->keys[slot];
    int64_t offset = key % s->n_experts * s->stride;
    if (!s->mapped) return s->arena + slot * s->slot_bytes + (s->direct ? offset % MF_BLOCK : 0);
    for (int d = 0; d < s->n_dirs; d++) {
        const mf__expert_file *f = &s->files[d * s->n_layers + key / s->n_experts];
        if (f->map.data) return (uint8_t *)f->map.data + offset;
    }
    return NULL;
}

/* ---- the limit ---- */

int mf__slots_limit(const mf__store *s) {
    if (s->mapped || !s->budget) return s->n_slots;
    int64_t room = s->budget - s->lent - s->table_bytes, n = room > 0 ? room / MF_HUGE * MF_HUGE / s->slot_bytes : 0;
    if (n < 1) n = 1; /* lend and budget_set keep it from coming to this */
    if (s->cap && n > s->cap) n = s->cap;
    return n < s->n_slots ? (int)n : s->n_slots;
}

int64_t mf__slots_least(const mf__store *s) {
    return s->table_bytes + round_up(s->slot_bytes, MF_HUGE);
}

static void return_memory(mf__store *s, int32_t slot) {
    if (s->arena) madvise(s->arena + slot * s->slot_bytes, (size_t)s->slot_bytes, MADV_DONTNEED);
}

void mf__slots_apply_limit(mf__store *s) {
    int before = s->limit;
    s->limit = mf__slots_limit(s);
    if (s->limit == before) return;
    s->n_free = s->n_over = 0;
    for (int i = 0; i < s->n_slots; i++) {
        bool is_free = s->slots[i].state == MF_SLOT_FREE;
        s->n_free += is_free && i < s->limit;
        s->n_over += !is_free && i >= s->limit;
    }
    for (int i = s->limit; i < before; i++) {
        if (s->slots[i].state == MF_SLOT_FREE)
            return_memory(s, i);
        else if (s->slots[i].state == MF_SLOT_READY && !s->slots[i].pins)
            mf__slot_free(s, i);
    }
    pthread_cond_broadcast(&s->ready);
}

/* ---- one slot's life ---- */

/* A guess that was read has turned out good (wanted) or not (gone unused). */
void mf__slot_settle(mf__store *s, int32_t slot, bool good) {
    mf__slot *x = &s->slots[slot];
    if (x->who < 0) return;
    if (x->state == MF_SLOT_READY) s->n_ready_unused--;
    mf__predict_settle(s, x->who, good);
    x->who = -1;
}

void mf__slot_free(mf__store *s, int32_t slot) {
    mf__slot *x = &s->slots[slot];
    mf__key key = s->keys[slot];
    mf__slot_settle(s, slot, false);
    if (x->queue >= 0) mf__queue_remove(s, slot);
    if (key >= 0 && s->where[key] == slot) s->where[key] = -1;
    if (x->state == MF_SLOT_READY) s->stats.evictions++;
    s->keys[slot] = -1;
    *x = (mf__slot){.who = -1, .queue = -1, .prev = -1, .next = -1};
    if (slot < s->limit) {
        s->n_free++;
    } else {
        if (s->n_over > 0) s->n_over--;
        return_memory(s, slot);
        if (!s->n_over) pthread_cond_broadcast(&s->ready);
    }
}

void mf__slot_start(mf__store *s, int32_t slot, mf__key key, bool demand, int who) {
    mf__slot *x = &s->slots[slot];
    *x = (mf__slot){.state = MF_SLOT_READING, .who = (int8_t)who, .queue = -1, .prev = -1, .next = -1};
    x->pins = demand;
    if (demand) s->demand_ns = mf__now_ns();
    s->keys[slot] = key;
    s->where[key] = slot;
    s->n_free--;
    mf__queue_push(s, !demand, slot, false);
}

void mf__slot_promote(mf__store *s, int32_t slot) {
    mf__slot *x = &s->slots[slot];
    if (x->queue == 1) {
        mf__queue_remove(s, slot);
        mf__queue_push(s, 0, slot, true); /* it was first to be guessed and is likely to be under way */
    }
}

void mf__slot_unpin(mf__store *s, int32_t slot) {
    mf__slot *x = &s->slots[slot];
    if (--x->pins > 0) return;
    if (x->state == MF_SLOT_FAILED || (x->state == MF_SLOT_READY && slot >= s->limit)) {
        mf__slot_free(s, slot);
    } else if (x->state == MF_SLOT_READING && x->queue >= 0) {
        mf__queue_remove(s, slot); /* the turn was abandoned: what is under way is finished, without hurry */
        if (x->issued == 0)
            mf__slot_free(s, slot);
        else
            mf__queue_push(s, 1, slot, false);
    }
    pthread_cond_broadcast(&s->ready);
}

/* ---- making room ---- */

static bool evictable(const void *ctx, int i) {
    const mf__slot *x = &((const mf__store *)ctx)->slots[i];
    return x->state == MF_SLOT_READY && !x->pins && x->who < 0;
}

static bool evictable_guess(const void *ctx, int i) {
    const mf__slot *x = &((const mf__store *)ctx)->slots[i];
    return x->state == MF_SLOT_READY && !x->pins && x->who >= 0;
}

static int evict(mf__store *s, bool (*may)(const void *, int), int n, int32_t *out) {
    int32_t worst[MAX_VICTIMS];
    double worths[MAX_VICTIMS];
    int n_found = mf__ranking_worst(&s->ranking, s->keys, s->limit, s->now, may, s, n < MAX_VICTIMS ? n : MAX_VICTIMS,
                                    worst, worths);
    for (int i = 0; i < n_found; i++) {
        mf__slot_free(s, worst[i]);
        out[i] = worst[i];
    }
    return n_found;
}

int mf__slots_find_free(mf__store *s, int n, int32_t *out) {
    int got = 0;
    for (int left = s->n_free; left > 0 && got < n; s->scan++) {
        if (s->scan >= s->limit) s->scan = 0;
        if (s->slots[s->scan].state != MF_SLOT_FREE) continue;
        out[got++] = s->scan;
        left--;
    }
    return got;
}

int mf__slots_make_room(mf__store *s, int n, bool guess, int32_t *out) {
    if (guess && (s->n_ready_unused + s->in_flight[1] + 1) * GUESS_SHARE > s->limit) return 0;
    int got = mf__slots_find_free(s, n, out);
    if (got < n) got += evict(s, evictable, n - got, out + got);
    if (got < n && !guess) got += evict(s, evictable_guess, n - got, out + got);
    return got;
}
