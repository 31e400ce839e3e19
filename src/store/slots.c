/* Slots: where experts are in memory, who uses them, and which one makes room. The lock is held throughout. */
#include <stdlib.h>
#include <string.h>

#include "store/internal.h"

/* Victims looked for in one pass. */
#define MAX_VICTIMS 64

/* Unused guesses may hold this share of the slots. */
#define GUESS_SHARE 4

void *mf__table(mf__store *s, size_t count, size_t size) {
    s->table_bytes += (int64_t)(count * size);
    return calloc(count ? count : 1, size);
}

/* ---- creation ---- */

static int n_real_keys(const mf__store *s) {
    int n = 0;
    for (int l = 0; l < s->n_layers; l++) n += mf__files_has(s, l) ? s->n_experts : 0;
    return n;
}

mf_status mf__slots_create(mf__store *s, mf_error *err) {
    s->n_own = s->n_real = n_real_keys(s);
    mf__slot_memory_plan(s);
    int64_t n = s->n_real;
    if (s->mapped) {
        n = s->n_keys; /* slot i is the place of key i */
    } else if (s->budget) {
        int64_t fit = mf__slot_memory_fit(s, s->budget);
        if (fit < 1)
            return mf__fail(err, MF_E_NOMEM, "%lld bytes for experts are too few: one expert and the tables take %lld",
                            (long long)s->budget, (long long)mf__slot_memory_least(s));
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
    return mf__slot_memory_create(s, err);
}

void mf__slots_free(mf__store *s) {
    mf__slot_memory_free(s);
    free(s->slots);
    free(s->keys);
}

uint8_t *mf__slot_blob(const mf__store *s, int32_t slot) {
    mf__key key = s->keys[slot];
    int64_t offset = key % s->n_experts * s->stride;
    if (!s->mapped) return mf__slot_memory_at(s, slot) + (s->direct ? offset % MF_BLOCK : 0);
    for (int d = 0; d < s->n_dirs; d++) {
        const mf__expert_file *f = &s->files[d * s->n_layers + key / s->n_experts];
        if (f->map.data) return (uint8_t *)f->map.data + offset;
    }
    return NULL;
}

/* ---- the limit ---- */

int mf__slots_limit(const mf__store *s) {
    if (s->mapped) return s->n_slots;
    int n = s->budget ? (int)mf__slot_memory_limit(s, s->budget - s->lent) : s->n_slots;
    return s->cap && n > s->cap ? s->cap : n;
}

void mf__slots_apply_limit(mf__store *s) {
    int before = s->limit;
    s->limit_waits = s->n_holders > 0;
    if (s->limit_waits) return;
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
            mf__slot_memory_return(s, i);
        else if (s->slots[i].state == MF_SLOT_READY && !s->slots[i].pins)
            mf__slot_free(s, i);
    }
    if (s->limit > before) mf__feed_refill(s);
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
    if (x->state == MF_SLOT_READY) {
        s->stats.evictions++;
        s->n_ready--;
        s->whole_made = false;
    }
    s->keys[slot] = -1;
    free(x->why);
    *x = (mf__slot){.who = -1, .queue = -1, .prev = -1, .next = -1};
    if (slot < s->limit) {
        s->n_free++;
    } else {
        if (s->n_over > 0) s->n_over--;
        mf__slot_memory_return(s, slot);
        if (!s->n_over) pthread_cond_broadcast(&s->ready);
    }
}

void mf__slot_start(mf__store *s, int32_t slot, mf__key key, bool demand, int who) {
    mf__slot *x = &s->slots[slot];
    *x = (mf__slot){.state = MF_SLOT_READING, .who = (int8_t)who, .queue = -1, .prev = -1, .next = -1};
    x->pins = demand;
    if (demand) s->demand_ns = mf__clock_ns();
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
    return x->state == MF_SLOT_READY && !x->pins && x->who < 0 &&
           !mf__logical_has(ctx, ((const mf__store *)ctx)->keys[i]);
}

/* What the logical cache has, too: memory that it counts on is not all there. */
static bool evictable_last(const void *ctx, int i) {
    const mf__slot *x = &((const mf__store *)ctx)->slots[i];
    return x->state == MF_SLOT_READY && !x->pins;
}

static bool evictable_guess(const void *ctx, int i) {
    const mf__slot *x = &((const mf__store *)ctx)->slots[i];
    return x->state == MF_SLOT_READY && !x->pins && x->who >= 0;
}

static int evict(mf__store *s, bool (*may)(const void *, int), int n, int32_t *out) {
    int32_t worst[MAX_VICTIMS];
    double worths[MAX_VICTIMS];
    if (s->n_holders) return 0; /* somebody has their addresses */
    int n_found = mf__ranking_worst(&s->ranking, s->keys, s->limit, s->now, may, s, n < MAX_VICTIMS ? n : MAX_VICTIMS,
                                    worst, worths);
    s->evicted = s->evicted || n_found > 0;
    for (int i = 0; i < n_found; i++) {
        mf__slot_free(s, worst[i]);
        out[i] = worst[i];
    }
    return n_found;
}

/* Without the slots above the limit, which became lower while they were looked for. */
static int below_limit(const mf__store *s, int32_t *slots, int n) {
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (slots[i] < s->limit) slots[kept++] = slots[i];
    return kept;
}

int mf__slots_find_free(mf__store *s, int n, int32_t *out) {
    int got = 0;
    for (int left = s->n_free; left > 0 && got < n; s->scan++) {
        if (s->scan >= s->limit) s->scan = 0;
        if (s->slots[s->scan].state != MF_SLOT_FREE) continue;
        if (!mf__slot_memory_back(s, s->scan)) return below_limit(s, out, got);
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
    if (got < n && !guess && s->logical) got += evict(s, evictable_last, n - got, out + got);
    return got;
}
