/* A turn: one layer's experts, from wish to end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "store/internal.h"

/* Experts that are read ahead of the compute in one turn. A prompt wants most experts of a layer: claiming them all at
 * once would throw out those of the layers that follow. */
#define WINDOW_BYTES ((int64_t)256 << 20)
#define WINDOW_LEAST 16
#define WINDOW_MOST 64

#define CANCEL_POLL_NS 20000000

mf_status mf__turn_create(mf__store *s, mf__turn **out, mf_error *err) {
    size_t n = (size_t)s->n_experts;
    mf__turn *t = calloc(1, sizeof *t);
    *out = NULL;
    if (t) {
        t->store = s;
        t->layer = t->single = -1;
        t->want = calloc(n, sizeof *t->want);
        t->missed = calloc(n, sizeof *t->missed);
        t->by = calloc(n, sizeof *t->by);
        t->slot_of = calloc(n, sizeof *t->slot_of);
        t->index_of = calloc(n, sizeof *t->index_of);
    }
    if (!t || !t->want || !t->missed || !t->by || !t->slot_of || !t->index_of) {
        mf__turn_free(t);
        return mf__fail(err, MF_E_NOMEM, "no memory for the turns of %d experts", s->n_experts);
    }
    pthread_mutex_lock(&s->lock);
    t->next_turn = s->turns;
    if (s->turns) s->turns->prev = t;
    s->turns = t;
    pthread_mutex_unlock(&s->lock);
    *out = t;
    return MF_OK;
}

void mf__turn_free(mf__turn *t) {
    if (!t) return;
    mf__store *s = t->store;
    mf__turn_end(t);
    pthread_mutex_lock(&s->lock);
    if (t->prev) t->prev->next_turn = t->next_turn;
    if (t->next_turn) t->next_turn->prev = t->prev;
    if (s->turns == t) s->turns = t->next_turn;
    pthread_mutex_unlock(&s->lock);
    free(t->want);
    free(t->missed);
    free(t->by);
    free(t->slot_of);
    free(t->index_of);
    free(t);
}

void mf__turn_cancel_set(mf__turn *t, bool (*cancel)(void *user), void *user) {
    t->cancel = cancel;
    t->cancel_user = user;
}

void mf__turn_decode_set(mf__turn *t, int n_rows) {
    t->single = n_rows;
}

void mf__turn_used_set(mf__turn *t, const int32_t *ids, const int32_t *counts, int n) {
    t->used_ids = ids;
    t->used_counts = counts;
    t->n_used = n;
}

/* ---- claiming ---- */

static void claim(mf__turn *t, int i, int32_t slot, bool missed, int by) {
    t->want[i] = MF_WANT_CLAIMED;
    t->slot_of[i] = slot;
    t->by[i] = (int8_t)by;
    t->missed[i] = missed;
    t->n_window += missed;
    t->n_unclaimed--;
    t->n_claimed++;
}

/* The expert is in memory or on its way: pin it. Returns false when it is neither. */
static bool claim_present(mf__turn *t, int i, bool *ready) {
    mf__store *s = t->store;
    int32_t slot = s->where[t->layer * s->n_experts + t->wanted[i]];
    if (slot < 0 || s->slots[slot].error) return false;
    mf__slot *x = &s->slots[slot];
    int by = x->who;
    *ready = x->state == MF_SLOT_READY;
    mf__predict_used(s, slot);
    x->pins++;
    if (!*ready) mf__slot_promote(s, slot);
    claim(t, i, slot, !*ready, by);
    return true;
}

static int window(const mf__store *s) {
    int64_t n = WINDOW_BYTES / s->bytes;
    return (int)(n < WINDOW_LEAST ? WINDOW_LEAST : n > WINDOW_MOST ? WINDOW_MOST : n);
}

/* Starts reads for wanted experts in their order, as far as there is room. */
static void claim_missing(mf__turn *t) {
    mf__store *s = t->store;
    int32_t room[WINDOW_MOST];
    int used = 0;
    bool ready;
    for (int i = 0; t->n_unclaimed && i < t->n; i++) /* read meanwhile, for another turn or as a guess */
        if (t->want[i] == MF_WANT_UNCLAIMED) claim_present(t, i, &ready);
    int n = window(s) - t->n_window;
    if (n > t->n_unclaimed) n = t->n_unclaimed;
    if (n <= 0) return;
    int n_room = s->mapped ? n : mf__slots_make_room(s, n, false, room);
    for (int i = 0; i < t->n && used < n_room; i++) {
        if (t->want[i] != MF_WANT_UNCLAIMED) continue;
        mf__key key = t->layer * s->n_experts + t->wanted[i];
        int32_t slot = s->mapped ? key : room[used];
        if (s->mapped && s->slots[slot].state != MF_SLOT_FREE) continue; /* failed, and somebody still looks at it */
        used++;
        mf__slot_start(s, slot, key, true, -1);
        claim(t, i, slot, true, -1);
        t->stats.bytes_read += s->bytes;
    }
    if (used) mf__feed_wake(s);
}

