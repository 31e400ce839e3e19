/* Making a shard: the small files first, then the trunk or its samples, then a file of experts after the other, each
 * complete or absent. The record in DST.partial says what is being made, and is locked while somebody does. */
#include "convert/shard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/direct.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/strbuf.h"
#include "weights/native_build.h"

#define PIECE ((int64_t)4 << 20)
#define SMALL ((int64_t)256 << 20) /* larger files on top are no part of a model but its trunk */

typedef struct job {
    const mf__shard *what;
    const mf__shard_options *opt;
    mf__native native;
    char *dst, *partial;
    int lock; /* the record in partial */
    uint8_t *buf;
    int64_t done, total;
} job;

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory to make a shard of a model");
}

/* ---- what it will be --------------------------------------------------------------------------------------------- */

static mf_status open_source(const char *src, mf__native *native, mf_error *err) {
    MF__TRY(mf__native_open(src, native, err));
    if (native->shard)
        return mf__fail(err, MF_E_INVALID,
                        "%s is a shard itself, of rank %d of %d: shards are made from the whole model", src,
                        native->shard->rank, native->shard->n_ranks);
    if (!native->has_layout || !native->n_experts)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s has no routed experts, or was made by other tools: convert the model with moeflux", src);
    return MF_OK;
}

mf_status mf__shard_shape(const char *src, int *n_layers, int *n_experts, bool **has, mf_error *err) {
    mf__native native = {0};
    *has = NULL;
    mf_status st = open_source(src, &native, err);
    if (st == MF_OK && !(*has = calloc((size_t)native.n_layers + 1, sizeof **has))) st = no_memory(err);
    for (int l = 0; st == MF_OK && l < native.n_layers; l++) (*has)[l] = native.expert_files[l] != NULL;
    *n_layers = native.n_layers;
    *n_experts = native.n_experts;
    mf__native_close(&native);
    return st;
}

static mf_status check_owners(const mf__native *native, const mf__shard *what, mf_error *err) {
    if (what->n_layers != native->n_layers || what->n_experts != native->n_experts)
        return mf__fail(err, MF_E_INVALID, "owners of %d layers of %d experts, %s has %d of %d", what->n_layers,
                        what->n_experts, native->dir, native->n_layers, native->n_experts);
    for (int l = 0; l < what->n_layers; l++)
        for (int e = 0; e < what->n_experts; e++)
            if (!what->owners[(int64_t)l * what->n_experts + e] && native->expert_files[l])
                return mf__fail(err, MF_E_INVALID, "expert %d of layer %d has no owner", e, l);
    return MF_OK;
}

static int64_t trunk_bytes(const mf__native *native, bool whole) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < mf__catalog_count(native->catalog); i++) {
        int64_t size = mf__catalog_at(native->catalog, i)->size;
        bytes += whole || size < MF_SHARD_TENSOR_HEAD ? size : MF_SHARD_TENSOR_HEAD;
    }
    return bytes;
}

static void measure(const mf__native *native, const mf__shard *what, mf__shard_size *out) {
    *out = (mf__shard_size){.bytes = trunk_bytes(native, what->trunk), .all_bytes = trunk_bytes(native, true)};
    for (int l = 0; l < native->n_layers; l++) {
        if (!native->expert_files[l]) continue;
        out->all_experts += what->n_experts;
        for (int e = 0; e < what->n_experts; e++) out->n_experts += mf__shard_has(what, l, e);
    }
    out->bytes += out->n_experts * native->layout.stride;
    out->all_bytes += out->all_experts * native->layout.stride;
}

