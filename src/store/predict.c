/* Predictions: what may be wanted soon, and whether it pays to listen.
 *
 * Four predictors: what the pass before wanted of the layer (said here), and the layer's router applied to the residual
 * as the layer before leaves it, as it is before that layer's experts are added, or as the layer before that leaves it
 * (all said by whoever runs them). All name experts for all rows that decode, one or a batch. The later the better: the
 * earlier ones keep the drive busy while the layer before is waited for or computed, and what they said and was not
 * begun is dropped when a later one speaks.
 *
 * A guess waits in a ring until the feed has nothing better to do; it takes a slot only when its read starts. What is
 * said about a layer ends with the layer's next turn. A predictor whose reads are mostly useless is sent to rest, each
 * time for longer, and then tried again: what it says is still compared with what was wanted, so that recall is known
 * also of a predictor at rest. */
#include <limits.h>
#include <string.h>

#include "store/internal.h"

#define WINDOW 128      /* settled reads between judgements */
#define GOOD_PERCENT 25 /* of them that must have been wanted */
#define SURE_PERCENT 80 /* ... that make the next ones as good as wanted */
#define FIRST_REST 512  /* hints */
#define LONGEST_REST 65536
#define MOST_COUNT 16 /* rows that want an expert: more is as good */

static bool ahead_pays(const mf__store *s) {
    if (s->follows) return s->always || !atomic_load(&s->lane->off);
    return s->always || !s->trials[s->pass_size].off;
}

bool mf__predict_active(const mf__store *s, int who) {
    return s->prefetch && ahead_pays(s) && s->tracks[who].resting == 0 && s->listens >> who & 1;
}

void mf__predict_settle(mf__store *s, int who, bool good) {
    mf__track *k = &s->tracks[who];
    if (!good) s->stats.predictors[who].useless++;
    k->window_total++;
    k->window_good += good;
    if (k->window_total < WINDOW) return;
    if (k->window_good * 100 < GOOD_PERCENT * k->window_total) {
        k->rest = k->rest ? k->rest * 2 : FIRST_REST;
        if (k->rest > LONGEST_REST) k->rest = LONGEST_REST;
        k->resting = k->rest;
    } else {
        k->rest = 0;
    }
    k->sure = k->window_good * 100 >= SURE_PERCENT * k->window_total;
    k->window_total = k->window_good = 0;
}

/* Takes back guesses that have not started: of one layer (-1: all) and one predictor (-1: all). */
static void withdraw(mf__store *s, int layer, int who) {
    for (int i = 0; i < s->n_guesses; i++) {
        mf__guess *g = &s->guesses[(s->guess_head + i) % s->guess_cap];
        if (g->key < 0 || (layer >= 0 && g->key / s->n_experts != layer) || (who >= 0 && g->who != who)) continue;
        g->key = -1;
    }
    while (s->n_guesses && s->guesses[s->guess_head].key < 0) {
        s->guess_head = (s->guess_head + 1) % s->guess_cap;
        s->n_guesses--;
    }
}

static void unsay(mf__store *s, int layer, uint8_t bits) {
    uint8_t *f = s->foretold + (size_t)layer * (size_t)s->n_experts;
    for (int e = 0; e < s->n_experts; e++) f[e] &= (uint8_t)~bits;
    s->spoke[layer] &= (uint8_t)~bits;
}

/* Reads of a predictor that is nearly always right: nothing is lost with them but the drive's time. */
static bool guesses_are_sure(const mf__store *s) {
    return s->tracks[MF_PREDICT_ROUTER].sure || s->tracks[MF_PREDICT_EARLY].sure;
}

/* A pass takes from one turn of the first layer to the next. Until memory is full for the first time everything is
 * missed and memory is touched for the first time: such passes say nothing about those that follow. */
static void time_pass(mf__store *s, const mf__turn *t) {
    int64_t now = mf__clock_ns();
    if (t->layer != s->first_layer || s->follows) return;
    bool settled = s->evicted || s->mapped;
    int64_t busy = mf__lane_busy_ns(s, now), ns = now - s->pass_began_ns, idle = ns - (busy - s->pass_busy_ns);
    if (t->n_single && s->pass_began_ns && !s->always && settled)
        mf__trial_pass(&s->trials[s->pass_size],
                       (mf__trial_seen){.ns = ns, .idle_ns = idle > 0 ? idle : 0, .sure = guesses_are_sure(s)});
    s->pass_began_ns = t->n_single ? now : 0;
    s->pass_busy_ns = busy;
    if (t->n_single) s->pass_size = mf__trial_size(t->n_tokens);
    atomic_store(&s->lane->off, s->trials[s->pass_size].off);
}

