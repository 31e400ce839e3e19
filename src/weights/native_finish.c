/* The beginning and the end of writing a native model directory.
 *
 *   begin, resume   DIR.partial with a locked marker (and a journal), model_weights.bin opened
 *   finish          manifest, sync of everything, rename to DIR, sync of the parent, marker and journal removed
 *
 * Until the rename nothing of the name DIR exists. A failure removes DIR.partial, a killed process leaves it: the next
 * begin removes it (native_partial.c), the next resume goes on with it (native_journal.c). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weights/native_writer.h"

#define COMPANION_MAX ((size_t)1 << 30)

mf_status mf__writer_no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory to write a model");
}

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void close_files(mf__native_writer *w) {
    mf__outfile_drop(&w->trunk);
    for (int i = 0; i < 2; i++) mf__outfile_drop(&w->sets[i].file);
}

static void writer_free(mf__native_writer *w) {
    close_files(w);
    for (int i = 0; i < 2; i++) {
        json_decref(w->sets[i].json);
        json_decref(w->sets[i].hashes);
        mf__strbuf_free(&w->sets[i].layer_hashes);
    }
    for (int l = 0; w->layers && l < MF__LAYERS_MAX; l++)
        for (int i = 0; i < 2; i++) free(w->layers[l].hashes[i]);
    free(w->layers);
    close_fd(&w->journal_fd);
    close_fd(&w->marker_fd);
    json_decref(w->open_tensor);
    json_decref(w->tensors);
    json_decref(w->part_tensors);
    json_decref(w->files);
    json_decref(w->notes);
    mf__strbuf_free(&w->pending);
    free(w->journal_path);
    free(w->partial);
    free(w->dir);
    free(w);
}

/* ---- begin ---- */

/* The marker of a new partial directory, or of one that is there. */
static mf_status lock_marker(mf__native_writer *w, bool existed, mf_error *err) {
    char *marker = mf__path_join(w->partial, MF__MARKER_NAME);
    if (!marker) return mf__writer_no_memory(err);
    mf_status status = MF_OK;
    w->marker_fd = open(marker, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | (existed ? 0 : O_CREAT | O_EXCL), 0666);
    if (w->marker_fd < 0 && existed)
        status =
            mf__fail(err, MF_E_EXISTS, "%s exists and was not made by moeflux: move it away or remove it", w->partial);
    else if (w->marker_fd < 0)
        status = mf__fail_errno(err, errno, "cannot create %s", marker);
    else if (flock(w->marker_fd, LOCK_EX | LOCK_NB) != 0 && errno != ENOTSUP && errno != ENOLCK)
        status = errno == EWOULDBLOCK
                     ? mf__fail(err, MF_E_EXISTS, "%s is being written by another moeflux convert", w->partial)
                     : mf__fail_errno(err, errno, "cannot lock the marker in %s", w->partial);
    free(marker);
    return status;
}

static mf_status make_partial(mf__native_writer *w, mf_error *err) {
    if (mkdir(w->partial, 0777) != 0) return mf__fail_errno(err, errno, "cannot make the directory %s", w->partial);
    w->made = true;
    return lock_marker(w, false, err);
}

/* A partial directory of an earlier run: goes on with it (*fresh false), or clears it away (*fresh true). */
static mf_status take_over(mf__native_writer *w, const mf__native_work *work, bool *fresh, mf_error *err) {
    *fresh = !work || work->restart;
    if (!*fresh) {
        MF__TRY(lock_marker(w, true, err));
        MF__TRY(mf__journal_open(w, work, fresh, err));
        if (!*fresh) {
            w->made = true;
            return MF_OK;
        }
        close_fd(&w->journal_fd);
        close_fd(&w->marker_fd);
        free(w->journal_path);
        free(w->layers);
        w->journal_path = NULL;
        w->layers = NULL;
    }
    return mf__partial_remove(w->partial, err);
}

static mf_status open_partial(mf__native_writer *w, const mf__native_work *work, mf_error *err) {
    struct stat st;
    if (lstat(w->dir, &st) == 0)
        return mf__fail(err, MF_E_EXISTS, "%s exists already: choose another name, or remove it first", w->dir);
    bool fresh = true;
    if (lstat(w->partial, &st) == 0) MF__TRY(take_over(w, work, &fresh, err));
    if (!fresh) {
        mf__partial_sweep(w->partial);
        return MF_OK;
    }
    MF__TRY(make_partial(w, err));
    return work ? mf__journal_open(w, work, &fresh, err) : MF_OK;
}

static mf_status open_trunk(mf__native_writer *w, mf_error *err) {
    char *path = mf__path_join(w->partial, MF__TRUNK_NAME);
    int64_t start = mf__journal_trunk_size(w);
    if (!path) return mf__writer_no_memory(err);
    if (!start) unlink(path); /* what an interrupted run left of it */
    mf_status status = mf__outfile_open(path, start, &w->trunk, err);
    free(path);
    return status;
}

static mf_status begin(mf__native_writer *w, const char *dir, const mf__native_work *work, mf_error *err) {
    w->marker_fd = w->journal_fd = w->trunk.fd = -1;
    w->sets[0].dir = MF__EXPERTS_DIR;
    w->sets[1].dir = MF__SECOND_DIR;
    for (int i = 0; i < 2; i++) {
        w->sets[i].file.fd = -1;
        w->sets[i].hashes = json_object();
    }
    w->dir = mf__path_trim(dir);
    w->tensors = json_object();
    w->part_tensors = json_object();
    w->files = json_object();
    w->notes = json_array();
    size_t size = strlen(dir) + sizeof MF__PARTIAL;
    w->partial = malloc(size);
    if (!w->dir || !w->tensors || !w->part_tensors || !w->files || !w->notes || !w->partial || !w->sets[1].hashes)
        return mf__writer_no_memory(err);
    snprintf(w->partial, size, "%s" MF__PARTIAL, w->dir);
    MF__TRY(open_partial(w, work, err));
    return open_trunk(w, err);
}