mf_status mf__shard_measure(const char *src, const mf__shard *what, mf__shard_size *out, mf_error *err) {
    mf__native native = {0};
    *out = (mf__shard_size){0};
    mf_status st = open_source(src, &native, err);
    if (st == MF_OK) st = check_owners(&native, what, err);
    if (st == MF_OK) measure(&native, what, out);
    mf__native_close(&native);
    return st;
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

static mf_status advance(job *j, int64_t bytes, mf_error *err) {
    j->done += bytes;
    if (!j->opt->progress || !j->opt->progress(j->opt->progress_user, j->done, j->total)) return MF_OK;
    return mf__fail(err, MF_E_CANCELLED, "the same command goes on where it was");
}

/* One range from a file to the same place of another; h may be NULL. */
static mf_status copy_range(job *j, const mf__infile *from, int to, const char *to_path, int64_t at, int64_t size,
                            mf__hash *h, mf_error *err) {
    for (int64_t n; size > 0; at += n, size -= n) {
        const uint8_t *data;
        n = size < PIECE ? size : PIECE;
        MF__TRY(mf__infile_read(from, at, n, j->buf, &data, err));
        MF__TRY(mf__pwrite_all(to, data, (size_t)n, at, to_path, err));
        if (h) mf__hash_update(h, data, (size_t)n);
        MF__TRY(advance(j, n, err));
    }
    return MF_OK;
}

/* Writes into `to`, which is as long as `from`. */
typedef mf_status fill_fn(job *j, const mf__infile *from, int to, const char *to_path, int layer, mf_error *err);

static mf_status write_file(job *j, const char *from_path, const char *path, fill_fn *fill, int layer, mf_error *err) {
    mf__infile from = {.fd = -1, .direct_fd = -1};
    MF__TRY(mf__infile_open(from_path, &from, err));
    mf_status st = MF_OK;
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, from.size)) st = mf__fail_errno(err, errno, "%s", path);
    if (st == MF_OK) st = fill(j, &from, fd, path, layer, err);
    if (st == MF_OK) st = mf__infile_unchanged(&from, err);
    if (st == MF_OK && fsync(fd)) st = mf__fail_errno(err, errno, "%s", path);
    if (fd >= 0) close(fd);
    mf__infile_close(&from);
    return st;
}

/* A file of the shard, complete or absent; one that an earlier run made, of `bytes` bytes that count, is kept. */
static mf_status make_file(job *j, const char *from, const char *name, fill_fn *fill, int layer, int64_t bytes,
                           mf_error *err) {
    mf__strbuf path = {0}, unfinished = {0};
    mf_status st = mf__strbuf_printf(&path, err, "%s/%s", j->partial, name);
    if (st == MF_OK) st = mf__strbuf_printf(&unfinished, err, "%s.tmp", path.data);
    if (st == MF_OK && mf__path_exists(path.data)) {
        st = advance(j, bytes, err);
    } else if (st == MF_OK) {
        st = write_file(j, from, unfinished.data, fill, layer, err);
        if (st == MF_OK && rename(unfinished.data, path.data)) st = mf__fail_errno(err, errno, "%s", path.data);
        if (st != MF_OK) unlink(unfinished.data);
    }
    mf__strbuf_free(&path);
    mf__strbuf_free(&unfinished);
    return st;
}

/* ---- the trunk --------------------------------------------------------------------------------------------------- */

