#include "convert/stage.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/direct.h"
#include "base/hash.h"
#include "base/pool.h"

#define READERS 4                     /* one read at a time leaves a drive idle in between */
#define READ_BYTES ((int64_t)1 << 20) /* at a time; a multiple of MF_DIRECT_ALIGN */

struct mf__stage {
    const mf__catalog *cat;
    int n_files;
    mf__infile *files;
    const mf__feed *feed; /* NULL: all files are complete */
    mf__pool *readers;
};

mf_status mf__stage_open(const mf__catalog *cat, const mf__feed *feed, mf__stage **out, mf_error *err) {
    int n = mf__catalog_n_files(cat);
    mf__stage *st = calloc(1, sizeof *st);
    *out = NULL;
    if (st) st->files = calloc((size_t)n + 1, sizeof *st->files);
    if (!st || !st->files) {
        free(st);
        return mf__fail(err, MF_E_NOMEM, "no memory for the table of files");
    }
    st->cat = cat;
    st->feed = feed;
    mf_status status = mf__pool_create(READERS, &st->readers, err);
    for (; st->n_files < n && status == MF_OK; st->n_files += status == MF_OK)
        if (mf__catalog_is_file(cat, st->n_files))
            status = mf__infile_open(mf__catalog_file(cat, st->n_files), &st->files[st->n_files], err);
    if (status != MF_OK)
        mf__stage_close(st);
    else
        *out = st;
    return status;
}

void mf__stage_close(mf__stage *st) {
    if (!st) return;
    mf__pool_free(st->readers);
    for (int i = 0; i < st->n_files; i++) mf__infile_close(&st->files[i]);
    free(st->files);
    free(st);
}

void mf__stage_identity(const mf__stage *st, char text[32]) {
    mf__hash h;
    mf__hash_init(&h, 0);
    for (int i = 0; i < st->n_files; i++) {
        const mf__infile *f = &st->files[i];
        if (!f->path) continue;
        const char *slash = strrchr(f->path, '/'), *name = slash ? slash + 1 : f->path;
        mf__hash_update(&h, name, strlen(name) + 1);
        mf__hash_update(&h, &f->size, sizeof f->size);
        mf__hash_update(&h, &f->mtime_ns, sizeof f->mtime_ns);
    }
    mf__hash_text(mf__hash_digest(&h), text);
}

mf_status mf__stage_unchanged(const mf__stage *st, mf_error *err) {
    for (int i = 0; i < st->n_files; i++)
        if (st->files[i].path) MF__TRY(mf__infile_unchanged(&st->files[i], err));
    return MF_OK;
}

bool mf__stage_in_pieces(const mf__source *src) {
    return !src->transposed && !src->row_of && (src->stored.type != MF_TYPE_F8_BLOCK || mf__source_is_plain(src));
}

/* The stored rows that rows [begin, end) of src lie in. */
static void stored_range(const mf__source *src, int64_t begin, int64_t end, int64_t *first, int64_t *n) {
    if (!mf__stage_in_pieces(src)) {
        *first = 0;
        *n = src->stored.n_rows;
        return;
    }
    *first = src->first + begin * src->step;
    *n = end > begin ? (end - 1 - begin) * src->step + 1 : 0;
}

typedef struct piece {
    const void **pointer; /* in the staged tensor */
    int64_t offset, size; /* bytes from the stored tensor's start of that piece */
} piece;

/* Data, scales and biases of stored rows [first, first + n); first begins a block. */
static int pieces_of(mf__tensor *t, int64_t first, int64_t n, piece out[3]) {
    int count = 0;
    int64_t row = mf__tensor_row_bytes(t), scale = mf__tensor_scale_bytes(t), bias = mf__tensor_bias_bytes(t);
    out[count++] = (piece){&t->data, first * row, n * row};
    int64_t at = scale ? mf__tensor_scale_row(t, first) : 0;
    int64_t end = scale && n > 0 ? mf__tensor_scale_row(t, first + n - 1) + 1 : at;
    if (scale) out[count++] = (piece){&t->scales, at * scale, (end - at) * scale};
    if (bias && t->biases) out[count++] = (piece){&t->biases, first * bias, n * bias};
    return count;
}

