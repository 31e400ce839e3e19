/* Snapshots: layout and checks. Moving the bytes is snapshot_io.c. */
#include "engine/snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define OLD_MAX_LENGTH 1048576
#define CHECK_BYTES ((size_t)1 << 20)

static int64_t pad8(int64_t n) {
    return (n + 7) / 8 * 8;
}

/* Of a row of layer l. */
static int64_t k_bytes(const mf__snapshot_shape *shape, int32_t l) {
    return mf__kv_row_bytes(shape->kv_type, shape->k_cols[l]);
}
static int64_t v_bytes(const mf__snapshot_shape *shape, int32_t l) {
    return mf__kv_row_bytes(shape->kv_type, shape->v_cols[l]);
}

/* V rows of layer l for the positions [base, length): those that are complete by then, and were not before. */
static int64_t v_rows(const mf__snapshot_shape *shape, int32_t l, int64_t base, int64_t length) {
    int32_t step = shape->v_step ? shape->v_step[l] : 1;
    return length / step - base / step;
}

int64_t mf__snapshot_bytes(const mf__snapshot_shape *shape, int64_t base, int64_t length) {
    int64_t n = length - base, bytes = (int64_t)sizeof(mf__snapshot_header) + pad8(n * 4);
    for (int32_t l = 0; l < shape->n_layers; l++) {
        bytes += n * k_bytes(shape, l) + v_rows(shape, l, base, length) * v_bytes(shape, l);
        bytes += (shape->conv_floats[l] + shape->delta_floats[l]) * 4;
    }
    return bytes + 8;
}

void mf__snapshot_view_free(mf__snapshot_view *view) {
    free(view->k_off); /* the four arrays are one allocation */
    memset(view, 0, sizeof *view);
}

static mf_status alloc_view(const mf__snapshot_shape *shape, mf__snapshot_view *view, mf_error *err) {
    size_t n = (size_t)shape->n_layers;
    int64_t *offs = calloc(4 * n, sizeof *offs);
    if (!offs) return mf__fail(err, MF_E_NOMEM, "no memory to read a snapshot");
    view->k_off = offs;
    view->v_off = offs + n;
    view->conv_off = offs + 2 * n;
    view->delta_off = offs + 3 * n;
    return MF_OK;
}

static mf_status check_kv_type(const mf__snapshot_shape *shape, uint32_t found, mf_error *err) {
    if (found == (uint32_t)shape->kv_type) return MF_OK;
    return mf__fail(
        err, MF_E_MISMATCH,
        "the snapshot keeps keys and values as %s, the model was opened with %s; open it with --kv %s to use it",
        mf__kv_name((mf__type)found), mf__kv_name(shape->kv_type), mf__kv_name((mf__type)found));
}

/* ---- our version ---- */

static mf_status check_header(const mf__snapshot_shape *shape, const mf__snapshot_header *h, size_t size,
                              mf_error *err) {
    if (h->n_layers != (uint32_t)shape->n_layers)
        return mf__fail(err, MF_E_MISMATCH, "the snapshot has %u layers, the model %d", h->n_layers, shape->n_layers);
    MF__TRY(check_kv_type(shape, h->kv_type, err));
    if (h->fingerprint != shape->fingerprint)
        return mf__fail(err, MF_E_MISMATCH,
                        "the snapshot was made with another model, backend or precision (fingerprint %016llx, this is "
                        "%016llx)",
                        (unsigned long long)h->fingerprint, (unsigned long long)shape->fingerprint);
    if (h->base < 0 || h->length < h->base || h->length > shape->max_length)
        return mf__fail(err, MF_E_FORMAT, "the snapshot holds positions %lld to %lld, the model takes 0 to %lld",
                        (long long)h->base, (long long)h->length, (long long)shape->max_length);
    int64_t want = mf__snapshot_bytes(shape, h->base, h->length);
    if (h->bytes != (uint64_t)want || size != (size_t)want)
        return mf__fail(err, MF_E_FORMAT, "the snapshot has %zu bytes and says %llu, %lld tokens need %lld", size,
                        (unsigned long long)h->bytes, (long long)h->length, (long long)want);
    return MF_OK;
}