static mf_status fill_trunk(job *j, const mf__infile *from, int to, const char *to_path, int layer, mf_error *err) {
    (void)layer;
    for (int64_t i = 0; i < mf__catalog_count(j->native.catalog); i++) {
        const mf__entry *e = mf__catalog_at(j->native.catalog, i);
        int64_t size = j->what->trunk || e->size < MF_SHARD_TENSOR_HEAD ? e->size : MF_SHARD_TENSOR_HEAD;
        MF__TRY(copy_range(j, from, to, to_path, e->offset, size, NULL, err));
    }
    return MF_OK;
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

/* The checksum of an expert in the model's manifest; false: it has none. */
static bool hash_of(const job *j, int layer, int expert, uint64_t *out) {
    const json_t *set = json_object_get(json_object_get(j->native.manifest, "moeflux"), "experts");
    char digits[16];
    snprintf(digits, sizeof digits, "%d", layer);
    const json_t *text = json_object_get(json_object_get(set, "xxh64"), digits);
    return json_string_length(text) == (size_t)j->what->n_experts * 16 &&
           mf__hash_parse(json_string_value(text) + 16 * expert, out);
}

static mf_status fill_layer(job *j, const mf__infile *from, int to, const char *to_path, int layer, mf_error *err) {
    int64_t sample = from->size < MF_SHARD_SAMPLE ? from->size : MF_SHARD_SAMPLE, before = j->done;
    MF__TRY(copy_range(j, from, to, to_path, 0, sample, NULL, err));
    j->done = before; /* it does not count */
    for (int e = 0; e < j->what->n_experts; e++) {
        mf__hash h;
        uint64_t want;
        if (!mf__shard_has(j->what, layer, e)) continue;
        mf__hash_init(&h, 0);
        MF__TRY(copy_range(j, from, to, to_path, e * j->native.layout.stride, j->native.layout.bytes, &h, err));
        MF__TRY(advance(j, j->native.layout.stride - j->native.layout.bytes, err));
        if (hash_of(j, layer, e, &want) && want != mf__hash_digest(&h))
            return mf__fail(
                err, MF_E_FORMAT,
                "layer %d, expert %d of %s is damaged: its checksum is not the one that was written; moeflux "
                "verify %s says more",
                layer, e, j->native.dir, j->native.dir);
    }
    return MF_OK;
}

static mf_status make_layers(job *j, mf_error *err) {
    char name[64];
    for (int l = 0; l < j->native.n_layers; l++) {
        int64_t n = 0;
        if (!j->native.expert_files[l]) continue;
        for (int e = 0; e < j->what->n_experts; e++) n += mf__shard_has(j->what, l, e);
        snprintf(name, sizeof name, MF__EXPERTS_DIR "/" MF__EXPERT_FILE, l);
        MF__TRY(make_file(j, j->native.expert_files[l], name, fill_layer, l, n * j->native.layout.stride, err));
    }
    return MF_OK;
}

/* ---- the small files --------------------------------------------------------------------------------------------- */

static mf_status copy_small(job *j, const char *name, mf_error *err) {
    struct stat st;
    char *from = mf__path_join(j->native.dir, name), *to = mf__path_join(j->partial, name);
    mf_status status = from && to ? MF_OK : no_memory(err);
    if (status == MF_OK && stat(from, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= SMALL)
        status = mf__file_copy(from, to, err);
    free(from);
    free(to);
    return status;
}

/* All files on top but the trunk: configuration, tokenizer, manifest. */
static mf_status copy_small_files(job *j, mf_error *err) {
    DIR *dir = opendir(j->native.dir);
    mf_status st = dir ? MF_OK : mf__fail_errno(err, errno, "%s", j->native.dir);
    for (struct dirent *e; st == MF_OK && (e = readdir(dir));)
        if (e->d_name[0] != '.' && strcmp(e->d_name, MF__TRUNK_NAME)) st = copy_small(j, e->d_name, err);
    if (dir) closedir(dir);
    return st;
}

/* ---- the directory ----------------------------------------------------------------------------------------------- */

/* What is being made, of which model: the record, and a hash of the manifest, which has the checksums of everything. */
static mf_status work_text(const job *j, mf__strbuf *out, mf_error *err) {
    char *record = mf__shard_text(j->what), *manifest = json_dumps(j->native.manifest, JSON_COMPACT | JSON_SORT_KEYS);
    mf_status st = record && manifest ? MF_OK : no_memory(err);
    if (st == MF_OK)
        st = mf__strbuf_printf(out, err, "%016" PRIx64 "\n%s", mf__hash_bytes(manifest, strlen(manifest)), record);
    free(record);
    free(manifest);
    return st;
}

static mf_status take_lock(job *j, const char *marker, mf_error *err) {
    j->lock = open(marker, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (j->lock < 0) return mf__fail_errno(err, errno, "%s", marker);
    if (flock(j->lock, LOCK_EX | LOCK_NB))
        return mf__fail(err, MF_E_EXISTS, "%s is being written by another moeflux", j->partial);
    return MF_OK;
}

/* Makes DST.partial, or finds that it is of the same work. */
static mf_status begin(job *j, mf_error *err) {
    mf__strbuf work = {0};
    char *marker = mf__path_join(j->partial, MF__MARKER_NAME), *experts = mf__path_join(j->partial, MF__EXPERTS_DIR);
    char *there = NULL;
    size_t size;
    mf_status st = marker && experts ? work_text(j, &work, err) : no_memory(err);
    bool old = st == MF_OK && mf__path_exists(j->partial);
    if (st == MF_OK && old && !mf__path_exists(marker))
        st = mf__fail(err, MF_E_EXISTS, "%s exists and was not made by moeflux: move it away or remove it", j->partial);
    if (st == MF_OK && !old) st = mf__dir_make(j->partial, err);
    if (st == MF_OK) st = take_lock(j, marker, err);
    if (st == MF_OK && old) st = mf__file_read(marker, (size_t)256 << 20, &there, &size, err);
    bool same = there && !strcmp(there, work.data);
    if (st == MF_OK && there && *there && !same && !j->opt->restart)
        st = mf__fail(err, MF_E_EXISTS,
                      "%s is the beginning of another shard, or of another model: go on with that, or start over with "
                      "--restart",
                      j->partial);
    if (st == MF_OK && old && (!same || j->opt->restart)) {
        st = mf__dir_remove(j->partial, err);
        close(j->lock);
        j->lock = -1;
        if (st == MF_OK) st = mf__dir_make(j->partial, err);
        if (st == MF_OK) st = take_lock(j, marker, err);
        same = false;
    }
    if (st == MF_OK && !same) st = mf__pwrite_all(j->lock, work.data, work.size, 0, marker, err);
    if (st == MF_OK) st = mf__dir_make(experts, err);
    free(there);
    free(marker);
    free(experts);
    mf__strbuf_free(&work);
    return st;
}

static mf_status finish(job *j, mf_error *err) {
    char *record = mf__shard_text(j->what), *path = mf__path_join(j->partial, MF_SHARD_NAME);
    mf_status st = record && path ? MF_OK : no_memory(err);
    if (st == MF_OK) st = mf__file_replace(path, record, strlen(record), err);
    if (st == MF_OK) st = mf__partial_publish(j->partial, j->dst, err);
    if (st == MF_OK) st = mf__published_settle(j->dst, err);
    free(path);
    free(record);
    return st;
}

static mf_status check_space(const job *j, mf_error *err) {
    struct statvfs fs;
    if (statvfs(j->partial, &fs)) return MF_OK; /* writing will tell */
    double have = (double)fs.f_bavail * (double)fs.f_frsize, need = (double)j->total;
    char *experts = mf__path_join(j->partial, MF__EXPERTS_DIR);
    DIR *dir = experts ? opendir(experts) : NULL;
    bool begun = false; /* what is there already takes no room */
    for (struct dirent *e; dir && (e = readdir(dir));) begun |= e->d_name[0] != '.';
    if (dir) closedir(dir);
    free(experts);
    if (begun || need <= have) return MF_OK;
    return mf__fail(err, MF_E_NO_SPACE, "No space left for %s: it needs %.3f GB, and %.3f GB are free there", j->dst,
                    need * 1e-9, have * 1e-9);
}

static mf_status make(job *j, const char *src, mf_error *err) {
    mf__shard_size size;
    MF__TRY(open_source(src, &j->native, err));
    MF__TRY(check_owners(&j->native, j->what, err));
    measure(&j->native, j->what, &size);
    j->total = size.bytes;
    if (mf__path_exists(j->dst))
        return mf__fail(err, MF_E_EXISTS, "%s exists already; remove it or choose another name", j->dst);
    MF__TRY(begin(j, err));
    MF__TRY(check_space(j, err));
    MF__TRY(copy_small_files(j, err));
    MF__TRY(make_file(j, mf__catalog_file(j->native.catalog, 0), MF__TRUNK_NAME, fill_trunk, 0,
                      trunk_bytes(&j->native, j->what->trunk), err));
    MF__TRY(make_layers(j, err));
    return finish(j, err);
}

mf_status mf__shard_make(const char *src, const char *dst, const mf__shard *what, const mf__shard_options *opt,
                         mf_error *err) {
    job j = {.what = what, .opt = opt, .dst = mf__path_trim(dst), .lock = -1};
    mf__strbuf partial = {0};
    mf_status st = j.dst ? mf__strbuf_printf(&partial, err, "%s" MF__PARTIAL, j.dst) : no_memory(err);
    j.partial = partial.data;
    j.buf = mf__direct_alloc(mf__infile_room(PIECE));
    if (st == MF_OK && !j.buf) st = no_memory(err);
    if (st == MF_OK) st = make(&j, src, err);
    mf__direct_free(j.buf, mf__infile_room(PIECE));
    if (j.lock >= 0) close(j.lock);
    mf__native_close(&j.native);
    mf__strbuf_free(&partial);
    free(j.dst);
    return st;
}
