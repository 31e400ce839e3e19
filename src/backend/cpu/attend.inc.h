/* Attention over a tile of keys, and products of rows. A template, part of rowwise.inc.h.
 *
 * Queries lie in lanes, or, where they are few, in rows. The order of additions is the same: a score adds up columns in
 * order, the weights of a tile's keys are added up by halves, values in the order of the keys. Keys that a query does
 * not see weigh nothing, and adding nothing changes no bit. */

/* ---- queries in lanes -------------------------------------------------------------------------------------------- */

INLINE void scores_of(const float *q, const float *k, int64_t stride, int32_t dim, int n, vf *out) {
    vf acc[TILE];
    for (int r = 0; r < n; r++) acc[r] = (vf){0};
    for (int32_t c = 0; c < dim; c++) {
        vf v = load_f(q + (int64_t)c * WIDTH);
        for (int r = 0; r < n; r++) acc[r] = fma_of(v, splat(k[r * stride + c]), acc[r]);
    }
    for (int r = 0; r < n; r++) out[r] = acc[r];
}

INLINE void add_values(float *o, const vf *p, const float *v, int64_t stride, int32_t n_keys, int n, vf shrink) {
    vf acc[TILE];
    for (int r = 0; r < n; r++) acc[r] = load_f(o + r * WIDTH) * shrink;
    for (int32_t i = 0; i < n_keys; i++)
        for (int r = 0; r < n; r++) acc[r] = fma_of(p[i], splat(v[i * stride + r]), acc[r]);
    for (int r = 0; r < n; r++) store_f(o + r * WIDTH, acc[r]);
}

/* -1 in the lanes that may see key i of the block. */
INLINE vi visible(const mf__cpu_queries *q, int64_t key) {
    vi mask;
    for (int j = 0; j < WIDTH; j++) mask[j] = key >= q->first[j] && key <= q->last[j] ? -1 : 0;
    return mask;
}

/* e is not needed afterwards. */
INLINE vf sum_by_halves(vf *e) {
    for (int half = MF_CPU_KEYS / 2; half; half /= 2)
        for (int i = 0; i < half; i++) e[i] += e[i + half];
    return e[0];
}

static void SET(attend)(mf__cpu_queries *q, const mf__cpu_keys *keys) {
    const vf none = splat(-1e30f);
    const float *k = keys->k, *v = keys->v;
    vf p[MF_CPU_KEYS], sums[MF_CPU_KEYS], old = load_f(q->max), max = old;
    int32_t i = 0;
    for (; i + TILE <= keys->n; i += TILE)
        scores_of(q->q, k + i * keys->k_stride, keys->k_stride, keys->k_dim, TILE, p + i);
    for (; i < keys->n; i++) scores_of(q->q, k + i * keys->k_stride, keys->k_stride, keys->k_dim, 1, p + i);

    bool whole = true; /* every lane sees every key */
    for (int j = 0; j < WIDTH; j++)
        whole = whole && q->first[j] <= keys->first && q->last[j] >= keys->first + keys->n - 1;
    if (!whole)
        for (i = 0; i < keys->n; i++) {
            vi mask = visible(q, keys->first + i);
            p[i] = (vf)(((vi)p[i] & mask) | ((vi)none & ~mask));
        }
    for (i = 0; i < keys->n; i++) max = max_of(max, p[i]);
    vf shrink = exp_of(old - max);
    for (i = 0; i < MF_CPU_KEYS; i++) {
        vf e = {0};
        if (i < keys->n) e = exp_of(p[i] - max);
        if (i < keys->n && !whole) e = (vf)((vi)e & visible(q, keys->first + i));
        p[i] = sums[i] = e;
    }
    store_f(q->max, max);
    store_f(q->total, fma_of(load_f(q->total), shrink, sum_by_halves(sums)));
    int32_t c = 0;
    for (; c + TILE <= keys->v_dim; c += TILE)
        add_values(q->o + (int64_t)c * WIDTH, p, v + c, keys->v_stride, keys->n, TILE, shrink);
    for (; c < keys->v_dim; c++) add_values(q->o + (int64_t)c * WIDTH, p, v + c, keys->v_stride, keys->n, 1, shrink);
}

/* ---- queries in rows --------------------------------------------------------------------------------------------- */

#define QUERIES 8 /* at most */
#define VECTORS 4 /* of values whose sums stay in registers; two with QUERIES queries */

