/* Snapshots: moving rows between pages and bytes, and the model's fingerprint. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "engine/snapshot.h"

#define SAMPLE_BYTES 4096

/* ---- fingerprint ---- */

static mf_status hash_json(mf__hash *h, const json_t *value, mf_error *err) {
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    if (value && !text) return mf__fail(err, MF_E_NOMEM, "no memory for the model's fingerprint");
    if (text) mf__hash_update(h, text, strlen(text));
    free(text);
    return MF_OK;
}

/* The start of every layer's expert file, in whichever directory it is: copies are the same. Manifests with checksums
 * do not know about other directories, and older ones have none. */
static mf_status hash_experts(mf__hash *h, const mf_model *m, mf_error *err) {
    const mf__store_config *c = &m->store_config;
    for (int l = 0; l < c->n_layers; l++) {
        uint8_t sample[SAMPLE_BYTES];
        const char *path = NULL;
        int fd;
        int64_t size;
        for (int d = 0; d < c->n_dirs && !path; d++) path = c->files[d * c->n_layers + l];
        if (!path) continue;
        MF__TRY(mf__file_open(path, &fd, &size, err));
        size_t n = size < SAMPLE_BYTES ? (size_t)size : SAMPLE_BYTES;
        mf_status st = mf__pread_all(fd, sample, n, 0, path, err);
        close(fd);
        MF__TRY(st);
        mf__hash_update(h, &size, sizeof size);
        mf__hash_update(h, sample, n);
    }
    return MF_OK;
}

static mf_status compute(const mf_model *m, uint64_t *out, mf_error *err) {
    mf__hash h;
    mf__hash_init(&h, MF_SNAPSHOT_VERSION);
    MF__TRY(hash_json(&h, m->native.config, err));
    MF__TRY(hash_json(&h, m->native.manifest, err));
    for (int64_t i = 0; i < mf__catalog_count(m->native.catalog); i++) {
        const mf__entry *e = mf__catalog_at(m->native.catalog, i);
        mf__hash_update(&h, e->data, e->size < 64 ? (size_t)e->size : 64);
    }
    MF__TRY(hash_experts(&h, m, err));
    mf__hash_update(&h, m->be->name, strlen(m->be->name));
    mf__hash_update(&h, m->be->numerics, strlen(m->be->numerics));
    const int32_t mode[] = {(int32_t)m->kv_type, m->bp.config.moe.top_k};
    mf__hash_update(&h, mode, sizeof mode);
    if (m->info.n_ctx > m->info.n_ctx_trained) /* the rest of rope is in the config */
        mf__hash_update(&h, &m->bp.config.rope.factor, sizeof m->bp.config.rope.factor);
    *out = mf__hash_digest(&h);
    return MF_OK;
}

mf_status mf__model_fingerprint(mf_model *m, mf_error *err) {
    size_t n = (size_t)m->info.n_layers;
    if (m->shape) return MF_OK;
    mf__snapshot_shape *shape = mf__arena_alloc(&m->arena, sizeof *shape);
    int32_t *cols = mf__arena_array(&m->arena, 2 * n, sizeof *cols);
    int64_t *floats = mf__arena_array(&m->arena, 2 * n, sizeof *floats);
    if (!shape || !cols || !floats) return mf__fail(err, MF_E_NOMEM, "no memory for the model's fingerprint");
    *shape = (mf__snapshot_shape){.kv_type = m->kv_type,
                                  .latent = m->bp.config.mla.n_latent > 0,
                                  .n_layers = m->info.n_layers,
                                  .n_vocab = m->info.n_vocab,
                                  .max_length = m->info.n_ctx,
                                  .k_cols = cols,
                                  .v_cols = cols + n,
                                  .conv_floats = floats,
                                  .delta_floats = floats + n};
    for (size_t l = 0; l < n; l++) {
        const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[l]];
        cols[l] = k->k_cols;
        cols[n + l] = k->v_cols;
        floats[l] = k->conv_floats;
        floats[n + l] = k->delta_floats;
    }
    MF__TRY(compute(m, &shape->fingerprint, err));
    m->shape = shape;
    return MF_OK;
}

/* ---- rows ---- */

