/* Snapshots of every version on arbitrary bytes: an error, or a view whose rows lie inside the bytes. The checksum of
 * the current version is put right first, or nothing would ever get past it. */
#include "engine/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define LAYERS 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const int32_t K_COLS[LAYERS] = {0, 4, 0, 4}, V_COLS[LAYERS] = {0, 2, 0, 2};
static const int64_t CONV[LAYERS] = {6, 0, 6, 0}, DELTA[LAYERS] = {8, 0, 8, 0};
static const mf__snapshot_shape SHAPE = {.fingerprint = 0x0807060504030201,
                                         .kv_type = MF_TYPE_F32,
                                         .n_layers = LAYERS,
                                         .n_vocab = 100,
                                         .max_length = 64,
                                         .k_cols = K_COLS,
                                         .v_cols = V_COLS,
                                         .conv_floats = CONV,
                                         .delta_floats = DELTA};

static void inside(int64_t at, int64_t bytes, size_t size) {
    if (at < 0 || bytes < 0 || (uint64_t)at + (uint64_t)bytes > size) abort();
}

static void check_view(const mf__snapshot_view *v, size_t size) {
    int64_t n = v->h.length - v->h.base;
    if (n < 0 || v->h.length > SHAPE.max_length) abort();
    if (v->tokens_off >= 0) inside(v->tokens_off, n * 4, size);
    for (int l = 0; l < LAYERS; l++) {
        if (K_COLS[l]) {
            inside(v->k_off[l], n * K_COLS[l] * 4, size);
            inside(v->v_off[l], n * V_COLS[l] * 4, size);
        } else {
            inside(v->conv_off[l], CONV[l] * 4, size);
            inside(v->delta_off[l], DELTA[l] * 4, size);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1); /* of exactly this size: the sanitizer watches its ends */
    mf__snapshot_view view;
    mf_error err = {0};
    if (!copy) return 0;
    if (size) memcpy(copy, data, size);
    if (size >= 8) {
        uint64_t sum = mf__hash_bytes(copy, size - 8);
        memcpy(copy + size - 8, &sum, 8);
    }
    mf_status status = mf__snapshot_parse(&SHAPE, &(mf__snapshot_source){.map = {copy, size}}, &view, &err);
    if (status == MF_OK) {
        check_view(&view, size);
        mf__snapshot_view_free(&view);
    } else if (view.k_off || err.status != status || !err.text[0]) {
        abort();
    }
    free(copy);
    return 0;
}
