/* Trying a grammar without a tokenizer: is a text accepted, and what would one be like? */
#include "text/grammar/machine.h"

#define MAX_EXAMPLE 400 /* bytes after which an example takes the shortest way to its end */

mf_status mf__grammar_accepts(const mf__grammar *g, const char *text, size_t size, bool *accepted, size_t *at,
                              mf_error *err) {
    mf__machine m;
    mf__place here, next;
    *accepted = false;
    *at = 0;
    mf_status status = mf__machine_init(&m, g, err);
    if (status == MF_OK) status = mf__machine_start(&m, &here, err);
    while (status == MF_OK && *at < size) {
        status = mf__machine_step(&m, &here, (uint8_t)text[*at], &next, err);
        if (status != MF_OK || !mf__place_alive(&next)) break;
        status = mf__machine_keep(&m, &next, err);
        here = next;
        ++*at;
    }
    if (status == MF_OK) *accepted = *at == size && here.complete;
    mf__machine_deinit(&m);
    return status;
}

static uint64_t next_random(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    return *x ^= *x << 17;
}

/* A byte of an edge, ASCII letters and digits first. */
static uint8_t some_byte(const mf__byte_edge *e, uint64_t *seed) {
    for (int i = 0; i < 4; i++) {
        uint8_t b = (uint8_t)(e->lo + next_random(seed) % (uint64_t)(e->hi - e->lo + 1));
        if ((b >= '0' && b <= '9') || (b >= 'a' && b <= 'z') || i == 3) return b;
    }
    return e->lo;
}

/* The byte that leads nearest to the end. */
static mf_status nearest_step(mf__machine *m, const mf__place *here, uint8_t *byte, mf_error *err) {
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < here->n; i++) {
        const mf__state *s = &m->g->states[m->items[here->first + i].state];
        for (uint32_t k = 0; k < s->n_edges; k++) {
            uint8_t b = m->g->edges[s->edges + k].lo;
            mf__place to;
            MF__TRY(mf__machine_step(m, here, b, &to, err));
            uint64_t d = mf__place_alive(&to) ? mf__machine_distance(m, &to) : UINT64_MAX;
            mf__machine_cut(m, here);
            if (d < best) best = d, *byte = b;
        }
    }
    return best == UINT64_MAX ? mf__fail(err, MF_E_INTERNAL, "the grammar came to a dead end") : MF_OK;
}

/* A random byte that may follow: of a random edge, or the next one that leads somewhere. */
static mf_status some_step(mf__machine *m, const mf__place *here, uint64_t *seed, uint8_t *byte, mf_error *err) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < here->n; i++) n += m->g->states[m->items[here->first + i].state].n_edges;
    uint64_t skip = n ? next_random(seed) % n : 0;
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < here->n; i++) {
            const mf__state *s = &m->g->states[m->items[here->first + i].state];
            for (uint32_t k = 0; k < s->n_edges; k++) {
                mf__place to;
                if (skip) {
                    skip--;
                    continue;
                }
                *byte = some_byte(&m->g->edges[s->edges + k], seed);
                MF__TRY(mf__machine_step(m, here, *byte, &to, err));
                bool alive = mf__place_alive(&to);
                mf__machine_cut(m, here);
                if (alive) return MF_OK;
            }
        }
    return mf__fail(err, MF_E_INTERNAL, "the grammar came to a dead end");
}

mf_status mf__grammar_example(const mf__grammar *g, uint64_t seed, mf__strbuf *out, mf_error *err) {
    mf__machine m;
    mf__place here, next;
    uint64_t x = seed * 0x9E3779B97F4A7C15u + 0xD6E8FEB86659FD93u;
    mf_status status = mf__machine_init(&m, g, err);
    size_t start = out->size, limit = 20 + (size_t)(next_random(&x) % MAX_EXAMPLE);
    if (status == MF_OK) status = mf__machine_start(&m, &here, err);
    while (status == MF_OK && here.n) {
        bool hurry = out->size - start > limit;
        uint8_t byte = 0;
        if (here.complete && (hurry || next_random(&x) % 4 == 0)) break;
        status = hurry ? nearest_step(&m, &here, &byte, err) : some_step(&m, &here, &x, &byte, err);
        if (status == MF_OK) status = mf__strbuf_append(out, &byte, 1, err);
        if (status == MF_OK) status = mf__machine_step(&m, &here, byte, &next, err);
        if (status == MF_OK) status = mf__machine_keep(&m, &next, err);
        here = next;
    }
    mf__machine_deinit(&m);
    return status;
}
