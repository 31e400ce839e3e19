/* Picking the cached rows that attention is to see, by keys of their own (an index).
 *
 * The index key of a cached row is kept behind its values: columns [at, at + dim) of the V row. Of query heads q_h,
 *   together   score_j = sum_h a_h relu(q_h . k_j)       one list for all
 *   apart      score_j = q_h . k_j                       a list for each head
 * Rows are picked in blocks: a block counts as much as the best of its rows that the query may see; the `local` newest
 * blocks are always picked. A factor that all scores have in common would change nothing, and is left out. */
#include <float.h>
#include <math.h>

#include "backend/picks.h"
#include "backend/ref/ref.h"

/* The max largest scores so far, as a heap with the worst of them at the root; of equal scores the lower id is better.
 */
typedef struct best_list {
    float *score; /* [max] */
    int32_t *id;
    int32_t n, max;
} best_list;

static bool best_less(const best_list *b, int32_t i, int32_t k) {
    return b->score[i] < b->score[k] || (b->score[i] == b->score[k] && b->id[i] > b->id[k]);
}

static void best_swap(best_list *b, int32_t i, int32_t k) {
    float score = b->score[i];
    int32_t id = b->id[i];
    b->score[i] = b->score[k], b->id[i] = b->id[k];
    b->score[k] = score, b->id[k] = id;
}

static void best_sink(best_list *b, int32_t at) {
    for (int32_t child = 2 * at + 1; child < b->n; at = child, child = 2 * at + 1) {
        if (child + 1 < b->n && best_less(b, child + 1, child)) child++;
        if (!best_less(b, child, at)) return;
        best_swap(b, child, at);
    }
}

/* Ids come in ascending order. */
static void best_add(best_list *b, float score, int32_t id) {
    if (b->n < b->max) {
        int32_t at = b->n++;
        b->score[at] = score, b->id[at] = id;
        for (; at > 0 && best_less(b, at, (at - 1) / 2); at = (at - 1) / 2) best_swap(b, at, (at - 1) / 2);
    } else if (score > b->score[0]) {
        b->score[0] = score, b->id[0] = id;
        best_sink(b, 0);
    }
}

/* The ids in ascending order, -1 behind them. The scores are not needed any more: ids take their place in the heap. */
static void best_finish(best_list *b) {
    int32_t n = b->n;
    for (int32_t i = 0; i < n; i++) b->score[i] = 0; /* of equals the higher id is worse: a heap of ids */
    for (int32_t i = n / 2 - 1; i >= 0; i--) best_sink(b, i);
    while (b->n > 1) { /* the highest id goes behind the others */
        best_swap(b, 0, --b->n);
        best_sink(b, 0);
    }
    b->n = n;
    for (int32_t i = n; i < b->max; i++) b->id[i] = -1;
}

static float dot(const float *a, const float *b, int32_t n) {
    float sum = 0;
    for (int32_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* q: all heads, or the one whose list it is */
static float score(const mf__op_params *p, const float *q, const float *a, const float *key) {
    if (!a) return dot(q, key, p->index.dim);
    float sum = 0;
    for (int32_t h = 0; h < p->index.n_heads; h++)
        sum += a[h] * fmaxf(dot(q + (int64_t)h * p->index.dim, key, p->index.dim), 0);
    return sum;
}

static void pick(const mf__kv *kv, const mf__op_params *p, const float *q, const float *a, int64_t pos, float *mem,
                 int32_t *ids) {
    int64_t step = p->index.step ? p->index.step : 1, n = (pos + 1) / step, own = (n - 1) / p->index.block;
    best_list best = {.score = mem + p->index.dim, .id = ids, .max = p->index.top_k};
    if (!n || own < best.max) {
        mf__picks_all(ids, best.max, n ? own + 1 : 0);
        return;
    }
    for (int64_t b = 0; b <= own; b++) {
        float most = own - b < p->index.local ? INFINITY : -FLT_MAX;
        for (int64_t j = b * p->index.block; j < (b + 1) * p->index.block && j < n; j++) {
            float s = score(p, q, a, mf__ref_v_row(kv, j * step, p->index.at, p->index.dim, mem));
            if (s > most) most = s;
        }
        best_add(&best, most, (int32_t)b);
    }
    best_finish(&best);
}

/* Items are lists: one for each row, or one for each of its heads. */
static void pick_lists(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    const float *q = mf__ref_in(r, 0), *a = mf__ref_in(r, 1);
    int32_t lists = a ? 1 : p->index.n_heads, *ids = r->b->bufs[r->op->out[0]], s = 0;
    int64_t q_cols = (int64_t)p->index.n_heads * p->index.dim;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / lists, list = i % lists;
        while (row >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        const mf__segment *seg = &r->b->segs[s];
        pick(&seg->state->kv, p, q + row * q_cols + list * p->index.dim, a ? a + row * p->index.n_heads : NULL,
             seg->pos + row - seg->row0, r->scratch + thread * r->scratch_floats, ids + i * p->index.top_k);
    }
}

void mf__ref_index(const mf__ref_run *r) {
    int32_t lists = r->op->in[1] < 0 ? r->op->p.index.n_heads : 1;
    mf__pool_run(r->pool, pick_lists, (void *)r, (int64_t)r->b->n_rows * lists);
}

int64_t mf__ref_index_scratch(const mf__op *op) {
    return op->p.index.dim + (int64_t)op->p.index.top_k;
}
