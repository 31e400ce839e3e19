/* Tiles of c: TILE rows by one vector of columns, over BLOCK values of k at a time, for which the columns of b are put
 * side by side first. */
#include "quant/dense.h"

#include <math.h>
#include <string.h>

#define LANES MF_DENSE_LANES
#define TILE 6
#define BLOCK 256
#define INLINE static inline __attribute__((always_inline))

/* Vectors never go through calls by value: their width may be more than the machine has. */
typedef float lanes __attribute__((vector_size(4 * LANES)));

/* ---- products ---- */

INLINE void tile(const mf__product *p, int64_t i, int64_t k, int64_t n_k, int rows, const lanes *b, float *c) {
    lanes sum[TILE] = {{0}};
    const float *a = p->a + i * p->a_i + k * p->a_k;
    for (int64_t t = 0; t < n_k; t++, a += p->a_k) {
        lanes v = b[t];
        for (int r = 0; r < rows; r++) sum[r] += a[r * p->a_i] * v;
    }
    for (int r = 0; r < rows; r++, c += p->c_i) {
        lanes v;
        memcpy(&v, c, sizeof v);
        v = p->subtract ? v - sum[r] : v + sum[r];
        memcpy(c, &v, sizeof v);
    }
}

INLINE void product_rows(const mf__product *p, int64_t begin, int64_t end) {
    lanes b[BLOCK];
    for (int64_t j = 0; j < p->n; j += LANES)
        for (int64_t k = 0; k < p->k; k += BLOCK) {
            int64_t n_k = p->k - k < BLOCK ? p->k - k : BLOCK;
            int64_t stop = p->upper && j + LANES < end ? j + LANES : end;
            if (begin >= stop) continue;
            for (int64_t t = 0; t < n_k; t++) memcpy(&b[t], p->b + (k + t) * p->b_k + j, sizeof b[t]);
            int64_t i = begin;
            for (; i + TILE <= stop; i += TILE) tile(p, i, k, n_k, TILE, b, p->c + i * p->c_i + j);
            for (; i < stop; i++) tile(p, i, k, n_k, 1, b, p->c + i * p->c_i + j);
        }
}

static void product_plain(const mf__product *p, int64_t begin, int64_t end) {
    product_rows(p, begin, end);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void product_avx2(const mf__product *p, int64_t begin, int64_t end) {
    product_rows(p, begin, end);
}

__attribute__((target("avx512f"))) static void product_avx512(const mf__product *p, int64_t begin, int64_t end) {
    product_rows(p, begin, end);
}
#endif

static void product_some(const mf__product *p, int64_t begin, int64_t end) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        product_avx512(p, begin, end);
    else if (__builtin_cpu_supports("avx2"))
        product_avx2(p, begin, end);
    else
#endif
        product_plain(p, begin, end);
}

/* Of a triangle the first rows are the longest: each thread takes a piece from the front and its mirror image. */
static void product_region(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__product *p = ctx;
    int64_t half = (p->m + 1) / 2;
    (void)thread;
    if (!p->upper) {
        product_some(p, begin, end);
        return;
    }
    product_some(p, begin, end);
    int64_t from = p->m - end < half ? half : p->m - end, to = p->m - begin;
    product_some(p, from, to);
}

void mf__product_run(const mf__product *p, mf__pool *pool) {
    mf__product copy = *p;
    mf__pool_run(pool, product_region, &copy, p->upper ? (p->m + 1) / 2 : p->m);
}

/* ---- the factor ---- */

/* The same for a block on the diagonal, from its last column to the first. */
static bool factor_block(float *h, int64_t stride, int n) {
    for (int j = n - 1; j >= 0; j--) {
        double d = h[j * stride + j];
        for (int k = j + 1; k < n; k++) d -= (double)h[j * stride + k] * h[j * stride + k];
        if (!(d > 0) || !isfinite(d)) return false;
        d = sqrt(d);
        h[j * stride + j] = (float)d;
        for (int i = 0; i < j; i++) {
            double v = h[i * stride + j];
            for (int k = j + 1; k < n; k++) v -= (double)h[i * stride + k] * h[j * stride + k];
            h[i * stride + j] = (float)(v / d);
        }
    }
    return true;
}

/* What is above the block at (first, first): its columns, as rows of `panel` [width][first]. */
static void factor_above(float *h, int64_t n, int64_t first, int width, float *panel) {
    const float *block = h + first * n + first;
    for (int64_t i = 0; i < first; i++)
        for (int j = 0; j < width; j++) panel[j * first + i] = h[i * n + first + j];
    for (int j = width - 1; j >= 0; j--) {
        float *to = panel + j * first, one = 1.0f / block[j * n + j];
        for (int k = j + 1; k < width; k++) {
            float f = block[j * n + k];
            const float *from = panel + k * first;
            for (int64_t i = 0; i < first; i++) to[i] -= f * from[i];
        }
        for (int64_t i = 0; i < first; i++) to[i] *= one;
    }
    for (int64_t i = 0; i < first; i++)
        for (int j = 0; j < width; j++) h[i * n + first + j] = panel[j * first + i];
}

bool mf__factor_upper(float *h, int64_t n, float *scratch, mf__pool *pool) {
    int width = n % 64 ? 32 : 64;
    for (int64_t first = n - width; first >= 0; first -= width) {
        if (!factor_block(h + first * n + first, n, width)) return false;
        if (!first) break;
        factor_above(h, n, first, width, scratch);
        mf__product rest = {.m = first,
                            .n = first,
                            .k = width,
                            .a = scratch,
                            .a_i = 1,
                            .a_k = first,
                            .b = scratch,
                            .b_k = first,
                            .c = h,
                            .c_i = n,
                            .subtract = true,
                            .upper = true};
        mf__product_run(&rest, pool);
    }
    return true;
}

typedef struct solving {
    const float *m;
    int64_t n;
    float *x;
} solving;

/* x M^-T from the last column on, then M^-1 from the first: rows of M are read along in both. */
static void solve_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const solving *s = ctx;
    int64_t n = s->n;
    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        float *x = s->x + row * n;
        for (int64_t j = n - 1; j >= 0; j--) {
            const float *m = s->m + j * n;
            float part[8] = {0}, sum = 0;
            int64_t k = j + 1;
            for (; k + 8 <= n; k += 8)
                for (int i = 0; i < 8; i++) part[i] += x[k + i] * m[k + i];
            for (; k < n; k++) sum += x[k] * m[k];
            for (int i = 0; i < 8; i++) sum += part[i];
            x[j] = (x[j] - sum) / m[j];
        }
        for (int64_t j = 0; j < n; j++) {
            const float *m = s->m + j * n;
            float v = x[j] /= m[j];
            for (int64_t k = j + 1; k < n; k++) x[k] -= v * m[k];
        }
    }
}

void mf__factor_solve(const float *factor, int64_t n, float *x, int64_t m, mf__pool *pool) {
    solving s = {factor, n, x};
    mf__pool_run(pool, solve_rows, &s, m);
}
