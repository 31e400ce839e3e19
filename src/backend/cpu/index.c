/* Picking the cached rows that attention is to see; ref/index.c has the formulas.
 *
 * Rows of a segment are taken a few at a time. Their scores with some thousand keys are computed by tiles of keys,
 * which threads share out, and then every list takes what is better than what it has: what is needed does not grow with
 * the length. A score has one order of additions, whatever is beside it. */
#include <float.h>
#include <math.h>

#include "backend/cpu/cpu.h"
#include "backend/picks.h"

#define WAVE 16
#define ROUND 2048 /* keys, about */

typedef struct picker {
    const mf__cpu_run *r;
    const mf__op_params *p;
    const mf__segment *seg;
    int32_t lists;        /* of a row */
    int32_t first_row, n; /* the wave's rows in the segment */
    int64_t first_key, n_keys;
    float *scores; /* [n][lists][round] */
    float *best;   /* [n][lists][top_k] */
    int32_t *n_best;
    char *threads; /* keys [MF_CPU_KEYS][dim], products [n * heads][MF_CPU_KEYS] */
    int64_t thread_bytes;
} picker;

/* Keys of a round: whole blocks. */
static int64_t round_keys(const mf__op *op) {
    int64_t block = op->p.index.block;
    return block >= ROUND ? block : ROUND / block * block;
}

static int64_t thread_bytes(const mf__op *op) {
    return mf__cpu_round((int64_t)MF_CPU_KEYS * op->p.index.dim * 4) +
           mf__cpu_round((int64_t)WAVE * op->p.index.n_heads * MF_CPU_KEYS * 4);
}

static int32_t lists_of(const mf__op *op) {
    return op->in[1] < 0 ? op->p.index.n_heads : 1;
}

int64_t mf__cpu_index_scratch(int threads, const mf__op *op) {
    int64_t lists = (int64_t)WAVE * lists_of(op);
    return threads * thread_bytes(op) + mf__cpu_round(lists * round_keys(op) * 4) +
           mf__cpu_round(lists * op->p.index.top_k * 4) + mf__cpu_round(lists * 4);
}

static int64_t step_of(const picker *k) {
    return k->p->index.step ? k->p->index.step : 1;
}

/* Keys that row i of the wave sees. */
static int64_t keys_of(const picker *k, int64_t i) {
    return (k->seg->pos + k->first_row + i + 1) / step_of(k);
}

/* Items are tiles of the round's keys. */
static void score_tiles(void *ctx, int64_t begin, int64_t end, int thread) {
    const picker *k = ctx;
    const mf__kv *kv = &k->seg->state->kv;
    int32_t heads = k->p->index.n_heads, dim = k->p->index.dim;
    int64_t row0 = k->seg->row0 + k->first_row, round = round_keys(k->r->op);
    const float *q = mf__cpu_in(k->r, 0) + row0 * heads * dim, *a = mf__cpu_in(k->r, 1);
    mf__cpu_bump bump = {k->threads + thread * k->thread_bytes, k->thread_bytes};
    float *keys = mf__cpu_take(&bump, (int64_t)MF_CPU_KEYS * dim * 4);
    float *y = mf__cpu_take(&bump, (int64_t)WAVE * heads * MF_CPU_KEYS * 4);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t first = tile * MF_CPU_KEYS, left = k->n_keys - first;
        int32_t n = left < MF_CPU_KEYS ? (int32_t)left : MF_CPU_KEYS;
        for (int32_t i = 0; i < n; i++)
            k->r->k->kv_decode(kv->type, mf__kv_v(kv, (k->first_key + first + i) * step_of(k)), kv->v_cols,
                               k->p->index.at, dim, keys + (int64_t)i * dim);
        k->r->k->cross(&(mf__cpu_cross){keys, dim, n, q, dim, k->n * heads, dim, y, MF_CPU_KEYS});
        for (int64_t t = 0; t < k->n; t++)
            for (int32_t i = 0; i < n; i++) {
                const float *of_row = y + t * heads * MF_CPU_KEYS + i;
                float sum = 0;
                for (int32_t h = 0; a && h < heads; h++)
                    sum += a[(row0 + t) * heads + h] * fmaxf(of_row[h * MF_CPU_KEYS], 0);
                if (a) k->scores[t * round + first + i] = sum;
                for (int32_t h = 0; !a && h < heads; h++)
                    k->scores[(t * heads + h) * round + first + i] = of_row[h * MF_CPU_KEYS];
            }
    }
}

