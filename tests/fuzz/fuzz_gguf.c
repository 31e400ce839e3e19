/* The GGUF reader on arbitrary bytes: an error, or tensors that all lie inside the file and decode. */
#include "weights/gguf.h"

#include <stdlib.h>

#include "quant/gguf_types.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    mf__gguf g;
    mf_error err = {0};
    mf_status status = mf__gguf_parse("fuzz", data, size, &g, &err);
    if (status != MF_OK) {
        if (g.catalog || g.meta || err.status != status || !err.text[0]) abort();
        return 0;
    }
    for (int64_t i = 0; i < mf__catalog_count(g.catalog); i++) {
        const mf__entry *e = mf__catalog_at(g.catalog, i);
        mf__tensor t;
        if (e->data < data || e->data + e->size > data + size || mf__catalog_find(g.catalog, e->name) != e) abort();
        if (mf__catalog_tensor(g.catalog, e->name, 0, &t, NULL) != MF_OK) continue;
        if (mf__tensor_bytes(&t) > e->size) abort();
        float *row = malloc((size_t)t.n_cols * sizeof *row);
        if (row) mf__tensor_row_f32(&t, t.n_rows - 1, row);
        free(row);
    }
    mf__gguf_close(&g);
    return 0;
}
