/* Softmax attention over cached rows.
 *
 * Queries that share a kv head lie in the lanes of a vector: consecutive tokens, and the heads of the group. An item of
 * work is one kv head and a run of tokens; its keys are walked once, in tiles, for all the vectors of queries of the
 * item, each with its running maximum and sum. Keys after the last query's position are never touched.
 *
 * Queries that would leave half of the lanes empty lie in rows instead, and sums run along them.
 *
 * Where that makes few items (a single token), the keys are cut into parts, each an item of its own, and the parts are
 * put together in order at the end. How many there are depends on the shape and on the number of keys, never on the
 * threads. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

#define ENOUGH_ITEMS 32
#define PART_KEYS 256 /* least keys of a part */

/* Tokens in one vector of queries, and heads of each: all heads of a group when they fit, else a part of them. */
typedef struct shape {
    int32_t heads, tokens;
    int32_t head_parts; /* vectors that the heads of one kv head need */
} shape;

typedef struct walk {
    const mf__cpu_attend *a;
    shape shape;
    int64_t n_vectors; /* per kv head: vector v has head part v % head_parts of token run v / head_parts */
    int64_t n_items;   /* of each part: for all kv heads */
    int64_t first_key, part_keys;
    int n_parts;
    int few;       /* queries of the only vector, which lie in rows; 0: in lanes */
    char *threads; /* each thread's tile, queries and, unless there are parts, results */
    int64_t thread_bytes;
    char *parts; /* [n_parts][n_items] results */
} walk;

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
    return mf__cpu_round(a->tile_floats * 4) + a->item_vectors * (query_bytes(k, a) + result_bytes(k, a));
}

int64_t mf__cpu_attend_bytes(const mf__cpu_kernels *k, int threads, const mf__cpu_attend *a) {
    int64_t parts = a->n_kv_heads <= ENOUGH_ITEMS / 2 ? ENOUGH_ITEMS * a->item_vectors * result_bytes(k, a) : 0;
    return threads * thread_bytes(k, a) + parts;
}

static void take_results(const mf__cpu_attend *a, mf__cpu_bump *bump, mf__cpu_queries *q) {
    q->o = mf__cpu_take(bump, (int64_t)a->v_dim * a->r->k->lanes * 4);
    q->max = mf__cpu_take(bump, a->r->k->lanes * 4);
    q->total = mf__cpu_take(bump, a->r->k->lanes * 4);
}

