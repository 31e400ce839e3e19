/* What goes into a native model directory: one sequential pass over model_weights.bin, one over each layer's experts.
 *
 * Checksums are taken on the way. Every function that fails leaves the writer fit for abort or suspend only. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/native_writer.h"

static const uint8_t zeros[MF_DIRECT_ALIGN];

static mf_status keep_failure(mf__native_writer *w, mf_status status) {
    if (status != MF_OK) w->failed = true;
    return status;
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
    mf__type unused;
    if (w->open_tensor)
        return mf__fail(err, MF_E_INTERNAL, "%s: tensor %s begins while %s is not complete", w->dir, entry->name,
                        w->open_name);
    MF__TRY(mf__entry_check_name(w->dir, entry->name, err));
    if (!mf__type_parse(mf__type_name(entry->type), &unused) || entry->n_dims < 0 || entry->n_dims > MF_MAX_DIMS)
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

static mf_status tensor_begin(mf__native_writer *w, const mf__entry *entry, int bits, mf_error *err) {
    MF__TRY(check_tensor(w, entry, err));
    int64_t padding = (MF__TRUNK_ALIGN - w->trunk.size % MF__TRUNK_ALIGN) % MF__TRUNK_ALIGN;
    MF__TRY(mf__outfile_append(&w->trunk, zeros, padding, err));
    w->open_tensor = describe(entry, w->trunk.size, bits);
    if (!w->open_tensor) return mf__writer_no_memory(err);
    snprintf(w->open_name, sizeof w->open_name, "%s", entry->name);
    w->open_left = entry->size;
    mf__hash_init(&w->open_hash, 0);
    return MF_OK;
}

static mf_status tensor_data(mf__native_writer *w, const void *data, int64_t size, mf_error *err) {
    if (!w->open_tensor || size > w->open_left)
        return mf__fail(err, MF_E_INTERNAL, "%s: %" PRId64 " bytes more than tensor %s has", w->dir, size,
                        w->open_name);
    mf__hash_update(&w->open_hash, data, (size_t)size);
    w->open_left -= size;
    w->pending_bytes += size;
    return mf__outfile_append(&w->trunk, data, size, err);
}

static mf_status tensor_end(mf__native_writer *w, mf_error *err) {
    char hash[17];
    if (!w->open_tensor || w->open_left)
        return mf__fail(err, MF_E_INTERNAL, "%s: tensor %s ends %" PRId64 " bytes too early", w->dir, w->open_name,
                        w->open_left);
    mf__hash_text(mf__hash_digest(&w->open_hash), hash);
    json_t *tensor = w->open_tensor;
    w->open_tensor = NULL;
    if (json_object_set_new(tensor, "xxh64", json_string(hash)) != 0 ||
        json_object_set(w->tensors, w->open_name, tensor) != 0 ||
        json_object_set(w->part_tensors, w->open_name, tensor) != 0) {
        json_decref(tensor);
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s cannot be described: no memory, or a name that is not UTF-8",
                        w->dir, w->open_name);
    }
    json_decref(tensor);
    return MF_OK;
}

mf_status mf__native_writer_tensor_begin(mf__native_writer *w, const mf__entry *entry, int bits, mf_error *err) {
    return keep_failure(w, tensor_begin(w, entry, bits, err));
}

mf_status mf__native_writer_tensor_data(mf__native_writer *w, const void *data, int64_t size, mf_error *err) {
    return keep_failure(w, tensor_data(w, data, size, err));
}

mf_status mf__native_writer_tensor_end(mf__native_writer *w, mf_error *err) {
    return keep_failure(w, tensor_end(w, err));
}

mf_status mf__native_writer_tensor(mf__native_writer *w, const mf__entry *entry, int bits, mf_error *err) {
    MF__TRY(mf__native_writer_tensor_begin(w, entry, bits, err));
    MF__TRY(mf__native_writer_tensor_data(w, entry->data, entry->size, err));
    return mf__native_writer_tensor_end(w, err);
}

bool mf__native_writer_has_tensor(const mf__native_writer *w, const char *name) {
    return json_object_get(w->tensors, name) != NULL;
}

char *mf__native_writer_path(mf__native_writer *w, const char *name) {
    size_t n = strlen(name);
    if (n == 0 || n > MF__NAME_MAX || name[0] == '.' || strchr(name, '/') || strchr(name, '\n')) return NULL;
    /* The marker's list is what lets a later run tell our leftovers from someone's files. */
    char line[MF__NAME_MAX + 2];
    memcpy(line, name, n);
    line[n] = '\n';
    if (write(w->marker_fd, line, n + 1) != (ssize_t)(n + 1)) return NULL;
    if (json_object_set_new(w->files, name, json_null()) != 0) return NULL;
    return mf__path_join(w->partial, name);
}

