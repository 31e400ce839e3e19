/* The native manifest on arbitrary bytes, over a trunk of 4,096 bytes: an error, or tensors that lie inside the trunk
 * and an expert layout whose parts lie inside the expert. The record of a shard, too. */
#include "weights/native.h"

#include "views.h"

#define TRUNK 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Decodes the last row of each part of a blob of exactly the size the layout claims, when that is reasonable. */
static void check_experts(const mf__native *n) {
    if (mf__expert_layout_check(&n->layout, NULL) != MF_OK || n->n_experts < 1) abort();
    if (n->layout.bytes > 1 << 20) return;
    uint8_t *blob = calloc(1, (size_t)n->layout.bytes);
    if (!blob) return;
    for (int i = 0; i < MF_PART_COUNT; i++) {
        mf__tensor t = mf__expert_view(&n->layout, (mf__expert_part)i, blob);
        float *row = malloc((size_t)t.n_cols * sizeof *row);
        if (row) mf__tensor_row_f32(&t, t.n_rows - 1, row);
        free(row);
    }
    free(blob);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *trunk = calloc(1, TRUNK); /* on the heap: the sanitizer watches its ends */
    if (!trunk) return 0;
    mf__native n;
    mf_error err = {0};
    mf_status status = mf__manifest_parse("fuzz", (const char *)data, size, trunk, TRUNK, &n, &err);
    if (status == MF_OK) {
        check_views(n.catalog, trunk, TRUNK);
        if (n.has_layout) check_experts(&n);
    } else if (n.catalog || n.manifest || err.status != status || !err.text[0]) {
        abort();
    }
    mf__native_close(&n);
    mf__shard *shard;
    if (mf__shard_parse("fuzz", (const char *)data, size, &shard, NULL) == MF_OK) {
        if (shard->rank >= shard->n_ranks || shard->n_ranks > MF_SHARD_RANKS) abort();
        mf__shard_placement(shard);
        mf__shard_free(shard);
    }
    free(trunk);
    return 0;
}
