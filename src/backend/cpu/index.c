/* Picking the cached rows that attention is to see; ref/index.c has the formulas.
 *
 * Rows of a segment are taken a few at a time. Their scores with some thousand keys are computed by tiles of keys,
 * which threads share out; then every list appends what is better than the worst it must keep, and drops all but the
 * best when it is full. What is needed does not grow with the length. A score has one order of additions, whatever is
 * beside it. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/picks.h"

#define WAVE 16
#define ROUND 2048 /* keys, about */
#define DIGIT_BITS 11

/* Candidates in the order of their ids: the best so far, and others that were better than `least` when they came. */
typedef struct list {
    float *score; /* [room] neither NaN nor -0 */
    int32_t *id;
    int32_t n;
    float least;
} list;

typedef struct picker {
    const mf__cpu_run *r;
    const mf__op_params *p;
    const mf__segment *seg;
    int32_t n_lists;      /* of a row */
    int32_t first_row, n; /* the wave's rows in the segment */
    int64_t first_key, n_keys;
    float *scores; /* [n][n_lists][stride] */
    int64_t stride;
    list *lists;   /* [n][n_lists] */
    char *threads; /* keys [MF_CPU_KEYS][dim], and the same in lanes */
    int64_t thread_bytes;
} picker;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Blocks of a round, which are whole. */
static int64_t round_blocks(const mf__op *op) {
    return op->p.index.block < ROUND ? ROUND / op->p.index.block : 1;
}

static int64_t round_keys(const mf__op *op) {
    return round_blocks(op) * op->p.index.block;
}

/* Tiles are written whole. */
static int64_t score_stride(const mf__op *op) {
    return (round_keys(op) + MF_CPU_KEYS - 1) / MF_CPU_KEYS * MF_CPU_KEYS;
}

/* Candidates of a list: a round must find room when the best are all that is left. */
static int64_t room(const mf__op *op) {
    return op->p.index.top_k + 2 * round_blocks(op);
}

static int64_t thread_bytes(const mf__op *op) {
    return 2 * mf__cpu_round((int64_t)MF_CPU_KEYS * op->p.index.dim * 4);
}

static int32_t lists_of(const mf__op *op) {
    return op->in[1] < 0 ? op->p.index.n_heads : 1;
}

int64_t mf__cpu_index_scratch(int threads, const mf__op *op) {
    int64_t lists = (int64_t)WAVE * lists_of(op);
    return threads * thread_bytes(op) + mf__cpu_round(lists * score_stride(op) * 4) +
           mf__cpu_round(lists * (int64_t)sizeof(list)) + 2 * mf__cpu_round(lists * room(op) * 4);
}