/* Moves the rows [from, to) of one layer, page by page: to bytes (out) or into pages (in). */
static mf_status move_rows(mf_model *m, mf__page *const *pages, int layer, int64_t from, int64_t to, uint8_t *k,
                           uint8_t *v, bool store, mf_error *err) {
    const mf__layer_kind *kind = &m->bp.kinds[m->bp.kind_of[layer]];
    mf__backend *be = m->be;
    int64_t k_row = mf__kv_row_bytes(m->kv_type, kind->k_cols), v_row = mf__kv_row_bytes(m->kv_type, kind->v_cols);
    for (int64_t pos = from; pos < to;) {
        int64_t in_page = pos % MF_KV_BLOCK, n = MF_KV_BLOCK - in_page < to - pos ? MF_KV_BLOCK - in_page : to - pos;
        char *mem = mf__page_block(m, pages[pos / MF_KV_BLOCK], layer), *mem_v = mem + MF_KV_BLOCK * k_row;
        if (store) {
            MF__TRY(be->upload(be, mem + in_page * k_row, k, n * k_row, err));
            MF__TRY(be->upload(be, mem_v + in_page * v_row, v, n * v_row, err));
        } else {
            MF__TRY(be->download(be, k, mem + in_page * k_row, n * k_row, err));
            MF__TRY(be->download(be, v, mem_v + in_page * v_row, n * v_row, err));
        }
        k += n * k_row;
        v += n * v_row;
        pos += n;
    }
    return MF_OK;
}

static mf_status move_recurrent(mf_model *m, float *recurrent, int layer, uint8_t *conv, uint8_t *delta, bool store,
                                mf_error *err) {
    const mf__layer_kind *kind = &m->bp.kinds[m->bp.kind_of[layer]];
    mf__backend *be = m->be;
    float *c = recurrent + m->conv_off[layer], *d = recurrent + m->delta_off[layer];
    if (store) {
        MF__TRY(be->upload(be, c, conv, kind->conv_floats * 4, err));
        return be->upload(be, d, delta, kind->delta_floats * 4, err);
    }
    MF__TRY(be->download(be, conv, c, kind->conv_floats * 4, err));
    return be->download(be, delta, d, kind->delta_floats * 4, err);
}

static bool has_recurrent(const mf__snapshot_shape *shape, int layer) {
    return shape->conv_floats[layer] || shape->delta_floats[layer];
}

mf_status mf__snapshot_write(mf_model *m, const mf__frozen *f, int64_t base, uint64_t parent, uint8_t *out,
                             mf_error *err) {
    const mf__snapshot_shape *shape = m->shape;
    int64_t n = f->length - base, bytes = mf__snapshot_bytes(shape, base, f->length);
    mf__snapshot_header h = {.magic = MF_SNAPSHOT_MAGIC,
                             .version = MF_SNAPSHOT_VERSION,
                             .bytes = (uint64_t)bytes,
                             .fingerprint = shape->fingerprint,
                             .parent = parent,
                             .base = base,
                             .length = f->length,
                             .n_layers = (uint32_t)shape->n_layers,
                             .kv_type = (uint32_t)m->kv_type};
    uint8_t *at = out + sizeof h;
    memcpy(out, &h, sizeof h);
    memset(at, 0, (size_t)((n * 4 + 7) / 8 * 8));
    if (n) memcpy(at, f->tokens + base, (size_t)n * 4);
    at += (n * 4 + 7) / 8 * 8;
    for (int l = 0; l < shape->n_layers; l++) {
        int64_t k = n * mf__kv_row_bytes(m->kv_type, shape->k_cols[l]);
        int64_t v = n * mf__kv_row_bytes(m->kv_type, shape->v_cols[l]);
        if (k + v) MF__TRY(move_rows(m, f->pages, l, base, f->length, at, at + k, false, err));
        at += k + v;
    }
    for (int l = 0; l < shape->n_layers; l++) {
        int64_t c = shape->conv_floats[l] * 4, d = shape->delta_floats[l] * 4;
        if (f->recurrent && has_recurrent(shape, l))
            MF__TRY(move_recurrent(m, f->recurrent, l, at, at + c, false, err));
        else if (c + d)
            memset(at, 0, (size_t)(c + d)); /* an empty sequence */
        at += c + d;
    }
    uint64_t sum = mf__hash_bytes(out, (size_t)(at - out));
    memcpy(at, &sum, sizeof sum);
    return MF_OK;
}

