/* Writing a native model directory.
 *
 *   begin      DIR.partial with a locked marker, model_weights.bin opened
 *   tensor     one sequential pass over model_weights.bin; the table grows in memory
 *   experts    one file per layer, expert after expert
 *   finish     manifest, sync of everything, rename to DIR, sync of the parent, marker removed
 *
 * Until the rename nothing of the name DIR exists. Whatever fails, DIR.partial is removed; a killed process leaves it,
 * and the next begin removes it (native_partial.c). */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "weights/native_build.h"

struct mf__native_writer {
    char *dir;     /* the target */
    char *partial; /* where we write */
    int marker_fd; /* locked */
    char *trunk_path;
    int trunk_fd;
    int64_t trunk_size;
    json_t *tensors; /* name -> description, in the order written */
    json_t *experts; /* the layout as the manifest has it; NULL before the first layer */
    /* the layer being written */
    mf__expert_layout layout;
    int n_experts, next_expert, layer;
    char *expert_path;
    int expert_fd;  /* -1 between layers */
    bool any_layer; /* packed_experts/ is there */
    bool made;      /* partial is ours to remove */
    bool failed;    /* a write failed: finish must not publish */
};

static mf_status no_memory(mf_error *err) {
    return mf__fail(err, MF_E_NOMEM, "no memory to write a model");
}

static void close_fd(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void writer_free(mf__native_writer *w) {
    close_fd(&w->expert_fd);
    close_fd(&w->trunk_fd);
    close_fd(&w->marker_fd);
    json_decref(w->tensors);
    json_decref(w->experts);
    free(w->expert_path);
    free(w->trunk_path);
    free(w->partial);
    free(w->dir);
    free(w);
}

/* ---- begin, abort ---- */

static mf_status create_file(const char *path, int flags, int *fd, mf_error *err) {
    *fd = open(path, flags | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *fd >= 0 ? MF_OK : mf__fail_errno(err, errno, "cannot create %s", path);
}

static mf_status make_partial(mf__native_writer *w, mf_error *err) {
    struct stat st;
    if (lstat(w->dir, &st) == 0)
        return mf__fail(err, MF_E_EXISTS, "%s exists already: choose another name, or remove it first", w->dir);
    if (mkdir(w->partial, 0777) != 0) {
        if (errno != EEXIST) return mf__fail_errno(err, errno, "cannot make the directory %s", w->partial);
        MF__TRY(mf__partial_remove(w->partial, err));
        if (mkdir(w->partial, 0777) != 0) return mf__fail_errno(err, errno, "cannot make the directory %s", w->partial);
    }
    w->made = true;
    char *marker = mf__path_join(w->partial, MF__MARKER_NAME);
    if (!marker) return no_memory(err);
    mf_status status = create_file(marker, O_RDWR | O_APPEND, &w->marker_fd, err);
    free(marker);
    if (status == MF_OK && flock(w->marker_fd, LOCK_EX | LOCK_NB) != 0 && errno != ENOTSUP && errno != ENOLCK)
        status = mf__fail_errno(err, errno, "cannot lock the marker in %s", w->partial);
    return status;
}

static mf_status begin(mf__native_writer *w, const char *dir, mf_error *err) {
    w->marker_fd = w->trunk_fd = w->expert_fd = -1;
    w->dir = mf__path_trim(dir);
    w->tensors = json_object();
    size_t size = strlen(dir) + sizeof MF__PARTIAL;
    w->partial = malloc(size);
    if (!w->dir || !w->tensors || !w->partial) return no_memory(err);
    snprintf(w->partial, size, "%s" MF__PARTIAL, w->dir);
    MF__TRY(make_partial(w, err));
    w->trunk_path = mf__path_join(w->partial, MF__TRUNK_NAME);
    if (!w->trunk_path) return no_memory(err);
    return create_file(w->trunk_path, O_RDWR, &w->trunk_fd, err);
}

mf_status mf__native_writer_begin(const char *dir, mf__native_writer **out, mf_error *err) {
    *out = NULL;
    mf__native_writer *w = calloc(1, sizeof *w);
    if (!w) return no_memory(err);
    mf_status status = begin(w, dir, err);
    if (status != MF_OK)
        mf__native_writer_abort(w);
    else
        *out = w;
    return status;
}

void mf__native_writer_abort(mf__native_writer *w) {
    if (!w) return;
    close_fd(&w->expert_fd);
    close_fd(&w->trunk_fd);
    if (w->made) mf__dir_remove(w->partial, NULL); /* the marker stays locked meanwhile */
    writer_free(w);
}

/* ---- the trunk ---- */

static json_t *describe(const mf__entry *e, int64_t offset, int bits) {
    json_t *shape = json_array();
    for (int i = 0; i < e->n_dims; i++) json_array_append_new(shape, json_integer(e->dims[i]));
    json_t *obj = json_pack("{s:I, s:I, s:o, s:s}", "offset", (json_int_t)offset, "size", (json_int_t)e->size, "shape",
                            shape, "dtype", mf__type_name(e->type));
    if (obj && bits) json_object_set_new(obj, "bits", json_integer(bits));
    return obj;
}

static mf_status check_tensor(const mf__native_writer *w, const mf__entry *entry, mf_error *err) {
    MF__TRY(mf__entry_check_name(w->dir, entry->name, err));
    if (entry->type >= MF_TYPE_AFFINE || entry->n_dims < 0 || entry->n_dims > MF_MAX_DIMS)
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s: type %s with %d dimensions cannot be stored", w->dir,
                        entry->name, mf__type_name(entry->type), entry->n_dims);
    mf__entry e = *entry;
    MF__TRY(mf__entry_size(w->dir, &e, err));
    if (e.size != entry->size)
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s: %" PRId64 " bytes given, its shape needs %" PRId64, w->dir,
                        e.name, entry->size, e.size);
    if (json_object_get(w->tensors, e.name))
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s is written twice", w->dir, e.name);
    return MF_OK;
}

