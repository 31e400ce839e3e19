/* The feed: which read is next. Demands in the order they came. Guesses of a predictor that is nearly always right go
 * behind the last demand, so that the drive never runs dry, but no more than keep it busy; those of others only while
 * no demand is waiting or under way, and few at a time, so that a demand that comes meanwhile waits for little. Where
 * all experts fit, a drive that nobody needs brings in what was never asked for, so that a model that fits soon reads
 * nothing any more. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "store/internal.h"

/* Demands follow one another closely at first: what is read between them would only hold up the next one. */
#define FILL_PAUSE_NS 5000000

_Static_assert((int)MF_PREDICT_COUNT == (int)MF_PREDICTORS, "predictors have their counters");

/* ---- queues ---- */

void mf__queue_push(mf__store *s, int which, int32_t slot, bool front) {
    mf__queue *q = &s->queues[which];
    mf__slot *x = &s->slots[slot];
    x->queue = (int8_t)which;
    if (which == 0) atomic_fetch_add(&s->lane->waiting, 1);
    x->prev = front ? -1 : q->tail;
    x->next = front ? q->head : -1;
    if (x->prev >= 0) s->slots[x->prev].next = slot;
    if (x->next >= 0) s->slots[x->next].prev = slot;
    if (x->prev < 0) q->head = slot;
    if (x->next < 0) q->tail = slot;
}

void mf__queue_remove(mf__store *s, int32_t slot) {
    mf__slot *x = &s->slots[slot];
    mf__queue *q = &s->queues[x->queue];
    if (x->queue == 0) atomic_fetch_sub(&s->lane->waiting, 1);
    if (x->prev >= 0) s->slots[x->prev].next = x->next;
    if (x->next >= 0) s->slots[x->next].prev = x->prev;
    if (q->head == slot) q->head = x->next;
    if (q->tail == slot) q->tail = x->prev;
    x->prev = x->next = -1;
    x->queue = -1;
}

/* ---- taking ---- */

/* The least busy of the directories that have the layer. */
static int choose_file(const mf__store *s, int layer, int turn) {
    int best = s->below ? 0 : -1;
    for (int i = 0; !s->below && i < s->n_dirs; i++) {
        int d = (i + turn) % s->n_dirs;
        const mf__expert_file *f = &s->files[d * s->n_layers + layer];
        if (!f->path || (s->mapped && !f->map.data)) continue;
        if (best < 0 || s->drive_load[d] < s->drive_load[best]) best = d;
    }
    s->drive_load[best]++;
    return best * s->n_layers + layer;
}

static void fill_read(mf__store *s, int32_t slot, mf__read *out) {
    mf__slot *x = &s->slots[slot];
    mf__key key = s->keys[slot];
    int index = x->issued++;
    int64_t begin = key % s->n_experts * s->stride, end = begin + s->bytes;
    int64_t from = s->direct ? begin / MF_BLOCK * MF_BLOCK : begin; /* where the slot's first byte comes from */
    int64_t lo = from + (int64_t)index * s->read_bytes, hi = lo + s->read_bytes;
    if (index == s->n_reads - 1) hi = s->direct ? (end + MF_BLOCK - 1) / MF_BLOCK * MF_BLOCK : end;
    int file = choose_file(s, key / s->n_experts, index + key);
    *out = (mf__read){.slot = slot,
                      .key = key,
                      .file = file,
                      .direct = s->direct,
                      .mapped = s->mapped,
                      .demanded = x->pins > 0,
                      .offset = lo,
                      .bytes = hi - lo,
                      .need = (hi < end ? hi : end) - lo,
                      .began_ns = mf__clock_ns()};
    if (!s->below) {
        const mf__expert_file *f = &s->files[file];
        out->fd = s->direct ? f->direct : f->fd;
        out->fd_buffered = f->fd;
        if (s->mapped) out->to = (uint8_t *)f->map.data + lo;
    }
    if (!s->mapped) out->to = mf__slot_memory_at(s, slot) + (lo - from);
    if (x->issued == s->n_reads) mf__queue_remove(s, slot);
    mf__lane_begin(s, out);
}

static void drop_guess(mf__store *s) {
    s->guess_head = (s->guess_head + 1) % s->guess_cap;
    s->n_guesses--;
}

/* The next guess becomes a slot that is being read; -1 when there is none or no room for it. */
static int32_t start_guess(mf__store *s) {
    while (s->n_guesses) {
        mf__guess g = s->guesses[s->guess_head];
        int32_t slot = g.key;
        if (g.key >= 0 && s->where[g.key] < 0) {
            if (!s->mapped && mf__slots_make_room(s, 1, true, &slot) < 1) return -1;
            s->stats.predictors[g.who].read++;
            mf__slot_start(s, slot, g.key, false, g.who);
        } else {
            slot = -1;
        }
        drop_guess(s);
        if (slot >= 0) return slot;
    }
    return -1;
}

