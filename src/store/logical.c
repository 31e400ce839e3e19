/* The logical cache: what choices that change results may know of the cache.
 *
 * What is in memory at some moment depends on when reads finish and which guesses got through. The logical cache does
 * not: it holds what turns wanted, as long as the policy keeps it, in a little less room than there is, and changes
 * with the beginning of turns only. Equal turns from an equal state give equal answers, whatever the drive did.
 *
 * Memory follows it: what is in the logical cache is thrown out last, and the room that it leaves is for guesses. Where
 * it says "there" and memory has it not (a turn was abandoned, the limit sank), the expert is read once more; results
 * do not change. The lock is held throughout, but for the question from outside.
 *
 *   logical[key]          its place in logical_keys, or -1; NULL: nobody asks, there is no logical cache
 *   logical_keys[0..n)    the keys that are in it */
#include <stdlib.h>
#include <string.h>

#include "store/internal.h"

#define RESERVE_LEAST 4
#define RESERVE_SHARE 16
#define MAX_VICTIMS 64

mf_status mf__logical_create(mf__store *s, mf_error *err) {
    if (!s->config.logical) return MF_OK;
    s->logical = mf__table(s, (size_t)s->n_keys, sizeof *s->logical);
    s->logical_keys = mf__table(s, (size_t)s->n_keys, sizeof *s->logical_keys);
    s->logical_now = mf__table(s, (size_t)s->n_experts, sizeof *s->logical_now);
    s->chances = mf__table(s, (size_t)s->n_keys, sizeof *s->chances);
    if (!s->logical || !s->logical_keys || !s->logical_now || !s->chances)
        return mf__fail(err, MF_E_NOMEM, "no memory for the logical cache of %d experts", s->n_keys);
    for (int i = 0; i < s->n_keys; i++) s->logical[i] = -1;
    return MF_OK;
}

void mf__logical_free(mf__store *s) {
    free(s->logical);
    free(s->logical_keys);
    free(s->logical_now);
    free(s->chances);
}

/* Where everything fits nothing is kept back. */
static int room(const mf__store *s) {
    int reserve = s->limit / RESERVE_SHARE > RESERVE_LEAST ? s->limit / RESERVE_SHARE : RESERVE_LEAST;
    if (s->mapped || s->limit >= s->n_real) return s->n_keys;
    return s->limit - reserve > 1 ? s->limit - reserve : 1;
}

static void drop(mf__store *s, int at) {
    s->logical[s->logical_keys[at]] = -1;
    mf__key last = s->logical_keys[--s->n_logical];
    if (at == s->n_logical) return;
    s->logical_keys[at] = last;
    s->logical[last] = at;
}

/* Not wanted by the turn that makes room. */
static bool may_go(const void *ctx, int i) {
    const mf__store *s = ctx;
    mf__key key = s->logical_keys[i];
    return key / s->n_experts != s->now || !s->logical_now[key % s->n_experts];
}

static int by_place(const void *a, const void *b) {
    return *(const int32_t *)b - *(const int32_t *)a;
}

/* Throws out n of least worth, as far as there are any; the order in which keys lie decides between equals, and is
 * itself made by turns alone. */
static void make_room(mf__store *s, int n) {
    while (n > 0) {
        int32_t worst[MAX_VICTIMS];
        double worths[MAX_VICTIMS];
        int found = mf__ranking_worst(&s->ranking, s->logical_keys, s->n_logical, s->now, may_go, s,
                                      n < MAX_VICTIMS ? n : MAX_VICTIMS, worst, worths);
        if (!found) return;
        qsort(worst, (size_t)found, sizeof *worst, by_place); /* from the end: dropping moves the last one */
        for (int i = 0; i < found; i++) drop(s, worst[i]);
        n -= found;
    }
}

void mf__logical_use(mf__store *s, int layer, const int32_t *ids, int n) {
    int n_new = 0, most;
    if (!s->logical) return;
    most = room(s);
    memset(s->logical_now, 0, (size_t)s->n_experts);
    for (int i = 0; i < n; i++) {
        s->logical_now[ids[i]] = 1;
        n_new += s->logical[layer * s->n_experts + ids[i]] < 0;
    }
    make_room(s, s->n_logical + n_new - most);
    for (int i = 0; i < n && s->n_logical < most; i++) {
        mf__key key = layer * s->n_experts + ids[i];
        if (s->logical[key] >= 0) continue;
        s->logical[key] = s->n_logical;
        s->logical_keys[s->n_logical++] = key;
    }
}

bool mf__logical_has(const mf__store *s, mf__key key) {
    return s->logical && s->logical[key] >= 0;
}

bool mf__store_logical(mf__store *s, int layer, uint8_t *resident, float *chance) {
    const mf__policy *p = s->ranking.policy;
    if (!s->logical || layer < 0 || layer >= s->n_layers) return false;
    pthread_mutex_lock(&s->lock);
    bool full = s->n_logical >= room(s);
    for (int e = 0; e < s->n_experts; e++) {
        mf__key key = layer * s->n_experts + e;
        resident[e] = s->logical[key] >= 0;
        chance[e] = p->chance ? p->chance(s->ranking.state, key) : 0;
    }
    pthread_mutex_unlock(&s->lock);
    return full;
}

static int likeliest_first(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

float mf__store_logical_least(mf__store *s) {
    const mf__policy *p = s->ranking.policy;
    if (!s->logical || !p->chance) return 0;
    pthread_mutex_lock(&s->lock);
    int n = room(s);
    for (mf__key key = 0; key < s->n_keys; key++) s->chances[key] = p->chance(s->ranking.state, key);
    qsort(s->chances, (size_t)s->n_keys, sizeof *s->chances, likeliest_first);
    float least = s->chances[n < s->n_keys ? n - 1 : s->n_keys - 1];
    pthread_mutex_unlock(&s->lock);
    return least;
}