/* ---- experts ---- */

/* The layout of a set is that of its first layer; every later one must be the same. */
static mf_status same_experts(mf__native_writer *w, mf__expert_set *set, int layer, int n_experts, mf_error *err) {
    json_t *experts = mf__experts_to_json(&set->layout, n_experts);
    if (!experts) return mf__writer_no_memory(err);
    if (!set->json) {
        set->json = experts;
        return MF_OK;
    }
    bool same = json_equal(experts, set->json);
    json_decref(experts);
    if (same) return MF_OK;
    return mf__fail(err, MF_E_INVALID, "%s: the experts of layer %d are laid out unlike those before them", w->dir,
                    layer);
}

mf_status mf__native_writer_second_set(mf__native_writer *w, const mf__expert_layout *layout, mf_error *err) {
    if (w->sets[0].used)
        return mf__fail(err, MF_E_INTERNAL, "%s: a second set of experts is announced after the first layer", w->dir);
    MF__TRY(mf__expert_layout_check(layout, err));
    w->sets[1].used = true;
    w->sets[1].layout = *layout;
    return MF_OK;
}

/* Opens (or goes on with) one layer's file of one set, `done` experts being there already. */
static mf_status open_set(mf__native_writer *w, int i, int layer, int done, mf_error *err) {
    mf__expert_set *set = &w->sets[i];
    char name[32];
    snprintf(name, sizeof name, MF__EXPERT_FILE, layer);
    char *dir = mf__path_join(w->partial, set->dir), *path = dir ? mf__path_join(dir, name) : NULL;
    mf_status status = path ? mf__dir_make(dir, err) : mf__writer_no_memory(err);
    mf__strbuf_clear(&set->layer_hashes);
    if (status == MF_OK && done)
        status = mf__strbuf_append(&set->layer_hashes, w->layers[layer].hashes[i], (size_t)done * 16, err);
    if (status == MF_OK && done < w->n_experts) {
        if (w->journal_fd >= 0 && !done) unlink(path); /* what an interrupted run left of it */
        status = mf__outfile_open(path, done * set->layout.stride, &set->file, err);
        if (status == MF_OK && w->journal_fd >= 0) status = mf__dir_sync(dir, err);
    }
    free(path);
    free(dir);
    return status;
}

static mf_status experts_begin(mf__native_writer *w, int layer, const mf__expert_layout *layout, int n_experts,
                               mf_error *err) {
    if (w->in_layer)
        return mf__fail(err, MF_E_INTERNAL, "%s: layer %d begins while layer %d is not complete", w->dir, layer,
                        w->layer);
    if (layer < 0 || layer >= MF__LAYERS_MAX || n_experts < 1 || n_experts > MF__EXPERTS_MAX)
        return mf__fail(err, MF_E_INVALID, "%s: layer %d with %d experts is out of range", w->dir, layer, n_experts);
    MF__TRY(mf__expert_layout_check(layout, err));
    w->sets[0].layout = *layout;
    w->sets[0].used = true;
    w->n_experts = n_experts;
    w->layer = layer;
    w->next_expert = w->part_first = mf__native_writer_experts_done(w, layer);
    if (w->next_expert > n_experts)
        return mf__fail(err, MF_E_FORMAT, "%s: the journal has %d experts of layer %d, expected %d", w->partial,
                        w->next_expert, layer, n_experts);
    for (int i = 0; i < 2 && w->sets[i].used; i++) {
        MF__TRY(same_experts(w, &w->sets[i], layer, n_experts, err));
        MF__TRY(open_set(w, i, layer, w->next_expert, err));
    }
    w->in_layer = true;
    return MF_OK;
}