bool mf__feed_may_fill(const mf__store *s) {
    return s->filling && (s->limit >= s->n_own || (s->fills_some && s->n_free > 0));
}

/* The next expert that is in no slot becomes one that is being read; it throws nothing out. */
static int32_t start_fill(mf__store *s) {
    if (s->limit < s->n_own && !s->n_free) s->filling = false; /* as many as there is room for */
    if (!mf__feed_may_fill(s) || mf__clock_ns() - s->demand_ns < FILL_PAUSE_NS) return -1;
    for (; s->filling; s->fill_next++) {
        mf__key key = s->fill_next;
        if (key == s->n_keys) s->filling = false;
        if (!s->filling || s->where[key] >= 0 || !mf__files_has(s, key / s->n_experts)) continue;
        if (s->own && !s->own[key]) continue;
        int32_t slot = key;
        if (s->mapped ? s->slots[slot].state != MF_SLOT_FREE : mf__slots_find_free(s, 1, &slot) < 1) return -1;
        mf__slot_start(s, slot, key, false, -1);
        s->fill_next++; /* also when it fails: a turn that wants it will say why */
        return slot;
    }
    return -1;
}

void mf__feed_refill(mf__store *s) {
    if (!s->fill_asked || s->n_ready == s->n_real) return;
    s->filling = true;
    s->fill_next = 0;
    mf__feed_wake(s);
}

static bool has_room_for_all(mf__store *s) {
    pthread_mutex_lock(&s->lock);
    bool has = s->mapped || s->limit >= s->n_own;
    pthread_mutex_unlock(&s->lock);
    return has;
}

void mf__store_fill(mf__store *s) {
    pthread_mutex_lock(&s->lock);
    bool again = s->fill_asked;
    s->fills_some = s->config.reach && has_room_for_all(s->below);
    s->fill_asked = s->prefetch && (s->n_slots >= s->n_own || s->fills_some);
    if (!again) mf__feed_refill(s);
    bool here = s->fill_asked && s->limit >= s->n_own;
    pthread_mutex_unlock(&s->lock);
    if (s->below && !here) mf__store_fill(s->below);
}

void mf__store_own(mf__store *s, const bool *own) {
    if (s->below) mf__store_own(s->below, own);
    pthread_mutex_lock(&s->lock);
    s->own = own;
    s->n_own = 0;
    for (mf__key key = 0; key < s->n_keys; key++) s->n_own += own[key] && mf__files_has(s, key / s->n_experts);
    s->fill_asked = s->filling = false;
    pthread_mutex_unlock(&s->lock);
}

/* Behind this store's demands, and those of the one beside it. */
static bool may_guess(const mf__store *s, int who) {
    mf__lane *lane = s->lane;
    if (atomic_load(&lane->waiting)) return false;
    int demands = atomic_load(&lane->in_flight[0]), guesses = atomic_load(&lane->in_flight[1]);
    if (who >= 0 && s->tracks[who].sure) return demands + guesses < s->sure_depth;
    return demands == 0 && guesses < s->guess_depth;
}

static int32_t choose_slot(mf__store *s) {
    mf__lane *lane = s->lane;
    if (s->stopping || atomic_load(&lane->in_flight[0]) + atomic_load(&lane->in_flight[1]) >= s->depth) return -1;
    if (s->queues[0].head >= 0) return s->queues[0].head;
    int32_t slot = s->queues[1].head;
    if (slot >= 0) return may_guess(s, s->slots[slot].who) ? slot : -1;
    while (s->n_guesses && s->guesses[s->guess_head].key < 0) drop_guess(s);
    if (s->n_guesses && may_guess(s, s->guesses[s->guess_head].who)) slot = start_guess(s);
    return slot >= 0 || !may_guess(s, -1) ? slot : start_fill(s);
}

/* Waits for something to do. Filling pauses while there are demands, and nobody says when they are over: one thread
 * looks now and then. */
static void wait_work(mf__store *s) {
    struct timespec until;
    if (s->pausing || !mf__feed_may_fill(s) || s->in_flight[0] || s->in_flight[1] >= s->guess_depth) {
        pthread_cond_wait(&s->work, &s->lock);
        return;
    }
    until = mf__clock_after(FILL_PAUSE_NS);
    s->pausing = true;
    pthread_cond_timedwait(&s->work, &s->lock, &until);
    s->pausing = false;
}