static bool take_memory(picker *k, mf__cpu_run *r) {
    int64_t lists = (int64_t)WAVE * k->n_lists, each = room(r->op);
    k->thread_bytes = thread_bytes(r->op);
    k->stride = score_stride(r->op);
    k->threads = mf__cpu_take(&r->scratch, mf__pool_threads(r->pool) * k->thread_bytes);
    k->scores = mf__cpu_take(&r->scratch, lists * k->stride * 4);
    k->lists = mf__cpu_take(&r->scratch, lists * (int64_t)sizeof(list));
    float *scores = mf__cpu_take(&r->scratch, lists * each * 4);
    int32_t *ids = mf__cpu_take(&r->scratch, lists * each * 4);
    if (!k->threads || !k->scores || !k->lists || !scores || !ids) return false;
    for (int64_t i = 0; i < lists; i++) k->lists[i] = (list){.score = scores + i * each, .id = ids + i * each};
    return true;
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

static int64_t step_of(const picker *k) {
    return k->p->index.step ? k->p->index.step : 1;
}

/* Keys that row i of the wave sees. */
static int64_t keys_of(const picker *k, int64_t i) {
    return (k->seg->pos + k->first_row + i + 1) / step_of(k);
}

/* Keys lie far apart, behind values that are not read here. */
static void fetch_key(const picker *k, int64_t key) {
    const mf__kv *kv = &k->seg->state->kv;
    int64_t size = kv->type == MF_TYPE_F32 ? 4 : kv->type == MF_TYPE_F16 ? 2 : 1;
    if (key >= k->first_key + k->n_keys) return;
    const char *at = (const char *)mf__kv_v(kv, key * step_of(k)) + k->p->index.at * size;
    for (int64_t i = 0; i < k->p->index.dim * size; i += MF_CPU_LINE) __builtin_prefetch(at + i);
}

/* Items are tiles of the round's keys. */
static void score_tiles(void *ctx, int64_t begin, int64_t end, int thread) {
    const picker *k = ctx;
    const mf__cpu_kernels *kernels = k->r->k;
    const mf__kv *kv = &k->seg->state->kv;
    int32_t heads = k->p->index.n_heads, dim = k->p->index.dim;
    int64_t row0 = k->seg->row0 + k->first_row;
    const float *q = mf__cpu_in(k->r, 0) + row0 * heads * dim, *a = mf__cpu_in(k->r, 1);
    mf__cpu_bump bump = {k->threads + thread * k->thread_bytes, k->thread_bytes};
    float *rows = mf__cpu_take(&bump, (int64_t)MF_CPU_KEYS * dim * 4);
    float *keys = mf__cpu_take(&bump, (int64_t)MF_CPU_KEYS * dim * 4);
    for (int64_t tile = begin; tile < end; tile++) {
        int64_t first = tile * MF_CPU_KEYS, left = k->n_keys - first;
        int32_t n = left < MF_CPU_KEYS ? (int32_t)left : MF_CPU_KEYS;
        for (int32_t i = 0; i < n; i++) {
            int64_t key = k->first_key + first + i;
            kernels->kv_decode(kv->type, mf__kv_v(kv, key * step_of(k)), kv->v_cols, k->p->index.at, dim,
                               rows + (int64_t)i * dim);
            fetch_key(k, key + MF_CPU_KEYS);
        }
        kernels->keys_to_lanes(rows, n, dim, keys);
        for (int64_t t = 0; t < k->n; t++)
            kernels->index_scores(&(mf__cpu_index_tile){.keys = keys,
                                                        .q = q + t * heads * dim,
                                                        .a = a ? a + (row0 + t) * heads : NULL,
                                                        .n_heads = heads,
                                                        .dim = dim,
                                                        .out = k->scores + t * k->n_lists * k->stride + first,
                                                        .stride = k->stride});
    }
}

/* ---- the best of them -------------------------------------------------------------------------------------------- */

/* In the order of the scores. */
static uint32_t rank_of(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits >> 31 ? ~bits : bits | 1u << 31;
}

static float score_of(uint32_t rank) {
    uint32_t bits = rank >> 31 ? rank & ~(1u << 31) : ~rank;
    float score;
    memcpy(&score, &bits, sizeof score);
    return score;
}

/* Drops all but the n best, of equals those with higher ids: finds the worst of these by its digits, highest first,
 * and how many of its equals belong to them. */
static void keep_best(list *l, int32_t n) {
    uint32_t counts[1 << DIGIT_BITS], worst = 0, left = (uint32_t)n;
    int32_t kept = 0;
    if (l->n <= n) return;
    for (int low = 32; low > 0;) {
        int bits = low < DIGIT_BITS ? low : DIGIT_BITS;
        uint32_t known = low < 32 ? UINT32_MAX << low : 0, digit = (1u << bits) - 1, mask = digit;
        low -= bits;
        memset(counts, 0, sizeof counts);
        for (int32_t i = 0; i < l->n; i++) {
            uint32_t rank = rank_of(l->score[i]);
            if ((rank & known) == worst) counts[rank >> low & mask]++;
        }
        for (; counts[digit] < left; digit--) left -= counts[digit];
        worst |= digit << low;
    }
    for (int32_t i = 0; i < l->n; i++) {
        uint32_t rank = rank_of(l->score[i]);
        if (rank < worst || (rank == worst && !left)) continue;
        left -= rank == worst;
        l->score[kept] = l->score[i], l->id[kept++] = l->id[i];
    }
    l->n = kept;
    l->least = score_of(worst);
}

/* What a block counts whose n rows have these scores. */
static inline float block_score(const float *scores, int64_t n, bool local) {
    float most = local ? INFINITY : -FLT_MAX;
    for (int64_t i = 0; i < n; i++) most = scores[i] > most ? scores[i] : most;
    return most + 0.0f; /* -0 becomes 0 */
}

/* Items are lists: the round's blocks. */
static void add_blocks(void *ctx, int64_t begin, int64_t end, int thread) {
    const picker *k = ctx;
    int64_t block = k->p->index.block, blocks = round_blocks(k->r->op), most = room(k->r->op);
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        list *l = &k->lists[i];
        const float *scores = k->scores + i * k->stride;
        int64_t n = keys_of(k, i / k->n_lists), own = (n - 1) / block, stop = k->first_key + k->n_keys;
        if (own < k->p->index.top_k) continue; /* sees all of them */
        if (l->n + blocks > most) keep_best(l, k->p->index.top_k);
        if (stop > n) stop = n;
        for (int64_t b = k->first_key / block, at = k->first_key; at < stop; b++, at += block, scores += block) {
            l->score[l->n] = block_score(scores, stop - at < block ? stop - at : block, own - b < k->p->index.local);
            l->id[l->n] = (int32_t)b;
            l->n += l->score[l->n] > l->least;
        }
    }
}