mf_status mf__native_writer_experts_begin(mf__native_writer *w, int layer, const mf__expert_layout *layout,
                                          int n_experts, mf_error *err) {
    return keep_failure(w, experts_begin(w, layer, layout, n_experts, err));
}

static mf_status put_run(mf__expert_set *set, const uint8_t *blobs, const uint64_t *hashes, int n, mf_error *err) {
    for (int i = 0; i < n; i++) {
        char hash[17];
        mf__hash_text(hashes[i], hash);
        MF__TRY(mf__strbuf_append(&set->layer_hashes, hash, 16, err));
    }
    return mf__outfile_append(&set->file, blobs, n * set->layout.stride, err);
}

static mf_status expert_run(mf__native_writer *w, const mf__expert_run *run, mf_error *err) {
    if (!w->in_layer || run->n > w->n_experts - w->next_expert || w->sets[1].used != (run->seconds != NULL))
        return mf__fail(err, MF_E_INTERNAL, "%s: expert %d of %d in layer %d is not expected", w->dir, w->next_expert,
                        w->n_experts, w->layer);
    MF__TRY(put_run(&w->sets[0], run->blobs, run->hashes, run->n, err));
    if (run->seconds) MF__TRY(put_run(&w->sets[1], run->seconds, run->second_hashes, run->n, err));
    w->pending_bytes += run->n * (w->sets[0].layout.stride + (run->seconds ? w->sets[1].layout.stride : 0));
    w->next_expert += run->n;
    return MF_OK;
}

mf_status mf__native_writer_expert_run(mf__native_writer *w, const mf__expert_run *run, mf_error *err) {
    return keep_failure(w, expert_run(w, run, err));
}

/* A copy that is padded to the stride. */
static uint8_t *padded(const mf__expert_layout *l, const void *blob) {
    uint8_t *copy = blob ? calloc(1, (size_t)l->stride) : NULL;
    if (copy) memcpy(copy, blob, (size_t)l->bytes);
    return copy;
}

mf_status mf__native_writer_expert_pair(mf__native_writer *w, const void *blob, const void *second, mf_error *err) {
    const mf__expert_layout *l = &w->sets[0].layout, *l2 = &w->sets[1].layout;
    if (!w->in_layer || (second && !w->sets[1].used))
        return keep_failure(w, mf__fail(err, MF_E_INTERNAL, "%s: expert %d of %d in layer %d is not expected", w->dir,
                                        w->next_expert, w->n_experts, w->layer));
    uint8_t *copies[2] = {padded(l, blob), padded(l2, second)};
    uint64_t hashes[2] = {mf__hash_bytes(blob, (size_t)l->bytes),
                          second ? mf__hash_bytes(second, (size_t)l2->bytes) : 0};
    mf__expert_run run = {
        .n = 1, .blobs = copies[0], .seconds = copies[1], .hashes = &hashes[0], .second_hashes = &hashes[1]};
    mf_status status = copies[0] && (copies[1] || !second) ? mf__native_writer_expert_run(w, &run, err)
                                                           : keep_failure(w, mf__writer_no_memory(err));
    free(copies[0]);
    free(copies[1]);
    return status;
}

mf_status mf__native_writer_expert(mf__native_writer *w, const void *blob, mf_error *err) {
    return mf__native_writer_expert_pair(w, blob, NULL, err);
}

static mf_status experts_end(mf__native_writer *w, mf_error *err) {
    if (!w->in_layer || w->next_expert != w->n_experts)
        return mf__fail(err, MF_E_INTERNAL, "%s: layer %d ends after %d of %d experts", w->dir, w->layer,
                        w->next_expert, w->n_experts);
    w->in_layer = false;
    char key[16];
    snprintf(key, sizeof key, "%d", w->layer);
    for (int i = 0; i < 2 && w->sets[i].used; i++) {
        mf__expert_set *set = &w->sets[i];
        MF__TRY(mf__outfile_close(&set->file, err));
        if (json_object_set_new(set->hashes, key, json_stringn(set->layer_hashes.data, set->layer_hashes.size)) != 0)
            return mf__writer_no_memory(err);
    }
    return MF_OK;
}

mf_status mf__native_writer_experts_end(mf__native_writer *w, mf_error *err) {
    return keep_failure(w, experts_end(w, err));
}
