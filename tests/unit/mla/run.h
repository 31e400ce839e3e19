/* Runs one graph through the reference backend. */
#ifndef MF_TESTS_MLA_RUN_H
#define MF_TESTS_MLA_RUN_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"

/* A matrix of floats as a tensor. */
static inline mf__tensor f32_matrix(const float *data, int64_t rows, int64_t cols) {
    return (mf__tensor){.type = MF_TYPE_F32, .n_planes = 1, .n_rows = rows, .n_cols = cols, .data = data};
}

/* Reproducible values in (-1, 1). */
static inline float noise(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 11) / (double)(1ull << 52) - 1.0);
}

static inline float *noise_array(uint64_t seed, int64_t n, float scale) {
    float *x = malloc((size_t)n * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) x[i] = scale * noise(&seed);
    return x;
}

/* Finishes g if need be and runs it with one thread or several. ports[p] is the memory of port p. */
static inline void run_graph(mf__graph *g, int32_t n_rows, void *const *ports, const mf__tensor *weights,
                             const mf__segment *segs, int32_t n_segs, int threads) {
    mf_error err = {0};
    mf__pool *pool;
    mf__backend *be;
    mf__fence fence;
    void *bufs[MF_MAX_BUFS], *scratch;
    if (!g->finished && mf__graph_finish(g, &err) != MF_OK) fail_msg("%s", err.text);
    assert_int_equal(mf__pool_create(threads, &pool, &err), MF_OK);
    assert_int_equal(mf__backend_ref_create(pool, &be, &err), MF_OK);
    assert_int_equal(be->alloc(be, mf__graph_scratch_bytes(g, n_rows) + 64, &scratch, &err), MF_OK);
    assert_int_equal(be->reserve(be, be->scratch(be, g, n_rows), &err), MF_OK);
    mf__graph_place(g, n_rows, scratch, bufs);
    for (int b = 0; b < g->n_bufs; b++)
        if (g->bufs[b].port != MF_PORT_NONE) bufs[b] = ports[g->bufs[b].port];
    mf__binding binding = {.n_rows = n_rows, .bufs = bufs, .weights = weights, .segs = segs, .n_segs = n_segs};
    if (be->submit(be, &(mf__run){g, binding}, 1, &fence, &err) != MF_OK) fail_msg("%s", err.text);
    assert_int_equal(be->wait(be, fence, &err), MF_OK);
    be->release(be, scratch);
    be->free(be);
    mf__pool_free(pool);
}

static inline double cosine(const float *a, const float *b, int64_t n) {
    double ab = 0, aa = 0, bb = 0;
    for (int64_t i = 0; i < n; i++) ab += (double)a[i] * b[i], aa += (double)a[i] * a[i], bb += (double)b[i] * b[i];
    return ab / sqrt(aa * bb);
}

#endif
