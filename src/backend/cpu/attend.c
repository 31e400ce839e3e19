/* Softmax attention over cached rows.
 *
 * Queries that share a kv head lie in the lanes of a vector: consecutive tokens of a sequence, and the heads of the
 * group. Queries that would leave half of the lanes empty lie in rows instead. An item of work is one kv head and a run
 * of tokens; its keys are walked once, in tiles, for all the vectors of queries of the item, each with its running
 * maximum and sum. Keys after the last query's position are never touched.
 *
 * One order of additions: keys are cut into tiles and parts at places that depend on their positions alone, every part
 * begins anew, and parts are merged in order. What a query is beside changes no bit, nor does the number of threads.
 *
 * Where there are few items (a single token), parts are items of their own and merged at the end, in rounds, so that
 * their results need a bounded memory. */
#include <string.h>

#include "backend/cpu/cpu.h"

#define ENOUGH_ITEMS 32
#define PART_KEYS 256 /* a multiple of MF_CPU_KEYS */

/* The items of one sequence. */
typedef struct walk {
    const mf__cpu_seq *seq;
    int64_t n_vectors;     /* per kv head: vector v has head part v % head_parts of token run v / head_parts */
    int64_t n_items;       /* for all kv heads */
    int64_t first_item;    /* number of the first one, of all sequences' */
    int64_t part, n_parts; /* the first part that is seen, and how many there are */
    int few;               /* queries of the only vector, which lie in rows; 0: in lanes */
} walk;

/* Tokens in one vector of queries, and heads of each: all heads of a group when they fit, else a part of them. */
typedef struct shape {
    int32_t heads, tokens;
    int32_t head_parts; /* vectors that the heads of one kv head need */
} shape;

typedef struct plan {
    const mf__cpu_attend *a;
    shape shape;
    walk *walks; /* [n_seqs] */
    mf__cpu_job *jobs;
    int64_t n_items; /* of all sequences */
    char *threads;   /* each thread's tile, queries and results */
    int64_t thread_bytes;
    /* parts as items */
    char *totals, *results;     /* of each item [n_items], and of its parts of a round [n_items][round_parts] */
    int64_t round, round_parts; /* first part of the round, counted from each sequence's first */
} plan;

/* One vector: queries of `tokens` rows from row on, `heads` heads from head on; lane = token * heads + head. */
typedef struct lane_map {
    int64_t row;
    int32_t tokens, head, heads;
} lane_map;

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static int64_t query_bytes(const mf__cpu_kernels *k, const mf__cpu_attend *a) {
    return mf__cpu_round((int64_t)a->k_dim * k->lanes * 4);
}

static int64_t result_bytes(const mf__cpu_kernels *k, const mf__cpu_attend *a) {
    return mf__cpu_round((int64_t)a->v_dim * k->lanes * 4) + 2 * mf__cpu_round(k->lanes * 4);
}

static int64_t thread_bytes(const mf__cpu_kernels *k, const mf__cpu_attend *a) {
    return mf__cpu_round(a->tile_floats * 4) + a->item_vectors * (query_bytes(k, a) + 2 * result_bytes(k, a));
}

int64_t mf__cpu_attend_bytes(const mf__cpu_kernels *k, int threads, const mf__cpu_attend *a, int32_t n_rows) {
    int64_t parts = a->n_kv_heads < ENOUGH_ITEMS ? 2 * ENOUGH_ITEMS * a->item_vectors * result_bytes(k, a) : 0;
    return threads * thread_bytes(k, a) + parts + mf__cpu_round(n_rows * (int64_t)sizeof(walk)) +
           mf__cpu_round(n_rows * (int64_t)sizeof(mf__cpu_job));
}

static void take_results(const mf__cpu_attend *a, mf__cpu_bump *bump, mf__cpu_queries *q) {
    for (int i = 0; i < a->item_vectors; i++) {
        q[i].o = mf__cpu_take(bump, (int64_t)a->v_dim * a->r->k->lanes * 4);
        q[i].max = mf__cpu_take(bump, a->r->k->lanes * 4);
        q[i].total = mf__cpu_take(bump, a->r->k->lanes * 4);
    }
}

