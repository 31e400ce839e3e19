/* Sets of strings: see lang.h. */
#include "text/grammar/lang.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TABLE (1u << 23)

void mf__lang_free(mf__lang *l) {
    free(l->cuts);
    free(l->class);
    free(l->to);
    free(l->label);
    *l = (mf__lang){0};
}

static mf_status too_large(mf_error *err) {
    return mf__fail(err, MF_E_LIMIT, "a pattern, or what is asked of a string together, is too large");
}

static mf_status make(mf__lang *l, uint32_t n_states, uint32_t n_classes, uint32_t n_cuts, mf_error *err) {
    *l = (mf__lang){.n_states = n_states, .n_classes = n_classes, .n_cuts = n_cuts, .start = 1};
    if ((uint64_t)n_states * n_classes > MAX_TABLE) return too_large(err);
    l->cuts = calloc((size_t)n_cuts + 1, sizeof *l->cuts);
    l->class = calloc((size_t)n_cuts + 1, sizeof *l->class);
    l->to = calloc((size_t)n_states * n_classes + 1, sizeof *l->to);
    l->label = calloc((size_t)n_states + 1, sizeof *l->label);
    if (l->cuts && l->class && l->to && l->label) return MF_OK;
    mf__lang_free(l);
    return mf__fail(err, MF_E_NOMEM, "no memory for a pattern");
}

mf_status mf__lang_make(mf__lang *l, uint32_t n_states, uint32_t n_classes, uint32_t n_cuts, mf_error *err) {
    if (n_states > MF__LANG_MAX_STATES) return *l = (mf__lang){0}, too_large(err);
    return make(l, n_states, n_classes, n_cuts, err);
}

mf_status mf__lang_any(mf__lang *out, mf_error *err) {
    MF__TRY(mf__lang_make(out, 2, 1, 1, err));
    out->to[1] = 1;
    out->label[1] = 1;
    return MF_OK;
}

mf_status mf__lang_lengths(int64_t min, int64_t max, mf__lang *out, mf_error *err) {
    int64_t n = max < 0 ? min : max;
    if (n >= MF__LANG_MAX_STATES) return mf__fail(err, MF_E_LIMIT, "a length of %lld beside a pattern", (long long)n);
    MF__TRY(mf__lang_make(out, (uint32_t)n + 2, 1, 1, err));
    for (uint32_t i = 0; i <= (uint32_t)n; i++) {
        out->to[i + 1] = i < (uint32_t)n ? i + 2 : max < 0 ? i + 1 : 0;
        out->label[i + 1] = i >= min;
    }
    return MF_OK;
}

static int compare_u32(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The runs of characters that texts tell apart; returns how many, each its own class. */
static uint32_t find_cuts(const mf__text_span *texts, size_t n, uint32_t *cuts) {
    uint32_t n_cuts = 0, unique = 0, c;
    cuts[n_cuts++] = 0;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < texts[k].size;) {
            i += (size_t)mf__utf8_decode(texts[k].s + i, &c);
            cuts[n_cuts++] = c;
            cuts[n_cuts++] = c + 1;
        }
    qsort(cuts, n_cuts, sizeof *cuts, compare_u32);
    for (uint32_t i = 0; i < n_cuts; i++)
        if (unique == 0 || cuts[unique - 1] != cuts[i]) cuts[unique++] = cuts[i];
    return unique;
}

static uint32_t class_of(const mf__lang *l, uint32_t c) {
    uint32_t lo = 0, hi = l->n_cuts;
    while (hi - lo > 1) {
        uint32_t middle = (lo + hi) / 2;
        if (l->cuts[middle] <= c)
            lo = middle;
        else
            hi = middle;
    }
    return l->class[lo];
}