/* Values from `at` on of an array of f32 or F16, of which n are left. */
INLINE vf load_kept(const void *p, int64_t at, int64_t n, bool f16) {
    if (!f16) return load_some((const float *)p + at, n);
    if (n >= WIDTH) return load_f16((const uint16_t *)p + at);
    uint16_t some[WIDTH] = {0};
    memcpy(some, (const uint16_t *)p + at, (size_t)n * sizeof *some);
    return load_f16(some);
}

INLINE void prefetch_row(const void *p, int64_t at, int32_t n, bool f16) {
    const char *row = (const char *)p + at * (f16 ? 2 : 4), *end = row + (int64_t)n * (f16 ? 2 : 4);
    for (; row < end; row += MF_CPU_LINE) __builtin_prefetch(row, 0, 2);
}

/* Scores of n_q queries with all keys of the tile, WIDTH of them at a time turned into the lanes. Values are prefetched
 * meanwhile. */
INLINE void score_keys(const mf__cpu_queries *q, const mf__cpu_keys *keys, int n_q, bool f16, float *p) {
    int32_t dim = keys->k_dim, next = 0, steps = (keys->n + WIDTH - 1) / WIDTH * ((dim + WIDTH - 1) / WIDTH), step = 0;
    for (int32_t first = 0; first < keys->n; first += WIDTH) {
        vf acc[QUERIES];
        for (int j = 0; j < n_q; j++) acc[j] = (vf){0};
        for (int32_t c = 0; c < dim; c += WIDTH) {
            vi k[WIDTH];
            for (int i = 0; i < WIDTH; i++) {
                int32_t key = first + i < keys->n ? first + i : keys->n - 1;
                k[i] = (vi)load_kept(keys->k, key * keys->k_stride + c, dim - c, f16);
            }
            for (step++; keys->in_place && next < keys->n * step / steps; next++)
                prefetch_row(keys->v, next * keys->v_stride, keys->v_dim, f16);
            transpose(k);
            if (c + WIDTH <= dim)
                for (int i = 0; i < WIDTH; i++)
                    for (int j = 0; j < n_q; j++)
                        acc[j] = fma_of(splat(q->q[(int64_t)j * dim + c + i]), (vf)k[i], acc[j]);
            else
                for (int i = 0; i < dim - c; i++)
                    for (int j = 0; j < n_q; j++)
                        acc[j] = fma_of(splat(q->q[(int64_t)j * dim + c + i]), (vf)k[i], acc[j]);
        }
        for (int j = 0; j < n_q; j++) store_f(p + j * MF_CPU_KEYS + first, acc[j]);
    }
}

INLINE vi from_zero(void) {
    vi v = {0};
    for (int i = 0; i < WIDTH; i++) v[i] = i;
    return v;
}

/* The scores of query j become the weights of the keys it sees, and zeros; returns what older results shrink by. */
INLINE float weigh_keys(mf__cpu_queries *q, int j, const mf__cpu_keys *keys, float *p) {
    enum { N = MF_CPU_KEYS / WIDTH };
    int64_t last = q->last[j] - keys->first, first = q->first[j] - keys->first;
    int32_t from = first < 0 ? 0 : first > keys->n ? keys->n : (int32_t)first;
    int32_t to = last < 0 ? -1 : last >= keys->n ? keys->n - 1 : (int32_t)last;
    const vf none = splat(-1e30f);
    vf most = splat(q->max[j]), e[N];
    for (int i = 0; i < N; i++) {
        vi at = from_zero() + i * WIDTH, mask = (at >= from) & (at <= to);
        e[i] = (vf)(((vi)load_f(p + i * WIDTH) & mask) | ((vi)none & ~mask));
        most = max_of(most, e[i]);
    }
    float max = max_lanes(most), shrink = exp_of(splat(q->max[j] - max))[0];
    for (int i = 0; i < N; i++) {
        vi at = from_zero() + i * WIDTH, mask = (at >= from) & (at <= to);
        e[i] = (vf)((vi)exp_of(e[i] - max) & mask);
        store_f(p + i * WIDTH, e[i]);
    }
    for (int half = N / 2; half; half /= 2)
        for (int i = 0; i < half; i++) e[i] += e[i + half];
    q->max[j] = max;
    q->total[j] = fma_of(splat(q->total[j]), splat(shrink), splat(sum_lanes(e[0])))[0];
    return shrink;
}

