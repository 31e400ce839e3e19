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
    mf__best best = {.score = mem + p->index.dim, .id = ids, .max = p->index.top_k};
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
        mf__best_add(&best, most, (int32_t)b);
    }
    mf__best_finish(&best);
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