/* ---- reading ---- */

static mf_status fill(mf_model *m, const uint8_t *data, const mf__snapshot_view *v, mf__frozen *f, mf_error *err) {
    const mf__snapshot_shape *shape = m->shape;
    uint8_t *bytes = (uint8_t *)data; /* only read from: the moves go from bytes to pages */
    for (int l = 0; l < shape->n_layers; l++) {
        if (shape->k_cols[l])
            MF__TRY(
                move_rows(m, f->pages, l, v->h.base, f->length, bytes + v->k_off[l], bytes + v->v_off[l], true, err));
        if (f->recurrent && has_recurrent(shape, l))
            MF__TRY(move_recurrent(m, f->recurrent, l, bytes + v->conv_off[l], bytes + v->delta_off[l], true, err));
    }
    return MF_OK;
}

/* Pages up to base are the parent's; the one base lies in is copied, the rest are new. */
static mf_status make_pages(mf_model *m, const mf__frozen *parent, int64_t base, mf__frozen *f, mf_error *err) {
    int32_t n_pages = (int32_t)((f->length + MF_KV_BLOCK - 1) / MF_KV_BLOCK);
    for (; f->n_pages < n_pages; f->n_pages++) {
        mf__page **page = &f->pages[f->n_pages];
        if ((f->n_pages + 1) * (int64_t)MF_KV_BLOCK <= base) {
            *page = parent->pages[f->n_pages];
            (*page)->refs++;
        } else if (f->n_pages * (int64_t)MF_KV_BLOCK < base) {
            MF__TRY(mf__page_copy(m, parent->pages[f->n_pages], page, err));
        } else {
            MF__TRY(mf__page_create(m, page, err));
        }
    }
    return MF_OK;
}

static mf_status build(mf_model *m, const uint8_t *data, const mf__snapshot_view *v, const mf__frozen *parent,
                       bool recurrent, mf__frozen *f, mf_error *err) {
    int64_t base = v->h.base;
    f->length = v->h.length;
    f->tokens = malloc(((size_t)f->length + 1) * sizeof *f->tokens);
    f->pages = calloc((size_t)(f->length / MF_KV_BLOCK + 1), sizeof *f->pages);
    if (!f->tokens || !f->pages)
        return mf__fail(err, MF_E_NOMEM, "no memory for a state of %lld tokens", (long long)f->length);
    if (base) memcpy(f->tokens, parent->tokens, (size_t)base * sizeof *f->tokens);
    if (v->tokens_off >= 0)
        memcpy(f->tokens + base, data + v->tokens_off, (size_t)(f->length - base) * sizeof *f->tokens);
    else
        for (int64_t i = 0; i < f->length; i++) f->tokens[i] = -1;
    MF__TRY(make_pages(m, parent, base, f, err));
    if (recurrent && m->recurrent_floats && f->length) {
        void *mem;
        MF__TRY(mf__model_alloc(m, m->recurrent_floats * (int64_t)sizeof(float), &mem, err));
        f->recurrent = mem;
    }
    return fill(m, data, v, f, err);
}

mf_status mf__snapshot_read(mf_model *m, const uint8_t *data, size_t size, const mf__frozen *parent, bool recurrent,
                            mf__frozen **out, mf_error *err) {
    mf__snapshot_view view;
    int64_t have = parent ? parent->length : 0;
    MF__TRY(mf__snapshot_parse(m->shape, data, size, &view, err));
    mf_status st = MF_OK;
    mf__frozen *f = calloc(1, sizeof *f);
    if (f) f->refs = 1;
    if (!f)
        st = mf__fail(err, MF_E_NOMEM, "no memory to read a snapshot");
    else if (view.h.base != have)
        st = mf__fail(err, MF_E_MISMATCH, "the snapshot goes on from %lld tokens, %lld are there",
                      (long long)view.h.base, (long long)have);
    else
        st = build(m, data, &view, parent, recurrent, f, err);
    mf__snapshot_view_free(&view);
    if (st != MF_OK) {
        mf__frozen_free(m, f);
        return st;
    }
    *out = f;
    return MF_OK;
}
