/* The expert files: opening, checking, mapping. A layer may be in one directory or in several; where several have it,
 * reads are spread over them. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/guard.h"
#include "base/hash.h"
#include "store/internal.h"

static mf__expert_file *file_at(const mf__store *s, int dir, int layer) {
    return &s->files[dir * s->n_layers + layer];
}

static int64_t bytes_needed(const mf__store *s) {
    return (s->n_experts - 1) * s->stride + s->bytes;
}

static mf_status check_size(const mf__store *s, const char *path, int64_t size, mf_error *err) {
    int64_t need = bytes_needed(s);
    if (size >= need) return MF_OK;
    return mf__fail(err, MF_E_FORMAT, "%s: %lld bytes, but %d experts of %lld bytes need %lld; convert the model again",
                    path, (long long)size, s->n_experts, (long long)s->stride, (long long)need);
}

/* The beginnings of the first and the last expert. False when they cannot be read: then reading will say so. */
static bool take_sample(const mf__store *s, const mf__expert_file *f, uint64_t *out) {
    uint8_t bytes[MF_BLOCK];
    size_t n = s->bytes < MF_BLOCK ? (size_t)s->bytes : MF_BLOCK;
    mf__hash h;
    mf__hash_init(&h, 0);
    for (int i = 0; i < 2; i++) {
        int64_t at = i ? (s->n_experts - 1) * s->stride : 0;
        if (mf__pread_all(f->fd, bytes, n, at, f->path, NULL) != MF_OK) return false;
        mf__hash_update(&h, bytes, n);
    }
    *out = mf__hash_digest(&h);
    return true;
}