/* o [n_q][v_dim] <- shrink o + p V, for n_vecs vectors of columns from c on; n columns are left. */
INLINE void mix_block(float *o, const float *p, const float *shrink, const mf__cpu_keys *keys, int32_t c, int32_t n,
                      int n_q, int n_vecs, bool f16) {
    vf acc[QUERIES][VECTORS];
    for (int j = 0; j < n_q; j++)
        for (int b = 0; b < n_vecs; b++)
            acc[j][b] = load_some(o + (int64_t)j * keys->v_dim + c + b * WIDTH, n - b * WIDTH) * shrink[j];
    for (int32_t i = 0; i < keys->n; i++) {
        vf v[VECTORS];
        for (int b = 0; b < n_vecs; b++)
            v[b] = load_kept(keys->v, i * keys->v_stride + c + b * WIDTH, n - b * WIDTH, f16);
        for (int j = 0; j < n_q; j++)
            for (int b = 0; b < n_vecs; b++) acc[j][b] = fma_of(v[b], splat(p[j * MF_CPU_KEYS + i]), acc[j][b]);
    }
    for (int j = 0; j < n_q; j++)
        for (int b = 0; b < n_vecs; b++)
            store_some(o + (int64_t)j * keys->v_dim + c + b * WIDTH, n - b * WIDTH, acc[j][b]);
}

/* All columns for n_q queries. The keys of the next tile are prefetched meanwhile. */
INLINE void mix_values(mf__cpu_queries *q, const float *p, const float *shrink, const mf__cpu_keys *keys, int n_q,
                       bool f16) {
    const int n_vecs = n_q == QUERIES ? VECTORS / 2 : VECTORS;
    int32_t c = 0, next = 0;
    for (; c + n_vecs * WIDTH <= keys->v_dim; c += n_vecs * WIDTH) {
        for (; next < keys->n_next * (c + n_vecs * WIDTH) / keys->v_dim; next++)
            prefetch_row(keys->k, (keys->n + next) * keys->k_stride, keys->k_dim, f16);
        mix_block(q->o, p, shrink, keys, c, n_vecs * WIDTH, n_q, n_vecs, f16);
    }
    for (; c < keys->v_dim; c += WIDTH) mix_block(q->o, p, shrink, keys, c, keys->v_dim - c, n_q, 1, f16);
}

INLINE void attend_rows(mf__cpu_queries *q, int n, int n_q, const mf__cpu_keys *keys, bool f16) {
    float p[QUERIES * MF_CPU_KEYS], shrink[QUERIES];
    if (keys->n < MF_CPU_KEYS) memset(p, 0, sizeof p);
    score_keys(q, keys, n_q, f16, p);
    for (int j = 0; j < n; j++) shrink[j] = weigh_keys(q, j, keys, p + j * MF_CPU_KEYS);
    for (int j = n; j < n_q; j++) shrink[j] = 0;
    mix_values(q, p, shrink, keys, n_q, f16);
}

/* n queries, as if they were 1, 2, 4 or 8: behind them there are zeros. */
#define ATTEND_ROWS(f16)                                                                                               \
    if (n > 4 && WIDTH >= 16)                                                                                          \
        attend_rows(q, n, 8, keys, f16);                                                                               \
    else if (n > 2 && WIDTH >= 8)                                                                                      \
        attend_rows(q, n, 4, keys, f16);                                                                               \
    else if (n > 1)                                                                                                    \
        attend_rows(q, n, 2, keys, f16);                                                                               \
    else                                                                                                               \
        attend_rows(q, n, 1, keys, f16)

static void SET(attend_few)(mf__cpu_queries *q, int n, const mf__cpu_keys *keys) {
    if (keys->f16) {
        ATTEND_ROWS(true);
    } else {
        ATTEND_ROWS(false);
    }
}

/* ---- parts of the keys ------------------------------------------------------------------------------------------- */

/* What was found in other keys, added to q; both are relative to their own maximum. few: queries in rows, or 0. */
static void SET(merge)(mf__cpu_queries *q, const mf__cpu_queries *other, int few, int32_t v_dim) {
    vf mine = load_f(q->max), theirs = load_f(other->max), max = max_of(mine, theirs);
    mine = exp_of(mine - max), theirs = exp_of(theirs - max);
    store_f(q->max, max);
    store_f(q->total, fma_of(load_f(other->total), theirs, load_f(q->total) * mine));
    for (int32_t c = 0; !few && c < v_dim; c++) {
        float *o = q->o + (int64_t)c * WIDTH;
        store_f(o, fma_of(load_f(other->o + (int64_t)c * WIDTH), theirs, load_f(o) * mine));
    }
    for (int j = 0; j < few; j++)
        for (int32_t c = 0; c < v_dim; c += WIDTH) {
            float *o = q->o + (int64_t)j * v_dim + c;
            const float *from = other->o + (int64_t)j * v_dim + c;
            store_some(o, v_dim - c,
                       fma_of(load_some(from, v_dim - c), splat(theirs[j]), load_some(o, v_dim - c) * splat(mine[j])));
        }
}

