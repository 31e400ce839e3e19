/* Scores of an index: a tile of keys in the lanes, heads of a query one after the other. A template, part of
 * rowwise.inc.h.
 *
 * A product adds up columns in order, a score adds up heads in order: what is beside a key or a query changes no bit.
 */

#define INDEX_HEADS (WIDTH >= 16 ? 8 : 4) /* whose sums stay in registers, */
#define INDEX_VECTORS 2                   /* each with so many vectors of keys */

/* n heads from h on, with the keys from `at` on; sums: of the scores so far. */
INLINE void score_heads(const mf__cpu_index_tile *t, int32_t h, int n, int32_t at, vf *sums) {
    const float *q = t->q + (int64_t)h * t->dim, *k = t->keys + at;
    vf acc[INDEX_HEADS][INDEX_VECTORS];
    for (int j = 0; j < n; j++)
        for (int b = 0; b < INDEX_VECTORS; b++) acc[j][b] = (vf){0};
    for (int32_t c = 0; c < t->dim; c++, k += MF_CPU_KEYS) {
        vf key[INDEX_VECTORS];
        for (int b = 0; b < INDEX_VECTORS; b++) key[b] = load_f(k + b * WIDTH);
        for (int j = 0; j < n; j++) {
            vf v = splat(q[(int64_t)j * t->dim + c]);
            for (int b = 0; b < INDEX_VECTORS; b++) acc[j][b] = fma_of(v, key[b], acc[j][b]);
        }
    }
    for (int j = 0; j < n; j++)
        for (int b = 0; b < INDEX_VECTORS; b++) {
            vf y = acc[j][b];
            if (t->a)
                sums[b] = fma_of(splat(t->a[h + j]), (vf)((vi)y & (vi)(y > 0)), sums[b]);
            else
                store_f(t->out + (h + j) * t->stride + at + b * WIDTH, y);
        }
}

static void SET(index_scores)(const mf__cpu_index_tile *t) {
    for (int32_t at = 0; at < MF_CPU_KEYS; at += INDEX_VECTORS * WIDTH) {
        vf sums[INDEX_VECTORS] = {{0}};
        int32_t h = 0;
        for (; h + INDEX_HEADS <= t->n_heads; h += INDEX_HEADS) score_heads(t, h, INDEX_HEADS, at, sums);
        for (; h + INDEX_HEADS / 2 <= t->n_heads; h += INDEX_HEADS / 2) score_heads(t, h, INDEX_HEADS / 2, at, sums);
        for (; h < t->n_heads; h++) score_heads(t, h, 1, at, sums);
        for (int b = 0; t->a && b < INDEX_VECTORS; b++) store_f(t->out + at + b * WIDTH, sums[b]);
    }
}

/* rows [n][dim] -> out [dim][MF_CPU_KEYS], zeros behind the last row */
static void SET(keys_to_lanes)(const float *rows, int32_t n, int32_t dim, float *out) {
    for (int32_t first = 0; first < MF_CPU_KEYS; first += WIDTH)
        for (int32_t c = 0; c < dim; c += WIDTH) {
            vi m[WIDTH];
            for (int i = 0; i < WIDTH; i++)
                m[i] = first + i < n ? (vi)load_some(rows + (int64_t)(first + i) * dim + c, dim - c) : (vi){0};
            transpose(m);
            for (int i = 0; i < WIDTH && c + i < dim; i++)
                store_f(out + (int64_t)(c + i) * MF_CPU_KEYS + first, (vf)m[i]);
        }
}
