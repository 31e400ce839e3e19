/* The keys of objects while a text is read: see mf__keys. */
#include <stdlib.h>
#include <string.h>

#include "text/grammar/automaton.h"

#define MAX_SETS (1u << 20)
#define MAX_WORDS (1u << 23)

mf_status mf__keys_create(uint32_t n_declared, uint32_t n_labels, mf__keys **out, mf_error *err) {
    mf__keys *k = *out = calloc(1, sizeof *k);
    if (k) {
        *k = (mf__keys){.n_declared = n_declared, .n_labels = n_labels, .n_words = n_declared / 64 + 1, .max = -1};
        k->first_required = MF__NEVER;
        k->required = calloc(k->n_words, sizeof *k->required);
        k->member_cost = calloc((size_t)n_labels + 1, sizeof *k->member_cost);
        k->value = calloc((size_t)n_labels + 1, sizeof *k->value);
        k->names = calloc((size_t)n_declared + 1, sizeof *k->names);
        if (k->required && k->member_cost && k->value && k->names) return MF_OK;
    }
    mf__keys_free(k);
    *out = NULL;
    return mf__fail(err, MF_E_NOMEM, "no memory for a grammar");
}

void mf__keys_free(mf__keys *k) {
    if (!k) return;
    for (uint32_t i = 0; k->names && i < k->n_declared; i++) free(k->names[i]);
    free(k->names);
    free(k->required);
    free(k->member_cost);
    free(k->value);
    free(k);
}

/* ---- sets -------------------------------------------------------------------------------------------------------- */

void mf__key_sets_deinit(mf__key_sets *k) {
    free(k->sets);
    free(k->words);
    free(k->slots);
}

void mf__key_sets_cut(mf__key_sets *k, uint32_t n) {
    while (k->n > n && k->n > 1) { /* in reverse order, so that no chain of slots is broken */
        const mf__key_set *s = &k->sets[--k->n];
        k->slots[s->slot] = 0;
        k->n_words = s->words;
    }
}

static uint64_t hash_of(const mf__keys *keys, const uint64_t *words, uint32_t n_others) {
    uint64_t h = (uint64_t)(uintptr_t)keys ^ (uint64_t)n_others << 40;
    for (uint32_t i = 0; i < keys->n_words; i++) h = (h ^ words[i]) * 0xD6E8FEB86659FD93u, h ^= h >> 32;
    return h;
}

static bool grow(mf__key_sets *k, uint32_t more_words) {
    if (k->n + 1 >= k->capacity) {
        uint32_t n = k->capacity ? k->capacity * 2 : 64;
        mf__key_set *sets = realloc(k->sets, n * sizeof *sets);
        if (!sets) return false;
        k->sets = sets;
        k->capacity = n;
        if (!k->n) k->n = 1;
    }
    while (k->n_words + more_words > k->words_capacity) {
        uint32_t n = k->words_capacity ? k->words_capacity * 2 : 256;
        uint64_t *words = realloc(k->words, n * sizeof *words);
        if (!words) return false;
        k->words = words;
        k->words_capacity = n;
    }
    if (k->n * 2 < k->mask) return true;
    uint32_t mask = k->mask ? k->mask * 2 + 1 : 255;
    uint32_t *slots = calloc((size_t)mask + 1, sizeof *slots);
    if (!slots) return false;
    free(k->slots);
    k->slots = slots;
    k->mask = mask;
    for (uint32_t i = 1; i < k->n; i++) {
        mf__key_set *s = &k->sets[i];
        s->slot = (uint32_t)(s->hash >> 8) & mask;
        while (slots[s->slot]) s->slot = (s->slot + 1) & mask;
        slots[s->slot] = i;
    }
    return true;
}

static bool has(const mf__key_sets *k, uint64_t reg, uint32_t label) {
    return reg && (k->words[k->sets[reg].words + label / 64] >> label % 64 & 1);
}

static void measure(const mf__keys *keys, const uint64_t *words, mf__key_set *s) {
    s->first_missing = MF__NEVER;
    for (uint32_t i = 0; i < keys->n_declared; i++) {
        bool in = words[i / 64] >> i % 64 & 1, required = keys->required[i / 64] >> i % 64 & 1;
        s->n_declared += in;
        s->missing += required && !in;
        if (!required || in) continue;
        s->cost += keys->member_cost[i];
        if (s->first_missing == MF__NEVER) s->first_missing = i;
    }
}

/* The set with one more key; 0: there is no room for it. */
static uint64_t with_key(mf__key_sets *k, const mf__keys *keys, uint64_t reg, uint32_t label) {
    bool declared = label < keys->n_declared;
    uint32_t n_others = reg ? k->sets[reg].n_others : 0;
    if (k->failed || k->n >= MAX_SETS || k->n_words >= MAX_WORDS || !grow(k, keys->n_words)) return k->failed = true, 0;
    uint64_t *words = k->words + k->n_words;
    if (reg)
        memcpy(words, k->words + k->sets[reg].words, keys->n_words * sizeof *words);
    else
        memset(words, 0, keys->n_words * sizeof *words);
    if (declared) words[label / 64] |= (uint64_t)1 << label % 64;
    /* Others count where there is a limit; otherwise it matters only that there is one. */
    if (!declared && (n_others == 0 || keys->max >= 0)) n_others++;
    uint64_t hash = hash_of(keys, words, n_others);
    uint32_t at = (uint32_t)(hash >> 8) & k->mask;
    for (; k->slots[at]; at = (at + 1) & k->mask) {
        const mf__key_set *s = &k->sets[k->slots[at]];
        if (s->keys == keys && s->n_others == n_others &&
            memcmp(k->words + s->words, words, keys->n_words * sizeof *words) == 0)
            return k->slots[at];
    }
    mf__key_set *s = &k->sets[k->n];
    *s = (mf__key_set){.keys = keys, .words = k->n_words, .slot = at, .n_others = n_others, .hash = hash};
    measure(keys, words, s);
    k->n_words += keys->n_words;
    k->slots[at] = k->n;
    return k->n++;
}