/* ---- the turn ---- */

static mf_status check_begin(const mf__turn *t, int layer, const int32_t *ids, int n, int n_tokens, mf_error *err) {
    const mf__store *s = t->store;
    if (t->layer >= 0) return mf__fail(err, MF_E_INTERNAL, "store: layer %d is still in its turn", t->layer);
    if (layer < 0 || layer >= s->n_layers || !mf__files_has(s, layer))
        return mf__fail(err, MF_E_NOT_FOUND, "store: layer %d has no experts", layer);
    if (n < 0 || n > s->n_experts || n_tokens < 1)
        return mf__fail(err, MF_E_INVALID, "store: %d experts for %d tokens, there are %d", n, n_tokens, s->n_experts);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->n_experts)
            return mf__fail(err, MF_E_INVALID, "store: expert %d of layer %d, there are %d", ids[i], layer,
                            s->n_experts);
    return MF_OK;
}

static void count_wish(mf__turn *t, bool hit) {
    mf_stats *sums[2] = {&t->store->stats, &t->stats};
    for (int i = 0; i < 2; i++) {
        sums[i]->wanted++;
        sums[i]->hits += hit;
        sums[i]->bytes_wanted += t->store->bytes;
    }
}

static void count_use(mf__turn *t, int n_ticks) {
    mf__store *s = t->store;
    const mf__policy *p = s->ranking.policy;
    if (t->used_ids)
        p->use(s->ranking.state, s->n_experts, t->layer, t->used_ids, t->used_counts, t->n_used, n_ticks);
    else
        p->use(s->ranking.state, s->n_experts, t->layer, t->wanted, t->counts, t->n, n_ticks);
    t->used_ids = NULL;
}

mf_status mf__turn_begin(mf__turn *t, int layer, const int32_t *ids, const int32_t *counts, int n, int n_tokens,
                         mf_error *err) {
    mf__store *s = t->store;
    MF__TRY(check_begin(t, layer, ids, n, n_tokens, err));
    MF__TRY(mf__files_before(s, layer, &t->mark, err));

    pthread_mutex_lock(&s->lock);
    t->layer = s->now = layer;
    t->wanted = ids;
    t->n = t->n_unclaimed = n;
    t->counts = counts;
    t->n_tokens = n_tokens;
    t->n_single = t->partial ? 0 : t->single < 0 ? n_tokens == 1 : t->single < n_tokens ? t->single : n_tokens;
    t->n_claimed = t->n_given = t->n_done = t->n_window = 0;
    t->waited = 0;
    int n_ticks = t->n_tokens - t->n_single + (t->n_single > 0);
    if (!t->guess) count_use(t, n_ticks);
    mf__logical_use(s, layer, ids, n);
    if (!t->partial) mf__predict_begin(s, t);
    for (int i = 0; i < n; i++) {
        bool ready = false;
        t->index_of[ids[i]] = i;
        t->want[i] = MF_WANT_UNCLAIMED;
        t->missed[i] = false;
        claim_present(t, i, &ready);
        count_wish(t, ready);
    }
    if (!t->partial) {
        mf__predict_unwanted(s, layer);
        mf__predict_tell_below(s, layer, ids, n);
    }
    s->turns_without_miss = t->n_unclaimed || t->n_window ? 0 : s->turns_without_miss + 1;
    claim_missing(t);
    pthread_mutex_unlock(&s->lock);
    return MF_OK;
}

static mf_status read_error(const mf__turn *t, int i, mf_error *err) {
    const mf__store *s = t->store;
    const mf__slot *x = &s->slots[t->slot_of[i]];
    if (x->why) return mf__fail(err, x->why->status, "%s", x->why->text);
    if (s->below) return mf__fail(err, MF_E_IO, "expert %d of layer %d could not be had", t->wanted[i], t->layer);
    const char *path = s->files[x->error_file].path;
    if (x->error < 0)
        return mf__fail(err, MF_E_IO,
                        "%s ends at byte %lld, inside expert %d of layer %d; the file was cut or replaced, convert the "
                        "model again",
                        path, (long long)x->error_offset, t->wanted[i], t->layer);
    return mf__fail_errno(err, x->error, "%s: reading expert %d of layer %d at byte %lld", path, t->wanted[i], t->layer,
                          (long long)x->error_offset);
}