/* Results number i of those at mem. */
static void results_at(const mf__cpu_attend *a, char *mem, int64_t i, mf__cpu_queries *q) {
    int64_t bytes = a->item_vectors * result_bytes(a->r->k, a);
    mf__cpu_bump bump = {mem + i * bytes, bytes};
    take_results(a, &bump, q);
}

/* ---- queries ----------------------------------------------------------------------------------------------------- */

static shape shape_of(const mf__cpu_attend *a) {
    int32_t group = a->n_heads / a->n_kv_heads, lanes = a->r->k->lanes;
    shape s = {.heads = group < lanes ? group : lanes};
    s.tokens = lanes / s.heads;
    s.head_parts = (group + s.heads - 1) / s.heads;
    return s;
}

/* The vectors of an item; returns how many. */
static int map_item(const plan *p, const walk *w, int64_t item, int32_t *kv_head, lane_map *maps) {
    const mf__cpu_attend *a = p->a;
    int32_t group = a->n_heads / a->n_kv_heads;
    int64_t first = item / a->n_kv_heads * a->item_vectors;
    int n = (int)(w->n_vectors - first < a->item_vectors ? w->n_vectors - first : a->item_vectors);
    *kv_head = (int32_t)(item % a->n_kv_heads);
    for (int i = 0; i < n; i++) {
        int64_t v = first + i, token = v / p->shape.head_parts * p->shape.tokens, left = w->seq->n_rows - token;
        int32_t part = (int32_t)(v % p->shape.head_parts) * p->shape.heads;
        maps[i].row = token;
        maps[i].tokens = (int32_t)(left < p->shape.tokens ? left : p->shape.tokens);
        maps[i].head = *kv_head * group + part;
        maps[i].heads = group - part < p->shape.heads ? group - part : p->shape.heads;
    }
    return n;
}

/* Which of all queries lane j is. */
static int64_t query_index(const mf__cpu_attend *a, const lane_map *m, int lane) {
    return (m->row + lane / m->heads) * a->n_heads + m->head + lane % m->heads;
}

/* Queries in rows, and zeros behind them up to a number that attend_few takes. */
static void load_rows(const mf__cpu_attend *a, const walk *w, const lane_map *m, float *q) {
    int32_t rows = 1;
    while (rows < w->few) rows *= 2;
    for (int32_t j = 0; j < w->few; j++, q += a->k_dim) {
        const float *from = w->seq->q + query_index(a, m, j) * a->k_dim;
        for (int32_t c = 0; c < a->k_dim; c++) q[c] = from[c] * a->scale;
    }
    memset(q, 0, (size_t)(rows - w->few) * (size_t)a->k_dim * sizeof *q);
}

static void load_queries(const mf__cpu_attend *a, const walk *w, const lane_map *m, mf__cpu_queries *q) {
    int32_t lanes = a->r->k->lanes, used = m->tokens * m->heads;
    for (int32_t j = 0; j < lanes; j++) {
        q->last[j] = j < used ? w->seq->pos + m->row + j / m->heads : -1;
        q->first[j] = mf__window_first(a->window, a->chunked, q->last[j]);
    }
    if (w->few) {
        load_rows(a, w, m, q->q);
        return;
    }
    for (int32_t j = 0; j < lanes; j++) {
        const float *from = j < used ? w->seq->q + query_index(a, m, j) * a->k_dim : NULL;
        for (int32_t c = 0; c < a->k_dim; c++) q->q[(int64_t)c * lanes + j] = from ? from[c] * a->scale : 0;
    }
}

/* Nothing is seen yet; a sink is a logit that is there from the start, without a value. */
static void clear_results(const mf__cpu_attend *a, const lane_map *m, const float *sinks, mf__cpu_queries *q) {
    int32_t lanes = a->r->k->lanes, used = m->tokens * m->heads;
    for (int32_t j = 0; j < lanes; j++) {
        q->max[j] = sinks && j < used ? sinks[m->head + j % m->heads] : -1e30f;
        q->total[j] = sinks && j < used ? 1 : 0;
    }
    memset(q->o, 0, (size_t)a->v_dim * (size_t)lanes * sizeof *q->o);
}