/* ---- rules ------------------------------------------------------------------------------------------------------- */

static uint32_t missing(const mf__keys *k, const mf__key_sets *sets, uint64_t reg) {
    return reg ? sets->sets[reg].missing : k->n_required;
}

static int64_t count(const mf__key_sets *sets, uint64_t reg) {
    return reg ? (int64_t)sets->sets[reg].n_declared + sets->sets[reg].n_others : 0;
}

/* Keys that are not declared may repeat, and one that is repeated counts once: of all of them one counts. */
static int64_t certain(const mf__key_sets *sets, uint64_t reg) {
    return reg ? (int64_t)sets->sets[reg].n_declared + (sets->sets[reg].n_others > 0) : 0;
}

/* Is there room for one more key, and for those that must come behind it? required, counts: what the key is. */
static bool fits(const mf__keys *k, const mf__key_sets *sets, uint64_t reg, bool required, bool counts) {
    int64_t needed = (int64_t)missing(k, sets, reg) - required, few = k->min - certain(sets, reg) - counts;
    if (few > needed) needed = few;
    return count(sets, reg) + 1 + needed <= k->max;
}

/* Must another key come before those with this label? */
static bool out_of_turn(const mf__keys *k, const mf__key_sets *sets, uint64_t reg, uint32_t label) {
    return sets->ordered && label > (reg ? sets->sets[reg].first_missing : k->first_required);
}

/* May declared key i come now? */
static bool allows(const mf__keys *k, const mf__key_sets *sets, uint64_t reg, uint32_t i) {
    if (has(sets, reg, i) || out_of_turn(k, sets, reg, i)) return false;
    return k->max < 0 || fits(k, sets, reg, k->required[i / 64] >> i % 64 & 1, true);
}

bool mf__keys_others(const mf__keys *k, const mf__key_sets *sets, uint64_t reg) {
    bool first = !reg || sets->sets[reg].n_others == 0;
    if (!k->others || out_of_turn(k, sets, reg, k->n_declared)) return false;
    return k->max < 0 || fits(k, sets, reg, false, first);
}

static bool any_key(const mf__grammar *g, const mf__keys *k, const mf__key_sets *sets, const mf__state *s,
                    uint64_t reg) {
    if (s->others && mf__keys_others(k, sets, reg)) return true;
    const uint32_t *list = g->reach + s->reach;
    for (uint32_t i = 0; i < s->n_reach; i++)
        if (allows(k, sets, reg, list[i])) return true;
    return false;
}

bool mf__keys_enter(const mf__grammar *g, mf__key_sets *sets, const mf__state *s, uint64_t *reg) {
    const mf__keys *k = g->rules[s->rule].keys;
    if (s->in_key) return any_key(g, k, sets, s, *reg);
    if (s->closing) return mf__keys_final(k, sets, *reg);
    if (s->mark < MF__MARK_KEY) return true;
    uint32_t label = s->mark - MF__MARK_KEY;
    if (label < k->n_declared ? !allows(k, sets, *reg, label) : !mf__keys_others(k, sets, *reg)) return false;
    *reg = with_key(sets, k, *reg, label);
    return *reg != 0;
}

bool mf__keys_final(const mf__keys *k, const mf__key_sets *sets, uint64_t reg) {
    return missing(k, sets, reg) == 0 && certain(sets, reg) >= k->min;
}

/* What is behind the present member: the required ones that are left, and more where too few would be. */
static uint64_t rest(const mf__keys *k, const mf__key_sets *sets, uint64_t reg) {
    uint64_t sum = 0;
    int64_t n = certain(sets, reg) + missing(k, sets, reg);
    if (reg) sum = sets->sets[reg].cost;
    for (uint32_t i = 0; !reg && i < k->n_declared; i++)
        if (k->required[i / 64] >> i % 64 & 1) sum += k->member_cost[i];
    if (n < k->min) sum += (uint64_t)(k->min - n) * k->cheapest;
    return sum;
}

uint64_t mf__keys_distance(const mf__grammar *g, const mf__key_sets *sets, const mf__state *s, uint64_t reg) {
    const mf__keys *k = g->rules[s->rule].keys;
    uint64_t behind = rest(k, sets, reg), best = UINT64_MAX;
    if (!s->in_key) return s->distance + (s->accept ? 0 : behind);
    bool more = certain(sets, reg) + missing(k, sets, reg) < k->min; /* this key is one of those counted above */
    for (uint32_t i = 0; i < s->n_reach; i++) {
        uint32_t label = g->reach[s->reach + i];
        if (!allows(k, sets, reg, label)) continue;
        bool required = k->required[label / 64] >> label % 64 & 1;
        uint64_t d = k->member_cost[label] - s->least + behind;
        if (required) d -= k->member_cost[label];
        if (more && !required) d -= k->cheapest;
        if (d < best) best = d;
    }
    if (!s->others || !mf__keys_others(k, sets, reg)) return best;
    uint64_t d = (uint64_t)s->most + behind - (more && !(reg && sets->sets[reg].n_others) ? k->cheapest : 0);
    return d < best ? d : best;
}