/* The results of item `item` of part `part`. */
static void part_results(const walk *w, int64_t item, int part, mf__cpu_queries *q) {
    int64_t bytes = w->a->item_vectors * result_bytes(w->a->r->k, w->a);
    mf__cpu_bump bump = {w->parts + (part * w->n_items + item) * bytes, bytes};
    for (int i = 0; i < w->a->item_vectors; i++) take_results(w->a, &bump, &q[i]);
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
static int map_item(const walk *w, int64_t item, int32_t *kv_head, lane_map *maps) {
    const mf__cpu_attend *a = w->a;
    int32_t group = a->n_heads / a->n_kv_heads;
    int64_t first = item / a->n_kv_heads * a->item_vectors;
    int n = (int)(w->n_vectors - first < a->item_vectors ? w->n_vectors - first : a->item_vectors);
    *kv_head = (int32_t)(item % a->n_kv_heads);
    for (int i = 0; i < n; i++) {
        int64_t v = first + i, token = v / w->shape.head_parts * w->shape.tokens;
        int32_t part = (int32_t)(v % w->shape.head_parts) * w->shape.heads;
        maps[i].row = token;
        maps[i].tokens = (int32_t)(a->n_rows - token < w->shape.tokens ? a->n_rows - token : w->shape.tokens);
        maps[i].head = *kv_head * group + part;
        maps[i].heads = group - part < w->shape.heads ? group - part : w->shape.heads;
    }
    return n;
}

/* Which of all queries lane j is. */
static int64_t query_index(const mf__cpu_attend *a, const lane_map *m, int lane) {
    return (m->row + lane / m->heads) * a->n_heads + m->head + lane % m->heads;
}

/* Where value c of query j is; a row has `dim` values. */
static int64_t place(const walk *w, int32_t dim, int j, int32_t c) {
    return w->few ? (int64_t)j * dim + c : (int64_t)c * w->a->r->k->lanes + j;
}

static void load_queries(const walk *w, const lane_map *m, bool with_sinks, mf__cpu_queries *q) {
    const mf__cpu_attend *a = w->a;
    int32_t lanes = a->r->k->lanes, used = m->tokens * m->heads;
    for (int32_t j = 0; j < lanes; j++) {
        q->last[j] = j < used ? a->pos + m->row + j / m->heads : -1;
        q->first[j] = a->window && q->last[j] >= a->window ? q->last[j] - a->window + 1 : 0;
        q->max[j] = -1e30f;
        q->total[j] = 0;
        if (with_sinks && j < used) { /* a logit that is there from the start, without a value */
            q->max[j] = a->sinks[m->head + j % m->heads];
            q->total[j] = 1;
        }
        const float *from = j < used ? a->q + query_index(a, m, j) * a->k_dim : NULL;
        for (int32_t c = 0; c < a->k_dim; c++) q->q[place(w, a->k_dim, j, c)] = from ? from[c] * a->scale : 0;
    }
    memset(q->o, 0, (size_t)a->v_dim * (size_t)lanes * sizeof *q->o);
}

static void store_queries(const walk *w, const lane_map *m, const mf__cpu_queries *q) {
    const mf__cpu_attend *a = w->a;
    for (int32_t j = 0; j < m->tokens * m->heads; j++) {
        float *to = a->o + query_index(a, m, j) * a->v_dim, inverse = 1.0f / q->total[j];
        for (int32_t c = 0; c < a->v_dim; c++) to[c] = q->o[place(w, a->v_dim, j, c)] * inverse;
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

/* Walks the keys of [begin, end) for n vectors of queries. A tile never crosses the end of a KV block. */
static void walk_keys(const walk *w, int64_t begin, int64_t end, int32_t kv_head, int thread, float *mem,
                      mf__cpu_queries *q, int n) {
    const mf__cpu_attend *a = w->a;
    int64_t first[MF_CPU_MAX_VECTORS], last[MF_CPU_MAX_VECTORS], at = INT64_MAX, stop = 0;
    for (int i = 0; i < n; i++) {
        key_range(&q[i], a->r->k->lanes, &first[i], &last[i]);
        if (first[i] < at) at = first[i];
        if (last[i] >= stop) stop = last[i] + 1;
    }
    if (at < begin) at = begin;
    if (stop > end) stop = end;
    while (at < stop) {
        int64_t left = stop - at, in_block = a->kv->block_rows - at % a->kv->block_rows;
        mf__cpu_keys keys = {.first = at, .n = MF_CPU_KEYS, .k_dim = a->k_dim, .v_dim = a->v_dim, .few = w->few};
        if (keys.n > left) keys.n = (int32_t)left;
        if (keys.n > in_block) keys.n = (int32_t)in_block;
        a->tile(a, kv_head, thread, mem, &keys);
        if (w->few)
            a->r->k->attend_few(q, w->few, &keys);
        else
            for (int i = 0; i < n; i++)
                if (at <= last[i] && at + keys.n > first[i]) a->r->k->attend(&q[i], &keys);
        at += keys.n;
    }
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

/* Late tokens see more keys than early ones: items from both ends in turn make equal shares. Parts are alike; in order,
 * a thread's keys lie together. */
static int64_t in_turn(const walk *w, int64_t i) {
    if (w->n_parts > 1) return i;
    return i % 2 ? w->n_items - 1 - i / 2 : i / 2;
}

static void attend_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const walk *w = ctx;
    const mf__cpu_attend *a = w->a;
    mf__cpu_queries q[MF_CPU_MAX_VECTORS];
    lane_map maps[MF_CPU_MAX_VECTORS];
    mf__cpu_bump bump = {w->threads + thread * w->thread_bytes, w->thread_bytes};
    float *mem = mf__cpu_take(&bump, a->tile_floats * 4);
    for (int i = 0; i < a->item_vectors; i++) {
        q[i].q = mf__cpu_take(&bump, (int64_t)a->k_dim * a->r->k->lanes * 4);
        take_results(a, &bump, &q[i]);
    }
    for (int64_t i = begin; i < end; i++) {
        int64_t index = in_turn(w, i), item = index % w->n_items;
        int part = (int)(index / w->n_items);
        int32_t kv_head;
        int n = map_item(w, item, &kv_head, maps);
        if (w->n_parts > 1) part_results(w, item, part, q);
        for (int v = 0; v < n; v++) load_queries(w, &maps[v], a->sinks && part == 0, &q[v]);
        int64_t from = w->first_key + part * w->part_keys, to = from + w->part_keys;
        walk_keys(w, from, w->n_parts > 1 ? to : INT64_MAX, kv_head, thread, mem, q, n);
        for (int v = 0; v < n && w->n_parts == 1; v++) store_queries(w, &maps[v], &q[v]);
    }
}

/* Adds what another part found to q; both are relative to their own maximum. */
static void merge(const walk *w, const mf__cpu_queries *other, mf__cpu_queries *q) {
    int32_t lanes = w->a->r->k->lanes;
    float mine[MF_CPU_MAX_LANES], theirs[MF_CPU_MAX_LANES];
    for (int j = 0; j < lanes; j++) {
        float max = q->max[j] > other->max[j] ? q->max[j] : other->max[j];
        mine[j] = expf(q->max[j] - max);
        theirs[j] = expf(other->max[j] - max);
        q->total[j] = q->total[j] * mine[j] + other->total[j] * theirs[j];
        q->max[j] = max;
    }
    for (int32_t c = 0; c < w->a->v_dim; c++)
        for (int j = 0; j < lanes; j++) {
            int64_t at = place(w, w->a->v_dim, j, c);
            q->o[at] = q->o[at] * mine[j] + other->o[at] * theirs[j];
        }
}

static void merge_items(void *ctx, int64_t begin, int64_t end, int thread) {
    const walk *w = ctx;
    mf__cpu_queries q[MF_CPU_MAX_VECTORS], other[MF_CPU_MAX_VECTORS];
    lane_map maps[MF_CPU_MAX_VECTORS];
    int32_t kv_head;
    (void)thread;
    for (int64_t item = begin; item < end; item++) {
        int n = map_item(w, item, &kv_head, maps);
        part_results(w, item, 0, q);
        for (int part = 1; part < w->n_parts; part++) {
            part_results(w, item, part, other);
            for (int v = 0; v < n; v++) merge(w, &other[v], &q[v]);
        }
        for (int v = 0; v < n; v++) store_queries(w, &maps[v], &q[v]);
    }
}

static void cut_keys(walk *w) {
    const mf__cpu_attend *a = w->a;
    w->first_key = a->window && a->pos >= a->window ? a->pos - a->window + 1 : 0;
    int64_t n_keys = a->pos + a->n_rows - w->first_key, parts = ENOUGH_ITEMS / w->n_items;
    if (parts > n_keys / PART_KEYS) parts = n_keys / PART_KEYS;
    if (parts < 1) parts = 1;
    w->part_keys = ((n_keys + parts - 1) / parts + MF_CPU_KEYS - 1) / MF_CPU_KEYS * MF_CPU_KEYS;
    w->n_parts = (int)((n_keys + w->part_keys - 1) / w->part_keys);
}

mf_status mf__cpu_attend_rows(const mf__cpu_attend *a, mf__cpu_bump scratch, mf_error *err) {
    const mf__cpu_run *r = a->r;
    walk w = {.a = a, .shape = shape_of(a), .thread_bytes = thread_bytes(r->k, a)};
    w.n_vectors = (int64_t)((a->n_rows + w.shape.tokens - 1) / w.shape.tokens) * w.shape.head_parts;
    int32_t queries = a->n_rows * (a->n_heads / a->n_kv_heads);
    if (2 * queries <= r->k->lanes) w.few = queries;
    w.n_items = (w.n_vectors + a->item_vectors - 1) / a->item_vectors * a->n_kv_heads;
    cut_keys(&w);
    w.threads = mf__cpu_take(&scratch, mf__pool_threads(r->pool) * w.thread_bytes);
    if (w.n_parts > 1)
        w.parts = mf__cpu_take(&scratch, w.n_parts * w.n_items * a->item_vectors * result_bytes(r->k, a));
    if (!w.threads || (w.n_parts > 1 && !w.parts))
        return mf__fail(err, MF_E_INTERNAL, "no scratch for attention in graph %s", r->g->name);
    mf__pool_run(r->pool, attend_items, &w, w.n_items * w.n_parts);
    if (w.n_parts > 1) mf__pool_run(r->pool, merge_items, &w, w.n_items);
    return MF_OK;
}