static void store_results(const mf__cpu_attend *a, const walk *w, const lane_map *m, const mf__cpu_queries *q) {
    for (int32_t j = 0; j < m->tokens * m->heads; j++) {
        float *to = w->seq->o + query_index(a, m, j) * a->v_dim, inverse = 1.0f / q->total[j];
        const float *from = w->few ? q->o + (int64_t)j * a->v_dim : q->o + j;
        int32_t step = w->few ? 1 : a->r->k->lanes;
        for (int32_t c = 0; c < a->v_dim; c++) to[c] = from[(int64_t)c * step] * inverse;
    }
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

/* The keys that some lane of a vector sees. */
static void key_range(const mf__cpu_queries *q, int lanes, int64_t *first, int64_t *last) {
    *first = q->first[0], *last = q->last[0];
    for (int j = 1; j < lanes; j++) {
        if (q->last[j] < 0) continue;
        if (q->first[j] < *first) *first = q->first[j];
        if (q->last[j] > *last) *last = q->last[j];
    }
}

/* Where the tile of a key begins: tiles are counted from the start of its KV block or of its part. */
static int64_t tile_start(int64_t key, int64_t part_start, int32_t block_rows) {
    int64_t block_start = key - key % block_rows, base = block_start > part_start ? block_start : part_start;
    return key - (key - base) % MF_CPU_KEYS;
}

/* Walks the keys of a part for n vectors of queries. */
static void walk_part(const mf__cpu_attend *a, const walk *w, int64_t part, int32_t kv_head, int thread, float *mem,
                      mf__cpu_queries *q, int n) {
    int64_t first[MF_CPU_MAX_VECTORS], last[MF_CPU_MAX_VECTORS], begin = part * PART_KEYS, at = INT64_MAX, stop = 0;
    for (int i = 0; i < n; i++) {
        key_range(&q[i], a->r->k->lanes, &first[i], &last[i]);
        if (first[i] < at) at = first[i];
        if (last[i] >= stop) stop = last[i] + 1;
    }
    if (at < begin) at = begin;
    if (stop > begin + PART_KEYS) stop = begin + PART_KEYS;
    if (at < stop) at = tile_start(at, begin, w->seq->kv->block_rows);
    while (at < stop) {
        int64_t left = stop - at, in_block = w->seq->kv->block_rows - at % w->seq->kv->block_rows;
        mf__cpu_keys keys = {.first = at, .n = MF_CPU_KEYS, .k_dim = a->k_dim, .v_dim = a->v_dim, .few = w->few};
        if (keys.n > left) keys.n = (int32_t)left;
        if (keys.n > in_block) keys.n = (int32_t)in_block;
        a->tile(a, w->seq, kv_head, thread, mem, &keys);
        if (w->few)
            a->r->k->attend_few(q, w->few, &keys);
        else
            for (int i = 0; i < n; i++)
                if (at <= last[i] && at + keys.n > first[i]) a->r->k->attend(&q[i], &keys);
        at += keys.n;
    }
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

/* Late tokens see more keys than early ones: items from both ends in turn make equal shares. */
static int64_t in_turn(const walk *w, int64_t i) {
    return i % 2 ? w->n_items - 1 - i / 2 : i / 2;
}

static float *thread_memory(const plan *p, int thread, mf__cpu_queries *q, mf__cpu_queries *part) {
    const mf__cpu_attend *a = p->a;
    mf__cpu_bump bump = {p->threads + thread * p->thread_bytes, p->thread_bytes};
    float *mem = mf__cpu_take(&bump, a->tile_floats * 4);
    for (int i = 0; i < a->item_vectors; i++) q[i].q = mf__cpu_take(&bump, (int64_t)a->k_dim * a->r->k->lanes * 4);
    take_results(a, &bump, q);
    take_results(a, &bump, part);
    return mem;
}

/* Items of sequence s, all parts of each. The first part's results need no merging, unless there are sinks before it.
 */
static void attend_items(void *ctx, int s, int64_t begin, int64_t end, int thread) {
    const plan *p = ctx;
    const mf__cpu_attend *a = p->a;
    const walk *w = &p->walks[s];
    mf__cpu_queries q[MF_CPU_MAX_VECTORS], part[MF_CPU_MAX_VECTORS];
    lane_map maps[MF_CPU_MAX_VECTORS];
    float *mem = thread_memory(p, thread, q, part);
    for (int64_t i = begin; i < end; i++) {
        int32_t kv_head;
        int n = map_item(p, w, in_turn(w, i), &kv_head, maps);
        for (int v = 0; v < n; v++) {
            load_queries(a, w, &maps[v], &q[v]);
            clear_results(a, &maps[v], a->sinks, &q[v]);
            mf__cpu_queries results = part[v];
            part[v] = q[v];
            part[v].o = results.o, part[v].max = results.max, part[v].total = results.total;
        }
        int64_t last = (q[n - 1].last[0] + maps[n - 1].tokens - 1) / PART_KEYS;
        for (int64_t k = q[0].first[0] / PART_KEYS, first = a->sinks ? -1 : k; k <= last; k++) {
            for (int v = 0; v < n && k != first; v++) clear_results(a, &maps[v], NULL, &part[v]);
            walk_part(a, w, k, kv_head, thread, mem, k == first ? q : part, n);
            for (int v = 0; v < n && k != first; v++) a->r->k->merge(&q[v], &part[v], w->few, a->v_dim);
        }
        for (int v = 0; v < n; v++) store_results(a, w, &maps[v], &q[v]);
    }
}

/* Parts of the items of sequence s, in a round: in order, so that a thread's keys lie together. */
static void attend_parts(void *ctx, int s, int64_t begin, int64_t end, int thread) {
    const plan *p = ctx;
    const mf__cpu_attend *a = p->a;
    const walk *w = &p->walks[s];
    mf__cpu_queries q[MF_CPU_MAX_VECTORS], part[MF_CPU_MAX_VECTORS];
    lane_map maps[MF_CPU_MAX_VECTORS];
    float *mem = thread_memory(p, thread, q, part);
    for (int64_t i = begin; i < end; i++) {
        int64_t item = i % w->n_items, k = i / w->n_items;
        int32_t kv_head;
        int n = map_item(p, w, item, &kv_head, maps);
        results_at(a, p->results, (w->first_item + item) * p->round_parts + k, q);
        for (int v = 0; v < n; v++) {
            load_queries(a, w, &maps[v], &q[v]);
            clear_results(a, &maps[v], NULL, &q[v]);
        }
        walk_part(a, w, w->part + p->round + k, kv_head, thread, mem, q, n);
    }
}

/* Adds up the parts of a round, and stores the results after the last one. */
static void merge_items(void *ctx, int s, int64_t begin, int64_t end, int thread) {
    const plan *p = ctx;
    const mf__cpu_attend *a = p->a;
    const walk *w = &p->walks[s];
    mf__cpu_queries q[MF_CPU_MAX_VECTORS], part[MF_CPU_MAX_VECTORS];
    lane_map maps[MF_CPU_MAX_VECTORS];
    (void)thread;
    for (int64_t item = begin; item < end; item++) {
        int32_t kv_head;
        int n = map_item(p, w, item, &kv_head, maps);
        results_at(a, p->totals, w->first_item + item, q);
        for (int v = 0; v < n && p->round == 0; v++) clear_results(a, &maps[v], a->sinks, &q[v]);
        for (int64_t k = 0; k < p->round_parts && p->round + k < w->n_parts; k++) {
            results_at(a, p->results, (w->first_item + item) * p->round_parts + k, part);
            for (int v = 0; v < n; v++) a->r->k->merge(&q[v], &part[v], w->few, a->v_dim);
        }
        for (int v = 0; v < n && p->round + p->round_parts >= w->n_parts; v++) store_results(a, w, &maps[v], &q[v]);
    }
}

/* ---- all sequences ----------------------------------------------------------------------------------------------- */

static walk walk_of(const plan *p, const mf__cpu_seq *seq) {
    const mf__cpu_attend *a = p->a;
    walk w = {.seq = seq, .first_item = p->n_items};
    w.n_vectors = (int64_t)((seq->n_rows + p->shape.tokens - 1) / p->shape.tokens) * p->shape.head_parts;
    int32_t queries = seq->n_rows * (a->n_heads / a->n_kv_heads);
    if (2 * queries <= a->r->k->lanes) w.few = queries;
    w.n_items = (w.n_vectors + a->item_vectors - 1) / a->item_vectors * a->n_kv_heads;
    w.part = mf__window_first(a->window, a->chunked, seq->pos) / PART_KEYS;
    w.n_parts = (seq->pos + seq->n_rows - 1) / PART_KEYS - w.part + 1;
    return w;
}

static mf_status attend_in_rounds(plan *p, mf__cpu_bump scratch, int64_t n_parts, mf_error *err) {
    const mf__cpu_attend *a = p->a;
    int64_t bytes = a->item_vectors * result_bytes(a->r->k, a);
    p->round_parts = ENOUGH_ITEMS / p->n_items;
    p->totals = mf__cpu_take(&scratch, p->n_items * bytes);
    p->results = mf__cpu_take(&scratch, p->n_items * p->round_parts * bytes);
    if (!p->totals || !p->results)
        return mf__fail(err, MF_E_INTERNAL, "no scratch for attention in graph %s", a->r->g->name);
    for (; p->round < n_parts; p->round += p->round_parts) {
        for (int32_t s = 0; s < a->n_seqs; s++) {
            int64_t left = p->walks[s].n_parts - p->round;
            if (left < 0) left = 0;
            p->jobs[s] = (mf__cpu_job){
                .n_blocks = p->walks[s].n_items * (left < p->round_parts ? left : p->round_parts), .cost = 1};
        }
        mf__cpu_share(a->r->pool, p->jobs, a->n_seqs, attend_parts, p);
        for (int32_t s = 0; s < a->n_seqs; s++)
            p->jobs[s] = (mf__cpu_job){.n_blocks = p->round < p->walks[s].n_parts ? p->walks[s].n_items : 0, .cost = 1};
        mf__cpu_share(a->r->pool, p->jobs, a->n_seqs, merge_items, p);
    }
    return MF_OK;
}

mf_status mf__cpu_attend_rows(const mf__cpu_attend *a, mf__cpu_bump scratch, mf_error *err) {
    const mf__cpu_run *r = a->r;
    plan p = {.a = a, .shape = shape_of(a), .thread_bytes = thread_bytes(r->k, a)};
    int64_t most = 0;
    p.threads = mf__cpu_take(&scratch, mf__pool_threads(r->pool) * p.thread_bytes);
    p.walks = mf__cpu_take(&scratch, a->n_seqs * (int64_t)sizeof *p.walks);
    p.jobs = mf__cpu_take(&scratch, a->n_seqs * (int64_t)sizeof *p.jobs);
    if (!p.threads || !p.walks || !p.jobs)
        return mf__fail(err, MF_E_INTERNAL, "no scratch for attention in graph %s", r->g->name);
    for (int32_t s = 0; s < a->n_seqs; s++) {
        walk *w = &p.walks[s];
        *w = walk_of(&p, &a->seqs[s]);
        p.n_items += w->n_items;
        p.jobs[s] = (mf__cpu_job){.n_blocks = w->n_items, .cost = w->n_parts};
        if (w->n_parts > most) most = w->n_parts;
    }
    if (most > 1 && 2 * p.n_items <= ENOUGH_ITEMS) return attend_in_rounds(&p, scratch, most, err);
    mf__cpu_share(r->pool, p.jobs, a->n_seqs, attend_items, &p);
    return MF_OK;
}