static mf_status write_tensor(mf__native_writer *w, const mf__entry *entry, int bits, mf_error *err) {
    MF__TRY(check_tensor(w, entry, err));
    static const uint8_t zeros[MF__TRUNK_ALIGN];
    int64_t padding = (MF__TRUNK_ALIGN - w->trunk_size % MF__TRUNK_ALIGN) % MF__TRUNK_ALIGN;
    int64_t offset = w->trunk_size + padding;
    MF__TRY(mf__pwrite_all(w->trunk_fd, zeros, (size_t)padding, w->trunk_size, w->trunk_path, err));
    MF__TRY(mf__pwrite_all(w->trunk_fd, entry->data, (size_t)entry->size, offset, w->trunk_path, err));
    w->trunk_size = offset + entry->size;
    json_t *obj = describe(entry, offset, bits);
    if (!obj || json_object_set_new(w->tensors, entry->name, obj) != 0)
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s cannot be described: no memory, or a name that is not UTF-8",
                        w->dir, entry->name);
    return MF_OK;
}

mf_status mf__native_writer_tensor(mf__native_writer *w, const mf__entry *entry, int bits, mf_error *err) {
    mf_status status = write_tensor(w, entry, bits, err);
    if (status != MF_OK) w->failed = true;
    return status;
}

char *mf__native_writer_path(mf__native_writer *w, const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n > MF__NAME_MAX || name[0] == '.' || strchr(name, '/') || strchr(name, '\n')) return NULL;
    /* The marker's list is what lets a later run tell our leftovers from someone's files. */
    char line[MF__NAME_MAX + 2];
    memcpy(line, name, n);
    line[n] = '\n';
    if (write(w->marker_fd, line, n + 1) != (ssize_t)(n + 1)) return NULL;
    return mf__path_join(w->partial, name);
}

/* ---- experts ---- */

static mf_status same_experts(mf__native_writer *w, int layer, const mf__expert_layout *layout, int n_experts,
                              mf_error *err) {
    json_t *experts = mf__experts_to_json(layout, n_experts);
    if (!experts) return no_memory(err);
    if (!w->experts) {
        w->experts = experts;
        return MF_OK;
    }
    bool same = json_equal(experts, w->experts);
    json_decref(experts);
    if (same) return MF_OK;
    return mf__fail(err, MF_E_INVALID, "%s: the experts of layer %d are laid out unlike those before them", w->dir,
                    layer);
}

static mf_status open_layer(mf__native_writer *w, int layer, mf_error *err) {
    char name[64];
    snprintf(name, sizeof name, MF__EXPERTS_DIR "/" MF__EXPERT_FILE, layer);
    free(w->expert_path);
    w->expert_path = mf__path_join(w->partial, name);
    char *dir = mf__path_join(w->partial, MF__EXPERTS_DIR);
    mf_status status = w->expert_path && dir ? mf__dir_make(dir, err) : no_memory(err);
    free(dir);
    if (status == MF_OK) status = create_file(w->expert_path, O_RDWR, &w->expert_fd, err);
    if (status == MF_OK) w->any_layer = true;
    return status;
}

static mf_status experts_begin(mf__native_writer *w, int layer, const mf__expert_layout *layout, int n_experts,
                               mf_error *err) {
    if (w->expert_fd >= 0)
        return mf__fail(err, MF_E_INTERNAL, "%s: layer %d begins while layer %d is not complete", w->dir, layer,
                        w->layer);
    if (layer < 0 || layer >= MF__LAYERS_MAX || n_experts < 1 || n_experts > MF__EXPERTS_MAX)
        return mf__fail(err, MF_E_INVALID, "%s: layer %d with %d experts is out of range", w->dir, layer, n_experts);
    MF__TRY(mf__expert_layout_check(layout, err));
    MF__TRY(same_experts(w, layer, layout, n_experts, err));
    MF__TRY(open_layer(w, layer, err));
    w->layout = *layout;
    w->n_experts = n_experts;
    w->next_expert = 0;
    w->layer = layer;
    return MF_OK;
}

mf_status mf__native_writer_experts_begin(mf__native_writer *w, int layer, const mf__expert_layout *layout,
                                          int n_experts, mf_error *err) {
    mf_status status = experts_begin(w, layer, layout, n_experts, err);
    if (status != MF_OK) w->failed = true;
    return status;
}