static mf_status open_one(mf__store *s, const char *path, mf__expert_file *f, mf_error *err) {
    int64_t size;
    MF__TRY(mf__file_open(path, &f->fd, &size, err));
    f->path = strdup(path);
    if (!f->path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    MF__TRY(check_size(s, path, size, err));
    struct stat st;
    if (fstat(f->fd, &st) || !take_sample(s, f, &f->sample)) return mf__fail(err, MF_E_IO, "%s cannot be read", path);
    f->mtime = st.st_mtim;
    return MF_OK;
}

/* Copies in two directories must be the same file: a stale one would give wrong tokens. The size and the beginning of
 * the first expert are compared. */
static mf_status check_copies(const mf__store *s, int layer, mf_error *err) {
    uint8_t a[MF_BLOCK], b[MF_BLOCK];
    const mf__expert_file *first = NULL;
    size_t n = s->bytes < MF_BLOCK ? (size_t)s->bytes : MF_BLOCK;
    for (int d = 0; d < s->n_dirs; d++) {
        const mf__expert_file *f = file_at(s, d, layer);
        if (!f->path) continue;
        if (!first) {
            first = f;
            continue;
        }
        MF__TRY(mf__pread_all(first->fd, a, n, 0, first->path, err));
        MF__TRY(mf__pread_all(f->fd, b, n, 0, f->path, err));
        if (memcmp(a, b, n))
            return mf__fail(err, MF_E_MISMATCH, "%s and %s differ; copies of a layer must be the same", first->path,
                            f->path);
    }
    return MF_OK;
}

mf_status mf__files_open(mf__store *s, const mf__store_config *config, mf_error *err) {
    s->files = mf__table(s, (size_t)s->n_files, sizeof *s->files);
    if (!s->files) return mf__fail(err, MF_E_NOMEM, "no memory for %d expert files", s->n_files);
    for (int i = 0; i < s->n_files; i++) s->files[i].fd = s->files[i].direct = s->files[i].guard = -1;
    for (int i = 0; i < s->n_files; i++)
        if (config->files[i]) MF__TRY(open_one(s, config->files[i], &s->files[i], err));
    for (int l = 0; l < s->n_layers; l++) MF__TRY(check_copies(s, l, err));
    return MF_OK;
}

mf_status mf__files_direct(mf__store *s) {
#ifdef O_DIRECT
    for (int i = 0; i < s->n_files; i++) {
        mf__expert_file *f = &s->files[i];
        if (!f->path || f->direct >= 0) continue;
        f->direct = open(f->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        if (f->direct < 0) return MF_E_UNSUPPORTED;
    }
    return MF_OK;
#else
    (void)s;
    return MF_E_UNSUPPORTED;
#endif
}

mf_status mf__files_map(mf__store *s, mf_error *err) {
    for (int l = 0; l < s->n_layers; l++) {
        for (int d = 0; d < s->n_dirs; d++) {
            mf__expert_file *f = file_at(s, d, l);
            if (!f->path) continue;
            MF__TRY(mf__map_open(f->path, &f->map, err));
            MF__TRY(check_size(s, f->path, (int64_t)f->map.size, err));
            f->guard = mf__guard_add(f->map.data, f->map.size);
            break; /* one copy is enough */
        }
    }
    return MF_OK;
}

void mf__files_close(mf__store *s) {
    for (int i = 0; s->files && i < s->n_files; i++) {
        mf__expert_file *f = &s->files[i];
        if (f->fd >= 0) close(f->fd);
        if (f->direct >= 0) close(f->direct);
        mf__guard_remove(f->guard);
        mf__map_close(&f->map);
        free(f->path);
    }
    free(s->files);
}

bool mf__files_has(const mf__store *s, int layer) {
    if (s->below) return mf__files_has(s->below, layer);
    for (int d = 0; d < s->n_dirs; d++)
        if (file_at(s, d, layer)->path) return true;
    return false;
}

int64_t mf__files_total(const mf__store *s) {
    int64_t total = 0;
    for (int l = 0; l < s->n_layers; l++)
        if (mf__files_has(s, l)) total += s->n_experts * s->stride;
    return total;
}

/* The copy that is mapped; NULL: none. */
static const mf__expert_file *mapped_file(const mf__store *s, int layer) {
    for (int d = 0; d < s->n_dirs; d++)
        if (file_at(s, d, layer)->map.data) return file_at(s, d, layer);
    return NULL;
}

/* Somebody wrote to the file. If it has other experts now, what is in memory and what would be read do not belong
 * together. */
static mf_status check_changed(mf__store *s, mf__expert_file *f, const struct stat *st, mf_error *err) {
    uint64_t sample;
    pthread_mutex_lock(&s->lock);
    bool changed = f->mtime.tv_sec != st->st_mtim.tv_sec || f->mtime.tv_nsec != st->st_mtim.tv_nsec;
    pthread_mutex_unlock(&s->lock);
    if (!changed || !take_sample(s, f, &sample)) return MF_OK;
    if (sample != f->sample)
        return mf__fail(err, MF_E_MISMATCH, "%s was replaced while it was in use; open the model again", f->path);
    pthread_mutex_lock(&s->lock);
    f->mtime = st->st_mtim;
    pthread_mutex_unlock(&s->lock);
    return MF_OK;
}

/* Zeros may lie where the bytes of a file are again that was cut. */
static mf_status map_again(const mf__expert_file *f, mf_error *err) {
    void *again = mmap((void *)f->map.data, f->map.size, PROT_READ, MAP_SHARED | MAP_FIXED, f->fd, 0);
    return again == MAP_FAILED ? mf__fail_errno(err, errno, "mapping %s again", f->path) : MF_OK;
}

mf_status mf__files_before(mf__store *s, int layer, int64_t *mark, mf_error *err) {
    if (s->below) return mf__files_before(s->below, layer, mark, err);
    for (int d = 0; d < s->n_dirs; d++) {
        mf__expert_file *f = file_at(s, d, layer);
        struct stat st;
        if (!f->path) continue;
        if (fstat(f->fd, &st)) return mf__fail_errno(err, errno, "%s", f->path);
        if (f->map.data) MF__TRY(check_size(s, f->path, st.st_size, err));
        MF__TRY(check_changed(s, f, &st, err));
        if (!f->map.data) continue;
        *mark = mf__guard_faults(f->guard);
        if (*mark) MF__TRY(map_again(f, err));
    }
    return MF_OK;
}

mf_status mf__files_after(const mf__store *s, int layer, int64_t mark, mf_error *err) {
    const mf__expert_file *f = mapped_file(s, layer);
    if (mf__guard_faults(f->guard) == mark) return MF_OK;
    return mf__fail(err, MF_E_IO, "%s was cut while layer %d was using it; convert the model again", f->path, layer);
}