/* ---- products of rows -------------------------------------------------------------------------------------------- */

#define CROSS 4 /* rows of each side whose products are summed at the same time */

/* A vector of columns, of which n are left. */
INLINE void cross_columns(const mf__cpu_cross *c, const float *w, int n_w, const float *x, int n_x, int64_t n,
                          vf sum[CROSS][CROSS]) {
    vf v[CROSS];
    for (int b = 0; b < n_x; b++) v[b] = load_some(x + b * c->x_stride, n);
    for (int a = 0; a < n_w; a++) {
        vf u = load_some(w + a * c->w_stride, n);
        for (int b = 0; b < n_x; b++) sum[a][b] = fma_of(u, v[b], sum[a][b]);
    }
}

INLINE void cross_block(const mf__cpu_cross *c, int32_t i, int n_w, int32_t j, int n_x) {
    const float *w = c->w + i * c->w_stride, *x = c->x + j * c->x_stride;
    vf sum[CROSS][CROSS];
    for (int a = 0; a < n_w; a++)
        for (int b = 0; b < n_x; b++) sum[a][b] = (vf){0};
    int64_t at = 0;
    for (; at + WIDTH <= c->cols; at += WIDTH) cross_columns(c, w + at, n_w, x + at, n_x, WIDTH, sum);
    if (at < c->cols) cross_columns(c, w + at, n_w, x + at, n_x, c->cols - at, sum);
    for (int a = 0; a < n_w; a++)
        for (int b = 0; b < n_x; b++) c->y[(j + b) * c->y_stride + i + a] = sum_lanes(sum[a][b]);
}

static void SET(cross)(const mf__cpu_cross *c) {
    for (int32_t j = 0; j < c->n;) {
        int32_t i = 0, n_x = c->n - j < CROSS ? 1 : CROSS;
        if (n_x == CROSS) {
            for (; i + CROSS <= c->n_rows; i += CROSS) cross_block(c, i, CROSS, j, CROSS);
            for (; i < c->n_rows; i++) cross_block(c, i, 1, j, CROSS);
        } else {
            for (; i + CROSS <= c->n_rows; i += CROSS) cross_block(c, i, CROSS, j, 1);
            for (; i < c->n_rows; i++) cross_block(c, i, 1, j, 1);
        }
        j += n_x;
    }
}

#define MIXED (WIDTH >= 16 ? 8 : 4) /* rows of y, each with MIXED_VECTORS vectors whose sums stay in registers */
#define MIXED_VECTORS 2

/* n rows of y from j on, n_vecs vectors of columns from `at` on, of which there are `left`. */
INLINE void mix_some(const mf__cpu_cross *c, int32_t j, int n, int64_t at, int n_vecs, int64_t left) {
    const float *w = c->w + at, *x = c->x + j * c->x_stride;
    float *y = c->y + j * c->y_stride + at;
    vf sum[MIXED][MIXED_VECTORS];
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n_vecs; b++) sum[a][b] = load_some(y + a * c->y_stride + b * WIDTH, left - b * WIDTH);
    for (int32_t i = 0; i < c->n_rows; i++, w += c->w_stride) {
        vf v[MIXED_VECTORS];
        for (int b = 0; b < n_vecs; b++) v[b] = load_some(w + b * WIDTH, left - b * WIDTH);
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n_vecs; b++) sum[a][b] = fma_of(splat(x[a * c->x_stride + i]), v[b], sum[a][b]);
    }
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n_vecs; b++) store_some(y + a * c->y_stride + b * WIDTH, left - b * WIDTH, sum[a][b]);
}

static void SET(mix_rows)(const mf__cpu_cross *c) {
    enum { ALL = MIXED_VECTORS * WIDTH };
    for (int32_t j = 0; j < c->n;) {
        int n = c->n - j < MIXED ? 1 : MIXED;
        int64_t at = 0;
        for (; at + ALL <= c->cols; at += ALL)
            if (n == MIXED)
                mix_some(c, j, MIXED, at, MIXED_VECTORS, ALL);
            else
                mix_some(c, j, 1, at, MIXED_VECTORS, ALL);
        for (; at < c->cols; at += WIDTH)
            for (int i = 0; i < n; i++) mix_some(c, j + i, 1, at, 1, c->cols - at);
        j += n;
    }
}
