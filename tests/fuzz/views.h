/* What every catalogue must keep, whatever bytes it was made from: checked by reading all of it. */
#ifndef MF_FUZZ_VIEWS_H
#define MF_FUZZ_VIEWS_H

#include <stdlib.h>

#include "weights/catalog.h"

static void check_inside(const void *p, int64_t n, const uint8_t *data, size_t size) {
    const uint8_t *q = p;
    if (n != 0 && (n < 0 || q < data || (size_t)n > size || q > data + size - n)) abort();
}

/* Every entry lies in the file and is found by its name; the first and last row of every tensor are decoded, on a
 * buffer of exactly the row's length, for the sanitizer to watch. */
static void check_views(const mf__catalog *cat, const uint8_t *data, size_t size) {
    for (int64_t i = 0; i < mf__catalog_count(cat); i++) {
        const mf__entry *e = mf__catalog_at(cat, i);
        check_inside(e->data, e->size, data, size);
        if (mf__catalog_find(cat, e->name) != e) abort();
        mf__tensor t;
        mf_error err;
        if (mf__catalog_tensor(cat, e->name, 0, &t, &err) != MF_OK) continue;
        if (t.n_planes == 0 || t.n_rows == 0 || t.n_cols == 0) continue;
        float *row = malloc((size_t)t.n_cols * sizeof *row);
        if (!row) continue;
        mf__tensor last = mf__tensor_plane(&t, t.n_planes - 1);
        mf__tensor_row_f32(&t, 0, row);
        mf__tensor_row_f32(&last, t.n_rows - 1, row);
        free(row);
    }
}

#endif