static void finish_lists(void *ctx, int64_t begin, int64_t end, int thread) {
    const picker *k = ctx;
    int32_t top_k = k->p->index.top_k;
    int32_t *ids = k->r->b->bufs[k->r->op->out[0]];
    (void)thread;
    ids += (k->seg->row0 + k->first_row) * (int64_t)k->n_lists * top_k;
    for (int64_t i = begin; i < end; i++) {
        int64_t n = keys_of(k, i / k->n_lists), own = (n - 1) / k->p->index.block;
        if (own < top_k) {
            mf__picks_all(ids + i * top_k, top_k, n ? own + 1 : 0);
            continue;
        }
        keep_best(&k->lists[i], top_k);
        memcpy(ids + i * top_k, k->lists[i].id, (size_t)top_k * sizeof *ids);
    }
}

/* ---- the op ------------------------------------------------------------------------------------------------------ */

static void run_wave(picker *k) {
    int64_t stop = keys_of(k, k->n - 1), round = round_keys(k->r->op), lists = (int64_t)k->n * k->n_lists;
    bool any = (stop - 1) / k->p->index.block >= k->p->index.top_k;
    for (int64_t i = 0; i < lists; i++) k->lists[i].n = 0, k->lists[i].least = -INFINITY;
    for (k->first_key = 0; any && k->first_key < stop; k->first_key += round) {
        k->n_keys = stop - k->first_key < round ? stop - k->first_key : round;
        mf__pool_run(k->r->pool, score_tiles, k, (k->n_keys + MF_CPU_KEYS - 1) / MF_CPU_KEYS);
        mf__pool_run(lists < 2 ? NULL : k->r->pool, add_blocks, k, lists);
    }
    mf__pool_run(lists < 2 ? NULL : k->r->pool, finish_lists, k, lists);
}

mf_status mf__cpu_index(mf__cpu_run *r, mf_error *err) {
    picker k = {.r = r, .p = &r->op->p, .n_lists = lists_of(r->op)};
    if (!take_memory(&k, r)) return mf__fail(err, MF_E_INTERNAL, "no scratch for the index in graph %s", r->g->name);
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        k.seg = &r->b->segs[s];
        for (k.first_row = 0; k.first_row < k.seg->n_rows; k.first_row += WAVE) {
            k.n = k.seg->n_rows - k.first_row < WAVE ? k.seg->n_rows - k.first_row : WAVE;
            run_wave(&k);
        }
    }
    return MF_OK;
}