/* Experts that decoding rows are likely to have wanted: as many as they can have, those that most rows want first. */
static int likeliest(const mf__turn *t, int most, int32_t *out) {
    int n = 0, n_with[MOST_COUNT + 1] = {0};
    int64_t sum = 0;
    if (!t->counts) {
        n = t->n < most ? t->n : most;
        memcpy(out, t->wanted, (size_t)n * sizeof *out);
        return n;
    }
    for (int i = 0; i < t->n; i++) {
        sum += t->counts[i];
        n_with[t->counts[i] < MOST_COUNT ? t->counts[i] : MOST_COUNT]++;
    }
    int64_t theirs = (sum * t->n_single + t->n_tokens - 1) / t->n_tokens;
    if (most > theirs) most = (int)theirs;
    for (int c = MOST_COUNT; c > 0 && n < most; c--)
        for (int i = 0; n_with[c] && i < t->n && n < most; i++)
            if (t->counts[i] == c || (c == MOST_COUNT && t->counts[i] > c)) out[n++] = t->wanted[i];
    return n;
}

/* The layer has its turn: what was said about it is compared with what is wanted, and ends. */
static void judge(mf__store *s, int layer, const int32_t *ids, int n) {
    const uint8_t *f = s->foretold + (size_t)layer * (size_t)s->n_experts;
    for (int who = 0; who < MF_PREDICT_COUNT; who++) {
        mf_predictor_stats *p = &s->stats.predictors[who];
        if (!(s->spoke[layer] & 1 << who)) continue;
        p->wanted += n;
        for (int e = 0; e < s->n_experts; e++) p->foretold += f[e] >> who & 1;
        for (int i = 0; i < n; i++) p->right += f[ids[i]] >> who & 1;
    }
    if (s->spoke[layer]) unsay(s, layer, 0xff);
    if (s->turns_since_router < INT_MAX) s->turns_since_router++;
    withdraw(s, layer, -1);
}

void mf__predict_begin(mf__store *s, const mf__turn *t) {
    int32_t *last = s->last_ids + (size_t)t->layer * (size_t)s->last_cap;
    judge(s, t->layer, t->wanted, t->n);
    time_pass(s, t);
    s->n_last[t->layer] = t->n_single ? likeliest(t, s->last_cap, last) : 0;
}

void mf__predict_used(mf__store *s, int32_t slot) {
    const mf__slot *x = &s->slots[slot];
    if (x->who < 0) return;
    mf_predictor_stats *p = &s->stats.predictors[x->who];
    ++*(x->state == MF_SLOT_READY ? &p->useful : &p->late);
    mf__slot_settle(s, slot, true);
}

/* What was read for a turn that did not want it is no guess any more but an expert like others, of little worth. */
void mf__predict_unwanted(mf__store *s, int layer) {
    for (int e = 0; s->prefetch && e < s->n_experts; e++) {
        int32_t slot = s->where[layer * s->n_experts + e];
        if (slot < 0 || s->slots[slot].who < 0) continue;
        mf__slot_settle(s, slot, false);
        if (s->slots[slot].state == MF_SLOT_READING && s->slots[slot].issued == 0) mf__slot_free(s, slot);
    }
}

/* The experts of a list that are not here: what the store below has to do with. */
static int not_here(mf__store *s, int layer, const int32_t *ids, int n) {
    int n_missing = 0;
    for (int i = 0; i < n; i++)
        if (s->where[layer * s->n_experts + ids[i]] < 0) s->pass_down[n_missing++] = ids[i];
    return n_missing;
}