/* Hands out what is READY. Any failure wins: the turn cannot be completed. */
static mf_status collect(mf__turn *t, int32_t *ids, const void **blobs, int *n_out, mf_error *err) {
    mf__store *s = t->store;
    for (int i = 0; i < t->n; i++)
        if (t->want[i] == MF_WANT_CLAIMED && s->slots[t->slot_of[i]].state == MF_SLOT_FAILED)
            return read_error(t, i, err);
    for (int i = 0; i < t->n; i++) {
        if (t->want[i] != MF_WANT_CLAIMED || s->slots[t->slot_of[i]].state != MF_SLOT_READY) continue;
        if (t->waited && t->by[i] >= 0) s->stats.predictors[t->by[i]].stall_ns += t->waited;
        t->waited = 0;
        t->want[i] = MF_WANT_GIVEN;
        t->n_claimed--;
        t->n_given++;
        ids[*n_out] = t->wanted[i];
        blobs[(*n_out)++] = mf__slot_blob(s, t->slot_of[i]);
    }
    return MF_OK;
}

/* Waits until something changed; the time counts as stall. */
static mf_status wait_ready(mf__turn *t, mf_error *err) {
    mf__store *s = t->store;
    int64_t began = mf__clock_ns();
    s->n_room_waiters += t->n_unclaimed > 0;
    if (t->cancel) {
        struct timespec until = mf__clock_after(CANCEL_POLL_NS);
        pthread_cond_timedwait(&s->ready, &s->lock, &until);
    } else {
        pthread_cond_wait(&s->ready, &s->lock);
    }
    s->n_room_waiters -= t->n_unclaimed > 0;
    int64_t waited = mf__clock_ns() - began;
    t->waited += waited;
    s->stats.stall_ns += waited;
    t->stats.stall_ns += waited;
    if (t->cancel && waited >= CANCEL_POLL_NS / 2) {
        pthread_mutex_unlock(&s->lock); /* not ours to hold while somebody else's code runs */
        bool stop = t->cancel(t->cancel_user);
        pthread_mutex_lock(&s->lock);
        if (stop) return mf__fail(err, MF_E_CANCELLED, "stopped by the caller while layer %d was read", t->layer);
    }
    return MF_OK;
}

static mf_status next_locked(mf__turn *t, int32_t *ids, const void **blobs, int *n_out, mf_error *err) {
    mf__store *s = t->store;
    for (;;) {
        claim_missing(t);
        MF__TRY(collect(t, ids, blobs, n_out, err));
        if (*n_out) return MF_OK;
        if (t->n_claimed + t->n_unclaimed == 0) return s->mapped ? mf__files_after(s, t->layer, t->mark, err) : MF_OK;
        if (t->n_claimed == 0 && t->n_given > 0)
            return mf__fail(err, MF_E_INTERNAL, "store: no room for more of layer %d until %d experts are done",
                            t->layer, t->n_given);
        MF__TRY(wait_ready(t, err));
    }
}

mf_status mf__turn_next(mf__turn *t, int32_t *ids, const void **blobs, int *n_out, mf_error *err) {
    *n_out = 0;
    if (t->layer < 0) return mf__fail(err, MF_E_INTERNAL, "store: no turn has begun");
    pthread_mutex_lock(&t->store->lock);
    mf_status st = next_locked(t, ids, blobs, n_out, err);
    pthread_mutex_unlock(&t->store->lock);
    return st;
}

static void give_back(mf__turn *t, int i) {
    t->n_window -= t->missed[i];
    t->want[i] = MF_WANT_DONE;
    t->n_done++;
    mf__slot_unpin(t->store, t->slot_of[i]);
}

void mf__turn_done(mf__turn *t, const int32_t *ids, int n) {
    pthread_mutex_lock(&t->store->lock);
    for (int j = 0; j < n; j++) {
        int i = t->index_of[ids[j]];
        if (i >= t->n || t->wanted[i] != ids[j] || t->want[i] != MF_WANT_GIVEN) continue;
        t->n_given--;
        give_back(t, i);
    }
    claim_missing(t);
    pthread_mutex_unlock(&t->store->lock);
}

void mf__turn_end(mf__turn *t) {
    mf__store *s = t->store;
    if (t->layer < 0) return;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < t->n; i++)
        if (t->want[i] == MF_WANT_CLAIMED || t->want[i] == MF_WANT_GIVEN) give_back(t, i);
    int layer = t->layer;
    bool decoding = t->n_single > 0;
    t->layer = -1;
    t->wanted = t->counts = NULL;
    t->n = t->n_unclaimed = t->n_claimed = t->n_given = t->n_done = 0;
    if (decoding) mf__predict_next_layer(s, layer);
    if (mf__feed_may_fill(s)) mf__feed_wake(s);
    pthread_mutex_unlock(&s->lock);
}

void mf__turn_stats_get(const mf__turn *t, mf_stats *out) {
    *out = t->stats;
}

void mf__turn_stats_reset(mf__turn *t) {
    t->stats = (mf_stats){0};
}