mf_status mf__lang_texts(const mf__text_span *texts, size_t n, mf__lang *out, mf_error *err) {
    size_t size = 0;
    uint32_t used = 2, c;
    *out = (mf__lang){0};
    for (size_t k = 0; k < n; k++) size += texts[k].size;
    if (size >= MAX_TABLE) return mf__fail(err, MF_E_LIMIT, "listed strings of %zu bytes together", size);
    uint32_t *cuts = malloc((size * 2 + 1) * sizeof *cuts);
    if (!cuts) return mf__fail(err, MF_E_NOMEM, "no memory for a pattern");
    uint32_t n_cuts = find_cuts(texts, n, cuts);
    mf_status status = make(out, (uint32_t)size + 2, n_cuts, n_cuts, err); /* a tree: at most a state a byte */
    for (uint32_t i = 0; status == MF_OK && i < n_cuts; i++) out->cuts[i] = cuts[i], out->class[i] = i;
    free(cuts);
    for (size_t k = 0; status == MF_OK && k < n; k++) {
        uint32_t at = 1;
        for (size_t i = 0; i < texts[k].size;) {
            i += (size_t)mf__utf8_decode(texts[k].s + i, &c);
            uint32_t *to = &out->to[(size_t)at * n_cuts + class_of(out, c)];
            if (!*to) *to = used++;
            at = *to;
        }
        out->label[at] = 1;
    }
    if (status == MF_OK) out->n_states = used;
    if (status == MF_OK && used > MF__LANG_MAX_STATES) status = mf__lang_minimise(out, err);
    if (status == MF_OK && out->n_states > MF__LANG_MAX_STATES) status = too_large(err);
    if (status != MF_OK) mf__lang_free(out);
    return status;
}

uint32_t mf__lang_next(const mf__lang *l, uint32_t state, uint32_t c) {
    return l->to[state * l->n_classes + class_of(l, c)];
}