/* The turn of a layer above, of which these experts will be asked for. */
static void turn_above(mf__store *s, int layer, const int32_t *ids, int n) {
    pthread_mutex_lock(&s->lock);
    judge(s, layer, ids, n);
    for (int i = 0; i < n; i++) {
        int32_t slot = s->where[layer * s->n_experts + ids[i]];
        if (slot >= 0) mf__predict_used(s, slot);
    }
    mf__predict_unwanted(s, layer);
    mf__predict_tell_below(s, layer, ids, n);
    pthread_mutex_unlock(&s->lock);
}

void mf__predict_tell_below(mf__store *s, int layer, const int32_t *ids, int n) {
    if (s->below) turn_above(s->below, layer, s->pass_down, not_here(s, layer, ids, n));
}

void mf__predict_hint(mf__store *s, int who, int layer, const int32_t *ids, int n) {
    bool listen = mf__predict_active(s, who);
    if (who != MF_PREDICT_LAST && listen) s->turns_since_router = 0;
    /* Two voices at once would spend the idle time on the worse one: the token before counts where no router speaks,
     * which is at the first layer, too. */
    if (who == MF_PREDICT_LAST && s->turns_since_router <= 2 && layer != s->first_layer) listen = false;
    withdraw(s, layer, who);
    if (who == MF_PREDICT_ROUTER && listen) withdraw(s, layer, MF_PREDICT_EARLY);
    if ((who == MF_PREDICT_ROUTER || who == MF_PREDICT_EARLY) && listen) withdraw(s, layer, MF_PREDICT_SECOND);
    unsay(s, layer, (uint8_t)(1 << who));
    s->spoke[layer] |= (uint8_t)(1 << who);
    for (int i = 0; i < n; i++) {
        mf__key key = layer * s->n_experts + ids[i];
        s->foretold[key] |= (uint8_t)(1 << who);
        if (!listen || s->where[key] >= 0 || s->n_guesses == s->guess_cap) continue;
        s->guesses[(s->guess_head + s->n_guesses++) % s->guess_cap] = (mf__guess){.key = key, .who = (int8_t)who};
    }
    if (s->n_guesses) mf__feed_wake(s);
    if (s->below && listen)
        mf__store_hint(s->below, (mf__predictor)who, layer, s->pass_down, not_here(s, layer, ids, n));
}

/* The layer that follows, or the first again. */
void mf__predict_next_layer(mf__store *s, int layer) {
    for (int i = 1; s->prefetch && i < s->n_layers; i++) {
        int next = (layer + i) % s->n_layers;
        if (!mf__files_has(s, next)) continue;
        if (s->tracks[MF_PREDICT_LAST].resting) s->tracks[MF_PREDICT_LAST].resting--;
        if (s->n_last[next])
            mf__predict_hint(s, MF_PREDICT_LAST, next, s->last_ids + (size_t)next * (size_t)s->last_cap,
                             s->n_last[next]);
        return;
    }
}

void mf__predict_forget(mf__store *s) {
    withdraw(s, -1, -1);
    for (int l = 0; l < s->n_layers; l++) {
        unsay(s, l, 0xff);
        s->n_last[l] = 0;
    }
}

/* ---- from outside: with the lock ---- */

void mf__store_hint(mf__store *s, mf__predictor who, int layer, const int32_t *ids, int n) {
    if (!s->prefetch || layer < 0 || layer >= s->n_layers || !mf__files_has(s, layer)) return;
    if ((unsigned)who >= MF_PREDICT_COUNT) return;
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->n_experts) return;
    pthread_mutex_lock(&s->lock);
    mf__predict_hint(s, who, layer, ids, n);
    pthread_mutex_unlock(&s->lock);
}

/* A predictor at rest is asked again after a while; while nothing is missed there is nothing to foretell. */
bool mf__store_wants_hints(mf__store *s, mf__predictor who) {
    if (!s->prefetch || (unsigned)who >= MF_PREDICT_COUNT) return false;
    pthread_mutex_lock(&s->lock);
    mf__track *k = &s->tracks[who];
    if (k->resting) k->resting--;
    bool wants = !k->resting && ahead_pays(s) && s->turns_without_miss < s->n_layers;
    pthread_mutex_unlock(&s->lock);
    return wants;
}

void mf__store_forget(mf__store *s) {
    pthread_mutex_lock(&s->lock);
    mf__predict_forget(s);
    pthread_mutex_unlock(&s->lock);
    if (s->below) mf__store_forget(s->below);
}