void mf__stage_count(const mf__stage *st, const mf__source *src, int *used) {
    mf__tensor t = src->stored;
    piece pieces[3];
    int64_t first, n, offset;
    stored_range(src, 0, src->n_rows, &first, &n);
    for (int i = 0, count = pieces_of(&t, first, n, pieces); i < count; i++) {
        int file = mf__catalog_where(st->cat, (const uint8_t *)*pieces[i].pointer + pieces[i].offset, &offset);
        if (file >= 0) used[file]++;
    }
}

size_t mf__stage_room(const mf__source *src, int64_t begin, int64_t end) {
    mf__tensor t = src->stored;
    piece pieces[3];
    int64_t first, n;
    size_t room = 0;
    stored_range(src, begin, end, &first, &n);
    for (int i = 0, count = pieces_of(&t, first, n, pieces); i < count; i++) room += mf__infile_room(pieces[i].size);
    return room;
}

/* A read in pieces, of which every reader takes the next. */
typedef struct reading {
    const mf__infile *file;
    int64_t offset, end;
    uint8_t *buf;
    _Atomic int64_t next;
    _Atomic mf_status status; /* of a piece that failed: all are read once more in order, by one, which tells why */
} reading;

static void read_pieces(void *ctx, int64_t begin, int64_t end, int thread) {
    reading *r = ctx;
    int64_t start = r->offset / MF_DIRECT_ALIGN * MF_DIRECT_ALIGN, at;
    (void)begin, (void)end, (void)thread;
    while ((at = atomic_fetch_add(&r->next, READ_BYTES)) < r->end - start) {
        int64_t from = start + at, n = r->end - from < READ_BYTES ? r->end - from : READ_BYTES;
        const uint8_t *data;
        mf_status status = mf__infile_read(r->file, from, n, r->buf + at, &data, NULL);
        if (status != MF_OK) atomic_store(&r->status, status);
    }
}

/* As mf__infile_read. */
static mf_status read_file(const mf__stage *st, const mf__infile *file, int64_t offset, int64_t size, uint8_t *buf,
                           const uint8_t **data, mf_error *err) {
    reading r = {.file = file, .offset = offset, .end = offset + size, .buf = buf};
    *data = buf + offset % MF_DIRECT_ALIGN;
    if (size > READ_BYTES) mf__pool_run(st->readers, read_pieces, &r, READERS);
    if (size > READ_BYTES && atomic_load(&r.status) == MF_OK) return MF_OK;
    return mf__infile_read(file, offset, size, buf, data, err);
}

static mf_status stage_piece(const mf__stage *st, const piece *p, uint8_t *buf, size_t *used, mf_error *err) {
    const uint8_t *from = (const uint8_t *)*p->pointer + p->offset, *data;
    int64_t offset;
    int file = mf__catalog_where(st->cat, from, &offset);
    if (file < 0) {
        *p->pointer = from; /* in memory already */
        return MF_OK;
    }
    if (st->feed) MF__TRY(st->feed->want(st->feed->user, st->files[file].path, err));
    MF__TRY(read_file(st, &st->files[file], offset, p->size, buf + *used, &data, err));
    *p->pointer = data;
    *used += mf__infile_room(p->size);
    return MF_OK;
}

mf_status mf__stage_rows(const mf__stage *st, const mf__source *src, int64_t begin, int64_t end, uint8_t *buf,
                         size_t *used, mf__source *out, mf_error *err) {
    piece pieces[3];
    int64_t first, n;
    *out = *src;
    stored_range(src, begin, end, &first, &n);
    for (int i = 0, count = pieces_of(&out->stored, first, n, pieces); i < count; i++)
        MF__TRY(stage_piece(st, &pieces[i], buf, used, err));
    out->stored.n_rows = n;
    out->n_rows = end - begin;
    if (mf__stage_in_pieces(src)) out->first = 0;
    return MF_OK;
}
