/* The invariants of store/internal.h, checked one by one. Tests call this; nothing else does. */
#include <string.h>

#include "store/internal.h"

#define HOLD(n, cond, ...)                                                                                             \
    do {                                                                                                               \
        if (!(cond)) return mf__fail(err, MF_E_INTERNAL, "invariant " #n ": " __VA_ARGS__);                            \
    } while (0)

static mf_status check_keys(const mf__store *s, mf_error *err) {
    for (int k = 0; k < s->n_keys; k++) {
        int32_t i = s->where[k];
        if (i < 0) continue;
        HOLD(1, i < s->n_slots && s->keys[i] == k, "key %d is said to be in slot %d", k, i);
        HOLD(1, s->slots[i].state == MF_SLOT_READING || s->slots[i].state == MF_SLOT_READY,
             "key %d is in slot %d of state %d", k, i, s->slots[i].state);
    }
    return MF_OK;
}

/* Pins of a slot by running turns. */
static int pins_of(const mf__store *s, int32_t slot) {
    int n = 0;
    for (const mf__turn *t = s->turns; t; t = t->next_turn)
        for (int i = 0; t->layer >= 0 && i < t->n; i++)
            n += (t->want[i] == MF_WANT_CLAIMED || t->want[i] == MF_WANT_GIVEN) && t->slot_of[i] == slot;
    return n;
}

static mf_status check_slot(const mf__store *s, int i, mf_error *err) {
    const mf__slot *x = &s->slots[i];
    bool there = x->state == MF_SLOT_READING || x->state == MF_SLOT_READY;
    if (there)
        HOLD(1, s->keys[i] >= 0 && s->where[s->keys[i]] == i, "slot %d is not found under key %d", i, s->keys[i]);
    if (s->slabbed && x->state != MF_SLOT_FREE) HOLD(5, s->slabs[i / s->slab_slots], "slot %d has no memory", i);
    if (x->state == MF_SLOT_FREE) HOLD(2, s->keys[i] < 0 && !x->pins && x->queue < 0, "slot %d is not quite free", i);
    HOLD(3, x->pins == pins_of(s, i), "slot %d has %d pins, turns hold %d", i, x->pins, pins_of(s, i));
    if (i >= s->limit && !x->pins) HOLD(4, x->state != MF_SLOT_READY, "slot %d is above the limit %d", i, s->limit);
    HOLD(6, x->finished <= x->issued && x->issued <= s->n_reads, "slot %d: %d of %d reads", i, x->finished, x->issued);
    if (x->state == MF_SLOT_READING)
        HOLD(6, (x->queue >= 0) == (x->issued < s->n_reads && !x->error), "slot %d: queue %d, %d reads issued", i,
             x->queue, x->issued);
    else
        HOLD(6, x->queue < 0, "slot %d of state %d is in a queue", i, x->state);
    if (x->queue >= 0) HOLD(7, (x->queue == 0) == (x->pins > 0), "slot %d: queue %d, %d pins", i, x->queue, x->pins);
    return MF_OK;
}

static mf_status check_sums(const mf__store *s, mf_error *err) {
    int over = 0, n_free = 0, n_ready = 0, flying = 0, unused = 0, queued[2] = {0, 0};
    for (int i = 0; i < s->n_slots; i++) {
        const mf__slot *x = &s->slots[i];
        over += i >= s->limit && x->state != MF_SLOT_FREE;
        n_free += i < s->limit && x->state == MF_SLOT_FREE;
        flying += x->state == MF_SLOT_READING ? x->issued - x->finished : 0;
        n_ready += x->state == MF_SLOT_READY;
        unused += x->state == MF_SLOT_READY && x->who >= 0;
        if (x->queue >= 0) queued[(int)x->queue]++;
    }
    HOLD(4, over == s->n_over && n_free == s->n_free, "%d over, counted %d; %d free, counted %d", over, s->n_over,
         n_free, s->n_free);
    HOLD(8, flying == s->in_flight[0] + s->in_flight[1] && s->in_flight[0] >= 0 && s->in_flight[1] >= 0,
         "%d reads under way, counted %d + %d", flying, s->in_flight[0], s->in_flight[1]);
    HOLD(9, n_ready == s->n_ready && (!s->n_holders || s->n_reaching || n_ready == s->n_real),
         "%d ready, counted %d, of %d", n_ready, s->n_ready, s->n_real);
    HOLD(10, unused == s->n_ready_unused, "%d unused guesses, counted %d", unused, s->n_ready_unused);
    for (int q = 0; q < 2; q++) {
        int n = 0, last = -1;
        for (int32_t i = s->queues[q].head; i >= 0 && n <= s->n_slots; last = i, i = s->slots[i].next, n++)
            HOLD(6, s->slots[i].queue == q && s->slots[i].prev == last, "queue %d is broken at slot %d", q, i);
        HOLD(6, n == queued[q] && s->queues[q].tail == last, "queue %d has %d slots, %d say so", q, n, queued[q]);
    }
    return MF_OK;
}

static mf_status check_budget(const mf__store *s, mf_error *err) {
    if (s->mapped || !s->budget || s->limit_waits) return MF_OK;
    int64_t bytes = mf__slot_memory_bytes(s);
    if (!s->slabbed || !s->n_over)
        HOLD(5, bytes <= s->budget - s->lent, "%lld bytes of slots and tables in a budget of %lld", (long long)bytes,
             (long long)(s->budget - s->lent));
    HOLD(5, s->budget <= s->budget_asked && s->budget_asked <= s->budget_max, "the budget is %lld of %lld of %lld",
         (long long)s->budget, (long long)s->budget_asked, (long long)s->budget_max);
    return MF_OK;
}

static mf_status check(const mf__store *s, mf_error *err) {
    MF__TRY(check_keys(s, err));
    for (int i = 0; i < s->n_slots; i++) MF__TRY(check_slot(s, i, err));
    MF__TRY(check_sums(s, err));
    return check_budget(s, err);
}

mf_status mf__store_check(mf__store *s, mf_error *err) {
    pthread_mutex_lock(&s->lock);
    mf_status st = check(s, err);
    pthread_mutex_unlock(&s->lock);
    return st;
}