mf_status mf__native_writer_resume(const char *dir, const mf__native_work *work, mf__native_writer **out,
                                   mf_error *err) {
    *out = NULL;
    mf__native_writer *w = calloc(1, sizeof *w);
    if (!w) return mf__writer_no_memory(err);
    mf_status status = begin(w, dir, work, err);
    if (status != MF_OK)
        mf__native_writer_suspend(w);
    else
        *out = w;
    return status;
}

mf_status mf__native_writer_begin(const char *dir, mf__native_writer **out, mf_error *err) {
    return mf__native_writer_resume(dir, NULL, out, err);
}

/* ---- giving up ---- */

void mf__native_writer_abort(mf__native_writer *w) {
    if (!w) return;
    close_files(w);
    close_fd(&w->journal_fd);
    if (w->made) mf__dir_remove(w->partial, NULL); /* the marker stays locked meanwhile */
    writer_free(w);
}

bool mf__native_writer_suspend(mf__native_writer *w) {
    if (!w) return false;
    if (w->journal_fd >= 0 && w->made) mf__journal_commit(w, NULL);
    bool kept = w->n_committed > 0;
    if (kept)
        writer_free(w);
    else
        mf__native_writer_abort(w);
    return kept;
}

/* ---- finish ---- */

/* The layout with the checksums: {..., "xxh64": {"0": "16 digits per expert", ...}}. */
static bool add_set(json_t *own, const char *key, const mf__expert_set *set) {
    if (!set->json) return true;
    json_t *obj = json_deep_copy(set->json);
    return obj && json_object_set(obj, "xxh64", set->hashes) == 0 && json_object_set_new(own, key, obj) == 0;
}

/* Checksums of the files that were put beside the weights. One that was announced and not written is left out. */
static mf_status sum_files(mf__native_writer *w, json_t *own, mf_error *err) {
    const char *name;
    void *next;
    json_t *value, *sums = json_object();
    mf_status status = sums ? MF_OK : mf__writer_no_memory(err);
    json_object_foreach_safe(w->files, next, name, value) {
        char hash[17], *bytes = NULL, *path = mf__path_join(w->partial, name);
        size_t size;
        if (status == MF_OK && !path) status = mf__writer_no_memory(err);
        if (status == MF_OK && mf__path_exists(path)) {
            status = mf__file_read(path, COMPANION_MAX, &bytes, &size, err);
            if (status == MF_OK) {
                mf__hash_text(mf__hash_bytes(bytes, size), hash);
                json_object_set_new(sums, name, json_pack("{s:I, s:s}", "size", (json_int_t)size, "xxh64", hash));
            }
        }
        free(bytes);
        free(path);
    }
    if (status == MF_OK && json_object_set(own, "files", sums) != 0) status = mf__writer_no_memory(err);
    json_decref(sums);
    return status;
}

static mf_status write_manifest(mf__native_writer *w, const char *source, const json_t *config, const json_t *about,
                                mf_error *err) {
    json_t *own = json_pack("{s:i}", "version", MF_MANIFEST_VERSION);
    if (!own || !add_set(own, "experts", &w->sets[0]) || !add_set(own, "experts_2bit", &w->sets[1]) ||
        (about && json_object_set_new(own, "conversion", json_deep_copy(about)) != 0)) {
        json_decref(own);
        return mf__writer_no_memory(err);
    }
    mf_status summed = sum_files(w, own, err);
    if (summed != MF_OK) {
        json_decref(own);
        return summed;
    }
    json_t *root = json_pack("{s:s, s:I, s:o, s:O, s:o*}", "model", source, "num_tensors",
                             (json_int_t)json_object_size(w->tensors), "moeflux", own, "tensors", w->tensors, "config",
                             config ? json_deep_copy(config) : NULL);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    char *path = mf__path_join(w->partial, MF__MANIFEST_NAME);
    mf_status status = text && path ? mf__file_replace(path, text, strlen(text), err) : mf__writer_no_memory(err);
    free(path);
    free(text);
    json_decref(root);
    return status;
}

static mf_status publish(mf__native_writer *w, mf_error *err) {
    MF__TRY(mf__partial_publish(w->partial, w->dir, err));
    w->made = false; /* from here on the model is complete: nothing is taken back */
    return mf__published_settle(w->dir, err);
}

static mf_status finish(mf__native_writer *w, const char *source, const json_t *config, const json_t *about,
                        mf_error *err) {
    if (w->failed || w->in_layer || w->open_tensor)
        return mf__fail(err, MF_E_INTERNAL, "%s: finish after a failed write or in the middle of a layer", w->dir);
    MF__TRY(write_manifest(w, source, config, about, err));
    MF__TRY(mf__outfile_close(&w->trunk, err));
    return publish(w, err);
}

mf_status mf__native_writer_finish_about(mf__native_writer *w, const char *source, const json_t *config,
                                         const json_t *about, mf_error *err) {
    mf_status status = finish(w, source, config, about, err);
    if (status != MF_OK)
        mf__native_writer_suspend(w); /* keeps what a resume can use, if this can be resumed */
    else
        writer_free(w);
    return status;
}

mf_status mf__native_writer_finish(mf__native_writer *w, const char *source, const json_t *config, mf_error *err) {
    return mf__native_writer_finish_about(w, source, config, NULL, err);
}