mf_status mf__native_writer_expert(mf__native_writer *w, const void *blob, mf_error *err) {
    mf_status status;
    if (w->expert_fd < 0 || w->next_expert >= w->n_experts)
        status = mf__fail(err, MF_E_INTERNAL, "%s: expert %d of %d in layer %d is not expected", w->dir, w->next_expert,
                          w->n_experts, w->layer);
    else
        status = mf__pwrite_all(w->expert_fd, blob, (size_t)w->layout.bytes, w->layout.stride * w->next_expert,
                                w->expert_path, err);
    if (status != MF_OK) w->failed = true;
    w->next_expert++;
    return status;
}

/* The space between experts reads as zeros; only the end of the last one has to be made. */
static mf_status experts_end(mf__native_writer *w, mf_error *err) {
    if (w->expert_fd < 0 || w->next_expert != w->n_experts)
        return mf__fail(err, MF_E_INTERNAL, "%s: layer %d ends after %d of %d experts", w->dir, w->layer,
                        w->next_expert, w->n_experts);
    if (ftruncate(w->expert_fd, (off_t)(w->layout.stride * w->n_experts)) != 0)
        return mf__fail_errno(err, errno, "cannot set the length of %s", w->expert_path);
    if (fsync(w->expert_fd) != 0) return mf__fail_errno(err, errno, "cannot sync %s", w->expert_path);
    int fd = w->expert_fd;
    w->expert_fd = -1;
    return close(fd) == 0 ? MF_OK : mf__fail_errno(err, errno, "cannot close %s", w->expert_path);
}

mf_status mf__native_writer_experts_end(mf__native_writer *w, mf_error *err) {
    mf_status status = experts_end(w, err);
    if (status != MF_OK) w->failed = true;
    return status;
}

/* ---- finish ---- */

static mf_status write_manifest(mf__native_writer *w, const char *source, const json_t *config, mf_error *err) {
    json_t *own = json_pack("{s:i}", "version", MF_MANIFEST_VERSION);
    if (own && w->experts) json_object_set(own, "experts", w->experts);
    json_t *root = json_pack("{s:s, s:I, s:o, s:O, s:o*}", "model", source, "num_tensors",
                             (json_int_t)json_object_size(w->tensors), "moeflux", own, "tensors", w->tensors, "config",
                             config ? json_deep_copy(config) : NULL);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL;
    char *path = mf__path_join(w->partial, MF__MANIFEST_NAME);
    mf_status status = text && path ? mf__file_replace(path, text, strlen(text), err) : no_memory(err);
    free(path);
    free(text);
    json_decref(root);
    return status;
}

static mf_status sync_tree(mf__native_writer *w, mf_error *err) {
    if (fsync(w->trunk_fd) != 0) return mf__fail_errno(err, errno, "cannot sync %s", w->trunk_path);
    int fd = w->trunk_fd;
    w->trunk_fd = -1;
    if (close(fd) != 0) return mf__fail_errno(err, errno, "cannot close %s", w->trunk_path);
    if (w->any_layer) {
        char *experts = mf__path_join(w->partial, MF__EXPERTS_DIR);
        mf_status status = experts ? mf__dir_sync(experts, err) : no_memory(err);
        free(experts);
        if (status != MF_OK) return status;
    }
    return mf__dir_sync(w->partial, err);
}

static mf_status sync_parent(const mf__native_writer *w, mf_error *err) {
    const char *slash = strrchr(w->dir, '/');
    if (!slash) return mf__dir_sync(".", err);
    char *parent = strndup(w->dir, slash == w->dir ? 1 : (size_t)(slash - w->dir));
    mf_status status = parent ? mf__dir_sync(parent, err) : no_memory(err);
    free(parent);
    return status;
}

static mf_status publish(mf__native_writer *w, mf_error *err) {
    struct stat st;
    if (lstat(w->dir, &st) == 0) /* rename would silently replace an empty directory */
        return mf__fail(err, MF_E_EXISTS, "%s appeared while it was being written: choose another name", w->dir);
    if (rename(w->partial, w->dir) != 0)
        return mf__fail_errno(err, errno, "cannot rename %s to %s", w->partial, w->dir);
    w->made = false; /* from here on the model is complete: nothing is taken back */
    char *marker = mf__path_join(w->dir, MF__MARKER_NAME);
    if (marker) unlink(marker);
    free(marker);
    return sync_parent(w, err);
}

static mf_status finish(mf__native_writer *w, const char *source, const json_t *config, mf_error *err) {
    if (w->failed || w->expert_fd >= 0)
        return mf__fail(err, MF_E_INTERNAL, "%s: finish after a failed write or in the middle of a layer", w->dir);
    MF__TRY(write_manifest(w, source, config, err));
    MF__TRY(sync_tree(w, err));
    return publish(w, err);
}

mf_status mf__native_writer_finish(mf__native_writer *w, const char *source, const json_t *config, mf_error *err) {
    mf_status status = finish(w, source, config, err);
    mf__native_writer_abort(w); /* removes the partial directory unless it was published */
    return status;
}
