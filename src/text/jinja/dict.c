/* Dictionaries: pairs in order of insertion, and beside them an open-addressed table of their numbers.
 *
 * Equal keys have equal hashes: 1, 1.0 and true are one key. Whoever chooses keys that collide pays for every one that
 * is compared. */
#include <math.h>
#include <string.h>

#include "text/jinja/value.h"

#define FEW 8 /* pairs that are looked up by walking */

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

static uint64_t hash_text(const char *s, size_t n) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ n, part;
    for (; n >= 8; s += 8, n -= 8) memcpy(&part, s, 8), h = mix(h ^ part);
    part = 0;
    if (n) memcpy(&part, s, n);
    return mix(h ^ part);
}

static uint64_t hash_float(double f) {
    uint64_t bits;
    if (f == floor(f) && fabs(f) < 9e18) return mix((uint64_t)(int64_t)f);
    memcpy(&bits, &f, sizeof bits);
    return mix(bits);
}

static mf_status hash(jctx *c, jvalue v, uint64_t *out) {
    MF__TRY(mf__j_pay(c, 1));
    switch (v.kind) {
    case J_BOOL:
    case J_INT: *out = mix((uint64_t)mf__j_as_int(v)); return MF_OK;
    case J_FLOAT: *out = hash_float(v.f); return MF_OK;
    case J_STRING: MF__TRY(mf__j_pay_bytes(c, v.n, J_COPIED)); return *out = hash_text(v.s, v.n), MF_OK;
    case J_TUPLE:
        MF__TRY(mf__j_enter(c));
        *out = v.list->n;
        for (size_t i = 0; i < v.list->n; i++) {
            uint64_t part;
            MF__TRY(hash(c, v.list->items[i], &part));
            *out = mix(*out * 31 ^ part);
        }
        mf__j_leave(c);
        return MF_OK;
    case J_LIST:
    case J_DICT: return mf__j_fail(c, MF_E_INVALID, "%s cannot be a key", mf__j_type(v));
    case J_UNDEFINED:
    case J_NONE: *out = mix((uint64_t)v.kind); return MF_OK;
    default: *out = mix((uint64_t)(uintptr_t)v.dict); return MF_OK;
    }
}

mf_status mf__j_dict(jctx *c, size_t capacity, jvalue *out) {
    void *dict, *pairs = NULL;
    MF__TRY(mf__j_alloc(c, sizeof(jdict), &dict));
    if (capacity) MF__TRY(mf__j_alloc_array(c, capacity, sizeof(jpair), &pairs));
    *(jdict *)dict = (jdict){.pairs = pairs, .capacity = capacity};
    *out = (jvalue){.kind = J_DICT, .dict = dict};
    return MF_OK;
}

static mf_status fill_slot(jctx *c, jdict *d, uint64_t h, size_t pair) {
    size_t at = h & (d->n_slots - 1), tried = 0;
    for (; d->slots[at]; tried++) at = (at + 1) & (d->n_slots - 1);
    d->slots[at] = (uint32_t)(pair + 1);
    return mf__j_pay(c, tried / 4);
}

/* Makes the table fit for the pairs there are. */
static mf_status index_pairs(jctx *c, jdict *d) {
    size_t n_slots = d->n_slots ? d->n_slots : 4 * FEW;
    while (n_slots < 2 * (d->n + 1)) n_slots *= 2;
    if (n_slots != d->n_slots) {
        void *slots;
        n_slots *= 2;
        MF__TRY(mf__j_alloc_array(c, n_slots, sizeof *d->slots, &slots));
        d->slots = slots;
        d->n_slots = n_slots;
    } else {
        MF__TRY(mf__j_pay_bytes(c, n_slots * sizeof *d->slots, J_COPIED));
        memset(d->slots, 0, n_slots * sizeof *d->slots);
    }
    for (size_t i = 0; i < d->n; i++) {
        uint64_t h;
        MF__TRY(hash(c, d->pairs[i].key, &h));
        MF__TRY(fill_slot(c, d, h, i));
    }
    d->stale = false;
    return MF_OK;
}

/* The number of the key's pair, or d->n. */
static mf_status locate(jctx *c, const jdict *dict, jvalue key, uint64_t *h, size_t *out) {
    jdict *d = (jdict *)dict; /* the table is built when it is first needed */
    bool same;
    MF__TRY(hash(c, key, h));
    if (d->n <= FEW) {
        MF__TRY(mf__j_pay(c, 1));
        for (size_t i = 0; i < d->n; i++) {
            MF__TRY(mf__j_equal(c, d->pairs[i].key, key, &same));
            if (same) return *out = i, MF_OK;
        }
        return *out = d->n, MF_OK;
    }
    if (d->stale || d->n_slots < 2 * (d->n + 1)) MF__TRY(index_pairs(c, d));
    for (size_t at = *h & (d->n_slots - 1); d->slots[at]; at = (at + 1) & (d->n_slots - 1)) {
        MF__TRY(mf__j_pay(c, 1));
        MF__TRY(mf__j_equal(c, d->pairs[d->slots[at] - 1].key, key, &same));
        if (same) return *out = d->slots[at] - 1, MF_OK;
    }
    return *out = d->n, MF_OK;
}

mf_status mf__j_find(jctx *c, const jdict *dict, jvalue key, const jvalue **out) {
    size_t at;
    uint64_t h;
    MF__TRY(locate(c, dict, key, &h, &at));
    *out = at < dict->n ? &dict->pairs[at].value : NULL;
    return MF_OK;
}

mf_status mf__j_put(jctx *c, jvalue dict, jvalue key, jvalue value) {
    jdict *d = dict.dict;
    size_t at;
    uint64_t h;
    MF__TRY(locate(c, d, key, &h, &at));
    if (at < d->n) return d->pairs[at].value = value, MF_OK;
    if (d->n == d->capacity) {
        size_t capacity = d->capacity ? d->capacity * 2 : 4;
        void *pairs;
        MF__TRY(mf__j_alloc_array(c, capacity, sizeof(jpair), &pairs));
        if (d->n) memcpy(pairs, d->pairs, d->n * sizeof(jpair));
        d->pairs = pairs;
        d->capacity = capacity;
    }
    d->pairs[d->n++] = (jpair){key, value};
    d->stale = d->stale || d->n_slots < 2 * (d->n + 1);
    return d->stale ? MF_OK : fill_slot(c, d, h, d->n - 1);
}

mf_status mf__j_remove(jctx *c, jdict *d, jvalue key, jvalue *value, bool *found) {
    size_t at;
    uint64_t h;
    MF__TRY(locate(c, d, key, &h, &at));
    *found = at < d->n;
    if (!*found) return MF_OK;
    *value = d->pairs[at].value;
    MF__TRY(mf__j_pay_bytes(c, (d->n - at) * sizeof(jpair), J_COPIED));
    memmove(d->pairs + at, d->pairs + at + 1, (--d->n - at) * sizeof(jpair));
    d->stale = true;
    return MF_OK;
}

void mf__j_clear(jdict *d) {
    d->n = 0;
    d->stale = true;
}