/* There is more: one more thread may take it. */
static void wake_next(mf__store *s) {
    if (s->queues[0].head >= 0 || s->queues[1].head >= 0 || s->n_guesses || mf__feed_may_fill(s))
        pthread_cond_signal(&s->work);
}

bool mf__feed_take(mf__store *s, bool wait, mf__read *out) {
    int32_t slot = -1;
    pthread_mutex_lock(&s->lock);
    while ((slot = choose_slot(s)) < 0 && wait && !s->stopping) wait_work(s);
    if (slot >= 0) {
        fill_read(s, slot, out);
        wake_next(s);
    }
    pthread_mutex_unlock(&s->lock);
    if (slot >= 0 && out->demanded && !atomic_load(&s->lane->waiting)) mf__lane_wake_others(s);
    return slot >= 0;
}

/* This thread's share of the demands at the head of the queue that are of one layer; guesses are left to one thread. */
static int share(const mf__store *s, int32_t slot, int most) {
    int n = 0, layer = s->keys[slot] / s->n_experts;
    if (s->slots[slot].queue != 0) return most;
    for (int32_t i = slot; i >= 0 && s->keys[i] / s->n_experts == layer; i = s->slots[i].next) n++;
    n = (n + s->n_takers - 1) / s->n_takers;
    return n < most ? n : most;
}

int mf__feed_take_layer(mf__store *s, mf__read *out, int most) {
    int32_t slot;
    int n = 0;
    pthread_mutex_lock(&s->lock);
    while ((slot = choose_slot(s)) < 0 && !s->stopping) wait_work(s);
    if (slot >= 0) {
        int layer = s->keys[slot] / s->n_experts, queue = s->slots[slot].queue;
        most = share(s, slot, most);
        do fill_read(s, slot, &out[n++]);
        while (n < most && (slot = choose_slot(s)) >= 0 && s->keys[slot] / s->n_experts == layer &&
               s->slots[slot].queue == queue);
        wake_next(s);
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

void mf__feed_wake(mf__store *s) {
    pthread_cond_signal(&s->work);
    if (s->io && s->io->wake) s->io->wake(s->io);
}

/* ---- finishing ---- */

static void count_read(mf__store *s, const mf__read *p, bool good) {
    int64_t now = mf__clock_ns(), us = (now - p->began_ns) / 1000;
    int bucket = 0;
    while (bucket < MF_LATENCY_BUCKETS - 1 && us >= (int64_t)MF_LATENCY_FIRST_US << bucket) bucket++;
    s->stats.latency[bucket]++;
    if (good) *(p->demanded ? &s->stats.bytes_read : &s->stats.bytes_prefetched) += p->need;
    s->drive_seen.bytes += good ? p->need : 0;
    s->drive_seen.reads++;
    s->drive_seen.depths += s->in_flight[0] + s->in_flight[1];
    mf__lane_end(s, p, now);
}

static void finish(mf__store *s, const mf__read *p, int error, int64_t error_offset, const mf_error *why) {
    pthread_mutex_lock(&s->lock);
    mf__slot *x = &s->slots[p->slot];
    x->finished++;
    s->drive_load[p->file / s->n_layers]--;
    if (p->demanded) s->demand_ns = mf__clock_ns();
    count_read(s, p, !error);
    if (error && !x->error) {
        x->error = error;
        x->error_file = p->file;
        x->error_offset = error_offset;
        if (why && (x->why = malloc(sizeof *why))) *x->why = *why;
        if (x->queue >= 0) mf__queue_remove(s, p->slot);
    }
    if (x->error ? x->finished == x->issued : x->finished == s->n_reads) {
        x->state = x->error ? MF_SLOT_FAILED : MF_SLOT_READY;
        s->n_ready += !x->error;
        if (!x->error) s->whole_made = false;
        if (!x->error && x->who >= 0) s->n_ready_unused++;
        if (x->error) {
            s->stats.read_errors++;
            s->where[s->keys[p->slot]] = -1;
        }
        if (!x->pins && (x->error || p->slot >= s->limit)) mf__slot_free(s, p->slot);
        if (x->pins || s->n_room_waiters) pthread_cond_broadcast(&s->ready); /* a guess need wake nobody */
    }
    mf__feed_wake(s);
    pthread_mutex_unlock(&s->lock);
    mf__lane_wake_others(s);
}

void mf__feed_finish(mf__store *s, const mf__read *p, int error, int64_t error_offset) {
    finish(s, p, error, error_offset, NULL);
}

void mf__feed_fail(mf__store *s, const mf__read *p, const mf_error *why) {
    finish(s, p, EIO, 0, why);
}