static void place_current(const mf__snapshot_shape *shape, mf__snapshot_view *v) {
    int64_t n = v->h.length - v->h.base, at = (int64_t)sizeof v->h;
    v->tokens_off = at;
    at += pad8(n * 4);
    for (int32_t l = 0; l < shape->n_layers; l++) {
        v->k_off[l] = at;
        v->v_off[l] = at + n * k_bytes(shape, l);
        at = v->v_off[l] + v_rows(shape, l, v->h.base, v->h.length) * v_bytes(shape, l);
    }
    for (int32_t l = 0; l < shape->n_layers; l++) {
        v->conv_off[l] = at;
        v->delta_off[l] = at + shape->conv_floats[l] * 4;
        at = v->delta_off[l] + shape->delta_floats[l] * 4;
    }
}

/* Of all but the last 8 bytes. */
static uint64_t checksum(const mf__snapshot_source *src) {
    mf__hash h;
    size_t end = src->map.size - 8;
    mf__hash_init(&h, 0);
    for (size_t at = 0, n; at < end; at += n) {
        n = end - at < CHECK_BYTES ? end - at : CHECK_BYTES;
        mf__hash_update(&h, src->map.data + at, n);
        if (src->mapped) mf__map_let_go(&src->map, at, at + n);
    }
    return mf__hash_digest(&h);
}

static mf_status parse_current(const mf__snapshot_shape *shape, const mf__snapshot_source *src, mf__snapshot_view *v,
                               mf_error *err) {
    const uint8_t *data = src->map.data;
    size_t size = src->map.size;
    uint64_t sum;
    if (size < sizeof v->h + 8)
        return mf__fail(err, MF_E_FORMAT, "the snapshot has %zu bytes, its header needs %zu", size, sizeof v->h + 8);
    memcpy(&v->h, data, sizeof v->h);
    MF__TRY(check_header(shape, &v->h, size, err));
    memcpy(&sum, data + size - 8, 8);
    uint64_t found = checksum(src);
    if (sum != found)
        return mf__fail(err, MF_E_FORMAT, "the snapshot is damaged: checksum %016llx, its bytes give %016llx",
                        (unsigned long long)sum, (unsigned long long)found);
    place_current(shape, v);
    for (int64_t i = 0; i < v->h.length - v->h.base; i++) {
        int32_t token;
        memcpy(&token, data + v->tokens_off + i * 4, 4);
        if (token < -1 || token >= shape->n_vocab) /* -1: not known, see versions 1 and 2 */
            return mf__fail(err, MF_E_FORMAT, "token %lld of the snapshot is %d, the vocabulary has %d", (long long)i,
                            token, shape->n_vocab);
    }
    return MF_OK;
}

/* ---- versions 1 and 2 -------------------------------------------------------------------------------------------- */

/* Written by moeflux in Rust and C. No checksum, no tokens, f32 rows, a length per layer. */

static mf_status old_layer(const mf__snapshot_shape *shape, int32_t l, const uint8_t *data, size_t size, size_t *at,
                           mf__snapshot_view *v, bool *first, mf_error *err) {
    int64_t conv = shape->conv_floats[l] * 4, delta = shape->delta_floats[l] * 4, need = conv + delta;
    int32_t len = 0;
    if (shape->k_cols[l]) {
        if (size - *at < 4) return mf__fail(err, MF_E_FORMAT, "the snapshot ends before layer %d", l);
        memcpy(&len, data + *at, 4);
        *at += 4;
        if (len < 0 || len > OLD_MAX_LENGTH || len > shape->max_length)
            return mf__fail(err, MF_E_FORMAT, "layer %d of the snapshot holds %d positions", l, len);
        if (!*first && len != v->h.length)
            return mf__fail(err, MF_E_FORMAT, "layer %d of the snapshot holds %d positions, the others %lld", l, len,
                            (long long)v->h.length);
        *first = false;
        v->h.length = len;
        need = (int64_t)len * (shape->k_cols[l] + shape->v_cols[l]) * 4;
    }
    if (size - *at < (size_t)need)
        return mf__fail(err, MF_E_FORMAT, "the snapshot ends inside layer %d: %lld bytes needed, %zu there", l,
                        (long long)need, size - *at);
    v->k_off[l] = (int64_t)*at;
    v->v_off[l] = (int64_t)*at + (int64_t)len * shape->k_cols[l] * 4;
    v->conv_off[l] = (int64_t)*at;
    v->delta_off[l] = (int64_t)*at + conv;
    *at += (size_t)need;
    return MF_OK;
}