uint32_t mf__lang_label(const mf__lang *l, const char *text, size_t size) {
    uint32_t state = l->start, c;
    for (size_t i = 0; i < size;) {
        i += (size_t)mf__utf8_decode(text + i, &c);
        state = mf__lang_next(l, state, c);
    }
    return l->label[state];
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

typedef struct product {
    const mf__lang *a, *b;
    uint32_t *class_a, *class_b; /* of a class of the product */
    uint32_t n_classes, n_cuts;
    uint32_t *cuts, *class;
    uint64_t *pairs; /* states: a << 32 | b */
    uint32_t n, capacity;
    uint32_t *slots, mask;
    uint32_t *to;
    uint32_t to_capacity;
} product;

/* Classes of the product: pairs of classes that some character has. */
static mf_status pair_classes(product *p, mf_error *err) {
    uint32_t most = p->a->n_cuts + p->b->n_cuts, ia = 0, ib = 0;
    p->cuts = malloc(((size_t)most + 1) * sizeof *p->cuts);
    p->class = malloc(((size_t)most + 1) * sizeof *p->class);
    p->class_a = malloc(((size_t)most + 1) * sizeof *p->class_a);
    p->class_b = malloc(((size_t)most + 1) * sizeof *p->class_b);
    uint32_t *seen = calloc((size_t)p->a->n_classes * p->b->n_classes + 1, sizeof *seen);
    if (!p->cuts || !p->class || !p->class_a || !p->class_b || !seen) {
        free(seen);
        return mf__fail(err, MF_E_NOMEM, "no memory for a pattern");
    }
    for (uint32_t at = 0;;) {
        uint32_t ca = p->a->class[ia], cb = p->b->class[ib], *known = &seen[(size_t)ca * p->b->n_classes + cb];
        if (!*known) {
            p->class_a[p->n_classes] = ca;
            p->class_b[p->n_classes] = cb;
            *known = ++p->n_classes;
        }
        p->cuts[p->n_cuts] = at;
        p->class[p->n_cuts++] = *known - 1;
        uint32_t na = ia + 1 < p->a->n_cuts ? p->a->cuts[ia + 1] : MF__UNICODE_END;
        uint32_t nb = ib + 1 < p->b->n_cuts ? p->b->cuts[ib + 1] : MF__UNICODE_END;
        at = na < nb ? na : nb;
        if (at >= MF__UNICODE_END) break;
        ia += na == at;
        ib += nb == at;
    }
    free(seen);
    return MF_OK;
}

static mf_status pair_state(product *p, mf__lang_op op, uint64_t pair, uint32_t *out, mf_error *err) {
    uint32_t a = (uint32_t)(pair >> 32), b = (uint32_t)pair;
    *out = 0;
    if ((op == MF__LANG_AND && (!a || !b)) || (op == MF__LANG_AND_NOT && !a) || !(a || b)) return MF_OK; /* dead */
    uint32_t at = (uint32_t)((pair * 0x9E3779B97F4A7C15u) >> 40) & p->mask;
    for (; p->slots[at]; at = (at + 1) & p->mask)
        if (p->pairs[p->slots[at]] == pair) return *out = p->slots[at], MF_OK;
    if (p->n >= MF__LANG_MAX_STATES)
        return mf__fail(err, MF_E_LIMIT, "what is asked of a string together is too large");
    p->slots[at] = p->n;
    p->pairs[p->n] = pair;
    *out = p->n++;
    return MF_OK;
}

static uint32_t pair_label(mf__lang_op op, uint32_t a, uint32_t b, int shift) {
    switch (op) {
    case MF__LANG_AND: return a && b;
    case MF__LANG_AND_NOT: return a && !b;
    case MF__LANG_OR: return a || b;
    case MF__LANG_PAIR: return a | b << shift;
    }
    return 0;
}

static mf_status multiply(product *p, mf__lang_op op, int shift, mf__lang *out, mf_error *err) {
    uint32_t start;
    MF__TRY(pair_classes(p, err));
    uint64_t most = (uint64_t)p->a->n_states * p->b->n_states;
    if (most > MF__LANG_MAX_STATES) most = MF__LANG_MAX_STATES;
    for (p->mask = 63; p->mask < 2 * most;) p->mask = p->mask * 2 + 1;
    p->slots = calloc((size_t)p->mask + 1, sizeof *p->slots);
    p->pairs = malloc(((size_t)most + 2) * sizeof *p->pairs);
    if (!p->slots || !p->pairs) return mf__fail(err, MF_E_NOMEM, "no memory for a pattern");
    p->n = 1;
    MF__TRY(pair_state(p, op, (uint64_t)p->a->start << 32 | p->b->start, &start, err));
    for (uint32_t i = 1; i < p->n; i++) {
        if ((uint64_t)(i + 1) * p->n_classes > MAX_TABLE)
            return mf__fail(err, MF_E_LIMIT, "what is asked of a string together is too large");
        while ((i + 1) * p->n_classes > p->to_capacity) {
            uint32_t capacity = p->to_capacity ? p->to_capacity * 2 : 4096;
            uint32_t *more = realloc(p->to, capacity * sizeof *more);
            if (!more) return mf__fail(err, MF_E_NOMEM, "no memory for a pattern");
            p->to = more;
            p->to_capacity = capacity;
        }
        uint32_t a = (uint32_t)(p->pairs[i] >> 32), b = (uint32_t)p->pairs[i];
        for (uint32_t k = 0; k < p->n_classes; k++) {
            uint32_t ta = p->a->to[a * p->a->n_classes + p->class_a[k]];
            uint32_t tb = p->b->to[b * p->b->n_classes + p->class_b[k]];
            MF__TRY(pair_state(p, op, (uint64_t)ta << 32 | tb, &p->to[i * p->n_classes + k], err));
        }
    }
    MF__TRY(mf__lang_make(out, p->n, p->n_classes, p->n_cuts, err));
    out->start = start;
    memcpy(out->cuts, p->cuts, p->n_cuts * sizeof *out->cuts);
    memcpy(out->class, p->class, p->n_cuts * sizeof *out->class);
    for (uint32_t i = 1; i < p->n; i++) {
        memcpy(out->to + (size_t)i * p->n_classes, p->to + (size_t)i * p->n_classes, p->n_classes * sizeof *out->to);
        out->label[i] = pair_label(op, p->a->label[p->pairs[i] >> 32], p->b->label[(uint32_t)p->pairs[i]], shift);
    }
    return MF_OK;
}

mf_status mf__lang_combine(const mf__lang *a, const mf__lang *b, mf__lang_op op, int shift, mf__lang *out,
                           mf_error *err) {
    product p = {.a = a, .b = b};
    *out = (mf__lang){0};
    mf_status status = multiply(&p, op, shift, out, err);
    free(p.cuts);
    free(p.class);
    free(p.class_a);
    free(p.class_b);
    free(p.pairs);
    free(p.slots);
    free(p.to);
    if (status != MF_OK) mf__lang_free(out);
    return status;
}

mf_status mf__lang_restrict(mf__lang *a, const mf__lang *b, mf__lang_op op, mf_error *err) {
    mf__lang out;
    MF__TRY(mf__lang_combine(a, b, op, 0, &out, err));
    mf__lang_free(a);
    *a = out;
    return mf__lang_minimise(a, err);
}

/* ---- the smallest automaton -------------------------------------------------------------------------------------- */

#define MAX_REFINING (1u << 24) /* steps; larger ones stay as they are */

/* Blocks of states that cannot be told apart (Moore): block[s] by label first, then by the blocks that s leads to. */
static uint32_t refine(const mf__lang *l, const uint32_t *block, uint32_t *next, uint32_t *slots, uint32_t mask) {
    uint32_t n = 0;
    memset(slots, 0, ((size_t)mask + 1) * sizeof *slots);
    for (uint32_t s = 0; s < l->n_states; s++) {
        const uint32_t *to = l->to + (size_t)s * l->n_classes;
        uint64_t h = block[s] + 1;
        for (uint32_t k = 0; k < l->n_classes; k++) h = (h ^ block[to[k]]) * 0xD6E8FEB86659FD93u, h ^= h >> 30;
        uint32_t at = (uint32_t)(h >> 16) & mask;
        for (; slots[at]; at = (at + 1) & mask) {
            uint32_t o = slots[at] - 1;
            const uint32_t *other = l->to + (size_t)o * l->n_classes;
            bool same = block[o] == block[s];
            for (uint32_t k = 0; k < l->n_classes && same; k++) same = block[to[k]] == block[other[k]];
            if (same) break;
        }
        if (!slots[at]) {
            slots[at] = s + 1;
            next[s] = n++;
        } else {
            next[s] = next[slots[at] - 1];
        }
    }
    return n;
}

static mf_status quotient(mf__lang *l, const uint32_t *block, uint32_t n, mf_error *err) {
    mf__lang out;
    MF__TRY(mf__lang_make(&out, n, l->n_classes, l->n_cuts, err));
    memcpy(out.cuts, l->cuts, l->n_cuts * sizeof *out.cuts);
    memcpy(out.class, l->class, l->n_cuts * sizeof *out.class);
    for (uint32_t s = 0; s < l->n_states; s++) { /* block 0 is that of the dead state */
        out.label[block[s]] = l->label[s];
        for (uint32_t k = 0; k < l->n_classes; k++)
            out.to[block[s] * l->n_classes + k] = block[l->to[s * l->n_classes + k]];
    }
    out.start = block[l->start];
    mf__lang_free(l);
    *l = out;
    return MF_OK;
}

mf_status mf__lang_minimise(mf__lang *l, mf_error *err) {
    uint32_t n = l->n_states, mask = 63, blocks = 0, *block = malloc((size_t)n * sizeof *block + 4);
    while (mask < 2 * n) mask = mask * 2 + 1;
    uint32_t *next = malloc((size_t)n * sizeof *next + 4), *slots = malloc(((size_t)mask + 1) * sizeof *slots);
    mf_status status = block && next && slots ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a pattern");
    uint64_t work = 0;
    if (status == MF_OK)
        for (uint32_t s = 0; s < n; s++) block[s] = l->label[s];
    while (status == MF_OK) {
        uint32_t now = refine(l, block, next, slots, mask);
        bool stable = now == blocks;
        blocks = now;
        memcpy(block, next, (size_t)n * sizeof *block);
        work += (uint64_t)n * (l->n_classes + 4);
        if (stable || work > MAX_REFINING) {
            if (stable && blocks < n && blocks > 1) status = quotient(l, block, blocks, err);
            break;
        }
    }
    free(block);
    free(next);
    free(slots);
    return status;
}

/* ---- questions --------------------------------------------------------------------------------------------------- */

/* Which states can end with exactly n more characters, for n = 0, 1, ...: until the answer does not change any more. */
static void step_back(const mf__lang *l, const uint8_t *now, uint8_t *before) {
    for (uint32_t s = 0; s < l->n_states; s++) {
        before[s] = 0;
        for (uint32_t k = 0; k < l->n_classes && !before[s]; k++) before[s] = now[l->to[s * l->n_classes + k]];
    }
}

bool mf__lang_gapless(const mf__lang *l) {
    uint32_t n = l->n_states;
    uint8_t *now = calloc(n + 1, 1), *before = calloc(n + 1, 1),
            *phase = calloc(n + 1, 1); /* 0 not yet, 1 can, 2 over */
    bool fine = now && before && phase;
    for (uint32_t s = 0; fine && s < n; s++) now[s] = l->label[s] != 0;
    for (uint32_t length = 0; fine && length <= 2 * n + 2 && length < 5000; length++) {
        for (uint32_t s = 0; s < n; s++) {
            if (now[s] && phase[s] == 2) fine = false;
            if (now[s]) phase[s] = 1;
            if (!now[s] && phase[s] == 1) phase[s] = 2;
        }
        step_back(l, now, before);
        if (memcmp(now, before, n) == 0) break;
        uint8_t *t = now;
        now = before;
        before = t;
        if (length + 1 > 2 * n + 2 || length + 1 >= 5000) fine = false; /* it does not settle */
    }
    free(now);
    free(before);
    free(phase);
    return fine;
}

/* ---- as bytes ---------------------------------------------------------------------------------------------------- */

typedef struct cut_target {
    uint32_t to, cut;
} cut_target;

static int by_target(const void *a, const void *b) {
    const cut_target *x = a, *y = b;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    return x->cut < y->cut ? -1 : x->cut > y->cut;
}

mf_status mf__lang_targets(const mf__lang *l, uint32_t s, mf__lang_target_fn *fn, void *user, mf_error *err) {
    const uint32_t *to = l->to + (size_t)s * l->n_classes;
    cut_target *all = malloc(((size_t)l->n_cuts + 1) * sizeof *all);
    uint32_t n = 0;
    mf_status status = all ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a pattern");
    for (uint32_t i = 0; all && i < l->n_cuts; i++)
        if (to[l->class[i]]) all[n++] = (cut_target){to[l->class[i]], i};
    if (n > 1) qsort(all, n, sizeof *all, by_target);
    for (uint32_t i = 0, end; status == MF_OK && i < n; i = end) {
        mf__uset set = {0};
        for (end = i; status == MF_OK && end < n && all[end].to == all[i].to; end++) {
            uint32_t cut = all[end].cut, lo = l->cuts[cut] ? l->cuts[cut] : 1;
            uint32_t hi = cut + 1 < l->n_cuts ? l->cuts[cut + 1] - 1 : MF__UNICODE_END - 1;
            if (lo <= hi) status = mf__uset_add(&set, lo, hi, err);
        }
        if (status == MF_OK && set.n) status = fn(user, all[i].to, &set);
        mf__uset_free(&set);
    }
    free(all);
    return status;
}

typedef struct filling {
    mf__nfa *n;
    nfa_form form;
    const uint32_t *state; /* of the automaton, per state of the set; MF__NEVER: none */
    uint32_t from;
} filling;

static mf_status fill_target(void *user, uint32_t to, mf__uset *set) {
    const filling *f = user;
    return f->state[to] == MF__NEVER ? MF_OK : mf__nfa_chars(f->n, f->from, set, f->form, f->state[to]);
}

/* States that lead to the end; the others get none in the automaton. */
static void find_useful(const mf__lang *l, uint32_t *state) {
    for (uint32_t s = 0; s < l->n_states; s++) state[s] = l->label[s] ? 0 : MF__NEVER;
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t s = l->n_states; s-- > 1;)
            for (uint32_t k = 0; state[s] == MF__NEVER && k < l->n_classes; k++)
                if (state[l->to[s * l->n_classes + k]] == 0) state[s] = 0, changed = true;
    }
    state[0] = MF__NEVER;
}

mf_status mf__lang_fill(mf__nfa *n, const mf__lang *l, nfa_form form, bool counted, uint32_t from, uint32_t to) {
    uint32_t *state = malloc(((size_t)l->n_states + 1) * sizeof *state);
    mf_status status = state ? MF_OK : mf__fail(n->err, MF_E_NOMEM, "no memory for a pattern");
    if (state) find_useful(l, state);
    for (uint32_t s = 1; status == MF_OK && s < l->n_states; s++) {
        if (state[s] == MF__NEVER) continue;
        status = mf__nfa_state(n, &state[s]);
        if (status == MF_OK && counted) n->states[state[s]].mark = MF__MARK_COUNT;
    }
    for (uint32_t s = 1; status == MF_OK && s < l->n_states; s++) {
        if (state[s] == MF__NEVER) continue;
        filling f = {n, form, state, state[s]};
        status = mf__lang_targets(l, s, fill_target, &f, n->err);
        if (status == MF_OK && l->label[s]) status = mf__nfa_empty(n, state[s], to);
    }
    if (status == MF_OK && state[l->start] != MF__NEVER) status = mf__nfa_empty(n, from, state[l->start]);
    free(state);
    return status;
}
