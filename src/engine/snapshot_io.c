/* Snapshots: moving rows between pages and bytes, and the model's fingerprint. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "engine/experts.h"
#include "engine/lossy.h"
#include "engine/snapshot.h"

#define SAMPLE_BYTES MF_SHARD_SAMPLE /* a shard of a model must have them, too */
#define PIECE_BYTES ((int64_t)4 << 20)

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

static mf_status hash_files(mf__hash *h, const mf_model *m, mf_error *err) {
    mf__hash_init(h, MF_SNAPSHOT_VERSION);
    MF__TRY(hash_json(h, m->native.config, err));
    MF__TRY(hash_json(h, m->native.manifest, err));
    for (int64_t i = 0; i < mf__catalog_count(m->native.catalog); i++) {
        const mf__entry *e = mf__catalog_at(m->native.catalog, i);
        mf__hash_update(h, e->data, e->size < MF_SHARD_TENSOR_HEAD ? (size_t)e->size : MF_SHARD_TENSOR_HEAD);
    }
    return hash_experts(h, m, err);
}

mf_status mf__model_content(mf_model *m, uint64_t *out, mf_error *err) {
    mf__hash h;
    MF__TRY(hash_files(&h, m, err));
    mf__hash_update(&h, &m->bp.config.moe.top_k, sizeof m->bp.config.moe.top_k);
    *out = mf__hash_digest(&h);
    return MF_OK;
}

static mf_status compute(const mf_model *m, uint64_t *out, mf_error *err) {
    mf__hash h;
    MF__TRY(hash_files(&h, m, err));
    mf__hash_update(&h, m->be->name, strlen(m->be->name));
    mf__hash_update(&h, m->be->numerics, strlen(m->be->numerics));
    const int32_t mode[] = {(int32_t)m->kv_type, m->bp.config.moe.top_k};
    mf__hash_update(&h, mode, sizeof mode);
    if (m->info.n_ctx > m->info.n_ctx_trained) /* the rest of rope is in the config */
        mf__hash_update(&h, &m->bp.config.rope.factor, sizeof m->bp.config.rope.factor);
    if (m->lossy) mf__hash_update(&h, &m->lossy->opt, sizeof m->lossy->opt); /* what it made is of no use to others */
    *out = mf__hash_digest(&h);
    return MF_OK;
}

static mf_status make_shape(mf_model *m, mf_error *err) {
    size_t n = (size_t)m->info.n_layers;
    if (m->shape) return MF_OK;
    mf__snapshot_shape *shape = mf__arena_alloc(&m->arena, sizeof *shape);
    int32_t *cols = mf__arena_array(&m->arena, 3 * n, sizeof *cols);
    int64_t *floats = mf__arena_array(&m->arena, 2 * n, sizeof *floats);
    if (!shape || !cols || !floats) return mf__fail(err, MF_E_NOMEM, "no memory for the model's fingerprint");
    *shape = (mf__snapshot_shape){.kv_type = m->kv_type,
                                  .latent = m->bp.config.mla.n_latent > 0,
                                  .n_layers = m->info.n_layers,
                                  .n_vocab = m->info.n_vocab,
                                  .max_length = m->info.n_ctx,
                                  .k_cols = cols,
                                  .v_cols = cols + n,
                                  .v_step = cols + 2 * n,
                                  .conv_floats = floats,
                                  .delta_floats = floats + n};
    for (size_t l = 0; l < n; l++) {
        const mf__layer_kind *k = &m->bp.kinds[m->bp.kind_of[l]];
        cols[l] = k->k_cols;
        cols[n + l] = k->v_cols;
        cols[2 * n + l] = k->v_step;
        floats[l] = k->conv_floats;
        floats[n + l] = k->delta_floats;
    }
    MF__TRY(compute(m, &shape->fingerprint, err));
    m->shape = shape;
    return MF_OK;
}