static mf__best best_of(const picker *k, int64_t list) {
    int32_t top_k = k->p->index.top_k;
    int32_t *ids = k->r->b->bufs[k->r->op->out[0]];
    return (mf__best){.score = k->best + list * top_k,
                      .id = ids + ((k->seg->row0 + k->first_row) * (int64_t)k->lists + list) * top_k,
                      .n = k->n_best[list],
                      .max = top_k};
}

/* Items are lists. */
static void take_best(void *ctx, int64_t begin, int64_t end, int thread) {
    const picker *k = ctx;
    int64_t block = k->p->index.block, round = round_keys(k->r->op);
    (void)thread;
    for (int64_t list = begin; list < end; list++) {
        mf__best best = best_of(k, list);
        int64_t n = keys_of(k, list / k->lists), own = (n - 1) / block, stop = k->first_key + k->n_keys;
        if (own < best.max) continue; /* sees all of them */
        if (stop > n) stop = n;
        for (int64_t b = k->first_key / block; b * block < stop; b++) {
            float most = own - b < k->p->index.local ? INFINITY : -FLT_MAX;
            for (int64_t j = b * block; j < (b + 1) * block && j < stop; j++) {
                float s = k->scores[list * round + j - k->first_key];
                if (s > most) most = s;
            }
            mf__best_add(&best, most, (int32_t)b);
        }
        k->n_best[list] = best.n;
    }
}

static void finish_lists(void *ctx, int64_t begin, int64_t end, int thread) {
    const picker *k = ctx;
    (void)thread;
    for (int64_t list = begin; list < end; list++) {
        mf__best best = best_of(k, list);
        int64_t n = keys_of(k, list / k->lists), own = (n - 1) / k->p->index.block;
        if (own < best.max)
            mf__picks_all(best.id, best.max, n ? own + 1 : 0);
        else
            mf__best_finish(&best);
    }
}

static void run_wave(picker *k) {
    int64_t stop = keys_of(k, k->n - 1), round = round_keys(k->r->op), lists = (int64_t)k->n * k->lists;
    bool any = (stop - 1) / k->p->index.block >= k->p->index.top_k;
    for (int64_t i = 0; i < lists; i++) k->n_best[i] = 0;
    for (k->first_key = 0; any && k->first_key < stop; k->first_key += round) {
        k->n_keys = stop - k->first_key < round ? stop - k->first_key : round;
        mf__pool_run(k->r->pool, score_tiles, k, (k->n_keys + MF_CPU_KEYS - 1) / MF_CPU_KEYS);
        mf__pool_run(lists < 2 ? NULL : k->r->pool, take_best, k, lists);
    }
    mf__pool_run(lists < 2 ? NULL : k->r->pool, finish_lists, k, lists);
}

mf_status mf__cpu_index(mf__cpu_run *r, mf_error *err) {
    int64_t lists = (int64_t)WAVE * lists_of(r->op);
    picker k = {.r = r, .p = &r->op->p, .lists = lists_of(r->op), .thread_bytes = thread_bytes(r->op)};
    k.threads = mf__cpu_take(&r->scratch, mf__pool_threads(r->pool) * k.thread_bytes);
    k.scores = mf__cpu_take(&r->scratch, lists * round_keys(r->op) * 4);
    k.best = mf__cpu_take(&r->scratch, lists * r->op->p.index.top_k * 4);
    k.n_best = mf__cpu_take(&r->scratch, lists * 4);
    if (!k.threads || !k.scores || !k.best || !k.n_best)
        return mf__fail(err, MF_E_INTERNAL, "no scratch for the index in graph %s", r->g->name);
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        k.seg = &r->b->segs[s];
        for (k.first_row = 0; k.first_row < k.seg->n_rows; k.first_row += WAVE) {
            k.n = k.seg->n_rows - k.first_row < WAVE ? k.seg->n_rows - k.first_row : WAVE;
            run_wave(&k);
        }
    }
    return MF_OK;
}