/* Every how many layers one keeps KV; 0: not at such a distance, which no model of the older program has. */
static uint32_t interval_of(const mf__snapshot_shape *shape) {
    int32_t interval = 1;
    while (interval <= shape->n_layers && !shape->k_cols[interval - 1]) interval++;
    for (int32_t l = 0; l < shape->n_layers; l++)
        if ((shape->k_cols[l] != 0) != ((l + 1) % interval == 0)) return 0;
    return (uint32_t)interval;
}

/* Words: magic, version, layers, full-attention interval, kv heads, head dim, conv bytes, delta bytes (, lora rank,
 * rope dim in version 2). Heads and head dim are only known as their product. */
static mf_status check_words(const mf__snapshot_shape *shape, const uint32_t word[10], mf_error *err) {
    int64_t conv = 0, delta = 0, cols = 0;
    for (int32_t l = 0; l < shape->n_layers; l++) {
        if (shape->conv_floats[l]) conv = shape->conv_floats[l] * 4;
        if (shape->delta_floats[l]) delta = shape->delta_floats[l] * 4;
        if (shape->k_cols[l]) cols = shape->k_cols[l];
    }
    uint64_t found_cols = (uint64_t)word[4] * word[5];
    uint32_t interval = interval_of(shape);
    if (word[2] == (uint32_t)shape->n_layers && word[3] == interval && word[6] == conv && word[7] == delta &&
        found_cols == (uint64_t)cols && !word[8] && !word[9])
        return MF_OK;
    return mf__fail(err, MF_E_MISMATCH,
                    "the snapshot is of a model with %u layers, every %u. with KV rows of %llu, states of %u and %u "
                    "bytes, latents of %u and %u; this one has %d, %u, %lld, %lld and %lld, 0 and 0",
                    word[2], word[3], (unsigned long long)found_cols, word[6], word[7], word[8], word[9],
                    shape->n_layers, interval, (long long)cols, (long long)conv, (long long)delta);
}

static mf_status parse_old(const mf__snapshot_shape *shape, const uint8_t *data, size_t size, uint32_t version,
                           mf__snapshot_view *v, mf_error *err) {
    uint32_t word[10] = {0};
    size_t at = version == 1 ? 32 : 40;
    bool first = true;
    if (shape->latent)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "the snapshot is of version %u, and such ones of models with latent attention hold wrong rope "
                        "keys; evaluate the prompt again",
                        version);
    if (size < at) return mf__fail(err, MF_E_FORMAT, "the snapshot has %zu bytes, its header needs %zu", size, at);
    memcpy(word, data, at);
    MF__TRY(check_words(shape, word, err));
    v->h = (mf__snapshot_header){.magic = word[0], .version = version, .n_layers = word[2], .kv_type = MF_TYPE_F32};
    v->tokens_off = -1;
    for (int32_t l = 0; l < shape->n_layers; l++) MF__TRY(old_layer(shape, l, data, size, &at, v, &first, err));
    return check_kv_type(shape, MF_TYPE_F32, err); /* last: the way out it names must be one */
}

mf_status mf__snapshot_parse(const mf__snapshot_shape *shape, const mf__snapshot_source *src, mf__snapshot_view *out,
                             mf_error *err) {
    const uint8_t *data = src->map.data;
    size_t size = src->map.size;
    uint32_t magic, version;
    memset(out, 0, sizeof *out);
    if (size < 8) return mf__fail(err, MF_E_FORMAT, "the snapshot has %zu bytes, too few for any", size);
    memcpy(&magic, data, 4);
    memcpy(&version, data + 4, 4);
    if (magic != MF_SNAPSHOT_MAGIC)
        return mf__fail(err, MF_E_FORMAT, "this is not a snapshot: it begins with %08x, expected %08x", magic,
                        MF_SNAPSHOT_MAGIC);
    if (version < 1 || version > MF_SNAPSHOT_VERSION)
        return mf__fail(err, MF_E_UNSUPPORTED, "the snapshot is of version %u, this program knows 1 to %u", version,
                        MF_SNAPSHOT_VERSION);
    MF__TRY(alloc_view(shape, out, err));
    mf_status st = version == MF_SNAPSHOT_VERSION ? parse_current(shape, src, out, err)
                                                  : parse_old(shape, data, size, version, out, err);
    if (st != MF_OK) mf__snapshot_view_free(out);
    return st;
}