mf_status mf__model_fingerprint(mf_model *m, mf_error *err) {
    pthread_mutex_lock(&m->shape_lock);
    mf_status st = make_shape(m, err);
    pthread_mutex_unlock(&m->shape_lock);
    return st;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* The K or V rows of one layer. */
typedef struct rows {
    int layer;
    bool v;
    int32_t step; /* positions that share a row */
    int64_t row_bytes;
} rows;

static rows rows_of(const mf_model *m, int layer, bool v) {
    const mf__layer_kind *kind = &m->bp.kinds[m->bp.kind_of[layer]];
    return (rows){layer, v, v ? kind->v_step : 1, mf__kv_row_bytes(m->kv_type, v ? kind->v_cols : kind->k_cols)};
}

/* Where a row lies, and how many follow it in its page. Under lock: pages are found through the pool. */
static char *place_of(const mf_model *m, mf__page *const *pages, const rows *r, int64_t row, int64_t *n) {
    int64_t per_page = MF_KV_BLOCK / r->step, in_page = row % per_page;
    char *k = mf__page_block(m, pages[row / per_page], r->layer);
    *n = per_page - in_page;
    return k + (r->v ? MF_KV_BLOCK * rows_of(m, r->layer, false).row_bytes : 0) + in_page * r->row_bytes;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Bytes on their way out, a buffer at a time: a state may be larger than what memory has left. */
typedef struct writer {
    mf__write_fn *write;
    void *sink;
    mf__hash sum; /* of all that was written */
    uint8_t *buf; /* [PIECE_BYTES] */
    int64_t held;
} writer;

static mf_status flush(writer *w, mf_error *err) {
    if (!w->held) return MF_OK;
    mf__hash_update(&w->sum, w->buf, (size_t)w->held);
    MF__TRY(w->write(w->sink, w->buf, (size_t)w->held, err));
    w->held = 0;
    return MF_OK;
}

static mf_status put(writer *w, const void *data, int64_t bytes, mf_error *err) {
    const uint8_t *at = data;
    while (bytes) {
        int64_t n = PIECE_BYTES - w->held < bytes ? PIECE_BYTES - w->held : bytes;
        if (at) memcpy(w->buf + w->held, at, (size_t)n);
        if (at)
            at += n;
        else
            memset(w->buf + w->held, 0, (size_t)n); /* NULL: zeros */
        w->held += n;
        bytes -= n;
        if (w->held == PIECE_BYTES) MF__TRY(flush(w, err));
    }
    return MF_OK;
}

/* From the backend's memory; the model's lock is taken for each piece, and no file is written meanwhile. */
static mf_status put_device(mf_model *m, writer *w, const char *from, int64_t bytes, mf_error *err) {
    while (bytes) {
        int64_t n = PIECE_BYTES - w->held < bytes ? PIECE_BYTES - w->held : bytes;
        mf__model_lock(m);
        mf_status st = m->be->download(m->be, w->buf + w->held, from, n, err);
        mf__model_unlock(m);
        MF__TRY(st);
        w->held += n;
        from += n;
        bytes -= n;
        if (w->held == PIECE_BYTES) MF__TRY(flush(w, err));
    }
    return MF_OK;
}

static mf_status put_rows(mf_model *m, writer *w, mf__page *const *pages, rows r, int64_t from, int64_t to,
                          mf_error *err) {
    from /= r.step, to /= r.step;
    for (int64_t pos = from; pos < to && r.row_bytes;) {
        int64_t n;
        mf__model_lock(m);
        const char *mem = place_of(m, pages, &r, pos, &n);
        mf__model_unlock(m);
        if (n > to - pos) n = to - pos;
        MF__TRY(put_device(m, w, mem, n * r.row_bytes, err));
        pos += n;
    }
    return MF_OK;
}

static mf_status put_state(mf_model *m, writer *w, const mf__frozen *f, int64_t base, uint64_t parent, mf_error *err) {
    const mf__snapshot_shape *shape = m->shape;
    int64_t n = f->length - base;
    mf__snapshot_header h = {.magic = MF_SNAPSHOT_MAGIC,
                             .version = MF_SNAPSHOT_VERSION,
                             .bytes = (uint64_t)mf__snapshot_bytes(shape, base, f->length),
                             .fingerprint = shape->fingerprint,
                             .parent = parent,
                             .base = base,
                             .length = f->length,
                             .n_layers = (uint32_t)shape->n_layers,
                             .kv_type = (uint32_t)m->kv_type};
    MF__TRY(put(w, &h, sizeof h, err));
    if (n) MF__TRY(put(w, f->tokens + base, n * 4, err));
    MF__TRY(put(w, NULL, (n * 4 + 7) / 8 * 8 - n * 4, err));
    for (int l = 0; l < shape->n_layers; l++) {
        MF__TRY(put_rows(m, w, f->pages, rows_of(m, l, false), base, f->length, err));
        MF__TRY(put_rows(m, w, f->pages, rows_of(m, l, true), base, f->length, err));
    }
    for (int l = 0; l < shape->n_layers; l++) {
        int64_t conv = shape->conv_floats[l] * 4, delta = shape->delta_floats[l] * 4;
        if (!f->recurrent) { /* an empty sequence */
            MF__TRY(put(w, NULL, conv + delta, err));
            continue;
        }
        MF__TRY(put_device(m, w, (const char *)(f->recurrent + m->conv_off[l]), conv, err));
        MF__TRY(put_device(m, w, (const char *)(f->recurrent + m->delta_off[l]), delta, err));
    }
    MF__TRY(flush(w, err));
    uint64_t sum = mf__hash_digest(&w->sum);
    return w->write(w->sink, &sum, sizeof sum, err);
}

mf_status mf__snapshot_write(mf_model *m, const mf__frozen *f, int64_t base, uint64_t parent, mf__write_fn *write,
                             void *sink, mf_error *err) {
    writer w = {.write = write, .sink = sink, .buf = malloc(PIECE_BYTES)};
    if (!w.buf) return mf__fail(err, MF_E_NOMEM, "no memory to write a state");
    mf__hash_init(&w.sum, 0);
    mf_status st = put_state(m, &w, f, base, parent, err);
    free(w.buf);
    return st;
}

/* ---- reading ---- */

static void let_go(const mf__snapshot_source *src, int64_t at, int64_t bytes) {
    if (src->mapped) mf__map_let_go(&src->map, (size_t)at, (size_t)(at + bytes));
}

/* The rows of [base, length), which begin at byte `at`: to the backend's memory, a page's worth at a time under the
 * lock. */
static mf_status take_rows(mf_model *m, const mf__snapshot_source *src, int64_t at, rows r, int64_t base, mf__frozen *f,
                           mf_error *err) {
    int64_t to = f->length / r.step;
    for (int64_t pos = base / r.step; pos < to && r.row_bytes;) {
        int64_t n;
        mf__model_lock(m);
        char *mem = place_of(m, f->pages, &r, pos, &n);
        if (n > to - pos) n = to - pos;
        mf_status st = m->be->upload(m->be, mem, src->map.data + at, n * r.row_bytes, err);
        mf__model_unlock(m);
        MF__TRY(st);
        let_go(src, at, n * r.row_bytes);
        at += n * r.row_bytes;
        pos += n;
    }
    return MF_OK;
}

static mf_status take_recurrent(mf_model *m, const mf__snapshot_source *src, const mf__snapshot_view *v, int l,
                                mf__frozen *f, mf_error *err) {
    mf__backend *be = m->be;
    const uint8_t *conv = src->map.data + v->conv_off[l], *delta = src->map.data + v->delta_off[l];
    int64_t conv_bytes = m->shape->conv_floats[l] * 4, delta_bytes = m->shape->delta_floats[l] * 4;
    mf__model_lock(m);
    mf_status st = be->upload(be, f->recurrent + m->conv_off[l], conv, conv_bytes, err);
    if (st == MF_OK) st = be->upload(be, f->recurrent + m->delta_off[l], delta, delta_bytes, err);
    mf__model_unlock(m);
    let_go(src, v->delta_off[l], delta_bytes);
    return st;
}

static mf_status fill(mf_model *m, const mf__snapshot_source *src, const mf__snapshot_view *v, mf__frozen *f,
                      mf_error *err) {
    for (int l = 0; l < m->shape->n_layers; l++) {
        MF__TRY(take_rows(m, src, v->k_off[l], rows_of(m, l, false), v->h.base, f, err));
        MF__TRY(take_rows(m, src, v->v_off[l], rows_of(m, l, true), v->h.base, f, err));
        if (f->recurrent) MF__TRY(take_recurrent(m, src, v, l, f, err));
    }
    return MF_OK;
}

/* Pages up to base are the parent's; the one base lies in is copied, the rest are new. Under lock. */
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

static mf_status make_room(mf_model *m, const mf__frozen *parent, int64_t base, bool recurrent, mf__frozen *f,
                           mf_error *err) {
    void *mem = NULL;
    mf__model_lock(m);
    mf_status st = make_pages(m, parent, base, f, err);
    if (st == MF_OK && recurrent && m->recurrent_floats && f->length)
        st = mf__model_alloc(m, m->recurrent_floats * (int64_t)sizeof(float), &mem, err);
    f->recurrent = mem;
    mf__model_unlock(m);
    return st;
}

static mf_status build(mf_model *m, const mf__snapshot_source *src, const mf__snapshot_view *v,
                       const mf__frozen *parent, bool recurrent, mf__frozen *f, mf_error *err) {
    int64_t base = v->h.base;
    f->length = v->h.length;
    f->tokens = malloc(((size_t)f->length + 1) * sizeof *f->tokens);
    f->pages = calloc((size_t)(f->length / MF_KV_BLOCK + 1), sizeof *f->pages);
    if (!f->tokens || !f->pages)
        return mf__fail(err, MF_E_NOMEM, "no memory for a state of %lld tokens", (long long)f->length);
    if (base) memcpy(f->tokens, parent->tokens, (size_t)base * sizeof *f->tokens);
    if (v->tokens_off >= 0)
        memcpy(f->tokens + base, src->map.data + v->tokens_off, (size_t)(f->length - base) * sizeof *f->tokens);
    else
        for (int64_t i = 0; i < f->length; i++) f->tokens[i] = -1;
    MF__TRY(make_room(m, parent, base, recurrent, f, err));
    return fill(m, src, v, f, err);
}

mf_status mf__snapshot_read(mf_model *m, const mf__snapshot_source *src, const mf__frozen *parent, bool recurrent,
                            mf__frozen **out, mf_error *err) {
    mf__snapshot_view view;
    int64_t have = parent ? parent->length : 0;
    MF__TRY(mf__snapshot_parse(m->shape, src, &view, err));
    mf_status st = MF_OK;
    mf__frozen *f = calloc(1, sizeof *f);
    if (f) f->refs = 1;
    if (!f)
        st = mf__fail(err, MF_E_NOMEM, "no memory to read a snapshot");
    else if (view.h.base != have)
        st = mf__fail(err, MF_E_MISMATCH, "the snapshot goes on from %lld tokens, %lld are there",
                      (long long)view.h.base, (long long)have);
    else
        st = build(m, src, &view, parent, recurrent, f, err);
    mf__snapshot_view_free(&view);
    if (st != MF_OK) {
        mf__frozen_drop(m, f);
        return st;
    }
    *out = f;
    return MF_OK;
}
